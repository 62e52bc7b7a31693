"""Noise on the actions of training: none in some copies of the environment, more in others."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

OCTAVES = 8
"""The slowest part of the noise stays for 128 steps."""
# Folded into a run's key, where an iteration's number never is.
NOISE = 2**32 - 1


def loudness(copies: int) -> Float[np.ndarray, " copies"]:
    """How much of the noise each copy has: none in the first half, all of it in the last one."""
    return np.maximum(np.linspace(-1.0, 1.0, copies), 0.0)


def pink_noise(
    key: PRNGKeyArray, step: int | Int[Array, ""], shape: tuple[int, ...]
) -> Float[Array, "..."]:
    r"""$J^{-1/2} \sum_{j < J} \epsilon_j(\lfloor t / 2^j \rfloor)$ at the step t.

    Standard normal numbers whose octave j is drawn anew every $2^j$ steps: what is fast makes a
    robot tremble, what is slow carries it elsewhere. They follow from the run's key and the step's
    number, so that a run that was interrupted goes on with the same.
    """
    key = jax.random.fold_in(key, NOISE)

    def octave(j: Int[Array, ""]) -> Float[Array, "..."]:
        own = jax.random.fold_in(jax.random.fold_in(key, j), jnp.asarray(step) >> j)
        return jax.random.normal(own, shape)

    return jnp.sum(jax.vmap(octave)(jnp.arange(OCTAVES)), axis=0) / np.sqrt(OCTAVES)
