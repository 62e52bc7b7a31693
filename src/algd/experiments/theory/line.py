"""A constrained problem on a line, small enough for quadrature."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import brentq
from scipy.special import rel_entr

from algd.experiments.fidelity import Energy, two_well
from algd.objectives import lagrangians

# A line long enough that no density here reaches its ends.
LINE = np.linspace(-4.0, 4.0, 8001)
LIMIT, RHO, BETA = 0.8, 1.0, 0.3
# The edges of the action set cut into both wells.
BOX = 0.6


def value(action: Float[Array, ""]) -> Float[Array, ""]:
    """Q: two good actions, of which the left one is better."""
    return -two_well(action)


def cost(action: Float[Array, ""]) -> Float[Array, ""]:
    """Q_c: the left one is dear."""
    return 1.0 - jnp.tanh(2.0 * action) + 0.1 * action**2


def in_action(
    name: lagrangians.Energy,
    lam: float,
    limit: float = LIMIT,
    q: Energy = value,
    qc: Energy = cost,
    rho: float = RHO,
) -> Energy:
    """L or L_A as a function of the action, under one constraint."""

    def energy(action: Array) -> Array:
        lams, limits = (jnp.full(1, number, action.dtype) for number in (lam, limit))
        return lagrangians.energy_of(name, q(action), qc(action)[None], lams, limits, rho)

    return energy


plain, augmented = partial(in_action, "plain"), partial(in_action, "augmented")


def on_line(function: Energy, points: np.ndarray = LINE) -> Float[np.ndarray, " points"]:
    """A function of one action at many."""
    return np.asarray(jax.vmap(function)(jnp.asarray(points)))


def boltzmann(energy: Energy, beta: float) -> Float[np.ndarray, " points"]:
    """The normalised density exp(-E/beta) on the line."""
    energies = on_line(energy) / beta
    density = np.exp(energies.min() - energies)
    return density / np.trapezoid(density, LINE)


def optimal_multiplier(beta: float) -> float:
    """The dual optimum of the plain problem: its Boltzmann policy costs the limit on average."""
    costs = on_line(cost)
    excess = lambda lam: np.trapezoid(boltzmann(plain(lam), beta) * costs, LINE) - LIMIT  # noqa: E731
    return float(brentq(excess, 0.0, 100.0, xtol=1e-12))  # pyright: ignore[reportArgumentType]


def tv(one: np.ndarray, other: np.ndarray) -> float:
    """Total variation of two densities on the line."""
    return float(0.5 * np.trapezoid(np.abs(one - other), LINE))


def kl(one: np.ndarray, other: np.ndarray) -> float:
    """Divergence of `one` from `other`, densities on the line."""
    return divergence(one, other) * float(LINE[1] - LINE[0])


def divergence(one: np.ndarray, other: np.ndarray) -> float:
    """Kullback-Leibler divergence of masses."""
    return float(rel_entr(one, np.maximum(other, 1e-300)).sum())
