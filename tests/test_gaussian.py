"""The Gaussian policies' densities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy

from algd.networks.gaussian import (
    Gaussian,
    Temperature,
    entropy,
    kl_divergence,
    log_density,
    tanh_sample,
)

ONE = Gaussian(jnp.array([0.3, -1.0]), jnp.array([-0.5, 0.4]))
OTHER = Gaussian(jnp.array([0.1, 0.5]), jnp.array([0.2, -0.3]))
LOW, HIGH = jnp.array([-1.0, -2.0]), jnp.array([1.0, 3.0])


def test_density_and_entropy():
    x = jnp.array([0.7, 0.2])
    normal = scipy.stats.norm(np.array(ONE.mean), np.exp(ONE.log_std))
    np.testing.assert_allclose(log_density(ONE, x), normal.logpdf(x).sum(), rtol=1e-5)
    np.testing.assert_allclose(entropy(ONE), normal.entropy().sum(), rtol=1e-5)


def test_divergence():
    assert kl_divergence(ONE, ONE) == pytest.approx(0.0, abs=1e-6)
    x = np.random.default_rng(0).normal(ONE.mean, np.exp(ONE.log_std), (200_000, 2))
    old, new = (
        scipy.stats.norm(np.array(g.mean), np.exp(g.log_std)).logpdf(x).sum(axis=1)
        for g in (ONE, OTHER)
    )
    np.testing.assert_allclose(kl_divergence(ONE, OTHER), np.mean(old - new), rtol=0.02)


def test_squashed_density_integrates_to_one_on_the_box():
    gaussian = Gaussian(jnp.array([0.4]), jnp.array([-0.3]))
    low, high = jnp.array([-2.0]), jnp.array([3.0])
    noise = jnp.linspace(-6.0, 6.0, 4001)
    action, log_prob = jax.vmap(lambda e: tanh_sample(gaussian, e, low, high))(noise[:, None])
    assert (action > low).all()
    assert (action < high).all()
    total = np.trapezoid(np.exp(log_prob), np.array(action[:, 0]))
    np.testing.assert_allclose(total, 1.0, rtol=1e-3)


def test_density_is_that_of_the_change_of_variables():
    noise = jnp.array([0.5, -1.2])
    action, log_prob = tanh_sample(ONE, noise, LOW, HIGH)
    latent = ONE.mean + jnp.exp(ONE.log_std) * noise
    slope = jax.jacobian(lambda u: jnp.tanh(u) * (HIGH - LOW) / 2.0 + (HIGH + LOW) / 2.0)(latent)
    expected = log_density(ONE, latent) - jnp.sum(jnp.log(jnp.diag(slope)))
    np.testing.assert_allclose(log_prob, expected, rtol=1e-4)
    np.testing.assert_allclose(action, np.tanh(latent) * [1.0, 2.5] + [0.0, 0.5], rtol=1e-5)


def test_saturated_actions_keep_finite_gradients():
    def loss(mean):
        action, log_prob = tanh_sample(Gaussian(mean, jnp.zeros(2)), jnp.zeros(2), LOW, HIGH)
        return jnp.sum(action) + log_prob

    for size in (0.0, 20.0, 1e4):
        value, grad = jax.value_and_grad(loss)(jnp.full(2, size))
        assert np.isfinite(value)
        assert np.isfinite(grad).all()


def test_temperature_rises_when_the_entropy_is_too_low():
    start = Temperature.create(0.5)
    assert float(start.alpha) == pytest.approx(0.5)
    too_sure, too_vague = jnp.full(4, 5.0), jnp.full(4, -5.0)
    assert start.step(too_sure, -2.0, 1e-3).alpha > start.alpha
    assert start.step(too_vague, -2.0, 1e-3).alpha < start.alpha
    # Adam's first step has the length of its rate.
    first = start.step(too_sure, -2.0, 1e-3).log_alpha - start.log_alpha
    assert float(first) == pytest.approx(1e-3, rel=1e-3)
