"""What one run has learnt, handed on to another task."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from algd.objectives.critic_learning import CriticOptions, PrimalDualState, in_limits_of
from algd.objectives.multipliers import ProjectedState
from algd.runs.checkpoint import Snapshot
from algd.types import Algorithm, EnvSpec, LearnerState, UserError

# What belongs to a task and not to the networks; PPO's ring holds the costs of past episodes.
OF_THE_TASK = (
    *("limit", "low", "high", "episode_costs", "episodes"),
    *("episode_scale", "goes_on", "excess"),
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


def check_fits(
    source: Snapshot, algorithm: Algorithm, fresh: LearnerState, env: str, spec: EnvSpec
) -> None:
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


def _shapes(state: LearnerState) -> dict[str, list[int]]:
    leaves = jax.tree_util.tree_leaves_with_path(state)
    shapes = {jax.tree_util.keystr(path): list(leaf.shape) for path, leaf in leaves}
    # The task's own is not taken over, and what nobody asked for before begins anew.
    return {n: shape for n, shape in shapes.items() if n[1:] not in (*OF_THE_TASK, "reach")}


def warm_start(source: Snapshot, fresh: LearnerState) -> LearnerState:
    """Networks, optimisers and multiplier of the source; limits and action box of the new task."""
    state, options = source.state, source.algorithm
    if isinstance(options, CriticOptions) and isinstance(fresh, PrimalDualState):
        state = in_limits_of(options, state, fresh.limit)
        if state.reach is None or fresh.reach is None:
            state = dataclasses.replace(state, reach=fresh.reach)
        if isinstance(state.dual, ProjectedState):
            # Below zero only where that is meant: no further than a fresh one begins.
            lowest = jnp.minimum(fresh.dual.lam, 0.0)
            dual = ProjectedState(jnp.maximum(state.dual.lam, lowest))
            state = dataclasses.replace(state, dual=dual)
    kept = {n: getattr(fresh, n) for n in OF_THE_TASK if hasattr(fresh, n)}
    # Copies: an update takes its arguments' memory, and the source may serve other runs too.
    return jax.tree.map(jnp.copy, dataclasses.replace(state, **kept))
