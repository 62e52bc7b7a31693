"""The tasks, and the one way to make them: ``make("PointButton1", num_envs=16)``."""

from collections.abc import Mapping
from typing import Any, Literal

import gymnasium
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec
from gymnasium.vector import VectorEnv

from algd.envs.adapters import adapt_native, copy_foreign
from algd.envs.foreign_vector import adapt_vector
from algd.envs.jax_vector import JaxVectorEnv
from algd.envs.requirements import CostFunction
from algd.envs.sources import (
    THERE,
    EnvLike,
    find,
    is_found_again,
    make_one,
    name_of,
    names,
    registered,
)
from algd.registration import NAMESPACE
from algd.types import Budget, CostVectorEnv, JaxEnv, UserError

__all__ = [
    "THERE",
    "CostFunction",
    "EnvLike",
    "JaxVectorEnv",
    "find",
    "is_found_again",
    "make",
    "make_one",
    "name_of",
    "names",
    "registered",
]

# What makes a `JaxEnv`.
JAX_PARTS = ("action_low", "action_high", "budgets", "horizon", "reset", "step")


def make(
    env: EnvLike,
    num_envs: int,
    *,
    budgets: tuple[Budget, ...] | None = None,
    cost_function: CostFunction | None = None,
    env_options: Mapping[str, object] | None = None,
    horizon: int | None = None,
    loop: Literal["host", "device"] | None = None,
) -> CostVectorEnv:
    """Make ``num_envs`` copies of a task of ours or of any Gymnasium environment with a cost.

    ``env`` is a short name (``"PointButton1"``), the id of any registered Gymnasium environment,
    or ``"module:Name"``, which first imports the module that registers ``Name`` or has a class or
    function of that name; or such a class or function itself, or a Gymnasium spec.
    ``env_options`` go to the environment's constructor. An environment that is there is the only
    copy, and a ``VectorEnv`` has the copies that it has.

    Our tasks know their budgets and their horizon; ``budgets`` then replaces the limits. All
    other environments need ``budgets``, unless they have an attribute of that name, and
    ``horizon`` if they have no time limit. ``cost_function(obs, action, next_obs, info)`` gives
    the cost (a number or one number for each constraint) of an environment that reports none, or
    another one.

    A ``JaxEnv``, or a class or function that makes one, is an environment too. On the ``loop``
    ``"device"`` only such environments can be, and DiffDrive takes its form in JAX.
    """
    name = name_of(env)
    if num_envs < 1:
        raise UserError(f"{num_envs} copies of {name} were asked for: at least 1 is needed.")
    options: dict[str, Any] = dict(env_options or {})
    found = find(env)
    try:
        if loop == "device" and found is registered("DiffDrive"):
            # A task is imported when it is made.
            from algd.envs.diff_drive_jax import DiffDrive

            found = DiffDrive(**options)
        if isinstance(found, GymnasiumSpec):
            if found.namespace == NAMESPACE and cost_function is None and loop != "device":
                envs = gymnasium.make_vec(found, num_envs, **options)
                return adapt_native(envs, name, budgets, horizon)
            first: Any = make_one(found, options)
            horizon = found.max_episode_steps if horizon is None else horizon
        else:
            first = found(**options) if callable(found) else found
        if isinstance(first, JaxEnv) and cost_function is None:
            return JaxVectorEnv(first, num_envs, name, budgets, horizon)
        if loop == "device":
            raise UserError(
                f"{name} is not written in JAX: its copies step on the host. "
                "Leave out --loop device."
            )
        if isinstance(first, VectorEnv):
            return adapt_vector(first, name, budgets, cost_function, horizon, first is not found)
        mine = first is not found
        more = num_envs - 1 if mine else 0
        copies = [first, *(make_one(found, options) for _ in range(more))]
    except TypeError as error:
        if not options:
            raise
        given = ", ".join(f"{name}={value!r}" for name, value in options.items())
        raise UserError(f"{name} could not be made with the options {given}: {error}") from error
    except (ImportError, gymnasium.error.Error) as error:
        raise UserError(f"{name} could not be made: {error}") from error
    if not isinstance(first, gymnasium.Env):
        kind = type(first).__name__
        lacks = [part for part in JAX_PARTS if not hasattr(first, part)]
        raise UserError(
            f"{name} gives {kind}: it is no Gymnasium environment"
            + (f", and for one in JAX it lacks {', '.join(lacks)}." if lacks else ".")
        )
    if len({id(copy) for copy in copies}) < len(copies):
        raise UserError(
            f"{name} gives the same environment again and again: with one copy say envs=1 and "
            "eval_envs=0 (--envs 1 --eval-envs 0)."
        )
    return copy_foreign(copies, name, budgets, cost_function, horizon, mine)
