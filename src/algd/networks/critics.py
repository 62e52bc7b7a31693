"""Ensembles of critics.

The first layer is applied in parts: what sees the state is computed once per state and shared by
the Monte Carlo actions.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from algd.networks.layers import (
    ACTIVATIONS,
    Activation,
    Initialiser,
    Linear,
    Product,
    bfloat16_product,
    each_member,
    init_layers,
    mlp,
)
from algd.networks.native import critics as native


class CriticEnsemble(eqx.Module):
    """Independent critics `[obs, action] -> outputs`."""

    layers: tuple[Linear, ...]
    activation: Activation = eqx.field(static=True)

    @classmethod
    def create(
        cls,
        members: int,
        obs_size: int,
        action_size: int,
        hidden: tuple[int, ...],
        outputs: int,
        activation: Activation,
        initialiser: Initialiser,
        key: PRNGKeyArray,
    ) -> "CriticEnsemble":
        """Members with independent initial weights."""
        sizes = (obs_size + action_size, *hidden, outputs)
        keys = jax.random.split(key, members)
        layers = jax.vmap(lambda k: init_layers(sizes, initialiser, k))(keys)
        return cls(layers, activation)

    def __call__(
        self,
        obs: Float[Array, "batch obs"],
        action: Float[Array, "batch action"],
    ) -> Float[Array, "members batch outputs"]:
        """Every member's value of one action for each state; can be differentiated."""
        inputs = jnp.concatenate([obs, action], axis=-1)
        return each_member(lambda layers: mlp(layers, inputs, self.activation), self.layers)

    def values(
        self,
        obs: Float[Array, "batch obs"],
        action: Float[Array, "batch action"],
    ) -> Float[Array, "members batch outputs"]:
        """The same, sooner, not to be differentiated."""
        if not self._native:
            return self(obs, action)
        inputs = (self._leaves, obs, action[:, None])
        return native.values_and_slopes(*inputs, self.activation, False, False)[0][:, :, 0]

    def values_and_pullback(
        self,
        obs: Float[Array, "batch obs"],
        action: Float[Array, "batch actions action"],
        product: Product = jnp.matmul,
    ) -> tuple[Float[Array, "members batch actions outputs"], Callable[[Array], Array]]:
        """Every member's value of several actions for each state, and what takes the values'
        cotangents to the actions'.

        In native code, rows whose cotangents are all zero cost nothing on the way back.
        """
        if not (self._native and product in (jnp.matmul, bfloat16_product)):
            plain = lambda a: self._plain_values(obs, a, product)  # noqa: E731
            values, pull_back = jax.vjp(plain, action)
            return values, lambda cotangents: pull_back(cotangents)[0]
        inputs = (self._leaves, obs, action)
        how = (self.activation, product is bfloat16_product)
        values, slopes = native.values_and_slopes(*inputs, *how, True)
        return values, lambda cotangents: native.pull_back(*inputs, cotangents, slopes, *how)

    def regress(
        self,
        obs: Float[Array, "batch obs"],
        action: Float[Array, "batch action"],
        targets: Float[Array, "members batch outputs"],
        weight: float,
    ) -> tuple[Float[Array, "members batch outputs"], "CriticEnsemble"]:
        r"""The values, and the gradient of $w \sum (Q_i - y_i)^2$."""
        if self._native:
            given = (self._leaves, obs, action, targets, weight, self.activation)
            values, grads = native.regress(*given)
            return values, jax.tree.unflatten(jax.tree.structure(self), grads)

        def loss(
            layers: tuple[Linear, ...], target: Float[Array, "batch outputs"]
        ) -> tuple[Array, Array]:
            values = mlp(layers, inputs, self.activation)
            return weight * jnp.sum((values - target) ** 2), values

        inputs = jnp.concatenate([obs, action], axis=-1)
        # Member by member: the gradient of a slice of all members would be as large as all of them.
        grads, values = each_member(jax.grad(loss, has_aux=True), self.layers, targets)
        return values, CriticEnsemble(grads, self.activation)

    @property
    def members(self) -> int:
        """How many critics there are."""
        return self.layers[0].bias.shape[0]

    @property
    def _leaves(self) -> Any:
        return tuple(jax.tree.leaves(self))

    @property
    def _native(self) -> bool:
        return native.serves(self._leaves, self.activation)

    def _plain_values(
        self,
        obs: Float[Array, "batch obs"],
        action: Float[Array, "batch actions action"],
        product: Product,
    ) -> Float[Array, "members batch actions outputs"]:
        """The values through XLA; all actions of a state share the first layer's sum over it."""
        batch, actions, size = action.shape
        activation = ACTIVATIONS[self.activation]

        def member(layers: tuple[Linear, ...]) -> Float[Array, "batch actions outputs"]:
            first = layers[0].weight
            state_half = obs @ first[:-size] + layers[0].bias
            action_half = action.reshape(batch * actions, size) @ first[-size:]
            x = action_half.reshape(batch, actions, -1) + state_half[:, None]
            x = activation(x.reshape(batch * actions, -1))
            for layer in layers[1:-1]:
                x = activation(product(x, layer.weight) + layer.bias)
            return (x @ layers[-1].weight + layers[-1].bias).reshape(batch, actions, -1)

        return each_member(member, self.layers)
