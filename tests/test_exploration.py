"""Noise on the actions of training: its moments, who has it, and that no multiplier hears of it."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algd.algorithms import presets
from algd.evaluation.acting import act, explore
from algd.objectives.exploration import OCTAVES, loudness, pink_noise
from algd.types import Budget, EnvSpec

SMALL = {"critic_hidden": 4, "score_hidden": 4, "embedding": 2, "denoise_steps": 3}
SPEC = EnvSpec(2, (-3.0, 0.0), (1.0, 0.5), (Budget(10.0),), 100)


def begun(**options):
    algorithm = replace(presets()["algd"], **SMALL, **options)
    state = algorithm.init(SPEC, jax.random.key(0))
    return algorithm, replace(state, rounds=jnp.asarray(1))


def test_the_noise_is_normal_and_as_slow_as_its_octaves():
    """Moments and autocorrelation of many copies over time against the closed form: after l steps
    octave j is the same with probability [1 - l / 2^j]_+ on average over time."""
    steps = jnp.arange(2 * 2 ** (OCTAVES - 1))
    noise = jax.vmap(lambda t: pink_noise(jax.random.key(3), t, (2_000,)))(steps)
    noise = np.asarray(noise)
    np.testing.assert_allclose(noise.mean(), 0.0, atol=0.02)
    np.testing.assert_allclose(noise.var(axis=1), 1.0, atol=0.15)
    np.testing.assert_allclose((noise**4).mean(), 3.0, atol=0.1)
    for lag in (1, 3, 16, 100):
        # Blocks of whole octaves: a start within a block is as likely as any other.
        found = (noise[: len(noise) // 2] * noise[lag : lag + len(noise) // 2]).mean()
        alike = np.maximum(1.0 - lag / 2.0 ** np.arange(OCTAVES), 0.0).mean()
        np.testing.assert_allclose(found, alike, atol=0.02)


@pytest.mark.parametrize("copies", range(1, 9))
def test_half_of_the_copies_are_quiet(copies):
    loud = loudness(copies)
    quiet = -(-copies // 2)
    np.testing.assert_array_equal(loud[:quiet], 0.0)
    assert (np.diff(loud[quiet - 1 :]) > 0.0).all()
    assert copies == 1 or loud[-1] == 1.0


def test_quiet_copies_act_as_the_policy_and_loud_ones_beside_it_within_the_box():
    algorithm, state = begun(exploration_noise=2.0)
    obs, key, run_key = jnp.ones((4, 2)), jax.random.key(5), jax.random.key(6)
    noisy, _ = explore(algorithm, state, obs, key, run_key, 7)
    plain, _ = act(algorithm, state, obs, key, "exploring")
    np.testing.assert_array_equal(noisy[:2], plain[:2])
    half_width = np.array([2.0, 0.25])
    # Two coordinates share its length.
    sizes = 2.0 / np.sqrt(2.0) * loudness(4)[:, None] * half_width
    noise = sizes * np.asarray(pink_noise(run_key, 7, (4, 2)))
    expected = np.clip(np.asarray(plain) + noise, SPEC.action_low, SPEC.action_high)
    np.testing.assert_allclose(noisy, expected, rtol=1e-5, atol=1e-6)
    assert (np.abs(np.asarray(noisy - plain)[2:]) > 0.0).all()
    again, _ = explore(algorithm, state, obs, key, run_key, 8)
    assert not np.array_equal(again[2:], noisy[2:])


def test_the_multiplier_follows_quiet_copies_and_as_fast_as_if_all_were():
    """Loud copies cost anything; the quiet ones stand for them, in rate and in memory."""
    algorithm, state = begun(exploration_noise=0.3)
    silent = replace(algorithm, exploration_noise=0.0)
    heard, told = jax.jit(algorithm.feedback), jax.jit(silent.feedback)
    ended, one = jnp.full(4, 100), state
    for cost in (40.0, 3.0, 25.0):
        state = heard(state, jnp.array([[cost], [cost], [500.0], [0.0]]), ended)
        one = told(one, jnp.full((4, 1), cost), ended)
    np.testing.assert_allclose(state.dual.lam, one.dual.lam, rtol=1e-5)
    np.testing.assert_allclose(state.excess, one.excess, rtol=1e-5, atol=1e-6)
    after = heard(state, jnp.array([[0.0], [0.0], [500.0], [500.0]]), jnp.array([0, 0, 100, 100]))
    np.testing.assert_array_equal(after.dual.lam, state.dual.lam)
    np.testing.assert_array_equal(after.excess, state.excess)


@pytest.mark.parametrize("learnt", [1, 2, 3])
def test_beside_learnt_copies_only_those_with_noise_are_not_heard(learnt):
    """Also where no copy is left that explores quietly: nobody's excess is then that of nobody."""
    algorithm, state = begun(exploration_noise=0.3, learnt_copies=learnt)
    state = replace(state, dual=replace(state.dual, lam=jnp.array([0.5])))
    loud = np.arange(4) >= max(learnt, 2)
    ended = jnp.full(4, 100)
    after = algorithm.feedback(state, jnp.where(loud, 500.0, 0.0)[:, None], ended)
    assert after.dual.lam[0] < 0.5
    after = algorithm.feedback(state, jnp.where(loud, 0.0, 500.0)[:, None], ended)
    assert after.dual.lam[0] > 0.5


def test_a_single_copy_is_heard():
    algorithm, state = begun(exploration_noise=0.3)
    after = algorithm.feedback(state, jnp.array([[500.0]]), jnp.array([100]))
    assert after.dual.lam[0] > state.dual.lam[0]
