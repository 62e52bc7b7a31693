"""CAL, a preset of SAC+Lag: its identities, its presets, and whole updates against plain NumPy."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algd.algorithms.sac_lag import CAL, PRESETS, Draws
from algd.objectives.multipliers import hinged_multiplier
from support.plain import (
    QUICK,
    Adam,
    Squashed,
    assert_ensemble,
    assert_mlp,
    ensemble_of,
    fit,
    in_double,
    in_single,
    mlp_of,
    pessimistic,
    random_batch,
    roughened,
    start,
)

BATCH = 8
EXACT = {"rtol": 1e-9, "atol": 1e-11}


def test_the_hinge_is_the_rectified_multiplier():
    draw = np.random.default_rng(0)
    lam, mean, c = draw.uniform(0, 2, 50), draw.normal(size=50), 10.0
    rectified = lam - np.minimum(lam, c * mean)
    got = hinged_multiplier(jnp.asarray(lam), jnp.asarray(-mean), c)
    np.testing.assert_allclose(got, rectified, atol=2e-6)
    np.testing.assert_allclose(np.maximum(0.0, lam - c * mean), rectified, atol=1e-12)


def test_presets_follow_the_table():
    rows = {
        "cal": (10.0, 0.5, 4, 10.0, False, 12),
        "cal-ant": (100.0, 0.5, 8, 10.0, False, 12),
        "cal-halfcheetah": (1000.0, 0.5, 8, 20.0, False, 12),
        "cal-hopper": (10.0, 0.5, 8, 10.0, False, 12),
        "cal-humanoid": (1000.0, 0.0, 8, 10.0, True, 12),
        "cal-algd": (10.0, 0.5, 6, 10.0, False, 256),
    }
    for name, row in rows.items():
        p = PRESETS[name]
        assert row == (
            p.rho,
            p.cost_spread,
            p.cost_ensemble,
            p.updates_per_step,
            p.cost_target == "max",
            p.batch_size,
        )


class Plain:
    """CAL from its equations."""

    def __init__(self, cal, state):
        self.cal = cal
        low, high = np.array(state.low), np.array(state.high)
        self.policy = Squashed(mlp_of(state.actor), low, high, cal.log_std_bounds)
        self.q, self.target_q = (ensemble_of(x) for x in (state.q, state.target_q))
        self.qc, self.target_qc = (ensemble_of(x) for x in (state.qc, state.target_qc))
        self.log_alpha = np.array(state.temperature.log_alpha)
        self.log_lam, self.limit = np.array(state.dual.log_lam), np.array(state.limit)
        self.adams = {k: Adam(3e-4) for k in ("q", "qc", "actor", "alpha", "lam")}
        self.rounds = 0

    def update(self, b, draws):
        cal, n = self.cal, len(b.reward)
        alpha, lam = np.exp(self.log_alpha), np.exp(self.log_lam)
        timeout = np.array(b.truncated) & cal.timeout_is_terminal
        ends = np.array(b.terminated) | (np.array(b.goal_met) & cal.goal_is_terminal) | timeout
        keep = 1.0 - ends
        keep_cost = 1.0 - (np.array(b.terminated) | timeout) * cal.mask_cost

        a2, log_prob2 = self.policy.sample(b.next_obs, draws.next_noise)
        next_q = self.target_q.forward(b.next_obs, a2)[..., 0].min(axis=0)
        y = b.reward + 0.99 * keep * (next_q - alpha * log_prob2)
        next_qc = self.target_qc.forward(b.next_obs, a2)
        if cal.cost_target == "max":
            next_qc = np.repeat(next_qc[draws.members].max(axis=0)[None], len(next_qc), axis=0)
        if cal.cost_floor:
            next_qc = np.maximum(next_qc, 0.0)
        yc = b.cost + 0.99 * keep_cost[:, None] * next_qc
        q_loss, _ = fit(self.q, self.adams["q"], b.obs, b.action, y[None, :, None], 1 / n)
        members = len(next_qc)
        qc_loss, _ = fit(self.qc, self.adams["qc"], b.obs, b.action, yc, 1 / n / members)

        qc_replay, _ = pessimistic(self.qc.forward(b.obs, b.action), cal.cost_spread)
        slack = np.mean(self.limit - qc_replay, axis=0)
        augmented = lam - np.minimum(lam, cal.rho * slack)

        action, log_prob = self.policy.sample(b.obs, draws.noise)
        qs = self.q.forward(b.obs, action)
        d_q = np.where(qs == qs.min(axis=0), -1.0 / n, 0.0)
        _, through_q = self.q.backward(d_q, action.shape[1])
        _, by_member = pessimistic(self.qc.forward(b.obs, action), cal.cost_spread)
        _, through_qc = self.qc.backward(augmented * by_member / n, action.shape[1])
        grads = self.policy.gradients(through_q + through_qc, np.full(n, alpha / n))
        self.policy.mlp.params = self.adams["actor"].step(self.policy.mlp.params, grads)

        alpha_grad = alpha * np.mean(-log_prob + action.shape[1])
        (self.log_alpha,) = self.adams["alpha"].step([self.log_alpha], [alpha_grad])
        (self.log_lam,) = self.adams["lam"].step([self.log_lam], [lam * slack])
        if self.rounds % 2 == 0:
            self.target_q.follow(self.q, 0.005)
            self.target_qc.follow(self.qc, 0.005)
        self.rounds += 1
        return {"q_loss": q_loss, "qc_loss": qc_loss, "augmented_lam": augmented}


@pytest.mark.parametrize("name", ["cal", "cal-ant", "cal-humanoid"])
def test_whole_updates(name):
    cal = replace(PRESETS[name], actor_hidden=7, critic_hidden=6, cost_ensemble=3)
    cal = replace(cal, cost_floor=name == "cal-ant")
    with jax.enable_x64(True):
        state = in_double(start(cal))
        changed = ("actor", "q", "qc", "target_q", "target_qc")
        state = replace(
            state, **{f: roughened(getattr(state, f), i) for i, f in enumerate(changed)}
        )
        # Between zero and one violated constraint, so that the hinge is used on both sides.
        state = replace(state, limit=jnp.array([-0.5, 3.0]))
        plain = Plain(cal, state)
        update = jax.jit(cal.update_with, compiler_options=QUICK)
        for i in range(3):
            batch = random_batch(BATCH, seed=i)
            draw = np.random.default_rng(10 + i)
            draws = Draws(
                jnp.asarray(draw.normal(size=(BATCH, 2))),
                jnp.asarray(draw.normal(size=(BATCH, 2))),
                jnp.asarray(draw.integers(0, 3, 4)),
            )
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
            np.testing.assert_allclose(state.dual.log_lam, plain.log_lam, **EXACT)


@pytest.mark.parametrize("target", ["own", "max"])
def test_members_are_independent_with_own_targets_only(target):
    """Another target for member 0 changes member 1's step only where the target is shared."""
    cal = replace(CAL, cost_target=target, cost_ensemble=2, actor_hidden=4, critic_hidden=4)
    state = start(cal)
    batch = in_single(random_batch(BATCH))
    draws = cal.draw(batch.action.shape, jax.random.key(1))
    draws = draws._replace(members=jnp.array([0, 1, 0, 1]))
    shifted = jax.tree.map(lambda x: x.at[0].add(0.5), state.target_qc)
    update = jax.jit(cal.update_with, compiler_options=QUICK)
    plain, _ = update(state, batch, draws)
    other, _ = update(replace(state, target_qc=shifted), batch, draws)
    # The first moments are the gradients, up to a factor.
    before, after = (np.array(s.qc_moments[0].mu.layers[0].weight) for s in (plain, other))
    assert (before[0] != after[0]).any()
    assert (before[1] == after[1]).all() == (target == "own")
