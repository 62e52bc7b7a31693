"""Many copies of one scene, stepped together."""

# MuJoCo takes its names from compiled modules that pyright cannot see into.
# pyright: reportAttributeAccessIssue=false

import copy
import os
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise

import mujoco
import numpy as np
from jaxtyping import Bool, Float
from mujoco.rollout import Rollout

from algd.envs.safety_gym.layout import Layout
from algd.envs.safety_gym.scene import place
from algd.envs.safety_gym.tasks import GREMLIN_HALF_SIZE, GREMLIN_TRAVEL, SUBSTEPS, Task

_PHYSICS = mujoco.mjtState.mjSTATE_FULLPHYSICS.value
_EVERYTHING = mujoco.mjtState.mjSTATE_INTEGRATION.value
_CONTROL = mujoco.mjtState.mjSTATE_CTRL.value | mujoco.mjtState.mjSTATE_MOCAP_POS.value

# A thread must have this many copies to be worth waking.
COPIES_PER_THREAD = 4


def default_threads(num_copies: int) -> int:
    """As many threads as this process may use cores, but no second one for a few copies."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(cores or 1, num_copies // COPIES_PER_THREAD))


def without_sensors(model: mujoco.MjModel) -> mujoco.MjModel:
    """The same model for the steps whose sensors nobody reads."""
    quiet = copy.copy(model)
    quiet.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_SENSOR.value
    return quiet


class Physics:
    """The state of all copies, and the only place where time passes.

    ``sensed`` is what MuJoCo's sensors read in each copy now. All copies share one model unless
    each has a layout of its own. A copy is always stepped alone and in the same way, so the
    numbers depend neither on the number of threads nor on the other copies.
    """

    def __init__(
        self, task: Task, model: mujoco.MjModel, copies: int, threads: int, own_layouts: bool
    ):
        self.task = task
        self.threads = threads
        self.substeps = SUBSTEPS
        quiet = without_sensors(model)
        self.models = [copy.copy(model) if own_layouts else model for _ in range(copies)]
        self.quiet_models = [copy.copy(quiet) if own_layouts else quiet for _ in range(copies)]
        self.data = [mujoco.MjData(model) for _ in range(copies)]
        self.sensed = np.zeros((copies, model.nsensordata))
        # Views of MuJoCo's own memory, made once: reading them afresh costs more than the sensors.
        self._sensors = [data.sensordata[None] for data in self.data]
        self._warmstarts = [data.qacc_warmstart[None] for data in self.data]
        self._clock = int(model.sensor("clock").adr[0])
        self._before = np.empty((copies, 1, mujoco.mj_stateSize(model, _PHYSICS)))
        self._controls = np.zeros((copies, 1, SUBSTEPS, mujoco.mj_stateSize(model, _CONTROL)))
        self._guides = self._controls[:, 0, :, 2:].reshape(copies, SUBSTEPS, model.nmocap, 3)
        self._guides[..., 2] = GREMLIN_HALF_SIZE
        self._ticks = np.full((copies, SUBSTEPS), task.robot.timestep)
        self._failed = np.zeros(copies, bool)
        self._rollout = Rollout(nthread=0)
        edges = np.linspace(0, copies, threads + 1).astype(int).tolist()
        self.shares = [range(a, b) for a, b in pairwise(edges)]
        self._pool = ThreadPoolExecutor(threads - 1) if threads > 1 else None

    def close(self) -> None:
        """Let the threads go."""
        if self._pool is not None:
            self._pool.shutdown()

    @property
    def time(self) -> Float[np.ndarray, " copies"]:
        """The simulated time of each copy."""
        return self.sensed[:, self._clock]

    def restart(self, i: int) -> None:
        """Put one copy at the beginning of an episode in the layout of its model."""
        mujoco.mj_resetData(self.models[i], self.data[i])
        mujoco.mj_forward(self.models[i], self.data[i])
        self.sensed[i] = self.data[i].sensordata

    def rearrange(self, i: int, layout: Layout) -> None:
        """Give one copy another layout; it must then be restarted."""
        place(self.task, self.models[i], layout)
        place(self.task, self.quiet_models[i], layout)

    def step(self, controls: Float[np.ndarray, "copies 2"]) -> Bool[np.ndarray, " copies"]:
        """Advance all copies by one environment step; say which of them left the finite world."""
        start = self.time
        self._controls[:, 0, :, :2] = controls[:, None]
        if self._guides.size:
            # Summed one by one, as the simulator does, so that the last bit is the same.
            self._ticks[:, 0] = start
            time = np.cumsum(self._ticks, axis=1)[..., None]
            # All guides are on one circle about the origin, once in 2 pi seconds. Each gremlin is
            # welded to its guide with the offset it had at reset, hence circles there.
            self._guides[..., 0] = GREMLIN_TRAVEL * np.sin(time)
            self._guides[..., 1] = GREMLIN_TRAVEL * np.cos(time)
        expected = start + (SUBSTEPS - 0.5) * self.task.robot.timestep
        self._failed[:] = False
        waiting: list[Future[None]] = []
        if self._pool is not None:
            waiting = [self._pool.submit(self._advance, share) for share in self.shares[1:]]
        self._advance(self.shares[0])
        for future in waiting:
            future.result()
        np.concatenate(self._sensors, out=self.sensed)
        # MuJoCo stops or restarts a copy whose state is not finite: its clock then stays behind.
        on_time = self.time > expected
        return self._failed | ~on_time | ~np.isfinite(self.sensed).all(axis=1)

    def _advance(self, share: range) -> None:
        for i in share:
            data = self.data[i]
            try:
                mujoco.mj_getState(self.models[i], data, self._before[i, 0], _PHYSICS)
                self._rollout.rollout(
                    [self.quiet_models[i]],
                    [data],
                    self._before[i],
                    self._controls[i],
                    control_spec=_CONTROL,
                    skip_checks=True,
                    nstep=SUBSTEPS,
                    initial_warmstart=self._warmstarts[i],
                )
                mujoco.mj_forward(self.models[i], data)
            except mujoco.FatalError:
                self._failed[i] = True

    def save_state(self) -> Float[np.ndarray, "copies state"]:
        """All that the future of the copies depends on, but for their layouts."""
        size = mujoco.mj_stateSize(self.models[0], _EVERYTHING)
        state = np.empty((len(self.data), size))
        for row, model, data in zip(state, self.models, self.data, strict=True):
            mujoco.mj_getState(model, data, row, _EVERYTHING)
        return state

    def restore_state(self, state: Float[np.ndarray, "copies state"]) -> None:
        """Continue from a saved state; everything derived is computed from it again."""
        for row, model, data in zip(state, self.models, self.data, strict=True):
            mujoco.mj_resetData(model, data)
            mujoco.mj_setState(model, data, row, _EVERYTHING)
            mujoco.mj_forward(model, data)
        np.concatenate(self._sensors, out=self.sensed)
