"""What a checkpoint and the pieces of a replay buffer hold; every name in these files is used here
alone.

learner/...      the algorithm's state, a name for each leaf
env/...          the environments
statistics/...   sums over episodes and updates
rollout/...      steps that the next on-policy update will take
pending/...      the step that is still to be learnt from, with overlap
obs, counters, log, stored
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from algd.algorithms import state_shapes
from algd.runs.best import best_step
from algd.runs.config import Settings, parse_config, spec_of
from algd.runs.directory import KEEP, Run
from algd.runs.files import DamagedFile, LogPosition
from algd.runs.validation import fitted
from algd.types import Algorithm, EnvSpec, Transition, UserError

Arrays = dict[str, np.ndarray]
# Of the checkpoints of a run: a step, "best" or "last".
Which = int | np.integer | str
T = TypeVar("T")

# Of a checkpoint, with their shapes.
NUMBERS: dict[str, tuple[int, ...]] = {"counters": (4,), "log": (2,), "stored": ()}


class Counters(NamedTuple):
    """How far a run is: environment steps, vector steps, and the gradient rounds of this epoch."""

    step: int = 0
    iteration: int = 0
    epoch: int = 0
    epoch_rounds: int = 0


class PendingUpdate(NamedTuple):
    """A step of every copy that is still to be learnt from.

    `keep` says which copies' transitions may be stored, `rounds` how many gradient rounds they are
    worth. `cost_so_far` is what each copy's episode has cost, in the budgets' units; where the
    episode `ended` with this step, after so many steps (zero: it goes on), that is the cost of the
    whole.
    """

    fresh: Transition
    keep: Bool[np.ndarray, "*seeds envs"]
    cost_so_far: Float[np.ndarray, "*seeds envs constraints"]
    ended: Int[np.ndarray, "*seeds envs"]
    key: PRNGKeyArray
    rounds: int


class Checkpoint(NamedTuple):
    """One run at one step."""

    learner: Arrays
    env: Arrays
    statistics: Arrays
    rollout: Transition | None
    pending: PendingUpdate | None
    obs: Float[np.ndarray, "envs obs"]
    counters: Counters
    log: LogPosition
    stored: int


# --- one file ---------------------------------------------------------------------------------


def write_checkpoint(run: Run, held: Checkpoint, best: int | None = None) -> None:
    """Write one; all but the newest few and that of the best evaluation are dropped."""
    arrays = {
        **_below("learner", held.learner),
        **_below("env", held.env),
        **_below("statistics", held.statistics),
        **_below("rollout", {} if held.rollout is None else _of_transition(held.rollout)),
        **_below("pending", {} if held.pending is None else _of_pending(held.pending)),
        "obs": held.obs,
        "counters": np.array(held.counters, np.int64),
        "log": np.array(held.log, np.int64),
        "stored": np.array(held.stored, np.int64),
    }
    run.write_checkpoint(held.counters.step, arrays, best)


def read_checkpoint(run: Run, path: Path) -> Checkpoint:
    """What is in the run's file, or `DamagedFile`."""
    arrays = run.read(path)
    check_alike(arrays, {n: np.zeros(size, np.int64) for n, size in NUMBERS.items()})
    if not ((arrays["counters"] >= 0) & (arrays["counters"] < 2**31)).all():
        raise DamagedFile(f"{path} has counters that no run can reach")
    try:
        rollout, pending = _inside(arrays, "rollout"), _inside(arrays, "pending")
        return Checkpoint(
            learner=_inside(arrays, "learner"),
            env=_inside(arrays, "env"),
            statistics=_inside(arrays, "statistics"),
            rollout=_to_transition(rollout) if rollout else None,
            pending=_to_pending(pending) if pending else None,
            obs=arrays["obs"],
            counters=Counters(*(int(x) for x in arrays["counters"])),
            log=LogPosition(*(int(x) for x in arrays["log"])),
            stored=int(arrays["stored"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedFile(f"{path} does not fit this version of algd ({error!r})") from error


def newest_checkpoint(run: Run) -> tuple[Checkpoint, list[str]]:
    """The newest whole one, and what is wrong with newer ones."""
    complaints: list[str] = []
    for _, path in reversed(run.checkpoints()[-KEEP:]):
        try:
            return read_checkpoint(run, path), complaints
        except DamagedFile as error:
            complaints.append(str(error))
    detail = f" ({'; '.join(complaints)})" if complaints else ""
    raise UserError(f"{run.directory} has no usable checkpoint{detail}.")


# --- trees and transitions as named arrays ----------------------------------------------------


def to_arrays(tree: Any) -> Arrays:
    """Every leaf under its path in the tree."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {_name(path): np.asarray(leaf) for path, leaf in leaves}


def from_arrays(template: T, arrays: Mapping[str, np.ndarray]) -> T:
    """The tree of the template's shape from its named leaves."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: jnp.asarray(leaf_from_arrays(path, leaf, arrays)), template
    )


def leaf_from_arrays(path: Any, like: Any, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """The leaf at this path, if it has the shape and type that are asked for."""
    name = _name(path)
    if name not in arrays:
        raise DamagedFile(f"the checkpoint lacks {name}: its settings are not this run's")
    array = arrays[name]
    if array.shape != like.shape or array.dtype != like.dtype:
        raise DamagedFile(
            f"{name} is {array.dtype}{list(array.shape)} in the checkpoint, "
            f"but {like.dtype}{list(like.shape)} by the settings"
        )
    return array


def check_alike(arrays: Mapping[str, Any], template: Mapping[str, Any]) -> None:
    """Refuse arrays of other shapes and types than those of the same names in the template."""
    for name, like in template.items():
        x = arrays.get(name)
        if x is None or (x.shape, x.dtype) != (like.shape, like.dtype):
            found = "nothing" if x is None else f"{x.dtype}{list(x.shape)}"
            raise DamagedFile(
                f"{name} is {found} in the checkpoint instead of {like.dtype}{list(like.shape)}"
            )


def check_transition(given: Transition, example: Transition, leading: tuple[int, ...]) -> None:
    """Refuse transitions that do not have the example's shapes behind these leading axes."""
    wanted = jax.tree.map(lambda x: jax.ShapeDtypeStruct((*leading, *x.shape), x.dtype), example)
    check_alike(vars(given), {name: getattr(wanted, name) for name in _stored(example)})
    if any(x.shape[: len(leading)] != leading for x in given.extras.values()):
        raise DamagedFile("what comes with transitions in the checkpoint has other shapes")


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path).removeprefix(".")


def _below(section: str, arrays: Mapping[str, Any]) -> Arrays:
    return {f"{section}/{name}": np.asarray(x) for name, x in arrays.items()}


def _inside(arrays: Arrays, section: str) -> Arrays:
    prefix = f"{section}/"
    return {k.removeprefix(prefix): x for k, x in arrays.items() if k.startswith(prefix)}


def _stored(transition: Transition) -> list[str]:
    """The fields that are written, beside the extras: what lies ahead is computed when drawn."""
    names = [field.name for field in dataclasses.fields(transition)]
    return [name for name in names if name not in ("extras", "ahead")]


def _of_transition(transition: Transition) -> Arrays:
    fields = {name: np.asarray(getattr(transition, name)) for name in _stored(transition)}
    return fields | _below("extras", transition.extras)


def _to_transition(arrays: Arrays) -> Transition:
    own = [name for name in arrays if not name.startswith("extras/")]
    parts = {name: jnp.asarray(arrays[name]) for name in own}
    extras = {name: jnp.asarray(x) for name, x in _inside(arrays, "extras").items()}
    return Transition(**parts, extras=extras, ahead=None)


def _of_pending(pending: PendingUpdate) -> Arrays:
    own = pending._asdict() | {
        "key": jax.random.key_data(pending.key),
        "rounds": np.array(pending.rounds, np.int64),
    }
    fresh = _below("fresh", _of_transition(own.pop("fresh")))
    return {name: np.asarray(x) for name, x in own.items()} | fresh


def _to_pending(arrays: Arrays) -> PendingUpdate:
    return PendingUpdate(
        fresh=_to_transition(_inside(arrays, "fresh")),
        keep=arrays["keep"],
        cost_so_far=arrays["cost_so_far"],
        ended=arrays["ended"],
        key=jax.random.wrap_key_data(jnp.asarray(arrays["key"])),
        rounds=int(arrays["rounds"]),
    )


# --- the replay buffer in pieces --------------------------------------------------------------


def write_piece(run: Run, transitions: Transition, first: int) -> None:
    """Write transitions; `first` counts those that were stored before them."""
    last = first + len(transitions.reward)
    path = run.directory / "replay" / f"{first:012d}-{last:012d}.algd"
    run.write(path, _of_transition(transitions))


def read_pieces(run: Run, stored: int, kept: int) -> tuple[Arrays, int]:
    """The newest `kept` of the first `stored` transitions, oldest first, and the first's number."""
    first = reached = max(stored - kept, 0)
    parts: list[Arrays] = []
    for begin, end, path in run.pieces():
        if end <= reached or begin > reached or end > stored:
            continue
        parts.append({name: x[reached - begin :] for name, x in run.read(path).items()})
        reached = end
    if reached != stored:
        raise DamagedFile(
            f"{run.directory}/replay lacks the transitions from {reached} to {stored}"
        )
    names = parts[0] if parts else {}
    return {name: np.concatenate([part[name] for part in parts]) for name in names}, first


# --- what a run has learnt ---------------------------------------------------------------------


class Snapshot(NamedTuple):
    """A run's settings and the algorithm's state (of the zoo, a policy of plain arrays) at one of
    its checkpoints; `newest` is the step that the run has come to."""

    directory: Path
    settings: Settings
    algorithm: Algorithm
    preset: str
    spec: EnvSpec
    state: Any
    step: int
    newest: int
    complaints: list[str]
    config: dict[str, Any]

    @property
    def standing(self) -> str:
        """Which checkpoint it is, for a reader."""
        return f"step {self.step:,} of {self.settings.steps:,}"


def read_snapshot(directory: str | Path | Run, checkpoint: Which = "last") -> Snapshot:
    """What a checkpoint of the run holds: the newest whole one, that of the best evaluation, or
    that of a step."""
    run = Run(Path(directory))
    config = run.config()
    settings, algorithm, name = parse_config(config)
    try:
        spec = spec_of(config)
        if checkpoint == "last":
            held, complaints = newest_checkpoint(run)
        else:
            held, complaints = read_checkpoint(run, _path_of(run, checkpoint, spec)), []
        state = from_arrays(state_shapes(algorithm, spec), held.learner)
    except (DamagedFile, KeyError) as error:
        raise UserError(f"{directory} cannot be loaded: {error}.") from error
    newest = run.checkpoints()[-1][0]
    step = held.counters.step
    return Snapshot(
        run.directory, settings, algorithm, name, spec, state, step, newest, complaints, config
    )


def _path_of(run: Run, checkpoint: Which, spec: EnvSpec) -> Path:
    """The checkpoint of a step or of the best evaluation, or a message with those there are."""
    kept = dict(run.checkpoints())
    if checkpoint == "best":
        judged = [row for row in run.rows("eval") if row["step"] in kept]
        step = best_step(judged, spec.budgets)
    else:
        step = fitted(_number(checkpoint), int)
    if step in kept:
        return kept[step]
    steps = ", ".join(map(str, kept))
    if checkpoint == "best":
        raise UserError(
            f"No evaluation of {run.directory} has its checkpoint: there are those of {steps}."
        )
    raise UserError(
        f"{run.directory} has no checkpoint {checkpoint!r}: there are those of the steps {steps}, "
        "of which best and last name one."
    )


def _number(text: Which) -> Any:
    """A step as a command line gives it; what is none stays as it is."""
    try:
        return float(text)
    except ValueError:
        return text
