"""`algd train [PRESET] [options]`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import tyro

from algd.algorithms import canonical_preset, presets
from algd.api import budgets_kept, defaults_of, run_seeds_to_end, run_to_end
from algd.cli.arguments import parse, parse_known, refuse_idle, search_here
from algd.cli.progress import announce, progress_line
from algd.runs.checkpoint import read_snapshot
from algd.runs.config import Given, Settings, check_imported
from algd.runs.validation import check_effect, option
from algd.types import ELSEWHERE, UserError

MOST_SEEDS = 1_000
A = TypeVar("A")


@dataclass(frozen=True)
class Names:
    """What is read first: it decides the defaults of the rest, or could be taken for a preset."""

    preset: str | None = None
    start_from: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    env: str | None = None
    out: Path | None = None


@dataclass(frozen=True)
class Output:
    """Where a run goes and how it is shown."""

    out: Path | None = None
    """Directory of the run; by default a new one under runs/."""
    seeds: tuple[int, ...] = ()
    """Train a run with each of these seeds, all in one program, each in a directory of its own."""
    quiet: bool = False
    """Show no progress."""
    start_from: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """A run whose networks to start from; its task and algorithm are the defaults then."""
    trust: bool = False
    """Import the module that this run's own files name for its task: its code is run."""


@dataclass(frozen=True)
class Train(Generic[A]):
    """Train a policy. `algd train PRESET --help` shows the hyperparameters of a preset."""

    preset: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="[PRESET]")]
    """An algorithm with its hyperparameters, one of `algd list`; or --preset NAME."""
    settings: Settings
    output: Output
    hyperparameters: A


def run(arguments: list[str]) -> None:
    """`algd train [PRESET] [options]`."""
    names, words = parse_known(Names, arguments, "train")
    for word in words:
        habit = ELSEWHERE.get(word.partition("=")[0].lstrip("-").replace("-", "_"))
        if habit and word.startswith("--"):
            raise UserError(f"{word} is called {option(habit)} here.")
    named, words = without_preset(words)
    named += [names.preset] if names.preset else []
    if len(named) > 1:
        raise UserError(f"A run trains one preset, not {' and '.join(named)}; see algd sweep.")
    source = read_snapshot(names.start_from) if names.start_from else None
    defaults, name, usual = defaults_of(source, names.env, named[0] if named else None)
    output = Output(out=names.out, start_from=names.start_from)
    kind: Any = Train[type(usual)]
    chosen = parse(kind, words, "train", Train(name, defaults, output, usual))
    # A word that belongs to nothing is a misspelt preset.
    canonical_preset(chosen.preset)
    settings, output, algorithm = chosen.settings, chosen.output, chosen.hyperparameters
    check_effect(usual, algorithm)
    check_together(settings, output)
    search_here([names.env], output.trust)
    if names.env is None and not output.trust:
        check_imported(settings.env)
    with progress_line(output.quiet) as report:
        if output.seeds:
            seeds, out = output.seeds, output.out
            runs = run_seeds_to_end(settings, algorithm, name, seeds, out, report)
        else:
            given = Given(budgets=budgets_kept(source, settings))
            runs = [run_to_end(settings, algorithm, name, output.out, report, source, given)]
    for run in runs:
        announce(run.directory)


def without_preset(words: list[str]) -> tuple[list[str], list[str]]:
    """The words that name presets, and the others; no value of an option is such a name."""
    found = presets()
    named = [word for word in words if word.lower().replace("_", "-") in found]
    if words and not words[0].startswith("-"):
        # No option's value, so a misspelt one is answered with the nearest name.
        canonical_preset(words[0])
    return named, [word for word in words if word not in named]


def check_together(settings: Settings, output: Output) -> None:
    """Refuse options that exclude each other, or that change nothing."""
    if output.start_from is None:
        refuse_idle(output, ["trust"], "without --from")
    if not settings.budget:
        refuse_idle(settings, ["discounted_budget"], "without --budget")
    if not output.seeds:
        return
    if output.start_from is not None:
        raise UserError("--seeds does not go with --from.")
    if settings.seed != Settings.seed:
        raise UserError("--seed does not go with --seeds, which names them all.")
    if len(output.seeds) > MOST_SEEDS:
        raise UserError(f"--seeds takes at most {MOST_SEEDS:,}, not {len(output.seeds):,}.")
    if len(set(output.seeds)) < len(output.seeds):
        raise UserError(f"--seeds names one twice: {' '.join(map(str, output.seeds))}.")
