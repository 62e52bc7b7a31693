"""A trained policy that needs nothing but NumPy.

    policy = NumpyPolicy.load("policy.npz")
    action = policy.predict(observation)

This file is complete in itself: copied next to a `policy.npz` it runs without the library that
trained the policy.
"""

import dataclasses
import os
from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np

Mode = Literal["deterministic", "sampled", "best"]
MODES = get_args(Mode)
Squash = Literal["tanh", "clip"]
Objective = Literal["plain", "augmented", "reward", "reachability"]
BEST_OF, CANDIDATES, MOST_CANDIDATES = 4, 16, 10_000
FLOOR = np.zeros((), np.float32)


@dataclasses.dataclass(frozen=True)
class Network:
    """Layers `x @ weight + bias` with an activation between them; an ensemble's have a leading
    axis for its members."""

    weights: tuple[np.ndarray, ...]
    biases: tuple[np.ndarray, ...]
    activation: str

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """`[rows, inputs] -> [rows, outputs]`, for an ensemble `[members, rows, outputs]`."""
        activation = ACTIVATIONS[self.activation]
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = activation(x @ weight + bias[..., None, :])
        return x @ self.weights[-1] + self.biases[-1][..., None, :]


ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": lambda x: np.maximum(x, FLOOR),
    "tanh": np.tanh,
    "silu": lambda x: np.float32(0.5) * x * (1 + np.tanh(np.float32(0.5) * x)),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, FLOOR))),
}


@dataclasses.dataclass(frozen=True)
class Diffusion:
    """A reverse diffusion: `network` maps `[obs, action, embedding[k]]` to a score, `drift` and
    `scales` are what level k moves and adds, `start` is the noise that the chain starts from. With
    `levels`, the noise of each level, the network gives mean and log-deviation of a normal density,
    whose smoothed score is taken; `log_bounds` cut the latter. A policy that is `always_sampled`
    has no deterministic action: where one is asked for it takes the best of so many `candidates`.
    """

    network: Network
    embedding: np.ndarray
    drift: np.ndarray
    scales: np.ndarray
    start: float
    squash: Squash
    always_sampled: bool = False
    candidates: int = 1
    levels: np.ndarray | None = None
    log_bounds: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Gaussian:
    """A squashed normal distribution. Without a fixed `log_std` the network's second half is it,
    cut to the bounds. With `obs_mean`, observations are standardised and cut first."""

    network: Network
    squash: Squash
    log_std: np.ndarray | None = None
    log_std_bounds: np.ndarray | None = None
    obs_mean: np.ndarray | None = None
    obs_std: np.ndarray | None = None
    obs_clip: float = 0.0


@dataclasses.dataclass(frozen=True)
class Critics:
    """What ranks actions: `objective` says how return, cost and multiplier make one number.

    `plain` and `augmented` are the Lagrangians, `reward` is minus the return, `reachability`
    weighs the largest violation ahead by the multiplier that a network gives each state.
    """

    q: Network
    qc: Network
    objective: Objective
    lam: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(1, np.float32))
    limit: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(1, np.float32))
    rho: float = 1.0
    spread: float = 0.0
    cap: float = 0.0
    multiplier: Network | None = None
    multiplier_bound: float = 0.0

    def __call__(self, obs: np.ndarray, action: np.ndarray) -> np.ndarray:
        """One number for each row of observations and actions; low is good."""
        inputs = np.concatenate([obs, action], axis=1)
        q = self.q(inputs)[..., 0].min(axis=0)
        if self.objective == "reward":
            return -q
        costs = self.qc(inputs)
        if self.objective == "reachability":
            return -q + self._statewise(obs) * costs[..., 0].mean(axis=0)
        qc = costs.mean(axis=0)
        if self.spread and len(costs) > 1:
            qc = qc + self.spread * costs.std(axis=0, ddof=1)
        if self.objective == "plain":
            return -q + (self.lam * (qc - self.limit)).sum(axis=1)
        active = np.maximum(self.lam + self.rho * (qc - self.limit), 0)
        bent = np.minimum(active, np.maximum(self.lam, 0) + self.cap) if self.cap else active
        return -q + ((2 * active - bent) * bent - self.lam**2).sum(axis=1) / (2 * self.rho)

    def _statewise(self, obs: np.ndarray) -> np.ndarray:
        if self.multiplier is None:
            raise ValueError("A reachability objective needs the multiplier's network.")
        output = self.multiplier(obs)[:, 0]
        if self.multiplier_bound:
            return 0.5 * self.multiplier_bound * (1 + np.tanh(output))
        return np.logaddexp(0, output)


@dataclasses.dataclass(frozen=True)
class PolicyData:
    """A policy, its action box and what ranks its actions, as arrays."""

    policy: Diffusion | Gaussian
    critics: Critics | None
    low: np.ndarray
    high: np.ndarray

    @property
    def obs_size(self) -> int:
        """How many numbers an observation has."""
        inputs = len(self.policy.network.weights[0])
        if isinstance(self.policy, Gaussian):
            return inputs
        return inputs - len(self.low) - self.policy.embedding.shape[1]

    @property
    def noise_shape(self) -> tuple[int, int]:
        """The standard normal numbers of one sampled action: a chain's start, then level 0, 1..."""
        rows = len(self.policy.drift) + 1 if isinstance(self.policy, Diffusion) else 1
        return rows, len(self.low)


class NumpyPolicy:
    """Acts like the policy that was exported. One object serves one thread: it reuses memory."""

    def __init__(self, data: PolicyData, seed: int = 0) -> None:
        self.data, self.obs_size = data, data.obs_size
        self.generator = np.random.default_rng(seed)
        self._mean = (_Chain if isinstance(data.policy, Diffusion) else _Normal)(data)

    @classmethod
    def load(cls, path: "str | os.PathLike[str]", seed: int = 0) -> "NumpyPolicy":
        """The policy of a `policy.npz`; what is kept in half precision is computed in single."""
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        halves = {name: x.astype(np.float32) for name, x in arrays.items() if x.dtype == np.float16}
        return cls(rebuilt(PolicyData, arrays | halves), seed)

    def predict(
        self, obs: Any, mode: Mode = "deterministic", candidates: int = CANDIDATES
    ) -> np.ndarray:
        """The action for one observation, or a row of actions for a batch of them.

        `best` draws so many candidates and takes the one that the critics like best.
        """
        array = np.asarray(obs, np.float32)
        if array.ndim not in (1, 2) or array.shape[-1] != self.obs_size:
            raise ValueError(
                f"An observation has {self.obs_size} numbers, a batch the shape "
                f"[n, {self.obs_size}]; this one has the shape {list(array.shape)}."
            )
        if not np.isfinite(array).all():
            raise ValueError("The observation has numbers that are infinite or not a number.")
        rows = array if array.ndim == 2 else array[None]
        if mode not in MODES:
            raise ValueError(f"The mode is deterministic, sampled or best, not {mode!r}.")
        policy = self.data.policy
        if mode == "deterministic" and isinstance(policy, Diffusion) and policy.candidates > 1:
            mode, candidates = "best", policy.candidates
        if mode == "best":
            noise = self._noise(len(rows) * self._checked(candidates), "sampled")
            actions = self.best_from_noise(rows, noise)
        else:
            actions = self.from_noise(rows, self._noise(len(rows), mode))
        return actions if array.ndim == 2 else actions[0]

    def from_noise(self, rows: np.ndarray, noise: np.ndarray | None) -> np.ndarray:
        """Actions from standard normal numbers `[n, *noise_shape]`; from none, the deterministic
        ones."""
        return self._mean(rows, noise)

    def best_from_noise(self, rows: np.ndarray, noise: np.ndarray | None) -> np.ndarray:
        """Of equally many chains for each row, those whose ends the critics like best."""
        if self.data.critics is None or noise is None:
            raise ValueError("This policy has no critic of actions: it cannot choose the best.")
        if not len(rows):
            return self.from_noise(rows, noise)
        candidates = len(noise) // len(rows)
        repeated = np.repeat(rows, candidates, axis=0)
        actions = self.from_noise(repeated, noise)
        ranks = self.data.critics(repeated, actions).reshape(len(rows), candidates)
        chosen = np.arange(len(rows)) * candidates + ranks.argmin(axis=1)
        return actions[chosen]

    def _noise(self, count: int, mode: Mode) -> np.ndarray | None:
        policy = self.data.policy
        always = isinstance(policy, Diffusion) and policy.always_sampled
        if mode == "deterministic" and not always:
            return None
        return self.generator.standard_normal((count, *self.data.noise_shape), np.float32)

    def _checked(self, candidates: int) -> int:
        if not 1 <= candidates <= MOST_CANDIDATES:
            raise ValueError(
                f"From 1 to {MOST_CANDIDATES:,} candidates can be chosen from, not {candidates}."
            )
        return candidates


class _Chain:
    """The reverse diffusion with everything precomputed that no observation changes.

    Columns are examples, so that each layer writes into the head of an array whose last row is
    one: the bias is then a column of the weights. The action box and the drift are in the weights
    too, and the observation's part of the first layer is computed once for all levels. The hidden
    units are x + |x|, twice the ReLU, which NumPy computes several times faster than a maximum
    (and unlike `fmax` it hides no NaN); the weights behind them are halved, which is exact.
    """

    def __init__(self, data: PolicyData) -> None:
        policy: Any = data.policy
        net: Network = policy.network
        self.box = _Box(data.low, data.high, policy.squash)
        size, first = len(data.low), net.weights[0]
        of_action = first[data.obs_size : data.obs_size + size]
        bias = net.biases[0]
        if policy.squash == "tanh":
            bias = bias + self.box.centre @ of_action
            of_action = self.box.half_width[:, None] * of_action
        self.of_obs = _columns(first[: data.obs_size])
        self.of_action = _columns(of_action)
        self.of_level = (policy.embedding @ first[data.obs_size + size :] + bias)[..., None]
        layers = [
            _columns(np.vstack([weight / 2, bias]))
            for weight, bias in zip(net.weights[1:], net.biases[1:], strict=True)
        ]
        self.middle = layers[:-1]
        self.drift = [np.float32(drift) for drift in policy.drift]
        self.squares = None if policy.levels is None else np.square(policy.levels)
        whole = policy.levels is None
        if not whole:
            # Twice the log-deviation is the variance's, which the drift is about.
            layers[-1][len(data.low) :] *= 2
            self.lowest, self.highest = 2 * np.asarray(policy.log_bounds, np.float32)
        # A score's drift is in the last layer; mean and variance are wanted as they are.
        self.last = [drift * layers[-1] if whole else layers[-1] for drift in self.drift]
        self.scales = [np.float32(scale) for scale in policy.scales]
        self.start, self.squash = np.float32(policy.start), policy.squash
        self._reserve(1)

    def _reserve(self, count: int) -> None:
        """Memory for so many columns."""
        self.count = count
        widths = [len(self.of_obs), *(len(weight) for weight in self.middle)]
        self.base = np.empty((len(self.last), widths[0], count), np.float32)
        # From the noisiest level to the cleanest.
        numbers = range(len(self.last))
        self.levels = list(zip(numbers, self.base, self.last, self.scales, strict=True))[::-1]
        full = [np.ones((width + 1, count), np.float32) for width in widths]
        outputs = [column[:-1] for column in full]
        scratch = [np.empty_like(output) for output in outputs]
        self.steps = list(zip(self.middle, full[:-1], outputs[1:], scratch[1:], strict=True))
        self.first, self.first_size, self.end = outputs[0], scratch[0], full[-1]
        self.x, self.inside = np.empty((2, len(self.box.low), count), np.float32)
        self.move = np.empty((len(self.last[0]), count), np.float32)
        self.mean, self.variance = self.move[: len(self.x)], self.move[len(self.x) :]

    def __call__(self, obs: np.ndarray, noise: np.ndarray | None) -> np.ndarray:
        """The actions at the ends of the chains."""
        if len(obs) != self.count:
            self._reserve(len(obs))
        dot, add, absolute = np.dot, np.add, np.absolute
        x, inside, move, end = self.x, self.inside, self.move, self.end
        first, first_size = self.first, self.first_size
        add(self.of_level, dot(self.of_obs, obs.T), self.base)
        if noise is None:
            x.fill(0)
        else:
            np.multiply(noise[:, 0].T, self.start, x)
        for k, base, last, scale in self.levels:
            dot(self.of_action, np.tanh(x, inside) if self.squash == "tanh" else x, first)
            add(first, base, first)
            add(first, absolute(first, first_size), first)
            for weight, source, target, size in self.steps:
                dot(weight, source, target)
                add(target, absolute(target, size), target)
            dot(last, end, move)
            add(x, move if self.squares is None else self._normal_drift(k), x)
            if noise is not None and scale:
                x += scale * noise[:, k + 1].T
        return self.box(x.T)

    def _normal_drift(self, k: int) -> np.ndarray:
        """The drift of level k by the network's mean and log-variance in `move`."""
        assert self.squares is not None
        mean, variance = self.mean, self.variance
        np.maximum(variance, self.lowest, out=variance)
        np.minimum(variance, self.highest, out=variance)
        np.exp(variance, variance)
        np.add(variance, self.squares[k], variance)
        np.subtract(mean, self.x, mean)
        np.multiply(mean, self.drift[k], mean)
        return np.divide(mean, variance, mean)


class _Normal:
    """A squashed Gaussian."""

    def __init__(self, data: PolicyData) -> None:
        self.policy: Any = data.policy
        self.box = _Box(data.low, data.high, self.policy.squash)

    def __call__(self, obs: np.ndarray, noise: np.ndarray | None) -> np.ndarray:
        """The actions of mean plus noise."""
        policy, size = self.policy, len(self.box.low)
        seen = obs
        if policy.obs_mean is not None:
            seen = (obs - policy.obs_mean) / policy.obs_std
            seen = np.clip(seen, -policy.obs_clip, policy.obs_clip)
        output = policy.network(seen)
        latent = output[:, :size]
        if noise is not None:
            log_std = policy.log_std
            if log_std is None:
                log_std = np.clip(output[:, size:], *policy.log_std_bounds)
            latent = latent + np.exp(log_std) * noise[:, 0]
        return self.box(latent)


class _Box:
    """From the latent to the action box."""

    def __init__(self, low: np.ndarray, high: np.ndarray, squash: Squash) -> None:
        self.low, self.high, self.squash = low, high, squash
        self.half_width, self.centre = (high - low) / 2, (high + low) / 2
        # A shifted box can be left by the last bit.
        self.shifted = bool(self.centre.any())

    def __call__(self, latent: np.ndarray) -> np.ndarray:
        """Actions, in an array of their own."""
        action = np.tanh(latent) if self.squash == "tanh" else np.clip(latent, -1, 1)
        action *= self.half_width
        if self.shifted:
            action += self.centre
            np.clip(action, self.low, self.high, action)
        return action


def _columns(weight: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(weight.T, np.float32)


# --- a file of plain arrays -------------------------------------------------------------------


def flattened(value: Any, name: str = "") -> dict[str, np.ndarray]:
    """Every number, word and array in it by its place; what is None is left out."""
    if dataclasses.is_dataclass(value):
        parts = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif isinstance(value, tuple):
        parts = {str(i): item for i, item in enumerate(value)}
    else:
        return {} if value is None else {name: np.asarray(value)}
    found = {} if isinstance(value, tuple) else {f"{name}.": np.asarray(type(value).__name__)}
    for key, item in parts.items():
        found |= flattened(item, f"{name}.{key}" if name else key)
    return found


def rebuilt(kind: Any, arrays: dict[str, np.ndarray], name: str = "") -> Any:
    """What `flattened` took apart."""
    kinds = {known.__name__: known for known in (Network, Diffusion, Gaussian, Critics, PolicyData)}
    if str(arrays.get(f"{name}.", "")) not in kinds:
        raise ValueError(f"These arrays hold no {kind.__name__}.")
    kind = kinds[str(arrays[f"{name}."])]
    return kind(
        **{
            field.name: _part(arrays, f"{name}.{field.name}" if name else field.name)
            for field in dataclasses.fields(kind)
        }
    )


def _part(arrays: dict[str, np.ndarray], name: str) -> Any:
    if f"{name}." in arrays:
        return rebuilt(PolicyData, arrays, name)
    if f"{name}.0" in arrays:
        count = sum(key.startswith(f"{name}.") for key in arrays)
        return tuple(arrays[f"{name}.{i}"] for i in range(count))
    if name not in arrays:
        return None
    return arrays[name] if arrays[name].ndim else arrays[name].item()
