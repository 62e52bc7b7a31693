"""Run, but not too fast: the velocity tasks on Gymnasium's v5 bodies, in two conventions.

In the paper's, the cost of a step is the speed itself and the budget bounds its discounted sum.
In Safety-Gymnasium's (``...Indicator``), a step costs 1 if the speed is above a threshold and an
episode may cost 25. Costs of the two cannot be compared.
"""
# pyright: reportAttributeAccessIssue=false
# MuJoCo's compiled modules have no type stubs.

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import gymnasium
import mujoco
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from jaxtyping import Float, Shaped

from algd.envs.adapters import CopiedVectorEnv, checked_actions, generator_state, restored_generator
from algd.types import Budget, UserError

HORIZON = 1000
DISCOUNT = 0.99

# Everything the next physics step depends on, the solver's warm start included.
PHYSICS = mujoco.mjtState.mjSTATE_INTEGRATION
# MuJoCo answers a diverging state with a warning and a silent reset to the initial pose.
DIVERGENCE = [
    int(mujoco.mjtWarning.mjWARN_BADQPOS),
    int(mujoco.mjtWarning.mjWARN_BADQVEL),
    int(mujoco.mjtWarning.mjWARN_BADQACC),
]


def forward_speed(info: Mapping[str, Any]) -> float:
    """$v_x$: running backwards is free."""
    return float(info["x_velocity"])


def absolute_speed(info: Mapping[str, Any]) -> float:
    """$|v_x|$."""
    return abs(forward_speed(info))


def planar_speed(info: Mapping[str, Any]) -> float:
    r"""$\sqrt{v_x^2 + v_y^2}$."""
    return math.hypot(info["x_velocity"], info["y_velocity"])


class VelocityTask(NamedTuple):
    """A body, what counts as its speed, and what that costs.

    Without a ``threshold`` the cost is the speed itself. ``obs_size`` cuts the observation.
    """

    body: str
    speed: Callable[[Mapping[str, Any]], float]
    budget: Budget
    threshold: float | None = None
    obs_size: int | None = None


def _discounted(limit: float) -> Budget:
    return Budget(limit, discounted=True, rate=True)


TASKS = {
    "HalfCheetahVelocity": VelocityTask("HalfCheetah-v5", absolute_speed, _discounted(151.989)),
    "HopperVelocity": VelocityTask("Hopper-v5", absolute_speed, _discounted(82.748)),
    # The paper's observations hold positions and velocities, but not contact forces and the like.
    "AntVelocity": VelocityTask("Ant-v5", planar_speed, _discounted(103.115), obs_size=27),
    "HumanoidVelocity": VelocityTask("Humanoid-v5", planar_speed, _discounted(20.14), obs_size=45),
    "HalfCheetahVelocityIndicator": VelocityTask(
        "HalfCheetah-v5", forward_speed, Budget(25.0), 3.2096
    ),
    "HopperVelocityIndicator": VelocityTask("Hopper-v5", forward_speed, Budget(25.0), 0.7402),
    "AntVelocityIndicator": VelocityTask("Ant-v5", planar_speed, Budget(25.0), 2.6222),
    "HumanoidVelocityIndicator": VelocityTask("Humanoid-v5", planar_speed, Budget(25.0), 1.4149),
    "Walker2dVelocityIndicator": VelocityTask("Walker2d-v5", forward_speed, Budget(25.0), 2.3415),
    "SwimmerVelocityIndicator": VelocityTask("Swimmer-v5", forward_speed, Budget(25.0), 0.2282),
}


class VelocityEnv(gymnasium.Env):
    """A v5 body whose speed costs.

    ``info`` holds ``cost``, ``margin`` (speed above what is allowed), ``diverged`` and what the
    body reports.
    """

    metadata = {"render_modes": ["human", "rgb_array", "depth_array", "rgbd_tuple"]}  # noqa: RUF012

    def __init__(self, task: str, render_mode: str | None = None) -> None:
        if task not in TASKS:
            raise UserError(f"There is no velocity task {task!r}: there are {', '.join(TASKS)}.")
        self._task = TASKS[task]
        with _without_model_warnings():
            made = gymnasium.make(
                self._task.body,
                max_episode_steps=-1,
                disable_env_checker=True,
                render_mode=render_mode,
                # All six bodies have this camera, which follows them from the side.
                camera_name="track",
            )
        # Its physics is not part of Gymnasium's type.
        self._body: Any = made.unwrapped
        limit = self._task.threshold
        cost = "the speed" if limit is None else f"1 above the speed {limit}"
        self.metadata = {**self._body.metadata, "cost": cost}
        self.render_mode = render_mode
        self.action_space = self._body.action_space
        size = self._task.obs_size or self._body.observation_space.shape[0]
        self.observation_space = spaces.Box(-np.inf, np.inf, (size,), np.float64)
        self.budgets = (self._task.budget,)
        self.horizon = HORIZON
        self._elapsed: int | None = None
        self._obs = np.zeros(size)

    @property
    def speed_limit(self) -> float:
        """The threshold or, without one, the constant speed that spends the discounted budget."""
        if self._task.threshold is not None:
            return self._task.threshold
        return self.budgets[0].limit * (1.0 - DISCOUNT) / (1.0 - DISCOUNT**HORIZON)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Float[np.ndarray, " obs"], dict[str, Any]]:
        """Start an episode near the body's initial pose."""
        super().reset(seed=seed)
        self._body.np_random = self.np_random
        obs, info = self._body.reset(options=options)
        self._elapsed = 0
        self._obs = self._cut(obs)
        return self._obs.copy(), info

    def step(
        self, action: Shaped[np.ndarray, "..."]
    ) -> tuple[Float[np.ndarray, " obs"], float, bool, bool, dict[str, Any]]:
        """Advance the body; a diverging simulation ends the episode where it was last sound."""
        if self._elapsed is None:
            raise gymnasium.error.ResetNeeded("reset must come before the first step")
        action = checked_actions(action, self.action_space.low, self.action_space.high)
        obs, reward, terminated, _, info = self._body.step(action)
        self._elapsed += 1
        truncated = self._elapsed >= self.horizon
        if self._body.data.warning.number[DIVERGENCE].any() or not np.isfinite(obs).all():
            nothing = {"cost": 0.0, "margin": -self.speed_limit, "diverged": True}
            return self._obs.copy(), 0.0, True, truncated, nothing
        self._obs = self._cut(obs)
        speed = self._task.speed(info)
        margin = speed - self.speed_limit
        cost = speed if self._task.threshold is None else float(margin > 0.0)
        info |= {"cost": cost, "margin": margin, "diverged": False}
        return self._obs.copy(), float(reward), bool(terminated), truncated, info

    def save_state(self) -> dict[str, np.ndarray]:
        """Everything that the rest of the episode and all later ones depend on."""
        model, data = self._body.model, self._body.data
        physics = np.empty(mujoco.mj_stateSize(model, PHYSICS))
        mujoco.mj_getState(model, data, physics, PHYSICS)
        return {
            "physics": physics,
            # After a step these lag behind the joints by one substep, and Ant and Humanoid
            # measure their next speed from here.
            "frames": np.stack([data.xpos, data.xipos]),
            "obs": self._obs.copy(),
            "elapsed": np.asarray(-1 if self._elapsed is None else self._elapsed),
            "generator": generator_state(self.np_random),
        }

    def restore_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from a saved state to the last bit."""
        model, data = self._body.model, self._body.data
        mujoco.mj_resetData(model, data)
        mujoco.mj_setState(model, data, state["physics"], PHYSICS)
        # For whoever renders now; the next step would do it itself.
        mujoco.mj_forward(model, data)
        data.xpos[:], data.xipos[:] = state["frames"]
        self._obs = state["obs"].copy()
        self._elapsed = None if state["elapsed"] < 0 else int(state["elapsed"])
        self.np_random = restored_generator(state["generator"])

    def render(self) -> Any:
        """Gymnasium's picture of the body."""
        return self._body.render()

    def close(self) -> None:
        """Free the renderer."""
        self._body.close()

    def _cut(self, obs: Float[np.ndarray, " all"]) -> Float[np.ndarray, " obs"]:
        return obs[: self._task.obs_size]


def velocity_vector_env(
    num_envs: int,
    task: str,
    render_mode: str | None = None,
    autoreset_mode: str | AutoresetMode = AutoresetMode.SAME_STEP,
) -> CopiedVectorEnv:
    """Copies of a velocity task."""
    copies = [VelocityEnv(task, render_mode) for _ in range(num_envs)]
    return CopiedVectorEnv(copies, autoreset_mode)


@contextlib.contextmanager
def _without_model_warnings() -> Iterator[None]:
    """Gymnasium's models have old attributes: keep MuJoCo from logging so in the user's folder."""
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)
