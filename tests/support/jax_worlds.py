"""Environments written in JAX, to be named as `support.jax_worlds:Name`."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from algd.envs.diff_drive_jax import DiffDrive
from algd.types import Budget, Outcome


def drive() -> DiffDrive:
    """DiffDrive by another name, so that the host steps its form in JAX too."""
    return DiffDrive(cost_parts=True, horizon=40)


class Place(NamedTuple):
    """Where a cart is, and how many steps its episode has had."""

    obs: Any
    steps: Any


@dataclass(frozen=True)
class Cart:
    """A cart on a line; some reward, cost, observation or margin is NaN in the `broken` step."""

    broken: int = 0
    what: str = ""
    action_low = (-1.0,)
    action_high = (1.0,)
    budgets = (Budget(5.0),)
    horizon = 10

    def reset(self, key: jax.Array) -> Place:
        """Near the left end."""
        return Place(jax.random.uniform(key, (2,)), jnp.zeros((), jnp.int32))

    def step(self, state: Place, action: jax.Array) -> tuple[Place, Outcome]:
        """Move; the fourth step of an episode is its last if the cart is far to the right."""
        steps = state.steps + 1
        spoil = lambda what, x: jnp.where((steps == self.broken) & (self.what == what), jnp.nan, x)  # noqa: E731
        obs = spoil("observation", state.obs + 0.1 * action)
        cost = jnp.abs(action)
        outcome = Outcome(
            reward=spoil("reward", action[0]),
            cost=spoil("cost", cost),
            terminated=(steps == 4) & (state.obs[0] > 0.8),
            margin=spoil("margin", cost - 0.5),
        )
        return Place(obs, steps), outcome
