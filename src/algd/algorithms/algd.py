"""ALGD, and LGD which differs by its energy only: a diffusion policy under a cost budget.

`ALGD.update_with` is Algorithm 1 of the paper in reading order: critics, score target, descent,
dual ascent. Options name every place where the paper's text and its authors' program part; what
each preset chooses is in docs/differences.md.
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
from algd.networks.layers import bfloat16_product, half_fan_in_normal, xavier_uniform
from algd.networks.numpy_policy import Diffusion, PolicyData
from algd.networks.portable import lagrangian_critics, of_layers
from algd.networks.score import ScoreNetwork
from algd.objectives.bounding import BOUNDING, Bounding, BoundsName, Box
from algd.objectives.diffusion import (
    NoiseSchedule,
    geometric_schedule,
    monte_carlo_score,
    noise_scales,
    reverse_chain,
)
from algd.objectives.lagrangians import augmented_lagrangian, lagrangian
from algd.objectives.multipliers import DualName, DualState, dual_rule
from algd.objectives.td_targets import (
    assessment,
    bootstrap_mask,
    clipped_value,
    cost_targets,
    double_critic_loss,
    ensemble_loss,
    next_cost,
    pessimistic_cost,
    polyak,
    polyak_rate,
    td_target,
)
from algd.types import (
    Assessment,
    EnvSpec,
    Fraction,
    Members,
    Metrics,
    Mode,
    NonNegative,
    Positive,
    ReplayOptions,
    Transition,
    Width,
)


class State(eqx.Module):
    """Everything that learning changes, and the task's limits and action box."""

    score: ScoreNetwork
    q: CriticEnsemble
    qc: CriticEnsemble
    target_q: CriticEnsemble
    target_qc: CriticEnsemble
    score_moments: tuple
    q_moments: tuple
    qc_moments: tuple
    dual: DualState
    limit: Float[Array, " constraints"]
    low: Float[Array, " action"]
    high: Float[Array, " action"]
    rounds: Int[Array, ""]


class Draws(NamedTuple):
    """Every random number of one update. `*_start`, `*_noise` belong to a chain, by level k."""

    next_start: Float[Array, "batch action"]
    next_noise: Float[Array, "steps batch action"]
    start: Float[Array, "batch action"]
    noise: Float[Array, "steps batch action"]
    tau: Int[Array, " batch"]
    forward: Float[Array, "batch action"]
    proposals: Float[Array, "batch samples action"]


@dataclass(frozen=True, kw_only=True)
class ALGD(ReplayOptions):
    """Augmented-Lagrangian-guided diffusion.

    The defaults are the preset `algd`. Symbols of the paper: lambda is `lam`, h the `limit`, tau
    the level `k`, K `denoise_steps`, N `mc_samples`, M `cost_ensemble`.
    """

    energy: Literal["augmented", "plain", "reward"] = "augmented"
    """L_A of the paper, the plain Lagrangian (LGD), or -Q alone (no constraint)."""
    rho: Positive = 1.0
    """Strength of the quadratic penalty in L_A."""
    beta: Positive = 0.1
    """Temperature of the Boltzmann policy exp(-L/beta)."""

    denoise_steps: Members = 5
    """K, the number of reverse diffusion steps."""
    sigma_min: Positive = 0.07
    """Noise of the cleanest level."""
    sigma_max: Positive = 1.0
    """Noise of the noisiest level, where the chain starts."""
    noise_power: NonNegative = 0.5
    """Shrinks the noise of a reverse step by (sigma_{k-1}/sigma_k)**power: 0 is Euler-Maruyama,
    1 the ancestral step."""
    last_step_noise: bool = False
    """Whether the last reverse step adds noise."""
    bounds: BoundsName = "boltzmann"
    """How the action stays in its box. `boltzmann`: tanh of a latent whose target density is that
    of exp(-L/beta) on the box, Jacobian included, proposals made in the latent. `tanh`: squashed
    without Jacobian, proposals around the action (authors' program). `clip`: no latent, the action
    is clipped when executed (paper's text)."""
    proposals: Literal["unclipped", "clipped"] = "unclipped"
    """Whether Monte Carlo actions of `tanh` and `clip` are cut to the action box."""
    deterministic: Literal["zero-noise", "sample"] = "zero-noise"
    """What mode="deterministic" does: the chain from zero without noise, or an ordinary draw."""

    energy_weight: NonNegative = 1.0
    """Weight of mean L(s, a_0), differentiated through the whole chain."""
    score_weight: NonNegative = 0.001
    """Weight of the score-matching loss."""
    score_points: Literal["chain", "after-step", "forward"] = "chain"
    """Where the score is fitted: at the chain's latent of level tau, at the latent after step tau
    (authors' program), or at the chain's end plus fresh noise of level tau."""
    score_reduction: Literal["sum", "mean"] = "mean"
    """Over action coordinates: squared norm (paper) or mean (authors' program)."""
    score_through_chain: bool = False
    """Whether the score loss is also differentiated through the chain that led to its point."""
    energy_precision: Literal["float32", "bfloat16"] = "float32"
    """Factors of the matrix products behind the energies and their gradients; sums are always in
    float32. Faster where the processor multiplies bfloat16, slower elsewhere."""
    mc_samples: Members = 4
    """N, Monte Carlo actions per score target."""

    cost_ensemble: Members = 4
    """M, members of the cost ensemble."""
    cost_spread: NonNegative = 0.5
    """The cost estimate in L and in the dual step is mean + spread * std over the ensemble."""
    cost_target: Literal["own", "mean"] = "own"
    """Each member bootstraps from its own target copy, or all from the mean of the copies."""
    cost_floor: bool = True
    """Cut bootstrapped costs at zero: costs are not negative, but a policy that seeks low
    estimates finds negative ones and they feed themselves."""
    mask_reward: bool = True
    """Whether a terminal step cuts the bootstrap of the return."""
    mask_cost: bool = True
    """Whether a terminal step cuts the bootstrap of the cost."""
    goal_is_terminal: bool = False
    """Treat a met goal as terminal for the return although the episode goes on."""
    timeout_is_terminal: bool = False
    """Treat the time limit as terminal (authors' program on the velocity tasks)."""

    dual: DualName = "log-adam"
    """Rule of the multiplier: projected ascent (paper), Adam, Adam on its logarithm, or PID."""
    dual_rate: Positive = 1e-3
    """Step size of all rules but PID."""
    pid: tuple[NonNegative, NonNegative, NonNegative] = (0.05, 0.0005, 0.1)
    """Gains of the PID rule: proportional, integral, derivative."""
    initial_lam: NonNegative = 0.6931
    """The multiplier before the first step."""
    dual_actions: Literal["replay", "policy"] = "replay"
    """Whether the dual step evaluates the buffer's actions or the current policy's."""

    critic_rate: Positive = 1e-3
    """Adam step size of the critics."""
    score_rate: Positive = 1e-3
    """Adam step size of the score network."""
    polyak: Fraction = 0.02
    """Rate at which target critics follow."""
    polyak_every: int = 1
    """Gradient rounds between two target updates."""
    critic_hidden: Width = 128
    """Width of the critics' two hidden layers."""
    score_hidden: Width = 128
    """Width of the score network's three hidden layers."""
    embedding: Width = 16
    """Width of the step embedding."""

    def init(self, spec: EnvSpec, key: PRNGKeyArray) -> State:
        """Networks of the paper's architecture table, targets equal to them."""
        score_key, q_key, qc_key = jax.random.split(key, 3)
        hidden = (self.critic_hidden,) * 2
        sizes = (spec.obs_size, spec.action_size)
        score = ScoreNetwork.create(
            *sizes, (self.score_hidden,) * 3, self.denoise_steps, self.embedding, score_key
        )
        q = CriticEnsemble.create(2, *sizes, hidden, 1, "relu", xavier_uniform, q_key)
        qc = CriticEnsemble.create(
            self.cost_ensemble,
            *sizes,
            hidden,
            len(spec.budgets),
            "silu",
            half_fan_in_normal,
            qc_key,
        )
        limit = jnp.asarray(spec.critic_limits(self.cost_discount))
        return State(
            score=score,
            q=q,
            qc=qc,
            # A donated buffer may appear only once: the targets are copies.
            target_q=jax.tree.map(jnp.copy, q),
            target_qc=jax.tree.map(jnp.copy, qc),
            score_moments=init_moments(score),
            q_moments=init_moments(q),
            qc_moments=init_moments(qc),
            dual=self._dual.init(jnp.full_like(limit, self.initial_lam)),
            limit=limit,
            low=jnp.asarray(spec.action_low, jnp.float32),
            high=jnp.asarray(spec.action_high, jnp.float32),
            rounds=jnp.zeros((), jnp.int32),
        )

    def act(
        self, state: State, obs: Float[Array, " obs"], key: PRNGKeyArray, mode: Mode
    ) -> tuple[Float[Array, " action"], dict[str, Array]]:
        """The end of a reverse chain."""
        normal = jax.random.normal(key, (1 + self.denoise_steps, state.low.shape[0]))
        if mode == "deterministic" and self.deterministic == "zero-noise":
            normal = jnp.zeros_like(normal)
        bounding = self.bounding(state)
        latents = self.chain(state.score, obs, normal[0], normal[1:], bounding)
        return jnp.clip(bounding.action(latents[-1]), state.low, state.high), {}

    def assess(
        self, state: State, obs: Float[Array, " obs"], action: Float[Array, " action"]
    ) -> Assessment:
        """The double critic's value; mean and spread of the cost ensemble."""
        return assessment(state.q, state.qc, obs, action)

    def objective(
        self, state: State, obs: Float[Array, " obs"], action: Float[Array, " action"]
    ) -> Float[Array, ""]:
        """The energy of an action: of several, the lowest is the best."""
        q, cost, deviation = assessment(state.q, state.qc, obs, action)
        qc = cost + self.cost_spread * deviation
        return self._energy(q, qc, state.dual.lam, state.limit)

    def portable(self, state: State) -> PolicyData:
        """The chain and the energy as plain arrays."""
        schedule, scales = self._schedule
        return PolicyData(
            policy=Diffusion(
                network=of_layers(state.score.layers, "relu"),
                embedding=np.asarray(state.score.time_embedding),
                drift=schedule.delta_sigma2.astype(np.float32),
                scales=scales.astype(np.float32),
                start=float(schedule.sigmas[-1]),
                squash="clip" if self.bounds == "clip" else "tanh",
                always_sampled=self.deterministic == "sample",
            ),
            critics=lagrangian_critics(state, self.energy, self.rho, self.cost_spread),
            low=np.asarray(state.low),
            high=np.asarray(state.high),
        )

    # --- Algorithm 1 --------------------------------------------------------------------------

    def update(self, state: State, batch: Transition, key: PRNGKeyArray) -> tuple[State, Metrics]:
        """One gradient round with fresh random numbers."""
        return self.update_with(state, batch, self.draw(batch.action.shape, key))

    def update_with(self, state: State, batch: Transition, draws: Draws) -> tuple[State, Metrics]:
        """Algorithm 1: one gradient round with given random numbers."""
        state, of_critics = self._critic_step(state, batch, draws)
        state, qc, of_score = self._score_step(state, batch, draws)
        state, of_dual = self._dual_step(state, qc)
        rate = polyak_rate(self.polyak, state.rounds, self.polyak_every, of_critics["q_loss"])
        state = replace(
            state,
            target_q=polyak(state.target_q, state.q, rate),
            target_qc=polyak(state.target_qc, state.qc, rate),
            rounds=state.rounds + 1,
        )
        return state, of_critics | of_score | of_dual

    def _critic_step(self, state: State, batch: Transition, draws: Draws) -> tuple[State, Metrics]:
        """TD targets at an action of the policy, one Adam step for each ensemble."""
        bounding = self.bounding(state)
        next_chain = self.chain(
            state.score, batch.next_obs, draws.next_start, draws.next_noise, bounding
        )
        next_action = bounding.action(next_chain[-1])

        next_q = clipped_value(state.target_q.values(batch.next_obs, next_action)[..., 0])
        keep = bootstrap_mask(
            batch, self.mask_reward, self.goal_is_terminal, self.timeout_is_terminal
        )
        target = td_target(batch.reward, keep, self.discount, next_q)
        (q_loss, q_values), grads = double_critic_loss(state.q, batch, target)
        q, q_moments = adam_step(state.q, grads, state.q_moments, self.critic_rate)

        next_qc = state.target_qc.values(batch.next_obs, next_action)
        next_qc = next_cost(next_qc, self.cost_target == "mean", self.cost_floor)
        keep = bootstrap_mask(batch, self.mask_cost, timeout_is_terminal=self.timeout_is_terminal)
        targets = cost_targets(batch.cost, keep, self.cost_discount, next_qc)
        (qc_loss, _), grads = ensemble_loss(state.qc, batch, targets)
        qc, qc_moments = adam_step(state.qc, grads, state.qc_moments, self.critic_rate)

        state = replace(state, q=q, q_moments=q_moments, qc=qc, qc_moments=qc_moments)
        return state, {"q_loss": q_loss, "qc_loss": qc_loss, "q_mean": jnp.mean(q_values)}

    def _score_step(
        self, state: State, batch: Transition, draws: Draws
    ) -> tuple[State, Float[Array, "batch constraints"], Metrics]:
        """Fit the Monte Carlo score and descend the energy of the chain's end; Q_c for the dual."""
        bounding = self.bounding(state)

        # The chain's end a_0 and the point x_tau, with the pullback to the network.
        def chain_points(score: ScoreNetwork) -> tuple[Array, Array, Array]:
            latents = self.chain(score, batch.obs, draws.start, draws.noise, bounding)
            points = self._score_points(latents, draws)
            fitted = points if self.score_through_chain else jax.lax.stop_gradient(points)
            inputs = bounding.network_input(fitted)
            phi = score.scores(score.state_half(batch.obs), inputs, draws.tau)
            return bounding.action(latents[-1]), points, phi

        (action, points, phi), pull_back = jax.vjp(chain_points, state.score)

        # Energies and their gradients at a_0 and at N proposals around x_tau, in one batch.
        spread = self._sigmas(draws.tau, points)[:, None] * draws.proposals
        proposed = bounding.centre(points)[:, None] + spread
        if self.proposals == "clipped":
            proposed = bounding.clip(proposed)
        energies, energy_grads, qc = self._energies(
            state, batch, action, bounding.proposed_action(proposed)
        )
        phi_target = jax.vmap(lambda e, g: monte_carlo_score(e, g, self.beta))(
            *bounding.in_latent(energies[:, 1:], energy_grads[:, 1:], proposed, self.beta)
        )

        # The losses' slopes at a_0 and phi, pulled back through the chain.
        count, size = phi.shape[0], phi.shape[-1] if self.score_reduction == "mean" else 1
        cotangents = (
            self.energy_weight * energy_grads[:, 0] / count,
            jnp.zeros_like(points),
            self.score_weight * 2.0 * (phi - phi_target) / (count * size),
        )
        (grads,) = pull_back(cotangents)
        score, moments = adam_step(state.score, grads, state.score_moments, self.score_rate)
        metrics = {
            "energy_loss": jnp.mean(energies[:, 0]),
            "score_loss": jnp.sum((phi - phi_target) ** 2) / (count * size),
        }
        return replace(state, score=score, score_moments=moments), qc, metrics

    def _dual_step(
        self, state: State, qc: Float[Array, "batch constraints"]
    ) -> tuple[State, Metrics]:
        """Ascend on the mean violation."""
        dual = self._dual.step(state.dual, jnp.mean(qc, axis=0) - state.limit)
        if self.energy == "reward":
            # Nothing holds the violation back: the multiplier would grow without end.
            dual = state.dual
        metrics = {
            "lam": jnp.zeros_like(dual.lam) if self.energy == "reward" else dual.lam,
            "qc_mean": jnp.mean(qc, axis=0),
            "violation": jnp.mean(jnp.maximum(qc - state.limit, 0.0), axis=0),
        }
        return replace(state, dual=dual), metrics

    # --- the policy ---------------------------------------------------------------------------

    def bounding(self, state: State) -> Bounding:
        """How this task's action stays in its box."""
        return BOUNDING[self.bounds](Box(state.low, state.high))

    def chain(
        self,
        score: ScoreNetwork,
        obs: Float[Array, "*batch obs"],
        start: Float[Array, "*batch action"],
        noise: Float[Array, "steps *batch action"],
        bounding: Bounding,
    ) -> Float[Array, "levels *batch action"]:
        """The latents of a reverse chain; `start` and `noise` are standard normal."""
        schedule, scales = self._schedule
        state_half = score.state_half(obs)
        return reverse_chain(
            lambda x, k: score.scores(state_half, bounding.network_input(x), k),
            schedule,
            scales,
            float(schedule.sigmas[-1]) * start,
            noise,
        )

    @property
    def _schedule(self) -> tuple[NoiseSchedule, Float[np.ndarray, " steps"]]:
        """The levels, and the noise of each reverse step."""
        schedule = geometric_schedule(self.sigma_min, self.sigma_max, self.denoise_steps)
        return schedule, noise_scales(schedule, self.noise_power, self.last_step_noise)

    def _score_points(
        self, latents: Float[Array, "levels batch action"], draws: Draws
    ) -> Float[Array, "batch action"]:
        """The point of level tau at which each row's score is fitted."""
        if self.score_points == "forward":
            return latents[-1] + self._sigmas(draws.tau, latents) * draws.forward
        before = self.denoise_steps - 1 - draws.tau
        index = before + 1 if self.score_points == "after-step" else before
        return latents[index, jnp.arange(latents.shape[1])]

    def _sigmas(
        self, tau: Int[Array, " batch"], like: Float[Array, "..."]
    ) -> Float[Array, "batch 1"]:
        return jnp.asarray(self._schedule[0].sigmas, like.dtype)[tau][:, None]

    # --- energies ----------------------------------------------------------------------------

    def _energy(
        self,
        q: Float[Array, ""],
        qc: Float[Array, " constraints"],
        lam: Float[Array, " constraints"],
        limit: Float[Array, " constraints"],
    ) -> Float[Array, ""]:
        if self.energy == "augmented":
            return augmented_lagrangian(q, qc, lam, limit, self.rho)
        if self.energy == "plain":
            return lagrangian(q, qc, lam, limit)
        return -q

    def _energies(
        self, state: State, batch: Transition, action: Array, proposed: Array
    ) -> tuple[
        Float[Array, "batch points"],
        Float[Array, "batch points action"],
        Float[Array, "batch constraints"],
    ]:
        """L and its action gradient at a_0 and the proposals; Q_c at the dual step's actions."""
        product = bfloat16_product if self.energy_precision == "bfloat16" else jnp.matmul
        lam = state.dual.lam

        points = jnp.concatenate([action[:, None], proposed], axis=1)
        qs, q_back = state.q.values_and_pullback(batch.obs, points, product)
        qcs, qc_back = state.qc.values_and_pullback(batch.obs, points, product)

        def total(qs: Array, qcs: Array) -> tuple[Array, tuple[Array, Array]]:
            q, qc = clipped_value(qs[..., 0]), pessimistic_cost(qcs, self.cost_spread)
            by_point = jax.vmap(jax.vmap(self._energy, (0, 0, None, None)), (0, 0, None, None))
            energies = by_point(q, qc, lam, state.limit)
            # Rows do not interact: the gradient of the sum is each row's own gradient.
            return jnp.sum(energies), (energies, qc)

        (by_q, by_qc), (energies, qc) = jax.grad(total, (0, 1), has_aux=True)(qs, qcs)
        # By one critic of the two, and by the cost only where the constraint is not slack.
        grads = q_back(by_q) + qc_back(by_qc)
        if self.dual_actions == "policy":
            return energies, grads, qc[:, 0]
        replayed = state.qc.values(batch.obs, batch.action)
        return energies, grads, pessimistic_cost(replayed, self.cost_spread)

    @property
    def _dual(self) -> Any:
        return dual_rule(self.dual, self.dual_rate, self.pid)

    def draw(self, action_shape: tuple[int, ...], key: PRNGKeyArray) -> Draws:
        """The random numbers of one update."""
        normal_key, tau_key = jax.random.split(key)
        # One call: each is compiled anew, and six took nearly a third of the whole compilation.
        counts = (1, self.denoise_steps, 1, self.denoise_steps, 1, self.mc_samples)
        normal = jax.random.normal(normal_key, (sum(counts), *action_shape))
        next_start, next_noise, start, noise, forward, proposals = jnp.split(
            normal, np.cumsum(counts)[:-1]
        )
        return Draws(
            next_start=next_start[0],
            next_noise=next_noise,
            start=start[0],
            noise=noise,
            tau=jax.random.randint(tau_key, action_shape[:1], 0, self.denoise_steps),
            forward=forward[0],
            proposals=jnp.moveaxis(proposals, 0, 1),
        )


PAPER = ALGD(
    noise_power=0.0,
    cost_floor=False,
    score_rate=3e-4,
    batch_size=256,
    critic_hidden=256,
    beta=1.0,
    sigma_min=1e-4,
    sigma_max=1e-1,
    last_step_noise=True,
    bounds="clip",
    energy_weight=0.0,
    score_weight=1.0,
    score_points="chain",
    score_reduction="sum",
    mc_samples=6,
    cost_ensemble=6,
    cost_spread=0.0,
    cost_target="mean",
    mask_reward=False,
    mask_cost=False,
    dual="projected",
    dual_rate=3e-4,
    critic_rate=3e-4,
    polyak=0.005,
    polyak_every=5,
    prefill=1_000,
    updates_per_step=10.0,
    deterministic="sample",
)
"""The text, literally; beta, the dual rate and the prefill, which it does not give, are ours."""

AUTHORS = ALGD(
    noise_power=0.0,
    cost_floor=False,
    score_rate=3e-4,
    batch_size=256,
    critic_hidden=256,
    beta=1.0,
    sigma_min=0.01,
    sigma_max=1.0,
    bounds="tanh",
    energy_weight=1.0,
    score_weight=0.1,
    score_points="after-step",
    score_through_chain=True,
    score_reduction="mean",
    mc_samples=4,
    cost_ensemble=4,
    cost_spread=1.0,
    cost_target="own",
    mask_reward=True,
    mask_cost=False,
    goal_is_terminal=True,
    dual="log-adam",
    dual_rate=3e-4,
    critic_rate=3e-4,
    polyak=0.005,
    polyak_every=2,
    prefill=5_000,
    updates_per_step=10.0,
    throttle=5,
)
"""What the authors' program does on the Safety-Gym tasks."""

PRESETS = {
    "algd": ALGD(),
    "lgd": ALGD(energy="plain"),
    "algd-unconstrained": ALGD(energy="reward"),
    "algd-paper": PAPER,
    "algd-code": AUTHORS,
    "algd-code-velocity": replace(
        AUTHORS, mask_cost=True, goal_is_terminal=False, timeout_is_terminal=True
    ),
}
