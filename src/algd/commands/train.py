"""`algd train [options] [PRESET [hyperparameters]]`."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from algd.algorithms import preset, presets
from algd.api import run_to_end
from algd.commands.arguments import parse, remember_compilations
from algd.commands.progress import announce, interruptible, progress_line
from algd.settings import Settings


@dataclass(frozen=True)
class Output:
    """Where a run goes and how it is shown."""

    out: Path | None = None
    """Directory of the run; by default a new one under runs/."""
    quiet: bool = False
    """Show no progress line."""


def run(arguments: list[str]) -> None:
    """`algd train [options] [PRESET [hyperparameters]]`."""
    remember_compilations()
    found = presets()
    # A word that is no option's value and no preset is a misspelt preset: say so ourselves.
    for before, word in zip(["", *arguments], arguments, strict=False):
        if not word.startswith("-") and not before.startswith("--"):
            preset(word)
            break
    options = tuple(
        Annotated[type(value), tyro.conf.subcommand(name, default=value, prefix_name=False)]
        for name, value in found.items()
    )
    union: Any = options[0]
    for option in options[1:]:
        union = union | option

    @dataclass(frozen=True)
    class Train:
        """Train a policy. Options of the run come before the preset, its own ones behind it."""

        settings: Settings
        output: Output
        algorithm: union = dataclasses.field(  # pyright: ignore[reportInvalidTypeForm]
            default_factory=lambda: found["algd"]
        )
        """The preset: an algorithm with its hyperparameters."""

    # Lists are given by repeating the option: otherwise they would swallow the preset's name.
    chosen = parse(Train, arguments, "train", tyro.conf.UseAppendAction)
    name = next((word for word in arguments if word in found), "algd")
    with progress_line(chosen.output.quiet) as report:
        run = interruptible(
            lambda: run_to_end(chosen.settings, chosen.algorithm, name, chosen.output.out, report)
        )
    announce(run.directory)
