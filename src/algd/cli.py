"""The command line. Each command imports what it needs when it is called."""

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

if TYPE_CHECKING:
    from algd.training import Progress

COMMANDS = {
    "train": "train a policy (ALGD on DiffDrive, if nothing else is said)",
    "resume": "continue a run from its last checkpoint",
    "evaluate": "roll out a run's policy and summarise return and cost",
    "plot": "draw the curves of runs",
    "list": "show algorithms and tasks",
    "bench": "measure speed: bench update, bench env",
}
USAGE = """algd: online safe reinforcement learning with diffusion policies

usage: algd COMMAND [options]      algd COMMAND --help explains one command

{commands}

A first run, about four minutes on two cores:   algd train
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; a mistake of the user ends with a message and the exit code 2."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        print(USAGE.format(commands="\n".join(f"  {k:10s} {v}" for k, v in COMMANDS.items())))
        return
    if given[0] == "--version":
        from algd import __version__

        print(__version__)
        return
    from algd.types import UserError, nearest

    # `module:Id` means a module of the user's, most often in the folder they stand in.
    sys.path.insert(0, "")
    try:
        if given[0] not in COMMANDS:
            raise UserError(f"There is no command {given[0]!r}.{nearest(given[0], COMMANDS)}")
        _HANDLERS[given[0]](given[1:])
    except UserError as error:
        print(f"algd: {error}", file=sys.stderr)
        sys.exit(2)


def remember_compilations() -> None:
    """Keep compiled programs on disk, unless the user has said where or whether to."""
    import os

    import jax

    if not jax.config.values["jax_compilation_cache_dir"]:
        home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        jax.config.update("jax_compilation_cache_dir", str(home / "algd" / "xla"))


def parse(kind: Any, arguments: list[str], command: str, *markers: Any) -> Any:
    """Parse with tyro, whose own complaints also end with the exit code 2."""
    import tyro

    config = (tyro.conf.OmitArgPrefixes, *markers)
    return tyro.cli(kind, args=arguments, prog=f"algd {command}", config=config)


@dataclass(frozen=True)
class Output:
    """Where a run goes and how it is shown."""

    out: Path | None = None
    """Directory of the run; by default a new one under runs/."""
    quiet: bool = False
    """Show no progress line."""


def train_command(arguments: list[str]) -> None:
    """`algd train [options] [PRESET [hyperparameters]]`."""
    import tyro

    from algd.algorithms import preset, presets
    from algd.api import run_to_end
    from algd.training import Settings

    remember_compilations()
    found = presets()
    # A word that is no option's value and no preset is a misspelt preset: say so ourselves.
    for before, word in zip(["", *arguments], arguments, strict=False):
        if not word.startswith("-") and not before.startswith("--"):
            preset(word)
            break
    options = tuple(
        Annotated[type(value), tyro.conf.subcommand(name, default=value, prefix_name=False)]
        for name, value in found.items()
    )
    union: Any = options[0]
    for option in options[1:]:
        union = union | option

    @dataclass(frozen=True)
    class Train:
        """Train a policy. Options of the run come before the preset, its own ones behind it."""

        settings: Settings
        output: Output
        algorithm: union = dataclasses.field(  # pyright: ignore[reportInvalidTypeForm]
            default_factory=lambda: found["algd"]
        )
        """The preset: an algorithm with its hyperparameters."""

    # Lists are given by repeating the option: otherwise they would swallow the preset's name.
    chosen = parse(Train, arguments, "train", tyro.conf.UseAppendAction)
    name = next((word for word in arguments if word in found), "algd")
    with progress_line(chosen.output.quiet) as report:
        run = interruptible(
            lambda: run_to_end(chosen.settings, chosen.algorithm, name, chosen.output.out, report)
        )
    announce(run.directory)


def resume_command(arguments: list[str]) -> None:
    """`algd resume RUN [--steps N]`."""
    import tyro

    from algd.api import resume

    @dataclass(frozen=True)
    class Resume:
        """Continue a run from its last checkpoint, bit for bit where the environment allows."""

        run: tyro.conf.Positional[Path]
        """The run directory."""
        steps: int | None = None
        """Environment steps in all; by default what the run was meant to have."""
        quiet: bool = False
        """Show no progress line."""

    remember_compilations()
    chosen = parse(Resume, arguments, "resume")
    with progress_line(chosen.quiet) as report:
        run, notes = interruptible(lambda: resume(chosen.run, chosen.steps, report))
    for note in notes:
        print(note)
    announce(run.directory)


def evaluate_command(arguments: list[str]) -> None:
    """`algd evaluate RUN --episodes 100 --json`."""
    import tyro

    from algd.evaluation import evaluate
    from algd.policy import load
    from algd.runs import Run
    from algd.stats import summarise
    from algd.training import make_envs, restored
    from algd.types import UserError

    @dataclass(frozen=True)
    class Evaluate:
        """Roll out the policy of a run's newest checkpoint on fresh environments."""

        run: tyro.conf.Positional[Path]
        """The run directory."""
        episodes: int = 100
        """How many episodes."""
        seed: int = 12345
        """Seed of the environments and of sampled actions."""
        sampled: bool = False
        """Draw actions from the policy instead of its deterministic ones."""
        json: bool = False
        """Print one JSON object."""

    chosen = parse(Evaluate, arguments, "evaluate")
    if chosen.episodes < 1:
        raise UserError(f"--episodes must be at least 1, not {chosen.episodes}.")
    policy = load(chosen.run)
    settings, algorithm, name = restored(Run(chosen.run).config())
    episodes = evaluate(
        algorithm,
        policy.state,
        make_envs(settings, min(chosen.episodes, 16)),
        chosen.episodes,
        chosen.seed,
        "sampled" if chosen.sampled else "deterministic",
        algorithm.cost_discount,
    )
    summary = {"run": str(chosen.run), "preset": name, "env": settings.env}
    summary |= summarise(episodes, policy.spec)
    if chosen.json:
        print(json.dumps(summary))
        return
    print_summary(summary, policy.spec)


def print_summary(summary: dict[str, Any], spec: Any) -> None:
    """The same numbers for a reader."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{summary['preset']} on {summary['env']}, {summary['episodes']} episodes")
    for column in ("", "mean", "± s.e.", "IQM", "CVaR 0.9", "budget", "episodes over"):
        table.add_column(column, justify="left" if not column else "right")
    row = summary["return"]
    shown = [f"{row[key]:.2f}" for key in ("mean", "standard_error", "iqm")]
    table.add_row("return", *shown, "", "", "")
    costs = summary["cost"]
    if len(spec.budgets) == 1:
        costs = {spec.budgets[0].name: costs}
    for name, row in costs.items():
        shown = [f"{row[key]:.2f}" for key in ("mean", "standard_error", "iqm", "cvar_0.9")]
        table.add_row(
            name, *shown, f"{row['budget']:g} ({row['unit']})", f"{row['violation_rate']:.0%}"
        )
    Console().print(table)


def plot_command(arguments: list[str]) -> None:
    """`algd plot RUN... --out curves.png`."""
    import tyro

    from algd.plotting import plot_curves, title_of
    from algd.runs import Run
    from algd.types import UserError

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


def list_command(arguments: list[str]) -> None:
    """`algd list`."""
    from algd import envs
    from algd.algorithms import presets

    @dataclass(frozen=True)
    class List:
        """Show the presets and the tasks."""

    parse(List, arguments, "list")
    print("presets (algd train PRESET --help shows their settings):")
    for name, value in presets().items():
        summary = (type(value).__doc__ or "").splitlines()[0]
        print(f"  {name:22s} {summary}")
    print("tasks (algd train --env TASK):")
    for name in envs.names():
        print(f"  {name}")


def bench_command(arguments: list[str]) -> None:
    """`algd bench update --json`, `algd bench env --json`."""
    import tyro

    from algd.algorithms import preset, presets
    from algd.types import UserError, nearest

    @dataclass(frozen=True)
    class Bench:
        """Measure speed on this machine, in ratios within one run."""

        what: tyro.conf.Positional[str]
        """update (gradient rounds and acting) or env (environment steps)."""
        presets: tuple[str, ...] = ()
        """For update: which presets; by default algd-code alone, `all` for every one."""
        json: bool = False
        """Print JSON."""

    chosen = parse(Bench, arguments, "bench")
    if chosen.what == "update":
        from algd.experiments.bench_update import bench_update

        names = chosen.presets or ("algd-code",)
        names = tuple(presets()) if names == ("all",) else names
        for name in names:
            preset(name)
        rows = bench_update(names)
    elif chosen.what == "env":
        from algd.experiments.bench_env import bench_env

        rows = bench_env()
    else:
        raise UserError(
            f"There is no benchmark {chosen.what!r}.{nearest(chosen.what, ('update', 'env'))}"
        )
    if chosen.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{v}" for k, v in row.items()))


class progress_line:
    """A line with steps, speed, time left, return, cost against the budget and lambda."""

    def __init__(self, quiet: bool) -> None:
        from rich.console import Console
        from rich.live import Live

        self.live = Live(console=Console(stderr=True), refresh_per_second=4)
        self.quiet, self.shown = quiet, 0.0

    def __enter__(self) -> "Callable[[Progress], None]":
        if self.quiet:
            return lambda progress: None
        self.live.start()
        return self.show

    def show(self, progress: "Progress") -> None:
        """Draw the line, a few times a second at the most."""
        now = time.monotonic()
        if now - self.shown < 0.25 and progress.step < progress.steps:
            return
        self.shown = now
        self.live.update(progress_text(progress))

    def __exit__(self, *_: object) -> None:
        if not self.quiet:
            self.live.stop()


def progress_text(progress: "Progress") -> str:
    """One line about a run in progress."""
    done = progress.step - progress.started_at
    speed = done / max(progress.seconds, 1e-9)
    left = (progress.steps - progress.step) / speed if done else float("nan")
    parts = [
        f"[bold]{progress.step:,}[/]/{progress.steps:,} steps",
        f"{speed:.0f}/s" if done else "compiling",
        f"{int(left // 60)}:{int(left % 60):02d} left" if done else "",
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


def interruptible(work: Callable[[], Any]) -> Any:
    """Run; if a signal stops it, say how to go on."""
    from algd.training import Interrupted

    try:
        return work()
    except Interrupted as stop:
        print(stop, file=sys.stderr)
        sys.exit(130)


def announce(directory: Path) -> None:
    """Where the results are and what to do with them."""
    print(f"Finished. Curves: {directory / 'curves.png'}")
    print(f"Evaluate it with: algd evaluate {directory}")


_HANDLERS: dict[str, Callable[[list[str]], None]] = {
    "train": train_command,
    "resume": resume_command,
    "evaluate": evaluate_command,
    "plot": plot_command,
    "list": list_command,
    "bench": bench_command,
}

if __name__ == "__main__":
    main()
