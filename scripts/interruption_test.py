"""Copy a run's directory before and after every operation on its files, go on with each copy, and
compare all bits of what comes out with the run that was never stopped.

    python scripts/interruption_test.py --preset sac-lag

A process can be killed between any two operations and in the middle of a write: the copies are
what it would leave then. So are those made while one of the copies is resumed. Prints one JSON
object; the exit code is 1 if anything differs.
"""

import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tyro

from algd.algorithms import preset
from algd.experiments.trials import tiny
from algd.runs.config import Settings
from algd.runs.directory import Run
from algd.training import loop
from same import differences

# C functions behind which a file or a directory may be another one than before.
OPERATIONS = {
    *("open", "write", "flush", "close", "__exit__", "truncate", "ftruncate", "fsync"),
    *("replace", "rename", "unlink", "remove", "rmdir", "mkdir", "link", "symlink", "utime"),
}


@dataclass(frozen=True)
class InterruptionTest:
    """What to train, and how many of the copies to go on with."""

    preset: str = "sac-lag"
    """The algorithm, with tiny networks."""
    env: str = "DiffDrive"
    """The task; episodes of DiffDrive are cut to 20 steps."""
    steps: int = 48
    """Length of the run; its buffer holds a third of it, so that it is also overwritten."""
    every: int = 1
    """Go on with every n-th copy only."""
    folder: Path | None = None
    """Where to train; by default a temporary folder."""


Contents = dict[str, tuple[int, bytes]]


def contents(directory: Path) -> Contents:
    """Every file and folder by its name: its number in the file system, and what is in it."""
    found: Contents = {}
    # Asked for thousands of times: no Path for each of the files.
    for folder, folders, files in os.walk(directory):
        for path in (os.path.join(folder, name) for name in folders):
            found[os.path.relpath(path, directory)] = (os.stat(path).st_ino, b"")
        for path in (os.path.join(folder, name) for name in files):
            with open(path, "rb") as file:
                number = os.fstat(file.fileno()).st_ino
                found[os.path.relpath(path, directory)] = (number, file.read())
    return dict(sorted(found.items()))


def half_written(before: Contents, after: Contents) -> Iterator[tuple[str, bytes]]:
    """The files that have grown, each with half of what was added; a file that took the place of
    another by its name was never half there."""
    for name, (number, now) in after.items():
        known, then = before.get(name, (None, b""))
        if number == known and len(now) > len(then) + 1 and now.startswith(then):
            yield name, now[: (len(then) + len(now)) // 2]


@contextmanager
def copied(directory: Path, copies: Path) -> Iterator[None]:
    """Copy the directory whenever an operation has changed it, and as a write in two parts would
    have left it."""
    copies.mkdir(parents=True)
    last = contents(directory)

    def keep() -> Path:
        copy = copies / f"{len(list(copies.iterdir())):04d}"
        shutil.copytree(directory, copy)
        return copy

    def look(frame: Any, event: str, function: Any) -> None:
        nonlocal last
        if not event.startswith("c_") or function.__name__ not in OPERATIONS:
            return
        # Nine in ten; they change nothing outside the memory.
        if isinstance(function.__self__, io.BytesIO | io.StringIO):
            return
        sys.setprofile(None)
        now = contents(directory)
        if now != last:
            for name, half in half_written(last, now):
                (keep() / name).write_bytes(half)
            keep()
        last = now
        sys.setprofile(look)

    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(None)


def main(test: InterruptionTest) -> dict[str, Any]:
    """Train, copy, go on with the copies, compare."""
    folder = test.folder or Path(tempfile.mkdtemp(prefix="interruption_test-"))
    algorithm: Any = replace(preset(test.preset), **tiny(test.preset))
    if algorithm.data == "replay":
        algorithm = replace(algorithm, prefill=8, replay_size=test.steps // 3)
    settings = Settings(
        env=test.env,
        steps=test.steps,
        envs=2,
        log_every=8,
        eval_every=16,
        eval_episodes=2,
        checkpoint_every=8,
        env_options=("horizon=20",) if test.env == "DiffDrive" else (),
    )
    whole = Run(folder / "whole")

    def go_on(directory: Path) -> None:
        if Run(directory).config_path.exists():
            loop.resume(directory)
        else:
            loop.train(settings, algorithm, test.preset, directory)

    def with_copies(work: Callable[[Path], None], directory: Path, name: str) -> list[Path]:
        with copied(directory, folder / name):
            work(directory)
        return sorted((folder / name).iterdir())

    # Compiles everything too: looked at call by call, that takes far longer.
    go_on(whole.directory)
    watched = folder / "watched"
    first = with_copies(go_on, watched, "trained")
    # One from the middle, so that much is to be cleared away and much still to be written.
    again = folder / "again"
    shutil.copytree(first[len(first) // 2], again)
    second = with_copies(go_on, again, "resumed")
    found = {run.name: differences(whole, Run(run)) for run in (watched, again)}
    chosen = [*first[:: test.every], *second[:: test.every]]
    begun = sum(Run(copy).config_path.exists() for copy in chosen)
    for copy in chosen:
        name = str(copy.relative_to(folder))
        try:
            go_on(copy)
            found[name] = differences(whole, Run(copy))
        except Exception as error:
            found[name] = [f"{type(error).__name__}: {error}"]
        if not found[name]:
            shutil.rmtree(copy)
    found = {name: what for name, what in found.items() if what}
    if test.folder is None and not found:
        shutil.rmtree(folder)
    return {
        "preset": test.preset,
        "env": test.env,
        "steps": test.steps,
        "copies": [len(first), len(second)],
        "resumed": begun,
        "begun_again": len(chosen) - begun,
        "differences": found,
    }


if __name__ == "__main__":
    outcome = main(tyro.cli(InterruptionTest, description=__doc__))
    print(json.dumps(outcome))
    sys.exit(1 if outcome["differences"] else 0)
