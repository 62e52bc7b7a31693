"""Whole runs: the same numbers twice, the same numbers after a stop, and a refusal of nonsense."""

import dataclasses
import json
import os
import signal
import threading

import gymnasium
import numpy as np
import pytest

from algd.runs.config import Settings, check_memory, parse_config
from algd.runs.directory import Run
from algd.training import loop
from algd.training.loop import Interrupted
from algd.training.updates import rounds_due
from algd.types import Budget, EnvSpec, UserError
from same import differences, last_arrays
from support.small import one_of_each, small

# Episodes end within these runs, and evaluations are short.
SHORT = Settings(
    steps=160, envs=2, log_every=40, eval_every=160, eval_episodes=2, env_options=("horizon=40",)
)


def assert_same(one, other):
    assert differences(one, other) == []


def test_same_seed_same_numbers(tmp_path):
    runs = [loop.train(SHORT, small("algd"), "algd", tmp_path / n) for n in ("a", "b")]
    assert_same(*runs)
    other = loop.train(
        Settings(**{**vars(SHORT), "seed": 1}), small("algd"), "algd", tmp_path / "c"
    )
    assert other.metrics_path.read_bytes() != runs[0].metrics_path.read_bytes()


@pytest.mark.parametrize("name", one_of_each())
def test_stopped_and_resumed_is_the_run_never_stopped(name, tmp_path):
    algorithm = small(name)
    whole = loop.train(SHORT, algorithm, name, tmp_path / "whole")
    part_settings = Settings(**{**vars(SHORT), "steps": 90})
    loop.train(part_settings, algorithm, name, tmp_path / "part")
    resumed, notes = loop.resume(tmp_path / "part", steps=SHORT.steps)
    assert notes == []
    assert_same(whole, resumed)


def test_a_signal_stops_after_a_whole_step_and_resumes_exactly(tmp_path):
    settings = Settings(**{**vars(SHORT), "steps": 400, "eval_every": 400})
    whole = loop.train(settings, small("algd"), "algd", tmp_path / "whole")
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM))

    def stop_between(progress):
        """At some moment after step 100, however fast the steps are, and before step 300."""
        if progress.step == 100:
            timer.start()
        elif progress.step == 300:
            timer.join()

    with pytest.raises(Interrupted, match="algd resume"):
        loop.train(settings, small("algd"), "algd", tmp_path / "cut", stop_between)
    assert 100 < Run(tmp_path / "cut").checkpoints()[-1][0] < settings.steps
    resumed, _ = loop.resume(tmp_path / "cut")
    assert_same(whole, resumed)


def test_config_alone_gives_the_same_run(tmp_path):
    first = loop.train(SHORT, small("lgd", rho=2.0), "lgd", tmp_path / "first")
    settings, algorithm, name = parse_config(first.config())
    assert_same(first, loop.train(settings, algorithm, name, tmp_path / "again"))


def test_metrics_hold_what_a_reader_needs(tmp_path):
    settings = Settings(**{**vars(SHORT), "eval_every": 80})
    run = loop.train(settings, small("algd"), "algd", tmp_path / "run")
    train, evaluation = run.rows("train"), run.rows("eval")
    assert [row["step"] for row in evaluation] == [0, 80, 160]
    assert {"return", "cost", "violation_rate", "expected_cost", "discounted_cost"} <= set(
        evaluation[-1]
    )
    assert {"lam", "qc_mean", "q_loss", "total_cost"} <= set(train[-1])
    assert list((run.directory / "tensorboard").iterdir())
    speeds = [json.loads(line) for line in run.timing_path.read_text().splitlines()]
    assert all(row["steps_per_second"] > 0 for row in speeds)


class Faulty(gymnasium.Env):
    """Reports a NaN every 50th step."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.count += 1
        obs = np.full(2, np.nan if self.count == 50 else 0.5, np.float32)
        return obs, 1.0, False, self.count >= 60, {"cost": 0.1}


gymnasium.register("Faulty-v0", entry_point=Faulty, max_episode_steps=60)


def test_a_step_that_is_not_finite_stops_or_is_dropped(tmp_path):
    settings = Settings(**{**vars(SHORT), "env": "Faulty-v0", "env_options": (), "budget": (5.0,)})
    with pytest.raises(UserError, match="observation that is not finite"):
        loop.train(settings, small("algd"), "algd", tmp_path / "stop")
    drop = Settings(**{**vars(settings), "bad_steps": "drop"})
    run = loop.train(drop, small("algd"), "algd", tmp_path / "drop")
    last = run.rows("train")[-1]
    # The step that leads to the bad observation and the one that starts from it.
    assert last["dropped_steps"] == 2 * 2
    stored = last_arrays(run)["stored"]
    assert int(stored) == 160 - last["dropped_steps"]


class Broken(gymnasium.Env):
    """Every seventh step is broken: its observation, reward, cost and margin in turn."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    count = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.count += 1
        values = [0.5, 1.0, 0.1, -0.5]
        if self.count % 7 == 0:
            values[self.count // 7 % 4] = np.nan
        seen, reward, cost, margin = values
        info = {"cost": cost, "margin": margin}
        return np.full(2, seen, np.float32), reward, False, False, info


gymnasium.register("Broken-v0", entry_point=Broken, max_episode_steps=20)


@pytest.mark.parametrize("name", ["ppo-lag", "sac-lag", "hj"])
def test_broken_steps_are_left_out_of_all_that_is_learnt_and_told(name, tmp_path):
    settings = dataclasses.replace(
        SHORT, env="Broken-v0", env_options=(), budget=(5.0,), bad_steps="drop"
    )
    run = loop.train(settings, small(name), name, tmp_path / "run")
    last = run.rows("train")[-1]
    assert 160 // 7 <= last["dropped_steps"] <= 160 // 4
    judged = run.rows("eval")
    # An episode has 20 steps with a reward of 1 each, less those that were left out.
    for row in judged:
        assert row["dropped_steps"] > 0
        assert row["return"] == 20 - row["dropped_steps"] / settings.eval_episodes
    assert "NaN" not in run.metrics_path.read_text()


def test_broken_steps_with_several_seeds(tmp_path):
    settings = dataclasses.replace(
        SHORT, env="Broken-v0", env_options=(), budget=(5.0,), bad_steps="drop"
    )
    folders = [tmp_path / str(seed) for seed in range(2)]
    each = [dataclasses.replace(settings, seed=seed) for seed in range(2)]
    runs = loop.train_seeds(each, small("ppo-lag"), "ppo-lag", folders)
    for run in runs:
        assert run.rows("train")[-1]["dropped_steps"] > 0
        learner = [x for n, x in last_arrays(run).items() if n.startswith("learner/")]
        assert learner
        assert all(np.isfinite(x).all() for x in learner)


def test_an_evaluation_refuses_what_is_not_finite(tmp_path):
    settings = dataclasses.replace(SHORT, env="Broken-v0", env_options=(), budget=(5.0,))
    with pytest.raises(UserError, match=r"In an evaluation .* not finite.*--bad-steps drop"):
        loop.train(settings, small("sac-lag"), "sac-lag", tmp_path / "run")


def test_diverging_networks_stop_the_run_with_advice(tmp_path):
    with pytest.raises(UserError, match=r"not a number.*--critic-rate.*last good checkpoint"):
        loop.train(SHORT, small("algd", critic_rate=1e30), "algd", tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "--steps must be at least 1"),
        ({"envs": 0}, "--envs must be at least 1"),
        ({"eval_every": 0}, "--eval-every"),
        ({"seed": -1}, "--seed"),
        ({"env": "DiffDriv"}, "DiffDrive"),
        ({"budget": (-1.0,)}, "budget"),
        ({"env": "Pendulum-v1", "env_options": (), "budget": (1.0,)}, "cost"),
        ({"env": "CartPole-v1", "env_options": (), "budget": (1.0,)}, "[Dd]iscrete"),
        ({"env_options": ("cost_parts",)}, "name=value"),
    ],
)
def test_bad_settings_are_refused(changes, message, tmp_path):
    with pytest.raises(UserError, match=message):
        loop.train(Settings(**{**vars(SHORT), **changes}), small("algd"), "algd", tmp_path / "run")


def test_a_used_directory_is_refused(tmp_path):
    loop.train(SHORT, small("algd"), "algd", tmp_path / "run")
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(UserError, match="algd resume"):
        loop.train(SHORT, small("algd"), "algd", tmp_path / "run")
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_a_second_process_is_locked_out(tmp_path):
    run = loop.train(SHORT, small("algd"), "algd", tmp_path / "run")
    with run.lock(), pytest.raises(UserError, match="Another process"):
        loop.resume(tmp_path / "run", steps=300)


def test_a_buffer_that_does_not_fit_is_refused():
    spec = EnvSpec(10_000, (-1.0,), (1.0,), (Budget(1.0),), 100)
    with pytest.raises(UserError, match="GiB"):
        check_memory(spec, 100_000_000, small("algd"))


def test_fractional_rounds_add_up():
    done = sum(rounds_due(0.3, 0, 100, s, s + 4, 0) for s in range(0, 400, 4))
    assert done == 120
    assert rounds_due(1.0, 0, 100, -8, -4, 0) == 0
