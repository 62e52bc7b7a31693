"""Where the time of a training run goes."""

import dataclasses
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from algd.algorithms import preset
from algd.runs.config import Settings
from algd.training import loop
from algd.training.loop import Progress
from algd.types import Algorithm, ReplayOptions

PRESETS = ("algd", "algd-code", "cal-quick", "sac-lag", "ppo-lag-small", "hj")
PHASES = (
    "environment",
    "acting",
    "update",
    "waiting",
    "transfer",
    "logging",
    "evaluation",
    "checkpointing",
)
ENV = "PointButton1"
# As long as the paper's runs: it decides the size of the buffer.
STEPS = 100_000
# Past this step every program of the run has been compiled.
WARM = 400


class Enough(Exception):
    """The time of the measurement is over."""


def bench_train(
    names: tuple[str, ...],
    seconds: float = 15.0,
    overlap: bool = False,
    seeds: Sequence[int] = (0,),
    tell: Callable[[str], None] = lambda what: None,
) -> list[dict[str, Any]]:
    """One row per preset: the share of each phase, and what is done per second, by all seeds.

    `update` is starting the gradient rounds, `waiting` what is left of them when the next action
    is wanted. The phases do not overlap each other; `explained` is their share of the wall clock.
    """
    rows = []
    for name in names or PRESETS:
        tell(f"{name} on {ENV}")
        rows.append(profile(name, seconds, overlap, seeds))
    return rows


def profile(name: str, seconds: float, overlap: bool, seeds: Sequence[int]) -> dict[str, Any]:
    """Train for so many seconds behind the compilation."""
    algorithm: Algorithm = preset(name)
    if isinstance(algorithm, ReplayOptions):
        algorithm = dataclasses.replace(algorithm, prefill=200)
    settings = Settings(env=ENV, envs=1, steps=STEPS, overlap=overlap, eval_every=2_000)
    warm_after = WARM if isinstance(algorithm, ReplayOptions) else 2 * algorithm.kept
    marks: list[tuple[float, Progress]] = []

    def report(progress: Progress) -> None:
        if progress.step < warm_after:
            return
        now = time.perf_counter()
        if not marks or now - marks[0][0] >= seconds:
            marks.append((now, progress))
        if len(marks) == 2:
            raise Enough

    with tempfile.TemporaryDirectory(prefix="bench-train-") as folder, suppress(Enough):
        each = [dataclasses.replace(settings, seed=seed) for seed in seeds]
        directories = [Path(folder) / f"seed{seed}" for seed in seeds]
        loop.train_seeds(each, algorithm, name, directories, report)
    (start, first), (end, last) = marks
    wall = end - start
    spent = {phase: last.spent.get(phase, 0.0) - first.spent.get(phase, 0.0) for phase in PHASES}
    speed = len(seeds) * (last.step - first.step) / wall
    rounds = speed * algorithm.updates_per_step if isinstance(algorithm, ReplayOptions) else None
    return {
        "preset": name,
        "env": ENV,
        "overlap": overlap,
        "seeds": len(seeds),
        "steps_per_second": speed,
        "rounds_per_second": rounds,
        **{phase: time / wall for phase, time in spent.items()},
        "explained": sum(spent.values()) / wall,
    }
