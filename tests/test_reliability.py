"""Nothing is lost: kills, damage, full disks, foreign files and bad settings."""

import dataclasses
import hashlib
import io
import json
import math
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
import warnings
import zipfile
from functools import partial
from itertools import pairwise
from typing import get_type_hints

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import interruption_test
import kill_test
from algd.algorithms import presets
from algd.evaluation.policy import load
from algd.runs.checkpoint import read_checkpoint, to_arrays
from algd.runs.config import Settings, make_envs, parse_config
from algd.runs.directory import Run, create_run
from algd.runs.files import (
    FORMAT,
    MAGIC,
    DamagedFile,
    LogPosition,
    read_arrays,
    seal,
    write_arrays,
)
from algd.runs.grouping import gather
from algd.runs.metrics_log import MetricsLog
from algd.runs.validation import check_fields, check_hyperparameters
from algd.training import loop
from algd.training.checkpointing import load as load_state
from algd.training.checkpointing import load_newest, save
from algd.training.state import Setup, start
from algd.training.statistics import count_step
from algd.training.steps import decide, evaluate, iterate
from algd.training.updates import store
from algd.types import Transition, UserError
from algd.visualization.report import wall_seconds
from interruption_test import InterruptionTest
from kill_test import KillTest
from same import differences
from support.small import one_of_each, small

NOBODY = "0" * 32
FEW = settings(
    max_examples=25,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("reliability")


@pytest.fixture(scope="module")
def killed(folder):
    """A tiny run, whole and killed twice; all processes share compiled programs."""
    return kill_test.main(KillTest(preset="sac-lag", kills=2, steps=200, folder=folder))


@pytest.fixture(scope="module")
def whole(killed, folder):
    return Run(folder / "whole")


@pytest.fixture
def copy(whole, tmp_path):
    shutil.copytree(whole.directory, tmp_path / "run")
    return Run(tmp_path / "run")


class Trainer:
    """A run in progress with its state, which is replaced by every call."""

    def __init__(self, settings, algorithm, run):
        self.envs = make_envs(settings, settings.envs)
        self.setup = Setup(settings, algorithm, self.envs.spec, (run,))
        self.state = None

    def of(self, run):
        self.setup = dataclasses.replace(self.setup, runs=(run,))
        return self

    def start(self):
        self.state = start(self.setup, [self.envs])
        return self

    def load(self, path):
        self.state, _ = load_state(self.setup, self.envs, read_checkpoint(self.setup.runs[0], path))

    def load_newest(self):
        self.state, position, notes = load_newest(self.setup, self.envs)
        return position, notes

    def iterate(self, times):
        for _ in range(times):
            self.state = iterate(self.setup, self.state)

    def save(self, position):
        self.state = save(self.setup, self.state, [position])

    def at_step(self, step):
        self.state = self.state._replace(counters=self.state.counters._replace(step=step))


def trainer_of(run):
    settings, algorithm, _ = parse_config(run.config())
    return Trainer(settings, algorithm, run)


@pytest.fixture(scope="module")
def trainer(whole):
    """One that is restored again and again: making it takes longer."""
    return trainer_of(whole)


def contents(trainer):
    """Everything that the future depends on, as bytes."""
    parts = trainer.state._asdict()
    del parts["envs"], parts["key"], parts["metrics"]
    arrays = {**to_arrays(parts), **trainer.envs.save_state()}
    return {name: np.asarray(x).tobytes() for name, x in arrays.items()}


@pytest.fixture(scope="module")
def good(whole, trainer):
    """The contents at each checkpoint, by step."""
    found = {}
    trainer.of(whole)
    for step, path in whole.checkpoints():
        trainer.load(path)
        found[step] = contents(trainer)
    return found


# --- kills ------------------------------------------------------------------------------------


def test_killed_twice_is_the_run_never_killed(killed):
    assert killed["kills"] == 2
    assert killed["differences"] == []


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


def test_a_lock_dies_with_its_holder(copy):
    code = (
        "import fcntl, sys, time; file = open(sys.argv[1], 'a'); "
        "fcntl.flock(file, fcntl.LOCK_EX); print('held', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, str(copy.directory / "lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(UserError, match="Another process"), copy.lock():
            pass
        holder.send_signal(signal.SIGKILL)
    with copy.lock():
        pass


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


def test_a_run_without_a_checkpoint_begins_again(copy, good):
    shutil.rmtree(copy.directory / "checkpoints")
    with pytest.raises(UserError, match="no usable checkpoint: there is none"):
        trainer_of(copy).load_newest()
    os.truncate(copy.metrics_path, 0)
    trainer = trainer_of(copy)
    mark, notes = trainer.load_newest()
    assert (mark, trainer.state.step) == (LogPosition(), 0)
    assert "starts again" in notes[0]


# --- damage -----------------------------------------------------------------------------------


@st.composite
def damages(draw):
    """A function of a file's bytes: cut somewhere, or one byte changed."""
    where = draw(st.floats(0, 1, exclude_max=True))
    if draw(st.booleans()):
        return lambda content: content[: int(where * len(content))]
    change = draw(st.integers(1, 255))

    def flip(content):
        at = int(where * len(content))
        return content[:at] + bytes([content[at] ^ change]) + content[at + 1 :]

    return flip


def path_of(run, name):
    return {
        "config": run.config_path,
        "metrics": run.metrics_path,
        "checkpoint": run.checkpoints()[-1][1],
        "piece": run.pieces()[-1][2],
    }[name]


def damaged(run, name, damage):
    """Damage one file of a run and put back what was damaged before."""
    path = path_of(run, name)
    original = path.with_name(path.name + ".original")
    if not original.exists():
        shutil.copy(path, original)
    path.write_bytes(damage(original.read_bytes()))


def outcome(work, *arguments):
    """What a call gives, and what it says to the user if it refuses."""
    try:
        return work(*arguments), None
    except UserError as error:
        return None, str(error)


@FEW
@given(damage=damages())
def test_damaged_settings_are_noticed(copy, whole, damage):
    damaged(copy, "config", damage)
    config, said = outcome(copy.config)
    assert str(copy.config_path) in said if said else config == whole.config()


@FEW
@given(damage=damages())
def test_damaged_metrics_are_noticed(copy, whole, damage):
    damaged(copy, "metrics", damage)
    rows, said = outcome(copy.rows)
    # A file cut at the end is what a run in progress has.
    assert "damaged in line" in said if said else rows == whole.rows()[: len(rows)]


@FEW
@given(damage=damages())
def test_a_policy_is_never_loaded_from_a_damaged_checkpoint(copy, whole, damage):
    damaged(copy, "checkpoint", damage)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = to_arrays(load(copy.directory).state)
    step, path = whole.checkpoints()[-2 if caught else -1]
    assert not caught or f"step {step}" in str(caught[0].message)
    true = read_checkpoint(whole, path).learner
    assert all(found[name].tobytes() == true[name].tobytes() for name in found)


@pytest.mark.parametrize("name", ["metrics", "checkpoint", "piece"])
@FEW
@given(damage=damages())
def test_a_damaged_run_continues_from_what_is_whole_or_not_at_all(
    copy, good, trainer, name, damage
):
    damaged(copy, name, damage)
    trainer.of(copy)
    older, newest = list(good)[-2:]
    found, said = outcome(trainer.load_newest)
    if said:
        assert "no usable checkpoint" in said
        return
    assert found
    mark, notes = found
    step = trainer.state.step
    assert step in (older, newest)
    assert contents(trainer) == good[step]
    assert notes or step == newest
    assert copy.metrics_path.read_bytes()[: mark.size].count(b"\n") > 0


def test_a_checkpoint_that_lacks_something_leaves_no_trace(copy, good, trainer):
    trainer.of(copy).load_newest()
    before = contents(trainer)
    path = copy.checkpoints()[-2][1]
    arrays = copy.read(path)
    for missing in ("stored", "obs", "counters", "log", "learner/low", "statistics/length"):
        copy.write(path, {name: x for name, x in arrays.items() if name != missing})
        with pytest.raises(DamagedFile):
            trainer.load(path)
        assert contents(trainer) == before


def test_missing_files(copy, good, trainer):
    trainer.of(copy)
    older, newest = list(good)[-2:]
    copy.metrics_path.rename(copy.directory / "elsewhere")
    mark, notes = trainer.load_newest()
    assert (mark, trainer.state.step) == (LogPosition(), newest)
    assert "metrics.jsonl is missing" in notes[0]
    (copy.directory / "elsewhere").rename(copy.metrics_path)
    copy.pieces()[-1][2].unlink()
    _, notes = trainer.load_newest()
    assert trainer.state.step == older
    assert "lacks the transitions" in notes[0]
    for _, path in copy.checkpoints():
        path.unlink()
    with pytest.raises(UserError, match="no usable checkpoint"):
        load(copy.directory)
    copy.config_path.unlink()
    with pytest.raises(UserError, match="has no config"):
        loop.resume(copy.directory)


def test_what_lies_behind_the_checkpoint_is_cleared_away(copy, good):
    older, newest = list(good)[-2:]
    (copy.directory / "checkpoints" / "x.algd.part").write_bytes(b"half")
    copy.timing_path.write_bytes(b'{"step": 1}\n{"st')
    stored = int(copy.read(copy.checkpoints()[-2][1])["stored"])
    copy.forget_after(older, stored)
    assert copy.checkpoints()[-1][0] == older
    assert copy.pieces()[-1][1] == stored
    assert copy.timing_path.read_bytes() == b'{"step": 1}\n'
    names = {path.name for path in (copy.directory / "checkpoints").iterdir()}
    assert names == {f"step-{older:09d}.algd", f"step-{newest:09d}.algd.unusable"}


@pytest.mark.parametrize("version", [0, 3, 99])
def test_other_formats_are_refused_by_name(copy, version):
    path = copy.checkpoints()[-1][1]
    content = path.read_bytes()
    path.write_bytes(content[:4] + version.to_bytes(4, "little") + content[8:])
    with pytest.raises(DamagedFile, match=f"format {version} "):
        copy.read(path)
    config = json.loads(copy.config_path.read_text())
    copy.config_path.write_text(json.dumps({**config, "format": version}))
    with pytest.raises(UserError, match=f"format {version};"):
        copy.config()


def test_a_checkpoint_of_the_first_format_is_refused_with_advice(copy):
    for _, path in copy.checkpoints():
        content = path.read_bytes()
        path.write_bytes(content[:4] + (1).to_bytes(4, "little") + content[8:])
    for work in (loop.resume, load):
        with pytest.raises(UserError, match=r"format 1 .*reads format 2: go on with the version"):
            work(copy.directory)


def test_foreign_files_are_refused(tmp_path):
    run = create_run(tmp_path / "run")
    for content in ("", "[]", '{"a": 1}', "[" * 100_000, "\x00"):
        run.config_path.write_text(content)
        with pytest.raises(UserError, match="damaged"):
            load(run.directory)
    # The checksum is right, but reading these would run code.
    write_arrays(tmp_path / "plain.algd", {"a": np.zeros(2)}, NOBODY)
    with pytest.raises(ValueError, match="allow_pickle"):
        write_arrays(tmp_path / "objects.algd", {"a": np.array([{}], object)}, NOBODY)
    (tmp_path / "zeros.algd").write_bytes(bytes(1000))
    with pytest.raises(DamagedFile, match="not a checkpoint"):
        read_arrays(tmp_path / "zeros.algd", NOBODY)


# --- files of another run ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def other(whole, folder):
    """The same run with another seed, continued from the same beginning: every shape fits."""
    settings, algorithm, name = parse_config(whole.config())
    return loop.train(dataclasses.replace(settings, seed=1), algorithm, name, folder / "other")


@pytest.mark.parametrize("name", ["config", "metrics", "checkpoint", "piece"])
def test_a_file_of_another_run_is_noticed(name, copy, other, good):
    older = min(good)
    path, foreign = (path_of(run, name) for run in (copy, other))
    assert path.name == foreign.name
    shutil.copy(foreign, path)
    if name in ("checkpoint", "piece"):
        with pytest.raises(DamagedFile, match=f"{path.name} belongs to another run"):
            copy.read(path)
        trainer = trainer_of(copy)
        _, notes = trainer.load_newest()
        assert trainer.state.step == older
        assert contents(trainer) == good[older]
        assert "another run" in notes[0]
        return
    with pytest.raises(UserError, match="no usable checkpoint"):
        loop.resume(copy.directory)
    with pytest.raises(UserError, match="another run's"):
        copy.rows()
    if name == "config":
        with pytest.raises(UserError, match="another run"):
            load(copy.directory)


def test_notes_about_another_run_are_not_read(copy, other):
    path = other.directory / "note.json"
    other.write_note(path, {"a": 1})
    assert other.read_note(path)["a"] == 1
    assert copy.read_note(path) is None
    path.write_bytes(path.read_bytes().replace(b'"a": 1', b'"a": 2'))
    assert other.read_note(path) is None
    assert not math.isnan(wall_seconds(other))
    shutil.copy(other.timing_path, copy.timing_path)
    assert math.isnan(wall_seconds(copy))


def test_the_id_follows_from_what_determines_the_run(copy, whole, other):
    assert copy.id == whole.id != other.id
    loop.resume(copy.directory, steps=204)
    assert copy.id == whole.id


# --- the replay buffer in pieces ---------------------------------------------------------------


def transitions(first, count):
    """Recognisable ones."""
    numbers = np.arange(first, first + count, dtype=np.float32)
    column = numbers[:, None]
    many = {"obs": np.tile(column, 17), "next_obs": np.tile(column, 17)}
    few = {"action": np.tile(column, 2), "reward": numbers, "cost": column, "margin": column}
    flags = dict.fromkeys(("terminated", "truncated", "goal_met"), np.zeros(count, bool))
    return Transition(**jax.device_put({**many, **few, **flags}), extras={})


@pytest.mark.parametrize("interval", [3, 8, 25])
def test_every_kept_checkpoint_has_its_pieces_when_the_buffer_wraps(interval, tmp_path):
    run = create_run(tmp_path / "run")
    settings = Settings(steps=1_000, envs=1)
    trainer = Trainer(settings, small("algd", replay_size=10), run).start()
    run.write_config({})
    run.metrics_path.touch()
    for step in range(0, 6 * interval, interval):
        for one in range(step, step + interval):
            replay = store(trainer.state.replay, transitions(one, 1), np.ones(1, bool))
            trainer.state = trainer.state._replace(replay=replay)
        trainer.at_step(step + interval)
        trainer.save(LogPosition())
    for step, path in run.checkpoints():
        trainer.load(path)
        held = sorted(np.asarray(trainer.state.replay.data.reward).tolist())
        assert held[-min(step, 10) :] == list(range(max(step - 10, 0), step))
    spans = [(first, last) for first, last, _ in run.pieces()]
    assert all(a[1] <= b[0] for a, b in pairwise(spans))
    assert sum(last - first for first, last in spans) <= 10 + 2 * interval + interval


# --- environments that can be saved, and others -------------------------------------------------


def test_a_task_in_mujoco_goes_on_exactly(tmp_path):
    """From the middle of an episode, with gradient rounds before and after."""
    settings, run = Settings(env="PointButton1", envs=2, steps=80), create_run(tmp_path / "run")
    run.write_config({})
    run.write_config({})
    run.metrics_path.touch()
    trainers = [Trainer(settings, small("sac-lag"), run) for _ in range(2)]
    trainers[0].start().iterate(30)
    trainers[0].save(LogPosition())
    trainers[1].load_newest()
    for trainer in trainers:
        trainer.iterate(10)
    assert int(trainers[0].state.learner.rounds) > 10
    assert contents(trainers[0]) == contents(trainers[1])


class Drifting(gymnasium.Env):
    """Counts its steps in its observation; an episode of its own every time."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        self.start = self.np_random.random()
        return self.observation(), {}

    def observation(self):
        return np.array([self.count, self.start], np.float32)

    def step(self, action):
        self.count += 1
        return self.observation(), 1.0, False, False, {"cost": 1.0}


gymnasium.register("Drifting-v0", entry_point=Drifting, max_episode_steps=50)


@pytest.mark.parametrize("name", ["algd", "ppo-lag"])
def test_a_foreign_environment_goes_on_with_fresh_episodes(name, tmp_path):
    settings = Settings(env="Drifting-v0", budget=(5.0,), envs=2, steps=40)
    run = create_run(tmp_path / "run")
    trainer = Trainer(settings, small(name), run).start()
    run.write_config({})
    run.metrics_path.touch()
    (sums,), result = trainer.state.statistics, None
    for _ in range(3):
        result = trainer.envs.step(np.zeros((2, 1), np.float32))
        sums, _ = count_step(sums, result, np.ones(2, bool), trainer.envs.spec, 0.99)
    trainer.state = trainer.state._replace(obs=result.obs, statistics=(sums,))
    trainer.at_step(6)
    trainer.save(LogPosition())
    again = Trainer(settings, small(name), run)
    again.load_newest()
    assert again.state.step == 6
    assert (again.state.obs[:, 0] == 0).all()
    assert (again.state.obs[:, 1] != trainer.state.obs[:, 1]).all()
    (held,) = again.state.statistics
    assert not held.length.any()
    assert not held.plain.any()
    assert held.total_cost == 6.0
    np.testing.assert_array_equal(again.envs.step(np.zeros((2, 1), np.float32)).obs[:, 0], 1)


# --- full disks --------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A disk of four megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)]
    try:
        done = subprocess.run(command, capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if done.returncode:
        pytest.skip("mounting a small disk is not permitted")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(place):
    """Leave no room."""
    with open(place / "ballast", "ab", buffering=0) as file:
        try:
            while file.write(bytes(4096)) == 4096:
                pass
        except OSError:
            pass


def test_a_full_disk_is_reported_and_the_last_checkpoint_kept(whole, folder, small_disk, good):
    run = Run(small_disk / "run")
    shutil.copytree(whole.directory, run.directory, ignore=shutil.ignore_patterns("*.png"))
    trainer = trainer_of(run)
    mark, _ = trainer.load_newest()
    journal = MetricsLog(run, mark, trainer.state.step)
    fill(small_disk)
    said = rf"Cannot write to {run.directory}: No space left.*checkpoint is that of step 200"
    row = {"kind": "train", "step": 202, **{f"number{i}": 0.5 for i in range(500)}}
    with pytest.raises(UserError, match=said):
        journal.write(row)
    trainer.at_step(202)
    with pytest.raises(UserError, match=said):
        trainer.save(mark)
    assert not list(run.directory.rglob("*.part"))
    command = [kill_test.PROGRAM, "resume", run.directory, "--steps", "240", "--quiet"]
    done = subprocess.run(
        command, env=kill_test.environment(folder), capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr
    trainer.load_newest()
    assert contents(trainer) == good[200]
    load(run.directory)
    (small_disk / "ballast").unlink()
    trainer.at_step(202)
    trainer.save(mark)
    assert run.checkpoints()[-1][0] == 202


# --- settings ----------------------------------------------------------------------------------

NUMBERS = (
    st.sampled_from(
        [
            0,
            1,
            2,
            -1,
            10**12,
            0.0,
            0.5,
            1.0,
            -1.0,
            1e-30,
            1e30,
            1e300,
            math.nan,
            math.inf,
            -math.inf,
        ]
    )
    | st.integers()
    | st.floats()
)
ANYTHING = NUMBERS | st.booleans() | st.none() | st.text(max_size=3) | st.tuples(NUMBERS, NUMBERS)


def with_values(frozen, changes):
    """The same with changes, around the type check of the tests, which users do not have."""
    copy = dataclasses.replace(frozen)
    for name, value in changes.items():
        object.__setattr__(copy, name, value)
    return copy


@settings(max_examples=300, deadline=None, database=None, derandomize=True)
@given(data=st.data())
def test_any_value_of_any_setting_is_taken_or_refused_by_its_name(data):
    value = data.draw(st.sampled_from([Settings(), *presets().values()]))
    field = data.draw(st.sampled_from(dataclasses.fields(value)))
    odd = with_values(value, {field.name: data.draw(ANYTHING)})
    check = check_fields if isinstance(odd, Settings) else check_hyperparameters
    _, said = outcome(check, odd)
    if said:
        assert f"--{field.name.replace('_', '-')}" in said
        return
    taken, kind = getattr(odd, field.name), get_type_hints(type(odd))[field.name]
    assert kind is not int or (isinstance(taken, int) and 0 <= taken < 2**31)
    assert kind is not float or math.isfinite(taken)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("algd", {"critic_rate": -1.0}, "--critic-rate must be above 0, not -1.0"),
        ("algd", {"discount": 1.01}, "--discount must be at most 1"),
        ("algd", {"beta": math.nan}, "--beta must be a finite number"),
        ("algd", {"batch_size": 0}, "--batch-size must be at least 1"),
        ("algd", {"batch_size": 2.5}, "--batch-size must be a whole number"),
        ("algd", {"sigma_min": 2.0}, "--sigma-min must not exceed --sigma-max"),
        ("algd", {"initial_lam": 0.0}, "--initial-lam must be above 0"),
        ("algd", {"dual": "ascent"}, "--dual must be one of projected"),
        ("algd", {"pid": (0.1, 0.1)}, "--pid must be 3 numbers"),
        ("algd", {"replay_size": 1}, "--replay-size must be at least the 4 of --envs"),
        ("sac-lag", {"log_std_bounds": (2.0, -2.0)}, "--log-std-bounds must be a lower and"),
        ("algd", {"critic_hidden": 65_536}, "GiB"),
        ("algd", {"batch_size": 65_536, "mc_samples": 1_000}, "Updates of this size need"),
        ("cal", {"batch_size": 65_536, "cost_ensemble": 1_000}, "smaller --batch-size"),
        ("ppo-lag", {"passes": 0}, "--passes must be at least 1"),
    ],
)
def test_bad_hyperparameters_are_refused_before_anything_is_written(
    name, changes, message, tmp_path
):
    algorithm = with_values(presets()[name], changes)
    with pytest.raises(UserError, match=message):
        loop.train(Settings(), algorithm, name, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", one_of_each())
def test_a_diverged_policy_stops_the_run_instead_of_reaching_the_environment(name, tmp_path):
    run = create_run(tmp_path / "run")
    settings = Settings(envs=2, steps=40)
    trainer = Trainer(settings, small(name), run).start()
    spoilt = lambda x: jnp.full_like(x, jnp.nan) if jnp.issubdtype(x.dtype, jnp.floating) else x  # noqa: E731
    learner = trainer.state.learner
    broken = jax.tree.map(spoilt, learner)
    learner = dataclasses.replace(broken, low=learner.low, high=learner.high)
    trainer.state = trainer.state._replace(learner=learner)
    for work in (iterate, evaluate):
        with pytest.raises(UserError, match=r"action became .*not a number"):
            work(trainer.setup, trainer.state)
    with pytest.raises(UserError, match=r"the parameters of .* became infinite"):
        trainer.save(LogPosition())
    assert run.checkpoints() == []


# --- files that someone made to do damage -------------------------------------------------------


def signed(payload):
    """Any bytes with a beginning and a checksum that are right."""
    head = MAGIC + FORMAT.to_bytes(4, "little") + bytes.fromhex(NOBODY)
    return head + hashlib.blake2b(head + payload, digest_size=32).digest() + payload


def archive(*members, compression=zipfile.ZIP_STORED):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as file:
        for name, data in members:
            file.writestr(name, data)
    return content.getvalue()


def npy(array):
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


def encrypted():
    """As a reader sees it: the flag of every member says so."""
    content = bytearray(archive(("a.npy", npy(np.zeros(2)))))
    content[6] |= 1
    content[content.index(b"PK\x01\x02") + 8] |= 1
    return bytes(content)


def overlapping():
    """Thousands of members that are all the same bytes of the file."""
    one = archive(("a.npy", npy(np.zeros(2**16))))
    start = one.index(b"PK\x01\x02")
    entry = one[start : one.index(b"PK\x05\x06")]
    count = 1_000
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, count, count, len(entry) * count, start, 0)
    return one[:start] + entry * count + end


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"no archive",
        archive(("a.npy", npy(np.zeros(2**24))), compression=zipfile.ZIP_DEFLATED),
        archive(("a.npy", npy(np.zeros(3))), compression=zipfile.ZIP_LZMA),
        archive(("a.npy", npy(np.zeros(3)).replace(b"(3,)", b"(9**99,)"))),
        archive(("a.npy", npy(np.zeros(3, np.int8)).replace(b"(3,), }  ", b"(10**15,),}"))),
        archive(("a.npy", npy(np.zeros(3)).replace(b"(3,)", b"(-3,)"))),
        archive(("a.npy", npy(np.array([{}], object)))),
        archive(("a.npy", npy(np.zeros(3))[:-1])),
        archive(("a.txt", b"words")),
        encrypted(),
        overlapping(),
    ],
)
def test_crafted_archives_end_in_one_message(payload, tmp_path):
    path = tmp_path / "x.algd"
    path.write_bytes(signed(payload))
    with pytest.raises(DamagedFile, match=r"x.algd holds no plain arrays"):
        read_arrays(path, NOBODY)


def test_files_are_no_pipes_and_not_larger_than_the_memory(tmp_path, copy):
    os.mkfifo(tmp_path / "x.algd")
    with pytest.raises(DamagedFile, match="not a plain file"):
        read_arrays(tmp_path / "x.algd", NOBODY)
    with open(tmp_path / "y.algd", "wb") as file:
        file.truncate(2**43)
    with pytest.raises(DamagedFile, match="larger"):
        read_arrays(tmp_path / "y.algd", NOBODY)
    os.truncate(copy.config_path, 2**43)
    with pytest.raises(UserError, match="larger"):
        copy.config()
    os.truncate(copy.metrics_path, 2**43)
    with pytest.raises(UserError, match="larger"):
        copy.rows()


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("settings", [1]),
        ("settings", {"steps": "many"}),
        ("settings", {"seed": "0"}),
        ("settings", {"env": 3}),
        ("settings", {"env": "Diff\x1b[2JDrive"}),
        ("settings", {"eval_episodes": None}),
        ("settings", {"unknown": 3}),
        ("preset", ["algd"]),
        ("preset", {}),
        ("hyperparameters", None),
        ("hyperparameters", {"critic_rate": {}}),
        ("hyperparameters", {"critic_rate": [[]]}),
        ("budgets", []),
        ("budgets", [{"limit": "x", "name": "cost", "discounted": False}]),
        ("budgets", [{"limit": 1.0, "name": 7, "discounted": False}]),
        ("budgets", {"limit": 1.0}),
        ("horizon", "long"),
        ("horizon", 0),
        ("versions", 3),
        ("started_from", "nowhere"),
    ],
)
def test_settings_of_another_kind_are_refused(part, value, copy, capsys, tmp_path):
    config = copy.config()
    mixed = isinstance(value, dict) and isinstance(config[part], dict)
    copy.write_config({**config, part: {**config[part], **value} if mixed else value})
    for work in (parse_config, lambda config: loop.resume(copy.directory)):
        with pytest.raises(UserError, match="settings"):
            work(copy.config())
    found = gather([copy.directory])
    assert found.tasks == {}
    assert str(copy.config_path) in found.complaints[0]


@pytest.mark.parametrize("name", ["sac-lag", "ppo-lag"])
def test_a_checkpoint_of_other_shapes_is_refused_and_the_older_one_taken(name, tmp_path):
    """Each of its arrays in turn; environments and statistics are not touched by what is wrong."""
    settings = Settings(
        steps=44, envs=2, eval_episodes=1, checkpoint_every=20, env_options=("horizon=40",)
    )
    settings = dataclasses.replace(settings, overlap=name == "sac-lag")
    run = loop.train(settings, small(name), name, tmp_path / "run")
    (older, _), (_, path) = run.checkpoints()[-2:]
    trainer, arrays = trainer_of(run), run.read(path)
    for key, x in arrays.items():
        for wrong in (np.zeros((3, 5, 2)), np.zeros((0,), x.dtype), np.array("text")):
            run.write(path, {**arrays, key: wrong})
            _, notes = trainer.load_newest()
            assert trainer.state.step == older, key
            assert path.name in notes[0]


@pytest.mark.parametrize(
    "row",
    [
        {"kind": "eval"},
        {"kind": "eval", "step": "3"},
        {"kind": "eval", "step": 3, "return": "<b>"},
        {"kind": "eval", "step": 3, "return": None},
        {"kind": "eval", "step": 3, "return": 10**400},
        {"kind": 3, "step": 3},
    ],
)
def test_rows_of_another_kind_are_refused(row, copy):
    copy.metrics_path.write_bytes(seal(row, LogPosition(), copy.id)[0])
    with pytest.raises(UserError, match="not a row of metrics"):
        copy.rows()
    with pytest.raises(ValueError, match="JSON"):
        seal({"kind": "eval", "step": 3, "return": math.nan}, LogPosition(), NOBODY)
