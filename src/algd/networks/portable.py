"""From the algorithms' networks to plain arrays."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from algd.networks.numpy_policy import Critics, Gaussian, Network, Objective


def network(layers: Sequence[Any], activation: str) -> Network:
    """The layers of an MLP or of an ensemble of them, on the host."""
    return Network(
        weights=tuple(np.asarray(layer.weight) for layer in layers),
        biases=tuple(np.asarray(layer.bias) for layer in layers),
        activation=activation,
    )


def tanh_gaussian(
    actor: Sequence[Any], activation: str, log_std_bounds: tuple[float, float]
) -> Gaussian:
    """A squashed Gaussian policy."""
    return Gaussian(
        network=network(actor, activation),
        squash="tanh",
        log_std_bounds=np.asarray(log_std_bounds, np.float32),
    )


def lagrangian_critics(state: Any, objective: Objective, rho: float, spread: float) -> Critics:
    """The critics and multipliers of a state with `q`, `qc`, `dual` and `limit`."""
    return Critics(
        q=network(state.q.layers, "relu"),
        qc=network(state.qc.layers, "silu"),
        objective=objective,
        lam=np.asarray(state.dual.lam),
        limit=np.asarray(state.limit),
        rho=rho,
        spread=spread,
    )
