"""Variance-exploding diffusion: noise levels, reverse-time sampling, the Monte Carlo score.

Levels are counted k = 0, ..., K-1 from the cleanest to the noisiest; a chain runs k = K-1, ..., 0.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

LOG_DEVIATION_BOUNDS = (-6.0, 1.0)


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


def boltzmann_weights(
    energies: Float[Array, " samples"], beta: float | Float[Array, ""]
) -> Float[Array, " samples"]:
    r"""$w_i = e^{-E_i/\beta} / \sum_j e^{-E_j/\beta}$, with the largest exponent subtracted."""
    return jax.nn.softmax(-energies / beta)


def monte_carlo_score(
    energies: Float[Array, " samples"],
    energy_grads: Float[Array, "samples action"],
    beta: float | Float[Array, ""],
) -> Float[Array, " action"]:
    r"""$\hat\phi = -\frac{1}{\beta}\sum_i w_i \nabla_a E(a_i)$, $a_i \sim N(a^\tau, \sigma^2 I)$.

    The self-normalised estimate of the smoothed score (Proposition 1); its bias falls like 1/N.
    """
    return -boltzmann_weights(energies, beta) @ energy_grads / beta


def gaussian_score(
    mean: Float[Array, "*batch action"],
    log_deviation: Float[Array, "*batch action"],
    x: Float[Array, "*batch action"],
    sigma: Float[Array, "*#batch 1"] | Float[Array, ""],
) -> Float[Array, "*batch action"]:
    r"""$\phi = (\mu - x)/(v + \sigma_k^2)$, the score of N(mu, v) smoothed by the level's noise.

    What a network has to say of it stays of order one at every level, while the score itself grows
    like $1/\sigma_k$; mu and v may depend on x, which makes the density any.
    """
    variance = jnp.exp(2.0 * jnp.clip(log_deviation, *LOG_DEVIATION_BOUNDS))
    return (mean - x) / (variance + sigma**2)


def path_entropy(
    latents: Float[Array, "levels *batch action"],
    noise: Float[Array, "steps *batch action"],
    schedule: NoiseSchedule,
    scales: Float[np.ndarray, " steps"],
) -> Float[Array, "*batch"]:
    r"""A lower bound of the entropy of the chain's end, from one path (before any squashing).

    $H \ge \frac{d}{2} \log 2\pi e \sigma_{max}^2 - E \sum_k [\Delta\sigma^2_k |\phi_k|^2 / 2 +
    \frac{d}{2} (\kappa_k - 1 - \log\kappa_k)]$ with $\kappa_k = s_k^2 / \Delta\sigma^2_k$: the KL
    divergence between the reverse path and the forward one that starts at its end (a discrete
    Girsanov sum). With the energy it is minimal where phi is the score of Proposition 1. For a last
    step without noise it is the entropy of the end blurred by what that step would have added.
    """
    size, dtype = latents.shape[-1], latents.dtype
    drift = jnp.asarray(schedule.delta_sigma2[::-1], dtype)
    scale = jnp.asarray(scales[::-1], dtype)
    ahead = (slice(None),) + (None,) * (latents.ndim - 1)
    moved = jnp.diff(latents, axis=0) - scale[ahead] * noise[::-1]
    effort = jnp.sum(jnp.sum(moved**2, axis=-1) / (2.0 * drift[ahead[:-1]]), axis=0)
    ratios = np.where(scales > 0.0, scales**2 / schedule.delta_sigma2, 1.0)
    constant = math.log(2.0 * math.pi * math.e * float(schedule.sigmas[-1]) ** 2) - float(
        np.sum(ratios - 1.0 - np.log(ratios))
    )
    return 0.5 * size * constant - effort
