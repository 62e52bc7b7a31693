"""Environments that keep the interface of Brax: Brax itself, MuJoCo Playground, CRAX.

Nothing of these packages is imported here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from algd.types import Budget, Outcome, UserError


class BraxState(NamedTuple):
    """The observation as one vector, and the environment's own state."""

    obs: Float[Array, " obs"]
    inside: Any


@dataclass(frozen=True)
class BraxEnv:
    """A ``JaxEnv`` made of an environment without wrappers: time limits and resets are ours.

    The cost of a step is ``cost(state)`` of the state that it led to, a number or one for each
    budget, or else ``state.info["cost"]``. Where ``state.info["truncation"]`` says so, ``done`` is
    a time limit and no termination. Observations that are a dictionary are laid out one behind the
    other, by name.
    """

    env: Any
    budgets: tuple[Budget, ...]
    horizon: int = 1_000
    cost: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        inner = self.env
        while inner is not None:
            if "AutoReset" in type(inner).__name__:
                raise UserError(
                    f"{type(inner).__name__} resets by itself and hides where a step led: give the "
                    "environment inside of it."
                )
            inner = vars(inner).get("env")

    @property
    def action_low(self) -> tuple[float, ...]:
        """Brax's actions go from -1..."""
        return (-1.0,) * self.env.action_size

    @property
    def action_high(self) -> tuple[float, ...]:
        """... to 1."""
        return (1.0,) * self.env.action_size

    def reset(self, key: PRNGKeyArray) -> BraxState:
        """The state in which an episode begins."""
        # Brax expects keys of the old kind.
        return _seen(self.env.reset(jax.random.key_data(key)))

    def step(self, state: BraxState, action: Float[Array, " action"]) -> tuple[BraxState, Outcome]:
        """One step of the environment inside."""
        after = self.env.step(state.inside, action)
        cost = after.info.get("cost") if self.cost is None else self.cost(after)
        if cost is None:
            raise UserError(
                f"{type(self.env).__name__} reports no cost: there is none in state.info['cost']. "
                "Give BraxEnv a function of the state as its `cost`."
            )
        done = jnp.asarray(after.done, bool)
        truncated = done & jnp.asarray(after.info.get("truncation", False), bool)
        return _seen(after), Outcome(
            reward=after.reward,
            cost=jnp.asarray(cost, jnp.float32),
            terminated=done & ~truncated,
            truncated=truncated,
        )


def _seen(state: Any) -> BraxState:
    parts = [jnp.ravel(x).astype(jnp.float32) for x in jax.tree.leaves(state.obs)]
    return BraxState(jnp.concatenate(parts), state)
