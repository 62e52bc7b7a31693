"""The tasks as Gymnasium environments: one copy, or many stepped together."""

import difflib
from collections.abc import Sequence
from typing import Any, get_args

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from jaxtyping import Bool, Float

from algd.envs.adapters import Autoreset, VectorStep
from algd.envs.safety_gym.drawing import Painter
from algd.envs.safety_gym.physics import default_threads
from algd.envs.safety_gym.tasks import COST_LIMIT, HORIZON, SUBSTEPS, TASKS, LayoutName, Task
from algd.envs.safety_gym.world import Outcome, World
from algd.types import Budget


class SafetyGymEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """One copy of a task.

    ``layout`` is "fixed" (the paper's: every episode begins in the same state, whatever the seed)
    or "random" (each episode is drawn anew). ``cost_parts`` makes ``info["cost"]`` and
    ``info["margin"]`` the vector of the parts of the cost, each with a budget of its own.
    Finite actions outside [-1, 1] are clipped, as the tasks' own engine does.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(
        self,
        task: str = "PointButton1",
        layout: str = "fixed",
        cost_parts: bool = False,
        render_mode: str | None = None,
        renderer: str = "topdown",
    ):
        found = find_task(task)
        self.world = World(found, check_layout(layout), copies=1, threads=1)
        self.observation_space = observation_space(self.world)
        self.action_space = action_space()
        self.budgets = task_budgets(found, cost_parts)
        self.horizon = HORIZON
        self.cost_parts = cost_parts
        self.render_mode = check_render_mode(render_mode)
        cost = f"1 at {', '.join(found.parts).replace('buttons', 'wrong buttons')}"
        self.metadata = {**self.metadata, "render_fps": frames_per_second(found), "cost": cost}
        self._painter = Painter(renderer)
        self._running = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self.world.seed(0, self.np_random)
        self._running = True
        return self.world.reset(np.arange(1))[0], {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Advance by one step; ``info`` holds the cost, its parts, its margin and the goal."""
        check_running(self._running)
        outcome = self.world.step(checked_actions(np.asarray(action)[None], 1))
        info = {name: _plain(value[0]) for name, value in step_infos(self, outcome).items()}
        # After a divergence there is nothing left to step.
        self._running = not outcome.diverged[0]
        return (
            outcome.obs[0],
            float(outcome.reward[0]),
            bool(outcome.terminated[0]),
            bool(outcome.truncated[0]),
            info,
        )

    def render(self) -> Any:
        """The scene as an image, if the environment was made with ``render_mode``."""
        return None if self.render_mode is None else self._painter.picture(self.world, 0)

    def close(self) -> None:
        """Free the renderer."""
        self._painter.close()

    def save_state(self) -> dict[str, np.ndarray]:
        """Everything that the future depends on, as named arrays."""
        return _save(self.world, self._running)

    def restore_state(self, state: dict[str, np.ndarray]) -> None:
        """Continue from a saved state, to the last bit."""
        self._running = _restore(self.world, state)
        self.np_random = self.world.seeders[0]


class SafetyGymVectorEnv(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """Many copies of a task, stepped in one call; the options are those of ``SafetyGymEnv``.

    A copy whose episode ends begins the next one in the same step, unless ``autoreset_mode`` says
    in the next: ``obs`` is then the first of
    the new episode, ``infos["final_obs"]`` the last of the old one where ``infos["_final_obs"]``
    says so. All other infos are those of the step just taken. Copy i of ``reset(seed=s)`` is
    seeded with s + i. ``num_threads`` changes the speed and nothing else.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012
        "render_modes": ["rgb_array"],
        "render_fps": 10,
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }

    def __init__(
        self,
        num_envs: int = 1,
        task: str = "PointButton1",
        layout: str = "fixed",
        cost_parts: bool = False,
        render_mode: str | None = None,
        renderer: str = "topdown",
        num_threads: int | None = None,
        autoreset_mode: str | AutoresetMode = AutoresetMode.SAME_STEP,
    ):
        if num_envs < 1:
            raise ValueError(f"num_envs is {num_envs}, but there must be at least one copy")
        if num_threads is not None and not 1 <= num_threads <= num_envs:
            raise ValueError(f"num_threads is {num_threads}, but must be in 1..{num_envs}")
        found = find_task(task)
        threads = default_threads(num_envs) if num_threads is None else num_threads
        self.num_envs = num_envs
        self._autoreset = Autoreset(autoreset_mode, num_envs)
        self.world = World(found, check_layout(layout), num_envs, threads)
        self.single_observation_space = observation_space(self.world)
        self.single_action_space = action_space()
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.budgets = task_budgets(found, cost_parts)
        self.horizon = HORIZON
        self.cost_parts = cost_parts
        self.render_mode = check_render_mode(render_mode)
        self.metadata = {
            **self.metadata,
            "render_fps": frames_per_second(found),
            "autoreset_mode": self._autoreset.mode,
        }
        self._painter = Painter(renderer)
        self._running = False
        self._seeded = False

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin new episodes in all copies."""
        for i, own_seed in enumerate(self._copy_seeds(seed)):
            if own_seed is not None or not self._seeded:
                self.world.seed(i, seeding.np_random(own_seed)[0])
        self._seeded = self._running = True
        self._autoreset.restart()
        return self.world.reset(np.arange(self.num_envs)), {}

    def step(self, actions: np.ndarray) -> VectorStep:
        """Advance every copy by one step; see the class for what happens at episodes' ends."""
        check_running(self._running)
        outcome = self.world.step(checked_actions(np.asarray(actions), self.num_envs))
        infos: dict[str, Any] = {**step_infos(self, outcome)}
        known = np.ones(self.num_envs, bool)
        infos |= {f"_{name}": known for name in tuple(infos)}
        ends = (outcome.terminated, outcome.truncated)
        return self._autoreset.finished(outcome.obs, outcome.reward, *ends, infos, self._begin)

    def _begin(self, chosen: Bool[np.ndarray, " envs"]) -> Float[np.ndarray, "chosen obs"]:
        return self.world.reset(np.flatnonzero(chosen))

    def render(self) -> tuple[Any, ...] | None:
        """The scenes as images, if the environment was made with ``render_mode``."""
        if self.render_mode is None:
            return None
        return tuple(self._painter.picture(self.world, i) for i in range(self.num_envs))

    def close_extras(self, **kwargs: Any) -> None:
        """Free the renderer."""
        self._painter.close()

    def save_state(self) -> dict[str, np.ndarray]:
        """Everything that the future depends on, as named arrays."""
        return _save(self.world, self._running) | self._autoreset.save_state()

    def restore_state(self, state: dict[str, np.ndarray]) -> None:
        """Continue from a saved state, to the last bit."""
        self._autoreset.restore_state(state)
        self._running = self._seeded = _restore(self.world, state)

    def _copy_seeds(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, int | np.integer):
            return [int(seed) + i for i in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ValueError(f"{len(seed)} seeds were given for {self.num_envs} copies")
        return list(seed)


def find_task(name: str) -> Task:
    """The task of that name."""
    if name in TASKS:
        return TASKS[name]
    near = difflib.get_close_matches(name, TASKS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"unknown task {name!r}: there are {', '.join(TASKS)}{hint}")


def check_layout(name: str) -> LayoutName:
    """The name of a layout, if it is one."""
    for known in get_args(LayoutName):
        if name == known:
            return known
    raise ValueError(f"unknown layout {name!r}: there are 'fixed' (the paper's) and 'random'")


def check_render_mode(mode: str | None) -> str | None:
    """The render mode, if we have it."""
    if mode is None or mode == "rgb_array":
        return mode
    raise ValueError(f"unknown render_mode {mode!r}: there is only 'rgb_array' (or None)")


def frames_per_second(task: Task) -> int:
    """The rate at which a film of an episode runs in real time."""
    return round(1.0 / (SUBSTEPS * task.robot.timestep))


def check_running(running: bool) -> None:
    """Refuse to step what was never reset."""
    if not running:
        raise gymnasium.error.ResetNeeded("call reset() before step()")


def checked_actions(actions: np.ndarray, copies: int) -> Float[np.ndarray, "copies 2"]:
    """The actions as floats, or an error that says what is wrong with them."""
    if actions.shape != (copies, 2):
        wanted, given = ((copies, 2), actions.shape) if copies > 1 else ((2,), actions.shape[1:])
        raise ValueError(f"actions have the shape {given}, but must have {wanted}")
    actions = actions.astype(np.float64, copy=False)
    if not np.isfinite(actions).all():
        raise ValueError(f"actions must be finite numbers, but some are not: {actions}")
    return actions


def observation_space(world: World) -> spaces.Box:
    """Unbounded floats: the sensors have no bounds, and the lidars are in [0, 1]."""
    return spaces.Box(-np.inf, np.inf, (world.obs_size,), np.float64)


def action_space() -> spaces.Box:
    """Two numbers in [-1, 1] for either robot."""
    return spaces.Box(-1.0, 1.0, (2,), np.float64)


def task_budgets(task: Task, cost_parts: bool) -> tuple[Budget, ...]:
    """The paper's budget, for the whole cost or for each part."""
    if not cost_parts:
        return (Budget(COST_LIMIT),)
    return tuple(Budget(COST_LIMIT, name=part) for part in task.parts)


def step_infos(env: SafetyGymEnv | SafetyGymVectorEnv, outcome: Outcome) -> dict[str, np.ndarray]:
    """What is reported beside reward and ends, with one row for each copy."""
    task = env.world.task
    infos: dict[str, np.ndarray] = {
        f"cost_{part}": outcome.costs[:, i] for i, part in enumerate(task.parts)
    }
    if task.goal == "button":
        # The engine reports this part also where there are no gremlins.
        infos.setdefault("cost_gremlins", np.zeros(len(outcome.reward)))
    if env.cost_parts:
        infos["cost"], infos["margin"] = outcome.costs, outcome.margins
    else:
        infos["cost"], infos["margin"] = outcome.costs.max(axis=1), outcome.margins.max(axis=1)
    infos["goal_met"] = outcome.goal_met
    infos["diverged"] = outcome.diverged
    return infos


def _plain(value: Any) -> Any:
    """A row of infos as a single environment reports it."""
    return value if np.ndim(value) else value.item()


def _save(world: World, running: bool) -> dict[str, np.ndarray]:
    return {**world.save_state(), "running": np.array(running)}


def _restore(world: World, state: dict[str, np.ndarray]) -> bool:
    own = {name: value for name, value in state.items() if name not in ("running", "waiting")}
    world.restore_state(own)
    return bool(state["running"])
