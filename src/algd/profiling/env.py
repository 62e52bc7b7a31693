"""How fast the environments are, beside the bare physics inside them."""

# MuJoCo takes its names from compiled modules that pyright cannot see into.
# pyright: reportAttributeAccessIssue=false

import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import gymnasium
import mujoco
import numpy as np
from jaxtyping import Bool, Float

from algd.registration import NAMESPACE, SAFETY_GYM_TASKS

SAFETY_GYM_IDS = tuple(f"{NAMESPACE}/{name}-v0" for name in SAFETY_GYM_TASKS)
# As many as an episode of the Safety-Gym tasks has steps, so that each pass has its resets.
ACTIONS = 400
ROUNDS = 8


class Scene(NamedTuple):
    """What is needed to step the physics of a vector environment alone."""

    models: list[Any]
    substeps: int
    threads: int


def bench_env(
    seconds: float = 2.0,
    env_ids: tuple[str, ...] = SAFETY_GYM_IDS,
    copies: tuple[int, ...] = (1, 16),
    tell: Callable[[str], None] = lambda what: None,
) -> list[dict[str, Any]]:
    """Measure each environment with each number of copies for about ``seconds``.

    ``steps_per_second`` counts environment steps of all copies together, with observation, reward,
    cost and resets. ``physics_steps_per_second`` is the same for the physics and nothing else: as
    many ``mj_step`` calls for each step, on the same models with the same controls, in a tight
    loop on as many threads (``threads``). The two take turns in short rounds; given are the best
    round of each and the median of the rounds' ``ratio``. An environment without MuJoCo has None.
    """
    rows = []
    for env_id, number in itertools.product(env_ids, copies):
        tell(f"{number} x {env_id}")
        rows.append(bench_one(env_id, number, seconds))
    return rows


def bench_one(env_id: str, copies: int, seconds: float) -> dict[str, Any]:
    """Measure one environment with one number of copies."""
    envs: Any = gymnasium.make_vec(env_id, num_envs=copies)
    space = envs.single_action_space
    size = (ACTIONS, copies, *space.shape)
    actions = np.random.default_rng(0).uniform(space.low, space.high, size).astype(space.dtype)
    # One pass to warm up and to learn where episodes end, for the bare physics to do the same.
    envs.reset(seed=0)
    ended = np.stack([np.logical_or(*envs.step(action)[2:4]) for action in actions])
    scene = find_scene(envs.unwrapped)
    bare = None if scene is None else BarePhysics(scene, actions, ended)
    whole_rates, bare_rates = [], []
    for _ in range(ROUNDS):
        whole_rates.append(copies * rate(lambda k: envs.step(actions[k]), seconds / ROUNDS / 2))
        if bare is not None:
            bare_rates.append(copies * rate(bare.step, seconds / ROUNDS / 2))
    envs.close()
    if bare is not None:
        bare.close()
    ratios = [whole / alone for whole, alone in zip(whole_rates, bare_rates, strict=False)]
    return {
        "env": env_id,
        "copies": copies,
        "steps_per_second": max(whole_rates),
        "physics_steps_per_second": max(bare_rates, default=None),
        "ratio": median(ratios) if ratios else None,
        "threads": 1 if scene is None else scene.threads,
    }


def rate(call: Callable[[int], object], seconds: float) -> float:
    """Calls per second; the calls get the numbers of the actions one after another."""
    start = time.perf_counter()
    calls = 0
    while (elapsed := time.perf_counter() - start) < seconds or not calls:
        call(calls % ACTIONS)
        calls += 1
    return calls / elapsed


def find_scene(native: Any) -> Scene | None:
    """The MuJoCo scenes inside a vector environment, if there are any we know how to find."""
    if hasattr(native, "world"):
        physics = native.world.physics
        return Scene(physics.quiet_models, physics.substeps, physics.threads)
    bodies: list[Any] = [getattr(env, "_body", None) for env in getattr(native, "envs", ())]
    if bodies and all(hasattr(body, "model") for body in bodies):
        models = [body.model for body in bodies]
        return Scene(models, bodies[0].frame_skip, 1)
    return None


class BarePhysics:
    """Only ``mj_step``, with the controls, the resets and the threads of a vector environment.

    The guides of gremlins are moved once for each environment step, so that the gremlins circle as
    they do in the task; the substeps in between are one call.
    """

    def __init__(
        self,
        scene: Scene,
        actions: Float[np.ndarray, "steps copies action"],
        ended: Bool[np.ndarray, "steps copies"],
    ):
        self._scene = scene
        self._data = [mujoco.MjData(model) for model in scene.models]
        self._actions = actions
        self._begins = np.roll(ended, 1, axis=0)
        self._begins[0] = True
        edges = np.linspace(0, len(scene.models), scene.threads + 1).astype(int).tolist()
        self._shares = [range(a, b) for a, b in pairwise(edges)]
        self._pool = ThreadPoolExecutor(scene.threads - 1) if scene.threads > 1 else None

    def step(self, k: int) -> None:
        """One environment step's worth of physics in all copies."""
        waiting = []
        if self._pool is not None:
            waiting = [self._pool.submit(self._advance, s, k) for s in self._shares[1:]]
        self._advance(self._shares[0], k)
        for future in waiting:
            future.result()

    def _advance(self, share: range, k: int) -> None:
        for i in share:
            model, data = self._scene.models[i], self._data[i]
            if self._begins[k, i]:
                mujoco.mj_resetData(model, data)
            data.ctrl[:] = self._actions[k, i]
            if model.nmocap:
                data.mocap_pos[:] = (0.3 * np.sin(data.time), 0.3 * np.cos(data.time), 0.1)
            mujoco.mj_step(model, data, self._scene.substeps)

    def close(self) -> None:
        """Let the threads go."""
        if self._pool is not None:
            self._pool.shutdown()
