"""From Gymnasium's environments to what ``training`` and ``evaluation`` see.

There is one road. A foreign environment is brought to our conventions by ``CostReport`` and
multiplied by ``CopiedVectorEnv``; the result, like our own vector environments, is then a
Gymnasium vector environment with same-step autoreset which has ``budgets`` and ``horizon``, whose
infos are those of the step just taken, and whose ``infos["final_obs"]`` is one array.
``VectorAdapter`` turns any such environment into a ``CostVectorEnv``.
"""

import copy
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from jaxtyping import Bool, Float, Shaped, UInt64

from algd.envs.requirements import CostFunction, facts_of, with_new_limits
from algd.types import Budget, EnvSpec, EnvStep, Layout, UserError, is_box

# What all copies answer to their actions.
VectorStep = tuple[
    Shaped[np.ndarray, "envs obs"],
    Float[np.ndarray, " envs"],
    Bool[np.ndarray, " envs"],
    Bool[np.ndarray, " envs"],
    dict[str, Any],
]
# The kinds of arrays that hold numbers: truth values, whole numbers, floats.
NUMBERS = "biuf"
# Actions come in float32, bounds may be float64: this share of the range is only rounding.
ROUNDING = 1e-5


def adapt_native(
    envs: VectorEnv,
    name: str,
    budgets: tuple[Budget, ...] | None,
    horizon: int | None,
    mine: bool = True,
) -> "VectorAdapter":
    """See one of our own vector environments as a ``CostVectorEnv``."""
    native: Any = envs
    if native.metadata["autoreset_mode"] is not AutoresetMode.SAME_STEP:
        raise UserError("The autoreset_mode is for gymnasium.make_vec: a run has one of its own.")
    if horizon not in (None, native.horizon):
        raise UserError(
            f"Episodes of {name} have {native.horizon} steps; the horizon {horizon} does not fit."
        )
    if budgets is not None:
        native.budgets = with_new_limits(name, native.budgets, budgets)
    return VectorAdapter(envs, exact_state=True, mine=mine)


def copy_foreign(
    copies: Sequence[gymnasium.Env],
    name: str,
    budgets: tuple[Budget, ...] | None,
    cost_function: CostFunction | None,
    horizon: int | None,
    mine: bool = True,
) -> "VectorAdapter":
    """See copies of anybody's environment as a ``CostVectorEnv``, or say why that is impossible;
    it closes them if they are ``mine``."""
    budgets, horizon = facts_of(copies[0], name, budgets, horizon, cost_function)
    reports = [CostReport(env, name, budgets, horizon, cost_function) for env in copies]
    return tried(VectorAdapter(CopiedVectorEnv(reports), exact_state=False, mine=mine))


def tried(adapted: "VectorAdapter") -> "VectorAdapter":
    """Whether a cost is reported shows only in a step: take one now, before a run is begun."""
    adapted.reset(0)
    low, high = np.array(adapted.spec.action_low), np.array(adapted.spec.action_high)
    adapted.step(np.tile((low + high) / 2, (adapted.num_envs, 1)).astype(np.float32))
    adapted.restore_state({})
    return adapted


def layout_of(space: Any) -> Layout:
    """How an observation space is laid out in the vector that Gymnasium flattens it to."""
    match space:
        case spaces.Dict():
            return tuple((name, layout_of(part)) for name, part in space.spaces.items())
        case spaces.Tuple():
            return tuple(layout_of(part) for part in space.spaces)
        case _:
            return tuple(map(int, space.shape))


def _unless_flat(layout: Layout) -> Layout:
    return () if len(layout) == 1 and is_box(layout) else layout


def checked_actions(
    actions: Shaped[np.ndarray, "..."],
    low: Float[np.ndarray, "..."],
    high: Float[np.ndarray, "..."],
) -> Float[np.ndarray, "..."]:
    """The actions in the type of their bounds, or an error if they are not in the box."""
    if actions.shape != low.shape:
        raise ValueError(f"The action has the shape {actions.shape} instead of {low.shape}")
    if ((low <= actions) & (actions <= high)).all():
        return actions.astype(low.dtype, copy=False)
    if not np.isfinite(actions).all():
        raise ValueError(f"The action is not finite: {actions}")
    slack = ROUNDING * (high - low)
    if ((actions < low - slack) | (actions > high + slack)).any():
        raise ValueError(f"The action {actions} is out of its bounds {low} to {high}")
    return np.clip(actions.astype(low.dtype), low, high)


def copy_seeds(seed: int, num_envs: int) -> list[int]:
    """A seed for each copy, of 32 bits since many environments take no more."""
    return [int(word) for word in np.random.SeedSequence(seed).generate_state(num_envs)]


def generator_state(generator: np.random.Generator) -> UInt64[np.ndarray, "6"]:
    """The state of a PCG64 generator as one array, to be stored without pickle."""
    state: Any = generator.bit_generator.state
    if state["bit_generator"] != "PCG64":
        raise ValueError(f"Only PCG64 generators can be stored, not {state['bit_generator']}")
    wide = (state["state"]["state"], state["state"]["inc"])
    halves = [half for word in wide for half in divmod(word, 1 << 64)]
    return np.array([*halves, state["has_uint32"], state["uinteger"]], np.uint64)


def restored_generator(state: UInt64[np.ndarray, "6"]) -> np.random.Generator:
    """The generator whose ``generator_state`` this is."""
    high, low, inc_high, inc_low, has_uint32, uinteger = (int(word) for word in state)
    generator = np.random.Generator(np.random.PCG64(0))
    generator.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": (high << 64) | low, "inc": (inc_high << 64) | inc_low},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }
    return generator


class Autoreset:
    """When copies begin their next episode: in the step that ends one, or in the next step."""

    def __init__(self, mode: str | AutoresetMode, num_envs: int) -> None:
        served = (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP)
        if mode not in (*served, *(known.value for known in served)):
            names = " or ".join(repr(known.value) for known in served)
            raise UserError(f"The autoreset_mode is {names}, not {mode!r}.")
        self.mode = AutoresetMode(mode)
        self.waiting = np.zeros(num_envs, np.bool_)

    def restart(self) -> None:
        """All copies have been reset."""
        self.waiting[:] = False

    def finished(
        self,
        obs: Shaped[np.ndarray, "envs obs"],
        reward: Float[np.ndarray, " envs"],
        terminated: Bool[np.ndarray, " envs"],
        truncated: Bool[np.ndarray, " envs"],
        infos: dict[str, Any],
        begin: Callable[[Bool[np.ndarray, " envs"]], Shaped[np.ndarray, "begun obs"]],
    ) -> VectorStep:
        """The answer to a step of all copies, of which some ``begin`` an episode.

        Copies that waited for this step have been stepped with the others, to no avail: they begin
        now, without reward, cost or end.
        """
        if self.mode is AutoresetMode.SAME_STEP:
            ended = terminated | truncated
            if ended.any():
                infos |= {"final_obs": obs, "_final_obs": ended}
                obs = obs.copy()
                obs[ended] = begin(ended)
            return obs, reward, terminated, truncated, infos
        if self.waiting.any():
            for values in (reward, terminated, truncated, *infos.values()):
                values[self.waiting] = 0
            obs[self.waiting] = begin(self.waiting)
        self.waiting = terminated | truncated
        return obs, reward, terminated, truncated, infos

    def save_state(self) -> dict[str, np.ndarray]:
        """Which copies wait, where any can."""
        return {} if self.mode is AutoresetMode.SAME_STEP else {"waiting": self.waiting.copy()}

    def restore_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from a saved state."""
        self.waiting = np.array(state.get("waiting", np.zeros_like(self.waiting)))


class CostReport(gymnasium.Wrapper):
    """One copy of anybody's environment, brought to our conventions.

    Observations are flat, ``info`` holds the cost as a vector (and ``margin`` and ``goal_met`` if
    the environment reports them) and nothing else, and the episode ends at the horizon.
    """

    def __init__(
        self,
        env: gymnasium.Env,
        name: str,
        budgets: tuple[Budget, ...],
        horizon: int,
        cost_function: CostFunction | None,
    ) -> None:
        super().__init__(env)
        self.observation_space = spaces.flatten_space(env.observation_space)
        self.budgets = budgets
        self.horizon = horizon
        self.original_observation_space = env.observation_space
        self._name = name
        self._cost_function = cost_function
        self._stepped = self._warned = False
        self._elapsed = 0
        self._obs: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Shaped[np.ndarray, " obs"], dict[str, Any]]:
        """Start an episode."""
        self._obs, _ = self.env.reset(seed=seed, options=options)
        self._elapsed = 0
        return self._flat(self._obs), {}

    def step(
        self, action: Float[np.ndarray, "..."]
    ) -> tuple[Shaped[np.ndarray, " obs"], float, bool, bool, dict[str, Any]]:
        """Advance by one step, in either style."""
        # The cost function compares two observations, which some environments write in place.
        before = copy.deepcopy(self._obs) if self._cost_function is not None else None
        match self.env.step(action):
            case (obs, reward, terminated, truncated, info):
                cost = info.get("cost")
            case (obs, reward, cost, terminated, truncated, info):
                pass
            case answer:
                raise UserError(
                    f"A step of {self._name} returned {len(answer)} values: there must be five "
                    "(obs, reward, terminated, truncated, info), or six with the cost third."
                )
        reported = {key: info[key] for key in ("margin", "goal_met") if key in info}
        if self._cost_function is not None:
            cost = self._cost_function(before, action, obs, info)
            # It belongs to the environment's own cost.
            reported.pop("margin", None)
        self._obs = obs
        self._elapsed += 1
        reported["cost"] = self._checked(cost, "cost")
        if not self._warned and (reported["cost"] < 0.0).any():
            self._warned = True
            warnings.warn(
                f"{self._name} reports a negative cost. It makes room for other costs in the "
                "budget, and presets of ALGD take what they expect below zero for zero "
                "(--no-cost-floor).",
                stacklevel=2,
            )
        if "margin" in reported:
            reported["margin"] = self._checked(reported["margin"], "margin")
        self._stepped = True
        truncated = bool(truncated) or self._elapsed >= self.horizon
        return self._flat(obs), self._number(reward), bool(terminated), truncated, reported

    def _flat(self, obs: Any) -> Shaped[np.ndarray, " obs"]:
        return np.asarray(spaces.flatten(self.env.observation_space, obs))

    def _number(self, reward: Any) -> float:
        """The reward; an array of one number is one."""
        value = np.asarray(reward)
        if value.size != 1 or value.dtype.kind not in NUMBERS:
            raise UserError(f"{self._name} reports {reward!r} as its reward: it must be a number.")
        return float(value.item())

    def _checked(self, value: Any, what: str) -> Float[np.ndarray, " constraints"]:
        if value is None:
            raise UserError(
                f"{self._name} reports no cost: its step must put one into info['cost'] or return "
                "six values with the cost third. An environment of yours around it can compute one."
            )
        try:
            given = np.atleast_1d(value)
        except ValueError:
            # Lists of different lengths.
            given = np.array([value], object)
        if given.dtype.kind not in NUMBERS:
            raise UserError(
                f"{self._name} reports {value!r} as its {what}: it must be a number, or a vector "
                "with one number for each constraint."
            )
        values = given.astype(np.float64)
        if values.shape != (len(self.budgets),):
            shape = f"{what} of shape {values.shape}"
            if self._stepped:
                raise UserError(
                    f"{self._name} reports a {shape} after one of length {len(self.budgets)}: "
                    "the number of constraints must not change."
                )
            limits = ", ".join(str(budget.limit) for budget in self.budgets)
            raise UserError(
                f"{self._name} reports a {shape}, but {len(self.budgets)} budget(s) were given "
                f"({limits}): give one for each constraint."
            )
        return values


class CopiedVectorEnv(VectorEnv):
    """Copies of one environment, advanced in a loop.

    With same-step autoreset, and unlike those of Gymnasium's ``SyncVectorEnv``, ``infos`` tell of
    the step just taken in every copy, also where it ended an episode (what the reset then says is
    dropped), and ``final_obs`` is one array, valid where ``_final_obs``.
    """

    def __init__(
        self,
        envs: Sequence[gymnasium.Env],
        autoreset_mode: str | AutoresetMode = AutoresetMode.SAME_STEP,
    ) -> None:
        super().__init__()
        first = envs[0]
        self.envs = list(envs)
        self.num_envs = len(self.envs)
        self._autoreset = Autoreset(autoreset_mode, self.num_envs)
        self.metadata = {**first.metadata, "autoreset_mode": self._autoreset.mode}
        self.render_mode = first.render_mode
        self.single_observation_space = first.observation_space
        self.single_action_space = first.action_space
        self.observation_space = batch_space(first.observation_space, self.num_envs)
        self.action_space = batch_space(first.action_space, self.num_envs)

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """What an episode may cost."""
        return self.envs[0].get_wrapper_attr("budgets")

    @budgets.setter
    def budgets(self, budgets: tuple[Budget, ...]) -> None:
        for env in self.envs:
            env.set_wrapper_attr("budgets", budgets)

    @property
    def horizon(self) -> int:
        """The number of steps of a full episode."""
        return self.envs[0].get_wrapper_attr("horizon")

    @property
    def original_observation_space(self) -> gymnasium.Space:
        """That of the environment itself, before it was flattened."""
        first: Any = self.envs[0]
        return getattr(first, "original_observation_space", first.observation_space)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Shaped[np.ndarray, "envs obs"], dict[str, Any]]:
        """Start an episode in every copy, each with a seed of its own."""
        super().reset(seed=seed)
        self._autoreset.restart()
        seeds = [None] * self.num_envs if seed is None else copy_seeds(seed, self.num_envs)
        obs = self._empty_obs()
        infos: dict[str, Any] = {}
        for i, (env, own_seed) in enumerate(zip(self.envs, seeds, strict=True)):
            obs[i], info = env.reset(seed=own_seed, options=options)
            infos = self._add_info(infos, info, i)
        return obs, infos

    def step(self, actions: Float[np.ndarray, "envs ..."]) -> VectorStep:
        """Advance every copy, or start its next episode."""
        obs = self._empty_obs()
        reward = np.zeros(self.num_envs)
        terminated, truncated = np.zeros((2, self.num_envs), np.bool_)
        infos: dict[str, Any] = {}
        for i, (env, action) in enumerate(zip(self.envs, actions, strict=True)):
            if self._autoreset.waiting[i]:
                # Not every environment can be stepped beyond its end.
                infos = self._add_info(infos, {"cost": 0.0}, i)
                continue
            obs[i], reward[i], terminated[i], truncated[i], info = env.step(action)
            infos = self._add_info(infos, info, i)
        return self._autoreset.finished(obs, reward, terminated, truncated, infos, self._begin)

    def _begin(self, chosen: Bool[np.ndarray, " envs"]) -> Shaped[np.ndarray, "chosen obs"]:
        return np.stack([self.envs[i].reset()[0] for i in np.flatnonzero(chosen)])

    def save_state(self) -> dict[str, np.ndarray]:
        """The state of every copy, along a first axis."""
        states = [env.get_wrapper_attr("save_state")() for env in self.envs]
        stacked = {name: np.stack([state[name] for state in states]) for name in states[0]}
        return stacked | self._autoreset.save_state()

    def restore_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from a saved state."""
        for i, env in enumerate(self.envs):
            env.get_wrapper_attr("restore_state")({name: state[name][i] for name in state})
        self._autoreset.restore_state(state)

    def render(self) -> tuple[Any, ...]:
        """One picture of each copy."""
        return tuple(env.render() for env in self.envs)

    def close_extras(self, **kwargs: Any) -> None:
        """Free what the copies hold."""
        for env in self.envs:
            env.close()

    def _empty_obs(self) -> np.ndarray:
        space = self.observation_space
        return np.zeros(space.shape or (), space.dtype)


class VectorAdapter:
    """A ``CostVectorEnv`` made of a vector environment that keeps our conventions."""

    def __init__(self, envs: VectorEnv, *, exact_state: bool, mine: bool = True) -> None:
        # Our conventions go beyond what Gymnasium's type can say.
        self._envs: Any = envs
        self.num_envs = envs.num_envs
        bounds: Any = envs.action_space
        self._low = bounds.low.reshape(self.num_envs, -1)
        self._high = bounds.high.reshape(self.num_envs, -1)
        self.exact_state, self._mine = exact_state, mine
        self._ready = False
        seen = envs.single_observation_space
        original = getattr(envs, "original_observation_space", seen)
        self.spec = EnvSpec(
            obs_size=math.prod(envs.single_observation_space.shape or ()),
            action_low=tuple(self._low[0].tolist()),
            action_high=tuple(self._high[0].tolist()),
            budgets=self._envs.budgets,
            horizon=self._envs.horizon,
            obs_layout=_unless_flat(layout_of(original)),
            action_shape=_unless_flat(envs.single_action_space.shape or ()),
        )

    def reset(self, seed: int) -> Float[np.ndarray, "envs obs"]:
        """Start new episodes in all copies; everything after is determined by the seed."""
        obs, _ = self._envs.reset(seed=seed)
        self._ready = True
        return np.array(obs, np.float32)

    def step(self, actions: Float[np.ndarray, "envs action"]) -> EnvStep:
        """Advance every copy by one step; copies whose episode ends start a new one."""
        if not self._ready:
            raise gymnasium.error.ResetNeeded("reset(seed) must come before the first step")
        actions = checked_actions(actions, self._low, self._high)
        obs, reward, terminated, truncated, infos = self._envs.step(
            actions.reshape(self._envs.action_space.shape)
        )
        obs = np.array(obs, np.float32)
        ended = terminated | truncated
        next_obs = obs
        if ended.any():
            next_obs = np.where(ended[:, None], infos["final_obs"], obs).astype(np.float32)
        cost = self._per_constraint(infos["cost"])
        margin = np.where(cost > 0.0, np.float32(1.0), np.float32(-1.0))
        if "margin" in infos:
            known = infos.get("_margin", np.ones(self.num_envs, np.bool_))
            margin = np.where(known[:, None], self._per_constraint(infos["margin"]), margin)
        return EnvStep(
            next_obs=next_obs,
            obs=obs,
            reward=np.array(reward, np.float32),
            cost=cost,
            terminated=np.array(terminated, np.bool_),
            truncated=np.array(truncated, np.bool_),
            goal_met=np.array(infos.get("goal_met", np.zeros(self.num_envs)), np.bool_),
            margin=margin,
        )

    def save_state(self) -> dict[str, np.ndarray]:
        """The full state as named arrays; none if this environment cannot give its state."""
        return self._envs.save_state() if self.exact_state else {}

    def restore_state(self, state: dict[str, np.ndarray]) -> None:
        """Continue from a saved state.

        An environment without ``exact_state`` cannot: it must be reset before the next step, so
        that nobody takes the old observation for that of the fresh episode.
        """
        if self.exact_state:
            self._envs.restore_state(state)
        self._ready = self.exact_state

    def close(self) -> None:
        """Free what the environment holds, unless somebody else made it."""
        if self._mine:
            self._envs.close()

    def _per_constraint(self, values: np.ndarray) -> Float[np.ndarray, "envs constraints"]:
        return np.array(values, np.float32).reshape(self.num_envs, len(self.spec.budgets))
