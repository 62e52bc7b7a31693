"""HJ reachability: its operator on a chain, its time scales, whole updates against plain NumPy."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algd.algorithms.hj import HJ, PRESETS, Draws
from algd.objectives.td_targets import reachability_target
from support.plain import (
    QUICK,
    Adam,
    Squashed,
    assert_ensemble,
    assert_mlp,
    clipped,
    ensemble_of,
    fit,
    in_double,
    in_single,
    mlp_of,
    random_batch,
    roughened,
    start,
)

BATCH = 8
EXACT = {"rtol": 1e-9, "atol": 1e-11}


@jax.jit
def sweep(values, margin, following, discount):
    keep = jnp.ones_like(margin)
    return reachability_target(margin, keep, discount, values[following])


def test_a_chain_that_ends_badly_is_infeasible_from_its_start():
    """0 -> 1 -> 2 (bad, stays) and, beside it, 3 (safe, stays)."""
    margin, following = jnp.array([-1.0, -1.0, 1.0, -1.0]), jnp.array([1, 2, 2, 3])
    values = jnp.zeros(4)
    for _ in range(10):
        values = sweep(values, margin, following, 1.0)
    # With gamma_h = 1 the safe loop keeps whatever it started with: only a discount pulls it down.
    np.testing.assert_allclose(values[:3], 1.0)
    for discount in (0.9, 0.99):
        values = jnp.zeros(4)
        for _ in range(3000):
            values = sweep(values, margin, following, discount)
        by_hand = [2 * discount**2 - 1.0, 2 * discount - 1.0, 1.0, -1.0]
        np.testing.assert_allclose(values, by_hand, atol=1e-5)


def test_the_operator_contracts():
    draw = np.random.default_rng(0)
    margin = jnp.asarray(draw.normal(size=20), jnp.float32)
    following = jnp.asarray(draw.integers(0, 20, 20))
    for discount in (0.5, 0.9, 0.99):
        a, b = (jnp.asarray(draw.normal(size=20), jnp.float32) for _ in range(2))
        after = sweep(a, margin, following, discount) - sweep(b, margin, following, discount)
        assert jnp.max(jnp.abs(after)) <= discount * jnp.max(jnp.abs(a - b)) + 1e-6


def test_a_terminal_step_is_worth_its_own_margin():
    got = reachability_target(jnp.array([-0.3]), jnp.zeros(1), 0.99, jnp.array([5.0]))
    np.testing.assert_allclose(got, [-0.3])


def test_the_constraint_is_the_worst_margin():
    margin = jnp.array([[-1.0, 0.5], [-2.0, -0.2], [0.0, -1.0]])
    np.testing.assert_allclose(HJ().constraint(margin), [0.5, -0.2, 0.0])
    signs = HJ(sign_only=True, margin_scale=20.0).constraint(margin)
    np.testing.assert_allclose(signs, [20.0, -20.0, -20.0])


def test_the_multiplier_grows_on_infeasible_states_and_shrinks_on_feasible_ones():
    hj = HJ(
        actor_hidden=16, critic_hidden=8, safety_ensemble=1, multiplier_rate=1e-2, penalty_start=0
    )
    state = start(hj)
    batch = in_single(random_batch(BATCH))
    draws = hj.draw(batch.action.shape, jax.random.key(1))
    step = jax.jit(hj._multiplier_step, compiler_options=QUICK)
    for value in (2.0, -2.0):
        last = state.qh.layers[-1]
        constant = replace(
            state.qh,
            layers=(
                *state.qh.layers[:-1],
                replace(last, weight=0 * last.weight, bias=0 * last.bias + value),
            ),
        )
        before, now = hj.lam(state.multiplier, batch.obs), replace(state, qh=constant)
        for _ in range(20):
            now = step(now, batch, draws)
        change = hj.lam(now.multiplier, batch.obs) - before
        assert (change * value > 0).all()
        assert (hj.lam(now.multiplier, batch.obs) > 0).all()


class Plain:
    """Reachability-constrained actor-critic, from its equations."""

    def __init__(self, hj, state):
        self.hj = hj
        low, high = np.array(state.low), np.array(state.high)
        self.policy = Squashed(mlp_of(state.actor), low, high, hj.log_std_bounds)
        self.multiplier = mlp_of(state.multiplier)
        self.q, self.target_q = (ensemble_of(x) for x in (state.q, state.target_q))
        self.qh, self.target_qh = (ensemble_of(x) for x in (state.qh, state.target_qh))
        self.log_alpha = np.array(state.temperature.log_alpha)
        rates = {
            "q": hj.critic_rate,
            "qh": hj.critic_rate,
            "actor": hj.actor_rate,
            "alpha": hj.alpha_rate,
            "multiplier": hj.multiplier_rate,
        }
        self.adams = {name: Adam(rate) for name, rate in rates.items()}
        self.rounds = 0

    def multipliers(self, obs):
        """lambda(s) and its derivative by the network's output."""
        out = self.multiplier.forward(obs)[:, 0]
        bound = self.hj.multiplier_bound
        if bound:
            return bound / 2 * (1 + np.tanh(out)), bound / 2 * (1 - np.tanh(out) ** 2)
        return np.log1p(np.exp(out)), 1.0 / (1.0 + np.exp(-out))

    def update(self, b, draws):
        hj, n = self.hj, len(b.reward)
        alpha = np.exp(self.log_alpha)
        if hj.decay_rounds:
            done = min(self.rounds / hj.decay_rounds, 1.0)
            for name in ("q", "qh"):
                self.adams[name].rate = (1 - done) * hj.critic_rate + done * hj.final_critic_rate

        a2, log_prob2 = self.policy.sample(b.next_obs, draws.next_noise)
        next_q = self.target_q.forward(b.next_obs, a2)[..., 0].min(axis=0)
        y = b.reward + hj.discount * (1.0 - b.terminated) * (next_q - alpha * log_prob2)
        h = b.margin.max(axis=1)
        if hj.sign_only:
            h = np.where(h > 0, 1.0, -1.0)
        h = hj.margin_scale * h
        g = hj.safety_discount
        ahead = self.target_qh.forward(b.next_obs, a2)[..., 0]
        yh = np.where(b.terminated, h, (1 - g) * h + g * np.maximum(h, ahead))
        clip = hj.grad_clip
        q_loss, _ = fit(self.q, self.adams["q"], b.obs, b.action, y[None, :, None], 1 / n, clip)
        qh_loss, qhs = fit(
            self.qh, self.adams["qh"], b.obs, b.action, yh[..., None], 1 / n / len(yh), clip
        )

        if self.rounds % hj.actor_every == 0:
            lam, _ = self.multipliers(b.obs)
            lam = lam * (self.rounds >= hj.penalty_start)
            action, log_prob = self.policy.sample(b.obs, draws.noise)
            qs = self.q.forward(b.obs, action)
            _, d_action = self.q.backward(
                np.where(qs == qs.min(axis=0), -1.0 / n, 0.0), action.shape[1]
            )
            members = len(self.qh.forward(b.obs, action))
            d_qh = np.repeat((lam / n / members)[None, :, None], members, axis=0)
            _, through_qh = self.qh.backward(d_qh, action.shape[1])
            grads = self.policy.gradients(d_action + through_qh, np.full(n, alpha / n))
            params = self.adams["actor"].step(self.policy.mlp.params, clipped(grads, clip))
            self.policy.mlp.params = params
            alpha_grad = alpha * np.mean(-log_prob + action.shape[1])
            (self.log_alpha,) = self.adams["alpha"].step([self.log_alpha], [alpha_grad])
            self.target_q.follow(self.q, hj.polyak)
            self.target_qh.follow(self.qh, hj.polyak)
        if self.rounds % hj.multiplier_every == 0 and self.rounds >= hj.penalty_start:
            action, _ = self.policy.sample(b.obs, draws.noise)
            qh = self.qh.forward(b.obs, action)[..., 0].mean(axis=0)
            _, slope = self.multipliers(b.obs)
            d = -slope * np.clip(qh, *hj.penalty_range) / n
            grads, _ = self.multiplier.backward(d[:, None])
            self.multiplier.params = self.adams["multiplier"].step(
                self.multiplier.params, clipped(grads, hj.multiplier_grad_clip)
            )
        self.rounds += 1
        lam, _ = self.multipliers(b.obs)
        violation = np.maximum(qhs[..., 0].mean(axis=0), 0.0).mean()
        return {
            "q_loss": q_loss,
            "qh_loss": qh_loss,
            "lam": np.full(2, lam.mean()),
            "violation": np.full(2, violation),
        }


CASES = {
    "hj": HJ(penalty_start=0),
    "options": HJ(
        sign_only=True,
        margin_scale=20.0,
        multiplier_bound=50.0,
        penalty_range=(-1.0, 100.0),
        penalty_start=2,
        decay_rounds=5,
        final_critic_rate=1e-5,
        grad_clip=0.5,
        multiplier_grad_clip=0.1,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_whole_updates(name):
    hj = replace(
        CASES[name],
        actor_hidden=7,
        critic_hidden=6,
        safety_ensemble=3,
        actor_every=2,
        multiplier_every=3,
    )
    with jax.enable_x64(True):
        state = in_double(start(hj))
        changed = ("actor", "multiplier", "q", "qh", "target_q", "target_qh")
        state = replace(
            state, **{f: roughened(getattr(state, f), i) for i, f in enumerate(changed)}
        )
        plain = Plain(hj, state)
        update = jax.jit(hj.update_with, compiler_options=QUICK)
        for i in range(4):
            batch = random_batch(BATCH, seed=i)
            draw = np.random.default_rng(10 + i)
            draws = Draws(*(jnp.asarray(draw.normal(size=(BATCH, 2))) for _ in range(2)))
            state, metrics = update(state, batch, draws)
            expected = plain.update(jax.tree.map(np.array, batch), jax.tree.map(np.array, draws))
            for metric, value in expected.items():
                np.testing.assert_allclose(metrics[metric], value, **EXACT)
            assert_ensemble(state.q, plain.q, **EXACT)
            assert_ensemble(state.qh, plain.qh, **EXACT)
            assert_ensemble(state.target_q, plain.target_q, **EXACT)
            assert_ensemble(state.target_qh, plain.target_qh, **EXACT)
            assert_mlp(state.actor, plain.policy.mlp, **EXACT)
            assert_mlp(state.multiplier, plain.multiplier, **EXACT)
            np.testing.assert_allclose(state.temperature.log_alpha, plain.log_alpha, **EXACT)


def test_three_time_scales():
    hj = HJ(actor_hidden=4, critic_hidden=4, safety_ensemble=1, penalty_start=0)
    state = start(hj)
    batch = in_single(random_batch(BATCH))
    update = jax.jit(hj.update, compiler_options=QUICK)
    parts = ("q", "qh", "actor", "target_q", "multiplier")
    moved = {part: [] for part in parts}
    for i in range(13):
        new, _ = update(state, batch, jax.random.key(i))
        for part in parts:
            pairs = zip(
                jax.tree.leaves(getattr(state, part)),
                jax.tree.leaves(getattr(new, part)),
                strict=True,
            )
            moved[part].append(any((a != b).any() for a, b in pairs))
        state = new
    every = lambda k: [i % k == 0 for i in range(13)]  # noqa: E731
    assert moved["q"] == moved["qh"] == every(1)
    assert moved["actor"] == moved["target_q"] == every(4)
    assert moved["multiplier"] == every(12)


def test_annealing_reaches_its_end():
    hj = HJ(safety_discount=0.99, final_safety_discount=0.999, anneal_rounds=100)
    at = lambda rounds: float(hj._safety_discount(jnp.asarray(rounds)))  # noqa: E731
    assert at(0) == pytest.approx(0.99)
    assert at(50) == pytest.approx(0.9945)
    assert at(500) == pytest.approx(0.999)


def test_the_critics_say_nothing_about_the_discounted_cost():
    hj = replace(PRESETS["hj"], actor_hidden=4, critic_hidden=4)
    state = start(hj)
    assessment = hj.assess(state, jnp.zeros(3), jnp.zeros(2))
    assert np.isfinite(assessment.value)
    assert np.isnan(assessment.cost).all()
