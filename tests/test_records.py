"""Records: a finished run in one file, which is read as the run is and refused where it lies."""

import dataclasses
import json
import math
import shutil

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from algd.cli import main
from algd.evaluation.stats import summarise_runs
from algd.experiments import stability
from algd.runs.config import Settings
from algd.runs.directory import Run
from algd.runs.files import digest_of, read_record, write_record
from algd.runs.grouping import gather
from algd.runs.record import Record, thinned, write
from algd.sweeps.execution import execute, plan
from algd.sweeps.executors import Workers
from algd.sweeps.job import Outcome, attempt, is_complete
from algd.sweeps.plan import Job
from algd.sweeps.results import row, rows
from algd.types import Budget, UserError
from support.made_up import write_run
from support.small import small
from test_reproduce import make_up

SHORT = Settings(
    steps=80, envs=2, log_every=20, eval_every=40, eval_episodes=2, env_options=("horizon=40",)
)
QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A run that a sweep has trained and judged, and of which it has left the record."""
    folder = tmp_path_factory.mktemp("sweep")
    job = Job(folder / "DiffDrive-sac-lag-seed0", SHORT, small("sac-lag"), "sac-lag", 2)
    job = dataclasses.replace(job, records=folder / "records")
    assert attempt(job, None) == Outcome("done")
    return job


@pytest.fixture
def elsewhere(done, tmp_path):
    """The same run wanted on another machine, to which the record was carried."""
    job = dataclasses.replace(done, directory=tmp_path / done.name, records=tmp_path / "kept")
    shutil.copytree(done.records, job.records)
    return job


def recorded(folder, name, **given):
    """The record of a made-up run, and the run."""
    run = write_run(folder / "runs" / name, **given)
    run.write_note(run.evaluation_path, {"step": 800, "episodes": 20})
    (folder / "records").mkdir(exist_ok=True)
    record = Record(folder / "records" / f"{name}.json")
    write(run, record.path)
    return record, run


def alike(mine, theirs):
    """Equal words, and numbers to the digits that a record keeps."""
    return mine.keys() == theirs.keys() and all(
        value
        == (pytest.approx(theirs[name], rel=1e-5) if isinstance(value, float) else theirs[name])
        for name, value in mine.items()
    )


# --- what it holds ----------------------------------------------------------------------------


def test_a_record_says_what_its_run_says(done):
    run, record = Run(done.directory), done.record
    assert record.config() == run.config()
    assert record.evaluation() == run.evaluation()
    assert record.config()["versions"].keys() >= {"algd", "jax", "numpy"}
    assert record.config()["processor"]
    for kind in ("eval", "train"):
        assert [r["step"] for r in record.rows(kind)] == [r["step"] for r in run.rows(kind)]
        for mine, theirs in zip(record.rows(kind), run.rows(kind), strict=True):
            assert alike(mine, theirs)
    assert [r["kind"] for r in record.rows()] == [r["kind"] for r in run.rows()]
    assert alike(row(record), row(run))
    assert record.path.stat().st_size < 20_000


def test_times_that_nobody_wrote_down_are_not_known(tmp_path):
    record, _ = recorded(tmp_path, "a-seed0")
    assert record.seconds().wall == 200.0
    assert math.isnan(record.seconds().processor)


def test_a_long_run_is_thinned_to_its_end():
    lines = [{"step": step} for step in range(1, 1002)]
    kept = [line["step"] for line in thinned(lines)]
    assert len(kept) <= 200
    assert kept[-1] == 1001
    assert set(np.diff(kept)) == {6}
    assert thinned(lines[:200]) == lines[:200]
    assert thinned([]) == []


# --- read as runs are -------------------------------------------------------------------------


def test_a_figure_is_drawn_again_from_records_alone(tmp_path):
    for seed in range(3):
        for preset in ("algd", "sac"):
            recorded(tmp_path, f"{preset}-seed{seed}", preset=preset, seed=seed, last_cost=9 + seed)
    pictures = [tmp_path / "runs.png", tmp_path / "records.png"]
    for folder, picture in zip(("runs", "records"), pictures, strict=True):
        main(["plot", str(tmp_path / folder), "--kind", "all", "--out", str(picture)])
        shutil.rmtree(tmp_path / folder)
    drawn, again = (np.asarray(Image.open(picture)) for picture in pictures)
    np.testing.assert_array_equal(drawn, again)


def test_the_statistics_of_records_are_those_of_the_runs(tmp_path):
    pairs = [recorded(tmp_path, f"a-seed{s}", seed=s, last_return=8.0 + s) for s in range(3)]
    budgets = [Budget(20.0)]
    records, runs = (
        summarise_runs([r.rows() for r in side], budgets) for side in zip(*pairs, strict=True)
    )
    assert records.keys() == runs.keys()
    for name in records:
        wanted = [runs[name][k] for k in ("mean", "iqm", "runs")]
        assert [records[name][k] for k in ("mean", "iqm", "runs")] == pytest.approx(
            wanted, rel=1e-5
        )


def test_a_run_and_its_record_are_one_run(tmp_path):
    recorded(tmp_path, "a-seed0")
    tasks, complaints = gather([tmp_path])
    assert complaints == []
    ((run,),) = tasks["DiffDrive"].values()
    assert isinstance(run, Run)


def test_a_page_of_records_names_the_films_it_lacks(tmp_path, capsys):
    record, _ = recorded(tmp_path, "a-seed0")
    out = tmp_path / "report.html"
    main(["report", str(record.path), "--out", str(out), "--quiet"])
    assert "a-seed0.json" in out.read_text()
    assert "No film of algd on DiffDrive" in capsys.readouterr().err


# --- refused ----------------------------------------------------------------------------------


def altered(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


DAMAGES = {
    "settings": lambda c: c["config"]["hyperparameters"].update(rho=7.0),
    "numbers": lambda c: c["rows"]["eval"]["cost"].__setitem__(-1, 0.0),
    "judgement": lambda c: c["evaluation"].update(episodes=1000),
    "format": lambda c: c.update(format=99),
}


@pytest.mark.parametrize("damage", [*DAMAGES, "cut", "empty"])
def test_a_record_that_was_altered_or_damaged_is_refused(damage, tmp_path, capsys):
    good, _ = recorded(tmp_path, "a-seed0")
    bad, _ = recorded(tmp_path, "a-seed1", seed=1)
    if damage in DAMAGES:
        altered(bad.path, DAMAGES[damage])
    else:
        text = bad.path.read_bytes()
        bad.path.write_bytes(text[: len(text) // 2] if damage == "cut" else b"")
    with pytest.raises(UserError, match=r"a-seed1.json (is damaged|has the format 99)"):
        bad.rows()
    tasks, (complaint,) = gather([good.path.parent])
    assert "a-seed1.json" in complaint
    assert tasks["DiffDrive"] == {"algd": [good]}


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.pop("rows"),
        lambda c: c["rows"].update(eval=[1, 2]),
        lambda c: c["rows"]["eval"]["cost"].pop(),
        lambda c: c["rows"]["eval"]["cost"].__setitem__(0, "dear"),
        lambda c: c["rows"]["eval"]["cost"].__setitem__(0, 1e308),
        lambda c: c["seconds"].update(wall="long"),
        lambda c: c["seconds"].pop("wall"),
    ],
)
def test_a_crafted_record_is_refused(change, tmp_path):
    record, _ = recorded(tmp_path, "a-seed0")
    content = read_record(record.path)
    change(content)
    write_record(record.path, content)
    assert digest_of(content)
    for ask in (record.config, record.rows, record.evaluation, record.seconds):
        with pytest.raises(UserError, match="not the record of a run"):
            ask()


# --- not computed again -----------------------------------------------------------------------


def test_a_sweep_does_not_compute_a_run_again_that_has_its_record(done, elsewhere, tmp_path):
    other = dataclasses.replace(
        elsewhere,
        directory=tmp_path / "DiffDrive-sac-lag-seed1",
        settings=dataclasses.replace(SHORT, seed=1),
    )
    found = plan([elsewhere, other], tmp_path, Workers(), False, QUIET)
    assert found.missing == [other]
    assert execute(found, tmp_path, Workers(), QUIET) == {}
    assert not elsewhere.directory.exists()
    assert other.record.rows("eval")[-1]["step"] == 80
    table = rows(tmp_path, found.wanted)
    assert [line["seed"] for line in table] == [0, 1]
    assert alike(table[0], row(Run(done.directory)))
    assert plan([elsewhere, other], tmp_path, Workers(), False, QUIET).missing == []


def test_a_record_of_other_settings_does_not_count(elsewhere):
    assert is_complete(elsewhere)
    longer = dataclasses.replace(elsewhere.settings, steps=120)
    with pytest.raises(UserError, match="steps is 80 instead of 120"):
        is_complete(dataclasses.replace(elsewhere, settings=longer))
    with pytest.raises(UserError, match="by 2 episodes instead of 5"):
        is_complete(dataclasses.replace(elsewhere, episodes=5))
    altered(elsewhere.record.path, lambda c: c["config"]["settings"].update(steps=120))
    outcome = attempt(dataclasses.replace(elsewhere, settings=longer), None)
    assert outcome.kind == "failed"
    assert "was edited" in outcome.message
    assert not elsewhere.directory.exists()


def test_an_experiment_is_drawn_from_records_alone(tmp_path):
    first, second, kept = tmp_path / "first", tmp_path / "second", tmp_path / "kept"
    kept.mkdir()
    for trial in stability.runs("smoke", first):
        make_up(trial.job)
        write(Run(trial.job.directory), kept / f"{trial.job.name}.json")
    for out, more in ((first, []), (second, ["--records", str(kept)])):
        main(["reproduce", "stability", "--scale", "smoke", "--out", str(out), *more])
    for name in ("stability.csv", "runs/results.csv"):
        assert (first / name).read_bytes() == (second / name).read_bytes()
    assert not list(second.rglob("config.json"))
    pictures = [np.asarray(Image.open(out / "stability.png")) for out in (first, second)]
    np.testing.assert_array_equal(*pictures)


# --- algd record ------------------------------------------------------------------------------


def test_the_command_judges_and_keeps_runs(done, tmp_path, capsys):
    shutil.copytree(done.directory, tmp_path / "mine")
    Run(tmp_path / "mine").evaluation_path.unlink()
    main(["record", str(tmp_path), "--to", str(tmp_path / "kept"), "--episodes", "2"])
    record = Record(tmp_path / "kept" / "DiffDrive-sac-lag-seed0.json")
    assert str(record.path) in capsys.readouterr().out
    assert record.evaluation() == done.record.evaluation()
    before = record.path.read_bytes()
    main(["record", str(tmp_path / "mine"), "--to", str(tmp_path / "kept")])
    assert record.path.read_bytes() == before


def test_nobodys_record_is_written_over(tmp_path, capsys):
    record, run = recorded(tmp_path, "a-seed0")
    other = write_run(tmp_path / "other", rho=3.0)
    before = record.path.read_bytes()
    with pytest.raises(UserError, match="the record of another run"):
        write(other, record.path)
    assert record.path.read_bytes() == before
    with pytest.raises(SystemExit):
        main(["record", str(run.directory)])
    assert "is unfinished" in capsys.readouterr().err
