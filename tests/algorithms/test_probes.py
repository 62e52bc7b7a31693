"""Tiny problems whose values are known: do the critics of each algorithm learn them?

Three states, seen as one-hot vectors; actions change nothing. 0 leads to 1 (reward 0, cost 0), 1
ends (reward 1, cost 2, constraint violated); 2 leads to itself for ever (reward 1, cost 0.5, safe
by 0.5), now and then cut by a time limit that must not count.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algd.algorithms.algd import ALGD
from algd.algorithms.hj import HJ
from algd.algorithms.ppo_lag import PPOLag
from algd.algorithms.sac_lag import PRESETS, SACLag
from algd.training.replay import add, init_replay
from algd.training.updates import gradient_rounds
from algd.types import Budget, EnvSpec, Transition
from support.plain import QUICK, start

SPEC = EnvSpec(3, (-1.0,), (1.0,), (Budget(10.0),), 20)
GAMMA, COST_GAMMA, SAFETY_GAMMA = 0.6, 0.5, 0.8
REWARD, COST, MARGIN = jnp.array([[0.0, 1.0, 1.0], [0.0, 2.0, 0.5], [-1.0, 1.0, -0.5]])
Q = [GAMMA, 1.0, 1.0 / (1.0 - GAMMA)]
QC = [2.0 * COST_GAMMA, 2.0, 0.5 / (1.0 - COST_GAMMA)]
QH = [2.0 * SAFETY_GAMMA - 1.0, 1.0, -0.5]
FAST = {
    "discount": GAMMA,
    "cost_discount": COST_GAMMA,
    "critic_rate": 3e-3,
    "polyak": 0.2,
    "critic_hidden": 32,
}
# As good as no entropy bonus, which would be part of the soft value.
CERTAIN = {"initial_alpha": 1e-6, "alpha_rate": 1e-9, "actor_hidden": 16}
LEARNERS = {
    "algd": ALGD(**FAST, score_hidden=8, cost_ensemble=2, mc_samples=2),
    "cal": replace(PRESETS["cal-quick"], **FAST, **CERTAIN, cost_floor=False, cost_ensemble=2),
    "sac-lag": SACLag(**FAST, **CERTAIN, cost_ensemble=2),
    "sac-auglag": SACLag(energy="augmented", **FAST, **CERTAIN, cost_ensemble=2),
    "hj": HJ(
        **FAST,
        **CERTAIN,
        safety_discount=SAFETY_GAMMA,
        safety_ensemble=2,
        actor_every=1,
        multiplier_every=3,
    ),
}
STATES = jnp.eye(3)


def steps(state, draw):
    """Transitions out of these states, under random actions."""
    shape = state.shape
    following = np.array([1, 1, 2])[state]
    at_random = lambda: jnp.asarray(draw.uniform(size=shape) < 0.3)  # noqa: E731
    return Transition(
        obs=STATES[state],
        action=jnp.asarray(draw.uniform(-1, 1, (*shape, 1)), jnp.float32),
        reward=REWARD[state],
        cost=COST[state][..., None],
        next_obs=STATES[following],
        terminated=jnp.asarray(state == 1),
        truncated=jnp.asarray(state == 2) & at_random(),
        goal_met=at_random(),
        margin=MARGIN[state][..., None],
        extras={},
    )


@pytest.mark.parametrize("name", LEARNERS)
def test_replay_learners_find_the_values(name):
    algorithm = LEARNERS[name]
    draw = np.random.default_rng(0)
    batch = steps(np.arange(30) % 3, draw)

    @partial(jax.jit, compiler_options=QUICK)
    def learn(state, key):
        step = lambda s, k: (algorithm.update(s, batch, k)[0], None)  # noqa: E731
        return jax.lax.scan(step, state, jax.random.split(key, 800))[0]

    state = learn(start(algorithm, SPEC), jax.random.key(1))
    action = jnp.zeros((3, 1))
    assessment = jax.vmap(lambda o, a: algorithm.assess(state, o, a))(STATES, action)
    np.testing.assert_allclose(assessment.value, Q, atol=0.08)
    if name == "hj":
        qh = state.qh(STATES, action)[..., 0].mean(axis=0)
        np.testing.assert_allclose(qh, QH, atol=0.08)
    else:
        np.testing.assert_allclose(assessment.cost[:, 0], QC, atol=0.08)


@pytest.mark.parametrize("name", ["algd", "sac-lag"])
def test_learners_that_look_ahead_find_them_too(name):
    """From a buffer in which one copy goes through 0, 1, 0, 1, ... and one stays in 2."""
    algorithm = replace(LEARNERS[name], n_step=3, batch_size=30)
    draw = np.random.default_rng(0)
    state = np.stack([np.arange(40) % 2, np.full(40, 2)], axis=1)
    rows = jax.tree.map(lambda x: x.reshape(80, *x.shape[2:]), steps(state, draw))
    replay = init_replay(jax.tree.map(lambda x: x[0], rows), 80)
    replay = add(replay, rows, jnp.ones(80, bool))

    @partial(jax.jit, compiler_options=QUICK)
    def learn(state, key):
        return gradient_rounds(algorithm, state, replay, key, 800, copies=2)[0]

    state = learn(start(algorithm, SPEC), jax.random.key(1))
    action = jnp.zeros((3, 1))
    assessment = jax.vmap(lambda o, a: algorithm.assess(state, o, a))(STATES, action)
    np.testing.assert_allclose(assessment.value, Q, atol=0.08)
    np.testing.assert_allclose(assessment.cost[:, 0], QC, atol=0.08)


def test_ppo_finds_the_values():
    ppo = PPOLag(
        discount=GAMMA,
        cost_discount=COST_GAMMA,
        critic_rate=3e-3,
        critic_decay=0.0,
        passes=5,
        minibatch=16,
        target_kl=1e9,
        actor_rate=1e-6,
        critic_hidden=32,
        actor_hidden=16,
    )
    draw = np.random.default_rng(0)
    # Two copies go through 0, 1, 0, 1, ..., two stay in 2.
    state = np.stack([np.arange(16) % 2, np.arange(16) % 2, *(np.full(16, 2),) * 2], axis=1)
    batch = steps(state, draw)
    one_by_one = lambda f: jax.vmap(jax.vmap(f, (None, 0, 0)), (None, 0, 0))  # noqa: E731
    choose = one_by_one(lambda s, o, k: ppo.act(s, o, k, "sampled"))

    @partial(jax.jit, compiler_options=QUICK)
    def learn(state, key):
        def one(state, key):
            act_key, update_key = jax.random.split(key)
            action, extras = choose(state, batch.obs, jax.random.split(act_key, (16, 4)))
            extras = {**extras, "cost_so_far": batch.cost, "keep": jnp.ones_like(batch.terminated)}
            rollout = replace(batch, action=action, extras=extras)
            return ppo.update(state, rollout, update_key)[0], None

        return jax.lax.scan(one, state, jax.random.split(key, 80))[0]

    learnt = learn(start(ppo, SPEC), jax.random.key(1))
    assessment = jax.vmap(lambda o: ppo.assess(learnt, o, jnp.zeros(1)))(STATES)
    np.testing.assert_allclose(assessment.value, Q, atol=0.08)
    np.testing.assert_allclose(assessment.cost[:, 0], QC, atol=0.08)
