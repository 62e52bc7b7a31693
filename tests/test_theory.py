"""The checks of the paper's statements find what mathematics says they must."""

import csv

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algd.experiments import theory
from algd.experiments.theory import invariance, line, rates


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    out = tmp_path_factory.mktemp("theory")
    theory.reproduce("smoke", out)
    return out


def checks(written):
    return list(csv.DictReader((written / "theory.csv").read_text().splitlines()))


@pytest.fixture
def _double():
    with jax.enable_x64(True):
        yield


def test_everything_is_written(written):
    names = {path.name for path in written.iterdir()}
    pictures = {"theory_rates.png", "theory_fidelity.png", "theory_invariance.png"}
    assert names == {"theory.csv", "theory.md", "fidelity.csv", *pictures}
    table = (written / "theory.md").read_text().splitlines()
    assert len(table) == len(checks(written)) + 2
    assert all(len(line.replace("\\|", "").split("|")) == 7 for line in table)


@pytest.mark.parametrize(
    ("statement", "holds"),
    [
        ("Proposition 1: the score is the weighted mean of −∇L/β", True),
        ("Proposition 1: the score is the weighted mean of −∇L_A/β", True),
        ("Proposition 1 on a compact action set", False),
        ("Proposition 1 on the box, in a tanh latent", True),
        ("Theorem 1 (a): ∇²L_A = ", True),
        ("Theorem 1 (a): the remainder", True),
        ("Theorem 1 (a): at Q_c = h", True),
        ("Theorem 1 (a): more curvature in a neighbourhood", False),
        ("Theorem 1 (b): L_A = L where Q_c = h", True),
        ("Theorem 1 (b): L_A = L in the safe region if λ* = 0", True),
        ("Theorem 1 (b) as printed: exp", False),
        ("Theorem 1 (b) as printed: the Boltzmann policy", False),
        ("Theorem 1 (b), optimal value and optimal action", True),
        ("Lemma: the Monte Carlo score errs by 1/√N", True),
        ("Corollary: the squared score gap grows like ε²", True),
        ("Corollary: the bound itself", True),
        ("Theorem 2 as N → ∞ and L_A = L: the sampler of `algd-paper`", False),
    ],
)
def test_what_holds_and_what_does_not(written, statement, holds):
    (row,) = [row for row in checks(written) if row["statement"].startswith(statement)]
    assert row["holds"] == str(holds), row


def test_rates_are_near_those_of_the_paper(written):
    for start, slope in (("Lemma: the Monte Carlo score", -0.5), ("Theorem 2: the Monte", -1.0)):
        (row,) = [row for row in checks(written) if row["statement"].startswith(start)]
        assert float(row["low"]) < float(row["value"]) < float(row["high"])
        assert float(row["value"]) == pytest.approx(slope, abs=0.2)


@pytest.mark.usefixtures("_double")
def test_the_optimal_multiplier_meets_the_limit_on_average():
    lam = line.optimal_multiplier(line.BETA)
    density = line.boltzmann(line.plain(lam), line.BETA)
    costs = line.on_line(line.cost)
    assert lam > 0
    assert np.trapezoid(density * costs, line.LINE) == pytest.approx(line.LIMIT, abs=1e-9)


@pytest.mark.usefixtures("_double")
def test_hinge_by_hand():
    """At a = 0: Q = -1, Q_c = 1, so L_A = 1 + ((0.5 + 2 · 0.2)² - 0.25) / 4."""
    here = jnp.zeros(())
    assert float(line.augmented(0.5, rho=2.0)(here)) == pytest.approx(1 + (0.81 - 0.25) / 4)
    assert float(line.plain(0.5)(here)) == pytest.approx(1 + 0.5 * 0.2)


def test_total_variation_of_two_gaussians():
    one, other = (np.sqrt(c / 2 / np.pi) * np.exp(-c * line.LINE**2 / 2) for c in (20.0, 30.0))
    assert line.tv(one, other) == pytest.approx(invariance._variance_ratio_tv(20.0, 30.0), abs=1e-6)
    # KL of N(0, 1/20) from N(0, 1/30).
    exact = 0.5 * (30 / 20 - 1 - np.log(30 / 20))
    assert line.kl(one, other) == pytest.approx(exact, abs=1e-9)


def test_slope_of_a_power_law():
    counts = (4, 8, 16, 32)
    values = 3.0 * np.array(counts) ** -0.7 * np.array([[0.9], [1.0], [1.2]])
    slope, interval = rates.slope_interval(counts, values)
    assert (slope, *interval) == pytest.approx((-0.7, -0.7, -0.7))
