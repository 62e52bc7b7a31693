"""Gradient rounds as compiled programs, and how many of them a step is worth."""

from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PRNGKeyArray

from algd.training.replay import Replay, add, sample
from algd.types import EnvSpec, Metrics, Transition

T = TypeVar("T")

# XLA's fused products are slower on a CPU than its plain ones at these sizes, and LLVM's
# expensive passes double the compilation without making the program faster.
CPU_OPTIONS = {
    "xla_cpu_experimental_ynn_fusion_type": "",
    "xla_llvm_disable_expensive_passes": True,
}


# Storing and learning are two programs: in one, XLA copies the whole buffer in every call, because
# minibatches are read from it while it is overwritten.
store = partial(jax.jit, donate_argnames=("replay",))(add)


@partial(
    jax.jit,
    static_argnames=("algorithm", "rounds", "devices"),
    donate_argnames=("state",),
    compiler_options=CPU_OPTIONS,
)
def learn(
    algorithm: Any, state: Any, replay: Replay, key: PRNGKeyArray, rounds: int, devices: int = 1
) -> tuple[Any, Metrics]:
    """`rounds` gradient rounds on what is stored."""
    return gradient_rounds(algorithm, state, replay, key, rounds, devices)


def _mesh(devices: int) -> Mesh:
    return Mesh(np.array(jax.devices()[:devices]), ("data",))


def replicate(tree: T, devices: int) -> T:
    """A copy on each of the devices; nothing is done for one."""
    if devices == 1:
        return tree
    return jax.device_put(tree, NamedSharding(_mesh(devices), PartitionSpec()))


def shard(batch: Transition, devices: int) -> Transition:
    """Rows of the minibatch spread over the devices: each works on its own, and the compiler adds
    the sums over devices that gradients and means need."""
    if devices == 1:
        return batch
    rows = NamedSharding(_mesh(devices), PartitionSpec("data"))
    return jax.lax.with_sharding_constraint(batch, rows)


def gradient_rounds(
    algorithm: Any, state: Any, replay: Replay, key: PRNGKeyArray, rounds: int, devices: int = 1
) -> tuple[Any, Metrics]:
    """A scan of gradient rounds, each minibatch sharded among the devices; the metrics are
    their means."""
    keys = jax.vmap(jax.random.split)(jax.random.split(key, rounds))
    batches = jax.vmap(lambda k: sample(replay, algorithm.batch_size, k))(keys[:, 0])

    def one(state: Any, drawn: tuple[Transition, PRNGKeyArray]) -> tuple[Any, Metrics]:
        batch, key = drawn
        return algorithm.update(state, shard(batch, devices), key)

    state, metrics = jax.lax.scan(one, state, (batches, keys[:, 1]))
    return state, jax.tree.map(lambda x: jnp.mean(x, axis=0), metrics)


@partial(jax.jit, static_argnames=("algorithm",), donate_argnames=("state",))
def update_from_rollout(
    algorithm: Any, state: Any, batch: Transition, key: PRNGKeyArray
) -> tuple[Any, Metrics]:
    """One update on the steps just collected, `[time, envs, ...]`."""
    return algorithm.update(state, batch, key)


@partial(
    jax.jit,
    static_argnames=("algorithm", "spec"),
    # Run once: the threefry generator of stacked networks compiles four times faster like this.
    compiler_options={"xla_backend_optimization_level": 0},
)
def fresh_state(algorithm: Any, spec: EnvSpec, key: PRNGKeyArray) -> Any:
    """The algorithm's state before the first round."""
    return algorithm.init(spec, key)


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
