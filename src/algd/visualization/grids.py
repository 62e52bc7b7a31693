"""Figures of the experiments: a column for each task and a row for each quantity, or turned."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from algd.evaluation.stats import Scores, performance_profile, performance_profile_band
from algd.runs.grouping import Groups
from algd.types import metric_suffixes
from algd.visualization.curves import (
    INK,
    Styles,
    add_legend,
    budgets_of,
    curve,
    draw_boxes,
    draw_cost,
    draw_curve,
    draw_multipliers,
    draw_return,
    one_range,
    over_steps,
    seeds_text,
    styles_of,
)

Draw = Callable[[Axes, Groups, Styles], None]


def plot_grid(
    tasks: Mapping[str, Groups], rows: Sequence[Draw], path: Path, sideways: bool = False
) -> None:
    """Each quantity of each task; `sideways`, or if it is the only one, a task fills a row."""
    sideways = sideways or len(tasks) == 1
    styles = styles_of(tasks)
    shape = (len(tasks), len(rows)) if sideways else (len(rows), len(tasks))
    size = (4.7 * shape[1], 2.9 * shape[0] + 0.6)
    figure, grid = plt.subplots(*shape, figsize=size, layout="constrained", squeeze=False)
    for i, (task, groups) in enumerate(tasks.items()):
        panels = grid[i] if sideways else grid[:, i]
        for axes, draw in zip(panels, rows, strict=True):
            draw(axes, groups, styles)
        panels[0].set_title(f"{task}, {seeds_text(groups)}", fontsize=10)
    one_range(figure, tasks.values())
    _save(figure, styles, path)


def plot_profiles(returns: Mapping[str, Scores], costs: Mapping[str, Scores], path: Path) -> None:
    """For each method the share of runs that earn more than x of the reference's return, and that
    cost more than x budgets, with the interval over runs."""
    styles = styles_of({"all": {label: [] for label in returns}})
    figure, panels = plt.subplots(1, 2, figsize=(10.5, 3.6), layout="constrained")
    parts = ((returns, 1.3, "normalised return"), (costs, 3.0, "cost / budget"))
    for axes, (scores, most, quantity) in zip(panels, parts, strict=True):
        x = np.linspace(0.0, most, 131)
        for label, values in scores.items():
            style = styles[label]
            low, high = performance_profile_band(values, x)
            if np.isfinite(low).all():
                axes.fill_between(x, low, high, color=style.color, alpha=0.15, linewidth=0)
            share = performance_profile(values, x)
            drawn = {"linestyle": style.dash, "marker": style.marker, "markevery": 26}
            axes.plot(x, share, color=style.color, markersize=4, label=label, **drawn)
        axes.set(xlim=(0.0, most), ylim=(-0.02, 1.02), xlabel=f"{quantity}, x")
        axes.set_ylabel(f"share of runs with {quantity} > x")
    panels[1].axvline(1.0, color=INK, linewidth=0.8, linestyle=":")
    _save(figure, styles, path)


def _save(figure: Figure, styles: Styles, path: Path) -> None:
    add_legend(figure, styles)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    print(f"Wrote {path}")


def draw_violation(axes: Axes, groups: Groups, styles: Styles) -> None:
    """By how much the critics see the limit exceeded, max(0, Q_c - h) over a minibatch."""
    for label, runs in groups.items():
        draw_curve(axes, curve(runs, "train", f"violation{end_of(groups)}"), styles[label])
    axes.set_ylim(bottom=0)
    over_steps(axes, "mean violation max(0, Qc − h)")


def draw_first_cost(axes: Axes, groups: Groups, styles: Styles) -> None:
    """Cost of the evaluations against the first budget."""
    draw_cost(axes, groups, styles, 0, end_of(groups))


def draw_first_boxes(axes: Axes, groups: Groups, styles: Styles) -> None:
    """Training cost in four equal intervals against the first budget."""
    draw_boxes(axes, groups, styles, 0, end_of(groups))


def end_of(groups: Groups) -> str:
    """Behind the names of the first constraint's quantities."""
    return metric_suffixes(budget["name"] for budget in budgets_of(groups))[0]


STABILITY: tuple[Draw, ...] = (draw_return, draw_multipliers, draw_violation)
COMPARISON: tuple[Draw, ...] = (draw_return, draw_first_cost, draw_first_boxes)
