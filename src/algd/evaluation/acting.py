"""A policy asked for actions, and its critics for what they expect of them."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from algd.networks.numpy_policy import CANDIDATES, MOST_CANDIDATES, NumpyPolicy, PolicyData
from algd.objectives.exploration import loudness, pink_noise
from algd.types import (
    Algorithm,
    Assessment,
    Choice,
    LearnsFromEpisodes,
    Mode,
    RanksActions,
    ReplayOptions,
    UserError,
    learnt_among,
)


@partial(jax.jit, static_argnames=("algorithm", "mode", "candidates"))
def act(
    algorithm: Algorithm,
    state: Any,
    obs: Float[Array | np.ndarray, "envs obs"],
    key: PRNGKeyArray,
    mode: Mode | Choice,
    candidates: int = CANDIDATES,
) -> tuple[Float[Array, "envs action"], dict[str, Array]]:
    """An action for every copy, each with its own random numbers."""
    keys = jax.random.split(key, obs.shape[0])
    if mode == "best":
        choose = partial(best_of, algorithm, state, candidates=candidates)
        return jax.vmap(choose)(jnp.asarray(obs), keys), {}
    return jax.vmap(lambda o, k: algorithm.act(state, o, k, mode))(obs, keys)


def explore(
    algorithm: Algorithm,
    state: Any,
    obs: Float[Array | np.ndarray, "envs obs"],
    key: PRNGKeyArray,
    run_key: PRNGKeyArray,
    iteration: int | Int[Array, ""],
) -> tuple[Float[Array, "envs action"], dict[str, Array]]:
    """An action of training for every copy, and what the update wants to know of it: exploring,
    with noise in some copies and in the first few as the policy that was learnt, if the algorithm
    asks for it."""
    actions, told = act(algorithm, state, obs, key, "exploring")
    if isinstance(algorithm, ReplayOptions) and algorithm.exploration_noise:
        copies, size = actions.shape
        length = algorithm.exploration_noise * loudness(copies).astype(np.float32)
        noise = length[:, None] / size**0.5 * pink_noise(run_key, iteration, actions.shape)
        actions = actions + 0.5 * (state.high - state.low) * noise
        actions = jnp.clip(actions, state.low, state.high)
    asked = algorithm.learnt_copies if isinstance(algorithm, LearnsFromEpisodes) else 0
    learnt = learnt_among(obs.shape[0], asked)
    if not learnt:
        return actions, told
    known, _ = act(algorithm, state, obs[:learnt], jax.random.fold_in(key, 1), "deterministic")
    return actions.at[:learnt].set(known), told


def best_of(
    algorithm: Algorithm, state: Any, obs: Float[Array, " obs"], key: PRNGKeyArray, candidates: int
) -> Float[Array, " action"]:
    """Of so many draws from the policy the one with the lowest objective."""
    if not isinstance(algorithm, RanksActions):
        raise UserError(
            f"{type(algorithm).__name__} has no critic of actions, so there is nothing to choose "
            "the best one by. Take the mode deterministic or sampled."
        )
    check_candidates(candidates)
    keys = jax.random.split(key, candidates)
    actions = jax.vmap(lambda k: algorithm.act(state, obs, k, "sampled")[0])(keys)
    objectives = jax.vmap(lambda a: algorithm.objective(state, obs, a))(actions)
    return actions[jnp.argmin(objectives)]


def check_candidates(candidates: int) -> None:
    """Refuse what nobody can choose from."""
    if not 1 <= candidates <= MOST_CANDIDATES:
        raise UserError(
            f"From 1 to {MOST_CANDIDATES:,} candidates can be chosen from, not {candidates}."
        )


class NonFiniteAction(UserError):
    """The policy's networks have broken down."""

    def __init__(self) -> None:
        super().__init__("The policy's action is infinite or not a number.")


def finite(actions: Float[Array | np.ndarray, "*envs action"]) -> Float[np.ndarray, "*envs action"]:
    """The actions on the host, where an environment may see them."""
    on_host = np.asarray(actions)
    if not np.isfinite(on_host).all():
        raise NonFiniteAction
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


fold_in = jax.jit(jax.random.fold_in)


class Actor(NamedTuple):
    """A policy on the host: `choose(obs, step)` gives the actions of all copies, `foretell(obs,
    actions)` the costs that its critics expect of them, NaN if it has none."""

    choose: Callable[[np.ndarray, int], Float[np.ndarray, "envs action"]]
    foretell: Callable[[np.ndarray, np.ndarray], Float[np.ndarray, "envs constraints"]]


def actor(algorithm: Algorithm, state: Any, seed: int, mode: Choice, candidates: int) -> Actor:
    """The policy of an algorithm's state, or of plain arrays."""
    if isinstance(state, PolicyData):
        if mode == "best":
            check_candidates(candidates)
        plain = NumpyPolicy(state, seed)
        return Actor(
            lambda obs, step: finite(plain.predict(obs, mode, candidates)),
            lambda obs, actions: np.full((len(obs), 1), np.nan),
        )
    key = jax.random.key(seed)
    return Actor(
        lambda obs, step: finite(
            act(algorithm, state, obs, fold_in(key, step), mode, candidates)[0]
        ),
        lambda obs, actions: np.asarray(assess(algorithm, state, obs, jnp.asarray(actions)).cost),
    )
