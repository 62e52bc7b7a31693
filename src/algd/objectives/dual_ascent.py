"""What the multiplier follows: the critics' violation, or what episodes really cost."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from algd.objectives.multipliers import Dual, DualName, dual_rule
from algd.types import Fraction, NonNegative, Positive


@dataclass(frozen=True, kw_only=True)
class DualOptions:
    """How the multiplier moves; inherited as fields."""

    dual: DualName = "log-adam"
    """Rule of the multiplier: projected ascent (paper), Adam, Adam on its logarithm, or PID."""
    dual_signal: Literal["critics", "episodes"] = "critics"
    """What the multiplier follows: the critics' mean violation, in every round, or what the
    training episodes that ended have really cost, in the budget's own unit."""
    dual_rate: Positive = 1e-3
    """Step size of all rules but PID; with `episodes` for each step of an episode that costs twice
    what it should."""
    budget_share: Fraction = 0.9
    """The share of the budget that `episodes` steers training to."""
    lam_floor: float = -0.5
    """How far below zero, in units of rho, the multiplier of an augmented energy may go under
    `projected` and `episodes`: a limit above the budget, for critics that expect too much."""
    pid: tuple[NonNegative, NonNegative, NonNegative] = (0.05, 0.0005, 0.1)
    """Gains of the PID rule: proportional, integral, derivative."""
    initial_lam: NonNegative = 0.6931
    """The multiplier before the first step."""
    dual_actions: Literal["replay", "policy"] = "replay"
    """Whether the critics' violation is that of the buffer's actions or the current policy's."""


def rule(options: DualOptions, hinge: float) -> Dual:
    """The rule; `hinge` is rho where every action's violation is hinged by itself, else zero."""
    floor = options.lam_floor * hinge if options.dual_signal == "episodes" else 0.0
    return dual_rule(options.dual, options.dual_rate, options.pid, floor)


def episode_violation(
    cost: Float[Array, "envs constraints"],
    ended: Int[Array, " envs"],
    limit: Float[Array, " constraints"],
    unit: Float[Array, " constraints"],
) -> Float[Array, " constraints"]:
    r"""$\sum_i T_i\,\mathrm{clip}((J_i - d)/u, -1, 2)$ over the episodes i that ended.

    What episodes that `ended` after $T_i$ steps (zero: go on) cost against what they may. Weighted
    by their steps, so that many short episodes move the multiplier no faster than a long one; cut,
    so that one disaster does not drown a hundred good ones.
    """
    excess = jnp.clip((cost - limit) / unit, -1.0, 2.0)
    return jnp.sum(ended[:, None].astype(cost.dtype) * excess, axis=0)


def feedback(
    options: DualOptions,
    dual: Any,
    state: Any,
    cost: Float[Array, "envs constraints"],
    ended: Int[Array, " envs"],
    unit: Float[Array, " constraints"],
) -> Any:
    """The state after training episodes that ended, by the rule `dual`.

    `cost` is in the budgets' own units, `unit` on the critics' scale. Before the first gradient
    round nothing moves: what a policy that nobody has trained costs says nothing.
    """
    scaled, limit = cost * state.episode_scale, options.budget_share * state.limit
    moved = dual.step(state.dual, episode_violation(scaled, ended, limit, unit))
    due = (state.rounds > 0) & jnp.any(ended > 0)
    kept = jax.tree.map(lambda new, old: jnp.where(due, new, old), moved, state.dual)
    return replace(state, dual=kept)
