"""Theorem 1 (b): what the augmented Lagrangian leaves as it is, and what it does not."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import brentq

from algd.experiments.theory.checks import Check, at_most
from algd.experiments.theory.line import (
    BETA,
    LIMIT,
    LINE,
    RHO,
    augmented,
    boltzmann,
    cost,
    kl,
    on_line,
    optimal_multiplier,
    plain,
    tv,
)


def invariance_curves() -> dict[str, np.ndarray]:
    """Cost and the densities of both energies at the optimal multiplier, for a picture."""
    with jax.enable_x64(True):
        lam = optimal_multiplier(BETA)
        return {
            "cost": on_line(cost) - LIMIT,
            "plain": boltzmann(plain(lam), BETA),
            "augmented": boltzmann(augmented(lam), BETA),
            "gap": on_line(augmented(lam)) - on_line(plain(lam)),
        }


def invariance_checks() -> list[Check]:
    """What stays as it was at the optimal multiplier, and what does not."""
    lam, costs = optimal_multiplier(BETA), on_line(cost)
    edge = brentq(lambda a: float(cost(jnp.asarray(a))) - LIMIT, -1.0, 1.0)
    at_edge = np.array([edge])
    equal = abs(float(on_line(augmented(lam), at_edge)[0] - on_line(plain(lam), at_edge)[0]))
    safe = costs <= LIMIT
    inactive = np.abs(on_line(augmented(0.0)) - on_line(plain(0.0)))[safe].max()
    ours, theirs = boltzmann(augmented(lam), BETA), boltzmann(plain(lam), BETA)
    box = np.abs(LINE) <= 1.0
    gap = np.abs(on_line(augmented(lam)) - on_line(plain(lam)))[box].max()
    # A convex problem with the multiplier 1: maximise −(a − 1)² under a ≤ 1/2.
    convex = 1.0, 0.5, lambda a: -((a - 1.0) ** 2), lambda a: a
    energies = plain(*convex), augmented(*convex)
    least = [on_line(e).min() for e in energies]
    where = [LINE[on_line(e).argmin()] for e in energies]
    cold = [tv(*(boltzmann(e, beta) for e in energies)) for beta in (1e-2, 1e-3)]
    limit_tv = _variance_ratio_tv(2.0, 2.0 + RHO)
    wells = [on_line(e).min() for e in (plain(lam), augmented(lam))]
    return [
        at_most(
            "Theorem 1 (b): L_A = L where Q_c = h",
            f"|L_A − L| at the boundary, optimal multiplier λ* = {lam:.3f}",
            equal,
            1e-10,
        ),
        at_most(
            "Theorem 1 (b): L_A = L in the safe region if λ* = 0",
            "largest |L_A − L| over Q_c ≤ h",
            float(inactive),
            1e-10,
        ),
        at_most(
            "Theorem 1 (b) as printed: exp(−L_A/β) = exp(−L/β) at λ*",
            "largest |L_A − L| over the box at λ* > 0; ρ(Q_c − h)²/2 where active",
            float(gap),
            1e-10,
        ),
        at_most(
            "Theorem 1 (b) as printed: the Boltzmann policy is unchanged",
            f"total variation of the two policies, β = {BETA}; mean cost "
            f"{np.trapezoid(theirs * costs, LINE):.3f} (L) and "
            f"{np.trapezoid(ours * costs, LINE):.3f} (L_A), limit {LIMIT}",
            tv(ours, theirs),
            1e-6,
        ),
        at_most(
            "Theorem 1 (b), optimal value and optimal action of a convex problem",
            "difference of the minima plus distance of the minimisers at λ* = 1",
            float(abs(least[0] - least[1]) + abs(where[0] - where[1])),
            1e-9,
        ),
        at_most(
            "Theorem 1 (b), the policies of the same convex problem as β → 0",
            f"total variation at β = 0.001 (at 0.01: {cold[0]:.4f}): not 0 but that of two "
            f"Gaussians of curvature 2 and 2 + ρ, {limit_tv:.4f}; both shrink to the same action",
            cold[1],
            1e-3,
        ),
        at_most(
            "Theorem 1 (b), optimal value where the problem is not convex",
            "min L_A − min L at λ*; they agree only if the minimiser lies at Q_c = h",
            float(abs(wells[1] - wells[0])),
            1e-6,
        ),
        at_most(
            "Corollary, step 1: L_A(λ) → L(λ*) as λ → λ*, so that Theorem 2's first term vanishes",
            "KL(π* ‖ π_A) at λ = λ* itself",
            kl(theirs, ours),
            1e-6,
        ),
    ]


def _variance_ratio_tv(one: float, other: float) -> float:
    """Total variation of two centred Gaussians with these curvatures (inverse variances)."""
    crossing = math.sqrt(math.log(other / one) / (other - one))
    inside = [math.erf(crossing * math.sqrt(c / 2.0)) for c in (one, other)]
    return inside[1] - inside[0]
