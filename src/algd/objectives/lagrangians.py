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
    cap: float = 0.0,
) -> Float[Array, ""]:
    """The energy of that name; that of the return alone is -Q."""
    if name == "augmented":
        return augmented_lagrangian(q, qc, lam, limit, rho, cap)
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
    cap: float = 0.0,
) -> Float[Array, ""]:
    r"""$L_A = -Q + \sum_i ([\lambda_i + \rho (Q_{c,i} - h_i)]_+^2 - \lambda_i^2) / 2\rho$.

    With a `cap` the cost's weight $[\lambda + \rho (Q_c - h)]_+$ rises to $[\lambda]_+$ + cap and
    no further: from there on the square goes on as a straight line.
    """
    active = jnp.maximum(lam + rho * (qc - limit), 0.0)
    square = active**2
    if cap:
        bent = jnp.minimum(active, jnp.maximum(lam, 0.0) + cap)
        square = (2.0 * active - bent) * bent
    return -q + jnp.sum(square - lam**2) / (2.0 * rho)
