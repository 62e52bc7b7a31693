"""What an environment must be to be trained on: its spaces, its budgets and its horizon."""

import difflib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from algd.types import Budget, UserError, budgets_of

CostFunction = Callable[[Any, np.ndarray, Any, dict[str, Any]], Any]


def facts_of(
    env: Any,
    name: str,
    budgets: tuple[Budget, ...] | None,
    horizon: int | None,
    cost_function: CostFunction | None,
) -> tuple[tuple[Budget, ...], int]:
    """Budgets and horizon of an environment or of copies of one, if it can be trained on; its own
    budgets belong to its own cost."""
    copies = isinstance(env, VectorEnv)
    check_action_space(name, env.single_action_space if copies else env.action_space)
    observed = env.single_observation_space if copies else env.observation_space
    check_observation_space(name, observed)
    if isinstance(observed, spaces.Box):
        check_has_axis(f"The observations of {name}", observed)
    if not spaces.flatdim(observed):
        raise UserError(f"The observations of {name} are empty: there is nothing to learn from.")
    if cost_function is not None and not budgets:
        raise UserError(
            f"What may an episode of {name} cost by this cost_function? Say it, for example with "
            "budget=25.0; a budget that the environment has belongs to its own cost."
        )
    own = _attribute(env, "budgets") if cost_function is None else None
    own = None if own is None else budgets_of(own)
    budgets = settled_budgets(name, own, budgets, _attribute(env, "cost_names"))
    if horizon is None:
        # A time limit inside the environment's own constructor shows here.
        horizon = env.spec.max_episode_steps if env.spec else None
    for said in ("_max_episode_steps", "horizon"):
        # Of Gymnasium's TimeLimit, and the environment's own.
        horizon = _attribute(env, said) if horizon is None else horizon
    return budgets, checked_horizon(name, horizon)


def _attribute(env: Any, name: str) -> Any:
    """Of an environment or of what it is wrapped around."""
    if isinstance(env, gymnasium.Env):
        return env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else None
    return getattr(env, name, getattr(env.unwrapped, name, None))


def check_action_space(name: str, space: gymnasium.Space) -> None:
    """Refuse what a diffusion policy cannot act in."""
    if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        raise UserError(
            f"The actions of {name} are {space}: only a Box of floats can be trained on."
        )
    check_has_axis(f"The actions of {name}", space)
    if 0 in space.shape:
        raise UserError(f"The actions of {name} are {space}: there is nothing to choose.")
    if not (np.isfinite(space.low) & np.isfinite(space.high)).all():
        raise UserError(
            f"The actions of {name} have no finite bounds ({space}): policies act in a finite box. "
            "Bound them, for example with gymnasium.wrappers.RescaleAction or in the environment."
        )


def check_has_axis(what: str, space: spaces.Box) -> None:
    """Refuse a bare number: a batch of vectors and a vector of numbers would look alike."""
    if not space.shape:
        raise UserError(f"{what} are {space}, numbers without an axis: give them the shape (1,).")


def check_observation_space(name: str, space: gymnasium.Space) -> None:
    """Refuse what cannot be laid out as one vector of floats without inventing an encoding."""
    match space:
        case spaces.Box():
            return
        case spaces.Dict():
            parts = list(space.spaces.values())
        case spaces.Tuple():
            parts = list(space.spaces)
        case _:
            raise UserError(
                f"The observations of {name} contain {space}: only a Box, or a Dict or Tuple of "
                "boxes, can be flattened into the vector that a policy sees."
            )
    for part in parts:
        check_observation_space(name, part)


def settled_budgets(
    name: str,
    own: tuple[Budget, ...] | None,
    given: tuple[Budget, ...] | None,
    cost_names: Sequence[str] | None = None,
) -> tuple[Budget, ...]:
    """An environment's own budgets with the given limits, or those given if it has none."""
    if given:
        check_names(name, given, cost_names if own is None else [budget.name for budget in own])
    budgets = with_new_limits(name, own, given) if own is not None and given else own or given
    if not budgets:
        raise UserError(
            f"{name} has no budget of its own: say what an episode may cost, "
            "for example with --budget 25 (in Python: budget=25.0)."
        )
    for budget in budgets:
        check_budget(name, budget)
    return with_distinct_names(name, budgets, cost_names)


def checked_horizon(name: str, horizon: int | None) -> int:
    """The steps of a full episode, if somebody has said how many."""
    if horizon is None:
        raise UserError(
            f"{name} has no time limit: register it with max_episode_steps, or say how many steps "
            "an episode has, for example with --horizon 1000 (in Python: horizon=1000)."
        )
    if horizon < 1:
        raise UserError(f"The horizon of {name} must be at least 1 step, not {horizon}.")
    return horizon


def check_budget(name: str, budget: Budget) -> None:
    """Refuse a limit that no sum of costs can be compared with."""
    if not math.isfinite(budget.limit) or budget.limit < 0.0:
        raise UserError(
            f"The budget {budget.limit} for {budget.name!r} of {name} is not possible: "
            "it must be a finite number that is not negative."
        )


def check_names(name: str, given: tuple[Budget, ...], costs: Sequence[str] | None) -> None:
    """Refuse names that look like those of the environment's costs and are not: their limits would
    go by position. Names of the user's own, like none of these, are new names in this order."""
    costs, unnamed = list(map(str, costs or ())), Budget(0.0).name
    if sorted(budget.name for budget in given) == sorted(costs):
        return
    named = {budget.name: place for place, budget in enumerate(given) if budget.name != unnamed}
    known = {cost.lower(): cost for cost in costs if cost != unnamed}
    for cost in named:
        near = [known[word] for word in difflib.get_close_matches(cost.lower(), known)]
        if cost not in costs and known and (near or named.keys() & set(costs)):
            hint = f" Did you mean {near[0]}?" if near else ""
            raise UserError(
                f"{name} has no cost called {cost!r}: its costs are {', '.join(costs)}.{hint}"
            )
    if len(named) < len(given) and any(costs.index(c) != named[c] for c in named if c in costs):
        raise UserError(
            f"The costs of {name} are {', '.join(costs)}, in this order: give each budget the name "
            "of its cost, or none."
        )


def with_new_limits(
    name: str, defaults: tuple[Budget, ...], given: tuple[Budget, ...]
) -> tuple[Budget, ...]:
    """The given limits; what a plain ``Budget(limit)`` leaves open is taken from the task.

    A task whose budgets are discounted keeps them so: its costs are made for that.
    """
    if len(given) != len(defaults):
        expected = ", ".join(budget.name for budget in defaults)
        raise UserError(
            f"{name} has {len(defaults)} constraint(s) ({expected}), "
            f"but {len(given)} budget(s) were given: give one for each."
        )
    for budget in given:
        check_budget(name, budget)
    given = in_order(given, [budget.name for budget in defaults])
    unnamed = Budget(0.0).name
    return tuple(
        replace(
            new,
            name=default.name if new.name == unnamed else new.name,
            discounted=new.discounted or default.discounted,
            rate=new.rate or default.rate,
        )
        for default, new in zip(defaults, given, strict=True)
    )


def with_distinct_names(
    name: str, budgets: tuple[Budget, ...], known: Sequence[str] | None
) -> tuple[Budget, ...]:
    """Budgets that a log can tell apart: by the environment's ``cost_names``, or by number."""
    if len({budget.name for budget in budgets}) == len(budgets):
        return in_order(budgets, list(known or ()))
    names = list(known) if known is not None else [f"cost{i + 1}" for i in range(len(budgets))]
    if len(set(names)) != len(budgets):
        raise UserError(
            f"{name} names its costs {', '.join(map(str, names))}, but {len(budgets)} budget(s) "
            "were given: give one for each."
        )
    return tuple(replace(b, name=str(n)) for b, n in zip(budgets, names, strict=True))


def in_order(budgets: tuple[Budget, ...], names: list[str]) -> tuple[Budget, ...]:
    """The budgets in the order of the costs, if they have the names of these."""
    by_name = {budget.name: budget for budget in budgets}
    return tuple(by_name[n] for n in names) if by_name.keys() == set(names) else budgets
