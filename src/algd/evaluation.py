"""Roll a policy out on environments of its own and report what its episodes earned and cost."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from algd.export.numpy_policy import MOST_CANDIDATES
from algd.types import (
    Algorithm,
    Assessment,
    Choice,
    CostVectorEnv,
    EnvSpec,
    RanksActions,
    UserError,
)

CANDIDATES = 16

fold_in = jax.jit(jax.random.fold_in)


@partial(jax.jit, static_argnames=("algorithm", "mode", "candidates"))
def act(
    algorithm: Algorithm,
    state: Any,
    obs: Float[Array | np.ndarray, "envs obs"],
    key: PRNGKeyArray,
    mode: Choice,
    candidates: int = CANDIDATES,
) -> tuple[Float[Array, "envs action"], dict[str, Array]]:
    """An action for every copy, each with its own random numbers."""
    keys = jax.random.split(key, obs.shape[0])
    if mode == "best":
        choose = partial(best_of, algorithm, state, candidates=candidates)
        return jax.vmap(choose)(jnp.asarray(obs), keys), {}
    return jax.vmap(lambda o, k: algorithm.act(state, o, k, mode))(obs, keys)


def best_of(
    algorithm: Algorithm,
    state: Any,
    obs: Float[Array, " obs"],
    key: PRNGKeyArray,
    candidates: int,
) -> Float[Array, " action"]:
    """Of so many draws from the policy the one with the lowest objective."""
    if not isinstance(algorithm, RanksActions):
        raise UserError(
            f"{type(algorithm).__name__} has no critic of actions, so there is nothing to choose "
            "the best one by. Take the mode deterministic or sampled."
        )
    if not 1 <= candidates <= MOST_CANDIDATES:
        raise UserError(
            f"From 1 to {MOST_CANDIDATES:,} candidates can be chosen from, not {candidates}."
        )
    keys = jax.random.split(key, candidates)
    actions = jax.vmap(lambda k: algorithm.act(state, obs, k, "sampled")[0])(keys)
    objectives = jax.vmap(lambda a: algorithm.objective(state, obs, a))(actions)
    return actions[jnp.argmin(objectives)]


class NonFiniteAction(UserError):
    """The policy's networks have broken down."""


def finite(
    actions: Float[Array | np.ndarray, "*envs action"],
) -> Float[np.ndarray, "*envs action"]:
    """The actions on the host, where an environment may see them."""
    on_host = np.asarray(actions)
    if not np.isfinite(on_host).all():
        raise NonFiniteAction("The policy's action is infinite or not a number.")
    return on_host


@partial(jax.jit, static_argnames=("algorithm",))
def assess(
    algorithm: Algorithm,
    state: Any,
    obs: Float[Array | np.ndarray, "envs obs"],
    action: Float[Array, "envs action"],
) -> Assessment:
    """What the critics expect of every copy's action."""
    return jax.vmap(lambda o, a: algorithm.assess(state, o, a))(obs, action)


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
        discounted += discount ** length[:, None] * result.cost
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
