"""Pictures of runs: which runs are drawn together, which numbers, and whether they can be seen."""

import runpy
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from PIL import Image

from algd.cli import main
from algd.experiments import benchmark
from algd.runs.directory import Run
from algd.runs.grouping import differing_settings, gather
from algd.types import Budget
from algd.visualization.curves import (
    KINDS,
    STYLES,
    Curve,
    budgets_of,
    curve,
    draw_curve,
    final,
    from_zero,
    panels_of,
    plot_tasks,
    seeds_text,
    styles_of,
    training_costs,
)
from support.made_up import write_run

# Machado, Oliveira and Fernandes (2009), full severity, on linear RGB.
SIGHT = {
    "normal": np.eye(3),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
}
TO_XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)


def rgb(color):
    return np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)])


def lab(color, sight):
    share = rgb(color) / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    seen = TO_XYZ @ np.clip(SIGHT[sight] @ linear, 0, 1) / np.array([0.95047, 1.0, 1.08883])
    x, y, z = np.where(seen > 0.008856, np.cbrt(seen), 7.787 * seen + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two presets on one task, one of them on a second one, and a variant."""
    folder = tmp_path_factory.mktemp("runs")
    for seed, (earned, cost) in enumerate([(8.0, 10.0), (10.0, 12.0), (15.0, 17.0)]):
        write_run(folder / f"a{seed}", "algd", seed, last_return=earned, last_cost=cost)
        write_run(folder / f"b{seed}", "sac", seed, last_return=2 * earned, last_cost=3 * cost)
    write_run(folder / "c", "algd", rho=3.0)
    write_run(folder / "d", "algd", env="PointButton1", budgets=[Budget(10.0)])
    return folder


def test_no_two_methods_of_the_benchmark_look_alike(tmp_path):
    labels = {trial.label: [] for trial in benchmark.runs("cpu", tmp_path)}
    assert len(set(styles_of({"all": labels}).values())) == len(labels) > 8


def test_runs_that_differ_in_their_seeds_only_are_one_group(runs):
    tasks, complaints = gather([runs])
    assert complaints == []
    assert list(tasks) == ["DiffDrive", "PointButton1"]
    assert {label: len(found) for label, found in tasks["DiffDrive"].items()} == {
        "algd, rho 1.0": 3,
        "algd, rho 3.0": 1,
        "sac": 3,
    }
    assert list(tasks["PointButton1"]) == ["algd"]


def test_settings_that_differ(runs):
    first, second = differing_settings([Run(runs / "a0").config(), Run(runs / "c").config()])
    assert first == {"rho": 1.0}
    assert second == {"rho": 3.0}


def test_what_cannot_be_drawn_is_named_and_left_out(runs, tmp_path):
    write_run(tmp_path / "unfinished", seed=7, reached=600)
    write_run(tmp_path / "damaged", seed=8)
    text = Run(tmp_path / "damaged").metrics_path.read_text()
    Run(tmp_path / "damaged").metrics_path.write_text(text.replace("10.0", "11.0", 1))
    write_run(tmp_path / "again", seed=0, last_return=3.0)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "config.json").write_text('{"model": "resnet"}')
    (tmp_path / "lost").mkdir()
    (tmp_path / "lost" / "metrics.jsonl").touch()
    wanted = [runs / "a0", runs / "a0", tmp_path, tmp_path / "nothing"]
    tasks, complaints = gather(wanted)
    assert [run.directory.name for run in tasks["DiffDrive"]["algd"]] == ["a0"]
    found = "\n".join(complaints)
    for part in (
        "again has the settings and the seed",
        "damaged/metrics.jsonl is damaged",
        "foreign/config.json is damaged",
        "lost holds no run",
        "no directory",
        "unfinished: its last evaluation is that of step 600 of 800",
    ):
        assert part in found
    assert len(complaints) == 6
    assert len(gather(wanted, unfinished=True).tasks["DiffDrive"]["algd"]) == 2


def test_under_another_budget_it_is_another_task(tmp_path):
    """Its line, its shading and its verdict are its own."""
    write_run(tmp_path / "a", seed=0)
    write_run(tmp_path / "b", seed=0, budgets=[Budget(5.0, name="hazards")])
    write_run(tmp_path / "c", seed=1, budgets=[Budget(5.0, name="hazards")])
    tasks = gather([tmp_path]).tasks
    assert {
        task: {label: len(found) for label, found in groups.items()}
        for task, groups in tasks.items()
    } == {"DiffDrive, budget 20": {"algd": 1}, "DiffDrive, budget 5": {"algd": 2}}
    assert [budgets_of(groups)[0]["limit"] for groups in tasks.values()] == [20.0, 5.0]


def test_a_younger_option_at_its_default_makes_no_group_of_its_own(tmp_path):
    younger, older = (write_run(tmp_path / name, seed=i) for i, name in enumerate("ab"))
    config = {k: v for k, v in older.config().items() if k not in ("format", "checksum")}
    del config["hyperparameters"]["rho"]
    del config["hyperparameters"]["pid"]
    config["hyperparameters"]["dual_debt"] = 0.0  # An option that is gone, unused.
    older.write_config(config)
    assert list(gather([tmp_path]).tasks["DiffDrive"]) == ["algd"]
    assert len(gather([tmp_path]).tasks["DiffDrive"]["algd"]) == 2
    assert younger.config()["hyperparameters"]["rho"] == 1.0


def test_curves_are_means_with_intervals_over_seeds(runs):
    found = curve([Run(runs / f"a{seed}") for seed in range(3)], "eval", "return")
    assert found is not None
    assert found.steps.tolist() == [0, 200, 400, 600, 800]
    np.testing.assert_allclose(found.mean, np.arange(5) / 4 * 11.0)
    low, high = found.interval
    assert 8.0 <= low[-1] < 11.0 < high[-1] <= 15.0
    assert low[0] == high[0] == 0.0
    assert final([Run(runs / "a2")], "cost") == [17.0]
    assert curve([Run(runs / "a0")], "eval", "nothing") is None


def test_boxes_hold_the_training_costs_of_four_equal_intervals(runs):
    parts = training_costs([Run(runs / "a0"), Run(runs / "a1")], "")
    assert [sorted(part.tolist()) for part in parts] == [
        [1.0, 1.0, 2.0, 2.0],
        [3.0, 3.0, 4.0, 4.0],
        [5.0, 5.0, 6.0, 6.0],
        [7.0, 7.0, 8.0, 8.0],
    ]


def test_titles_tell_the_number_of_seeds(runs):
    groups = gather([runs]).tasks
    assert seeds_text(groups["DiffDrive"]) == "mean and 95 % interval over 1 to 3 seeds"
    assert seeds_text(groups["PointButton1"]) == "one seed"


@pytest.mark.parametrize("sight", SIGHT)
def test_colors_are_told_apart(sight):
    nearest = min(
        np.linalg.norm(lab(a.color, sight) - lab(b.color, sight))
        for a, b in combinations(STYLES, 2)
    )
    assert nearest > 15.0


def test_styles_are_told_apart_without_color():
    for looks in zip(*STYLES, strict=True):
        assert len({str(look) for look in looks}) == len(STYLES)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_shows_every_group(kind, runs, tmp_path):
    tasks = gather([runs]).tasks
    plot_tasks(tasks, tmp_path / "picture.png", kind)
    pixels = np.asarray(Image.open(tmp_path / "picture.png").convert("RGB")).astype(int)
    rows = np.array_split(pixels[80:], 2)
    styles = styles_of(tasks)
    for groups, row in zip(tasks.values(), rows, strict=True):
        for label in groups:
            if kind == "boxes":
                break
            near = np.abs(row - rgb(styles[label].color)).max(axis=2) < 12
            assert near.sum() > 20, f"{label} cannot be seen"


def test_several_constraints_have_panels_of_their_own(tmp_path):
    budgets = [Budget(20.0, name="hazards"), Budget(100.0, name="energy")]
    groups = {"algd": [write_run(tmp_path / "run", budgets=budgets)]}
    names = [panel.name for panel in panels_of("all", groups)]
    assert len(names) == 10
    assert names[1:3] == ["Cost over training, hazards", "Cost over training, energy"]
    plot_tasks({"DiffDrive": groups}, tmp_path / "picture.png", "all")
    assert Image.open(tmp_path / "picture.png").width > 2500


@pytest.fixture
def figures(monkeypatch):
    """The figures that are drawn, kept instead of closed."""
    kept = []
    monkeypatch.setattr(plt, "close", kept.append)
    yield kept
    monkeypatch.undo()
    plt.close("all")


def over_steps(figure):
    return [axes for axes in figure.axes if axes.get_xlabel() == "environment steps"]


def test_all_panels_of_a_figure_have_one_range(runs, tmp_path, figures):
    """Also where the multiplier's first row comes late, and where a task was trained for longer."""
    same = {"env": "PointButton1", "budgets": [Budget(10.0)]}
    write_run(tmp_path / "long", steps=1600, seed=3, **same)
    plot_tasks(gather([runs, tmp_path]).tasks, tmp_path / "all.png", "all")
    panels = over_steps(figures[0])
    assert len(panels) == 8
    assert {axes.get_xlim() for axes in panels} == {(-48.0, 1648.0)}


def test_evaluations_are_marked_and_rows_of_the_log_are_not(runs, figures, tmp_path):
    tasks = gather([runs / "a0"]).tasks
    plot_tasks(tasks, tmp_path / "curves.png")
    by_label = {axes.get_ylabel(): axes for axes in over_steps(figures[0])}
    marker = styles_of(tasks)["algd"].marker
    for label, axes in by_label.items():
        line = axes.lines[0]
        assert line.get_marker() == ("" if "multiplier" in label else marker), label
        assert len(line.get_xdata()) == (8 if "multiplier" in label else 5)


@pytest.mark.parametrize("kind", KINDS)
def test_no_word_lies_on_a_curve(kind, runs, tmp_path, figures):
    budgets = [Budget(20.0, name="hazards"), Budget(100.0, name="energy")]
    write_run(tmp_path / "two", env="PointButton2", budgets=budgets)
    plot_tasks(gather([runs, tmp_path]).tasks, tmp_path / "picture.png", kind)
    renderer = figures[0].canvas.get_renderer()
    words = 0
    for axes in figures[0].axes:
        inside = axes.get_window_extent(renderer)
        legend = [axes.get_legend()] if axes.get_legend() else []
        places = [word.get_window_extent(renderer) for word in [*axes.texts, *legend]]
        words += len(places)
        assert not any(place.overlaps(inside) for place in places)
        for one, other in combinations(places, 2):
            assert not one.overlaps(other)
    assert words or kind == "lambda"


def test_there_are_no_empty_panels(tmp_path, capsys):
    free = write_run(tmp_path / "free", "sac", lam=False)
    names = [panel.name for panel in panels_of("all", {"sac": [free]})]
    assert "Return over training" in names
    assert "Multiplier over training" not in names
    write_run(tmp_path / "bound", env="PointButton1")
    arguments = ["--kind", "lambda", "--out", str(tmp_path / "lambda.png")]
    main(["plot", str(tmp_path), *arguments])
    assert "the runs on DiffDrive have nothing of this kind" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["plot", str(tmp_path / "free"), *arguments, "--force"])
    assert "nothing to show as 'lambda'" in capsys.readouterr().err


def test_a_single_row_is_seen_and_nothing_is_cut_off():
    """One value is no line; critics that have not learnt may expect less than nothing."""
    axes = plt.figure().add_subplot()
    style = styles_of({"DiffDrive": {"algd": []}})["algd"]
    draw_curve(axes, Curve(np.array([500]), np.array([[-1.0]])), style)
    from_zero(axes)
    (line,) = axes.get_lines()
    assert line.get_marker() not in ("", "None", None)
    assert axes.get_ylim()[0] < -1.0
    plt.close()


def test_few_values_are_points_and_many_a_box(runs, tmp_path, figures):
    for runs_, boxes, points in (([runs / "a0"], 0, 8), ([runs / f"a{i}" for i in range(3)], 4, 0)):
        plot_tasks(gather(runs_).tasks, tmp_path / "boxes.png", "boxes")
        (axes,) = figures.pop().axes
        assert len(axes.patches) == boxes
        assert sum(len(x.get_xdata()) for x in axes.lines if x.get_marker() == "o") == points


def test_intervals_without_an_episode_leave_the_panels_their_room(
    runs, tmp_path, figures, monkeypatch
):
    costs = [np.array([]), np.array([2.0]), np.array([]), np.array([65.0])]
    monkeypatch.setattr("algd.visualization.curves.training_costs", lambda runs, end: costs)
    plot_tasks(gather([runs / "a0"]).tasks, tmp_path / "all.png", "all")
    assert min(axes.get_position().width for axes in figures.pop().axes) > 0.2


def test_runs_are_found_at_any_depth(tmp_path):
    deep = tmp_path / "a" / "b" / "c" / "d"
    deep.mkdir(parents=True)
    write_run(deep / "run")
    # A copy inside a run is the run's own, and a circle of links has an end.
    write_run(deep / "run" / "checkpoints" / "inner", seed=4)
    (deep / "circle").symlink_to(tmp_path)
    tasks, complaints = gather([tmp_path])
    assert [run.directory for run in tasks["DiffDrive"]["algd"]] == [deep / "run"]
    assert complaints == []


def test_command_draws_the_rest_and_never_overwrites(runs, tmp_path, capsys):
    out = tmp_path / "scatter.png"
    arguments = ["plot", str(runs), str(tmp_path), "--kind", "scatter", "--out", str(out)]
    main(arguments)
    assert "left out: " in capsys.readouterr().err
    before = out.read_bytes()
    for wrong, message in (
        (arguments, "exists"),
        ([*arguments[:-1], str(tmp_path / "a.doc")], "must end in"),
        ([*arguments[:-1], str(tmp_path / "no" / "a.png")], "no directory"),
        (["plot", str(tmp_path), "--out", str(tmp_path / "b.png")], "can be drawn"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(wrong)
        assert stop.value.code == 2
        assert message in capsys.readouterr().err
    assert out.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["scatter.png"]


def test_the_benchmark_is_drawn_again_from_its_rows(tmp_path):
    root = Path(__file__).parent.parent
    script, data = root / "scripts" / "draw_again.py", root / "docs" / "data"
    subprocess.run([sys.executable, str(script), str(data), str(tmp_path)], check=True)
    for name in ("plain_benchmark.png", "plain_on_policy.png"):
        with Image.open(tmp_path / name) as drawn:
            assert len(drawn.convert("RGB").getcolors(2**24) or ()) > 100
    groups = runpy.run_path(str(script))["recorded_tasks"](data)["DiffDrive"]
    assert {len(runs) for runs in groups.values()} == {5}
    assert {run.lines[-1]["step"] for runs in groups.values() for run in runs} == {20_000}
