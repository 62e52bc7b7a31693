"""Theorem 1 (a): what the quadratic term adds to the curvature, and where."""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from algd.experiments.fidelity import two_well
from algd.experiments.theory.checks import Check, at_least, at_most, equals
from algd.experiments.theory.line import RHO, augmented, plain


def plane_value(action: Float[Array, " 2"]) -> Float[Array, ""]:
    """Q in two dimensions: two wells that a winding valley joins."""
    return -two_well(action[0]) - 0.5 * (action[1] - 0.3 * jnp.sin(3.0 * action[0])) ** 2


def plane_cost(action: Float[Array, " 2"]) -> Float[Array, ""]:
    """Q_c: a round hazard between them."""
    offset = action - jnp.array([0.2, -0.1], action.dtype)
    return 2.0 * jnp.exp(-jnp.sum(offset**2) / (2.0 * 0.4**2))


PLANE_LIMIT, PLANE_LAM = 1.0, 0.5


class Curvature(NamedTuple):
    """Hessians of both energies at points, what the theorem adds, and the cost there."""

    plain: Float[np.ndarray, "points 2 2"]
    augmented: Float[np.ndarray, "points 2 2"]
    reward: Float[np.ndarray, "points 2 2"]
    outer: Float[np.ndarray, "points 2 2"]
    cost_hessian: Float[np.ndarray, "points 2 2"]
    excess: Float[np.ndarray, " points"]


@partial(jax.jit, static_argnames=("rho",))
def _hessians(points: Float[Array, "points 2"], rho: float) -> tuple[Array, ...]:
    problem = (PLANE_LAM, PLANE_LIMIT, plane_value, plane_cost, rho)

    def at(action: Array) -> tuple[Array, ...]:
        slope = jax.grad(plane_cost)(action)
        return (
            jax.hessian(plain(*problem))(action),
            jax.hessian(augmented(*problem))(action),
            jax.hessian(lambda a: -plane_value(a))(action),
            rho * jnp.outer(slope, slope),
            jax.hessian(plane_cost)(action),
            plane_cost(action) - PLANE_LIMIT,
        )

    return jax.vmap(at)(points)


def curvature_at(points: Float[np.ndarray, "points 2"], rho: float = RHO) -> Curvature:
    """Everything that Theorem 1 (a) speaks of."""
    return Curvature(*(np.asarray(x) for x in _hessians(jnp.asarray(points), rho)))


def smallest_eigenvalue(hessians: Float[np.ndarray, "points 2 2"]) -> Float[np.ndarray, " points"]:
    """Of each symmetric matrix."""
    return np.linalg.eigvalsh(hessians)[:, 0]


def boundary(radius_factor: np.ndarray) -> Float[np.ndarray, "points 2"]:
    """Points on circles around the hazard; the factor 1 is the constraint's boundary."""
    radius = 0.4 * math.sqrt(2.0 * math.log(2.0)) * np.asarray(radius_factor)
    angle = np.linspace(0.0, 2.0 * np.pi, 360, endpoint=False)
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    return (np.array([0.2, -0.1]) + radius[:, None, None] * circle).reshape(-1, 2)


def curvature_checks() -> list[Check]:
    """The Hessian identity, its remainder, and what the added curvature does."""
    side = np.linspace(-1.0, 1.0, 101)
    grid = np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1).reshape(-1, 2)
    here = curvature_at(grid)
    active = PLANE_LAM + RHO * here.excess > 0
    full = here.plain + here.outer + RHO * here.excess[:, None, None] * here.cost_hessian
    identity = np.abs(here.augmented - full)[active].max()
    off = np.abs(here.augmented - here.plain)[~active].max()
    to_reward = np.abs(here.augmented - here.reward)[~active].max()
    near = curvature_at(boundary(1.0 - np.geomspace(1e-4, 1e-1, 13)))
    remainder = np.linalg.norm(near.augmented - near.plain - near.outer, axis=(1, 2))
    slope = np.polyfit(np.log(np.abs(near.excess)), np.log(remainder), 1)[0]
    edge = curvature_at(boundary(np.ones(1)))
    gain = smallest_eigenvalue(edge.augmented) - smallest_eigenvalue(edge.plain)
    change = smallest_eigenvalue(here.augmented) - smallest_eigenvalue(here.plain)
    strong = curvature_at(boundary(np.ones(1)), rho=1000.0)
    return [
        at_most(
            "Theorem 1 (a): ∇²L_A = ∇²L + ρ∇Q_c∇Q_cᵀ + ρ(Q_c − h)∇²Q_c where λ + ρ(Q_c − h) > 0",
            "largest difference of automatic Hessians over the box",
            float(identity),
            1e-10,
        ),
        equals(
            "Theorem 1 (a): the remainder is O(|Q_c − h|)",
            "slope of its norm against |Q_c − h|, log-log",
            float(slope),
            1.0,
            0.05,
        ),
        at_least(
            "Theorem 1 (a): at Q_c = h no direction loses curvature",
            "smallest gain of the smallest eigenvalue, 360 points of the boundary",
            float(gain.min()),
            -1e-12,
        ),
        at_most(
            "Theorem 1 (a): more curvature in a neighbourhood, wherever the constraint is active",
            "share of the active region where the smallest eigenvalue falls (Q_c is concave there)",
            float((change < -1e-9)[active].mean()),
            0.0,
        ),
        at_least(
            "Theorem 1 (a), read as convexity: a large ρ makes the boundary's energy convex",
            "share of the boundary with a convex energy at ρ = 1000 "
            f"(plain: {(smallest_eigenvalue(edge.plain) >= 0).mean():.2f}, "
            f"ρ = 1: {(smallest_eigenvalue(edge.augmented) >= 0).mean():.2f}); "
            "ρ adds nothing along it",
            float((smallest_eigenvalue(strong.augmented) >= 0).mean()),
            1.0,
        ),
        at_most(
            "Theorem 1 (a), discussion: where the constraint is inactive L_A has the geometry of L",
            f"largest |∇²L_A − ∇²L| there; it is λ∇²Q_c, for L_A is −Q − λ²/2ρ "
            f"(|∇²L_A + ∇²Q| = {to_reward:.0e})",
            float(off),
            1e-10,
        ),
    ]
