"""Whole runs: train a new one, continue an old one, stop at a signal with everything saved."""

import dataclasses
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax

from algd.networks.native import library
from algd.runs.checkpoint import Snapshot, read_snapshot
from algd.runs.config import (
    Settings,
    check,
    check_memory,
    describe,
    kept_transitions,
    make_envs,
    parse_config,
    with_environment,
)
from algd.runs.directory import Run, create_run
from algd.runs.files import DamagedFile, LogPosition, read_arrays
from algd.runs.metrics_log import MetricsLog
from algd.training.seeds import SeedBatch
from algd.training.trainer import Trainer
from algd.training.warm_start import check_fits, warm_start
from algd.types import UserError, command


class Progress(NamedTuple):
    """How far a run is, for whoever shows it."""

    step: int
    steps: int
    started_at: int
    seconds: float
    latest: dict[str, Any]
    spent: dict[str, float]


Report = Callable[[Progress], None]


def train(
    settings: Settings,
    algorithm: Any,
    name: str,
    directory: Path,
    report: Report = lambda progress: None,
    start_from: Snapshot | None = None,
) -> Run:
    """Train a new run of the preset `name` with these hyperparameters in a new directory.

    It starts from fresh networks, or from what another run has learnt.
    """
    check(settings, algorithm)
    environments = make_envs(settings, settings.envs)
    check_memory(environments.spec, kept_transitions(settings, algorithm), algorithm)
    if start_from is not None:
        # Refuse what does not fit before there is a directory.
        fresh = jax.eval_shape(lambda: algorithm.init(environments.spec, jax.random.key(0)))
        check_fits(start_from, algorithm, fresh, settings.env, environments.spec)
    run = create_run(directory)
    with run.lock():
        trainer = Trainer(settings, algorithm, run, environments)
        trainer.obs = environments.reset(settings.seed)
        config = describe(settings, algorithm, name, environments.spec)
        if start_from is not None:
            trainer.state = warm_start(start_from, trainer.state)
            origin = {"run": str(start_from.directory.absolute()), "step": start_from.step}
            config["started_from"] = origin
        with run.writing():
            run.write_config(config)
        _loop([trainer], [LogPosition()], report, trainer.iterate)
    return run


def train_seeds(
    settings: Settings,
    algorithm: Any,
    name: str,
    directories: Sequence[Path],
    report: Report = lambda progress: None,
) -> list[Run]:
    """Train as many runs as there are directories in one program, with the seeds from
    `settings.seed` on; each is a run of its own, to be evaluated and continued like any other."""
    check(settings, algorithm)
    if settings.overlap or settings.devices > 1:
        raise UserError("--seeds goes with neither --overlap nor --devices.")
    check(dataclasses.replace(settings, seed=settings.seed + len(directories) - 1), algorithm)
    each = [dataclasses.replace(settings, seed=settings.seed + i) for i in range(len(directories))]
    environments = [make_envs(mine, mine.envs) for mine in each]
    spec = environments[0].spec
    check_memory(spec, len(each) * kept_transitions(settings, algorithm), algorithm)
    runs = [create_run(directory) for directory in directories]
    trainers = []
    with ExitStack() as stack:
        for mine, run, copies in zip(each, runs, environments, strict=True):
            stack.enter_context(run.lock())
            trainer = Trainer(mine, algorithm, run, copies)
            trainer.obs = copies.reset(mine.seed)
            trainers.append(trainer)
            with run.writing():
                run.write_config(describe(mine, algorithm, name, spec))
        together = SeedBatch(trainers)
        _loop(trainers, [LogPosition()] * len(trainers), report, together.iterate, together.settle)
    return runs


def resume(
    directory: Path,
    steps: int | None = None,
    report: Report = lambda progress: None,
    tell: Callable[[str], None] = lambda note: None,
    env: str | None = None,
    trust: bool = False,
) -> tuple[Run, list[str]]:
    """Continue a run from its newest whole checkpoint; also what the user should know of it, which
    is told before the run goes on too.

    `env` says where the run's environment is found; a module that only the run's own files name is
    imported if they are to be trusted.
    """
    run = Run(directory)
    config = run.config()
    settings, algorithm, name = parse_config(config)
    settings = with_environment(settings, env, trust)
    if steps is not None and steps != settings.steps:
        if steps < settings.steps:
            raise UserError(
                f"The run was already meant to have {settings.steps} steps: --steps must be more."
            )
        settings = dataclasses.replace(settings, steps=steps)
    check(settings, algorithm)
    with run.lock():
        with run.writing():
            run.make_folders()
        environments = make_envs(settings, settings.envs)
        described = describe(settings, algorithm, name, environments.spec)
        for part in ("budgets", "horizon"):
            if described[part] != config[part]:
                raise UserError(
                    f"{settings.env} is no longer what {directory} was trained on: {part} "
                    f"{described[part]} instead of {config[part]}."
                )
        check_memory(environments.spec, kept_transitions(settings, algorithm), algorithm)
        trainer = Trainer(settings, algorithm, run, environments)
        origin = config.get("started_from")
        if origin and not run.checkpoints():
            source = read_snapshot(origin["run"], origin["step"])
            trainer.state = warm_start(source, trainer.state)
        mark, notes = restore_newest(trainer)
        if not environments.exact_state:
            notes.append(
                f"{settings.env} cannot save its state: the copies start fresh episodes, so the "
                "run is a valid continuation but not the one it would have been."
            )
        native = library.available()
        if config.get("native", native) != native:
            notes.append(
                f"The run was begun {'without' if native else 'with'} algd's compiled code, which "
                f"is {'used' if native else 'missing'} here: it goes on, but not to the last bit."
            )
        for note in notes:
            tell(note)
        with run.writing():
            run.forget_after(trainer.step, trainer.stored)
            run.write_config(described | ({"started_from": origin} if origin else {}))
        _loop([trainer], [mark], report, trainer.iterate)
    return run, notes


def restore_newest(trainer: Trainer) -> tuple[LogPosition, list[str]]:
    """Bring the trainer to the newest state that is whole; nothing on the disk is changed.

    Returns the mark in metrics.jsonl that belongs to the state, and what the user should know.
    """
    run = trainer.run
    notes: list[str] = []
    for _, path in reversed(run.checkpoints()):
        try:
            mark = trainer.restore(read_arrays(path))
        except DamagedFile as error:
            notes.append(f"{path.name} is not used: {error}.")
            continue
        if trainer.step and not mark.size:
            notes.append(f"metrics.jsonl is missing: its rows begin at step {trainer.step}.")
        return mark, notes
    if not notes and not (run.metrics_path.exists() and run.metrics_path.stat().st_size):
        # The first checkpoint comes before the first row: nothing is lost.
        trainer.obs = trainer.envs.reset(trainer.settings.seed)
        return LogPosition(), ["The run had no checkpoint yet: it starts again from the beginning."]
    found = " ".join(notes) or "there is none."
    raise UserError(
        f"{run.directory} has no usable checkpoint: {found} Restore its files from a copy. "
        "If only metrics.jsonl is damaged, the run can go on without the rows it had: delete it."
    )


def _loop(
    trainers: Sequence[Trainer],
    marks: Sequence[LogPosition],
    report: Report,
    iterate: Callable[[], None],
    settle: Callable[[], None] = lambda: None,
) -> None:
    """Iterate to the last step, or to a signal; leave checkpoints and rows behind.

    The trainers go in step. `settle` is called before anyone looks at their states.
    """
    first, settings = trainers[0], trainers[0].settings
    started_at, start = first.step, time.perf_counter()

    with ExitStack() as stack:
        signals = stack.enter_context(stop_on_signal())
        journals = [
            stack.enter_context(closing(MetricsLog(trainer.run, mark, trainer.step)))
            for trainer, mark in zip(trainers, marks, strict=True)
        ]
        pairs = list(zip(trainers, journals, strict=True))

        def show() -> None:
            seconds = time.perf_counter() - start
            latest, spent = journals[0].latest, dict(first.clock.seconds)
            report(Progress(first.step, settings.steps, started_at, seconds, latest, spent))

        def save() -> None:
            settle()
            for trainer, journal in pairs:
                with trainer.clock("checkpointing"):
                    trainer.save(journal.flush())

        def assess() -> None:
            settle()
            for trainer, journal in pairs:
                with trainer.clock("evaluation"):
                    journal.write(trainer.eval_row())

        if first.step == 0:
            # Before the first row, so that there is always something to go on from.
            save()
            assess()
        while first.step < settings.steps and not signals:
            before = first.step
            iterate()
            due = lambda every: first.step // every > before // every  # noqa: B023, E731
            if due(settings.log_every):
                for trainer, journal in pairs:
                    with trainer.clock("logging"):
                        journal.write(trainer.train_row())
                        speed = (first.step - started_at) / (time.perf_counter() - start)
                        journal.write_speed(first.step, speed)
            if due(settings.eval_every):
                assess()
            if due(settings.checkpoint_every):
                save()
            with first.clock("logging"):
                show()
        save()
        # Rows past the checkpoint's mark: a continued run takes them back.
        if not signals and first.step % settings.eval_every:
            assess()
        show()
    if signals:
        raise Interrupted([trainer.run.directory for trainer in trainers], first.step)


@contextmanager
def stop_on_signal() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM in a list instead of dying in the middle of a step."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    signals = (signal.SIGINT, signal.SIGTERM)
    previous = {s: signal.signal(s, lambda number, _: received.append(number)) for s in signals}
    try:
        yield received
    finally:
        for s, handler in previous.items():
            signal.signal(s, handler)


class Interrupted(Exception):
    """Training was stopped by a signal, with everything saved."""

    def __init__(self, directories: Sequence[Path], step: int) -> None:
        commands = "; ".join(command("resume", directory) for directory in directories)
        super().__init__(f"Stopped at step {step}; everything is saved. Go on with: {commands}")
