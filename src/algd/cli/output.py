"""Files that commands write where the user says."""

import tempfile
from collections.abc import Collection
from pathlib import Path

from algd.types import UserError


def check_output(path: Path, force: bool, endings: Collection[str]) -> None:
    """Refuse, before any work is done, a file that cannot or must not be written."""
    if path.suffix.lstrip(".").lower() not in endings:
        known = ", ".join(f".{ending}" for ending in sorted(endings))
        raise UserError(f"{path} cannot be written: its name must end in one of {known}.")
    if path.is_dir():
        raise UserError(f"{path} is a directory; choose a file with --out.")
    if path.exists() and not force:
        raise UserError(f"{path} exists; choose another --out, or --force.")
    if not path.parent.is_dir():
        raise UserError(f"There is no directory {path.parent} to write {path.name} into.")
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise UserError(f"{path.parent} cannot be written to: {error.strerror}.") from error
