"""The algorithms: one file each, with its presets. Adding a file here is all it takes."""

import importlib
import pkgutil

from algd.types import Algorithm, UserError, nearest


def presets() -> dict[str, Algorithm]:
    """Every preset of every algorithm, by name."""
    found: dict[str, Algorithm] = {}
    for module in pkgutil.iter_modules(__path__):
        found |= importlib.import_module(f"{__name__}.{module.name}").PRESETS
    return found


def preset(name: str) -> Algorithm:
    """The preset of that name."""
    found = presets()
    if name not in found:
        raise UserError(
            f"There is no preset {name!r}.{nearest(name, found)} `algd list` shows all of them."
        )
    return found[name]
