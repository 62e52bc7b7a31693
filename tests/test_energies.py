"""The Lagrangians against their derivatives in closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algd.objectives.lagrangians import augmented_lagrangian, lagrangian

LIMIT = jnp.array([2.0, 0.5])


@pytest.fixture(params=range(20))
def case(request):
    rng = np.random.default_rng(request.param)
    q = jnp.asarray(rng.normal())
    qc = jnp.asarray(rng.normal(size=2) * 3, jnp.float32)
    lam = jnp.asarray(rng.exponential(size=2), jnp.float32)
    return q, qc, lam, float(rng.uniform(0.2, 3.0))


def test_gradient_in_the_cost_is_the_bracket(case):
    q, qc, lam, rho = case
    grad = jax.grad(augmented_lagrangian, argnums=1)(q, qc, lam, LIMIT, rho)
    np.testing.assert_allclose(grad, np.maximum(lam + rho * (qc - LIMIT), 0), rtol=1e-5, atol=1e-6)


def test_a_capped_penalty_is_the_same_square_and_then_a_straight_line(case):
    """Its gradient in the cost is the bracket up to the cap; below it, nothing has changed."""
    q, qc, lam, rho = case
    cap = 0.8
    value, grad = jax.value_and_grad(augmented_lagrangian, argnums=1)(q, qc, lam, LIMIT, rho, cap)
    bracket = np.maximum(lam + rho * (qc - LIMIT), 0)
    np.testing.assert_allclose(grad, np.minimum(bracket, lam + cap), rtol=1e-5, atol=1e-6)
    # By integration over the cost, from where the bracket is zero.
    grid = [np.linspace(0.0, end, 20_001) for end in bracket]
    area = [np.trapezoid(np.minimum(x, one + cap), x) for x, one in zip(grid, lam, strict=True)]
    expected = -float(q) + sum(area) / rho - float(jnp.sum(lam**2)) / (2 * rho)
    np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-4)


def test_gradient_in_the_multiplier(case):
    q, qc, lam, rho = case
    grad = jax.grad(augmented_lagrangian, argnums=2)(q, qc, lam, LIMIT, rho)
    np.testing.assert_allclose(grad, np.maximum(qc - LIMIT, -lam / rho), rtol=1e-4, atol=1e-5)


def test_small_penalty_gives_the_plain_lagrangian():
    with jax.enable_x64(True):
        q, lam = jnp.asarray(0.7), jnp.array([1.0, 0.4])
        qc, limit = jnp.array([1.5, 3.0]), jnp.array([2.0, 0.5])
        plain = lagrangian(q, qc, lam, limit)
        gaps = [
            abs(float(augmented_lagrangian(q, qc, lam, limit, rho) - plain))
            for rho in (1e-2, 1e-3, 1e-4)
        ]
        # L_A - L = rho/2 |Qc - h|^2 where the bracket is positive: the gap falls like rho.
        np.testing.assert_allclose(gaps, [0.5 * rho * 6.5 for rho in (1e-2, 1e-3, 1e-4)], rtol=1e-6)


def test_inactive_constraint_costs_a_constant():
    q, lam, rho = jnp.asarray(0.7), jnp.array([0.3, 0.2]), 2.0
    for qc in (jnp.array([-5.0, -9.0]), jnp.array([0.0, 0.1])):
        value = augmented_lagrangian(q, qc, lam, LIMIT, rho)
        np.testing.assert_allclose(value, -0.7 - float(jnp.sum(lam**2)) / (2 * rho), rtol=1e-5)


def test_constraints_add_up():
    q, qc, lam = jnp.asarray(0.0), jnp.array([3.0, 1.0]), jnp.array([0.5, 0.1])
    both = augmented_lagrangian(q, qc, lam, LIMIT, 1.5)
    single = sum(
        augmented_lagrangian(q, qc[i : i + 1], lam[i : i + 1], LIMIT[i : i + 1], 1.5)
        for i in range(2)
    )
    np.testing.assert_allclose(both, single, rtol=1e-6)
