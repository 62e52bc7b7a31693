"""The examples run as they stand, with few steps."""

import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from algd import api
from support.scattered import scattered
from support.small import small
from test_export import SPECS

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def tiny(monkeypatch):
    """Presets of small networks that do not learn, so that an example takes a moment."""
    monkeypatch.setattr(api, "preset", lambda name: small(name, prefill=10_000))


def example(name):
    return runpy.run_path(str(EXAMPLES / name))["main"]


def test_own_environment(tiny, tmp_path, capsys):
    example("own_environment.py")(40, str(tmp_path / "run"))
    shown = capsys.readouterr().out
    assert "cost" in shown
    assert "of 5" in shown


def test_two_budgets(tiny, tmp_path, capsys):
    example("two_budgets.py")(16, str(tmp_path))
    first, tighter = capsys.readouterr().out.splitlines()
    assert first.startswith("first: return")
    assert "of 20, energy" in first
    assert first.endswith("of 60")
    assert tighter.endswith("of 40")


def test_control_loop_without_jax(tmp_path):
    policy = scattered("algd", SPECS["DiffDrive"])
    policy.export(tmp_path / "policy")
    # A module of that name which cannot be imported comes first on the path.
    for name in ("jax", "algd"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not installed here')")
    done = subprocess.run(
        [sys.executable, EXAMPLES / "control_loop.py", "policy", "3", "0"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    # The robot's world by hand: three actions, each from the mixed state before.
    state = np.zeros(17, np.float32)
    for _ in range(3):
        action = policy.portable.predict(state)
        state = 0.9 * state + 0.1 * np.resize(action, 17)
    shown = done.stdout.split("[")[1].split("]")[0]
    np.testing.assert_allclose([float(x) for x in shown.split(",")], action, atol=1e-5)


def test_examples_are_short():
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text().splitlines()) < 60, path.name
