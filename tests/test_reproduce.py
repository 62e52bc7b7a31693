"""The experiments of the paper at their smallest: every figure is drawn, every table adds up."""

import csv
import io
import json
from itertools import pairwise

import numpy as np
import pytest

from algd.cli import main
from algd.commands.reproduce import OF_RUNS, experiment
from algd.experiments import ablations, benchmark, stability
from algd.experiments.trials import family
from algd.runs import Run
from algd.sweeps.estimate import label
from algd.sweeps.work import train_or_continue

PICTURES = ("stability", "benchmark", "on_policy", "ablation_mc")


def read(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory):
    """Three experiments in one directory; their runs are made in this process, to save time."""
    out = tmp_path_factory.mktemp("reproduced")
    mc = ablations.runs(*ablations.MONTE_CARLO, (), "smoke", out)
    for trial in (*stability.runs("smoke", out), *benchmark.runs("smoke", out), *mc):
        train_or_continue(trial.job)
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
    # Not blank: lines of more than one colour.
    assert len(np.unique(picture[..., :3].reshape(-1, 3).round(1), axis=0)) > 10


def test_stability_counts_the_swings_of_the_multiplier(reproduced):
    lines = read(reproduced / "stability.csv")
    assert [(line["algorithm"], line["seed"]) for line in lines] == [
        ("ALGD", "0"),
        ("ALGD", "1"),
        ("LGD", "0"),
        ("LGD", "1"),
    ]
    run = Run(reproduced / "runs" / "DiffDrive-lgd-seed1")
    lam = np.array([r["lam"] for r in run.rows("train") if "lam" in r])
    swings = sum(abs(b - a) for a, b in pairwise(lam))
    assert float(lines[3]["lam_total_variation"]) == pytest.approx(swings, rel=1e-4)
    assert float(lines[3]["lam_late_std"]) == pytest.approx(lam[len(lam) // 2 :].std(), rel=1e-4)


def test_the_benchmark_averages_the_judged_policies(reproduced):
    lines = {line["algorithm"]: line for line in read(reproduced / "benchmark.csv")}
    assert set(lines) == {"ALGD", "LGD", "SAC+Lag", "PPO+Lag"}
    results = read(reproduced / "runs" / "results.csv")
    costs = [
        float(r["cost"]) for r in results if r["preset"] == "sac-lag" and r["env"] == "DiffDrive"
    ]
    assert len(costs) == 2
    assert float(lines["SAC+Lag"]["cost"]) == pytest.approx(np.mean(costs), rel=1e-4)
    low, high = (float(lines["SAC+Lag"][f"cost_{end}"]) for end in ("low", "high"))
    assert min(costs) - 1e-3 <= low <= high <= max(costs) + 1e-3


def test_the_time_table_of_an_ablation(reproduced):
    lines = read(reproduced / "ablation_mc_time.csv")
    assert [line["setting"] for line in lines] == ["N = 2", "N = 4"]
    # The measurements 1, 1 and 4 ms.
    assert float(lines[0]["ms_per_step"]) == pytest.approx(2.0)
    assert float(lines[0]["ms_per_step_std"]) == pytest.approx(3**0.5, rel=1e-4)


def test_the_scales_are_what_they_say(tmp_path):
    cpu = benchmark.runs("cpu", tmp_path)
    assert len(cpu) == 9 * 5 + 4 * 3
    assert {t.job.name for t in stability.runs("cpu", tmp_path)} <= {t.job.name for t in cpu}
    button = [t.job for t in cpu if t.job.settings.env == "PointButton1"]
    assert {(j.settings.steps, j.settings.envs) for j in button} == {(30_000, 1)}
    paper = benchmark.runs("paper", tmp_path)
    assert len(paper) == 9 * 7 * 10
    assert {t.job.algorithm.updates_per_step for t in paper if t.label == "ALGD"} == {10.0}
    plain = {t.job.algorithm.energy for t in stability.runs("paper", tmp_path) if t.label == "LGD"}
    assert plain == {"plain"}
    # Its speed is measured on one task of each family.
    assert len({family(t.job) for t in paper}) == 14


def test_every_experiment_is_found():
    assert all(callable(experiment(place)) for place in OF_RUNS.values())


def test_the_scale_of_the_paper_asks_first(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("algd.sweeps.conduct.speeds", lambda *_: {})
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "ablation-rho", "--scale", "paper", "--out", str(tmp_path)])
    assert stop.value.code == 2
    shown = capsys.readouterr().err
    assert "50 runs: 0 complete" in shown
    assert "--yes" in shown
    assert not (tmp_path / "runs").exists()


def test_an_unknown_experiment_is_named(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "stabilty"])
    assert stop.value.code == 2
    assert "Did you mean stability" in capsys.readouterr().err
