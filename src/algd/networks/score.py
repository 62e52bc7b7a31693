"""The score network of a diffusion policy."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from algd.networks.layers import Linear, init_layers, mlp, xavier_uniform

FIRST_OUTPUT, FIRST_DEVIATION = 0.1, 0.7


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
        outputs: int = 1,
    ) -> "ScoreNetwork":
        """Xavier-uniform layers and a standard normal table of step embeddings.

        With two outputs for each action coordinate, mean and log-deviation of a normal density,
        this starts near zero and about as wide as the box.
        """
        layer_key, table_key = jax.random.split(key)
        sizes = (obs_size + action_size + embedding_size, *hidden, outputs * action_size)
        layers = init_layers(sizes, xavier_uniform, layer_key)
        if outputs == 2:
            bias = jnp.repeat(jnp.array([0.0, math.log(FIRST_DEVIATION)]), action_size)
            layers = (*layers[:-1], Linear(FIRST_OUTPUT * layers[-1].weight, bias))
        table = jax.random.normal(table_key, (steps, embedding_size))
        return cls(layers, table)

    def state_half(self, obs: Float[Array, "*batch obs"]) -> Float[Array, "*batch hidden"]:
        """The first layer's sum over the observation, to be shared by all denoising steps."""
        first = self.layers[0]
        return obs @ first.weight[: obs.shape[-1]] + first.bias

    def scores(
        self,
        state_half: Float[Array, "*batch hidden"],
        action: Float[Array, "*batch action"],
        k: Int[Array, "*batch"] | Int[Array, ""],
    ) -> Float[Array, "*batch outputs"]:
        """The network's word at noise level k: the score, or what it is made of."""
        weight = self.layers[0].weight
        size, embedding = action.shape[-1], self.time_embedding.shape[-1]
        time_half = self.time_embedding @ weight[-embedding:]
        action_half = action @ weight[-embedding - size : -embedding]
        x = jax.nn.relu(state_half + action_half + time_half[k])
        return mlp(self.layers[1:], x, "relu")
