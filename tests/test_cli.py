"""The command line as a newcomer types it."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest

import algd
from algd import envs, zoo
from algd.algorithms import preset, presets, summaries
from algd.cli import main
from algd.cli.arguments import whole_number
from algd.cli.progress import progress_text
from algd.cli.train import Output
from algd.networks.native import library
from algd.runs.config import Settings
from algd.runs.directory import Run, create_run
from algd.training.loop import Interrupted, Progress
from algd.types import ELSEWHERE, UserError

RUN = "--steps 160 --envs 2 --log-every 40 --eval-every 80 --eval-episodes 2 --quiet"
RUN += " --env-options horizon=40"
TINY = (
    "algd --critic-hidden 16 --score-hidden 16 --batch-size 16 --cost-ensemble 2 --mc-samples 2 "
    "--prefill 40 --updates-per-step 0.5 --replay-size 64 --rho 2.0"
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    directory = tmp_path_factory.mktemp("cli") / "run"
    # Without noise, so that the same observation has the same action.
    main(f"train {RUN} --out {directory} {TINY} --deterministic zero-noise".split())
    return directory


def fails(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    return capsys.readouterr().err


def test_training_leaves_a_complete_run(trained):
    config = json.loads((trained / "config.json").read_text())
    assert config["hyperparameters"]["rho"] == 2.0
    assert config["preset"] == "algd"
    for name in ("metrics.jsonl", "timing.jsonl", "curves.png"):
        assert (trained / name).stat().st_size > 0


def test_train_alone_is_algd_on_diffdrive(monkeypatch, capsys):
    """The README's first command has no argument; its run takes minutes, so it is only begun."""
    begun = []

    def note(settings, algorithm, name, *rest):
        begun.append((settings, algorithm, name))
        return Run(Path("runs/there"))

    monkeypatch.setattr("algd.cli.train.run_to_end", note)
    main(["train"])
    assert begun == [(Settings(), preset("algd"), "algd")]
    assert "algd evaluate runs/there" in capsys.readouterr().out


def test_evaluate_prints_one_object(trained, capsys):
    main(["evaluate", str(trained), "--episodes", "20", "--json"])
    summary = json.loads(capsys.readouterr().out)
    assert summary["episodes"] == 20
    assert set(summary["return"]) == {"mean", "standard_error", "iqm"}
    cost = summary["cost"]
    assert cost["budget"] == 4.0
    assert cost["unit"] == "sum per episode"
    assert cost["cvar_0.9"] >= cost["mean"]
    assert 0.0 <= cost["violation_rate"] <= 1.0


def test_evaluate_prints_a_table(trained, capsys):
    main(["evaluate", str(trained), "--episodes", "4"])
    assert "CVaR" in capsys.readouterr().out


def test_resume_with_more_steps(trained, tmp_path, capsys, monkeypatch):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    newest = max((copy / "checkpoints").iterdir())
    newest.write_bytes(newest.read_bytes()[:-1])
    there = library.available()
    monkeypatch.setattr(library, "available", lambda: not there)
    main(["resume", str(copy), "--steps", "240", "--quiet"])
    said = capsys.readouterr().out
    assert said.startswith(f"{newest.name} is not used")
    assert "compiled code" in said
    rows = [json.loads(line) for line in (copy / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["step"] == 240


def test_plot_groups_runs_and_never_overwrites(trained, tmp_path, capsys):
    picture = tmp_path / "curves.png"
    main(["plot", str(trained), str(tmp_path / "nothing"), "--out", str(picture)])
    assert "left out" in capsys.readouterr().err
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "exists" in fails(["plot", str(trained), "--out", str(picture)], capsys)


def test_list_shows_what_presets_and_tasks_are(capsys):
    """Its numbers are those of the environments that a run is made of."""
    main(["list"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    shown = {words[0]: words[1:] for words in lines if words}
    assert summaries().keys() == presets().keys()
    assert len(set(summaries().values())) == len(presets())
    for name, line in summaries().items():
        assert shown[name] == line.split()
    for name in envs.names():
        made = envs.make(name, 1)
        spec = made.spec
        assert shown[name][:3] == [str(x) for x in (spec.obs_size, spec.action_size, spec.horizon)]
        (budget,) = spec.budgets
        limit = f"{budget.limit:g}"
        words = [limit, "(discounted)"] if budget.discounted else [limit]
        in_zoo = 3 if name in zoo.tasks() else 1
        assert shown[name][:-in_zoo][-len(words) :] == words
        assert ("(discounted)" in shown[name]) == budget.discounted
        made.close()
    assert "1 at hazards, wrong buttons, gremlins" in " ".join(shown["PointButton1"])


def test_python_interface(trained):
    policy = algd.load(trained).policy
    obs = np.random.default_rng(0).normal(size=(5, policy.spec.obs_size))
    batch = policy.predict(obs)
    assert batch.shape == (5, 2)
    assert np.abs(batch).max() <= 1.0
    # What docs/export.md allows: alone it is NumPy that sums, and in another order.
    np.testing.assert_allclose(policy.predict(obs[2]), batch[2], atol=1e-5)
    draws = {tuple(policy.predict(obs[0], deterministic=False)) for _ in range(5)}
    assert len(draws) == 5
    assert policy.predict(obs[:0]).shape == (0, 2)
    with pytest.raises(algd.UserError, match=r"17 numbers.*\[3\]"):
        policy.predict(np.zeros(3))
    for bad in (np.full(17, np.nan), np.full((2, 17), np.inf)):
        with pytest.raises(algd.UserError, match="not a number"):
            policy.predict(bad)
    with pytest.raises(algd.UserError, match="array of numbers"):
        policy.predict(["fast"] * 17)


def test_python_training_refuses_unknown_settings(tmp_path):
    with pytest.raises(algd.UserError, match="Did you mean"):
        algd.train(out=tmp_path / "run", bettta=1.0)
    with pytest.raises(algd.UserError, match="Here it is called replay_size"):
        algd.train(out=tmp_path / "run", buffer_size=100)
    with pytest.raises(algd.UserError, match="--rho has no effect"):
        algd.train(algorithm="LGD", out=tmp_path / "run", rho=2.0)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "train"),
        (["train", "alg"], "Did you mean algd"),
        (["train", "--env", "PointButon1"], "PointButton1"),
        (["train", "--steps", "0"], "--steps must be at least 1"),
        (["train", "--budget", "-5"], "udget"),
        (["train", "--env", "Pendulum-v1", "--budget", "3"], "cost"),
        (["train", "--env", "CartPole-v1", "--budget", "3"], "iscrete"),
        (["train", "--out", "/proc/nowhere"], "Cannot write"),
        (["evaluate", "/nonexistent"], "no directory"),
        (["evaluate", "/tmp"], "no config.json"),
        (["bench", "updat"], "update"),
        (["bench", "train", "--seconds", "nan"], "--seconds must be positive"),
        (["bench", "env", "--sizes", "default"], "--sizes has no effect"),
        (["train", "--quiet", "cal-quik"], "Did you mean cal-quick"),
        (["train", "--from", "a", "--from", "b"], "--from is given twice"),
        (["train", "--seeds", *map(str, range(1001))], "--seeds takes at most 1,000, not 1,001"),
        (["train", "--seeds", str(2**31), "2"], "--seed must be at most"),
        (["train", "--seeds", "2", "2"], "--seeds names one twice"),
        (["train", "--seed", "1", "--seeds", "2", "3"], "--seed does not go with --seeds"),
        (["train", "--budget", "1", "--budget", "2"], "--budget is given twice"),
        (["train", "cal", "--preset", "lgd"], "one preset, not cal and lgd"),
        (["train", "sac-lagg", "--actor-hidden", "3"], "Did you mean sac-lag"),
        (["train", "--preset", "cla"], "Did you mean cal"),
        (["train", "--trust"], "--trust has no effect without --from"),
        (["train", "--discounted-budget"], "--discounted-budget has no effect without --budget"),
        (["evaluate", ".", "--candidates", "3"], "--candidates has no effect without --mode best"),
        (["bench", "env", "--presets", "algd"], "--presets has no effect on `algd bench env`"),
        (["bench", "update", "--seconds", "3"], "--seconds has no effect on `algd bench update`"),
        (["bench", "update", "--presets", "ppo-lag"], "presets that learn from replay"),
        (["report", ".", "--no-videos", "--episodes", "2"], "--episodes has no effect"),
        (["reproduce", "theory", "--yes"], "--yes has no effect at this scale"),
        (["reproduce", "theory", "--threads", "2"], "--threads has no effect on theory"),
        (["sweep", "--trust"], "--trust has no effect without --file"),
        (["sweep", "--preset", "ALGDD"], "Did you mean algd"),
        (["help", "trian"], "train"),
        (["help", "LGD"], "It is a preset: algd train lgd"),
        (["plot"], "Which runs?"),
        (["report"], "Which runs?"),
        (["record"], "Which runs?"),
        (["plot", "zoo:DiffDrive"], "zoo:DiffDrive is a policy"),
        (["train", "--total-timesteps", "1e5"], "--total-timesteps is called --steps here"),
        (["train", "--algo", "sac"], "--algo is called --preset here"),
        (["train", "lgd", "--rho", "2"], "--rho has no effect with --energy plain"),
        (
            ["train", "algd-plain", "--beta-rate", "1"],
            "--beta-rate has no effect with --temperature score",
        ),
        (["train", "ppo-lag", "--pid", "1", "0", "0"], "--pid has no effect with --dual adam"),
        (["sweep", "--out", "/proc/nowhere"], "cannot be made"),
        (["sweep", "--set", "seed=3"], "--seeds"),
        (["reproduce", "theory", "--out", "/proc/nowhere"], "cannot be made"),
        (["plot", "--out", "/proc/curves.png"], "cannot be written to"),
    ],
)
def test_mistakes_get_a_message_and_exit_code_2(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in fails(arguments, capsys)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    ["train --out", "evaluate", "plot a --out", "report a --out", "sweep --no-estimate --out"],
)
def test_a_name_that_is_too_long(arguments, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "x" * 300 + (".png" if "plot" in arguments else ".html" if "report" in arguments else "")
    assert "name too long" in fails([*arguments.split(), name], capsys)


def test_suggested_commands_can_be_pasted(tmp_path):
    directory = tmp_path / "my runs; $(first)"
    run = create_run(directory)
    run.config_path.touch()
    with pytest.raises(UserError) as refused:
        create_run(directory)
    assert f"algd resume '{directory}'" in str(refused.value)
    assert f"algd resume '{directory}'" in str(Interrupted([run], 3))
    with pytest.raises(UserError) as full, run.writing():
        raise OSError(28, "No space left on device")
    assert f"algd resume '{directory}'" in str(full.value)


def test_a_used_directory_names_resume(trained, capsys):
    before = {path: path.stat().st_mtime_ns for path in trained.rglob("*")}
    assert "algd resume" in fails(["train", "--out", str(trained), "algd"], capsys)
    assert {path: path.stat().st_mtime_ns for path in trained.rglob("*")} == before


@pytest.fixture
def begun(monkeypatch):
    """What training would have been asked to do."""
    calls = []

    def note(settings, algorithm, name, *rest):
        calls.append((settings, algorithm, name, *rest))
        return Run(Path("runs/there"))

    monkeypatch.setattr("algd.cli.train.run_to_end", note)
    monkeypatch.setattr("algd.cli.train.run_seeds_to_end", lambda *call: [note(*call)])
    return calls


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("--out sac cal-quick", "cal-quick"),
        ("--quiet cal --rho 2", "cal"),
        ("--no-quiet --budget 1 --env=X lgd", "lgd"),
        ("--env sac --seed 3", "algd"),
        ("--budget 2 --discounted_budget hj", "hj"),
        ("CAL --rho 2", "cal"),
        ("--preset SAC_Auglag --rho 2", "sac-auglag"),
        ("--rho 2 cal --seeds 0 1 2", "cal"),
        ("--seeds 0 1 2 cal", "cal"),
        ("--rho 2", "algd"),
    ],
)
def test_the_preset_is_the_word_that_belongs_to_no_option(words, found, begun):
    main(["train", *words.split()])
    ((_, algorithm, name, *_),) = begun
    assert name == found
    expected = preset(found)
    if "--rho" in words:
        expected = dataclasses.replace(expected, rho=2.0)
    assert algorithm == expected


def test_no_value_of_an_option_is_taken_for_a_preset():
    """Options whose values are words have names of their own among them."""
    kinds = {Settings, *map(type, presets().values())}
    hints = [hint for kind in kinds for hint in get_type_hints(kind).values()]
    words = {word for hint in hints if get_origin(hint) is Literal for word in get_args(hint)}
    assert "augmented" in words
    assert not words & presets().keys()


def test_names_of_other_libraries_are_none_of_ours():
    kinds = (Settings, Output, *map(type, presets().values()))
    ours = {field.name for kind in kinds for field in dataclasses.fields(kind)}
    assert not ELSEWHERE.keys() & ours
    assert set(ELSEWHERE.values()) <= ours | {"preset"}


def test_options_of_the_run_stand_before_or_behind_the_preset(begun):
    main(["train", "--steps", "30", "--budget", "7", "8", "cal", "--rho", "3"])
    main(["train", "cal", "--rho", "3", "--steps", "30", "--budget", "7", "8"])
    assert begun[0][:3] == begun[1][:3]
    assert begun[0][0] == Settings(steps=30, budget=(7.0, 8.0))


def test_seeds_are_named(begun):
    main(["train", "--seeds", "3", "1", "2", "--out", "many", "sac"])
    assert begun[0][2:5] == ("sac", (3, 1, 2), Path("many"))


@pytest.mark.parametrize("words", [["help", "evaluate"], ["evaluate", "--help"]])
def test_help_of_a_command(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert not stop.value.code
    assert "--episodes INT" in capsys.readouterr().out


def test_help_of_a_preset_shows_its_hyperparameters(capsys):
    for words, known in ((["help", "train"], True), (["train", "ppo-lag", "--help"], False)):
        with pytest.raises(SystemExit):
            main(words)
        shown = capsys.readouterr().out
        assert "--steps INT" in shown
        assert ("--mc-samples" in shown) == known


def test_help_and_version_have_several_names(capsys):
    shown = []
    for word in ("help", "-h", "--help", "version", "-V", "--version"):
        main([word])
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] == shown[2]
    assert "usage: algd COMMAND" in shown[0]
    assert shown[3:] == 3 * [f"{algd.__version__}\n"]


def test_hints_name_commands_that_exist(capsys):
    said = fails(["train", "--quiet", "--stepz", "3"], capsys)
    assert "--steps INT" in said
    assert re.findall(r"algd [a-z- ]*--help", said) == ["algd train --help"]


def test_a_log_file_has_a_line_for_each_row(tmp_path, capsys):
    """Where the output is no terminal."""
    words = RUN.replace(" --quiet", "").split()
    main(["train", *words, "--out", str(tmp_path / "run"), *TINY.split()])
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("/")[0] for line in lines] == ["2", "40", "80", "120", "160"]
    assert "eval return" in lines[2]


def test_a_run_that_is_beyond_its_steps_has_no_time_left():
    """Four copies take steps 5 to 8 of five together."""
    assert "  2/s  0:00 left" in progress_text(Progress(8, 5, 0, 4.0, {}, {}))


def test_a_finished_run_says_so(trained, capsys):
    main(["resume", str(trained), "--quiet"])
    assert f"all of its 160 steps. To go on: algd resume {trained}" in capsys.readouterr().out


def test_one_episode_has_no_standard_error(trained, capsys):
    main(["evaluate", str(trained), "--episodes", "1"])
    assert "nan" not in capsys.readouterr().out.lower()


def test_a_benchmark_names_its_columns_and_what_it_measures(monkeypatch, capsys):
    def measured(presets, sizes, tell):
        tell("algd-code in float32")
        return [{"preset": "algd-code", "ms": 12.34567}, {"preset": "hj", "other": None}]

    monkeypatch.setattr("algd.profiling.update.bench_update", measured)
    main(["bench", "update"])
    said = capsys.readouterr()
    assert said.out == "preset        ms  other\nalgd-code  12.35  -\nhj             -  -\n"
    assert said.err == "measuring algd-code in float32\n"


def test_odd_numbers_for_an_evaluation(trained, capsys):
    for option, value, message in (
        ("--seed", "-1", "--seed must be"),
        ("--horizon", "0", "--horizon must be"),
        ("--candidates", "100000000", "From 1 to 10,000"),
    ):
        arguments = ["evaluate", str(trained), "--mode", "best", option, value]
        assert message in fails(arguments, capsys)


def test_a_foreign_table_is_not_written_over(tmp_path, capsys):
    (tmp_path / "results.csv").write_text("my,own,table\n")
    assert "not a sweep's table" in fails(["sweep", "--out", str(tmp_path)], capsys)
    assert (tmp_path / "results.csv").read_text() == "my,own,table\n"


def test_a_module_that_cannot_be_imported_is_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "broken_module.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    said = fails(["train", "--env", "broken_module:A-v0"], capsys)
    assert "broken_module" in said
    assert "ZeroDivisionError" in said


def test_unknown_options_end_with_2():
    program = Path(sys.executable).with_name("algd")
    done = subprocess.run([program, "train", "--stepz", "3"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "stepz" in done.stdout + done.stderr


@pytest.mark.parametrize("command", ["list", "train --help"])
def test_a_reader_that_goes_away_ends_it_quietly(command):
    words = [sys.executable, "-m", "algd", *command.split()]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 141


def test_whole_numbers():
    texts = ("100000", "100_000", "1e5", "1E+5", "100000.0")
    assert [whole_number(text) for text in texts] == 5 * [100_000]
    assert whole_number("9007199254740993") == 2**53 + 1
    for text in ("1.5", "1e-1", "inf", "nan", "many", ""):
        with pytest.raises(ValueError, match="is not a whole number"):
            whole_number(text)


def test_numbers_are_those_of_python_whoever_gives_them(monkeypatch, tmp_path):
    begun = []

    def note(settings, algorithm, name, directory, *rest):
        begun.append((settings, algorithm))
        return Run(Path(directory))

    monkeypatch.setattr("algd.api.run_to_end", note)
    monkeypatch.setattr("algd.cli.train.run_to_end", note)
    options = {
        "steps": np.float64(1e5),
        "seed": np.int64(3),
        "rho": np.float32(2),
        "batch_size": 6e1,
    }
    algd.train(budget=np.array([7, 8]), out=tmp_path, horizon=np.array(5), **options)
    words = "--steps 1e5 --seed 3 --budget 7 8 --horizon 5e0 algd --rho 2 --batch-size 6e1"
    main(f"train --out {tmp_path} {words}".split())
    assert begun[0] == begun[1]
    settings, algorithm = begun[0]
    assert (settings.steps, settings.budget, algorithm.rho) == (100_000, (7.0, 8.0), 2.0)
    for value in (settings.steps, settings.seed, settings.horizon, algorithm.batch_size):
        assert type(value) is int
    assert {type(value) for value in (*settings.budget, algorithm.rho)} == {float}
