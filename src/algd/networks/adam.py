"""Adam, clipped gradients and step sizes that decay."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int


def adam_step(
    params: Any,
    grads: Any,
    moments: Any,
    rate: float | Float[Array, ""],
    momentum: float = 0.9,
    clip: float | None = None,
) -> tuple[Any, Any]:
    """One Adam step (momentum, 0.999, 1e-8), on gradients of at most the norm `clip`. Optax mixes
    integer counts and floats: hence the guard."""
    if clip is not None:
        grads = clip_norm(grads, clip)
    with jax.numpy_dtype_promotion("standard"):
        updates, moments = optax.adam(rate, b1=momentum).update(grads, moments)
        return optax.apply_updates(params, updates), moments


def init_moments(params: Any) -> Any:
    """Adam's moments before the first step."""
    return optax.adam(1.0).init(params)


def clip_norm(grads: Any, limit: float) -> Any:
    """Gradients scaled down to the Euclidean norm `limit` over all leaves if they exceed it."""
    return optax.clip_by_global_norm(limit).update(grads, optax.EmptyState())[0]


def decayed_rate(
    first: float, last: float, done: Int[Array, ""], total: int
) -> float | Float[Array, ""]:
    """A step size that goes linearly from `first` to `last` in `total` updates; 0: it stays."""
    if total == 0:
        return first
    return first + (last - first) * jnp.minimum(done.astype(float) / total, 1.0)
