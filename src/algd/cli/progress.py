"""How a run in progress is shown."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from algd.runs.directory import Run

if TYPE_CHECKING:
    from algd.training.loop import Progress


class progress_line:
    """A line with steps, speed, time left, return, cost against the budget and lambda; where there
    is no terminal, a line for each row of the log."""

    def __init__(self, quiet: bool) -> None:
        from rich.console import Console
        from rich.live import Live

        self.live = Live(console=Console(stderr=True), refresh_per_second=4)
        self.quiet, self.shown = quiet, 0.0
        self.rows: list[int] = []

    def __enter__(self) -> "Callable[[Progress], None]":
        if self.quiet:
            return lambda progress: None
        if not self.live.console.is_terminal:
            return self.log
        self.live.start()
        return self.show

    def show(self, progress: "Progress") -> None:
        """Draw the line, a few times a second at the most."""
        now = time.monotonic()
        if now - self.shown < 0.25 and progress.step < progress.steps:
            return
        self.shown = now
        self.live.update(progress_text(progress))

    def log(self, progress: "Progress") -> None:
        """Write the line if there is a new row."""
        rows = [progress.latest.get(f"{kind}/step", -1) for kind in ("train", "eval")]
        if rows != self.rows:
            self.rows = rows
            self.live.console.print(progress_text(progress), soft_wrap=True)

    def __exit__(self, *_: object) -> None:
        # Does nothing if it was not started.
        self.live.stop()


def progress_text(progress: "Progress") -> str:
    """One line about a run in progress."""
    done = progress.step - progress.started_at
    speed = done / max(progress.seconds, 1e-9)
    # All copies take the last step together, so that a run may end a few beyond its number.
    left = max(progress.steps - progress.step, 0) / max(speed, 1e-9)
    # The first steps wait for compilers and tell nothing of the others.
    known = done > 0.01 * (progress.steps - progress.started_at)
    parts = [
        f"[bold]{progress.step:,}[/]/{progress.steps:,} steps",
        f"{speed:.0f}/s" if known else "compiling" if progress.step < progress.steps else "",
        f"{int(left // 60)}:{int(left % 60):02d} left" if known else "",
    ]
    latest = progress.latest
    for kind in ("train", "eval"):
        if f"{kind}/return" in latest:
            parts.append(f"{kind} return {latest[f'{kind}/return']:.1f}")
            costs = [
                f"{name.removeprefix(f'{kind}/')} {value:.1f}"
                for name, value in latest.items()
                if name == f"{kind}/cost" or name.startswith(f"{kind}/cost/")
            ]
            parts.append(", ".join(costs))
    lams = [f"{v:.2f}" for k, v in latest.items() if k.startswith("train/lam")]
    if lams:
        parts.append(f"λ {', '.join(lams)}")
    return "  ".join(part for part in parts if part)


def announce(directory: Path) -> None:
    """Where the results are and what to do with them."""
    print(f"Finished. Curves: {directory / 'curves.png'}")
    print(f"Evaluate it with: {Run(directory).command('evaluate')}")
