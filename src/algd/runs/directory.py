"""The run directory: settings, metrics, checkpoints. Nothing in it can run code when read.

config.json        every setting; training it again gives the same numbers
metrics.jsonl      one row per event, appended live, free of wall-clock times; `crc` in each
                   covers all rows up to it
timing.jsonl       steps per second beside them
checkpoints/       step-000020000.algd: networks, optimisers, environments, counters; the newest
                   two, and that of the best evaluation
replay/            the buffer in pieces, each written once
evaluation.json    how a sweep judged the final policy
progress.json      how far a run of a sweep is, and what it has taken
tensorboard/       the same curves for TensorBoard
"""

import dataclasses
import errno
import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from filelock import FileLock, Timeout

from algd.runs.files import (
    DamagedFile,
    LogPosition,
    digest_of,
    drop_torn_line,
    flush_names,
    read_arrays,
    read_record,
    read_whole,
    unseal,
    write_arrays,
    write_record,
)
from algd.types import UserError, command

KEEP = 2
# What a run may have that was stopped before its settings were written.
UNBEGUN = {"lock", "checkpoints", "replay", "metrics.jsonl"}
LONGEST_NAME = 200


class CannotWrite(UserError):
    """The disk does not take what a run writes."""


class Seconds(NamedTuple):
    """What training took on the clock and of the processor; NaN where nobody wrote it down."""

    wall: float
    processor: float


@dataclasses.dataclass(frozen=True, init=False)
class Run:
    """A run on disk; wherever a path goes, it stands for its directory."""

    directory: Path

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        object.__setattr__(self, "directory", Path(directory))

    def __fspath__(self) -> str:
        return str(self.directory)

    def __str__(self) -> str:
        return str(self.directory)

    @property
    def place(self) -> Path:
        """Where it is kept."""
        return self.directory

    @property
    def config_path(self) -> Path:
        """Every setting."""
        return self.directory / "config.json"

    @property
    def metrics_path(self) -> Path:
        """One JSON row per event."""
        return self.directory / "metrics.jsonl"

    @property
    def timing_path(self) -> Path:
        """Wall-clock rows, kept apart because they differ between equal runs."""
        return self.directory / "timing.jsonl"

    @property
    def evaluation_path(self) -> Path:
        """The judgement of the final policy."""
        return self.directory / "evaluation.json"

    @property
    def progress_path(self) -> Path:
        """How far the run is within a sweep."""
        return self.directory / "progress.json"

    def make_folders(self) -> None:
        """Room for checkpoints and pieces of the replay buffer."""
        for name in ("checkpoints", "replay"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)

    def config(self) -> dict[str, Any]:
        """The settings, or a message that says what is wrong with them."""
        if self.directory.is_file():
            raise UserError(f"{self.directory} is a file, not the directory of a run.")
        if not self.directory.is_dir():
            raise UserError(f"There is no directory {self.directory}.")
        if not self.config_path.is_file():
            raise UserError(f"{self.directory} holds no run: it has no config.json.")
        try:
            config = read_record(self.config_path)
        except DamagedFile as error:
            raise UserError(f"{error}.") from error
        if not re.fullmatch(r"[0-9a-f]{32}", str(config.get("id"))):
            raise UserError(f"{self.config_path} is damaged: its id is {config.get('id')!r}.")
        return config

    def command(self, word: str, *options: object) -> str:
        """A command on this run as its owner types it, naming the module that a file may not."""
        config: dict[str, Any] = {}
        with suppress(UserError):
            config = self.config()
        env = str(config.get("settings", {}).get("env", ""))
        unnamed = bool(config.get("given"))
        where = ["--env", "module:Name" if unnamed else env] if unnamed or ":" in env else []
        return command(word, self.directory, *where, *options)

    def write_config(self, config: dict[str, Any]) -> None:
        """Write the settings, from which a new run has its id; it may be made longer later on."""
        if "id" not in config:
            settings = {k: v for k, v in config.get("settings", {}).items() if k != "steps"}
            config = {"id": digest_of({**config, "settings": settings}), **config}
        write_record(self.config_path, config)

    @property
    def id(self) -> str:
        """What every file of the run carries and another run's do not.

        It follows from what determines the run: two runs of one id have the same numbers.
        """
        return self.config()["id"]

    def write(self, path: Path, arrays: Mapping[str, np.ndarray]) -> None:
        """Write arrays that belong to the run."""
        write_arrays(path, arrays, self.id)

    def read(self, path: Path) -> dict[str, np.ndarray]:
        """Arrays of the run, or `DamagedFile`."""
        return read_arrays(path, self.id)

    def write_note(self, path: Path, note: Mapping[str, Any]) -> None:
        """Write something about the run."""
        write_record(path, {"id": self.id, **note})

    def read_note(self, path: Path) -> dict[str, Any] | None:
        """What was written about the run, if it is whole and not about another run."""
        try:
            note = read_record(path)
            return note if note.get("id") == self.id else None
        except (DamagedFile, UserError):
            return None

    def evaluation(self) -> dict[str, Any] | None:
        """The judgement of the final policy, if there is one."""
        return self.read_note(self.evaluation_path)

    def seconds(self) -> Seconds:
        """What training took: on the clock by the measured speed of each piece of the run, of the
        processor by the last sign of progress."""
        spent = (self.read_note(self.progress_path) or {}).get("processor_seconds")
        processor = float(spent) if isinstance(spent, int | float) else math.nan
        try:
            rows = map(json.loads, read_whole(self.timing_path).splitlines())
            # Copied from another run, they tell nothing of this one.
            own = [row for row in rows if row["run"] == self.id]
            # The last rows of its pieces: a run that was interrupted has several, each with a speed
            # of its own, and begins one where it began another if it was twice behind one
            # checkpoint.
            ends = [
                row
                for row, later in zip(own, [*own[1:], None], strict=True)
                if later is None or _begun(later) != _begun(row) or later["step"] <= row["step"]
            ]
            took = [(row["step"] - _begun(row)) / row["steps_per_second"] for row in ends]
            wall = float(sum(took)) if took else math.nan
        except (OSError, ValueError, LookupError, TypeError, ZeroDivisionError):
            wall = math.nan
        return Seconds(wall, processor)

    def rows(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The metrics, of one kind or all; a last line that is still being written is left out."""
        if not self.metrics_path.exists():
            raise UserError(f"{self.directory} has no metrics.jsonl yet.")
        try:
            return [row for row, _ in self._log() if kind is None or row["kind"] == kind]
        except DamagedFile as error:
            raise UserError(f"{error}.") from error

    def _log(self, size: int | None = None) -> Iterator[tuple[dict[str, Any], LogPosition]]:
        """The rows, of the first `size` bytes or all, each with the position behind it."""
        try:
            lines = read_whole(self.metrics_path)[:size].split(b"\n")[:-1]
        except OSError as error:
            raise DamagedFile(f"{self.metrics_path} cannot be read: {error.strerror}") from error
        mark, owner = LogPosition(), self.id
        for number, line in enumerate(lines, 1):
            try:
                row, mark = unseal(line, mark, owner)
            except (ValueError, RecursionError) as error:
                where = f"{self.metrics_path} is damaged in line {number}"
                raise DamagedFile(f"{where} ({error})") from error
            yield row, mark

    def check_position(self, mark: LogPosition) -> LogPosition:
        """The mark, if the file still begins with what it held there; that of a new file if it is
        gone altogether, which may be the user's wish."""
        if not self.metrics_path.exists():
            return LogPosition()
        if [LogPosition(), *(behind for _, behind in self._log(mark.size))][-1] != mark:
            raise DamagedFile(f"{self.metrics_path} is not what it was at the checkpoint")
        return mark

    def checkpoints(self) -> list[tuple[int, Path]]:
        """Checkpoints by step, oldest first."""
        paths = (self.directory / "checkpoints").glob("step-*.algd")
        found = ((re.fullmatch(r"step-(\d+)\.algd", path.name), path) for path in paths)
        return sorted((int(match[1]), path) for match, path in found if match)

    def write_checkpoint(
        self, step: int, arrays: Mapping[str, np.ndarray], best: int | None = None
    ) -> None:
        """Write one, then drop all but the newest `KEEP` and that of the best evaluation."""
        self.write(self.directory / "checkpoints" / f"step-{step:09d}.algd", arrays)
        for older, path in self.checkpoints()[:-KEEP]:
            if older != best:
                path.unlink()

    def forget_after(self, step: int, stored: int) -> None:
        """Clear away what a stopped process left behind the checkpoint that is gone on from.

        Later checkpoints are damaged or lack something; they are set aside under another name,
        since their networks may still be of use.
        """
        for path in self.directory.rglob("*.part"):
            path.unlink()
        for later, path in self.checkpoints():
            if later > step:
                path.replace(path.with_name(path.name + ".unusable"))
        for _, last, path in self.pieces():
            if last > stored:
                path.unlink()
        drop_torn_line(self.timing_path)

    def pieces(self) -> list[tuple[int, int, Path]]:
        """The pieces of the replay buffer, oldest first: first transition, one past the last."""
        paths = (self.directory / "replay").glob("*.algd")
        found = ((re.fullmatch(r"(\d+)-(\d+)\.algd", path.name), path) for path in paths)
        return sorted((int(match[1]), int(match[2]), path) for match, path in found if match)

    def last_good(self) -> str:
        """A sentence on what a broken run can be continued from."""
        found = self.checkpoints()
        if not found:
            return "There is no checkpoint yet."
        return f"The last good checkpoint is that of step {found[-1][0]} in {self.directory}."

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Say so if the disk does not take what is written."""
        try:
            yield
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            how = "Make room and go" if full else "Go"
            raise CannotWrite(
                f"Cannot write to {self.directory}: {error.strerror}. {self.last_good()} "
                f"{how} on with: {self.command('resume')}"
            ) from error

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the directory against a second process; the lock dies with its holder."""
        try:
            held = FileLock(self.directory / "lock").acquire(blocking=False)
        except Timeout as error:
            raise UserError(
                f"Another process is training in {self.directory}; wait for it or stop it."
            ) from error
        except OSError as error:
            raise UserError(f"Cannot lock {self.directory}: {error.strerror}.") from error
        with held:
            yield


def create_run(directory: Path) -> Run:
    """A new run directory, never over an old one.

    One without settings was never begun: what its process left until then is empty.
    """
    try:
        if (directory / "config.json").exists():
            raise UserError(
                f"{directory} already holds a run. Continue it with "
                f"`{Run(directory).command('resume')}`, or choose another directory with --out."
            )
        if directory.exists() and not directory.is_dir():
            raise UserError(f"{directory} is a file, not a directory.")
        if directory.is_dir() and not all(_is_unbegun(path) for path in directory.iterdir()):
            raise UserError(f"{directory} is not empty; choose another directory with --out.")
        Run(directory).make_folders()
        flush_names(directory.parent)
    except OSError as error:
        raise UserError(f"Cannot write to {directory}: {error.strerror}.") from error
    return Run(directory)


def _is_unbegun(path: Path) -> bool:
    """Whether it is left from a start that did not come to the settings, and empty."""
    if path.name == "config.json.part":
        return True
    empty = not any(path.iterdir()) if path.is_dir() else not path.stat().st_size
    return path.name in UNBEGUN and empty


def directory_name(text: str) -> str:
    """The text as one name within a directory, no longer than file systems take."""
    name = re.sub(r"[^\w.,=+-]", "-", text)
    if len(name.encode()) <= LONGEST_NAME:
        return name
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return f"{name.encode()[: LONGEST_NAME - 20].decode(errors='ignore')}-{digest}"


def _begun(row: Mapping[str, Any]) -> int:
    """The step at which the piece of a run began whose speed this is."""
    return row.get("from", 0)
