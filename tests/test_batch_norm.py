"""Batch-normalised critics against plain NumPy, with the gradients written out by hand."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algd.networks.batch_norm import MOMENTUM, VARIANCE_FLOOR, NormalisedEnsemble
from algd.networks.layers import xavier_uniform
from algd.objectives.td_targets import td_regression
from algd.profiling.update import example_batch
from algd.types import Budget, EnvSpec

MEMBERS, ROWS, OBS, ACTION, OUTPUTS = 3, 40, 5, 2, 2


@pytest.fixture(params=[(16, 16), (32, 32), (16, 16, 16)], ids=str)
def ensemble(request):
    """Members whose norms are anything but the identity; compiled code serves those of width 32."""
    made = NormalisedEnsemble.create(
        MEMBERS, OBS + ACTION, request.param, OUTPUTS, xavier_uniform, jax.random.key(0)
    )
    leaves, structure = jax.tree.flatten(made)
    rng = np.random.default_rng(0)
    # All leaves positive enough to be variances too.
    leaves = [leaf + rng.uniform(0.1, 0.5, leaf.shape).astype(np.float32) for leaf in leaves]
    return jax.tree.unflatten(structure, leaves)


@pytest.fixture
def inputs():
    rng = np.random.default_rng(1)
    # Columns of very different sizes: what norms are for.
    sizes = np.array([1e-2, 1.0, 30.0, 1.0, 1.0, 1.0, 1.0])
    draw = lambda: (3.0 + rng.normal(size=(ROWS, OBS + ACTION)) * sizes).astype(np.float32)  # noqa: E731
    return draw(), draw()


def member_arrays(ensemble, m):
    layers = [(np.float64(x.weight[m]), np.float64(x.bias[m])) for x in ensemble.layers]
    norms = [
        tuple(np.float64(part[m]) for part in (n.gain, n.shift, n.mean, n.variance))
        for n in ensemble.norms
    ]
    return layers, norms


def by_hand(layers, norms, x):
    """Forward by the batch's statistics, keeping what the way back needs."""
    kept, moments = [], []

    def normalise(x, norm):
        mean, variance = x.mean(axis=0), x.var(axis=0)
        unit = (x - mean) / np.sqrt(variance + VARIANCE_FLOOR)
        moments.append((mean, variance))
        return unit, norm[0] * unit + norm[1], np.sqrt(variance + VARIANCE_FLOOR)

    unit, y, deviation = normalise(x, norms[0])
    kept.append((unit, deviation))
    for (weight, bias), norm in zip(layers[:-1], norms[1:], strict=True):
        below = y
        unit, before, deviation = normalise(below @ weight + bias, norm)
        y = np.maximum(before, 0.0)
        kept.append((unit, deviation, before, below))
    return y @ layers[-1][0] + layers[-1][1], y, kept, moments


def gradient_by_hand(layers, norms, x, cotangent):
    _, y, kept, _ = by_hand(layers, norms, x)
    layer_grads = [(y.T @ cotangent, cotangent.sum(axis=0))]
    norm_grads = []
    by_y = cotangent @ layers[-1][0].T

    def through_norm(by_out, unit, deviation, gain):
        norm_grads.append(((by_out * unit).sum(axis=0), by_out.sum(axis=0)))
        by_unit = by_out * gain
        # A batch norm's pullback: what would move the batch's mean or variance is taken out.
        return (by_unit - by_unit.mean(axis=0) - unit * (by_unit * unit).mean(axis=0)) / deviation

    for (weight, _), norm, (unit, deviation, before, below) in zip(
        layers[-2::-1], norms[:0:-1], kept[:0:-1], strict=True
    ):
        by_linear = through_norm(by_y * (before > 0), unit, deviation, norm[0])
        layer_grads.append((below.T @ by_linear, by_linear.sum(axis=0)))
        by_y = by_linear @ weight.T
    through_norm(by_y, *kept[0], norms[0][0])
    return layer_grads[::-1], norm_grads[::-1]


def test_regression_equals_numpy(ensemble, inputs):
    first, second = inputs
    weight = 1.0 / ROWS
    reward = np.random.default_rng(2).normal(size=(ROWS, OUTPUTS)).astype(np.float32)
    targets = lambda following: reward + 0.9 * jnp.min(following, axis=0)  # noqa: E731

    values, aims, grads, moments = ensemble.regress(*map(jnp.asarray, inputs), targets, weight)

    both = np.concatenate([first, second]).astype(np.float64)
    members = [member_arrays(ensemble, m) for m in range(MEMBERS)]
    forwards = [by_hand(*arrays, both) for arrays in members]
    outputs = np.stack([forward[0] for forward in forwards])
    aimed = reward + 0.9 * outputs[:, ROWS:].min(axis=0)
    # Single precision: relative errors of 1e-7 in sums of tens of terms, through two divisions.
    np.testing.assert_allclose(values, outputs[:, :ROWS], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(aims, aimed, rtol=1e-3, atol=1e-4)
    for m, arrays in enumerate(members):
        cotangent = np.zeros((2 * ROWS, OUTPUTS))
        cotangent[:ROWS] = 2.0 * weight * (outputs[m, :ROWS] - aimed)
        layers, norms = gradient_by_hand(*arrays, both, cotangent)
        for got, (by_weight, by_bias) in zip(grads.layers, layers, strict=True):
            np.testing.assert_allclose(got.weight[m], by_weight, rtol=1e-2, atol=2e-4)
            np.testing.assert_allclose(got.bias[m], by_bias, rtol=1e-2, atol=2e-4)
        # What a norm takes out again: rounding alone would lead Adam anywhere.
        assert not any(np.any(layer.bias[m]) for layer in grads.layers[:-1])
        assert not np.any(grads.norms[0].shift[m])
        for got, (by_gain, by_shift) in zip(grads.norms, norms, strict=True):
            np.testing.assert_allclose(got.gain[m], by_gain, rtol=1e-2, atol=2e-4)
            np.testing.assert_allclose(got.shift[m], by_shift, rtol=1e-2, atol=2e-4)
            assert not np.any(got.mean[m])
            assert not np.any(got.variance[m])
        for got, (mean, variance) in zip(moments, forwards[m][3], strict=True):
            np.testing.assert_allclose(got.mean[m], mean, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(got.variance[m], variance, rtol=1e-3, atol=1e-6)


def test_targets_are_those_of_the_copies_where_there_are_any(ensemble, inputs):
    """The other ensemble's values of both steps as one batch; the gradient is by the first one."""
    copies = jax.tree.map(lambda leaf: 1.5 * leaf, ensemble)
    now, ahead = (jnp.asarray(x) for x in inputs)
    batch = example_batch(EnvSpec(OBS, (-1.0,) * ACTION, (1.0,) * ACTION, (Budget(1.0),), 9), ROWS)
    batch = replace(batch, obs=now[:, :OBS], action=now[:, OBS:], next_obs=ahead[:, :OBS])
    found = td_regression(ensemble, copies, batch, ahead[:, OBS:], lambda x: 1.0 + 0.9 * x, 1.0)
    both = np.concatenate(inputs).astype(np.float64)
    of_copies = [by_hand(*member_arrays(copies, m), both)[0][ROWS:] for m in range(MEMBERS)]
    aims = jnp.asarray(1.0 + 0.9 * np.stack(of_copies), jnp.float32)
    values, _, grads, _ = ensemble.regress(now, ahead, lambda own: aims, 1.0)
    np.testing.assert_allclose(found.loss, jnp.sum((values - aims) ** 2), rtol=1e-3)
    for got, wanted in zip(jax.tree.leaves(found.grads), jax.tree.leaves(grads), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-2, atol=1e-2)


def test_plain_layers_have_the_values_of_running_statistics(ensemble, inputs):
    obs, action = inputs[0][:, :OBS], inputs[0][:, OBS:]
    values = ensemble.plain.values(jnp.asarray(obs), jnp.asarray(action))
    for m in range(MEMBERS):
        layers, norms = member_arrays(ensemble, m)
        running = [
            lambda x, n=n: n[0] * (x - n[2]) / np.sqrt(n[3] + VARIANCE_FLOOR) + n[1] for n in norms
        ]
        x = running[0](np.float64(inputs[0]))
        for (weight, bias), norm in zip(layers[:-1], running[1:], strict=True):
            x = np.maximum(norm(x @ weight + bias), 0.0)
        expected = x @ layers[-1][0] + layers[-1][1]
        # Folding multiplies first what was subtracted first: as many digits as the offset has.
        np.testing.assert_allclose(values[m], expected, rtol=1e-4, atol=1e-4)


def test_running_statistics_follow_the_batches(ensemble, inputs):
    *_, moments = ensemble.regress(*map(jnp.asarray, inputs), lambda following: following, 1.0)
    moved = ensemble.following(moments)
    for before, after, batch in zip(ensemble.norms, moved.norms, moments, strict=True):
        mixed = MOMENTUM * before.mean + (1.0 - MOMENTUM) * batch.mean
        np.testing.assert_allclose(after.mean, mixed, rtol=1e-6)
        np.testing.assert_array_equal(after.gain, before.gain)
    settled = ensemble
    for _ in range(1_000):
        settled = settled.following(moments)
    for norm, batch in zip(settled.norms, moments, strict=True):
        np.testing.assert_allclose(norm.variance, batch.variance, rtol=1e-3, atol=1e-4)
