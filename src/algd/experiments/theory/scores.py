"""Proposition 1: the score of the smoothed density as a weighted mean."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from algd.experiments.fidelity import smoothed_scores
from algd.experiments.theory.checks import Check, at_most
from algd.experiments.theory.line import (
    BETA,
    BOX,
    LINE,
    Energy,
    augmented,
    boltzmann,
    optimal_multiplier,
    plain,
)
from algd.objectives.bounding import log_slope

SIGMAS = np.array([0.01, 0.0316, 0.1, 0.316, 1.0])


def tweedie_score(
    density: Float[np.ndarray, " points"], points: np.ndarray, sigma: float
) -> np.ndarray:
    """The score of the smoothed density without any gradient of the energy."""
    exponents = np.log(np.maximum(density, 1e-300)) - (points[:, None] - LINE) ** 2 / 2 / sigma**2
    weights = np.exp(exponents - exponents.max(axis=1, keepdims=True)) * (density > 0)
    return ((weights @ LINE) / weights.sum(axis=1) - points) / sigma**2


def relative_error(got: np.ndarray, exact: np.ndarray) -> float:
    """The largest difference, relative to one plus the exact value."""
    return float((np.abs(got - exact) / (1 + np.abs(exact))).max())


def score_checks() -> list[Check]:
    """The energy-weighted gradient against the derivative of the smoothed log-density."""
    points, lam = np.linspace(-1.0, 1.0, 81), optimal_multiplier(BETA)
    checks = [
        at_most(
            f"Proposition 1: the score is the weighted mean of −∇{name}/β",
            "largest relative difference to the smoothed density's score by quadrature, "
            "5 noise levels, 81 points",
            score_error(energy, boltzmann(energy, BETA), points, SIGMAS),
            1e-5,
        )
        for name, energy in (("L", plain(lam)), ("L_A", augmented(lam)))
    ]
    inside = np.abs(LINE) <= BOX
    cut = np.where(inside, boltzmann(plain(lam), BETA), 0.0)
    latent = in_latent(plain(lam))
    return [
        *checks,
        at_most(
            "Proposition 1 on a compact action set, as the paper assumes",
            f"the same with the density cut to [−{BOX}, {BOX}], σ = 0.316: the formula lacks the "
            "boundary's part",
            score_error(plain(lam), cut, points[np.abs(points) <= BOX], SIGMAS[3:4]),
            1e-5,
        ),
        at_most(
            "Proposition 1 on the box, in a tanh latent with the Jacobian in the energy (`algd`)",
            "largest relative difference to quadrature in the latent, σ = 0.316",
            score_error(latent, boltzmann(latent, BETA), points, SIGMAS[3:4]),
            1e-5,
        ),
    ]


def score_error(
    energy: Energy, density: np.ndarray, points: np.ndarray, sigmas: np.ndarray
) -> float:
    """Proposition 1's formula against the score of a smoothed density."""
    # L_A has a kink in its gradient: equally spaced nodes must be close there.
    nodes = np.linspace(-16.0, 16.0, 12_001)
    formula = smoothed_scores(energy, jnp.asarray(points), BETA, jnp.asarray(sigmas), nodes)
    exact = np.stack([tweedie_score(density, points, sigma) for sigma in sigmas])
    return relative_error(np.asarray(formula), exact)


def in_latent(energy: Energy) -> Energy:
    """The energy of x whose density is, in the action BOX tanh(x), that of the energy on the box.

    As in `ALGD` with `bounds="boltzmann"`; unlike the two wells themselves its slope is bounded.
    """

    def of_latent(latent: Array) -> Array:
        return energy(BOX * jnp.tanh(latent)) - BETA * log_slope(latent)

    return of_latent
