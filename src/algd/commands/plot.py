"""`algd plot RUN... --out curves.png`."""

import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from algd.commands.arguments import parse
from algd.plotting import plot_curves, title_of
from algd.runs import Run
from algd.types import UserError


def run(arguments: list[str]) -> None:
    """`algd plot RUN... --out curves.png`."""

    @dataclass(frozen=True)
    class Plot:
        """Draw runs: equal preset and task become one line with an interval over seeds."""

        runs: tyro.conf.Positional[tuple[Path, ...]]
        """Run directories."""
        out: Path = Path("curves.png")
        """The picture."""
        force: bool = False
        """Write over an existing picture."""

    chosen = parse(Plot, arguments, "plot")
    if chosen.out.exists() and not chosen.force:
        raise UserError(f"{chosen.out} exists; choose another --out, or --force.")
    groups: dict[str, list[Run]] = {}
    for directory in chosen.runs:
        run = Run(directory)
        try:
            run.rows()
            groups.setdefault(title_of(run), []).append(run)
        except UserError as error:
            print(f"algd: left out: {error}", file=sys.stderr)
    if not groups:
        raise UserError("None of these is a run that can be drawn.")
    plot_curves(groups, chosen.out)
    print(f"Wrote {chosen.out}")
