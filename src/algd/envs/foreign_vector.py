"""Anybody's vector environment, brought to the conventions of ``adapters``."""

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space, iterate
from jaxtyping import Bool, Float, Shaped

from algd.envs.adapters import (
    CostReport,
    VectorAdapter,
    VectorStep,
    adapt_native,
    copy_foreign,
    tried,
)
from algd.envs.requirements import CostFunction, facts_of
from algd.types import Budget, UserError


def adapt_vector(
    envs: VectorEnv,
    name: str,
    budgets: tuple[Budget, ...] | None,
    cost_function: CostFunction | None,
    horizon: int | None,
    mine: bool,
) -> VectorAdapter:
    """See copies that are there as a ``CostVectorEnv``; it closes them if they are ``mine``."""
    bare: Any = envs
    if hasattr(bare, "restore_state") and cost_function is None:
        return adapt_native(envs, name, budgets, horizon, mine)
    if isinstance(envs, SyncVectorEnv):
        # A list of environments, whatever happens at the end of their episodes.
        return copy_foreign(envs.envs, name, budgets, cost_function, horizon, mine)
    if envs.metadata.get("autoreset_mode") != AutoresetMode.SAME_STEP:
        raise UserError(
            f"The copies of {name} begin their episodes by {envs.metadata.get('autoreset_mode')}: "
            "make them with autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP."
        )
    budgets, horizon = facts_of(bare, name, budgets, horizon, cost_function)
    reported = Reported(bare, name, budgets, horizon, cost_function)
    return tried(VectorAdapter(reported, exact_state=False, mine=mine))


class Reported(VectorEnv):
    """Copies whose observations are flat, and whose infos are those of the step just taken."""

    def __init__(
        self,
        envs: Any,
        name: str,
        budgets: tuple[Budget, ...],
        horizon: int,
        cost_function: CostFunction | None,
    ) -> None:
        super().__init__()
        self.envs, self.num_envs = envs, envs.num_envs
        self.budgets, self.horizon = budgets, horizon
        self.metadata = envs.metadata
        self.original_observation_space = envs.single_observation_space
        self.single_observation_space = spaces.flatten_space(envs.single_observation_space)
        self.single_action_space = envs.single_action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = envs.action_space
        # They read and check what a copy says, one by one.
        self._steps = [Step(envs) for _ in range(self.num_envs)]
        self._reports = [
            CostReport(step, name, budgets, horizon, cost_function) for step in self._steps
        ]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Shaped[np.ndarray, "envs obs"], dict[str, Any]]:
        """Start an episode in every copy."""
        obs, _ = self.envs.reset(seed=seed, options=options)
        return self._begun(self._each(obs), np.ones(self.num_envs, np.bool_)), {}

    def step(self, actions: Float[np.ndarray, "envs ..."]) -> VectorStep:
        """Advance every copy; where an episode ends, the next one has begun."""
        obs, reward, terminated, truncated, infos = self.envs.step(actions)
        ended, after = terminated | truncated, self._each(obs)
        seen, told = list(after), [dict(_of_copy(infos, i)) for i in range(self.num_envs)]
        for i in np.flatnonzero(ended):
            # What Gymnasium's own vector environments say of a step that ended an episode.
            seen[i] = told[i].pop("final_obs")
            told[i] = told[i].get("final_info", told[i])
        final, mine = [], {}
        for i, (step, report) in enumerate(zip(self._steps, self._reports, strict=True)):
            step.answer = (seen[i], reward[i], terminated[i], truncated[i], told[i])
            flat, _, _, cut, info = report.step(actions[i])
            if cut and not ended[i]:
                raise UserError(
                    f"An episode went on after {self.horizon} steps, which is its horizon: copies "
                    "that are there must end it themselves."
                )
            final.append(flat)
            mine = self._add_info(mine, info, i)
        final = np.stack(final)
        if not ended.any():
            return final, reward, terminated, truncated, mine
        begun = np.where(ended[:, None], self._begun(after, ended), final)
        return begun, reward, terminated, truncated, {**mine, "final_obs": final}

    def close_extras(self, **kwargs: Any) -> None:
        """Free what the copies hold."""
        self.envs.close()

    def _each(self, obs: Any) -> list[Any]:
        return list(iterate(self.envs.observation_space, obs))

    def _begun(self, obs: list[Any], where: Bool[np.ndarray, " envs"]) -> np.ndarray:
        """The first observations of those that begin, and zeros."""
        size = self.single_observation_space.shape or ()
        found = np.zeros((self.num_envs, *size), self.single_observation_space.dtype)
        for i in np.flatnonzero(where):
            self._steps[i].first = obs[i]
            found[i], _ = self._reports[i].reset()
        return found


class Step(gymnasium.Env):
    """One copy of a vector environment, which hands on what that has answered."""

    def __init__(self, envs: Any) -> None:
        self.observation_space = envs.single_observation_space
        self.action_space = envs.single_action_space
        self.first: Any = None
        self.answer: Any = None

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        """What the copy began with."""
        return self.first, {}

    def step(self, action: Any) -> Any:
        """What the copy answered."""
        return self.answer


def _of_copy(infos: dict[str, Any], i: int) -> Iterator[tuple[str, Any]]:
    """The info of one copy, of what Gymnasium gathers by key with a mask beside it."""
    for key, values in infos.items():
        mask = infos.get(f"_{key}")
        if key.startswith("_") or (mask is not None and not mask[i]):
            continue
        if isinstance(values, dict):
            yield key, dict(_of_copy(values, i))
        else:
            yield key, values[i] if np.ndim(values) else values
