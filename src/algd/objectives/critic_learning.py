"""Critics of return and cost, as the primal-dual algorithms learn them: options, targets, units."""

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from algd.networks.adam import adam_step, init_moments
from algd.networks.batch_norm import NormalisedEnsemble
from algd.networks.critics import CriticEnsemble
from algd.networks.gaussian import Temperature
from algd.networks.layers import Initialiser, Linear, half_fan_in_normal, xavier_uniform
from algd.objectives.multipliers import DualState
from algd.objectives.normalisation import Units
from algd.objectives.td_targets import (
    UNBOUNDED,
    Bounds,
    Critics,
    Regression,
    bootstrap_mask,
    clipped_value,
    cost_targets,
    double_q_target,
    for_ever,
    lookahead,
    next_cost,
    pessimistic_cost,
    polyak,
    td_regression,
)
from algd.types import (
    Assessment,
    EnvSpec,
    Fraction,
    Members,
    Metrics,
    NonNegative,
    Positive,
    ReplayOptions,
    Share,
    Transition,
    When,
    Width,
)

C = TypeVar("C", bound=Critics)

FIRST_OUTPUT = 0.1
"""Size of the last layer's initial weights in own units, where values grow from zero."""


@dataclass(frozen=True, kw_only=True)
class ReturnCriticOptions(ReplayOptions):
    """How critics of the return learn; inherited as fields."""

    mask_reward: bool = True
    """Whether a terminal step cuts the bootstrap of the return."""
    goal_is_terminal: bool = False
    """Treat a met goal as terminal for the return although the episode goes on."""
    timeout_is_terminal: bool = False
    """Treat the time limit as terminal (authors' program on the velocity tasks)."""
    critic_rate: Positive = 1e-3
    """Adam step size of the critics."""
    polyak: Fraction = 0.02
    """Rate at which target critics follow."""
    critic_hidden: Width = 128
    """Width of the critics' two hidden layers."""


@dataclass(frozen=True, kw_only=True)
class CriticOptions(ReturnCriticOptions):
    """How critics of return and cost learn; inherited as fields."""

    normalise: bool = False
    """Measure rewards by the size of a return and costs by the limit: then temperature, penalty
    and dual rate are pure numbers."""
    standardise: Annotated[bool, When("normalise", (True,))] = True
    """With it, measure observations by their running mean and deviation."""
    bounded: Annotated[bool, When("normalise", (True,))] = True
    """With it, cut bootstrapped values at what the extreme rewards and costs seen so far would sum
    up to if they came in every step."""
    n_step: Members = 1
    """Replayed steps whose rewards and costs are summed up before the critics' own estimate takes
    over: several make them learn sooner and keep them from believing in what nobody has seen."""
    critics: Literal["plain", "batch-norm"] = "plain"
    """Whether critics are normalised by the statistics of their batch."""
    target_critics: Annotated[bool, When("critics", ("batch-norm",))] = False
    """Whether batch-normalised critics learn from copies that follow them, as plain ones always do,
    or from themselves."""

    cost_ensemble: Members = 4
    """M, members of the cost ensemble."""
    cost_spread: NonNegative = 0.5
    """The cost estimate in L and in the dual step is mean + spread * std over the ensemble."""
    cost_target: Literal["own", "mean", "max"] = "own"
    """Each member bootstraps from its own target copy, or all from the mean of the copies, or from
    the largest of a few drawn ones."""
    cost_floor: bool = True
    """Cut bootstrapped costs at zero: costs are not negative, but a policy that seeks low
    estimates finds negative ones and they feed themselves."""
    mask_cost: bool = True
    """Whether a terminal step cuts the bootstrap of the cost."""
    rates_go_on: Annotated[bool, When("mask_cost", (True,))] = False
    """Whether a cost that the task calls a rate, like a speed, goes on for ever at what the
    terminal step cost, also in the episodes that the multiplier follows: an early end is no way to
    keep a limit."""

    momentum: Share = 0.9
    """Adam's weight of past gradients."""
    polyak_every: int = 1
    """Gradient rounds between two target updates."""


class PrimalDualState(eqx.Module):
    """What learning changes besides the policy, and the task's limits and action box; inherited as
    fields."""

    q: Critics
    qc: Critics
    target_q: Critics | None
    target_qc: Critics | None
    q_moments: tuple
    qc_moments: tuple
    temperature: Temperature | None
    dual: DualState
    limit: Float[Array, " constraints"]
    low: Float[Array, " action"]
    high: Float[Array, " action"]
    rounds: Int[Array, ""]
    units: Units | None
    episode_scale: Float[Array, " constraints"]
    """Takes an episode's cost to the critics' scale."""
    goes_on: Bool[Array, " constraints"]
    """Which costs go on for ever at what the terminal step cost."""
    excess: Float[Array, "2 constraints"]
    """What recent training episodes cost above the budget's share, in budgets."""
    reach: Float[Array, " constraints"] | None
    """How far above the limit the highest of the critics' expectations are; None if nobody asks."""


S = TypeVar("S", bound=PrimalDualState)


def init_critics(
    options: CriticOptions, spec: EnvSpec, q_key: PRNGKeyArray, qc_key: PRNGKeyArray
) -> dict[str, Any]:
    """The fields of a state but for temperature and multiplier; targets equal to the critics."""
    q = _ensemble(options, spec, 2, 1, "relu", xavier_uniform, q_key)
    qc = _ensemble(
        options, spec, options.cost_ensemble, len(spec.budgets), "silu", half_fan_in_normal, qc_key
    )
    # What goes on for ever has a sum only if it is discounted.
    go_on = options.rates_go_on and options.cost_discount < 1.0
    # A donated buffer may appear only once: the targets are copies.
    copied = options.critics == "plain" or options.target_critics
    return {
        "q": q,
        "qc": qc,
        "target_q": jax.tree.map(jnp.copy, q) if copied else None,
        "target_qc": jax.tree.map(jnp.copy, qc) if copied else None,
        "q_moments": init_moments(q),
        "qc_moments": init_moments(qc),
        "limit": jnp.asarray(spec.critic_limits(options.cost_discount)),
        "low": jnp.asarray(spec.action_low, jnp.float32),
        "high": jnp.asarray(spec.action_high, jnp.float32),
        "rounds": jnp.zeros((), jnp.int32),
        "goes_on": jnp.asarray([go_on and b.rate for b in spec.budgets]),
        "episode_scale": jnp.asarray(spec.episode_scales(options.cost_discount)),
        "excess": jnp.zeros((2, len(spec.budgets))),
        "units": (
            Units.create(spec.obs_size, len(spec.budgets), options.standardise)
            if options.normalise
            else None
        ),
    }


def _ensemble(
    options: CriticOptions,
    spec: EnvSpec,
    members: int,
    outputs: int,
    activation: Literal["relu", "silu"],
    initialiser: Initialiser,
    key: PRNGKeyArray,
) -> Critics:
    sizes, hidden = (spec.obs_size, spec.action_size), (options.critic_hidden,) * 2
    factors = jnp.full(outputs, FIRST_OUTPUT if options.normalise else 1.0)
    if options.critics == "batch-norm":
        shape = (members, sum(sizes), hidden, outputs)
        return scale_outputs(NormalisedEnsemble.create(*shape, xavier_uniform, key), factors)
    how = (hidden, outputs, activation, initialiser, key)
    return scale_outputs(CriticEnsemble.create(members, *sizes, *how), factors)


def plain(critics: Critics) -> CriticEnsemble:
    """Critics that can be asked: by running statistics, if they have any."""
    return critics.plain if isinstance(critics, NormalisedEnsemble) else critics


def scale_outputs(critics: C, factors: Float[Array, " outputs"]) -> C:
    """The critics whose values are these many times theirs."""
    last = critics.layers[-1]
    scaled = Linear(last.weight * factors, last.bias * factors)
    return replace(critics, layers=(*critics.layers[:-1], scaled))


def measure(options: CriticOptions, state: S, batch: Transition) -> tuple[S, Transition]:
    """Take the batch into the running statistics; the batch in the units they make.

    Where a unit moves, what is measured in it moves along: the critics' last layers, the
    temperature, and the multiplier, which weighs cost against return. So nothing that was learnt
    is lost.
    """
    old = state.units
    if old is None:
        return state, batch
    new = old.observe(batch, options.discount)
    limit = state.limit
    rewards = [units.reward_unit for units in (old, new)]
    costs = [units.cost_unit(limit, options.cost_discount) for units in (old, new)]
    seen = old.count > 0
    by_reward = jnp.where(seen, rewards[0] / rewards[1], 1.0)
    by_cost = jnp.where(seen, costs[0] / costs[1], 1.0)
    state = _rescaled(replace(state, units=new), by_reward, by_cost)
    return state, new.measure(batch, rewards[1], costs[1])


def in_limits_of(options: CriticOptions, state: S, limit: Float[Array, " constraints"]) -> S:
    """The state with other limits; what is measured by the old ones moves along."""
    units = state.units
    old, new = (
        jnp.ones_like(h) if units is None else units.cost_unit(h, options.cost_discount)
        for h in (state.limit, limit)
    )
    reach = state.reach
    if reach is not None:
        reach = (reach * old + state.limit - limit) / new
    moved = replace(state, limit=limit, reach=reach)
    return moved if units is None else _rescaled(moved, jnp.ones(()), old / new)


def _rescaled(state: S, by_reward: Float[Array, ""], by_cost: Float[Array, " constraints"]) -> S:
    """What is measured in returns and costs, times what these units have shrunk by."""
    state = replace(
        state,
        q=scale_outputs(state.q, by_reward[None]),
        qc=scale_outputs(state.qc, by_cost),
        dual=state.dual.scaled(by_reward / by_cost),
    )
    if state.temperature is not None:
        state = replace(state, temperature=state.temperature.scaled(by_reward))
    if state.target_q is not None and state.target_qc is not None:
        state = replace(
            state,
            target_q=scale_outputs(state.target_q, by_reward[None]),
            target_qc=scale_outputs(state.target_qc, by_cost),
        )
    return state


def return_regression(
    options: ReturnCriticOptions,
    critics: Critics,
    targets: Critics | None,
    batch: Transition,
    next_action: Float[Array, "batch action"],
    bonus: Float[Array, " batch"] | float,
    bounds: Bounds = UNBOUNDED,
) -> Regression:
    """The double critic towards its TD targets; `bonus` is added to the next state's value, which
    is cut at `bounds`."""
    keep = bootstrap_mask(
        batch, options.mask_reward, options.goal_is_terminal, options.timeout_is_terminal
    )
    ahead = lookahead(batch, options.discount, options.cost_discount)
    target = double_q_target(ahead.reward, keep, ahead.discount, bonus, bounds)
    return td_regression(critics, targets, batch, next_action, target, 1.0 / len(batch.reward))


def critic_step(
    options: CriticOptions,
    state: S,
    batch: Transition,
    next_action: Float[Array, "batch action"],
    bonus: Float[Array, " batch"] | float = 0.0,
    cost_bonus: Float[Array, " batch"] | float = 0.0,
    members: Int[Array, " picks"] | None = None,
) -> tuple[S, Metrics]:
    """TD targets at an action of the policy, one Adam step for each ensemble.

    `bonus` and `cost_bonus` are added to the next state's values, `members` are those of whom the
    cost target "max" takes the largest.
    """
    of_returns, of_costs = value_bounds(options, state, bonus)
    of_q = return_regression(
        options, state.q, state.target_q, batch, next_action, bonus, of_returns
    )
    cost_keep = bootstrap_mask(
        batch, options.mask_cost, timeout_is_terminal=options.timeout_is_terminal
    )

    ahead = lookahead(batch, options.discount, options.cost_discount)

    def cost_target(following: Float[Array, "members batch constraints"]) -> Array:
        if options.cost_target == "max":
            largest = jnp.max(following[members], axis=0)
            following = jnp.broadcast_to(largest, following.shape)
        following = next_cost(following, options.cost_target == "mean", of_costs)
        following = following + jnp.asarray(cost_bonus)[..., None]
        for_good = for_ever(ahead.last_cost, ahead.last_cost, options.cost_discount)[1]
        afterwards = jnp.where(state.goes_on, for_good, 0.0)
        return cost_targets(ahead.cost, cost_keep, ahead.cost_discount, following, afterwards)

    # Summed over constraints, so that a second budget does not slow the first one's critic.
    weight = 1.0 / (options.cost_ensemble * len(batch.reward))
    of_qc = td_regression(state.qc, state.target_qc, batch, next_action, cost_target, weight)

    how = (options.critic_rate, options.momentum)
    q, q_moments = adam_step(of_q.critics, of_q.grads, state.q_moments, *how)
    qc, qc_moments = adam_step(of_qc.critics, of_qc.grads, state.qc_moments, *how)
    state = replace(state, q=q, q_moments=q_moments, qc=qc, qc_moments=qc_moments)
    metrics = {"q_loss": of_q.loss, "qc_loss": of_qc.loss, "q_mean": jnp.mean(of_q.values)}
    return state, metrics


def value_bounds(
    options: CriticOptions, state: PrimalDualState, bonus: Float[Array, " batch"] | float
) -> tuple[Bounds, Bounds]:
    """What the next state's values of return and cost are cut at, in the batch's units."""
    floor = 0.0 if options.cost_floor else -math.inf
    units = state.units
    if units is None or not options.bounded:
        return UNBOUNDED, (floor, math.inf)
    unit = units.reward_unit
    least, most = jnp.minimum(jnp.min(bonus), 0.0), jnp.maximum(jnp.max(bonus), 0.0)
    low, high = units.reward_low / unit + least, units.reward_high / unit + most
    highest = units.cost_high / units.cost_unit(state.limit, options.cost_discount)
    ceiling = for_ever(highest, highest, options.cost_discount)[1]
    return for_ever(low, high, options.discount), (floor, ceiling)


def targets_follow(options: CriticOptions, state: S) -> S:
    """The round's end: target critics, where there are any, follow theirs."""
    state = replace(state, rounds=state.rounds + 1)
    if state.target_q is None:
        return state
    follow = (state.rounds - 1) % options.polyak_every == 0
    rate = jnp.where(follow, options.polyak, 0.0).astype(state.limit.dtype)
    return replace(
        state,
        target_q=polyak(state.target_q, state.q, rate),
        target_qc=polyak(state.target_qc, state.qc, rate),
    )


def dimensionless(
    options: CriticOptions, state: PrimalDualState
) -> tuple[CriticEnsemble, CriticEnsemble, Float[Array, " constraints"]]:
    r"""Plain critics and limit as the energy weighs them, of standardised observations.

    In own units Q over the size of a return, and $Q_c / h$; otherwise as they are.
    """
    q, qc = plain(state.q), plain(state.qc)
    if state.units is None:
        return q, qc, state.limit
    unit = state.units.cost_unit(state.limit, options.cost_discount)
    return scale_outputs(q, jnp.full(1, energy_share(options))), qc, state.limit / unit


def energy_share(options: CriticOptions) -> float:
    """The critics' unit of return over the energy's: critics learn best where values are large,
    energies are compared where they are of order one."""
    return 1.0 - options.discount if options.normalise and options.discount < 1.0 else 1.0


def budget_unit(options: CriticOptions, state: PrimalDualState) -> Float[Array, " constraints"]:
    """What costs are measured by, on the critics' scale: the limit, if it is not tiny."""
    if state.units is None:
        return jnp.where(state.limit > 0.0, state.limit, 1.0)
    return state.units.cost_unit(state.limit, options.cost_discount)


def standardised(
    state: PrimalDualState, obs: Float[Array, "*batch obs"]
) -> Float[Array, "*batch obs"]:
    """The observation as the networks see it."""
    return obs if state.units is None else state.units.standardise(obs)


def assess(
    options: CriticOptions,
    state: PrimalDualState,
    obs: Float[Array, " obs"],
    action: Float[Array, " action"],
) -> Assessment:
    """The double critic's value of one action; mean and spread of the cost ensemble; raw units."""
    obs = standardised(state, obs)
    q, qc = plain(state.q), plain(state.qc)
    value = clipped_value(q(obs[None], action[None])[:, 0, 0])
    costs = qc(obs[None], action[None])[:, 0]
    if state.units is not None:
        value = value * state.units.reward_unit
        costs = costs * state.units.cost_unit(state.limit, options.cost_discount)
    mean = pessimistic_cost(costs, 0.0)
    return Assessment(value, mean, pessimistic_cost(costs, 1.0) - mean)
