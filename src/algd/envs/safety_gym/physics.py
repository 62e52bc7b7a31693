"""Many copies of one scene, stepped together."""

# MuJoCo takes its names from compiled modules that pyright cannot see into.
# pyright: reportAttributeAccessIssue=false

import copy
import os

import mujoco
import numpy as np
from jaxtyping import Bool, Float
from mujoco.batch import Batch, SimulationError

from algd.envs.safety_gym.layout import Layout
from algd.envs.safety_gym.scene import place
from algd.envs.safety_gym.tasks import GREMLIN_HALF_SIZE, GREMLIN_TRAVEL, SUBSTEPS, Task

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

    ``sensed`` is what MuJoCo's sensors read in each copy now, ``copies`` their states. All copies
    share one model unless each has a layout of its own. The numbers depend neither on the number of
    threads nor on the other copies.
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
        # One steps and the other senses; the state goes from each to the other.
        self.copies = Batch(quiet, copies, threads)
        self._senses = Batch(model, copies, threads)
        if own_layouts:
            self._take_models()
        self.sensed: Float[np.ndarray, "copies sensors"] = self._senses.bind("sensordata")
        self._clock = int(model.sensor("clock").adr[0])
        self._controls = np.zeros((copies, SUBSTEPS, mujoco.mj_stateSize(model, _CONTROL)))
        self._guides = self._controls[:, :, 2:].reshape(copies, SUBSTEPS, model.nmocap, 3)
        self._guides[..., 2] = GREMLIN_HALF_SIZE
        self._ticks = np.full((copies, SUBSTEPS), task.robot.timestep)

    @property
    def time(self) -> Float[np.ndarray, " copies"]:
        """The simulated time of each copy."""
        return self.sensed[:, self._clock]

    def restart(self, i: int) -> None:
        """Put one copy at the beginning of an episode in the layout of its model."""
        self._senses.reset([i])
        self.copies.state[i] = self._senses.state[i]

    def rearrange(self, i: int, layout: Layout) -> None:
        """Give one copy another layout; it must then be restarted."""
        place(self.task, self.models[i], layout)
        place(self.task, self.quiet_models[i], layout)
        self._take_models()

    def _take_models(self) -> None:
        self.copies.set_models(self.quiet_models)
        self._senses.set_models(self.models)

    def step(self, controls: Float[np.ndarray, "copies 2"]) -> Bool[np.ndarray, " copies"]:
        """Advance all copies by one environment step; say which of them left the finite world."""
        start = self.time
        self._controls[:, :, :2] = controls[:, None]
        if self._guides.size:
            # Summed one by one, as the simulator does, so that the last bit is the same.
            self._ticks[:, 0] = start
            time = np.cumsum(self._ticks, axis=1)[..., None]
            # All guides are on one circle about the origin, once in 2 pi seconds. Each gremlin is
            # welded to its guide with the offset it had at reset, hence circles there.
            self._guides[..., 0] = GREMLIN_TRAVEL * np.sin(time)
            self._guides[..., 1] = GREMLIN_TRAVEL * np.cos(time)
        expected = start + (SUBSTEPS - 0.5) * self.task.robot.timestep
        failed = np.zeros(len(controls), bool)
        try:
            self.copies.rollout(SUBSTEPS, self._controls, _CONTROL, record=())
        except SimulationError as error:
            failed[error.ids] = True
        failed[self.sense()] = True
        # A copy whose state is not finite is stopped: its clock then stays behind.
        on_time = self.time > expected
        return failed | ~on_time | ~np.isfinite(self.sensed).all(axis=1)

    def sense(self) -> list[int]:
        """Read the sensors of the present states; the copies in which this failed."""
        failed = []
        self._senses.state[:] = self.copies.state
        try:
            self._senses.forward()
        except SimulationError as error:
            failed = error.ids.tolist()
        self.copies.state[:] = self._senses.state
        return failed

    def data(self, i: int) -> mujoco.MjData:
        """One copy as MuJoCo's functions take it."""
        found = self._senses.get_data(i)
        mujoco.mj_forward(self.models[i], found)
        return found

    def save_state(self) -> Float[np.ndarray, "copies state"]:
        """All that the future of the copies depends on, but for their layouts."""
        return self.copies.state.copy()

    def restore_state(self, state: Float[np.ndarray, "copies state"]) -> None:
        """Continue from a saved state; everything derived is computed from it again."""
        self.copies.state[:] = state
        self.sense()
