"""Statistics against numbers computed by hand and by rliable 1.2.0.

rliable itself is not a test dependency: its own dependency `arch` does not import beside today's
pandas. The numbers below were recorded from it in an environment of its own with pandas 2.3.
"""

import numpy as np
import pytest
import scipy

from algd.evaluation import stats
from algd.evaluation.episodes import Episodes
from algd.types import Budget, EnvSpec

OURS = np.array(
    [
        [1.0, 1.3, 0.73, 0.11, 0.55],
        [0.01, 1.06, 2.34, 0.51, 0.38],
        [1.49, 1.36, 1.11, 0.07, 0.97],
        [1.7, -0.34, 0.54, -0.9, -0.29],
        [-0.84, 0.76, -0.27, 1.27, 1.16],
        [0.81, -1.52, 0.46, 0.95, 1.11],
        [-0.53, 0.52, 0.02, 0.19, 2.06],
        [0.19, 0.97, 1.88, 0.42, 0.89],
        [1.11, 1.06, -0.23, 1.08, 2.36],
        [-0.55, 1.86, 1.12, 0.36, 3.0],
    ]
)
THEIRS = np.array(
    [
        [1.36, -0.6, 0.67, 1.18, 0.41],
        [1.28, 0.53, 1.27, 2.04, -0.08],
        [0.8, 0.14, 0.73, -0.59, 0.02],
        [0.4, 1.5, 1.75, -0.72, -0.19],
        [1.25, -1.39, 0.14, 0.5, 1.86],
        [1.29, 0.27, 0.23, 0.35, 2.12],
        [0.17, 0.3, 0.95, 0.48, 0.4],
        [-0.51, 0.59, 0.16, 1.77, 1.25],
        [0.58, 1.27, 0.26, 1.65, 0.59],
        [1.18, -0.69, 0.95, -1.09, -1.44],
    ]
)


def test_point_estimates_are_those_of_rliable():
    assert stats.iqm(OURS) == pytest.approx(0.7292307692307692, rel=1e-14)
    assert OURS.mean() == pytest.approx(0.7074, rel=1e-14)
    assert stats.probability_of_improvement(OURS, THEIRS) == pytest.approx(0.535, rel=1e-14)
    profile = stats.performance_profile(OURS, np.array([-1.0, 0.0, 0.5, 1.0, 2.0]))
    np.testing.assert_allclose(profile, [0.98, 0.82, 0.62, 0.38, 0.08], rtol=1e-14)


def test_intervals_agree_with_rliable():
    """Its interval limits, from 5,000 to 50,000 draws; ours wobble by about 0.02."""
    iqm = stats.stratified_bootstrap_interval(OURS, stats.iqm, resamples=1000)
    np.testing.assert_allclose(iqm, [0.4904, 0.9446], atol=0.03)
    mean = stats.stratified_bootstrap_interval(OURS, resamples=1000)
    np.testing.assert_allclose(mean, [0.4766, 0.938], atol=0.03)
    better = stats.probability_of_improvement_interval(OURS, THEIRS, resamples=1000)
    np.testing.assert_allclose(better, [0.42, 0.652], atol=0.02)
    thresholds = np.array([-1.0, 0.0, 0.5, 1.0, 2.0])
    low, high = stats.performance_profile_band(OURS, thresholds)
    np.testing.assert_allclose(low, [0.94, 0.7, 0.5, 0.26, 0.02], atol=0.021)
    np.testing.assert_allclose(high, [1.0, 0.92, 0.74, 0.52, 0.16], atol=0.021)


def test_strata_keep_the_differences_between_tasks_out():
    """Tasks that differ by 100 and runs that do not differ at all leave nothing uncertain."""
    scores = np.tile([0.0, 100.0, 200.0], (5, 1))
    assert stats.stratified_bootstrap_interval(scores) == pytest.approx((100.0, 100.0))
    low, high = stats.bootstrap_interval(scores.ravel())
    assert high - low > 50


def test_interval_of_a_mean_has_the_width_of_theory():
    values = np.random.default_rng(3).normal(5.0, 2.0, 400)
    low, high = stats.bootstrap_interval(values, level=0.9)
    half = scipy.stats.norm.ppf(0.95) * values.std() / np.sqrt(400)
    np.testing.assert_allclose([low, high], values.mean() + np.array([-half, half]), atol=0.02)


def test_intervals_follow_from_the_seed():
    values = OURS[:, 0]
    assert stats.bootstrap_interval(values, seed=4) == stats.bootstrap_interval(values, seed=4)
    assert stats.bootstrap_interval(values, seed=4) != stats.bootstrap_interval(values, seed=5)


def test_a_statistic_with_and_without_an_axis_is_the_same():
    plain = stats.bootstrap_interval(OURS[:, 0], lambda x: float(np.median(x)))
    assert stats.bootstrap_interval(OURS[:, 0], np.median) == pytest.approx(plain)


def test_a_band_is_the_interval_of_each_step():
    low, high = stats.bootstrap_band(OURS)
    for i in range(OURS.shape[1]):
        assert (low[i], high[i]) == pytest.approx(stats.bootstrap_interval(OURS[:, i]))


def test_one_run_has_no_interval():
    assert np.isnan(stats.bootstrap_interval([1.0])).all()
    assert np.isnan(stats.bootstrap_interval([])).all()
    assert np.isnan(stats.bootstrap_band(OURS[:1])).shape == (2, 5)
    assert np.isnan(stats.stratified_bootstrap_interval(OURS[:1])).all()


def test_hand_computed_safety_figures():
    assert stats.iqm(np.array([0.0, 1.0, 2.0, 30.0])) == 1.5
    # The worst quarter of five values: the largest, and a quarter of the next.
    assert stats.cvar(np.array([1.0, 2.0, 3.0, 4.0, 10.0]), 0.75) == pytest.approx(11.0 / 1.25)
    assert stats.relative_cost(15.0, 10.0) == 1.5
    assert stats.relative_cost(0.0, 0.0) == 0.0
    assert stats.relative_cost(0.1, 0.0) == np.inf
    assert stats.share_over([9.0, 10.0, 11.0, 12.0], 10.0) == 0.5
    assert stats.feasible_return([1.0, 3.0, 8.0], [9.0, 10.0, 11.0], 10.0) == 2.0
    assert np.isnan(stats.feasible_return([1.0], [11.0], 10.0))
    # Ties count by half: 2 wins and 1 tie of 4 pairs.
    ours, theirs = np.array([[1.0], [2.0]]), np.array([[1.0], [0.0]])
    assert stats.probability_of_improvement(ours, theirs) == 0.875


def test_oscillation_of_a_multiplier():
    assert stats.lambda_oscillation([0.0, 2.0, 1.0, 3.0]) == (5.0, 1.0)
    assert stats.lambda_oscillation([0.0, 2.0, 1.0, 3.0], late=0.25) == (5.0, 0.0)
    assert stats.lambda_oscillation([4.0]) == (0.0, 0.0)
    assert np.isnan(stats.lambda_oscillation([])).all()


def test_calibration_of_the_cost_critics():
    bias, ratio, rms = stats.calibration([3.0, 5.0], [1.0, 1.0])
    assert (bias, ratio, rms) == pytest.approx((3.0, 4.0, np.sqrt(10.0)))
    assert np.isnan(stats.calibration([1.0], [0.0]).ratio)


ROWS = [
    {"kind": "eval", "step": 0, "return": -9.0, "cost": 0.0, "violation_rate": 0.0}
    | {"expected_cost": 9.0, "discounted_cost": 0.0},
    {"kind": "train", "step": 5, "total_cost": 4.0, "total_unsafe_steps": 2.0, "lam": 1.0},
    {"kind": "train", "step": 9, "total_cost": 7.0, "total_unsafe_steps": 5.0, "lam": 3.0},
    {"kind": "eval", "step": 9, "return": 2.0, "cost": 6.0, "violation_rate": 0.25}
    | {"expected_cost": 1.0, "discounted_cost": 2.0},
]


def changed(**final):
    return [*ROWS[:-1], {**ROWS[-1], **final}]


def test_figures_of_one_run():
    figures = stats.run_figures(ROWS, [Budget(12.0)])
    assert figures == {
        "return": 2.0,
        "cost": 6.0,
        "relative_cost": 0.5,
        "over_budget": 0.0,
        "episodes_over_budget": 0.25,
        "training_cost": 7.0,
        "training_unsafe_steps": 5.0,
        "lambda_total_variation": 2.0,
        "lambda_late_std": 0.0,
        "critics_bias": -1.0,
        "critics_ratio": 0.5,
        "critics_rms": 1.0,
    }
    assert stats.run_figures(ROWS, [Budget(12.0)], evaluations=2)["return"] == -3.5


def test_figures_of_several_budgets_carry_their_names():
    rows = [{"kind": "eval", "step": 0, "return": 1.0, "cost/a": 3.0, "cost/b": 5.0}]
    figures = stats.run_figures(rows, [Budget(4.0, "a"), Budget(4.0, "b")])
    assert (figures["over_budget/a"], figures["over_budget/b"]) == (0.0, 1.0)
    assert np.isnan(figures["critics_bias/a"])


def test_summary_over_runs():
    runs = [ROWS, changed(**{"return": 4.0}), changed(**{"return": 30.0, "cost": 24.0})]
    summary = stats.summarise_runs(runs, [Budget(12.0)])
    assert summary["return"]["mean"] == 12.0
    assert summary["return"]["mean_interval"] == stats.bootstrap_interval([2.0, 4.0, 30.0])
    assert summary["over_budget"]["mean"] == pytest.approx(1 / 3)
    assert summary["relative_cost"]["mean"] == 1.0
    assert summary["return_if_feasible"]["mean"] == 3.0
    assert summary["return_if_feasible"]["runs"] == 2


def test_summary_of_episodes():
    cost = np.array([[8.0], [12.0]])
    episodes = Episodes(
        np.array([1.0, 3.0]), cost, cost / 2, cost, np.array([5, 5]), np.zeros(2, int)
    )
    summary = stats.summarise(episodes, EnvSpec(1, (-1.0,), (1.0,), (Budget(10.0),), 5))
    assert summary["return"]["mean"] == 2.0
    assert summary["cost"]["relative"] == 1.0
    assert summary["cost"]["violation_rate"] == 0.5
    assert summary["cost"]["critics"] == {"bias": 5.0, "ratio": 2.0, "rms": np.sqrt(26.0)}


def test_returns_between_random_and_unconstrained():
    assert stats.normalised_return(-10.0, random=-10.0, reference=30.0) == 0.0
    assert stats.normalised_return(30.0, random=-10.0, reference=30.0) == 1.0
    assert stats.normalised_return(0.0, random=-10.0, reference=30.0) == 0.25


def test_the_mean_excess_over_all_and_over_violating_episodes():
    costs = [0.0, 20.0, 30.0, 40.0]
    assert stats.normalised_excess(costs, 20.0) == pytest.approx(np.mean([-1.0, 0.0, 0.5, 1.0]))
    assert stats.normalised_excess(costs, 20.0, violating=True) == pytest.approx(0.75)
    assert np.isnan(stats.normalised_excess([20.0], 20.0, violating=True))


@pytest.mark.parametrize(
    ("costs", "since"),
    [([9, 30, 5, 5], 3), ([9, 5, 5, 5], 1), ([9, 5, 30, 10], 4), ([5, 5, 5, 11], np.inf)],
)
def test_the_budget_is_kept_for_good_from_then_on(costs, since):
    assert stats.time_to_safety(np.arange(1, 5), np.array(costs), 10.0) == since
