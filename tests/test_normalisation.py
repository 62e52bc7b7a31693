"""The units that learning measures its data by."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from algd.objectives.normalisation import (
    LEAST_BUDGET,
    MEMORY,
    VARIANCE_FLOOR,
    WINDOW,
    Units,
    return_size,
)
from algd.types import Transition

OBS, ROWS = 3, 16


def minibatch(rng, reward_scale=1.0, cost_scale=1.0, obs_mean=5.0):
    row = lambda *shape: jnp.asarray(rng.normal(size=(ROWS, *shape)), jnp.float32)  # noqa: E731
    no = jnp.zeros(ROWS, bool)
    obs = obs_mean + row(OBS) * jnp.asarray([0.1, 1.0, 100.0])
    return Transition(
        obs=obs,
        action=row(2),
        reward=reward_scale * row(),
        cost=cost_scale * jnp.abs(row(1)),
        next_obs=obs,
        terminated=no,
        truncated=no,
        goal_met=no,
        margin=row(1),
        extras={},
    )


def observed(batches):
    units = Units.create(OBS, 1)
    for batch in batches:
        units = units.observe(batch, 0.99)
    return units


def test_moments_are_those_of_all_minibatches_together():
    rng = np.random.default_rng(0)
    batches = [minibatch(rng, obs_mean=mean) for mean in (1.0, 5.0, -3.0, 2.0)]
    units = observed(batches)
    obs = np.concatenate([batch.obs for batch in batches]).astype(np.float64)
    np.testing.assert_allclose(units.obs_mean, obs.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(units.obs_variance, obs.var(axis=0), rtol=1e-5)
    reward = np.concatenate([batch.reward for batch in batches]).astype(np.float64)
    np.testing.assert_allclose(units.reward_square, np.mean(reward**2), rtol=1e-5)
    standard = np.asarray(units.standardise(jnp.asarray(obs, jnp.float32)))
    expected = (obs - obs.mean(axis=0)) / np.sqrt(obs.var(axis=0) + VARIANCE_FLOOR)
    np.testing.assert_allclose(standard, expected, rtol=1e-4, atol=1e-5)


def test_extremes_are_those_of_all_minibatches_and_of_nothing():
    rng = np.random.default_rng(5)
    batches = [minibatch(rng, scale) for scale in (1.0, 3.0, 0.1)]
    units = observed(batches)
    rewards = np.concatenate([batch.reward for batch in batches])
    assert (units.reward_low, units.reward_high) == (rewards.min(), rewards.max())
    assert units.cost_high[0] == max(float(batch.cost.max()) for batch in batches)
    # After an end there is nothing, which is more than any of these rewards.
    losses = observed([replace(batch, reward=-1.0 - batch.reward**2) for batch in batches])
    assert losses.reward_high == 0.0 > losses.reward_low


def test_a_window_forgets():
    rng = np.random.default_rng(1)
    units = observed([minibatch(rng, obs_mean=0.0)])
    units = replace(units, count=jnp.asarray(WINDOW))
    later = minibatch(rng, obs_mean=10.0)
    moved = units.observe(later, 0.99)
    mean = np.asarray(units.obs_mean)
    expected = mean + (np.asarray(later.obs).mean(axis=0) - mean) / WINDOW
    np.testing.assert_allclose(moved.obs_mean, expected, rtol=1e-5)


def test_before_the_first_minibatch_everything_stays_raw():
    units = Units.create(OBS, 1)
    obs = jnp.asarray([1.0, -2.0, 3.0])
    np.testing.assert_array_equal(units.standardise(obs), obs)
    assert units.reward_unit == 1.0


def test_observations_stay_raw_where_only_signals_are_measured():
    rng = np.random.default_rng(4)
    units, both = Units.create(OBS, 1, standardise=False), Units.create(OBS, 1)
    for batch in [minibatch(rng, obs_mean=7.0) for _ in range(3)]:
        units, both = units.observe(batch, 0.99), both.observe(batch, 0.99)
    obs = jnp.asarray([1.0, -2.0, 3.0])
    np.testing.assert_array_equal(units.standardise(obs), obs)
    assert units.reward_unit == both.reward_unit != 1.0


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_units_scale_with_what_they_measure(scale):
    plain = observed([minibatch(np.random.default_rng(2)) for _ in range(3)])
    scaled = observed([minibatch(np.random.default_rng(2), scale, scale) for _ in range(3)])
    np.testing.assert_allclose(scaled.reward_unit, scale * plain.reward_unit, rtol=1e-4)
    limit = jnp.asarray([2.0])
    np.testing.assert_allclose(
        scaled.cost_unit(scale * limit, 0.99), scale * plain.cost_unit(limit, 0.99), rtol=1e-5
    )


def test_costs_are_measured_by_the_limit_or_if_it_is_tiny_by_what_is_usual():
    units = observed([minibatch(np.random.default_rng(3))])
    usual = np.sqrt(np.asarray(units.cost_square)) / 0.01
    np.testing.assert_allclose(units.cost_unit(jnp.asarray([50.0]), 0.99), [50.0], rtol=1e-5)
    for tiny in (0.0, 1e-9):
        np.testing.assert_allclose(
            units.cost_unit(jnp.asarray([tiny]), 0.99), LEAST_BUDGET * usual, rtol=1e-4
        )
    nothing = Units.create(OBS, 1)
    np.testing.assert_allclose(
        nothing.cost_unit(jnp.zeros(1), 0.99), [100 * LEAST_BUDGET], rtol=1e-4
    )


@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 1.0), (0.5, 0.1)])
def test_rewards_are_measured_by_the_size_of_a_return(mean, deviation):
    """Sums of discounted draws, made in NumPy."""
    rng, discount = np.random.default_rng(4), 0.9
    rewards = mean + deviation * rng.normal(size=(4_000, 200))
    drawn = jnp.asarray(rewards[:, 0], jnp.float32)
    returns = rewards @ discount ** np.arange(200)
    found = return_size(jnp.mean(drawn), jnp.mean(drawn**2), discount)
    size = np.sqrt(np.mean(returns**2))
    np.testing.assert_allclose(found, (1.0 - discount) * size, rtol=0.05)


def test_the_unit_of_rewards_is_not_lost_where_their_mean_passes_zero():
    """From losses of 1 to gains of 1 in small steps: the mean alone would be a unit of nothing."""
    rewards = np.linspace(-1.0, 1.0, 401)
    batch, units = minibatch(np.random.default_rng(5)), Units.create(OBS, 1)
    sizes, unit_of_now = [], []
    for reward in rewards:
        replayed = replace(batch, reward=jnp.full_like(batch.reward, reward))
        units = replace(units, count=jnp.zeros((), jnp.int32)).observe(replayed, 0.99)
        sizes.append(float(units.reward_unit))
        unit_of_now.append(float(return_size(units.reward_mean, units.reward_square, 0.99)))
    assert min(unit_of_now) < 1e-6
    # Forgotten at a rate of half a memory's share, and grown again at once.
    np.testing.assert_allclose(
        sizes, np.maximum(np.abs(rewards), (1.0 - 0.5 / MEMORY) ** np.arange(401)), rtol=1e-4
    )
