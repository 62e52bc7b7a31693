"""The ring buffer against a plain Python list."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algd.training.replay import add, init_replay, sample
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
