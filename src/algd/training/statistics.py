"""What happened since the last row of metrics, as sums that a checkpoint can hold."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float, Int, Real

from algd.evaluation.episodes import Episodes, in_budget_unit, powers
from algd.types import EnvSpec, EnvStep, metric_suffixes

UPDATE = "update/"


class Running(NamedTuple):
    """Sums over the episode that each copy is in."""

    returns: Float[Array | np.ndarray, " envs"]
    plain: Float[Array | np.ndarray, "envs constraints"]
    discounted: Float[Array | np.ndarray, "envs constraints"]
    length: Int[Array | np.ndarray, " envs"]


class Tally(NamedTuple):
    """Sums over the episodes that ended and over all steps; what one vector step adds to them."""

    ended: Int[Array | np.ndarray, ""]
    ended_return: Float[Array | np.ndarray, ""]
    ended_length: Real[Array | np.ndarray, ""]
    ended_cost: Float[Array | np.ndarray, " constraints"]
    ended_over: Float[Array | np.ndarray, " constraints"]
    total_episodes: Int[Array | np.ndarray, ""]
    total_cost: Float[Array | np.ndarray, " constraints"]
    total_unsafe_steps: Float[Array | np.ndarray, " constraints"]
    dropped: Int[Array | np.ndarray, ""]


class EpisodeStatistics(NamedTuple):
    """Sums over the running episodes, over those that ended since the last row, over all of them,
    and over the updates since the last row."""

    running: Running
    tally: Tally
    updates: Int[np.ndarray, ""]
    update_sums: dict[str, np.ndarray]


def no_episodes(spec: EnvSpec, num_envs: int) -> EpisodeStatistics:
    """Before the first step."""
    none, nothing, each = np.zeros((), np.int64), np.zeros(()), np.zeros(len(spec.budgets))
    running = Running(
        returns=np.zeros(num_envs),
        plain=np.zeros((num_envs, len(each))),
        discounted=np.zeros((num_envs, len(each))),
        length=np.zeros(num_envs, np.int64),
    )
    tally = Tally(
        ended=none,
        ended_return=nothing,
        ended_length=nothing,
        ended_cost=each,
        ended_over=each,
        total_episodes=none,
        total_cost=each,
        total_unsafe_steps=each,
        dropped=none,
    )
    return EpisodeStatistics(running, tally, none, {})


def count_step(
    sums: EpisodeStatistics,
    result: EnvStep,
    keep: Bool[np.ndarray, " envs"],
    spec: EnvSpec,
    discount: float,
) -> tuple[EpisodeStatistics, Float[np.ndarray, "envs constraints"]]:
    """Take in one vector step; steps that were dropped count as such only.

    The second value is what each copy's episode has cost up to and including this step, in the
    budgets' units.
    """
    running, added, cost_so_far = tally_step(sums.running, result, keep, spec, discount)
    tally = Tally(*(before + x for before, x in zip(sums.tally, added, strict=True)))
    return sums._replace(running=running, tally=tally), cost_so_far


def count_steps(sums: EpisodeStatistics, running: Running, tallies: Tally) -> EpisodeStatistics:
    """Take in the vector steps of a program, with a tally each along the first axis."""
    kept = (x.astype(before.dtype) for before, x in zip(sums.running, running, strict=True))
    tally = Tally(*map(_total, sums.tally, tallies))
    return sums._replace(running=Running(*kept), tally=tally)


def _total(before: Any, each: Any) -> np.ndarray:
    """One after the other: sums that do not depend on where a program was cut."""
    numbers = np.concatenate([before[None], each.astype(before.dtype)])
    return np.asarray(np.cumsum(numbers, axis=0)[-1])


def tally_step(
    running: Running,
    result: EnvStep,
    keep: Bool[Array | np.ndarray, " envs"],
    spec: EnvSpec,
    discount: float,
    xp: Any = np,
) -> tuple[Running, Tally, Any]:
    """The running episodes behind one vector step, what it adds to the other sums, and what each
    copy's episode has cost with it, in the budgets' units; by NumPy or by JAX."""
    cost = xp.where(keep[:, None], result.cost, 0.0)
    returns = running.returns + xp.where(keep, result.reward, 0.0)
    plain, length = running.plain + cost, running.length + 1
    weights = powers(discount, running.length, xp)
    discounted = running.discounted + weights[:, None] * cost
    cost_so_far = in_budget_unit(plain, discounted, spec, xp)
    over = xp.where(cost_so_far > np.array([b.limit for b in spec.budgets]), 1.0, 0.0)
    ends = result.terminated | result.truncated
    tally = Tally(
        ended=xp.sum(ends),
        ended_return=xp.where(ends, returns, 0.0).sum(),
        ended_length=xp.where(ends, length, 0).sum(),
        ended_cost=xp.where(ends[:, None], cost_so_far, 0.0).sum(axis=0),
        ended_over=xp.where(ends[:, None], over, 0.0).sum(axis=0),
        total_episodes=xp.sum(ends),
        total_cost=cost.sum(axis=0),
        total_unsafe_steps=xp.where(cost > 0, 1.0, 0.0).sum(axis=0),
        dropped=xp.sum(~keep),
    )
    return forgotten(Running(returns, plain, discounted, length), ends, xp), tally, cost_so_far


def forgotten(running: Running, where: Bool[Array | np.ndarray, " envs"], xp: Any = np) -> Running:
    """Start the sums of running episodes anew."""
    return Running(
        returns=xp.where(where, 0.0, running.returns),
        plain=xp.where(where[:, None], 0.0, running.plain),
        discounted=xp.where(where[:, None], 0.0, running.discounted),
        length=xp.where(where, 0, running.length),
    )


def count_update(
    sums: EpisodeStatistics, metrics: dict[str, Float[np.ndarray, "..."]]
) -> EpisodeStatistics:
    """Take in the means of one call's gradient rounds."""
    totals = dict(sums.update_sums)
    for name, value in metrics.items():
        totals[name] = totals.get(name, 0.0) + np.asarray(value, np.float64)
    return sums._replace(updates=sums.updates + 1, update_sums=totals)


def count_updates(
    sums: EpisodeStatistics, metrics: dict[str, Float[np.ndarray, "updates ..."]], updates: int
) -> EpisodeStatistics:
    """Take in the means of so many updates of a program."""
    totals = {
        name: _total(np.asarray(sums.update_sums.get(name, np.zeros(each.shape[1:]))), each)
        for name, each in metrics.items()
    }
    kept = totals if updates else sums.update_sums
    return sums._replace(updates=sums.updates + updates, update_sums=kept)


def take_row(sums: EpisodeStatistics, names: list[str]) -> tuple[EpisodeStatistics, dict[str, Any]]:
    """The row since the last one, and the sums for the next."""
    tally: Any = sums.tally
    row: dict[str, Any] = {"episodes": int(tally.total_episodes)}
    count = int(tally.ended)
    if count:
        row["return"] = float(tally.ended_return / count)
        row["length"] = float(tally.ended_length / count)
        row |= by_constraint("cost", tally.ended_cost / count, names)
        row |= by_constraint("violation_rate", tally.ended_over / count, names)
    row |= by_constraint("total_cost", tally.total_cost, names)
    row |= by_constraint("total_unsafe_steps", tally.total_unsafe_steps, names)
    if tally.dropped:
        row["dropped_steps"] = int(tally.dropped)
    for name, total in sums.update_sums.items():
        row |= by_constraint(name, total / sums.updates, names)
    ended = [name for name in Tally._fields if name.startswith("ended")]
    anew = {name: np.zeros_like(getattr(tally, name)) for name in ended}
    none = np.zeros_like(sums.updates)
    return EpisodeStatistics(sums.running, tally._replace(**anew), none, {}), row


def statistics_to_arrays(sums: EpisodeStatistics) -> dict[str, np.ndarray]:
    """All sums by name."""
    own = sums.running._asdict() | sums.tally._asdict() | {"updates": sums.updates}
    totals = {f"{UPDATE}{name}": value for name, value in sums.update_sums.items()}
    return {name: np.asarray(value) for name, value in (own | totals).items()}


def statistics_from_arrays(arrays: dict[str, np.ndarray]) -> EpisodeStatistics:
    """Saved sums again."""
    own = {name: x for name, x in arrays.items() if not name.startswith(UPDATE)}
    totals = {n.removeprefix(UPDATE): x for n, x in arrays.items() if n.startswith(UPDATE)}
    running = Running(*(own.pop(name) for name in Running._fields))
    updates = own.pop("updates")
    return EpisodeStatistics(running, Tally(**own), updates, totals)


def by_constraint(name: str, values: Any, constraints: list[str]) -> dict[str, float]:
    """`{name: value}` for one number, `{name/constraint: value}` for one per constraint."""
    values = np.asarray(values)
    suffixes = metric_suffixes(constraints) if values.ndim else [""]
    return {f"{name}{s}": float(v) for s, v in zip(suffixes, values.reshape(-1), strict=True)}


def evaluation_row(episodes: Episodes, spec: EnvSpec) -> dict[str, Any]:
    """Means over the episodes of one evaluation, and how the critics' forecast compares."""
    names = [b.name for b in spec.budgets]
    limits = np.array([b.limit for b in spec.budgets])
    row = {
        "return": float(episodes.returns.mean()),
        "return_std": float(episodes.returns.std()),
        "length": float(episodes.length.mean()),
    }
    row |= by_constraint("cost", episodes.cost.mean(axis=0), names)
    row |= by_constraint("cost_std", episodes.cost.std(axis=0), names)
    row |= by_constraint("violation_rate", (episodes.cost > limits).mean(axis=0), names)
    if np.isfinite(episodes.expected_cost).all():
        # Not every algorithm has a critic of the cost.
        row |= by_constraint("expected_cost", episodes.expected_cost.mean(axis=0), names)
    if episodes.dropped.any():
        row["dropped_steps"] = int(episodes.dropped.sum())
    row |= by_constraint("discounted_cost", episodes.discounted_cost.mean(axis=0), names)
    return row
