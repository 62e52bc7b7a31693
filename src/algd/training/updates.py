"""Gradient rounds as compiled programs, and how many of them a step is worth."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray

from algd.evaluation.acting import explore
from algd.training.replay import Replay, add, put, sample, sample_stretches
from algd.training.seeds import over_seeds
from algd.types import (
    Algorithm,
    EnvSpec,
    EnvStep,
    LearnsFromEpisodes,
    LooksAhead,
    Metrics,
    ReplayOptions,
    Transition,
)

T = TypeVar("T")

# XLA's fused products are slower on a CPU than its plain ones at these sizes, and LLVM's
# expensive passes double the compilation without making the program faster.
CPU_OPTIONS = {
    "xla_cpu_experimental_ynn_fusion_type": "",
    "xla_llvm_disable_expensive_passes": True,
}


@partial(jax.jit, static_argnames=("seeds",))
def step_keys(
    key: Key[Array, "*seeds"], iteration: int | Int[Array, ""], seeds: int = 1
) -> tuple[Key[Array, "*seeds"], Key[Array, "*seeds"]]:
    """The random numbers of one iteration, for acting and for learning."""

    def one(key: PRNGKeyArray) -> tuple[PRNGKeyArray, PRNGKeyArray]:
        act_key, update_key = jax.random.split(jax.random.fold_in(key, iteration))
        return act_key, update_key

    return over_seeds(one, seeds)(key)


@partial(jax.jit, static_argnames=("algorithm", "seeds"))
def sample_actions(
    algorithm: Algorithm,
    learner: Any,
    obs: Float[Array | np.ndarray, "*seeds envs obs"],
    key: Key[Array, "*seeds"],
    run_key: Key[Array, "*seeds"],
    iteration: int | Int[Array, ""],
    seeds: int = 1,
) -> tuple[Float[Array, "*seeds envs action"], dict[str, Array]]:
    """An action of the policy for every copy, and what the update wants to know of it."""
    one = partial(explore, algorithm, iteration=iteration)
    return over_seeds(one, seeds)(learner, obs, key, run_key)


@jax.jit
def make_transition(
    obs: Float[Array | np.ndarray, "*seeds envs obs"],
    action: Float[Array, "*seeds envs action"],
    result: EnvStep,
    extras: dict[str, Any],
) -> Transition:
    """A step of every copy on the device. One program takes all its arrays from the host at once,
    ten times faster than one after the other."""
    told = {name: jnp.asarray(x) for name, x in result._asdict().items() if name != "obs"}
    return Transition(obs=jnp.asarray(obs), action=action, **told, extras=extras, ahead=None)


# Storing and learning are two programs: in one, XLA copies the whole buffer in every call, because
# minibatches are read from it while it is overwritten.
@partial(jax.jit, static_argnames=("seeds",), donate_argnames=("replay",))
def store(
    replay: Replay, fresh: Transition, keep: Bool[Array | np.ndarray, "*seeds envs"], seeds: int = 1
) -> Replay:
    """The buffer with the rows to `keep`."""
    return over_seeds(add, seeds)(replay, fresh, keep)


@partial(jax.jit, static_argnames=("seeds",), donate_argnames=("rollout",))
def store_in_rollout(
    rollout: Transition, fresh: Transition, row: int | Int[Array, ""], seeds: int = 1
) -> Transition:
    """The rollout with one more row."""
    return over_seeds(lambda steps, new: put(steps, new, row), seeds)(rollout, fresh)


@partial(
    jax.jit,
    static_argnames=("algorithm", "rounds", "copies", "devices", "seeds"),
    donate_argnames=("learner",),
    compiler_options=CPU_OPTIONS,
)
def learn(
    algorithm: Algorithm,
    learner: Any,
    replay: Replay,
    key: Key[Array, "*seeds"],
    rounds: int,
    copies: int = 1,
    devices: int = 1,
    seeds: int = 1,
) -> tuple[Any, Metrics]:
    """`rounds` gradient rounds on what is stored of so many copies."""
    how = (rounds, copies, devices)
    one = lambda s, r, k: gradient_rounds(algorithm, s, r, k, *how)  # noqa: E731
    return over_seeds(one, seeds)(learner, replay, key)


@partial(jax.jit, static_argnames=("algorithm", "seeds"), donate_argnames=("learner",))
def learn_from_rollout(
    algorithm: Algorithm, learner: Any, batch: Transition, key: Key[Array, "*seeds"], seeds: int = 1
) -> tuple[Any, Metrics]:
    """One update on the steps just collected, `[time, envs, ...]`."""
    return over_seeds(algorithm.update, seeds)(learner, batch, key)


@partial(jax.jit, static_argnames=("algorithm", "seeds"), donate_argnames=("learner",))
def give_feedback(
    algorithm: LearnsFromEpisodes,
    learner: Any,
    cost: Float[Array | np.ndarray, "*seeds envs constraints"],
    ended: Int[Array | np.ndarray, "*seeds envs"],
    seeds: int = 1,
) -> Any:
    """Tell the algorithm what the episodes that ended have cost."""
    return over_seeds(algorithm.feedback, seeds)(learner, cost, ended)


def _mesh(devices: int) -> Mesh:
    return Mesh(np.array(jax.devices()[:devices]), ("data",))


def replicate(tree: T, devices: int) -> T:
    """A copy on each of the devices; nothing is done for one."""
    if devices == 1:
        return tree
    return jax.device_put(tree, NamedSharding(_mesh(devices), PartitionSpec()))


def sharded(batch: T, devices: int) -> T:
    """In a program, rows of the minibatch spread over the devices: each works on its own, and the
    compiler adds the sums over devices that gradients and means need."""
    return _laid_out(batch, devices, PartitionSpec("data"))


def replicated(batch: T, devices: int) -> T:
    """In a program, all rows on each of the devices."""
    return _laid_out(batch, devices, PartitionSpec())


def _laid_out(tree: T, devices: int, how: PartitionSpec) -> T:
    if devices == 1:
        return tree
    return jax.lax.with_sharding_constraint(tree, NamedSharding(_mesh(devices), how))


def gradient_rounds(
    algorithm: Algorithm,
    state: Any,
    replay: Replay,
    key: PRNGKeyArray,
    rounds: int | Int[Array, ""],
    copies: int = 1,
    devices: int = 1,
) -> tuple[Any, Metrics]:
    """A loop of gradient rounds on what so many copies did, each minibatch sharded among the
    devices; the metrics are their means."""
    assert isinstance(algorithm, ReplayOptions)

    def one(key: PRNGKeyArray, state: Any) -> tuple[Any, Metrics]:
        batch_key, update_key = jax.random.split(key)
        batch = sharded(_minibatch(algorithm, replay, copies, batch_key), devices)
        return algorithm.update(state, batch, update_key)

    return repeated(one, state, key, rounds)


def _minibatch(
    algorithm: ReplayOptions, replay: Replay, copies: int, key: PRNGKeyArray
) -> Transition:
    """Steps, or stretches of them if the algorithm looks ahead."""
    drawn = (replay, algorithm.batch_size, key)
    if not isinstance(algorithm, LooksAhead) or algorithm.n_step == 1:
        return sample(*drawn)
    discounts = (algorithm.discount, algorithm.cost_discount)
    return sample_stretches(*drawn, algorithm.n_step, copies, discounts, algorithm.goal_is_terminal)


def repeated(
    update: Callable[[PRNGKeyArray, Any], tuple[Any, Metrics]],
    state: Any,
    key: PRNGKeyArray,
    times: int | Int[Array, ""],
) -> tuple[Any, Metrics]:
    """So many updates, each with a key of its own, and the means of their metrics."""
    # Traced once, for its shapes and for the loop.
    update = jax.jit(update, inline=True)
    shapes = jax.eval_shape(update, key, state)[1]
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

    def one(i: Int[Array, ""], carry: tuple[Any, Metrics]) -> tuple[Any, Metrics]:
        state, sums = carry
        state, metrics = update(jax.random.fold_in(key, i), state)
        return state, jax.tree.map(jnp.add, sums, metrics)

    state, sums = jax.lax.fori_loop(0, times, one, (state, nothing))
    count = jnp.maximum(jnp.asarray(times, jnp.float32), 1.0)
    return state, jax.tree.map(lambda x: x / count, sums)


def if_due(
    update: Callable[[Any], tuple[Any, Metrics]], state: Any, times: Int[Array, ""]
) -> tuple[Any, Metrics]:
    """One update or none, whose metrics are zeros.

    A branch and not a loop: what an update computes from its data alone, XLA would take out of the
    loop and compute each time, due or not.
    """
    update = jax.jit(update, inline=True)
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(update, state)[1])
    return jax.lax.cond(times > 0, update, lambda state: (state, nothing), state)


@partial(
    jax.jit,
    static_argnames=("algorithm", "spec"),
    # Run once: the threefry generator of stacked networks compiles four times faster like this.
    compiler_options={"xla_backend_optimization_level": 0},
)
def fresh_state(algorithm: Algorithm, spec: EnvSpec, key: PRNGKeyArray) -> Any:
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
