"""Kill a training run at random moments, resume it each time, and compare what comes out with the
run that was never disturbed.

    python scripts/kill_test.py --env PointButton1 --kills 20

Prints one JSON object; the exit code is 1 if anything differs.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from algd.algorithms import preset
from algd.experiments.trials import tiny
from algd.runs.directory import Run
from algd.types import ReplayOptions
from same import differences

PROGRAM = Path(sys.executable).with_name("algd")


@dataclass(frozen=True)
class KillTest:
    """What to train, and how often to kill it."""

    env: str = "DiffDrive"
    """The task."""
    preset: str = "algd"
    """The algorithm, with tiny networks."""
    kills: int = 20
    """How often the run is killed."""
    steps: int = 1_200
    """Length of the run; the buffer holds a quarter of it, so that it is also overwritten."""
    checkpoint_every: int = 20
    """Environment steps between two checkpoints."""
    seed: int = 0
    """Chooses the moments."""
    folder: Path | None = None
    """Where to train; by default a temporary folder."""


def train_command(test: KillTest, out: Path) -> list[str]:
    """`algd train` with tiny networks and frequent checkpoints."""
    sizes = tiny(test.preset)
    if isinstance(preset(test.preset), ReplayOptions):
        sizes["replay_size"] = test.steps // 4
    settings = {
        "env": test.env,
        "steps": test.steps,
        "envs": 2,
        "log_every": 40,
        "eval_every": test.steps,
        "eval_episodes": 2,
        "checkpoint_every": test.checkpoint_every,
        "out": out,
    }
    return ["train", "--quiet", *_options(settings), test.preset, *_options(sizes)]


def _options(values: dict[str, Any]) -> list[str]:
    return [x for k, v in values.items() for x in (f"--{k.replace('_', '-')}", str(v))]


def environment(folder: Path) -> dict[str, str]:
    """Compiled programs are shared by all processes, which would else do little but compile."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
        **os.environ,
    }


def newest_step(run: Run) -> int:
    """The step of the newest checkpoint, -1 if there is none."""
    found = run.checkpoints()
    return found[-1][0] if found else -1


def run_and_kill(
    arguments: list[str], run: Run, wait: float, target: int, writing: bool, folder: Path
) -> str:
    """Start a process, kill it `wait` seconds after it has reached the step `target`, or, if
    `writing`, as soon as it has begun to write a file behind it.

    Returns what it was doing.
    """
    process = subprocess.Popen(
        [PROGRAM, *arguments], env=environment(folder), stderr=subprocess.PIPE, text=True
    )
    while newest_step(run) < target and process.poll() is None:
        time.sleep(0.002)
    if writing:
        while not list(run.directory.rglob("*.part")) and process.poll() is None:
            pass
    else:
        time.sleep(wait)
    process.send_signal(signal.SIGKILL)
    _, complaint = process.communicate()
    if process.returncode == 0:
        return "finished"
    if process.returncode != -signal.SIGKILL:
        raise RuntimeError(f"{arguments} ended with {process.returncode}:\n{complaint}")
    if not run.config_path.exists() or newest_step(run) < target:
        return "start"
    return "checkpoint" if list(run.directory.rglob("*.part")) else "steps"


def main(test: KillTest) -> dict[str, Any]:
    """Run both and compare."""
    folder = test.folder or Path(tempfile.mkdtemp(prefix="kill_test-"))
    started, moments = time.monotonic(), random.Random(test.seed)
    whole, cut = Run(folder / "whole"), Run(folder / "cut")
    done = subprocess.run([PROGRAM, *train_command(test, whole.directory)], env=environment(folder))
    done.check_returncode()
    killed_in: list[str] = []
    while len(killed_in) < test.kills:
        begun = cut.config_path.exists()
        arguments = ["resume", str(cut.directory), "--quiet"]
        if not begun:
            arguments = train_command(test, cut.directory)
        # Spread over the run; one in eight without waiting for a step, while it starts.
        target = test.steps * (len(killed_in) + moments.random()) / (test.kills + 1)
        at_start = moments.random() < 0.125
        wait = moments.uniform(0.0, 3.0 if at_start else 0.1)
        # Writing takes so little of the time that chance would rarely meet it.
        writing = not at_start and moments.random() < 0.5
        aim = -1 if at_start else int(target)
        doing = run_and_kill(arguments, cut, wait, aim, writing, folder)
        if doing == "finished":
            # The kill came too late, as it may on a busy machine: once more from the beginning.
            shutil.rmtree(cut.directory)
            killed_in.clear()
        else:
            killed_in.append(doing)
    last = train_command(test, cut.directory)
    if cut.config_path.exists():
        last = ["resume", str(cut.directory), "--quiet"]
    subprocess.run([PROGRAM, *last], env=environment(folder), check=True)
    found = differences(whole, cut)
    if test.folder is None and not found:
        shutil.rmtree(folder)
    return {
        "env": test.env,
        "preset": test.preset,
        "steps": test.steps,
        "kills": len(killed_in),
        "killed_while": {what: killed_in.count(what) for what in sorted(set(killed_in))},
        "differences": found,
        "seconds": round(time.monotonic() - started),
    }


if __name__ == "__main__":
    outcome = main(tyro.cli(KillTest, description=__doc__))
    print(json.dumps(outcome))
    sys.exit(1 if outcome["differences"] else 0)
