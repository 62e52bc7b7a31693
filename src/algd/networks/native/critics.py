"""Ensembles of critics with two hidden layers, computed by `critics.cc`.

`layers` are six arrays: weight `[members, inputs, outputs]` and bias of each layer.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from algd.networks.native import library

Layers = tuple[Array, Array, Array, Array, Array, Array]
# In the order of their numbers in the compiled code.
ACTIVATIONS = ("relu", "silu", "elu")


def serves(layers: Any, activation: str) -> bool:
    """Whether these layers can be computed here: two equal hidden layers of single precision whose
    width is a multiple of 32."""
    if activation not in ACTIVATIONS or len(layers) != 6:
        return False
    if any(x.dtype != jnp.float32 for x in layers):
        return False
    _, inputs, width = layers[2].shape
    return inputs == width and width % library.COLUMNS == 0 and library.available()


def values_and_slopes(
    layers: Layers,
    obs: Float[Array, "batch obs"],
    action: Float[Array, "batch actions action"],
    activation: str,
    rounded: bool,
    keep_slopes: bool,
) -> tuple[Float[Array, "members batch actions outputs"], Float[Array, "members rows hidden"]]:
    """Every member's values, and the slopes of its second layer, which the way back needs.

    `rounded` to bfloat16 are the factors of the second layer's product.
    """
    batch, actions, _ = action.shape
    members, hidden, outputs = layers[4].shape
    kept = batch * actions if keep_slopes else 0
    call = library.call(
        "critics_forward", (members, batch, actions, outputs), (members, kept, hidden)
    )
    inputs = (obs, action, *_with_last_turned(layers))
    values, slopes = call(*inputs, activation=_number(activation), rounded=rounded)
    return values, slopes


def pull_back(
    layers: Layers,
    obs: Float[Array, "batch obs"],
    action: Float[Array, "batch actions action"],
    cotangents: Float[Array, "members batch actions outputs"],
    slopes: Float[Array, "members rows hidden"],
    activation: str,
    rounded: bool,
) -> Float[Array, "batch actions action"]:
    """From the cotangents of values to those of actions; rows of zeros cost nothing."""
    call = library.call("critics_backward", (len(slopes), *action.shape))
    inputs = (obs, action, *_with_last_turned(layers), cotangents, slopes)
    by_member = call(*inputs, activation=_number(activation), rounded=rounded)[0]
    return jnp.sum(by_member, axis=0)


def regress(
    layers: Layers,
    obs: Float[Array, "batch obs"],
    action: Float[Array, "batch action"],
    targets: Float[Array, "members batch outputs"],
    weight: float,
    activation: str,
) -> tuple[Float[Array, "members batch outputs"], Layers]:
    """The values, and the gradient of `weight` times their squared distances from the targets."""
    turned = _with_last_turned(layers)
    call = library.call("critics_regress", targets.shape, *(x.shape for x in turned))
    inputs = (obs, action[:, None], *turned, targets)
    how = {"activation": _number(activation), "scale": np.float32(2.0 * weight)}
    values, *grads = call(*inputs, **how)
    return values, _with_last_turned(tuple(grads))


def _number(activation: str) -> np.int64:
    return np.int64(ACTIVATIONS.index(activation))


def _with_last_turned(layers: Any) -> Any:
    """The last layer's weights as `[members, outputs, hidden]`, or back from there."""
    return (*layers[:4], jnp.swapaxes(layers[4], 1, 2), layers[5])
