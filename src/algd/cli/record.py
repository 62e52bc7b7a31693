"""`algd record RUN... --to docs/data/runs`."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from algd.cli.arguments import check_named, parse
from algd.runs.directory import Run
from algd.runs.grouping import evidence_in
from algd.runs.validation import check_fields
from algd.sweeps.job import keep


@dataclass(frozen=True)
class Keep:
    """Keep what finished runs are judged by, each in one small file TASK-PRESET-seedS.json.

    Records are drawn and reported like runs, and sweeps do not compute again what has one.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run directories, or directories that contain runs."""
    to: Path = Path("records")
    """The directory of the records."""
    episodes: int = 100
    """Fresh episodes that judge a final policy, unless a sweep has judged it."""


def run(arguments: list[str]) -> None:
    """`algd record RUN... --to docs/data/runs`."""
    chosen = parse(Keep, arguments, "record")
    check_fields(chosen)
    check_named(chosen.runs)
    for path in chosen.runs:
        for found in list(evidence_in(path)) or [Run(path)]:
            if isinstance(found, Run):
                print(f"Wrote {keep(found, chosen.to, chosen.episodes)}")
