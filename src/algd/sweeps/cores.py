"""Cores of this machine, each claimed by at most one run."""

import os
import stat
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout


def usable_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def claimed_cores(count: int) -> Iterator[None]:
    """Bind this process to cores that no other run has claimed; the claims die with it.

    The number of threads orders the sums, so that a run repeats exactly only with the same number;
    and runs that share a core are slower than runs that do not. It must be done before JAX starts
    its threads.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    folder = _own_folder(Path(tempfile.gettempdir()) / f"algd-cores-{os.getuid()}")
    cores = sorted(os.sched_getaffinity(0))
    claimed: list[int] = []
    with ExitStack() as claims:
        for core in cores:
            if len(claimed) == count or folder is None:
                break
            with suppress(Timeout):
                claims.enter_context(FileLock(folder / f"core-{core}", blocking=False))
                claimed.append(core)
        # With more runs than cores, the others share.
        others = [core for core in cores if core not in claimed]
        start = os.getpid() % max(len(others), 1)
        claimed += (others[start:] + others[:start])[: count - len(claimed)]
        os.sched_setaffinity(0, claimed)
        yield


def _own_folder(path: Path) -> Path | None:
    """The folder, if it is one of ours that nobody else can write to.

    Where all may write, a stranger may have made it, or a link in its place, before us.
    """
    try:
        path.mkdir(0o700, exist_ok=True)
        found = path.lstat()
        ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
        if ours and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return path
        reason = "others can write to it"
    except OSError as error:
        reason = str(error.strerror)
    warnings.warn(f"No core is claimed for a run: {path} is not used ({reason}).", stacklevel=2)
    return None
