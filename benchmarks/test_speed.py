"""Speed of the pieces that decide a run's, for pytest-benchmark.

    pip install -e ".[bench]"
    pytest benchmarks -n 0 --benchmark-only

`python benchmarks/compare.py COMMIT COMMIT` sets two commits against each other on one machine.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algd import envs
from algd.algorithms import presets
from algd.evaluation.policy import Policy
from algd.profiling.update import PAPER_SPEC, at_paper_sizes, example_batch
from algd.training.replay import Replay
from algd.training.updates import CPU_OPTIONS, gradient_rounds

ROUNDS = 12


@pytest.mark.parametrize("name", ["algd-code", "algd", "cal-algd", "sac-lag", "hj"])
def test_gradient_rounds(benchmark, name):
    """At the paper's sizes, minibatch sampling included."""
    algorithm = at_paper_sizes(presets()[name])
    state = algorithm.init(PAPER_SPEC, jax.random.key(0))
    replay = Replay(example_batch(PAPER_SPEC, 10_000), jnp.asarray(10_000, jnp.int32))
    rounds = jax.jit(
        lambda s, r, k: gradient_rounds(algorithm, s, r, k, ROUNDS), compiler_options=CPU_OPTIONS
    )
    key = jax.random.key(1)
    jax.block_until_ready(rounds(state, replay, key))
    benchmark.pedantic(
        lambda: jax.block_until_ready(rounds(state, replay, key)), rounds=5, warmup_rounds=1
    )


def test_one_action(benchmark):
    """From one observation to one action."""
    algorithm = at_paper_sizes(presets()["algd-code"])
    policy = Policy(algorithm, algorithm.init(PAPER_SPEC, jax.random.key(0)), PAPER_SPEC)
    obs = np.zeros(PAPER_SPEC.obs_size, np.float32)
    policy.predict(obs)
    benchmark(policy.predict, obs)


@pytest.mark.parametrize(("task", "copies"), [("DiffDrive", 256), ("PointButton1", 16)])
def test_a_vector_step(benchmark, task, copies):
    """All copies, automatic resets included."""
    copies_of_task = envs.make(task, copies)
    copies_of_task.reset(0)
    size = copies_of_task.spec.action_size
    actions = np.random.default_rng(0).uniform(-1, 1, (copies, size)).astype(np.float32)
    benchmark(copies_of_task.step, actions)
