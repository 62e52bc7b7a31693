"""What a primal-dual policy descends, and what its multiplier follows: the critics' violation, or
what episodes really cost."""

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from algd.networks import numpy_policy
from algd.networks.portable import folded, network
from algd.objectives.critic_learning import (
    CriticOptions,
    PrimalDualState,
    S,
    budget_unit,
    dimensionless,
    standardised,
)
from algd.objectives.exploration import loudness
from algd.objectives.lagrangians import Energy, energy_of
from algd.objectives.multipliers import Dual, DualName, ProjectedAscent, dual_rule
from algd.objectives.td_targets import clipped_value, pessimistic_cost
from algd.types import (
    Count,
    EnvSpec,
    Fraction,
    Gains,
    Metrics,
    NonNegative,
    Positive,
    When,
    learnt_among,
)

LARGEST_EXCESS = 0.25
"""In budgets: beyond it the multiplier moves no faster, so that policy and critics can follow."""
WORST_EPISODE = 10.0
"""In budgets: one disaster does not drown a hundred good episodes."""
HIGHEST_COSTS = 0.95
"""The quantile of expected costs up to which a limit may be relaxed."""
REACH_MEMORY = 100.0
"""Steps of the policy over which that quantile is averaged."""


@dataclass(frozen=True, kw_only=True)
class PrimalDualOptions(CriticOptions):
    """How critics and multiplier learn; inherited as fields."""

    energy: Energy = "augmented"
    """What the policy descends: the augmented Lagrangian L_A (ALGD, SAC+AugLag, CAL), the plain one
    (LGD, SAC+Lag), or -Q alone (no constraint)."""
    rho: Annotated[Positive, When("energy", ("augmented",))] = 1.0
    """Strength of the quadratic penalty in L_A; CAL's convexity c."""
    penalty_cap: Annotated[NonNegative, When("energy", ("augmented",))] = 0.0
    """How far above the multiplier the penalty of an action may raise the weight of its cost; from
    there on it grows as a straight line. 0: without bound (paper)."""

    dual: DualName = "log-adam"
    """Rule of the multiplier: projected ascent (paper), Adam, Adam on its logarithm, or PID."""
    dual_signal: Literal["critics", "episodes"] = "critics"
    """What the multiplier follows: the critics' mean violation, in every round, or what the
    training episodes that ended have really cost, in the budget's own unit."""
    dual_rate: Annotated[Positive, When("dual", ("projected", "adam", "log-adam"))] = 1e-3
    """Step size of all rules but PID; with `episodes` for each step of the environment where
    episodes cost twice what they should."""
    dual_memory: Annotated[Positive, When("dual_signal", ("episodes",))] = 3_000.0
    """Steps over which `episodes` averages what they cost."""
    dual_credit: Annotated[NonNegative, When("dual_signal", ("episodes",))] = LARGEST_EXCESS
    """In budgets: an unused budget beyond it relaxes the multiplier no faster. Smaller than the
    largest excess that counts, 0.25, it keeps rare large costs, between which most of the budget is
    unused, from being forgotten before the next one."""
    budget_share: Annotated[Fraction, When("dual_signal", ("episodes",))] = 0.9
    """The share of the budget that `episodes` steers training to."""
    learnt_copies: Annotated[Count, When("dual_signal", ("episodes",))] = 0
    """Copies of the environment in which training acts as the policy that was learnt, not to
    explore but to know its cost: the multiplier follows the episodes of these or of the others,
    whichever cost more. One copy at least explores."""
    lam_floor: Annotated[float, When("dual_signal", ("episodes",))] = -0.5
    """How far below zero, in units of rho, the multiplier of an augmented energy may go under
    `projected` and `episodes`: a limit above the budget, for critics that expect too much."""
    floor_follows: Annotated[bool, When("dual_signal", ("episodes",))] = False
    """Whether it goes below zero only as far as the critics expect more than the limit of one in
    twenty of the actions that `dual_actions` names: a limit that nobody exceeds has nothing to
    relax, and the way back from there would be lost when the policy comes to the budget."""
    pid: Annotated[Gains, When("dual", ("pid",))] = (0.05, 0.0005, 0.1)
    """Gains of the PID rule: proportional, integral, derivative."""
    initial_lam: float = 0.6931
    """The multiplier before the first step; below zero, as `lam_floor`, the reward is learnt first
    and the limit comes down to the budget as episodes cost too much."""
    dual_actions: Literal["replay", "policy"] = "replay"
    """Whether the critics' violation is that of the buffer's actions or the current policy's."""


def rule(options: PrimalDualOptions, hinge: float) -> Dual:
    """The rule; `hinge` is rho where every action's violation is hinged by itself, else zero."""
    floor = options.lam_floor * hinge if options.dual_signal == "episodes" else 0.0
    return dual_rule(options.dual, options.dual_rate, options.pid, floor)


def init_dual(options: PrimalDualOptions, dual: Dual, spec: EnvSpec) -> dict[str, Any]:
    """The state's fields for the multiplier; nobody expects any cost yet."""
    constraints = len(spec.budgets)
    relaxes = isinstance(dual, ProjectedAscent) and dual.floor < 0.0
    return {
        "dual": dual.init(jnp.full(constraints, options.initial_lam, jnp.float32)),
        "reach": jnp.zeros(constraints) if relaxes and options.floor_follows else None,
    }


def recent_excess(
    excess: Float[Array, " constraints"],
    own: Float[Array, "envs constraints"],
    ended: Int[Array, " envs"],
    memory: float,
) -> Float[Array, " constraints"]:
    r"""$\bar e + (1 - e^{-T/\tau})(\sum_i T_i e_i / T - \bar e)$ with $T = \sum_i T_i$.

    The running mean, over the `memory` $\tau$ in steps, of what episodes that `ended` after $T_i$
    steps (zero: go on) cost above the budget, $e_i$. Weighted by their steps, so that many short
    episodes count no more than a long one.
    """
    weights = ended.astype(own.dtype)
    steps = jnp.sum(weights)
    mean = weights @ jnp.minimum(own, WORST_EPISODE) / jnp.maximum(steps, 1.0)
    return excess - jnp.expm1(-steps / memory) * (mean - excess)


def dual_step(
    options: PrimalDualOptions, dual: Dual, state: S, qc: Float[Array, "batch constraints"]
) -> tuple[S, Metrics]:
    """Ascend by the rule `dual` on the critics' mean violation, if the multiplier follows that."""
    limit = dimensionless(options, state)[2]
    # Without a constraint nothing holds the violation back: the multiplier would never end.
    if options.energy != "reward" and options.dual_signal == "critics":
        moved = dual.step(state.dual, jnp.mean(qc, axis=0) - limit)  # pyright: ignore[reportArgumentType]
        state = replace(state, dual=moved)
    if state.reach is not None:
        reach = jnp.quantile(qc - limit, HIGHEST_COSTS, axis=0)
        state = replace(state, reach=state.reach + (reach - state.reach) / REACH_MEMORY)
    violation = jnp.mean(jnp.maximum(qc - limit, 0.0), axis=0)
    return state, {"qc_mean": jnp.mean(qc, axis=0), "violation": violation}


def feedback(
    options: PrimalDualOptions,
    dual: Dual,
    state: S,
    cost: Float[Array, "envs constraints"],
    ended: Int[Array, " envs"],
) -> S:
    """The state after training episodes that ended, by the rule `dual`, if it follows these.

    `cost` is in the budgets' own units. Before the first gradient round nothing moves: what a
    policy that nobody has trained costs says nothing, and what noise on its actions costs neither:
    copies without noise stand for those with it.
    """
    if options.energy == "reward" or options.dual_signal == "critics":
        return state
    copies = ended.shape[0]
    learnt = np.arange(copies) < learnt_among(copies, options.learnt_copies)
    loud = ~learnt & (options.exploration_noise * loudness(copies) > 0.0)
    groups = (~loud & ~learnt, learnt)
    each_stands_for = copies / np.sum(~loud)
    ended = jnp.where(loud, 0, ended)
    due = (state.rounds > 0) & jnp.any(ended > 0)
    over = cost * state.episode_scale - options.budget_share * state.limit
    own = over / budget_unit(options, state)
    memory = options.dual_memory / each_stands_for
    excess = jnp.stack(
        [
            recent_excess(old, own, jnp.where(group, ended, 0), memory)
            for old, group in zip(state.excess, groups, strict=True)
        ]
    )
    worse = jnp.max(excess[np.array([group.any() for group in groups])], axis=0)
    steps = each_stands_for * jnp.sum(ended).astype(excess.dtype)
    violation = steps * jnp.clip(worse, -options.dual_credit, LARGEST_EXCESS)
    if state.reach is not None:
        # Down to the floor and no further; up to a floor that has risen, no faster than ever.
        floor = -options.rho * jnp.maximum(state.reach, 0.0)
        to_floor = (floor - state.dual.lam) / options.dual_rate
        violation = jnp.maximum(violation, jnp.minimum(to_floor, steps * LARGEST_EXCESS))
    moved = dual.step(state.dual, violation)  # pyright: ignore[reportArgumentType]
    old = (state.dual, state.excess)
    kept = jax.tree.map(lambda new, old: jnp.where(due, new, old), (moved, excess), old)
    return replace(state, dual=kept[0], excess=kept[1])


def multiplier(options: PrimalDualOptions, state: PrimalDualState) -> Float[Array, " constraints"]:
    """What the cost is weighed by; zero without a constraint."""
    lam = state.dual.lam
    return jnp.zeros_like(lam) if options.energy == "reward" else lam


def objective(
    options: PrimalDualOptions,
    state: PrimalDualState,
    obs: Float[Array, " obs"],
    action: Float[Array, " action"],
) -> Float[Array, ""]:
    """The energy of one action, hinged by itself; low is good.

    By the budget itself: the higher limit of a multiplier below zero is for learning, and who
    chooses among actions need not use it up.
    """
    q_critics, qc_critics, limit = dimensionless(options, state)
    inputs = (standardised(state, obs)[None], action[None])
    q = clipped_value(q_critics(*inputs)[:, 0, 0])
    qc = pessimistic_cost(qc_critics(*inputs)[:, 0], options.cost_spread)
    how = (options.rho, options.penalty_cap)
    return energy_of(options.energy, q, qc, jnp.maximum(state.dual.lam, 0.0), limit, *how)


def portable(
    options: PrimalDualOptions,
    state: PrimalDualState,
    policy: numpy_policy.Diffusion | numpy_policy.Gaussian,
) -> numpy_policy.PolicyData:
    """The policy with its energy as plain arrays of raw observations."""
    q, qc, limit = dimensionless(options, state)
    critics = numpy_policy.Critics(
        network(folded(q, state.units)),
        network(folded(qc, state.units)),
        options.energy,
        np.maximum(state.dual.lam, 0.0),
        np.asarray(limit),
        options.rho,
        options.cost_spread,
        options.penalty_cap,
    )
    return numpy_policy.PolicyData(policy, critics, np.asarray(state.low), np.asarray(state.high))
