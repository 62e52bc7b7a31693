"""Gradient rounds as compiled programs, and how many of them a step is worth."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PRNGKeyArray

from algd.replay import Replay, add, sample
from algd.types import (
    Metrics,
    Transition,
)

# XLA's fused products are slower on a CPU than its plain ones at these sizes, and LLVM's
# expensive passes double the compilation without making the program faster.
CPU_OPTIONS = {
    "xla_cpu_experimental_ynn_fusion_type": "",
    "xla_llvm_disable_expensive_passes": True,
}


@partial(
    jax.jit,
    static_argnames=("algorithm", "rounds"),
    donate_argnames=("state", "replay"),
    compiler_options=CPU_OPTIONS,
)
def store_and_learn(
    algorithm: Any,
    state: Any,
    replay: Replay,
    fresh: Transition,
    keep: Bool[Array, " envs"],
    key: PRNGKeyArray,
    rounds: int,
) -> tuple[Any, Replay, Metrics]:
    """Store fresh transitions, then `rounds` gradient rounds on minibatches drawn here."""
    replay = add(replay, fresh, keep)
    state, metrics = gradient_rounds(algorithm, state, replay, key, rounds)
    return state, replay, metrics


def gradient_rounds(
    algorithm: Any, state: Any, replay: Replay, key: PRNGKeyArray, rounds: int
) -> tuple[Any, Metrics]:
    """A scan of gradient rounds; the metrics are their means."""
    if rounds == 0:
        return state, {}

    def one(state: Any, key: PRNGKeyArray) -> tuple[Any, Metrics]:
        batch_key, update_key = jax.random.split(key)
        batch = sample(replay, algorithm.batch_size, batch_key)
        return algorithm.update(state, batch, update_key)

    state, metrics = jax.lax.scan(one, state, jax.random.split(key, rounds))
    return state, jax.tree.map(lambda x: jnp.mean(x, axis=0), metrics)


@partial(jax.jit, static_argnames=("algorithm",), donate_argnames=("state",))
def learn_from_rollout(
    algorithm: Any, state: Any, batch: Transition, key: PRNGKeyArray
) -> tuple[Any, Metrics]:
    """One update on the steps just collected, `[time, envs, ...]`."""
    return algorithm.update(state, batch, key)


def rounds_due(
    ratio: float, throttle: int, horizon: int, before: int, after: int, epoch_rounds: int
) -> int:
    """Gradient rounds owed for the steps from `before` to `after`, counted from the prefill's end.

    The throttle of the authors' program leaves out the rounds of a step while those of the epoch
    exceed `throttle` times all steps so far.
    """
    if after <= 0:
        return 0
    due = int(after * ratio) - int(max(before, 0) * ratio)
    if throttle and epoch_rounds > throttle * after:
        return 0
    return due
