"""`algd plot RUN... --kind curves --out curves.png`."""

import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from algd.cli.arguments import check_named, parse
from algd.cli.output import check_output
from algd.runs.grouping import gather
from algd.types import UserError
from algd.visualization.curves import Kind, picture_formats, plot_tasks


@dataclass(frozen=True)
class Plot:
    """Draw runs: those that differ in their seeds only become one line with an interval.

    Each task has a row of panels. Runs that are damaged, foreign or unfinished are named and
    left out.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run directories, or directories that contain runs."""
    kind: Kind = "curves"
    """Learning curves, final return against cost, boxes of the training cost, the
    multiplier, or all of it."""
    out: Path | None = None
    """The picture, by default KIND.png; also .pdf, .svg and others."""
    unfinished: bool = False
    """Draw runs that are not at their last step, too."""
    force: bool = False
    """Write over an existing picture."""


def run(arguments: list[str]) -> None:
    """`algd plot RUN... --kind curves --out curves.png`."""
    chosen = parse(Plot, arguments, "plot")
    out = chosen.out or Path(f"{chosen.kind}.png")
    check_output(out, chosen.force, picture_formats())
    check_named(chosen.runs)
    tasks, complaints = gather(chosen.runs, chosen.unfinished)
    for complaint in complaints:
        print(f"algd: left out: {complaint}", file=sys.stderr)
    if not tasks:
        raise UserError(
            "None of these is a run that can be drawn. "
            "(--unfinished draws those that are not at their last step.)"
        )
    for task in plot_tasks(tasks, out, chosen.kind):
        print(f"algd: left out: the runs on {task} have nothing of this kind", file=sys.stderr)
    print(f"Wrote {out}")
