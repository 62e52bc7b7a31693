"""The compiled code against XLA's, which computes the same where there is no compiler."""

import ctypes
import dataclasses
import functools
import os
import platform
import shlex
import stat
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algd.networks.batch_norm import NormalisedEnsemble
from algd.networks.critics import CriticEnsemble
from algd.networks.layers import bfloat16_product, half_fan_in_normal, mlp, xavier_uniform
from algd.networks.native import library
from algd.networks.score import ScoreNetwork
from algd.profiling.update import example_batch
from algd.training.updates import fresh_state
from algd.types import Budget, EnvSpec, UserError
from support.small import small

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


def example(activation="silu", batch=150, actions=7, size=3, outputs=2, hidden=64):
    """Critics and points: more rows than one block, and no multiple of a tile."""
    keys = jax.random.split(jax.random.key(0), 4)
    critics = CriticEnsemble.create(
        3, 5, size, (hidden, hidden), outputs, activation, half_fan_in_normal, keys[0]
    )
    obs = jax.random.normal(keys[1], (batch + 20, 5))
    action = 3.0 * jax.random.normal(keys[2], (batch + 20, actions, size))
    clear = clear_of_kinks(critics, obs, action)[:batch]
    assert len(clear) == batch
    cotangents = jax.random.normal(keys[3], (3, batch, actions, outputs))
    return critics, obs[clear], action[clear], cotangents


def clear_of_kinks(critics, obs, action):
    """States where no ReLU is so near its kink that the order of a sum decides on its side."""
    states, actions, _ = action.shape
    x = np.concatenate([np.repeat(obs, actions, axis=0), np.concatenate(action)], axis=1)
    x, nearest = x[None].astype(np.float64), np.full(states, np.inf)
    for layer in critics.layers[:-1]:
        x = x @ np.asarray(layer.weight) + np.asarray(layer.bias)[:, None]
        distances = np.abs(x).min(axis=(0, 2)).reshape(states, actions)
        nearest = np.minimum(nearest, distances.min(axis=1))
        x = np.maximum(x, 0.0)
    return np.flatnonzero(nearest > 1e-5)


# Other vectors sum in another order, and without FMA each product is rounded. A sum of n terms is
# off by n/2 units in the last place (2^-24) of the sum of their sizes at the most: for two products
# of depth 64 after each other 8e-6, for gradients a sum over the rows on top.
SINGLE = 2e-5
# A number just between two of bfloat16 falls to either side, 2^-8 of one term among 64; and with it
# a ReLU near its kink, so that a few rows go another way back.
ROUNDED, STRAYS = 4e-3, 5e-3


def agree(found, expected, error, strays=0.0):
    """Equal up to this share of the largest, but for a share of strays."""
    near = np.abs(np.asarray(found) - expected) <= error * np.abs(expected).max()
    assert near.mean() >= 1.0 - strays, f"only {near.mean():.1%} are off by less than {error}"


@compiled
@pytest.mark.parametrize("activation", ["relu", "silu", "elu"])
@pytest.mark.parametrize("product", [jnp.matmul, bfloat16_product])
@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_values_and_pullback_are_those_of_xla(activation, product, share):
    critics, obs, action, cotangents = example(activation)
    # Rows of zeros are left out on the way back.
    chosen = jax.random.uniform(jax.random.key(1), cotangents.shape[1:3]) < share
    cotangents = jnp.where(chosen[..., None], cotangents, 0.0)

    def both():
        values, pull_back = critics.values_and_pullback(obs, action, product)
        return values, pull_back(cotangents)

    # As programs: one by one, XLA would compile each operation.
    found, expected = jax.jit(lambda: both())(), by_xla(lambda: jax.jit(lambda: both())())
    for one, other in zip(found, expected, strict=True):
        agree(one, other, *((SINGLE,) if product is jnp.matmul else (ROUNDED, STRAYS)))


@compiled
@pytest.mark.parametrize("product", [jnp.matmul, bfloat16_product])
def test_a_rows_result_does_not_depend_on_the_others(product):
    critics, obs, action, cotangents = example()

    def both(rows):
        values, pull_back = critics.values_and_pullback(obs[rows], action[rows], product)
        return values, pull_back(cotangents[:, rows])

    (values, grads), (some_values, some_grads) = both(slice(None)), both(slice(31, 64))
    np.testing.assert_array_equal(values[:, 31:64], some_values)
    np.testing.assert_array_equal(grads[31:64], some_grads)
    if product is jnp.matmul:
        np.testing.assert_array_equal(critics.values(obs, action[:, 2]), values[:, :, 2])


@compiled
@pytest.mark.parametrize("activation", ["relu", "silu", "elu"])
def test_what_is_not_a_number_stays_so(activation):
    critics, obs, action, cotangents = example(activation)
    values, pull_back = critics.values_and_pullback(obs, action)
    spoilt = pull_back(cotangents.at[:, 3, 2].set(jnp.nan))
    assert np.isnan(spoilt).all(axis=-1).sum() == 1
    spoilt = critics.values(obs.at[5, 1].set(jnp.nan), action[:, 0])
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
        ),
        "silu",
    )
    x = jnp.concatenate([jnp.linspace(-120.0, 120.0, 3001), jnp.array([0.0, 1e-6, -1e-6])])
    values, pull_back = critics.values_and_pullback(jnp.zeros((len(x), 5)), x[:, None, None])
    twice = jax.nn.silu(jax.nn.silu(np.asarray(x, np.float64)))
    np.testing.assert_allclose(values[0, :, 0, 0], twice, rtol=1e-6, atol=1e-7)
    slopes = jax.vmap(jax.grad(lambda x: jax.nn.silu(jax.nn.silu(x))))(x)
    np.testing.assert_allclose(
        pull_back(jnp.ones_like(values).at[1:].set(0.0))[:, 0, 0], slopes, atol=1e-6
    )


@compiled
@pytest.mark.parametrize("activation", ["relu", "silu", "elu"])
def test_regression_has_the_gradient_of_automatic_differentiation(activation):
    critics, obs, action, targets = example(activation, batch=77, actions=1)

    def loss(critics):
        values = critics(obs, action[:, 0])
        return 0.3 * jnp.sum((values - targets[:, :, 0]) ** 2), values

    expected, values = by_xla(jax.jit(jax.grad(loss, has_aux=True)), critics)
    found_values, found = critics.regress(obs, action[:, 0], targets[:, :, 0], 0.3)
    agree(found_values, values, SINGLE)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        agree(one, other, SINGLE)


def normalised(members=3, rows=77):
    """Batch-normalised critics whose norms are not the identity, and a step of learning."""
    made = NormalisedEnsemble.create(members, 7, (64, 64), 2, xavier_uniform, jax.random.key(0))
    draw = np.random.default_rng(0)
    moved = lambda x: x + draw.uniform(0.1, 0.5, x.shape).astype(np.float32)  # noqa: E731
    inputs = jax.random.normal(jax.random.key(1), (2, rows, 7))
    return jax.tree.map(moved, made), lambda own: own.regress(
        *inputs, lambda following: 1.0 + 0.5 * following, 0.3
    )


@compiled
def test_normalised_critics_learn_as_by_xla():
    critics, regress = normalised()
    found, expected = regress(critics), by_xla(regress, critics)
    # A ReLU may fall to the other side of its kink in one row of one column.
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        agree(one, other, 2 * SINGLE, strays=2 / 64)


@compiled
def test_a_normalised_critics_step_does_not_depend_on_the_others():
    critics, regress = normalised()
    together = regress(critics)
    for m in range(3):
        alone = regress(jax.tree.map(lambda x, m=m: x[m : m + 1], critics))
        jax.tree.map(lambda x, y, m=m: np.testing.assert_array_equal(x[m], y[0]), together, alone)


@compiled
def test_nothing_depends_on_the_number_of_threads():
    """In processes of one and of all cores."""
    here = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else {0}
    if len(here) < 2:
        pytest.skip("one core only")
    digests = set()
    for cores in (here, {min(here)}):
        program = (
            f"import os; os.sched_setaffinity(0, {cores}); import sys; sys.path[:0] = {sys.path}\n"
            "import hashlib, jax, numpy, test_native\n"
            "found = jax.tree.leaves(test_native.answers()[:2])\n"
            "print(hashlib.sha256(b''.join(numpy.asarray(x).tobytes() for x in found)).hexdigest())"
        )
        digests.add(subprocess.check_output([sys.executable, "-c", program]))
    assert len(digests) == 1


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
    # One ReLU among 64 may fall to the other side of its kink, in one row.
    for one, other in zip(found, expected, strict=True):
        agree(one, other, SINGLE, strays=2 / 64)


@compiled
def test_mapped_over_seeds_each_is_computed_as_alone():
    keys = jax.random.split(jax.random.key(0), 3)
    networks = jax.vmap(lambda k: ScoreNetwork.create(5, 2, (32,) * 3, 4, 8, k))(keys)
    x = jax.random.normal(jax.random.key(1), (3, 70, 32))
    apply = lambda network, x: mlp(network.layers[1:], x, "relu")  # noqa: E731
    together = jax.vmap(apply)(networks, x)
    for i in range(3):
        alone = apply(jax.tree.map(lambda leaf, i=i: leaf[i], networks), x[i])
        np.testing.assert_array_equal(together[i], alone)


@compiled
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("algd-code", "critics_regress"),
        ("algd", "normalised_backward"),
        ("cal", "critics_regress"),
        ("hj", "critics_regress"),
    ],
)
def test_a_whole_round_is_that_of_xla(name, call):
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
    assert f"algd_{call}" in str(ours.jaxpr)
    assert "ffi_call" not in str(plain.jaxpr)
    found, expected = (jax.tree.leaves(way.lower().compile()(state)) for way in (ours, plain))
    # Adam's first step is as long for a gradient of nearly nothing as for any other: where only
    # rounding decides on its sign, the parameter goes to the other side.
    for one, other in zip(found, expected, strict=True):
        assert np.isclose(one, other, rtol=1e-3, atol=1e-4).mean() > 0.99


def answers():
    """What the compiled code computes, without rounding to bfloat16 and with it; what XLA makes of
    the score network's layers by it."""
    found, rounded = [], []
    for activation in ("relu", "silu", "elu"):
        critics, obs, action, cotangents = example(activation, batch=77)
        for product, kept in ((jnp.matmul, found), (bfloat16_product, rounded)):
            values, pull_back = critics.values_and_pullback(obs, action, product)
            kept += [values, pull_back(cotangents)]
        found += jax.tree.leaves(critics.regress(obs, action[:, 0], cotangents[:, :, 0], 0.3))
    learner, regress = normalised()
    found += jax.tree.leaves(regress(learner))
    score = ScoreNetwork.create(5, 2, (32, 64, 64), 4, 8, jax.random.key(0))
    k = jnp.arange(77) % 4
    out, pull_back = jax.vjp(
        lambda s, o, a: s.scores(s.state_half(o), a, k), score, obs, obs[:, :2]
    )
    return found, rounded, [out, *jax.tree.leaves(pull_back(out))]


# Of which processors is asked what, and what they multiply with: in single precision, rounded.
LEVELS = {
    "x86-64": (set(), "plain", "plain"),
    "x86-64-v3": ({"avx2", "fma"}, "avx2", "avx2"),
    "x86-64-v4": ({"avx512f", "avx512bw", "avx512dq", "avx512vl"}, "avx512", "avx512"),
    "cooperlake": ({"avx512_bf16", "avx512_vnni"}, "avx512", "avx512-bf16"),
}


own_answers = functools.cache(answers)


@compiled
@pytest.mark.parametrize("level", LEVELS)
def test_builds_for_other_processors_agree(level, monkeypatch, tmp_path):
    flags, *units = LEVELS[level]
    if platform.machine() != "x86_64" or not flags <= set(library.processor().split()):
        pytest.skip(f"this processor is none of {level}")
    command = [*(library.compiler() or ()), *library.FLAGS, "-O1", f"-march={level}"]
    complaint = library.compiled(command, tmp_path / "other.so")
    if complaint is not None:
        pytest.skip(f"the compiler does not compile for {level}: {complaint}")
    own, call = own_answers(), library.call
    other = ctypes.CDLL(str(tmp_path / "other.so"))
    assert [library.units_of(other, rounded) for rounded in (False, True)] == units
    library.register(other, f"algd_{level}")
    monkeypatch.setattr(library, "call", lambda name, *shapes: call(f"{level}_{name}", *shapes))
    # As for XLA, a ReLU may fall to the other side.
    limits_of_each = ((2 * SINGLE, 2 / 64), (ROUNDED, STRAYS), (SINGLE, 2 / 64))
    for one, two, limits in zip(own, answers(), limits_of_each, strict=True):
        for expected, found in zip(one, two, strict=True):
            agree(found, expected, *limits)


@compiled
def test_the_units_are_those_of_the_processor():
    flags = set(library.processor().split())
    if "avx512_bf16" in flags:
        # Whether the matrix unit may be used is the kernel's decision.
        rounded = {"avx512-bf16"} | ({"amx"} & {flag.partition("_")[0] for flag in flags})
        assert library.units(False) == "avx512"
        assert library.units(True) in rounded
    else:
        assert library.units(True) == library.units(False)
        assert ("avx512" in library.units(False)) == ("avx512f" in flags)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "in_use", lambda: None)
        assert library.units(True) == "xla"


@compiled
@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_the_units_multiply_what_is_rounded_and_add_in_single_precision(activation):
    """Against sums in double precision of factors rounded beforehand."""
    if library.units(True) not in ("avx512-bf16", "amx"):
        pytest.skip(f"this processor multiplies rounded factors by {library.units(True)}")
    critics, obs, action, _ = example(activation, batch=40)
    inputs = np.concatenate([np.repeat(obs, 7, axis=0), np.concatenate(action)], axis=1)
    found = critics.values_and_pullback(obs, action, bfloat16_product)[0].reshape(3, 280, 2)
    apply = {"relu": lambda x: np.maximum(x, 0.0), "silu": lambda x: x / (1.0 + np.exp(-x))}
    first, second, last = jax.tree.map(lambda x: np.asarray(x, np.float64), critics.layers)
    half = lambda x: np.asarray(jnp.asarray(x, jnp.bfloat16), np.float64)  # noqa: E731
    x = apply[activation](inputs @ first.weight + first.bias[:, None])
    x = apply[activation](half(x) @ half(second.weight) + second.bias[:, None])
    expected = x @ last.weight + last.bias[:, None]
    # Of 64 terms a few are next to the middle between two numbers of bfloat16: 2^-8 of one term.
    agree(found, expected, SINGLE, strays=0.1)
    agree(found, expected, ROUNDED)


def test_without_a_compiler_nothing_is_missed(monkeypatch):
    monkeypatch.setattr(library, "compiler", lambda: None)
    assert library.in_use.__wrapped__() is None


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """A place of its own for compiled code, which is used here whatever the environment says."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("ALGD_NATIVE", raising=False)
    return tmp_path / "cache" / "algd" / "native"


def as_compiler(monkeypatch, tmp_path, lines):
    """Make a shell script the compiler that CXX names; `$out` is the file it is to write."""
    script = tmp_path / "compiler"
    script.write_text(f"#!/bin/sh\nfor out; do :; done\n{lines}\n")
    script.chmod(0o755)
    monkeypatch.setenv("CXX", f"'{script}' --like-this")
    return [str(script), "--like-this"]


@pytest.mark.parametrize(
    ("lines", "said"),
    [("echo no such flag >&2; exit 1", "no such flag"), ("kill -KILL $$", "nothing")],
    ids=["fails", "is killed"],
)
def test_a_compiler_that_does_not_finish_is_reported_and_xla_takes_over(
    lines, said, monkeypatch, tmp_path, cache
):
    as_compiler(monkeypatch, tmp_path, lines)
    with pytest.warns(UserWarning, match=rf"XLA, which is slower.* says: {said}"):
        assert library.in_use.__wrapped__() is None
    assert not list(tmp_path.rglob("*.so"))


def test_the_compiler_that_is_named_is_taken_or_refused(monkeypatch, tmp_path):
    named = as_compiler(monkeypatch, tmp_path, "exit 1")
    assert library.compiler() == named
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    with pytest.raises(UserError, match=r"CXX names '/nonexistent/c\+\+'"):
        library.compiler()


def test_a_compiler_that_hangs_is_stopped_with_all_it_started(monkeypatch, tmp_path, cache):
    pids = tmp_path / "pids"
    hang = as_compiler(monkeypatch, tmp_path, f"sleep 600 & echo $! >> '{pids}'; wait")
    monkeypatch.setattr(library, "COMPILER_SECONDS", 1.0)
    with pytest.raises(OSError, match="compiler has not finished after 1 seconds"):
        library.loaded(hang)
    assert not list(cache.glob("*.so"))
    started = pids.read_text().split() if pids.exists() else []
    while any(alive(pid) for pid in started):
        time.sleep(0.01)


def alive(pid):
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def test_a_library_that_is_not_whole_is_compiled_again(monkeypatch, tmp_path, cache):
    """Cut short, altered or without its checksum; half a library kills whoever touches it."""
    log = tmp_path / "log"
    slow = as_compiler(monkeypatch, tmp_path, f"echo x >> '{log}'; printf whole > \"$out\"")
    cache.mkdir(parents=True)
    made = library.built(slow, cache)
    once = len(log.read_text())
    assert library.built(slow, cache) == made
    assert len(log.read_text()) == once
    check = made.with_suffix(".sha256")
    damages = [
        lambda: made.write_bytes(made.read_bytes()[:-2]),
        lambda: made.write_bytes(b""),
        lambda: made.write_bytes(b"while"),
        made.unlink,
        check.unlink,
        lambda: check.write_bytes(b"\xff"),
    ]
    for number, damage in enumerate(damages, 2):
        damage()
        assert library.built(slow, cache) == made
        assert made.read_bytes() == b"whole"
        assert len(log.read_text()) == number * once
    assert {path.name for path in cache.iterdir()} == {made.name, check.name, "lock"}


@compiled
@pytest.mark.parametrize("fault", ["can be written by others", "belongs to another user"])
def test_code_that_others_may_have_put_there_is_not_loaded(fault, monkeypatch, tmp_path, cache):
    real = shlex.join(library.compiler() or ["none"])
    code = 'extern "C" { int critics_forward = 1; }'
    copy = as_compiler(
        monkeypatch, tmp_path, f"echo '{code}' | {real} -shared -fPIC -x c++ - -o \"$out\""
    )
    cache.mkdir(parents=True, mode=0o700)
    planted = library.built(copy, cache)
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    planted.write_bytes(b"not a library")
    planted.with_suffix(".sha256").write_bytes(library.checksum(planted))
    with pytest.raises(OSError, match=r"invalid ELF|not a mach-o|too short"):
        library.loaded(copy)
    if "others" in fault:
        cache.chmod(0o777)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: cache.stat().st_uid + 1)
    with pytest.warns(UserWarning, match=f"this process alone, because .* {fault}"):
        assert library.loaded(copy).critics_forward
    assert planted.read_bytes() == b"not a library"


def test_it_can_be_switched_off(monkeypatch):
    monkeypatch.setenv("ALGD_NATIVE", "0")
    assert library.in_use.__wrapped__() is None
