"""The training loop as one program, for environments written in JAX: nothing leaves the device
between two rows of metrics."""

import time
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key, PRNGKeyArray

from algd.envs.jax_vector import Copies, JaxVectorEnv, advance
from algd.evaluation.acting import explore
from algd.evaluation.episodes import FAULTS, broken_steps, gone_on, not_finite
from algd.runs.checkpoint import Counters
from algd.training.replay import Replay, add, put
from algd.training.seeds import over_seeds, split, stack
from algd.training.state import Setup, TrainState
from algd.training.statistics import Running, Tally, count_steps, count_updates, tally_step
from algd.training.steps import Diverged, advance_counters, next_row, without_broken
from algd.training.updates import (
    CPU_OPTIONS,
    gradient_rounds,
    if_due,
    make_transition,
    replicated,
    sharded,
    step_keys,
)
from algd.types import Algorithm, EnvSpec, JaxEnv, LearnsFromEpisodes, Metrics, Transition

# A signal waits for the program to return: seconds that one call should take at most.
PATIENCE = 0.5


class Carry(NamedTuple):
    """What a vector step changes."""

    learner: Any
    replay: Replay | None
    rollout: Transition | None
    copies: Copies
    running: Running


class Log(NamedTuple):
    """What the host learns of a vector step."""

    tally: Tally
    metrics: Metrics
    faults: Bool[Array, " kinds"]


def run_program(setup: Setup, state: TrainState) -> TrainState:
    """Some vector steps with the gradient rounds they are worth, at most to the next row of
    metrics, evaluation or checkpoint. How many they are makes no difference to the numbers."""
    settings, seeds = setup.settings, setup.seeds
    rounds, counters, collected = plan(setup, state)
    envs: list[Any] = [env for env in state.envs if isinstance(env, JaxVectorEnv)]
    running = [
        Running(*(x.astype(np.int32 if x.dtype.kind == "i" else np.float32) for x in sums.running))
        for sums in state.statistics
    ]
    carry = Carry(
        state.learner,
        state.replay,
        state.rollout,
        stack([env.copies for env in envs]),
        stack(running),
    )
    begun = time.perf_counter()
    with setup.clock("device"):
        due = np.zeros(program_length(setup), np.int32)
        due[: len(rounds)] = rounds
        carry, log = vector_steps(
            setup.algorithm,
            envs[0].env,
            setup.spec,
            carry,
            state.key,
            due,
            np.array([state.counters.iteration, state.collected, len(rounds)], np.int32),
            settings.devices,
            seeds,
        )
        running, log, obs = jax.device_get((carry.running, log, carry.copies.state.obs))
    took = time.perf_counter() - begun
    for env, copies in zip(envs, split(carry.copies, seeds), strict=True):
        env.copies = copies
    learnt = np.asarray(rounds) > 0
    statistics = []
    parts = zip(state.statistics, split(running, seeds), split(log, seeds), strict=True)
    for sums, episodes, told in parts:
        told = jax.tree.map(lambda x: x[: len(rounds)], told)
        _stop_at_faults(setup, state, told.faults)
        sums = count_steps(sums, episodes, told.tally)
        metrics = {name: x[learnt] for name, x in told.metrics.items()}
        statistics.append(count_updates(sums, metrics, int(learnt.sum())))
    return state._replace(
        learner=carry.learner,
        replay=carry.replay,
        rollout=carry.rollout,
        counters=counters,
        collected=collected,
        obs=obs,
        statistics=tuple(statistics),
        stride=_next_stride(state.stride, took),
    )


def _next_stride(stride: int, seconds: float) -> int:
    """More vector steps in the next call if this one was short, fewer if it was long."""
    if seconds < PATIENCE:
        return 2 * stride if 2 * seconds < PATIENCE else stride
    return -(-stride // 2)


def program_length(setup: Setup) -> int:
    """The most vector steps between two rows."""
    settings = setup.settings
    most = min(settings.log_every, settings.eval_every, settings.checkpoint_every)
    return min(-(-most // settings.envs), 4_096)


def plan(setup: Setup, state: TrainState) -> tuple[list[int], Counters, int]:
    """The updates behind each of the next vector steps, and the counters behind all of them."""
    settings, counters, collected = setup.settings, state.counters, state.collected
    every = (settings.log_every, settings.eval_every, settings.checkpoint_every, settings.steps)
    begun, rounds = [state.step // n for n in every], []
    while [counters.step // n for n in every] == begun:
        counters, due = advance_counters(setup, counters)
        if state.rollout is not None:
            collected, full = next_row(setup, collected)
            due = int(full)
        rounds.append(due)
        if len(rounds) == min(state.stride, program_length(setup)):
            break
    return rounds, counters, collected


@partial(
    jax.jit,
    static_argnames=("algorithm", "env", "spec", "devices", "seeds"),
    donate_argnames=("carry",),
    compiler_options=CPU_OPTIONS,
)
def vector_steps(
    algorithm: Algorithm,
    env: JaxEnv,
    spec: EnvSpec,
    carry: Carry,
    key: Key[Array, "*seeds"],
    rounds: Int[Array | np.ndarray, " most"],
    numbers: Int[Array | np.ndarray, "3"],
    devices: int,
    seeds: int,
) -> tuple[Carry, Log]:
    """A loop of vector steps, `rounds` updates behind each; `numbers` are those of the first
    iteration, of the steps already in the rollout, and of the steps to take."""
    first, collected, count = numbers
    # Traced once, for its shapes and for the loop.
    one = jax.jit(partial(vector_step, algorithm, env, spec, devices), inline=True)

    def steps(carry: Carry, key: PRNGKeyArray) -> tuple[Carry, Log]:
        shapes = jax.eval_shape(one, carry, key, first, first, first)[1]
        log = jax.tree.map(lambda x: jnp.zeros((len(rounds), *x.shape), x.dtype), shapes)

        def body(i: Int[Array, ""], both: tuple[Carry, Log]) -> tuple[Carry, Log]:
            carry, log = both
            carry, told = one(carry, key, first + i, collected + i, rounds[i])
            return carry, jax.tree.map(lambda store, new: store.at[i].set(new), log, told)

        return jax.lax.fori_loop(0, count, body, (carry, log))

    return over_seeds(steps, seeds)(carry, key)


def vector_step(
    algorithm: Algorithm,
    env: JaxEnv,
    spec: EnvSpec,
    devices: int,
    carry: Carry,
    key: PRNGKeyArray,
    iteration: Int[Array, ""],
    row: Int[Array, ""],
    rounds: Int[Array, ""],
) -> tuple[Carry, Log]:
    """Act, step every copy, store, and learn: what `collect` and `update` do from the host."""
    learner, replay, rollout, copies, running = carry
    act_key, update_key = step_keys(key, iteration)
    seen = copies.state.obs
    obs = jnp.nan_to_num(seen, posinf=0.0, neginf=0.0)
    action, extras = explore(algorithm, learner, obs, act_key, key, iteration)
    copies, result = advance(env, spec, copies, action)
    copies = copies._replace(state=sharded(copies.state, devices))
    broken = {"action": ~jnp.isfinite(action).all(axis=1)} | broken_steps(result, jnp)
    keep = ~jnp.any(jnp.stack([*broken.values(), ~jnp.isfinite(seen).all(axis=1)]), axis=0)
    ends, lengths = result.terminated | result.truncated, running.length + 1
    running, tally, cost_so_far = tally_step(
        running, result, keep, spec, algorithm.cost_discount, jnp
    )
    if isinstance(algorithm, LearnsFromEpisodes):
        cost = cost_so_far
        if algorithm.rates_go_on:
            cost = gone_on(cost, lengths, spec, algorithm.cost_discount, jnp)
        learner = algorithm.feedback(learner, cost, jnp.where(ends, lengths, 0))
    told = {} if rollout is None else {"cost_so_far": cost_so_far, "keep": keep}
    kept = without_broken(result, keep, jnp)
    fresh = replicated(make_transition(obs, action, kept, extras | told), devices)
    if replay is not None:
        replay = add(replay, fresh, keep)
        how = (rounds, len(ends), devices)
        learner, metrics = gradient_rounds(algorithm, learner, replay, update_key, *how)
    else:
        assert rollout is not None
        rollout = put(rollout, fresh, row % len(rollout.reward))
        learner, metrics = if_due(
            lambda learner: algorithm.update(learner, rollout, update_key), learner, rounds
        )
    faults = jnp.stack([broken[kind].any() for kind in FAULTS])
    return Carry(learner, replay, rollout, copies, running), Log(tally, metrics, faults)


def _stop_at_faults(
    setup: Setup, state: TrainState, faults: Bool[np.ndarray, "steps kinds"]
) -> None:
    """Stop if something was not finite and the settings say so."""
    actions = faults[:, 0]
    bad = actions if setup.settings.bad_steps == "drop" else faults.any(axis=1)
    if not bad.any():
        return
    first = int(bad.argmax())
    step = state.step + first * setup.settings.envs
    if actions[first]:
        raise Diverged(step, ["the policy's action"])
    names = [kind for kind, at in zip(FAULTS, faults[first], strict=True) if at]
    raise not_finite(f"At step {step}", names)
