"""`algd report DIR... --out report.html`."""

import sys
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from algd.cli.arguments import check_named, parse, refuse_idle
from algd.cli.output import check_output
from algd.runs.files import write_atomically
from algd.runs.grouping import gather
from algd.runs.validation import check_fields
from algd.types import UserError
from algd.visualization.curves import panels_of
from algd.visualization.report import build


@dataclass(frozen=True)
class Report:
    """Put runs on one self-contained page: tables, figures, films and settings.

    Runs that are damaged, foreign or unfinished are named there and left out.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run directories, or directories that contain runs."""
    out: Path = Path("report.html")
    """The page."""
    videos: bool = True
    """Film the policy of one seed of each group."""
    episodes: int = 1
    """Episodes of each film."""
    unfinished: bool = False
    """Take in runs that are not at their last step, too."""
    force: bool = False
    """Write over an existing page."""
    quiet: bool = False
    """Show no progress bar."""


def run(arguments: list[str]) -> None:
    """`algd report DIR... --out report.html`."""
    chosen = parse(Report, arguments, "report")
    if not chosen.videos:
        refuse_idle(chosen, ["episodes"], "without videos")
    check_fields(chosen)
    check_output(chosen.out, chosen.force, ("html", "htm"))
    check_named(chosen.runs)
    tasks, complaints = gather(chosen.runs, chosen.unfinished)
    for complaint in complaints:
        print(f"algd: left out: {complaint}", file=sys.stderr)
    if not tasks:
        raise UserError("None of these is a run that can be shown.")
    steps = sum(
        len(panels_of("all", groups)) + chosen.videos * len(groups) for groups in tasks.values()
    )
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), disable=chosen.quiet) as progress:
        shown = progress.add_task("", total=steps, completed=-1)
        made = build(
            tasks,
            complaints,
            chosen.episodes if chosen.videos else 0,
            lambda what: progress.update(shown, advance=1, description=what),
        )
        progress.update(shown, completed=steps, description="")
    for complaint in made.complaints[len(complaints) :]:
        print(f"algd: {complaint}", file=sys.stderr)
    try:
        write_atomically(chosen.out, made.text.encode())
    except OSError as error:
        raise UserError(f"{chosen.out} cannot be written: {error.strerror}.") from error
    print(f"Wrote {chosen.out} ({chosen.out.stat().st_size / 2**20:.1f} MiB)")
