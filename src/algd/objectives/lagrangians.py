"""The energies whose Boltzmann density is the policy: plain and augmented Lagrangian."""

from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float

Energy = Literal["augmented", "plain", "reward"]


def energy_of(
    name: Energy,
    q: Float[Array, ""],
    qc: Float[Array, " constraints"],
    lam: Float[Array, " constraints"],
    limit: Float[Array, " constraints"],
    rho: float,
) -> Float[Array, ""]:
    """The energy of that name; that of the return alone is -Q."""
    if name == "augmented":
        return augmented_lagrangian(q, qc, lam, limit, rho)
    return lagrangian(q, qc, lam, limit) if name == "plain" else -q


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
