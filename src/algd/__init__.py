"""Online safe reinforcement learning with diffusion policies."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Budget", "Policy", "Run", "UserError", "load", "presets", "resume", "train"]

if TYPE_CHECKING:
    from algd.algorithms import presets
    from algd.api import resume, train
    from algd.evaluation.policy import Policy, load
    from algd.runs.directory import Run
    from algd.types import Budget, UserError

_HOME = {
    "Budget": "algd.types",
    "Policy": "algd.evaluation.policy",
    "Run": "algd.runs.directory",
    "UserError": "algd.types",
    "load": "algd.evaluation.policy",
    "presets": "algd.algorithms",
    "resume": "algd.api",
    "train": "algd.api",
}
_MODULES = {"envs": "algd.envs", "stats": "algd.evaluation.stats", "types": "algd.types"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: the command line's help needs none of them."""
    if name not in _HOME and name not in _MODULES:
        raise AttributeError(f"module 'algd' has no attribute {name!r}")
    import importlib

    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    return getattr(importlib.import_module(_HOME[name]), name)
