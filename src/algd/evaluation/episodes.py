"""Roll a policy out on environments of its own and report what its episodes earned and cost."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from algd.evaluation.acting import CANDIDATES, act, assess, finite
from algd.types import Algorithm, Choice, CostVectorEnv, EnvSpec, EnvStep, UserError

fold_in = jax.jit(jax.random.fold_in)


class Episodes(NamedTuple):
    """One row per episode.

    `cost` is in the unit of each budget (a discounted sum where the budget is one); `expected_cost`
    is what the critics foretold in the first step, to be compared with `discounted_cost`; `dropped`
    counts the steps that were left out.
    """

    returns: Float[np.ndarray, " episodes"]
    cost: Float[np.ndarray, "episodes constraints"]
    discounted_cost: Float[np.ndarray, "episodes constraints"]
    expected_cost: Float[np.ndarray, "episodes constraints"]
    length: Int[np.ndarray, " episodes"]
    dropped: Int[np.ndarray, " episodes"]


class BrokenStep(UserError):
    """An environment reported something that is not a finite number."""


class Cut(Exception):
    """An evaluation that nobody waits for any longer."""


def broken_steps(result: EnvStep) -> dict[str, Bool[np.ndarray, " envs"]]:
    """Which copies report something that is not a finite number, by quantity."""
    told = {
        "observation": np.hstack([result.next_obs, result.obs]),
        "reward": result.reward[:, None],
        "cost": result.cost,
        "margin": result.margin,
    }
    return {name: np.logical_not(np.isfinite(x).all(axis=1)) for name, x in told.items()}


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
    bad_steps: Literal["stop", "drop"] = "stop",
    wanted: Callable[[], bool] = lambda: True,
) -> Episodes:
    """Run episodes to their ends, equally many in each copy so that short ones gain no weight.

    What an environment reports that is not a finite number stops it, or is left out and counted;
    `Cut` is raised as soon as it is no longer `wanted`.
    """
    count, constraints = envs.num_envs, len(envs.spec.budgets)
    waves = -(-episodes // count)
    finished: list[list[Episodes]] = [[] for _ in range(count)]
    key = jax.random.key(seed)
    obs = envs.reset(seed)
    returns = np.zeros(count)
    plain, discounted = np.zeros((count, constraints)), np.zeros((count, constraints))
    length, dropped = np.zeros((2, count), np.int64)
    expected = np.full((count, constraints), np.nan)
    step = 0
    while min(len(rows) for rows in finished) < waves:
        actions, _ = act(algorithm, state, obs, fold_in(key, step), mode, candidates)
        if (length == 0).any():
            foretold = np.asarray(assess(algorithm, state, obs, actions).cost)
            expected = np.where((length == 0)[:, None], foretold, expected)
        if not wanted():
            raise Cut
        result = envs.step(finite(actions))
        faults = broken_steps(result)
        bad = np.any(list(faults.values()), axis=0)
        if bad.any() and bad_steps == "stop":
            names = " and a ".join(name for name, where in faults.items() if where.any())
            raise BrokenStep(
                f"In an evaluation the environment reported a {names} that is not finite. To leave "
                "such steps out: --bad-steps drop."
            )
        cost = np.where(bad[:, None], 0.0, result.cost)
        returns += np.where(bad, 0.0, result.reward)
        plain += cost
        discounted += powers(discount, length)[:, None] * cost
        length += 1
        dropped += bad
        for i in np.flatnonzero(result.terminated | result.truncated):
            cost = in_budget_unit(plain[i], discounted[i], envs.spec)
            finished[i].append(
                Episodes(
                    returns[i],
                    cost,
                    discounted[i].copy(),
                    expected[i].copy(),
                    length[i],
                    dropped[i],
                )
            )
            returns[i], plain[i], discounted[i], length[i], dropped[i] = 0.0, 0.0, 0.0, 0, 0
        # As in training: a fault of the environment must not be taken for one of the policy.
        obs = np.nan_to_num(result.obs, posinf=0.0, neginf=0.0)
        step += 1
    # Wave by wave, so that leaving out the last few episodes leaves out no copy's early ones.
    rows = [finished[i][wave] for wave in range(waves) for i in range(count)][:episodes]
    return Episodes(*(np.stack(column) for column in zip(*rows, strict=True)))
