"""The few types that every part of the library shares."""

import difflib
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

# What people count with; settings keep Python's own numbers.
Number = int | float | np.integer | np.floating
# Counters are 32-bit integers and networks 32-bit floats.
MOST = 2**31 - 1
LARGEST = 1e37
# How an algorithm acts: in training, or as what it has learnt, by draws or by its one answer.
Mode = Literal["exploring", "sampled", "deterministic"]
# How a trained policy is asked; "best" draws candidates and takes the one its critics prefer.
Choice = Literal["deterministic", "sampled", "best"]
# A scalar, or one number per constraint, under each name.
Metrics = dict[str, Float[Array, "..."]]


class UserError(Exception):
    """A mistake of the person at the keyboard; the message is written for them."""


class Halt(Exception):
    """A signal has ended the work; the message says what is saved and how to go on."""


# What other libraries call the settings that we have.
ELSEWHERE = {
    **dict.fromkeys(("total_timesteps", "n_timesteps", "timesteps", "total_steps"), "steps"),
    **dict.fromkeys(("algo", "policy"), "preset"),
    **dict.fromkeys(("n_envs", "num_envs"), "envs"),
    **dict.fromkeys(("env_id", "env_name", "task"), "env"),
    **dict.fromkeys(("learning_rate", "lr"), "critic_rate"),
    **dict.fromkeys(("log_dir", "logdir", "save_path"), "out"),
    "env_kwargs": "env_options",
    "cost_limit": "budget",
    "gamma": "discount",
    "cost_gamma": "cost_discount",
    "tau": "polyak",
    "buffer_size": "replay_size",
    "learning_starts": "prefill",
    "gradient_steps": "updates_per_step",
    "n_steps": "rollout_steps",
    "n_epochs": "passes",
    "eval_freq": "eval_every",
    "n_eval_episodes": "eval_episodes",
    "save_freq": "checkpoint_every",
}


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence with the known names most like `name`, or nothing if none is."""
    known = list(known)
    if ELSEWHERE.get(name) in known:
        return f" Here it is called {ELSEWHERE[name]}."
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    return f" Did you mean {' or '.join(close)}?" if close else ""


def command(*words: object) -> str:
    """A command of ours as a shell takes it, for messages that suggest one."""
    return shlex.join(["algd", *map(str, words)])


class Range(NamedTuple):
    """Where a number may lie; `above` leaves out the lower end itself."""

    low: float = -LARGEST
    high: float = LARGEST
    above: bool = False


class When(NamedTuple):
    """Beside the type of an option: it counts only where another one has one of these values."""

    option: str
    values: tuple[str | bool, ...]


class Ascending:
    """Beside the type of a pair: its first number is below the second."""


Positive = Annotated[float, Range(0, above=True)]
NonNegative = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, 1)]
Fraction = Annotated[float, Range(0, 1, above=True)]
Gains = tuple[NonNegative, NonNegative, NonNegative]
LogStd = Annotated[float, Range(-50, 50)]
UpdateRatio = Annotated[float, Range(0, 1_000)]
Count = Annotated[int, Range(0, MOST)]
Members = Annotated[int, Range(1, 1_000)]
Copies = Annotated[int, Range(1, 10_000)]
Width = Annotated[int, Range(1, 65_536)]


@dataclass(frozen=True)
class Budget:
    """What an episode may cost: ``limit`` is the expected sum of one cost over an episode.

    A ``discounted`` budget bounds the discounted sum, which is what the critics estimate; an
    undiscounted one is converted to the critics' scale by :meth:`on_critic_scale`. The cost of a
    ``rate`` is a rate, like a speed: who falls after a tenth of the episode has kept no limit by
    that, and algorithms may learn as if it had gone on; what is reported is the sum as it is.
    """

    limit: float
    name: str = "cost"
    discounted: bool = False
    rate: bool = False

    def on_critic_scale(self, discount: float, horizon: int) -> float:
        """h = limit · (1 − γᵀ) / ((1 − γ) T) if undiscounted."""
        if self.discounted or discount == 1.0:
            return self.limit
        return self.limit * (1.0 - discount**horizon) / (1.0 - discount) / horizon


# What an episode may cost, as people write it: one, several in the order of the costs, or by name.
BudgetLike = (
    Number | Budget | Mapping[str, Number | Budget] | Sequence[Number | Budget] | np.ndarray
)


def budgets_of(given: BudgetLike | Any) -> tuple[Budget, ...]:
    """Budgets in any form that people write."""
    if isinstance(given, Mapping):
        return tuple(replace(_budget(value), name=name) for name, value in given.items())
    if isinstance(given, np.ndarray):
        given = np.atleast_1d(given).tolist()
    return tuple(map(_budget, given if isinstance(given, list | tuple) else [given]))


def _budget(value: Any) -> Budget:
    if isinstance(value, Budget):
        return replace(value, limit=float(value.limit))
    try:
        if isinstance(value, bool):
            raise TypeError
        return Budget(float(value))
    except (TypeError, ValueError) as error:
        raise UserError(
            f"A budget is a number or a Budget, several are a list or a dictionary: not {value!r}."
        ) from error


# The shape of a box; for a dictionary pairs of a name and a layout, for a tuple a layout each.
Layout = tuple[Any, ...]


def is_box(layout: Layout) -> bool:
    """Whether it is the shape of one array."""
    return all(isinstance(part, int) for part in layout)


def is_named(part: Any) -> bool:
    """Whether a layout's part is a dictionary's: a name and the layout behind it."""
    return len(part) == 2 and isinstance(part[0], str)


def boxes_of(layout: Layout, name: str = "") -> Iterator[tuple[str, Layout]]:
    """Names and shapes of the arrays, in the order of the vector: `a`, `b[0]`, `b[1].c`, ..."""
    if is_box(layout):
        yield name or "observation", layout
        return
    for i, part in enumerate(layout):
        if is_named(part):
            yield from boxes_of(part[1], f"{name}.{part[0]}" if name else part[0])
        else:
            yield from boxes_of(part, f"{name}[{i}]")


@dataclass(frozen=True)
class EnvSpec:
    """What an algorithm must know of an environment before it has seen one step of it.

    It sees vectors; what the environment makes of them is in ``obs_layout`` and ``action_shape``,
    which are empty where these are vectors too.
    """

    obs_size: int
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    budgets: tuple[Budget, ...]
    horizon: int
    obs_layout: Layout = ()
    action_shape: tuple[int, ...] = ()

    @property
    def action_size(self) -> int:
        """The number of action coordinates."""
        return len(self.action_low)

    @property
    def transition_bytes(self) -> int:
        """What one transition takes, in memory and on the disk."""
        floats = 2 * self.obs_size + self.action_size + 1 + 2 * len(self.budgets)
        return 4 * floats + 3

    def critic_limits(self, discount: float) -> Float[np.ndarray, " constraints"]:
        """The limit of each budget on the scale of the discounted cost critics."""
        limits = [b.on_critic_scale(discount, self.horizon) for b in self.budgets]
        return np.asarray(limits, np.float32)

    def episode_scales(self, discount: float) -> Float[np.ndarray, " constraints"]:
        """What takes an episode's cost, in each budget's unit, to the scale of the critics."""
        ones = [replace(b, limit=1.0).on_critic_scale(discount, self.horizon) for b in self.budgets]
        return np.asarray(ones, np.float32)


def metric_suffixes(constraints: Iterable[str]) -> list[str]:
    """What stands behind the names of each constraint's metrics: nothing if there is only one."""
    names = list(constraints)
    return [f"/{name}" for name in names] if len(names) > 1 else [""]


class Lookahead(eqx.Module):
    r"""What a replayed stretch of up to n steps brought, and what its end is discounted by."""

    reward: Float[Array, "*batch"]
    r"""$\sum_k \gamma^k r_k$, the first step included."""
    cost: Float[Array, "*batch constraints"]
    last_cost: Float[Array, "*batch constraints"]
    """Of the stretch's last step alone."""
    discount: Float[Array, "*batch"]
    r"""$\gamma^m$ after m steps."""
    cost_discount: Float[Array, "*batch"]


class Transition(eqx.Module):
    """One step of interaction, or a batch of them along leading axes.

    ``terminated`` ends the future; ``truncated`` (a time limit) does not and never cuts a
    bootstrap unless an algorithm is told to repeat somebody's mistake. ``margin`` is the signed
    constraint function: positive where the constraint is violated in this step. ``extras`` holds
    what the algorithm's ``act`` wants back in its ``update``. With ``ahead`` it is the first step
    of a replayed stretch, but ``next_obs`` and the flags are those of the last.
    """

    obs: Float[Array, "*batch obs"]
    action: Float[Array, "*batch action"]
    reward: Float[Array, "*batch"]
    cost: Float[Array, "*batch constraints"]
    next_obs: Float[Array, "*batch obs"]
    terminated: Bool[Array, "*batch"]
    truncated: Bool[Array, "*batch"]
    goal_met: Bool[Array, "*batch"]
    margin: Float[Array, "*batch constraints"]
    extras: dict[str, Array]
    ahead: Lookahead | None = None


class Assessment(NamedTuple):
    """What the critics expect of an action: discounted return, cost, and how sure they are.

    ``cost`` is NaN where an algorithm has no critic of the discounted cost.
    """

    value: Float[Array, ""]
    cost: Float[Array, " constraints"]
    cost_spread: Float[Array, " constraints"]


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """What training reads from an algorithm that learns from replay; inherited as fields only."""

    data: ClassVar[Literal["replay"]] = "replay"

    discount: Fraction = 0.99
    """Discount of the return."""
    cost_discount: Fraction = 0.99
    """Discount of the cost."""
    batch_size: Width = 128
    """Transitions per gradient round."""
    replay_size: int = 1_000_000
    """Transitions kept."""
    prefill: Count = 1_000
    """Environment steps with the untrained policy before the first gradient round; counted."""
    updates_per_step: UpdateRatio = 1.0
    """Gradient rounds per environment step."""
    exploration_noise: NonNegative = 0.0
    """Length of the noise on the actions of training, in half widths of their box, in the last copy
    of the environment. The copies between the middle one and it have less; the first half, and a
    single copy, have none, and a multiplier that follows episodes hears of these alone."""
    throttle: Count = 0
    """If positive, skip training while this epoch's rounds exceed throttle * all steps so far
    (authors' program: 5); an epoch is one episode length."""

    @property
    def kept(self) -> int:
        """Transitions held at a time."""
        return self.replay_size


@dataclass(frozen=True, kw_only=True)
class RolloutOptions:
    """What training reads from an algorithm that learns from the steps just collected."""

    data: ClassVar[Literal["rollout"]] = "rollout"

    discount: Fraction = 0.99
    """Discount of the return."""
    cost_discount: Fraction = 0.99
    """Discount of the cost."""
    rollout_steps: int = 20_000
    """Environment steps per update, over all copies."""

    @property
    def kept(self) -> int:
        """Transitions held at a time."""
        return self.rollout_steps


@runtime_checkable
class LearnerState(Protocol):
    """All that an algorithm learns, and the task it learns it for: a dataclass of arrays."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def limit(self) -> Float[Array, " constraints"]:
        """What the costs are held against."""
        ...

    @property
    def low(self) -> Float[Array, " action"]:
        """The lowest action."""
        ...

    @property
    def high(self) -> Float[Array, " action"]:
        """The highest action."""
        ...


@runtime_checkable
class Algorithm(Protocol):
    """A frozen dataclass of hyperparameters with pure methods, and one of the two kinds of options
    above.

    ``act`` and ``assess`` are functions of one observation (vmap them); ``update`` takes a whole
    batch: a replay minibatch ``[batch, ...]`` with ``ReplayOptions``, the fresh steps
    ``[time, envs, ...]`` of one collection with ``RolloutOptions``. Every leaf of the state is an
    array, none is a random key.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def discount(self) -> float:
        """Discount of the return."""
        ...

    @property
    def cost_discount(self) -> float:
        """Discount of the cost."""
        ...

    @property
    def kept(self) -> int:
        """Transitions held at a time: those of a replay buffer or of one rollout."""
        ...

    def init(self, spec: EnvSpec, key: PRNGKeyArray) -> LearnerState:
        """The state before the first step."""
        ...

    def act(
        self, state: Any, obs: Float[Array, " obs"], key: PRNGKeyArray, mode: Mode
    ) -> tuple[Float[Array, " action"], dict[str, Array]]:
        """The action at one observation, and what ``update`` wants to know of the choice."""
        ...

    def update(self, state: Any, batch: Transition, key: PRNGKeyArray) -> tuple[Any, Metrics]:
        """One gradient round."""
        ...

    def assess(
        self, state: Any, obs: Float[Array, " obs"], action: Float[Array, " action"]
    ) -> Assessment:
        """What the critics expect after this action at this observation."""
        ...


@runtime_checkable
class RanksActions(Protocol):
    """An algorithm whose critics tell which of several actions is the best."""

    def objective(
        self, state: Any, obs: Float[Array, " obs"], action: Float[Array, " action"]
    ) -> Float[Array, ""]:
        """What the policy tries to make small at this observation."""
        ...


def learnt_among(copies: int, asked: int) -> int:
    """How many of the copies act as the policy that was learnt: one at least explores."""
    return min(asked, copies - 1)


@runtime_checkable
class LooksAhead(Protocol):
    """An algorithm that may learn from stretches of several steps."""

    @property
    def n_step(self) -> int:
        """The most steps of a stretch; with 1 minibatches have no ``ahead``."""
        ...

    @property
    def goal_is_terminal(self) -> bool:
        """Whether a met goal ends a stretch."""
        ...


@runtime_checkable
class LearnsFromEpisodes(Protocol):
    """An algorithm that wants to know what whole episodes of training have cost."""

    @property
    def learnt_copies(self) -> int:
        """In how many copies, the first ones, training acts as the policy that was learnt."""
        ...

    @property
    def rates_go_on(self) -> bool:
        """Whether a rate counts as if it had gone on where an episode ended early."""
        ...

    def feedback(
        self,
        state: Any,
        episode_costs: Float[Array, "envs constraints"],
        ended: Int[Array, " envs"],
    ) -> Any:
        """The state that has seen the costs, in the budgets' units, of the copies' episodes that
        ``ended`` with this step, after so many steps (zero: goes on); called before the gradient
        rounds of a step. Where none ended it is the same state."""
        ...


class EnvStep(NamedTuple):
    """What all copies of an environment answer to one vector of actions.

    ``next_obs`` is where each step led; ``obs`` is where the next one starts: the same, or the
    first observation of a new episode if this step ended one.
    """

    next_obs: Float[Array | np.ndarray, "envs obs"]
    obs: Float[Array | np.ndarray, "envs obs"]
    reward: Float[Array | np.ndarray, " envs"]
    cost: Float[Array | np.ndarray, "envs constraints"]
    terminated: Bool[Array | np.ndarray, " envs"]
    truncated: Bool[Array | np.ndarray, " envs"]
    goal_met: Bool[Array | np.ndarray, " envs"]
    margin: Float[Array | np.ndarray, "envs constraints"]


class Outcome(NamedTuple):
    """What one copy of a ``JaxEnv`` answers to an action, beside its new state.

    ``terminated`` means that there is no future, ``truncated`` only that we stop looking;
    ``margin`` is the signed constraint function, by default +1 where the step costs something and
    -1 elsewhere.
    """

    reward: Float[Array, ""] | float
    cost: Float[Array, " constraints"] | Float[Array, ""] | float | None = None
    terminated: Bool[Array, ""] | bool = False
    truncated: Bool[Array, ""] | bool = False
    goal_met: Bool[Array, ""] | bool = False
    margin: Float[Array, " constraints"] | None = None


@runtime_checkable
class JaxEnv(Protocol):
    """One copy of an environment as two pure functions, which can be mapped and compiled.

    Its state is a pytree of arrays that holds the observation as ``obs`` and all that the future
    depends on; shapes and types never change. The functions know nothing of other copies, of the
    horizon or of the next episode: to end one at the horizon and to ``reset`` is the caller's.
    Equal environments are equal as Python objects, or they are compiled twice.
    """

    @property
    def action_low(self) -> tuple[float, ...]:
        """The least of each coordinate of the action."""
        ...

    @property
    def action_high(self) -> tuple[float, ...]:
        """The most of each."""
        ...

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """What an episode may cost, a budget for each number of the cost."""
        ...

    @property
    def horizon(self) -> int:
        """The steps of a full episode."""
        ...

    def reset(self, key: PRNGKeyArray) -> Any:
        """The state in which an episode begins."""
        ...

    def step(self, state: Any, action: Float[Array, " action"]) -> tuple[Any, Outcome]:
        """The state that the action leads to, and what it earns and costs."""
        ...


@runtime_checkable
class CostVectorEnv(Protocol):
    """Several copies of one environment, as ``training`` and ``evaluation`` see them.

    ``exact_state`` says whether ``save_state`` holds everything: if it does, a restored
    environment continues to the last bit; if not, it goes on with a fresh episode.
    """

    spec: EnvSpec
    num_envs: int
    exact_state: bool

    def reset(self, seed: int) -> Float[np.ndarray, "envs obs"]:
        """Start new episodes in all copies; everything after is determined by the seed."""
        ...

    def step(self, actions: Float[np.ndarray, "envs action"]) -> EnvStep:
        """Advance every copy by one step; copies whose episode ends start a new one."""
        ...

    def save_state(self) -> dict[str, np.ndarray]:
        """The full state as named arrays."""
        ...

    def restore_state(self, state: dict[str, np.ndarray]) -> None:
        """Continue from a saved state."""
        ...

    def close(self) -> None:
        """Free what the environment holds."""
        ...
