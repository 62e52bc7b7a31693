"""The ring buffer against a plain Python list."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algd.training.replay import add, init_replay, sample, sample_stretches
from algd.types import Transition


def transitions(values):
    values = jnp.asarray(values, jnp.float32)
    n = values.shape[:1] if values.ndim else ()
    rows = lambda width: jnp.broadcast_to(values[..., None], (*n, width))  # noqa: E731
    flags = jnp.zeros(n, bool)
    return Transition(rows(3), rows(2), values, rows(1), rows(3), flags, flags, flags, rows(1), {})


@pytest.mark.parametrize("per_step", [1, 3, 4])
def test_holds_the_newest_rows(per_step):
    capacity, kept = 10, []
    replay = init_replay(transitions(0.0), capacity)
    rng = np.random.default_rng(0)
    for step in range(9):
        rows = np.arange(per_step) + per_step * step + 1.0
        keep = rng.random(per_step) < 0.7
        replay = add(replay, transitions(rows), jnp.asarray(keep))
        kept += list(rows[keep])
        stored = min(len(kept), capacity)
        assert int(replay.added) == len(kept)
        assert sorted(np.asarray(replay.data.reward)[:stored]) == sorted(kept[-capacity:])


def test_samples_uniformly_and_only_what_is_stored():
    replay = init_replay(transitions(0.0), 100)
    replay = add(replay, transitions(np.arange(1.0, 9.0)), jnp.ones(8, bool))
    drawn = np.asarray(sample(replay, 40_000, jax.random.key(0)).reward)
    counts = np.bincount(drawn.astype(int), minlength=9)
    assert counts[0] == 0
    assert np.abs(counts[1:] - 5_000).max() < 5 * np.sqrt(5_000)


STEPS, COPIES, N_STEP = 40, 3, 4
GAMMAS = (0.9, 0.8)


def walked(draw):
    """Rows of copies that walk from one number to the next, some of them ending or left out."""
    at, rows = draw.normal(size=COPIES), []
    for _ in range(STEPS):
        onward, fate = draw.normal(size=COPIES), draw.uniform(size=COPIES)
        for copy in range(COPIES):
            row = {
                "copy": copy,
                "obs": at[copy],
                "next_obs": onward[copy],
                "reward": draw.normal(),
                "cost": draw.uniform(),
                "terminated": fate[copy] < 0.1,
                "truncated": 0.1 < fate[copy] < 0.15,
                "goal_met": 0.15 < fate[copy] < 0.25,
                "kept": not 0.9 < fate[copy] < 0.91,
            }
            rows.append(row)
            ended = row["terminated"] or row["truncated"]
            at[copy] = draw.normal() if ended else onward[copy]
    return rows


def plain_stretch(rows, first, goals_end):
    """By hand: this row and those that the same copy stored right behind it."""
    mine = [row for row in rows[first:] if row["copy"] == rows[first]["copy"]]
    reward = cost = 0.0
    for k, row in enumerate(mine[:N_STEP]):
        reward += GAMMAS[0] ** k * row["reward"]
        cost += GAMMAS[1] ** k * row["cost"]
        ends = row["terminated"] or row["truncated"] or (goals_end and row["goal_met"])
        if ends or not all(row["kept"] for row in mine[k + 1 : k + 2]):
            break
    by = [gamma ** (k + 1) for gamma in GAMMAS]
    flags = [row[name] for name in ("terminated", "truncated", "goal_met")]
    return [reward, cost, row["cost"], *by, row["next_obs"], *flags]


@pytest.mark.parametrize("goals_end", [False, True])
@pytest.mark.parametrize("capacity", [1_000, 70])
def test_stretches_are_those_that_a_plain_loop_finds(capacity, goals_end):
    rows = walked(np.random.default_rng(5))
    column = lambda name: np.asarray([row[name] for row in rows])  # noqa: E731
    replay = init_replay(transitions(0.0), capacity)
    for step in range(STEPS):
        now = slice(COPIES * step, COPIES * (step + 1))
        wide = lambda name, now=now: np.repeat(column(name)[now, None], 3, axis=1)  # noqa: E731
        fresh = dataclasses.replace(
            transitions(column("reward")[now]),
            obs=jnp.asarray(wide("obs"), jnp.float32),
            next_obs=jnp.asarray(wide("next_obs"), jnp.float32),
            cost=jnp.asarray(column("cost")[now, None], jnp.float32),
            terminated=jnp.asarray(column("terminated")[now]),
            truncated=jnp.asarray(column("truncated")[now]),
            goal_met=jnp.asarray(column("goal_met")[now]),
        )
        replay = add(replay, fresh, jnp.asarray(column("kept")[now]))
    how = (2_000, jax.random.key(1), N_STEP, COPIES, GAMMAS, goals_end)
    batch = sample_stretches(replay, *how)
    ahead = batch.ahead
    found = np.column_stack(
        [
            ahead.reward,
            ahead.cost[:, 0],
            ahead.last_cost[:, 0],
            ahead.discount,
            ahead.cost_discount,
            batch.next_obs[:, 0],
            batch.terminated,
            batch.truncated,
            batch.goal_met,
        ]
    )
    kept = [i for i, row in enumerate(rows) if row["kept"]][-capacity:]
    by_start = {np.float32(rows[i]["obs"]): i for i in kept}
    begun = [by_start[obs] for obs in np.asarray(batch.obs)[:, 0]]
    assert set(begun) == set(kept)
    expected = {i: plain_stretch(rows, i, goals_end) for i in kept}
    exact, short = 0, 0
    for i, got in zip(begun, found, strict=True):
        if np.allclose(got, expected[i], atol=1e-5):
            exact += 1
        else:  # A row left out moves the copies' turns: what lies behind it may not be found.
            short += 1
            assert got[3] > expected[i][3]
    assert exact > 4 * short


def test_one_step_is_a_stretch_of_its_own():
    eight = transitions(np.arange(1.0, 9.0))
    replay = add(init_replay(transitions(0.0), 9), eight, jnp.ones(8, bool))
    key = jax.random.key(3)
    batch = sample_stretches(replay, 64, key, 1, 2, GAMMAS)
    one = sample(replay, 64, key)
    assert np.array_equal(batch.ahead.reward, one.reward)
    assert np.array_equal(batch.ahead.cost, one.cost)
    assert np.all(np.asarray(batch.ahead.discount) == np.float32(GAMMAS[0]))
    assert np.array_equal(batch.next_obs, one.next_obs)
