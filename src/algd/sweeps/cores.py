"""Cores of this machine, each claimed by at most one run."""

import fcntl
import os
import tempfile
from pathlib import Path


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
    folder = Path(tempfile.gettempdir()) / f"algd-cores-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    cores = sorted(os.sched_getaffinity(0))
    claimed: list[int] = []
    for core in cores:
        if len(claimed) == count:
            break
        # Never closed if it is ours: the claim ends with the process.
        descriptor = os.open(folder / f"core-{core}", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            claimed.append(core)
        except BlockingIOError:
            os.close(descriptor)
    # With more runs than cores, the others share.
    others = [core for core in cores if core not in claimed]
    start = os.getpid() % max(len(others), 1)
    claimed += (others[start:] + others[:start])[: count - len(claimed)]
    os.sched_setaffinity(0, claimed)
