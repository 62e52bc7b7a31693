"""The training loop: collect, store, update, evaluate, and keep everything on disk.

Each vector step is one iteration; its random numbers are derived from the seed and its number, so
that a run continued from a checkpoint is the run that was never stopped.
"""

import dataclasses
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from algd import envs
from algd.algorithms import preset
from algd.evaluation import NonFiniteAction, act, evaluate, finite
from algd.journal import Journal
from algd.replay import Replay, add, capacity, init_replay, sample
from algd.runs import (
    DamagedFile,
    Mark,
    Run,
    create_run,
    from_arrays,
    read_arrays,
    to_arrays,
    write_arrays,
)
from algd.tally import Tally, evaluation_row
from algd.types import (
    Budget,
    CostVectorEnv,
    EnvSpec,
    EnvStep,
    Metrics,
    Transition,
    UserError,
)
from algd.validation import check_fields, check_hyperparameters


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to train on and for how long; the algorithm's own settings come with its preset."""

    env: str = "DiffDrive"
    """A task of ours (`algd list`), a Gymnasium id, or module:Id."""
    steps: int = 20_000
    """Environment steps in all, prefill included."""
    seed: int = 0
    """Determines every random number of the run."""
    envs: int = 4
    """Copies of the environment that collect together."""
    budget: tuple[float, ...] = ()
    """What an episode may cost, one number per constraint; by default the task's own budget."""
    discounted_budget: bool = False
    """For a foreign environment: the budget bounds the discounted cost."""
    horizon: int | None = None
    """Episode length of a foreign environment without a time limit."""
    env_options: tuple[str, ...] = ()
    """Options of the environment as name=value, for example cost_parts=true."""
    eval_every: int = 2_000
    """Environment steps between two evaluations."""
    eval_episodes: int = 10
    """Episodes of each evaluation, on environments and seeds of their own."""
    log_every: int = 500
    """Environment steps between two rows of training metrics."""
    checkpoint_every: int = 10_000
    """Environment steps between two checkpoints."""
    bad_steps: Literal["stop", "drop"] = "stop"
    """What to do when an environment reports a number that is not finite."""


class Progress(NamedTuple):
    """How far a run is, for whoever shows it."""

    step: int
    steps: int
    started_at: int
    seconds: float
    latest: dict[str, Any]


Report = Callable[[Progress], None]
T = TypeVar("T")

# XLA's fused products are slower on a CPU than its plain ones at these sizes, and LLVM's
# expensive passes double the compilation without making the program faster.
CPU_OPTIONS = {
    "xla_cpu_experimental_ynn_fusion_type": "",
    "xla_llvm_disable_expensive_passes": True,
}


@partial(
    jax.jit,
    static_argnames=("algorithm", "rounds"),
    donate_argnames=("state", "replay"),
    compiler_options=CPU_OPTIONS,
)
def store_and_learn(
    algorithm: Any,
    state: Any,
    replay: Replay,
    fresh: Transition,
    keep: Bool[Array, " envs"],
    key: PRNGKeyArray,
    rounds: int,
) -> tuple[Any, Replay, Metrics]:
    """Store fresh transitions, then `rounds` gradient rounds on minibatches drawn here."""
    replay = add(replay, fresh, keep)
    state, metrics = gradient_rounds(algorithm, state, replay, key, rounds)
    return state, replay, metrics


def gradient_rounds(
    algorithm: Any, state: Any, replay: Replay, key: PRNGKeyArray, rounds: int
) -> tuple[Any, Metrics]:
    """A scan of gradient rounds; the metrics are their means."""
    if rounds == 0:
        return state, {}

    def one(state: Any, key: PRNGKeyArray) -> tuple[Any, Metrics]:
        batch_key, update_key = jax.random.split(key)
        batch = sample(replay, algorithm.batch_size, batch_key)
        return algorithm.update(state, batch, update_key)

    state, metrics = jax.lax.scan(one, state, jax.random.split(key, rounds))
    return state, jax.tree.map(lambda x: jnp.mean(x, axis=0), metrics)


@partial(jax.jit, static_argnames=("algorithm",), donate_argnames=("state",))
def learn_from_rollout(
    algorithm: Any, state: Any, batch: Transition, key: PRNGKeyArray
) -> tuple[Any, Metrics]:
    """One update on the steps just collected, `[time, envs, ...]`."""
    return algorithm.update(state, batch, key)


def rounds_due(
    ratio: float, throttle: int, horizon: int, before: int, after: int, epoch_rounds: int
) -> int:
    """Gradient rounds owed for the steps from `before` to `after`, counted from the prefill's end.

    The throttle of the authors' program leaves out the rounds of a step while those of the epoch
    exceed `throttle` times all steps so far.
    """
    if after <= 0:
        return 0
    due = int(after * ratio) - int(max(before, 0) * ratio)
    if throttle and epoch_rounds > throttle * after:
        return 0
    return due


def parse_options(options: tuple[str, ...]) -> dict[str, Any]:
    """`name=value` pairs; a value is a JSON literal, or else a string."""
    parsed: dict[str, Any] = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals:
            raise UserError(f"An environment option is written name=value, not {option!r}.")
        try:
            parsed[name] = json.loads(value)
        except ValueError:
            parsed[name] = value
    return parsed


def make_envs(settings: Settings, copies: int) -> CostVectorEnv:
    """The environment of these settings."""
    budgets = tuple(
        Budget(limit, discounted=settings.discounted_budget) for limit in settings.budget
    )
    return envs.make(
        settings.env,
        copies,
        budgets=budgets or None,
        horizon=settings.horizon,
        env_options=parse_options(settings.env_options),
    )


def check(settings: Settings, algorithm: Any) -> None:
    """Refuse what cannot be trained, before anything is made or written."""
    check_fields(settings)
    check_hyperparameters(algorithm)
    if algorithm.data == "replay" and algorithm.replay_size < settings.envs:
        raise UserError(
            f"--replay-size must be at least the {settings.envs} of --envs, "
            f"not {algorithm.replay_size}."
        )


def kept_transitions(settings: Settings, algorithm: Any) -> int:
    """How many transitions are held at a time; no run needs more of them than it has steps."""
    wanted = algorithm.replay_size if algorithm.data == "replay" else algorithm.rollout_steps
    return min(wanted, settings.steps + settings.envs)


def check_memory(spec: EnvSpec, slots: int, algorithm: Any) -> None:
    """Refuse transitions or networks that do not fit, with the size they would need."""
    floats = 2 * spec.obs_size + spec.action_size + 1 + 2 * len(spec.budgets)
    state = jax.eval_shape(lambda: algorithm.init(spec, jax.random.key(0)))
    # An update holds the networks before and behind it.
    networks = 2 * sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    available = available_memory()
    for what, needed, option in (
        (f"{slots:,} transitions", slots * (4 * floats + 3), "--replay-size or --rollout-steps"),
        ("Networks of these widths", networks, "--critic-hidden and the like"),
    ):
        if available is not None and needed > 0.8 * available:
            raise UserError(
                f"{what} need {needed / 2**30:.1f} GiB, but only {available / 2**30:.1f} GiB are "
                f"free. Give a smaller {option}."
            )


def available_memory() -> int | None:
    """Bytes that can be had without swapping, where the system tells."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    fields = dict(line.split(":") for line in lines)
    return int(fields["MemAvailable"].split()[0]) * 1024


def non_finite(result: EnvStep) -> dict[str, Bool[np.ndarray, " envs"]]:
    """Which copies report something that is not a number, by quantity."""
    return {
        "observation": _bad_rows(result.next_obs) | _bad_rows(result.obs),
        "reward": _bad_rows(result.reward[:, None]),
        "cost": _bad_rows(result.cost),
    }


def _bad_rows(values: Float[np.ndarray, "envs numbers"]) -> Bool[np.ndarray, " envs"]:
    return np.logical_not(np.isfinite(values).all(axis=1))


@contextmanager
def stop_on_signal() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM in a list instead of dying in the middle of a step."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    signals = (signal.SIGINT, signal.SIGTERM)
    previous = {s: signal.signal(s, lambda number, _: received.append(number)) for s in signals}
    try:
        yield received
    finally:
        for s, handler in previous.items():
            signal.signal(s, handler)


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
        self.state = algorithm.init(self.spec, init_key)
        self.tally = Tally(self.spec, settings.envs, algorithm.cost_discount)
        self.step, self.iteration, self.epoch_rounds, self.epoch = 0, 0, 0, 0
        self.obs = np.zeros((settings.envs, self.spec.obs_size), np.float32)
        self.replay: Replay | None = None
        self.stored = 0
        self.rollout: list[Transition] = []
        self.pending: Metrics = {}
        if algorithm.data == "replay":
            self.replay = init_replay(self._example(), kept_transitions(settings, algorithm))

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
        """One step of every copy and the gradient rounds it is worth."""
        key = jax.random.fold_in(self.loop_key, self.iteration)
        act_key, learn_key = jax.random.split(key)
        obs = jnp.asarray(np.nan_to_num(self.obs, posinf=0.0, neginf=0.0))
        action, extras = act(self.algorithm, self.state, obs, act_key, "sampled")
        host_action = self._or_stop(lambda: finite(action))
        self.fold_pending()
        result = self.envs.step(host_action)
        keep = self._checked(result)
        self.tally.count_step(result, keep)
        fresh = Transition(
            obs=obs,
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
        before, self.step = self.step, self.step + self.settings.envs
        self.iteration += 1
        self.obs = result.obs
        if self.algorithm.data == "replay":
            self._learn_from_replay(fresh, keep, learn_key, before)
        else:
            self._learn_from_rollout(fresh, learn_key)

    def _learn_from_replay(
        self, fresh: Transition, keep: np.ndarray, key: PRNGKeyArray, before: int
    ) -> None:
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
        self.state, self.replay, self.pending = store_and_learn(
            algorithm, self.state, self.replay, fresh, jnp.asarray(keep), key, rounds
        )

    def _learn_from_rollout(self, fresh: Transition, key: PRNGKeyArray) -> None:
        so_far = self.tally.cost_so_far
        self.rollout.append(
            dataclasses.replace(
                fresh, extras={**fresh.extras, "cost_so_far": jnp.asarray(so_far, jnp.float32)}
            )
        )
        if len(self.rollout) * self.settings.envs >= self.algorithm.rollout_steps:
            batch = jax.tree.map(lambda *rows: jnp.stack(rows), *self.rollout)
            self.rollout = []
            self.state, self.pending = learn_from_rollout(self.algorithm, self.state, batch, key)

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

    def _or_stop(self, work: Callable[[], T]) -> T:
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
        episodes = self._or_stop(
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

    def save(self, mark: Mark) -> None:
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
                fields = {f.name: getattr(stacked, f.name) for f in dataclasses.fields(stacked)}
                extras = fields.pop("extras")
                arrays |= {f"rollout/{name}": value for name, value in fields.items()}
                arrays |= {f"rollout/extras/{name}": value for name, value in extras.items()}
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

    def restore(self, arrays: dict[str, np.ndarray]) -> Mark:
        """Continue from a checkpoint; the mark in metrics.jsonl that belongs to it.

        Everything is read before anything is changed, so that a checkpoint that lacks something
        leaves no trace.
        """
        try:
            mark = self.run.checked_mark(Mark(*(int(x) for x in arrays["metrics"])))
            step, iteration, epoch_rounds, epoch = (int(x) for x in arrays["counters"])
            state = from_arrays(self.state, arrays, "state")
            stored = int(arrays["stored"])
            replay = self._restored_replay(stored)
            rollout = self._restored_rollout(arrays)
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

    def _restored_rollout(self, arrays: dict[str, np.ndarray]) -> list[Transition]:
        parts: dict[str, Any] = {
            name.removeprefix("rollout/"): jnp.asarray(value)
            for name, value in arrays.items()
            if name.startswith("rollout/")
        }
        if not parts:
            return []
        extras = {
            name.removeprefix("extras/"): parts.pop(name)
            for name in tuple(parts)
            if name.startswith("extras/")
        }
        stacked = Transition(**parts, extras=extras)
        return [
            jax.tree.map(lambda rows, i=i: rows[i], stacked) for i in range(len(stacked.reward))
        ]

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


# --- whole runs -------------------------------------------------------------------------------


def train(
    settings: Settings,
    algorithm: Any,
    name: str,
    directory: Path,
    report: Report = lambda progress: None,
) -> Run:
    """Train a new run of the preset `name` with these hyperparameters in a new directory."""
    check(settings, algorithm)
    environments = make_envs(settings, settings.envs)
    check_memory(environments.spec, kept_transitions(settings, algorithm), algorithm)
    run = create_run(directory)
    with run.lock():
        trainer = Trainer(settings, algorithm, run, environments)
        trainer.obs = environments.reset(settings.seed)
        with run.writing():
            run.metrics_path.touch()
            run.write_config(describe(settings, algorithm, name, environments.spec))
        _loop(trainer, Mark(), report)
    return run


def resume(
    directory: Path, steps: int | None = None, report: Report = lambda progress: None
) -> tuple[Run, list[str]]:
    """Continue a run from its newest whole checkpoint; also what the user should know of it."""
    run = Run(directory)
    config = run.config()
    settings, algorithm, name = restored(config)
    if steps is not None and steps != settings.steps:
        if steps < settings.steps:
            raise UserError(f"The run was already meant to have {settings.steps} steps.")
        settings = dataclasses.replace(settings, steps=steps)
    check(settings, algorithm)
    with run.lock():
        environments = make_envs(settings, settings.envs)
        check_memory(environments.spec, kept_transitions(settings, algorithm), algorithm)
        trainer = Trainer(settings, algorithm, run, environments)
        mark, notes = restore_newest(trainer)
        if not environments.exact_state:
            notes.append(
                f"{settings.env} cannot save its state: the copies start fresh episodes, so the "
                "run is a valid continuation but not the one it would have been."
            )
        with run.writing():
            run.forget_after(trainer.step, trainer.stored)
            run.write_config(describe(settings, algorithm, name, environments.spec))
        _loop(trainer, mark, report)
    return run, notes


def restore_newest(trainer: Trainer) -> tuple[Mark, list[str]]:
    """Bring the trainer to the newest state that is whole; nothing on the disk is changed.

    Returns the mark in metrics.jsonl that belongs to the state, and what the user should know.
    """
    run = trainer.run
    notes: list[str] = []
    for _, path in reversed(run.checkpoints()):
        try:
            mark = trainer.restore(read_arrays(path))
        except DamagedFile as error:
            notes.append(f"{path.name} is not used: {error}.")
            continue
        if trainer.step and not mark.size:
            notes.append(f"metrics.jsonl is missing: its rows begin at step {trainer.step}.")
        return mark, notes
    if not notes and not (run.metrics_path.exists() and run.metrics_path.stat().st_size):
        # The first checkpoint comes before the first row: nothing is lost.
        trainer.obs = trainer.envs.reset(trainer.settings.seed)
        return Mark(), ["The run had no checkpoint yet: it starts again from the beginning."]
    found = " ".join(notes) or "there is none."
    raise UserError(
        f"{run.directory} has no usable checkpoint: {found} Restore its files from a copy. "
        "If only metrics.jsonl is damaged, the run can go on without the rows it had: delete it."
    )


def _loop(trainer: Trainer, mark: Mark, report: Report) -> None:
    """Iterate to the last step, or to a signal; leave a checkpoint and the curves behind."""
    settings, run = trainer.settings, trainer.run
    started_at, clock = trainer.step, time.perf_counter()

    with closing(Journal(run, mark, trainer.step)) as journal, stop_on_signal() as signals:

        def show() -> None:
            seconds = time.perf_counter() - clock
            report(Progress(trainer.step, settings.steps, started_at, seconds, journal.latest))

        if trainer.step == 0:
            # Before the first row, so that there is always something to go on from.
            trainer.save(journal.flushed())
            journal.write(trainer.eval_row())
        while trainer.step < settings.steps and not signals:
            before = trainer.step
            trainer.iterate()
            due = lambda every: trainer.step // every > before // every  # noqa: B023, E731
            if due(settings.log_every):
                journal.write(trainer.train_row())
                speed = (trainer.step - started_at) / (time.perf_counter() - clock)
                journal.write_speed(trainer.step, speed)
            if due(settings.eval_every):
                journal.write(trainer.eval_row())
            if due(settings.checkpoint_every):
                trainer.save(journal.flushed())
            show()
        trainer.save(journal.flushed())
        # Rows past the checkpoint's mark: a continued run takes them back.
        if not signals and trainer.step % settings.eval_every:
            journal.write(trainer.eval_row())
        show()
    if signals:
        raise Interrupted(run.directory, trainer.step)


class Interrupted(Exception):
    """Training was stopped by a signal, with everything saved."""

    def __init__(self, directory: Path, step: int) -> None:
        super().__init__(
            f"Stopped at step {step}; everything is saved. Go on with: algd resume {directory}"
        )


def describe(settings: Settings, algorithm: Any, name: str, spec: EnvSpec) -> dict[str, Any]:
    """Everything that determines a run, ready for config.json."""
    versions = {package: version(package) for package in ("algd", "jax", "numpy", "mujoco")}
    return {
        "preset": name,
        "settings": dataclasses.asdict(settings),
        "hyperparameters": dataclasses.asdict(algorithm),
        "budgets": [dataclasses.asdict(budget) for budget in spec.budgets],
        "horizon": spec.horizon,
        "versions": versions,
    }


def restored(config: dict[str, Any]) -> tuple[Settings, Any, str]:
    """The settings and the algorithm that `describe` described."""
    try:
        settings = Settings(**_with_tuples(config["settings"]))
        algorithm = dataclasses.replace(
            preset(config["preset"]),  # pyright: ignore[reportArgumentType]
            **_with_tuples(config["hyperparameters"]),
        )
        return settings, algorithm, config["preset"]
    except (KeyError, TypeError) as error:
        raise UserError(f"The settings do not fit this version of algd: {error}.") from error


def _with_tuples(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has no tuples; frozen settings have no lists."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
