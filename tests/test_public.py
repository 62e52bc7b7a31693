"""What others see: names, types, and tasks in Gymnasium's registry."""

import os
import subprocess
import sys

import pytest

import algd

HEAVY = "{'jax', 'mujoco', 'equinox', 'scipy', 'matplotlib', 'algd.envs'}"
PROGRAM = """
from pathlib import Path
from typing import Any
import gymnasium
import numpy as np
import algd

run: algd.Run = algd.train("DiffDrive", "algd", steps=1_000, budget=[10.0], rho=2.0)
run, notes = algd.resume(Path("runs"), steps=2_000, callback=algd.stop_when_flat(3))
agent = algd.Agent("algd", gymnasium.spec("Pendulum-v1"), budget={"torque": np.float32(9)})
agent.learn(1e3, callback=[lambda event: event.metrics["eval/return"] < 9], progress=True)
agent.save("copy")
told: dict[str, Any] = agent.evaluate(episodes=10) | algd.evaluate(agent.run, mode="sampled")
again: algd.Agent = algd.load(agent.run, "best", seed=1)
policy: algd.Policy = again.policy
obs, _ = gymnasium.make("algd/DiffDrive-v0").reset(seed=0)
action: np.ndarray = agent.predict(obs)
action, forecast = agent.predict(obs, mode="best", return_info=True)
action, forecast = policy.predict(obs, mode="best", return_info=True)
mean = algd.stats.standard_error(forecast.value), len(algd.envs.names())
limit: float = algd.Budget(10.0).on_critic_scale(0.99, 200)
try:
    written: list[Path] = policy.export("out", "onnx")
except algd.UserError as error:
    print(error, sorted(algd.presets()), algd.types.Budget, algd.__version__)
"""


def python(*arguments, **options):
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, **options
    )


def test_public_names_are_shown_and_found():
    assert set(algd.__all__) <= set(dir(algd))
    for name in dir(algd):
        assert getattr(algd, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        algd.trian  # noqa: B018
    everything = {}
    exec("from algd import *", everything)
    assert everything.keys() - {"__builtins__"} == set(algd.__all__)


@pytest.mark.parametrize("imports", ["gymnasium, algd", "algd, gymnasium", "algd.envs, gymnasium"])
def test_both_imports_in_either_order_register_the_tasks(imports):
    light = "" if "envs" in imports else f"assert not {HEAVY} & set(sys.modules); "
    code = (
        f"import sys, {imports}; {light}"
        "assert 'algd/PointButton1Random-v0' in gymnasium.registry; "
        "print(gymnasium.make('algd/DiffDrive-v0').reset(seed=0)[0].shape)"
    )
    done = python("-W", "error", "-c", code)
    assert done.stdout == "(17,)\n", done.stderr


def test_to_ask_for_gymnasium_does_not_use_up_what_waits_for_it():
    code = (
        "import sys, algd; from importlib.util import find_spec; assert find_spec('gymnasium')\n"
        "import gymnasium; assert 'algd/DiffDrive-v0' in gymnasium.registry\n"
        "assert not any('algd' in type(finder).__module__ for finder in sys.meta_path)"
    )
    done = python("-W", "error", "-c", code)
    assert done.returncode == 0, done.stderr


def test_the_package_and_the_help_import_next_to_nothing():
    """Neither Gymnasium nor NumPy, whose threads a run of a sweep must not start too early."""
    code = (
        "import sys, contextlib, io; before = set(sys.modules); from algd.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()): main(['--help'])\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    new = done.stdout.split()
    assert {name.partition(".")[0] for name in new} <= {"algd", *sys.stdlib_module_names}
    assert len(new) < 100


def test_things_in_the_wrong_place_are_answered_with_a_message():
    """Where nothing checks types."""
    code = (
        "import algd\n"
        "for wrong in ((dict, 'DiffDrive'), ('algd', {'a': 1})):\n"
        "    try: algd.Agent(*wrong)\n"
        "    except algd.UserError as error: print(error)"
    )
    said = python("-c", code).stdout.splitlines()
    assert len(said) == 2
    assert "The first word is a preset, not <class 'dict'>" in said[0]
    assert "This is {'a': 1}: neither an environment nor what makes one" in said[1]


def test_a_strict_type_checker_finds_nothing_in_a_users_program(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    done = python("-m", "mypy", "--strict", "--cache-dir=cache", "program.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    # It has seen the types: a mistake is one.
    mistakes = "policy.predict(obs, modes='best')\nagent.lern(3)\nalgd.trian()\n"
    (tmp_path / "program.py").write_text(PROGRAM + mistakes, encoding="utf-8")
    done = python("-m", "mypy", "--strict", "--cache-dir=cache", "program.py", cwd=tmp_path)
    assert "call-overload" in done.stdout
    assert 'no attribute "trian"' in done.stdout
    assert 'no attribute "lern"' in done.stdout


@pytest.mark.parametrize("chosen", [None, "elsewhere"])
def test_programs_that_python_compiles_are_kept_where_the_user_says(chosen, tmp_path):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    if chosen:
        environment["JAX_COMPILATION_CACHE_DIR"] = str(tmp_path / chosen)
    code = "import algd, jax; algd.presets(); jax.jit(lambda x: x + 1)(1.0)"
    environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    done = python("-c", code, env=environment)
    assert done.returncode == 0, done.stderr
    assert any((tmp_path / (chosen or "algd/xla")).iterdir())
    assert (tmp_path / "algd").exists() != bool(chosen)
