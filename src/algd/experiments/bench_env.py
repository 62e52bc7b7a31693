"""How fast the environments are, beside the bare physics inside them."""

# MuJoCo takes its names from compiled modules that pyright cannot see into.
# pyright: reportAttributeAccessIssue=false

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

import gymnasium
import mujoco
import numpy as np

from algd.envs.safety_gym import NAMESPACE, TASK_NAMES, register

SAFETY_GYM_IDS = tuple(f"{NAMESPACE}/{name}-v0" for name in TASK_NAMES)
# Long enough to see a reset or two per measurement at 16 copies, and wrong buttons, and contacts.
ACTIONS = 512
ROUNDS = 5


def bench_env(
    seconds: float = 1.0,
    env_ids: tuple[str, ...] = SAFETY_GYM_IDS,
    copies: tuple[int, ...] = (1, 16),
) -> list[dict[str, Any]]:
    """Measure each task with each number of copies for about ``seconds``.

    ``steps_per_second`` counts environment steps of all copies together, with observation, reward,
    cost and resets. ``physics_steps_per_second`` is the rate of environment steps that would leave
    time for nothing but the physics: the same number of ``mj_step`` calls on the same model with
    the same controls, in a tight loop on the same number of threads (``threads``) in the same
    run. Both are medians over rounds that take turns, and so is their ``ratio``.
    """
    register()
    return [bench_one(env_id, number, seconds) for env_id in env_ids for number in copies]


def bench_one(env_id: str, copies: int, seconds: float) -> dict[str, Any]:
    """Measure one task with one number of copies."""
    envs: Any = gymnasium.make_vec(env_id, num_envs=copies)
    native = envs.unwrapped
    actions = np.random.default_rng(0).uniform(-1.0, 1.0, (ACTIONS, copies, 2))
    envs.reset(seed=0)
    bare = BarePhysics(native, actions)
    whole_rates, bare_rates = [], []
    for _ in range(ROUNDS):
        whole_rates.append(rate(lambda k: envs.step(actions[k]), seconds / ROUNDS / 2) * copies)
        bare_rates.append(rate(bare.step, seconds / ROUNDS / 2) * copies)
    bare.close()
    envs.close()
    ratios = [whole / alone for whole, alone in zip(whole_rates, bare_rates, strict=True)]
    return {
        "env": env_id,
        "copies": copies,
        "steps_per_second": median(whole_rates),
        "physics_steps_per_second": median(bare_rates),
        "ratio": median(ratios),
        "threads": native.world.physics.threads,
    }


def rate(call: Callable[[int], object], seconds: float) -> float:
    """Calls per second, over at least one call."""
    start = time.perf_counter()
    calls = 0
    while (elapsed := time.perf_counter() - start) < seconds or not calls:
        call(calls % ACTIONS)
        calls += 1
    return calls / elapsed


class BarePhysics:
    """Only ``mj_step`` on the models, controls and threads of a vector environment.

    The guides of the gremlins are moved once for each environment step, so that the gremlins
    circle as in the task; the ten steps in between are one call.
    """

    def __init__(self, envs: Any, actions: np.ndarray):
        physics = envs.world.physics
        self._models = physics.quiet_models
        self._data = [mujoco.MjData(model) for model in physics.models]
        self._actions = actions
        self._horizon = envs.horizon
        self._substeps = physics.substeps
        self._shares = physics.shares
        self._steps = 0
        self._pool = ThreadPoolExecutor(physics.threads - 1) if physics.threads > 1 else None

    def step(self, k: int) -> None:
        """One environment step's worth of physics in all copies."""
        waiting = (
            [self._pool.submit(self._advance, s, k) for s in self._shares[1:]]
            if (self._pool)
            else []
        )
        self._advance(self._shares[0], k)
        for future in waiting:
            future.result()
        self._steps += 1

    def _advance(self, share: range, k: int) -> None:
        for i in share:
            model, data = self._models[i], self._data[i]
            if self._steps % self._horizon == 0:
                mujoco.mj_resetData(model, data)
            data.ctrl[:] = self._actions[k, i]
            if model.nmocap:
                data.mocap_pos[:] = (0.3 * np.sin(data.time), 0.3 * np.cos(data.time), 0.1)
            mujoco.mj_step(model, data, self._substeps)

    def close(self) -> None:
        """Let the threads go."""
        if self._pool:
            self._pool.shutdown()
