"""The multiplier that follows what episodes cost: where it comes to rest, and what it ignores."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algd.algorithms import presets
from algd.evaluation.acting import act, explore
from algd.evaluation.episodes import gone_on
from algd.networks.numpy_policy import NumpyPolicy
from algd.objectives.critic_learning import dimensionless
from algd.objectives.dual_ascent import LARGEST_EXCESS, dual_step, recent_excess
from algd.objectives.lagrangians import augmented_lagrangian
from algd.objectives.multipliers import ProjectedState
from algd.objectives.td_targets import cost_targets
from algd.types import Budget, EnvSpec, Transition
from support.plain import QUICK

SMALL = {"critic_hidden": 4, "score_hidden": 4, "embedding": 2, "denoise_steps": 3}


def begun(budgets, **options):
    """A small learner behind its first round, and its rule as a function of episodes."""
    algorithm = replace(presets()["algd"], **SMALL, **options)
    spec = EnvSpec(2, (-1.0,), (1.0,), tuple(budgets), 100)
    state = algorithm.init(spec, jax.random.key(0))
    feedback = jax.jit(algorithm.feedback)

    def told(state, costs, length=100):
        cost = jnp.asarray(costs, jnp.float32)
        return feedback(state, cost, jnp.full(len(cost), length))

    # Critics that expect so much leave the floor where the option has it.
    reach = None if state.reach is None else 9.0 + state.reach
    return algorithm, replace(state, rounds=jnp.asarray(1), reach=reach), told


@pytest.mark.parametrize("discounted", [False, True])
def test_episodes_come_to_cost_their_share_of_the_budget(discounted):
    """A task whose cost is known to the multiplier alone: J = 30 exp(-lam)."""
    algorithm, state, told = begun([Budget(10.0, discounted=discounted)], dual_rate=1e-3)
    for _ in range(600):
        cost = 30.0 * np.exp(-np.asarray(state.dual.lam))
        state = told(state, cost[None])
    aim = algorithm.budget_share * 10.0
    np.testing.assert_allclose(30.0 * np.exp(-np.asarray(state.dual.lam)), [aim], rtol=0.01)


def test_each_budget_has_a_loop_of_its_own():
    budgets = [Budget(10.0, "a"), Budget(1.0, "b", discounted=True)]
    algorithm, state, told = begun(budgets, dual_rate=1e-3)
    start = np.array([30.0, 8.0])
    for _ in range(800):
        state = told(state, (start * np.exp(-np.asarray(state.dual.lam)))[None])
    cost = start * np.exp(-np.asarray(state.dual.lam))
    np.testing.assert_allclose(cost, algorithm.budget_share * np.array([10.0, 1.0]), rtol=0.02)


def test_a_budget_of_zero_is_not_divided_by():
    _, state, told = begun([Budget(0.0)])
    quiet = told(state, [[0.0]])
    np.testing.assert_allclose(quiet.dual.lam, state.dual.lam)
    loud = told(state, [[1.0]])
    assert np.isfinite(loud.dual.lam).all()
    assert loud.dual.lam[0] > state.dual.lam[0]


def test_an_unused_budget_lowers_the_multiplier_to_its_floor_and_no_further():
    algorithm, state, told = begun([Budget(10.0)], dual_rate=0.01)
    for _ in range(20):
        state = told(state, [[0.0]])
    np.testing.assert_allclose(state.dual.lam, [algorithm.lam_floor * algorithm.rho], rtol=1e-6)
    _, plain, told = begun([Budget(10.0)], dual_rate=0.01, energy="plain")
    for _ in range(20):
        plain = told(plain, [[0.0]])
    np.testing.assert_array_equal(plain.dual.lam, [0.0])


@pytest.mark.parametrize("start", [-1.0, 0.2])
@pytest.mark.parametrize("reach", [-0.5, 0.3, 5.0])
def test_the_limit_is_relaxed_as_far_as_the_critics_expect_more_and_no_further(start, reach):
    """From either side, and no faster than the budget is answered."""
    algorithm, state, told = begun([Budget(10.0)], dual_rate=1e-4)
    state = replace(state, dual=ProjectedState(jnp.array([start])), reach=jnp.array([reach]))
    floor = max(-algorithm.rho * max(reach, 0.0), algorithm.lam_floor)
    once = float(told(state, [[0.0]]).dual.lam[0])
    assert abs(once - start) <= 1e-4 * 100 * LARGEST_EXCESS + 1e-6
    for _ in range(1_100):
        state = told(state, [[0.0]])
    np.testing.assert_allclose(state.dual.lam, [floor], atol=1e-5)
    # Who costs too much is answered as ever.
    state = replace(state, excess=jnp.zeros_like(state.excess))
    assert told(state, [[40.0]]).dual.lam[0] > state.dual.lam[0]


def test_reach_is_the_upper_twentieth_of_what_the_critics_expect():
    """Against NumPy, averaged over many steps of one and the same minibatch."""
    algorithm, state, _ = begun([Budget(10.0, "a"), Budget(5.0, "b")])
    qc = np.random.default_rng(0).gamma(2.0, size=(200, 2)).astype(np.float32)
    limit = dimensionless(algorithm, state)[2]
    step = jax.jit(lambda state: dual_step(algorithm, algorithm._dual, state, jnp.asarray(qc))[0])
    for _ in range(1_500):
        state = step(state)
    np.testing.assert_allclose(state.reach, np.quantile(qc, 0.95, axis=0) - limit, rtol=1e-3)


@pytest.mark.parametrize(("credit", "low", "high"), [(0.25, 1.15, 1.6), (0.125, 0.75, 1.05)])
def test_rare_large_costs_are_not_forgotten_before_the_next_one(credit, low, high):
    """One episode in ten costs ten budgets, the others half of one: their mean stays above the
    share of the budget that training is steered to if an unused budget counts for as much as an
    excess, and below it if it counts for less."""
    algorithm, state, told = begun([Budget(10.0)], dual_credit=credit, floor_follows=False)
    state = replace(state, dual=ProjectedState(jnp.array([0.3])))
    drawn = np.random.default_rng(0).random(3_000) < 0.1
    costs = []
    for disaster in drawn:
        scale = np.exp(-float(state.dual.lam[0]))
        costs.append(scale * (100.0 if disaster else 5.0))
        state = told(state, [[costs[-1]]], 400)
    aim = algorithm.budget_share * 10.0
    assert low < np.mean(costs[1_000:]) / aim < high


@pytest.mark.parametrize("credit", [0.25, 0.125])
def test_what_costs_the_same_each_time_comes_to_the_share_of_the_budget(credit):
    """Whatever an unused budget counts for."""
    algorithm, state, told = begun([Budget(10.0)], dual_credit=credit, dual_rate=1e-3)
    for _ in range(1_500):
        state = told(state, [[30.0 * np.exp(-float(state.dual.lam[0]))]])
    cost = 30.0 * np.exp(-float(state.dual.lam[0]))
    np.testing.assert_allclose(cost, algorithm.budget_share * 10.0, rtol=0.01)


def test_before_the_first_round_nothing_moves():
    _, state, told = begun([Budget(10.0)])
    fresh = replace(state, rounds=jnp.asarray(0))
    np.testing.assert_array_equal(told(fresh, [[100.0]]).dual.lam, fresh.dual.lam)


def test_short_episodes_weigh_by_their_steps_and_running_ones_not_at_all():
    """Against the same mean by hand; one disaster counts as ten budgets."""
    own, ended = jnp.array([[0.5], [-0.5], [50.0], [9.0]]), jnp.array([10, 20, 5, 0])
    excess = recent_excess(jnp.array([0.25]), own, ended, 70.0)
    mean = (10 * 0.5 + 20 * -0.5 + 5 * 10.0) / 35
    np.testing.assert_allclose(excess, [0.25 + (1 - np.exp(-0.5)) * (mean - 0.25)], rtol=1e-6)
    np.testing.assert_array_equal(recent_excess(excess, own, jnp.zeros(4, int), 70.0), excess)


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_the_multiplier_follows_who_costs_more(factor):
    """The learnt policy, in the first of three copies, costs half or twice what explorers do: in
    either case both come to keep the share of the budget, and one of them to spend it."""
    algorithm, state, told = begun([Budget(10.0)], dual_rate=1e-3, learnt_copies=1)
    for _ in range(600):
        cost = 30.0 * np.exp(-np.asarray(state.dual.lam))
        state = told(state, np.stack([factor * cost, cost, cost]))
    exploring = 30.0 * np.exp(-float(state.dual.lam[0]))
    aim = algorithm.budget_share * 10.0
    np.testing.assert_allclose(max(exploring, factor * exploring), aim, rtol=0.01)


def test_one_copy_at_least_explores():
    _, state, told = begun([Budget(10.0)], learnt_copies=3)
    _, plain, by_all = begun([Budget(10.0)])
    np.testing.assert_array_equal(told(state, [[40.0]]).dual.lam, by_all(plain, [[40.0]]).dual.lam)


def test_learnt_copies_act_as_the_policy_that_was_learnt():
    quiet = {"learnt_copies": 2, "exploration_noise": 0.0}
    algorithm, state, _ = begun([Budget(10.0)], **quiet)
    state = replace(state, average=jax.tree.map(lambda x: 0.5 * x, state.score))
    obs, key = jnp.ones((4, 2)), jax.random.key(5)
    actions, _ = explore(algorithm, state, obs, key, key, 0)
    exploring, _ = act(algorithm, state, obs, key, "exploring")
    learnt, _ = act(algorithm, state, obs[:2], jax.random.fold_in(key, 1), "deterministic")
    np.testing.assert_array_equal(actions, jnp.concatenate([learnt, exploring[2:]]))
    assert not np.array_equal(learnt, exploring[:2])


def test_rare_costs_count_by_their_mean():
    """One episode in ten costs nine budgets' shares: on average what it may, so the multiplier
    stays where it is, up to the ripple of the mean; a rule that cut each episode would let go."""
    _, state, told = begun([Budget(10.0)], dual_memory=100_000.0, dual_rate=1e-4)
    state = replace(state, dual=ProjectedState(jnp.array([1.0])))
    for i in range(400):
        state = told(state, [[90.0 if i % 10 == 5 else 0.0]])
    np.testing.assert_allclose(state.dual.lam, [1.0], atol=0.05)


@pytest.mark.parametrize("discount", [0.99, 1.0])
def test_who_falls_early_was_no_slower_for_it(discount):
    """Episodes at one and the same speed cost the same at the horizon, whenever they ended; a cost
    that is no rate is what it was."""
    kinds = ({"discounted": True, "rate": True}, {"rate": True}, {})
    budgets = tuple(Budget(1.0, name=str(i), **kind) for i, kind in enumerate(kinds))
    spec = EnvSpec(1, (-1.0,), (1.0,), budgets, 200)
    lengths = np.array([1, 50, 199, 200])
    discounted = [0.7 * np.sum(discount ** np.arange(n)) for n in lengths]
    costs = np.stack([discounted, 0.7 * lengths, 0.7 * lengths], axis=1)
    for xp in (np, jnp):
        steered = np.asarray(gone_on(xp.asarray(costs), xp.asarray(lengths), spec, discount, xp))
        np.testing.assert_allclose(steered[:, :2], costs[-1, :2] + 0.0 * costs[:, :2], rtol=1e-4)
        np.testing.assert_allclose(steered[:, 2], costs[:, 2], rtol=1e-6)


def test_in_the_critics_eyes_a_rate_goes_on_behind_the_end():
    """c + gamma c + gamma^2 c + ... for a terminal step; a cost that is no rate ends with it, and
    the rest of the rows bootstrap as ever."""
    cost, following = jnp.full((2, 2), 3.0), jnp.full((1, 2, 2), 10.0)
    afterwards = jnp.array([3.0 / (1.0 - 0.9), 0.0]) * jnp.ones((2, 1))
    found = cost_targets(cost, jnp.array([0.0, 1.0]), 0.9, following, afterwards)
    np.testing.assert_allclose(found[0], [[3.0 / (1.0 - 0.9), 3.0], [12.0, 12.0]], rtol=1e-5)
    for go_on in (False, True):
        rate = Budget(10.0, discounted=True, rate=True)
        _, state, _ = begun([rate, Budget(10.0, name="b")], rates_go_on=go_on)
        np.testing.assert_array_equal(state.goes_on, [go_on, False])
    _, state, _ = begun([rate], cost_discount=1.0)
    np.testing.assert_array_equal(state.goes_on, [False])


def test_a_multiplier_below_zero_is_a_higher_limit():
    """From lam = -1 on, an action that costs less than twice the limit is weighed by its reward
    alone; one that costs more is not."""
    algorithm, state, _ = begun([Budget(10.0)])
    assert float(state.dual.lam[0]) == -1.0
    lagrangian = lambda cost: augmented_lagrangian(  # noqa: E731
        jnp.zeros(()), jnp.full(1, cost), state.dual.lam, jnp.ones(1), algorithm.rho
    )
    assert float(lagrangian(1.9)) == float(lagrangian(0.0))
    assert float(lagrangian(2.1)) > float(lagrangian(0.0))


def test_who_chooses_among_actions_goes_by_the_budget_itself():
    """A multiplier below zero lets learning use more than the budget; choosing does not."""
    algorithm, state, _ = begun([Budget(10.0)])
    at = lambda lam: replace(state, dual=ProjectedState(jnp.array([lam])))  # noqa: E731
    rows = (jnp.ones(2), jnp.ones(1))
    below, zero, above = (float(algorithm.objective(at(lam), *rows)) for lam in (-1.0, 0.0, 0.5))
    assert below == zero != above
    exported = [algorithm.portable(at(lam)).critics.lam for lam in (-1.0, 0.5)]
    np.testing.assert_array_equal(exported, [[0.0], [0.5]])


def test_a_limit_has_no_unit_of_return():
    """Above zero the multiplier weighs cost against return and moves with their units; below zero
    it is a limit, and stays."""
    lam = ProjectedState(jnp.array([-0.5, 0.0, 2.0])).scaled(jnp.full(3, 0.1)).lam
    np.testing.assert_allclose(lam, [-0.5, 0.0, 0.2])


def test_the_average_of_the_score_network_is_the_policy_and_the_last_one_explores():
    """By hand: it follows each step of the network by its share, and both forms act by it."""
    options = {**SMALL, "averaging": 0.75, "policy_every": 1, "deterministic": "zero-noise"}
    algorithm = replace(presets()["algd"], **options)
    spec = EnvSpec(2, (-1.0,), (1.0,), (Budget(10.0),), 100)
    state = algorithm.init(spec, jax.random.key(0))
    rows = jax.random.normal(jax.random.key(1), (8, 2))
    batch = Transition(
        obs=rows,
        action=jnp.zeros((8, 1)),
        reward=rows[:, 0],
        cost=jnp.ones((8, 1)),
        next_obs=-rows,
        terminated=jnp.zeros(8, bool),
        truncated=jnp.zeros(8, bool),
        goal_met=jnp.zeros(8, bool),
        margin=jnp.zeros((8, 1)),
        extras={},
    )
    expected, update = state.average, jax.jit(algorithm.update, compiler_options=QUICK)
    for i in range(3):
        state, _ = update(state, batch, jax.random.key(i))
        expected = jax.tree.map(lambda old, new: 0.75 * old + 0.25 * new, expected, state.score)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), state.average, expected)
    last = replace(state, average=state.score)
    act = lambda state, mode="deterministic": algorithm.act(  # noqa: E731
        state, rows[0], jax.random.key(0), mode
    )[0]
    assert float(abs(act(state) - act(last))[0]) > 0.0
    assert act(state, "exploring") == act(last, "exploring") != act(state, "sampled")
    portable = NumpyPolicy(algorithm.portable(state)).predict(np.asarray(rows[0]))
    np.testing.assert_allclose(portable, act(state), atol=1e-5)
