"""Batch-normalised critics with two hidden ReLU layers, computed by `normalised.cc` and
differentiated by hand.

`weights` are eight arrays, each with a leading member axis: weight, gain and shift of both hidden
layers, weight and bias of the last.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from algd.networks.native import library

Weights = tuple[Array, Array, Array, Array, Array, Array, Array, Array]
Moments = tuple[Array, Array, Array, Array]


def serves(weights: Any) -> bool:
    """Whether these can be computed here: two equal hidden layers of single precision whose width
    is a multiple of 32."""
    if len(weights) != 8 or any(x.dtype != jnp.float32 for x in weights):
        return False
    _, inputs, width = weights[3].shape
    return inputs == width and width % library.COLUMNS == 0 and library.available()


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def values(
    weights: Weights, inputs: Float[Array, "rows inputs"], floor: float
) -> tuple[Float[Array, "members rows outputs"], Moments]:
    """Every member's values; mean and variance of both hidden layers before their normalisation.

    There is no gradient by the inputs, nor through the moments.
    """
    return _forward(weights, inputs, floor)[0]


def _forward(weights: Weights, inputs: Array, floor: float) -> tuple[Any, Any]:
    members, hidden, outputs = weights[6].shape
    rows = len(inputs)
    layer, moment = (members, rows, hidden), (members, hidden)
    call = library.call(
        "normalised_forward", (members, rows, outputs), layer, layer, *(moment,) * 4
    )
    found = call(inputs, *_with_last_turned(weights), floor=np.float32(floor))
    values, first, second, *moments = found
    return (values, tuple(moments)), (weights, inputs, first, second, moments[1], moments[3])


def _backward(floor: float, kept: Any, cotangents: Any) -> tuple[Any, Array]:
    weights, inputs, *rest = kept
    turned = _with_last_turned(weights)
    call = library.call("normalised_backward", *(x.shape for x in turned))
    grads = call(inputs, *turned, *rest, cotangents[0], floor=np.float32(floor))
    return _with_last_turned(tuple(grads)), jnp.zeros_like(inputs)


values.defvjp(_forward, _backward)


def _with_last_turned(weights: Any) -> Any:
    """The last layer's weights as `[members, outputs, hidden]`, or back from there."""
    return (*weights[:6], jnp.swapaxes(weights[6], 1, 2), weights[7])
