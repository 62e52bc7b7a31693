"""A squashed Gaussian policy whose entropy's weight is learnt, as soft actor-critics have it."""

from dataclasses import dataclass
from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from algd.networks.gaussian import Temperature, gaussian_head, tanh_sample
from algd.networks.layers import MLP
from algd.types import Ascending, LogStd, Mode, Positive, Width

Box = tuple[Float[Array, " action"], Float[Array, " action"]]


@dataclass(frozen=True, kw_only=True)
class SoftActorOptions:
    """How the policy learns; inherited as fields."""

    learn_alpha: bool = True
    """Whether the entropy's weight is learnt, or stays at its initial value."""
    initial_alpha: Positive = 0.1
    """Weight of the entropy before the first step."""
    alpha_rate: Positive = 1e-3
    """Adam step size of the entropy weight's logarithm."""
    entropy_per_action: float = -1.0
    """The entropy aimed at, per action coordinate."""
    log_std_bounds: Annotated[tuple[LogStd, LogStd], Ascending] = (-20.0, 2.0)
    """Bounds of the policy's log-std."""
    actor_rate: Positive = 1e-3
    """Adam step size of the policy."""
    actor_hidden: Width = 128
    """Width of the policy's two hidden layers."""


def act(
    options: SoftActorOptions,
    actor: MLP,
    obs: Float[Array, " obs"],
    box: Box,
    key: PRNGKeyArray,
    mode: Mode,
) -> Float[Array, " action"]:
    """A sample of the squashed Gaussian, or the tanh of its mean."""
    noise = jax.random.normal(key, box[0].shape)
    if mode == "deterministic":
        noise = jnp.zeros_like(noise)
    return tanh_sample(gaussian_head(actor, obs, options.log_std_bounds), noise, *box)[0]


def sample(
    options: SoftActorOptions,
    actor: MLP,
    obs: Float[Array, "batch obs"],
    noise: Float[Array, "batch action"],
    box: Box,
) -> tuple[Float[Array, "batch action"], Float[Array, " batch"]]:
    """Actions of the policy and their log-densities."""

    def one(obs: Float[Array, " obs"], noise: Float[Array, " action"]) -> tuple[Array, Array]:
        return tanh_sample(gaussian_head(actor, obs, options.log_std_bounds), noise, *box)

    return jax.vmap(one)(obs, noise)


def temperature_step(
    options: SoftActorOptions,
    temperature: Temperature,
    log_prob: Float[Array, " batch"],
    action_size: int,
    rate: float | Float[Array, ""],
) -> Temperature:
    """Towards the weight at which the entropy meets its aim, if it is learnt."""
    if not options.learn_alpha:
        return temperature
    return temperature.step(log_prob, options.entropy_per_action * action_size, rate)
