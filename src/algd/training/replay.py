"""Transitions that live on the device, as pytrees: a ring buffer, and the steps of one rollout."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from algd.types import EnvSpec, Lookahead, Transition


class Replay(eqx.Module):
    """`data` has a leading axis of slots; `added` counts all transitions ever stored."""

    data: Transition
    added: Int[Array, ""]


def example(spec: EnvSpec) -> Transition:
    """A transition of a task, to show its shapes."""
    constraints = jnp.zeros(len(spec.budgets))
    return Transition(
        obs=jnp.zeros(spec.obs_size),
        action=jnp.zeros(spec.action_size),
        reward=jnp.zeros(()),
        cost=constraints,
        next_obs=jnp.zeros(spec.obs_size),
        terminated=jnp.zeros((), bool),
        truncated=jnp.zeros((), bool),
        goal_met=jnp.zeros((), bool),
        margin=constraints,
        extras={},
    )


def init_replay(example: Transition, capacity: int) -> Replay:
    """An empty buffer for transitions of the example's shapes (no leading axis)."""
    data = jax.tree.map(lambda x: jnp.zeros((capacity, *x.shape), x.dtype), example)
    return Replay(data, jnp.zeros((), jnp.int32))


def init_rollout(example: Transition, rows: int, copies: int, extras: dict[str, Any]) -> Transition:
    """Room for so many steps of all copies; `extras` shows what comes with one of them."""
    data = jax.tree.map(lambda x: jnp.zeros((rows, copies, *x.shape), x.dtype), example)
    told = jax.tree.map(lambda x: jnp.zeros((rows, *x.shape), x.dtype), extras)
    return dataclasses.replace(data, extras=told)


def put(rollout: Transition, fresh: Transition, row: int | Int[Array, ""]) -> Transition:
    """The rollout with a step of all copies in this row."""
    return jax.tree.map(lambda store, new: store.at[row].set(new), rollout, fresh)


def capacity(replay: Replay) -> int:
    """The number of slots."""
    return replay.data.reward.shape[0]


def add(replay: Replay, batch: Transition, keep: Bool[Array | np.ndarray, " batch"]) -> Replay:
    """Store the rows to `keep`, over the oldest ones if the buffer is full."""
    slots = (replay.added + jnp.cumsum(keep, dtype=jnp.int32) - 1) % capacity(replay)
    # A slot out of range is dropped by the scatter.
    slots = jnp.where(keep, slots, capacity(replay))
    data = jax.tree.map(
        lambda store, new: store.at[slots].set(new, mode="drop"), replay.data, batch
    )
    return Replay(data, replay.added + jnp.sum(keep, dtype=jnp.int32))


def sample(replay: Replay, batch_size: int, key: PRNGKeyArray) -> Transition:
    """A minibatch, drawn uniformly and independently from what is stored."""
    stored = jnp.minimum(replay.added, capacity(replay))
    slots = jax.random.randint(key, (batch_size,), 0, stored)
    return jax.tree.map(lambda store: store[slots], replay.data)


def sample_stretches(
    replay: Replay,
    batch_size: int,
    key: PRNGKeyArray,
    n_step: int,
    copies: int,
    discounts: tuple[float, float],
    goals_end: bool = False,
) -> Transition:
    r"""A minibatch of stretches of up to `n_step` steps, their first ones drawn as by `sample`.

    `copies` of the environment were stored in turns, so a step's successor is so many slots on, if
    it is stored already, its episode goes on, and it begins where this one led: rows that were not
    kept leave a gap. `discounts` are those of return and cost; with `goals_end` a stretch ends
    where a goal is met.
    """
    data, size = replay.data, capacity(replay)
    first = jax.random.randint(key, (batch_size,), 0, jnp.minimum(replay.added, size))
    newer = (replay.added - 1 - first) % size
    gamma, gamma_c = discounts

    def goes_on(last: Int[Array, " batch"]) -> Bool[Array, " batch"]:
        ends = data.terminated[last] | data.truncated[last]
        return ~(ends | data.goal_met[last]) if goals_end else ~ends

    last, going = first, jnp.ones(batch_size, bool)
    reward, cost = data.reward[first], data.cost[first]
    discount, cost_discount = (jnp.full_like(reward, by) for by in discounts)
    for k in range(1, n_step):
        following = (last + copies) % size
        follows = jnp.all(data.obs[following] == data.next_obs[last], axis=-1)
        going = going & goes_on(last) & follows & (newer >= k * copies)
        last = jnp.where(going, following, last)
        reward = reward + jnp.where(going, discount * data.reward[last], 0.0)
        owed = jnp.where(going, cost_discount, 0.0)
        cost = cost + owed[:, None] * data.cost[last]
        discount = jnp.where(going, gamma * discount, discount)
        cost_discount = jnp.where(going, gamma_c * cost_discount, cost_discount)
    begin = jax.tree.map(lambda store: store[first], data)
    return dataclasses.replace(
        begin,
        next_obs=data.next_obs[last],
        terminated=data.terminated[last],
        truncated=data.truncated[last],
        goal_met=data.goal_met[last],
        ahead=Lookahead(reward, cost, data.cost[last], discount, cost_discount),
    )
