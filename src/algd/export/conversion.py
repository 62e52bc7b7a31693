"""From the algorithms' networks to plain arrays."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from algd.export.numpy_policy import Network


def network(layers: Sequence[Any], activation: str) -> Network:
    """The layers of an MLP or of an ensemble of them, on the host."""
    return Network(
        weights=tuple(np.asarray(layer.weight) for layer in layers),
        biases=tuple(np.asarray(layer.bias) for layer in layers),
        activation=activation,
    )
