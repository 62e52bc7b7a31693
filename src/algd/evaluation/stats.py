"""Statistics of episodes and runs, on SciPy.

Intervals are percentile bootstraps over runs, as deterministic as their seed. Where several tasks
are pooled, runs are drawn anew within each task (stratified), so that no draw forgets a task.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy
from jaxtyping import Float, Real

from algd.evaluation.episodes import Episodes
from algd.types import Budget, EnvSpec, metric_suffixes

Sample = Float[np.ndarray, " n"]
Values = Real[np.ndarray, " n"] | Sequence[float]
Scores = Float[np.ndarray, "runs tasks"]
Rows = Sequence[Mapping[str, Any]]


class Interval(NamedTuple):
    """From `low` to `high`, numbers or arrays of them."""

    low: Any
    high: Any


class Oscillation(NamedTuple):
    """How restless a multiplier is: the way it travels, and its spread late in training."""

    total_variation: float
    late_std: float


class Calibration(NamedTuple):
    """Expected against measured: mean difference, ratio of the means, root mean square."""

    bias: float
    ratio: float
    rms: float


# --- point estimates --------------------------------------------------------------------------


def iqm(values: Float[np.ndarray, "..."], axis: int | None = None) -> Any:
    """Interquartile mean: the mean of the middle half, of all values or along an axis."""
    flat = np.ravel(values) if axis is None else values
    return scipy.stats.trim_mean(flat, 0.25, axis=axis or 0)


def standard_error(values: Sample) -> float:
    """Of the mean; NaN for a single value."""
    return float(scipy.stats.sem(values)) if len(values) > 1 else float("nan")


def cvar(values: Sample, level: float) -> float:
    """Mean of the worst (largest) share 1 - level, the boundary value counted by its part."""
    worst = np.sort(values)[::-1]
    share = (1.0 - level) * len(worst)
    weights = np.clip(share - np.arange(len(worst)), 0.0, 1.0)
    return float(np.sum(weights * worst) / weights.sum())


def performance_profile(scores: Scores, thresholds: Sample) -> Sample:
    """The share of runs above each threshold, every task with the same weight."""
    return (scores[..., None] > thresholds).mean(axis=(0, 1))


def probability_of_improvement(ours: Scores, theirs: Scores) -> float:
    """How often a run of ours beats one of theirs on the same task, ties counted by half."""
    wins = ours[:, None] > theirs[None]
    ties = ours[:, None] == theirs[None]
    return float((wins + 0.5 * ties).mean())


# --- intervals --------------------------------------------------------------------------------


def bootstrap_interval(
    values: Values,
    statistic: Callable[..., Any] = np.mean,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """The interval of a statistic over runs; NaN for fewer than two runs.

    A statistic that takes an `axis`, as NumPy's do, is computed for all draws at once.
    """
    return _percentiles([np.asarray(values, float)], statistic, level, resamples, seed)


def stratified_bootstrap_interval(
    scores: Scores,
    statistic: Callable[[Scores], Any] = np.mean,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """The interval of a statistic over `[runs, tasks]`, runs drawn anew within each task."""

    def of_columns(*columns: Sample) -> Any:
        return statistic(np.stack(columns, axis=1))

    return _percentiles(list(np.asarray(scores, float).T), of_columns, level, resamples, seed)


def bootstrap_band(
    curves: Float[np.ndarray, "runs steps"],
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """The interval of the mean curve at every step; each draw takes whole runs."""
    return _percentiles([np.asarray(curves, float).T], np.mean, level, resamples, seed)


def performance_profile_band(
    scores: Scores, thresholds: Sample, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """The interval of the performance profile at every threshold, stratified over tasks."""
    # A profile is a mean of indicators, and so is every draw of it.
    above = [(column > thresholds[:, None]).astype(float) for column in scores.T]

    def mean_of_tasks(*columns: np.ndarray, axis: int) -> np.ndarray:
        return np.mean([column.mean(axis=axis) for column in columns], axis=0)

    return _percentiles(above, mean_of_tasks, level, resamples, seed)


def probability_of_improvement_interval(
    ours: Scores, theirs: Scores, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """The interval of the probability of improvement, both sides drawn within each task."""
    tasks = ours.shape[1]

    def of_columns(*columns: Sample) -> float:
        mine, other = np.stack(columns[:tasks], axis=1), np.stack(columns[tasks:], axis=1)
        return probability_of_improvement(mine, other)

    return _percentiles([*ours.T, *theirs.T], of_columns, level, resamples, seed)


def _percentiles(
    samples: list[np.ndarray],
    statistic: Callable[..., Any],
    level: float,
    resamples: int,
    seed: int,
) -> Interval:
    """SciPy's bootstrap; each sample is drawn from independently along its last axis."""
    if min(sample.shape[-1] for sample in samples) < 2:
        unknown = np.full(samples[0].shape[:-1], np.nan)
        return Interval(unknown[()], unknown[()])
    result = scipy.stats.bootstrap(
        samples,
        statistic,
        n_resamples=resamples,
        batch=200,
        axis=-1,
        confidence_level=level,
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    low, high = result.confidence_interval
    return Interval(low[()], high[()])


# --- safety -----------------------------------------------------------------------------------


def relative_cost(cost: float, limit: float) -> float:
    """Cost as a multiple of the budget; any cost is infinitely above a budget of nothing."""
    if limit:
        return cost / limit
    return float("inf") if cost > 0 else 0.0


def share_over(costs: Values, limit: float) -> float:
    """The share of episodes, or of runs by their mean costs, above the budget."""
    return float((np.asarray(costs) > limit).mean())


def normalised_return(value: float, random: float, reference: float) -> float:
    """0 for the return of a random policy, 1 for that of the unconstrained reference."""
    return (value - random) / (reference - random)


def normalised_excess(costs: Values, limit: float, violating: bool = False) -> float:
    """The mean of (C - d) / d over all episodes, or over those above the budget; NaN if none is."""
    excess = np.asarray(costs, float) / limit - 1.0
    counted = excess[excess > 0.0] if violating else excess
    return float(counted.mean()) if len(counted) else float("nan")


def time_to_safety(times: Values, costs: Values, limit: float) -> float:
    """The first time (steps, episodes) from which on every cost keeps the budget; infinite if the
    last one does not."""
    over = np.flatnonzero(np.asarray(costs) > limit)
    first = int(over[-1]) + 1 if len(over) else 0
    return float(times[first]) if first < len(times) else float("inf")


def feasible_return(returns: Values, costs: Values, limit: float) -> float:
    """The mean return of the runs that keep the budget; NaN if none does."""
    kept = np.asarray(returns)[np.asarray(costs) <= limit]
    return float(kept.mean()) if len(kept) else float("nan")


def lambda_oscillation(lams: Values, late: float = 0.5) -> Oscillation:
    """Total variation of the multiplier, and its standard deviation in the last share `late`."""
    lams = np.asarray(lams, float)
    if not len(lams):
        return Oscillation(float("nan"), float("nan"))
    tail = lams[-max(round(late * len(lams)), 1) :]
    return Oscillation(float(np.abs(np.diff(lams)).sum()), float(tail.std()))


def calibration(expected: Values, measured: Values) -> Calibration:
    """What the cost critics foretold against the discounted cost that followed.

    A positive bias and a ratio above one mean that the critics are cautious.
    """
    error = np.asarray(expected, float) - np.asarray(measured, float)
    total = float(np.mean(measured))
    ratio = float(np.mean(expected)) / total if total else float("nan")
    return Calibration(float(error.mean()), ratio, float(np.sqrt(np.mean(error**2))))


# --- summaries --------------------------------------------------------------------------------


def known(value: float) -> float | None:
    """The value, or nothing where it is not a finite number: JSON has no word for those."""
    return value if math.isfinite(value) else None


def summarise(episodes: Episodes, spec: EnvSpec) -> dict[str, Any]:
    """One object for a set of evaluation episodes: return, and cost against each budget."""
    costs = {}
    for i, budget in enumerate(spec.budgets):
        cost = episodes.cost[:, i]
        critics = calibration(episodes.expected_cost[:, i], episodes.discounted_cost[:, i])
        costs[budget.name] = {
            "mean": float(cost.mean()),
            "standard_error": known(standard_error(cost)),
            "iqm": float(iqm(cost)),
            "cvar_0.9": cvar(cost, 0.9),
            "budget": budget.limit,
            "unit": "discounted sum" if budget.discounted else "sum per episode",
            "relative": known(relative_cost(float(cost.mean()), budget.limit)),
            "violation_rate": share_over(cost, budget.limit),
            "critics": {name: known(value) for name, value in critics._asdict().items()},
        }
    dropped = int(episodes.dropped.sum())
    return {
        "episodes": len(episodes.returns),
        **({"dropped_steps": dropped} if dropped else {}),
        "return": {
            "mean": float(episodes.returns.mean()),
            "standard_error": known(standard_error(episodes.returns)),
            "iqm": float(iqm(episodes.returns)),
        },
        # With one budget its numbers stand directly under "cost".
        "cost": next(iter(costs.values())) if len(costs) == 1 else costs,
    }


def column(rows: Rows, kind: str, name: str) -> Sample:
    """One quantity over a run's rows of one kind, where they have it."""
    return np.array([row[name] for row in rows if row["kind"] == kind and name in row], float)


def run_figures(rows: Rows, budgets: Sequence[Budget], evaluations: int = 1) -> dict[str, float]:
    """The figures of one run: its last evaluations, what training cost, multiplier, critics.

    With several budgets the figures of each carry its name behind a slash, as in the rows.
    """

    def last(name: str) -> float:
        values = column(rows, "eval", name)[-evaluations:]
        return float(values.mean()) if len(values) else float("nan")

    figures = {"return": last("return")}
    for budget, end in zip(budgets, metric_suffixes(b.name for b in budgets), strict=True):
        cost = last(f"cost{end}")
        spent, unsafe = (column(rows, "train", f"total_{n}{end}") for n in ("cost", "unsafe_steps"))
        oscillation = lambda_oscillation(column(rows, "train", f"lam{end}"))
        expected = column(rows, "eval", f"expected_cost{end}")
        measured = column(rows, "eval", f"discounted_cost{end}")
        # The first evaluation sees critics that have learned nothing yet.
        unknown = Calibration(math.nan, math.nan, math.nan)
        critics = calibration(expected[1:], measured[1:]) if len(expected) > 1 else unknown
        figures |= {
            f"cost{end}": cost,
            f"relative_cost{end}": relative_cost(cost, budget.limit),
            f"over_budget{end}": float(cost > budget.limit),
            f"episodes_over_budget{end}": last(f"violation_rate{end}"),
            f"training_cost{end}": float(spent[-1]) if len(spent) else float("nan"),
            f"training_unsafe_steps{end}": float(unsafe[-1]) if len(unsafe) else float("nan"),
            f"lambda_total_variation{end}": oscillation.total_variation,
            f"lambda_late_std{end}": oscillation.late_std,
        }
        figures |= {f"critics_{name}{end}": value for name, value in critics._asdict().items()}
    return figures


def summarise_runs(
    runs: Sequence[Rows],
    budgets: Sequence[Budget],
    evaluations: int = 1,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> dict[str, dict[str, Any]]:
    """Mean, interquartile mean and their intervals over runs, for each figure of `run_figures`.

    `return_if_feasible` adds the mean return of the runs that keep every budget.
    """
    tables = [run_figures(rows, budgets, evaluations) for rows in runs]

    def over_runs(values: Sample) -> dict[str, Any]:
        return {
            "mean": float(values.mean()) if len(values) else float("nan"),
            "mean_interval": bootstrap_interval(values, np.mean, level, resamples, seed),
            "iqm": float(iqm(values)) if len(values) else float("nan"),
            "iqm_interval": bootstrap_interval(values, iqm, level, resamples, seed),
            "runs": len(values),
        }

    summary = {name: over_runs(np.array([t[name] for t in tables])) for name in tables[0]}
    feasible = [t for t in tables if not any(v for k, v in t.items() if k.startswith("over_"))]
    summary["return_if_feasible"] = over_runs(np.array([t["return"] for t in feasible], float))
    return summary
