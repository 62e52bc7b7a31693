"""`algd render RUN --out film.mp4`."""

import sys
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console
from rich.progress import track

from algd.cli.arguments import parse, search_here
from algd.cli.output import check_output
from algd.runs.config import Given
from algd.runs.validation import check_fields
from algd.types import Count
from algd.visualization.video import FORMATS, film, write_film


@dataclass(frozen=True)
class Render:
    """Film the policy of a run, with its cost against the budget."""

    run: tyro.conf.Positional[Path]
    """The run directory, or zoo:TASK for a policy that comes with the package."""
    out: Path = Path("film.mp4")
    """The film: .mp4 or .gif."""
    episodes: int = 1
    """How many episodes."""
    seed: Count = 12345
    """Seed of the environment and of sampled actions."""
    sampled: bool = False
    """Draw actions from the policy instead of its deterministic ones."""
    every: int = 1
    """Show every n-th step only: the film is shorter and runs faster."""
    env: str | None = None
    """Where the run's environment is found, as module:Name."""
    trust: bool = False
    """Import the module that the run's own files name: its code is run."""
    checkpoint: str = "last"
    """A step, best (of the best evaluation) or last."""
    force: bool = False
    """Write over an existing film."""
    quiet: bool = False
    """Show no progress bar."""


def run(arguments: list[str]) -> None:
    """`algd render RUN --out film.mp4`."""
    chosen = parse(Render, arguments, "render")
    check_fields(chosen)
    check_output(chosen.out, chosen.force, FORMATS)
    search_here([chosen.env], chosen.trust)
    made = film(
        chosen.run,
        chosen.episodes,
        chosen.seed,
        chosen.sampled,
        chosen.every,
        given=Given(chosen.env),
        trust=chosen.trust,
        checkpoint=chosen.checkpoint,
    )
    if made.note:
        print(f"algd: {made.note}: the film shows the numbers only.", file=sys.stderr)
    frames = track(
        made.frames,
        "Filming",
        total=made.length,
        console=Console(stderr=True),
        disable=chosen.quiet,
    )
    write_film(frames, chosen.out, made.frames_per_second)
    print(f"Wrote {chosen.out}: the policy of {made.standing}")
