"""The smoothed score and the sampler against closed forms and quadrature."""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algd.algorithms import preset
from algd.experiments.fidelity import sample_two_well, smoothed_scores, total_variation, two_well
from algd.objectives.diffusion import boltzmann_weights, geometric_schedule, monte_carlo_score

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
