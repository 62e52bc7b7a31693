"""Critics with batch normalisation (CrossQ, XQC), which learn in tens of thousands of rounds.

While learning, a step and the one after it go through the network in one batch and share its
statistics; whoever asks for values gets those of running means, which fold into plain layers.
"""

from collections.abc import Callable
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from algd.networks.critics import CriticEnsemble
from algd.networks.layers import Initialiser, Linear, each_member, init_layers
from algd.networks.native import normalised as native

VARIANCE_FLOOR = 1e-3
MOMENTUM = 0.99


class Norm(eqx.Module):
    r"""$y = g (x - m) / \sqrt{v + \epsilon} + b$: gain and shift are learnt, mean and variance are
    running ones. An ensemble has a leading member axis on all."""

    gain: Float[Array, "*members features"]
    shift: Float[Array, "*members features"]
    mean: Float[Array, "*members features"]
    variance: Float[Array, "*members features"]

    @classmethod
    def create(cls, members: int, features: int) -> "Norm":
        """The identity, but for the floor of the variance."""
        zeros, ones = jnp.zeros((members, features)), jnp.ones((members, features))
        return cls(ones, zeros, jnp.zeros_like(zeros), jnp.ones_like(ones))

    @property
    def slope(self) -> Float[Array, "*members features"]:
        """What running statistics multiply an input by."""
        return self.gain / jnp.sqrt(self.variance + VARIANCE_FLOOR)


class Moments(eqx.Module):
    """Mean and variance of one batch."""

    mean: Float[Array, "*members features"]
    variance: Float[Array, "*members features"]


class NormalisedEnsemble(eqx.Module):
    """Independent critics `[obs, action] -> outputs`: Norm, Linear-Norm-ReLU twice, Linear."""

    layers: tuple[Linear, ...]
    norms: tuple[Norm, ...]

    @classmethod
    def create(
        cls,
        members: int,
        inputs: int,
        hidden: tuple[int, ...],
        outputs: int,
        initialiser: Initialiser,
        key: PRNGKeyArray,
    ) -> "NormalisedEnsemble":
        """Members with independent initial weights."""
        sizes = (inputs, *hidden, outputs)
        keys = jax.random.split(key, members)
        layers = jax.vmap(lambda k: init_layers(sizes, initialiser, k))(keys)
        return cls(layers, tuple(Norm.create(members, size) for size in sizes[:-1]))

    @property
    def plain(self) -> CriticEnsemble:
        """The same values by running statistics, from layers without norms."""
        slope, layers = self.norms[0].slope, []
        offset = self.norms[0].shift - self.norms[0].mean * slope
        for layer, norm in zip(self.layers[:-1], self.norms[1:], strict=True):
            ahead = jnp.einsum("mi,mio->mo", offset, layer.weight) + layer.bias - norm.mean
            weight = slope[:, :, None] * layer.weight * norm.slope[:, None]
            layers.append(Linear(weight, ahead * norm.slope + norm.shift))
            slope, offset = jnp.ones_like(norm.slope), jnp.zeros_like(norm.slope)
        return CriticEnsemble((*layers, self.layers[-1]), "relu")

    def values(
        self, inputs: Float[Array, "batch inputs"], next_inputs: Float[Array, "batch inputs"]
    ) -> tuple[Float[Array, "members batch outputs"], Float[Array, "members batch outputs"]]:
        """The values of both steps by their common statistics."""
        hat = _standardise(jnp.concatenate([inputs, next_inputs]))[0]
        values = self._pass(hat)[0]
        return values[:, : len(inputs)], values[:, len(inputs) :]

    def regress(
        self,
        inputs: Float[Array, "batch inputs"],
        next_inputs: Float[Array, "batch inputs"],
        targets: Callable[[Float[Array, "members batch outputs"]], Array],
        weight: float,
    ) -> tuple[Float[Array, "members batch outputs"], Array, "NormalisedEnsemble", tuple]:
        r"""The values, their targets, the gradient of $w \sum (Q_i - y_i)^2$, the batch's moments.

        Both steps go through the network as one batch; `targets` gives y for the values Q(s', a')
        of that pass, and no gradient goes through it. Zero is the gradient by running means, and by
        what a norm takes out again: the biases of the hidden layers, the first norm's shift.
        """
        rows = len(inputs)
        hat, *seen = _standardise(jnp.concatenate([inputs, next_inputs]))
        values, pull_back, found = jax.vjp(lambda own: own._pass(hat), self, has_aux=True)
        aims = targets(values[:, rows:])
        slopes = 2.0 * weight * (values[:, :rows] - aims)
        (grads,) = pull_back(jnp.pad(slopes, ((0, 0), (0, rows), (0, 0))))
        everyone = [jnp.broadcast_to(x, self.norms[0].mean.shape) for x in seen]
        # What was left out does move the means.
        first = self.layers[0]
        ahead = [jnp.einsum("mi,mio->mo", self.norms[0].shift, first.weight) + first.bias]
        ahead += [layer.bias for layer in self.layers[1:-1]]
        moments = [
            Moments(mean + x, v) for mean, v, x in zip(found[::2], found[1::2], ahead, strict=True)
        ]
        return values[:, :rows], aims, grads, (Moments(*everyone), *moments)

    def _pass(self, hat: Float[Array, "rows inputs"]) -> tuple[Array, tuple[Array, ...]]:
        """Values of standardised inputs by the batch's own statistics; mean and variance of each
        hidden layer, but for the shift and the biases before a norm, which it takes out again."""
        (first, *hidden), last = self.layers[:-1], self.layers[-1]
        matrices = [self.norms[0].gain[:, :, None] * first.weight, *(x.weight for x in hidden)]
        by_layer = zip(matrices, self.norms[1:], strict=True)
        weights = [x for matrix, norm in by_layer for x in (matrix, norm.gain, norm.shift)]
        weights = (*weights, last.weight, last.bias)
        if native.serves(weights):
            return native.values(weights, hat, VARIANCE_FLOOR)
        return each_member(lambda *own: _one_pass(own, hat), *weights)

    def following(self, moments: tuple[Moments, ...]) -> "NormalisedEnsemble":
        """Running statistics a step closer to a batch's moments."""
        toward = lambda old, new: MOMENTUM * old + (1.0 - MOMENTUM) * new  # noqa: E731
        return NormalisedEnsemble(
            self.layers,
            tuple(
                replace(
                    norm,
                    mean=toward(norm.mean, batch.mean),
                    variance=toward(norm.variance, batch.variance),
                )
                for norm, batch in zip(self.norms, moments, strict=True)
            ),
        )


def _one_pass(
    weights: tuple[Array, ...], x: Float[Array, "rows inputs"]
) -> tuple[Float[Array, "rows outputs"], tuple[Array, ...]]:
    """One member's: weight, gain and shift of each hidden layer, weight and bias of the last."""
    *hidden, last, bias = weights
    moments = []
    for weight, gain, shift in zip(hidden[::3], hidden[1::3], hidden[2::3], strict=True):
        hat, *observed = _standardise(x @ weight)
        x = jax.nn.relu(gain * hat + shift)
        moments += observed
    return x @ last + bias, tuple(moments)


def _standardise(x: Float[Array, "rows features"]) -> tuple[Array, Array, Array]:
    """Each column less its mean and over its deviation; mean and variance."""
    mean = jnp.mean(x, axis=0)
    variance = jnp.mean((x - mean) ** 2, axis=0)
    return (x - mean) / jnp.sqrt(variance + VARIANCE_FLOOR), mean, variance
