"""What N, M and rho change: one setting of ALGD at a time, with the time that it costs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from algd.experiments.scale import Scale
from algd.experiments.trials import (
    CPU_SEEDS,
    PAPER_SEEDS,
    SMOKE_TASK,
    Method,
    Resources,
    Task,
    Trial,
    by_task,
    compute,
    measured_speeds,
    save_table,
    summary_table,
    trials,
)
from algd.sweeps.estimate import label
from algd.sweeps.results import Row
from algd.visualization.grids import COMPARISON, plot_grid

MONTE_CARLO = ("mc_samples", "N", (2, 4, 6, 8, 16))
ENSEMBLE = ("cost_ensemble", "M", (1, 2, 4, 6, 8, 16))
# The paper names the range [0.5, 2] as the best and says that far less and far more are worse.
CONVEXITY = ("rho", "ρ", (0.1, 0.5, 1.0, 2.0, 10.0))


def runs(
    setting: str, symbol: str, values: Sequence[Any], envs: Sequence[str], scale: Scale, out: Path
) -> list[Trial]:
    """The runs with each value; the two smallest are enough to see that it works.

    Only where the score is fitted are there Monte Carlo actions: the default does not fit it.
    """
    ours = "algd-plain" if setting == "mc_samples" else "algd"
    preset = "algd-code" if scale == "paper" else ours
    values = values[:2] if scale == "smoke" else values
    methods = [Method(f"{symbol} = {value:g}", preset, ((setting, value),)) for value in values]
    if scale == "paper":
        return trials([Task(env, 100_000) for env in envs], methods, PAPER_SEEDS, scale, out)
    if scale == "cpu":
        short = [Task(env, 30_000, 4, 5_000, 5, 20) for env in envs]
        return trials(short, methods, CPU_SEEDS, scale, out)
    return trials((SMOKE_TASK,), methods, range(2), scale, out)


def reproduce_mc(scale: Scale, out: Path, means: Resources = Resources()) -> None:  # noqa: B008
    """The number of Monte Carlo actions."""
    found = runs(*MONTE_CARLO, ("PointPush1", "PointButton2"), scale, out)
    _reproduce(found, "ablation_mc", scale, out, means)


def reproduce_ensemble(scale: Scale, out: Path, means: Resources = Resources()) -> None:  # noqa: B008
    """The number of cost critics."""
    found = runs(*ENSEMBLE, ("PointPush1", "PointButton2"), scale, out)
    _reproduce(found, "ablation_ensemble", scale, out, means)


def reproduce_rho(scale: Scale, out: Path, means: Resources = Resources()) -> None:  # noqa: B008
    """The strength of the quadratic term."""
    found = runs(*CONVEXITY, ("PointButton1",), scale, out)
    _reproduce(found, "ablation_rho", scale, out, means)


def _reproduce(found: list[Trial], name: str, scale: Scale, out: Path, means: Resources) -> None:
    found = compute(found, scale, out, means)
    plot_grid(by_task(found), COMPARISON, out / f"{name}.png", sideways=True)
    save_table(summary_table(found), out / f"{name}.csv")
    save_table(time_table(found, out, means), out / f"{name}_time.csv")


def time_table(found: Sequence[Trial], out: Path, means: Resources) -> list[Row]:
    """Processor time of one training step, its gradient rounds included, for each line whose speed
    is known."""
    first = {(trial.job.settings.env, trial.label): trial.job for trial in reversed(found)}
    measured = measured_speeds(list(first.values()), out, means)
    table = []
    for (env, line), job in reversed(first.items()):
        if label(job) not in measured:
            print(f"The speed of {line} on {env} was not measured here.")
            continue
        milliseconds = 1e3 * np.array(measured[label(job)].seconds_per_step)
        table.append(
            {
                "env": env,
                "setting": line,
                "ms_per_step": float(milliseconds.mean()),
                "ms_per_step_std": float(milliseconds.std(ddof=1)),
            }
        )
    return table
