"""Policies of every algorithm whose parameters are far from their beginnings, without training."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from algd.evaluation.policy import Policy
from algd.training.updates import fresh_state
from algd.types import EnvSpec
from support.small import small


def scattered(name: str, spec: EnvSpec, **changes: Any) -> Policy:
    """The small preset with noise on every parameter; PPO as if it had seen many observations."""
    algorithm = small(name, **changes)
    state = fresh_state(algorithm, spec, jax.random.key(0))
    draw = np.random.default_rng(1)

    def shaken(path: Any, leaf: Any) -> Any:
        where = jax.tree_util.keystr(path)
        if where in (".limit", ".low", ".high") or leaf.dtype != jnp.float32:
            return leaf
        if where == ".obs_statistics.count":
            return jnp.asarray(100.0)
        positive = "squares" in where or ".lam" in where
        noise = draw.normal(0.0, 0.2, leaf.shape)
        return leaf + jnp.asarray(np.abs(100 * noise) if positive else noise, jnp.float32)

    return Policy(algorithm, jax.tree_util.tree_map_with_path(shaken, state), spec)
