"""Measure what checkpoints cost beside the training between them.

    python scripts/checkpoint_cost.py

At the default interval and preset: the time of the environment steps and gradient rounds between
two checkpoints, and the time of a checkpoint with a buffer that has just begun to fill and with
one that is full. Prints one JSON object per size.
"""

import dataclasses
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import tyro

from algd.algorithms import preset
from algd.runs.checkpoint import Counters
from algd.runs.config import Settings, make_envs
from algd.runs.directory import create_run
from algd.runs.files import LogPosition
from algd.training.checkpointing import save
from algd.training.replay import Replay
from algd.training.state import Setup, TrainState, start
from algd.training.steps import iterate


@dataclass(frozen=True)
class Measure:
    """What to measure."""

    preset: str = "algd"
    """The algorithm."""
    env: str = "DiffDrive"
    """The task."""
    sizes: tuple[int, ...] = (20_000, 1_000_000)
    """Transitions in the buffer."""
    steps: int = 400
    """Environment steps whose time is taken."""


def cost_of(measure: Measure, size: int, folder: Path) -> dict[str, Any]:
    """The share of checkpoints in the training time with a full buffer of this size."""
    algorithm: Any = dataclasses.replace(preset(measure.preset), replay_size=size, prefill=0)  # pyright: ignore
    settings = Settings(env=measure.env, steps=2**31 - 1)
    run = create_run(folder / str(size))
    run.write_config({})
    run.metrics_path.touch()
    environments = make_envs(settings, settings.envs)
    setup = Setup(settings, algorithm, environments.spec, (run,))

    def with_added(state: TrainState, added: int) -> TrainState:
        assert state.replay is not None
        return state._replace(replay=Replay(state.replay.data, jnp.asarray(added, jnp.int32)))

    # As if all but the last interval had been collected and stored by earlier checkpoints.
    state = with_added(start(setup, [environments]), size)
    state = state._replace(counters=Counters(step=size), stored=(size,))
    state = iterate(setup, state)
    jax.block_until_ready(state.replay)
    begun, before = time.perf_counter(), state.step
    while state.step < before + measure.steps:
        state = iterate(setup, state)
    jax.block_until_ready(state.replay)
    per_step = (time.perf_counter() - begun) / measure.steps
    interval = settings.checkpoint_every
    state = with_added(state, size + interval)
    begun = time.perf_counter()
    save(setup, state, [LogPosition()])
    checkpoint = time.perf_counter() - begun
    written = sum(path.stat().st_size for path in run.directory.rglob("*.algd"))
    return {
        "transitions": size,
        "interval_steps": interval,
        "training_seconds": round(per_step * interval, 2),
        "checkpoint_seconds": round(checkpoint, 3),
        "megabytes_written": round(written / 1e6, 2),
        "share_percent": round(100 * checkpoint / (checkpoint + per_step * interval), 3),
    }


if __name__ == "__main__":
    chosen = tyro.cli(Measure, description=__doc__)
    with tempfile.TemporaryDirectory(prefix="checkpoint_cost-") as name:
        for size in chosen.sizes:
            print(json.dumps(cost_of(chosen, size, Path(name))), flush=True)
