"""`algd dataset RUN --out DIR`."""

import shlex
from dataclasses import dataclass
from pathlib import Path

import tyro

from algd.cli.arguments import parse, search_here
from algd.export.minari import write_dataset
from algd.runs.directory import Run


@dataclass(frozen=True)
class Dataset:
    """Write the transitions of a run's replay buffer as a Minari dataset, with their costs."""

    run: tyro.conf.Positional[Path]
    """The run directory."""
    out: Path
    """A root of Minari datasets, new or not; the runs of one task and preset are numbered."""
    env: str | None = None
    """Where the run's environment is found, as module:Id, to be written down."""
    trust: bool = False
    """Import the module that the run's own files name: its code is run."""


def run(arguments: list[str]) -> None:
    """`algd dataset RUN --out DIR`."""
    chosen = parse(Dataset, arguments, "dataset")
    search_here([chosen.env], chosen.trust)
    name, episodes, steps = write_dataset(Run(chosen.run), chosen.out, chosen.env, chosen.trust)
    print(f"Wrote {episodes} episodes with {steps:,} steps to {chosen.out / name}")
    root = shlex.quote(str(chosen.out))
    print(f"Read them with: MINARI_DATASETS_PATH={root} and minari.load_dataset({name!r})")
