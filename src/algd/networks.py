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
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

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


def forward(
    layers: tuple[Linear, ...],
    state_half: Float[Array, "batch hidden"],
    action: Float[Array, "batch actions action"],
    activation: Activation,
    product: Product,
) -> tuple[Float[Array, "rows outputs"], list[Float[Array, "rows hidden"]]]:
    """One critic's value of every action, and what its activations were applied to."""
    batch, actions, size = action.shape
    action_half = action.reshape(batch * actions, size) @ layers[0].weight[-size:]
    x = action_half.reshape(batch, actions, -1) + state_half[:, None]
    inputs = [x.reshape(batch * actions, -1)]
    for layer in layers[1:-1]:
        inputs.append(product(activation(inputs[-1]), layer.weight) + layer.bias)
    return activation(inputs[-1]) @ layers[-1].weight + layers[-1].bias, inputs


def backward(
    layers: tuple[Linear, ...],
    inputs: list[Float[Array, "rows hidden"]],
    cotangents: Float[Array, "rows outputs"],
    size: int,
    activation: Activation,
    product: Product,
) -> Float[Array, "rows action"]:
    """From the cotangents of one critic's values to those of its actions of `size` numbers."""
    grad = cotangents @ layers[-1].weight.T
    for depth in range(len(inputs) - 1, -1, -1):
        (grad,) = jax.vjp(activation, inputs[depth])[1](grad)
        if depth:
            grad = product(grad, layers[depth].weight.T)
    return grad @ layers[0].weight[-size:].T


def where_needed(
    function: Callable[[Array | slice], Array], needed: Bool[Array, " rows"], block: int
) -> Float[Array, "rows *shape"]:
    """`function` of the rows that are needed, given by their numbers; zero for the others.

    Few are done in blocks, as many as they fill (the size must divide the number of rows); if they
    are more than half, all are done at once.
    """
    count = needed.shape[0]
    numbers = jnp.nonzero(needed, size=count, fill_value=count)[0]
    total = jnp.sum(needed, dtype=numbers.dtype)

    def next_block(state: tuple[Array, Array]) -> tuple[Array, Array]:
        start, found = state
        rows = jax.lax.dynamic_slice_in_dim(numbers, start, block)
        # Behind the last row that is needed there are numbers of no row: these are dropped.
        return start + block, found.at[rows].set(function(rows), mode="drop")

    def every_row() -> Array:
        return function(slice(None))

    def by_blocks() -> Array:
        nothing = jnp.zeros_like(jax.eval_shape(every_row))
        begin = (jnp.zeros_like(total), nothing)
        return jax.lax.while_loop(lambda state: state[0] < total, next_block, begin)[1]

    return jax.lax.cond(2 * total > count, every_row, by_blocks)


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

    def state_half(self, obs: Float[Array, "batch obs"]) -> Float[Array, "members batch hidden"]:
        """The first layer's sum over the observation, to be shared by all actions of a state."""
        first = self.layers[0]
        return obs @ first.weight[:, : obs.shape[-1]] + first.bias[:, None]

    def values(
        self,
        state_half: Float[Array, "members batch hidden"],
        action: Float[Array, "batch actions action"],
        activation: Activation,
        product: Product = jnp.matmul,
    ) -> Float[Array, "members batch actions outputs"]:
        """Every member's value of several actions for each state."""
        batch, actions, _ = action.shape

        def member(
            layers: tuple[Linear, ...], half: Float[Array, "batch hidden"]
        ) -> Float[Array, "batch actions outputs"]:
            values, _ = forward(layers, half, action, activation, product)
            return values.reshape(batch, actions, -1)

        return each_member(member, self.layers, state_half)

    def values_and_pullback(
        self,
        state_half: Float[Array, "members batch hidden"],
        action: Float[Array, "batch actions action"],
        activation: Activation,
        product: Product = jnp.matmul,
    ) -> tuple[Float[Array, "members batch actions outputs"], Callable[[Array], Array]]:
        """The values, and what takes their cotangents to the actions'.

        On a CPU, rows whose cotangents are all zero cost nothing on the way back.
        """
        if jax.default_backend() != "cpu":
            valued = lambda a: self.values(state_half, a, activation, product)  # noqa: E731
            values, pull_back = jax.vjp(valued, action)
            return values, lambda cotangents: pull_back(cotangents)[0]
        members = [jax.tree.map(lambda x, m=m: x[m], self.layers) for m in range(len(state_half))]
        passes = [
            forward(layers, half, action, activation, product)
            for layers, half in zip(members, state_half, strict=True)
        ]

        def to_actions(cotangents: Array) -> Array:
            flat = cotangents.reshape(len(members), -1, cotangents.shape[-1])

            def of_rows(rows: Int[Array, " block"] | slice) -> Float[Array, "block action"]:
                parts = [
                    backward(
                        layers,
                        [x[rows] for x in inputs],
                        cotangent[rows],
                        action.shape[-1],
                        activation,
                        product,
                    )
                    for layers, (_, inputs), cotangent in zip(members, passes, flat, strict=True)
                ]
                return sum(parts[1:], parts[0])

            needed = jnp.any(flat != 0.0, axis=(0, 2))
            return where_needed(of_rows, needed, action.shape[0]).reshape(action.shape)

        values = jnp.stack([values for values, _ in passes])
        return values.reshape(-1, *action.shape[:2], values.shape[-1]), to_actions

    def __call__(
        self,
        obs: Float[Array, "batch obs"],
        action: Float[Array, "batch action"],
        activation: Activation,
    ) -> Float[Array, "members batch outputs"]:
        """Every member's value of one action for each state."""
        inputs = jnp.concatenate([obs, action], axis=-1)
        return each_member(lambda layers: mlp(layers, inputs, activation), self.layers)


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
