"""Asking a policy: its modes, and what its critics foretell."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algd.evaluation.acting import act, best_of
from algd.types import Budget, EnvSpec, UserError
from support.scattered import scattered

SPEC = EnvSpec(
    5, (-1.0, -2.0), (1.0, 3.0), (Budget(3.0, "a"), Budget(1.0, "b", discounted=True)), 20
)
# How far actions of differently shaped programs may lie apart: sums of single precision, in another
# order at each of the denoising steps.
REORDERED = 1e-5
OBS = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)


@pytest.fixture(scope="module")
def policy():
    return scattered("algd-plain", SPEC)


def plain_forward(layers, x, activation):
    for layer in layers[:-1]:
        x = activation(x @ np.asarray(layer.weight) + np.asarray(layer.bias)[:, None])
    return x @ np.asarray(layers[-1].weight) + np.asarray(layers[-1].bias)[:, None]


def plain_critics(policy, obs, actions):
    """Q and the members' Q_c in plain NumPy."""
    state, inputs = policy.state, np.concatenate([obs, actions], axis=1).astype(np.float64)
    q = plain_forward(state.q.layers, inputs, lambda x: np.maximum(x, 0))[..., 0].min(axis=0)
    return q, plain_forward(state.qc.layers, inputs, lambda x: x / (1 + np.exp(-x)))


def plain_objective(policy, obs, actions):
    algorithm, state = policy.algorithm, policy.state
    q, qcs = plain_critics(policy, obs, actions)
    qc = qcs.mean(axis=0) + algorithm.cost_spread * qcs.std(axis=0, ddof=1)
    lam, limit, rho = np.asarray(state.dual.lam), np.asarray(state.limit), algorithm.rho
    hinge = np.maximum(lam + rho * (qc - limit), 0.0) ** 2 - lam**2
    return -q + hinge.sum(axis=1) / (2.0 * rho)


def draws(policy, rows, keys):
    """The algorithm's own sampled actions."""
    act = jax.vmap(lambda o, k: policy.algorithm.act(policy.state, o, k, "sampled")[0])
    return jax.jit(act)(rows, keys)


def test_best_is_the_candidate_of_lowest_augmented_lagrangian(policy):
    key = jax.random.key(7)
    candidates = np.asarray(draws(policy, jnp.tile(OBS[0], (8, 1)), jax.random.split(key, 8)))
    values = plain_objective(policy, np.tile(OBS[0], (8, 1)), candidates)
    best = best_of(policy.algorithm, policy.state, jnp.asarray(OBS[0]), key, 8)
    assert np.ptp(values) > 0.01
    np.testing.assert_allclose(best, candidates[np.argmin(values)], atol=REORDERED)


def test_one_candidate_is_an_ordinary_draw_and_draws_are_the_algorithms(policy):
    key, rows = jax.random.key(7), jnp.asarray(OBS)
    arguments = (policy.algorithm, policy.state, rows, key)
    sampled = act(*arguments, "sampled")[0]
    one_by_one = draws(policy, rows, jax.random.split(key, len(OBS)))
    np.testing.assert_allclose(sampled, one_by_one, atol=REORDERED)
    single = best_of(policy.algorithm, policy.state, rows[0], key, 1)
    np.testing.assert_allclose(
        single, draws(policy, rows[:1], jax.random.split(key, 1))[0], atol=REORDERED
    )


def test_info_tells_what_the_critics_expect(policy):
    actions, info = policy.predict(OBS, return_info=True)
    q, qcs = plain_critics(policy, OBS, actions)
    np.testing.assert_allclose(info.value, q, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(info.cost, qcs.mean(axis=0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(info.cost_spread, qcs.std(axis=0, ddof=1), rtol=1e-3, atol=1e-4)
    # 3 over 20 steps in discounted sums; a discounted budget as it is.
    np.testing.assert_allclose(info.limit, [3.0 * (1 - 0.99**20) / 0.01 / 20, 1.0], rtol=1e-6)
    np.testing.assert_array_equal(info.over_budget, qcs.mean(axis=0) > info.limit)
    action, single = policy.predict(OBS[2], return_info=True)
    np.testing.assert_allclose(action, actions[2], atol=REORDERED)
    assert single.value.shape == ()
    assert single.over_budget.shape == (2,)


def test_modes(policy):
    assert np.array_equal(policy.predict(OBS[0]), policy.predict(OBS[0], mode="deterministic"))
    for mode in ("sampled", "best"):
        draws = {tuple(policy.predict(OBS[0], mode=mode, candidates=3)) for _ in range(4)}
        assert len(draws) == 4
    assert policy.predict(OBS, mode="best", candidates=3).shape == (6, 2)
    for mistake in ({"mode": "bst"}, {"mode": "best", "candidates": 0}):
        with pytest.raises(UserError, match=r"deterministic, sampled, best|From 1 to 10,000"):
            policy.predict(OBS[0], **mistake)


def test_an_algorithm_without_such_critics_refuses():
    ppo = scattered("ppo-lag", SPEC)
    with pytest.raises(UserError, match="PPOLag has no critic of actions"):
        ppo.predict(OBS, mode="best")
    _, info = ppo.predict(OBS, return_info=True)
    assert info.cost.shape == (6, 2)
    assert not info.cost_spread.any()
    with pytest.raises(UserError, match="HJ has no critic of the cost"):
        scattered("hj", SPEC).predict(OBS, return_info=True)
