"""Temporal-difference targets and what is read off an ensemble of critics."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def td_target(
    signal: Float[Array, "*batch"],
    bootstrap: Float[Array, "*batch"],
    discount: float,
    next_value: Float[Array, "*batch"],
) -> Float[Array, "*batch"]:
    r"""$y = r + \gamma\, m\, V(s')$, with the mask m = 0 where the future ends."""
    return signal + discount * bootstrap * next_value


def clipped_value(qs: Float[Array, "members *batch"]) -> Float[Array, "*batch"]:
    r"""$\min_j Q_j$: the pessimistic value of the double critic."""
    return jnp.min(qs, axis=0)


def pessimistic_cost(
    qcs: Float[Array, "members *batch"], spread: float
) -> Float[Array, "*batch"]:
    r"""$\mathrm{mean}_i Q_{c,i} + k\, \mathrm{std}_i Q_{c,i}$, std with M - 1, zero if M = 1."""
    mean = jnp.mean(qcs, axis=0)
    if qcs.shape[0] == 1 or spread == 0.0:
        return mean
    deviations = qcs - mean
    variance = jnp.sum(deviations**2, axis=0) / (qcs.shape[0] - 1)
    # The square root has no gradient at zero, where all members agree.
    positive = variance > 0.0
    std = jnp.where(positive, jnp.sqrt(jnp.where(positive, variance, 1.0)), 0.0)
    return mean + spread * std


def squared_error(
    predictions: Float[Array, "members *batch"], targets: Float[Array, "members *batch"]
) -> Float[Array, " members"]:
    """Each member's mean squared error."""
    return jnp.mean((predictions - targets) ** 2, axis=tuple(range(1, predictions.ndim)))


def polyak(target: Any, online: Any, rate: float | Float[Array, ""]) -> Any:
    r"""$\theta' \leftarrow (1 - \eta)\,\theta' + \eta\,\theta$."""
    return jax.tree.map(lambda old, new: (1.0 - rate) * old + rate * new, target, online)
