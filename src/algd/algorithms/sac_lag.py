"""SAC with a Lagrangian (SAC+Lag), an augmented one (SAC+AugLag, CAL), or without a constraint.

The paper names SAC+Lag and SAC+AugLag and gives no equations; what stands here is a soft
actor-critic with the cost ensemble of its other methods, and options for what published versions do
otherwise. CAL (ICLR 2024) is one of them: a conservative cost, the ensemble's upper confidence
bound, and a multiplier that a quadratic penalty raises by the violation of the whole batch.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from algd.networks.adam import adam_step, init_moments
from algd.networks.gaussian import Temperature, gaussian_head, tanh_policy, tanh_sample
from algd.networks.layers import MLP, xavier_uniform
from algd.networks.numpy_policy import PolicyData
from algd.networks.portable import folded, lagrangian_critics, tanh_gaussian
from algd.objectives.critic_learning import (
    CriticOptions,
    assess,
    budget_unit,
    critic_step,
    dimensionless,
    energy_share,
    init_critics,
    measure,
    standardised,
    targets_follow,
)
from algd.objectives.dual_ascent import DualOptions, feedback, rule
from algd.objectives.lagrangians import augmented_lagrangian, lagrangian
from algd.objectives.multipliers import DualState, hinged_multiplier
from algd.objectives.normalisation import Units
from algd.objectives.td_targets import Critics, clipped_value, pessimistic_cost
from algd.types import (
    Ascending,
    Assessment,
    EnvSpec,
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
    q: Critics
    qc: Critics
    target_q: Critics | None
    target_qc: Critics | None
    actor_moments: tuple
    q_moments: tuple
    qc_moments: tuple
    temperature: Temperature
    dual: DualState
    limit: Float[Array, " constraints"]
    low: Float[Array, " action"]
    high: Float[Array, " action"]
    rounds: Int[Array, ""]
    units: Units | None = None
    episode_scale: Float[Array, " constraints"] | None = None
    """Takes an episode's cost to the critics' scale."""


class Draws(NamedTuple):
    """Every random number of one update: the policy's samples at s' and at s, and the members
    whose maximum is the cost's target."""

    next_noise: Float[Array, "batch action"]
    noise: Float[Array, "batch action"]
    members: Int[Array, " picks"]


@dataclass(frozen=True, kw_only=True)
class SACLag(CriticOptions, DualOptions):
    """Soft actor-critic under a cost budget.

    The defaults are the preset `sac-lag`; its schedule is that of the preset `algd`, so that the
    two differ by the policy.
    """

    energy: Literal["plain", "augmented", "reward"] = "plain"
    """What the policy descends besides its entropy: the Lagrangian (SAC+Lag), the augmented one
    (SAC+AugLag, CAL), or -Q alone (SAC)."""
    hinge: Literal["sample", "batch"] = "sample"
    """Where the augmented Lagrangian is hinged: at each sample, as ALGD's energy is, or at the
    batch's mean violation, as CAL's multiplier is."""
    rho: Positive = 1.0
    """Strength of the quadratic penalty in the augmented Lagrangian; CAL's convexity c."""
    rescale: bool = False
    """Divide the policy's whole loss by 1 + the multiplier (OmniSafe, FSRL)."""

    cost_ensemble: Members = 6
    cost_spread: NonNegative = 0.0
    target_members: Members = 4
    """Members drawn, with replacement, for the cost target "max" (CAL on Humanoid)."""
    cost_entropy: bool = False
    """Whether the cost target carries the entropy term too (CVPO's version)."""

    learn_alpha: bool = True
    """Whether the entropy's weight is learnt, or stays at its initial value."""
    initial_alpha: Positive = 0.1
    """Weight of the entropy before the first step."""
    alpha_rate: Positive = 1e-3
    """Adam step size of the entropy weight's logarithm."""
    entropy_per_action: float = -1.0
    """The entropy aimed at, per action coordinate."""
    log_std_bounds: Annotated[tuple[LogStd, LogStd], Ascending] = (-20.0, 2.0)
    """Bounds of the policy's log-std."""

    actor_rate: Positive = 1e-3
    """Adam step size of the policy."""
    actor_hidden: Width = 128
    """Width of the policy's two hidden layers."""

    def init(self, spec: EnvSpec, key: PRNGKeyArray) -> State:
        """Networks with targets equal to them."""
        actor_key, q_key, qc_key = jax.random.split(key, 3)
        actor = MLP.create(
            (spec.obs_size, *(self.actor_hidden,) * 2, 2 * spec.action_size),
            "relu",
            xavier_uniform,
            actor_key,
        )
        limit = jnp.asarray(spec.critic_limits(self.cost_discount))
        return State(
            actor=actor,
            actor_moments=init_moments(actor),
            temperature=Temperature.create(self.initial_alpha),
            dual=self._dual.init(jnp.full_like(limit, self.initial_lam)),
            limit=limit,
            low=jnp.asarray(spec.action_low, jnp.float32),
            high=jnp.asarray(spec.action_high, jnp.float32),
            rounds=jnp.zeros((), jnp.int32),
            episode_scale=jnp.asarray(spec.episode_scales(self.cost_discount)),
            **init_critics(self, spec, q_key, qc_key),
        )

    def act(
        self, state: State, obs: Float[Array, " obs"], key: PRNGKeyArray, mode: Mode
    ) -> tuple[Float[Array, " action"], dict[str, Array]]:
        """A sample of the squashed Gaussian, or the tanh of its mean."""
        noise = jax.random.normal(key, state.low.shape)
        if mode == "deterministic":
            noise = jnp.zeros_like(noise)
        seen = standardised(state, obs)
        gaussian = gaussian_head(state.actor, seen, self.log_std_bounds)
        return tanh_sample(gaussian, noise, state.low, state.high)[0], {}

    def assess(
        self, state: State, obs: Float[Array, " obs"], action: Float[Array, " action"]
    ) -> Assessment:
        """The double critic's value; mean and spread of the cost ensemble."""
        return assess(self, state, obs, action)

    def objective(
        self, state: State, obs: Float[Array, " obs"], action: Float[Array, " action"]
    ) -> Float[Array, ""]:
        """L_A of an action, hinged at itself where learning hinges at the batch; low is good."""
        q_critics, qc_critics, limit = dimensionless(self, state)
        inputs = (standardised(state, obs)[None], action[None])
        q = clipped_value(q_critics(*inputs)[:, 0, 0])
        qc = pessimistic_cost(qc_critics(*inputs)[:, 0], self.cost_spread)
        if self.energy == "reward":
            return -q
        if self.energy == "plain":
            return lagrangian(q, qc, state.dual.lam, limit)
        return augmented_lagrangian(q, qc, state.dual.lam, limit, self.rho)

    def portable(self, state: State) -> PolicyData:
        """The Gaussian and the Lagrangian as plain arrays of raw observations."""
        q, qc, limit = dimensionless(self, state)
        return PolicyData(
            policy=tanh_gaussian(folded(state.actor, state.units), self.log_std_bounds),
            critics=lagrangian_critics(
                folded(q, state.units),
                folded(qc, state.units),
                self.energy,
                np.asarray(state.dual.lam),
                np.asarray(limit),
                self.rho,
                self.cost_spread,
            ),
            low=np.asarray(state.low),
            high=np.asarray(state.high),
        )

    def update(self, state: State, batch: Transition, key: PRNGKeyArray) -> tuple[State, Metrics]:
        """One gradient round with fresh random numbers."""
        return self.update_with(state, batch, self.draw(batch.action.shape, key))

    def update_with(self, state: State, batch: Transition, draws: Draws) -> tuple[State, Metrics]:
        """One gradient round with given random numbers."""
        state, batch = measure(self, state, batch)
        alpha = state.temperature.alpha
        next_action, log_prob = self._sample(state.actor, batch.next_obs, draws.next_noise, state)
        bonus = -alpha * log_prob / energy_share(self)
        cost_bonus = bonus if self.cost_entropy else 0.0
        state, of_critics = critic_step(
            self, state, batch, next_action, bonus, cost_bonus, draws.members
        )
        state, qc, of_policy = self._policy_step(state, batch, draws, alpha)
        state, of_dual = self._dual_step(state, qc)
        return targets_follow(self, state), of_critics | of_policy | of_dual

    def _policy_step(
        self, state: State, batch: Transition, draws: Draws, alpha: Float[Array, ""]
    ) -> tuple[State, Float[Array, "batch constraints"], Metrics]:
        """Entropy against energy; Q_c at the dual step's actions."""
        q_critics, qc_critics, limit = dimensionless(self, state)
        replayed = qc_critics.values(batch.obs, batch.action)
        qc_replay = pessimistic_cost(replayed, self.cost_spread)
        weights = self._cost_weights(state, jnp.mean(qc_replay, axis=0) - limit)
        scale = 1.0 / (1.0 + jnp.sum(state.dual.lam)) if self.rescale else 1.0

        def loss(actor: MLP) -> tuple[Array, tuple[Array, Array]]:
            action, log_prob = self._sample(actor, batch.obs, draws.noise, state)
            q = clipped_value(q_critics(batch.obs, action)[..., 0])
            qc = pessimistic_cost(qc_critics(batch.obs, action), self.cost_spread)
            energy = jax.vmap(self._energy, (0, 0, None, None))(q, qc, weights, limit)
            return scale * jnp.mean(alpha * log_prob + energy), (log_prob, qc)

        (policy_loss, (log_prob, qc_policy)), grads = jax.value_and_grad(loss, has_aux=True)(
            state.actor
        )
        how = (self.actor_rate, self.momentum)
        actor, moments = adam_step(state.actor, grads, state.actor_moments, *how)
        temperature = state.temperature
        if self.learn_alpha:
            target_entropy = self.entropy_per_action * batch.action.shape[-1]
            temperature = temperature.step(log_prob, target_entropy, self.alpha_rate)
        metrics = {
            "policy_loss": policy_loss,
            "alpha": temperature.alpha,
            "entropy": -jnp.mean(log_prob),
        }
        if self.energy == "augmented" and self.hinge == "batch":
            metrics["augmented_lam"] = weights
        state = replace(state, actor=actor, actor_moments=moments, temperature=temperature)
        return state, qc_replay if self.dual_actions == "replay" else qc_policy, metrics

    def _dual_step(
        self, state: State, qc: Float[Array, "batch constraints"]
    ) -> tuple[State, Metrics]:
        """Ascend on the mean violation of the critics, if they are what the multiplier follows."""
        dual, limit = state.dual, dimensionless(self, state)[2]
        if self.energy != "reward" and self.dual_signal == "critics":
            dual = self._dual.step(dual, jnp.mean(qc, axis=0) - limit)
        metrics = {
            "lam": jnp.zeros_like(dual.lam) if self.energy == "reward" else dual.lam,
            "qc_mean": jnp.mean(qc, axis=0),
            "violation": jnp.mean(jnp.maximum(qc - limit, 0.0), axis=0),
        }
        return replace(state, dual=dual), metrics

    def feedback(
        self,
        state: State,
        episode_costs: Float[Array, "envs constraints"],
        ended: Int[Array, " envs"],
    ) -> State:
        """What the training episodes that ended have cost, in the budgets' own units."""
        if self.energy == "reward" or self.dual_signal == "critics":
            return state
        unit = budget_unit(self, state)
        return feedback(self, self._dual, state, episode_costs, ended, unit)

    def _cost_weights(
        self, state: State, violation: Float[Array, " constraints"]
    ) -> Float[Array, " constraints"]:
        """The multiplier, raised for the whole batch where it is hinged there."""
        if self.energy == "augmented" and self.hinge == "batch":
            return hinged_multiplier(state.dual.lam, violation, self.rho)
        return state.dual.lam

    def _energy(
        self,
        q: Float[Array, ""],
        qc: Float[Array, " constraints"],
        lam: Float[Array, " constraints"],
        limit: Float[Array, " constraints"],
    ) -> Float[Array, ""]:
        """What the policy descends at one sample."""
        if self.energy == "reward":
            return -q
        if self.energy == "augmented" and self.hinge == "sample":
            return augmented_lagrangian(q, qc, lam, limit, self.rho)
        return lagrangian(q, qc, lam, limit)

    def _sample(
        self,
        actor: MLP,
        obs: Float[Array, "batch obs"],
        noise: Float[Array, "batch action"],
        box: State,
    ) -> tuple[Float[Array, "batch action"], Float[Array, " batch"]]:
        """Actions of the policy and their log-densities."""
        return tanh_policy(actor, obs, noise, (box.low, box.high), self.log_std_bounds)

    @property
    def _dual(self) -> Any:
        each = self.energy == "augmented" and self.hinge == "sample"
        return rule(self, hinge=self.rho if each else 0.0)

    def draw(self, action_shape: tuple[int, ...], key: PRNGKeyArray) -> Draws:
        """The random numbers of one update."""
        member_key, picks = jax.random.fold_in(key, 1), (self.target_members,)
        return Draws(
            *jax.random.normal(key, (2, *action_shape)),
            members=jax.random.randint(member_key, picks, 0, self.cost_ensemble),
        )


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

CAL = replace(
    PAPER,
    energy="augmented",
    hinge="batch",
    rho=10.0,
    cost_spread=0.5,
    cost_ensemble=4,
    batch_size=12,
)
"""What CAL's authors' repository does on the Safety-Gym tasks."""

CAL_VELOCITY = replace(
    CAL, cost_ensemble=8, mask_cost=True, goal_is_terminal=False, timeout_is_terminal=True
)
"""What it has in common on the velocity tasks."""

PRESETS = {
    "sac-lag": SACLag(),
    "sac-auglag": SACLag(energy="augmented"),
    "sac": SACLag(energy="reward"),
    "sac-lag-paper": PAPER,
    "sac-auglag-paper": replace(PAPER, energy="augmented"),
    "cal": CAL,
    # With the schedule of the preset `algd`, for short runs beside it.
    "cal-quick": SACLag(
        energy="augmented", hinge="batch", rho=10.0, cost_spread=0.5, cost_ensemble=4
    ),
    "cal-ant": replace(CAL_VELOCITY, rho=100.0),
    "cal-halfcheetah": replace(CAL_VELOCITY, rho=1000.0, updates_per_step=20.0),
    "cal-hopper": CAL_VELOCITY,
    "cal-humanoid": replace(CAL_VELOCITY, rho=1000.0, cost_spread=0.0, cost_target="max"),
    # Beside ALGD: the ensemble and the batch that its paper gives every method.
    "cal-algd": replace(CAL, cost_ensemble=6, batch_size=256),
}
SUMMARIES = {
    "sac-lag": "SAC with a Lagrange multiplier, on the schedule of algd",
    "sac-auglag": "sac-lag with the augmented Lagrangian",
    "sac": "sac-lag without the constraint",
    "sac-lag-paper": "sac-lag with the schedule of ALGD's authors on Safety-Gym tasks",
    "sac-auglag-paper": "sac-auglag with the schedule of ALGD's authors on Safety-Gym tasks",
    "cal": "CAL as its authors' program has it on Safety-Gym tasks",
    "cal-quick": "CAL on the schedule of algd, for short runs",
    "cal-ant": "CAL as its authors' program has it on Ant",
    "cal-halfcheetah": "CAL as its authors' program has it on HalfCheetah",
    "cal-hopper": "CAL as its authors' program has it on Hopper",
    "cal-humanoid": "CAL as its authors' program has it on Humanoid",
    "cal-algd": "cal with the ensemble and batch that ALGD's paper gives every method",
}
