"""SAC+Lag, SAC+AugLag and SAC: whole updates against plain NumPy, and their options."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algd.algorithms.sac_lag import Draws, SACLag
from support.plain import (
    QUICK,
    Adam,
    Squashed,
    assert_ensemble,
    assert_mlp,
    ensemble_of,
    fit,
    in_double,
    mlp_of,
    pessimistic,
    random_batch,
    roughened,
    start,
)

BATCH = 8
EXACT = {"rtol": 1e-9, "atol": 1e-11}
SMALL = {"actor_hidden": 7, "critic_hidden": 6, "cost_ensemble": 3}


class Plain:
    """Soft actor-critic with a Lagrangian, from its equations."""

    def __init__(self, sac, state):
        self.sac = sac
        low, high = np.array(state.low), np.array(state.high)
        self.policy = Squashed(mlp_of(state.actor), low, high, sac.log_std_bounds)
        self.q, self.target_q = (ensemble_of(x) for x in (state.q, state.target_q))
        self.qc, self.target_qc = (ensemble_of(x) for x in (state.qc, state.target_qc))
        self.log_alpha = np.array(state.temperature.log_alpha)
        self.lam, self.limit = np.array(state.dual.lam), np.array(state.limit)
        self.integral = np.array(state.dual.integral) if sac.dual == "pid" else None
        self.previous = np.zeros_like(self.lam)
        rates = {
            "q": sac.critic_rate,
            "qc": sac.critic_rate,
            "actor": sac.actor_rate,
            "alpha": sac.alpha_rate,
            "lam": sac.dual_rate,
        }
        self.adams = {name: Adam(rate) for name, rate in rates.items()}

    def update(self, b, draws):
        sac, n = self.sac, len(b.reward)
        alpha, lam = np.exp(self.log_alpha), self.lam
        keep = 1.0 - b.terminated

        a2, log_prob2 = self.policy.sample(b.next_obs, draws.next_noise)
        next_q = self.target_q.forward(b.next_obs, a2)[..., 0].min(axis=0)
        y = b.reward + sac.discount * keep * (next_q - alpha * log_prob2)
        next_qc = self.target_qc.forward(b.next_obs, a2)
        if sac.cost_target == "mean":
            next_qc = np.repeat(next_qc.mean(axis=0)[None], len(next_qc), axis=0)
        if sac.cost_floor:
            next_qc = np.maximum(next_qc, 0.0)
        if sac.cost_entropy:
            next_qc = next_qc - alpha * log_prob2[:, None]
        yc = b.cost + sac.cost_discount * keep[:, None] * next_qc
        q_loss, _ = fit(self.q, self.adams["q"], b.obs, b.action, y[None, :, None], 1 / n)
        qc_loss, _ = fit(self.qc, self.adams["qc"], b.obs, b.action, yc, 1 / n / len(yc))

        qc_replay, _ = pessimistic(self.qc.forward(b.obs, b.action), sac.cost_spread)
        action, log_prob = self.policy.sample(b.obs, draws.noise)
        qs = self.q.forward(b.obs, action)
        _, d_action = self.q.backward(
            np.where(qs == qs.min(axis=0), -1.0 / n, 0.0), action.shape[1]
        )
        qc, by_member = pessimistic(self.qc.forward(b.obs, action), sac.cost_spread)
        if sac.energy == "reward":
            weight = np.zeros_like(qc)
        elif sac.energy == "plain":
            weight = lam
        elif sac.hinge == "sample":
            weight = np.maximum(lam + sac.rho * (qc - self.limit), 0.0)
        else:
            weight = np.maximum(lam + sac.rho * (qc_replay.mean(axis=0) - self.limit), 0.0)
        _, through_qc = self.qc.backward(weight * by_member / n, action.shape[1])
        grads = self.policy.gradients(d_action + through_qc, np.full(n, alpha / n))
        if sac.rescale:
            grads = [g / (1.0 + lam.sum()) for g in grads]
        self.policy.mlp.params = self.adams["actor"].step(self.policy.mlp.params, grads)

        if sac.learn_alpha:
            alpha_grad = alpha * np.mean(-log_prob + action.shape[1])
            (self.log_alpha,) = self.adams["alpha"].step([self.log_alpha], [alpha_grad])
        signal = qc_replay if sac.dual_actions == "replay" else qc
        error = signal.mean(axis=0) - self.limit
        if sac.energy != "reward":
            self.lam = self.next_lam(error)
        self.target_q.follow(self.q, sac.polyak)
        self.target_qc.follow(self.qc, sac.polyak)
        return {
            "q_loss": q_loss,
            "qc_loss": qc_loss,
            "qc_mean": signal.mean(axis=0),
            "violation": np.maximum(signal - self.limit, 0.0).mean(axis=0),
        }

    def next_lam(self, error):
        sac, lam = self.sac, self.lam
        if sac.dual == "projected":
            return np.maximum(lam + sac.dual_rate * error, 0.0)
        if sac.dual == "adam":
            return np.maximum(self.adams["lam"].step([lam], [-error])[0], 0.0)
        if sac.dual == "log-adam":
            return np.exp(self.adams["lam"].step([np.log(lam)], [-lam * error])[0])
        kp, ki, kd = sac.pid
        self.integral = np.maximum(self.integral + error, 0.0)
        rise = np.maximum(error - self.previous, 0.0)
        self.previous = error
        return np.maximum(kp * np.maximum(error, 0.0) + ki * self.integral + kd * rise, 0.0)


CASES = {
    "sac-lag": SACLag(),
    "sac-auglag": SACLag(energy="augmented", cost_spread=0.5, cost_floor=False),
    "batch hinge": SACLag(energy="augmented", hinge="batch", dual="pid", rho=3.0),
    "sac": SACLag(energy="reward", learn_alpha=False, cost_target="mean"),
    "variants": SACLag(rescale=True, dual="adam", dual_actions="policy", cost_entropy=True),
}


@pytest.mark.parametrize("name", CASES)
def test_whole_updates(name):
    sac = replace(CASES[name], **SMALL)
    with jax.enable_x64(True):
        state = in_double(start(sac))
        changed = ("actor", "q", "qc", "target_q", "target_qc")
        state = replace(
            state, **{f: roughened(getattr(state, f), i) for i, f in enumerate(changed)}
        )
        state = replace(state, limit=jnp.array([-0.5, 1.0]))
        plain = Plain(sac, state)
        update = jax.jit(sac.update_with, compiler_options=QUICK)
        for i in range(2):
            batch = random_batch(BATCH, seed=i)
            draw = np.random.default_rng(10 + i)
            noises = (jnp.asarray(draw.normal(size=(BATCH, 2))) for _ in range(2))
            draws = Draws(*noises, members=jnp.zeros(4, int))
            state, metrics = update(state, batch, draws)
            expected = plain.update(jax.tree.map(np.array, batch), jax.tree.map(np.array, draws))
            for metric, value in expected.items():
                np.testing.assert_allclose(metrics[metric], value, **EXACT)
            assert_ensemble(state.q, plain.q, **EXACT)
            assert_ensemble(state.qc, plain.qc, **EXACT)
            assert_ensemble(state.target_q, plain.target_q, **EXACT)
            assert_ensemble(state.target_qc, plain.target_qc, **EXACT)
            assert_mlp(state.actor, plain.policy.mlp, **EXACT)
            np.testing.assert_allclose(state.temperature.log_alpha, plain.log_alpha, **EXACT)
            np.testing.assert_allclose(state.dual.lam, plain.lam, **EXACT)
