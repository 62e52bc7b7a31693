"""How long one gradient round takes, beside what this machine's matrix products allow."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from algd.algorithms import presets
from algd.algorithms.algd import ALGD
from algd.evaluation.policy import Policy
from algd.networks.native import library
from algd.training.replay import Replay
from algd.training.updates import CPU_OPTIONS, fresh_state, gradient_rounds
from algd.types import Algorithm, Budget, EnvSpec, ReplayOptions, Transition

# One round of the authors' objective at the paper's sizes, at two per multiply-add, when the N
# actions of a state share the state's half of the first layer. A constant: needless work cannot
# raise the figure.
GFLOP_PER_ROUND = 6.08
ROUNDS = 10

PAPER_SPEC = EnvSpec(76, (-1.0,) * 2, (1.0,) * 2, (Budget(10.0),), 400)
# Over a budget of zero is every action, so that no part of the cost's gradient vanishes.
BINDING_SPEC = dataclasses.replace(PAPER_SPEC, budgets=(Budget(0.0),))


def seconds(call: Callable[[], Any], calls: int) -> list[float]:
    """Wall-clock times of calls that return device arrays, after one that is not counted."""
    jax.block_until_ready(call())
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
    return times


def reference_product() -> Callable[[], Array]:
    """8 products [1536, 256] x [256, 256] in float32."""
    left = jnp.ones((8, 1536, 256))
    right = jnp.ones((8, 256, 256))
    product = jax.jit(jnp.matmul)
    return lambda: product(left, right)


def example_batch(spec: EnvSpec, size: int) -> Transition:
    """Random transitions of a task's shapes."""
    keys = jax.random.split(jax.random.key(0), 5)
    constraints = len(spec.budgets)

    def normal(key: Array, *shape: int) -> Float[Array, "..."]:
        return jax.random.normal(key, (size, *shape))

    return Transition(
        obs=normal(keys[0], spec.obs_size),
        action=jnp.tanh(normal(keys[1], spec.action_size)),
        reward=normal(keys[2]),
        cost=jnp.abs(normal(keys[3], constraints)),
        next_obs=normal(keys[4], spec.obs_size),
        terminated=jnp.zeros(size, bool),
        truncated=jnp.zeros(size, bool),
        goal_met=jnp.zeros(size, bool),
        margin=normal(keys[3], constraints),
        extras={},
    )


def at_paper_sizes(algorithm: Algorithm) -> Any:
    """The same algorithm with the sizes of the paper's tables, where it has them."""
    sizes = {"batch_size": 256, "cost_ensemble": 6, "mc_samples": 6, "critic_hidden": 256}
    fields = {field.name for field in dataclasses.fields(algorithm)}
    return dataclasses.replace(algorithm, **{k: v for k, v in sizes.items() if k in fields})


def ten_rounds(algorithm: Algorithm, specs: Sequence[EnvSpec]) -> list[Callable[[], Any]]:
    """For each task a scan of ten rounds from its initial state, minibatch sampling included."""
    replay = Replay(example_batch(PAPER_SPEC, 10_000), jnp.asarray(10_000, jnp.int32))
    rounds = jax.jit(
        lambda s, r, k: gradient_rounds(algorithm, s, r, k, ROUNDS), compiler_options=CPU_OPTIONS
    )
    key = jax.random.key(1)
    states = [fresh_state(algorithm, spec, jax.random.key(0)) for spec in specs]
    return [lambda state=state: rounds(state, replay, key) for state in states]


def round_and_rate(algorithm: Algorithm, turns: int) -> tuple[float, float, float]:
    """Median seconds per round with a slack and with a binding constraint, and the median rate of
    the reference product in GFLOP/s.

    All are timed in turns: a machine that others use too changes its pace within seconds.
    """
    slack, binding = ten_rounds(algorithm, (PAPER_SPEC, BINDING_SPEC))
    product = reference_product()
    by_product, by_slack, by_binding = [], [], []
    for _ in range(turns):
        by_product += seconds(product, 10)
        by_slack += [taken / ROUNDS for taken in seconds(slack, 1)]
        by_binding += [taken / ROUNDS for taken in seconds(binding, 1)]
    gflop = 2 * 8 * 1536 * 256 * 256 / 1e9
    median = statistics.median
    return median(by_slack), median(by_binding), gflop / median(by_product)


def act_microseconds(algorithm: Algorithm, calls: int = 5_000) -> tuple[float, float]:
    """Median and 99th percentile from the call to the action of one observation."""
    state = algorithm.init(PAPER_SPEC, jax.random.key(0))
    policy = Policy(algorithm, state, PAPER_SPEC)
    obs = np.zeros(PAPER_SPEC.obs_size, np.float32)
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        policy.predict(obs)
        times.append(1e6 * (time.perf_counter() - start))
    times = sorted(times[calls // 10 :])
    return statistics.median(times), times[int(0.99 * len(times))]


def variants(preset_names: tuple[str, ...]) -> Iterator[tuple[str, str, Any]]:
    """Each preset at the paper's sizes, in each precision that it offers."""
    for name in preset_names:
        algorithm = at_paper_sizes(presets()[name])
        if not isinstance(algorithm, ReplayOptions):
            continue
        yield name, "float32", algorithm
        if hasattr(algorithm, "energy_precision"):
            yield name, "bfloat16", dataclasses.replace(algorithm, energy_precision="bfloat16")


def bench_update(
    preset_names: tuple[str, ...],
    tell: Callable[[str], None] = lambda what: None,
    turns: int = 21,
) -> list[dict[str, Any]]:
    """One row per preset and precision."""
    rows = []
    for name, precision, algorithm in variants(preset_names):
        tell(f"{name} in {precision}")
        slack, binding, gflops = round_and_rate(algorithm, turns)
        row: dict[str, Any] = {
            "preset": name,
            "precision": precision,
            "native": library.available(),
            "ms_per_round": 1e3 * slack,
            "ms_per_round_binding": 1e3 * binding,
            "matmul_gflops_f32": gflops,
        }
        # Only of ALGD is the arithmetic of a round known.
        if isinstance(algorithm, ALGD):
            limit = GFLOP_PER_ROUND / gflops
            row |= {"fraction_of_f32_limit": limit / slack, "fraction_binding": limit / binding}
        row["act_us_median"], row["act_us_p99"] = act_microseconds(algorithm)
        rows.append(row)
    return rows
