"""Layers as plain arrays: initialisers, activations, products, the forward pass."""

import itertools
import math
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from algd.networks.native import mlp as native_mlp

Activation = Literal["relu", "silu", "elu", "tanh"]
Initialiser = Callable[[PRNGKeyArray, int, int], Float[Array, "inputs outputs"]]


def xavier_uniform(key: PRNGKeyArray, inputs: int, outputs: int) -> Float[Array, "inputs outputs"]:
    """Uniform in ±sqrt(6 / (inputs + outputs))."""
    bound = math.sqrt(6.0 / (inputs + outputs))
    return jax.random.uniform(key, (inputs, outputs), minval=-bound, maxval=bound)


def half_fan_in_normal(
    key: PRNGKeyArray, inputs: int, outputs: int
) -> Float[Array, "inputs outputs"]:
    """Normal with standard deviation 1 / (2 sqrt(inputs)): the cost ensemble's initialiser."""
    return jax.random.normal(key, (inputs, outputs)) / (2.0 * math.sqrt(inputs))


def he_normal(key: PRNGKeyArray, inputs: int, outputs: int) -> Float[Array, "inputs outputs"]:
    """Normal with standard deviation sqrt(2 / inputs)."""
    return jax.random.normal(key, (inputs, outputs)) * math.sqrt(2.0 / inputs)


def fan_in_uniform(key: PRNGKeyArray, inputs: int, outputs: int) -> Float[Array, "inputs outputs"]:
    """Uniform in ±1 / sqrt(inputs): Kaiming-uniform with the slope sqrt(5) that PyTorch uses."""
    bound = 1.0 / math.sqrt(inputs)
    return jax.random.uniform(key, (inputs, outputs), minval=-bound, maxval=bound)


def silu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """x * sigmoid(x), through tanh, which XLA computes faster on a CPU than an exponential."""
    return 0.5 * x * (1.0 + jnp.tanh(0.5 * x))


ACTIVATIONS: dict[Activation, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "silu": silu,
    "elu": jax.nn.elu,
    "tanh": jnp.tanh,
}


class Linear(eqx.Module):
    """`x @ weight + bias`; an ensemble has a leading member axis on both."""

    weight: Float[Array, "*members inputs outputs"]
    bias: Float[Array, "*members outputs"]


def init_layers(
    sizes: tuple[int, ...], initialiser: Initialiser, key: PRNGKeyArray
) -> tuple[Linear, ...]:
    """One `Linear` between each two neighbouring sizes, biases zero."""
    pairs = list(itertools.pairwise(sizes))
    keys = jax.random.split(key, len(pairs))
    return tuple(
        Linear(initialiser(k, i, o), jnp.zeros(o)) for k, (i, o) in zip(keys, pairs, strict=True)
    )


Product = Callable[[Array, Array], Array]


@jax.custom_vjp
def bfloat16_product(
    x: Float[Array, "rows inputs"], weight: Float[Array, "inputs outputs"]
) -> Float[Array, "rows outputs"]:
    """`x @ weight` with both factors rounded to bfloat16 and sums in the type of `x`.

    Its gradients are products of the same kind, which automatic differentiation would not make.
    """
    half = jnp.bfloat16
    return jnp.matmul(x.astype(half), weight.astype(half), preferred_element_type=x.dtype)


def _bfloat16_forward(x: Array, weight: Array) -> tuple[Array, tuple[Array, Array]]:
    return bfloat16_product(x, weight), (x, weight)


def _bfloat16_backward(inputs: tuple[Array, Array], grad: Array) -> tuple[Array, Array]:
    x, weight = inputs
    return bfloat16_product(grad, weight.T), bfloat16_product(x.T, grad)


bfloat16_product.defvjp(_bfloat16_forward, _bfloat16_backward)


def mlp(
    layers: tuple[Linear, ...],
    x: Float[Array, "*batch inputs"],
    activation: Activation,
) -> Float[Array, "*batch outputs"]:
    """Hidden layers with an activation, a linear last layer."""
    leaves = tuple(jax.tree.leaves(layers))
    if activation == "relu" and native_mlp.serves(leaves, x):
        return native_mlp.mlp(leaves, x)
    for layer in layers[:-1]:
        x = ACTIVATIONS[activation](x @ layer.weight + layer.bias)
    return x @ layers[-1].weight + layers[-1].bias


class MLP(eqx.Module):
    """Layers with an activation between them."""

    layers: tuple[Linear, ...]
    activation: Activation = eqx.field(static=True)

    @classmethod
    def create(
        cls,
        sizes: tuple[int, ...],
        activation: Activation,
        initialiser: Initialiser,
        key: PRNGKeyArray,
    ) -> "MLP":
        """From the first size to the last."""
        return cls(init_layers(sizes, initialiser, key), activation)

    def __call__(self, x: Float[Array, "*batch inputs"]) -> Float[Array, "*batch outputs"]:
        """The forward pass."""
        return mlp(self.layers, x, self.activation)


def each_member(function: Callable[..., Any], *stacked: Any) -> Any:
    """`function` of every member's slice of the arguments, its results stacked.

    On a CPU member by member: each one's intermediate results stay in its cache, and small products
    of different members run at the same time (1.6 times faster at the paper's sizes). On an
    accelerator all members in one batched product.
    """
    if jax.default_backend() != "cpu":
        return jax.vmap(function)(*stacked)
    members = jax.tree.leaves(stacked)[0].shape[0]
    results = [function(*jax.tree.map(lambda x, m=m: x[m], stacked)) for m in range(members)]
    return jax.tree.map(lambda *parts: jnp.stack(parts), *results)
