"""Targets and ensembles against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np

from algd.networks.critics import CriticEnsemble
from algd.networks.layers import xavier_uniform
from algd.objectives.td_targets import (
    clipped_value,
    double_q_target,
    for_ever,
    next_cost,
    pessimistic_cost,
    polyak,
    td_regression,
    td_target,
)
from algd.profiling.update import example_batch
from algd.types import Budget, EnvSpec


def test_pessimistic_cost_is_mean_plus_unbiased_spread():
    qcs = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)
    expected = qcs.mean(0) + 0.7 * qcs.std(0, ddof=1)
    np.testing.assert_allclose(pessimistic_cost(jnp.asarray(qcs), 0.7), expected, rtol=1e-5)


def test_one_member_has_no_spread():
    qcs = jnp.ones((1, 3))
    np.testing.assert_array_equal(pessimistic_cost(qcs, 5.0), np.ones(3))


def test_gradient_where_all_members_agree_is_finite():
    grad = jax.grad(lambda q: jnp.sum(pessimistic_cost(q, 1.0)))(jnp.ones((4, 3)))
    np.testing.assert_allclose(grad, np.full((4, 3), 0.25), rtol=1e-6)


def test_td_target_masks_the_future():
    target = td_target(jnp.array([1.0, 1.0]), jnp.array([1.0, 0.0]), 0.9, jnp.array([10.0, 10.0]))
    np.testing.assert_allclose(target, [10.0, 1.0], rtol=1e-6)


def test_no_stream_of_seen_rewards_is_worth_more_than_its_bounds():
    rewards = np.random.default_rng(1).uniform(-2.0, 3.0, (50, 2_000))
    returns = rewards @ 0.99 ** np.arange(2_000)
    low, high = for_ever(jnp.asarray(rewards.min()), jnp.asarray(rewards.max()), 0.99)
    assert low < returns.min() < returns.max() < high
    # The largest reward in every step is the bound itself.
    np.testing.assert_allclose(high, rewards.max() * np.sum(0.99 ** np.arange(5_000)), rtol=1e-5)
    assert for_ever(low, high, 1.0) == (-np.inf, np.inf)


def test_what_critics_believe_beyond_the_bounds_is_not_learnt_from():
    believed = jnp.asarray([[[1e6], [5.0], [-1e6]], [[2e6], [6.0], [-2e6]]])
    y = double_q_target(jnp.ones(3), jnp.ones(3), 0.5, bounds=(-10.0, 8.0))(believed)
    np.testing.assert_allclose(y[0, :, 0], [1.0 + 4.0, 1.0 + 2.5, 1.0 - 5.0])
    np.testing.assert_allclose(next_cost(believed, False, (0.0, 7.0))[1, :, 0], [7.0, 6.0, 0.0])


def test_clipped_value_takes_the_smaller():
    qs = jnp.array([[1.0, 5.0], [2.0, 3.0]])
    np.testing.assert_array_equal(clipped_value(qs), [1.0, 3.0])


def test_losses_member_by_member_are_those_of_the_whole_ensemble():
    """Summed over the double critic; over the cost ensemble the mean, summed over constraints."""
    batch = example_batch(EnvSpec(3, (-1.0,), (1.0,), (Budget(1.0), Budget(2.0, "b")), 10), 8)
    draw = np.random.default_rng(0)
    for members, outputs, activation in ((2, 1, "relu"), (4, 2, "silu")):
        key = jax.random.key(members)
        critics = CriticEnsemble.create(
            members, 3, 1, (5, 5), outputs, activation, xavier_uniform, key
        )
        targets = jnp.asarray(draw.normal(size=(members, 8, outputs)), jnp.float32)
        weight = 1.0 / 8 if outputs == 1 else 1.0 / (8 * members)

        following = critics(batch.next_obs, batch.action)

        def whole(critics, targets=targets + 0.5 * following, weight=weight):
            values = critics(batch.obs, batch.action)
            return weight * jnp.sum((values - targets) ** 2)

        def regress(critics, targets=targets, weight=weight):
            ahead = lambda next_values: targets + 0.5 * next_values  # noqa: E731
            return td_regression(critics, critics, batch, batch.action, ahead, weight)

        found = jax.jit(regress)(critics)
        loss, grads = jax.jit(jax.value_and_grad(whole))(critics)
        # Sums over members and rows in single precision, in either order.
        np.testing.assert_allclose(found.loss, loss, rtol=1e-5)
        for one, other in zip(jax.tree.leaves(found.grads), jax.tree.leaves(grads), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_polyak_keeps_the_fixed_point():
    tree = {"a": jnp.arange(3.0)}
    moved = polyak({"a": jnp.zeros(3)}, tree, 0.25)
    np.testing.assert_allclose(moved["a"], [0, 0.25, 0.5])
    np.testing.assert_array_equal(polyak(tree, tree, 0.3)["a"], tree["a"])
