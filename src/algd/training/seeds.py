"""Several seeds of one run in one program, a step of each at a time.

States and buffers are stacked along a leading axis of seeds and the programs mapped over it. On an
accelerator, which one run's small networks leave idle, the others come nearly for nothing.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from algd.evaluation.acting import act, finite
from algd.training.replay import Replay, add
from algd.training.trainer import PendingUpdate, Trainer
from algd.training.updates import CPU_OPTIONS, gradient_rounds, update_from_rollout
from algd.types import Metrics, Transition


@partial(jax.jit, static_argnames=("algorithm",))
def act_each(
    algorithm: Any,
    states: Any,
    obs: Float[Array | np.ndarray, "seeds envs obs"],
    keys: Key[Array, " seeds"],
) -> tuple[Float[Array, "seeds envs action"], dict[str, Array]]:
    """Every seed's sampled actions."""
    return jax.vmap(lambda s, o, k: act(algorithm, s, o, k, "sampled"))(states, obs, keys)


@partial(jax.jit, donate_argnames=("replays",))
def store_each(
    replays: Replay, fresh: Transition, keep: Bool[Array | np.ndarray, "seeds envs"]
) -> Replay:
    """Every seed's transitions stored."""
    return jax.vmap(add)(replays, fresh, keep)


@partial(
    jax.jit,
    static_argnames=("algorithm", "rounds"),
    donate_argnames=("states",),
    compiler_options=CPU_OPTIONS,
)
def learn_each(
    algorithm: Any, states: Any, replays: Replay, keys: Key[Array, " seeds"], rounds: int
) -> tuple[Any, Metrics]:
    """Every seed's gradient rounds."""
    return jax.vmap(lambda s, r, k: gradient_rounds(algorithm, s, r, k, rounds))(
        states, replays, keys
    )


@partial(jax.jit, static_argnames=("algorithm",), donate_argnames=("states",))
def learn_each_rollout(
    algorithm: Any, states: Any, batches: Transition, keys: Key[Array, " seeds"]
) -> tuple[Any, Metrics]:
    """Every seed's update on the steps just collected."""
    return jax.vmap(partial(update_from_rollout, algorithm))(states, batches, keys)


def stacked(trees: Sequence[Any]) -> Any:
    """Trees of equal structure as one with a leading axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def part(tree: Any, index: int) -> Any:
    """One seed's part of a stacked tree."""
    return jax.tree.map(lambda x: x[index], tree)


class SeedBatch:
    """Trainers that differ by their seed alone; states and buffers live here, stacked."""

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        self.trainers = trainers
        for trainer in trainers:
            trainer.clock = trainers[0].clock
        self.algorithm = trainers[0].algorithm
        self.states = stacked([trainer.state for trainer in trainers])
        self.replays = stacked([trainer.replay for trainer in trainers])

    def iterate(self) -> None:
        """One step of every copy of every seed and the gradient rounds it is worth."""
        trainers = self.trainers
        clock = trainers[0].clock
        with clock("waiting"):
            for trainer in trainers:
                trainer.fold_pending()
        with clock("acting"):
            inputs = [trainer.policy_input() for trainer in trainers]
            keys = [trainer.keys() for trainer in trainers]
            act_keys = jnp.stack([act_key for act_key, _ in keys])
            actions, extras = act_each(self.algorithm, self.states, np.stack(inputs), act_keys)
            on_host = np.asarray(actions)
            host_actions = [
                trainer.or_stop(partial(finite, mine))
                for trainer, mine in zip(trainers, on_host, strict=True)
            ]
        lessons = [
            trainer.take(obs, actions[i], host_actions[i], part(extras, i), key)
            for i, (trainer, obs, (_, key)) in enumerate(zip(trainers, inputs, keys, strict=True))
        ]
        with clock("update"):
            self.learn(lessons)

    def learn(self, lessons: Sequence[PendingUpdate]) -> None:
        """Start every seed's gradient rounds."""
        trainers = self.trainers
        learn_keys = jnp.stack([lesson.key for lesson in lessons])
        metrics: Metrics = {}
        if self.algorithm.data == "replay":
            fresh = stacked([lesson.fresh for lesson in lessons])
            keep = np.stack([lesson.keep for lesson in lessons])
            self.replays = store_each(self.replays, fresh, keep)
            if lessons[0].rounds:
                self.states, metrics = learn_each(
                    self.algorithm, self.states, self.replays, learn_keys, lessons[0].rounds
                )
        else:
            batches = [t.full_rollout(lesson) for t, lesson in zip(trainers, lessons, strict=True)]
            if batches[0] is not None:
                self.states, metrics = learn_each_rollout(
                    self.algorithm, self.states, stacked(batches), learn_keys
                )
        if metrics:
            for i, trainer in enumerate(trainers):
                trainer.pending = part(metrics, i)

    def settle(self) -> None:
        """Give every trainer its own state and buffer, before it evaluates or saves them."""
        for i, trainer in enumerate(self.trainers):
            trainer.state, trainer.replay = part(self.states, i), part(self.replays, i)
