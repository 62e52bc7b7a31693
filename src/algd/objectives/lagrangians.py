"""The energies whose Boltzmann density is the policy: plain and augmented Lagrangian."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def lagrangian(
    q: Float[Array, ""],
    qc: Float[Array, " constraints"],
    lam: Float[Array, " constraints"],
    limit: Float[Array, " constraints"],
) -> Float[Array, ""]:
    r"""$L = -Q + \sum_i \lambda_i (Q_{c,i} - h_i)$."""
    return -q + jnp.sum(lam * (qc - limit))


def augmented_lagrangian(
    q: Float[Array, ""],
    qc: Float[Array, " constraints"],
    lam: Float[Array, " constraints"],
    limit: Float[Array, " constraints"],
    rho: float,
) -> Float[Array, ""]:
    r"""$L_A = -Q + \sum_i ([\lambda_i + \rho (Q_{c,i} - h_i)]_+^2 - \lambda_i^2) / 2\rho$."""
    active = jnp.maximum(lam + rho * (qc - limit), 0.0)
    return -q + jnp.sum(active**2 - lam**2) / (2.0 * rho)
