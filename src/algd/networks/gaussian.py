"""Gaussian policies: diagonal, and squashed into the action box by a tanh.

Functions of one example; `Temperature` is the weight of the entropy and how it is learnt.
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from algd.networks.adam import adam_step, init_moments
from algd.networks.layers import MLP

# Keeps the logarithm of the tanh's slope finite where the action touches its bound.
SLOPE_FLOOR = 1e-6


class Gaussian(NamedTuple):
    """A diagonal normal distribution."""

    mean: Float[Array, " action"]
    log_std: Float[Array, " action"]


def gaussian_head(
    network: MLP,
    obs: Float[Array, " obs"],
    log_std_bounds: tuple[float, float],
) -> Gaussian:
    """The distribution whose mean and clipped log-std are the two halves of a network's output."""
    mean, log_std = jnp.split(network(obs), 2, axis=-1)
    return Gaussian(mean, jnp.clip(log_std, *log_std_bounds))


def log_density(gaussian: Gaussian, x: Float[Array, " action"]) -> Float[Array, ""]:
    r"""$\log N(x; \mu, \sigma^2)$, summed over coordinates."""
    standard = (x - gaussian.mean) / jnp.exp(gaussian.log_std)
    return -jnp.sum(0.5 * standard**2 + gaussian.log_std + 0.5 * math.log(2.0 * math.pi))


def entropy(gaussian: Gaussian) -> Float[Array, ""]:
    r"""$\sum_j \log\sigma_j + \frac12 \log(2 \pi e)$."""
    return jnp.sum(gaussian.log_std + 0.5 * math.log(2.0 * math.pi * math.e))


def kl_divergence(old: Gaussian, new: Gaussian) -> Float[Array, ""]:
    r"""$KL(\mathrm{old} \| \mathrm{new})$, summed over coordinates."""
    ratio = jnp.exp(2.0 * (old.log_std - new.log_std))
    shift = ((old.mean - new.mean) / jnp.exp(new.log_std)) ** 2
    return 0.5 * jnp.sum(ratio + shift - 1.0) + jnp.sum(new.log_std - old.log_std)


def tanh_sample(
    gaussian: Gaussian,
    noise: Float[Array, " action"],
    low: Float[Array, " action"],
    high: Float[Array, " action"],
) -> tuple[Float[Array, " action"], Float[Array, ""]]:
    r"""The action $a = w \tanh(\mu + \sigma\epsilon) + b$ in its box, and its log-density.

    $\log\pi(a) = \log N(\mu + \sigma\epsilon) - \sum_j \log(w_j (1 - \tanh^2) + 10^{-6})$ with the
    half widths w. Zero noise gives the deterministic action.
    """
    half_width, centre = (high - low) / 2.0, (high + low) / 2.0
    latent = gaussian.mean + jnp.exp(gaussian.log_std) * noise
    unit = jnp.tanh(latent)
    slope = jnp.log(half_width * (1.0 - unit**2) + SLOPE_FLOOR)
    return unit * half_width + centre, log_density(gaussian, latent) - jnp.sum(slope)


class Temperature(eqx.Module):
    """The logarithm of the entropy's weight, and Adam's moments."""

    log_alpha: Float[Array, ""]
    moments: tuple

    @classmethod
    def create(cls, alpha: float) -> "Temperature":
        """Start at `alpha`."""
        log_alpha = jnp.asarray(math.log(alpha), float)
        return cls(log_alpha, init_moments(log_alpha))

    @property
    def alpha(self) -> Float[Array, ""]:
        """The weight itself."""
        return jnp.exp(self.log_alpha)

    def scaled(self, factor: Float[Array, ""]) -> "Temperature":
        """The temperature in another unit of energy."""
        return Temperature(self.log_alpha + jnp.log(factor), self.moments)

    def step(
        self,
        log_prob: Float[Array, " batch"],
        target_entropy: float | Float[Array, ""],
        rate: float | Float[Array, ""],
    ) -> "Temperature":
        r"""One Adam step on $\log\alpha$ for $\mathrm{mean}[\alpha (-\log\pi - \bar H)]$."""
        grad = self.alpha * jnp.mean(-log_prob - target_entropy)
        return Temperature(*adam_step(self.log_alpha, grad, self.moments, rate))
