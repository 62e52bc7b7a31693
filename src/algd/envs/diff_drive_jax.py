"""DiffDrive as two pure functions: the task of ``diff_drive``, equal to it in single precision."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray

from algd.envs.diff_drive import (
    ENERGY_BUDGET,
    GOAL_RADIUS,
    GOAL_SCATTER,
    HAZARD_RADII,
    HORIZON,
    MOTOR_RESPONSE,
    RING_RADIUS,
    SATELLITE_DISTANCE,
    TIME_STEP,
    TOP_REVERSE_SPEED,
    TOP_SPEED,
    TOP_TURN_RATE,
    WALL_RADIUS,
    scaled_budgets,
)
from algd.types import Budget, Outcome

RADII = HAZARD_RADII.astype(np.float32)


class State(NamedTuple):
    """One robot; ``speed`` is forward speed and turn rate, ``goals`` counts those drawn so far."""

    obs: Float[Array, " obs"]
    position: Float[Array, "2"]
    heading: Float[Array, ""]
    speed: Float[Array, "2"]
    goal_angle: Float[Array, ""]
    goal: Float[Array, "2"]
    goal_distance: Float[Array, ""]
    hazards: Float[Array, "hazards 2"]
    goals: Int[Array, ""]
    key: Key[Array, ""]


@dataclass(frozen=True)
class DiffDrive:
    """One robot among hazards; options and budgets are those of the Gymnasium form."""

    cost_parts: bool = False
    horizon: int = HORIZON
    action_low = (-1.0, -1.0)
    action_high = (1.0, 1.0)

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """What an episode may cost."""
        return scaled_budgets(self.cost_parts, self.horizon)

    def reset(self, key: PRNGKeyArray) -> State:
        """The robot on the ring, facing anywhere; satellites at random angles."""
        third = math.tau / 3
        draws = jax.random.uniform(key, (6,))
        start, heading, turn = math.tau * draws[:3]
        angles = turn + third * jnp.arange(3, dtype=jnp.float32) + (draws[3:] - 0.5) * third / 2
        satellites = SATELLITE_DISTANCE * _direction(angles)
        state = State(
            obs=jnp.zeros(0),
            position=RING_RADIUS * _direction(start),
            heading=heading,
            speed=jnp.zeros(2),
            goal_angle=start,
            goal=jnp.zeros(2),
            goal_distance=jnp.zeros(()),
            hazards=jnp.concatenate([jnp.zeros((1, 2)), satellites]),
            goals=jnp.zeros((), jnp.int32),
            key=key,
        )
        return _observed(_next_goal(state))

    def step(self, state: State, action: Float[Array, "2"]) -> tuple[State, Outcome]:
        """Drive; earn the progress towards the goal, and 1 for reaching it."""
        state = _drive(state, action)
        distance = _length(state.goal - state.position)
        goal_met = distance < GOAL_RADIUS
        reward = state.goal_distance - distance + jnp.where(goal_met, 1.0, 0.0)
        same, new = state._replace(goal_distance=distance), _next_goal(state)
        state = jax.tree.map(lambda new, old: jnp.where(goal_met, new, old), new, same)

        margin = jnp.max(RADII - _length(state.hazards - state.position))[None]
        cost = jnp.where(margin > 0.0, 1.0, 0.0)
        if self.cost_parts:
            energy = jnp.mean(action**2)[None]
            cost = jnp.concatenate([cost, energy])
            margin = jnp.concatenate([margin, energy - ENERGY_BUDGET.limit / HORIZON])
        return _observed(state), Outcome(reward, cost, goal_met=goal_met, margin=margin)


def _drive(state: State, wheels: Float[Array, "2"]) -> State:
    left, right = wheels
    forward = jnp.maximum((left + right) * (TOP_SPEED / 2), -TOP_REVERSE_SPEED)
    turn = (right - left) * (TOP_TURN_RATE / 2)
    speed = state.speed + MOTOR_RESPONSE * (jnp.stack([forward, turn]) - state.speed)
    heading = (state.heading + TIME_STEP * speed[1]) % math.tau
    position = state.position + TIME_STEP * speed[0] * _direction(heading)
    # The wall stops the robot but lets it slide along.
    reach = jnp.maximum(_length(position), 1e-9)
    position = position * jnp.minimum(WALL_RADIUS / reach, 1.0)
    return state._replace(speed=speed, heading=heading, position=position)


def _next_goal(state: State) -> State:
    """The next goal lies on the ring, opposite to the last one up to some scatter."""
    draw = jax.random.uniform(jax.random.fold_in(state.key, state.goals))
    angle = (state.goal_angle + math.pi + (2.0 * draw - 1.0) * GOAL_SCATTER) % math.tau
    goal = RING_RADIUS * _direction(angle)
    return state._replace(
        goal_angle=angle,
        goal=goal,
        goal_distance=_length(goal - state.position),
        goals=state.goals + 1,
    )


def _observed(state: State) -> State:
    """With what the robot sees: its speeds, and where goal and hazards are in its own frame."""
    offset = jnp.concatenate([state.goal[None], state.hazards]) - state.position
    distance = _length(offset)
    cos, sin = _direction(state.heading)
    x, y = offset[:, 0], offset[:, 1]
    safe = jnp.maximum(distance, 1e-9)
    edges = distance - np.concatenate([np.zeros(1, np.float32), RADII])
    seen = jnp.stack([(cos * x + sin * y) / safe, (cos * y - sin * x) / safe, edges], axis=1)
    speeds = state.speed / np.array([TOP_SPEED, TOP_TURN_RATE], np.float32)
    return state._replace(obs=jnp.concatenate([speeds, seen.reshape(-1)]))


def _direction(angle: Float[Array, "*angles"]) -> Float[Array, "*angles 2"]:
    return jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=-1)


def _length(offset: Float[Array, "*offsets 2"]) -> Float[Array, "*offsets"]:
    return jnp.sqrt(jnp.sum(offset**2, axis=-1))
