"""`algd dataset RUN --out DIR`."""

import shlex
from dataclasses import dataclass
from pathlib import Path

import tyro

from algd.cli.arguments import parse
from algd.export.minari import write_dataset
from algd.runs.directory import Run


def run(arguments: list[str]) -> None:
    """`algd dataset RUN --out DIR`."""

    @dataclass(frozen=True)
    class Dataset:
        """Write the transitions of a run's replay buffer as a Minari dataset, with their costs."""

        run: tyro.conf.Positional[Path]
        """The run directory."""
        out: Path
        """A new directory, which becomes a root of Minari datasets."""

    chosen = parse(Dataset, arguments, "dataset")
    name, episodes, steps = write_dataset(Run(chosen.run), chosen.out)
    print(f"Wrote {episodes} episodes with {steps:,} steps to {chosen.out / name}")
    root = shlex.quote(str(chosen.out))
    print(f"Read them with: MINARI_DATASETS_PATH={root} and minari.load_dataset({name!r})")
