"""What every preset must do: compile once, vmap over seeds, scan, save and load, stay finite."""

import dataclasses
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algd.algorithms import presets
from algd.runs.checkpoint import from_arrays, to_arrays
from algd.runs.files import read_arrays, write_arrays
from algd.training.updates import rounds_due
from algd.types import Algorithm, Budget, EnvSpec, Transition
from support.plain import QUICK

# Two constraints: one budget on the discounted cost, one on the plain.
SPEC = EnvSpec(4, (-1.0, -2.0), (1.0, 3.0), (Budget(3.0), Budget(1.0, "b", discounted=True)), 20)
SIZES = {
    "critic_hidden": 4,
    "score_hidden": 4,
    "actor_hidden": 4,
    "embedding": 2,
    # A first, a last and one between: each step of the chain is compiled by itself.
    "denoise_steps": 3,
    "batch_size": 4,
    "cost_ensemble": 2,
    "safety_ensemble": 2,
    "mc_samples": 2,
    "passes": 2,
    "minibatch": 4,
    "rollout_steps": 8,
}
SEEDS, UPDATES = 2, 3


@cache
def small(name):
    algorithm = presets()[name]
    known = {field.name for field in dataclasses.fields(algorithm)}
    return dataclasses.replace(algorithm, **{k: v for k, v in SIZES.items() if k in known})


def transitions(algorithm, state, seed):
    """Random data for every seed and update: `[seeds, updates, ...]`."""
    shape = (SEEDS, UPDATES, *((4, 2) if algorithm.data == "rollout" else (4,)))
    draw = np.random.default_rng(seed)
    normal = lambda *size: jnp.asarray(  # noqa: E731
        draw.normal(size=(*shape, *size)), jnp.float32
    )
    cost = jnp.abs(normal(2))
    act = lambda obs, key: algorithm.act(state, obs, key, "sampled")  # noqa: E731
    _, described = jax.eval_shape(act, jnp.zeros(4), jax.random.key(0))
    extras = {name: normal(*leaf.shape) for name, leaf in described.items()}
    if algorithm.data == "rollout":
        extras |= {"cost_so_far": 5.0 * cost, "keep": jnp.ones(cost.shape[:-1], bool)}
    ended = draw.uniform(size=(3, *shape)) < 0.3
    return Transition(
        obs=normal(4),
        action=jnp.tanh(normal(2)),
        reward=normal(),
        cost=cost,
        next_obs=normal(4),
        terminated=jnp.asarray(ended[0]),
        truncated=jnp.asarray(ended[1] & ~ended[0]),
        goal_met=jnp.asarray(ended[2]),
        margin=cost - 0.5,
        extras=extras,
    )


class Program:
    """Some updates of one preset in a scan, for several seeds at once, compiled as one program."""

    def __init__(self, name):
        self.algorithm = small(name)
        self.traces = 0
        self.run = jax.jit(jax.vmap(self._run), compiler_options=QUICK)
        self.keys = jax.random.split(jax.random.key(0), SEEDS)
        init = jax.vmap(lambda key: self.algorithm.init(SPEC, key))
        self.states = jax.jit(init, compiler_options=QUICK)(self.keys)
        self.data = transitions(self.algorithm, of_seed(self.states, 0), 0)

    def _run(self, state, data, key):
        self.traces += 1
        step = lambda state, inputs: self.algorithm.update(state, *inputs)  # noqa: E731
        return jax.lax.scan(step, state, (data, jax.random.split(key, UPDATES)))


def shape_of(name):
    """What decides which program is compiled: everything but the size of the numbers."""
    algorithm = small(name)
    values = [getattr(algorithm, field.name) for field in dataclasses.fields(algorithm)]
    return type(algorithm), *(v == 0 if type(v) in (int, float) else v for v in values)


# One preset for each different program.
DISTINCT = {shape_of(name): name for name in sorted(presets(), reverse=True)}


# One for each kind of state; the others have the same with another update.
KINDS = (
    "algd",
    "algd-paper",
    "algd-plain",
    "cal",
    "hj",
    "lgd",
    "ppo-lag",
    "ppo-lag-pid",
    "sac-auglag-scaled",
    "sac-lag",
    "sac-lag-scaled",
)
program = cache(Program)
distinct = pytest.mark.parametrize("name", sorted(DISTINCT.values()))


def kind(states):
    """Structure, shapes and types."""
    leaves, structure = jax.tree.flatten(states)
    return structure, tuple((x.shape, x.dtype, x.weak_type) for x in leaves)


def of_seed(states, i):
    return jax.tree.map(lambda x: jnp.asarray(np.asarray(x)[i]), states)


def same(one, other):
    pairs = zip(*(jax.tree.leaves(jax.device_get(x)) for x in (one, other)), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("name", sorted(presets()))
def test_it_is_an_algorithm(name):
    algorithm = small(name)
    assert isinstance(algorithm, Algorithm)
    wanted = {"discount", "cost_discount", "critic_hidden"}
    if algorithm.data == "replay":
        wanted |= {"batch_size", "replay_size", "prefill", "updates_per_step", "throttle"}
    else:
        wanted |= {"rollout_steps"}
    assert wanted <= {field.name for field in dataclasses.fields(algorithm)}
    assert hash(algorithm) == hash(dataclasses.replace(algorithm))


@distinct
def test_it_scans_and_vmaps_and_keeps_the_kind_of_its_state(name):
    ours = program(name)
    # A weak type would become a strong one in the first update and compile the second anew.
    assert not any(x.weak_type for x in jax.tree.leaves(ours.states))
    states, metrics = jax.eval_shape(ours.run, ours.states, ours.data, ours.keys)
    assert kind(states) == kind(ours.states)
    for name in ("lam", "violation"):
        assert metrics[name].shape == (SEEDS, UPDATES, len(SPEC.budgets))
    assert kind(states) in [kind(program(other).states) for other in KINDS]


@pytest.mark.parametrize("name", KINDS)
def test_it_stays_finite_repeats_and_survives_a_file(name, tmp_path):
    ours = program(name)
    run, data, keys = ours.run, ours.data, ours.keys
    states, metrics = run(ours.states, data, keys)
    for leaf in jax.tree.leaves((states, metrics)):
        assert leaf.shape[0] == SEEDS
        assert np.isfinite(leaf).all()
    # Below zero only where that is meant, as a limit above the budget.
    slack = getattr(presets()[name], "initial_lam", 0.0) < 0
    assert slack or (metrics["lam"] >= 0).all()
    assert (metrics["violation"] >= 0).all()
    assert not same(*(of_seed(states, i) for i in range(SEEDS)))

    # The same again, to the last bit; and on, from what a file kept of it.
    assert same((states, metrics), run(ours.states, data, keys))
    write_arrays(tmp_path / "states", to_arrays(states), "0" * 32)
    loaded = from_arrays(ours.states, read_arrays(tmp_path / "states", "0" * 32))
    assert same(run(states, data, keys), run(loaded, data, keys))
    assert ours.traces == 1

    assert not any(jnp.issubdtype(x.dtype, jax.dtypes.prng_key) for x in jax.tree.leaves(states))


@distinct
def test_actions_stay_in_their_box(name):
    algorithm, state = program(name).algorithm, of_seed(program(name).states, 0)

    def choices(obs, key):
        sampled = algorithm.act(state, obs, key, "sampled")[0]
        certain = algorithm.act(state, obs, key, "deterministic")[0]
        return sampled, certain, algorithm.assess(state, obs, sampled)

    obs = jnp.asarray(np.random.default_rng(0).normal(0.0, 5.0, (20, 4)), jnp.float32)
    keys = jax.random.split(jax.random.key(0), 20)
    every = jax.jit(jax.vmap(choices), compiler_options=QUICK)
    *actions, assessment = every(obs, keys)
    for action in actions:
        assert (np.array(SPEC.action_low) <= action).all()
        assert (action <= np.array(SPEC.action_high)).all()
    assert np.isfinite(assessment.value).all()
    assert assessment.cost.shape == assessment.cost_spread.shape == (20, 2)


@pytest.mark.parametrize(("ratio", "expected"), [(10.0, [5, 10, 10, 10]), (20.0, [5, 10, 15, 20])])
def test_the_throttle_gives_the_authors_averages(ratio, expected):
    horizon, averages = 400, []
    for epoch in range(4):
        done = 0
        for i in range(horizon):
            before = epoch * horizon + i
            done += rounds_due(ratio, 5, horizon, before, before + 1, done)
        averages.append(done / horizon)
    np.testing.assert_allclose(averages, expected, atol=2 * ratio / horizon)
