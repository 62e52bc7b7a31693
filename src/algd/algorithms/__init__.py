"""The algorithms: one file each, with its presets. Adding a file here is all it takes."""

import importlib
import pkgutil
from collections.abc import Iterator
from functools import cache
from typing import Any

from algd.types import Algorithm, EnvSpec, UserError, nearest


def presets() -> dict[str, Algorithm]:
    """Every preset of every algorithm, by name."""
    return {name: value for module in _modules() for name, value in module.PRESETS.items()}


def summaries() -> dict[str, str]:
    """What each preset is, in a line."""
    return {name: line for module in _modules() for name, line in module.SUMMARIES.items()}


def _modules() -> Iterator[Any]:
    for module in pkgutil.iter_modules(__path__):
        yield importlib.import_module(f"{__name__}.{module.name}")


def preset(name: str) -> Algorithm:
    """The preset of that name."""
    return presets()[canonical_preset(name)]


def canonical_preset(given: str) -> str:
    """The preset that is meant, whatever the case of its letters, or a message."""
    found = presets()
    name = given.lower().replace("_", "-")
    if name not in found:
        raise UserError(
            f"There is no preset {given!r}.{nearest(name, found)} `algd list` shows all of them."
        )
    return name


@cache
def state_shapes(algorithm: Algorithm, spec: EnvSpec) -> Any:
    """What the algorithm will learn on such a task: shapes and types in the place of arrays."""
    # Whoever asks for the names of presets does not wait for it.
    import jax

    return jax.eval_shape(lambda: algorithm.init(spec, jax.random.key(0)))
