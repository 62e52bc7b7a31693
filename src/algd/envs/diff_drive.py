"""DiffDrive: a differential-drive robot that visits goals across a field of circular hazards.

Goals lie on a ring, each about opposite to the last, and hazards lie inside the ring: the straight
path to the next goal leads through the largest of them. A round wall closes the arena. All copies
advance in one call.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from jaxtyping import Bool, Float, UInt8

from algd.envs.adapters import (
    Autoreset,
    VectorStep,
    checked_actions,
    generator_state,
    restored_generator,
)
from algd.envs.topdown import Canvas
from algd.types import Budget, UserError

HORIZON = 200
TIME_STEP = 0.1
TOP_SPEED = 1.0
TOP_TURN_RATE = 3.0
# Reversing is slow, as on robots that look ahead only.
TOP_REVERSE_SPEED = 0.25
# Share of the gap to the commanded wheel speeds that the motors close in one step.
MOTOR_RESPONSE = 0.5

WALL_RADIUS = 2.0
RING_RADIUS = 1.5
GOAL_RADIUS = 0.3
GOAL_SCATTER = 0.5
CENTRE_HAZARD = 0.5
SATELLITE_HAZARD = 0.2
SATELLITE_DISTANCE = 1.05
HAZARD_RADII = np.array([CENTRE_HAZARD] + 3 * [SATELLITE_HAZARD])

OBS_SIZE = 2 + 3 + 3 * len(HAZARD_RADII)
HAZARD_BUDGET = Budget(20.0, name="hazards")
ENERGY_BUDGET = Budget(100.0, name="energy")
METADATA: dict[str, Any] = {
    "render_modes": ["rgb_array"],
    "render_fps": round(1 / TIME_STEP),
    "cost": "1 in a hazard",
}


def scaled_budgets(cost_parts: bool, horizon: int) -> tuple[Budget, ...]:
    """What episodes of this length may cost."""
    if type(horizon) is not int or horizon < 1:
        raise UserError(f"DiffDrive's horizon must be a whole number, at least 1, not {horizon!r}.")
    budgets = (HAZARD_BUDGET, ENERGY_BUDGET) if cost_parts else (HAZARD_BUDGET,)
    return tuple(replace(b, limit=b.limit * horizon / HORIZON) for b in budgets)


class DiffDriveVectorEnv(VectorEnv):
    """Many robots at once; autoreset in the same step, or in the next.

    An action is the pair of commanded wheel speeds, left and right, in [-1, 1]. The observation
    is in the robot's frame: forward and turning speed, then direction (cosine, sine) and distance
    of the goal and of each hazard (to its edge, negative inside). The reward is the progress
    towards the goal plus 1 for reaching it. The cost is 1 for each step inside a hazard; with
    ``cost_parts`` a second cost is the energy, the mean square of the wheel commands. Episodes of
    another ``horizon`` have budgets in proportion.
    """

    metadata = {**METADATA, "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(
        self,
        num_envs: int = 1,
        render_mode: str | None = None,
        cost_parts: bool = False,
        horizon: int = HORIZON,
        autoreset_mode: str | AutoresetMode = AutoresetMode.SAME_STEP,
    ) -> None:
        self.num_envs = num_envs
        self._autoreset = Autoreset(autoreset_mode, num_envs)
        self.metadata = {**METADATA, "autoreset_mode": self._autoreset.mode}
        self.render_mode = render_mode
        self.cost_parts = cost_parts
        self.horizon = horizon
        self.budgets = scaled_budgets(cost_parts, horizon)
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (OBS_SIZE,), np.float32)
        self.single_action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self._box = spaces.Box(-1.0, 1.0, (num_envs, 2), np.float32)
        self.action_space = self._box
        self._always = np.ones(num_envs, bool)
        self._generator: np.random.Generator | None = None
        self._steps = np.zeros(num_envs, np.int64)
        self._position = np.zeros((num_envs, 2))
        self._heading = np.zeros(num_envs)
        # Forward speed and turn rate.
        self._speed = np.zeros((num_envs, 2))
        self._goal_angle = np.zeros(num_envs)
        self._goal = np.zeros((num_envs, 2))
        self._goal_distance = np.zeros(num_envs)
        self._hazards = np.zeros((num_envs, len(HAZARD_RADII), 2))
        self._inside = np.zeros(num_envs, bool)

    def reset(
        self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Float[np.ndarray, "envs obs"], dict[str, Any]]:
        """Start new episodes in all copies."""
        if seed is not None or self._generator is None:
            self._generator = np.random.default_rng(seed)
        self._start(self._always)
        self._autoreset.restart()
        return self._observe(), {}

    def step(self, actions: Float[np.ndarray, "envs action"]) -> VectorStep:
        """Advance every copy by one step."""
        if self._generator is None:
            raise gymnasium.error.ResetNeeded("Call reset() before the first step().")
        wheels = checked_actions(np.asarray(actions), self._box.low, self._box.high)
        self._drive(wheels)

        before = self._goal_distance
        offset = self._goal - self._position
        distance = np.hypot(offset[:, 0], offset[:, 1])
        # A copy whose episode is over draws no goal: the draws are those of either autoreset.
        goal_met = (distance < GOAL_RADIUS) & ~self._autoreset.waiting
        reward = before - distance + goal_met
        self._goal_distance = distance
        if goal_met.any():
            self._next_goal(goal_met)

        margin = self._margin()
        self._inside = margin > 0.0
        cost: np.ndarray = self._inside.astype(np.float64)
        if self.cost_parts:
            energy = np.mean(wheels**2, axis=1)
            cost = np.stack([cost, energy], axis=1)
            margin = np.stack([margin, energy - ENERGY_BUDGET.limit / HORIZON], axis=1)

        self._steps += 1
        truncated = self._steps >= self.horizon
        infos: dict[str, Any] = {"cost": cost, "margin": margin, "goal_met": goal_met}
        terminated = np.zeros(self.num_envs, bool)
        known = self._always.copy()
        infos |= {f"_{name}": known for name in tuple(infos)}
        return self._autoreset.finished(
            self._observe(), reward, terminated, truncated, infos, self._begin
        )

    def _begin(self, chosen: Bool[np.ndarray, " envs"]) -> Float[np.ndarray, "chosen obs"]:
        self._start(chosen)
        return self._observe()[chosen]

    def save_state(self) -> dict[str, np.ndarray]:
        """Everything that the future depends on."""
        if self._generator is None:
            raise gymnasium.error.ResetNeeded("There is no state before the first reset().")
        arrays = {name: getattr(self, f"_{name}").copy() for name in _STATE}
        arrays["generator"] = generator_state(self._generator)
        return arrays | self._autoreset.save_state()

    def restore_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from a saved state."""
        for name in _STATE:
            setattr(self, f"_{name}", np.array(state[name]))
        self._autoreset.restore_state(state)
        self._generator = restored_generator(state["generator"])

    def render(self) -> tuple[UInt8[np.ndarray, "pixels pixels 3"], ...] | None:
        """A picture of each copy from above."""
        if self.render_mode != "rgb_array":
            return None
        return tuple(self._picture(i) for i in range(self.num_envs))

    def _drive(self, wheels: Float[np.ndarray, "envs 2"]) -> None:
        left, right = wheels[:, 0], wheels[:, 1]
        forward = np.maximum((left + right) * (TOP_SPEED / 2), -TOP_REVERSE_SPEED)
        turn = (right - left) * (TOP_TURN_RATE / 2)
        self._speed[:, 0] += MOTOR_RESPONSE * (forward - self._speed[:, 0])
        self._speed[:, 1] += MOTOR_RESPONSE * (turn - self._speed[:, 1])
        self._heading = (self._heading + TIME_STEP * self._speed[:, 1]) % math.tau
        stride = TIME_STEP * self._speed[:, 0]
        self._position[:, 0] += stride * np.cos(self._heading)
        self._position[:, 1] += stride * np.sin(self._heading)
        # The wall stops the robot but lets it slide along.
        reach = np.hypot(self._position[:, 0], self._position[:, 1])
        self._position *= np.minimum(WALL_RADIUS / np.maximum(reach, 1e-9), 1.0)[:, None]

    def _margin(self) -> Float[np.ndarray, " envs"]:
        """How deep the robot's centre lies in a hazard; negative outside of all."""
        offset = self._hazards - self._position[:, None]
        return np.max(HAZARD_RADII - np.hypot(offset[..., 0], offset[..., 1]), axis=1)

    def _observe(self) -> Float[np.ndarray, "envs obs"]:
        things = np.concatenate([self._goal[:, None], self._hazards], axis=1)
        offset = things - self._position[:, None]
        distance = np.hypot(offset[..., 0], offset[..., 1])
        cos, sin = np.cos(self._heading)[:, None], np.sin(self._heading)[:, None]
        safe = np.maximum(distance, 1e-9)
        obs = np.empty((self.num_envs, OBS_SIZE), np.float32)
        obs[:, 0] = self._speed[:, 0] / TOP_SPEED
        obs[:, 1] = self._speed[:, 1] / TOP_TURN_RATE
        obs[:, 2::3] = (cos * offset[..., 0] + sin * offset[..., 1]) / safe
        obs[:, 3::3] = (cos * offset[..., 1] - sin * offset[..., 0]) / safe
        distance[:, 1:] -= HAZARD_RADII
        obs[:, 4::3] = distance
        return obs

    def _start(self, chosen: Bool[np.ndarray, " envs"]) -> None:
        """New episodes: the robot on the ring, facing anywhere; satellites at random angles."""
        assert self._generator is not None
        count = int(chosen.sum())
        start, heading, turn = self._generator.uniform(0.0, math.tau, (3, count))
        third = math.tau / 3
        spread = self._generator.uniform(-third / 4, third / 4, (count, 3))
        angles = turn[:, None] + third * np.arange(3) + spread
        self._steps[chosen] = 0
        self._position[chosen] = RING_RADIUS * _direction(start)
        self._heading[chosen] = heading
        self._speed[chosen] = 0.0
        self._inside[chosen] = False
        self._goal_angle[chosen] = start
        self._hazards[chosen, 0] = 0.0
        self._hazards[chosen, 1:] = SATELLITE_DISTANCE * _direction(angles)
        self._next_goal(chosen)

    def _next_goal(self, chosen: Bool[np.ndarray, " envs"]) -> None:
        """The next goal lies on the ring, opposite to the last one up to some scatter."""
        assert self._generator is not None
        scatter = self._generator.uniform(-GOAL_SCATTER, GOAL_SCATTER, int(chosen.sum()))
        angle = (self._goal_angle[chosen] + math.pi + scatter) % math.tau
        self._goal_angle[chosen] = angle
        self._goal[chosen] = RING_RADIUS * _direction(angle)
        offset = self._goal[chosen] - self._position[chosen]
        self._goal_distance[chosen] = np.hypot(offset[:, 0], offset[:, 1])

    def _picture(self, copy: int) -> UInt8[np.ndarray, "pixels pixels 3"]:
        canvas = Canvas(half_width=2.2, background=(0.98, 0.98, 0.97))
        canvas.ring((0.0, 0.0), WALL_RADIUS + 0.1, 0.05, (0.6, 0.6, 0.6))
        for centre, radius in zip(self._hazards[copy], HAZARD_RADII, strict=True):
            canvas.disk(_point(centre), float(radius), (0.35, 0.45, 0.85), alpha=0.55)
        canvas.disk(_point(self._goal[copy]), GOAL_RADIUS, (0.25, 0.7, 0.35), alpha=0.8)
        robot = _point(self._position[copy])
        color = (0.85, 0.15, 0.1) if self._inside[copy] else (0.2, 0.2, 0.22)
        canvas.disk(robot, 0.1, color)
        tip = self._position[copy] + 0.24 * _direction(self._heading[copy])
        canvas.arrow(robot, _point(tip), 0.05, color)
        if self._inside[copy]:
            canvas.frame(0.06, (0.85, 0.15, 0.1))
        return canvas.image()


# Everything but the generator, by attribute.
_STATE = (
    "steps",
    "position",
    "heading",
    "speed",
    "goal_angle",
    "goal",
    "goal_distance",
    "hazards",
    "inside",
)


class DiffDriveEnv(gymnasium.Env):
    """One robot: a shell around the vector form with a single copy."""

    metadata = METADATA

    def __init__(
        self, render_mode: str | None = None, cost_parts: bool = False, horizon: int = HORIZON
    ) -> None:
        # At its end an episode stays as it is, to be looked at.
        mode = AutoresetMode.NEXT_STEP
        self._envs = DiffDriveVectorEnv(1, render_mode, cost_parts, horizon, mode)
        self.render_mode = render_mode
        self.horizon = horizon
        self.budgets = self._envs.budgets
        self.observation_space = self._envs.single_observation_space
        self.action_space = self._envs.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Float[np.ndarray, " obs"], dict[str, Any]]:
        """Start a new episode."""
        super().reset(seed=seed)
        # The copies draw from Gymnasium's own generator of this environment.
        self._envs._generator = self.np_random
        obs, _ = self._envs.reset()
        return obs[0], {}

    def step(
        self, action: Float[np.ndarray, " action"]
    ) -> tuple[Float[np.ndarray, " obs"], float, bool, bool, dict[str, Any]]:
        """Advance by one step; the caller resets after the last one."""
        obs, reward, terminated, truncated, infos = self._envs.step(np.asarray(action)[None])
        cost, margin = infos["cost"][0], infos["margin"][0]
        info = {
            "cost": cost if self._envs.cost_parts else float(cost),
            "margin": margin if self._envs.cost_parts else float(margin),
            "goal_met": bool(infos["goal_met"][0]),
        }
        return obs[0], float(reward[0]), bool(terminated[0]), bool(truncated[0]), info

    def render(self) -> UInt8[np.ndarray, "pixels pixels 3"] | None:
        """A picture from above."""
        pictures = self._envs.render()
        return None if pictures is None else pictures[0]

    def save_state(self) -> dict[str, np.ndarray]:
        """Everything that the future depends on."""
        return self._envs.save_state()

    def restore_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from a saved state."""
        self._envs.restore_state(state)
        assert self._envs._generator is not None
        self.np_random = self._envs._generator


def _direction(angle: Any) -> np.ndarray:
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1)


def _point(xy: np.ndarray) -> tuple[float, float]:
    return float(xy[0]), float(xy[1])
