"""Equal bits where they are promised, whatever the number of copies and the processor.

NumPy takes other loops on other processors. The sums, products, quotients and roots that IEEE 754
fixes are the same in all of them; of anything else each test here demands that the answer for a row
depends on that row alone.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy._core import _multiarray_umath as numpy_build

from algd.envs.diff_drive import DiffDriveVectorEnv
from algd.training.statistics import count_step, no_episodes
from algd.types import Budget, EnvSpec, EnvStep

TESTS = Path(__file__).parent
LENGTHS = (1, 2, 3, 7, 8, 16, 33)


@pytest.mark.exact
@pytest.mark.parametrize("name", ["sin", "cos", "arctan2", "hypot", "remainder"])
def test_numpys_functions_take_each_number_alone(name):
    """What the environments compute beyond sums, products, quotients and roots."""
    function = getattr(np, name)
    draw = np.random.default_rng(0)
    numbers = [draw.uniform(-30.0, 30.0, 400) for _ in range(function.nin)]
    alone = np.array([function(*one) for one in zip(*numbers, strict=True)])
    for length in LENGTHS:
        for first in range(4):
            for stride in (1, 2, 5):
                rows = slice(first, first + stride * length, stride)
                found = function(*(column[rows] for column in numbers))
                np.testing.assert_array_equal(found, alone[rows])


@pytest.mark.exact
def test_a_robots_step_depends_on_no_other_robot():
    """The generator is shared: only what follows from the robot's own state is compared."""
    most = max(LENGTHS)
    envs = DiffDriveVectorEnv(most, cost_parts=True)
    envs.reset(seed=0)
    draw = np.random.default_rng(1)
    few = {length: DiffDriveVectorEnv(length, cost_parts=True) for length in LENGTHS}
    inside = 0
    for _ in range(150):
        # Ahead and turning a little, so that they meet walls, hazards and goals.
        actions = draw.uniform([0.2, 0.2], 1.0, (most, 2)).astype(np.float32)
        before = envs.save_state()
        obs, reward, _, _, infos = envs.step(actions)
        going_on = ~infos["goal_met"]
        inside += int(infos["cost"][:, 0].sum())
        for length, some in few.items():
            chosen = draw.permutation(most)[:length]
            some.restore_state({k: v if k == "generator" else v[chosen] for k, v in before.items()})
            seen, earned, _, _, told = some.step(actions[chosen])
            kept = going_on[chosen]
            np.testing.assert_array_equal(seen[kept], obs[chosen][kept])
            np.testing.assert_array_equal(earned, reward[chosen])
            for name in ("cost", "margin", "goal_met"):
                np.testing.assert_array_equal(told[name], infos[name][chosen])
    assert inside > 0


@pytest.mark.exact
def test_an_episodes_cost_is_the_same_sum_in_any_company():
    spec = EnvSpec(3, (-1.0,), (1.0,), (Budget(1.0, discounted=True), Budget(1.0, name="b")), 99)
    costs = np.random.default_rng(0).uniform(0.0, 1.0, (60, max(LENGTHS), 2)).astype(np.float32)

    def spent(copies: int) -> np.ndarray:
        sums, so_far = no_episodes(spec, copies), np.zeros((copies, 2))
        for cost in costs[:, :copies]:
            nothing = np.zeros(copies, np.float32)
            ends = np.zeros(copies, bool)
            obs = np.zeros((copies, 3), np.float32)
            step = EnvStep(obs, obs, nothing, cost, ends, ends, ends, cost)
            sums, so_far = count_step(sums, step, ~ends, spec, 0.99)
        return so_far

    for length in LENGTHS:
        np.testing.assert_array_equal(spent(length), spent(max(LENGTHS))[:length])


def test_the_same_bits_without_this_processors_vectors():
    """All tests marked `exact`, with the loops that NumPy takes on the oldest processor."""
    features = numpy_build.__cpu_features__
    above = [name for name in numpy_build.__cpu_dispatch__ if features[name]]
    if not above:
        pytest.skip("NumPy has no other loops for this processor")
    # The other files need not be imported.
    files = [f for f in sorted(TESTS.rglob("test_*.py")) if "mark.exact" in f.read_text()]
    command = ["-m", "pytest", "-m", "exact", "-n", "0", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, *command, *map(str, files)],
        cwd=TESTS.parent,
        env={**os.environ, "NPY_DISABLE_CPU_FEATURES": " ".join(above)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
