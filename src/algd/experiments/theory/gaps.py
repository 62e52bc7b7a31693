"""The corollary: the score of an energy that is wrong by epsilon."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from algd.experiments.fidelity import smoothed_scores
from algd.experiments.theory.checks import Check, at_least, at_most, equals
from algd.experiments.theory.line import BETA, Energy, boltzmann, kl, optimal_multiplier, plain

GAPS = np.geomspace(1e-4, 1e-1, 7)
BETAS = np.geomspace(0.05, 5.0, 9)


def score_gaps() -> dict[str, np.ndarray]:
    """Squared score gap, KL and bound of L + ε sin(3a)/3 against L, over ε and over β."""
    base = plain(optimal_multiplier(BETA))
    points, sigmas = jnp.linspace(-1.0, 1.0, 81), jnp.asarray([0.1])
    steepest = float(np.abs(np.asarray(jax.vmap(jax.grad(base))(points))).max())

    # |sin(3a)|/3 and its slope are both at most one.
    def perturbed(eps: Any) -> Energy:
        return lambda action: base(action) + eps * jnp.sin(3.0 * action) / 3.0

    @jax.jit
    def scores(eps: Array, beta: Array) -> Array:
        return smoothed_scores(perturbed(eps), points, beta, sigmas)

    def gap(eps: float, beta: float) -> tuple[float, float, float]:
        one, other = (scores(jnp.asarray(e), jnp.asarray(beta)) for e in (0.0, eps))
        # The proof's constants: C_1 = 1 and C_2 = 2G.
        bound = (eps / beta + 2.0 * steepest * eps / beta**2) ** 2
        between = kl(boltzmann(base, beta), boltzmann(perturbed(eps), beta))
        return float(jnp.max((one - other) ** 2)), between, bound

    by_eps = np.array([gap(float(eps), BETA) for eps in GAPS])
    by_beta = np.array([gap(1e-3, float(beta)) for beta in BETAS])
    return {"by_eps": by_eps, "by_beta": by_beta, "eps": GAPS, "beta": BETAS}


def gap_checks(gaps: dict[str, np.ndarray]) -> list[Check]:
    """ε² exactly, and how steep in β, beside the bound's 2 to 4."""
    fit = lambda x, y: float(np.polyfit(np.log(x), np.log(y), 1)[0])  # noqa: E731
    beta_slope = fit(gaps["beta"], gaps["by_beta"][:, 0])
    kl_slope = fit(gaps["beta"], gaps["by_beta"][:, 1])
    every = np.concatenate([gaps["by_eps"], gaps["by_beta"]])
    return [
        equals(
            "Corollary: the squared score gap grows like ε²",
            f"log-log slope over ε from 1e-4 to 0.1 at β = {BETA}",
            fit(gaps["eps"], gaps["by_eps"][:, 0]),
            2.0,
            0.1,
        ),
        equals(
            "Theorem 2, remark: KL(π* ‖ π_A) grows like ε²",
            f"log-log slope over ε from 1e-4 to 0.1 at β = {BETA}",
            fit(gaps["eps"], gaps["by_eps"][:, 1]),
            2.0,
            0.1,
        ),
        at_least(
            "Corollary: in β not steeper than β⁻⁴",
            "log-log slope of the squared score gap over β from 0.05 to 5 at ε = 0.001",
            beta_slope,
            -4.0,
        ),
        at_least(
            "Theorem 2, remark: KL(π* ‖ π_A) in β not steeper than β⁻⁴",
            "log-log slope over β from 0.05 to 5 at ε = 0.001",
            kl_slope,
            -4.0,
        ),
        at_most(
            "Corollary: the bound itself, with C₁ = 1 and C₂ = 2 max|∇L|",
            "largest ratio of the squared score gap to the bound",
            float((every[:, 0] / every[:, 2]).max()),
            1.0,
        ),
    ]
