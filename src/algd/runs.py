"""The run directory: settings, metrics, checkpoints. Nothing in it can run code when read.

    config.json        every setting; training it again gives the same numbers
    metrics.jsonl      one row per event, appended live, free of wall-clock times
    timing.jsonl       steps per second beside them
    checkpoints/       step-000020000.algd: networks, optimisers, environments, counters
    replay/            the buffer in pieces, each written once
    tensorboard/       the same curves for TensorBoard
"""

import dataclasses
import fcntl
import hashlib
import io
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np

from algd.types import UserError

FORMAT = 1
MAGIC = b"ALGD"
KEEP = 2


class DamagedFile(Exception):
    """A file of a run that is cut, altered or of another format."""


# --- files that are whole or not there --------------------------------------------------------


def write_atomically(path: Path, content: bytes) -> None:
    """Write under a temporary name, flush to the disk, rename."""
    temporary = path.with_name(path.name + ".part")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Arrays by name with a format version and a checksum over everything."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    payload = buffer.getvalue()
    head = MAGIC + FORMAT.to_bytes(4, "little")
    digest = hashlib.blake2b(head + payload, digest_size=32).digest()
    write_atomically(path, head + digest + payload)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """What `write_arrays` wrote, or `DamagedFile`."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DamagedFile(f"{path} cannot be read ({error.strerror})") from error
    head, digest, payload = content[:8], content[8:40], content[40:]
    if head[:4] != MAGIC or len(content) < 40:
        raise DamagedFile(f"{path} is not a checkpoint file, or its beginning is damaged")
    if hashlib.blake2b(head + payload, digest_size=32).digest() != digest:
        raise DamagedFile(f"{path} is damaged: its checksum does not fit")
    version = int.from_bytes(head[4:8], "little")
    if version != FORMAT:
        raise DamagedFile(
            f"{path} has the format {version}; this version of algd reads format {FORMAT}"
        )
    with np.load(io.BytesIO(payload), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


# --- pytrees as named arrays ------------------------------------------------------------------


def to_arrays(tree: Any, prefix: str) -> dict[str, np.ndarray]:
    """Every leaf under its path in the tree."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {prefix + jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def from_arrays(template: Any, arrays: Mapping[str, np.ndarray], prefix: str) -> Any:
    """The tree of the template's shape from its named leaves."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(template)
    found = []
    for path, leaf in leaves:
        name = prefix + jax.tree_util.keystr(path)
        if name not in arrays:
            raise DamagedFile(f"the checkpoint lacks {name}: its settings are not this run's")
        array = arrays[name]
        if array.shape != leaf.shape or array.dtype != leaf.dtype:
            raise DamagedFile(
                f"{name} is {array.dtype}{list(array.shape)} in the checkpoint, "
                f"but {leaf.dtype}{list(leaf.shape)} by the settings"
            )
        found.append(jax.numpy.asarray(array))
    return jax.tree_util.tree_unflatten(structure, found)


# --- the directory ----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Run:
    """A run on disk."""

    directory: Path

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

    def config(self) -> dict[str, Any]:
        """The settings, or a message that says what is wrong with them."""
        if not self.directory.is_dir():
            raise UserError(f"There is no directory {self.directory}.")
        if not self.config_path.is_file():
            raise UserError(f"{self.directory} holds no run: it has no config.json.")
        try:
            config = json.loads(self.config_path.read_text())
            version, stated = config["format"], config.pop("checksum")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{self.config_path} is damaged ({error}).") from error
        if stated != _checksum(config):
            raise UserError(f"{self.config_path} is damaged or was edited: its checksum differs.")
        if version != FORMAT:
            raise UserError(
                f"{self.config_path} has the format {version}; this version reads {FORMAT}."
            )
        return config

    def write_config(self, config: dict[str, Any]) -> None:
        """Write the settings with a checksum."""
        config = {"format": FORMAT, **config}
        text = json.dumps({**config, "checksum": _checksum(config)}, indent=2)
        write_atomically(self.config_path, text.encode())

    def rows(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The metrics, of one kind or all; a torn last line is left out."""
        if not self.metrics_path.is_file():
            raise UserError(f"{self.directory} has no metrics.jsonl yet.")
        rows = []
        for number, line in enumerate(self.metrics_path.read_text(errors="replace").splitlines()):
            try:
                row = json.loads(line)
                if kind is None or row["kind"] == kind:
                    rows.append(row)
            except (ValueError, KeyError, TypeError) as error:
                if number == 0 or self.metrics_path.read_bytes().endswith(b"\n"):
                    raise UserError(
                        f"{self.metrics_path} is damaged in line {number + 1}."
                    ) from error
        return rows

    def checkpoints(self) -> list[tuple[int, Path]]:
        """Checkpoints by step, oldest first."""
        found = []
        for path in (self.directory / "checkpoints").glob("step-*.algd"):
            match = re.fullmatch(r"step-(\d+)\.algd", path.name)
            if match:
                found.append((int(match[1]), path))
        return sorted(found)

    def write_checkpoint(self, step: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Write one, then drop all but the newest `KEEP`."""
        folder = self.directory / "checkpoints"
        folder.mkdir(exist_ok=True)
        write_arrays(folder / f"step-{step:09d}.algd", arrays)
        for _, path in self.checkpoints()[:-KEEP]:
            path.unlink()

    def newest_checkpoint(self) -> tuple[int, dict[str, np.ndarray], list[str]]:
        """The newest whole checkpoint, and what is wrong with newer ones."""
        complaints: list[str] = []
        for step, path in reversed(self.checkpoints()):
            try:
                return step, read_arrays(path), complaints
            except DamagedFile as error:
                complaints.append(str(error))
        detail = f" ({'; '.join(complaints)})" if complaints else ""
        raise UserError(f"{self.directory} has no usable checkpoint{detail}.")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the directory against a second process; the lock dies with its holder."""
        with open(self.directory / "lock", "a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise UserError(
                    f"Another process is training in {self.directory}; wait for it or stop it."
                ) from error
            yield


def _checksum(config: dict[str, Any]) -> str:
    canonical = json.dumps(config, sort_keys=True)
    return hashlib.blake2b(canonical.encode(), digest_size=16).hexdigest()


def create_run(directory: Path) -> Run:
    """A new run directory, never over an old one."""
    if (directory / "config.json").exists():
        raise UserError(
            f"{directory} already holds a run. Continue it with `algd resume {directory}`, "
            "or choose another directory with --out."
        )
    if directory.exists() and not directory.is_dir():
        raise UserError(f"{directory} is a file, not a directory.")
    if directory.is_dir() and any(directory.iterdir()):
        raise UserError(f"{directory} is not empty; choose another directory with --out.")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe = directory / "lock"
        probe.touch()
    except OSError as error:
        raise UserError(f"Cannot write to {directory}: {error.strerror}.") from error
    return Run(directory)
