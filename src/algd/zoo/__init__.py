"""Trained policies that come with the package: `zoo:TASK` stands where a run may stand.

Each is a policy of plain arrays, in half precision to be small, beside the record of the run that
learnt it.
"""

from pathlib import Path

import numpy as np

from algd.networks.numpy_policy import NumpyPolicy, PolicyData, flattened
from algd.runs.directory import Run
from algd.runs.record import Record
from algd.types import UserError, nearest

PREFIX = "zoo:"
PLACE = Path(__file__).parent


def tasks(place: Path = PLACE) -> list[str]:
    """Those that have a policy."""
    return sorted(path.stem for path in place.glob("*.npz"))


def task_in(run: str | Path | Run) -> str | None:
    """The task in `zoo:TASK`, in any case of its letters; of anything else, nothing."""
    if not str(run).startswith(PREFIX):
        return None
    name = str(run).removeprefix(PREFIX)
    return {task.lower(): task for task in tasks()}.get(name.lower(), name)


def record(task: str, place: Path = PLACE) -> Record:
    """How the policy of a task was learnt, and how it was judged."""
    _check(task, place)
    return Record(place / f"{task}.json")


def policy(task: str, place: Path = PLACE) -> PolicyData:
    """The policy of a task."""
    _check(task, place)
    return NumpyPolicy.load(place / f"{task}.npz").data


def write(task: str, data: PolicyData, record: Path, place: Path = PLACE) -> None:
    """Keep a policy and the record of its run, in place of the task's former one."""
    with np.errstate(over="ignore"):
        halved = {
            name: x.astype(np.float16) if x.dtype == np.float32 and x.ndim > 1 else x
            for name, x in flattened(data).items()
        }
    if not all(np.isfinite(array).all() for array in halved.values() if array.dtype.kind == "f"):
        raise UserError(f"The policy of {task} has numbers beyond half precision.")
    np.savez_compressed(place / f"{task}.npz", allow_pickle=False, **halved)
    (place / f"{task}.json").write_bytes(record.read_bytes())


def _check(task: str, place: Path) -> None:
    known = tasks(place)
    if task not in known:
        raise UserError(
            f"The zoo has no policy of {task!r}, but of {', '.join(known)}.{nearest(task, known)}"
        )
