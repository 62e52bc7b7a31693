"""CAL: off-policy learning with a conservative cost and an augmented multiplier (ICLR 2024).

A soft actor-critic whose cost estimate is an ensemble's upper confidence bound, and whose
multiplier is raised by a quadratic penalty on the violation of the whole batch. `CAL.update_with`
is one gradient round in the order of its authors' program.
"""

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from algd.networks.adam import adam_step, init_moments
from algd.networks.critics import CriticEnsemble
from algd.networks.gaussian import Temperature, gaussian_head, tanh_policy, tanh_sample
from algd.networks.layers import Linear, half_fan_in_normal, init_layers, silu, xavier_uniform
from algd.networks.numpy_policy import PolicyData
from algd.networks.portable import lagrangian_critics, tanh_gaussian
from algd.objectives.lagrangians import augmented_lagrangian, lagrangian
from algd.objectives.multipliers import LogAdam, LogAdamState, hinged_multiplier
from algd.objectives.td_targets import (
    assessment,
    bootstrap_mask,
    clipped_value,
    cost_targets,
    double_critic_loss,
    ensemble_loss,
    pessimistic_cost,
    polyak,
    td_target,
)
from algd.types import Assessment, EnvSpec, Metrics, Mode, Transition


class State(eqx.Module):
    """Everything that learning changes, and the task's limits and action box."""

    actor: tuple[Linear, ...]
    q: CriticEnsemble
    qc: CriticEnsemble
    target_q: CriticEnsemble
    target_qc: CriticEnsemble
    actor_moments: tuple
    q_moments: tuple
    qc_moments: tuple
    temperature: Temperature
    dual: LogAdamState
    limit: Float[Array, " constraints"]
    low: Float[Array, " action"]
    high: Float[Array, " action"]
    rounds: Int[Array, ""]


class Draws(NamedTuple):
    """Every random number of one update: two policy samples, and the members of the maximum."""

    next_noise: Float[Array, "batch action"]
    noise: Float[Array, "batch action"]
    members: Int[Array, " picks"]


@dataclass(frozen=True)
class CAL:
    """Conservative augmented Lagrangian. The defaults are the preset `cal`, which is what the
    authors' repository does on the Safety-Gym tasks."""

    convexity: float = 10.0
    """c, strength of the quadratic penalty on the batch's mean violation."""
    cost_spread: float = 0.5
    """k: the conservative cost is mean + k * std over the ensemble."""

    discount: float = 0.99
    """Discount of the return."""
    cost_discount: float = 0.99
    """Discount of the cost."""

    cost_ensemble: int = 4
    """E, members of the cost ensemble."""
    intrgt_max: bool = False
    """Bootstrap every member from the maximum over randomly drawn members, instead of from its
    own target copy."""
    intrgt_members: int = 4
    """Members drawn, with replacement, for that maximum."""
    cost_floor: bool = False
    """Cut bootstrapped costs at zero: costs are not negative, but a policy that seeks low
    estimates finds negative ones and they feed themselves."""
    mask_reward: bool = True
    """Whether a terminal step cuts the bootstrap of the return."""
    mask_cost: bool = False
    """Whether a terminal step cuts the bootstrap of the cost."""
    goal_is_terminal: bool = True
    """Treat a met goal as terminal for the return although the episode goes on."""
    timeout_is_terminal: bool = False
    """Treat the time limit as terminal (authors' program on the velocity tasks)."""

    initial_alpha: float = 1.0
    """Weight of the entropy before the first step."""
    alpha_rate: float = 3e-4
    """Adam step size of the entropy weight's logarithm."""
    entropy_per_action: float = -1.0
    """The entropy aimed at, per action coordinate."""
    log_std_bounds: tuple[float, float] = (-20.0, 2.0)
    """Bounds of the policy's log-std."""

    initial_lam: float = 0.6931
    """The multiplier before the first step."""
    dual_rate: float = 3e-4
    """Adam step size of the multiplier's logarithm."""

    actor_rate: float = 3e-4
    """Adam step size of the policy."""
    critic_rate: float = 3e-4
    """Adam step size of the reward critics."""
    cost_critic_rate: float = 3e-4
    """Adam step size of the cost ensemble."""
    polyak: float = 0.005
    """Rate at which target critics follow."""
    polyak_every: int = 2
    """Gradient rounds between two target updates."""
    actor_hidden: int = 256
    """Width of the policy's two hidden layers."""
    critic_hidden: int = 256
    """Width of the critics' two hidden layers."""

    batch_size: int = 12
    """Transitions per gradient round."""
    replay_size: int = 1_000_000
    """Transitions kept."""
    prefill: int = 5_000
    """Environment steps with the untrained policy before the first gradient round; counted."""
    updates_per_step: float = 10.0
    """Gradient rounds per environment step."""
    throttle: int = 5
    """If positive, skip training while this epoch's rounds exceed throttle * all steps so far; an
    epoch is one episode length."""

    @property
    def data(self) -> Literal["replay"]:
        """Learns from replay."""
        return "replay"

    def init(self, spec: EnvSpec, key: PRNGKeyArray) -> State:
        """Networks of the authors' repository, targets equal to them."""
        actor_key, q_key, qc_key = jax.random.split(key, 3)
        hidden = (self.critic_hidden,) * 2
        sizes = (spec.obs_size, spec.action_size)
        actor = init_layers(
            (spec.obs_size, *(self.actor_hidden,) * 2, 2 * spec.action_size),
            xavier_uniform,
            actor_key,
        )
        q = CriticEnsemble.create(2, *sizes, hidden, 1, xavier_uniform, q_key)
        qc = CriticEnsemble.create(
            self.cost_ensemble, *sizes, hidden, len(spec.budgets), half_fan_in_normal, qc_key
        )
        limit = jnp.asarray(spec.critic_limits(self.cost_discount))
        return State(
            actor=actor,
            q=q,
            qc=qc,
            target_q=jax.tree.map(jnp.copy, q),
            target_qc=jax.tree.map(jnp.copy, qc),
            actor_moments=init_moments(actor),
            q_moments=init_moments(q),
            qc_moments=init_moments(qc),
            temperature=Temperature.create(self.initial_alpha),
            dual=LogAdam(self.dual_rate).init(jnp.full_like(limit, self.initial_lam)),
            limit=limit,
            low=jnp.asarray(spec.action_low, jnp.float32),
            high=jnp.asarray(spec.action_high, jnp.float32),
            rounds=jnp.zeros((), jnp.int32),
        )

    def act(
        self, state: State, obs: Float[Array, " obs"], key: PRNGKeyArray, mode: Mode
    ) -> tuple[Float[Array, " action"], dict[str, Array]]:
        """A sample of the squashed Gaussian, or the tanh of its mean."""
        noise = jax.random.normal(key, state.low.shape)
        if mode == "deterministic":
            noise = jnp.zeros_like(noise)
        gaussian = gaussian_head(state.actor, obs, jax.nn.relu, self.log_std_bounds)
        return tanh_sample(gaussian, noise, state.low, state.high)[0], {}

    def assess(
        self, state: State, obs: Float[Array, " obs"], action: Float[Array, " action"]
    ) -> Assessment:
        """The double critic's value; mean and spread of the cost ensemble."""
        return assessment(state.q, state.qc, obs, action)

    def objective(
        self, state: State, obs: Float[Array, " obs"], action: Float[Array, " action"]
    ) -> Float[Array, ""]:
        """L_A of an action, hinged at itself where learning hinges at the batch; low is good."""
        q, cost, deviation = assessment(state.q, state.qc, obs, action)
        qc = cost + self.cost_spread * deviation
        return augmented_lagrangian(q, qc, state.dual.lam, state.limit, self.convexity)

    def portable(self, state: State) -> PolicyData:
        """The Gaussian and the Lagrangian as plain arrays."""
        return PolicyData(
            policy=tanh_gaussian(state.actor, "relu", self.log_std_bounds),
            critics=lagrangian_critics(state, "augmented", self.convexity, self.cost_spread),
            low=np.asarray(state.low),
            high=np.asarray(state.high),
        )

    def update(self, state: State, batch: Transition, key: PRNGKeyArray) -> tuple[State, Metrics]:
        """One gradient round with fresh random numbers."""
        return self.update_with(state, batch, self.draw(batch.action.shape, key))

    def update_with(self, state: State, batch: Transition, draws: Draws) -> tuple[State, Metrics]:
        """One gradient round with given random numbers."""
        alpha, lam = state.temperature.alpha, state.dual.lam

        # Reward critics: the soft target, with the entropy of the next action.
        next_action, next_log_prob = self._sample(
            state.actor, batch.next_obs, draws.next_noise, state
        )
        next_q = clipped_value(
            state.target_q.values(batch.next_obs, next_action, jax.nn.relu)[..., 0]
        )
        keep = bootstrap_mask(
            batch, self.mask_reward, self.goal_is_terminal, self.timeout_is_terminal
        )
        target = td_target(batch.reward, keep, self.discount, next_q - alpha * next_log_prob)
        (q_loss, q_values), q_grads = double_critic_loss(state.q, batch, target, jax.nn.relu)
        q, q_moments = adam_step(state.q, q_grads, state.q_moments, self.critic_rate)

        # Cost ensemble: each member from its own copy, without the entropy.
        next_qc = state.target_qc.values(batch.next_obs, next_action, silu)
        if self.intrgt_max:
            largest = jnp.max(next_qc[draws.members], axis=0)
            next_qc = jnp.broadcast_to(largest, next_qc.shape)
        if self.cost_floor:
            next_qc = jnp.maximum(next_qc, 0.0)
        keep = bootstrap_mask(batch, self.mask_cost, timeout_is_terminal=self.timeout_is_terminal)
        targets = cost_targets(batch.cost, keep, self.cost_discount, next_qc)
        (qc_loss, _), qc_grads = ensemble_loss(state.qc, batch, targets, silu)
        qc, qc_moments = adam_step(state.qc, qc_grads, state.qc_moments, self.cost_critic_rate)

        # Policy: one augmented multiplier for the batch, from the conservative cost at its actions.
        qc_replay = pessimistic_cost(qc.values(batch.obs, batch.action, silu), self.cost_spread)
        violation = jnp.mean(qc_replay, axis=0) - state.limit
        augmented = hinged_multiplier(lam, violation, self.convexity)

        def actor_loss(actor: tuple[Linear, ...]) -> tuple[Array, Array]:
            action, log_prob = self._sample(actor, batch.obs, draws.noise, state)
            value = clipped_value(q(batch.obs, action, jax.nn.relu)[..., 0])
            cost = pessimistic_cost(qc(batch.obs, action, silu), self.cost_spread)
            energy = jax.vmap(lambda v, c: lagrangian(v, c, augmented, state.limit))(value, cost)
            return jnp.mean(alpha * log_prob + energy), log_prob

        (policy_loss, log_prob), grads = jax.value_and_grad(actor_loss, has_aux=True)(state.actor)
        actor, actor_moments = adam_step(state.actor, grads, state.actor_moments, self.actor_rate)

        # Temperature, and dual ascent on the plain violation.
        target_entropy = self.entropy_per_action * batch.action.shape[-1]
        temperature = state.temperature.step(log_prob, target_entropy, self.alpha_rate)
        dual = LogAdam(self.dual_rate).step(state.dual, violation)

        # Targets follow.
        follow = state.rounds % self.polyak_every == 0
        rate = jnp.where(follow, self.polyak, 0.0).astype(q_loss.dtype)
        state = State(
            actor=actor,
            q=q,
            qc=qc,
            target_q=polyak(state.target_q, q, rate),
            target_qc=polyak(state.target_qc, qc, rate),
            actor_moments=actor_moments,
            q_moments=q_moments,
            qc_moments=qc_moments,
            temperature=temperature,
            dual=dual,
            limit=state.limit,
            low=state.low,
            high=state.high,
            rounds=state.rounds + 1,
        )
        metrics = {
            "q_loss": q_loss,
            "qc_loss": qc_loss,
            "policy_loss": policy_loss,
            "q_mean": jnp.mean(q_values),
            "lam": dual.lam,
            "augmented_lam": augmented,
            "qc_mean": jnp.mean(qc_replay, axis=0),
            "violation": jnp.mean(jnp.maximum(qc_replay - state.limit, 0.0), axis=0),
            "alpha": temperature.alpha,
            "entropy": -jnp.mean(log_prob),
        }
        return state, metrics

    def _sample(
        self,
        actor: tuple[Linear, ...],
        obs: Float[Array, "batch obs"],
        noise: Float[Array, "batch action"],
        box: State,
    ) -> tuple[Float[Array, "batch action"], Float[Array, " batch"]]:
        """Actions of the policy and their log-densities."""
        return tanh_policy(actor, obs, noise, (box.low, box.high), jax.nn.relu, self.log_std_bounds)

    def draw(self, action_shape: tuple[int, ...], key: PRNGKeyArray) -> Draws:
        """The random numbers of one update."""
        normal_key, member_key = jax.random.split(key)
        next_noise, noise = jax.random.normal(normal_key, (2, *action_shape))
        return Draws(
            next_noise=next_noise,
            noise=noise,
            members=jax.random.randint(member_key, (self.intrgt_members,), 0, self.cost_ensemble),
        )


VELOCITY = CAL(cost_ensemble=8, mask_cost=True, goal_is_terminal=False, timeout_is_terminal=True)
"""What the authors' repository has in common on the velocity tasks."""

QUICK = CAL(
    cost_floor=True,
    mask_cost=True,
    goal_is_terminal=False,
    initial_alpha=0.1,
    alpha_rate=1e-3,
    dual_rate=1e-3,
    actor_rate=1e-3,
    critic_rate=1e-3,
    cost_critic_rate=1e-3,
    polyak=0.02,
    polyak_every=1,
    actor_hidden=128,
    critic_hidden=128,
    batch_size=128,
    prefill=1_000,
    updates_per_step=1.0,
    throttle=0,
)
"""With the schedule of the preset `algd`, for short runs beside it."""

PRESETS = {
    "cal": CAL(),
    "cal-quick": QUICK,
    "cal-ant": replace(VELOCITY, convexity=100.0),
    "cal-halfcheetah": replace(VELOCITY, convexity=1000.0, updates_per_step=20.0),
    "cal-hopper": VELOCITY,
    "cal-humanoid": replace(VELOCITY, convexity=1000.0, cost_spread=0.0, intrgt_max=True),
    # Beside ALGD: the ensemble and the batch that its paper gives every method.
    "cal-algd": CAL(cost_ensemble=6, batch_size=256),
}
