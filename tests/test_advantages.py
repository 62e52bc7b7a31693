"""Generalised advantage estimation, by hand and by its limits."""

import jax.numpy as jnp
import numpy as np

from algd.objectives.advantages import gae

NEVER = jnp.zeros(3, bool)
REWARD = jnp.array([1.0, 2.0, 3.0])
VALUES = jnp.array([0.5, -1.0, 2.0])
NEXT = jnp.array([-1.0, 2.0, 4.0])


def at(index):
    return NEVER.at[index].set(True)


def test_without_decay_it_is_the_temporal_difference():
    got = gae(REWARD, VALUES, NEXT, NEVER, NEVER, 0.9, 0.0)
    # Where terms of one cancel to -0.4, a fused product and sum shows.
    np.testing.assert_allclose(got, REWARD + 0.9 * NEXT - VALUES, rtol=1e-5)


def test_with_full_decay_it_is_the_return_less_the_value():
    got = gae(REWARD, VALUES, NEXT, NEVER, NEVER, 0.9, 1.0)
    tail = 3.0 + 0.9 * 4.0
    returns = [1.0 + 0.9 * (2.0 + 0.9 * tail), 2.0 + 0.9 * tail, tail]
    np.testing.assert_allclose(got, np.array(returns) - VALUES, rtol=1e-5)


def test_termination_has_no_future():
    got = gae(REWARD, VALUES, NEXT, at(1), NEVER, 0.9, 1.0)
    np.testing.assert_allclose(got[1], 2.0 - (-1.0), rtol=1e-6)
    np.testing.assert_allclose(got[0], 1.0 + 0.9 * 2.0 - 0.5, rtol=1e-6)


def test_truncation_bootstraps_but_ends_the_sum():
    got = gae(REWARD, VALUES, NEXT, NEVER, at(1), 0.9, 1.0)
    np.testing.assert_allclose(got[1], 2.0 + 0.9 * 2.0 - (-1.0), rtol=1e-6)
    later = gae(REWARD.at[2].set(100.0), VALUES, NEXT, NEVER, at(1), 0.9, 1.0)
    np.testing.assert_array_equal(got[:2], later[:2])
