"""The experiments of the paper at their smallest: every figure is drawn, every table adds up."""

import csv
import dataclasses
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from algd.cli import main
from algd.cli.reproduce import OF_RUNS, experiment
from algd.experiments import ablations, benchmark, pages, stability
from algd.experiments.aggregates import (
    REFERENCE,
    MethodScores,
    aggregate_table,
    random_return,
    safe_returns,
    scores_of,
)
from algd.experiments.trials import family, summary_table
from algd.runs.config import Settings, describe, make_envs
from algd.runs.directory import create_run
from algd.runs.files import LogPosition, seal
from algd.sweeps.estimate import label
from algd.sweeps.job import is_complete

PICTURES = ("stability", "benchmark", "profiles", "on_policy", "ablation_mc")


def read(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def lam_of(job, step):
    """A multiplier that swings more in the second seed."""
    return 0.5 + 0.1 * (1 + job.settings.seed) * (step // 40 % 2)


def cost_of(job):
    """What the final policy of a made-up run costs."""
    return 10.0 + 4.0 * job.settings.seed


def make_up(job):
    """The files of a finished run, with numbers that are known: no training is needed to draw."""
    run = create_run(job.directory)
    spec = make_envs(job.settings, 1).spec
    run.write_config(describe(job.settings, job.algorithm, job.preset, spec))
    rows = [{"kind": "eval", "step": 0, "return": 0.0, "cost": 30.0}]
    for step in range(40, job.settings.steps + 1, 40):
        learnt = {"lam": lam_of(job, step), "violation": 1.0 / step}
        episodes = {"episodes": step // 40, "cost": 40.0 - step / 20, "total_cost": float(step)}
        rows.append({"kind": "train", "step": step, **episodes, **learnt})
        if step % job.settings.eval_every == 0:
            rows.append({"kind": "eval", "step": step, "return": step / 40, "cost": cost_of(job)})
    mark = LogPosition()
    with run.metrics_path.open("wb") as file:
        for values in rows:
            line, mark = seal(values, mark, run.id)
            file.write(line)
    (job.directory / "checkpoints" / f"step-{job.settings.steps:09d}.algd").touch()
    cost = {"mean": cost_of(job), "standard_error": 0.5, "budget": 20.0, "violation_rate": 0.1}
    cost["cvar_0.9"] = 30.0
    judged = {"step": job.settings.steps, "episodes": job.episodes, "cost": cost}
    judged["return"] = {"mean": 12.0, "standard_error": 0.2}
    run.write_note(run.evaluation_path, judged)


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory):
    """Three experiments in one directory, drawn from runs that are complete."""
    out = tmp_path_factory.mktemp("reproduced")
    mc = ablations.runs(*ablations.MONTE_CARLO, (), "smoke", out)
    # The comparison of all algorithms uses the runs of that of two.
    trials = {t.job.name: t for t in (*stability.runs("smoke", out), *benchmark.runs("smoke", out))}
    assert len(trials) == 10
    for trial in (*trials.values(), *mc):
        make_up(trial.job)
    # Speeds that are known are not measured again.
    speeds = {label(trial.job): [[0.001, 0.001, 0.004], [0.5]] for trial in mc}
    (out / "runs" / "speeds.json").write_text(json.dumps(speeds))
    before = {p: p.stat().st_mtime_ns for p in out.glob("runs/*/metrics.jsonl")}
    for name in ("stability", "benchmark", "ablation-mc"):
        main(["reproduce", name, "--scale", "smoke", "--out", str(out)])
    assert {p: p.stat().st_mtime_ns for p in out.glob("runs/*/metrics.jsonl")} == before
    return out


@pytest.mark.parametrize("name", PICTURES)
def test_every_picture_is_drawn(name, reproduced):
    from matplotlib.image import imread

    picture = imread(io.BytesIO((reproduced / f"{name}.png").read_bytes()))
    assert min(picture.shape[:2]) > 300
    # Not blank: lines of more than one color.
    assert len(np.unique(picture[::5, ::5, :3].reshape(-1, 3).round(1), axis=0)) > 10


def test_stability_counts_the_swings_of_the_multiplier(reproduced):
    lines = read(reproduced / "stability.csv")
    assert [(line["algorithm"], line["seed"]) for line in lines] == [
        ("ALGD", "0"),
        ("ALGD", "1"),
        ("LGD", "0"),
        ("LGD", "1"),
    ]
    # Eight rows that alternate, 0.2 apart in the second seed.
    assert float(lines[3]["lam_total_variation"]) == pytest.approx(7 * 0.2)
    assert float(lines[3]["lam_late_std"]) == pytest.approx(0.1)
    assert float(lines[2]["lam_total_variation"]) == pytest.approx(7 * 0.1)


def test_the_benchmark_averages_the_judged_policies(reproduced):
    lines = {line["algorithm"]: line for line in read(reproduced / "benchmark.csv")}
    assert set(lines) == {"ALGD", "LGD", "SAC+Lag", "PPO+Lag", "ALGD, no constraint"}
    sac = lines["SAC+Lag"]
    # 10 and 14: draws of two runs have their mean at 10, 12 or 14.
    assert [float(sac[k]) for k in ("cost", "cost_low", "cost_high")] == [12.0, 10.0, 14.0]
    assert [float(sac[k]) for k in ("return", "training_cost")] == [12.0, 320.0]
    assert (sac["seeds"], sac["seeds_over_budget"]) == ("2", "0")
    sac_rows = [r for r in read(reproduced / "evaluations.csv") if r["algorithm"] == "SAC+Lag"]
    assert {r["seed"] for r in sac_rows} == {"0", "1"}
    assert all(float(r["cost"]) >= 0.0 for r in read(reproduced / "training.csv"))
    results = read(reproduced / "runs" / "results.csv")
    assert len(results) == 14
    assert {float(r["last5_return"]) for r in results} == {(0 + 2 + 4 + 6 + 8) / 5}


def test_the_page_of_the_benchmark_has_a_cell_for_each_task_and_algorithm(reproduced):
    page = (reproduced / "benchmark.md").read_text()
    # The first of the last five evaluations costs 30, the others 10 or 14.
    assert page.splitlines()[2] == "| DiffDrive | 20 |" + " 4.0 / 15.6 (2) |" * 5
    assert page.splitlines()[6] == "| DiffDrive | 20 |" + " 1.50 |" * 5
    lag = next(line for line in page.splitlines() if line.startswith("| SAC+Lag | 1 x 2 |"))
    assert "| 1.00 [1.00, 1.00] | 0.78 [0.70, 0.86] |" in lag
    line = {"env": "Ant", "algorithm": "ALGD", "budget": 10.0, "seeds": 1}
    over = {**line, "last5_return": 1234.5, "last5_cost": 10.04}
    other = {**line, "env": "Car", "algorithm": "SAC", "last5_return": -0.25, "last5_cost": 10.0}
    assert pages.comparison_page([over, other]).splitlines() == [
        "| task | budget | ALGD | SAC |",
        "| --- | --- | --- | --- |",
        "| Ant | 10 | 1,234 / **10.0** (1) |  |",
        "| Car | 10 |  | -0.2 / 10.0 (1) |",
    ]


def test_the_aggregates_are_those_of_the_runs(reproduced):
    lines = {line["algorithm"]: line for line in read(reproduced / "aggregates.csv")}
    lag = {name: float(x) for name, x in lines["SAC+Lag"].items() if name != "algorithm"}
    # All runs earn what the reference does. The first of five evaluations costs 30 of 20, the
    # others 10, or 14 with the second seed.
    assert (lag["tasks"], lag["seeds"]) == (1, 2)
    assert lag["return_iqm"] == lag["safe_return_iqm"] == pytest.approx(1.0)
    assert lag["cost_iqm"] == pytest.approx(0.78)
    assert (lag["cost_iqm_low"], lag["cost_iqm_high"]) == pytest.approx((0.7, 0.86))
    assert lag["runs_over_budget"] == 0.0
    assert lag["episodes_over_budget"] == pytest.approx(0.1)
    assert lag["excess"] == pytest.approx(-0.22)
    assert lag["cost_cvar"] == pytest.approx(1.5)
    assert lag["training_cost"] == pytest.approx(320.0 / 8 / 20.0)
    assert lag["improvement"] == 0.5
    assert "improvement" not in lines["ALGD"] or not lines["ALGD"]["improvement"]


def test_methods_are_scored_between_a_random_policy_and_the_reference():
    """A budget that is broken earns nothing; tables of two seeds by hand."""
    returns, costs = np.array([[0.5, 0.8], [-0.1, 1.0]]), np.array([[0.9, 1.1], [0.2, 2.0]])
    others = [np.zeros((2, 2))] * 4
    own = MethodScores(("a", "b"), returns, costs, *others)
    np.testing.assert_allclose(safe_returns(own), [[0.5, 0.0], [-0.1, 0.0]])
    better = own._replace(returns=returns + 1.0, costs=costs - 1.0)
    table = {line["algorithm"]: line for line in aggregate_table({"ALGD": better, "LGD": own})}
    assert table["LGD"]["improvement"] == 1.0
    assert table["LGD"]["runs_over_budget"] == 0.5
    assert table["LGD"]["excess_where_over"] == pytest.approx(0.55)
    assert table["LGD"]["return_iqm"] == pytest.approx((0.5 + 0.8) / 2)


def test_random_actions_earn_what_a_loop_over_gymnasium_says():
    settings = Settings(env="DiffDrive", env_options=("horizon=30",))
    found = random_return(settings)
    env = gymnasium.make("algd/DiffDrive-v0", horizon=30)
    env.action_space.seed(0)
    returns = []
    for seed in range(60):
        env.reset(seed=seed)
        returns.append(sum(env.step(env.action_space.sample())[1] for _ in range(30)))
    spread = np.std(returns) * (1 / 20 + 1 / 60) ** 0.5
    assert abs(found - np.mean(returns)) < 5 * spread


def test_what_is_there_is_drawn_and_what_is_missing_is_named(reproduced, tmp_path, capsys):
    (tmp_path / "runs").mkdir()
    with pytest.raises(SystemExit):
        main(["reproduce", "benchmark", "--scale", "smoke", "--out", str(tmp_path), "--present"])
    assert "None of the 10 runs is there" in capsys.readouterr().err
    for run in (reproduced / "runs").glob("DiffDrive-algd-seed*"):
        shutil.copytree(run, tmp_path / "runs" / run.name)
    main(["reproduce", "benchmark", "--scale", "smoke", "--out", str(tmp_path), "--present"])
    said = capsys.readouterr().out
    assert "Missing, 8 of 10 runs" in said
    assert "  ALGD, no constraint: DiffDrive 0 1\n" in said
    assert [line["algorithm"] for line in read(tmp_path / "benchmark.csv")] == ["ALGD"]


def test_nothing_is_trained_for_what_is_there(reproduced, tmp_path, capsys):
    """Not even to measure speeds; and runs on a single algorithm make figures."""
    (tmp_path / "runs").mkdir()
    for name in ("mc_samples", "ppo"):
        for run in (reproduced / "runs").glob(f"*{name}*"):
            shutil.copytree(run, tmp_path / "runs" / run.name)
    words = ["--scale", "smoke", "--out", str(tmp_path), "--present"]
    main(["reproduce", "ablation-mc", *words])
    said = capsys.readouterr().out
    assert "The speed of N = 2 on DiffDrive was not measured here." in said
    assert "ablation_mc_time.csv" not in said
    assert not (tmp_path / "ablation_mc_time.csv").exists()
    main(["reproduce", "benchmark", *words])
    assert [line["algorithm"] for line in read(tmp_path / "benchmark.csv")] == ["PPO+Lag"]
    with pytest.raises(SystemExit):
        main(["reproduce", "runtime", *words])
    assert "measures and reads no runs" in capsys.readouterr().err


def test_the_pages_have_the_numbers_of_the_records():
    """The tables in docs/ are those that the commands beside them make of docs/data/runs."""
    docs = Path(__file__).parent.parent / "docs"
    found = [
        trial._replace(job=dataclasses.replace(trial.job, records=docs / "data" / "runs"))
        for trial in benchmark.runs("cpu", docs / "nowhere")
    ]
    summary = summary_table([trial for trial in found if is_complete(trial.job)])
    page = (docs / "benchmark.md").read_text("utf-8")
    assert pages.comparison_page(summary) in page
    assert pages.swing_page(summary) in page
    script = docs.parent / "scripts" / "task_table.py"
    words = [sys.executable, str(script), str(docs / "data" / "runs")]
    rows = subprocess.run(words, check=True, capture_output=True, encoding="utf-8").stdout
    assert rows in (docs / "results.md").read_text("utf-8")


def test_seeds_that_not_all_tasks_have_are_named(reproduced, capsys):
    """Two seeds of the reference and of ALGD, but one of ALGD on the first of two tasks."""

    def of_task(trial, env):
        settings = dataclasses.replace(trial.job.settings, env=env)
        return trial._replace(job=dataclasses.replace(trial.job, settings=settings))

    both = [t for t in benchmark.runs("smoke", reproduced) if t.label in ("ALGD", REFERENCE)]
    lacking = next(trial for trial in both if trial.label == "ALGD")
    found = [of_task(trial, "PointPush1") for trial in both if trial is not lacking]
    scores = scores_of([*found, *(of_task(trial, "AntVelocity") for trial in both)])
    assert {label: own.returns.shape for label, own in scores.items()} == {
        "ALGD": (1, 2),
        REFERENCE: (2, 2),
    }
    assert capsys.readouterr().out == (
        "ALGD: 1 seed(s) count, more are there of AntVelocity alone.\n"
    )


def test_the_time_table_of_an_ablation(reproduced):
    lines = read(reproduced / "ablation_mc_time.csv")
    assert [line["setting"] for line in lines] == ["N = 2", "N = 4"]
    # The measurements 1, 1 and 4 ms.
    assert float(lines[0]["ms_per_step"]) == pytest.approx(2.0)
    assert float(lines[0]["ms_per_step_std"]) == pytest.approx(3**0.5, rel=1e-4)


def test_the_scales_are_what_they_say(tmp_path):
    cpu = benchmark.runs("cpu", tmp_path)
    assert len(cpu) == 9 * (9 * 3 + 5) + 9 * 3
    # Columns first, then the seeds.
    assert [t.label for t in cpu[:4]] == ["ALGD", "LGD", "CAL", "SAC+Lag"]
    assert {t.job.settings.seed for t in cpu[:90]} == {0}
    assert {t.job.name for t in stability.runs("cpu", tmp_path)} <= {t.job.name for t in cpu}
    button = [t.job for t in cpu if t.job.settings.env == "PointButton1"]
    assert {(j.settings.steps, j.settings.envs) for j in button} == {(100_000, 4), (500_000, 4)}
    several = ablations.runs(*ablations.MONTE_CARLO, ("PointPush1",), "cpu", tmp_path)
    assert {t.job.algorithm.score_weight > 0.0 for t in several} == {True}
    paper = benchmark.runs("paper", tmp_path)
    assert len(paper) == 9 * 8 * 10
    assert {t.job.algorithm.updates_per_step for t in paper if t.label == "ALGD"} == {10.0}
    plain = {t.job.algorithm.energy for t in stability.runs("paper", tmp_path) if t.label == "LGD"}
    assert plain == {"plain"}
    # Its speed is measured on one task of each family.
    assert len({family(t.job) for t in paper}) == 16


def test_every_experiment_is_found():
    assert all(callable(experiment(place)) for place in OF_RUNS.values())


def test_the_scale_of_the_paper_asks_first(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("algd.sweeps.execution.speeds", lambda *_: {})
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "ablation-rho", "--scale", "paper", "--out", str(tmp_path)])
    assert stop.value.code == 2
    shown = capsys.readouterr().err
    assert "50 runs: 0 complete" in shown
    assert "--yes" in shown
    assert not list(tmp_path.rglob("config.json"))


def test_an_unknown_experiment_is_named(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "stabilty"])
    assert stop.value.code == 2
    assert "Did you mean stability" in capsys.readouterr().err
