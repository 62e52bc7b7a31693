"""What a run has learnt: read from its checkpoint, and handed on to another task."""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from algd.runs import DamagedFile, Run, from_arrays, read_arrays
from algd.settings import Settings, restored
from algd.types import Budget, EnvSpec, UserError

# What belongs to a task and not to the networks; PPO's ring holds the costs of past episodes.
OF_THE_TASK = ("limit", "low", "high", "episode_costs", "episodes")


class Learnt(NamedTuple):
    """A run's settings and the state of one of its checkpoints."""

    directory: Path
    settings: Settings
    algorithm: Any
    preset: str
    spec: EnvSpec
    state: Any
    step: int
    complaints: list[str]


def learnt(directory: str | Path, step: int | None = None) -> Learnt:
    """What the run's newest whole checkpoint holds, or the one of that step."""
    run = Run(Path(directory))
    config = run.config()
    settings, algorithm, name = restored(config)
    try:
        step, arrays, complaints = run.newest_checkpoint() if step is None else _at(run, step)
        spec = spec_from_state(config, arrays)
        template = jax.eval_shape(lambda: algorithm.init(spec, jax.random.key(0)))
        state = from_arrays(template, arrays, "state")
    except (DamagedFile, KeyError) as error:
        raise UserError(f"{directory} cannot be loaded: {error}.") from error
    return Learnt(run.directory, settings, algorithm, name, spec, state, step, complaints)


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


def check_same_spaces(source: str, learnt_on: EnvSpec, env: str, spec: EnvSpec) -> None:
    """Refuse an environment for which the networks were not made."""

    def box(spec: EnvSpec) -> np.ndarray:
        return np.array([spec.action_low, spec.action_high], np.float32)

    facts = {
        "observations of {} numbers": (learnt_on.obs_size, spec.obs_size),
        "actions of {} numbers": (learnt_on.action_size, spec.action_size),
        "actions from {}": tuple(" to ".join(map(str, box(s).tolist())) for s in (learnt_on, spec)),
        "{} constraint(s)": (len(learnt_on.budgets), len(spec.budgets)),
    }
    for what, (old, new) in facts.items():
        if old != new:
            raise UserError(
                f"{source} was trained with {what.format(old)}, but {env} has {what.format(new)}: "
                "its networks do not fit."
            )


def check_fits(source: Learnt, algorithm: Any, fresh: Any, env: str, spec: EnvSpec) -> None:
    """Refuse to go on from networks that are not like the `fresh` ones."""
    if type(algorithm) is not type(source.algorithm):
        raise UserError(
            f"{source.directory} was trained with {source.preset} "
            f"({type(source.algorithm).__name__}); {type(algorithm).__name__} cannot go on from it."
        )
    check_same_spaces(str(source.directory), source.spec, env, spec)
    old, new = _shapes(source.state), _shapes(fresh)
    for name in old | new:
        if old.get(name) != new.get(name):
            raise UserError(
                f"{source.directory} has {name.lstrip('.')} of the shape {old.get(name)}, but "
                f"these settings ask for {new.get(name)}: give the same sizes and the same kind "
                "of multiplier."
            )


def _shapes(state: Any) -> dict[str, list[int]]:
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {jax.tree_util.keystr(path): list(leaf.shape) for path, leaf in leaves}


def handed_on(source: Learnt, fresh: Any) -> Any:
    """Networks, optimisers and multiplier of the source; limits and action box of the new task."""
    kept = {n: getattr(fresh, n) for n in OF_THE_TASK if hasattr(fresh, n)}
    # Copies: an update takes its arguments' memory, and the source may serve other runs too.
    return jax.tree.map(jnp.copy, dataclasses.replace(source.state, **kept))
