"""The score network of a diffusion policy."""

import equinox as eqx
import jax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from algd.networks.layers import Linear, init_layers, mlp, xavier_uniform


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
        return mlp(self.layers[1:], x, "relu")
