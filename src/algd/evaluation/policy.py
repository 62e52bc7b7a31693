"""A trained policy, loaded from a run, ready to act."""

import warnings
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, cast, get_args, overload

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from algd import zoo
from algd.evaluation.acting import CANDIDATES, act, assess
from algd.evaluation.observations import flattened, numbers, refuse_pair
from algd.export import files
from algd.networks.numpy_policy import NumpyPolicy, PolicyData
from algd.networks.portable import Portable
from algd.runs.checkpoint import Snapshot, Which, read_snapshot
from algd.runs.config import parse_config, spec_of
from algd.runs.directory import Run
from algd.runs.validation import checked
from algd.types import (
    Algorithm,
    Choice,
    Count,
    EnvSpec,
    Mode,
    Number,
    Range,
    UserError,
    boxes_of,
)

CHOICES = get_args(Choice)
# How many there may be is said where they are drawn.
WHOLE = Annotated[int, Range()]


class Forecast(NamedTuple):
    """What the critics expect from an action on, all in discounted sums; for a batch, by rows.

    `cost`, its `cost_spread` over the ensemble and the `limit` have one number per constraint;
    `over_budget` says where the cost exceeds its limit.
    """

    value: Float[np.ndarray, "*batch"]
    cost: Float[np.ndarray, "*batch constraints"]
    cost_spread: Float[np.ndarray, "*batch constraints"]
    limit: Float[np.ndarray, " constraints"]
    over_budget: Bool[np.ndarray, "*batch constraints"]


class Policy:
    """Acts like a run at one of its checkpoints.

    The random numbers of sampled actions follow from `seed` and the calls so far; `source` says
    which run it is from, and which step. Where there is no state of the algorithm but a policy of
    plain arrays, as in the zoo, that is the `state`.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        state: Any,
        spec: EnvSpec,
        seed: Number = 0,
        source: Snapshot | None = None,
    ) -> None:
        self.algorithm, self.state, self.spec = algorithm, state, spec
        self.seed, self.source = checked("seed", seed, Count), source
        self.called_at: set[tuple[int, int]] = set()
        self._key = jax.random.key(self.seed)
        self._calls = 0
        self._is_plain = isinstance(state, PolicyData)
        # Asked once: isinstance of a protocol takes a tenth of an action's time.
        self._is_portable = isinstance(algorithm, Portable)

    @property
    def standing(self) -> str:
        """Which checkpoint it is, for a reader: `step 4,000 of 20,000`."""
        return self.source.standing if self.source else "no run"

    @property
    def _name(self) -> str:
        return str(self.source.directory) if self.source else "This policy"

    @cached_property
    def portable(self) -> NumpyPolicy:
        """The same policy in plain NumPy, which answers a single observation sooner than JAX."""
        if isinstance(self.state, PolicyData):
            return NumpyPolicy(self.state, self.seed)
        if not isinstance(self.algorithm, Portable):
            raise UserError(f"{type(self.algorithm).__name__} has no form in plain NumPy.")
        return NumpyPolicy(self.algorithm.portable(self.state), self.seed)

    def export(self, directory: str | Path, form: str = "numpy") -> list[Path]:
        """Write the policy as `numpy`, `onnx` or `stablehlo` into a new directory."""

        if self._is_plain and form == "stablehlo":
            raise UserError(f"{self._name} has plain arrays: export it as numpy or onnx.")

        def one(obs: Array, key: Array, mode: Mode) -> Array:
            return self.algorithm.act(self.state, obs, jax.random.wrap_key_data(key), mode)[0]

        def deterministic(rows: Array) -> Array:
            return jax.vmap(lambda obs: one(obs, jnp.zeros(2, jnp.uint32), "deterministic"))(rows)

        sampled = jax.vmap(partial(one, mode="sampled"))
        origin: dict[str, Any] = {
            "algorithm": type(self.algorithm).__name__,
            "budgets": ", ".join(f"{b.name} {b.limit:g}" for b in self.spec.budgets),
        }
        if self.source is not None:
            origin |= {
                "run": self.source.directory,
                "task": self.source.settings.env,
                "checkpoint": self.source.standing,
            }
        if self.spec.obs_layout:
            boxes = boxes_of(self.spec.obs_layout)
            parts = ", ".join(f"`{name}` {list(shape)}" for name, shape in boxes)
            origin["`observation` holds"] = f"in this order, each row by row: {parts}"
        if self.spec.action_shape:
            origin["`action` holds"] = f"row by row: {list(self.spec.action_shape)}"
        program = files.Program(deterministic, sampled)
        return files.write(self.portable.data, program, form, Path(directory), origin)

    @overload
    def predict(
        self,
        obs: Any,
        deterministic: bool = True,
        *,
        mode: Choice | None = None,
        candidates: Number = CANDIDATES,
        return_info: Literal[False] = False,
    ) -> np.ndarray: ...

    @overload
    def predict(
        self,
        obs: Any,
        deterministic: bool = True,
        *,
        mode: Choice | None = None,
        candidates: Number = CANDIDATES,
        return_info: Literal[True],
    ) -> tuple[np.ndarray, Forecast]: ...

    def predict(
        self,
        obs: Any,
        deterministic: bool = True,
        *,
        mode: str | None = None,
        candidates: Number = CANDIDATES,
        return_info: bool = False,
    ) -> np.ndarray | tuple[np.ndarray, Forecast]:
        """The action for one observation, or a row of actions for a batch of them.

        Both are as in the environment's own spaces: a dictionary, a tuple or stacked frames are
        taken as the environment gives them (or flattened), and the action has the shape that its
        `step` takes. The action is returned alone, not with a state as in other libraries.

        `mode` says how the action is chosen (by default `deterministic` decides): `best` draws
        `candidates` from the policy and takes the one that its critics prefer. With `return_info`
        the critics' forecast comes with the action. What `deterministic` does is the preset's
        choice: that of `algd` is the best of four draws, so the same observation may be answered
        in two ways.
        """
        if not return_info:
            refuse_pair(self.called_at)
        array = self._checked(obs)
        if mode is None:
            mode = "deterministic" if deterministic else "sampled"
        if mode not in CHOICES:
            raise UserError(f"The mode is one of {', '.join(CHOICES)}, not {mode!r}.")
        count = checked("candidates", candidates, WHOLE) if mode == "best" else CANDIDATES
        actions = self._actions(array, cast(Choice, mode), count)
        shaped = actions
        if self.spec.action_shape:
            shaped = actions.reshape(*array.shape[:-1], *self.spec.action_shape)
        return (shaped, self._forecast(array, actions)) if return_info else shaped

    def _checked(self, obs: Any) -> np.ndarray:
        layout, size = self.spec.obs_layout, self.spec.obs_size
        shape = obs.shape if isinstance(obs, np.ndarray) else ()
        flat = shape[-1:] == (size,) and len(shape) < 3 and shape != layout
        if layout and not flat:
            return flattened(layout, obs)
        array = numbers(obs)
        if array.ndim not in (1, 2) or array.shape[-1] != self.spec.obs_size:
            raise UserError(
                f"An observation has {self.spec.obs_size} numbers, a batch the shape "
                f"[n, {self.spec.obs_size}]; this one has the shape {list(array.shape)}."
            )
        return array

    def _actions(self, array: np.ndarray, mode: Choice, candidates: int) -> np.ndarray:
        alone = array.ndim == 1 and self._is_portable
        if self._is_plain or (alone and (mode != "best" or self.portable.data.critics is not None)):
            try:
                return self.portable.predict(array, mode, candidates)
            except ValueError as error:
                raise UserError(str(error)) from error
        if not np.isfinite(array).all():
            raise UserError("The observation has numbers that are infinite or not a number.")
        key = jax.random.fold_in(self._key, self._calls)
        self._calls += 1
        rows = jnp.asarray(np.atleast_2d(array))
        actions, _ = act(self.algorithm, self.state, rows, key, mode, candidates)
        return np.asarray(actions).reshape(*array.shape[:-1], actions.shape[-1])

    def _forecast(self, array: np.ndarray, actions: np.ndarray) -> Forecast:
        if self._is_plain:
            raise UserError(f"{self._name} tells no forecast: train one (algd train).")
        rows, chosen = (jnp.asarray(np.atleast_2d(x)) for x in (array, actions))
        found = assess(self.algorithm, self.state, rows, chosen)
        value, cost, spread = (
            np.asarray(part).reshape((*array.shape[:-1], *part.shape[1:])) for part in found
        )
        if np.isnan(cost).any():
            raise UserError(
                f"{type(self.algorithm).__name__} has no critic of the cost: it can foretell none."
            )
        limit = self.spec.critic_limits(self.algorithm.cost_discount)
        return Forecast(value, cost, spread, limit, cost > limit)


def load(directory: str | Path | Run, checkpoint: Which = "last", *, seed: Number = 0) -> Policy:
    """The policy of a run: of its newest whole checkpoint, of its best evaluation, or of a step.

    `zoo:TASK` is the one that comes with the package.
    """
    task = zoo.task_in(directory)
    found = read_snapshot(directory, checkpoint) if task is None else in_zoo(task, checkpoint)
    return policy_of(found, seed, stacklevel=3)


def policy_of(found: Snapshot, seed: Number, stacklevel: int = 2) -> Policy:
    """The policy of a snapshot, with a warning where that is not a finished run's newest."""
    complaints = list(found.complaints)
    if found.newest < found.settings.steps:
        complaints.append(f"{found.directory} is unfinished")
    for complaint in complaints:
        told = f"{complaint}: the policy is that of {found.standing}."
        warnings.warn(told, stacklevel=stacklevel)
    return Policy(found.algorithm, found.state, found.spec, seed, found)


def in_zoo(task: str, checkpoint: Which = "last") -> Snapshot:
    """What the zoo holds of a task; its state is a policy of plain arrays."""
    name = f"{zoo.PREFIX}{task}"
    if checkpoint != "last":
        raise UserError(f"{name} is one policy and has no checkpoint {checkpoint!r}.")
    config = zoo.record(task).config()
    settings, algorithm, preset = parse_config(config)
    spec, data, steps = spec_of(config), zoo.policy(task), settings.steps
    return Snapshot(Path(name), settings, algorithm, preset, spec, data, steps, steps, [], config)
