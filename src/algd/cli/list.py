"""`algd list`."""

from dataclasses import dataclass

from algd import envs
from algd.algorithms import presets
from algd.cli.arguments import parse


@dataclass(frozen=True)
class List:
    """Show the presets and the tasks."""


def run(arguments: list[str]) -> None:
    """`algd list`."""
    parse(List, arguments, "list")
    print("presets (algd train PRESET --help shows their settings):")
    for name, value in presets().items():
        summary = (type(value).__doc__ or "").splitlines()[0]
        print(f"  {name:22s} {summary}")
    print("tasks (algd train --env TASK):")
    for name in envs.names():
        print(f"  {name}")
