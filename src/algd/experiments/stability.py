"""Does the quadratic term steady learning? ALGD against LGD, equal but for their energies."""

from collections.abc import Sequence
from pathlib import Path

from algd.evaluation.stats import column, lambda_oscillation
from algd.experiments.scale import Scale
from algd.experiments.trials import (
    CPU_SEEDS,
    CPU_TASKS,
    DIFF_DRIVE,
    PAPER_SEEDS,
    PAPER_TASKS,
    SMOKE_TASK,
    Method,
    Resources,
    Trial,
    by_task,
    compute,
    save_table,
    trials,
)
from algd.sweeps.results import Row, row
from algd.visualization.grids import STABILITY, end_of, plot_grid

OURS = (Method("ALGD", "algd"), Method("LGD", "lgd"))
AUTHORS = (
    Method("ALGD", "algd-code", velocity_preset="algd-code-velocity"),
    Method("LGD", "algd-code", (("energy", "plain"),), "algd-code-velocity"),
)


def runs(scale: Scale, out: Path) -> list[Trial]:
    """The runs that are compared."""
    if scale == "paper":
        return trials(PAPER_TASKS, AUTHORS, PAPER_SEEDS, scale, out)
    if scale == "cpu":
        shown = [task for task in CPU_TASKS if task.env in ("PointButton1", "HalfCheetahVelocity")]
        drive = trials((DIFF_DRIVE,), OURS, range(5), scale, out)
        return drive + trials(shown, OURS, CPU_SEEDS, scale, out)
    return trials((SMOKE_TASK,), OURS, range(2), scale, out)


def reproduce(scale: Scale, out: Path, means: Resources = Resources()) -> None:  # noqa: B008
    """Return, multiplier and violation over training; how much the multiplier swings."""
    found = compute(runs(scale, out), scale, out, means)
    plot_grid(by_task(found), STABILITY, out / "stability.png")
    save_table(table(found), out / "stability.csv")


def table(found: Sequence[Trial]) -> list[Row]:
    """For each run: variation of the multiplier, its late spread, violation, and how it ended."""
    lines = []
    for task, groups in by_task(found).items():
        end = end_of(groups)
        for label, members in groups.items():
            for run in members:
                rows, judged = run.rows("train"), row(run) or {}
                variation, late_spread = lambda_oscillation(column(rows, "train", f"lam{end}"))
                violation = column(rows, "train", f"violation{end}")
                lines.append(
                    {
                        "env": task,
                        "algorithm": label,
                        "seed": judged["seed"],
                        "lam_total_variation": variation,
                        "lam_late_std": late_spread,
                        "violation_mean": float(violation.mean()),
                        "return": judged["return"],
                        "cost": judged[f"cost{end}"],
                        "budget": judged[f"budget{end}"],
                    }
                )
    return lines
