"""Roll a policy out on environments of its own and report what its episodes earned and cost."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from algd.envs.jax_vector import JaxVectorEnv, begin, step_all
from algd.evaluation.acting import CANDIDATES, NonFiniteAction, act, actor, assess
from algd.networks.numpy_policy import PolicyData
from algd.types import Algorithm, Choice, CostVectorEnv, EnvSpec, EnvStep, JaxEnv, UserError

# What can be not finite in a step, in the order in which one follows from the other.
FAULTS = ("action", "observation", "reward", "cost", "margin")


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


def not_finite(when: str, quantities: list[str]) -> BrokenStep:
    """What to say of an environment that broke down."""
    return BrokenStep(
        f"{when} the environment reported a {' and a '.join(quantities)} that is not finite. "
        "To leave such steps out: --bad-steps drop."
    )


class Cut(Exception):
    """An evaluation that nobody waits for any longer."""


# What follows is computed by NumPy (`xp`) where environments step on the host, and by JAX inside of
# programs.


def broken_steps(result: EnvStep, xp: Any = np) -> dict[str, Bool[Array | np.ndarray, " envs"]]:
    """Which copies report something that is not a finite number, by quantity."""
    told = {
        "observation": xp.hstack([result.next_obs, result.obs]),
        "reward": result.reward[:, None],
        "cost": result.cost,
        "margin": result.margin,
    }
    return {name: xp.logical_not(xp.isfinite(x).all(axis=1)) for name, x in told.items()}


def in_budget_unit(
    plain: Float[Array | np.ndarray, "*batch constraints"],
    discounted: Float[Array | np.ndarray, "*batch constraints"],
    spec: EnvSpec,
    xp: Any = np,
) -> Any:
    """Each constraint's cost as its budget counts it."""
    return xp.where(np.array([b.discounted for b in spec.budgets]), discounted, plain)


def gone_on(
    cost: Float[Array | np.ndarray, "envs constraints"],
    lengths: Int[Array | np.ndarray, " envs"],
    spec: EnvSpec,
    discount: float,
    xp: Any = np,
) -> Any:
    r"""$J\,w(T)/w(t)$ with $w(t) = t$, for a discounted budget $1 - \gamma^t$.

    What episodes of these lengths t would have cost at the horizon T, where a budget is that of a
    rate.
    """
    if not any(budget.rate for budget in spec.budgets):
        return cost
    steps = xp.clip(lengths, 1, spec.horizon)
    plain = discounted = steps / spec.horizon
    if discount < 1.0:
        discounted = (1.0 - powers(discount, steps, xp)) / (1.0 - discount**spec.horizon)
    shares = in_budget_unit(plain[:, None], discounted[:, None], spec, xp)
    return xp.where(np.array([budget.rate for budget in spec.budgets]), cost / shares, cost)


def powers(
    discount: float, exponents: Int[Array | np.ndarray, " n"], xp: Any = np
) -> Float[Array | np.ndarray, " n"]:
    """`discount ** exponents`."""
    if xp is not np:
        return discount ** exponents.astype(xp.float32)
    # One by one: NumPy takes another way for one than for several.
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
    `Cut` is raised as soon as it is no longer `wanted`. Episodes of an environment written in
    JAX run at once, on the device.
    """
    if isinstance(envs, JaxVectorEnv) and not isinstance(state, PolicyData):
        how = {"mode": mode, "discount": discount, "candidates": candidates}
        run = partial(run_episodes, algorithm, state, envs.env, envs.spec, **how)
        return evaluate_on_device(run, episodes, seed, bad_steps, wanted)
    count, constraints = envs.num_envs, len(envs.spec.budgets)
    waves = -(-episodes // count)
    finished: list[list[Episodes]] = [[] for _ in range(count)]
    choose, foretell = actor(algorithm, state, seed, mode, candidates)
    obs = envs.reset(seed)
    returns = np.zeros(count)
    plain, discounted = np.zeros((count, constraints)), np.zeros((count, constraints))
    length, dropped = np.zeros((2, count), np.int64)
    expected = np.full((count, constraints), np.nan)
    step = 0
    while min(len(rows) for rows in finished) < waves:
        actions = choose(obs, step)
        if (length == 0).any():
            foretold = foretell(obs, actions)
            expected = np.where((length == 0)[:, None], foretold, expected)
        if not wanted():
            raise Cut
        result = envs.step(actions)
        faults = broken_steps(result)
        bad = np.any(list(faults.values()), axis=0)
        if bad.any() and bad_steps == "stop":
            names = [name for name, where in faults.items() if where.any()]
            raise not_finite("In an evaluation", names)
        cost = np.where(bad[:, None], 0.0, result.cost)
        returns += np.where(bad, 0.0, result.reward)
        plain += cost
        discounted += powers(discount, length)[:, None] * cost
        length += 1
        dropped += bad
        for i in np.flatnonzero(result.terminated | result.truncated):
            cost = in_budget_unit(plain[i], discounted[i], envs.spec)
            foretold, found = expected[i].copy(), discounted[i].copy()
            row = Episodes(returns[i], cost, found, foretold, length[i], dropped[i])
            finished[i].append(row)
            returns[i], plain[i], discounted[i], length[i], dropped[i] = 0.0, 0.0, 0.0, 0, 0
        # As in training: a fault of the environment must not be taken for one of the policy.
        obs = np.nan_to_num(result.obs, posinf=0.0, neginf=0.0)
        step += 1
    # Wave by wave, so that leaving out the last few episodes leaves out no copy's early ones.
    rows = [finished[i][wave] for wave in range(waves) for i in range(count)][:episodes]
    return Episodes(*(np.stack(column) for column in zip(*rows, strict=True)))


# --- on the device ------------------------------------------------------------------------------

# Episodes that run at once.
MOST_COPIES = 1_024


def evaluate_on_device(
    run: Callable[..., Any],
    episodes: int,
    seed: int,
    bad_steps: Literal["stop", "drop"],
    wanted: Callable[[], bool],
) -> Episodes:
    """The same where every episode has a copy of its own: `run` runs so many at once."""
    copies = min(episodes, MOST_COPIES)
    parts = []
    for wave in range(-(-episodes // copies)):
        if not wanted():
            raise Cut
        key = jax.random.fold_in(jax.random.key(seed), wave)
        found, faults = jax.device_get(run(copies=copies, key=key))
        if faults.pop("action"):
            raise NonFiniteAction
        broken = [name for name, at in faults.items() if at]
        if broken and bad_steps == "stop":
            raise not_finite("In an evaluation", broken)
        parts.append(found)
    columns = [np.concatenate(part)[:episodes] for part in zip(*parts, strict=True)]
    kinds = {"f": np.float64, "i": np.int64}
    return Episodes(*(column.astype(kinds[column.dtype.kind]) for column in columns))


@partial(
    jax.jit,
    static_argnames=("algorithm", "env", "spec", "copies", "mode", "discount", "candidates"),
)
def run_episodes(
    algorithm: Algorithm,
    state: Any,
    env: JaxEnv,
    spec: EnvSpec,
    *,
    copies: int,
    key: PRNGKeyArray,
    mode: Choice,
    discount: float,
    candidates: int,
) -> tuple[Any, dict[str, Bool[Array, ""]]]:
    """One episode in each copy, and what was not finite in any of them."""
    reset_key, act_key = jax.random.split(key)

    def actions(obs: Float[Array, "envs obs"], step: Int[Array, ""]) -> Float[Array, "envs action"]:
        obs = jnp.nan_to_num(obs, posinf=0.0, neginf=0.0)
        return act(algorithm, state, obs, jax.random.fold_in(act_key, step), mode, candidates)[0]

    def step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        step, world, running, sums, faults = carry
        chosen = actions(world.obs, step)
        world, outcome = step_all(env, spec, world, chosen)
        result = EnvStep(next_obs=world.obs, obs=world.obs, **outcome._asdict())
        told = {"action": ~jnp.isfinite(chosen).all(axis=1)} | broken_steps(result, jnp)
        faults = {name: faults[name] | (at & running).any() for name, at in told.items()}
        bad = jnp.any(jnp.stack(list(told.values())), axis=0)
        counts = running & ~bad
        cost = jnp.where(counts[:, None], result.cost, 0.0)
        weights = powers(discount, sums.length, jnp)[:, None]
        sums = sums._replace(
            returns=sums.returns + jnp.where(counts, result.reward, 0.0),
            cost=sums.cost + cost,
            discounted_cost=sums.discounted_cost + weights * cost,
            length=sums.length + running.astype(jnp.int32),
            dropped=sums.dropped + (running & bad).astype(jnp.int32),
        )
        ended = result.terminated | result.truncated | (step + 1 >= spec.horizon)
        return step + 1, world, running & ~ended, sums, faults

    world = begin(env, copies, reset_key).state
    none, nothing = jnp.zeros((), jnp.int32), jnp.zeros((copies, len(spec.budgets)))
    counts = jnp.zeros(copies, jnp.int32)
    expected = assess(algorithm, state, world.obs, actions(world.obs, none)).cost
    # The same columns, but arrays of JAX.
    columns: Any = Episodes
    sums = columns(jnp.zeros(copies), nothing, nothing, expected, counts, counts)
    faults = dict.fromkeys(FAULTS, jnp.zeros((), bool))
    start = (none, world, jnp.ones(copies, bool), sums, faults)
    *_, sums, faults = jax.lax.while_loop(lambda carry: carry[2].any(), step, start)
    cost = in_budget_unit(sums.cost, sums.discounted_cost, spec, jnp)
    return sums._replace(cost=cost), faults
