"""Presets cut down to sizes that train in a moment."""

import dataclasses
from typing import Any

from algd.algorithms import preset
from algd.experiments.trials import tiny


def small(name: str, **changes: Any) -> Any:
    """The preset with tiny networks and batches."""
    algorithm: Any = preset(name)
    return dataclasses.replace(algorithm, **{**tiny(name), **changes})
