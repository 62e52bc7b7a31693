"""Curvature against closed forms, and the whole experiment on a tiny run."""

import csv

import matplotlib.pyplot as plt
import numpy as np
import pytest

from algd.experiments import landscape
from algd.experiments.landscape import REACH, SMOOTHING, Surface
from algd.types import UserError
from algd.visualization.landscapes import draw_curvature, draw_fidelity

SIDE = np.linspace(-1.0 - REACH, 1.0 + REACH, 257)
SPACING = SIDE[1] - SIDE[0]
FIRST, SECOND = np.meshgrid(SIDE, SIDE, indexing="ij")
FLAT = Surface(SIDE, np.zeros_like(FIRST), np.zeros_like(FIRST))


def test_smoothing_leaves_a_quadratic_its_curvature():
    """The Hessian [[3, 2], [2, -1]] has the smaller eigenvalue 1 - 2√2."""
    energy = 1.5 * FIRST**2 + 2.0 * FIRST * SECOND - 0.5 * SECOND**2
    found = landscape.smallest_curvature(energy, SPACING)[FLAT.inside]
    np.testing.assert_allclose(found, 1.0 - 2.0 * np.sqrt(2.0), atol=5e-3)


def test_a_kink_has_the_curvature_of_the_kernel():
    """Of -|a| smoothed by σ: -2 / (σ √(2π)) at the kink, nothing far from it."""
    found = landscape.smallest_curvature(-np.abs(FIRST), SPACING)
    middle = len(SIDE) // 2
    assert found[middle, middle] == pytest.approx(-2 / SMOOTHING / np.sqrt(2 * np.pi), rel=0.02)
    assert abs(found[middle + 60, middle]) < 1e-3


def test_energies_and_rows_by_hand():
    """Q = 0 and Q_c = 1 + a_1 at the limit 1: the penalty's curvature is ρ where active."""
    found = Surface(SIDE, np.zeros_like(FIRST), 1.0 + FIRST)
    plain = landscape.energy_over(found, 0.5, 1.0, 0.0)
    np.testing.assert_allclose(plain, 0.5 * FIRST, atol=1e-12)
    penalised = landscape.energy_over(found, 0.5, 1.0, 2.0)
    expected = (np.maximum(0.5 + 2.0 * FIRST, 0.0) ** 2 - 0.25) / 4.0
    np.testing.assert_allclose(penalised, expected, atol=1e-12)
    assert found.safe_share(1.0) == pytest.approx(0.5, abs=0.01)
    rows = landscape.curvature_rows([found, FLAT], (0.5,), 1.0)
    summary = landscape.summarise_curvature(rows)
    assert [row["rho"] for row in summary] == [0.0, *landscape.RHOS]
    assert (summary[0]["states"], summary[0]["with_boundary"]) == (2, 1)
    assert landscape.as_table(summary).count("\n") == 4 + len(summary)


def test_the_robots_face_the_hazard():
    obs = landscape.states_before_hazard(6)
    np.testing.assert_allclose(obs[:, 5], 1.0, atol=1e-5)
    np.testing.assert_allclose(obs[:, 7], np.linspace(0.05, 0.6, 6), atol=2e-3)
    # The goal lies behind it, in the same direction.
    np.testing.assert_allclose(obs[:, 2], 1.0, atol=1e-5)


def test_a_tiny_run_is_made_once_and_drawn(tmp_path, monkeypatch):
    """Without gradient rounds: compiling them would take longer than all the rest."""
    monkeypatch.setattr(landscape, "SMOKE", {**landscape.SMOKE, "steps": 40, "prefill": 40})
    landscape.reproduce("smoke", tmp_path)
    names = {"landscape.csv", "landscape.md", "landscape.png", "landscape_curvature.png"}
    assert names <= {path.name for path in tmp_path.iterdir()}
    rows = list(csv.DictReader((tmp_path / "landscape.csv").read_text().splitlines()))
    assert len(rows) == landscape.STATES["smoke"] * 2 * (1 + len(landscape.RHOS))
    trained = tmp_path / "runs" / "DiffDrive-algd-plain-smoke" / "metrics.jsonl"
    before = trained.stat().st_mtime_ns
    assert landscape.default_run("smoke", tmp_path) == trained.parent
    assert trained.stat().st_mtime_ns == before


def test_a_run_that_is_none(tmp_path):
    with pytest.raises(UserError):
        landscape.reproduce("smoke", tmp_path, tmp_path / "nothing")


def test_no_panel_without_numbers(tmp_path, monkeypatch):
    """Where no box has a boundary, figure and table leave it out."""
    kept = []
    monkeypatch.setattr(plt, "close", kept.append)
    rows = landscape.curvature_rows([FLAT, FLAT], (0.5,), 1.0)
    summary = landscape.summarise_curvature(rows)
    draw_curvature(summary, tmp_path / "curvature.png")
    (axes,) = kept[0].axes
    assert axes.get_ylabel() == "share locally convex, action box"
    assert "nan" not in landscape.as_table(summary)


def test_a_single_number_of_steps_is_inside_its_panels(tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(plt, "close", kept.append)
    rows = [
        {"preset": name, "beta": beta, "steps": 5, "total_variation": 0.3, "kl": 0.1}
        for name in ("algd-paper", "algd-code", "algd")
        for beta in (0.1, 0.3, 1.0)
    ]
    draw_fidelity(rows, tmp_path / "fidelity.png")
    assert len(kept[0].axes) == 6
    for axes in kept[0].axes:
        low, high = axes.get_xlim()
        assert low < 5 < high
