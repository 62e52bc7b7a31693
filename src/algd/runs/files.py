"""Files that are whole or not there, and rows with a running checksum."""

import hashlib
import io
import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from algd.types import UserError

FORMAT = 1
MAGIC = b"ALGD"


class DamagedFile(Exception):
    """A file of a run that is cut, altered or of another format."""


# --- files that are whole or not there --------------------------------------------------------


def write_atomically(path: Path, content: bytes) -> None:
    """Write under a temporary name, flush to the disk, rename."""
    temporary = path.with_name(path.name + ".part")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        # Half a file is of no use to anyone, least of all on a full disk.
        temporary.unlink(missing_ok=True)
        raise
    os.replace(temporary, path)
    flush_names(path.parent)


def flush_names(directory: Path) -> None:
    """Bring new, renamed and deleted names in a directory to the disk."""
    if os.name == "nt":
        # Windows opens no directory, and writes names with their files.
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
    # The version comes first: another format may have another checksum.
    version = int.from_bytes(head[4:8], "little")
    if version != FORMAT:
        raise DamagedFile(
            f"{path} has the format {version} (or its beginning is damaged); "
            f"this version of algd reads format {FORMAT}"
        )
    if hashlib.blake2b(head + payload, digest_size=32).digest() != digest:
        raise DamagedFile(f"{path} is damaged: its checksum does not fit")
    try:
        with np.load(io.BytesIO(payload), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, KeyError, OSError, zipfile.BadZipFile) as error:
        raise DamagedFile(f"{path} holds no plain arrays ({error})") from error


# --- rows with a running checksum -------------------------------------------------------------


class LogPosition(NamedTuple):
    """How much of metrics.jsonl belongs to a checkpoint: its bytes, and the checksum of them."""

    size: int = 0
    crc: int = 0


def seal(row: Mapping[str, Any], mark: LogPosition) -> tuple[bytes, LogPosition]:
    """The line of a row that follows the mark, and the mark behind it."""
    crc = zlib.crc32(json.dumps(row).encode(), mark.crc)
    line = json.dumps({**row, "crc": f"{crc:08x}"}).encode() + b"\n"
    return line, LogPosition(mark.size + len(line), crc)


def unseal(line: bytes, mark: LogPosition) -> tuple[dict[str, Any], LogPosition]:
    """The row of a line that follows the mark, and the mark behind it, or `ValueError`."""
    row = json.loads(line)
    if not isinstance(row, dict) or not isinstance(row.get("kind"), str):
        raise ValueError("not a row of metrics")
    if "crc" not in row and not mark.crc:
        # Runs of before the checksum: taken as they are, but never among rows that have one.
        return row, LogPosition(mark.size + len(line) + 1)
    row.pop("crc", None)
    expected, behind = seal(row, mark)
    if expected != line + b"\n":
        raise ValueError("the checksum differs")
    return row, behind


def make_directory(path: Path) -> None:
    """Make it, unless it is there; refuse, before any work is done, what cannot be made."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"The directory {path} cannot be made: {error.strerror}.") from error


def drop_torn_line(path: Path) -> None:
    """Cut what a stopped process has begun to write behind the last whole line."""
    if path.is_file():
        content = path.read_bytes()
        os.truncate(path, content.rfind(b"\n") + 1)
