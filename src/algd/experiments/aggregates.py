"""What a comparison over many tasks comes to: returns between a random policy and the unconstrained
reference, costs in budgets, and the intervals of both."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from algd.evaluation.stats import (
    bootstrap_interval,
    cvar,
    iqm,
    normalised_excess,
    normalised_return,
    probability_of_improvement,
    probability_of_improvement_interval,
    share_over,
    stratified_bootstrap_interval,
    time_to_safety,
)
from algd.experiments.trials import SAFETY_GYM, VELOCITY, Trial, by_task
from algd.runs.config import Settings, close, make_envs, parse_config
from algd.runs.record import Evidence
from algd.sweeps.results import Row, row

REFERENCE = "ALGD, no constraint"
OURS = "ALGD"
# Copies of an environment, each with one episode of random actions.
RANDOM_EPISODES = 20

Table = Float[np.ndarray, "runs tasks"]


class MethodScores(NamedTuple):
    """Of one method, a row for each seed and a column for each task.

    Returns are 0 for a random policy and 1 for the reference, costs are in budgets, both means of
    the last five evaluations; `violations` are the shares of the final policy's episodes over
    budget and `worst` their conditional value at risk; `paid` is the mean cost of a training
    episode and `episodes` the training episodes until every evaluation keeps the budget.
    """

    tasks: tuple[str, ...]
    returns: Table
    costs: Table
    violations: Table
    worst: Table
    paid: Table
    episodes: Table


def scores_of(found: Sequence[Trial]) -> dict[str, MethodScores]:
    """The scores of each method on the paper's tasks (of others, where there are none of these),
    as far as the reference was trained on them too."""
    tasks = by_task(found)
    ours = [task for task in tasks if task in (*SAFETY_GYM, *VELOCITY)]
    known = [task for task in ours or tasks if REFERENCE in tasks[task]]
    units = {task: _ends(tasks[task][REFERENCE]) for task in known}
    scores = {}
    for label in dict.fromkeys(trial.label for trial in found):
        columns = {task: tasks[task][label] for task in known if label in tasks[task]}
        if columns:
            seeds = min(map(len, columns.values()))
            if left := [task for task, runs in columns.items() if len(runs) > seeds]:
                print(f"{label}: {seeds} seed(s) count, more are there of {', '.join(left)} alone.")
            table = [
                [_score(run, *units[task]) for run in runs[:seeds]]
                for task, runs in columns.items()
            ]
            # From tasks x seeds x figures to a table of seeds x tasks for each figure.
            tables = np.array(table).transpose(2, 1, 0)
            scores[label] = MethodScores(tuple(columns), *tables)
    return scores


def _ends(reference: Sequence[Evidence]) -> tuple[float, float]:
    """The returns that are 0 and 1: of random actions, and of the reference over its seeds."""
    of_run, _, _ = parse_config(reference[0].config())
    task = Settings(env=of_run.env, env_options=of_run.env_options, horizon=of_run.horizon)
    returns = [_row(run)["last5_return"] for run in reference]
    return random_return(task), float(np.mean(returns))


@cache
def random_return(settings: Settings) -> float:
    """The mean return of an episode of uniformly random actions."""
    envs = make_envs(settings, RANDOM_EPISODES)
    spec, rng = envs.spec, np.random.default_rng(0)
    envs.reset(0)
    running, total = np.ones(RANDOM_EPISODES, bool), np.zeros(RANDOM_EPISODES)
    while running.any():
        size = (RANDOM_EPISODES, spec.action_size)
        actions = rng.uniform(spec.action_low, spec.action_high, size).astype(np.float32)
        step = envs.step(actions)
        total += np.where(running, step.reward, 0.0)
        running &= ~(np.asarray(step.terminated) | np.asarray(step.truncated))
    close(envs)
    return float(total.mean())


def _row(run: Evidence) -> Row:
    found = row(run)
    assert found is not None
    return found


def _score(run: Evidence, random: float, reference: float) -> list[float]:
    """The figures of `MethodScores` of one run."""
    found, judged = _row(run), run.evaluation() or {}
    budget, trained = found["budget"], run.rows("train")
    evaluated = [r for r in run.rows("eval") if r["step"] > 0]
    steps, ended = ([r[name] for r in trained] for name in ("step", "episodes"))
    times = np.interp([r["step"] for r in evaluated], steps, ended)
    costs = np.array([r["cost"] for r in evaluated], float)
    return [
        normalised_return(found["last5_return"], random, reference),
        found["last5_cost"] / budget,
        found["violation_rate"],
        judged["cost"]["cvar_0.9"] / budget,
        found["training_cost"] / max(ended[-1], 1) / budget,
        time_to_safety(times, costs, budget),
    ]


def safe_returns(scores: MethodScores) -> Table:
    """Returns where the budget is kept; elsewhere nothing was earned."""
    return np.where(scores.costs <= 1.0, scores.returns, np.minimum(scores.returns, 0.0))


def aggregate_table(scores: Mapping[str, MethodScores]) -> list[Row]:
    """A line for each method: what it earns, what it costs, how often ALGD is better."""
    return [
        {
            "algorithm": label,
            "tasks": len(own.tasks),
            "seeds": len(own.returns),
            **_with_interval("return_iqm", own.returns),
            **_with_interval("cost_iqm", own.costs),
            **_with_interval("safe_return_iqm", safe_returns(own)),
            "runs_over_budget": share_over(own.costs.ravel(), 1.0),
            "episodes_over_budget": float(own.violations.mean()),
            "excess": normalised_excess(own.costs.ravel(), 1.0),
            "excess_where_over": normalised_excess(own.costs.ravel(), 1.0, violating=True),
            "episodes_until_safe_median": float(np.median(own.episodes)),
            "training_cost": float(own.paid.mean()),
            "cost_cvar": float(own.worst.mean()),
            "cost_cvar_over_runs": cvar(own.costs.ravel(), 0.9),
            **_improvement(scores, label),
        }
        for label, own in scores.items()
    ]


def _with_interval(name: str, values: Table) -> Row:
    """The interquartile mean; its interval, stratified by tasks, where there are several seeds."""
    if values.shape[1] == 1:
        low, high = bootstrap_interval(values[:, 0], iqm)
    else:
        low, high = stratified_bootstrap_interval(values, iqm)
    return {name: float(iqm(values)), f"{name}_low": float(low), f"{name}_high": float(high)}


def _improvement(scores: Mapping[str, MethodScores], label: str) -> Row:
    """How often a run of ALGD has the higher safe return, on the tasks that both have."""
    if label == OURS or OURS not in scores:
        return {}
    ours, theirs = scores[OURS], scores[label]
    shared = [task for task in theirs.tasks if task in ours.tasks]
    if not shared:
        return {}
    both = [
        safe_returns(one)[:, [one.tasks.index(task) for task in shared]] for one in (ours, theirs)
    ]
    low, high = probability_of_improvement_interval(both[0], both[1])
    return {
        "improvement": probability_of_improvement(both[0], both[1]),
        "improvement_low": float(low),
        "improvement_high": float(high),
    }
