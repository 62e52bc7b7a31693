"""The networks' shortcuts against the plain computation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algd.networks.critics import CriticEnsemble
from algd.networks.layers import bfloat16_product, half_fan_in_normal, mlp, silu
from algd.networks.score import ScoreNetwork


def test_silu_is_x_times_sigmoid():
    x = jnp.linspace(-30, 30, 2001)
    np.testing.assert_allclose(silu(x), jax.nn.silu(x), rtol=1e-5, atol=3e-6)


def critics_and_points(hidden, activation="silu"):
    keys = jax.random.split(jax.random.key(0), 3)
    critics = CriticEnsemble.create(
        3, 5, 2, (hidden, hidden), 2, activation, half_fan_in_normal, keys[0]
    )
    obs = jax.random.normal(keys[1], (7, 5))
    return critics, obs, jax.random.normal(keys[2], (7, 4, 2))


# Sums of single precision in another order: some units in the last place of 64 terms of about one,
# also where they cancel.
REORDERED = {"rtol": 1e-5, "atol": 1e-5}


# Widths that XLA computes, and that native code does where there is a compiler.
@pytest.mark.parametrize("hidden", [16, 64])
@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_shared_state_half_changes_nothing(hidden, activation):
    critics, obs, actions = critics_and_points(hidden, activation)
    shared, _ = critics.values_and_pullback(obs, actions)
    assert shared.shape == (3, 7, 4, 2)
    for n in range(4):
        np.testing.assert_allclose(shared[:, :, n], critics(obs, actions[:, n]), **REORDERED)


def test_an_accelerator_computes_the_same_in_batches(monkeypatch):
    critics, obs, actions = critics_and_points(16)

    def both():
        values, pull_back = critics.values_and_pullback(obs, actions)
        return values, pull_back(values)

    here = both()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    for one, other in zip(here, both(), strict=True):
        np.testing.assert_allclose(one, other, **REORDERED)


def test_score_network_is_the_concatenation_of_its_inputs():
    score = ScoreNetwork.create(5, 2, (16, 16, 16), 4, 8, jax.random.key(0))
    obs, action = jnp.arange(5.0), jnp.array([0.3, -0.7])
    for k in range(4):
        inputs = jnp.concatenate([obs, action, score.time_embedding[k]])
        plain = mlp(score.layers, inputs, "relu")
        parts = score.scores(score.state_half(obs), action, jnp.asarray(k))
        np.testing.assert_allclose(parts, plain, rtol=1e-4, atol=1e-5)


def test_bfloat16_product_rounds_factors_not_sums():
    keys = jax.random.split(jax.random.key(1), 2)
    x, w = jax.random.normal(keys[0], (64, 256)), jax.random.normal(keys[1], (256, 32))
    rounded = [np.asarray(v.astype(jnp.bfloat16).astype(jnp.float32)) for v in (x, w)]
    np.testing.assert_allclose(
        bfloat16_product(x, w), rounded[0] @ rounded[1], rtol=1e-4, atol=1e-4
    )
    loss = lambda product: lambda x, w: jnp.sum(jnp.sin(product(x, w) / 16))  # noqa: E731
    rough = jax.grad(loss(bfloat16_product), (0, 1))(x, w)
    exact = jax.grad(loss(jnp.matmul), (0, 1))(x, w)
    for r, e in zip(rough, exact, strict=True):
        assert float(jnp.linalg.norm(r - e) / jnp.linalg.norm(e)) < 0.02
