"""Training with environments on the host and on the device, in turns."""

import dataclasses
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import jax

from algd.algorithms import preset
from algd.runs.config import Settings, make_envs
from algd.runs.directory import Run
from algd.training.device import run_program
from algd.training.state import Setup, TrainState, start
from algd.training.steps import evaluate, iterate
from algd.types import Algorithm, ReplayOptions, RolloutOptions

# Presets with numbers of copies.
CASES = (("sac-lag", 4), ("algd", 4), ("ppo-lag", 4), ("ppo-lag-wide", 1_024))
EPISODES = 1_000
TURNS = 5
ADVANCE: dict[str, Callable[[Setup, TrainState], TrainState]] = {
    "host": iterate,
    "device": run_program,
}


def bench_loop(
    names: Sequence[str], seconds: float = 15.0, tell: Callable[[str], None] = lambda what: None
) -> list[dict[str, Any]]:
    """A row for each preset with its copies on DiffDrive, and one for an evaluation by the first.

    `steps_per_second` are environment steps with their gradient rounds; of an evaluation, steps of
    1,000 episodes. Both loops take turns of about `seconds` in all; given are the medians over the
    turns, also of the `ratio`. `compile_seconds` are what JAX spent on tracing and compiling.
    """
    cases = [case for case in CASES if case[0] in names] if names else list(CASES)
    cases += [(name, 4) for name in names if name not in dict(CASES)]
    rows = []
    for name, copies in cases:
        tell(f"{name} with {copies} copies")
        rows.append(_both("training", name, copies, seconds))
    tell(f"{EPISODES:,} episodes")
    return [*rows, _both("evaluation", cases[0][0], EPISODES, seconds)]


def _both(part: str, name: str, copies: int, seconds: float) -> dict[str, Any]:
    training = part == "training"
    algorithm = _ready(preset(name), copies)
    with tempfile.TemporaryDirectory(prefix="bench-loop-") as folder:
        setups = {w: _setup(w, algorithm, copies if training else 4, folder) for w in ADVANCE}
        turn = _turn if training else _evaluation
        states, compiled = {}, {}
        for which, setup in setups.items():
            clock = CompileClock()
            states[which] = start(setup, [make_envs(setup.settings, setup.settings.envs)])
            # Until the program takes as many steps at a time as it is going to.
            for _ in range(2):
                states[which], _ = turn(setup, states[which], seconds / TURNS)
            compiled[which] = clock.stop()
        rates = {which: [] for which in ADVANCE}
        for _ in range(TURNS):
            for which, setup in setups.items():
                states[which], rate = turn(setup, states[which], seconds / TURNS / 2)
                rates[which].append(rate)
    ratios = [d / h for h, d in zip(rates["host"], rates["device"], strict=True)]
    return {
        "part": part,
        "preset": name,
        "copies": copies,
        "host_steps_per_second": median(rates["host"]),
        "device_steps_per_second": median(rates["device"]),
        "ratio": median(ratios),
        "host_compile_seconds": compiled["host"],
        "device_compile_seconds": compiled["device"],
    }


def _ready(algorithm: Algorithm, copies: int) -> Algorithm:
    """With gradient rounds from the start, and rollouts that are soon full: a step is worth as much
    learning in a short one as in a long one."""
    if isinstance(algorithm, ReplayOptions):
        return dataclasses.replace(algorithm, prefill=algorithm.batch_size, replay_size=100_000)
    assert isinstance(algorithm, RolloutOptions)
    steps = min(algorithm.rollout_steps, max(2_000, 32 * copies))
    return dataclasses.replace(algorithm, rollout_steps=steps)


def _setup(which: Any, algorithm: Algorithm, copies: int, folder: str) -> Setup:
    # A turn ends with a whole rollout, which a row of metrics must not cut.
    rollout = -(-algorithm.kept // copies) * copies
    every = 500 if isinstance(algorithm, ReplayOptions) else rollout
    rows = dict.fromkeys(("log_every", "eval_every", "checkpoint_every"), every)
    settings = Settings(envs=copies, steps=2**30, eval_episodes=EPISODES, loop=which, **rows)
    spec = make_envs(settings, 1).spec
    return Setup(settings, algorithm, spec, (Run(Path(folder) / which),))


def _turn(setup: Setup, state: TrainState, seconds: float) -> tuple[TrainState, float]:
    """Train for so long, to the end of a rollout where there are any."""
    advance = ADVANCE[setup.settings.loop or "host"]
    before, begun = state.step, time.perf_counter()
    while time.perf_counter() - begun < seconds or state.collected or state.step == before:
        state = advance(setup, state)
    jax.block_until_ready(state.learner)
    return state, (state.step - before) / (time.perf_counter() - begun)


def _evaluation(setup: Setup, state: TrainState, seconds: float) -> tuple[TrainState, float]:
    """Judge once."""
    begun = time.perf_counter()
    state, (row,) = evaluate(setup, state)
    return state, EPISODES * row["length"] / (time.perf_counter() - begun)


class CompileClock:
    """What JAX spends on tracing and compiling from now on."""

    def __init__(self) -> None:
        self.seconds = 0.0
        jax.monitoring.register_event_duration_secs_listener(self._hear)

    def _hear(self, event: str, duration_secs: float, **kwargs: Any) -> None:
        if event.startswith("/jax/core/compile/"):
            self.seconds += duration_secs

    def stop(self) -> float:
        """The sum so far; nothing is added any more."""
        jax.monitoring.unregister_event_duration_listener(self._hear)
        return self.seconds
