"""Whole runs: train a new one, continue an old one, stop at a signal with everything saved."""

import dataclasses
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import jax

from algd.evaluation.episodes import Cut
from algd.networks.native import library
from algd.runs.checkpoint import Snapshot
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
from algd.runs.files import LogPosition
from algd.runs.metrics_log import MetricsLog
from algd.training.checkpointing import load_newest, save
from algd.training.state import Setup, TrainState, start
from algd.training.steps import evaluate, iterate, train_rows
from algd.training.warm_start import check_fits
from algd.types import Algorithm, UserError, command

# Seconds.
SAME_SIGNAL = 0.3


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
    algorithm: Algorithm,
    name: str,
    directory: Path,
    report: Report = lambda progress: None,
    start_from: Snapshot | None = None,
) -> Run:
    """Train a new run of the preset `name` with these hyperparameters in a new directory.

    It starts from fresh networks, or from what another run has learnt.
    """
    return train_seeds(settings, algorithm, name, [directory], report, start_from)[0]


def train_seeds(
    settings: Settings,
    algorithm: Algorithm,
    name: str,
    directories: Sequence[Path],
    report: Report = lambda progress: None,
    start_from: Snapshot | None = None,
) -> list[Run]:
    """Train as many runs as there are directories in one program, with the seeds from
    `settings.seed` on; each is a run of its own, to be evaluated and continued like any other."""
    check(settings, algorithm)
    if len(directories) > 1 and (settings.overlap or settings.devices > 1):
        raise UserError("--seeds goes with neither --overlap nor --devices.")
    seeds = range(settings.seed, settings.seed + len(directories))
    each = [dataclasses.replace(settings, seed=seed) for seed in seeds]
    check(each[-1], algorithm)
    environments = [make_envs(mine, mine.envs) for mine in each]
    spec = environments[0].spec
    check_memory(spec, len(each) * kept_transitions(settings, algorithm), algorithm)
    origin = {}
    if start_from is not None:
        # Refuse what does not fit before there is a directory.
        fresh = jax.eval_shape(lambda: algorithm.init(spec, jax.random.key(0)))
        check_fits(start_from, algorithm, fresh, settings.env, spec)
        source = Run(start_from.directory.absolute())
        origin = {
            "started_from": {
                "run": str(source.directory),
                "id": source.id,
                "step": start_from.step,
            }
        }
    together = {"seeds": len(directories)} if len(directories) > 1 else {}
    runs = [create_run(directory) for directory in directories]
    with ExitStack() as stack:
        for mine, run in zip(each, runs, strict=True):
            stack.enter_context(run.lock())
            with run.writing():
                run.write_config(describe(mine, algorithm, name, spec) | origin | together)
        setup = Setup(settings, algorithm, spec, tuple(runs))
        state = start(setup, environments, start_from)
        _loop(setup, state, [LogPosition()] * len(runs), report)
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
        setup = Setup(settings, algorithm, environments.spec, (run,))
        origin = config.get("started_from")
        state, position, notes = load_newest(setup, environments, origin)
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
        if "seeds" in config:
            notes.append(
                f"The run was begun with {config['seeds']} seeds in one program (--seeds): alone "
                "it goes on, equal up to the order of sums, but not to the last bit."
            )
        for note in notes:
            tell(note)
        with run.writing():
            run.forget_after(state.step, state.stored[0])
            kept = {
                name: config[name] for name in ("id", "started_from", "seeds") if name in config
            }
            run.write_config(described | kept)
        _loop(setup, state, [position], report)
    return run, notes


def _loop(
    setup: Setup, state: TrainState, positions: Sequence[LogPosition], report: Report
) -> TrainState:
    """Iterate to the last step, or to a signal; leave checkpoints and rows behind."""
    settings, clock = setup.settings, setup.clock
    started_at, begun = state.step, time.perf_counter()

    with ExitStack() as stack:
        signals = stack.enter_context(stop_on_signal())
        logs = [
            stack.enter_context(closing(MetricsLog(run, position, state.step)))
            for run, position in zip(setup.runs, positions, strict=True)
        ]

        def show() -> None:
            seconds = time.perf_counter() - begun
            latest, spent = logs[0].latest, dict(clock.seconds)
            report(Progress(state.step, settings.steps, started_at, seconds, latest, spent))

        def saved() -> TrainState:
            with clock("checkpointing"):
                return save(setup, state, [log.flush() for log in logs])

        def judge() -> None:
            # A signal cuts it short; the run owes it then when it goes on.
            with clock("evaluation"), suppress(Cut):
                for log, row in zip(logs, evaluate(setup, state, lambda: not signals), strict=True):
                    log.write(row)

        iterating = False
        try:
            if state.step == 0:
                # Before the first row, so that there is always something to go on from.
                state = saved()
            if owes_evaluation(setup, state):
                judge()
            while state.step < settings.steps and not signals:
                before, iterating = state.step, True
                state = iterate(setup, state)
                iterating = False
                due = lambda every: state.step // every > before // every  # noqa: B023, E731
                if due(settings.log_every):
                    with clock("logging"):
                        state, rows = train_rows(setup, state)
                        speed = (state.step - started_at) / (time.perf_counter() - begun)
                        for log, row in zip(logs, rows, strict=True):
                            log.write(row)
                            log.write_speed(state.step, speed)
                if due(settings.eval_every):
                    judge()
                if due(settings.checkpoint_every):
                    state = saved()
                with clock("logging"):
                    show()
            state = saved()
            # Rows past the checkpoint's position: a continued run takes them back.
            if not signals and state.step % settings.eval_every:
                judge()
            show()
        except KeyboardInterrupt as second:
            if not signals:
                raise
            if iterating and not is_untouched(state):
                last = f"at once. {setup.runs[0].last_good()}"
                raise Interrupted(setup.runs, state.step, last) from second
            state = saved()
    if signals:
        raise Interrupted(setup.runs, state.step)
    return state


def owes_evaluation(setup: Setup, state: TrainState) -> bool:
    """Whether the evaluation of this step is due and not in the log."""
    step, settings = state.step, setup.settings
    if step and step // settings.eval_every == (step - settings.envs) // settings.eval_every:
        return False
    return all(row["step"] != step for row in setup.runs[0].rows("eval"))


def is_untouched(state: TrainState) -> bool:
    """Whether an iteration that was broken off has taken nothing of the state it began with: no
    memory on the device, and no step of environments whose state is saved."""
    taken = any(x.is_deleted() for x in jax.tree.leaves((state.learner, state.replay)))
    return not taken and not any(env.exact_state for env in state.envs)


@contextmanager
def stop_on_signal() -> Iterator[list[float]]:
    """Collect SIGINT and SIGTERM in a list instead of dying in the middle of a step; the second
    one is a `KeyboardInterrupt`, wherever the program is."""
    received: list[float] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def receive(number: int, frame: Any) -> None:
        received.append(time.monotonic())
        # Programs that pass signals on do so at once: that is the same one twice.
        if received[-1] - received[0] > SAME_SIGNAL:
            raise KeyboardInterrupt

    signals = [s for s in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(s) != signal.SIG_IGN]
    previous = {s: signal.signal(s, receive) for s in signals}
    try:
        yield received
    finally:
        for s, handler in previous.items():
            signal.signal(s, handler)


class Interrupted(Exception):
    """Training was stopped by a signal, with everything saved, or at once with what was saved."""

    def __init__(self, runs: Sequence[Run], step: int, saved: str = "everything is saved.") -> None:
        commands = "; ".join(command("resume", run.directory) for run in runs)
        super().__init__(f"Stopped at step {step}; {saved} Go on with: {commands}")
