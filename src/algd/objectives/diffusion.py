"""Variance-exploding diffusion: noise levels, reverse-time sampling, the Monte Carlo score.

Levels are counted k = 0, ..., K-1 from the cleanest to the noisiest; a chain runs k = K-1, ..., 0.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


class NoiseSchedule(NamedTuple):
    """Standard deviations of the levels and what each reverse step removes."""

    sigmas: Float[np.ndarray, " steps"]
    delta_sigma2: Float[np.ndarray, " steps"]


def geometric_schedule(sigma_min: float, sigma_max: float, steps: int) -> NoiseSchedule:
    r"""$\sigma_k = \sigma_{min} (\sigma_{max}/\sigma_{min})^{k/(K-1)}$.

    $\Delta\sigma^2_k = \sigma_k^2 - \sigma_{k-1}^2$ with $\sigma_{-1} = 0$, so that the increments
    sum to $\sigma_{max}^2$. A single step has the level $\sigma_{min}$.
    """
    exponents = np.arange(steps) / max(steps - 1, 1)
    sigmas = sigma_min * (sigma_max / sigma_min) ** exponents
    return NoiseSchedule(sigmas, np.diff(sigmas**2, prepend=0.0))


def noise_scales(
    schedule: NoiseSchedule, power: float, last_step_noise: bool
) -> Float[np.ndarray, " steps"]:
    r"""Each step's noise: standard deviation $\sqrt{\Delta\sigma^2_k}(\sigma_{k-1}/\sigma_k)^p$.

    p = 0 is Euler-Maruyama, which adds as much noise as the forward process removed; p = 1 is the
    ancestral step, whose variance is that of the bridge between two levels. With few steps the
    first leaves too much noise and the second too little. The last step is given $\sigma_{-1} =
    \sigma_0$ where it adds noise at all.
    """
    previous = np.append(schedule.sigmas[0], schedule.sigmas[:-1])
    scales = np.sqrt(schedule.delta_sigma2) * (previous / schedule.sigmas) ** power
    return scales if last_step_noise else np.append(0.0, scales[1:])


def reverse_chain(
    score: Callable[[Float[Array, "*batch action"], Int[Array, ""]], Float[Array, "*batch action"]],
    schedule: NoiseSchedule,
    scales: Float[np.ndarray, " steps"],
    start: Float[Array, "*batch action"],
    noise: Float[Array, "steps *batch action"],
) -> Float[Array, "levels *batch action"]:
    r"""$x_{k-1} = x_k + \Delta\sigma^2_k\,\phi(x_k, k) + s_k \epsilon_k$ for k = K-1, ..., 0.

    All latents in the order of the chain: `[0]` is the start, `[-1]` the end. `noise[k]` is used
    in step k. Zero noise gives the deterministic chain.
    """
    dtype = start.dtype
    steps = len(schedule.sigmas)

    def step(x: Array, inputs: tuple[Array, Array, Array, Array]) -> tuple[Array, Array]:
        k, drift, scale, eps = inputs
        x = x + drift * score(x, k) + scale * eps
        return x, x

    inputs = (
        jnp.arange(steps),
        jnp.asarray(schedule.delta_sigma2, dtype),
        jnp.asarray(scales, dtype),
        noise,
    )
    # A loop lets nothing run beside it; unrolled, the default round takes a tenth less time.
    _, latents = jax.lax.scan(step, start, inputs, reverse=True, unroll=min(steps, 5))
    return jnp.concatenate([start[None], latents[::-1]])


def boltzmann_weights(energies: Float[Array, " samples"], beta: float) -> Float[Array, " samples"]:
    r"""$w_i = e^{-E_i/\beta} / \sum_j e^{-E_j/\beta}$, with the largest exponent subtracted."""
    return jax.nn.softmax(-energies / beta)


def monte_carlo_score(
    energies: Float[Array, " samples"],
    energy_grads: Float[Array, "samples action"],
    beta: float,
) -> Float[Array, " action"]:
    r"""$\hat\phi = -\frac{1}{\beta}\sum_i w_i \nabla_a E(a_i)$, $a_i \sim N(a^\tau, \sigma^2 I)$.

    The self-normalised estimate of the smoothed score (Proposition 1); its bias falls like 1/N.
    """
    return -boltzmann_weights(energies, beta) @ energy_grads / beta
