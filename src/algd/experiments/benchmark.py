"""Every algorithm on every task: test return, test cost, and what training cost."""

from pathlib import Path

from algd.experiments.scale import Scale
from algd.experiments.trials import (
    PAPER_SEEDS,
    PAPER_TASKS,
    SMOKE_TASK,
    Method,
    Resources,
    Task,
    Trial,
    by_task,
    compute,
    recorded_rows,
    save_table,
    summary_table,
    trials,
)
from algd.visualization.grids import COMPARISON, plot_grid

ALGD, LGD = Method("ALGD", "algd"), Method("LGD", "lgd")
CAL, SAC_LAG = Method("CAL", "cal-quick"), Method("SAC+Lag", "sac-lag")
PPO_LAG = Method("PPO+Lag", "ppo-lag-small")
OURS = (
    ALGD,
    LGD,
    CAL,
    SAC_LAG,
    Method("SAC+AugLag", "sac-auglag"),
    Method("HJ", "hj"),
    Method("ALGD, no constraint", "algd-unconstrained"),
    Method("SAC, no constraint", "sac"),
    PPO_LAG,
)
# The text and the published program differ; both are measured.
PAPER = (
    Method("ALGD", "algd-code", velocity_preset="algd-code-velocity"),
    Method("ALGD, text", "algd-paper"),
    Method("CAL", "cal-algd"),
    Method("SAC+Lag", "sac-lag-paper"),
    Method("SAC+AugLag", "sac-auglag-paper"),
    Method("HJ", "hj-paper"),
    Method("PPO+Lag", "ppo-lag"),
)
ON_POLICY = ("ALGD", "PPO+Lag")
# What the figures show.
EVALUATED = ("step", "return", "return_std", "cost", "cost_std", "violation_rate")
TRAINED = ("step", "episodes", "return", "cost", "lam")


def runs(scale: Scale, out: Path) -> list[Trial]:
    """The runs that are compared."""
    if scale == "paper":
        return trials(PAPER_TASKS, PAPER, PAPER_SEEDS, scale, out)
    if scale == "cpu":
        button = trials((Task("PointButton1", 30_000),), (ALGD, LGD, CAL, SAC_LAG), 3, scale, out)
        return trials((Task("DiffDrive", 20_000, envs=4),), OURS, 5, scale, out) + button
    return trials((SMOKE_TASK,), (ALGD, LGD, SAC_LAG, PPO_LAG), 2, scale, out)


def reproduce(scale: Scale, out: Path, means: Resources = Resources()) -> None:  # noqa: B008
    """The comparison of all algorithms, and that with the on-policy one beside it."""
    found = compute(runs(scale, out), scale, out, means)
    off_policy = [trial for trial in found if trial.label != "PPO+Lag"]
    plot_grid(by_task(off_policy), COMPARISON, out / "benchmark.png")
    with_ppo = {t.job.settings.env for t in found if t.label == "PPO+Lag"}
    pairs = [t for t in found if t.label in ON_POLICY and t.job.settings.env in with_ppo]
    plot_grid(by_task(pairs), COMPARISON, out / "on_policy.png")
    save_table(summary_table(found), out / "benchmark.csv")
    save_table(recorded_rows(found, "eval", EVALUATED), out / "evaluations.csv")
    save_table(recorded_rows(found, "train", TRAINED), out / "training.csv")
