"""Systems unlike the one that the library is written on, as far as this one can play them."""

import os
import subprocess
import sys

import pytest

from algd.experiments.trials import tiny

# Read by every Python process at its start, if it is on the path.
ELSEWHERE = """
import sys, warnings
for module in ("fcntl", "pwd", "grp", "resource", "termios"):
    sys.modules[module] = None
warnings.filterwarnings("error", category=EncodingWarning, module="algd")
"""
# The same programs in a run, continued, and in a sweep.
TINY = [
    f"{name}={value}" for name, value in {**tiny("sac-lag"), "prefill": 8, "replay_size": 8}.items()
]


@pytest.fixture
def algd(tmp_path):
    """Run a command where there are neither Unix's modules, nor a home, nor more than ASCII."""
    (tmp_path / "sitecustomize.py").write_text(ELSEWHERE)
    home = {"HOME", "XDG_CACHE_HOME", "USER", "LOGNAME", "COLUMNS"}
    environment = {name: value for name, value in os.environ.items() if name not in home} | {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)]),
        "PYTHONWARNDEFAULTENCODING": "1",
        "PYTHONIOENCODING": "ascii",
        "ALGD_NATIVE": "0",
    }

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "algd", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )

    return run


def test_training_without_unix_or_a_home(algd, tmp_path):
    options = [f"--{item.replace('_', '-')}" for item in TINY]
    run = ["--steps", "16", "--log-every", "4", "--eval-episodes", "1", "--out", "run"]
    done = algd("train", *run, "sac-lag", *options)
    assert done.returncode == 0, done.stderr
    assert "Finished" in done.stdout
    assert (tmp_path / "run" / "checkpoints" / "step-000000016.algd").exists()
    assert "lambda 0" in done.stderr
    done = algd("resume", "run", "--steps", "24")
    assert done.returncode == 0, done.stderr
    done = algd("evaluate", "run", "--episodes", "1")
    assert done.returncode == 0, done.stderr
    assert "+- s.e." in done.stdout


def test_a_sweep_without_unix_or_a_home(algd, tmp_path):
    settings = ["--set", "steps=16", "eval_episodes=1", *TINY]
    options = [
        "--preset",
        "sac-lag",
        "--seeds",
        "0",
        "--episodes",
        "1",
        "--no-estimate",
        "--out",
        "sweep",
    ]
    done = algd("sweep", *options, *settings)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "sweep" / "results.csv").read_text(encoding="utf-8").count("\n") == 2
