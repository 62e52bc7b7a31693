"""Environments of others: one that keeps the conventions, and many that do not quite."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Walk(gymnasium.Env):
    """Walk along a line from a drawn place; beyond 2 it costs, beyond 3 it ends."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = self.np_random.uniform(), 0
        # A reset's info must never be taken for that of the last step.
        return self.observe(), {"cost": 1000.0, "goal_met": True}

    def step(self, action):
        self.place += float(action[0])
        self.steps += 1
        return self.answer()

    def answer(self):
        info = {"cost": max(0.0, self.place - 2.0), "text": "not for arrays"}
        if self.place > 3.0:
            info["goal_met"] = True
        return self.observe(), -self.place, self.place > 3.0, False, info

    def observe(self):
        return np.array([self.place, self.steps])


class SixValues(Walk):
    def answer(self):
        obs, reward, terminated, truncated, info = super().answer()
        return obs, reward, info.pop("cost"), terminated, truncated, info


class TwoCosts(Walk):
    def answer(self):
        obs, reward, terminated, truncated, info = super().answer()
        info |= {"cost": np.array([info["cost"], 1.0]), "margin": [self.place - 2.0, 7.0]}
        return obs, reward, terminated, truncated, info


class GrowingCost(Walk):
    def answer(self):
        obs, reward, terminated, truncated, info = super().answer()
        return obs, reward, terminated, truncated, info | {"cost": [0.0] * self.steps}


class Costless(Walk):
    def answer(self):
        obs, reward, terminated, truncated, _ = super().answer()
        return obs, reward, terminated, truncated, {"place": self.place}


class WordyCost(Walk):
    def answer(self):
        obs, reward, terminated, truncated, info = super().answer()
        return obs, reward, terminated, truncated, info | {"cost": "high"}


class FourValues(Walk):
    def answer(self):
        return super().answer()[1:]


class NotANumber(Walk):
    def answer(self):
        return np.full(2, np.nan), np.nan, False, False, {"cost": np.nan}


class InPlace(Walk):
    """Writes every observation into the same array."""

    buffer = None

    def observe(self):
        self.buffer = np.zeros(2) if self.buffer is None else self.buffer
        self.buffer[:] = super().observe()
        return self.buffer


class Nested(Walk):
    observation_space = spaces.Dict(
        {
            "b": spaces.Box(-np.inf, np.inf, (2,), np.float64),
            "a": spaces.Tuple([spaces.Box(-np.inf, np.inf, (1, 3), np.float32)]),
        }
    )
    action_space = spaces.Box(np.full((2, 1), -0.5), np.full((2, 1), 2.0), dtype=np.float64)

    def step(self, action):
        assert action.shape == (2, 1)
        assert action.dtype == np.float64
        return super().step(action.sum(axis=0))

    def observe(self):
        return {"b": super().observe(), "a": (np.full((1, 3), 9.0, np.float32),)}


class OddReward(Walk):
    def __init__(self, reward):
        self.reward = reward

    def answer(self):
        obs, _, terminated, truncated, info = super().answer()
        return obs, self.reward, terminated, truncated, info


class NegativeCost(Walk):
    def answer(self):
        obs, reward, terminated, truncated, info = super().answer()
        return obs, reward, terminated, truncated, info | {"cost": -1.0}


class NoActions(Walk):
    action_space = spaces.Box(-1.0, 1.0, (2, 0), np.float32)


class NoObservations(Walk):
    observation_space = spaces.Dict({"nothing": spaces.Box(-1.0, 1.0, (0,), np.float32)})


class DiscreteActions(Walk):
    action_space = spaces.Discrete(2)


class WholeNumberActions(Walk):
    action_space = spaces.Box(0, 5, (2,), np.int64)


class UnboundedActions(Walk):
    action_space = spaces.Box(-np.inf, 1.0, (1,), np.float32)


class DiscreteObservations(Walk):
    observation_space = spaces.Dict({"seen": spaces.Discrete(3)})
