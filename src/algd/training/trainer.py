"""One run in progress: collect, store, update, evaluate, save and restore.

Each vector step is one iteration; its random numbers are derived from the seed and its number, so
that a run continued from a checkpoint is the run that was never stopped.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from algd.evaluation.acting import NonFiniteAction, act, finite
from algd.evaluation.episodes import evaluate
from algd.runs.checkpoint import from_arrays, to_arrays
from algd.runs.config import Settings, kept_transitions, make_envs
from algd.runs.directory import Run
from algd.runs.files import DamagedFile, LogPosition, read_arrays, write_arrays
from algd.training.replay import Replay, capacity, init_replay
from algd.training.statistics import EpisodeStatistics, evaluation_row
from algd.training.timing import Stopwatch
from algd.training.updates import (
    fresh_state,
    learn,
    replicate,
    rounds_due,
    store,
    update_from_rollout,
)
from algd.types import CostVectorEnv, EnvStep, Metrics, Transition, UserError

T = TypeVar("T")


def non_finite(result: EnvStep) -> dict[str, Bool[np.ndarray, " envs"]]:
    """Which copies report something that is not a number, by quantity."""
    return {
        "observation": _bad_rows(result.next_obs) | _bad_rows(result.obs),
        "reward": _bad_rows(result.reward[:, None]),
        "cost": _bad_rows(result.cost),
    }


def _bad_rows(values: Float[np.ndarray, "envs numbers"]) -> Bool[np.ndarray, " envs"]:
    return np.logical_not(np.isfinite(values).all(axis=1))


@jax.jit
def step_keys(
    key: PRNGKeyArray, iteration: int | Int[Array, ""]
) -> tuple[PRNGKeyArray, PRNGKeyArray]:
    """The random numbers of one iteration, for acting and for learning."""
    act_key, learn_key = jax.random.split(jax.random.fold_in(key, iteration))
    return act_key, learn_key


@jax.jit
def on_device(
    obs: Float[Array | np.ndarray, "envs obs"],
    action: Float[Array, "envs action"],
    result: EnvStep,
    extras: dict[str, Any],
) -> Transition:
    """A step of every copy. One program takes all its arrays from the host at once, ten times
    faster than one after the other."""
    return Transition(
        obs=jnp.asarray(obs),
        action=action,
        reward=jnp.asarray(result.reward),
        cost=jnp.asarray(result.cost),
        next_obs=jnp.asarray(result.next_obs),
        terminated=jnp.asarray(result.terminated),
        truncated=jnp.asarray(result.truncated),
        goal_met=jnp.asarray(result.goal_met),
        margin=jnp.asarray(result.margin),
        extras=extras,
    )


class PendingUpdate(NamedTuple):
    """Fresh transitions, which of them may be kept, and the gradient rounds they are worth."""

    fresh: Transition
    keep: Bool[np.ndarray, " envs"]
    key: PRNGKeyArray
    rounds: int


class Trainer:
    """One run in progress: its environments, the algorithm's state, the data and the tallies."""

    def __init__(
        self, settings: Settings, algorithm: Any, run: Run, environments: CostVectorEnv
    ) -> None:
        self.settings, self.algorithm, self.run = settings, algorithm, run
        self.envs = environments
        self.eval_envs: CostVectorEnv | None = None
        self.spec = environments.spec
        init_key, self.loop_key = jax.random.split(jax.random.key(settings.seed))
        self.state = fresh_state(algorithm, self.spec, init_key)
        self.tally = EpisodeStatistics(self.spec, settings.envs, algorithm.cost_discount)
        self.step, self.iteration, self.epoch_rounds, self.epoch = 0, 0, 0, 0
        self.obs = np.zeros((settings.envs, self.spec.obs_size), np.float32)
        self.replay: Replay | None = None
        self.stored = 0
        self.rollout: list[Transition] = []
        self.pending: Metrics = {}
        # With overlap: what was collected last and will be learnt during the next step.
        self.lesson: PendingUpdate | None = None
        self.clock = Stopwatch()
        if algorithm.data == "replay":
            self.replay = init_replay(self._example(), kept_transitions(settings, algorithm))
            self.replay = replicate(self.replay, settings.devices)
        self.state = replicate(self.state, settings.devices)

    def _example(self) -> Transition:
        size, constraints = self.spec.obs_size, len(self.spec.budgets)
        return Transition(
            obs=jnp.zeros(size),
            action=jnp.zeros(self.spec.action_size),
            reward=jnp.zeros(()),
            cost=jnp.zeros(constraints),
            next_obs=jnp.zeros(size),
            terminated=jnp.zeros((), bool),
            truncated=jnp.zeros((), bool),
            goal_met=jnp.zeros((), bool),
            margin=jnp.zeros(constraints),
            extras={},
        )

    def iterate(self) -> None:
        """One step of every copy and the gradient rounds it is worth.

        With overlap the rounds of the last step run on the device while the environments take this
        one: a lag of one step, the same in every run.
        """
        with self.clock("waiting"):
            self.fold_pending()
        with self.clock("acting"):
            obs = self.policy_input()
            act_key, learn_key = self.keys()
            action, extras = act(self.algorithm, self.state, obs, act_key, "sampled")
            host_action = self.or_stop(lambda: finite(action))
        if self.lesson is not None:
            self.learn(self.lesson)
            self.lesson = None
        lesson = self.take(obs, action, host_action, extras, learn_key)
        if self.settings.overlap:
            self.lesson = lesson
        else:
            self.learn(lesson)

    def keys(self) -> tuple[PRNGKeyArray, PRNGKeyArray]:
        """This iteration's random numbers, for acting and for learning."""
        return step_keys(self.loop_key, self.iteration)

    def policy_input(self) -> Float[np.ndarray, "envs obs"]:
        """The observations; what is not finite there must not reach the policy."""
        return np.nan_to_num(self.obs, posinf=0.0, neginf=0.0)

    def take(
        self,
        obs: Float[np.ndarray, "envs obs"],
        action: Float[Array, "envs action"],
        host_action: Float[np.ndarray, "envs action"],
        extras: dict[str, Array],
        key: PRNGKeyArray,
    ) -> PendingUpdate:
        """One step of every copy, counted; what is to be learnt from it."""
        with self.clock("environment"):
            result = self.envs.step(host_action)
        with self.clock("logging"):
            keep = self._checked(result)
            self.tally.count_step(result, keep)
        with self.clock("transfer"):
            told: dict[str, Any] = dict(extras)
            if self.algorithm.data == "rollout":
                told["cost_so_far"] = self.tally.cost_so_far
            fresh = on_device(obs, action, result, told)
        before, self.step = self.step, self.step + self.settings.envs
        self.iteration += 1
        self.obs = result.obs
        rounds = self._rounds(before) if self.algorithm.data == "replay" else 0
        return PendingUpdate(fresh, keep, key, rounds)

    def _rounds(self, before: int) -> int:
        """The gradient rounds that the steps since `before` are worth."""
        algorithm, horizon = self.algorithm, self.spec.horizon
        counted = self.step - algorithm.prefill
        epoch = max(counted - 1, 0) // horizon
        if epoch != self.epoch:
            self.epoch, self.epoch_rounds = epoch, 0
        rounds = rounds_due(
            algorithm.updates_per_step,
            algorithm.throttle,
            horizon,
            before - algorithm.prefill,
            counted,
            self.epoch_rounds,
        )
        self.epoch_rounds += rounds
        return rounds

    def learn(self, lesson: PendingUpdate) -> None:
        """Store the lesson and start its gradient rounds; nothing waits for them here."""
        with self.clock("update"):
            if self.replay is not None:
                self.replay = store(self.replay, lesson.fresh, lesson.keep)
                if lesson.rounds:
                    self.state, self.pending = learn(
                        self.algorithm,
                        self.state,
                        self.replay,
                        lesson.key,
                        lesson.rounds,
                        self.settings.devices,
                    )
            elif batch := self.full_rollout(lesson):
                self.state, self.pending = update_from_rollout(
                    self.algorithm, self.state, batch, lesson.key
                )

    def full_rollout(self, lesson: PendingUpdate) -> Transition | None:
        """The steps collected since the last update, `[time, envs, ...]`, once there are enough."""
        self.rollout.append(lesson.fresh)
        if len(self.rollout) * self.settings.envs < self.algorithm.rollout_steps:
            return None
        batch = jax.tree.map(lambda *rows: jnp.stack(rows), *self.rollout)
        self.rollout = []
        return batch

    def fold_pending(self) -> None:
        """Take in the metrics of the last gradient rounds, which are done by now."""
        if self.pending:
            self.tally.count_update(self.pending)
            self.pending = {}

    def _checked(self, result: EnvStep) -> Bool[np.ndarray, " envs"]:
        """Which copies' steps may be stored; stop if one may not and the settings say so."""
        faults = non_finite(result)
        bad = np.any(list(faults.values()), axis=0) | ~np.isfinite(self.obs).all(axis=1)
        if bad.any() and self.settings.bad_steps == "stop":
            names = [name for name, where in faults.items() if where.any()]
            raise UserError(
                f"At step {self.step} the environment reported a {' and a '.join(names)} that is "
                f"not finite. {self.run.last_good()} To leave such steps out and go on: "
                "--bad-steps drop."
            )
        return ~bad

    def _diverged(self, quantities: list[str]) -> UserError:
        return UserError(
            f"At step {self.step} {', '.join(quantities)} became infinite or not a number. "
            f"{self.run.last_good()} Try smaller step sizes (--critic-rate and the like) or milder "
            "weights (with ALGD a larger --beta)."
        )

    def or_stop(self, work: Callable[[], T]) -> T:
        """Do what asks the policy for actions; stop if it gives none."""
        try:
            return work()
        except NonFiniteAction as error:
            raise self._diverged(["the policy's action"]) from error

    def train_row(self) -> dict[str, Any]:
        """The training metrics since the last row; stop if learning has broken down."""
        self.fold_pending()
        row = {"kind": "train", "step": self.step, **self.tally.take_row()}
        broken = [name for name, value in row.items() if name != "kind" and not np.isfinite(value)]
        if broken:
            raise self._diverged(broken)
        return row

    def eval_row(self) -> dict[str, Any]:
        """Evaluate on environments and random numbers that training never uses."""
        if self.eval_envs is None:
            copies = min(self.settings.eval_episodes, 16)
            self.eval_envs = make_envs(self.settings, copies)
        seed = int(np.random.SeedSequence([self.settings.seed, 1]).generate_state(1)[0] // 2)
        episodes = self.or_stop(
            partial(
                evaluate,
                self.algorithm,
                self.state,
                self.eval_envs,
                self.settings.eval_episodes,
                seed,
                discount=self.algorithm.cost_discount,
            )
        )
        return {"kind": "eval", "step": self.step, **evaluation_row(episodes, self.spec)}

    # --- checkpoints --------------------------------------------------------------------------

    def save(self, mark: LogPosition) -> None:
        """Write a checkpoint from which the run continues to the last bit."""
        self.fold_pending()
        state = to_arrays(self.state, "state")
        broken = [
            name.removeprefix("state.") for name, x in state.items() if not np.isfinite(x).all()
        ]
        if broken:
            raise self._diverged([f"the parameters of {', '.join(broken[:3])}"])
        with self.run.writing():
            self._save_replay()
            counters = (self.step, self.iteration, self.epoch_rounds, self.epoch)
            arrays = {
                **state,
                **{f"env/{name}": value for name, value in self.envs.save_state().items()},
                **self.tally.save(),
                "obs": self.obs,
                "counters": np.array(counters, np.int64),
                "metrics": np.array(mark, np.int64),
                "stored": np.array(self.stored, np.int64),
            }
            if self.rollout:
                stacked = jax.tree.map(lambda *rows: np.stack(rows), *self.rollout)
                arrays |= transition_arrays(stacked, "rollout")
            if self.lesson is not None:
                arrays |= transition_arrays(self.lesson.fresh, "lesson")
                arrays["lesson_keep"] = self.lesson.keep
                arrays["lesson_key"] = np.asarray(jax.random.key_data(self.lesson.key))
                arrays["lesson_rounds"] = np.array(self.lesson.rounds, np.int64)
            self.run.write_checkpoint(self.step, arrays)
            self._drop_old_pieces()

    def _save_replay(self) -> None:
        """Write what the buffer took in since the last checkpoint as one piece."""
        if self.replay is None:
            return
        added, slots = int(self.replay.added), capacity(self.replay)
        if added > self.stored:
            first = max(self.stored, added - slots)
            rows = np.arange(first, added) % slots
            piece = jax.tree.map(lambda store: store[rows], self.replay.data)
            path = self.run.directory / "replay" / f"{first:012d}-{added:012d}.algd"
            write_arrays(path, to_arrays(piece, "replay"))
            self.stored = added

    def _drop_old_pieces(self) -> None:
        """Delete the pieces that no checkpoint needs, once the new one is whole."""
        if self.replay is None:
            return
        # At most one transition per step came in since the oldest checkpoint that is kept.
        oldest = self.stored - (self.step - self.run.checkpoints()[0][0])
        for _, last, path in self.run.pieces():
            if last <= oldest - capacity(self.replay):
                path.unlink()

    def restore(self, arrays: dict[str, np.ndarray]) -> LogPosition:
        """Continue from a checkpoint; the mark in metrics.jsonl that belongs to it.

        Everything is read before anything is changed, so that a checkpoint that lacks something
        leaves no trace.
        """
        try:
            mark = self.run.check_position(LogPosition(*(int(x) for x in arrays["metrics"])))
            step, iteration, epoch_rounds, epoch = (int(x) for x in arrays["counters"])
            state = from_arrays(self.state, arrays, "state")
            stored = int(arrays["stored"])
            replay = self._restored_replay(stored)
            stacked = transition_from_arrays(arrays, "rollout")
            rollout = [] if stacked is None else _rows(stacked)
            lesson = pending_from_arrays(arrays)
            obs = np.array(arrays["obs"])
            env_state = {
                name.removeprefix("env/"): value
                for name, value in arrays.items()
                if name.startswith("env/")
            }
            self.tally.restore(arrays)
            self.envs.reset(self.settings.seed)
            self.envs.restore_state(env_state)
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedFile(
                f"a checkpoint does not fit this version of algd ({error!r})"
            ) from error
        self.step, self.iteration, self.epoch_rounds, self.epoch = (
            step,
            iteration,
            epoch_rounds,
            epoch,
        )
        self.state, self.obs = state, obs
        self.replay, self.stored, self.rollout = replay, stored, rollout
        self.lesson = lesson
        self.state = replicate(self.state, self.settings.devices)
        if self.replay is not None:
            self.replay = replicate(self.replay, self.settings.devices)
        if not self.envs.exact_state:
            self._start_fresh_episodes()
        return mark

    def _start_fresh_episodes(self) -> None:
        """Go on with an environment that cannot continue where it was."""
        words = np.random.SeedSequence([self.settings.seed, 2, self.step]).generate_state(1)
        self.obs = self.envs.reset(int(words[0] // 2))
        self.tally.forget_episodes()
        # The steps of a rollout must follow one another.
        self.rollout = []

    def _restored_replay(self, stored: int) -> Replay | None:
        """The buffer as it was with so many transitions, from its pieces."""
        if self.replay is None:
            return None
        slots = capacity(self.replay)
        data = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), self.replay.data)
        reached = max(stored - slots, 0)
        for first, last, path in self.run.pieces():
            if last <= reached or first > reached or last > stored:
                continue
            template = jax.tree.map(lambda x, n=last - first: x[:1].repeat(n, 0), data)
            piece = from_arrays(template, read_arrays(path), "replay")
            rows = np.arange(first, last) % slots
            jax.tree.map(lambda store, new, rows=rows: store.__setitem__(rows, new), data, piece)
            reached = last
        if reached != stored:
            raise DamagedFile(
                f"{self.run.directory}/replay lacks the transitions from {reached} to {stored}"
            )
        return Replay(jax.tree.map(jnp.asarray, data), jnp.asarray(stored, jnp.int32))


def transition_arrays(transition: Transition, prefix: str) -> dict[str, np.ndarray]:
    """Its fields under names of their own, ready for a checkpoint."""
    fields = {f.name: getattr(transition, f.name) for f in dataclasses.fields(transition)}
    extras = fields.pop("extras")
    named = fields | {f"extras/{name}": value for name, value in extras.items()}
    return {f"{prefix}/{name}": np.asarray(value) for name, value in named.items()}


def transition_from_arrays(arrays: dict[str, np.ndarray], prefix: str) -> Transition | None:
    """What `transition_arrays` wrote, if it did."""
    parts: dict[str, Any] = {
        name.removeprefix(f"{prefix}/"): jnp.asarray(value)
        for name, value in arrays.items()
        if name.startswith(f"{prefix}/")
    }
    if not parts:
        return None
    extras = {
        name.removeprefix("extras/"): parts.pop(name)
        for name in tuple(parts)
        if name.startswith("extras/")
    }
    return Transition(**parts, extras=extras)


def pending_from_arrays(arrays: dict[str, np.ndarray]) -> PendingUpdate | None:
    """The lesson that a checkpoint holds."""
    fresh = transition_from_arrays(arrays, "lesson")
    if fresh is None:
        return None
    key = jax.random.wrap_key_data(jnp.asarray(arrays["lesson_key"]))
    return PendingUpdate(fresh, arrays["lesson_keep"], key, int(arrays["lesson_rounds"]))


def _rows(stacked: Transition) -> list[Transition]:
    return [jax.tree.map(lambda rows, i=i: rows[i], stacked) for i in range(len(stacked.reward))]
