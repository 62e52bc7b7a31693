"""Presets cut down to sizes that train in a moment."""

import dataclasses
from typing import Any

from algd.algorithms import preset

SIZES = {
    "critic_hidden": 16,
    "score_hidden": 16,
    "actor_hidden": 16,
    "multiplier_hidden": 16,
    "hidden": 16,
    "embedding": 4,
    "batch_size": 16,
    "minibatch_size": 16,
    "cost_ensemble": 2,
    "mc_samples": 2,
    "prefill": 40,
    "updates_per_step": 0.5,
    "rollout_steps": 80,
    "passes": 2,
}


def small(name: str, **changes: Any) -> Any:
    """The preset with tiny networks and batches."""
    algorithm: Any = preset(name)
    known = {field.name for field in dataclasses.fields(algorithm)}
    sizes = {k: v for k, v in SIZES.items() if k in known}
    return dataclasses.replace(algorithm, **{**sizes, **changes})
