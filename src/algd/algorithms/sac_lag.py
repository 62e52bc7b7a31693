"""SAC with a Lagrangian (SAC+Lag), with an augmented one (SAC+AugLag), and without a constraint.

The paper names the first two and gives no equations; what stands here is a soft actor-critic with
the cost ensemble of its other methods, and options for what published versions do otherwise.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

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
from algd.objectives.multipliers import DualName, DualState, dual_rule, hinged_multiplier
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
    dual: DualState
    limit: Float[Array, " constraints"]
    low: Float[Array, " action"]
    high: Float[Array, " action"]
    rounds: Int[Array, ""]


class Draws(NamedTuple):
    """Every random number of one update: the policy's samples at s' and at s."""

    next_noise: Float[Array, "batch action"]
    noise: Float[Array, "batch action"]


@dataclass(frozen=True)
class SACLag:
    """Soft actor-critic under a cost budget.

    The defaults are the preset `sac-lag`; its schedule is that of the preset `algd`, so that the
    two differ by the policy.
    """

    energy: Literal["plain", "augmented", "reward"] = "plain"
    """What the policy descends besides its entropy: the Lagrangian (SAC+Lag), the augmented one
    (SAC+AugLag), or -Q alone (SAC)."""
    hinge: Literal["sample", "batch"] = "sample"
    """Where the augmented Lagrangian is hinged: at each sample, as ALGD's energy is, or at the
    batch's mean violation, as CAL's multiplier is."""
    rho: float = 1.0
    """Strength of the quadratic penalty in the augmented Lagrangian."""
    rescale: bool = False
    """Divide the policy's whole loss by 1 + the multiplier (OmniSafe, FSRL)."""

    discount: float = 0.99
    """Discount of the return."""
    cost_discount: float = 0.99
    """Discount of the cost."""

    cost_ensemble: int = 6
    """M, members of the cost ensemble."""
    cost_spread: float = 0.0
    """The cost estimate is mean + spread * std over the ensemble."""
    cost_target: Literal["own", "mean"] = "own"
    """Each member bootstraps from its own target copy, or all from the mean of the copies."""
    cost_floor: bool = True
    """Cut bootstrapped costs at zero: costs are not negative, but a policy that seeks low
    estimates finds negative ones and they feed themselves."""
    cost_entropy: bool = False
    """Whether the cost target carries the entropy term too (CVPO's version)."""
    mask_reward: bool = True
    """Whether a terminal step cuts the bootstrap of the return."""
    mask_cost: bool = True
    """Whether a terminal step cuts the bootstrap of the cost."""
    goal_is_terminal: bool = False
    """Treat a met goal as terminal for the return although the episode goes on."""
    timeout_is_terminal: bool = False
    """Treat the time limit as terminal."""

    learn_alpha: bool = True
    """Whether the entropy's weight is learnt, or stays at its initial value."""
    initial_alpha: float = 0.1
    """Weight of the entropy before the first step."""
    alpha_rate: float = 1e-3
    """Adam step size of the entropy weight's logarithm."""
    entropy_per_action: float = -1.0
    """The entropy aimed at, per action coordinate."""
    log_std_bounds: tuple[float, float] = (-20.0, 2.0)
    """Bounds of the policy's log-std."""

    dual: DualName = "log-adam"
    """Rule of the multiplier: projected ascent, Adam, Adam on its logarithm, or PID."""
    dual_rate: float = 1e-3
    """Step size of all rules but PID."""
    pid: tuple[float, float, float] = (0.05, 0.0005, 0.1)
    """Gains of the PID rule: proportional, integral, derivative."""
    initial_lam: float = 0.6931
    """The multiplier before the first step."""
    dual_actions: Literal["replay", "policy"] = "replay"
    """Whether the dual step evaluates the buffer's actions or the current policy's."""

    actor_rate: float = 1e-3
    """Adam step size of the policy."""
    critic_rate: float = 1e-3
    """Adam step size of the critics."""
    polyak: float = 0.02
    """Rate at which target critics follow."""
    polyak_every: int = 1
    """Gradient rounds between two target updates."""
    actor_hidden: int = 128
    """Width of the policy's two hidden layers."""
    critic_hidden: int = 128
    """Width of the critics' two hidden layers."""

    batch_size: int = 128
    """Transitions per gradient round."""
    replay_size: int = 1_000_000
    """Transitions kept."""
    prefill: int = 1_000
    """Environment steps with the untrained policy before the first gradient round; counted."""
    updates_per_step: float = 1.0
    """Gradient rounds per environment step."""
    throttle: int = 0
    """If positive, skip training while this epoch's rounds exceed throttle * all steps so far; an
    epoch is one episode length."""

    @property
    def data(self) -> Literal["replay"]:
        """Learns from replay."""
        return "replay"

    def init(self, spec: EnvSpec, key: PRNGKeyArray) -> State:
        """Networks with targets equal to them."""
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
            dual=self._dual.init(jnp.full_like(limit, self.initial_lam)),
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
        if self.energy == "reward":
            return -q
        if self.energy == "plain":
            return lagrangian(q, qc, state.dual.lam, state.limit)
        return augmented_lagrangian(q, qc, state.dual.lam, state.limit, self.rho)

    def portable(self, state: State) -> PolicyData:
        """The Gaussian and the Lagrangian as plain arrays."""
        return PolicyData(
            policy=tanh_gaussian(state.actor, "relu", self.log_std_bounds),
            critics=lagrangian_critics(state, self.energy, self.rho, self.cost_spread),
            low=np.asarray(state.low),
            high=np.asarray(state.high),
        )

    def update(self, state: State, batch: Transition, key: PRNGKeyArray) -> tuple[State, Metrics]:
        """One gradient round with fresh random numbers."""
        return self.update_with(state, batch, self.draw(batch.action.shape, key))

    def update_with(self, state: State, batch: Transition, draws: Draws) -> tuple[State, Metrics]:
        """One gradient round with given random numbers."""
        alpha = state.temperature.alpha

        # Critics: the soft target of the return; the cost's without entropy, by default.
        next_action, next_log_prob = self._sample(
            state.actor, batch.next_obs, draws.next_noise, state
        )
        bonus = -alpha * next_log_prob
        next_q = clipped_value(
            state.target_q.values(batch.next_obs, next_action, jax.nn.relu)[..., 0]
        )
        keep = bootstrap_mask(
            batch, self.mask_reward, self.goal_is_terminal, self.timeout_is_terminal
        )
        target = td_target(batch.reward, keep, self.discount, next_q + bonus)
        (q_loss, q_values), q_grads = double_critic_loss(state.q, batch, target, jax.nn.relu)
        q, q_moments = adam_step(state.q, q_grads, state.q_moments, self.critic_rate)

        next_qc = state.target_qc.values(batch.next_obs, next_action, silu)
        if self.cost_target == "mean":
            next_qc = jnp.broadcast_to(jnp.mean(next_qc, axis=0), next_qc.shape)
        if self.cost_floor:
            next_qc = jnp.maximum(next_qc, 0.0)
        if self.cost_entropy:
            next_qc = next_qc + bonus[:, None]
        keep = bootstrap_mask(batch, self.mask_cost, timeout_is_terminal=self.timeout_is_terminal)
        targets = cost_targets(batch.cost, keep, self.cost_discount, next_qc)
        (qc_loss, _), qc_grads = ensemble_loss(state.qc, batch, targets, silu)
        qc, qc_moments = adam_step(state.qc, qc_grads, state.qc_moments, self.critic_rate)

        # Policy: entropy against energy.
        qc_replay = pessimistic_cost(qc.values(batch.obs, batch.action, silu), self.cost_spread)
        replay_violation = jnp.mean(qc_replay, axis=0) - state.limit
        scale = 1.0 / (1.0 + jnp.sum(state.dual.lam)) if self.rescale else 1.0

        def actor_loss(actor: tuple[Linear, ...]) -> tuple[Array, tuple[Array, Array]]:
            action, log_prob = self._sample(actor, batch.obs, draws.noise, state)
            value = clipped_value(q(batch.obs, action, jax.nn.relu)[..., 0])
            cost = pessimistic_cost(qc(batch.obs, action, silu), self.cost_spread)
            energy = self._energies(value, cost, replay_violation, state)
            return scale * jnp.mean(alpha * log_prob + energy), (log_prob, cost)

        (policy_loss, (log_prob, qc_policy)), grads = jax.value_and_grad(actor_loss, has_aux=True)(
            state.actor
        )
        actor, actor_moments = adam_step(state.actor, grads, state.actor_moments, self.actor_rate)

        # Temperature, and dual ascent on the mean violation.
        temperature = state.temperature
        if self.learn_alpha:
            target_entropy = self.entropy_per_action * batch.action.shape[-1]
            temperature = temperature.step(log_prob, target_entropy, self.alpha_rate)
        qc_dual = qc_replay if self.dual_actions == "replay" else qc_policy
        dual = state.dual
        if self.energy != "reward":
            dual = self._dual.step(dual, jnp.mean(qc_dual, axis=0) - state.limit)

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
            "lam": jnp.zeros_like(dual.lam) if self.energy == "reward" else dual.lam,
            "qc_mean": jnp.mean(qc_dual, axis=0),
            "violation": jnp.mean(jnp.maximum(qc_dual - state.limit, 0.0), axis=0),
            "alpha": temperature.alpha,
            "entropy": -jnp.mean(log_prob),
        }
        return state, metrics

    def _energies(
        self,
        q: Float[Array, " batch"],
        qc: Float[Array, "batch constraints"],
        replay_violation: Float[Array, " constraints"],
        state: State,
    ) -> Float[Array, " batch"]:
        """What the policy descends at each sample."""
        if self.energy == "reward":
            return -q
        lam, limit = state.dual.lam, state.limit
        if self.energy == "augmented" and self.hinge == "sample":
            return jax.vmap(lambda q, c: augmented_lagrangian(q, c, lam, limit, self.rho))(q, qc)
        if self.energy == "augmented":
            lam = hinged_multiplier(lam, replay_violation, self.rho)
        return jax.vmap(lambda q, c: lagrangian(q, c, lam, limit))(q, qc)

    def _sample(
        self,
        actor: tuple[Linear, ...],
        obs: Float[Array, "batch obs"],
        noise: Float[Array, "batch action"],
        box: State,
    ) -> tuple[Float[Array, "batch action"], Float[Array, " batch"]]:
        """Actions of the policy and their log-densities."""
        return tanh_policy(actor, obs, noise, (box.low, box.high), jax.nn.relu, self.log_std_bounds)

    @property
    def _dual(self) -> Any:
        return dual_rule(self.dual, self.dual_rate, self.pid)

    def draw(self, action_shape: tuple[int, ...], key: PRNGKeyArray) -> Draws:
        """The random numbers of one update."""
        return Draws(*jax.random.normal(key, (2, *action_shape)))


PAPER = SACLag(
    cost_floor=False,
    mask_cost=False,
    goal_is_terminal=True,
    initial_alpha=1.0,
    alpha_rate=3e-4,
    dual_rate=3e-4,
    actor_rate=3e-4,
    critic_rate=3e-4,
    actor_hidden=256,
    critic_hidden=256,
    batch_size=256,
    polyak=0.005,
    polyak_every=2,
    prefill=5_000,
    updates_per_step=10.0,
    throttle=5,
)
"""With the schedule and the masks that ALGD's and CAL's authors use on the Safety-Gym tasks."""

PRESETS = {
    "sac-lag": SACLag(),
    "sac-auglag": SACLag(energy="augmented"),
    "sac": SACLag(energy="reward"),
    "sac-lag-paper": PAPER,
    "sac-auglag-paper": replace(PAPER, energy="augmented"),
}
