"""The paper's statements, measured: where they hold, how fast, and where they need a condition.

Each check is one row: the statement, what was measured, the figure, and whether it holds as the
paper writes it. Energies, scores and chains are the library's own; references are quadrature.
"""

import csv
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import brentq
from scipy.special import rel_entr

from algd import surfaces
from algd.algorithms import preset
from algd.diffusion import geometric_schedule, monte_carlo_score
from algd.energies import augmented_lagrangian, lagrangian
from algd.experiments.fidelity import fidelity, smoothed_scores, two_well
from algd.experiments.scale import Scale
from algd.stats import Interval, bootstrap_interval

# A line long enough that no density here reaches its ends.
LINE = np.linspace(-4.0, 4.0, 8001)
LIMIT, RHO, BETA = 0.8, 1.0, 0.3
# The edges of the action set cut into both wells.
BOX = 0.6
SIGMAS = np.array([0.01, 0.0316, 0.1, 0.316, 1.0])


class Check(NamedTuple):
    """One statement and what became of it; `low` and `high` where the figure has an interval."""

    statement: str
    measured: str
    value: float
    low: float
    high: float
    criterion: str
    holds: bool


@dataclass(frozen=True)
class Sizes:
    """How much is drawn."""

    batches: int
    repeats: int
    samples: tuple[int, ...]
    fields: int
    steps: tuple[int, ...]
    draws: int


SIZES: dict[Scale, Sizes] = {
    "smoke": Sizes(4, 100, (32, 128, 512), 8, (5,), 20_000),
    "cpu": Sizes(20, 400, (16, 32, 64, 128, 256, 512, 1024), 64, (2, 3, 5, 8, 12, 20, 40), 200_000),
    "paper": Sizes(
        40, 1000, (16, 32, 64, 128, 256, 512, 1024, 2048), 256, (2, 3, 5, 8, 12, 20, 40, 80), 10**6
    ),
}


def reproduce(scale: Scale, out: Path) -> None:
    """Write theory.csv, theory.md, fidelity.csv and three pictures into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    sizes = SIZES[scale]
    checks: list[Check] = []
    with jax.enable_x64(True):
        for part in (score_checks, curvature_checks, invariance_checks):
            _say(part.__name__.replace("_", " "))
            checks += part()
        _say("rates over the number of samples")
        errors = score_errors(sizes)
        field_kl = kl_of_fields(sizes)
        checks += rate_checks(sizes, errors, field_kl)
        _say("score gap of a perturbed energy")
        gaps = score_gaps()
        checks += gap_checks(gaps)
    _say(f"samplers of {max(sizes.steps)} steps and fewer")
    distances = fidelity(sizes.steps, sizes.draws)
    checks += fidelity_checks(distances)
    write_rows(out / "theory.csv", [check._asdict() for check in checks])
    write_rows(out / "fidelity.csv", distances)
    surfaces.draw_rates(sizes.samples, errors, field_kl, gaps, out / "theory_rates.png")
    surfaces.draw_fidelity(distances, out / "theory_fidelity.png")
    surfaces.draw_invariance(LINE, invariance_curves(), out / "theory_invariance.png")
    (out / "theory.md").write_text(as_table(checks))
    _say(f"wrote {out / 'theory.md'}")


def _say(what: str) -> None:
    print(f"theory: {what}", flush=True)


# --- a constrained problem on a line ----------------------------------------------------------


def value(action: Float[Array, ""]) -> Float[Array, ""]:
    """Q: two good actions, of which the left one is better."""
    return -two_well(action)


def cost(action: Float[Array, ""]) -> Float[Array, ""]:
    """Q_c: the left one is dear."""
    return 1.0 - jnp.tanh(2.0 * action) + 0.1 * action**2


Energy = Callable[[Float[Array, ""]], Float[Array, ""]]


def plain(lam: float, limit: float = LIMIT) -> Energy:
    """L as a function of the action."""

    def energy(action: Array) -> Array:
        return lagrangian(value(action), cost(action)[None], _one(lam, action), _one(limit, action))

    return energy


def augmented(lam: float, rho: float = RHO, limit: float = LIMIT) -> Energy:
    """L_A as a function of the action."""

    def energy(action: Array) -> Array:
        lams, limits = _one(lam, action), _one(limit, action)
        return augmented_lagrangian(value(action), cost(action)[None], lams, limits, rho)

    return energy


def _one(number: float, like: Array) -> Array:
    return jnp.full((1,), number, like.dtype)


def on_line(function: Energy, points: np.ndarray = LINE) -> Float[np.ndarray, " points"]:
    """A function of one action at many."""
    return np.asarray(jax.vmap(function)(jnp.asarray(points)))


def boltzmann(energy: Energy, beta: float) -> Float[np.ndarray, " points"]:
    """The normalised density exp(-E/beta) on the line."""
    energies = on_line(energy) / beta
    density = np.exp(energies.min() - energies)
    return density / np.trapezoid(density, LINE)


def optimal_multiplier(beta: float) -> float:
    """The dual optimum of the plain problem: its Boltzmann policy costs the limit on average."""
    costs = on_line(cost)
    excess = lambda lam: np.trapezoid(boltzmann(plain(lam), beta) * costs, LINE) - LIMIT  # noqa: E731
    return float(brentq(excess, 0.0, 100.0, xtol=1e-12))  # pyright: ignore[reportArgumentType]


# --- Proposition 1 ----------------------------------------------------------------------------


def tweedie_score(
    density: Float[np.ndarray, " points"], points: np.ndarray, sigma: float
) -> np.ndarray:
    """The score of the smoothed density without any gradient of the energy."""
    exponents = np.log(np.maximum(density, 1e-300)) - (points[:, None] - LINE) ** 2 / 2 / sigma**2
    weights = np.exp(exponents - exponents.max(axis=1, keepdims=True)) * (density > 0)
    return ((weights @ LINE) / weights.sum(axis=1) - points) / sigma**2


def relative_error(got: np.ndarray, exact: np.ndarray) -> float:
    """The largest difference, relative to one plus the exact value."""
    return float((np.abs(got - exact) / (1 + np.abs(exact))).max())


def score_checks() -> list[Check]:
    """The energy-weighted gradient against the derivative of the smoothed log-density."""
    points, lam = np.linspace(-1.0, 1.0, 81), optimal_multiplier(BETA)
    checks = [
        at_most(
            f"Proposition 1: the score is the weighted mean of −∇{name}/β",
            "largest relative difference to the smoothed density's score by quadrature, "
            "5 noise levels, 81 points",
            score_error(energy, boltzmann(energy, BETA), points, SIGMAS),
            1e-5,
        )
        for name, energy in (("L", plain(lam)), ("L_A", augmented(lam)))
    ]
    inside = np.abs(LINE) <= BOX
    cut = np.where(inside, boltzmann(plain(lam), BETA), 0.0)
    latent = in_latent(plain(lam))
    return [
        *checks,
        at_most(
            "Proposition 1 on a compact action set, as the paper assumes",
            f"the same with the density cut to [−{BOX}, {BOX}], σ = 0.316: the formula lacks the "
            "boundary's part",
            score_error(plain(lam), cut, points[np.abs(points) <= BOX], SIGMAS[3:4]),
            1e-5,
        ),
        at_most(
            "Proposition 1 on the box, in a tanh latent with the Jacobian in the energy (`algd`)",
            "largest relative difference to quadrature in the latent, σ = 0.316",
            score_error(latent, boltzmann(latent, BETA), points, SIGMAS[3:4]),
            1e-5,
        ),
    ]


def score_error(
    energy: Energy, density: np.ndarray, points: np.ndarray, sigmas: np.ndarray
) -> float:
    """Proposition 1's formula against the score of a smoothed density."""
    # L_A has a kink in its gradient: equally spaced nodes must be close there.
    nodes = np.linspace(-16.0, 16.0, 12_001)
    formula = smoothed_scores(energy, jnp.asarray(points), BETA, jnp.asarray(sigmas), nodes)
    exact = np.stack([tweedie_score(density, points, sigma) for sigma in sigmas])
    return relative_error(np.asarray(formula), exact)


def in_latent(energy: Energy) -> Energy:
    """The energy of x whose density is, in the action BOX tanh(x), that of the energy on the box.

    As in `ALGD` with `bounds="boltzmann"`; unlike the two wells themselves its slope is bounded.
    """

    def of_latent(latent: Array) -> Array:
        log_slope = 2.0 * (jnp.log(2.0) - latent - jax.nn.softplus(-2.0 * latent))
        return energy(BOX * jnp.tanh(latent)) - BETA * log_slope

    return of_latent


# --- Theorem 1 (a) ----------------------------------------------------------------------------


def plane_value(action: Float[Array, " 2"]) -> Float[Array, ""]:
    """Q in two dimensions: two wells that a winding valley joins."""
    return -two_well(action[0]) - 0.5 * (action[1] - 0.3 * jnp.sin(3.0 * action[0])) ** 2


def plane_cost(action: Float[Array, " 2"]) -> Float[Array, ""]:
    """Q_c: a round hazard between them."""
    offset = action - jnp.array([0.2, -0.1], action.dtype)
    return 2.0 * jnp.exp(-jnp.sum(offset**2) / (2.0 * 0.4**2))


PLANE_LIMIT, PLANE_LAM = 1.0, 0.5


class Curvature(NamedTuple):
    """Hessians of both energies at points, what the theorem adds, and the cost there."""

    plain: Float[np.ndarray, "points 2 2"]
    augmented: Float[np.ndarray, "points 2 2"]
    reward: Float[np.ndarray, "points 2 2"]
    outer: Float[np.ndarray, "points 2 2"]
    cost_hessian: Float[np.ndarray, "points 2 2"]
    excess: Float[np.ndarray, " points"]


@partial(jax.jit, static_argnames=("rho",))
def _hessians(points: Float[Array, "points 2"], rho: float) -> tuple[Array, ...]:
    def in_terms_of(action: Array, energy: Callable[..., Array], *more: float) -> Array:
        lam, limit = _one(PLANE_LAM, action), _one(PLANE_LIMIT, action)
        return energy(plane_value(action), plane_cost(action)[None], lam, limit, *more)

    def at(action: Array) -> tuple[Array, ...]:
        slope = jax.grad(plane_cost)(action)
        return (
            jax.hessian(lambda a: in_terms_of(a, lagrangian))(action),
            jax.hessian(lambda a: in_terms_of(a, augmented_lagrangian, rho))(action),
            jax.hessian(lambda a: -plane_value(a))(action),
            rho * jnp.outer(slope, slope),
            jax.hessian(plane_cost)(action),
            plane_cost(action) - PLANE_LIMIT,
        )

    return jax.vmap(at)(points)


def curvature_at(points: Float[np.ndarray, "points 2"], rho: float = RHO) -> Curvature:
    """Everything that Theorem 1 (a) speaks of."""
    return Curvature(*(np.asarray(x) for x in _hessians(jnp.asarray(points), rho)))


def smallest_eigenvalue(hessians: Float[np.ndarray, "points 2 2"]) -> Float[np.ndarray, " points"]:
    """Of each symmetric matrix."""
    return np.linalg.eigvalsh(hessians)[:, 0]


def boundary(radius_factor: np.ndarray) -> Float[np.ndarray, "points 2"]:
    """Points on circles around the hazard; the factor 1 is the constraint's boundary."""
    radius = 0.4 * math.sqrt(2.0 * math.log(2.0)) * np.asarray(radius_factor)
    angle = np.linspace(0.0, 2.0 * np.pi, 360, endpoint=False)
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    return (np.array([0.2, -0.1]) + radius[:, None, None] * circle).reshape(-1, 2)


def curvature_checks() -> list[Check]:
    """The Hessian identity, its remainder, and what the added curvature does."""
    side = np.linspace(-1.0, 1.0, 101)
    grid = np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1).reshape(-1, 2)
    here = curvature_at(grid)
    active = PLANE_LAM + RHO * here.excess > 0
    full = here.plain + here.outer + RHO * here.excess[:, None, None] * here.cost_hessian
    identity = np.abs(here.augmented - full)[active].max()
    off = np.abs(here.augmented - here.plain)[~active].max()
    to_reward = np.abs(here.augmented - here.reward)[~active].max()
    near = curvature_at(boundary(1.0 - np.geomspace(1e-4, 1e-1, 13)))
    remainder = np.linalg.norm(near.augmented - near.plain - near.outer, axis=(1, 2))
    slope = np.polyfit(np.log(np.abs(near.excess)), np.log(remainder), 1)[0]
    edge = curvature_at(boundary(np.ones(1)))
    gain = smallest_eigenvalue(edge.augmented) - smallest_eigenvalue(edge.plain)
    change = smallest_eigenvalue(here.augmented) - smallest_eigenvalue(here.plain)
    strong = curvature_at(boundary(np.ones(1)), rho=1000.0)
    return [
        at_most(
            "Theorem 1 (a): ∇²L_A = ∇²L + ρ∇Q_c∇Q_cᵀ + ρ(Q_c − h)∇²Q_c where λ + ρ(Q_c − h) > 0",
            "largest difference of automatic Hessians over the box",
            float(identity),
            1e-10,
        ),
        equals(
            "Theorem 1 (a): the remainder is O(|Q_c − h|)",
            "slope of its norm against |Q_c − h|, log-log",
            float(slope),
            1.0,
            0.05,
        ),
        at_least(
            "Theorem 1 (a): at Q_c = h no direction loses curvature",
            "smallest gain of the smallest eigenvalue, 360 points of the boundary",
            float(gain.min()),
            -1e-12,
        ),
        at_most(
            "Theorem 1 (a): more curvature in a neighbourhood, wherever the constraint is active",
            "share of the active region where the smallest eigenvalue falls (Q_c is concave there)",
            float((change < -1e-9)[active].mean()),
            0.0,
        ),
        at_least(
            "Theorem 1 (a), read as convexity: a large ρ makes the boundary's energy convex",
            "share of the boundary with a convex energy at ρ = 1000 "
            f"(plain: {(smallest_eigenvalue(edge.plain) >= 0).mean():.2f}, "
            f"ρ = 1: {(smallest_eigenvalue(edge.augmented) >= 0).mean():.2f}); "
            "ρ adds nothing along it",
            float((smallest_eigenvalue(strong.augmented) >= 0).mean()),
            1.0,
        ),
        at_most(
            "Theorem 1 (a), discussion: where the constraint is inactive L_A has the geometry of L",
            f"largest |∇²L_A − ∇²L| there; it is λ∇²Q_c, for L_A is −Q − λ²/2ρ "
            f"(|∇²L_A + ∇²Q| = {to_reward:.0e})",
            float(off),
            1e-10,
        ),
    ]


# --- Theorem 1 (b) ----------------------------------------------------------------------------


def tv(one: np.ndarray, other: np.ndarray) -> float:
    """Total variation of two densities on the line."""
    return float(0.5 * np.trapezoid(np.abs(one - other), LINE))


def kl(one: np.ndarray, other: np.ndarray) -> float:
    """Divergence of `one` from `other`, densities on the line."""
    return divergence(one, other) * float(LINE[1] - LINE[0])


def divergence(one: np.ndarray, other: np.ndarray) -> float:
    """Kullback-Leibler divergence of masses."""
    return float(rel_entr(one, np.maximum(other, 1e-300)).sum())


def invariance_curves() -> dict[str, np.ndarray]:
    """Cost and the densities of both energies at the optimal multiplier, for a picture."""
    with jax.enable_x64(True):
        lam = optimal_multiplier(BETA)
        return {
            "cost": on_line(cost) - LIMIT,
            "plain": boltzmann(plain(lam), BETA),
            "augmented": boltzmann(augmented(lam), BETA),
            "gap": on_line(augmented(lam)) - on_line(plain(lam)),
        }


def invariance_checks() -> list[Check]:
    """What stays as it was at the optimal multiplier, and what does not."""
    lam, costs = optimal_multiplier(BETA), on_line(cost)
    edge = brentq(lambda a: float(cost(jnp.asarray(a))) - LIMIT, -1.0, 1.0)
    at_edge = np.array([edge])
    equal = abs(float(on_line(augmented(lam), at_edge)[0] - on_line(plain(lam), at_edge)[0]))
    safe = costs <= LIMIT
    inactive = np.abs(on_line(augmented(0.0)) - on_line(plain(0.0)))[safe].max()
    ours, theirs = boltzmann(augmented(lam), BETA), boltzmann(plain(lam), BETA)
    box = np.abs(LINE) <= 1.0
    gap = np.abs(on_line(augmented(lam)) - on_line(plain(lam)))[box].max()
    # A convex problem with the multiplier 1: maximise −(a − 1)² under a ≤ 1/2.
    convex_plain, convex_augmented = _convex(False), _convex(True)
    least = [on_line(e).min() for e in (convex_plain, convex_augmented)]
    where = [LINE[on_line(e).argmin()] for e in (convex_plain, convex_augmented)]
    cold = [_gaussian_tv(beta) for beta in (1e-2, 1e-3)]
    limit_tv = _variance_ratio_tv(2.0, 2.0 + RHO)
    wells = [on_line(e).min() for e in (plain(lam), augmented(lam))]
    return [
        at_most(
            "Theorem 1 (b): L_A = L where Q_c = h",
            f"|L_A − L| at the boundary, optimal multiplier λ* = {lam:.3f}",
            equal,
            1e-10,
        ),
        at_most(
            "Theorem 1 (b): L_A = L in the safe region if λ* = 0",
            "largest |L_A − L| over Q_c ≤ h",
            float(inactive),
            1e-10,
        ),
        at_most(
            "Theorem 1 (b) as printed: exp(−L_A/β) = exp(−L/β) at λ*",
            "largest |L_A − L| over the box at λ* > 0; ρ(Q_c − h)²/2 where active",
            float(gap),
            1e-10,
        ),
        at_most(
            "Theorem 1 (b) as printed: the Boltzmann policy is unchanged",
            f"total variation of the two policies, β = {BETA}; mean cost "
            f"{np.trapezoid(theirs * costs, LINE):.3f} (L) and "
            f"{np.trapezoid(ours * costs, LINE):.3f} (L_A), limit {LIMIT}",
            tv(ours, theirs),
            1e-6,
        ),
        at_most(
            "Theorem 1 (b), optimal value and optimal action of a convex problem",
            "difference of the minima plus distance of the minimisers at λ* = 1",
            float(abs(least[0] - least[1]) + abs(where[0] - where[1])),
            1e-9,
        ),
        at_most(
            "Theorem 1 (b), the policies of the same convex problem as β → 0",
            f"total variation at β = 0.001 (at 0.01: {cold[0]:.4f}): not 0 but that of two "
            f"Gaussians of curvature 2 and 2 + ρ, {limit_tv:.4f}; both shrink to the same action",
            cold[1],
            1e-3,
        ),
        at_most(
            "Theorem 1 (b), optimal value where the problem is not convex",
            "min L_A − min L at λ*; they agree only if the minimiser lies at Q_c = h",
            float(abs(wells[1] - wells[0])),
            1e-6,
        ),
        at_most(
            "Corollary, step 1: L_A(λ) → L(λ*) as λ → λ*, so that Theorem 2's first term vanishes",
            "KL(π* ‖ π_A) at λ = λ* itself",
            kl(theirs, ours),
            1e-6,
        ),
    ]


def _convex(augment: bool) -> Energy:
    def energy(action: Array) -> Array:
        terms = (-((action - 1.0) ** 2), action[None], _one(1.0, action), _one(0.5, action))
        return augmented_lagrangian(*terms, RHO) if augment else lagrangian(*terms)

    return energy


def _gaussian_tv(beta: float) -> float:
    return tv(boltzmann(_convex(False), beta), boltzmann(_convex(True), beta))


def _variance_ratio_tv(one: float, other: float) -> float:
    """Total variation of two centred Gaussians with these curvatures (inverse variances)."""
    crossing = math.sqrt(math.log(other / one) / (other - one))
    inside = [math.erf(crossing * math.sqrt(c / 2.0)) for c in (one, other)]
    return inside[1] - inside[0]


# --- Lemma and Theorem 2: rates in N ----------------------------------------------------------

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
    algorithm: Any = preset("algd")
    schedule = geometric_schedule(algorithm.sigma_min, algorithm.sigma_max, algorithm.denoise_steps)
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
        checks.append(
            Check(
                statement,
                measured,
                value,
                float(interval.low),
                float(interval.high),
                f"{expected} ± {width}",
                abs(value - expected) <= width,
            )
        )
    share = np.array([0.5, 0.1, 0.01, 0.001])
    quantiles = np.quantile(errors["tail"], 1.0 - share) / np.sqrt(np.log(2.0 / share))
    checks.append(
        at_most(
            "Lemma: the error's tail is sub-Gaussian, √log(2/δ)",
            "largest ratio of the error's (1 − δ)-quantile over √log(2/δ) to the one at δ = 0.5, "
            "δ down to 0.001; below 2.47 for a Gaussian",
            float((quantiles / quantiles[0]).max()),
            2.47,
        )
    )
    checks.append(
        at_most(
            "Lemma, proof: the estimator tends to −∇L_A(a^τ)/β",
            f"largest distance of its limit, the smoothed score, from that at σ = {SCORE_SIGMA} "
            f"(scores reach {np.abs(errors['exact']).max():.1f})",
            float(errors["shift"].max()),
            1e-3,
        )
    )
    excess = field_kl["end"].mean(axis=0) / field_kl["path"].mean(axis=0)
    checks.append(
        equals(
            "Theorem 2, proof: the KL of the actions equals the path divergence",
            "largest ratio of the first to the second; it cannot exceed 1, so the term in N is "
            "safe, but 2 KL(π* ‖ π_A) in the bound should be the path's",
            float(excess.max()),
            1.0,
            0.05,
        )
    )
    return checks


# --- the corollary ----------------------------------------------------------------------------

GAPS = np.geomspace(1e-4, 1e-1, 7)
BETAS = np.geomspace(0.05, 5.0, 9)


def score_gaps() -> dict[str, np.ndarray]:
    """Squared score gap, KL and bound of L + ε sin(3a)/3 against L, over ε and over β."""
    base = plain(optimal_multiplier(BETA))
    points, sigmas = jnp.linspace(-1.0, 1.0, 81), jnp.asarray([0.1])
    steepest = float(np.abs(np.asarray(jax.vmap(jax.grad(base))(points))).max())

    # |sin(3a)|/3 and its slope are both at most one.
    def perturbed(eps: Any) -> Energy:
        return lambda action: base(action) + eps * jnp.sin(3.0 * action) / 3.0

    @jax.jit
    def scores(eps: Array, beta: Array) -> Array:
        return smoothed_scores(perturbed(eps), points, beta, sigmas)

    def gap(eps: float, beta: float) -> tuple[float, float, float]:
        one, other = (scores(jnp.asarray(e), jnp.asarray(beta)) for e in (0.0, eps))
        # The proof's constants: C_1 = 1 and C_2 = 2G.
        bound = (eps / beta + 2.0 * steepest * eps / beta**2) ** 2
        between = kl(boltzmann(base, beta), boltzmann(perturbed(eps), beta))
        return float(jnp.max((one - other) ** 2)), between, bound

    by_eps = np.array([gap(float(eps), BETA) for eps in GAPS])
    by_beta = np.array([gap(1e-3, float(beta)) for beta in BETAS])
    return {"by_eps": by_eps, "by_beta": by_beta, "eps": GAPS, "beta": BETAS}


def gap_checks(gaps: dict[str, np.ndarray]) -> list[Check]:
    """ε² exactly, and how steep in β, beside the bound's 2 to 4."""
    fit = lambda x, y: float(np.polyfit(np.log(x), np.log(y), 1)[0])  # noqa: E731
    beta_slope = fit(gaps["beta"], gaps["by_beta"][:, 0])
    kl_slope = fit(gaps["beta"], gaps["by_beta"][:, 1])
    every = np.concatenate([gaps["by_eps"], gaps["by_beta"]])
    return [
        equals(
            "Corollary: the squared score gap grows like ε²",
            f"log-log slope over ε from 1e-4 to 0.1 at β = {BETA}",
            fit(gaps["eps"], gaps["by_eps"][:, 0]),
            2.0,
            0.1,
        ),
        equals(
            "Theorem 2, remark: KL(π* ‖ π_A) grows like ε²",
            f"log-log slope over ε from 1e-4 to 0.1 at β = {BETA}",
            fit(gaps["eps"], gaps["by_eps"][:, 1]),
            2.0,
            0.1,
        ),
        at_least(
            "Corollary: in β not steeper than β⁻⁴",
            "log-log slope of the squared score gap over β from 0.05 to 5 at ε = 0.001",
            beta_slope,
            -4.0,
        ),
        at_least(
            "Theorem 2, remark: KL(π* ‖ π_A) in β not steeper than β⁻⁴",
            "log-log slope over β from 0.05 to 5 at ε = 0.001",
            kl_slope,
            -4.0,
        ),
        at_most(
            "Corollary: the bound itself, with C₁ = 1 and C₂ = 2 max|∇L|",
            "largest ratio of the squared score gap to the bound",
            float((every[:, 0] / every[:, 2]).max()),
            1.0,
        ),
    ]


# --- the sampler ------------------------------------------------------------------------------


def fidelity_checks(rows: list[dict[str, Any]]) -> list[Check]:
    """What is left with the exact score: the part that Theorem 2 does not speak of."""
    checks = []
    for name in ("algd-paper", "algd-code", "algd"):
        of_name = {
            count: [r for r in rows if r["preset"] == name and r["steps"] == count]
            for count in sorted({r["steps"] for r in rows})
        }
        five, most = of_name[5], of_name[max(of_name)]
        checks.append(
            at_most(
                f"Theorem 2 as N → ∞ and L_A = L: the sampler of `{name}` draws from exp(−L/β)",
                "largest KL over β = 0.1, 0.3, 1 with the exact score and K = 5 (total variation "
                f"{max(r['total_variation'] for r in five):.2f}; with K = {max(of_name)} "
                f"{max(r['total_variation'] for r in most):.2f})",
                max(r["kl"] for r in five),
                1e-2,
            )
        )
    return checks


# --- rows -------------------------------------------------------------------------------------


def at_most(statement: str, measured: str, value: float, bound: float) -> Check:
    """Holds if the figure is not above the bound."""
    return Check(statement, measured, value, np.nan, np.nan, f"≤ {bound:g}", bool(value <= bound))


def at_least(statement: str, measured: str, value: float, bound: float) -> Check:
    """Holds if the figure is not below the bound."""
    return Check(statement, measured, value, np.nan, np.nan, f"≥ {bound:g}", bool(value >= bound))


def equals(statement: str, measured: str, value: float, expected: float, width: float) -> Check:
    """Holds if the figure is within `width` of what is expected."""
    criterion, near = f"{expected:g} ± {width:g}", abs(value - expected) <= width
    return Check(statement, measured, value, np.nan, np.nan, criterion, bool(near))


def as_table(checks: list[Check]) -> str:
    """A Markdown table for a reader."""
    lines = [
        "| statement | measured | figure | would hold at | holds |",
        "|---|---|---|---|---|",
    ]
    for check in checks:
        figure = f"{check.value:.3g}"
        if np.isfinite(check.low):
            figure += f" [{check.low:.3g}, {check.high:.3g}]"
        shown = (check.statement, check.measured, figure, check.criterion)
        cells = (*shown, "yes" if check.holds else "**no**")
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Rows of equal keys as CSV."""
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
