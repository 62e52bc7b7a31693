"""The lemma and Theorem 2: errors that fall with the number of Monte Carlo samples."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from algd.evaluation.stats import Interval, bootstrap_interval
from algd.experiments.fidelity import diffusion, smoothed_scores
from algd.experiments.theory.checks import Check, at_most, equals
from algd.experiments.theory.line import BETA, Energy, augmented, divergence, optimal_multiplier
from algd.experiments.theory.scores import in_latent
from algd.objectives.diffusion import monte_carlo_score


@dataclass(frozen=True)
class Sizes:
    """How much is drawn."""

    batches: int
    repeats: int
    samples: tuple[int, ...]
    fields: int
    steps: tuple[int, ...]
    draws: int


SCORE_POINTS = np.linspace(-1.0, 1.0, 6)
SCORE_SIGMA = 0.316


@partial(jax.jit, static_argnames=("energy",))
def _proposals(energy: Energy, actions: Float[Array, "*any"]) -> tuple[Array, Array]:
    flat = actions.reshape(-1)
    energies, grads = jax.vmap(jax.value_and_grad(energy))(flat)
    return energies.reshape(actions.shape), grads.reshape(actions.shape)


@jax.jit
def _estimates(
    energies: Float[Array, "*points samples"], grads: Float[Array, "*points samples"]
) -> Float[Array, "*points"]:
    """The library's Monte Carlo score at every point."""
    count = energies.shape[-1]
    one = jax.vmap(lambda e, g: monte_carlo_score(e, g[:, None], BETA)[0])
    found = one(energies.reshape(-1, count), grads.reshape(-1, count))
    return found.reshape(energies.shape[:-1])


def score_errors(sizes: Sizes) -> dict[str, np.ndarray]:
    """Errors of the Monte Carlo score over N, batch by batch; fewer samples are the first ones."""
    energy, points = in_latent(augmented(optimal_multiplier(BETA))), jnp.asarray(SCORE_POINTS)
    exact = np.asarray(smoothed_scores(energy, points, BETA, jnp.asarray([SCORE_SIGMA])))[0]
    rms = np.empty((sizes.batches, len(sizes.samples)))
    tails = []
    for i in range(sizes.batches):
        shape = (sizes.repeats, len(SCORE_POINTS), max(sizes.samples))
        noise = jax.random.normal(jax.random.fold_in(jax.random.key(0), i), shape)
        energies, grads = _proposals(energy, points[:, None] + SCORE_SIGMA * noise)
        for j, count in enumerate(sizes.samples):
            error = np.asarray(_estimates(energies[..., :count], grads[..., :count])) - exact
            rms[i, j] = np.sqrt((error**2).mean())
            if j == len(sizes.samples) // 2:
                tails.append(np.abs(error[:, 0]))
    unsmoothed = -np.asarray(jax.vmap(jax.grad(energy))(points)) / BETA
    shift = np.abs(unsmoothed - exact)
    return {"rms": rms, "tail": np.concatenate(tails), "shift": shift, "exact": exact}


@jax.jit
def _carried(
    xs: Float[Array, " points"],
    variances: Float[Array, " levels"],
    scores: Float[Array, "levels points"],
) -> Float[Array, "levels_and_end points"]:
    """The chain's masses on a grid, start to end: Euler-Maruyama, noise in every step."""
    start = jnp.exp(-(xs**2) / (2.0 * jnp.sum(variances)))

    def step(masses: Array, level: tuple[Array, Array]) -> tuple[Array, Array]:
        variance, score = level
        means = xs + variance * score
        exponents = -((xs - means[:, None]) ** 2) / (2.0 * variance)
        masses = masses @ jax.nn.softmax(exponents, axis=1)
        return masses, masses

    start = start / jnp.sum(start)
    _, later = jax.lax.scan(step, start, (variances, scores), reverse=True)
    return jnp.concatenate([start[None], later[::-1]])


def kl_of_fields(sizes: Sizes) -> dict[str, Float[np.ndarray, "fields samples"]]:
    """KL of the exact chain from one whose score was estimated once with N samples.

    Masses are carried through the chain by quadrature, so that no draw of the chain blurs a small
    divergence. One field is one set of N proposals at each level. `path` is the sum that Girsanov's
    theorem gives for whole chains, `end` the divergence of the last latents.
    """
    schedule, _ = diffusion("algd").schedule
    xs = jnp.asarray(np.linspace(-5.0, 5.0, 501))
    energy = in_latent(augmented(optimal_multiplier(BETA)))
    sigmas, variances = jnp.asarray(schedule.sigmas), jnp.asarray(schedule.delta_sigma2)
    exact = smoothed_scores(energy, xs, BETA, sigmas)
    along = _carried(xs, variances, exact)
    path, end = (np.empty((sizes.fields, len(sizes.samples))) for _ in range(2))
    for i in range(sizes.fields):
        key = jax.random.fold_in(jax.random.key(1), i)
        noise = jax.random.normal(key, (len(sigmas), 1, max(sizes.samples)))
        energies, grads = _proposals(energy, xs[:, None] + sigmas[:, None, None] * noise)
        for j, count in enumerate(sizes.samples):
            scores = _estimates(energies[..., :count], grads[..., :count])
            error = np.asarray(scores - exact) ** 2
            # Level k is entered with the masses that k more steps have yet to move.
            entered = np.asarray(along[:-1])[::-1]
            path[i, j] = 0.5 * np.asarray(variances) @ (entered * error).sum(axis=1)
            one, other = np.asarray(along[-1]), np.asarray(_carried(xs, variances, scores)[-1])
            end[i, j] = divergence(one, other)
    return {"path": path, "end": end}


def slope_interval(
    counts: tuple[int, ...], values: Float[np.ndarray, "batches counts"]
) -> tuple[float, Interval]:
    """The log-log slope of the mean over batches, with an interval from drawing batches anew."""

    def slope(rows: np.ndarray) -> float:
        means = np.log(values[rows.astype(int)].mean(axis=0))
        return float(np.polyfit(np.log(counts), means, 1)[0])

    every = np.arange(len(values))
    return slope(every), bootstrap_interval(every.astype(float), slope, resamples=1000)


def rate_checks(
    sizes: Sizes, errors: dict[str, np.ndarray], field_kl: dict[str, np.ndarray]
) -> list[Check]:
    """Slopes in N, the tail of the error, and what the estimator converges to."""
    checks = []
    for statement, measured, values, expected, width in (
        (
            "Lemma: the Monte Carlo score errs by 1/√N",
            f"log-log slope of the RMS error, N = {sizes.samples[0]} to {sizes.samples[-1]}",
            errors["rms"],
            -0.5,
            0.1,
        ),
        (
            "Theorem 2: the Monte Carlo term of the KL falls like 1/N",
            "log-log slope of the path divergence (Girsanov sum), K = 5",
            field_kl["path"],
            -1.0,
            0.15,
        ),
        (
            "Theorem 2, for the actions themselves",
            "log-log slope of KL(exact chain's end ‖ estimated chain's end), K = 5",
            field_kl["end"],
            -1.0,
            0.2,
        ),
    ):
        value, interval = slope_interval(sizes.samples, values)
        figures = (value, float(interval.low), float(interval.high))
        near = abs(value - expected) <= width
        checks.append(Check(statement, measured, *figures, f"{expected} ± {width}", near))
    share = np.array([0.5, 0.1, 0.01, 0.001])
    quantiles = np.quantile(errors["tail"], 1.0 - share) / np.sqrt(np.log(2.0 / share))
    excess = field_kl["end"].mean(axis=0) / field_kl["path"].mean(axis=0)
    return [
        *checks,
        at_most(
            "Lemma: the error's tail is sub-Gaussian, √log(2/δ)",
            "largest ratio of the error's (1 − δ)-quantile over √log(2/δ) to the one at δ = 0.5, "
            "δ down to 0.001; below 2.47 for a Gaussian",
            float((quantiles / quantiles[0]).max()),
            2.47,
        ),
        at_most(
            "Lemma, proof: the estimator tends to −∇L_A(a^τ)/β",
            f"largest distance of its limit, the smoothed score, from that at σ = {SCORE_SIGMA} "
            f"(scores reach {np.abs(errors['exact']).max():.1f})",
            float(errors["shift"].max()),
            1e-3,
        ),
        equals(
            "Theorem 2, proof: the KL of the actions equals the path divergence",
            "largest ratio of the first to the second; it cannot exceed 1, so the term in N is "
            "safe, but 2 KL(π* ‖ π_A) in the bound should be the path's",
            float(excess.max()),
            1.0,
            0.05,
        ),
    ]
