"""HJ: reachability-constrained actor-critic (RCRL, ICML 2022), the paper's baseline of that name.

The constraint is statewise: never let the signed constraint function become positive. A critic
learns the largest value ahead, a network gives each state its own multiplier, and three time
scales keep them apart: critics every round, policy every 4th, multiplier every 12th.
"""

from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from algd.networks.adam import adam_step, decayed_rate, init_moments
from algd.networks.critics import CriticEnsemble
from algd.networks.gaussian import Temperature
from algd.networks.layers import MLP, he_normal
from algd.networks.numpy_policy import Critics, PolicyData
from algd.networks.portable import network, tanh_gaussian
from algd.objectives import soft_actor
from algd.objectives.critic_learning import ReturnCriticOptions, return_regression
from algd.objectives.soft_actor import SoftActorOptions, sample, temperature_step
from algd.objectives.td_targets import (
    bootstrap_mask,
    clipped_value,
    polyak,
    reachability_target,
    td_regression,
)
from algd.types import (
    Ascending,
    Assessment,
    Count,
    EnvSpec,
    Fraction,
    LogStd,
    Members,
    Metrics,
    Mode,
    NonNegative,
    Positive,
    Transition,
    Width,
)


class State(eqx.Module):
    """Everything that learning changes, and the task's limits and action box."""

    actor: MLP
    multiplier: MLP
    q: CriticEnsemble
    qh: CriticEnsemble
    target_q: CriticEnsemble
    target_qh: CriticEnsemble
    actor_moments: tuple
    multiplier_moments: tuple
    q_moments: tuple
    qh_moments: tuple
    temperature: Temperature
    limit: Float[Array, " constraints"]
    low: Float[Array, " action"]
    high: Float[Array, " action"]
    rounds: Int[Array, ""]


class Draws(NamedTuple):
    """Every random number of one update: the policy's samples at s' and at s."""

    next_noise: Float[Array, "batch action"]
    noise: Float[Array, "batch action"]


@dataclass(frozen=True, kw_only=True)
class HJ(ReturnCriticOptions, SoftActorOptions):
    """Reachability-constrained actor-critic.

    `HJ()` is the preset `hj`: the schedule of the preset `algd`, with the penalty held back
    until Q_h has seen where the margin is positive (from the first round on, a Q_h that still holds
    every state for infeasible drives the multiplier up and the policy to a halt). The budgets play
    no part: the constraint is that the environment's margin is never positive, the largest of
    them if there are several. `cost_discount` is that of the costs that are reported.
    """

    sign_only: bool = False
    """Use +1 where the margin is positive and -1 elsewhere, instead of the margin itself."""
    margin_scale: Positive = 1.0
    """Factor of the constraint function."""

    safety_discount: Fraction = 0.95
    """gamma_h of the self-consistency operator; 1 is the true maximum ahead."""
    final_safety_discount: Fraction = 0.95
    """gamma_h at the end of its annealing."""
    anneal_rounds: Count = 0
    """Gradient rounds in which gamma_h goes linearly from the first to the second; 0: it stays."""

    safety_ensemble: Members = 6
    """M, members of the ensemble whose mean is Q_h."""

    multiplier_bound: NonNegative = 0.0
    """If positive, the multiplier is bound / 2 * (1 + tanh), else a softplus without bound."""
    penalty_range: Annotated[tuple[float, float], Ascending] = (-10.0, 100.0)
    """Q_h is clipped to this in the multiplier's ascent."""
    penalty_start: Count = 3_000
    """Gradient rounds before the penalty enters the policy's loss and the multiplier learns."""
    actor_every: int = 4
    """Gradient rounds between two steps of policy, temperature and targets."""
    multiplier_every: int = 12
    """Gradient rounds between two steps of the multiplier."""

    log_std_bounds: Annotated[tuple[LogStd, LogStd], Ascending] = (-5.0, 1.0)
    final_critic_rate: Positive = 1e-3
    """That of the critics at the end of the decay."""
    final_actor_rate: Positive = 1e-3
    """That of the policy at the end of the decay."""
    final_alpha_rate: Positive = 1e-3
    """That of the entropy's weight at the end of the decay."""
    multiplier_rate: Positive = 1e-4
    """Adam step size of the multiplier's network."""
    final_multiplier_rate: Positive = 1e-4
    """The same at the end of the decay."""
    decay_rounds: Count = 0
    """Gradient rounds in which all step sizes go linearly to their last value; 0: they stay."""
    grad_clip: Positive = 10.0
    """Largest gradient norm of policy and critics."""
    multiplier_grad_clip: Positive = 3.0
    """Largest gradient norm of the multiplier's network."""
    polyak: Fraction = 0.08
    """Rate at which target critics follow, when the policy steps."""
    actor_hidden: Width = 128
    """Width of the two hidden layers of policy and multiplier."""

    def init(self, spec: EnvSpec, key: PRNGKeyArray) -> State:
        """ELU networks with He-normal weights, targets equal to them."""
        actor_key, multiplier_key, q_key, qh_key = jax.random.split(key, 4)
        sizes = (spec.obs_size, spec.action_size)
        hidden = (self.critic_hidden,) * 2

        def layers(outputs: int, key: PRNGKeyArray) -> MLP:
            widths = (spec.obs_size, self.actor_hidden, self.actor_hidden, outputs)
            return MLP.create(widths, "elu", he_normal, key)

        actor = layers(2 * spec.action_size, actor_key)
        multiplier = layers(1, multiplier_key)
        q = CriticEnsemble.create(2, *sizes, hidden, 1, "elu", he_normal, q_key)
        qh = CriticEnsemble.create(
            self.safety_ensemble, *sizes, hidden, 1, "elu", he_normal, qh_key
        )
        return State(
            actor=actor,
            multiplier=multiplier,
            q=q,
            qh=qh,
            target_q=jax.tree.map(jnp.copy, q),
            target_qh=jax.tree.map(jnp.copy, qh),
            actor_moments=init_moments(actor),
            multiplier_moments=init_moments(multiplier),
            q_moments=init_moments(q),
            qh_moments=init_moments(qh),
            temperature=Temperature.create(self.initial_alpha),
            limit=jnp.asarray(spec.critic_limits(self.cost_discount)),
            low=jnp.asarray(spec.action_low, jnp.float32),
            high=jnp.asarray(spec.action_high, jnp.float32),
            rounds=jnp.zeros((), jnp.int32),
        )

    def act(
        self, state: State, obs: Float[Array, " obs"], key: PRNGKeyArray, mode: Mode
    ) -> tuple[Float[Array, " action"], dict[str, Array]]:
        """A sample of the squashed Gaussian, or the tanh of its mean."""
        return soft_actor.act(self, state.actor, obs, (state.low, state.high), key, mode), {}

    def assess(
        self, state: State, obs: Float[Array, " obs"], action: Float[Array, " action"]
    ) -> Assessment:
        """The double critic's value; Q_h is no discounted cost, so that is not a number."""
        q = state.q(obs[None], action[None])[:, 0, 0]
        unknown = jnp.full_like(state.limit, jnp.nan)
        return Assessment(clipped_value(q), unknown, unknown)

    def objective(
        self, state: State, obs: Float[Array, " obs"], action: Float[Array, " action"]
    ) -> Float[Array, ""]:
        r"""$-Q + \lambda_\xi(s)\,Q_h$ of an action; low is good."""
        q = clipped_value(state.q(obs[None], action[None])[:, 0, 0])
        qh = jnp.mean(state.qh(obs[None], action[None])[:, 0, 0])
        return -q + self.lam(state.multiplier, obs) * qh

    def portable(self, state: State) -> PolicyData:
        """The Gaussian, the critics and the multiplier's network as plain arrays."""
        return PolicyData(
            policy=tanh_gaussian(state.actor, self.log_std_bounds),
            critics=Critics(
                q=network(state.q),
                qc=network(state.qh),
                objective="reachability",
                multiplier=network(state.multiplier),
                multiplier_bound=self.multiplier_bound,
            ),
            low=np.asarray(state.low),
            high=np.asarray(state.high),
        )

    def update(self, state: State, batch: Transition, key: PRNGKeyArray) -> tuple[State, Metrics]:
        """One gradient round with fresh random numbers."""
        return self.update_with(state, batch, self.draw(batch.action.shape, key))

    def update_with(self, state: State, batch: Transition, draws: Draws) -> tuple[State, Metrics]:
        """One gradient round with given random numbers."""
        # Critics, every round: the soft return, and the largest constraint value ahead.
        box = (state.low, state.high)
        next_action, log_prob = sample(self, state.actor, batch.next_obs, draws.next_noise, box)
        bonus = -state.temperature.alpha * log_prob
        of_q = return_regression(self, state.q, state.target_q, batch, next_action, bonus)

        keep = bootstrap_mask(batch, timeout_is_terminal=self.timeout_is_terminal)
        gamma = self._safety_discount(state.rounds)
        margin = self.constraint(batch.margin)

        def ahead(following: Float[Array, "members batch 1"]) -> Array:
            values = jax.vmap(lambda qh: reachability_target(margin, keep, gamma, qh))
            return values(following[..., 0])[..., None]

        weight = 1.0 / len(batch.reward) / state.qh.members
        of_qh = td_regression(state.qh, state.target_qh, batch, next_action, ahead, weight)

        rate = self._rate(self.critic_rate, self.final_critic_rate, state)
        clip = self.grad_clip
        q, q_moments = adam_step(state.q, of_q.grads, state.q_moments, rate, clip=clip)
        qh, qh_moments = adam_step(state.qh, of_qh.grads, state.qh_moments, rate, clip=clip)
        state = replace(state, q=q, q_moments=q_moments, qh=qh, qh_moments=qh_moments)

        # Policy, temperature and targets on the second time scale, multiplier on the third.
        state = jax.lax.cond(
            state.rounds % self.actor_every == 0,
            lambda s: self._policy_step(s, batch, draws),
            lambda s: s,
            state,
        )
        state = jax.lax.cond(
            (state.rounds % self.multiplier_every == 0) & (state.rounds >= self.penalty_start),
            lambda s: self._multiplier_step(s, batch, draws),
            lambda s: s,
            state,
        )
        state = replace(state, rounds=state.rounds + 1)

        qh_mean = jnp.mean(of_qh.values[..., 0], axis=0)
        per_constraint = jnp.ones_like(state.limit)
        metrics = {
            "q_loss": of_q.loss,
            "qh_loss": of_qh.loss,
            "q_mean": jnp.mean(of_q.values),
            "qh_mean": jnp.mean(qh_mean),
            "infeasible": jnp.mean((qh_mean > 0.0).astype(qh_mean.dtype)),
            "lam": jnp.mean(self.lam(state.multiplier, batch.obs)) * per_constraint,
            "violation": jnp.mean(jnp.maximum(qh_mean, 0.0)) * per_constraint,
            "alpha": state.temperature.alpha,
        }
        return state, metrics

    def constraint(self, margin: Float[Array, "*batch constraints"]) -> Float[Array, "*batch"]:
        """h_s: positive where a constraint is violated."""
        worst = jnp.max(margin, axis=-1)
        if self.sign_only:
            worst = jnp.where(worst > 0.0, jnp.ones_like(worst), -jnp.ones_like(worst))
        return self.margin_scale * worst

    def lam(self, multiplier: MLP, obs: Float[Array, "*batch obs"]) -> Float[Array, "*batch"]:
        """The multiplier of each state."""
        output = multiplier(obs)[..., 0]
        if self.multiplier_bound:
            return 0.5 * self.multiplier_bound * (1.0 + jnp.tanh(output))
        return jax.nn.softplus(output)

    def _policy_step(self, state: State, batch: Transition, draws: Draws) -> State:
        r"""Descend $\mathrm{mean}[\alpha\log\pi - \min_j Q_j + \lambda_\xi(s)\,Q_h]$."""
        alpha, box = state.temperature.alpha, (state.low, state.high)
        active = (state.rounds >= self.penalty_start).astype(batch.reward.dtype)
        lam = active * self.lam(state.multiplier, batch.obs)

        def loss(actor: MLP) -> tuple[Array, Array]:
            action, log_prob = sample(self, actor, batch.obs, draws.noise, box)
            q = clipped_value(state.q(batch.obs, action)[..., 0])
            qh = jnp.mean(state.qh(batch.obs, action)[..., 0], axis=0)
            return jnp.mean(alpha * log_prob - q + lam * qh), log_prob

        grads, log_prob = jax.grad(loss, has_aux=True)(state.actor)
        rate = self._rate(self.actor_rate, self.final_actor_rate, state)
        clip = self.grad_clip
        actor, moments = adam_step(state.actor, grads, state.actor_moments, rate, clip=clip)
        rate = self._rate(self.alpha_rate, self.final_alpha_rate, state)
        size = batch.action.shape[-1]
        temperature = temperature_step(self, state.temperature, log_prob, size, rate)
        return replace(
            state,
            actor=actor,
            actor_moments=moments,
            temperature=temperature,
            target_q=polyak(state.target_q, state.q, self.polyak),
            target_qh=polyak(state.target_qh, state.qh, self.polyak),
        )

    def _multiplier_step(self, state: State, batch: Transition, draws: Draws) -> State:
        r"""Ascend $\mathrm{mean}[\lambda_\xi(s)\,\mathrm{clip}(Q_h(s, a_\pi))]$."""
        action, _ = sample(self, state.actor, batch.obs, draws.noise, (state.low, state.high))
        qh = jnp.mean(state.qh(batch.obs, action)[..., 0], axis=0)
        penalty = jnp.clip(qh, *self.penalty_range)
        grads = jax.grad(lambda xi: -jnp.mean(self.lam(xi, batch.obs) * penalty))(state.multiplier)
        rate = self._rate(self.multiplier_rate, self.final_multiplier_rate, state)
        own, clip = state.multiplier_moments, self.multiplier_grad_clip
        multiplier, moments = adam_step(state.multiplier, grads, own, rate, clip=clip)
        return replace(state, multiplier=multiplier, multiplier_moments=moments)

    def _safety_discount(self, rounds: Int[Array, ""]) -> float | Float[Array, ""]:
        ends = (self.safety_discount, self.final_safety_discount)
        return decayed_rate(*ends, rounds, self.anneal_rounds)

    def _rate(self, first: float, last: float, state: State) -> float | Float[Array, ""]:
        return decayed_rate(first, last, state.rounds, self.decay_rounds)

    def draw(self, action_shape: tuple[int, ...], key: PRNGKeyArray) -> Draws:
        """The random numbers of one update."""
        return Draws(*jax.random.normal(key, (2, *action_shape)))


PAPER = HJ(
    safety_discount=0.99,
    final_safety_discount=0.99,
    penalty_start=0,
    initial_alpha=1.0,
    critic_rate=3e-4,
    final_critic_rate=3e-4,
    actor_rate=1e-4,
    final_actor_rate=1e-4,
    alpha_rate=3e-4,
    final_alpha_rate=3e-4,
    multiplier_rate=1e-5,
    final_multiplier_rate=1e-5,
    polyak=0.005,
    actor_hidden=256,
    critic_hidden=256,
    batch_size=256,
    goal_is_terminal=True,
    prefill=5_000,
    updates_per_step=10.0,
    throttle=5,
)
"""With the schedule that ALGD's and CAL's authors use on the Safety-Gym tasks."""

RCRL = HJ(
    initial_alpha=1.0,
    sign_only=True,
    margin_scale=20.0,
    safety_discount=1.0,
    final_safety_discount=1.0,
    penalty_start=0,
    safety_ensemble=1,
    critic_rate=1e-4,
    final_critic_rate=1e-6,
    actor_rate=2e-5,
    final_actor_rate=1e-6,
    alpha_rate=8e-5,
    final_alpha_rate=3e-6,
    multiplier_rate=6e-7,
    final_multiplier_rate=1e-7,
    decay_rounds=2_000_000,
    polyak=0.005,
    actor_hidden=256,
    critic_hidden=256,
    batch_size=256,
    replay_size=500_000,
    prefill=3_000,
)
"""What RCRL's repository uses on its quadrotor; with gamma_h = 1 nothing but a terminal step
bounds Q_h."""

PRESETS = {"hj": HJ(), "hj-paper": PAPER, "hj-rcrl": RCRL}
SUMMARIES = {
    "hj": "HJ reachability (RCRL): no cost in any step, whatever the budget",
    "hj-paper": "hj with the schedule of ALGD's authors on Safety-Gym tasks",
    "hj-rcrl": "hj as RCRL's repository has it on its quadrotor",
}
