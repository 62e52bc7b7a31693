"""Roll a policy out on environments of its own and report what its episodes earned and cost."""

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from algd.evaluation.acting import CANDIDATES, act, assess, finite
from algd.types import (
    Algorithm,
    Choice,
    CostVectorEnv,
    EnvSpec,
)

fold_in = jax.jit(jax.random.fold_in)


class Episodes(NamedTuple):
    """One row per episode.

    `cost` is in the unit of each budget (a discounted sum where the budget is one);
    `expected_cost` is what the critics foretold in the first step, to be compared with
    `discounted_cost`.
    """

    returns: Float[np.ndarray, " episodes"]
    cost: Float[np.ndarray, "episodes constraints"]
    discounted_cost: Float[np.ndarray, "episodes constraints"]
    expected_cost: Float[np.ndarray, "episodes constraints"]
    length: Int[np.ndarray, " episodes"]


def in_budget_unit(
    plain: Float[np.ndarray, "*batch constraints"],
    discounted: Float[np.ndarray, "*batch constraints"],
    spec: EnvSpec,
) -> Float[np.ndarray, "*batch constraints"]:
    """Each constraint's cost as its budget counts it."""
    return np.where([b.discounted for b in spec.budgets], discounted, plain)


def powers(discount: float, exponents: Int[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """`discount ** exponents` one by one: NumPy takes another way for one than for several."""
    return np.array([discount**exponent for exponent in exponents.tolist()])


def evaluate(
    algorithm: Algorithm,
    state: Any,
    envs: CostVectorEnv,
    episodes: int,
    seed: int,
    mode: Choice = "deterministic",
    discount: float = 0.99,
    candidates: int = CANDIDATES,
) -> Episodes:
    """Run episodes to their ends, equally many in each copy so that short ones gain no weight."""
    count, constraints = envs.num_envs, len(envs.spec.budgets)
    waves = -(-episodes // count)
    finished: list[list[Episodes]] = [[] for _ in range(count)]
    key = jax.random.key(seed)
    obs = envs.reset(seed)
    returns = np.zeros(count)
    plain, discounted = np.zeros((count, constraints)), np.zeros((count, constraints))
    length = np.zeros(count, np.int64)
    expected = np.full((count, constraints), np.nan)
    step = 0
    while min(len(rows) for rows in finished) < waves:
        actions, _ = act(algorithm, state, obs, fold_in(key, step), mode, candidates)
        if (length == 0).any():
            foretold = np.asarray(assess(algorithm, state, obs, actions).cost)
            expected = np.where((length == 0)[:, None], foretold, expected)
        result = envs.step(finite(actions))
        returns += result.reward
        plain += result.cost
        discounted += powers(discount, length)[:, None] * result.cost
        length += 1
        for i in np.flatnonzero(result.terminated | result.truncated):
            cost = in_budget_unit(plain[i], discounted[i], envs.spec)
            finished[i].append(
                Episodes(returns[i], cost, discounted[i].copy(), expected[i].copy(), length[i])
            )
            returns[i], plain[i], discounted[i], length[i] = 0.0, 0.0, 0.0, 0
        # As in training: a fault of the environment must not be taken for one of the policy.
        obs = np.nan_to_num(result.obs, posinf=0.0, neginf=0.0)
        step += 1
    # Wave by wave, so that leaving out the last few episodes leaves out no copy's early ones.
    rows = [finished[i][wave] for wave in range(waves) for i in range(count)][:episodes]
    return Episodes(*(np.stack(column) for column in zip(*rows, strict=True)))
