"""What a checkpoint holds, by name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from algd.runs.config import Settings, parse_config
from algd.runs.directory import Run
from algd.runs.files import DamagedFile, read_arrays
from algd.types import Budget, EnvSpec, UserError


def to_arrays(tree: Any, prefix: str) -> dict[str, np.ndarray]:
    """Every leaf under its path in the tree."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {prefix + jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def from_arrays(template: Any, arrays: Mapping[str, np.ndarray], prefix: str) -> Any:
    """The tree of the template's shape from its named leaves."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(template)
    found = []
    for path, leaf in leaves:
        name = prefix + jax.tree_util.keystr(path)
        if name not in arrays:
            raise DamagedFile(f"the checkpoint lacks {name}: its settings are not this run's")
        array = arrays[name]
        if array.shape != leaf.shape or array.dtype != leaf.dtype:
            raise DamagedFile(
                f"{name} is {array.dtype}{list(array.shape)} in the checkpoint, "
                f"but {leaf.dtype}{list(leaf.shape)} by the settings"
            )
        found.append(jax.numpy.asarray(array))
    return jax.tree_util.tree_unflatten(structure, found)


class Snapshot(NamedTuple):
    """A run's settings and the state of one of its checkpoints."""

    directory: Path
    settings: Settings
    algorithm: Any
    preset: str
    spec: EnvSpec
    state: Any
    step: int
    complaints: list[str]


def read_snapshot(directory: str | Path, step: int | None = None) -> Snapshot:
    """What the run's newest whole checkpoint holds, or the one of that step."""
    run = Run(Path(directory))
    config = run.config()
    settings, algorithm, name = parse_config(config)
    try:
        step, arrays, complaints = run.newest_checkpoint() if step is None else _at(run, step)
        spec = spec_from_state(config, arrays)
        template = jax.eval_shape(lambda: algorithm.init(spec, jax.random.key(0)))
        state = from_arrays(template, arrays, "state")
    except (DamagedFile, KeyError) as error:
        raise UserError(f"{directory} cannot be loaded: {error}.") from error
    return Snapshot(run.directory, settings, algorithm, name, spec, state, step, complaints)


def _at(run: Run, step: int) -> tuple[int, dict[str, np.ndarray], list[str]]:
    path = dict(run.checkpoints()).get(step)
    if path is None:
        raise UserError(f"{run.directory} no longer has its checkpoint of step {step}.")
    return step, read_arrays(path), []


def spec_from_state(config: dict[str, Any], arrays: dict[str, np.ndarray]) -> EnvSpec:
    """The spaces and budgets of a run, without making its environment."""
    budgets = tuple(Budget(**budget) for budget in config["budgets"])
    low, high = arrays["state.low"], arrays["state.high"]
    obs_size = arrays["obs"].shape[1]
    return EnvSpec(
        obs_size,
        tuple(float(x) for x in low),
        tuple(float(x) for x in high),
        budgets,
        config["horizon"],
    )
