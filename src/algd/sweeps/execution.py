"""Show the plan of a sweep, compute what is missing, show how it goes, and gather the results."""

import dataclasses
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import jax
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from algd.runs.directory import Run
from algd.runs.files import make_directory
from algd.sweeps.estimate import Kind, Speed, disk_bytes, label, speeds
from algd.sweeps.executors import Workers, check_workers, compute
from algd.sweeps.job import Beat, Outcome, is_complete, last_beat
from algd.sweeps.plan import Job
from algd.sweeps.results import check_ours, row_or_nothing, rows, write_csv
from algd.training.loop import stop_on_signal
from algd.types import Halt, UserError


class Stopped(Halt):
    """A signal stopped the sweep; everything is saved."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is wanted, what of it is missing, and the measured speed of each kind of run."""

    wanted: list[Job]
    missing: list[Job]
    speed: dict[str, Speed]
    kind: Kind = label

    def seconds(self, job: Job) -> float | None:
        """Processor time of a run, if its speed is known; what a checkpoint saves is left out."""
        found = self.speed.get(self.kind(job))
        return found.seconds(job) if found else None

    @property
    def core_seconds(self) -> float | None:
        """Processor time of all missing runs."""
        each = [self.seconds(job) for job in self.missing]
        return None if None in each else sum(s for s in each if s is not None)


def plan(
    jobs: Sequence[Job],
    out: Path,
    workers: Workers,
    estimate: bool,
    console: Console,
    kind: Kind = label,
) -> Plan:
    """Look at what is there, and measure how long the rest will take."""
    check_workers(workers)
    check_ours(out / "results.csv")
    missing = [job for job in jobs if not is_done(job)]
    if not estimate or not missing:
        return Plan(list(jobs), missing, {})
    make_directory(out)
    with console.status("measuring the speed") as status:
        path = out / "speeds.json"
        tell = status.update if console.is_terminal else console.print
        found = speeds(missing, path, workers.threads, cache(), tell, kind)
    return Plan(list(jobs), missing, found, kind)


def is_done(job: Job) -> bool:
    """Whether nothing is left to do; a damaged run, or another one in its place, will say so
    itself when its turn comes, and the others go on."""
    try:
        return is_complete(job)
    except UserError:
        return False


def print_plan(found: Plan, out: Path, workers: Workers, console: Console) -> None:
    """What will be done, before anything is done."""
    begun = sum(job.directory.joinpath("config.json").exists() for job in found.missing)
    count = f"{len(found.wanted)} run{'' if len(found.wanted) == 1 else 's'}"
    console.print(
        f"[bold]{count}[/]: {len(found.wanted) - len(found.missing)} complete, "
        f"{begun} to continue, {len(found.missing) - begun} new. Results: {out}"
    )
    if not found.missing:
        return
    total, width = found.core_seconds, workers.slots
    if total is not None:
        where = f"{width} at a time" if workers.engine == "local" else "on Ray"
        left = f", {duration(total / min(width, len(found.missing)))} {where}"
        room = sum(disk_bytes(job) for job in found.missing) / 2**30
        place = next(path for path in (out, *out.absolute().parents) if path.exists())
        free = shutil.disk_usage(place).free / 2**30
        console.print(
            f"About {total / 3600:.2g} core-hours{left if workers.engine == 'local' else ''}; "
            f"{room:.2g} GiB on the disk ({free:.0f} free)."
        )
    by_kind: dict[str, list[Job]] = {}
    for job in found.missing:
        by_kind.setdefault(label(job), []).append(job)
    for kind, alike in by_kind.items():
        seconds = found.seconds(alike[0])
        about = f", about {duration(seconds)} each" if seconds is not None else ""
        text = f"{len(alike)} x {kind}: {alike[0].settings.steps:,} steps{about}"
        console.print(f"  {escape(text)}", highlight=False)


def confirm(console: Console, yes: bool) -> None:
    """Ask before something long; without a terminal only `--yes` is an answer."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UserError("This takes long. Say --yes to start it without being asked.")
    if console.input("Start? [y/N] ").strip().lower() not in ("y", "yes"):
        raise UserError("Nothing was started.")


def execute(found: Plan, out: Path, workers: Workers, console: Console) -> dict[Job, str]:
    """Compute what is missing; the failures with their messages. Leaves `results.csv` in `out`."""
    make_directory(out)
    failures: dict[Job, str] = {}
    with stop_on_signal() as signals:
        if found.missing:
            engine = compute(found.missing, workers, cache())
            live = Live(console=console, auto_refresh=False, transient=True)
            with closing(engine), live:
                display = Display(found, console, live)
                for ended in engine:
                    for job, outcome in ended:
                        display.end(job, outcome)
                        if outcome.kind == "failed":
                            failures[job] = outcome.message
                    display.refresh()
                    if signals:
                        break
                live.update("")
    write_csv(rows(out, found.wanted), out / "results.csv")
    if signals:
        raise Stopped("Stopped; every run is saved. The same command goes on with what is missing.")
    return failures


def cache() -> str | None:
    """Where this process keeps compiled programs; its workers keep theirs there too."""
    return jax.config.values["jax_compilation_cache_dir"]


def duration(seconds: float) -> str:
    """Hours and minutes, or minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, of_hour = divmod(minutes, 60)
    return f"{hours}:{of_hour:02d} h" if hours else f"{minutes}:{rest:02d} min"


# --- how it goes ------------------------------------------------------------------------------


class Display:
    """The runs in progress as a live table, and a line for each that has ended."""

    def __init__(self, found: Plan, console: Console, live: Live) -> None:
        self.plan, self.console, self.live = found, console, live
        self.started = time.time()
        self.clock = time.monotonic()
        self.ended: dict[Job, Outcome] = {}
        # Steps that were there before do not tell how fast we are.
        self.before = {job: _step(job) for job in found.missing}
        self.shown = 0.0

    def end(self, job: Job, outcome: Outcome) -> None:
        """Say what became of a run."""
        self.ended[job] = outcome
        count = f"{len(self.ended)}/{len(self.plan.missing)}"
        name = escape(job.name)
        if outcome.kind == "failed":
            self.console.print(f"[red]failed[/] {count} {name}  (log: {job.log_path})")
            self.console.print(escape(outcome.message.rstrip()), highlight=False)
        elif outcome.kind == "done":
            values = row_or_nothing(job.evidence) or {}
            costs = [f"{k} {v:.2f}" for k, v in values.items() if k.split("/")[0] == "cost"]
            text = f"return {values.get('return', float('nan')):.2f}, {', '.join(costs)}"
            self.console.print(f"[green]done[/] {count} {name}  {text}", highlight=False)

    def refresh(self) -> None:
        """Draw the table, once a second at the most."""
        if time.monotonic() - self.shown >= 1.0:
            self.shown = time.monotonic()
            self.live.update(self.table())

    def table(self) -> Group:
        """Every running run, and a line on the whole sweep."""
        table = Table(box=None, pad_edge=False)
        for column in ("running", "steps", "steps/s", "left"):
            table.add_column(column, justify="left" if column == "running" else "right")
        for job, beat in self._running():
            speed = (beat.step - beat.started_at) / max(beat.seconds, 1e-9)
            left = duration(max(beat.steps - beat.step, 0) / speed) if speed else "compiling"
            table.add_row(escape(job.name), f"{beat.step:,}/{beat.steps:,}", f"{speed:.0f}", left)
        return Group(table, self._total())

    def _running(self) -> Iterator[tuple[Job, Beat]]:
        for job in self.plan.missing:
            beat = last_beat(job.directory)
            if job not in self.ended and beat and _modified(job) >= self.started:
                yield job, beat

    def _total(self) -> str:
        kinds = [outcome.kind for outcome in self.ended.values()]
        wanted = sum(job.settings.steps for job in self.plan.missing)
        at = {j: j.settings.steps if j in self.ended else _step(j) for j in self.plan.missing}
        done = sum(at.values())
        fresh = sum(max(step - self.before[job], 0) for job, step in at.items())
        speed = fresh / (time.monotonic() - self.clock)
        left = f", about {duration(max(wanted - done, 0) / speed)} left" if fresh else ""
        return (
            f"{kinds.count('done')} done, {kinds.count('failed')} failed, "
            f"{len(self.plan.missing) - len(kinds)} to go; {done:,} of {wanted:,} steps{left}"
        )


def _step(job: Job) -> int:
    beat = last_beat(job.directory)
    return beat.step if beat else 0


def _modified(job: Job) -> float:
    try:
        return Run(job.directory).progress_path.stat().st_mtime
    except OSError:
        return 0.0
