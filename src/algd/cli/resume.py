"""`algd resume RUN [--steps N]`."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from algd.api import resume
from algd.cli.arguments import parse, search_here
from algd.cli.progress import announce, progress_line


@dataclass(frozen=True)
class Resume:
    """Continue a run from its last checkpoint, bit for bit where the environment allows."""

    run: tyro.conf.Positional[Path]
    """The run directory."""
    steps: int | None = None
    """Environment steps in all; by default what the run was meant to have."""
    env: str | None = None
    """Where the run's environment is found, as module:Id."""
    trust: bool = False
    """Import the module that the run's own files name: its code is run."""
    quiet: bool = False
    """Show no progress line."""


def run(arguments: list[str]) -> None:
    """`algd resume RUN [--steps N]`."""
    chosen = parse(Resume, arguments, "resume")
    search_here([chosen.env], chosen.trust)
    with progress_line(chosen.quiet) as report:
        run, _ = resume(chosen.run, chosen.steps, report, print, chosen.env, chosen.trust)
    announce(run.directory)
