"""Targets and ensembles against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np

from algd.critics import clipped_value, pessimistic_cost, polyak, squared_error, td_target


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


def test_clipped_value_takes_the_smaller():
    qs = jnp.array([[1.0, 5.0], [2.0, 3.0]])
    np.testing.assert_array_equal(clipped_value(qs), [1.0, 3.0])


def test_squared_error_per_member():
    got = squared_error(jnp.array([[1.0, 2.0], [0.0, 0.0]]), jnp.zeros((2, 2)))
    np.testing.assert_allclose(got, [2.5, 0.0])


def test_polyak_keeps_the_fixed_point():
    tree = {"a": jnp.arange(3.0)}
    moved = polyak({"a": jnp.zeros(3)}, tree, 0.25)
    np.testing.assert_allclose(moved["a"], [0, 0.25, 0.5])
    np.testing.assert_array_equal(polyak(tree, tree, 0.3)["a"], tree["a"])
