"""What a run costs, from a short measurement: processor time, and room on the disk."""

import dataclasses
import json
import tempfile
import time
import timeit
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from algd.algorithms import state_shapes
from algd.runs.config import kept_transitions, make_envs, with_loop
from algd.runs.directory import KEEP, Run
from algd.runs.files import LARGEST_RECORD, read_whole, write_atomically
from algd.sweeps.executors import answer, start
from algd.sweeps.plan import Job
from algd.training import state as training_state
from algd.training.device import run_program
from algd.training.state import Setup, TrainState
from algd.training.steps import evaluate, iterate
from algd.types import Algorithm, ReplayOptions, RolloutOptions, UserError

# Iterations until every program is compiled.
WARM_UP = 6
# What a checkpoint adds to each array, for its name and shape.
BYTES_PER_ARRAY = 300


class Speed(NamedTuple):
    """Processor time on this machine, repeated measurements side by side."""

    seconds_per_step: list[float]
    """Of training, per environment step with its gradient rounds."""
    seconds_per_evaluation: list[float]
    """Of one evaluation during training."""

    def seconds(self, job: Job) -> float:
        """Of a whole run with all its evaluations."""
        evaluations = job.settings.steps / job.settings.eval_every + 1
        evaluations += job.episodes / job.settings.eval_episodes
        training = job.settings.steps * float(np.mean(self.seconds_per_step))
        return training + evaluations * float(np.mean(self.seconds_per_evaluation))


def measure(job: Job, cache: str | None, seconds: float = 2.0, repeats: int = 3) -> Speed:
    """Train for a moment and time it, once everything is compiled.

    Processor time does not count what other programs do. The prefill is cut short and the throttle
    left out, since a long run feels neither; rollouts are shortened, at the same cost per step.
    """
    if cache:
        jax.config.update("jax_compilation_cache_dir", cache)
    algorithm = _without_warm_up(job)
    environments = make_envs(job.settings, job.settings.envs)
    with tempfile.TemporaryDirectory() as folder:
        settings = with_loop(job.settings, environments)
        setup = Setup(settings, algorithm, environments.spec, (Run(Path(folder)),))
        state = training_state.start(setup, [environments])
        rollout = algorithm.rollout_steps if isinstance(algorithm, RolloutOptions) else 0
        # Twice around: the second pass meets every program compiled.
        for _ in range(max(-(-2 * rollout // job.settings.envs), WARM_UP)):
            state = _advance(setup, state)
        per_step: list[float] = []
        for _ in range(repeats):
            state, spent = _seconds_per_step(setup, state, rollout, seconds / repeats)
            per_step.append(spent)
        evaluate(setup, state)
        judge = partial(evaluate, setup, state)
        per_evaluation = timeit.repeat(judge, timer=time.process_time, repeat=repeats, number=1)
    return Speed(per_step, per_evaluation)


def _without_warm_up(job: Job) -> Algorithm:
    algorithm = job.algorithm
    if isinstance(algorithm, ReplayOptions):
        return dataclasses.replace(algorithm, prefill=job.settings.envs, throttle=0)
    # A few minibatches are enough, and must be whole vector steps.
    shortest = -(-4 * getattr(algorithm, "minibatch", 64) // job.settings.envs)
    return dataclasses.replace(
        algorithm, rollout_steps=min(algorithm.kept, shortest * job.settings.envs)
    )


def _seconds_per_step(
    setup: Setup, state: TrainState, rollout: int, at_least: float
) -> tuple[TrainState, float]:
    """Over whole rollouts where the algorithm learns from these."""
    stride = max(rollout // setup.settings.envs, 1)
    before, clock, wall = state.step, time.process_time(), time.monotonic()
    while time.monotonic() - wall < at_least or state.step == before:
        for _ in range(stride):
            state = _advance(setup, state)
    # What is still being computed belongs to these steps.
    jax.block_until_ready(state.learner)
    return state, (time.process_time() - clock) / (state.step - before)


def _advance(setup: Setup, state: TrainState) -> TrainState:
    return (run_program if setup.settings.loop == "device" else iterate)(setup, state)


def label(job: Job) -> str:
    """What a run's speed depends on, by name: everything but the seed."""
    name = job.name.replace(f"-seed{job.settings.seed}", "", 1)
    return f"{name}, envs {job.settings.envs}"


Kind = Callable[[Job], str]
"""The name of what is alike in speed: runs of one name are measured once."""


def speeds(
    jobs: Sequence[Job],
    path: Path,
    threads: int,
    cache: str | None,
    announce: Callable[[str], None] = lambda text: None,
    kind: Kind = label,
) -> dict[str, Speed]:
    """The speed of each kind of run among the jobs, measured once and kept in a file."""
    known = known_speeds(path)
    missing = {kind(job): job for job in jobs if kind(job) not in known}
    for number, (name, job) in enumerate(missing.items(), 1):
        announce(f"measuring the speed of {name} ({number} of {len(missing)})")
        found = answer(start(measure, (job, cache), threads, None))
        if found is None:
            raise UserError(f"The speed of {name} could not be measured; see above.")
        known[name] = found
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(known, indent=2).encode())
    return known


def known_speeds(path: Path) -> dict[str, Speed]:
    """What was measured before; if the file is of another kind, nothing."""
    try:
        found = json.loads(read_whole(path, LARGEST_RECORD))
        return {name: Speed(*map(_times, values)) for name, values in found.items()}
    except (OSError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError):
        return {}


def _times(values: Any) -> list[float]:
    times = np.array(values, float)
    if times.ndim != 1 or not times.size or not ((times > 0.0) & np.isfinite(times)).all():
        raise ValueError("no measurement of time")
    return times.tolist()


def disk_bytes(job: Job) -> int:
    """What a finished run leaves on the disk at most: the newest checkpoints and that of the best
    evaluation, and the replay buffer."""
    spec = make_envs(job.settings, 1).spec
    leaves = jax.tree.leaves(state_shapes(job.algorithm, spec))
    networks = sum(leaf.size * leaf.dtype.itemsize + BYTES_PER_ARRAY for leaf in leaves)
    replayed = isinstance(job.algorithm, ReplayOptions)
    kept = kept_transitions(job.settings, job.algorithm) if replayed else 0
    return (KEEP + 1) * networks + kept * spec.transition_bytes
