"""From the algorithms' networks to plain arrays."""

from dataclasses import replace
from typing import Any, Protocol, TypeVar, runtime_checkable

import jax.numpy as jnp
import numpy as np

from algd.networks.critics import CriticEnsemble
from algd.networks.layers import MLP, Activation, Linear
from algd.networks.numpy_policy import Gaussian, Network, PolicyData
from algd.networks.score import ScoreNetwork


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


Layered = TypeVar("Layered", MLP, CriticEnsemble, ScoreNetwork)


def folded(trained: Layered, units: Any) -> Layered:
    """The network of raw observations, where the one given sees standardised ones by these units.

    The observation comes first among the inputs of every network.
    """
    if units is None or units.obs_mean is None:
        return trained
    layers = trained.layers
    weight, size = layers[0].weight, units.obs_mean.shape[-1]
    of_obs = weight[..., :size, :] / units.obs_deviation[:, None]
    bias = layers[0].bias - units.obs_mean @ of_obs
    first = Linear(jnp.concatenate([of_obs, weight[..., size:, :]], axis=-2), bias)
    return replace(trained, layers=(first, *layers[1:]))
