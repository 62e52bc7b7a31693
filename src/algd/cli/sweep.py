"""`algd sweep --env DiffDrive --preset algd lgd --seeds 0 1 2 --set rho=0.5,1,2 --out DIR`."""

from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from algd.cli.arguments import parse, refuse_idle, search_here
from algd.runs.config import check_imported
from algd.sweeps.execution import execute, plan, print_plan
from algd.sweeps.executors import Workers
from algd.sweeps.plan import Sweep, jobs, parse_assignments, read_sweep
from algd.types import UserError


@dataclass(frozen=True)
class Arguments:
    """Train every combination of tasks, presets, seeds and settings; issued again, go on."""

    workers: Workers
    file: Path | None = None
    """A TOML file that describes the sweep; options given beside it go before."""
    env: tuple[str, ...] = ()
    """Tasks; by default DiffDrive."""
    preset: tuple[str, ...] = ()
    """Presets; by default algd."""
    seeds: tuple[int, ...] = ()
    """Seeds; by default 0 1 2."""
    trust: bool = False
    """Import the modules that the file names for its tasks: their code is run."""
    set: tuple[str, ...] = ()
    """Settings of runs or presets: steps=30000 for all, rho=0.5,1,2 for one run with each."""
    episodes: int | None = None
    """Fresh episodes that judge each final policy; by default 100."""
    out: Path = Path("runs/sweep")
    """Where the runs and results.csv go. What is there already is not computed again."""
    records: Path | None = None
    """Where the record of each finished run goes; what has one is not computed again. By default
    records in the directory of --out."""
    dry_run: bool = False
    """Show the plan only."""
    estimate: bool = True
    """Measure for a moment how long it will take."""


def run(arguments: list[str]) -> None:
    """`algd sweep --env DiffDrive --preset algd lgd --seeds 0 1 2 --set rho=0.5,1,2 --out DIR`."""
    chosen = parse(Arguments, arguments, "sweep")
    if chosen.file is None:
        refuse_idle(chosen, ["trust"], "without --file")
    search_here(chosen.env, chosen.trust)
    described = read_sweep(chosen.file) if chosen.file else Sweep()
    given = {name: getattr(chosen, name) for name in ("env", "preset", "seeds", "episodes")}
    described = replace(
        described,
        settings={**described.settings, **parse_assignments(chosen.set)},
        **{name: value for name, value in given.items() if value not in ((), None)},
    )
    if not chosen.env and not chosen.trust:
        for env in described.env:
            check_imported(env)
    wanted = jobs(described, chosen.out, chosen.records or chosen.out / "records")
    console = Console(stderr=True)
    found = plan(wanted, chosen.out, chosen.workers, chosen.estimate, console)
    print_plan(found, chosen.out, chosen.workers, console)
    if chosen.dry_run:
        return
    failures = execute(found, chosen.out, chosen.workers, console)
    if failures:
        raise UserError(f"{len(failures)} of {len(wanted)} runs failed; see {chosen.out / 'logs'}.")
    print(f"Results: {chosen.out / 'results.csv'}")
