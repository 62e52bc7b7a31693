"""Files that are whole or not there, and rows with a running checksum.

What is read may be damaged, or made by someone to do damage: nothing is larger in memory than on
the disk, and whatever does not fit ends in one exception.
"""

import errno
import hashlib
import io
import json
import os
import sys
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from algd.types import UserError

FORMAT = 2
MAGIC = b"ALGD"
# No record of settings or of progress comes near it.
LARGEST_RECORD = 2**20
# Of a row of metrics; what is not less is no number that could be drawn.
LARGEST = 1e300


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


def available_memory() -> int | None:
    """Bytes that can be had without swapping, where the system tells."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    fields = dict(line.split(":") for line in lines)
    return int(fields["MemAvailable"].split()[0]) * 1024


def read_whole(path: Path, most: int | None = None) -> bytes:
    """The content of a plain file of at most so many bytes, by default a quarter of the memory."""
    if most is None:
        most = (available_memory() or sys.maxsize) // 4
    # A pipe would wait for somebody to write, a device never end.
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a plain file", str(path))
    if path.stat().st_size > most:
        raise OSError(errno.EFBIG, "larger than it can be meant to be", str(path))
    return path.read_bytes()


def write_record(path: Path, record: Mapping[str, Any], indent: int | None = 2) -> None:
    """A JSON object with a format version and a checksum."""
    record = {"format": FORMAT, **record}
    text = json.dumps({**record, "checksum": digest_of(record)}, indent=indent, allow_nan=False)
    write_atomically(path, text.encode())


def read_record(path: Path) -> dict[str, Any]:
    """What `write_record` wrote, or `DamagedFile`."""
    try:
        record = json.loads(read_whole(path, LARGEST_RECORD))
        version, stated = record["format"], record.pop("checksum")
    except OSError as error:
        raise DamagedFile(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedFile(f"{path} is damaged; restore it from a copy") from error
    if version != FORMAT:
        raise DamagedFile(f"{path} has the format {version!r}; this version reads {FORMAT}")
    if stated != digest_of(record):
        raise DamagedFile(f"{path} is damaged or was edited: its checksum differs")
    return record


def digest_of(record: Mapping[str, Any]) -> str:
    """32 hexadecimal digits that tell this record from any other."""
    canonical = json.dumps(record, sort_keys=True)
    return hashlib.blake2b(canonical.encode(), digest_size=16).hexdigest()


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray], owner: str) -> None:
    """Arrays by name with a format version, the id of the run that they belong to, and a checksum
    over everything."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    payload = buffer.getvalue()
    head = MAGIC + FORMAT.to_bytes(4, "little") + bytes.fromhex(owner)
    digest = hashlib.blake2b(head + payload, digest_size=32).digest()
    write_atomically(path, head + digest + payload)


def read_arrays(path: Path, owner: str) -> dict[str, np.ndarray]:
    """What `write_arrays` wrote for this run, or `DamagedFile`."""
    try:
        content = read_whole(path)
    except OSError as error:
        raise DamagedFile(f"{path} cannot be read ({error.strerror})") from error
    head, digest, payload = content[:24], content[24:56], content[56:]
    if head[:4] != MAGIC or len(content) < 56:
        raise DamagedFile(f"{path} is not a checkpoint file, or its beginning is damaged")
    # The version comes first: another format may have another checksum.
    version = int.from_bytes(head[4:8], "little")
    if version != FORMAT:
        raise DamagedFile(
            f"{path} has the format {version} (or its beginning is damaged); this version of algd "
            f"reads format {FORMAT}{': go on with the version that wrote it' * (version == 1)}"
        )
    if hashlib.blake2b(head + payload, digest_size=32).digest() != digest:
        raise DamagedFile(f"{path} is damaged: its checksum does not fit")
    if head[8:].hex() != owner:
        raise DamagedFile(f"{path} belongs to another run")
    try:
        return dict(_plain_arrays(payload))
    except Exception as error:
        # What a crafted archive can make zipfile and NumPy raise is written down nowhere.
        raise DamagedFile(f"{path} holds no plain arrays ({error})") from error


def _plain_arrays(payload: bytes) -> Iterator[tuple[str, np.ndarray]]:
    """The members of an archive that is as large as what it holds."""
    with zipfile.ZipFile(io.BytesIO(payload)) as archive:
        members = archive.infolist()
        if any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise ValueError("it is compressed")
        if sum(member.file_size for member in members) > len(payload):
            raise ValueError("its members share their bytes")
        for member in members:
            content = io.BytesIO(archive.read(member))
            array = np.lib.format.read_array(content, allow_pickle=False)
            yield member.filename.removesuffix(".npy"), array


# --- rows with a running checksum -------------------------------------------------------------


class LogPosition(NamedTuple):
    """How much of metrics.jsonl belongs to a checkpoint: its bytes, and the checksum of them."""

    size: int = 0
    crc: int = 0


def seal(row: Mapping[str, Any], mark: LogPosition, owner: str) -> tuple[bytes, LogPosition]:
    """The line of a run's row that follows the mark, and the mark behind it."""
    crc = zlib.crc32(owner.encode() + json.dumps(row, allow_nan=False).encode(), mark.crc)
    line = json.dumps({**row, "crc": f"{crc:08x}"}).encode() + b"\n"
    return line, LogPosition(mark.size + len(line), crc)


def unseal(line: bytes, mark: LogPosition, owner: str) -> tuple[dict[str, Any], LogPosition]:
    """The row of a run's line that follows the mark, and the mark behind it, or `ValueError`."""
    row = json.loads(line)
    if not isinstance(row, dict) or not is_row(row):
        raise ValueError("not a row of metrics")
    row.pop("crc", None)
    expected, behind = seal(row, mark, owner)
    if expected != line + b"\n":
        raise ValueError("the checksum differs, or it is another run's")
    return row, behind


def is_row(row: Mapping[str, Any]) -> bool:
    """Whether it has a kind, a step, and numbers that a float can hold."""
    values = [value for name, value in row.items() if name not in ("kind", "crc")]
    return (
        isinstance(row.get("kind"), str)
        and type(row.get("step")) is int
        and all(type(value) in (int, float) and abs(value) < LARGEST for value in values)
    )


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
