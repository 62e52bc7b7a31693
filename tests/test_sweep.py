"""Many runs: what a sweep is made of, that it computes only what is missing, and what it tells."""

import csv
import dataclasses
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time

import pytest
from rich.console import Console

from algd.cli import main
from algd.runs.config import Settings
from algd.runs.directory import Run
from algd.runs.files import read_record
from algd.sweeps import executors
from algd.sweeps import job as job_module
from algd.sweeps.cores import claimed_cores
from algd.sweeps.estimate import Speed, disk_bytes, known_speeds, label, measure
from algd.sweeps.execution import Plan, duration, execute, plan, print_plan
from algd.sweeps.executors import Workers, compute
from algd.sweeps.job import (
    Outcome,
    attempt,
    is_complete,
    last_beat,
    train_or_continue,
)
from algd.sweeps.plan import Job, Sweep, job, jobs, parse_assignments, read_sweep
from algd.sweeps.results import row, rows
from algd.training import loop
from algd.types import UserError
from same import differences
from support.small import small

SHORT = Settings(
    steps=120, envs=2, log_every=40, eval_every=120, eval_episodes=2, env_options=("horizon=40",)
)
QUIET = Console(quiet=True)


def tiny_job(directory, seed=0, **changes):
    settings = dataclasses.replace(SHORT, seed=seed, **changes)
    return Job(
        directory / f"DiffDrive-algd-seed{seed}",
        settings,
        small("algd", denoise_steps=2),
        "algd",
        4,
    )


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """One complete run, computed in this process."""
    done = tiny_job(tmp_path_factory.mktemp("sweep"))
    assert attempt(done, None) == Outcome("done")
    return done


# --- which runs -------------------------------------------------------------------------------


def test_every_combination_has_a_name_that_tells_what_is_varied(tmp_path):
    sweep = Sweep(
        env=("DiffDrive", "PointButton1"),
        preset=("algd", "lgd"),
        seeds=(3, 4),
        settings={"steps": (500,), "rho": (0.5, 2)},
    )
    found = jobs(sweep, tmp_path)
    assert len(found) == 16
    assert found[1].name == "DiffDrive-algd-seed3-rho=2"
    assert found[-1].name == "PointButton1-lgd-seed4-rho=2"
    assert {(j.settings.steps, j.settings.env) for j in found} == {
        (500, "DiffDrive"),
        (500, "PointButton1"),
    }
    assert (found[1].algorithm.rho, type(found[1].algorithm.rho)) == (2.0, float)


def test_a_name_stays_within_its_directory(tmp_path):
    for value in ("../../escaped", "a/b", "x" * 300, "é" * 300, "c\\d:*?"):
        options = {"env_options": (f"file={value}",)}
        one = job(tmp_path, "DiffDrive", "algd", 0, options, ("env_options",))
        assert one.directory.parent == tmp_path
        one.directory.mkdir()
        one.log_path.parent.mkdir(exist_ok=True)
        one.log_path.touch()
    assert len(list(tmp_path.iterdir())) == 6
    long = [
        job(tmp_path, "DiffDrive", "algd", 0, {"env_options": ("x" * n,)}, ("env_options",))
        for n in (300, 301)
    ]
    assert long[0].name != long[1].name


def test_cores_are_claimed_only_in_a_folder_of_ours(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: None)
    folder, elsewhere = tmp_path / f"algd-cores-{os.getuid()}", tmp_path / "elsewhere"
    with claimed_cores(1):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (claimed,) = folder.iterdir()
    elsewhere.mkdir()
    shutil.rmtree(folder)
    folder.symlink_to(elsewhere)
    with pytest.warns(UserWarning, match="is not used"), claimed_cores(1):
        pass
    folder.unlink()
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.warns(UserWarning, match="others can write"), claimed_cores(1):
        pass
    assert claimed.name.startswith("core-")
    assert list(elsewhere.iterdir()) == []


def test_one_run_has_one_name_however_its_numbers_are_written(tmp_path):
    names = ("steps", "rho")
    written = ({"steps": 1_000_000, "rho": 2}, {"steps": 1e6, "rho": 2.0})
    one, other = (job(tmp_path, "DiffDrive", "algd", 0, chosen, names) for chosen in written)
    assert one == other
    assert one.name == "DiffDrive-algd-seed0-steps=1000000-rho=2"


def test_values_of_the_command_line():
    parsed = parse_assignments(["--critic-hidden=16,32", "budget=10:5,20:5", "dual=pid"])
    assert parsed == {
        "critic_hidden": (16, 32),
        "budget": ((10, 5), (20, 5)),
        "dual": ("pid",),
    }


def test_a_file_describes_the_same_sweep(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text(
        'env = "DiffDrive"\npreset = ["algd", "lgd"]\nseeds = [1, 2]\nepisodes = 7\n'
        "[set]\nsteps = 300\nbudget = [5.0]\nrho = [0.5, 1]\npid = [[1, 2, 3], [4, 5, 6]]\n"
    )
    assert read_sweep(path) == Sweep(
        ("DiffDrive",),
        ("algd", "lgd"),
        (1, 2),
        7,
        {"steps": (300,), "budget": ((5.0,),), "rho": (0.5, 1), "pid": ((1, 2, 3), (4, 5, 6))},
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sed = [1]", "Did you mean seeds"),
        ("seeds = 0.5", "seeds must be a list of whole numbers, not 0.5"),
        ("env = [1]", "env must be a task or a list of tasks"),
        ('episodes = "many"', "episodes must be a whole number"),
        ("set = 3", "set must be a table of settings"),
        ("[set.rho]\nlow = 1", "set must be a table of settings"),
        ("[set]\nbudget = [[[1.0]]]", "set must be a table of settings"),
        ("[set]\nrho = [0.5, {a = 1}]", "set must be a table of settings"),
        ("[set]\nrhoo = 1", "Did you mean rho"),
        ('[set]\nrho = "strong"', "--rho must be a number, not 'strong'"),
        ("[set]\nrho = []", "empty"),
        ('env = "DifDrive"', "DiffDrive"),
        ('preset = "algdd"', "Did you mean algd"),
        ("seeds = [", "not a TOML file"),
    ],
)
def test_mistakes_in_a_file_are_named(text, message, tmp_path, capsys):
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    with pytest.raises(SystemExit) as stop:
        main(["sweep", "--file", str(path), "--out", str(tmp_path / "out")])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_setting_must_belong_to_every_preset(tmp_path):
    with pytest.raises(UserError, match="ppo-lag has a setting 'beta'"):
        jobs(Sweep(preset=("algd", "ppo-lag"), settings={"beta": (0.1,)}), tmp_path)


# --- one run ----------------------------------------------------------------------------------


def test_a_complete_run_is_judged_and_left_alone(complete):
    judged = json.loads(Run(complete.directory).evaluation_path.read_text())
    assert (judged["step"], judged["episodes"], judged["seed"]) == (120, 4, 12345)
    before = {p: p.stat().st_mtime_ns for p in complete.directory.rglob("*")}
    train_or_continue(complete)
    assert {p: p.stat().st_mtime_ns for p in complete.directory.rglob("*")} == before
    assert not is_complete(dataclasses.replace(complete, episodes=5))


def test_its_row_is_what_its_files_say(complete):
    judged = json.loads(Run(complete.directory).evaluation_path.read_text())
    lines = [json.loads(x) for x in (complete.directory / "metrics.jsonl").read_text().splitlines()]
    found = row(Run(complete.directory))
    assert found is not None
    assert (found["env"], found["preset"], found["seed"], found["steps"]) == (
        "DiffDrive",
        "algd",
        0,
        120,
    )
    assert found["return"] == judged["return"]["mean"]
    assert found["cost_se"] == judged["cost"]["standard_error"]
    returns = [x["return"] for x in lines if x["kind"] == "eval"]
    assert len(returns) == 2
    assert found["last5_return"] == pytest.approx(sum(returns) / 2)
    assert found["training_cost"] == [x for x in lines if x["kind"] == "train"][-1]["total_cost"]
    assert "critic_hidden=16" in found["overrides"].split()
    assert "envs=2" in found["overrides"].split()
    beat = last_beat(complete.directory)
    assert beat is not None
    assert beat.step == beat.steps == 120
    assert found["processor_seconds"] == beat.processor_seconds > 0


def test_a_finished_run_moved_here_is_adopted(complete, tmp_path):
    moved = tiny_job(tmp_path)
    shutil.copytree(complete.directory, moved.directory)
    Run(moved.directory).evaluation_path.unlink()
    metrics = (moved.directory / "metrics.jsonl").stat().st_mtime_ns
    train_or_continue(moved)
    assert (moved.directory / "metrics.jsonl").stat().st_mtime_ns == metrics
    assert Run(moved.directory).evaluation_path.read_bytes() == (
        Run(complete.directory).evaluation_path.read_bytes()
    )


def test_another_run_in_its_place_is_refused(complete):
    wanted = dataclasses.replace(
        complete, algorithm=dataclasses.replace(complete.algorithm, rho=7.0)
    )
    with pytest.raises(UserError, match=r"rho is 1.0 instead of 7.0"):
        is_complete(wanted)


def test_an_unfinished_run_is_continued_to_the_same_end(complete, tmp_path, monkeypatch):
    cut = tiny_job(tmp_path)
    calls = []
    monkeypatch.setattr(job_module, "SECONDS_BETWEEN_BEATS", 0.0)
    with pytest.raises(loop.Interrupted):
        train_or_continue(cut, lambda: len(calls) < 30 and not calls.append(0))
    assert not is_complete(cut)
    assert 0 < loop.Run(cut.directory).checkpoints()[-1][0] < 120
    train_or_continue(cut)
    assert is_complete(cut)
    assert differences(loop.Run(cut.directory), loop.Run(complete.directory)) == []


# --- many runs --------------------------------------------------------------------------------


def test_a_failed_run_is_told_and_does_not_stop_the_others(complete, tmp_path, capfd):
    good = tiny_job(tmp_path)
    shutil.copytree(complete.directory, good.directory)
    Run(good.directory).evaluation_path.unlink()
    broken = tiny_job(tmp_path, seed=1, env="NoSuchTask")
    found = plan([broken, good], tmp_path, Workers(), False, QUIET)
    assert found.missing == [broken, good]
    failures = execute(found, tmp_path, Workers(at_once=2), QUIET)
    assert list(failures) == [broken]
    assert "NoSuchTask" in failures[broken]
    assert "Traceback" in broken.log_path.read_text()
    assert is_complete(good)
    with (tmp_path / "results.csv").open() as file:
        (line,) = csv.DictReader(file)
    assert (line["seed"], float(line["return"])) == (
        "0",
        pytest.approx(rows(tmp_path)[0]["return"], rel=1e-5),
    )
    assert plan([good], tmp_path, Workers(), True, QUIET).missing == []


@pytest.mark.parametrize("damage", ["evaluation", "config", "progress", "speeds", "other run"])
def test_a_bad_run_does_not_stop_the_others(damage, complete, tmp_path, capfd):
    good, bad = tiny_job(tmp_path), tiny_job(tmp_path, seed=1)
    for one in (good, bad):
        shutil.copytree(complete.directory, one.directory)
    config = Run(complete.directory).config()
    config["settings"]["seed"] = 1
    Run(bad.directory).write_config(config)
    judged = read_record(Run(bad.directory).evaluation_path)
    if damage == "evaluation":
        del judged["cost"]["budget"]
        Run(bad.directory).write_note(Run(bad.directory).evaluation_path, judged)
    if damage == "progress":
        Run(bad.directory).write_note(Run(bad.directory).progress_path, {"step": "far"})
    if damage == "speeds":
        (tmp_path / "speeds.json").write_text('{"a": [["quick"], [1e400]]}')
        assert known_speeds(tmp_path / "speeds.json") == {}
    if damage == "config":
        Run(bad.directory).config_path.write_text("{}")
    if damage == "other run":
        config["settings"]["envs"] = 1
        Run(bad.directory).write_config(config)
    found = plan([bad, good], tmp_path, Workers(), False, QUIET)
    print_plan(found, tmp_path, Workers(), QUIET)
    failures = execute(found, tmp_path, Workers(), QUIET)
    assert list(failures) == ([bad] if damage in ("config", "other run") else [])
    assert 0 in [line["seed"] for line in rows(tmp_path)]


def test_a_process_that_dies_is_started_again(tmp_path, monkeypatch):
    started = []

    def start(function, arguments, threads, log):
        """The real process, but one that kills itself the first time or every time."""
        name = arguments[0].name
        started.append(name)
        dies = "seed1" in name or started.count(name) == 1
        code = (
            "import os,signal; os.kill(os.getpid(), signal.SIGKILL)"
            if dies
            else (
                "import pickle,sys; from algd.sweeps.job import Outcome; "
                "pickle.dump(Outcome('done'), sys.stdout.buffer)"
            )
        )
        return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)

    monkeypatch.setattr(executors, "start", start)
    both = [tiny_job(tmp_path, seed) for seed in (0, 1)]
    ended = dict(pair for some in compute(both, Workers(at_once=2), None) for pair in some)
    assert ended[both[0]] == Outcome("done")
    assert ended[both[1]].kind == "failed"
    assert "died 3 times (signal 9)" in ended[both[1]].message
    assert [started.count(j.name) for j in both] == [2, 3]


def test_workers_have_their_threads(tmp_path):
    process = executors.start(os.sched_getaffinity, (0,), 1, None)
    assert len(executors.answer(process)) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--set rho", "name=value"),
        ("--set rho=1 rho=2", "set twice"),
        ("--set rhoo=1", "Did you mean rho"),
        ("--set rho=-1", "--rho must be above 0"),
        ("--set rho=[]", "--rho must be a number"),
        ("--threads 0", "--threads must be at least 1"),
        ("--address 127.0.0.1:9", "--engine ray"),
        ("--episodes 0", "at least 1"),
    ],
)
def test_mistakes_on_the_command_line(options, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["sweep", "--out", str(tmp_path / "out"), "--no-estimate", *options.split()])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# --- what it will cost ------------------------------------------------------------------------


def test_speed_is_measured_in_processor_time(complete):
    clock = time.process_time()
    speed = measure(complete, None, seconds=0.2, repeats=2)
    spent = time.process_time() - clock
    assert len(speed.seconds_per_step) == 2
    assert 0 < min(speed.seconds_per_step) * 2 < spent
    assert 0 < sum(speed.seconds_per_evaluation) < spent


def test_the_estimate_counts_steps_and_evaluations(tmp_path):
    one = job(tmp_path, "DiffDrive", "algd", 0, {"steps": 10_000}, episodes=100)
    speed = Speed([0.01, 0.03], [2.0])
    # 10,000 steps; evaluations at 0, 2,000, ..., 10,000 of 10 episodes, then 100 more.
    assert speed.seconds(one) == pytest.approx(200 + 2 * (6 + 10))
    two = job(tmp_path, "DiffDrive", "algd", 1, {"steps": 10_000}, episodes=100)
    planned = Plan([one, two], [one, two], {label(one): speed})
    assert planned.core_seconds == pytest.approx(2 * speed.seconds(one))
    assert duration(3723.0) == "1:02 h"
    assert duration(62.0) == "1:02 min"


def test_the_disk_estimate_is_about_what_a_run_leaves(complete):
    left = sum(p.stat().st_size for p in complete.directory.rglob("*.algd"))
    # At most: the best evaluation may be that of one of the newest checkpoints.
    assert 0.5 < left / disk_bytes(complete) < 1.35
