"""Whole runs: train a new one, continue an old one, stop at a signal with everything saved."""

import dataclasses
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax

from algd.journal import Journal
from algd.learnt import Learnt, check_fits, handed_on, learnt
from algd.runs import (
    DamagedFile,
    Mark,
    Run,
    create_run,
    read_arrays,
)
from algd.settings import (
    Settings,
    check,
    check_memory,
    describe,
    kept_transitions,
    make_envs,
    restored,
)
from algd.trainer import Trainer
from algd.types import (
    UserError,
)


class Progress(NamedTuple):
    """How far a run is, for whoever shows it."""

    step: int
    steps: int
    started_at: int
    seconds: float
    latest: dict[str, Any]


Report = Callable[[Progress], None]


def train(
    settings: Settings,
    algorithm: Any,
    name: str,
    directory: Path,
    report: Report = lambda progress: None,
    start_from: Learnt | None = None,
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
            trainer.state = handed_on(start_from, trainer.state)
            origin = {"run": str(start_from.directory.absolute()), "step": start_from.step}
            config["started_from"] = origin
        with run.writing():
            run.metrics_path.touch()
            run.write_config(config)
        _loop(trainer, Mark(), report)
    return run


def resume(
    directory: Path, steps: int | None = None, report: Report = lambda progress: None
) -> tuple[Run, list[str]]:
    """Continue a run from its newest whole checkpoint; also what the user should know of it."""
    run = Run(directory)
    config = run.config()
    settings, algorithm, name = restored(config)
    if steps is not None and steps != settings.steps:
        if steps < settings.steps:
            raise UserError(f"The run was already meant to have {settings.steps} steps.")
        settings = dataclasses.replace(settings, steps=steps)
    check(settings, algorithm)
    with run.lock():
        environments = make_envs(settings, settings.envs)
        check_memory(environments.spec, kept_transitions(settings, algorithm), algorithm)
        trainer = Trainer(settings, algorithm, run, environments)
        origin = config.get("started_from")
        if origin and not run.checkpoints():
            source = learnt(origin["run"], origin["step"])
            trainer.state = handed_on(source, trainer.state)
        mark, notes = restore_newest(trainer)
        if not environments.exact_state:
            notes.append(
                f"{settings.env} cannot save its state: the copies start fresh episodes, so the "
                "run is a valid continuation but not the one it would have been."
            )
        with run.writing():
            run.forget_after(trainer.step, trainer.stored)
            run.write_config(
                describe(settings, algorithm, name, environments.spec)
                | ({"started_from": origin} if origin else {})
            )
        _loop(trainer, mark, report)
    return run, notes


def restore_newest(trainer: Trainer) -> tuple[Mark, list[str]]:
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
        return Mark(), ["The run had no checkpoint yet: it starts again from the beginning."]
    found = " ".join(notes) or "there is none."
    raise UserError(
        f"{run.directory} has no usable checkpoint: {found} Restore its files from a copy. "
        "If only metrics.jsonl is damaged, the run can go on without the rows it had: delete it."
    )


def _loop(trainer: Trainer, mark: Mark, report: Report) -> None:
    """Iterate to the last step, or to a signal; leave a checkpoint and the curves behind."""
    settings, run = trainer.settings, trainer.run
    started_at, clock = trainer.step, time.perf_counter()

    with closing(Journal(run, mark, trainer.step)) as journal, stop_on_signal() as signals:

        def show() -> None:
            seconds = time.perf_counter() - clock
            report(Progress(trainer.step, settings.steps, started_at, seconds, journal.latest))

        if trainer.step == 0:
            # Before the first row, so that there is always something to go on from.
            trainer.save(journal.flushed())
            journal.write(trainer.eval_row())
        while trainer.step < settings.steps and not signals:
            before = trainer.step
            trainer.iterate()
            due = lambda every: trainer.step // every > before // every  # noqa: B023, E731
            if due(settings.log_every):
                journal.write(trainer.train_row())
                speed = (trainer.step - started_at) / (time.perf_counter() - clock)
                journal.write_speed(trainer.step, speed)
            if due(settings.eval_every):
                journal.write(trainer.eval_row())
            if due(settings.checkpoint_every):
                trainer.save(journal.flushed())
            show()
        trainer.save(journal.flushed())
        # Rows past the checkpoint's mark: a continued run takes them back.
        if not signals and trainer.step % settings.eval_every:
            journal.write(trainer.eval_row())
        show()
    if signals:
        raise Interrupted(run.directory, trainer.step)


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

    def __init__(self, directory: Path, step: int) -> None:
        super().__init__(
            f"Stopped at step {step}; everything is saved. Go on with: algd resume {directory}"
        )
