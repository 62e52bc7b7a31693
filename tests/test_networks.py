"""The networks' shortcuts against the plain computation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algd.networks import (
    CriticEnsemble,
    ScoreNetwork,
    bfloat16_product,
    half_fan_in_normal,
    mlp,
    silu,
    where_needed,
)


def test_silu_is_x_times_sigmoid():
    x = jnp.linspace(-30, 30, 2001)
    np.testing.assert_allclose(silu(x), jax.nn.silu(x), rtol=1e-5, atol=3e-6)


def test_shared_state_half_changes_nothing():
    keys = jax.random.split(jax.random.key(0), 3)
    critics = CriticEnsemble.create(3, 5, 2, (16, 16), 2, half_fan_in_normal, keys[0])
    obs = jax.random.normal(keys[1], (7, 5))
    actions = jax.random.normal(keys[2], (7, 4, 2))
    shared = critics.values(critics.state_half(obs), actions, silu)
    assert shared.shape == (3, 7, 4, 2)
    for n in range(4):
        np.testing.assert_allclose(
            shared[:, :, n], critics(obs, actions[:, n], silu), rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("rows", [0, 1, 7, 14, 15, 28])
@pytest.mark.parametrize("product", [jnp.matmul, bfloat16_product])
def test_the_pullback_of_some_rows_is_that_of_automatic_differentiation(rows, product):
    keys = jax.random.split(jax.random.key(0), 5)
    critics = CriticEnsemble.create(3, 5, 2, (16, 16), 2, half_fan_in_normal, keys[0])
    half = critics.state_half(jax.random.normal(keys[1], (7, 5)))
    actions = jax.random.normal(keys[2], (7, 4, 2))
    chosen = jnp.isin(jnp.arange(28), jax.random.permutation(keys[3], 28)[:rows])
    cotangents = jax.random.normal(keys[4], (3, 7, 4, 2))
    cotangents = jnp.where(chosen.reshape(7, 4, 1), cotangents, 0.0)
    values, pull_back = critics.values_and_pullback(half, actions, silu, product)
    plain, automatic = jax.vjp(lambda a: critics.values(half, a, silu, product), actions)
    np.testing.assert_array_equal(values, plain)
    # A product of other rows may be summed in another order.
    np.testing.assert_allclose(pull_back(cotangents), automatic(cotangents)[0], atol=1e-6)
    if rows:
        # What is not a number is not taken for nothing.
        spoilt = jnp.where(cotangents == 0.0, 0.0, jnp.nan)
        assert np.isnan(pull_back(spoilt)).any(axis=-1).sum() == rows


def test_an_accelerator_computes_the_same_in_batches(monkeypatch):
    keys = jax.random.split(jax.random.key(0), 3)
    critics = CriticEnsemble.create(3, 5, 2, (16, 16), 2, half_fan_in_normal, keys[0])
    half = critics.state_half(jax.random.normal(keys[1], (7, 5)))
    actions = jax.random.normal(keys[2], (7, 4, 2))

    def both():
        values, pull_back = critics.values_and_pullback(half, actions, silu)
        return values, pull_back(values)

    here = both()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    for one, other in zip(here, both(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_rows_that_are_not_needed_are_not_asked_for_unless_most_are():
    few, most = jnp.arange(12) % 3 == 0, jnp.arange(12) % 3 != 0
    ask = jax.jit(lambda needed: where_needed(lambda rows: 1.0 + jnp.arange(12.0)[rows], needed, 3))
    np.testing.assert_array_equal(ask(few), (1.0 + np.arange(12)) * np.asarray(few))
    np.testing.assert_array_equal(ask(most), 1.0 + np.arange(12))
    np.testing.assert_array_equal(ask(jnp.zeros(12, bool)), np.zeros(12))


def test_score_network_is_the_concatenation_of_its_inputs():
    score = ScoreNetwork.create(5, 2, (16, 16, 16), 4, 8, jax.random.key(0))
    obs, action = jnp.arange(5.0), jnp.array([0.3, -0.7])
    for k in range(4):
        inputs = jnp.concatenate([obs, action, score.time_embedding[k]])
        plain = mlp(score.layers, inputs, jax.nn.relu)
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
