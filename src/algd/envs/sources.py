"""What may stand for an environment, and by which name another process finds it."""

import difflib
import importlib
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from operator import attrgetter
from typing import Any, cast

import gymnasium
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec
from gymnasium.vector import VectorEnv

from algd.registration import NAMESPACE
from algd.types import JaxEnv, UserError

Maker = Callable[..., gymnasium.Env | VectorEnv | JaxEnv]
# What is there, or makes one.
Thing = GymnasiumSpec | gymnasium.Env | VectorEnv | JaxEnv | Maker
THERE = (gymnasium.Env, VectorEnv)
# The same, or the name of such a thing: an id or "module:Name".
EnvLike = str | Thing


def names() -> list[str]:
    """The short names of our own tasks, as ``make`` understands them."""
    return sorted(spec.name for spec in gymnasium.registry.values() if spec.namespace == NAMESPACE)


def registered(env_id: str) -> GymnasiumSpec | None:
    """The registered environment that an id means, if it is known without importing anything."""
    name = env_id.rpartition(":")[2]
    return gymnasium.registry.get(f"{NAMESPACE}/{name}-v0") or gymnasium.registry.get(name)


def find(env: EnvLike) -> Thing:
    """What stands behind an id or ``module:Name``: a registered environment, or what the module
    calls by that name. Anything else stands for itself."""
    if not isinstance(env, str):
        return _usable(env, env)
    module, _, name = env.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except Exception as error:
            raise UserError(
                f"The environment {env!r} asks for the module {module!r}, "
                f"which could not be imported: {type(error).__name__}: {error}"
            ) from error
    found: Any = registered(name) or (_inside(module, name) if module else None)
    if found is None:
        raise UserError(f"There is no environment {name!r}. {_nearest(name)}")
    return _usable(env, found)


def _usable(env: EnvLike, found: Any) -> Thing:
    if not isinstance(found, (GymnasiumSpec, *THERE, JaxEnv)) and not callable(found):
        what = f"{env} is {found!r:.80}" if isinstance(env, str) else f"This is {found!r:.80}"
        raise UserError(f"{what}: neither an environment nor what makes one.")
    return cast(Thing, found)


def make_one(env: EnvLike, options: Mapping[str, Any]) -> gymnasium.Env:
    """One copy, without Gymnasium's time limit and checker, which do not know a step of six
    values."""
    found = find(env)
    if isinstance(found, GymnasiumSpec):
        return gymnasium.make(found, max_episode_steps=-1, disable_env_checker=True, **options)
    made = found(**options) if callable(found) else found
    if not isinstance(made, gymnasium.Env):
        raise UserError(
            f"{name_of(env)} gives {type(made).__name__}: one Gymnasium environment is needed."
        )
    return made


def name_of(env: EnvLike) -> str:
    """What a run calls its environment: an id, the place of a class or function, or its bare
    name where no module has it."""
    match env:
        case str():
            return env
        case GymnasiumSpec():
            return env.id
        case gymnasium.Env() | VectorEnv():
            return env.spec.id if env.spec else type(env.unwrapped).__name__
        case _:
            plain = getattr(env, "func", env)
            name = getattr(plain, "__qualname__", type(plain).__name__)
            module = getattr(env, "__module__", "")
            # Importing the module brings it under this name, unless that is a script.
            found = module not in ("", "__main__") and _inside(module, name) is env
            return f"{module}:{name}" if found else name


def is_found_again(env: EnvLike) -> bool:
    """Whether a process that imports no more than the name asks for finds the environment."""
    name = name_of(env)
    if isinstance(env, THERE):
        return False
    if ":" in name:
        return True
    spec = registered(name)
    if spec is None or (isinstance(env, GymnasiumSpec) and spec is not env):
        # An id that nobody knows is refused elsewhere.
        return isinstance(env, str)
    point: Any = spec.entry_point
    module = point.partition(":")[0] if isinstance(point, str) else point.__module__
    plugins = {entry.module.partition(".")[0] for entry in entry_points(group="gymnasium.envs")}
    return module.partition(".")[0] in {"gymnasium", "algd", *plugins}


def _inside(module: str, name: str) -> Any:
    try:
        return attrgetter(name)(sys.modules[module])
    except (AttributeError, KeyError):
        return None


def _nearest(name: str) -> str:
    known = {known.lower(): known for known in (*names(), *gymnasium.registry)}
    nearest = [known[match] for match in difflib.get_close_matches(name.lower(), known, n=3)]
    if nearest:
        return (
            f"Did you mean {' or '.join(nearest)}? (One that a module of yours registers is found "
            "as 'module:Name'.)"
        )
    return (
        f"Our own are {', '.join(names())}; any other must be registered in Gymnasium, "
        "and 'module:Name' imports the module that does so, or has a class of that name."
    )
