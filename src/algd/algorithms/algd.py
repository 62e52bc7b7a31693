"""ALGD, and LGD which differs by its energy only: a diffusion policy under a cost budget.

`ALGD.update_with` is Algorithm 1 of the paper in reading order: critics, score target, descent,
dual ascent. Options name every place where the paper's text and its authors' program part; what
each preset chooses is in docs/differences.md.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from algd.networks.adam import adam_step, init_moments
from algd.networks.gaussian import Temperature
from algd.networks.layers import bfloat16_product
from algd.networks.numpy_policy import BEST_OF, Diffusion, PolicyData
from algd.networks.portable import folded, of_layers
from algd.networks.score import ScoreNetwork
from algd.objectives import critic_learning, dual_ascent
from algd.objectives.bounding import BOUNDING, Bounding, BoundsName, Box, log_slope
from algd.objectives.critic_learning import (
    PrimalDualState,
    critic_step,
    dimensionless,
    init_critics,
    measure,
    standardised,
    targets_follow,
)
from algd.objectives.diffusion import (
    LOG_DEVIATION_BOUNDS,
    NoiseSchedule,
    gaussian_score,
    geometric_schedule,
    monte_carlo_score,
    noise_scales,
    path_entropy,
    reverse_chain,
)
from algd.objectives.dual_ascent import (
    LARGEST_EXCESS,
    PrimalDualOptions,
    dual_step,
    feedback,
    init_dual,
    multiplier,
    portable,
    rule,
)
from algd.objectives.lagrangians import energy_of
from algd.objectives.multipliers import Dual
from algd.objectives.td_targets import clipped_value, pessimistic_cost, polyak
from algd.types import (
    EnvSpec,
    Members,
    Metrics,
    Mode,
    NonNegative,
    Positive,
    Share,
    Transition,
    When,
    Width,
)


class State(PrimalDualState):
    """Everything that learning changes, and the task's limits and action box."""

    score: ScoreNetwork
    score_moments: tuple
    average: ScoreNetwork | None = None
    """The score network averaged over its gradient steps, which is the policy that was learnt; None
    if the last one is."""


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
class ALGD(PrimalDualOptions):
    """Augmented-Lagrangian-guided diffusion.

    `ALGD()` is the preset `algd-plain`. Symbols of the paper: lambda is `lam`, h the `limit`,
    tau the level `k`, K `denoise_steps`, N `mc_samples`, M `cost_ensemble`.
    """

    beta: Positive = 0.1
    """Temperature of the Boltzmann policy exp(-L/beta), at the start if it is learnt."""
    temperature: Literal["score", "fixed", "learnt"] = "score"
    """Where the temperature counts: in the score's target alone (paper), or also as the weight of
    the chain's entropy, which stays as it is or is learnt so that the entropy meets its aim."""
    entropy_per_action: Annotated[float, When("temperature", ("learnt",))] = -2.0
    """The entropy of the chain aimed at, per action coordinate: a lower bound of the policy's."""
    entropy_surplus: Annotated[NonNegative, When("temperature", ("learnt",))] = 0.0
    """How much more is aimed at in the first round: who does not know yet tries more."""
    entropy_memory: Annotated[Positive, When("temperature", ("learnt",))] = 10_000.0
    """Rounds in which that surplus falls to a share of 1/e."""
    beta_rate: Annotated[Positive, When("temperature", ("learnt",))] = 3e-3
    """Adam step size of the temperature's logarithm."""

    averaging: Share = 0.0
    """Weight of the past in the running average of the score network, which is the policy that was
    learnt; 0: the last one is. Training explores and learns with the last one."""
    policy_every: int = 1
    """Gradient rounds of the critics for one of the score network."""

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
    proposals: Annotated[Literal["unclipped", "clipped"], When("bounds", ("tanh", "clip"))] = (
        "unclipped"
    )
    """Whether Monte Carlo actions of `tanh` and `clip` are cut to the action box."""
    deterministic: Literal["zero-noise", "sample", "best"] = "zero-noise"
    """What mode="deterministic" does: the chain from zero without noise, an ordinary draw, or of
    four draws the one of the lowest energy."""

    head: Literal["score", "gaussian"] = "score"
    """What the network says at each level: the score itself, or mean and deviation of a normal
    density whose smoothed score is taken."""
    energy_weight: NonNegative = 1.0
    """Weight of mean L(s, a_0), differentiated through the whole chain."""
    score_weight: NonNegative = 0.001
    """Weight of the score-matching loss; with zero no Monte Carlo actions are drawn."""
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

    score_rate: Positive = 1e-3
    """Adam step size of the score network."""
    score_hidden: Width = 128
    """Width of the score network's three hidden layers."""
    embedding: Width = 16
    """Width of the step embedding."""

    def init(self, spec: EnvSpec, key: PRNGKeyArray) -> State:
        """Networks of the paper's architecture table, targets equal to them."""
        score_key, q_key, qc_key = jax.random.split(key, 3)
        score = ScoreNetwork.create(
            spec.obs_size,
            spec.action_size,
            (self.score_hidden,) * 3,
            self.denoise_steps,
            self.embedding,
            score_key,
            outputs=1 if self.head == "score" else 2,
        )
        return State(
            score=score,
            score_moments=init_moments(score),
            average=jax.tree.map(jnp.copy, score) if self.averaging else None,
            temperature=Temperature.create(self.beta) if self.temperature == "learnt" else None,
            **init_dual(self, self._dual, spec),
            **init_critics(self, spec, q_key, qc_key),
        )

    def act(
        self, state: State, obs: Float[Array, " obs"], key: PRNGKeyArray, mode: Mode
    ) -> tuple[Float[Array, " action"], dict[str, Array]]:
        """The end of a reverse chain."""
        best = mode == "deterministic" and self.deterministic == "best"
        shape = (BEST_OF if best else 1, 1 + self.denoise_steps, state.low.shape[0])
        normal = jax.random.normal(key, shape)
        if mode == "deterministic" and self.deterministic == "zero-noise":
            normal = jnp.zeros_like(normal)
        actions = self._ends(self._acting(state, mode), state, obs, normal)
        if not best:
            return actions[0], {}
        energies = jax.vmap(lambda action: self.objective(state, obs, action))(actions)
        return actions[jnp.argmin(energies)], {}

    def _ends(
        self,
        score: ScoreNetwork,
        state: State,
        obs: Float[Array, " obs"],
        normal: Float[Array, "chains levels action"],
    ) -> Float[Array, "chains action"]:
        """Where chains with these standard normal numbers end."""
        bounding = self.bounding(state)
        seen = jnp.broadcast_to(standardised(state, obs), (len(normal), *obs.shape))
        by_level = jnp.moveaxis(normal, 0, 1)
        latents = self.chain(score, seen, by_level[0], by_level[1:], bounding)
        return jnp.clip(bounding.action(latents[-1]), state.low, state.high)

    assess = critic_learning.assess
    objective = dual_ascent.objective

    def portable(self, state: State) -> PolicyData:
        """The chain and the energy as plain arrays of raw observations."""
        schedule, scales = self.schedule
        score, normal = self._acting(state, "sampled"), self.head == "gaussian"
        policy = Diffusion(
            network=of_layers(folded(score, state.units).layers, "relu"),
            embedding=np.asarray(score.time_embedding),
            drift=schedule.delta_sigma2.astype(np.float32),
            scales=scales.astype(np.float32),
            start=float(schedule.sigmas[-1]),
            squash="clip" if self.bounds == "clip" else "tanh",
            always_sampled=self.deterministic != "zero-noise",
            candidates=BEST_OF if self.deterministic == "best" else 1,
            levels=schedule.sigmas.astype(np.float32) if normal else None,
            log_bounds=np.asarray(LOG_DEVIATION_BOUNDS, np.float32) if normal else None,
        )
        return portable(self, state, policy)

    # --- Algorithm 1 --------------------------------------------------------------------------

    def update(self, state: State, batch: Transition, key: PRNGKeyArray) -> tuple[State, Metrics]:
        """One gradient round with fresh random numbers."""
        return self.update_with(state, batch, self.draw(batch.action.shape, key))

    def update_with(self, state: State, batch: Transition, draws: Draws) -> tuple[State, Metrics]:
        """Algorithm 1: one gradient round with given random numbers."""
        state, batch = measure(self, state, batch)
        state, of_critics = self._critic_step(state, batch, draws)
        state, of_policy = self._policy_step(state, batch, draws)
        metrics = of_critics | of_policy | {"lam": multiplier(self, state)}
        return targets_follow(self, state), metrics

    def _critic_step(self, state: State, batch: Transition, draws: Draws) -> tuple[State, Metrics]:
        """TD targets at an action of the policy, one Adam step for each ensemble."""
        bounding = self.bounding(state)
        noise = (draws.next_start, draws.next_noise)
        chain = self.chain(state.score, batch.next_obs, *noise, bounding)
        return critic_step(self, state, batch, bounding.action(chain[-1]))

    def _policy_step(self, state: State, batch: Transition, draws: Draws) -> tuple[State, Metrics]:
        """Score and dual step, in one round of `policy_every`."""

        def step(own: dict[str, Any]) -> tuple[dict[str, Any], Metrics]:
            after, qc, of_score = self._score_step(replace(state, **own), batch, draws)
            after, of_dual = dual_step(self, self._dual, after, qc)
            return {name: getattr(after, name) for name in own}, of_score | of_dual

        # Only what the step changes: the compiler copies the rest in the rounds without one.
        learnt = ("score", "score_moments", "average", "temperature", "dual", "reach")
        own = {name: getattr(state, name) for name in learnt}
        if self.policy_every == 1:
            own, metrics = step(own)
            return replace(state, **own), metrics
        # Traced once, for its shapes and for the rounds that have one.
        step = jax.jit(step, inline=True)
        shapes = jax.eval_shape(step, own)[1]
        nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        due = state.rounds % self.policy_every == 0
        own, metrics = jax.lax.cond(due, step, lambda own: (own, nothing), own)
        state = replace(state, **own)
        # A round without a step counts as zero in the means over many rounds.
        return state, {name: self.policy_every * x for name, x in metrics.items()}

    def _score_step(
        self, state: State, batch: Transition, draws: Draws
    ) -> tuple[State, Float[Array, "batch constraints"], Metrics]:
        """Fit the Monte Carlo score and descend the energy of the chain's end, less its entropy."""
        bounding, beta = self.bounding(state), self._beta(state)

        # The chain's end a_0, the point x_tau, its score, the entropy: with their pullback.
        def chain_points(score: ScoreNetwork) -> tuple[Array, Array, Array, Array]:
            latents = self.chain(score, batch.obs, draws.start, draws.noise, bounding)
            points = self._score_points(latents, draws)
            fitted = points if self.score_through_chain else jax.lax.stop_gradient(points)
            phi = self._score(score, score.state_half(batch.obs), fitted, draws.tau, bounding)
            return bounding.action(latents[-1]), points, phi, self._entropy(latents, draws)

        (action, points, phi, entropy), pull_back = jax.vjp(chain_points, state.score)

        # Energies and their gradients at a_0 and at N proposals around x_tau, in one batch.
        spread = self._sigmas(draws.tau, points)[:, None] * draws.proposals
        proposed = bounding.centre(points)[:, None] + spread
        if self.proposals == "clipped":
            proposed = bounding.clip(proposed)
        energies, energy_grads, qc = self._energies(
            state, batch, action, bounding.proposed_action(proposed)
        )
        phi_target = phi
        if self.score_weight:
            phi_target = jax.vmap(lambda e, g: monte_carlo_score(e, g, beta))(
                *bounding.in_latent(energies[:, 1:], energy_grads[:, 1:], proposed, beta)
            )

        # The losses' slopes at a_0, phi and the entropy, pulled back through the chain.
        count, size = phi.shape[0], phi.shape[-1] if self.score_reduction == "mean" else 1
        cotangents = (
            self.energy_weight * energy_grads[:, 0] / count,
            jnp.zeros_like(points),
            self.score_weight * 2.0 * (phi - phi_target) / (count * size),
            jnp.full_like(entropy, -beta / count),
        )
        (grads,) = pull_back(cotangents)
        score, moments = adam_step(
            state.score, grads, state.score_moments, self.score_rate, self.momentum
        )
        temperature = state.temperature
        metrics = {"energy_loss": jnp.mean(energies[:, 0])}
        if self.score_weight:
            metrics["score_loss"] = jnp.sum((phi - phi_target) ** 2) / (count * size)
        if self.temperature != "score":
            metrics |= {"beta": beta * jnp.ones(()), "entropy": jnp.mean(entropy)}
        if temperature is not None:
            faded = jnp.exp(-state.rounds.astype(entropy.dtype) / self.entropy_memory)
            aim = (self.entropy_per_action + self.entropy_surplus * faded) * action.shape[-1]
            temperature = temperature.step(-entropy, aim, self.beta_rate)
        state = replace(state, score=score, score_moments=moments, temperature=temperature)
        if state.average is not None:
            state = replace(state, average=polyak(state.average, score, 1.0 - self.averaging))
        return state, qc, metrics

    def feedback(
        self,
        state: State,
        episode_costs: Float[Array, "envs constraints"],
        ended: Int[Array, " envs"],
    ) -> State:
        """What the training episodes that ended have cost, in the budgets' own units."""
        return feedback(self, self._dual, state, episode_costs, ended)

    # --- the policy ---------------------------------------------------------------------------

    def _acting(self, state: State, mode: Mode) -> ScoreNetwork:
        if mode == "exploring" or state.average is None:
            return state.score
        return state.average

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
        schedule, scales = self.schedule
        state_half = score.state_half(obs)
        return reverse_chain(
            lambda x, k: self._score(score, state_half, x, k, bounding),
            schedule,
            scales,
            float(schedule.sigmas[-1]) * start,
            noise,
        )

    def _score(
        self,
        score: ScoreNetwork,
        state_half: Float[Array, "*batch hidden"],
        x: Float[Array, "*batch action"],
        k: Int[Array, "*batch"] | Int[Array, ""],
        bounding: Bounding,
    ) -> Float[Array, "*batch action"]:
        """phi(x, k), from what the network says of it."""
        said = score.scores(state_half, bounding.network_input(x), k)
        if self.head == "score":
            return said
        mean, log_deviation = jnp.split(said, 2, axis=-1)
        sigmas = jnp.asarray(self.schedule[0].sigmas, x.dtype)
        return gaussian_score(mean, log_deviation, x, sigmas[k][..., None])

    def _entropy(
        self, latents: Float[Array, "levels batch action"], draws: Draws
    ) -> Float[Array, " batch"]:
        """The bound of each row's entropy, after squashing; zero where nobody asks."""
        if self.temperature == "score":
            return jnp.zeros_like(latents[0, :, 0])
        bound = path_entropy(latents, draws.noise, *self.schedule)
        return bound + jnp.sum(log_slope(latents[-1]), axis=-1)

    def _beta(self, state: State) -> float | Float[Array, ""]:
        return self.beta if state.temperature is None else state.temperature.alpha

    @property
    def schedule(self) -> tuple[NoiseSchedule, Float[np.ndarray, " steps"]]:
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
        return jnp.asarray(self.schedule[0].sigmas, like.dtype)[tau][:, None]

    # --- energies ----------------------------------------------------------------------------

    def _energies(
        self, state: State, batch: Transition, action: Array, proposed: Array
    ) -> tuple[
        Float[Array, "batch points"],
        Float[Array, "batch points action"],
        Float[Array, "batch constraints"],
    ]:
        """L and its action gradient at a_0 and the proposals; Q_c at the dual step's actions."""
        product = bfloat16_product if self.energy_precision == "bfloat16" else jnp.matmul
        (q_critics, qc_critics, limit), lam = dimensionless(self, state), state.dual.lam

        points = jnp.concatenate([action[:, None], proposed], axis=1)
        qs, q_back = q_critics.values_and_pullback(batch.obs, points, product)
        qcs, qc_back = qc_critics.values_and_pullback(batch.obs, points, product)

        def total(qs: Array, qcs: Array) -> tuple[Array, tuple[Array, Array]]:
            q, qc = clipped_value(qs[..., 0]), pessimistic_cost(qcs, self.cost_spread)
            how = (lam, limit, self.rho, self.penalty_cap)
            energies = jax.vmap(jax.vmap(lambda q, qc: energy_of(self.energy, q, qc, *how)))(q, qc)
            # Rows do not interact: the gradient of the sum is each row's own gradient.
            return jnp.sum(energies), (energies, qc)

        (by_q, by_qc), (energies, qc) = jax.grad(total, (0, 1), has_aux=True)(qs, qcs)
        # By one critic of the two, and by the cost only where the constraint is not slack.
        grads = q_back(by_q) + qc_back(by_qc)
        if self.dual_actions == "policy":
            return energies, grads, qc[:, 0]
        replayed = qc_critics.values(batch.obs, batch.action)
        return energies, grads, pessimistic_cost(replayed, self.cost_spread)

    @property
    def _dual(self) -> Dual:
        return rule(self, hinge=self.rho if self.energy == "augmented" else 0.0)

    def draw(self, action_shape: tuple[int, ...], key: PRNGKeyArray) -> Draws:
        """The random numbers of one update."""
        normal_key, tau_key = jax.random.split(key)
        # One call: each is compiled anew, and six took nearly a third of the whole compilation.
        proposals = self.mc_samples if self.score_weight else 0
        counts = (1, self.denoise_steps, 1, self.denoise_steps, 1, proposals)
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

AUTHORS = replace(
    PAPER,
    sigma_min=0.01,
    sigma_max=1.0,
    last_step_noise=False,
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
    goal_is_terminal=True,
    dual="log-adam",
    polyak_every=2,
    prefill=5_000,
    throttle=5,
    deterministic="zero-noise",
)
"""What the authors' program does on the Safety-Gym tasks."""

SCALED = ALGD(
    normalise=True,
    n_step=3,
    critics="batch-norm",
    momentum=0.5,
    rates_go_on=True,
    cost_spread=0.0,
    policy_every=3,
    averaging=0.998,
    head="gaussian",
    sigma_min=0.05,
    temperature="learnt",
    entropy_per_action=-3.0,
    entropy_surplus=1.0,
    beta=0.02,
    score_weight=0.0,
    penalty_cap=0.3,
    dual="projected",
    dual_signal="episodes",
    dual_rate=4e-4,
    dual_credit=0.125,
    lam_floor=-1.0,
    floor_follows=True,
    initial_lam=-1.0,
    deterministic="best",
    exploration_noise=0.4,
)
"""Our default: units that scale themselves, batch-normalised critics, a learnt temperature, a
penalty of bounded slope, a multiplier that follows what episodes cost, noise in half of the
copies; docs/results.md says what each of them gave."""

PRESETS = {
    "algd": SCALED,
    "lgd": replace(SCALED, energy="plain", penalty_cap=0.0, initial_lam=0.0),
    # The reference of docs/benchmark.md keeps the noise that the default begins with.
    "algd-unconstrained": replace(
        SCALED,
        energy="reward",
        penalty_cap=0.0,
        initial_lam=0.0,
        dual_credit=LARGEST_EXCESS,
        entropy_per_action=-2.0,
        entropy_surplus=0.0,
    ),
    "algd-plain": ALGD(),
    "lgd-plain": ALGD(energy="plain"),
    "algd-paper": PAPER,
    "algd-code": AUTHORS,
    "algd-code-velocity": replace(
        AUTHORS, mask_cost=True, goal_is_terminal=False, timeout_is_terminal=True
    ),
}
SUMMARIES = {
    "algd": "ALGD (augmented Lagrangian, diffusion policy) with our defaults",
    "lgd": "algd with the plain Lagrangian",
    "algd-unconstrained": "algd without the constraint",
    "algd-plain": "ALGD with plain critics, fixed units and a fixed temperature",
    "lgd-plain": "algd-plain with the plain Lagrangian",
    "algd-paper": "ALGD as the paper's text has it",
    "algd-code": "ALGD as its authors' program has it on Safety-Gym tasks",
    "algd-code-velocity": "ALGD as its authors' program has it on velocity tasks",
}
