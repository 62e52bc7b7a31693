"""Nothing is lost: kills, damage, full disks, foreign files and bad settings."""

import dataclasses
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kill_test
from algd.evaluation.policy import load
from algd.runs.checkpoint import read_checkpoint, to_arrays
from algd.runs.config import parse_config
from algd.runs.directory import Run, create_run
from algd.runs.files import DamagedFile, LogPosition, read_arrays, seal, write_arrays
from algd.runs.grouping import gather
from algd.runs.metrics_log import MetricsLog
from algd.training import loop
from algd.types import UserError
from kill_test import KillTest
from support.trainer import contents, outcome, trainer_of

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


@pytest.fixture(scope="module")
def trainer(whole):
    """One that is restored again and again: making it takes longer."""
    return trainer_of(whole)


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
    assert not math.isnan(other.seconds().wall)
    shutil.copy(other.timing_path, copy.timing_path)
    assert math.isnan(copy.seconds().wall)


def test_the_id_follows_from_what_determines_the_run(copy, whole, other):
    assert copy.id == whole.id != other.id
    loop.resume(copy.directory, steps=204)
    assert copy.id == whole.id


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


# --- files that someone made to do damage -------------------------------------------------------


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
