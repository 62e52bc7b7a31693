"""PPO+Lag: one whole epoch against plain NumPy, and the parts around it."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algd.algorithms.ppo_lag import (
    Draws,
    ObsStatistics,
    PPOLag,
    combined_advantage,
    random_order,
    remember,
    stand_ins,
    with_more,
)
from support.plain import (
    MLP,
    QUICK,
    Adam,
    assert_mlp,
    clipped,
    in_double,
    in_single,
    mlp_of,
    random_batch,
    roughened,
    start,
)

TIME, ENVS = 6, 2
EXACT = {"rtol": 1e-9, "atol": 1e-11}
SMALL = {"actor_hidden": 7, "critic_hidden": 6, "minibatch": 4, "passes": 3}


def rollout(seed):
    """A rollout in double precision whose extras are what `act` would have given."""
    flat = random_batch(TIME * ENVS, seed)
    batch = jax.tree.map(lambda x: x.reshape(TIME, ENVS, *x.shape[1:]), flat)
    draw = np.random.default_rng(100 + seed)
    latent = jnp.asarray(draw.normal(size=(TIME, ENVS, 2)))
    # Not quite the policy's own density, so that ratios start on both sides of the clip.
    log_prob = jnp.asarray(-2.5 + 0.5 * draw.normal(size=(TIME, ENVS)))
    cost_so_far = jnp.asarray(draw.uniform(5, 20, (TIME, ENVS, 2)))
    extras = {"latent": latent, "log_prob": log_prob, "cost_so_far": cost_so_far}
    extras["keep"] = jnp.ones((TIME, ENVS), bool)
    return replace(batch, extras=extras)


class Plain:
    """PPO with a Lagrangian, from its equations."""

    def __init__(self, ppo, state):
        self.ppo = ppo
        nets = state.networks
        self.actor = mlp_of(nets.actor.mean)
        self.log_std = np.array(nets.actor.log_std)
        self.v, self.vc = mlp_of(nets.v), mlp_of(nets.vc)
        self.adams = {name: Adam(0.0) for name in ("actor", "v", "vc")}
        self.lam, self.limit = np.array(state.dual.lam), np.array(state.limit)
        self.lam_adam = Adam(ppo.dual_rate)
        self.integral, self.error = np.array(self.lam), np.zeros(2)
        self.smoothed = [np.zeros(2)]
        self.seen, self.costs, self.updates = np.zeros((0, 3)), [], 0

    def normalised(self, obs):
        mean, var = (self.seen.mean(axis=0), self.seen.var(axis=0)) if len(self.seen) else (0, 1)
        return np.clip((obs - mean) / np.sqrt(var + 1e-8), -self.ppo.obs_clip, self.ppo.obs_clip)

    def next_lam(self, cost):
        ppo, error = self.ppo, cost - self.limit
        if ppo.dual == "adam":
            return np.maximum(self.lam_adam.step([self.lam], [-error])[0], 0.0)
        kp, ki, kd = ppo.pid
        self.integral = np.maximum(0.0, self.integral + ki * error)
        self.error = 0.95 * self.error + 0.05 * error
        self.smoothed.append(0.95 * self.smoothed[-1] + 0.05 * cost)
        past = len(self.smoothed) - 1 - ppo.pid_delay
        rise = np.maximum(self.smoothed[-1] - (self.smoothed[past] if past > 0 else 0.0), 0.0)
        return np.maximum(kp * self.error + self.integral + kd * rise, 0.0)

    def gae(self, b, signal, v, next_v, decay):
        advantage = np.zeros(TIME)
        later = 0.0
        for t in reversed(range(TIME)):
            ended = b["terminated"][t] or b["truncated"][t]
            delta = signal[t] + 0.99 * (not b["terminated"][t]) * next_v[t] - v[t]
            later = delta + 0.99 * decay * (not ended) * later
            advantage[t] = later
        return advantage

    def update(self, batch, order):
        ppo, b = self.ppo, batch
        ended = b.terminated | b.truncated
        self.costs += [c for t in range(TIME) for c in b.extras["cost_so_far"][t][ended[t]]]
        episode_cost = np.mean(self.costs[-ppo.episode_window :], axis=0)
        self.lam = self.next_lam(episode_cost)
        if ppo.max_lam:
            self.lam = np.minimum(self.lam, ppo.max_lam)

        obs, next_obs = self.normalised(b.obs), self.normalised(b.next_obs)
        v, next_v = (self.v.forward(x)[..., 0] for x in (obs, next_obs))
        vc, next_vc = (self.vc.forward(x) for x in (obs, next_obs))
        advantage, cost_advantage = np.zeros_like(v), np.zeros_like(vc)
        for e in range(ENVS):
            ends = {"terminated": b.terminated[:, e], "truncated": b.truncated[:, e]}
            advantage[:, e] = self.gae(ends, b.reward[:, e], v[:, e], next_v[:, e], 0.95)
            for c in range(2):
                args = b.cost[:, e, c], vc[:, e, c], next_vc[:, e, c]
                cost_advantage[:, e, c] = self.gae(ends, *args, 0.95)
        a = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        for c in range(2):
            a = a - self.lam[c] * (cost_advantage[..., c] - cost_advantage[..., c].mean())
        a = (a / (1.0 + self.lam.sum())).ravel()
        flat = lambda x: x.reshape(TIME * ENVS, *x.shape[2:])  # noqa: E731
        obs, returns = flat(obs), flat(advantage + v)[:, None]
        cost_returns = flat(cost_advantage + vc)
        latent, log_prob = flat(b.extras["latent"]), flat(b.extras["log_prob"])

        share = 1.0 - min(self.updates / ppo.decay_updates, 1.0) if ppo.decay_updates else 1.0
        for name, rate in (("actor", ppo.actor_rate), ("v", ppo.critic_rate)):
            self.adams[name].rate = share * rate
        self.adams["vc"].rate = self.adams["v"].rate

        old_mean, old_log_std = self.actor.forward(obs), self.log_std
        kl, done = 0.0, 0
        while done < ppo.passes and kl <= ppo.target_kl:
            for first in range(0, TIME * ENVS - ppo.minibatch + 1, ppo.minibatch):
                rows = order[done][first : first + ppo.minibatch]
                self.fit_value("v", obs[rows], returns[rows])
                self.fit_value("vc", obs[rows], cost_returns[rows])
                self.fit_actor(obs[rows], latent[rows], log_prob[rows], a[rows])
            done += 1
            mean = self.actor.forward(obs)
            var, old_var = np.exp(2 * self.log_std), np.exp(2 * old_log_std)
            each = np.log(var / old_var) + (old_var + (old_mean - mean) ** 2) / var - 1.0
            kl = np.mean(0.5 * each.sum(axis=1))
        self.seen = np.concatenate([self.seen, flat(b.obs)])
        self.updates += 1
        return {
            "kl": kl,
            "passes": done,
            "lam": self.lam,
            "episode_cost": episode_cost,
            "violation": np.maximum(episode_cost - self.limit, 0.0),
            "v_mean": v.mean(),
        }

    def fit_value(self, name, obs, targets):
        net: MLP = getattr(self, name)
        errors = net.forward(obs) - targets
        grads, _ = net.backward(2.0 * errors / len(obs))
        decay = 2.0 * self.ppo.critic_decay
        grads = [g + decay * p for g, p in zip(grads, net.params, strict=True)]
        net.params = self.adams[name].step(net.params, clipped(grads, self.ppo.grad_clip))

    def fit_actor(self, obs, latent, old_log_prob, a):
        std, n = np.exp(self.log_std), len(obs)
        standard = (latent - self.actor.forward(obs)) / std
        log_prob = np.sum(-0.5 * standard**2 - self.log_std - 0.5 * np.log(2 * np.pi), axis=1)
        ratio = np.exp(log_prob - old_log_prob)
        bounded = np.clip(ratio, 1 - self.ppo.clip, 1 + self.ppo.clip)
        free = ratio * a <= bounded * a
        d_log_prob = -np.where(free, ratio * a, 0.0) / n
        grads, _ = self.actor.backward(d_log_prob[:, None] * standard / std)
        d_log_std = np.sum(d_log_prob[:, None] * (standard**2 - 1.0), axis=0)
        d_log_std = d_log_std - self.ppo.entropy_weight
        grads = clipped([*grads, d_log_std], self.ppo.grad_clip)
        *self.actor.params, self.log_std = self.adams["actor"].step(
            [*self.actor.params, self.log_std], grads
        )


CASES = {
    "adam": PPOLag(target_kl=1.0, **SMALL),
    "stops early": PPOLag(target_kl=1e-6, dual="pid", pid_delay=2, **SMALL),
    "options": PPOLag(
        target_kl=1.0,
        entropy_weight=0.01,
        decay_updates=4,
        grad_clip=0.1,
        max_lam=0.03,
        episode_window=3,
        obs_clip=1.0,
        **SMALL,
    ),
}


def test_steps_that_are_left_out_teach_nothing():
    """Whatever they hold; and nothing is carried over them, the time axis stays as it is."""
    ppo = PPOLag(**SMALL)
    keep = jnp.ones((TIME, ENVS), bool).at[2, 0].set(False).at[5, 1].set(False)
    state, batch = start(ppo), in_single(rollout(3))
    draws = ppo.draw(TIME * ENVS, jax.random.key(0))

    @partial(jax.jit, compiler_options=QUICK)
    def learnt(value):
        spoilt = lambda x: jnp.where(keep.reshape(TIME, ENVS, *[1] * (x.ndim - 2)), x, value)  # noqa: E731
        fields = ("obs", "next_obs", "reward", "cost")
        changed = replace(batch, **{name: spoilt(getattr(batch, name)) for name in fields})
        extras = {**batch.extras, "keep": keep}
        extras |= {name: spoilt(extras[name]) for name in ("latent", "log_prob")}
        return ppo.update_with(state, replace(changed, extras=extras), draws)[0]

    for a, b in zip(*map(jax.tree.leaves, (learnt(0.0), learnt(7.0))), strict=True):
        np.testing.assert_array_equal(a, b)
    assert stand_ins(keep.reshape(-1)).tolist() == [0, 1, 2, 3, 0, 5, 6, 7, 8, 9, 10, 1]
    assert stand_ins(jnp.zeros(3, bool)).shape == (3,)


@pytest.mark.parametrize("name", CASES)
def test_whole_epochs(name):
    ppo = CASES[name]
    with jax.enable_x64(True):
        state = in_double(start(ppo))
        state = replace(state, networks=roughened(state.networks))
        plain = Plain(ppo, state)
        update = jax.jit(ppo.update_with, compiler_options=QUICK)
        for i in range(3):
            batch = rollout(i)
            draw = np.random.default_rng(10 + i)
            order = np.stack([draw.permutation(TIME * ENVS) for _ in range(ppo.passes)])
            state, metrics = update(state, batch, Draws(jnp.asarray(order)))
            expected = plain.update(jax.tree.map(np.array, batch), order)
            for metric, value in expected.items():
                np.testing.assert_allclose(metrics[metric], value, **EXACT)
            assert_mlp(state.networks.actor.mean, plain.actor, **EXACT)
            assert_mlp(state.networks.v, plain.v, **EXACT)
            assert_mlp(state.networks.vc, plain.vc, **EXACT)
            np.testing.assert_allclose(state.networks.actor.log_std, plain.log_std, **EXACT)
        assert (expected["passes"] < ppo.passes) == (name == "stops early")


def test_act_tells_the_density_of_what_it_did():
    ppo = PPOLag(**SMALL)
    state = start(ppo)
    obs = jnp.array([0.3, -0.2, 1.0])
    action, extras = ppo.act(state, obs, jax.random.key(1), "sampled")
    expected = np.clip(extras["latent"], -1, 1) * np.array([1.0, 2.5]) + np.array([0.0, 0.5])
    np.testing.assert_allclose(action, expected, rtol=1e-6)
    mean = np.array(ppo.act(state, obs, jax.random.key(1), "deterministic")[1]["latent"])
    log_prob = np.sum(-0.5 * (extras["latent"] - mean) ** 2 - 0.5 * np.log(2 * np.pi))
    np.testing.assert_allclose(extras["log_prob"], log_prob, rtol=1e-5)


def test_episodes_are_remembered_in_a_ring():
    ring, count = jnp.zeros((3, 1)), jnp.zeros((), jnp.int32)
    costs = jnp.arange(1.0, 9.0).reshape(4, 2, 1)
    none = jnp.zeros((4, 2), bool)
    same, still = remember(ring, count, costs, none)
    assert still == 0
    np.testing.assert_array_equal(same, ring)
    two = none.at[0, 1].set(True).at[3, 0].set(True)
    ring, count = remember(ring, count, costs, two)
    assert count == 2
    np.testing.assert_array_equal(np.sort(ring[:, 0]), [0.0, 2.0, 7.0])
    ring, count = remember(ring, count, costs, ~none)
    assert count == 10
    np.testing.assert_array_equal(np.sort(ring[:, 0]), [6.0, 7.0, 8.0])


def test_without_an_ended_episode_the_multiplier_waits_and_then_keeps_its_estimate():
    ppo = PPOLag(**SMALL)
    state = start(ppo)
    batch = in_single(rollout(0))
    never = jnp.zeros((TIME, ENVS), bool)
    running = replace(batch, terminated=never, truncated=never)
    update = jax.jit(ppo.update, compiler_options=QUICK)
    after, metrics = update(state, running, jax.random.key(0))
    np.testing.assert_allclose(metrics["lam"], 1e-3, rtol=1e-5)
    known, first = update(after, batch, jax.random.key(1))
    _, second = update(known, running, jax.random.key(2))
    assert (first["lam"] != metrics["lam"]).all()
    np.testing.assert_array_equal(first["episode_cost"], second["episode_cost"])


def test_running_statistics_are_those_of_all_observations():
    draw = np.random.default_rng(0)
    statistics = ObsStatistics(jnp.zeros(()), jnp.zeros(3), jnp.zeros(3))
    parts = [draw.normal(5.0, 2.0, (n, 2, 3)).astype(np.float32) for n in (1, 7, 30)]
    for part in parts:
        statistics = with_more(statistics, jnp.asarray(part))
    rows = np.concatenate([p.reshape(-1, 3) for p in parts])
    np.testing.assert_allclose(statistics.mean, rows.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(statistics.squares / statistics.count, rows.var(axis=0), rtol=1e-4)


def test_the_cost_keeps_its_unit_in_the_advantage():
    draw = np.random.default_rng(0)
    reward, cost = draw.normal(size=(9, 2)), draw.normal(3.0, 1.0, (9, 2, 1))
    got = combined_advantage(jnp.asarray(reward), jnp.asarray(cost), jnp.array([4.0]))
    centred = cost[..., 0] - cost.mean()
    expected = ((reward - reward.mean()) / reward.std() - 4.0 * centred) / 5.0
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("count", [1, 2, 5, 4_096, 20_000])
def test_an_order_has_every_place_once(count):
    order = np.asarray(random_order(jax.random.key(3), count))
    np.testing.assert_array_equal(np.sort(order), np.arange(count))


def test_every_order_is_as_likely_as_another():
    """All 24 of four places, and the neighbours of 2,048: a tie would leave them as they were."""
    draws = jax.vmap(lambda key: random_order(key, 4))(jax.random.split(jax.random.key(0), 24_000))
    _, counts = np.unique(np.asarray(draws), axis=0, return_counts=True)
    assert len(counts) == 24
    # Chi-square with 23 degrees of freedom is above 49.7 once in a thousand times.
    assert np.sum((counts - 1_000) ** 2 / 1_000) < 49.7
    keys = jax.random.split(jax.random.key(1), 50)
    order = np.asarray(jax.vmap(lambda key: random_order(key, 2_048))(keys))
    ascending = np.mean(np.diff(order) > 0)
    assert abs(ascending - 0.5) < 4 * np.sqrt(1 / 12 / order.size)
