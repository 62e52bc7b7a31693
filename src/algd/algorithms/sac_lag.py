"""SAC with a Lagrangian (SAC+Lag), an augmented one (SAC+AugLag, CAL), or without a constraint.

The paper names SAC+Lag and SAC+AugLag and gives no equations; what stands here is a soft
actor-critic with the cost ensemble of its other methods, and options for what published versions do
otherwise. CAL (ICLR 2024) is one of them: a conservative cost, the ensemble's upper confidence
bound, and a multiplier that a quadratic penalty raises by the violation of the whole batch.
"""

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from algd.networks.adam import adam_step, init_moments
from algd.networks.gaussian import Temperature
from algd.networks.layers import MLP, xavier_uniform
from algd.networks.numpy_policy import PolicyData
from algd.networks.portable import folded, tanh_gaussian
from algd.objectives import critic_learning, dual_ascent, soft_actor
from algd.objectives.critic_learning import (
    PrimalDualState,
    critic_step,
    dimensionless,
    energy_share,
    init_critics,
    measure,
    standardised,
    targets_follow,
)
from algd.objectives.dual_ascent import (
    PrimalDualOptions,
    dual_step,
    feedback,
    init_dual,
    multiplier,
    portable,
    rule,
)
from algd.objectives.lagrangians import Energy, energy_of
from algd.objectives.multipliers import Dual, hinged_multiplier
from algd.objectives.soft_actor import SoftActorOptions, sample, temperature_step
from algd.objectives.td_targets import clipped_value, pessimistic_cost
from algd.types import EnvSpec, Members, Metrics, Mode, NonNegative, Transition


class State(PrimalDualState):
    """Everything that learning changes, and the task's limits and action box."""

    temperature: Temperature  # pyright: ignore[reportIncompatibleVariableOverride]
    actor: MLP
    actor_moments: tuple


class Draws(NamedTuple):
    """Every random number of one update: the policy's samples at s' and at s, and the members
    whose maximum is the cost's target."""

    next_noise: Float[Array, "batch action"]
    noise: Float[Array, "batch action"]
    members: Int[Array, " picks"]


@dataclass(frozen=True, kw_only=True)
class SACLag(PrimalDualOptions, SoftActorOptions):
    """Soft actor-critic under a cost budget.

    `SACLag()` is the preset `sac-lag`; its schedule is that of the preset `algd`, so that the
    two differ by the policy.
    """

    energy: Energy = "plain"
    hinge: Literal["sample", "batch"] = "sample"
    """Where the augmented Lagrangian is hinged: at each sample, as ALGD's energy is, or at the
    batch's mean violation, as CAL's multiplier is."""
    rescale: bool = False
    """Divide the policy's whole loss by 1 + the multiplier (OmniSafe, FSRL)."""

    cost_ensemble: Members = 6
    cost_spread: NonNegative = 0.0
    target_members: Members = 4
    """Members drawn, with replacement, for the cost target "max" (CAL on Humanoid)."""
    cost_entropy: bool = False
    """Whether the cost target carries the entropy term too (CVPO's version)."""

    def init(self, spec: EnvSpec, key: PRNGKeyArray) -> State:
        """Networks with targets equal to them."""
        actor_key, q_key, qc_key = jax.random.split(key, 3)
        actor = MLP.create(
            (spec.obs_size, *(self.actor_hidden,) * 2, 2 * spec.action_size),
            "relu",
            xavier_uniform,
            actor_key,
        )
        return State(
            actor=actor,
            actor_moments=init_moments(actor),
            temperature=Temperature.create(self.initial_alpha),
            **init_dual(self, self._dual, spec),
            **init_critics(self, spec, q_key, qc_key),
        )

    def act(
        self, state: State, obs: Float[Array, " obs"], key: PRNGKeyArray, mode: Mode
    ) -> tuple[Float[Array, " action"], dict[str, Array]]:
        """A sample of the squashed Gaussian, or the tanh of its mean."""
        seen, box = standardised(state, obs), (state.low, state.high)
        return soft_actor.act(self, state.actor, seen, box, key, mode), {}

    assess = critic_learning.assess
    objective = dual_ascent.objective

    def portable(self, state: State) -> PolicyData:
        """The Gaussian and the Lagrangian as plain arrays of raw observations."""
        policy = tanh_gaussian(folded(state.actor, state.units), self.log_std_bounds)
        return portable(self, state, policy)

    def update(self, state: State, batch: Transition, key: PRNGKeyArray) -> tuple[State, Metrics]:
        """One gradient round with fresh random numbers."""
        return self.update_with(state, batch, self.draw(batch.action.shape, key))

    def update_with(self, state: State, batch: Transition, draws: Draws) -> tuple[State, Metrics]:
        """One gradient round with given random numbers."""
        state, batch = measure(self, state, batch)
        alpha, box = state.temperature.alpha, (state.low, state.high)
        next_action, log_prob = sample(self, state.actor, batch.next_obs, draws.next_noise, box)
        bonus = -alpha * log_prob / energy_share(self)
        cost_bonus = bonus if self.cost_entropy else 0.0
        state, of_critics = critic_step(
            self, state, batch, next_action, bonus, cost_bonus, draws.members
        )
        state, qc, of_policy = self._policy_step(state, batch, draws, alpha)
        state, of_dual = dual_step(self, self._dual, state, qc)
        metrics = of_critics | of_policy | of_dual | {"lam": multiplier(self, state)}
        return targets_follow(self, state), metrics

    def _policy_step(
        self, state: State, batch: Transition, draws: Draws, alpha: Float[Array, ""]
    ) -> tuple[State, Float[Array, "batch constraints"], Metrics]:
        """Entropy against energy; Q_c at the dual step's actions."""
        q_critics, qc_critics, limit = dimensionless(self, state)
        box = (state.low, state.high)
        replayed = qc_critics.values(batch.obs, batch.action)
        qc_replay = pessimistic_cost(replayed, self.cost_spread)
        energy, weights = self.energy, state.dual.lam
        if hinged_at_batch := energy == "augmented" and self.hinge == "batch":
            violation = jnp.mean(qc_replay, axis=0) - limit
            energy, weights = "plain", hinged_multiplier(weights, violation, self.rho)
        scale = 1.0 / (1.0 + jnp.sum(state.dual.lam)) if self.rescale else 1.0

        def loss(actor: MLP) -> tuple[Array, tuple[Array, Array]]:
            action, log_prob = sample(self, actor, batch.obs, draws.noise, box)
            q = clipped_value(q_critics(batch.obs, action)[..., 0])
            qc = pessimistic_cost(qc_critics(batch.obs, action), self.cost_spread)
            how = (weights, limit, self.rho, self.penalty_cap)
            energies = jax.vmap(lambda q, qc: energy_of(energy, q, qc, *how))
            return scale * jnp.mean(alpha * log_prob + energies(q, qc)), (log_prob, qc)

        (policy_loss, (log_prob, qc_policy)), grads = jax.value_and_grad(loss, has_aux=True)(
            state.actor
        )
        how = (self.actor_rate, self.momentum)
        actor, moments = adam_step(state.actor, grads, state.actor_moments, *how)
        size = batch.action.shape[-1]
        temperature = temperature_step(self, state.temperature, log_prob, size, self.alpha_rate)
        metrics = {
            "policy_loss": policy_loss,
            "alpha": temperature.alpha,
            "entropy": -jnp.mean(log_prob),
        }
        if hinged_at_batch:
            metrics["augmented_lam"] = weights
        state = replace(state, actor=actor, actor_moments=moments, temperature=temperature)
        return state, qc_replay if self.dual_actions == "replay" else qc_policy, metrics

    def feedback(
        self,
        state: State,
        episode_costs: Float[Array, "envs constraints"],
        ended: Int[Array, " envs"],
    ) -> State:
        """What the training episodes that ended have cost, in the budgets' own units."""
        return feedback(self, self._dual, state, episode_costs, ended)

    @property
    def _dual(self) -> Dual:
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

SCALED = SACLag(
    normalise=True,
    n_step=3,
    critics="batch-norm",
    momentum=0.5,
    rates_go_on=True,
    dual="projected",
    dual_signal="episodes",
    dual_rate=4e-4,
    floor_follows=True,
    initial_lam=0.0,
    exploration_noise=0.4,
)
"""With what the preset `algd` has besides its policy, its penalty and the smaller credit of its
multiplier."""

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
    "sac-lag-scaled": SCALED,
    "sac-auglag-scaled": replace(SCALED, energy="augmented"),
    "sac-scaled": replace(SCALED, energy="reward"),
    "cal-scaled": replace(
        SCALED, energy="augmented", hinge="batch", rho=10.0, cost_spread=0.5, cost_ensemble=4
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
    "sac-lag-scaled": "sac-lag with the units, critics and multiplier of algd",
    "sac-auglag-scaled": "sac-auglag with the units, critics and multiplier of algd",
    "sac-scaled": "sac with the units and critics of algd",
    "cal-scaled": "cal-quick with the units, critics and multiplier of algd",
    "cal-ant": "CAL as its authors' program has it on Ant",
    "cal-halfcheetah": "CAL as its authors' program has it on HalfCheetah",
    "cal-hopper": "CAL as its authors' program has it on Hopper",
    "cal-humanoid": "CAL as its authors' program has it on Humanoid",
    "cal-algd": "cal with the ensemble and batch that ALGD's paper gives every method",
}
