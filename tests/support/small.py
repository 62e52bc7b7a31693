"""Presets cut down to sizes that train in a moment."""

import dataclasses
from typing import Any

from algd.algorithms import preset, presets
from algd.experiments.trials import tiny

# Less than a run has steps: runs of every length share their programs, and the buffer wraps.
KEPT = 64


def one_of_each() -> list[str]:
    """One preset of each algorithm: the others differ by settings only."""
    return sorted({type(a): name for name, a in reversed(presets().items())}.values())


def small(name: str, **changes: Any) -> Any:
    """The preset with tiny networks, batches and buffers."""
    algorithm: Any = preset(name)
    sizes = tiny(name) | ({"replay_size": KEPT} if algorithm.data == "replay" else {})
    return dataclasses.replace(algorithm, **{**sizes, **changes})
