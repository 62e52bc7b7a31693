"""Online safe reinforcement learning with diffusion policies."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from algd.registration import register_when_possible

__version__ = "0.1.0"
__all__ = [
    "Agent",
    "Budget",
    "Event",
    "Outcome",
    "Policy",
    "Record",
    "Run",
    "UserError",
    "envs",
    "evaluate",
    "load",
    "presets",
    "resume",
    "stats",
    "stop_when_flat",
    "train",
    "types",
]

_HOME = {
    "Agent": "algd.agent",
    "Budget": "algd.types",
    "Event": "algd.training.loop",
    "Outcome": "algd.types",
    "Policy": "algd.evaluation.policy",
    "Record": "algd.runs.record",
    "Run": "algd.runs.directory",
    "UserError": "algd.types",
    "evaluate": "algd.api",
    "load": "algd.agent",
    "presets": "algd.algorithms",
    "resume": "algd.api",
    "stop_when_flat": "algd.training.callbacks",
    "train": "algd.api",
}
_MODULES = {"envs": "algd.envs", "stats": "algd.evaluation.stats", "types": "algd.types"}

if TYPE_CHECKING:
    from algd import envs, types
    from algd.agent import Agent, load
    from algd.algorithms import presets
    from algd.api import evaluate, resume, train
    from algd.evaluation import stats
    from algd.evaluation.policy import Policy
    from algd.runs.directory import Run
    from algd.runs.record import Record
    from algd.training.callbacks import stop_when_flat
    from algd.training.loop import Event
    from algd.types import Budget, Outcome, UserError
else:
    # Where types are checked, a misspelt name is to be seen.
    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used: the command line needs none for its help."""
        if name in _MODULES:
            return import_module(_MODULES[name])
        if name in _HOME:
            return getattr(import_module(_HOME[name]), name)
        raise AttributeError(f"module 'algd' has no attribute {name!r}")


def __dir__() -> list[str]:
    """What is public, for completion; imported or not."""
    return [*__all__, "__doc__", "__version__"]


register_when_possible()
