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
from algd.networks.layers import bfloat16_product, half_fan_in_normal, silu, xavier_uniform
from algd.networks.numpy_policy import Diffusion, PolicyData
from algd.networks.portable import lagrangian_critics, network
from algd.networks.score import ScoreNetwork
from algd.objectives.diffusion import (
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
    pessimistic_cost,
    polyak,
    td_target,
)
from algd.types import Assessment, EnvSpec, Metrics, Mode, Transition


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


@dataclass(frozen=True)
class ALGD:
    """Augmented-Lagrangian-guided diffusion.

    The defaults are the preset `algd`. Symbols of the paper: lambda is `lam`, h the `limit`, tau
    the level `k`, K `denoise_steps`, N `mc_samples`, M `cost_ensemble`.
    """

    energy: Literal["augmented", "plain", "reward"] = "augmented"
    """L_A of the paper, the plain Lagrangian (LGD), or -Q alone (no constraint)."""
    rho: float = 1.0
    """Strength of the quadratic penalty in L_A."""
    beta: float = 0.1
    """Temperature of the Boltzmann policy exp(-L/beta)."""

    discount: float = 0.99
    """Discount of the return."""
    cost_discount: float = 0.99
    """Discount of the cost."""

    denoise_steps: int = 5
    """K, the number of reverse diffusion steps."""
    sigma_min: float = 0.07
    """Noise of the cleanest level."""
    sigma_max: float = 1.0
    """Noise of the noisiest level, where the chain starts."""
    noise_power: float = 0.5
    """Shrinks the noise of a reverse step by (sigma_{k-1}/sigma_k)**power: 0 is Euler-Maruyama,
    1 the ancestral step."""
    last_step_noise: bool = False
    """Whether the last reverse step adds noise."""
    bounds: Literal["boltzmann", "tanh", "clip"] = "boltzmann"
    """How the action stays in its box. `boltzmann`: tanh of a latent whose target density is that
    of exp(-L/beta) on the box, Jacobian included, proposals made in the latent. `tanh`: squashed
    without Jacobian, proposals around the action (authors' program). `clip`: no latent, the action
    is clipped when executed (paper's text)."""
    proposals: Literal["unclipped", "clipped"] = "unclipped"
    """Whether Monte Carlo actions of `tanh` and `clip` are cut to the action box."""
    deterministic: Literal["zero-noise", "sample"] = "zero-noise"
    """What mode="deterministic" does: the chain from zero without noise, or an ordinary draw."""

    energy_weight: float = 1.0
    """Weight of mean L(s, a_0), differentiated through the whole chain."""
    score_weight: float = 0.001
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
    mc_samples: int = 4
    """N, Monte Carlo actions per score target."""

    cost_ensemble: int = 4
    """M, members of the cost ensemble."""
    cost_spread: float = 0.5
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
    dual_rate: float = 1e-3
    """Step size of all rules but PID."""
    pid: tuple[float, float, float] = (0.05, 0.0005, 0.1)
    """Gains of the PID rule: proportional, integral, derivative."""
    initial_lam: float = 0.6931
    """The multiplier before the first step."""
    dual_actions: Literal["replay", "policy"] = "replay"
    """Whether the dual step evaluates the buffer's actions or the current policy's."""

    critic_rate: float = 1e-3
    """Adam step size of the critics."""
    score_rate: float = 1e-3
    """Adam step size of the score network."""
    polyak: float = 0.02
    """Rate at which target critics follow."""
    polyak_every: int = 1
    """Gradient rounds between two target updates."""
    critic_hidden: int = 128
    """Width of the critics' two hidden layers."""
    score_hidden: int = 128
    """Width of the score network's three hidden layers."""
    embedding: int = 16
    """Width of the step embedding."""

    batch_size: int = 128
    """Transitions per gradient round."""
    replay_size: int = 1_000_000
    """Transitions kept."""
    prefill: int = 1_000
    """Environment steps with the untrained policy before the first gradient round; counted."""
    updates_per_step: float = 1.0
    """Gradient rounds per environment step."""
    throttle: int = 0
    """If positive, skip training while this epoch's rounds exceed throttle * all steps so far
    (authors' program: 5); an epoch is one episode length."""

    @property
    def data(self) -> Literal["replay"]:
        """Learns from replay."""
        return "replay"

    def init(self, spec: EnvSpec, key: PRNGKeyArray) -> State:
        """Networks of the paper's architecture table, targets equal to them."""
        score_key, q_key, qc_key = jax.random.split(key, 3)
        hidden = (self.critic_hidden,) * 2
        sizes = (spec.obs_size, spec.action_size)
        score = ScoreNetwork.create(
            *sizes, (self.score_hidden,) * 3, self.denoise_steps, self.embedding, score_key
        )
        q = CriticEnsemble.create(2, *sizes, hidden, 1, xavier_uniform, q_key)
        qc = CriticEnsemble.create(
            self.cost_ensemble, *sizes, hidden, len(spec.budgets), half_fan_in_normal, qc_key
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
        latents = self.chain(state.score, obs, normal[0], normal[1:], state)
        return jnp.clip(self.squash(latents[-1], state), state.low, state.high), {}

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
        schedule = geometric_schedule(self.sigma_min, self.sigma_max, self.denoise_steps)
        scales = noise_scales(schedule, self.noise_power, self.last_step_noise)
        return PolicyData(
            policy=Diffusion(
                network=network(state.score.layers, "relu"),
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

    def update(self, state: State, batch: Transition, key: PRNGKeyArray) -> tuple[State, Metrics]:
        """One gradient round with fresh random numbers."""
        return self.update_with(state, batch, self.draw(batch.action.shape, key))

    def update_with(self, state: State, batch: Transition, draws: Draws) -> tuple[State, Metrics]:
        """Algorithm 1: one gradient round with given random numbers."""
        # Critics: TD targets at an action of the policy, one Adam step each.
        next_chain = self.chain(
            state.score, batch.next_obs, draws.next_start, draws.next_noise, state
        )
        next_action = self.squash(next_chain[-1], state)
        keep = bootstrap_mask(
            batch, self.mask_reward, self.goal_is_terminal, self.timeout_is_terminal
        )
        next_q = clipped_value(
            state.target_q.values(batch.next_obs, next_action, jax.nn.relu)[..., 0]
        )
        target = td_target(batch.reward, keep, self.discount, next_q)
        (q_loss, q), q_grads = double_critic_loss(state.q, batch, target, jax.nn.relu)
        cost_keep = bootstrap_mask(
            batch, self.mask_cost, timeout_is_terminal=self.timeout_is_terminal
        )
        next_qc = state.target_qc.values(batch.next_obs, next_action, silu)
        if self.cost_target == "mean":
            next_qc = jnp.broadcast_to(jnp.mean(next_qc, axis=0), next_qc.shape)
        if self.cost_floor:
            next_qc = jnp.maximum(next_qc, 0.0)
        targets = cost_targets(batch.cost, cost_keep, self.cost_discount, next_qc)
        (qc_loss, _), qc_grads = ensemble_loss(state.qc, batch, targets, silu)
        q_params, q_moments = adam_step(state.q, q_grads, state.q_moments, self.critic_rate)
        qc_params, qc_moments = adam_step(state.qc, qc_grads, state.qc_moments, self.critic_rate)
        state = replace(state, q=q_params, q_moments=q_moments, qc=qc_params, qc_moments=qc_moments)

        # Score: the chain's end a_0 and the point x_tau, with the pullback to the network.
        def chain_points(score: ScoreNetwork) -> tuple[Array, Array, Array]:
            latents = self.chain(score, batch.obs, draws.start, draws.noise, state)
            points = self._score_points(latents, draws)
            fitted = points if self.score_through_chain else jax.lax.stop_gradient(points)
            inputs = self._network_input(fitted, state)
            phi = score.scores(score.state_half(batch.obs), inputs, draws.tau)
            return self.squash(latents[-1], state), points, phi

        (action, points, phi), pull_back = jax.vjp(chain_points, state.score)

        # Energies and their gradients at a_0 and at the Monte Carlo proposals, in one batch.
        proposed = self._propose(points, draws, state)
        energies, energy_grads, qc_replay = self._energies(
            state, batch, action, self._to_action(proposed, state)
        )
        latent_energies, latent_grads = self._in_latent(
            energies[:, 1:], energy_grads[:, 1:], proposed, state
        )
        phi_target = jax.vmap(lambda e, g: monte_carlo_score(e, g, self.beta))(
            latent_energies, latent_grads
        )
        size = phi.shape[-1] if self.score_reduction == "mean" else 1
        count = phi.shape[0]
        score_loss = jnp.sum((phi - phi_target) ** 2) / (count * size)
        cotangents = (
            self.energy_weight * energy_grads[:, 0] / count,
            jnp.zeros_like(points),
            self.score_weight * 2.0 * (phi - phi_target) / (count * size),
        )
        (score_grads,) = pull_back(cotangents)
        score, score_moments = adam_step(
            state.score, score_grads, state.score_moments, self.score_rate
        )

        # Dual ascent on the mean violation.
        violation = jnp.mean(qc_replay, axis=0) - state.limit
        dual = self._dual.step(state.dual, violation)
        if self.energy == "reward":
            # Nothing holds the violation back: the multiplier would grow without end.
            dual = state.dual

        # Targets follow.
        follow = state.rounds % self.polyak_every == 0
        rate = jnp.where(follow, self.polyak, 0.0).astype(q_loss.dtype)
        state = replace(
            state,
            score=score,
            score_moments=score_moments,
            dual=dual,
            target_q=polyak(state.target_q, state.q, rate),
            target_qc=polyak(state.target_qc, state.qc, rate),
            rounds=state.rounds + 1,
        )
        metrics = {
            "q_loss": q_loss,
            "qc_loss": qc_loss,
            "energy_loss": jnp.mean(energies[:, 0]),
            "score_loss": score_loss,
            "q_mean": jnp.mean(q),
            "lam": jnp.zeros_like(dual.lam) if self.energy == "reward" else dual.lam,
            "qc_mean": jnp.mean(qc_replay, axis=0),
            "violation": jnp.mean(jnp.maximum(qc_replay - state.limit, 0.0), axis=0),
        }
        return state, metrics

    # --- the policy ---------------------------------------------------------------------------

    def chain(
        self,
        score: ScoreNetwork,
        obs: Float[Array, "*batch obs"],
        start: Float[Array, "*batch action"],
        noise: Float[Array, "steps *batch action"],
        box: State,
    ) -> Float[Array, "levels *batch action"]:
        """The latents of a reverse chain; `start` and `noise` are standard normal."""
        schedule = geometric_schedule(self.sigma_min, self.sigma_max, self.denoise_steps)
        scales = noise_scales(schedule, self.noise_power, self.last_step_noise)
        state_half = score.state_half(obs)
        return reverse_chain(
            lambda x, k: score.scores(state_half, self._network_input(x, box), k),
            schedule,
            scales,
            float(schedule.sigmas[-1]) * start,
            noise,
        )

    def squash(
        self, latent: Float[Array, "*batch action"], box: State
    ) -> Float[Array, "*batch action"]:
        """From the latent to the action box."""
        unit = jnp.clip(latent, -1.0, 1.0) if self.bounds == "clip" else jnp.tanh(latent)
        return unit * _half_width(box) + _centre(box)

    def _network_input(
        self, latent: Float[Array, "*batch action"], box: State
    ) -> Float[Array, "*batch action"]:
        """What the score network sees of the latent."""
        if self.bounds == "clip":
            return latent
        return self.squash(latent, box)

    def _score_points(
        self, latents: Float[Array, "levels batch action"], draws: Draws
    ) -> Float[Array, "batch action"]:
        """The point of level tau at which each row's score is fitted."""
        if self.score_points == "forward":
            return latents[-1] + self._sigmas(draws.tau, latents) * draws.forward
        before = self.denoise_steps - 1 - draws.tau
        index = before + 1 if self.score_points == "after-step" else before
        return latents[index, jnp.arange(latents.shape[1])]

    def _propose(
        self, points: Float[Array, "batch action"], draws: Draws, box: State
    ) -> Float[Array, "batch samples action"]:
        """N draws around each point with the noise of its level."""
        centre = self._network_input(points, box) if self.bounds == "tanh" else points
        spread = self._sigmas(draws.tau, points)[:, None] * draws.proposals
        proposed = centre[:, None] + spread
        if self.proposals == "clipped" and self.bounds != "boltzmann":
            low, high = (box.low, box.high) if self.bounds == "tanh" else (-1.0, 1.0)
            proposed = jnp.clip(proposed, low, high)
        return proposed

    def _to_action(
        self, proposed: Float[Array, "batch samples action"], box: State
    ) -> Float[Array, "batch samples action"]:
        """The actions at which the critics are asked; `clip` asks outside the box too."""
        if self.bounds == "boltzmann":
            return self.squash(proposed, box)
        if self.bounds == "clip":
            return proposed * _half_width(box) + _centre(box)
        return proposed

    def _in_latent(
        self,
        energies: Float[Array, "batch samples"],
        grads: Float[Array, "batch samples action"],
        latent: Float[Array, "batch samples action"],
        box: State,
    ) -> tuple[Float[Array, "batch samples"], Float[Array, "batch samples action"]]:
        r"""Energy and gradient as functions of the latent x.

        The density exp(-L(a)/beta) on the box is, in x with a = tanh(x), that of the energy
        $L(\tanh x) - \beta \sum_j \log(1 - \tanh^2 x_j)$.
        """
        if self.bounds == "tanh":
            return energies, grads
        if self.bounds == "clip":
            return energies, grads * _half_width(box)
        unit = jnp.tanh(latent)
        slope = 1.0 - unit**2
        # log(1 - tanh^2 x) = 2 (log 2 - x - softplus(-2x)), without cancellation at large |x|.
        log_slope = 2.0 * (jnp.log(2.0) - latent - jax.nn.softplus(-2.0 * latent))
        return (
            energies - self.beta * jnp.sum(log_slope, axis=-1),
            grads * _half_width(box) * slope + 2.0 * self.beta * unit,
        )

    def _sigmas(
        self, tau: Int[Array, " batch"], like: Float[Array, "..."]
    ) -> Float[Array, "batch 1"]:
        schedule = geometric_schedule(self.sigma_min, self.sigma_max, self.denoise_steps)
        return jnp.asarray(schedule.sigmas, like.dtype)[tau][:, None]

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
        qs, q_back = state.q.values_and_pullback(batch.obs, points, jax.nn.relu, product)
        qcs, qc_back = state.qc.values_and_pullback(batch.obs, points, silu, product)

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
        replayed = state.qc.values(batch.obs, batch.action, silu)
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


def _half_width(box: State) -> Float[Array, " action"]:
    return (box.high - box.low) / 2.0


def _centre(box: State) -> Float[Array, " action"]:
    return (box.high + box.low) / 2.0


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
