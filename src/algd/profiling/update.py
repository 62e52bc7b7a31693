"""How long one gradient round takes, beside what this machine's matrix products allow."""

import dataclasses
import statistics
import timeit
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal

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
# So many that each has its share of the policy's steps, if these are not in every round.
ROUNDS = 12

PAPER_SPEC = EnvSpec(76, (-1.0,) * 2, (1.0,) * 2, (Budget(10.0),), 400)
# Over a budget of zero is every action, so that no part of the cost's gradient vanishes.
BINDING_SPEC = dataclasses.replace(PAPER_SPEC, budgets=(Budget(0.0),))


def seconds(call: Callable[[], Any], calls: int) -> list[float]:
    """Wall-clock times of calls that return device arrays, after one that is not counted."""
    jax.block_until_ready(call())
    return timeit.repeat(lambda: jax.block_until_ready(call()), repeat=calls, number=1)


def reference_product(dtype: Any) -> Callable[[], Array]:
    """8 products [1536, 256] x [256, 256] of such factors, summed in float32."""
    left = jnp.ones((8, 1536, 256), dtype)
    right = jnp.ones((8, 256, 256), dtype)
    product = jax.jit(partial(jnp.matmul, preferred_element_type=jnp.float32))
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


def product_gflop(algorithm: ALGD, spec: EnvSpec) -> float:
    """What the matrix products of one round need at two per multiply-add, counted by hand: nothing
    twice, and no gradient where the constraint is slack. Of `policy_every` rounds the mean."""
    rows, width, hidden = algorithm.batch_size, algorithm.critic_hidden, algorithm.score_hidden
    obs, size, costs = spec.obs_size, spec.action_size, len(spec.budgets)
    members = 2 + algorithm.cost_ensemble
    outputs = 2 + algorithm.cost_ensemble * costs
    # Of one row: each critic's layers, one by one, and the score network's at one level.
    first, second, last = (obs + size) * width, width**2, width * outputs / members
    level = (size + 2 * hidden + size * (2 if algorithm.head == "gaussian" else 1)) * hidden
    state_half, steps = obs * hidden, algorithm.denoise_steps
    chain = state_half + steps * level

    # Values and gradients of the weights, and the way back through what lies between them.
    learning = members * (2 * (first + second + last) + second + last)
    if algorithm.critics == "batch-norm":
        learning *= 2
    else:
        learning += members * (first + second + last)
    points = 1 + (algorithm.mc_samples if algorithm.score_weight else 0)
    policy = 2 * chain + steps * level
    if algorithm.score_weight:
        policy += 3 * level
    policy += members * (obs * width + points * (size * width + second + last))
    policy += points * (second + last + size * width)
    if algorithm.dual_actions != "policy":
        policy += algorithm.cost_ensemble * (first + second + last)
    return 2e-9 * rows * (chain + learning + policy / algorithm.policy_every)


def at_paper_sizes(algorithm: Algorithm) -> Any:
    """The same algorithm with the sizes of the paper's tables, where it has them."""
    sizes = {"batch_size": 256, "cost_ensemble": 6, "mc_samples": 6, "critic_hidden": 256}
    fields = {field.name for field in dataclasses.fields(algorithm)}
    return dataclasses.replace(algorithm, **{k: v for k, v in sizes.items() if k in fields})


def many_rounds(algorithm: Algorithm, specs: Sequence[EnvSpec]) -> list[Callable[[], Any]]:
    """For each task a scan of rounds from its initial state, minibatch sampling included."""
    replay = Replay(example_batch(PAPER_SPEC, 10_000), jnp.asarray(10_000, jnp.int32))
    rounds = jax.jit(
        lambda s, r, k: gradient_rounds(algorithm, s, r, k, ROUNDS), compiler_options=CPU_OPTIONS
    )
    key = jax.random.key(1)
    states = [fresh_state(algorithm, spec, jax.random.key(0)) for spec in specs]
    return [lambda state=state: rounds(state, replay, key) for state in states]


def rounds_and_rates(algorithm: Algorithm, turns: int) -> dict[str, float]:
    """Median milliseconds per round with a slack and with a binding constraint, and the median
    rates of the reference products in GFLOP/s.

    All are timed in turns: a machine that others use too changes its pace within seconds.
    """
    slack, binding = many_rounds(algorithm, (PAPER_SPEC, BINDING_SPEC))
    products = {"f32": reference_product(jnp.float32), "bf16": reference_product(jnp.bfloat16)}
    calls = {"": (slack, 1), "_binding": (binding, 1)}
    calls |= {name: (product, 10) for name, product in products.items()}
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(turns):
        for name, (call, times) in calls.items():
            taken[name] += seconds(call, times)
    median = {name: statistics.median(times) for name, times in taken.items()}
    gflop = 2 * 8 * 1536 * 256 * 256 / 1e9
    return {
        **{f"ms_per_round{name}": 1e3 * median[name] / ROUNDS for name in ("", "_binding")},
        **{f"matmul_gflops_{name}": gflop / median[name] for name in products},
    }


def act_microseconds(algorithm: Algorithm, calls: int = 5_000) -> tuple[float, float]:
    """Median and 99th percentile from the call to the action of one observation."""
    state = algorithm.init(PAPER_SPEC, jax.random.key(0))
    policy = Policy(algorithm, state, PAPER_SPEC)
    obs = np.zeros(PAPER_SPEC.obs_size, np.float32)
    times = timeit.repeat(lambda: policy.predict(obs), repeat=calls, number=1)
    times = sorted(1e6 * each for each in times[calls // 10 :])
    return statistics.median(times), times[int(0.99 * len(times))]


Sizes = Literal["paper", "default"]


def variants(preset_names: tuple[str, ...], sizes: Sizes) -> Iterator[tuple[str, str, Any]]:
    """Each preset at the paper's sizes or its own, in each precision that it offers."""
    for name in preset_names:
        algorithm: Any = presets()[name]
        if sizes == "paper":
            algorithm = at_paper_sizes(algorithm)
        if not isinstance(algorithm, ReplayOptions):
            continue
        yield name, "float32", algorithm
        if hasattr(algorithm, "energy_precision"):
            yield name, "bfloat16", dataclasses.replace(algorithm, energy_precision="bfloat16")


def bench_update(
    preset_names: tuple[str, ...],
    sizes: Sizes = "paper",
    tell: Callable[[str], None] = lambda what: None,
    turns: int = 21,
) -> list[dict[str, Any]]:
    """One row per preset and precision."""
    rows = []
    for name, precision, algorithm in variants(preset_names, sizes):
        tell(f"{name} in {precision}")
        row: dict[str, Any] = {
            "preset": name,
            "sizes": sizes,
            "precision": precision,
            "native": library.available(),
            "units": library.units(precision == "bfloat16"),
            **rounds_and_rates(algorithm, turns),
        }
        # Only of ALGD is the arithmetic of a round known.
        if isinstance(algorithm, ALGD):
            needed = product_gflop(algorithm, PAPER_SPEC)
            row["product_gflop"] = needed
            row["ratio_to_products"] = row["ms_per_round"] * row["matmul_gflops_f32"] / needed / 1e3
            if sizes == "paper":
                limit = 1e3 * GFLOP_PER_ROUND / row["matmul_gflops_f32"]
                row["fraction_of_f32_limit"] = limit / row["ms_per_round"]
                row["fraction_binding"] = limit / row["ms_per_round_binding"]
        row["act_us_median"], row["act_us_p99"] = act_microseconds(algorithm)
        rows.append(row)
    return rows
