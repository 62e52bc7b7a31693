"""Every algorithm on every task: test return, test cost, and what training cost."""

from pathlib import Path

from algd.experiments.aggregates import REFERENCE, aggregate_table, scores_of
from algd.experiments.pages import aggregate_page, comparison_page, swing_page
from algd.experiments.scale import Scale
from algd.experiments.trials import (
    CPU_SEEDS,
    CPU_TASKS,
    DIFF_DRIVE,
    PAPER_SEEDS,
    PAPER_TASKS,
    SAFETY_GYM,
    SMOKE_TASK,
    VELOCITY,
    Method,
    Resources,
    Trial,
    by_task,
    compute,
    recorded_rows,
    save_table,
    summary_table,
    trials,
)
from algd.runs.files import write_atomically
from algd.visualization.grids import COMPARISON, plot_grid, plot_profiles

ALGD, LGD = Method("ALGD", "algd"), Method("LGD", "lgd")
# Baselines off the policy have the units, critics and noise of ALGD, but for HJ, which looks at no
# budget.
CAL, SAC_LAG = Method("CAL", "cal-scaled"), Method("SAC+Lag", "sac-lag-scaled")
PPO_LAG = Method("PPO+Lag", "ppo-lag-small")
FIRST = (ALGD, LGD, CAL, SAC_LAG)
OTHERS = (
    Method("SAC+AugLag", "sac-auglag-scaled"),
    Method("HJ", "hj"),
    Method(REFERENCE, "algd-unconstrained"),
    Method("SAC, no constraint", "sac-scaled"),
    PPO_LAG,
)
LONG_PPO = Method("PPO+Lag, 500,000 steps", "ppo-lag")
# The text and the published program differ; both are measured.
PAPER = (
    Method("ALGD", "algd-code", velocity_preset="algd-code-velocity"),
    Method("ALGD, text", "algd-paper"),
    Method("CAL", "cal-algd"),
    Method("SAC+Lag", "sac-lag-paper"),
    Method("SAC+AugLag", "sac-auglag-paper"),
    Method("HJ", "hj-paper"),
    Method("PPO+Lag", "ppo-lag"),
    Method(REFERENCE, "algd-code", (("energy", "reward"),), "algd-code-velocity"),
)
ON_POLICY = ("ALGD", PPO_LAG.label, LONG_PPO.label)
# What the figures show.
EVALUATED = ("step", "return", "return_std", "cost", "cost_std", "violation_rate")
TRAINED = ("step", "episodes", "return", "cost", "lam")


def runs(scale: Scale, out: Path) -> list[Trial]:
    """The runs that are compared."""
    if scale == "paper":
        return trials(PAPER_TASKS, PAPER, PAPER_SEEDS, scale, out)
    if scale == "cpu":
        # In an order in which each finished part can be read: columns, then the seeds.
        tasks, methods = (DIFF_DRIVE, *CPU_TASKS), (*FIRST, *OTHERS)
        long = [task._replace(steps=500_000, eval_every=50_000) for task in CPU_TASKS]
        return [
            *trials(tasks, FIRST, range(1), scale, out),
            *trials(tasks, OTHERS, range(1), scale, out),
            *trials(tasks, methods, CPU_SEEDS[1:], scale, out),
            *trials((DIFF_DRIVE,), methods, range(3, 5), scale, out),
            *trials(long, (LONG_PPO,), CPU_SEEDS, scale, out),
        ]
    smoke = (ALGD, LGD, SAC_LAG, Method(REFERENCE, "algd-unconstrained"), PPO_LAG)
    return trials((SMOKE_TASK,), smoke, range(2), scale, out)


def reproduce(scale: Scale, out: Path, means: Resources = Resources()) -> None:  # noqa: B008
    """The comparison of all algorithms, each family of tasks by itself, over all tasks together,
    and with the on-policy one beside it."""
    found = compute(runs(scale, out), scale, out, means)
    off_policy = [trial for trial in found if trial.label not in ON_POLICY[1:]]
    tasks = by_task(off_policy)
    if tasks:
        plot_grid(tasks, COMPARISON, out / "benchmark.png")
    for name, family in (("safety_gym", SAFETY_GYM), ("velocity", VELOCITY)):
        if within := {task: groups for task, groups in tasks.items() if task in family}:
            plot_grid(within, COMPARISON, out / f"benchmark_{name}.png")
    scores = scores_of(found)
    aggregates = aggregate_table(scores)
    if scores:
        returns = {label: own.returns for label, own in scores.items()}
        costs = {label: own.costs for label, own in scores.items()}
        plot_profiles(returns, costs, out / "profiles.png")
        save_table(aggregates, out / "aggregates.csv")
    with_ppo = {t.job.settings.env for t in found if t.label in ON_POLICY[1:]}
    pairs = [t for t in found if t.label in ON_POLICY and t.job.settings.env in with_ppo]
    if pairs:
        plot_grid(by_task(pairs), COMPARISON, out / "on_policy.png")
    summary = summary_table(found)
    save_table(summary, out / "benchmark.csv")
    parts = [comparison_page(summary), swing_page(summary)]
    parts += [aggregate_page(aggregates)] if aggregates else []
    write_atomically(out / "benchmark.md", "\n".join(parts).encode())
    print(f"Wrote {out / 'benchmark.md'}")
    save_table(recorded_rows(found, "eval", EVALUATED), out / "evaluations.csv")
    save_table(recorded_rows(found, "train", TRAINED), out / "training.csv")
