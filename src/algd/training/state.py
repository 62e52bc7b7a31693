"""A run in progress: what stays as it is, and all that training changes."""

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Key

from algd.runs.checkpoint import Counters, PendingUpdate, Snapshot
from algd.runs.config import NOTHING_MORE, Given, Settings, close, kept_transitions, make_envs
from algd.runs.directory import Run
from algd.training.replay import Replay, example, init_replay, init_rollout
from algd.training.seeds import stack
from algd.training.statistics import EpisodeStatistics, no_episodes
from algd.training.timing import Stopwatch
from algd.training.updates import fresh_state, replicate, sample_actions
from algd.training.warm_start import warm_start
from algd.types import (
    Algorithm,
    CostVectorEnv,
    EnvSpec,
    Metrics,
    ReplayOptions,
    RolloutOptions,
    Transition,
)


@dataclasses.dataclass(frozen=True)
class Setup:
    """What stays as it is: the settings of the first seed, a run for each seed, and what the
    settings cannot say of the environment."""

    settings: Settings
    algorithm: Algorithm
    spec: EnvSpec
    runs: tuple[Run, ...]
    given: Given = NOTHING_MORE
    other_seeds: tuple[int, ...] = ()
    clock: Stopwatch = dataclasses.field(default_factory=Stopwatch)

    @property
    def seeds(self) -> int:
        """How many runs are trained in one program."""
        return len(self.runs)

    @property
    def seed_of(self) -> tuple[int, ...]:
        """The seed of each run."""
        return (self.settings.seed, *self.other_seeds)

    @cached_property
    def eval_envs(self) -> CostVectorEnv:
        """Environments that training never uses, made when they are first needed."""
        settings = self.settings
        copies = min(settings.eval_episodes, settings.eval_envs)
        return make_envs(settings, copies, self.given)

    def close(self) -> None:
        """Close the environments of evaluations, if there are any."""
        if "eval_envs" in vars(self):
            close(self.eval_envs)


class TrainState(NamedTuple):
    """All that training changes.

    The arrays of several seeds have a leading axis of seeds on the device; what lives on the host
    has one entry for each seed. `collected` counts the vector steps in the `rollout`. `metrics` are
    those of gradient rounds that may still be running, `stored` is how many transitions are on the
    disk. `stride` bounds the vector steps of one call, where a program takes several.
    """

    learner: Any
    replay: Replay | None
    key: Key[Array, "*seeds"]
    counters: Counters
    rollout: Transition | None
    collected: int
    pending: PendingUpdate | None
    metrics: Metrics
    obs: Float[np.ndarray, "*seeds envs obs"]
    envs: tuple[CostVectorEnv, ...]
    statistics: tuple[EpisodeStatistics, ...]
    stored: tuple[int, ...]
    stride: int = 1

    @property
    def step(self) -> int:
        """Environment steps so far."""
        return self.counters.step


def empty_rollout(setup: Setup, learner: Any) -> Transition | None:
    """Room for the steps of one on-policy update."""
    settings, algorithm, spec = setup.settings, setup.algorithm, setup.spec
    if not isinstance(algorithm, RolloutOptions):
        return None
    copies, constraints = settings.envs, len(spec.budgets)
    obs = np.zeros((copies, spec.obs_size), np.float32)
    key = jax.random.key(0)
    _, extras = jax.eval_shape(lambda: sample_actions(algorithm, learner, obs, key, key, 0))
    extras |= {"cost_so_far": np.zeros((copies, constraints), np.float32)}
    extras |= {"keep": np.zeros(copies, np.bool_)}
    rows = -(-kept_transitions(settings, algorithm) // copies)
    return init_rollout(example(spec), rows, copies, extras)


def start(
    setup: Setup, envs: Sequence[CostVectorEnv], source: Snapshot | None = None
) -> TrainState:
    """Before the first step, with fresh networks or those of another run."""
    settings, algorithm, spec = setup.settings, setup.algorithm, setup.spec
    learners, keys = [], []
    for seed in setup.seed_of:
        init_key, key = jax.random.split(jax.random.key(seed))
        learner = fresh_state(algorithm, spec, init_key)
        learners.append(learner if source is None else warm_start(source, learner))
        keys.append(key)
    replay = None
    if isinstance(algorithm, ReplayOptions):
        slots = kept_transitions(settings, algorithm)
        replay = stack([init_replay(example(spec), slots) for _ in learners])
        replay = replicate(replay, settings.devices)
    return TrainState(
        learner=replicate(stack(learners), settings.devices),
        replay=replay,
        key=stack(keys),
        counters=Counters(),
        rollout=stack([empty_rollout(setup, learner) for learner in learners]),
        collected=0,
        pending=None,
        metrics={},
        obs=stack([env.reset(seed) for seed, env in zip(setup.seed_of, envs, strict=True)]),
        envs=tuple(envs),
        statistics=tuple(no_episodes(spec, settings.envs) for _ in learners),
        stored=(0,) * setup.seeds,
    )
