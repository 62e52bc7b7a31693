"""Training from Python with the words of the command line."""

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from algd.algorithms import canonical_preset, preset
from algd.runs.checkpoint import Snapshot, read_snapshot
from algd.runs.config import Settings, check_imported
from algd.runs.directory import Run, directory_name
from algd.runs.grouping import gather
from algd.runs.validation import check_effect, fitted, fitted_fields
from algd.training import loop
from algd.training.loop import Callback, Report
from algd.types import Algorithm, Number, UserError, nearest


def train(
    env: str | None = None,
    algorithm: str | None = None,
    *,
    out: str | Path | None = None,
    budget: Number | Sequence[Number] | np.ndarray = (),
    start_from: str | Path | None = None,
    callback: Callback | Sequence[Callback] = (),
    report: Report = loop.nothing,
    **options: Any,
) -> Run:
    """Train a preset (`algd` on DiffDrive, if nothing else is said) and return the run.

    `options` are settings of the run (`steps`, `seed`, `envs`, ...) and hyperparameters of the
    preset (`rho`, `beta`, ...), under the names that `algd train PRESET --help` shows. With
    `start_from` the networks are those of another run; task and algorithm are then that run's,
    where nothing else is said. A `callback`, or each of several, is called with every row of
    metrics and every evaluation; its answer `False` stops the run with everything saved.
    """
    source = read_snapshot(start_from) if start_from is not None else None
    defaults, name, chosen = defaults_of(source, env, algorithm)
    if env is None:
        check_imported(defaults.env)
    limits = fitted(budget, tuple[float, ...])
    of_run = {field.name for field in dataclasses.fields(Settings)}
    of_preset = {field.name for field in dataclasses.fields(chosen)}
    known = of_run | of_preset
    for option in options:
        if option not in known:
            hint = " The preset is `algorithm`." if option == "preset" else nearest(option, known)
            raise UserError(f"There is no setting {option!r}.{hint}")
    given = fitted_fields(Settings, {k: v for k, v in options.items() if k in of_run})
    settings = dataclasses.replace(defaults, **({"budget": limits} if limits else {}), **given)
    own = fitted_fields(type(chosen), {k: v for k, v in options.items() if k in of_preset})
    changed = dataclasses.replace(chosen, **own)
    check_effect(chosen, changed)
    return run_to_end(settings, changed, name, out, report, source, several(callback))


def several(callback: Callback | Sequence[Callback]) -> Sequence[Callback]:
    """Callbacks of which one may be given alone."""
    return [callback] if callable(callback) else callback


def defaults_of(
    source: Snapshot | None, env: str | None = None, algorithm: str | None = None
) -> tuple[Settings, str, Any]:
    """Settings, preset and algorithm where nothing is said: the source's task and algorithm.

    Another task has a budget and options of its own; another preset its own hyperparameters.
    """
    if source is None:
        name = canonical_preset(algorithm or "algd")
        return Settings(env=env or Settings.env), name, preset(name)
    settings = Settings(env=env or source.settings.env)
    if env in (None, source.settings.env):
        task = ("budget", "discounted_budget", "horizon", "env_options")
        kept = {field: getattr(source.settings, field) for field in task}
        settings = dataclasses.replace(settings, **kept)
    name = source.preset if algorithm is None else canonical_preset(algorithm)
    return settings, name, source.algorithm if name == source.preset else preset(name)


def run_to_end(
    settings: Settings,
    algorithm: Algorithm,
    name: str,
    out: str | Path | None,
    report: Report,
    start_from: Snapshot | None = None,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Train and draw the curves, also of a run that a signal has cut short."""
    directory = Path(out) if out is not None else free_directory(settings, name)
    with drawn([directory]):
        return loop.train(
            settings, algorithm, name, directory, report, start_from, callbacks=callbacks
        )


def run_seeds_to_end(
    settings: Settings,
    algorithm: Algorithm,
    name: str,
    seeds: Sequence[int],
    out: str | Path | None,
    report: Report,
) -> list[Run]:
    """Train several seeds in one program, each in a directory of its own, and draw their curves."""
    each = [dataclasses.replace(settings, seed=seed) for seed in seeds]
    directories = [
        Path(out) / f"seed{mine.seed}" if out is not None else free_directory(mine, name)
        for mine in each
    ]
    with drawn(directories):
        return loop.train_seeds(each, algorithm, name, directories, report)


@contextmanager
def drawn(directories: Sequence[Path]) -> Iterator[None]:
    """Draw the runs that are begun inside, however they end; one that was there before is not
    touched."""
    new = [run for run in map(Run, directories) if not run.config_path.exists()]
    try:
        yield
    finally:
        for run in new:
            draw(run)


def resume(
    run: str | Path,
    steps: Number | None = None,
    report: Report = loop.nothing,
    tell: Callable[[str], None] = lambda note: None,
    env: str | None = None,
    trust: bool = False,
    callback: Callback | Sequence[Callback] = (),
) -> tuple[Run, list[str]]:
    """Continue a run, up to `steps` in all if given; the second value is what to know of it, which
    `tell` is given before the run goes on.

    If the run's environment is in a module that you have not imported, name it by `env`, as
    "module:Id", or say that you `trust` what the run's files name.
    """
    directory = Path(run)
    # What cannot be continued is not drawn either.
    Run(directory).config()
    try:
        total = fitted(steps, int)
        return loop.resume(directory, total, report, tell, env, trust, several(callback))
    finally:
        draw(Run(directory))


def draw(run: Run) -> None:
    """Leave `curves.png` in the run directory, if there is anything to draw."""
    if not (run.metrics_path.exists() and run.metrics_path.stat().st_size):
        return
    # Matplotlib takes half a second to load, which a start should not wait for.
    from algd.visualization.curves import plot_tasks

    try:
        tasks, complaints = gather([run.directory], unfinished=True)
        if complaints:
            raise UserError(complaints[0])
        plot_tasks(tasks, run.directory / "curves.png")
    except (OSError, UserError) as error:
        # A picture must not hide what became of the run.
        warnings.warn(f"The curves could not be drawn: {error}", stacklevel=2)


def free_directory(settings: Settings, name: str) -> Path:
    """`runs/ENV-PRESET-SEED`, with a number behind it where that is taken."""
    stem = directory_name(f"{settings.env}-{name}-seed{settings.seed}")
    path, number = Path("runs") / stem, 2
    while path.exists():
        path, number = Path("runs") / f"{stem}-{number}", number + 1
    return path
