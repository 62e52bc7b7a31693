"""What training does with a `TrainState`: collect, update, evaluate.

A state is used once: environments and the memory of networks and buffer go on to its successor. The
random numbers of an iteration are derived from the seed and its number, so that a run continued
from a checkpoint is the run that was never stopped.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from algd.evaluation.acting import NonFiniteAction, finite
from algd.evaluation.episodes import Cut, broken_steps, gone_on, not_finite
from algd.evaluation.episodes import evaluate as evaluate_policy
from algd.runs.checkpoint import Counters, PendingUpdate
from algd.training.seeds import split, stack
from algd.training.state import Setup, TrainState
from algd.training.statistics import count_step, count_update, evaluation_row, forgotten, take_row
from algd.training.updates import (
    give_feedback,
    learn,
    learn_from_rollout,
    make_transition,
    rounds_due,
    sample_actions,
    step_keys,
    store,
    store_in_rollout,
)
from algd.types import EnvStep, LearnsFromEpisodes, ReplayOptions, RolloutOptions, UserError

Row = dict[str, Any]


class Decision(NamedTuple):
    """What a state saw, its actions on the device and, by seed, on the host, what the update wants
    to know of them, and the key of that update."""

    obs: Float[np.ndarray, "*seeds envs obs"]
    action: Float[Array, "*seeds envs action"]
    on_host: list[np.ndarray]
    extras: dict[str, Array]
    key: Key[Array, "*seeds"]


def iterate(setup: Setup, state: TrainState) -> TrainState:
    """One step of every copy and the gradient rounds it is worth."""
    return advance(setup, *decide(setup, state))


def advance(setup: Setup, state: TrainState, decision: Decision) -> TrainState:
    """Carry out what was decided, and learn from it unless that is left to the next step."""
    state = collect(setup, state, decision)
    return state if setup.settings.overlap else update(setup, state)


def decide(setup: Setup, state: TrainState) -> tuple[TrainState, Decision]:
    """An action for every copy.

    A step that is pending already is learnt from on the device, while the environments take the
    next one: a lag of one step, the same in every run.
    """
    seeds = setup.seeds
    with setup.clock("waiting"):
        state = count_metrics(setup, state)
    with setup.clock("acting"):
        # What is not finite must not reach the policy.
        obs = np.nan_to_num(state.obs, posinf=0.0, neginf=0.0)
        iteration = state.counters.iteration
        act_key, update_key = step_keys(state.key, iteration, seeds)
        action, extras = sample_actions(
            setup.algorithm, state.learner, obs, act_key, state.key, iteration, seeds
        )
        with diverging(state):
            actions = [finite(one) for one in split(np.asarray(action), seeds)]
    return update(setup, state), Decision(obs, action, actions, extras, update_key)


def collect(setup: Setup, state: TrainState, decision: Decision) -> TrainState:
    """Step every copy and leave the step to be learnt from as `pending`."""
    clock, seeds = setup.clock, setup.seeds
    with clock("environment"):
        results = [env.step(own) for env, own in zip(state.envs, decision.on_host, strict=True)]
    with clock("logging"):
        before = split(state.obs, seeds)
        keeps = [_kept(setup, state, *each) for each in zip(before, results, strict=True)]
        discount = setup.algorithm.cost_discount
        counted = [
            count_step(sums, result, keep, setup.spec, discount)
            for sums, result, keep in zip(state.statistics, results, keeps, strict=True)
        ]
    with clock("transfer"):
        result, costs, keep = stack(results), stack([cost for _, cost in counted]), stack(keeps)
        told: dict[str, Any] = dict(decision.extras)
        if isinstance(setup.algorithm, RolloutOptions):
            told |= {"cost_so_far": costs, "keep": keep}
        kept = without_broken(result, keep)
        fresh = make_transition(decision.obs, decision.action, kept, told)
    counters, rounds = advance_counters(setup, state.counters)
    lengths = [sums.running.length + 1 for sums in state.statistics]
    ends = result.terminated | result.truncated
    ended = np.where(ends, stack(lengths), 0).astype(np.int32)
    if isinstance(setup.algorithm, LearnsFromEpisodes) and setup.algorithm.rates_go_on:
        each = zip((cost for _, cost in counted), lengths, strict=True)
        costs = stack([gone_on(*one, setup.spec, discount) for one in each])
    return state._replace(
        counters=counters,
        obs=result.obs,
        statistics=tuple(sums for sums, _ in counted),
        pending=PendingUpdate(fresh, keep, costs, ended, decision.key, rounds),
    )


def without_broken(
    result: EnvStep, keep: Bool[Array | np.ndarray, "*seeds envs"], xp: Any = np
) -> EnvStep:
    """The step with zeros where a copy's is broken: no number of it may reach a gradient."""
    zero = np.float32(0.0)
    return result._replace(
        next_obs=xp.where(keep[..., None], result.next_obs, zero),
        reward=xp.where(keep, result.reward, zero),
        cost=xp.where(keep[..., None], result.cost, zero),
        margin=xp.where(keep[..., None], result.margin, zero),
    )


def advance_counters(setup: Setup, counters: Counters) -> tuple[Counters, int]:
    """The counters behind one more vector step, and the gradient rounds that it is worth."""
    step, iteration = counters.step + setup.settings.envs, counters.iteration + 1
    counters, before = counters._replace(step=step, iteration=iteration), counters.step
    algorithm, horizon = setup.algorithm, setup.spec.horizon
    if not isinstance(algorithm, ReplayOptions):
        return counters, 0
    counted = step - algorithm.prefill
    epoch = max(counted - 1, 0) // horizon
    if epoch != counters.epoch:
        counters = counters._replace(epoch=epoch, epoch_rounds=0)
    rounds = rounds_due(
        algorithm.updates_per_step,
        algorithm.throttle,
        horizon,
        before - algorithm.prefill,
        counted,
        counters.epoch_rounds,
    )
    return counters._replace(epoch_rounds=counters.epoch_rounds + rounds), rounds


def _kept(
    setup: Setup, state: TrainState, obs: Float[np.ndarray, "envs obs"], result: EnvStep
) -> Bool[np.ndarray, " envs"]:
    """Which copies' steps may be stored; stop if one may not and the settings say so."""
    faults = broken_steps(result)
    bad = np.any([*faults.values(), ~np.isfinite(obs).all(axis=1)], axis=0)
    if bad.any() and setup.settings.bad_steps == "stop":
        names = [name for name, where in faults.items() if where.any()]
        raise not_finite(f"At step {state.step}", names)
    return ~bad


# --- update -----------------------------------------------------------------------------------


def update(setup: Setup, state: TrainState) -> TrainState:
    """Learn from what is pending; nothing waits for the device here."""
    if state.pending is None:
        return state
    pending, state = state.pending, state._replace(pending=None)
    algorithm, seeds = setup.algorithm, setup.seeds
    with setup.clock("update"):
        if isinstance(algorithm, LearnsFromEpisodes) and pending.ended.any():
            learner = give_feedback(
                algorithm, state.learner, pending.cost_so_far, pending.ended, seeds
            )
            state = state._replace(learner=learner)
        if state.replay is None:
            return _learn_on_policy(setup, state, pending)
        replay = store(state.replay, pending.fresh, pending.keep, seeds)
        state = state._replace(replay=replay)
        if not pending.rounds:
            return state
        how = (pending.rounds, setup.settings.envs, setup.settings.devices, seeds)
        learner, metrics = learn(algorithm, state.learner, replay, pending.key, *how)
        return state._replace(learner=learner, metrics=metrics)


def _learn_on_policy(setup: Setup, state: TrainState, pending: PendingUpdate) -> TrainState:
    """Add to the rollout, and learn from it once it is long enough."""
    rollout = store_in_rollout(state.rollout, pending.fresh, state.collected, setup.seeds)
    collected, full = next_row(setup, state.collected)
    state = state._replace(rollout=rollout, collected=collected)
    if not full:
        return state
    learner, metrics = learn_from_rollout(
        setup.algorithm, state.learner, rollout, pending.key, setup.seeds
    )
    return state._replace(learner=learner, metrics=metrics)


def next_row(setup: Setup, collected: int) -> tuple[int, bool]:
    """How many steps a rollout has with one more, and whether it was the last."""
    full = (collected + 1) * setup.settings.envs >= setup.algorithm.kept
    return 0 if full else collected + 1, full


def count_metrics(setup: Setup, state: TrainState) -> TrainState:
    """Take in the metrics of the last gradient rounds; waits for these."""
    if not state.metrics:
        return state
    on_host = split(jax.device_get(state.metrics), setup.seeds)
    counted = map(count_update, state.statistics, on_host)
    return state._replace(metrics={}, statistics=tuple(counted))


# --- what is written down ---------------------------------------------------------------------


def train_rows(setup: Setup, state: TrainState) -> tuple[TrainState, list[Row]]:
    """Each seed's training metrics since the last row; stop if learning has broken down."""
    state = count_metrics(setup, state)
    names = [budget.name for budget in setup.spec.budgets]
    taken = [take_row(sums, names) for sums in state.statistics]
    rows = [{"kind": "train", "step": state.step, **row} for _, row in taken]
    for row in rows:
        broken = [name for name, x in row.items() if name != "kind" and not np.isfinite(x)]
        if broken:
            raise Diverged(state.step, broken)
    return state._replace(statistics=tuple(sums for sums, _ in taken)), rows


def evaluate(
    setup: Setup, state: TrainState, wanted: Callable[[], bool] = lambda: True
) -> tuple[TrainState, list[Row]]:
    """Each seed's policy on random numbers that training never uses; no rows if it is no longer
    `wanted`.

    It has environments of its own, or borrows those of training: they are then as they were, or
    begin fresh episodes where their state cannot be saved.
    """
    borrowed = state.envs if not setup.settings.eval_envs else ()
    held = [env.save_state() for env in borrowed]
    rows: list[Row] = []
    try:
        for i, learner in enumerate(split(state.learner, setup.seeds)):
            envs = borrowed[i] if borrowed else setup.eval_envs
            with diverging(state):
                judged = evaluate_policy(
                    setup.algorithm,
                    learner,
                    envs,
                    setup.settings.eval_episodes,
                    _random_seed(setup.seed_of[i], 1),
                    discount=setup.algorithm.cost_discount,
                    bad_steps=setup.settings.bad_steps,
                    wanted=wanted,
                )
            rows.append({"kind": "eval", "step": state.step, **evaluation_row(judged, setup.spec)})
    except Cut:
        rows = []
    finally:
        for env, own in zip(borrowed, held, strict=True):
            env.restore_state(own)
    return (fresh_episodes(setup, state) if borrowed else state), rows


def fresh_episodes(setup: Setup, state: TrainState) -> TrainState:
    """Go on with environments that cannot continue where they were. The steps of a rollout must
    follow one another."""
    if all(env.exact_state for env in state.envs):
        return state
    everywhere = np.ones(setup.settings.envs, bool)
    seeds = [_random_seed(seed, 2, state.step) for seed in setup.seed_of]
    return state._replace(
        obs=stack([env.reset(own) for env, own in zip(state.envs, seeds, strict=True)]),
        collected=0,
        statistics=tuple(
            sums._replace(running=forgotten(sums.running, everywhere)) for sums in state.statistics
        ),
    )


def _random_seed(*words: int) -> int:
    return int(np.random.SeedSequence(words).generate_state(1)[0] // 2)


class Diverged(UserError):
    """Learning has broken down: what it has come to is not worth keeping."""

    def __init__(self, step: int, quantities: list[str]) -> None:
        super().__init__(
            f"At step {step} {', '.join(quantities)} became infinite or not a number. Try smaller "
            "step sizes (--critic-rate and the like) or milder weights (with ALGD a larger --beta)."
        )


@contextmanager
def diverging(state: TrainState) -> Iterator[None]:
    """Ask the policy for actions inside; stop if it gives none."""
    try:
        yield
    except NonFiniteAction as error:
        raise Diverged(state.step, ["the policy's action"]) from error
