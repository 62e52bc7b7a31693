"""One run of a sweep, on whichever machine: train it, or continue it, then judge its policy."""

import os
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax

from algd.evaluation.episodes import evaluate
from algd.evaluation.policy import load
from algd.evaluation.stats import summarise
from algd.runs import record
from algd.runs.config import Given, check_imported, make_envs, parse_config
from algd.runs.directory import Run, directory_name
from algd.runs.files import make_directory
from algd.sweeps.plan import Job, is_recorded, is_there
from algd.training import loop
from algd.training.loop import Interrupted, Progress
from algd.types import UserError

# The final policy is judged on episodes that no run was ever trained or chosen by.
EVALUATION_SEED = 12345
SECONDS_BETWEEN_BEATS = 1.0
# A process that lost its machine or its parent needs a moment until it lets go of its directory.
PATIENCE = 60.0
LONGEST_MESSAGE = 20_000


class Outcome(NamedTuple):
    """How a run ended, with what to tell about it."""

    kind: Literal["done", "failed", "stopped"]
    message: str = ""


class Beat(NamedTuple):
    """What progress.json says of a run: where it is, what it has cost so far, and whose it is."""

    step: int
    steps: int
    started_at: int
    seconds: float
    processor_seconds: float
    pid: int


def train_or_continue(job: Job, wanted: Callable[[], bool] = lambda: True) -> None:
    """Train the run if it is new, continue it if it is unfinished, return if it is complete."""
    run = Run(job.directory)
    if is_complete(job):
        return
    beat = Heartbeat(run, wanted)
    if not is_there(job):
        loop.train(job.settings, job.algorithm, job.preset, job.directory, beat)
    elif not is_trained(job):
        wait_for_lock(run)
        loop.resume(job.directory, report=beat, given=Given(job.settings.env))
    leave_evidence(job, job.record.path if job.record else None)


def leave_evidence(job: Job, path: Path | None) -> None:
    """Judge the policy of a trained run, unless that is done, and write its record."""
    run = Run(job.directory)
    if not is_judged(job):
        run.write_note(run.evaluation_path, judge(job))
    if path:
        make_directory(path.parent)
        record.write(run, path)


def keep(run: Run, records: Path, episodes: int) -> Path:
    """Write the record of a trained run, its policy judged first if no sweep has done it."""
    settings, algorithm, name = parse_config(run.config())
    check_imported(settings.env)
    judged = (run.evaluation() or {}).get("episodes", episodes)
    job = Job(run.directory, settings, algorithm, name, judged)
    if not is_trained(job):
        goes_on = run.command("resume")
        raise UserError(f"{run.directory} is unfinished. Go on with it first: {goes_on}")
    stem = directory_name(f"{settings.env}-{name}-seed{settings.seed}")
    # A sweep's runs are called after what is varied too.
    own = run.directory.resolve().name
    path = records / f"{own if own.startswith(stem) else stem}.json"
    leave_evidence(job, path)
    return path


def attempt(job: Job, cache: str | None, parent: int | None = None) -> Outcome:
    """Do the work; what goes wrong is written to the job's log and told, not raised.

    `cache` is where compiled programs are kept; without its `parent` process a run saves and stops.
    """
    if cache:
        jax.config.update("jax_compilation_cache_dir", cache)
    try:
        train_or_continue(job, lambda: parent in (None, os.getppid()))
        return Outcome("done")
    except Interrupted as stop:
        return Outcome("stopped", str(stop))
    except Exception as error:
        job.log_path.parent.mkdir(parents=True, exist_ok=True)
        with job.log_path.open("a", encoding="utf-8") as log:
            log.write(traceback.format_exc())
        message = str(error) if isinstance(error, UserError) else traceback.format_exc()
        return Outcome("failed", message[-LONGEST_MESSAGE:])


class Heartbeat:
    """Leaves a run's progress in its directory every second, and stops it if nobody wants it."""

    def __init__(self, run: Run, wanted: Callable[[], bool]) -> None:
        self.run, self.wanted = run, wanted
        earlier = last_beat(run.directory)
        self.spent = earlier.processor_seconds if earlier else 0.0
        self.clock, self.last, self.stopped = time.process_time(), 0.0, False

    def __call__(self, progress: Progress) -> None:
        """Called after every vector step."""
        now = time.monotonic()
        if now - self.last < SECONDS_BETWEEN_BEATS and progress.step < progress.steps:
            return
        self.last = now
        spent = self.spent + time.process_time() - self.clock
        at, clock = (progress.step, progress.steps, progress.started_at), progress.seconds
        beat = Beat(*at, clock, spent, os.getpid())
        # Windows replaces no file that somebody reads; the next beat will.
        with self.run.writing(), suppress(PermissionError):
            self.run.write_note(self.run.progress_path, beat._asdict())
        if not self.stopped and not self.wanted():
            self.stopped = True
            # Training catches it, and leaves a checkpoint of this very step.
            signal.raise_signal(signal.SIGTERM)


def last_beat(directory: Path) -> Beat | None:
    """How far a run is, if it has said so."""
    run = Run(directory)
    found = run.read_note(run.progress_path) or {}
    values = [found.get(name) for name in Beat._fields]
    sound = all(type(value) in (int, float) for value in values)
    return Beat._make(values) if sound else None


def is_trained(job: Job) -> bool:
    """Whether the run has come to its last step and its last evaluation."""
    run = Run(job.directory)
    checkpoints = run.checkpoints()
    if not checkpoints or checkpoints[-1][0] < job.settings.steps:
        return False
    try:
        rows = run.rows("eval")
    except UserError:
        # Going on with the run will say what is wrong with it.
        return False
    return bool(rows) and rows[-1]["step"] >= job.settings.steps


def is_complete(job: Job) -> bool:
    """Whether the wanted run has its record, or is there, trained and judged."""
    return is_recorded(job) or (is_there(job) and is_trained(job) and is_judged(job))


def is_judged(job: Job) -> bool:
    """Whether the final policy was judged by as many episodes as wanted."""
    found = Run(job.directory).evaluation() or {}
    return (found.get("step"), found.get("episodes")) == (_last_step(job), job.episodes)


def judge(job: Job) -> dict[str, Any]:
    """Roll out the final policy on fresh episodes."""
    policy = load(job.directory)
    episodes = evaluate(
        job.algorithm,
        policy.state,
        make_envs(job.settings, min(job.episodes, 25)),
        job.episodes,
        EVALUATION_SEED,
        discount=job.algorithm.cost_discount,
        bad_steps=job.settings.bad_steps,
    )
    return {"step": _last_step(job), "seed": EVALUATION_SEED} | summarise(episodes, policy.spec)


def _last_step(job: Job) -> int:
    return Run(job.directory).checkpoints()[-1][0]


def wait_for_lock(run: Run, patience: float = PATIENCE) -> None:
    """Wait until the process that had the run before is gone."""
    deadline = time.monotonic() + patience
    while True:
        try:
            with run.lock():
                return
        except UserError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
