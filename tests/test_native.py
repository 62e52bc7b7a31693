"""The compiled code against XLA's, which computes the same where there is no compiler."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algd.networks.critics import CriticEnsemble
from algd.networks.layers import bfloat16_product, half_fan_in_normal, mlp, silu
from algd.networks.native import library
from algd.networks.score import ScoreNetwork
from algd.profiling.update import example_batch
from algd.training.updates import fresh_state
from algd.types import Budget, EnvSpec
from small import small

compiled = pytest.mark.usefixtures("_compiled")


@pytest.fixture
def _compiled():
    """Asked within the tests only: compiling takes a while, which all workers would wait for."""
    if not library.available():
        pytest.skip("no C++ compiler here")


def by_xla(function, *args):
    """What XLA computes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "available", lambda: False)
        return function(*args)


def example(batch=150, actions=7, size=3, outputs=2, hidden=64):
    """Critics and points: more rows than one block, and no multiple of a tile."""
    keys = jax.random.split(jax.random.key(0), 4)
    critics = CriticEnsemble.create(
        3, 5, size, (hidden, hidden), outputs, half_fan_in_normal, keys[0]
    )
    obs = jax.random.normal(keys[1], (batch, 5))
    action = 3.0 * jax.random.normal(keys[2], (batch, actions, size))
    return critics, obs, action, jax.random.normal(keys[3], (3, batch, actions, outputs))


@compiled
@pytest.mark.parametrize("activation", [jax.nn.relu, silu])
@pytest.mark.parametrize("product", [jnp.matmul, bfloat16_product])
@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_values_and_pullback_are_those_of_xla(activation, product, share):
    critics, obs, action, cotangents = example()
    # Rows of zeros are left out on the way back.
    chosen = jax.random.uniform(jax.random.key(1), cotangents.shape[1:3]) < share
    cotangents = jnp.where(chosen[..., None], cotangents, 0.0)

    def both():
        values, pull_back = critics.values_and_pullback(obs, action, activation, product)
        return values, pull_back(cotangents)

    # What is rounded to bfloat16 may fall to either side.
    loose = {"atol": 3e-3} if product is bfloat16_product else {"rtol": 2e-5, "atol": 2e-6}
    # As programs: one by one, XLA would compile each operation.
    found, expected = jax.jit(lambda: both())(), by_xla(lambda: jax.jit(lambda: both())())
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, **loose)


@compiled
def test_a_rows_result_does_not_depend_on_the_others():
    critics, obs, action, cotangents = example()

    def both(rows):
        values, pull_back = critics.values_and_pullback(obs[rows], action[rows], silu)
        return values, pull_back(cotangents[:, rows])

    (values, grads), (some_values, some_grads) = both(slice(None)), both(slice(31, 64))
    np.testing.assert_array_equal(values[:, 31:64], some_values)
    np.testing.assert_array_equal(grads[31:64], some_grads)
    np.testing.assert_array_equal(critics.values(obs, action[:, 2], silu), values[:, :, 2])


@compiled
@pytest.mark.parametrize("activation", [jax.nn.relu, silu])
def test_what_is_not_a_number_stays_so(activation):
    critics, obs, action, cotangents = example()
    values, pull_back = critics.values_and_pullback(obs, action, activation)
    spoilt = pull_back(cotangents.at[:, 3, 2].set(jnp.nan))
    assert np.isnan(spoilt).all(axis=-1).sum() == 1
    spoilt = critics.values(obs.at[5, 1].set(jnp.nan), action[:, 0], activation)
    assert np.isnan(spoilt).all(axis=(0, 2)).sum() == 1
    assert np.isfinite(values).all()


@compiled
def test_silu_far_from_zero():
    """A critic whose first layer passes the action on: its value is silu(silu(x)) at the first."""
    layers = example(size=1, outputs=1, hidden=32)[0].layers
    ones = jax.tree.map(jnp.zeros_like, layers)
    critics = CriticEnsemble(
        (
            dataclasses.replace(ones[0], weight=ones[0].weight.at[:, -1, 0].set(1.0)),
            dataclasses.replace(ones[1], weight=ones[1].weight.at[:, 0, 0].set(1.0)),
            dataclasses.replace(ones[2], weight=ones[2].weight.at[:, 0, 0].set(1.0)),
        )
    )
    x = jnp.concatenate([jnp.linspace(-120.0, 120.0, 3001), jnp.array([0.0, 1e-6, -1e-6])])
    values, pull_back = critics.values_and_pullback(jnp.zeros((len(x), 5)), x[:, None, None], silu)
    twice = jax.nn.silu(jax.nn.silu(np.asarray(x, np.float64)))
    np.testing.assert_allclose(values[0, :, 0, 0], twice, rtol=1e-6, atol=1e-7)
    slopes = jax.vmap(jax.grad(lambda x: jax.nn.silu(jax.nn.silu(x))))(x)
    np.testing.assert_allclose(
        pull_back(jnp.ones_like(values).at[1:].set(0.0))[:, 0, 0], slopes, atol=1e-6
    )


@compiled
@pytest.mark.parametrize("activation", [jax.nn.relu, silu])
def test_regression_has_the_gradient_of_automatic_differentiation(activation):
    critics, obs, action, targets = example(batch=77, actions=1)

    def loss(critics):
        values = critics(obs, action[:, 0], activation)
        return 0.3 * jnp.sum((values - targets[:, :, 0]) ** 2), values

    expected, values = by_xla(jax.jit(jax.grad(loss, has_aux=True)), critics)
    found_values, found = critics.regress(obs, action[:, 0], targets[:, :, 0], 0.3, activation)
    np.testing.assert_allclose(found_values, values, rtol=2e-5, atol=2e-6)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@compiled
def test_the_score_network_and_its_gradient_are_those_of_xla():
    keys = jax.random.split(jax.random.key(0), 4)
    score = ScoreNetwork.create(5, 2, (32, 64, 64), 4, 8, keys[0])
    obs, action = jax.random.normal(keys[1], (130, 5)), jax.random.normal(keys[2], (130, 2))
    k = jnp.arange(130) % 4

    def both():
        out, pull_back = jax.vjp(
            lambda s, o, a: s.scores(s.state_half(o), a, k), score, obs, action
        )
        return out, pull_back(jnp.cos(out))

    found = jax.tree.leaves(jax.jit(lambda: both())())
    expected = jax.tree.leaves(by_xla(lambda: jax.jit(lambda: both())()))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@compiled
def test_mapped_over_seeds_each_is_computed_as_alone():
    keys = jax.random.split(jax.random.key(0), 3)
    networks = jax.vmap(lambda k: ScoreNetwork.create(5, 2, (32,) * 3, 4, 8, k))(keys)
    x = jax.random.normal(jax.random.key(1), (3, 70, 32))
    apply = lambda network, x: mlp(network.layers[1:], x, jax.nn.relu)  # noqa: E731
    together = jax.vmap(apply)(networks, x)
    for i in range(3):
        alone = apply(jax.tree.map(lambda leaf, i=i: leaf[i], networks), x[i])
        np.testing.assert_array_equal(together[i], alone)


@compiled
@pytest.mark.parametrize("name", ["algd-code", "cal"])
def test_a_whole_round_is_that_of_xla(name):
    spec = EnvSpec(5, (-1.0,) * 2, (1.0,) * 2, (Budget(10.0), Budget(0.0, "other")), 100)
    widths = {f: 32 for f in ("critic_hidden", "score_hidden", "hidden")}
    fields = {field.name for field in dataclasses.fields(small(name))}
    widths = {f: width for f, width in widths.items() if f in fields}
    algorithm = small(name, batch_size=96, **widths)
    state = fresh_state(algorithm, spec, jax.random.key(0))
    batch = example_batch(spec, 96)

    def traced():
        # A new function in each call, because JAX keeps by it what it has traced.
        return jax.jit(lambda s: algorithm.update(s, batch, jax.random.key(1))).trace(state)

    ours, plain = traced(), by_xla(traced)
    assert "algd_critics_regress" in str(ours.jaxpr)
    assert "ffi_call" not in str(plain.jaxpr)
    found, expected = (jax.tree.leaves(way.lower().compile()(state)) for way in (ours, plain))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def test_without_a_compiler_nothing_is_missed(monkeypatch):
    available = library.available.__wrapped__
    monkeypatch.setattr(library, "compiler", lambda: None)
    assert not available()


def test_a_compiler_that_fails_is_reported_and_xla_takes_over(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("ALGD_NATIVE", raising=False)
    monkeypatch.setattr(library, "compiler", lambda: "/bin/false")
    with pytest.warns(UserWarning, match="XLA, which is slower"):
        assert not library.available.__wrapped__()
    assert not list(tmp_path.rglob("*.so"))


def test_it_can_be_switched_off(monkeypatch):
    monkeypatch.setenv("ALGD_NATIVE", "0")
    assert not library.available.__wrapped__()
