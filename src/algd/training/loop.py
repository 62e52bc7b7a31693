"""Whole runs: train a new one, continue an old one, stop at a signal with everything saved."""

import dataclasses
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from algd.algorithms import state_shapes
from algd.networks.native import library
from algd.runs.best import best_step
from algd.runs.checkpoint import Snapshot
from algd.runs.config import (
    NOTHING_MORE,
    Given,
    Settings,
    check,
    check_memory,
    close,
    describe,
    kept_transitions,
    make_envs,
    parse_config,
    with_environment,
    with_loop,
)
from algd.runs.directory import CannotWrite, Run, create_run
from algd.runs.files import LogPosition
from algd.runs.metrics_log import MetricsLog
from algd.training.checkpointing import load_newest, save
from algd.training.device import run_program
from algd.training.state import Setup, TrainState, start
from algd.training.steps import Diverged, Row, advance, decide, evaluate, train_rows
from algd.training.warm_start import check_fits
from algd.types import Algorithm, CostVectorEnv, Halt, ReplayOptions, UserError

# Seconds.
SAME_SIGNAL = 0.3
LONGEST_UNSAVED = 300.0


class Progress(NamedTuple):
    """How far a run is, for whoever shows it."""

    step: int
    steps: int
    started_at: int
    seconds: float
    latest: dict[str, Any]
    spent: dict[str, float]


class Event(NamedTuple):
    """What a callback is told: a row of training's metrics or an evaluation, as it is written.

    `metrics` are the row's numbers, under names such as `train/return` and `eval/cost`.
    """

    run: Run
    kind: str
    step: int
    steps: int
    seconds: float
    metrics: dict[str, int | float]


Report = Callable[[Progress], None]
# The answer False stops the run.
Callback = Callable[[Event], object]


def nothing(progress: Progress) -> None:
    """Show no progress."""


def train(
    settings: Settings,
    algorithm: Algorithm,
    name: str,
    directory: Path,
    report: Report = nothing,
    start_from: Snapshot | None = None,
    given: Given = NOTHING_MORE,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Train a new run of the preset `name` with these hyperparameters in a new directory.

    It starts from fresh networks, or from what another run has learnt.
    """
    each, directories = [settings], [directory]
    return train_seeds(each, algorithm, name, directories, report, start_from, given, callbacks)[0]


def train_seeds(
    each: Sequence[Settings],
    algorithm: Algorithm,
    name: str,
    directories: Sequence[Path],
    report: Report = nothing,
    start_from: Snapshot | None = None,
    given: Given = NOTHING_MORE,
    callbacks: Sequence[Callback] = (),
) -> list[Run]:
    """Train several runs in one program, which differ in their seeds and directories; each is a run
    of its own, to be evaluated and continued like any other."""
    for mine in each:
        check(mine, algorithm)
    settings = each[0]
    if len(each) > 1 and (settings.overlap or settings.devices > 1):
        raise UserError("--seeds goes with neither --overlap nor --devices.")
    with ExitStack() as stack:
        environments = []
        for mine in each:
            environments.append(made(mine, given))
            stack.callback(close, environments[-1])
        each = [with_loop(mine, environments[0]) for mine in each]
        settings = each[0]
        check(settings, algorithm)
        spec = environments[0].spec
        check_memory(spec, len(each) * kept_transitions(settings, algorithm), algorithm)
        origin = {}
        if start_from is not None:
            # Refuse what does not fit before there is a directory.
            fresh = state_shapes(algorithm, spec)
            check_fits(start_from, algorithm, fresh, settings.env, spec)
            source = Run(start_from.directory.absolute())
            begun = {"run": str(source.directory), "id": source.id, "step": start_from.step}
            origin = {"started_from": begun}
        together = {"seeds": len(each)} if len(each) > 1 else {}
        runs = [create_run(directory) for directory in directories]
        for mine, run in zip(each, runs, strict=True):
            stack.enter_context(run.lock())
            with run.writing():
                described = describe(mine, algorithm, name, spec)
                run.write_config(described | origin | together | unnamed(given))
        others = tuple(mine.seed for mine in each[1:])
        setup = Setup(settings, algorithm, spec, tuple(runs), given, others)
        state = start(setup, environments, start_from)
        _loop(setup, state, [LogPosition()] * len(runs), report, callbacks)
    return runs


def resume(
    directory: Path,
    steps: int | None = None,
    report: Report = nothing,
    tell: Callable[[str], None] = lambda note: None,
    given: Given = NOTHING_MORE,
    trust: bool = False,
    callbacks: Sequence[Callback] = (),
) -> tuple[Run, list[str]]:
    """Continue a run from its newest whole checkpoint; also what the user should know of it, which
    is told before the run goes on too.

    `given` says where the run's environment is found, or is it; a module that only the run's own
    files name is imported if they are to be trusted.
    """
    run = Run(directory)
    config = run.config()
    _, algorithm, name = parse_config(config)
    settings, given = with_environment(config, given, trust)
    if steps is not None:
        reached = max((step for step, _ in run.checkpoints()), default=0)
        if steps < reached:
            raise UserError(f"The run has {reached} steps already: --steps must be more.")
        settings = dataclasses.replace(settings, steps=steps)
    check(settings, algorithm)
    with ExitStack() as stack:
        stack.enter_context(run.lock())
        with run.writing():
            run.make_folders()
        environments = made(settings, given)
        stack.callback(close, environments)
        settings = with_loop(settings, environments)
        described = describe(settings, algorithm, name, environments.spec)
        for part in ("budgets", "horizon"):
            if described[part] != config[part]:
                raise UserError(
                    f"{settings.env} is no longer what {directory} was trained on: {part} "
                    f"{described[part]} instead of {config[part]}."
                )
        check_memory(environments.spec, kept_transitions(settings, algorithm), algorithm)
        setup = Setup(settings, algorithm, environments.spec, (run,), given)
        origin = config.get("started_from")
        state, position, notes = load_newest(setup, environments, origin)
        if state.step >= settings.steps:
            more = Run(directory).command("resume", "--steps", 2 * settings.steps)
            notes.append(f"The run has had all of its {settings.steps:,} steps. To go on: {more}")
        elif not environments.exact_state:
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
            kept = {k: config[k] for k in ("id", "started_from", "seeds") if k in config}
            run.write_config(described | kept | unnamed(given))
        _loop(setup, state, [position], report, callbacks)
    return run, notes


def made(settings: Settings, given: Given) -> CostVectorEnv:
    """The environments of training, as many as the settings say."""
    environments = make_envs(settings, settings.envs, given)
    if environments.num_envs != settings.envs:
        close(environments)
        raise UserError(
            f"{settings.env} has {environments.num_envs} copies, but --envs says {settings.envs}."
        )
    return environments


def unnamed(given: Given) -> dict[str, Any]:
    """What config.json says of that which has to be given again."""
    return {"given": given.unnamed} if given.unnamed else {}


def _loop(
    setup: Setup,
    state: TrainState,
    positions: Sequence[LogPosition],
    report: Report,
    callbacks: Sequence[Callback],
) -> TrainState:
    """Iterate to the last step, to a signal, or to a callback's False; leave checkpoints and rows
    behind."""
    settings, clock, budgets = setup.settings, setup.clock, setup.spec.budgets
    prefill = setup.algorithm.prefill if isinstance(setup.algorithm, ReplayOptions) else 0
    started_at, saved_at = state.step, state.step or None
    begun = last_saved = time.perf_counter()
    stopped = False

    with ExitStack() as stack:
        stack.callback(setup.close)
        signals = stack.enter_context(stop_on_signal())
        logs = [
            stack.enter_context(closing(MetricsLog(run, position, state.step)))
            for run, position in zip(setup.runs, positions, strict=True)
        ]
        evaluations = [run.rows("eval") for run in setup.runs]

        def show() -> None:
            seconds = time.perf_counter() - begun
            latest, spent = logs[0].latest, dict(clock.seconds)
            report(Progress(state.step, settings.steps, started_at, seconds, latest, spent))

        def saved() -> TrainState:
            nonlocal saved_at, last_saved
            with clock("checkpointing"):
                bests = [best_step(rows, budgets) for rows in evaluations]
                kept = save(setup, state, [log.flush() for log in logs], bests)
            saved_at, last_saved = kept.step, time.perf_counter()
            return kept

        def tell(rows: Sequence[Row]) -> None:
            nonlocal stopped
            metrics = [log.write(row) for log, row in zip(logs, rows, strict=True)]
            seconds = time.perf_counter() - begun
            for run, row, named in zip(setup.runs, rows, metrics, strict=True):
                event = Event(run, row["kind"], state.step, settings.steps, seconds, named)
                # All of them hear it, whatever the first answers.
                answers = [callback(event) for callback in callbacks]
                stopped = stopped or any(is_false(answer) for answer in answers)

        def judge() -> None:
            # A signal cuts it short; the run owes it then when it goes on.
            nonlocal state
            with clock("evaluation"):
                state, rows = evaluate(setup, state, lambda: not signals)
            if not rows:
                return
            for past, row in zip(evaluations, rows, strict=True):
                past.append(row)
            tell(rows)
            best = [best_step(past, budgets) == state.step for past in evaluations]
            if any(best) and saved_at != state.step:
                state = saved()

        iterating = False
        try:
            if state.step == 0:
                # Before the first row, so that there is always something to go on from.
                state = saved()
            if owes_evaluation(setup, state):
                judge()
            while state.step < settings.steps and not signals and not stopped:
                before, iterating = state.step, True
                if settings.loop == "device":
                    state = run_program(setup, state)
                else:
                    state, decision = decide(setup, state)
                    state = advance(setup, state, decision)
                iterating = False
                due = lambda every: state.step // every > before // every  # noqa: B023, E731
                if due(settings.log_every):
                    with clock("logging"):
                        state, rows = train_rows(setup, state)
                        speed = (state.step - started_at) / (time.perf_counter() - begun)
                        for log in logs:
                            log.write_speed(started_at, state.step, speed)
                        tell(rows)
                if due(settings.eval_every):
                    judge()
                overdue = time.perf_counter() - last_saved > LONGEST_UNSAVED
                filled = before < prefill <= state.step
                if saved_at != state.step and (due(settings.checkpoint_every) or overdue or filled):
                    state = saved()
                with clock("logging"):
                    show()
            state = saved()
            # Rows past the checkpoint's position: a continued run takes them back.
            if not signals and not stopped and state.step % settings.eval_every:
                judge()
            show()
        except CannotWrite:
            raise
        except BaseException as error:
            if signals and isinstance(error, KeyboardInterrupt):
                if iterating and not is_untouched(state):
                    last = f"at once. {setup.runs[0].last_good()}"
                    raise Interrupted(setup.runs, state.step, last) from error
                state = saved()
                raise Interrupted(setup.runs, state.step) from error
            # Of a callback, an environment, or ours, an exit among them: what is whole is saved
            # before anyone hears it.
            standing = setup.runs[0].last_good()
            if not isinstance(error, Diverged) and (not iterating or is_untouched(state)):
                with suppress(UserError):
                    state = state if saved_at == state.step else saved()
                    standing = f"Step {state.step} is saved. Go on with: {commands(setup.runs)}"
            if isinstance(error, SystemExit):
                # Python shows no more of it than its code.
                warnings.warn(standing, stacklevel=2)
            if isinstance(error, UserError):
                error.args = (f"{error} {standing}",)
            else:
                error.add_note(standing)
            raise
    if signals:
        raise Interrupted(setup.runs, state.step)
    return state


def is_false(answer: object) -> bool:
    """Whether a callback asks to stop; None and 0 do not."""
    return isinstance(answer, bool | np.bool_) and not answer


def owes_evaluation(setup: Setup, state: TrainState) -> bool:
    """Whether the evaluation of this step is due and not in the log."""
    step, settings = state.step, setup.settings
    if step and step // settings.eval_every == (step - settings.envs) // settings.eval_every:
        return False
    return all(row["step"] != step for row in setup.runs[0].rows("eval"))


def is_untouched(state: TrainState) -> bool:
    """Whether an iteration that was broken off has taken nothing of the state it began with: no
    memory on the device, and no step of environments whose state is saved."""
    on_device = (state.learner, state.replay, state.rollout)
    taken = any(x.is_deleted() for x in jax.tree.leaves(on_device))
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


class Interrupted(Halt):
    """Training was stopped by a signal, with everything saved, or at once with what was saved."""

    def __init__(self, runs: Sequence[Run], step: int, saved: str = "everything is saved.") -> None:
        super().__init__(f"Stopped at step {step}; {saved} Go on with: {commands(runs)}")


def commands(runs: Sequence[Run]) -> str:
    """How to go on with these runs."""
    return "; ".join(run.command("resume") for run in runs)
