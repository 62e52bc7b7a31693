"""How faithfully a sampler draws from a Boltzmann density that is known: two wells on a line.

The energy is that of the reference data of the tests. The sampler is an algorithm's own reverse
chain with the exact smoothed score in the network's place, so that what remains is the error of
the noise schedule and of the number of steps.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.ndimage import map_coordinates
from jaxtyping import Array, Float, PRNGKeyArray

from algd.algorithms import preset
from algd.algorithms.algd import ALGD
from algd.objectives.diffusion import monte_carlo_score, reverse_chain

Energy = Callable[[Float[Array, ""]], Float[Array, ""]]

HEIGHT, HALF_DISTANCE, TILT = 1.0, 0.5, 0.2
# In units of sigma; a steep energy moves the weight far from the kernel's own centre.
NODES = np.linspace(-16.0, 16.0, 801)
POINTS = np.linspace(-6.0, 6.0, 1201)
EDGES = np.concatenate([[-np.inf], np.linspace(-1.5, 1.5, 61), [np.inf]])
PRESETS = ("algd-paper", "algd-code", "algd")
TEMPERATURES = (0.1, 0.3, 1.0)


def two_well(action: Float[Array, ""]) -> Float[Array, ""]:
    """Two wells at about -1/2 and 1/2, the left one deeper."""
    return HEIGHT * ((action / HALF_DISTANCE) ** 2 - 1.0) ** 2 + TILT * action


@partial(jax.jit, static_argnames=("energy",))
def smoothed_scores(
    energy: Energy,
    points: Float[Array, " points"],
    beta: float | Float[Array, ""],
    sigmas: Float[Array, " levels"],
    nodes: Float[Array, " nodes"] | Float[np.ndarray, " nodes"] = NODES,
) -> Float[Array, "levels points"]:
    r"""The score of Proposition 1 by quadrature: nodes around each point, weighted by the kernel.

    The estimator of the library becomes the trapezoidal rule if the kernel's own energy, $z^2/2$,
    is added to $E/\beta$ at equally spaced nodes z.
    """

    def at(point: Array, sigma: Array) -> Array:
        actions = point + sigma * nodes
        energies = jax.vmap(energy)(actions) / beta + nodes**2 / 2.0
        grads = jax.vmap(jax.grad(energy))(actions) / beta
        return monte_carlo_score(energies, grads[:, None], 1.0)[0]

    # Level by level: all of them at once would not fit into memory.
    return jax.lax.map(lambda sigma: jax.vmap(lambda x: at(x, sigma))(points), sigmas)


def sample_two_well(
    algorithm: ALGD, beta: float, draws: int, seed: int = 0
) -> Float[np.ndarray, " draws"]:
    """What the algorithm's own chain draws, with the exact score in the network's place."""
    sigmas = algorithm.schedule[0].sigmas
    with jax.enable_x64(True):
        points = jnp.asarray(POINTS)
        table = np.asarray(smoothed_scores(two_well, points, beta, jnp.asarray(sigmas)))
    scores = jnp.asarray(table, jnp.float32)
    return np.asarray(_chain_ends(algorithm, scores, draws, jax.random.key(seed)))


@partial(jax.jit, static_argnames=("algorithm", "draws"))
def _chain_ends(
    algorithm: ALGD, scores: Float[Array, "levels points"], draws: int, key: PRNGKeyArray
) -> Float[Array, " draws"]:
    schedule, scales = algorithm.schedule
    start, noise = jax.random.split(key)
    first, spacing = float(POINTS[0]), float(POINTS[1] - POINTS[0])
    latents = reverse_chain(
        # Linear interpolation between the points of the table.
        lambda x, k: map_coordinates(scores[k], [(x - first) / spacing], 1, mode="nearest"),
        schedule,
        scales,
        float(schedule.sigmas[-1]) * jax.random.normal(start, (draws, 1)),
        jax.random.normal(noise, (algorithm.denoise_steps, draws, 1)),
    )
    return latents[-1, :, 0]


def two_well_masses(beta: float) -> Float[np.ndarray, " bins"]:
    """What the Boltzmann density puts into each bin."""
    fine = np.linspace(-3.0, 3.0, 60_001)
    with jax.enable_x64(True):
        density = np.exp(-np.asarray(jax.vmap(two_well)(jnp.asarray(fine))) / beta)
    return np.histogram(fine, EDGES, weights=density)[0] / density.sum()


def total_variation(samples: Float[np.ndarray, " draws"], beta: float) -> float:
    """Half the summed difference to the Boltzmann density over 62 bins, the outer ones open."""
    drawn = np.histogram(samples, EDGES)[0] / len(samples)
    return float(0.5 * np.abs(drawn - two_well_masses(beta)).sum())


def kl_divergence(samples: Float[np.ndarray, " draws"], beta: float) -> float:
    """Of the Boltzmann density from the draws, over the same bins.

    Every bin is given half a draw more, which keeps the figure finite where nothing was drawn: it
    then means "at least".
    """
    exact = two_well_masses(beta)
    counts = np.histogram(samples, EDGES)[0] + 0.5
    positive = exact > 0
    ratio = exact[positive] / (counts / counts.sum())[positive]
    return float((exact[positive] * np.log(ratio)).sum())


def fidelity(steps: Sequence[int], draws: int) -> list[dict[str, Any]]:
    """Distance of each preset's sampler from the Boltzmann density, by its number of steps."""
    rows = []
    for name in PRESETS:
        for count in steps:
            algorithm = dataclasses.replace(diffusion(name), denoise_steps=count)
            for beta in TEMPERATURES:
                samples = sample_two_well(algorithm, beta, draws)
                rows.append(
                    {
                        "preset": name,
                        "beta": beta,
                        "steps": count,
                        "total_variation": total_variation(samples, beta),
                        "kl": kl_divergence(samples, beta),
                        "left_well": float((samples < 0).mean()),
                    }
                )
    return rows


def diffusion(name: str) -> ALGD:
    """A preset with a reverse chain."""
    algorithm = preset(name)
    assert isinstance(algorithm, ALGD)
    return algorithm
