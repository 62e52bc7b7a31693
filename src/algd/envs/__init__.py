"""The tasks, and the one way to make them: ``make("PointButton1", num_envs=16)``."""

import difflib
import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Literal

import gymnasium
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from algd.envs.adapters import CostFunction, adapt_native, copy_foreign
from algd.envs.diff_drive_jax import DiffDrive
from algd.envs.jax_vector import JaxVectorEnv
from algd.registration import NAMESPACE
from algd.types import Budget, CostVectorEnv, JaxEnv, UserError

__all__ = ["CostFunction", "EnvLike", "make", "names"]

EnvLike = str


def names() -> list[str]:
    """The short names of our own tasks, as ``make`` understands them."""
    return sorted(spec.name for spec in gymnasium.registry.values() if spec.namespace == NAMESPACE)


def make(
    env_id: str,
    num_envs: int,
    *,
    budgets: tuple[Budget, ...] | None = None,
    cost_function: CostFunction | None = None,
    env_options: Mapping[str, object] | None = None,
    horizon: int | None = None,
    loop: Literal["host", "device"] | None = None,
) -> CostVectorEnv:
    """Make ``num_envs`` copies of a task of ours or of any Gymnasium environment with a cost.

    ``env_id`` is a short name (``"PointButton1"``), the id of any registered Gymnasium
    environment, or ``"module:Id"``, which first imports the module that registers ``Id``.
    ``env_options`` go to the environment's constructor.

    Our tasks know their budgets and their horizon; ``budgets`` then replaces the limits. All
    other environments need ``budgets``, and ``horizon`` if they are registered without
    ``max_episode_steps``. ``cost_function(obs, action, next_obs, info)`` gives the cost (a number
    or one number for each constraint) of an environment that reports none, or another one.

    ``"module:Name"`` may also mean a ``JaxEnv``, or a class or function that makes one. On the
    ``loop`` ``"device"`` only such environments can be, and DiffDrive takes its form in JAX.
    """
    if num_envs < 1:
        raise UserError(f"{num_envs} copies of {env_id} were asked for: at least 1 is needed.")
    options: dict[str, Any] = dict(env_options or {})
    try:
        in_jax = find_jax(env_id, options, loop)
        if in_jax is not None:
            return JaxVectorEnv(in_jax, num_envs, env_id, budgets, horizon)
        spec = find(env_id)
        if spec.namespace == NAMESPACE and cost_function is None:
            envs = gymnasium.make_vec(spec, num_envs, **options)
            return adapt_native(envs, env_id, budgets, horizon)
        # Unwrapped: Gymnasium's time limit and checker do not know a step of six values.
        copies = [
            gymnasium.make(spec, max_episode_steps=-1, disable_env_checker=True, **options)
            for _ in range(num_envs)
        ]
    except TypeError as error:
        if not options:
            raise
        given = ", ".join(f"{name}={value!r}" for name, value in options.items())
        raise UserError(f"{env_id} could not be made with the options {given}: {error}") from error
    except (ImportError, gymnasium.error.Error) as error:
        raise UserError(f"{env_id} could not be made: {error}") from error
    if horizon is None:
        horizon = spec.max_episode_steps
    return copy_foreign(copies, env_id, budgets, cost_function, horizon)


def find(env_id: str) -> GymnasiumSpec:
    """The registered environment that ``env_id`` means."""
    _import_of(env_id)
    spec = registered(env_id)
    if spec is None:
        name = env_id.rpartition(":")[2]
        raise UserError(f"There is no environment {name!r}. {_nearest(name)}")
    return spec


def find_jax(
    env_id: str, options: Mapping[str, Any], loop: Literal["host", "device"] | None
) -> JaxEnv | None:
    """The environment written in JAX that ``env_id`` means, if it is to be taken."""
    module, spec = _import_of(env_id), registered(env_id)
    if spec is None:
        found = getattr(module, env_id.rpartition(":")[2], None)
        made = found(**options) if callable(found) else found
        if isinstance(made, JaxEnv):
            return made
    elif loop == "device" and (spec.namespace, spec.name) == (NAMESPACE, "DiffDrive"):
        return DiffDrive(**options)
    if loop == "device":
        raise UserError(
            f"{env_id} is not written in JAX: its copies step on the host. Leave out --loop device."
        )
    return None


def _import_of(env_id: str) -> ModuleType | None:
    """The module that ``env_id`` names, imported."""
    module = env_id.rpartition(":")[0]
    try:
        return importlib.import_module(module) if module else None
    except Exception as error:
        raise UserError(
            f"The environment {env_id!r} asks for the module {module!r}, "
            f"which could not be imported: {type(error).__name__}: {error}"
        ) from error


def registered(env_id: str) -> GymnasiumSpec | None:
    """The same, if it is known without importing anything."""
    name = env_id.rpartition(":")[2]
    return gymnasium.registry.get(f"{NAMESPACE}/{name}-v0") or gymnasium.registry.get(name)


def _nearest(name: str) -> str:
    known = {known.lower(): known for known in (*names(), *gymnasium.registry)}
    nearest = [known[match] for match in difflib.get_close_matches(name.lower(), known, n=3)]
    if nearest:
        return f"Did you mean {' or '.join(nearest)}?"
    return (
        f"Our own are {', '.join(names())}; any other must be registered in Gymnasium, "
        "and 'module:Id' imports the module that does so."
    )
