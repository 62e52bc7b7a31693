"""From the algorithms' networks to plain arrays."""

from typing import Any, Protocol, runtime_checkable

import numpy as np

from algd.networks.critics import CriticEnsemble
from algd.networks.layers import MLP, Activation, Linear
from algd.networks.numpy_policy import Critics, Gaussian, Network, Objective, PolicyData


@runtime_checkable
class Portable(Protocol):
    """An algorithm whose policy has a form in plain NumPy."""

    def portable(self, state: Any) -> PolicyData:
        """The policy, and its critics if they see actions, as plain arrays."""
        ...


def network(trained: MLP | CriticEnsemble) -> Network:
    """An MLP or an ensemble of them, on the host."""
    return of_layers(trained.layers, trained.activation)


def of_layers(layers: tuple[Linear, ...], activation: Activation) -> Network:
    """The same, of bare layers."""
    return Network(
        weights=tuple(np.asarray(layer.weight) for layer in layers),
        biases=tuple(np.asarray(layer.bias) for layer in layers),
        activation=activation,
    )


def tanh_gaussian(actor: MLP, log_std_bounds: tuple[float, float]) -> Gaussian:
    """A squashed Gaussian policy."""
    return Gaussian(
        network=network(actor),
        squash="tanh",
        log_std_bounds=np.asarray(log_std_bounds, np.float32),
    )


def lagrangian_critics(state: Any, objective: Objective, rho: float, spread: float) -> Critics:
    """The critics and multipliers of a state with `q`, `qc`, `dual` and `limit`."""
    return Critics(
        q=network(state.q),
        qc=network(state.qc),
        objective=objective,
        lam=np.asarray(state.dual.lam),
        limit=np.asarray(state.limit),
        rho=rho,
        spread=spread,
    )
