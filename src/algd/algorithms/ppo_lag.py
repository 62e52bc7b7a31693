"""PPO+Lag: proximal policy optimisation under a Lagrangian, as in OmniSafe.

Learns from rollouts. `PPOLag.update_with` is one epoch: multiplier, advantages, then passes over
the data until the policy has moved far enough.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from algd.networks import numpy_policy
from algd.networks.adam import adam_step, decayed_rate, init_moments
from algd.networks.gaussian import Gaussian, entropy, kl_divergence, log_density
from algd.networks.layers import MLP, fan_in_uniform
from algd.networks.portable import network
from algd.objectives.advantages import gae
from algd.objectives.multipliers import AdamState, ProjectedAdam, SmoothedPID, SmoothedPIDState
from algd.types import (
    Assessment,
    Copies,
    Count,
    EnvSpec,
    Gains,
    LogStd,
    Members,
    Metrics,
    Mode,
    NonNegative,
    Positive,
    RolloutOptions,
    Share,
    Transition,
    When,
    Width,
)


class Actor(eqx.Module):
    """The mean's network, and a log-std that does not depend on the observation."""

    mean: MLP
    log_std: Float[Array, " action"]

    def __call__(self, obs: Float[Array, " obs"]) -> Gaussian:
        """The distribution of the latent action, whose box is [-1, 1]."""
        return Gaussian(self.mean(obs), self.log_std)


class Networks(eqx.Module):
    """What gradients change: the policy, the value of the return and those of the costs."""

    actor: Actor
    v: MLP
    vc: MLP


class Moments(NamedTuple):
    """Adam's moments of each of the networks."""

    actor: tuple
    v: tuple
    vc: tuple


class ObsStatistics(eqx.Module):
    """Mean and sum of squared deviations of all observations so far."""

    count: Float[Array, ""]
    mean: Float[Array, " obs"]
    squares: Float[Array, " obs"]


class State(eqx.Module):
    """Everything that learning changes, and the task's limits and action box.

    `limit` is that of the budgets, in their own unit. `episode_costs` are those of the last
    episodes in a ring, `episodes` counts all of them.
    """

    networks: Networks
    moments: Moments
    dual: AdamState | SmoothedPIDState
    obs_statistics: ObsStatistics
    episode_costs: Float[Array, "window constraints"]
    episodes: Int[Array, ""]
    limit: Float[Array, " constraints"]
    low: Float[Array, " action"]
    high: Float[Array, " action"]
    updates: Int[Array, ""]


class Draws(NamedTuple):
    """Every random number of one update: the order of the steps in each pass."""

    order: Int[Array, "passes steps"]


class Rows(eqx.Module):
    """The rollout as the passes need it, one row per step."""

    obs: Float[Array, "steps obs"]
    latent: Float[Array, "steps action"]
    log_prob: Float[Array, " steps"]
    advantage: Float[Array, " steps"]
    returns: Float[Array, " steps"]
    cost_returns: Float[Array, "steps constraints"]


class Passes(NamedTuple):
    """Where the passes over the data stand."""

    networks: Networks
    moments: Moments
    done: Int[Array, ""]
    kl: Float[Array, ""]
    v_loss: Float[Array, ""]
    vc_loss: Float[Array, ""]


@dataclass(frozen=True, kw_only=True)
class PPOLag(RolloutOptions):
    """PPO whose advantage is that of the return minus the multiplier times that of the cost."""

    gae_decay: Share = 0.95
    """Lambda of the return's generalised advantage estimate."""
    cost_gae_decay: Share = 0.95
    """Lambda of the cost's."""

    dual: Literal["adam", "pid"] = "adam"
    """Rule of the multiplier: Adam, clamped at zero, or smoothed PID (CPPOPID)."""
    dual_rate: Annotated[Positive, When("dual", ("adam",))] = 0.035
    """Adam step size of the multiplier."""
    initial_lam: NonNegative = 1e-3
    """The multiplier before the first step."""
    max_lam: NonNegative = 0.0
    """Upper bound of the multiplier; 0 means none."""
    episode_window: Copies = 100
    """Episodes, counted back from the last, whose mean cost is held against the budget."""
    pid: Annotated[Gains, When("dual", ("pid",))] = (0.1, 0.01, 0.01)
    """Gains of the PID rule: proportional, integral, derivative."""
    pid_delay: Annotated[Copies, When("dual", ("pid",))] = 10
    """Updates between the two costs whose difference is the derivative."""
    pid_smoothing: Annotated[Share, When("dual", ("pid",))] = 0.95
    """Weight of the past in the PID's exponential means."""

    clip: Positive = 0.2
    """The probability ratio is clipped to 1 ± this."""
    entropy_weight: NonNegative = 0.0
    """Weight of the policy's entropy in its objective."""
    passes: Members = 40
    """The most passes over one rollout."""
    minibatch: Width = 64
    """Steps per gradient step; what a pass's shuffle leaves over is left out of it."""
    target_kl: Positive = 0.02
    """No further pass once KL(old || new) exceeds this."""
    grad_clip: Positive = 40.0
    """Largest gradient norm of each network."""
    critic_decay: NonNegative = 1e-3
    """Weight of the critics' summed squared parameters in their losses."""
    actor_rate: Positive = 3e-4
    """Adam step size of the policy."""
    critic_rate: Positive = 3e-4
    """Adam step size of the values."""
    decay_updates: Count = 0
    """Updates in which both step sizes go linearly to zero; 0: they stay."""

    obs_clip: Positive = 5.0
    """Normalised observations are cut at ± this."""
    initial_log_std: LogStd = 0.0
    """The policy's log-std before the first step."""
    actor_hidden: Width = 64
    """Width of the policy's two hidden layers."""
    critic_hidden: Width = 64
    """Width of the values' two hidden layers."""

    def init(self, spec: EnvSpec, key: PRNGKeyArray) -> State:
        """Fresh networks; observations are not normalised before the first update."""
        keys = jax.random.split(key, 3)
        constraints = len(spec.budgets)

        def layers(hidden: int, outputs: int, key: PRNGKeyArray) -> MLP:
            sizes = (spec.obs_size, hidden, hidden, outputs)
            return MLP.create(sizes, "tanh", fan_in_uniform, key)

        log_std = jnp.full(spec.action_size, self.initial_log_std, float)
        networks = Networks(
            actor=Actor(layers(self.actor_hidden, spec.action_size, keys[0]), log_std),
            v=layers(self.critic_hidden, 1, keys[1]),
            vc=layers(self.critic_hidden, constraints, keys[2]),
        )
        limit = jnp.asarray([b.limit for b in spec.budgets], float)
        return State(
            networks=networks,
            moments=Moments(*map(init_moments, (networks.actor, networks.v, networks.vc))),
            dual=(self._adam if self.dual == "adam" else self._pid).init(
                jnp.full_like(limit, self.initial_lam)
            ),
            obs_statistics=ObsStatistics(jnp.zeros(()), *jnp.zeros((2, spec.obs_size))),
            episode_costs=jnp.zeros((self.episode_window, constraints)),
            episodes=jnp.zeros((), jnp.int32),
            limit=limit,
            low=jnp.asarray(spec.action_low, jnp.float32),
            high=jnp.asarray(spec.action_high, jnp.float32),
            updates=jnp.zeros((), jnp.int32),
        )

    def act(
        self, state: State, obs: Float[Array, " obs"], key: PRNGKeyArray, mode: Mode
    ) -> tuple[Float[Array, " action"], dict[str, Array]]:
        """The latent action cut to its box; the update wants the latent and its log-density."""
        gaussian = state.networks.actor(self._normalised(obs, state.obs_statistics))
        latent = gaussian.mean
        if mode != "deterministic":
            noise = jax.random.normal(key, latent.shape)
            latent = latent + jnp.exp(gaussian.log_std) * noise
        half_width, centre = (state.high - state.low) / 2.0, (state.high + state.low) / 2.0
        action = jnp.clip(latent, -1.0, 1.0) * half_width + centre
        return action, {"latent": latent, "log_prob": log_density(gaussian, latent)}

    def assess(
        self, state: State, obs: Float[Array, " obs"], action: Float[Array, " action"]
    ) -> Assessment:
        """The values of the observation, whatever the action; one network has no spread."""
        normalised = self._normalised(obs, state.obs_statistics)
        cost = state.networks.vc(normalised)
        value = state.networks.v(normalised)[0]
        return Assessment(value, cost, jnp.zeros_like(cost))

    def portable(self, state: State) -> numpy_policy.PolicyData:
        """The Gaussian with its normalisation as plain arrays; no critic here sees an action."""
        return numpy_policy.PolicyData(
            policy=numpy_policy.Gaussian(
                network=network(state.networks.actor.mean),
                squash="clip",
                log_std=np.asarray(state.networks.actor.log_std),
                obs_mean=np.asarray(state.obs_statistics.mean),
                obs_std=np.asarray(_obs_std(state.obs_statistics)),
                obs_clip=self.obs_clip,
            ),
            critics=None,
            low=np.asarray(state.low),
            high=np.asarray(state.high),
        )

    def update(self, state: State, batch: Transition, key: PRNGKeyArray) -> tuple[State, Metrics]:
        """One epoch with fresh random numbers."""
        return self.update_with(state, batch, self.draw(batch.reward.size, key))

    def update_with(self, state: State, batch: Transition, draws: Draws) -> tuple[State, Metrics]:
        """One epoch with given random numbers."""
        # Multiplier first: the mean cost of the last episodes against the budget.
        ended = batch.terminated | batch.truncated
        episode_costs, episodes = remember(
            state.episode_costs, state.episodes, batch.extras["cost_so_far"], ended
        )
        known = jnp.minimum(episodes, self.episode_window).astype(float)
        # Until an episode has ended there is nothing to hold against the budget.
        episode_cost = jnp.where(
            episodes > 0, jnp.sum(episode_costs, axis=0) / jnp.maximum(known, 1.0), state.limit
        )
        dual = self._dual_step(state.dual, episode_cost, state.limit)
        lam = dual.lam

        # Advantages under the values and the normalisation that the actions were chosen with.
        obs = self._normalised(batch.obs, state.obs_statistics)
        next_obs = self._normalised(batch.next_obs, state.obs_statistics)
        v, next_v = (state.networks.v(x)[..., 0] for x in (obs, next_obs))
        vc, next_vc = (state.networks.vc(x) for x in (obs, next_obs))
        # Before a step that is left out the sum of deltas ends, as at a time limit.
        keep = batch.extras["keep"]
        followed = jnp.concatenate([keep[1:], jnp.ones_like(keep[:1])])
        ends = (batch.terminated, batch.truncated | ~followed)
        over_envs = jax.vmap(gae, (1, 1, 1, 1, 1, None, None), 1)
        over_costs = jax.vmap(over_envs, (2, 2, 2, None, None, None, None), 2)
        advantage = over_envs(batch.reward, v, next_v, *ends, self.discount, self.gae_decay)
        cost_advantage = over_costs(
            batch.cost, vc, next_vc, *ends, self.cost_discount, self.cost_gae_decay
        )
        flat = lambda x: x.reshape(-1, *x.shape[2:])  # noqa: E731
        stand_in = stand_ins(flat(keep))
        kept = lambda x: flat(x)[stand_in].reshape(x.shape)  # noqa: E731
        combined = combined_advantage(kept(advantage), kept(cost_advantage), lam)
        rows = Rows(
            obs=flat(kept(obs)),
            latent=flat(kept(batch.extras["latent"])),
            log_prob=flat(kept(batch.extras["log_prob"])),
            advantage=flat(combined),
            returns=flat(kept(advantage + v)),
            cost_returns=flat(kept(cost_advantage + vc)),
        )

        # Passes over the data until the policy is far enough from where it was.
        old = jax.vmap(state.networks.actor)(rows.obs)
        zero = jnp.zeros((), rows.obs.dtype)
        passes = jax.lax.while_loop(
            lambda p: (p.done < self.passes) & (p.kl <= self.target_kl) & jnp.any(keep),
            lambda p: self._one_pass(p, rows, old, draws.order[p.done], state.updates),
            Passes(state.networks, state.moments, jnp.zeros((), jnp.int32), zero, zero, zero),
        )

        new_state = replace(
            state,
            networks=passes.networks,
            moments=passes.moments,
            dual=dual,
            obs_statistics=jax.tree.map(
                lambda new, old: jnp.where(jnp.any(keep), new, old),
                with_more(state.obs_statistics, kept(batch.obs)),
                state.obs_statistics,
            ),
            episode_costs=episode_costs,
            episodes=episodes,
            updates=state.updates + 1,
        )
        metrics = {
            "v_loss": passes.v_loss,
            "vc_loss": passes.vc_loss,
            "v_mean": jnp.mean(v),
            "vc_mean": jnp.mean(vc, axis=(0, 1)),
            "lam": lam,
            "episode_cost": episode_cost,
            "violation": jnp.maximum(episode_cost - state.limit, 0.0),
            "kl": passes.kl,
            "passes": passes.done.astype(float),
            "entropy": entropy(Gaussian(old.mean[0], passes.networks.actor.log_std)),
        }
        return new_state, metrics

    def _one_pass(
        self,
        passes: Passes,
        rows: Rows,
        old: Gaussian,
        order: Int[Array, " steps"],
        updates: Int[Array, ""],
    ) -> Passes:
        """Gradient steps on minibatches in this order, then KL(old || new) over all rows."""
        size = min(self.minibatch, order.shape[0])
        count = order.shape[0] // size
        actor_rate = decayed_rate(self.actor_rate, 0.0, updates, self.decay_updates)
        critic_rate = decayed_rate(self.critic_rate, 0.0, updates, self.decay_updates)

        def minibatch(
            carry: tuple[Networks, Moments], chosen: Int[Array, " minibatch"]
        ) -> tuple[tuple[Networks, Moments], tuple[Array, Array]]:
            networks, moments = carry
            part = jax.tree.map(lambda x: x[chosen], rows)
            slope = jax.value_and_grad(self._value_loss)
            v_loss, v_grads = slope(networks.v, part.obs, part.returns[:, None])
            vc_loss, vc_grads = slope(networks.vc, part.obs, part.cost_returns)
            actor_grads = jax.grad(self._actor_loss)(networks.actor, part)
            step = partial(adam_step, clip=self.grad_clip)
            actor, of_actor = step(networks.actor, actor_grads, moments.actor, actor_rate)
            v, of_v = step(networks.v, v_grads, moments.v, critic_rate)
            vc, of_vc = step(networks.vc, vc_grads, moments.vc, critic_rate)
            return (Networks(actor, v, vc), Moments(of_actor, of_v, of_vc)), (v_loss, vc_loss)

        minibatches = order[: count * size].reshape(count, size)
        (networks, moments), (v_losses, vc_losses) = jax.lax.scan(
            minibatch, (passes.networks, passes.moments), minibatches
        )
        kl = jnp.mean(jax.vmap(kl_divergence)(old, jax.vmap(networks.actor)(rows.obs)))
        return Passes(
            networks, moments, passes.done + 1, kl, jnp.mean(v_losses), jnp.mean(vc_losses)
        )

    def _value_loss(
        self,
        value: MLP,
        obs: Float[Array, "batch obs"],
        returns: Float[Array, "batch outputs"],
    ) -> Float[Array, ""]:
        r"""$\sum_i \mathrm{mean} (V_i - R_i)^2 + w \|\theta\|^2$."""
        errors = jnp.mean((value(obs) - returns) ** 2, axis=0)
        squares = sum(jnp.sum(x**2) for x in jax.tree.leaves(value))
        return jnp.sum(errors) + self.critic_decay * squares

    def _actor_loss(self, actor: Actor, part: Rows) -> Float[Array, ""]:
        r"""$-\mathrm{mean} \min(r A, \mathrm{clip}(r, 1 \pm \epsilon) A)$, r the ratio to old."""
        gaussians = jax.vmap(actor)(part.obs)
        ratio = jnp.exp(jax.vmap(log_density)(gaussians, part.latent) - part.log_prob)
        clipped = jnp.clip(ratio, 1.0 - self.clip, 1.0 + self.clip)
        gain = jnp.minimum(ratio * part.advantage, clipped * part.advantage)
        return -jnp.mean(gain + self.entropy_weight * jax.vmap(entropy)(gaussians))

    def _normalised(
        self, obs: Float[Array, "*batch obs"], statistics: ObsStatistics
    ) -> Float[Array, "*batch obs"]:
        """Observations with the running mean and variance taken out."""
        standard = (obs - statistics.mean) / _obs_std(statistics)
        return jnp.clip(standard, -self.obs_clip, self.obs_clip)

    @property
    def _adam(self) -> ProjectedAdam:
        return ProjectedAdam(self.dual_rate)

    @property
    def _pid(self) -> SmoothedPID:
        return SmoothedPID(*self.pid, self.pid_delay, self.pid_smoothing)

    def _dual_step(
        self,
        dual: AdamState | SmoothedPIDState,
        episode_cost: Float[Array, " constraints"],
        limit: Float[Array, " constraints"],
    ) -> AdamState | SmoothedPIDState:
        """Feed the episodes' cost to the rule, then apply the upper bound."""
        if isinstance(dual, AdamState):
            dual = self._adam.step(dual, episode_cost - limit)
        else:
            dual = self._pid.step(dual, episode_cost, limit)
        return replace(dual, lam=jnp.minimum(dual.lam, self.max_lam)) if self.max_lam else dual

    def draw(self, steps: int, key: PRNGKeyArray) -> Draws:
        """The random numbers of one update."""
        keys = jax.random.split(key, self.passes)
        return Draws(jax.vmap(lambda k: random_order(k, steps))(keys))


def random_order(key: PRNGKeyArray, count: int) -> Int[Array, " count"]:
    """A permutation, drawn in a fifth of the time that `jax.random.permutation` takes.

    Words whose high bits are random and whose low bits are a place are sorted, which is much faster
    than to sort places by a second array. Words that tie in so few bits stay in their order, so it
    is done twice.
    """
    low = jnp.uint32((1 << max(count - 1, 1).bit_length()) - 1)
    words = jax.random.bits(key, (2, count)) & ~low | jnp.arange(count, dtype=jnp.uint32)
    first, second = (jnp.sort(words, axis=1) & low).astype(jnp.int32)
    return first[second]


def _obs_std(statistics: ObsStatistics) -> Float[Array, " obs"]:
    # Two observations give a first variance; before, they stay as they are.
    variance = jnp.where(
        statistics.count > 1.0, statistics.squares / jnp.maximum(statistics.count, 1.0), 1.0
    )
    return jnp.sqrt(variance + 1e-8)


def remember(
    ring: Float[Array, "window constraints"],
    count: Int[Array, ""],
    cost_so_far: Float[Array, "time envs constraints"],
    ended: Bool[Array, "time envs"],
) -> tuple[Float[Array, "window constraints"], Int[Array, ""]]:
    """Put the costs of the episodes that ended over the oldest ones."""
    window = ring.shape[0]
    costs, ends = cost_so_far.reshape(-1, ring.shape[1]), ended.reshape(-1)
    rank = jnp.cumsum(ends, dtype=jnp.int32) - 1
    total = jnp.sum(ends, dtype=jnp.int32)
    # A slot out of range is dropped by the scatter; of too many episodes the last ones stay.
    slots = jnp.where(ends & (rank >= total - window), (count + rank) % window, window)
    return ring.at[slots].set(costs, mode="drop"), count + total


def stand_ins(keep: Bool[Array, " steps"]) -> Int[Array, " steps"]:
    """Each step's own number; for one that is left out that of a kept one, which counts twice."""
    kept_first = jnp.argsort(~keep, stable=True)
    count = jnp.maximum(jnp.sum(keep, dtype=jnp.int32), 1)
    left_out_before = jnp.cumsum(~keep, dtype=jnp.int32) - 1
    return jnp.where(keep, jnp.arange(keep.size), kept_first[left_out_before % count])


def combined_advantage(
    advantage: Float[Array, "time envs"],
    cost_advantage: Float[Array, "time envs constraints"],
    lam: Float[Array, " constraints"],
) -> Float[Array, "time envs"]:
    r"""$(A_r - \sum_i \lambda_i A_{c,i}) / (1 + \sum_i \lambda_i)$.

    The return's advantage is standardised, the costs' are centred only, so that the multiplier
    keeps its unit.
    """
    standard = (advantage - jnp.mean(advantage)) / (jnp.std(advantage) + 1e-8)
    centred = cost_advantage - jnp.mean(cost_advantage, axis=(0, 1))
    return (standard - centred @ lam) / (1.0 + jnp.sum(lam))


def with_more(statistics: ObsStatistics, obs: Float[Array, "time envs obs"]) -> ObsStatistics:
    """The statistics of all observations so far and these."""
    rows = obs.reshape(-1, obs.shape[-1])
    count = jnp.asarray(rows.shape[0], statistics.count.dtype)
    mean = jnp.mean(rows, axis=0)
    squares = jnp.sum((rows - mean) ** 2, axis=0)
    total = statistics.count + count
    shift = mean - statistics.mean
    return ObsStatistics(
        total,
        statistics.mean + shift * count / total,
        statistics.squares + squares + shift**2 * statistics.count * count / total,
    )


PRESETS = {
    "ppo-lag": PPOLag(),
    "ppo-lag-pid": PPOLag(dual="pid"),
    # For runs of some ten thousand steps: more, smaller updates.
    "ppo-lag-small": PPOLag(rollout_steps=2_000, passes=10, episode_window=20),
    # For a thousand copies and millions of steps: few passes over large minibatches.
    "ppo-lag-wide": PPOLag(
        rollout_steps=32_768,
        passes=4,
        minibatch=2_048,
        actor_rate=1e-3,
        critic_rate=1e-3,
        episode_window=1_000,
    ),
}
SUMMARIES = {
    "ppo-lag": "PPO with a Lagrange multiplier, in rollouts of 20,000 steps",
    "ppo-lag-pid": "ppo-lag with a PID rule for the multiplier",
    "ppo-lag-small": "ppo-lag in rollouts of 2,000 steps, for short runs",
    "ppo-lag-wide": "ppo-lag for a thousand copies and millions of steps",
}
