"""Cores of this machine, each claimed by at most one run."""

import fcntl
import os
import stat
import tempfile
import warnings


def usable_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def claim_cores(count: int) -> None:
    """Bind this process to cores that no other run has claimed, until it ends.

    The number of threads orders the sums, so that a run repeats exactly only with the same number;
    and runs that share a core are slower than runs that do not. It must be done before JAX starts
    its threads.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    folder = _own_folder(f"{tempfile.gettempdir()}/algd-cores-{os.getuid()}")
    cores = sorted(os.sched_getaffinity(0))
    claimed: list[int] = []
    for core in cores:
        if len(claimed) == count or folder is None:
            break
        mode = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        descriptor = os.open(f"core-{core}", mode, 0o600, dir_fd=folder)
        try:
            # Never closed if it is ours: the claim ends with the process.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            claimed.append(core)
        except BlockingIOError:
            os.close(descriptor)
    # With more runs than cores, the others share.
    others = [core for core in cores if core not in claimed]
    start = os.getpid() % max(len(others), 1)
    claimed += (others[start:] + others[:start])[: count - len(claimed)]
    os.sched_setaffinity(0, claimed)


def _own_folder(path: str) -> int | None:
    """A descriptor of the folder, if it is one of ours that nobody else can write to.

    Where all may write, a stranger may have made it, or a link in its place, before us.
    """
    try:
        os.makedirs(path, 0o700, exist_ok=True)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        found = os.fstat(descriptor)
        if found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return descriptor
        os.close(descriptor)
        reason = "others can write to it"
    except OSError as error:
        reason = str(error.strerror)
    warnings.warn(f"No core is claimed for a run: {path} is not used ({reason}).", stacklevel=2)
    return None
