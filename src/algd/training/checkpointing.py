"""A `TrainState` written to the disk and read again."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from algd.algorithms import state_shapes
from algd.runs.checkpoint import (
    Checkpoint,
    PendingUpdate,
    check_alike,
    check_transition,
    from_arrays,
    leaf_from_arrays,
    read_checkpoint,
    read_pieces,
    read_snapshot,
    to_arrays,
    write_checkpoint,
    write_piece,
)
from algd.runs.config import kept_transitions
from algd.runs.directory import KEEP, Run
from algd.runs.files import DamagedFile, LogPosition
from algd.training.replay import Replay, capacity, example
from algd.training.seeds import split
from algd.training.state import Setup, TrainState, empty_rollout, start
from algd.training.statistics import no_episodes, statistics_from_arrays, statistics_to_arrays
from algd.training.steps import Diverged, count_metrics, fresh_episodes
from algd.training.updates import replicate
from algd.types import CostVectorEnv, ReplayOptions, Transition, UserError


def save(
    setup: Setup,
    state: TrainState,
    positions: Sequence[LogPosition],
    bests: Sequence[int | None] | None = None,
) -> TrainState:
    """Write checkpoints from which the runs continue to the last bit; those of the `bests` are
    kept beside the newest."""
    state = count_metrics(setup, state)
    seeds = setup.seeds
    learners = [to_arrays(learner) for learner in split(state.learner, seeds)]
    for arrays in learners:
        broken = [name for name, x in arrays.items() if not np.isfinite(x).all()]
        if broken:
            raise Diverged(state.step, [f"the parameters of {', '.join(broken[:3])}"])
    replays, stored = split(state.replay, seeds), list(state.stored)
    rollouts = [None] * seeds
    if state.rollout is not None and state.collected:
        full = split(state.rollout, seeds)
        rollouts = [jax.tree.map(lambda x: x[: state.collected], part) for part in full]
    pendings = _split_pending(state.pending, seeds)
    for i, run in enumerate(setup.runs):
        with run.writing():
            stored[i] = _save_replay(run, replays[i], stored[i])
            held = Checkpoint(
                learner=learners[i],
                env=state.envs[i].save_state(),
                statistics=statistics_to_arrays(state.statistics[i]),
                rollout=rollouts[i],
                pending=pendings[i],
                obs=split(state.obs, seeds)[i],
                counters=state.counters,
                log=positions[i],
                stored=stored[i],
            )
            write_checkpoint(run, held, bests[i] if bests else None)
            _drop_old_pieces(run, replays[i], stored[i], state.step)
    return state._replace(stored=tuple(stored))


def _split_pending(pending: PendingUpdate | None, seeds: int) -> list[PendingUpdate | None]:
    if pending is None or seeds == 1:
        return [pending] * seeds
    rounds = pending.rounds
    return [part._replace(rounds=rounds) for part in split(pending._replace(rounds=0), seeds)]


def _save_replay(run: Run, replay: Replay | None, stored: int) -> int:
    """Write what the buffer took in since the last checkpoint as one piece."""
    if replay is None:
        return stored
    added, slots = int(replay.added), capacity(replay)
    if added > stored:
        first = max(stored, added - slots)
        rows = np.arange(first, added) % slots
        write_piece(run, jax.tree.map(lambda store: store[rows], replay.data), first)
    return max(added, stored)


def _drop_old_pieces(run: Run, replay: Replay | None, stored: int, step: int) -> None:
    """Delete the pieces that no checkpoint needs, once the new one is whole."""
    if replay is None:
        return
    # At most one transition per step came in since the oldest checkpoint to go on from.
    oldest = stored - (step - run.checkpoints()[-KEEP:][0][0])
    for _, last, path in run.pieces():
        if last <= oldest - capacity(replay):
            path.unlink()


def load(setup: Setup, envs: CostVectorEnv, held: Checkpoint) -> tuple[TrainState, LogPosition]:
    """One run as its checkpoint holds it, and the place in metrics.jsonl that belongs to it.

    Everything is read before anything is changed, so that a checkpoint that lacks something leaves
    no trace.
    """
    settings, spec, (run,) = setup.settings, setup.spec, setup.runs
    try:
        position = run.check_position(held.log)
        learner = from_arrays(state_shapes(setup.algorithm, spec), held.learner)
        replay = _load_replay(setup, run, held.stored)
        seen = np.zeros((settings.envs, spec.obs_size), np.float32)
        check_alike({"obs": held.obs}, {"obs": seen})
        check_alike(held.statistics, statistics_to_arrays(no_episodes(spec, settings.envs)))
        statistics = statistics_from_arrays(held.statistics)
        for name, x in statistics.update_sums.items():
            check_alike({name: x}, {name: np.zeros(len(spec.budgets) if x.ndim else ())})
        rollout, collected = _load_rollout(setup, learner, held.rollout)
        if held.pending is not None:
            check_transition(held.pending.fresh, example(spec), (settings.envs,))
            copies, constraints = settings.envs, len(spec.budgets)
            shapes = {"keep": (copies,), "cost_so_far": (copies, constraints), "ended": (copies,)}
            if any(getattr(held.pending, name).shape != size for name, size in shapes.items()):
                raise DamagedFile("the step that is still to be learnt from has other shapes")
        envs.reset(settings.seed)
        check_alike(held.env, envs.save_state())
        envs.restore_state(held.env)
    except (LookupError, TypeError, ValueError) as error:
        raise DamagedFile(f"a checkpoint does not fit this version of algd ({error!r})") from error
    state = TrainState(
        learner=replicate(learner, settings.devices),
        replay=None if replay is None else replicate(replay, settings.devices),
        key=jax.random.split(jax.random.key(settings.seed))[1],
        counters=held.counters,
        rollout=rollout,
        collected=collected,
        pending=held.pending,
        metrics={},
        obs=held.obs,
        envs=(envs,),
        statistics=(statistics,),
        stored=(held.stored,),
    )
    return fresh_episodes(setup, state), position


def _load_rollout(
    setup: Setup, learner: Any, held: Transition | None
) -> tuple[Transition | None, int]:
    """The steps for the next on-policy update, and how many they are."""
    rollout = empty_rollout(setup, learner)
    if rollout is None or held is None:
        return rollout, 0
    count = len(held.reward)
    found, wanted = (
        {name: (x.shape[1:], x.dtype) for name, x in to_arrays(steps).items()}
        for steps in (held, rollout)
    )
    if found != wanted or count > len(rollout.reward):
        raise DamagedFile("the steps of the next update have other shapes in the checkpoint")
    return jax.tree.map(lambda store, rows: store.at[:count].set(rows), rollout, held), count


def _load_replay(setup: Setup, run: Run, stored: int) -> Replay | None:
    """The buffer as it was with so many transitions, from its pieces."""
    if not isinstance(setup.algorithm, ReplayOptions):
        return None
    slots = kept_transitions(setup.settings, setup.algorithm)
    arrays, first = read_pieces(run, stored, slots)
    where, count = np.arange(first, stored) % slots, stored - first

    def filled(path: Any, x: Array) -> Array:
        data = np.zeros((slots, *x.shape), x.dtype)
        if count:
            shape = jax.ShapeDtypeStruct((count, *x.shape), x.dtype)
            data[where] = leaf_from_arrays(path, shape, arrays)
        return jnp.asarray(data)

    data = jax.tree_util.tree_map_with_path(filled, example(setup.spec))
    return Replay(data, jnp.asarray(stored, jnp.int32))


def load_newest(
    setup: Setup, environments: CostVectorEnv, origin: dict[str, Any] | None = None
) -> tuple[TrainState, LogPosition, list[str]]:
    """The newest state of a run that is whole, the place in metrics.jsonl that belongs to it, and
    what the user should know; nothing on the disk is changed.

    A run that has no checkpoint yet begins again, from its `origin` if it was begun from another.
    """
    (run,) = setup.runs
    notes: list[str] = []
    for _, path in reversed(run.checkpoints()[-KEEP:]):
        try:
            state, position = load(setup, environments, read_checkpoint(run, path))
        except DamagedFile as error:
            notes.append(f"{path.name} is not used: {error}.")
            continue
        if state.step and not position.size:
            notes.append(f"metrics.jsonl is missing: its rows begin at step {state.step}.")
        return state, position, notes
    if not notes and not (run.metrics_path.exists() and run.metrics_path.stat().st_size):
        # The first checkpoint comes before the first row: nothing is lost.
        source = read_snapshot(origin["run"], origin["step"]) if origin else None
        if origin and source and Run(source.directory).id != origin["id"]:
            raise UserError(f"{source.directory} is no longer the run that was started from.")
        notes = ["The run had no checkpoint yet: it starts again from the beginning."]
        return start(setup, [environments], source), LogPosition(), notes
    found = " ".join(notes) or "there is none."
    raise UserError(
        f"{run.directory} has no usable checkpoint: {found} Restore its files from a copy. "
        "If only metrics.jsonl is damaged, the run can go on without the rows it had: delete it."
    )
