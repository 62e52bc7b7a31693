"""What a run is made of: its settings, the environment they name, and what is refused."""

import dataclasses
import itertools
import json
import math
import platform
import shlex
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, Literal, NamedTuple

import jax

from algd import envs
from algd.algorithms import preset, state_shapes
from algd.networks.native import library
from algd.runs.files import available_memory
from algd.runs.validation import check_fields, check_hyperparameters, check_values, fitted
from algd.types import (
    Algorithm,
    Budget,
    Copies,
    CostVectorEnv,
    Count,
    EnvSpec,
    NonNegative,
    ReplayOptions,
    UserError,
    is_box,
    is_named,
)

# Options that are no longer there, with the value that made no use of them.
WITHDRAWN = {"dual_debt": 0.0}


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to train on and for how long; the algorithm's own settings come with its preset."""

    env: str = "DiffDrive"
    """A task of ours (`algd list`), a Gymnasium id, or module:Name: an id that the module
    registers, a class or a function."""
    steps: int = 20_000
    """Environment steps in all, prefill included."""
    seed: Count = 0
    """Determines every random number of the run."""
    envs: Copies = 4
    """Copies of the environment that collect together."""
    budget: tuple[NonNegative, ...] = ()
    """What an episode may cost, one number per constraint; by default the task's own budget."""
    discounted_budget: bool = False
    """For a foreign environment: the budget bounds the discounted cost."""
    horizon: int | None = None
    """Episode length of a foreign environment without a time limit."""
    env_options: tuple[str, ...] = ()
    """Options of the environment as name=value, for example cost_parts=true."""
    eval_every: int = 2_000
    """Environment steps between two evaluations."""
    eval_episodes: int = 10
    """Episodes of each evaluation, on environments and seeds of their own."""
    eval_envs: Count = 16
    """Most copies that evaluations make of the environment; with 0 they borrow those of training,
    whose episodes then begin afresh where the environment cannot save its state."""
    log_every: int = 500
    """Environment steps between two rows of training metrics."""
    checkpoint_every: int = 10_000
    """Environment steps between two checkpoints; five minutes and the end of prefill bring one
    too."""
    overlap: bool = False
    """Let the environments take the next step while the device computes the gradient rounds of the
    last: the policy then acts one step behind what it has learnt."""
    devices: int = 1
    """Devices among which each minibatch is sharded."""
    loop: Literal["host", "device"] | None = None
    """Where the environment steps: called from the host, or compiled together with acting and
    learning into one program on the device, if it is written in JAX. By default the environment
    decides; DiffDrive has both forms, of which that of the host is the default."""
    bad_steps: Literal["stop", "drop"] = "stop"
    """What to do when an environment reports a number that is not finite."""


def parse_options(options: tuple[str, ...]) -> dict[str, Any]:
    """`name=value` pairs; a value is a JSON literal (1e5 a whole number), or else a string."""
    parsed: dict[str, Any] = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals:
            raise UserError(f"An environment option is written name=value, not {option!r}.")
        try:
            number = json.loads(value)
            parsed[name] = number if "." in value else fitted(number, int)
        except ValueError:
            parsed[name] = value
    return parsed


def written_options(options: Mapping[str, Any] | Sequence[str]) -> tuple[str, ...]:
    """Options of an environment, in Python's words or already so, as `parse_options` reads them."""
    if not isinstance(options, Mapping):
        return tuple(options)
    try:
        # Numbers of NumPy have a plain one inside.
        plain = {k: json.dumps(v, default=lambda x: x.tolist()) for k, v in options.items()}
    except (AttributeError, TypeError) as error:
        raise UserError(
            f"env_options are numbers, texts and lists of them, not {options!r:.80}: give another "
            "environment as a function that makes it."
        ) from error
    return tuple(f"{name}={value}" for name, value in plain.items())


class Given(NamedTuple):
    """What a program says of its environment that the settings have no words for."""

    env: envs.EnvLike | None = None
    cost_function: envs.CostFunction | None = None
    budgets: tuple[Budget, ...] = ()

    @property
    def unnamed(self) -> list[str]:
        """What no other process can find, and has to be given again."""
        named = self.env is None or (isinstance(self.env, str) or envs.is_found_again(self.env))
        return ["env"] * (not named) + ["cost_function"] * (self.cost_function is not None)


NOTHING_MORE = Given()


def make_envs(settings: Settings, copies: int, given: Given = NOTHING_MORE) -> CostVectorEnv:
    """The environment of these settings."""
    limits = (Budget(limit, discounted=settings.discounted_budget) for limit in settings.budget)
    return envs.make(
        settings.env if given.env is None else given.env,
        copies,
        budgets=given.budgets or tuple(limits) or None,
        cost_function=given.cost_function,
        horizon=settings.horizon,
        env_options=parse_options(settings.env_options),
        loop=settings.loop,
    )


def with_loop(settings: Settings, environments: CostVectorEnv) -> Settings:
    """The settings with the loop that a run on these environments takes."""
    in_jax = isinstance(environments, envs.JaxVectorEnv)
    return dataclasses.replace(settings, loop=settings.loop or ("device" if in_jax else "host"))


def close(env: CostVectorEnv) -> None:
    """Free what it holds; what goes wrong then must not hide how the run ended."""
    try:
        env.close()
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        warnings.warn(f"The environment could not be closed: {told}", stacklevel=2)


def check_imported(env: str) -> None:
    """Refuse an environment whose module a file names and nobody has imported.

    Files may come from anyone, and to import a module is to run its code.
    """
    module = env.rpartition(":")[0]
    if module and module not in sys.modules:
        raise UserError(
            f"The environment {env!r} is named by a file, and to make it would run the code of the "
            f"module {module!r}. If you know it: --env {shlex.quote(env)} names it yourself, "
            "--trust takes the file's word (algd report takes neither; in Python, import the "
            "module first)."
        )


def is_another_task(env: str, config: Mapping[str, Any]) -> bool:
    """Whether this is not where the run's own environment is found, but another one: two names
    mean one environment, whichever module registers it."""
    one, own = (name.rpartition(":")[2] for name in (env, config["settings"]["env"]))
    return "env" not in config.get("given", ()) and one != own


def with_environment(
    config: Mapping[str, Any], given: Given = NOTHING_MORE, trust: bool = False
) -> tuple[Settings, Given]:
    """A run's settings with its environment as the user names or gives it; by default as its files
    name it. A budget that the run was given has the names that it had."""
    settings = check_config(dict(config))
    if settings.budget and not given.budgets:
        given = given._replace(budgets=spec_of(dict(config)).budgets)
    unnamed = [what for what in config.get("given", ()) if getattr(given, what) is None]
    env = given.env
    # With another way to make it, an environment may bring its own cost.
    if unnamed and (env is None or env == settings.env):
        what = " and ".join(word.replace("_", " ") for word in unnamed)
        raise UserError(
            f"The run's {what} ({settings.env}) came from a program and cannot be found by name: "
            "--env module:Name says which class or function makes the environment, with its cost "
            f"(in Python: {', '.join(f'{word}=...' for word in unnamed)})."
        )
    if env is None and not trust:
        check_imported(settings.env)
    if not isinstance(env, str):
        return settings, given
    if not unnamed and is_another_task(env, config):
        raise UserError(
            f"The run was trained on {settings.env}: --env may say where that is found, not "
            f"another task. To go on from its networks: algd train --from."
        )
    return dataclasses.replace(settings, env=env), given._replace(env=None)


def check(settings: Settings, algorithm: Algorithm) -> None:
    """Refuse what cannot be trained, before anything is made or written."""
    check_fields(settings)
    check_hyperparameters(algorithm)
    if settings.devices > len(jax.devices()):
        raise UserError(
            f"--devices {settings.devices}: this machine has {len(jax.devices())} for JAX. "
            "(XLA_FLAGS=--xla_force_host_platform_device_count=4 makes four out of a CPU.)"
        )
    on_device = settings.loop == "device"
    if settings.devices > 1 and (
        algorithm.batch_size % settings.devices
        if isinstance(algorithm, ReplayOptions)
        else not on_device
    ):
        raise UserError(
            "Several devices share out the minibatches of algorithms that learn from replay; "
            "--batch-size must be a multiple of --devices."
        )
    if on_device and settings.envs % settings.devices:
        raise UserError(
            f"With --loop device the devices share out the copies: the {settings.envs} of --envs "
            f"must be a multiple of the {settings.devices} of --devices."
        )
    if on_device and settings.overlap:
        raise UserError("--overlap is for environments on the host, not for --loop device.")
    if isinstance(algorithm, ReplayOptions) and algorithm.replay_size < settings.envs:
        raise UserError(
            f"--replay-size must be at least the {settings.envs} of --envs, "
            f"not {algorithm.replay_size}."
        )


def kept_transitions(settings: Settings, algorithm: Algorithm) -> int:
    """How many transitions are held at a time; no run needs more of them than it has steps."""
    return min(algorithm.kept, settings.steps + settings.envs)


def check_memory(spec: EnvSpec, slots: int, algorithm: Algorithm) -> None:
    """Refuse transitions or networks that do not fit, with the size they would need."""
    state = state_shapes(algorithm, spec)
    # An update holds the networks before and behind it.
    networks = 2 * sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    # Of each row that an update computes with, a hidden layer's output in each critic.
    rows = [getattr(algorithm, name, 1) for name in ("batch_size", "mc_samples", "cost_ensemble")]
    update = 4 * math.prod(rows) * getattr(algorithm, "critic_hidden", 1)
    available = available_memory()
    stored, slot_option = slots * spec.transition_bytes, "--replay-size or --rollout-steps"
    for what, needed, option in (
        (f"{slots:,} transitions", stored, slot_option),
        ("Networks of these widths", networks, "--critic-hidden and the like"),
        ("Updates of this size", update, "--batch-size, --mc-samples or --cost-ensemble"),
    ):
        if available is not None and needed > 0.8 * available:
            raise UserError(
                f"{what} need {needed / 2**30:.1f} GiB, but only {available / 2**30:.1f} GiB are "
                f"free. Give a smaller {option}."
            )


def describe(settings: Settings, algorithm: Algorithm, name: str, spec: EnvSpec) -> dict[str, Any]:
    """Everything that determines a run, ready for config.json."""
    versions = {package: version(package) for package in ("algd", "jax", "numpy", "mujoco")}
    return {
        "preset": name,
        "settings": dataclasses.asdict(settings),
        "hyperparameters": dataclasses.asdict(algorithm),
        "budgets": [dataclasses.asdict(budget) for budget in spec.budgets],
        "horizon": spec.horizon,
        "obs_size": spec.obs_size,
        "action_low": spec.action_low,
        "action_high": spec.action_high,
        **({"obs_layout": spec.obs_layout} if spec.obs_layout else {}),
        **({"action_shape": spec.action_shape} if spec.action_shape else {}),
        "versions": versions,
        # Sums are ordered differently by XLA and by code of our own, and by other processors.
        "native": library.available(),
        "processor": library.told_of_processor("model name") or platform.machine(),
    }


def parse_config(config: dict[str, Any]) -> tuple[Settings, Algorithm, str]:
    """The settings and the algorithm that `describe` described."""
    settings = check_config(config)
    try:
        kind, own = type(preset(config["preset"])), _with_tuples(hyperparameters(config))
        check_values(kind, own)
        # An option that is younger than the run has its own default, which is what was before it,
        # and not what today's preset makes of it.
        algorithm = kind(**own)
        check_hyperparameters(algorithm)
        return settings, algorithm, config["preset"]
    except (KeyError, TypeError, UserError) as error:
        raise UserError(f"The settings do not fit this version of algd: {error}") from error


def hyperparameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a run, less the ones that are no longer there and that it made no use of."""
    own = config["hyperparameters"]
    return {k: v for k, v in own.items() if k not in WITHDRAWN or v != WITHDRAWN[k]}


def spec_of(config: dict[str, Any]) -> EnvSpec:
    """The spaces and budgets of a run, without making its environment."""
    return EnvSpec(
        config["obs_size"],
        tuple(config["action_low"]),
        tuple(config["action_high"]),
        tuple(Budget(**budget) for budget in config["budgets"]),
        config["horizon"],
        _nested(config.get("obs_layout", ())),
        _nested(config.get("action_shape", ())),
    )


def check_config(config: dict[str, Any]) -> Settings:
    """The settings of a run, if all that `describe` describes is of its kind; its algorithm may be
    another version's."""
    try:
        chosen = _with_tuples(config["settings"])
        check_values(Settings, chosen)
        settings = Settings(**chosen)
        for part in (settings, *(Budget(**budget) for budget in config["budgets"])):
            check_fields(part)
        origin = config.get("started_from", {"run": "", "id": "", "step": 0})
        sound = {
            "preset": _is_plain(config["preset"]),
            "hyperparameters": all(
                _is_plain(name)
                and all(map(_is_plain, value if isinstance(value, list) else [value]))
                for name, value in config["hyperparameters"].items()
            ),
            "budgets": bool(config["budgets"]),
            "horizon": type(config["horizon"]) is int and config["horizon"] > 0,
            "versions": all(map(_is_plain, itertools.chain(*config["versions"].items()))),
            "seeds": type(config.get("seeds", 1)) is int,
            "obs_layout": _size(_nested(config.get("obs_layout", ()))) in (1, config["obs_size"]),
            "action_shape": math.prod(config.get("action_shape", ()))
            in (1, len(config["action_low"])),
            "given": set(config.get("given", [])) <= {"env", "cost_function"},
            "started_from": [type(origin[name]) for name in ("run", "id", "step")]
            == [str, str, int],
        }
    except (LookupError, TypeError, AttributeError, UserError) as error:
        raise UserError(f"The settings do not fit this version of algd: {error}") from error
    for name in (name for name, good in sound.items() if not good):
        raise UserError(f"The settings are damaged: {name} is {config.get(name)!r:.200}.")
    return settings


def _nested(layout: Any) -> Any:
    """JSON has no tuples; layouts have no lists."""
    return tuple(map(_nested, layout)) if isinstance(layout, list | tuple) else layout


def _size(layout: Any) -> int:
    """How many numbers an observation of this layout has."""
    if is_box(layout):
        return math.prod(layout)
    return sum(_size(part[1] if is_named(part) else part) for part in layout)


def _is_plain(value: Any) -> bool:
    return value is None or (str(value).isprintable() and isinstance(value, str | int | float))


def _with_tuples(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has no tuples; frozen settings have no lists."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
