"""`algd-code` against numbers recorded from the authors' program, every random draw given."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algd.algorithms.algd import AUTHORS, Draws, State
from algd.networks.adam import init_moments
from algd.networks.critics import CriticEnsemble
from algd.networks.layers import Linear
from algd.networks.score import ScoreNetwork
from algd.objectives.diffusion import boltzmann_weights, geometric_schedule, monte_carlo_score
from algd.objectives.lagrangians import augmented_lagrangian, lagrangian
from algd.objectives.td_targets import clipped_value, pessimistic_cost
from algd.types import Budget, Transition

DATA = Path(__file__).parent / "data" / "algd_code"
CASES = ("base", "bounds", "single")
VALUES = {"rtol": 1e-10, "atol": 1e-11}


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def layers(data, prefix, count):
    return tuple(
        Linear(
            jnp.asarray(data[f"{prefix}/layer{i}/weight"]),
            jnp.asarray(data[f"{prefix}/layer{i}/bias"]),
        )
        for i in range(count)
    )


def double_critic(data, prefix):
    first, second = (layers(data, f"{prefix}/q{j}", 3) for j in (1, 2))
    return CriticEnsemble(jax.tree.map(lambda a, b: jnp.stack([a, b]), first, second), "relu")


def score_network(data, prefix):
    embedding = jnp.asarray(data[f"{prefix}/time_embedding"])
    return ScoreNetwork(layers(data, prefix, 4), embedding)


class Case:
    def __init__(self, name):
        self.static = np.load(DATA / f"{name}_static.npz")
        self.updates = np.load(DATA / f"{name}_updates.npz")
        hyper = {k[6:]: self.static[k] for k in self.static.files if k.startswith("hyper/")}
        self.algorithm = replace(
            AUTHORS,
            rho=float(hyper["rho"]),
            beta=float(hyper["beta"]),
            discount=float(hyper["discount"]),
            cost_discount=float(hyper["cost_discount"]),
            cost_ensemble=int(hyper["M"]),
            mc_samples=int(hyper["N"]),
            mask_cost=bool(hyper["cost_bootstrap_masked"]),
        )
        q = double_critic(self.static, "params")
        qc = CriticEnsemble(layers(self.static, "params/qc", 3), "silu")
        score = score_network(self.static, "params/score")
        lam = jnp.exp(jnp.asarray(self.static["log_lam"]).reshape(1))
        self.state = State(
            score=score,
            q=q,
            qc=qc,
            target_q=double_critic(self.static, "target"),
            target_qc=CriticEnsemble(layers(self.static, "target/qc", 3), "silu"),
            score_moments=init_moments(score),
            q_moments=init_moments(q),
            qc_moments=init_moments(qc),
            dual=self.algorithm._dual.init(lam),
            limit=jnp.asarray(hyper["limit"]).reshape(1),
            low=jnp.asarray(hyper["low"]),
            high=jnp.asarray(hyper["high"]),
            rounds=jnp.zeros((), jnp.int32),
            units=None,
            temperature=None,
            episode_scale=jnp.ones(1),
            goes_on=jnp.zeros(1, bool),
            excess=jnp.zeros((2, 1)),
            reach=None,
        )


@pytest.fixture(params=CASES)
def case(request):
    return Case(request.param)


def batch_of(data, prefix):
    get = lambda name: jnp.asarray(data[f"{prefix}/{name}"])  # noqa: E731
    count = get("reward").shape[0]
    return Transition(
        obs=get("obs"),
        action=get("action"),
        reward=get("reward"),
        cost=get("cost")[:, None],
        next_obs=get("next_obs"),
        terminated=get("mask") == 0,
        truncated=jnp.zeros(count, bool),
        goal_met=jnp.zeros(count, bool),
        margin=jnp.zeros((count, 1)),
        extras={},
    )


def draws_of(data, critic, actor):
    get = lambda name: jnp.asarray(data[name])  # noqa: E731
    return Draws(
        next_start=get(f"{critic}/noise_init"),
        next_noise=get(f"{critic}/noise_eps"),
        start=get(f"{actor}/noise_init"),
        noise=get(f"{actor}/noise_eps"),
        tau=get(f"{actor}/tau"),
        forward=jnp.zeros_like(get(f"{actor}/noise_init")),
        proposals=get(f"{actor}/noise_mc"),
    )


def assert_layers_equal(got, data, prefix, **tolerance):
    for i, layer in enumerate(got):
        np.testing.assert_allclose(layer.weight, data[f"{prefix}/layer{i}/weight"], **tolerance)
        np.testing.assert_allclose(layer.bias, data[f"{prefix}/layer{i}/bias"], **tolerance)


def assert_double_equal(got, data, prefix, **tolerance):
    for j in (0, 1):
        member = jax.tree.map(lambda x, j=j: x[j], got.layers)
        assert_layers_equal(member, data, f"{prefix}/q{j + 1}", **tolerance)


def test_noise_schedule():
    data = np.load(DATA / "schedule.npz")
    for name in data.files:
        kind, steps = name.split("/")
        got = getattr(geometric_schedule(0.01, 1.0, int(steps)), kind)
        np.testing.assert_allclose(got, data[name], rtol=0, atol=1e-12)


def test_budget_conversion():
    data = np.load(DATA / "budget.npz")
    rows = zip(
        *(data[k] for k in ("limit", "horizon", "discount", "averaged", "converted")), strict=True
    )
    for limit, horizon, discount, averaged, converted in rows:
        budget = Budget(float(limit), discounted=not averaged)
        got = budget.on_critic_scale(float(discount), int(horizon))
        assert got == pytest.approx(float(converted), rel=1e-13)


def test_critic_values_and_energies(case):
    data, state = case.static, case.state
    obs, action = jnp.asarray(data["batch/obs"]), jnp.asarray(data["batch/action"])
    q = state.q(obs, action)[..., 0]
    qc = state.qc(obs, action)
    np.testing.assert_allclose(q, [data["forward/q1"], data["forward/q2"]], **VALUES)
    np.testing.assert_allclose(clipped_value(q), data["forward/q_min"], **VALUES)
    np.testing.assert_allclose(qc[..., 0], data["forward/qc"], **VALUES)
    risk = pessimistic_cost(qc, 1.0)
    np.testing.assert_allclose(risk[:, 0], data["forward/qc_risk"], **VALUES)
    lam, limit, rho = state.dual.lam, state.limit, case.algorithm.rho
    got = jax.vmap(lambda q, c: augmented_lagrangian(q, c, lam, limit, rho))(clipped_value(q), risk)
    np.testing.assert_allclose(got, data["forward/augmented_lagrangian"], **VALUES)
    plain = jax.vmap(lambda q, c: lagrangian(q, c, lam, limit))(clipped_value(q), risk)
    np.testing.assert_allclose(plain, data["formula/lagrangian"], **VALUES)
    target_qc = state.target_qc(obs, action)[..., 0]
    np.testing.assert_allclose(target_qc, data["forward/target_qc"], **VALUES)


def test_energy_gradient_in_the_action(case):
    batch = batch_of(case.static, "batch")
    # `_energies` takes a_0 and the proposals: here both are the batch's own action.
    energies, grads, _ = jax.jit(case.algorithm._energies)(
        case.state, batch, batch.action, batch.action[:, None]
    )
    for column in (0, 1):
        np.testing.assert_allclose(
            energies[:, column], case.static["forward/augmented_lagrangian"], **VALUES
        )
        np.testing.assert_allclose(
            grads[:, column], case.static["forward/augmented_lagrangian_action_grad"], **VALUES
        )


def test_reverse_chain(case):
    data, algorithm, state = case.static, case.algorithm, case.state
    obs = jnp.asarray(data["batch/obs"])
    latents = jax.jit(algorithm.chain)(
        state.score,
        obs,
        jnp.asarray(data["chain/noise_init"]),
        jnp.asarray(data["chain/noise_eps"]),
        algorithm.bounding(state),
    )
    np.testing.assert_allclose(latents, data["chain/latents"], **VALUES)
    action = algorithm.bounding(state).action(latents[-1])
    np.testing.assert_allclose(action, data["chain/action"], **VALUES)
    keys = jax.random.split(jax.random.key(0), len(obs))
    act = jax.vmap(lambda o, k: algorithm.act(state, o, k, "deterministic")[0])
    np.testing.assert_allclose(jax.jit(act)(obs, keys), data["deterministic/action"], **VALUES)


def test_monte_carlo_target(case):
    data, beta = case.static, case.algorithm.beta
    weights = jax.vmap(lambda e: boltzmann_weights(e, beta))(
        jnp.asarray(data["score_target/mc_energies"])
    )
    np.testing.assert_allclose(weights, data["score_target/mc_weights"], **VALUES)
    phi = jax.vmap(lambda e, g: monte_carlo_score(e, g, beta))(
        jnp.asarray(data["score_target/mc_energies"]),
        jnp.asarray(data["score_target/mc_energy_grads"]),
    )
    np.testing.assert_allclose(phi, data["score_target/phi_star"], **VALUES)


def test_three_whole_updates(case):
    data, state, algorithm = case.updates, case.state, case.algorithm
    update = jax.jit(algorithm.update_with)
    exact = {"rtol": 0, "atol": 1e-11}
    for u in range(3):
        prefix = f"update{u}"
        draws = draws_of(data, f"{prefix}/critic", f"{prefix}/actor")
        state, metrics = update(state, batch_of(data, f"{prefix}/batch"), draws)
        for name in ("q_loss", "qc_loss", "energy_loss", "score_loss"):
            np.testing.assert_allclose(metrics[name], data[f"{prefix}/{name}"], **VALUES)
        np.testing.assert_allclose(metrics["qc_mean"][0], data[f"{prefix}/qc_risk_mean"], **VALUES)
        np.testing.assert_allclose(
            metrics["violation"][0], data[f"{prefix}/violation_mean"], **VALUES
        )
        after = f"{prefix}/after"
        assert_double_equal(state.q, data, f"{after}/params", **exact)
        assert_double_equal(state.target_q, data, f"{after}/target", **exact)
        assert_layers_equal(state.qc.layers, data, f"{after}/params/qc", **exact)
        assert_layers_equal(state.target_qc.layers, data, f"{after}/target/qc", **exact)
        assert_layers_equal(state.score.layers, data, f"{after}/params/score", **exact)
        np.testing.assert_allclose(
            state.score.time_embedding, data[f"{after}/params/score/time_embedding"], **exact
        )
        np.testing.assert_allclose(state.dual.log_lam[0], data[f"{after}/log_lam"], **exact)
