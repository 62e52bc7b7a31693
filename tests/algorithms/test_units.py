"""In units of their own, algorithms do not notice in what units a task is written."""

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algd.algorithms import presets
from algd.types import Budget, EnvSpec, Lookahead, Transition
from support.plain import QUICK

SMALL = {"critic_hidden": 8, "batch_size": 32}
OWN_UNITS = {"normalise": True, "critics": "batch-norm", "dual_signal": "episodes"}
CASES = {
    "algd": {"score_hidden": 8, "embedding": 2, "denoise_steps": 3},
    "sac-lag": {"actor_hidden": 8, **OWN_UNITS},
    "sac-auglag": {"actor_hidden": 8, **OWN_UNITS, "critics": "plain"},
    "cal-quick": {"actor_hidden": 8, **OWN_UNITS, "dual_signal": "critics"},
}
ROUNDS, ROWS = 12, 32


def minibatches(reward, cost):
    rng = np.random.default_rng(0)

    def row(*size):
        return jnp.asarray(rng.normal(size=(ROUNDS, ROWS, *size)), jnp.float32)

    no = jnp.zeros((ROUNDS, ROWS), bool)
    # Two steps behind each, both discounts 0.99.
    by = jnp.full(no.shape, 0.9801)
    ahead = Lookahead(reward * row(), cost * jnp.abs(row(1)), cost * jnp.abs(row(1)), by, by)
    return Transition(
        obs=row(3),
        action=jnp.tanh(row(2)),
        reward=reward * row(),
        cost=cost * jnp.abs(row(1)),
        next_obs=row(3),
        terminated=jnp.asarray(rng.uniform(size=no.shape) < 0.1),
        truncated=no,
        goal_met=no,
        margin=row(1),
        extras={},
        ahead=ahead,
    )


@cache
def learning(algorithm):
    """Some rounds and an episode of this cost: one program, in whatever units the task is."""

    def learn(state, batches, keys, cost):
        step = lambda state, inputs: algorithm.update(state, *inputs)  # noqa: E731
        state, _ = jax.lax.scan(step, state, (batches, keys))
        return algorithm.feedback(state, cost, jnp.array([50]))

    return jax.jit(learn, compiler_options=QUICK)


def trained(algorithm, reward=1.0, cost=1.0):
    """A learner after some rounds and an episode, on a task written in these units."""
    spec = EnvSpec(3, (-1.0, -1.0), (1.0, 1.0), (Budget(cost * 20.0),), 50)
    init = jax.jit(lambda key: algorithm.init(spec, key), compiler_options=QUICK)
    keys = jax.random.split(jax.random.key(2), ROUNDS)
    data = minibatches(reward, cost)
    return learning(algorithm)(init(jax.random.key(1)), data, keys, jnp.full((1, 1), cost * 30.0))


@pytest.mark.parametrize("name", sorted(CASES))
def test_rewards_times_thousand_and_costs_in_cents_change_nothing_but_rounding(name):
    algorithm = replace(presets()[name], **SMALL, **CASES[name])
    plain, other = trained(algorithm), trained(algorithm, 1000.0, 0.01)
    obs = jnp.asarray(np.random.default_rng(3).normal(size=(64, 3)), jnp.float32)

    @partial(jax.jit, compiler_options=QUICK)
    def seen(state):
        keys = jax.random.split(jax.random.key(4), len(obs))
        act = lambda o, k: algorithm.act(state, o, k, "sampled")[0]  # noqa: E731
        actions = jax.vmap(act)(obs, keys)
        return actions, jax.vmap(lambda o, a: algorithm.assess(state, o, a))(obs, actions)

    (actions, expected), (other_actions, other_expected) = seen(plain), seen(other)
    # Single precision, rounded anew in each of the rounds; Adam's first steps depend on signs.
    np.testing.assert_allclose(other_actions, actions, atol=5e-3)
    np.testing.assert_allclose(other.dual.lam, plain.dual.lam, rtol=1e-3, atol=1e-5)
    size = np.abs(expected.value).max()
    np.testing.assert_allclose(other_expected.value / 1000.0, expected.value, atol=0.02 * size)
    size = np.abs(expected.cost).max()
    np.testing.assert_allclose(other_expected.cost * 100.0, expected.cost, atol=0.02 * size)
    assert np.any(np.abs(np.asarray(expected.cost)) > 0)


def test_raw_units_do_notice():
    """The opposite: otherwise the test above would prove nothing."""
    algorithm = replace(presets()["sac-lag"], **SMALL, actor_hidden=8)
    plain, other = trained(algorithm), trained(algorithm, 1000.0, 0.01)
    layers = zip(jax.tree.leaves(plain.actor), jax.tree.leaves(other.actor), strict=True)
    assert max(float(jnp.max(jnp.abs(a - b))) for a, b in layers) > 1e-3
