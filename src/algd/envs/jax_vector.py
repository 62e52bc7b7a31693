"""Copies of an environment written in JAX, stepped inside of a program or from the host."""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray

from algd.envs.requirements import checked_horizon, settled_budgets
from algd.types import Budget, EnvSpec, EnvStep, JaxEnv, Outcome, UserError


class Copies(NamedTuple):
    """Copies in progress: their states, the steps of their episodes so far, the key of all resets,
    and the steps that all have taken."""

    state: Any
    length: Int[Array, " envs"]
    key: Key[Array, ""]
    steps: Int[Array, ""]


@partial(jax.jit, static_argnames=("env", "copies"))
def begin(env: JaxEnv, copies: int, key: PRNGKeyArray) -> Copies:
    """New episodes in all copies."""
    none = jnp.zeros((), jnp.int32)
    return Copies(_first(env, key, none, copies), jnp.zeros(copies, jnp.int32), key, none)


@partial(jax.jit, static_argnames=("env", "spec"))
def advance(
    env: JaxEnv, spec: EnvSpec, copies: Copies, actions: Float[Array | np.ndarray, "envs action"]
) -> tuple[Copies, EnvStep]:
    """A step of every copy; where it ends an episode, the next one begins."""
    state, outcome = step_all(env, spec, copies.state, actions)
    length, steps = copies.length + 1, copies.steps + 1
    truncated = outcome.truncated | (length >= spec.horizon)
    ended = outcome.terminated | truncated

    def with_new_episodes() -> Any:
        first = _first(env, copies.key, steps, len(length))
        return jax.tree.map(partial(_choose, ended), first, state)

    # To begin may take longer than a step, and most steps end nothing.
    after = jax.lax.cond(jnp.any(ended), with_new_episodes, lambda: state)
    told = outcome._replace(truncated=truncated)._asdict()
    result = EnvStep(next_obs=state.obs, obs=after.obs, **told)
    return Copies(after, jnp.where(ended, 0, length), copies.key, steps), result


def step_all(
    env: JaxEnv, spec: EnvSpec, states: Any, actions: Float[Array | np.ndarray, "envs action"]
) -> tuple[Any, Outcome]:
    """A step of every copy, whether or not it ends an episode."""
    low, high = (np.asarray(x, np.float32) for x in (spec.action_low, spec.action_high))
    # Rounding takes actions a last bit out of the box.
    return jax.vmap(partial(_step, env))(states, jnp.clip(actions, low, high))


def _first(env: JaxEnv, key: PRNGKeyArray, steps: Int[Array, ""], copies: int) -> Any:
    keys = jax.random.split(jax.random.fold_in(key, steps), copies)
    return jax.tree.map(_plain, jax.vmap(env.reset)(keys))


def _step(env: JaxEnv, state: Any, action: Float[Array, " action"]) -> tuple[Any, Outcome]:
    """With every field of the outcome as an array of its own type."""
    state, told = env.step(state, action)
    cost = jnp.atleast_1d(jnp.asarray(told.cost, jnp.float32))
    margin = jnp.where(cost > 0.0, 1.0, -1.0) if told.margin is None else told.margin
    outcome = Outcome(
        reward=jnp.asarray(told.reward, jnp.float32),
        cost=cost,
        terminated=jnp.asarray(told.terminated, bool),
        truncated=jnp.asarray(told.truncated, bool),
        goal_met=jnp.asarray(told.goal_met, bool),
        margin=jnp.atleast_1d(jnp.asarray(margin, jnp.float32)),
    )
    return jax.tree.map(_plain, state), outcome


def _plain(x: Any) -> Any:
    """An array whose type no longer depends on what it is combined with."""
    x = jnp.asarray(x)
    return x if _is_key(x) else jax.lax.convert_element_type(x, x.dtype)


def _is_key(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _choose(where: Any, one: Any, other: Any) -> Any:
    return jnp.where(where.reshape(-1, *(1,) * (one.ndim - 1)), one, other)


# --- from the host ------------------------------------------------------------------------------


class JaxVectorEnv:
    """A ``CostVectorEnv`` of copies of a ``JaxEnv``; a program may take ``copies`` and put them
    back instead of stepping them from here."""

    exact_state = True

    def __init__(
        self,
        env: JaxEnv,
        num_envs: int,
        name: str,
        budgets: tuple[Budget, ...] | None = None,
        horizon: int | None = None,
    ) -> None:
        self.env = env
        self.num_envs = num_envs
        self.spec = checked_spec(env, name, budgets, horizon)
        self.copies: Copies | None = None

    def reset(self, seed: int) -> Float[np.ndarray, "envs obs"]:
        """Start new episodes in all copies; everything after is determined by the seed."""
        self.copies = begun = begin(self.env, self.num_envs, jax.random.key(seed))
        return np.asarray(begun.state.obs)

    def step(self, actions: Float[np.ndarray, "envs action"]) -> EnvStep:
        """Advance every copy by one step; copies whose episode ends start a new one."""
        assert self.copies is not None, "reset(seed) must come before the first step"
        self.copies, result = advance(self.env, self.spec, self.copies, actions)
        return jax.device_get(result)

    def save_state(self) -> dict[str, np.ndarray]:
        """The full state as named arrays."""
        leaves = jax.tree_util.tree_leaves_with_path(self.copies)
        plain = {_name(path): jax.random.key_data(x) if _is_key(x) else x for path, x in leaves}
        return {name: np.asarray(x) for name, x in plain.items()}

    def restore_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from a saved state."""
        shapes = jax.eval_shape(lambda: begin(self.env, self.num_envs, jax.random.key(0)))

        def saved(path: Any, like: Any) -> Array:
            x = jnp.asarray(state[_name(path)])
            return jax.random.wrap_key_data(x) if _is_key(like) else x

        self.copies = jax.tree_util.tree_map_with_path(saved, shapes)

    def close(self) -> None:
        """Free what the environment holds."""
        self.copies = None


# --- what is refused ----------------------------------------------------------------------------


def checked_spec(
    env: JaxEnv, name: str, budgets: tuple[Budget, ...] | None, horizon: int | None
) -> EnvSpec:
    """What there is to know of the environment, or why it cannot be trained on; nothing is run,
    only traced."""
    budgets = settled_budgets(name, getattr(env, "budgets", ()) or None, budgets)
    horizon = checked_horizon(name, horizon or getattr(env, "horizon", None))
    low, high = (_bounds(env, name, which) for which in ("action_low", "action_high"))
    if len(low) != len(high) or not all(a < b for a, b in zip(low, high, strict=True)):
        raise UserError(
            f"The actions of {name} go from {low} to {high}: each number of action_low must be "
            "below that of action_high."
        )
    action = jax.ShapeDtypeStruct((len(low),), jnp.float32)
    try:
        hash(env)
        first = jax.eval_shape(env.reset, jax.random.key(0))
        answer = jax.eval_shape(env.step, first, action)
    except TypeError as error:
        raise UserError(f"{name} cannot be compiled: {str(error).splitlines()[0]}") from error
    obs = getattr(first, "obs", None)
    if obs is None:
        raise UserError(f"The state of {name} has no observation: its reset must give it an `obs`.")
    if obs.ndim != 1 or obs.dtype != jnp.float32 or not obs.size:
        raise UserError(
            f"The observation of {name} is {_kind(obs)}: it must be a vector of float32."
        )
    _check_step(name, first, answer, len(budgets))
    return EnvSpec(obs.size, low, high, budgets, horizon)


def _bounds(env: JaxEnv, name: str, which: str) -> tuple[float, ...]:
    given = getattr(env, which, None)
    bounds = np.atleast_1d(np.asarray(() if given is None else given, np.float64))
    if bounds.ndim != 1 or not bounds.size or not np.isfinite(bounds).all():
        raise UserError(
            f"The {which} of {name} is {given!r}: it must have a finite number for each coordinate "
            "of the action."
        )
    return tuple(bounds.tolist())


def _check_step(name: str, before: Any, answer: Any, constraints: int) -> None:
    """Refuse a step whose answer does not fit the next one."""
    if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[1], Outcome):
        raise UserError(f"A step of {name} must return its new state and an algd.Outcome.")
    after, outcome = answer
    leaves = (jax.tree_util.tree_leaves_with_path(state) for state in (before, after))
    shapes = [{_name(path) or "the array": x for path, x in found} for found in leaves]
    for leaf in sorted(shapes[0].keys() | shapes[1].keys()):
        was, became = (_kind(known.get(leaf)) for known in shapes)
        if was != became:
            raise UserError(
                f"A step of {name} changes {leaf} of its state from {was} to {became}: shapes and "
                "types must stay as they are at the reset."
            )
    if outcome.cost is None:
        raise UserError(f"{name} reports no cost: give one to the Outcome of its step.")
    for field, value in outcome._asdict().items():
        each = field in ("cost", "margin")
        accepted = [(constraints,)] if each else [()]
        if each and constraints == 1:
            accepted += [(), None]
        shape = None if value is None else value.shape
        if shape not in accepted:
            wanted = f"have {constraints}, one number for each budget" if each else "be a number"
            raise UserError(
                f"A step of {name} reports a {field} of shape {shape}: it must {wanted}."
            )


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path).removeprefix(".")


def _kind(x: Any) -> str:
    return "nothing" if x is None else f"{x.dtype}{list(x.shape)}"
