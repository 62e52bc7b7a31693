"""Train for a given time and report whether memory, open files and speed stay flat.

    python scripts/soak.py --minutes 30

Prints one JSON object.
"""

import dataclasses
import json
import os
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import tyro

from algd.algorithms import preset
from algd.experiments.trials import tiny
from algd.runs.config import Settings
from algd.training import loop
from algd.training.loop import Interrupted, Progress


@dataclass(frozen=True)
class Soak:
    """What to train, and for how long."""

    minutes: float = 30.0
    """How long."""
    env: str = "DiffDrive"
    """The task."""
    preset: str = "algd"
    """The algorithm, with tiny networks."""


@dataclass(frozen=True)
class Sample:
    """The process at one moment."""

    seconds: float
    processor_seconds: float
    step: int
    resident_mib: float
    open_files: int


def sample(seconds: float, step: int) -> Sample:
    """Look at this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    resident = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    return Sample(
        round(seconds, 1),
        round(time.process_time(), 1),
        step,
        round(resident, 1),
        len(os.listdir("/proc/self/fd")),
    )


def speed(samples: list[Sample]) -> float:
    """Steps per second of processor time, which other work on the machine does not slow down."""
    first, last = samples[0], samples[-1]
    spent = last.processor_seconds - first.processor_seconds
    return round((last.step - first.step) / max(spent, 1e-9), 1)


def main(soak: Soak) -> dict[str, object]:
    """Train until the time is over, looking at the process every hundredth of it."""
    samples: list[Sample] = []
    end = soak.minutes * 60.0

    def look(progress: Progress) -> None:
        # The first tenth is for compiling and for the buffer to fill.
        due = 0.1 * end + 0.009 * end * len(samples)
        if progress.seconds >= due:
            samples.append(sample(progress.seconds, progress.step))
        if progress.seconds >= end:
            os.kill(os.getpid(), 15)

    settings = Settings(
        env=soak.env,
        steps=2**31 - 1,
        envs=4,
        eval_every=20_000,
        eval_episodes=4,
        checkpoint_every=2_000,
    )
    sizes = {**tiny(soak.preset), "replay_size": 20_000}
    algorithm = dataclasses.replace(preset(soak.preset), **sizes)
    with tempfile.TemporaryDirectory(prefix="soak-") as folder, suppress(Interrupted):
        loop.train(settings, algorithm, soak.preset, Path(folder) / "run", look)
    tenth = max(len(samples) // 10, 2)
    return {
        "env": soak.env,
        "preset": soak.preset,
        "minutes": soak.minutes,
        "start": dataclasses.asdict(samples[0]),
        "end": dataclasses.asdict(samples[-1]),
        "steps_per_processor_second_first_tenth": speed(samples[:tenth]),
        "steps_per_processor_second_last_tenth": speed(samples[-tenth:]),
    }


if __name__ == "__main__":
    print(json.dumps(main(tyro.cli(Soak, description=__doc__))))
