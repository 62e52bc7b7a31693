"""`algd train [options] [PRESET [hyperparameters]]`."""

import dataclasses
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import tyro

from algd.algorithms import preset, presets
from algd.api import defaults_of, run_seeds_to_end, run_to_end
from algd.cli.arguments import parse, search_here
from algd.cli.progress import announce, interruptible, progress_line
from algd.runs.checkpoint import read_snapshot
from algd.runs.config import Settings, check_imported
from algd.types import UserError

MOST_SEEDS = 1_000


@dataclass(frozen=True)
class Output:
    """Where a run goes and how it is shown."""

    out: Path | None = None
    """Directory of the run; by default a new one under runs/."""
    seeds: int = 1
    """Train as many runs in one program, with the seeds from --seed on, each in its directory."""
    quiet: bool = False
    """Show no progress line."""
    start_from: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """A run whose networks to start from; its task and algorithm are the defaults then."""
    trust: bool = False
    """Import the module that this run's own files name for its task: its code is run."""


def run(arguments: list[str]) -> None:
    """`algd train [options] [PRESET [hyperparameters]]`."""
    found = presets()
    named = preset_word(arguments)
    if named is not None:
        # A misspelt one is answered with the nearest name.
        preset(named)
    origin = only_value("--from", arguments)
    source = read_snapshot(origin) if origin else None
    defaults, default, algorithm = defaults_of(source, only_value("--env", arguments))
    found[default] = algorithm
    # What is repeated on the command line would be added to the source's values.
    for option, field in (("--budget", "budget"), ("--env-options", "env_options")):
        if values_of(option, arguments):
            defaults = dataclasses.replace(defaults, **{field: ()})
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

        settings: Settings = defaults
        output: Output = Output()
        algorithm: union = dataclasses.field(  # pyright: ignore[reportInvalidTypeForm]
            default_factory=lambda: algorithm
        )
        """The preset: an algorithm with its hyperparameters."""

    # Lists are given by repeating the option: otherwise they would swallow the preset's name.
    chosen = parse(Train, arguments, "train", tyro.conf.UseAppendAction)
    name = named or default
    settings, output = chosen.settings, chosen.output
    typed = only_value("--env", arguments)
    search_here([typed], output.trust)
    if typed is None and not output.trust:
        check_imported(settings.env)
    if output.seeds != 1 and source is not None:
        raise UserError("--seeds does not go with --from.")
    if not 1 <= output.seeds <= MOST_SEEDS:
        raise UserError(f"--seeds must be from 1 to {MOST_SEEDS:,}, not {output.seeds}.")
    if output.seeds > 1:
        with progress_line(output.quiet) as report:
            runs = interruptible(
                lambda: run_seeds_to_end(
                    settings, chosen.algorithm, name, output.seeds, output.out, report
                )
            )
        for run in runs:
            announce(run.directory)
        return
    with progress_line(output.quiet) as report:
        run = interruptible(
            lambda: run_to_end(settings, chosen.algorithm, name, output.out, report, source)
        )
    announce(run.directory)


def preset_word(arguments: list[str]) -> str | None:
    """The first word that is neither an option nor an option's value."""
    flags = {
        field.name.replace("_", "-")
        for kind in (Settings, Output)
        for field in dataclasses.fields(kind)
        if field.type is bool
    }
    is_value = False
    for word in arguments:
        if is_value:
            is_value = False
        elif word.startswith("-"):
            option = word.lstrip("-").replace("_", "-")
            is_value = "=" not in word and option.removeprefix("no-") not in flags
        else:
            return word
    return None


def values_of(option: str, arguments: list[str]) -> list[str]:
    """What is given for an option, before tyro knows the defaults to parse with."""
    found = []
    for word, following in pairwise([*arguments, ""]):
        if word == option:
            found.append(following)
        if word.startswith(f"{option}="):
            found.append(word.removeprefix(f"{option}="))
    return found


def only_value(option: str, arguments: list[str]) -> str | None:
    """The same for an option that can be given once."""
    found = values_of(option, arguments)
    if len(found) > 1:
        raise UserError(f"{option} is given twice: {' and '.join(found)}.")
    return found[0] if found else None
