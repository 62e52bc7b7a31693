"""The runs behind an experiment: tasks x methods x seeds, computed by a sweep."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from algd.algorithms import preset
from algd.evaluation.stats import bootstrap_interval
from algd.experiments.scale import Scale
from algd.runs.config import Settings
from algd.runs.grouping import Groups
from algd.sweeps.estimate import Speed, known_speeds, label, speeds
from algd.sweeps.execution import cache, confirm, execute, plan, print_plan
from algd.sweeps.executors import Workers
from algd.sweeps.job import is_complete
from algd.sweeps.plan import Job, check_environments, job, without_duplicates
from algd.sweeps.results import Row, row, write_csv
from algd.types import Algorithm, UserError

SAFETY_GYM = ("PointButton1", "PointButton2", "CarButton1", "CarButton2", "PointPush1")
VELOCITY = ("HalfCheetahVelocity", "HopperVelocity", "AntVelocity", "HumanoidVelocity")

# Sizes with which a run takes a moment, for the scale "smoke".
TINY = {
    "critic_hidden": 16,
    "score_hidden": 16,
    "actor_hidden": 16,
    "multiplier_hidden": 16,
    "embedding": 4,
    "denoise_steps": 3,
    "batch_size": 16,
    "minibatch": 16,
    "cost_ensemble": 2,
    "mc_samples": 2,
    "prefill": 40,
    "updates_per_step": 0.5,
    "rollout_steps": 80,
    "passes": 2,
}


class Resources(NamedTuple):
    """With what runs are computed."""

    workers: Workers = Workers()
    yes: bool = False
    """Start without asking."""
    present: bool = False
    """Draw what is there, and compute nothing."""
    records: Path | None = None
    """Where records are, and go; by default beside the runs."""


class Task(NamedTuple):
    """An environment, how long it is trained on, and by what a run is judged: evaluations on the
    way, and fresh episodes of the final policy."""

    env: str
    steps: int
    envs: int = 1
    eval_every: int = Settings.eval_every
    eval_episodes: int = Settings.eval_episodes
    judged: int = 100

    @property
    def is_velocity(self) -> bool:
        """Whether it is one of the velocity tasks."""
        return "Velocity" in self.env


class Method(NamedTuple):
    """What a line of a figure stands for; `changes` become part of the runs' names."""

    label: str
    preset: str
    changes: tuple[tuple[str, Any], ...] = ()
    velocity_preset: str | None = None


class Trial(NamedTuple):
    """A run and the line that it belongs to."""

    label: str
    job: Job


# The paper gives no number of steps; these are the published program's.
PAPER_TASKS = (
    *(Task(env, 100_000) for env in SAFETY_GYM),
    *(Task(env, 200_000) for env in VELOCITY),
)
PAPER_SEEDS = range(10)
DIFF_DRIVE = Task("DiffDrive", 20_000, envs=4)
# As the table of the default has them, so that its runs are the same.
CPU_TASKS = tuple(Task(env, 100_000, 4, 10_000, 5, 20) for env in (*SAFETY_GYM, *VELOCITY))
CPU_SEEDS = range(3)
# What a line of the summary has of its runs.
SUMMARISED = ("return", "cost", "violation_rate", "training_cost", "last5_return", "last5_cost")
SMOKE_TASK = Task("DiffDrive", 320, 2)
SHORT = {
    "env_options": ("horizon=40",),
    "envs": SMOKE_TASK.envs,
    "steps": SMOKE_TASK.steps,
    "log_every": 40,
    "eval_every": 80,
    "eval_episodes": 2,
}


def trials(
    tasks: Sequence[Task], methods: Sequence[Method], seeds: Sequence[int], scale: Scale, out: Path
) -> list[Trial]:
    """Every run of an experiment, under `out/runs`."""
    found = []
    for seed in seeds:
        for task in tasks:
            for method in methods:
                name = method.velocity_preset if task.is_velocity else None
                name = name or method.preset
                changes = dict(method.changes)
                judging = {"eval_every": task.eval_every, "eval_episodes": task.eval_episodes}
                chosen = {"steps": task.steps, "envs": task.envs, **judging, **changes}
                if scale == "smoke":
                    chosen = {**tiny(name), **SHORT, **changes}
                episodes = 4 if scale == "smoke" else task.judged
                one = job(out / "runs", task.env, name, seed, chosen, tuple(changes), episodes)
                found.append(Trial(method.label, one))
    return found


def tiny(preset_name: str) -> dict[str, Any]:
    """The small sizes that a preset knows."""
    algorithm: Algorithm = preset(preset_name)
    known = {field.name for field in dataclasses.fields(algorithm)}
    return {name: size for name, size in TINY.items() if name in known}


def compute(found: Sequence[Trial], scale: Scale, out: Path, means: Resources) -> list[Trial]:
    """Train what is missing; at the scale of the paper only after a question. The same trials,
    which know their records; those that are there alone, if no others are wanted."""
    records = means.records or out / "records"
    found = [trial._replace(job=dataclasses.replace(trial.job, records=records)) for trial in found]
    if means.present:
        return those_there(found)
    jobs = without_duplicates([trial.job for trial in found])
    check_environments(jobs)
    console, runs = Console(stderr=True), out / "runs"
    planned = plan(jobs, runs, means.workers, scale != "smoke", console, family)
    print_plan(planned, runs, means.workers, console)
    if scale == "paper" and planned.missing:
        confirm(console, means.yes)
    failures = execute(planned, runs, means.workers, console)
    if failures:
        raise UserError(
            f"{len(failures)} of {len(jobs)} runs failed, so nothing is drawn; their logs are in "
            f"{runs / 'logs'}. The same command tries these again."
        )
    return found


def those_there(found: Sequence[Trial]) -> list[Trial]:
    """The trials that are complete; what is missing is named, a line for each method."""
    complete = [trial for trial in found if is_complete(trial.job)]
    if not complete:
        raise UserError(f"None of the {len(found)} runs is there, so there is nothing to draw.")
    there = {trial.job.name for trial in complete}
    missing = [trial for trial in found if trial.job.name not in there]
    if missing:
        print(f"Missing, {len(missing)} of {len(found)} runs, with their seeds:")
    for line in dict.fromkeys(trial.label for trial in missing):
        seeds: dict[str, str] = {}
        for settings in (trial.job.settings for trial in missing if trial.label == line):
            seeds[settings.env] = f"{seeds.get(settings.env, settings.env)} {settings.seed}"
        print(f"  {line}: {'; '.join(seeds.values())}")
    return complete


def family(one: Job) -> str:
    """Runs that are alike in speed: bodies and rooms of one kind cost about the same."""
    name = label(one)
    for kind, envs in (("Safety-Gym", SAFETY_GYM), ("velocity", VELOCITY)):
        if one.settings.env in envs:
            return name.replace(one.settings.env, kind, 1)
    return name


def by_task(found: Sequence[Trial]) -> dict[str, Groups]:
    """The runs of each line of each task's figure."""
    tasks: dict[str, Groups] = {}
    for trial in found:
        groups = tasks.setdefault(trial.job.settings.env, {})
        groups.setdefault(trial.label, []).append(trial.job.evidence)
    return tasks


def summary_table(found: Sequence[Trial]) -> list[Row]:
    """For each task and line: the judged final policies and the last five evaluations, mean and
    95 % interval over seeds."""
    table = []
    for task, groups in by_task(found).items():
        for line, runs in groups.items():
            each = [values for run in runs if (values := row(run))]
            worst = [max(r["cost"] for r in run.rows("eval")[-5:]) for run in runs]
            table.append(
                {
                    "env": task,
                    "algorithm": line,
                    "preset": each[0]["preset"],
                    "seeds": len(each),
                    "steps": each[0]["steps"],
                    "budget": each[0]["budget"],
                    **_means_and_intervals(each),
                    "last5_worst_cost": float(np.mean(worst)),
                    "seeds_over_budget": sum(v["cost"] > v["budget"] for v in each),
                }
            )
    return table


def _means_and_intervals(each: Sequence[Mapping[str, Any]]) -> Row:
    found: Row = {}
    for name in SUMMARISED:
        values = np.array([v[name] for v in each], float)
        low, high = map(float, bootstrap_interval(values))
        found |= {name: float(values.mean()), f"{name}_low": low, f"{name}_high": high}
    return found


def measured_speeds(jobs: Sequence[Job], out: Path, means: Resources) -> dict[str, Speed]:
    """The speed of each kind of run, by its label; only what is known, if nothing is to run."""
    path = out / "runs" / "speeds.json"
    if means.present:
        return known_speeds(path)
    return speeds(jobs, path, means.workers.threads, cache(), print)


def recorded_rows(found: Sequence[Trial], kind: str, names: Sequence[str]) -> list[Row]:
    """Every run's rows of one kind over training, from which the figures can be drawn again."""
    return [
        {
            "env": trial.job.settings.env,
            "algorithm": trial.label,
            "preset": trial.job.preset,
            "seed": trial.job.settings.seed,
            **{name: line[name] for name in names if name in line},
        }
        for trial in found
        for line in trial.job.evidence.rows(kind)
    ]


def save_table(table: Sequence[Row], path: Path) -> None:
    """Write it and say where; nothing if it has no row."""
    if not table:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_csv(table, path)
    print(f"Wrote {path}")
