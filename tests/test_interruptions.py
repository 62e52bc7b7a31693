"""Runs that are stopped: by signals, in any moment, before they have begun."""

import dataclasses
import os
import signal
import threading
import time
from functools import partial

import gymnasium
import numpy as np
import pytest

import interruption_test
from algd.runs.config import Settings
from algd.runs.directory import Run, create_run
from algd.training import loop
from algd.training.steps import decide
from algd.types import UserError
from interruption_test import InterruptionTest
from same import differences
from support.small import small


def test_any_moment_between_two_operations_on_files(tmp_path):
    """The short form of the script, which goes on with every copy."""
    found = interruption_test.main(InterruptionTest(every=45, folder=tmp_path / "folder"))
    assert min(found["copies"]) > 50
    assert found["resumed"] >= 4
    assert found["differences"] == {}


class Slow(gymnasium.Env):
    """Hangs in its n-th step, for ever or until it is interrupted."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, hangs_at=10**9, signals_at=10**9):
        self.hangs_at, self.signals_at, self.count = hangs_at, signals_at, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.count += 1
        if self.count == self.signals_at:
            signal.raise_signal(signal.SIGTERM)
        if self.count == self.hangs_at:
            signal.raise_signal(signal.SIGTERM)
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
            time.sleep(600)
        return np.zeros(2, np.float32), 1.0, False, False, {"cost": 1.0}


gymnasium.register("Slow-v0", entry_point=Slow, max_episode_steps=40)


def test_the_second_signal_stops_a_hanging_environment(tmp_path):
    options = ("hangs_at=30",)
    settings = Settings(
        "Slow-v0", steps=200, envs=1, budget=(5.0,), env_options=options, eval_episodes=1
    )
    settings = dataclasses.replace(settings, eval_every=1_000)
    begin = partial(loop.train, settings, small("sac-lag"), "sac-lag", tmp_path / "run")
    with pytest.MonkeyPatch.context() as patch:
        # The evaluation's own copy would hang first.
        patch.setattr(loop, "evaluate", evaluation_of)
        with pytest.raises(loop.Interrupted, match="everything is saved"):
            begin()
    # The adapter took one step beforehand; the 29th step of the run did not come back.
    assert Run(tmp_path / "run").checkpoints()[-1][0] == 28


def evaluation_of(setup, state, wanted):
    return state, [{"kind": "eval", "step": state.step, "return": 0.0, "cost": 0.0}]


def test_a_signal_cuts_an_evaluation_short_and_nothing_is_lost(tmp_path):
    settings = Settings("DiffDrive", steps=80, envs=2, eval_every=40, eval_episodes=2, log_every=20)
    settings = dataclasses.replace(settings, env_options=("horizon=40",))
    algorithm = small("sac-lag")
    whole = loop.train(settings, algorithm, "sac-lag", tmp_path / "whole")
    steps = []

    def wanted_until(setup, state, wanted):
        """In the second evaluation, a signal comes in its tenth step."""

        def check():
            steps.append(state.step)
            if steps.count(40) == 10:
                signal.raise_signal(signal.SIGTERM)
            return wanted()

        return evaluate(setup, state, check)

    evaluate = loop.evaluate
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "evaluate", wanted_until)
        with pytest.raises(loop.Interrupted, match="step 40; everything is saved"):
            loop.train(settings, algorithm, "sac-lag", tmp_path / "cut")
    assert steps.count(40) == 10
    cut = Run(tmp_path / "cut")
    assert [row["step"] for row in cut.rows("eval")] == [0]
    loop.resume(cut.directory)
    assert differences(whole, cut) == []


def test_the_second_signal_in_the_middle_of_a_step_leaves_the_last_checkpoint(tmp_path):
    settings = Settings("DiffDrive", steps=80, envs=2, eval_episodes=1, checkpoint_every=10)
    settings = dataclasses.replace(settings, env_options=("horizon=40",))

    def hang(setup, state):
        if state.step == 36:
            signal.raise_signal(signal.SIGTERM)
            time.sleep(2 * loop.SAME_SIGNAL)
            signal.raise_signal(signal.SIGTERM)
        return decide(setup, state)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "decide", hang)
        with pytest.raises(loop.Interrupted, match=r"at once. The last good .* step 30"):
            loop.train(settings, small("sac-lag"), "sac-lag", tmp_path / "cut")
    run = Run(tmp_path / "cut")
    assert run.checkpoints()[-1][0] == 30
    loop.resume(run.directory)
    whole = loop.train(settings, small("sac-lag"), "sac-lag", tmp_path / "whole")
    assert differences(whole, run) == []


def test_signals_that_are_ignored_stay_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with loop.stop_on_signal() as received:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
        # The second came at once: a program that passes signals on.
        assert len(received) == 2
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_run_stopped_before_its_settings_were_written_is_no_run(tmp_path):
    run = create_run(tmp_path / "run")
    run.metrics_path.touch()
    (run.directory / "config.json.part").write_bytes(b"half")
    create_run(run.directory)
    for name in ("notes.txt", "metrics.jsonl", "checkpoints/step-000000004.algd"):
        (run.directory / name).write_text("mine")
        with pytest.raises(UserError, match="not empty"):
            create_run(run.directory)
        (run.directory / name).unlink()


def test_settings_are_there_before_anything_else_is_written(tmp_path, monkeypatch):
    def killed(run, config):
        raise KeyboardInterrupt

    settings = Settings(steps=4, envs=1, eval_episodes=1, env_options=("horizon=10",))
    begin = partial(loop.train, settings, small("sac-lag"), "sac-lag", tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(Run, "write_config", killed)
        with pytest.raises(KeyboardInterrupt):
            begin()
    assert begin().checkpoints()[-1][0] == 4
