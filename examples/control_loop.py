"""Drive with an exported policy: NumPy alone, no JAX, no algd.

algd export runs/DiffDrive-algd-seed0 --format numpy --out policy
python examples/control_loop.py policy [STEPS [PERIOD]]
"""

import importlib.util
import sys
import time
from pathlib import Path

import numpy as np


def load(directory: str):
    """The policy, by the module that lies beside its arrays."""
    file = Path(directory) / "numpy_policy.py"
    spec = importlib.util.spec_from_file_location("numpy_policy", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules["numpy_policy"] = module
    spec.loader.exec_module(module)
    return module.NumpyPolicy.load(Path(directory) / "policy.npz")


class Robot:
    """Stands for your hardware: `sense` reads an observation, `drive` sends an action."""

    def __init__(self, obs_size: int) -> None:
        self.state = np.zeros(obs_size, np.float32)

    def sense(self) -> np.ndarray:
        """The newest observation."""
        return self.state

    def drive(self, action: np.ndarray) -> None:
        """Pretend that the world reacts."""
        self.state = 0.9 * self.state + 0.1 * np.resize(action, self.state.shape)


def main(directory: str, steps: int = 100, period: float = 0.02) -> None:
    """A loop of fixed period; the action stays the same if an observation is no number."""
    policy = load(directory)
    robot, action = Robot(policy.obs_size), (policy.data.low + policy.data.high) / 2
    slowest = 0.0
    for _ in range(steps):
        start = time.perf_counter()
        obs = robot.sense()
        if np.isfinite(obs).all():
            action = policy.predict(obs)
        robot.drive(action)
        spent = time.perf_counter() - start
        slowest = max(slowest, spent)
        time.sleep(max(period - spent, 0.0))
    print(f"last action {action.tolist()}, slowest step {slowest * 1e3:.1f} ms")


if __name__ == "__main__":
    given = zip((int, float), sys.argv[2:], strict=False)
    main(sys.argv[1], *(convert(word) for convert, word in given))
