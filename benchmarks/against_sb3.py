"""Our SAC beside Stable-Baselines3's: the same task, widths, batch and update ratio, in turns.

    pip install stable-baselines3
    python benchmarks/against_sb3.py --env PointButton1 --seconds 20 --turns 3

Prints the steps per second of each in its best turn, and their ratio; every step has one gradient
round. Ours learns a cost critic besides, which nobody asks. The package is no dependency of algd.
"""

# pyright: reportMissingImports=false

import argparse
import dataclasses
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import gymnasium
from gymnasium.envs.registration import EnvSpec

from algd.algorithms import preset
from algd.envs import find
from algd.runs.config import Settings
from algd.training import loop

WIDTH, BATCH, PREFILL = 256, 256, 500
# Past these steps everything is compiled and warm.
WARM = PREFILL + 200
# More than any turn takes.
STEPS = 1_000_000


class Enough(Exception):
    """The time of this turn is over."""


class Stopwatch:
    """Counts steps from the first that is warm until the time is over."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        self.first: tuple[float, int] | None = None
        self.speed = 0.0

    def at(self, step: int) -> bool:
        """Whether to go on behind this step."""
        now = time.perf_counter()
        if step < WARM:
            return True
        if self.first is None:
            self.first = (now, step)
        begun, before = self.first
        if now - begun < self.seconds:
            return True
        self.speed = (step - before) / (now - begun)
        return False


def ours(env: str, seconds: float, overlap: bool) -> float:
    """Steps per second of our preset `sac`."""
    algorithm: Any = dataclasses.replace(
        preset("sac"),
        batch_size=BATCH,
        critic_hidden=WIDTH,
        actor_hidden=WIDTH,
        cost_ensemble=1,
        updates_per_step=1.0,
        prefill=PREFILL,
    )
    watch = Stopwatch(seconds)

    def report(progress: loop.Progress) -> None:
        if not watch.at(progress.step):
            raise Enough

    settings = Settings(env=env, envs=1, steps=STEPS, overlap=overlap, eval_every=STEPS)
    with tempfile.TemporaryDirectory(prefix="against-sb3-") as folder, suppress(Enough):
        loop.train(settings, algorithm, "sac", Path(folder) / "run", report)
    return watch.speed


def theirs(env: str, seconds: float) -> float:
    """Steps per second of Stable-Baselines3's SAC."""
    from stable_baselines3 import SAC
    from stable_baselines3.common.callbacks import BaseCallback

    watch = Stopwatch(seconds)

    class Watch(BaseCallback):
        def _on_step(self) -> bool:
            return watch.at(self.num_timesteps)

    agent = SAC(
        "MlpPolicy",
        gymnasium.make(cast(EnvSpec, find(env))),
        batch_size=BATCH,
        policy_kwargs={"net_arch": [WIDTH, WIDTH]},
        train_freq=1,
        gradient_steps=1,
        learning_starts=PREFILL,
        # As large as ours.
        buffer_size=STEPS,
        device="cpu",
    )
    agent.learn(STEPS, callback=Watch())
    return watch.speed


def main() -> int:
    """Time both in turns and print the ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--env", default="PointButton1")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--overlap", action="store_true", help="as `algd train --overlap`")
    given = parser.parse_args()
    try:
        import stable_baselines3
    except ImportError:
        print("Stable-Baselines3 is not installed: pip install stable-baselines3", file=sys.stderr)
        return 1
    runs: dict[str, Callable[[], float]] = {
        "algd sac": lambda: ours(given.env, given.seconds, given.overlap),
        f"stable-baselines3 {stable_baselines3.__version__}": lambda: theirs(
            given.env, given.seconds
        ),
    }
    best = dict.fromkeys(runs, 0.0)
    for _ in range(given.turns):
        for name, run in runs.items():
            best[name] = max(best[name], run())
    for name, speed in best.items():
        print(f"{name:30s} {speed:8.1f} steps/s")
    own, other = best.values()
    print(f"ratio {own / other:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
