"""What two runs that should be equal differ in."""

import numpy as np

from algd.runs.directory import Run


def differences(one: Run, other: Run) -> list[str]:
    """Names of what differs: the metrics file, arrays of the last checkpoint, the buffer."""
    found = []
    if one.metrics_path.read_bytes() != other.metrics_path.read_bytes():
        found.append("metrics.jsonl")
    found += _unequal(last_arrays(one), last_arrays(other))
    return found + _unequal(buffer(one), buffer(other))


def last_arrays(run: Run) -> dict[str, np.ndarray]:
    """Everything in the newest checkpoint."""
    return run.read(run.checkpoints()[-1][1])


def buffer(run: Run) -> dict[str, np.ndarray]:
    """The transitions that the newest checkpoint needs, however they are cut into pieces."""
    pieces = [run.read(path) for _, _, path in run.pieces()]
    if not pieces:
        return {}
    numbers = np.concatenate([np.arange(first, last) for first, last, _ in run.pieces()])
    kept = run.config()["hyperparameters"]["replay_size"]
    newest = {name: np.concatenate([p[name] for p in pieces])[-kept:] for name in pieces[0]}
    return {**newest, "numbers": numbers[-kept:]}


def _unequal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> list[str]:
    names = sorted(one.keys() | other.keys())
    return [n for n in names if n not in one or n not in other or not _equal(one[n], other[n])]


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
