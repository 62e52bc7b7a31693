"""A network with two hidden ReLU layers, computed by `mlp.cc` and differentiated by hand.

`layers` are six arrays: weight `[inputs, outputs]` and bias of each layer.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from algd.networks.native import library

Layers = tuple[Array, Array, Array, Array, Array, Array]


def serves(layers: Any, x: Array) -> bool:
    """Whether this can be computed here: many rows of single precision, sizes that fill vectors."""
    if len(layers) != 6 or any(a.dtype != jnp.float32 or a.ndim > 2 for a in layers):
        return False
    sizes = (*layers[0].shape, layers[2].shape[1])
    fitting = x.ndim == 2 and len(x) >= 64 and all(size % library.COLUMNS == 0 for size in sizes)
    return fitting and sizes[1] == sizes[2] and library.available()


@jax.custom_vjp
def mlp(layers: Layers, x: Float[Array, "rows inputs"]) -> Float[Array, "rows outputs"]:
    """Two hidden layers with ReLU, a linear last layer."""
    return _forward(layers, x)[0]


def _forward(layers: Layers, x: Array) -> tuple[Array, tuple[Layers, Array, Array, Array]]:
    hidden, outputs = layers[4].shape
    rows = len(x)
    call = library.call("mlp_forward", (rows, outputs), (rows, hidden), (rows, hidden))
    out, first, second = call(x, *layers[:4], layers[4].T, layers[5])
    return out, (layers, x, first, second)


def _backward(
    kept: tuple[Layers, Array, Array, Array], cotangents: Array
) -> tuple[tuple[Array, ...], Array]:
    layers, x, first, second = kept
    call = library.call("mlp_backward", first.shape, second.shape, x.shape)
    inputs = (x, *layers[:4], layers[4].T, layers[5], first, second, cotangents)
    by_first, by_second, by_x = call(*inputs)
    behind = ((x, by_first), (first, by_second), (second, cotangents))
    grads = [part for left, right in behind for part in (left.T @ right, jnp.sum(right, axis=0))]
    return tuple(grads), by_x


mlp.defvjp(_forward, _backward)
