"""How long each algorithm trains and acts: processor time on this machine."""

from pathlib import Path

import numpy as np

from algd.experiments import benchmark
from algd.experiments.scale import Scale
from algd.experiments.trials import Resources, Trial, measured_speeds, save_table
from algd.sweeps.estimate import label
from algd.sweeps.results import Row

# The families of the paper's table are measured on one task each.
REPRESENTATIVES = {"DiffDrive", "PointButton1", "HalfCheetahVelocity"}


def reproduce(scale: Scale, out: Path, means: Resources = Resources()) -> None:  # noqa: B008
    """Seconds per 1,000 steps of training and per episode of evaluation. Nothing is trained."""
    trials = [
        trial
        for trial in benchmark.runs(scale, out)
        if trial.job.settings.seed == 0 and trial.job.settings.env in REPRESENTATIVES
    ]
    save_table(table(trials, out, means), out / "runtime.csv")


def table(trials: list[Trial], out: Path, means: Resources) -> list[Row]:
    """One line for each task and algorithm; ± is the standard deviation of the measurements."""
    measured = measured_speeds([trial.job for trial in trials], out, means)
    lines = []
    for trial in trials:
        found, settings = measured[label(trial.job)], trial.job.settings
        training = 1e3 * np.array(found.seconds_per_step)
        evaluation = np.array(found.seconds_per_evaluation) / settings.eval_episodes
        lines.append(
            {
                "env": settings.env,
                "algorithm": trial.label,
                "preset": trial.job.preset,
                "training_seconds_per_1000_steps": float(training.mean()),
                "training_std": float(training.std(ddof=1)),
                "evaluation_seconds_per_episode": float(evaluation.mean()),
                "evaluation_std": float(evaluation.std(ddof=1)),
            }
        )
    return lines
