"""The smoothed score and the sampler against closed forms and quadrature."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algd.algorithms import preset
from algd.experiments.fidelity import sample_two_well, smoothed_scores, total_variation, two_well
from algd.networks.gaussian import Temperature
from algd.objectives.diffusion import (
    boltzmann_weights,
    gaussian_score,
    geometric_schedule,
    monte_carlo_score,
    noise_scales,
    path_entropy,
    reverse_chain,
)
from algd.types import Budget, EnvSpec, Transition

DATA = Path(__file__).parent / "data" / "analytic"


def relative(got, expected):
    return np.abs(got - expected) / (1 + np.abs(expected))


@pytest.fixture
def _double():
    with jax.enable_x64(True):
        yield


def test_program_schedule_and_its_sum():
    schedule = geometric_schedule(0.01, 1.0, 5)
    np.testing.assert_allclose(
        schedule.sigmas, [0.01, 0.01 * 10**0.5, 0.1, 10**-0.5, 1.0], rtol=0, atol=1e-12
    )
    np.testing.assert_allclose(
        schedule.delta_sigma2, [1e-4, 9e-4, 9e-3, 9e-2, 0.9], rtol=0, atol=1e-12
    )
    for low, high, steps in ((1e-4, 1e-1, 5), (0.07, 1.0, 5), (0.01, 2.0, 17)):
        total = geometric_schedule(low, high, steps).delta_sigma2.sum()
        assert total == pytest.approx(high**2, rel=1e-12)


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.usefixtures("_double")
def test_estimator_with_given_noise(dim):
    data = np.load(DATA / "quadratic.npz")
    get = lambda name: data[f"dim{dim}/{name}"]  # noqa: E731
    mu, points, noise = get("mu"), get("points"), get("noise_mc")
    for i, kappa in enumerate(data["kappa"]):
        for j, beta in enumerate(data["beta"]):
            for k, sigma in enumerate(data["sigma"]):
                actions = points[:, None] + sigma * noise
                energies = ((actions - mu) ** 2).sum(-1) / (2 * kappa)
                grads = (actions - mu) / kappa
                weights = jax.vmap(lambda e, b=float(beta): boltzmann_weights(e, b))(
                    jnp.asarray(energies)
                )
                score = jax.vmap(lambda e, g, b=float(beta): monte_carlo_score(e, g, b))(
                    jnp.asarray(energies), jnp.asarray(grads)
                )
                assert relative(weights, get("mc_weights")[i, j, k]).max() < 1e-11
                assert relative(score, get("mc_score")[i, j, k]).max() < 1e-11


@pytest.mark.usefixtures("_double")
def test_estimator_tends_to_the_exact_score():
    """Bias falls like 1/N: at N = 4 it is large, at N = 4096 gone."""
    kappa, beta, sigma, mu = 0.5, 0.4, 0.6, 0.3
    point = 1.2
    exact = -(point - mu) / (kappa * beta + sigma**2)

    @partial(jax.jit, static_argnums=(0, 1))
    def estimates(samples, repeats):
        noise = jax.random.normal(jax.random.key(samples), (repeats, samples, 1))
        actions = point + sigma * noise
        energies = ((actions - mu) ** 2)[..., 0] / (2 * kappa)
        return jax.vmap(lambda e, g: monte_carlo_score(e, g, beta))(
            energies, (actions - mu) / kappa
        )

    def mean_estimate(samples, repeats):
        scores = estimates(samples, repeats)
        return float(scores.mean()), float(scores.std()) / np.sqrt(repeats)

    biases = []
    for samples, repeats in ((4, 100_000), (16, 50_000), (64, 20_000)):
        mean, error = mean_estimate(samples, repeats)
        biases.append(abs(mean - exact))
        assert error < 0.01
    assert biases[0] > 2.5 * biases[1] > 5 * biases[2]
    mean, error = mean_estimate(4096, 500)
    assert abs(mean - exact) < 4 * error + 0.01


@pytest.mark.usefixtures("_double")
def test_estimator_matches_quadrature_of_a_two_well_energy():
    data = np.load(DATA / "two_well.npz")
    height, half, tilt = (float(data[n]) for n in ("height", "half_distance", "tilt"))
    energy = lambda a: height * ((a / half) ** 2 - 1) ** 2 + tilt * a  # noqa: E731
    beta_index, sigma_index = 1, 3
    beta, sigma = float(data["beta"][beta_index]), float(data["sigma"][sigma_index])
    keep = np.abs(data["points"]) <= 1.0
    points, exact = data["points"][keep], data["line/score"][beta_index, sigma_index][keep]
    noise = jax.random.normal(jax.random.key(0), (100_000, 1))

    @jax.jit
    @jax.vmap
    def score(point):
        energies, grads = jax.vmap(jax.value_and_grad(lambda a: energy(a[0])))(
            point + sigma * noise
        )
        return monte_carlo_score(energies, grads, beta)

    assert relative(np.asarray(score(jnp.asarray(points)))[:, 0], exact).max() < 0.05


@pytest.mark.usefixtures("_double")
def test_quadrature_of_the_smoothed_score_matches_the_reference():
    data = np.load(DATA / "two_well.npz")
    keep = np.abs(data["points"]) <= 1.0
    for beta, exact in zip(data["beta"], data["line/score"], strict=True):
        points, sigmas = jnp.asarray(data["points"][keep]), jnp.asarray(data["sigma"])
        scores = smoothed_scores(two_well, points, float(beta), sigmas)
        assert relative(scores, exact[:, keep]).max() < 1e-7


@pytest.mark.parametrize(("beta", "bound"), [(0.1, 0.15), (0.3, 0.10), (1.0, 0.08)])
def test_default_sampler_is_faithful_in_five_steps(beta, bound):
    algorithm = preset("algd")
    assert algorithm.denoise_steps == 5
    samples = sample_two_well(algorithm, beta, 200_000)
    assert total_variation(samples, beta) <= bound
    data = np.load(DATA / "two_well.npz")
    left = float(data["line/mass_below_zero"][list(data["beta"]).index(beta)])
    assert abs((samples < 0).mean() - left) < 0.06


@pytest.mark.parametrize(
    ("name", "expected"),
    [("algd-paper", (0.75, 0.80, 0.68)), ("algd-code", (0.37, 0.27, 0.17))],
)
def test_other_samplers_are_as_far_off_as_measured(name, expected):
    for beta, value in zip((0.1, 0.3, 1.0), expected, strict=True):
        samples = sample_two_well(preset(name), beta, 200_000)
        assert total_variation(samples, beta) == pytest.approx(value, abs=0.015)


@pytest.mark.usefixtures("_double")
def test_the_normal_score_is_that_of_the_smoothed_density():
    mean, deviation, sigma = 0.4, 0.3, 0.7
    density = lambda x: -((x - mean) ** 2) / (2 * (deviation**2 + sigma**2))  # noqa: E731
    for x in (-2.0, 0.1, 3.0):
        got = gaussian_score(
            jnp.array([mean]), jnp.log(jnp.array([deviation])), jnp.array([x]), jnp.array(sigma)
        )
        np.testing.assert_allclose(got[0], jax.grad(density)(x), rtol=1e-12)


@pytest.mark.parametrize("power", [0.0, 0.5])
def test_the_path_entropy_bounds_the_entropy_of_the_chains_end(power):
    """The end of a linear chain is normal, its variance known: the bound must lie below its
    entropy, and close to it where the score is the right one and the steps are many."""
    draws, size, deviation = 20_000, 2, 0.5
    for steps, gap in ((5, 3.0), (400, 0.1)):
        schedule = geometric_schedule(0.05, 2.0, steps)
        scales = noise_scales(schedule, power, last_step_noise=True)
        sigmas = jnp.asarray(schedule.sigmas, jnp.float32)

        def score(x, k, sigmas=sigmas):
            log = jnp.full_like(x, np.log(deviation))
            return gaussian_score(jnp.zeros_like(x), log, x, sigmas[k])

        normal = jax.random.normal(jax.random.key(steps), (steps + 1, draws, size))
        start = float(schedule.sigmas[-1]) * normal[0]
        latents = reverse_chain(score, schedule, scales, start, normal[1:])
        bound = float(jnp.mean(path_entropy(latents, normal[1:], schedule, scales)))
        variance = np.asarray(latents[-1]).var()
        entropy = 0.5 * size * np.log(2 * np.pi * np.e * variance)
        # The mean over so many paths is within a few hundredths of its expectation.
        assert bound < entropy + 0.03
        if power == 0.0:
            # Left is what the start knows nothing of: N(0, 4) for N(0, 4 + 1/4).
            assert bound > entropy - gap * size


def test_the_temperature_comes_to_rest_where_the_entropy_meets_its_aim():
    """On the two-well density, by quadrature; a thousandfold energy has a thousandfold one."""
    x = np.linspace(-4.0, 4.0, 4_001)
    energy = (x**2 - 1.0) ** 2

    def entropy(beta, scale):
        log = -scale * energy / beta
        density = np.exp(log - log.max())
        density /= np.trapezoid(density, x)
        return -np.trapezoid(density * np.log(density + 1e-300), x)

    aim, found = 0.3, []
    step = jax.jit(lambda t, h: t.step(-h[None], aim, 0.03))
    for scale in (1.0, 1000.0):
        temperature = Temperature.create(0.1 * scale)
        for _ in range(600):
            temperature = step(temperature, jnp.float32(entropy(float(temperature.alpha), scale)))
        found.append(float(temperature.alpha))
        assert entropy(found[-1], scale) == pytest.approx(aim, abs=0.02)
    assert found[1] == pytest.approx(1000.0 * found[0], rel=0.05)


def test_the_aim_of_the_entropy_falls_by_its_surplus():
    """The temperature of one and the same minibatch: up while the aim is above the entropy that
    there is, down when the surplus is gone, and at rest where half of it is left."""
    small = {"critic_hidden": 4, "score_hidden": 4, "embedding": 2, "denoise_steps": 3}
    plain = replace(preset("algd"), **small, policy_every=1, normalise=False)
    spec = EnvSpec(2, (-1.0, -1.0), (1.0, 1.0), (Budget(10.0),), 100)
    state = plain.init(spec, jax.random.key(0))
    rng = np.random.default_rng(0)
    batch = Transition(
        obs=jnp.asarray(rng.normal(size=(8, 2)), jnp.float32),
        action=jnp.asarray(rng.uniform(-1, 1, (8, 2)), jnp.float32),
        reward=jnp.zeros(8),
        cost=jnp.zeros((8, 1)),
        next_obs=jnp.asarray(rng.normal(size=(8, 2)), jnp.float32),
        terminated=jnp.zeros(8, bool),
        truncated=jnp.zeros(8, bool),
        goal_met=jnp.zeros(8, bool),
        margin=jnp.zeros((8, 1)),
        extras={},
    )

    def moved(rounds, **options):
        algorithm = replace(plain, **options)
        begun = replace(state, rounds=jnp.asarray(rounds))
        after, metrics = algorithm.update(begun, batch, jax.random.key(1))
        step = after.temperature.log_alpha - state.temperature.log_alpha
        return float(step), float(metrics["entropy"])

    entropy = moved(0)[1] / 2
    aims = {"entropy_per_action": entropy - 1.0, "entropy_surplus": 2.0, "entropy_memory": 500.0}
    assert moved(0, **aims)[0] > 0.0
    assert moved(10_000, **aims)[0] < 0.0
    # Adam's first step has its size whatever the slope: so the place where the sign changes.
    half = round(500 * np.log(2.0))
    assert moved(half - 20, **aims)[0] > 0.0 > moved(half + 20, **aims)[0]
