"""Training in one program: environments written in JAX, on the host's loop and on the device's."""

import dataclasses
import json
import math
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algd import envs
from algd.cli import main
from algd.envs.diff_drive import DiffDriveVectorEnv
from algd.envs.diff_drive_jax import DiffDrive
from algd.envs.jax_vector import JaxVectorEnv
from algd.evaluation.episodes import evaluate
from algd.experiments.trials import tiny
from algd.profiling import loop as bench
from algd.runs.config import Settings
from algd.runs.directory import Run
from algd.training import loop, updates
from algd.training.updates import fresh_state
from algd.types import Budget, CostVectorEnv, Outcome, UserError
from same import differences, last_arrays
from support.alone import ROOT
from support.small import one_of_each, small

SHORT = Settings(
    steps=160,
    envs=2,
    log_every=40,
    eval_every=160,
    eval_episodes=2,
    env_options=("horizon=40",),
    loop="device",
)
# The same environment can be stepped by either loop.
DRIVE = dataclasses.replace(SHORT, env="support.jax_worlds:drive", env_options=())
CART = dataclasses.replace(DRIVE, env="support.jax_worlds:Cart")


# --- DiffDrive in either form -------------------------------------------------------------------


def pushed_together(jax_envs, numpy_envs):
    """Give the NumPy robots the state of those in JAX."""
    assert jax_envs.copies is not None
    state, length = jax_envs.copies.state, jax_envs.copies.length
    for name in ("position", "heading", "speed", "goal_angle", "goal", "goal_distance", "hazards"):
        setattr(numpy_envs, f"_{name}", np.array(getattr(state, name), np.float64))
    numpy_envs._steps = np.array(length, np.int64)


@pytest.mark.parametrize("together", [1, 200])
def test_diff_drive_is_the_same_task_in_both_forms(together):
    """Over three episodes of driving towards the goals; each goal and each new episode is drawn by
    JAX. Put together at every step the two differ by rounding, and in a whole episode by little
    more."""
    copies, horizon = 16, 100
    ours = JaxVectorEnv(DiffDrive(cost_parts=True, horizon=horizon), copies, "DiffDrive")
    theirs = DiffDriveVectorEnv(copies, cost_parts=True, horizon=horizon)
    theirs.reset(seed=0)
    seen = ours.reset(0)
    assert ours.spec.budgets == theirs.budgets
    noise, met, inside = np.random.default_rng(0), 0, 0
    for step in range(3 * horizon):
        # Turn towards the goal, more or less, and drive.
        turn = np.clip(2.0 * seen[:, 3] + noise.normal(0.0, 0.3, copies), -1.0, 1.0)
        wheels = np.clip(np.stack([0.8 - turn, 0.8 + turn], axis=1), -1.0, 1.0).astype(np.float32)
        if step % together == 0:
            pushed_together(ours, theirs)
        result = ours.step(wheels)
        obs, reward, _, truncated, infos = theirs.step(wheels)
        near = dict(atol=1e-5 if together == 1 else 1e-3)
        np.testing.assert_array_equal(result.truncated, truncated)
        assert result.truncated.all() == (step % horizon == horizon - 1)
        # Within rounding of an edge either side is right.
        clear = np.abs(infos["margin"][:, 0]) > near["atol"]
        np.testing.assert_array_equal(result.goal_met, infos["goal_met"])
        np.testing.assert_allclose(result.reward, reward, **near)
        np.testing.assert_allclose(result.cost[clear], infos["cost"][clear], **near)
        np.testing.assert_allclose(result.margin, infos["margin"], **near)
        # What follows a new goal is drawn.
        same = ~result.goal_met
        before_reset = infos.get("final_obs", obs)
        np.testing.assert_allclose(result.next_obs[same], before_reset[same], **near)
        met, inside = met + result.goal_met.sum(), inside + result.cost[:, 0].sum()
        if result.goal_met.any() or result.truncated.any():
            pushed_together(ours, theirs)
        seen = result.obs
    assert met > 10
    assert inside > 100


def test_new_episodes_and_goals_are_those_of_the_task():
    first = jax.vmap(DiffDrive().reset)(jax.random.split(jax.random.key(0), 2_000))
    numpy_envs = DiffDriveVectorEnv(2_000)
    theirs, _ = numpy_envs.reset(seed=0)
    assert first.obs.shape == theirs.shape
    np.testing.assert_allclose(np.mean(first.obs, axis=0), theirs.mean(axis=0), atol=0.06)
    np.testing.assert_allclose(np.std(first.obs, axis=0), theirs.std(axis=0), atol=0.04)
    # The goal lies opposite, up to its scatter.
    for goal, position in ((first.goal, first.position), (numpy_envs._goal, numpy_envs._position)):
        angles = [np.arctan2(x[:, 1], x[:, 0]) for x in (np.asarray(goal), np.asarray(position))]
        away = (angles[0] - angles[1]) % math.tau - math.pi
        assert 0.45 < np.abs(away).max() < 0.501


def test_a_vector_of_jax_environments_keeps_the_contract():
    copies = envs.make("support.jax_worlds:Cart", 3)
    assert isinstance(copies, CostVectorEnv)
    assert copies.exact_state
    obs = copies.reset(7)
    draw = np.random.default_rng(0)
    ended = 0
    for step in range(60):
        if step == 30:
            saved = copies.save_state()
            other = envs.make("support.jax_worlds:Cart", 3)
            other.restore_state(saved)
        action = draw.uniform(-1.0, 1.0, (3, 1)).astype(np.float32)
        result = copies.step(action)
        if step >= 30:
            again = other.step(action)
            for one, two in zip(result, again, strict=True):
                np.testing.assert_array_equal(one, two)
        ends = result.terminated | result.truncated
        # Where a step led is kept apart from where the next one starts.
        np.testing.assert_allclose(result.next_obs, obs + 0.1 * action, rtol=1e-6)
        assert (result.obs[~ends] == result.next_obs[~ends]).all()
        assert (result.obs[ends] != result.next_obs[ends]).any(axis=1).all()
        assert not (result.terminated & result.truncated).any()
        ended += ends.sum()
        obs = result.obs
    assert ended > 15


# --- the loop -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", one_of_each())
def test_stopped_and_resumed_is_the_run_never_stopped(name, tmp_path):
    algorithm = small(name)
    whole = loop.train(SHORT, algorithm, name, tmp_path / "whole")
    assert whole.config()["settings"]["loop"] == "device"
    loop.train(dataclasses.replace(SHORT, steps=90), algorithm, name, tmp_path / "part")
    resumed, notes = loop.resume(tmp_path / "part", steps=SHORT.steps)
    assert notes == []
    assert differences(whole, resumed) == []
    assert resumed.config()["settings"]["loop"] == "device"


@pytest.mark.parametrize(
    ("name", "changes"),
    [("sac-lag", {"dual_signal": "episodes", "dual": "projected"}), ("ppo-lag", {})],
)
def test_both_loops_are_the_same_run(name, changes, tmp_path):
    """The same environment, draws and rules from the host and in one program: equal up to the order
    of sums, as long as these decide nothing."""
    settings = dataclasses.replace(DRIVE, steps=100, eval_every=100)
    algorithm = small(name, **changes)
    runs = [
        loop.train(dataclasses.replace(settings, loop=which), algorithm, name, tmp_path / which)
        for which in ("host", "device")
    ]
    host, device = map(last_arrays, runs)
    assert host.keys() == device.keys()
    for key in host.keys() - {"log"}:
        np.testing.assert_allclose(host[key], device[key], rtol=1e-3, atol=1e-4, err_msg=key)
    for kind in ("train", "eval"):
        for one, two in zip(*(run.rows(kind) for run in runs), strict=True):
            assert one.keys() == two.keys()
            for key in one.keys() - {"kind"}:
                assert one[key] == pytest.approx(two[key], rel=1e-3, abs=1e-4), key


KILLED = """
import os, pathlib, signal, sys
from support.small import small
from test_device import KILLABLE
from algd.training import loop, updates

def kill(progress):
    if progress.step >= 200:
        os.kill(os.getpid(), signal.SIGKILL)

loop.train(KILLABLE, small("sac-lag"), "sac-lag", pathlib.Path(sys.argv[1]), kill)
"""
KILLABLE = dataclasses.replace(CART, steps=320, eval_every=320, checkpoint_every=120)


def test_killed_and_resumed_is_the_run_never_stopped(tmp_path):
    whole = loop.train(KILLABLE, small("sac-lag"), "sac-lag", tmp_path / "whole")
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "killed")],
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == -signal.SIGKILL
    assert Run(tmp_path / "killed").checkpoints()[-1][0] < 200
    resumed, _ = loop.resume(tmp_path / "killed")
    assert differences(whole, resumed) == []


def test_where_a_program_is_cut_makes_no_difference(tmp_path, monkeypatch):
    whole = loop.train(CART, small("sac-lag"), "sac-lag", tmp_path / "whole")
    # One vector step in each call.
    monkeypatch.setattr("algd.training.device.PATIENCE", 0.0)
    cut = loop.train(CART, small("sac-lag"), "sac-lag", tmp_path / "cut")
    assert differences(whole, cut) == []


@pytest.mark.parametrize("what", ["observation", "reward", "cost", "margin"])
def test_what_is_not_finite_stops_or_is_dropped(what, tmp_path, monkeypatch):
    # The evaluation at step 0 would find it first.
    monkeypatch.setattr(loop, "owes_evaluation", lambda *_: False)
    broken = dataclasses.replace(CART, env_options=("broken=3", f"what={what}"))
    with pytest.raises(UserError, match=f"At step 4 the environment reported a {what} that"):
        loop.train(broken, small("sac-lag"), "sac-lag", tmp_path / "stop")
    assert Run(tmp_path / "stop").checkpoints()[0][0] == 0
    if what == "cost":
        drop = dataclasses.replace(broken, bad_steps="drop")
        run = loop.train(drop, small("sac-lag"), "sac-lag", tmp_path / "drop")
        dropped = run.rows("train")[-1]["dropped_steps"]
        assert 160 / 10 <= dropped <= 160 / 4
        assert int(last_arrays(run)["stored"]) == 160 - dropped


def test_seeds_in_one_program_are_the_runs_of_their_own(tmp_path):
    each = [dataclasses.replace(CART, steps=100, seed=seed) for seed in (0, 1)]
    folders = [tmp_path / f"seed{i}" for i in range(2)]
    runs = loop.train_seeds(each, small("ppo-lag"), "ppo-lag", folders)
    for i, (own, run) in enumerate(zip(each, runs, strict=True)):
        alone = loop.train(own, small("ppo-lag"), "ppo-lag", tmp_path / f"alone{i}")
        together, single = last_arrays(run), last_arrays(alone)
        for key in together.keys() - {"log"}:
            np.testing.assert_allclose(together[key], single[key], rtol=1e-4, atol=1e-4)


SHARDED = """
import dataclasses, pathlib, sys
import jax
from support.small import small
from test_device import CART
from algd.training import loop, updates
settings = dataclasses.replace(CART, steps=120, envs=4, devices=len(jax.devices()))
for name in ("sac-lag", "ppo-lag"):
    folder = pathlib.Path(sys.argv[1]) / f"{name}{settings.devices}"
    loop.train(settings, small(name), name, folder)
"""


def test_four_devices_share_out_copies_and_minibatches(tmp_path):
    """The same runs on 1 and on 4 simulated devices, up to the order of sums."""
    for devices in (1, 4):
        flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
        path = os.pathsep.join(filter(None, sys.path))
        done = subprocess.run(
            [sys.executable, "-c", SHARDED, str(tmp_path)],
            capture_output=True,
            text=True,
            env={**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": path},
        )
        assert done.returncode == 0, done.stderr
    for name in ("sac-lag", "ppo-lag"):
        alone, shared = (last_arrays(Run(tmp_path / f"{name}{devices}")) for devices in (1, 4))
        for key in alone.keys() - {"log"}:
            np.testing.assert_allclose(shared[key], alone[key], rtol=1e-4, atol=1e-4, err_msg=key)


def test_the_environment_decides_on_the_loop(tmp_path):
    quick = {"steps": 20, "eval_every": 20, "eval_episodes": 1, "log_every": 20}
    untold = dataclasses.replace(CART, loop=None, **quick)
    run = loop.train(untold, small("ppo-lag"), "ppo-lag", tmp_path / "jax")
    assert run.config()["settings"]["loop"] == "device"
    untold = dataclasses.replace(SHORT, loop=None, **quick)
    run = loop.train(untold, small("ppo-lag"), "ppo-lag", tmp_path / "numpy")
    assert run.config()["settings"]["loop"] == "host"
    for changes, message in (
        ({"env": "HopperVelocity", "env_options": ()}, "HopperVelocity is not written in JAX"),
        ({"overlap": True}, "--overlap is for environments on the host"),
    ):
        settings = dataclasses.replace(SHORT, **{**quick, **changes})
        with pytest.raises(UserError, match=message):
            loop.train(settings, small("ppo-lag"), "ppo-lag", tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


# --- evaluation ---------------------------------------------------------------------------------


def test_episodes_on_the_device_are_those_of_the_host():
    """Each copy's first episode, with the sums by hand."""
    algorithm = small("sac-lag")
    copies = envs.make("support.jax_worlds:Cart", 4)
    assert isinstance(copies, JaxVectorEnv)
    learner = fresh_state(algorithm, copies.spec, jax.random.key(0))
    found = evaluate(algorithm, learner, copies, 7, seed=3)
    assert len(found.returns) == 7
    assert set(found.length) <= {4, 10}
    key = jax.random.fold_in(jax.random.key(3), 0)
    state = jax.vmap(copies.env.reset)(
        jax.random.split(jax.random.fold_in(jax.random.split(key)[0], 0), 7)
    )
    returns, costs, running = np.zeros(7), np.zeros(7), np.ones(7, bool)
    for step in range(10):
        actions = jax.vmap(lambda o: algorithm.act(learner, o, key, "deterministic")[0])(state.obs)
        state, outcome = jax.vmap(copies.env.step)(state, actions)
        returns += np.where(running, outcome.reward, 0.0)
        costs += np.where(running, 0.99**step * np.asarray(outcome.cost)[:, 0], 0.0)
        running &= ~np.asarray(outcome.terminated)
    np.testing.assert_allclose(found.returns, returns, atol=1e-5)
    np.testing.assert_allclose(found.discounted_cost[:, 0], costs, atol=1e-5)


def test_a_broken_evaluation_stops_or_drops():
    algorithm = small("sac-lag")
    copies = envs.make("support.jax_worlds:Cart", 1, env_options={"broken": 2, "what": "reward"})
    learner = fresh_state(algorithm, copies.spec, jax.random.key(0))
    with pytest.raises(UserError, match="evaluation the environment reported a reward that is"):
        evaluate(algorithm, learner, copies, 3, seed=0)
    found = evaluate(algorithm, learner, copies, 3, seed=0, bad_steps="drop")
    assert found.dropped.tolist() == [1, 1, 1]
    assert np.isfinite(found.returns).all()


# --- what is refused ----------------------------------------------------------------------------


class Spot(NamedTuple):
    obs: jax.Array
    speed: jax.Array


@dataclass(frozen=True)
class Odd:
    """A good environment, but for what is replaced."""

    outcome: Any = (0.0, 0.0)
    speed: object = 0.0
    obs: tuple[float, ...] = (0.0,)
    budgets: tuple[Budget, ...] = (Budget(1.0),)
    horizon: int | None = 5
    action_low: tuple[float, ...] = (-1.0,)
    action_high = (1.0,)

    def reset(self, key):
        return Spot(jnp.asarray(self.obs, jnp.float32), jnp.zeros(()))

    def step(self, state, action):
        told = self.outcome
        outcome = Outcome(*map(jnp.asarray, told)) if len(told) > 1 else told[0]
        return state._replace(speed=jnp.asarray(self.speed)), outcome


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speed": 1}, r"changes speed of its state from float32\[\] to int32\[\]"),
        ({"speed": (1.0, 2.0)}, r"changes speed .* to float32\[2\]"),
        ({"outcome": (Outcome(0.0),)}, "reports no cost"),
        ({"outcome": (0.0,)}, "must return its new state and an algd.Outcome"),
        ({"outcome": ("nothing",)}, "odd cannot be compiled: .* not a valid JAX type"),
        ({"outcome": (0.0, (1.0, 2.0))}, r"a cost of shape \(2,\): it must have 1"),
        ({"outcome": ((0.0, 1.0), 0.0)}, r"a reward of shape \(2,\): it must be a number"),
        ({"obs": ((0.0,),)}, r"observation of .* is float32\[1, 1\]: it must be a vector"),
        ({"budgets": ()}, "has no budget of its own"),
        ({"horizon": None}, "has no time limit"),
        ({"action_low": (math.inf,)}, "action_low of odd is"),
        ({"action_low": (1.0,)}, "each number of action_low must be below"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_first_step(changes, message):
    with pytest.raises(UserError, match=message):
        JaxVectorEnv(Odd(**changes), 2, "odd")
    assert JaxVectorEnv(Odd(), 2, "odd").spec.obs_size == 1


def test_what_lacks_a_part_of_the_protocol_is_told_which():
    with pytest.raises(UserError, match="for one in JAX it lacks action_low, action_high, budgets"):
        envs.make("support.jax_worlds:Place", 1, env_options={"obs": 0.0, "steps": 0})


# --- what people type ---------------------------------------------------------------------------


def test_the_environment_of_the_guide_is_trained_on(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs" / "own_environment.md").read_text()
    found = re.search(r"```python title=\"corridor_in_jax.py\"\n(.*?)```", page, re.DOTALL)
    assert found
    (tmp_path / "corridor_in_jax.py").write_text(found[1])
    monkeypatch.chdir(tmp_path)
    sizes = " ".join(f"--{k.replace('_', '-')} {v}" for k, v in tiny("ppo-lag").items())
    options = "--steps 100 --envs 2 --eval-every 100 --eval-episodes 3 --quiet --out run"
    main(f"train --env corridor_in_jax:Corridor {options} ppo-lag {sizes}".split())
    run = Run(tmp_path / "run")
    assert run.config()["settings"]["loop"] == "device"
    assert run.rows("eval")[-1]["length"] == 50
    main(["evaluate", "run", "--trust", "--episodes", "5", "--json"])
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["episodes"] == 5


def test_both_loops_are_timed_in_turns(monkeypatch):
    monkeypatch.setattr(bench, "EPISODES", 3)
    monkeypatch.setattr(bench, "preset", small)
    rows = bench.bench_loop(("ppo-lag",), seconds=0.1)
    assert [(row["part"], row["preset"], row["copies"]) for row in rows] == [
        ("training", "ppo-lag", 4),
        ("evaluation", "ppo-lag", 3),
    ]
    for row in rows:
        assert row["host_steps_per_second"] > 0
        assert row["device_steps_per_second"] > 0
        assert row["ratio"] > 0
        assert row["device_compile_seconds"] > 0


def where_it_sorts(once_in_a_while) -> tuple[set[str], set[str]]:
    """Of a loop with an update that sorts data of its own and is due in the last turn: the parts of
    the compiled program that sort, and those that are branches."""

    def loop(data, state):
        def turn(i, state):
            update = lambda state: (state + jnp.sort(data + i)[0], {})  # noqa: E731
            return once_in_a_while(update, state, (i == 9).astype(int))[0]

        return jax.lax.fori_loop(0, 10, turn, state)

    data = jnp.arange(64.0)[::-1]
    program = jax.jit(loop).lower(data, jnp.zeros(())).compile()
    assert program(data, jnp.zeros(())) == 9.0
    sorting, name = set(), ""
    for line in program.as_text().splitlines():
        begun = re.match(r"(?:ENTRY )?%?([\w.\-]+) \(.*\{$", line)
        name = begun[1] if begun else name
        if re.search(r" sort\(", line):
            sorting.add(name)
    told = re.findall(r"(?:branch|true|false)_computations?=\{?([^}\n]*?)[}\n]", program.as_text())
    return sorting, set(re.findall(r"[\w.\-]+", " ".join(told)))


def test_an_update_that_is_not_due_costs_nothing():
    """XLA takes what does not depend on a loop's state out of that loop, but not out of a branch:
    PPO's permutations would be drawn in every step."""
    sorting, branches = where_it_sorts(updates.if_due)
    assert sorting
    assert sorting <= branches
    # The parts are told apart: a loop that may turn zero times is none.
    always = lambda update, state, due: updates.repeated(  # noqa: E731
        lambda _, state: update(state), state, jax.random.key(0), due
    )
    sorting, branches = where_it_sorts(always)
    assert sorting
    assert not sorting <= branches
