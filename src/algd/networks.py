"""The networks of the paper's architecture table, as plain arrays with their forward passes.

The first layer of each network is applied in parts: the part that sees the state is computed once
per state and shared by the Monte Carlo actions (critics) and by the denoising steps (score).
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from algd.native import critics as native
from algd.native import mlp as native_mlp

Activation = Callable[[Array], Array]
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
    if activation is jax.nn.relu and native_mlp.serves(leaves, x):
        return native_mlp.mlp(leaves, x)
    for layer in layers[:-1]:
        x = activation(x @ layer.weight + layer.bias)
    return x @ layers[-1].weight + layers[-1].bias


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


class CriticEnsemble(eqx.Module):
    """Independent critics `[obs, action] -> outputs`."""

    layers: tuple[Linear, ...]

    @classmethod
    def create(
        cls,
        members: int,
        obs_size: int,
        action_size: int,
        hidden: tuple[int, ...],
        outputs: int,
        initialiser: Initialiser,
        key: PRNGKeyArray,
    ) -> "CriticEnsemble":
        """Members with independent initial weights."""
        sizes = (obs_size + action_size, *hidden, outputs)
        keys = jax.random.split(key, members)
        return cls(jax.vmap(lambda k: init_layers(sizes, initialiser, k))(keys))

    def __call__(
        self,
        obs: Float[Array, "batch obs"],
        action: Float[Array, "batch action"],
        activation: Activation,
    ) -> Float[Array, "members batch outputs"]:
        """Every member's value of one action for each state; can be differentiated."""
        inputs = jnp.concatenate([obs, action], axis=-1)
        return each_member(lambda layers: mlp(layers, inputs, activation), self.layers)

    def values(
        self,
        obs: Float[Array, "batch obs"],
        action: Float[Array, "batch action"],
        activation: Activation,
    ) -> Float[Array, "members batch outputs"]:
        """The same, sooner, not to be differentiated."""
        if not self._native(activation):
            return self(obs, action, activation)
        inputs = (self._leaves, obs, action[:, None])
        return native.values_and_slopes(*inputs, activation is silu, False, False)[0][:, :, 0]

    def values_and_pullback(
        self,
        obs: Float[Array, "batch obs"],
        action: Float[Array, "batch actions action"],
        activation: Activation,
        product: Product = jnp.matmul,
    ) -> tuple[Float[Array, "members batch actions outputs"], Callable[[Array], Array]]:
        """Every member's value of several actions for each state, and what takes the values'
        cotangents to the actions'.

        In native code, rows whose cotangents are all zero cost nothing on the way back.
        """
        if not (self._native(activation) and product in (jnp.matmul, bfloat16_product)):
            plain = lambda a: self._plain_values(obs, a, activation, product)  # noqa: E731
            values, pull_back = jax.vjp(plain, action)
            return values, lambda cotangents: pull_back(cotangents)[0]
        inputs = (self._leaves, obs, action)
        how = (activation is silu, product is bfloat16_product)
        values, slopes = native.values_and_slopes(*inputs, *how, True)
        return values, lambda cotangents: native.pull_back(*inputs, cotangents, slopes, *how)

    def regress(
        self,
        obs: Float[Array, "batch obs"],
        action: Float[Array, "batch action"],
        targets: Float[Array, "members batch outputs"],
        weight: float,
        activation: Activation,
    ) -> tuple[Float[Array, "members batch outputs"], "CriticEnsemble"]:
        r"""The values, and the gradient of $w \sum (Q_i - y_i)^2$."""
        if self._native(activation):
            values, grads = native.regress(
                self._leaves, obs, action, targets, weight, activation is silu
            )
            return values, jax.tree.unflatten(jax.tree.structure(self), grads)

        def loss(
            layers: tuple[Linear, ...], target: Float[Array, "batch outputs"]
        ) -> tuple[Array, Array]:
            values = mlp(layers, inputs, activation)
            return weight * jnp.sum((values - target) ** 2), values

        inputs = jnp.concatenate([obs, action], axis=-1)
        # Member by member: the gradient of a slice of all members would be as large as all of them.
        grads, values = each_member(jax.grad(loss, has_aux=True), self.layers, targets)
        return values, CriticEnsemble(grads)

    @property
    def members(self) -> int:
        """How many critics there are."""
        return self.layers[0].bias.shape[0]

    @property
    def _leaves(self) -> Any:
        return tuple(jax.tree.leaves(self))

    def _native(self, activation: Activation) -> bool:
        return activation in (jax.nn.relu, silu) and native.serves(self._leaves)

    def _plain_values(
        self,
        obs: Float[Array, "batch obs"],
        action: Float[Array, "batch actions action"],
        activation: Activation,
        product: Product,
    ) -> Float[Array, "members batch actions outputs"]:
        """The values through XLA; all actions of a state share the first layer's sum over it."""
        batch, actions, size = action.shape

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


class ScoreNetwork(eqx.Module):
    """`[obs, action, embedding[k]] -> score`, three hidden ReLU layers by default."""

    layers: tuple[Linear, ...]
    time_embedding: Float[Array, "steps embedding"]

    @classmethod
    def create(
        cls,
        obs_size: int,
        action_size: int,
        hidden: tuple[int, ...],
        steps: int,
        embedding_size: int,
        key: PRNGKeyArray,
    ) -> "ScoreNetwork":
        """Xavier-uniform layers and a standard normal table of step embeddings."""
        layer_key, table_key = jax.random.split(key)
        sizes = (obs_size + action_size + embedding_size, *hidden, action_size)
        table = jax.random.normal(table_key, (steps, embedding_size))
        return cls(init_layers(sizes, xavier_uniform, layer_key), table)

    def state_half(self, obs: Float[Array, "*batch obs"]) -> Float[Array, "*batch hidden"]:
        """The first layer's sum over the observation, to be shared by all denoising steps."""
        first = self.layers[0]
        return obs @ first.weight[: obs.shape[-1]] + first.bias

    def scores(
        self,
        state_half: Float[Array, "*batch hidden"],
        action: Float[Array, "*batch action"],
        k: Int[Array, "*batch"] | Int[Array, ""],
    ) -> Float[Array, "*batch action"]:
        """The score at noise level k."""
        weight = self.layers[0].weight
        size, embedding = action.shape[-1], self.time_embedding.shape[-1]
        time_half = self.time_embedding @ weight[-embedding:]
        action_half = action @ weight[-embedding - size : -embedding]
        x = jax.nn.relu(state_half + action_half + time_half[k])
        return mlp(self.layers[1:], x, jax.nn.relu)


def descend(
    params: Any, grads: Any, moments: Any, rate: float | Float[Array, ""]
) -> tuple[Any, Any]:
    """One Adam step (0.9, 0.999, 1e-8). Optax mixes integer counts and floats: hence the guard."""
    with jax.numpy_dtype_promotion("standard"):
        updates, moments = optax.adam(rate).update(grads, moments)
        return optax.apply_updates(params, updates), moments


def init_moments(params: Any) -> Any:
    """Adam's moments before the first step."""
    return optax.adam(1.0).init(params)


def clip_norm(grads: Any, limit: float) -> Any:
    """Gradients scaled down to the Euclidean norm `limit` over all leaves if they exceed it."""
    return optax.clip_by_global_norm(limit).update(grads, optax.EmptyState())[0]


def decayed(
    first: float, last: float, done: Int[Array, ""], total: int
) -> float | Float[Array, ""]:
    """A step size that goes linearly from `first` to `last` in `total` updates; 0: it stays."""
    if total == 0:
        return first
    return first + (last - first) * jnp.minimum(done.astype(float) / total, 1.0)
