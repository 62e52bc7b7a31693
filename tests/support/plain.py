"""The same mathematics in plain NumPy, with gradients by hand, to hold the library against."""

import jax
import jax.numpy as jnp
import numpy as np

from algd.types import Budget, EnvSpec, Transition

SPEC = EnvSpec(3, (-1.0, -2.0), (1.0, 3.0), (Budget(10.0), Budget(2.0, discounted=True)), 50)
SLOPES = {
    "relu": (lambda z: np.maximum(z, 0.0), lambda z: (z > 0.0).astype(float)),
    "tanh": (np.tanh, lambda z: 1.0 - np.tanh(z) ** 2),
    "elu": (
        lambda z: np.where(z > 0.0, z, np.expm1(np.minimum(z, 0.0))),
        lambda z: np.where(z > 0.0, 1.0, np.exp(np.minimum(z, 0.0))),
    ),
    "silu": (
        lambda z: z / (1.0 + np.exp(-z)),
        lambda z: 1.0 / (1.0 + np.exp(-z)) * (1.0 + z * (1.0 - 1.0 / (1.0 + np.exp(-z)))),
    ),
}


class MLP:
    """Weights and biases in turn, one network."""

    def __init__(self, params, activation):
        self.params, self.activation = [np.array(p) for p in params], activation

    def forward(self, x):
        f, _ = SLOPES[self.activation]
        self.inputs, self.sums = [], []
        for i in range(0, len(self.params), 2):
            self.inputs.append(x)
            z = x @ self.params[i] + self.params[i + 1]
            self.sums.append(z)
            x = f(z) if i + 2 < len(self.params) else z
        return x

    def backward(self, d):
        """Gradients of the parameters and of the input, given that of the output."""
        _, slope = SLOPES[self.activation]
        grads = []
        for i in reversed(range(len(self.inputs))):
            if i + 1 < len(self.inputs):
                d = d * slope(self.sums[i])
            grads = [self.inputs[i].T @ d, d.sum(axis=0), *grads]
            d = d @ self.params[2 * i].T
        return grads, d


class Adam:
    """Adam on a list of arrays."""

    def __init__(self, rate):
        self.rate, self.count, self.first, self.second = rate, 0, None, None

    def step(self, params, grads):
        self.first = self.first or [np.zeros_like(g) for g in grads]
        self.second = self.second or [np.zeros_like(g) for g in grads]
        self.count += 1
        new = []
        for i, (p, g) in enumerate(zip(params, grads, strict=True)):
            self.first[i] = 0.9 * self.first[i] + 0.1 * g
            self.second[i] = 0.999 * self.second[i] + 0.001 * g**2
            m = self.first[i] / (1.0 - 0.9**self.count)
            v = self.second[i] / (1.0 - 0.999**self.count)
            new.append(p - self.rate * m / (np.sqrt(v) + 1e-8))
        return new


def clipped(grads, limit):
    norm = np.sqrt(sum(np.sum(g**2) for g in grads))
    return [g * min(1.0, limit / max(norm, 1e-300)) for g in grads]


class Ensemble:
    """Independent MLPs of [obs, action]."""

    def __init__(self, members):
        self.members = members

    def forward(self, obs, action):
        x = np.concatenate([obs, action], axis=1)
        return np.stack([m.forward(x) for m in self.members])

    def backward(self, d, action_size):
        """Gradients of all parameters, and the sum of those of the action."""
        results = [m.backward(di) for m, di in zip(self.members, d, strict=True)]
        return [g for g, _ in results], sum(dx[:, -action_size:] for _, dx in results)

    def follow(self, online, rate):
        for mine, other in zip(self.members, online.members, strict=True):
            mine.params = [
                (1.0 - rate) * a + rate * b for a, b in zip(mine.params, other.params, strict=True)
            ]


class Squashed:
    """A tanh-Gaussian policy with its gradients."""

    def __init__(self, mlp, low, high, bounds):
        self.mlp, self.bounds = mlp, bounds
        self.half, self.centre = (high - low) / 2.0, (high + low) / 2.0

    def sample(self, obs, noise):
        mean, raw = np.split(self.mlp.forward(obs), 2, axis=1)
        log_std = np.clip(raw, *self.bounds)
        self.inside = (raw > self.bounds[0]) & (raw < self.bounds[1])
        self.stretch = np.exp(log_std) * noise
        self.unit = np.tanh(mean + self.stretch)
        self.slope = self.half * (1.0 - self.unit**2)
        log_prob = -0.5 * noise**2 - log_std - 0.5 * np.log(2.0 * np.pi)
        log_prob = log_prob - np.log(self.slope + 1e-6)
        return self.unit * self.half + self.centre, log_prob.sum(axis=1)

    def gradients(self, d_action, d_log_prob):
        """Of the parameters, given those of the last sample's action and log-density."""
        d_latent = d_action * self.slope
        d_latent = d_latent + d_log_prob[:, None] * 2.0 * self.unit * self.slope / (
            self.slope + 1e-6
        )
        d_log_std = (d_latent * self.stretch - d_log_prob[:, None]) * self.inside
        return self.mlp.backward(np.concatenate([d_latent, d_log_std], axis=1))[0]


def pessimistic(qcs, spread):
    """mean + spread * std over members, and its derivative by each member's value."""
    count = len(qcs)
    mean, std = qcs.mean(axis=0), qcs.std(axis=0, ddof=1)
    return mean + spread * std, 1.0 / count + spread * (qcs - mean) / ((count - 1) * std)


def fit(ensemble, optimiser, obs, action, targets, scale, limit=None):
    """One Adam step on scale * sum of squared errors; the loss and the predictions before it."""
    values = ensemble.forward(obs, action)
    errors = values - targets
    grads, _ = ensemble.backward(2.0 * scale * errors, action.shape[1])
    flat = [g for member in grads for g in member]
    if limit is not None:
        flat = clipped(flat, limit)
    params = optimiser.step([p for m in ensemble.members for p in m.params], flat)
    size = len(ensemble.members[0].params)
    for i, member in enumerate(ensemble.members):
        member.params = params[i * size : (i + 1) * size]
    return scale * np.sum(errors**2), values


# --- from and to the library's trees ----------------------------------------------------------


# The tests are about what the programs compute, not about how fast.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def start(algorithm, spec=SPEC):
    return jax.jit(lambda key: algorithm.init(spec, key), compiler_options=QUICK)(jax.random.key(0))


def in_double(tree):
    return recast(tree, np.float32, np.float64)


def in_single(tree):
    return recast(tree, np.float64, np.float32)


def recast(tree, old, new):
    arrays = jax.tree.map(np.array, tree)
    return jax.tree.map(lambda x: jnp.asarray(x.astype(new) if x.dtype == old else x), arrays)


def mlp_of(network):
    params = [p for layer in network.layers for p in (layer.weight, layer.bias)]
    return MLP(params, network.activation)


def ensemble_of(critics):
    pick = lambda m: jax.tree.map(lambda x: x[m], critics)  # noqa: E731
    return Ensemble([mlp_of(pick(m)) for m in range(critics.members)])


def assert_mlp(network, mlp, **tolerance):
    for got, expected in zip(mlp_of(network).params, mlp.params, strict=True):
        np.testing.assert_allclose(got, expected, **tolerance)


def assert_ensemble(critics, ensemble, **tolerance):
    for m, member in enumerate(ensemble.members):
        assert_mlp(jax.tree.map(lambda x, m=m: x[m], critics), member, **tolerance)


def random_batch(count, seed=0, spec=SPEC):
    """A minibatch with every kind of ending in it, in double precision where that is on."""
    draw = np.random.default_rng(seed)
    ends = draw.permutation(count)
    flags = lambda k: jnp.asarray(np.isin(np.arange(count), ends[k : k + 2]))  # noqa: E731
    low, high = np.array(spec.action_low), np.array(spec.action_high)
    constraints = len(spec.budgets)
    return Transition(
        obs=jnp.asarray(draw.normal(size=(count, spec.obs_size))),
        action=jnp.asarray(draw.uniform(low, high, (count, spec.action_size))),
        reward=jnp.asarray(draw.normal(size=count)),
        cost=jnp.asarray(draw.uniform(0, 2, (count, constraints))),
        next_obs=jnp.asarray(draw.normal(size=(count, spec.obs_size))),
        terminated=flags(0),
        truncated=flags(2),
        goal_met=flags(4),
        margin=jnp.asarray(draw.normal(size=(count, constraints))),
        extras={},
    )


def roughened(tree, seed=0, size=0.3):
    """The tree with noise on every weight, so that biases and targets are no special case."""
    draw = np.random.default_rng(seed)
    return jax.tree.map(
        lambda x: jnp.asarray(np.array(x) + size * draw.normal(size=x.shape)), in_double(tree)
    )
