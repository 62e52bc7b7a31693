"""Pictures of runs. Matplotlib stays in this module.

A picture is made of panels, each a function that draws one quantity of one task's groups. Every
group keeps its color, dash, marker and hatch in all panels: colors are told apart also by
color-blind readers, the rest also in a grey print.
"""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, SymmetricalLogLocator

from algd.evaluation.stats import Interval, bootstrap_band, bootstrap_interval
from algd.runs.grouping import Groups
from algd.runs.record import Evidence
from algd.types import UserError, metric_suffixes

Kind = Literal["curves", "scatter", "boxes", "lambda", "all"]
KINDS: tuple[Kind, ...] = get_args(Kind)
INTERVALS = 4
# A box says where the middle half lies: fewer values are shown themselves.
FEWEST = 5
STEPS = "environment steps"
KINDS_OF_ROWS = ("eval", "train")
# Of small print, as a share of a panel.
LINE_HEIGHT = 0.06
INK = "#2b2b33"
# Of a label in the legend: each letter, and the line before it with its gaps.
INCHES_PER_LETTER, INCHES_BEFORE = 0.075, 0.7


class Style(NamedTuple):
    """How one group looks in every panel."""

    color: str
    dash: Any
    marker: str
    hatch: str


STYLES = (
    Style("#1f6f8b", "-", "o", ""),
    Style("#d1603d", (0, (5, 1.5)), "s", "////"),
    Style("#3d2c8d", (0, (1, 1)), "^", "...."),
    Style("#e0a526", (0, (5, 1, 1, 1)), "D", "xxxx"),
    Style("#8fbf8a", (0, (8, 2)), "v", "||||"),
    Style("#d77fa1", (0, (3, 1, 1, 1, 1, 1)), "P", "----"),
    Style("#2b2b33", (0, (2, 2)), "X", "\\\\\\\\"),
    Style("#79b4e0", (0, (8, 1, 2, 1)), "<", "++++"),
    Style("#6b2a06", (0, (1, 2)), ">", "oooo"),
    Style("#0384d3", (0, (6, 1, 1, 1, 1, 1)), "*", "**"),
)
Styles = Mapping[str, Style]


# --- the numbers ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """One quantity over environment steps, one row per seed on a common axis."""

    steps: Int[np.ndarray, " steps"]
    values: Float[np.ndarray, "seeds steps"]

    @property
    def mean(self) -> Float[np.ndarray, " steps"]:
        """Mean over seeds."""
        return self.values.mean(axis=0)

    @property
    def interval(self) -> Interval:
        """The 95 % interval of the mean over seeds; NaN for one seed."""
        return bootstrap_band(self.values)


def rows_of(run: Evidence, kind: str) -> list[dict[str, Any]]:
    """The rows of one kind; a picture reads them often, its runs only once."""
    file = run.metrics_path.stat()
    return [row for row in _rows(run, file.st_size, file.st_mtime_ns) if row["kind"] == kind]


@lru_cache(maxsize=256)
def _rows(run: Evidence, size: int, changed: int) -> list[dict[str, Any]]:
    return run.rows()


def curve(runs: Sequence[Evidence], kind: str, name: str) -> Curve | None:
    """The quantity over the steps that all runs have, or nothing if one never reported it."""
    by_run = [{r["step"]: r[name] for r in rows_of(run, kind) if name in r} for run in runs]
    common = sorted(set.intersection(*(set(rows) for rows in by_run)))
    if not common:
        return None
    return Curve(np.array(common), np.array([[rows[s] for s in common] for rows in by_run], float))


def final(runs: Sequence[Evidence], name: str) -> Float[np.ndarray, " seeds"]:
    """The quantity in the last evaluation of each run."""
    return np.array([rows_of(run, "eval")[-1].get(name, np.nan) for run in runs], float)


def training_costs(runs: Sequence[Evidence], suffix: str) -> list[Float[np.ndarray, " rows"]]:
    """Costs of training episodes in equal intervals of the steps, over all seeds.

    Each value is the mean over the episodes that ended between two rows of the log.
    """
    steps = max(row["step"] for run in runs for row in rows_of(run, "train") or [{"step": 1}])
    parts: list[list[float]] = [[] for _ in range(INTERVALS)]
    for run in runs:
        for row in rows_of(run, "train"):
            if f"cost{suffix}" in row:
                # A row tells of the steps before it: the last one of an interval is its own.
                part = -(-row["step"] * INTERVALS // steps) - 1
                parts[max(part, 0)].append(row[f"cost{suffix}"])
    return [np.array(part) for part in parts]


def budgets_of(groups: Groups) -> list[dict[str, Any]]:
    """The budgets of a task; where groups have different ones, those of the first."""
    return next(iter(groups.values()))[0].config()["budgets"]


# --- panels -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Panel:
    """One quantity of one task's groups: what a reader would call it, how it is drawn, and the
    kind of row and the name without which there is nothing to draw."""

    name: str
    draw: Callable[[Axes, Groups, Styles], None]
    kind: str
    needs: str


def panels_of(kind: Kind, groups: Groups) -> list[Panel]:
    """The panels of a picture in reading order, as far as the runs have anything to show."""
    budgets = budgets_of(groups)
    ends = metric_suffixes(b["name"] for b in budgets)

    def each(name: str, draw: Callable[..., None], kind: str, needs: str) -> list[Panel]:
        """One panel for each constraint."""
        return [
            Panel(
                f"{name}{end.replace('/', ', ')}",
                lambda axes, groups, styles, i=i, end=end: draw(axes, groups, styles, i, end),
                kind,
                f"{needs}{end}",
            )
            for i, end in enumerate(ends)
        ]

    returns = [Panel("Return over training", draw_return, "eval", "return")]
    costs = each("Cost over training", draw_cost, "eval", "cost")
    multipliers = [Panel("Multiplier over training", draw_multipliers, "train", f"lam{ends[0]}")]
    calibration = each(
        "Cost critics against measurement", draw_calibration, "eval", "expected_cost"
    )
    scatter = each("Return against cost at the end", draw_scatter, "eval", "cost")
    boxes = each("Cost while training", draw_boxes, "train", "cost")
    wanted = {
        "curves": [*returns, *costs, *multipliers, *calibration],
        "scatter": scatter,
        "boxes": boxes,
        "lambda": multipliers,
        "all": [*returns, *costs, *scatter, *multipliers, *calibration, *boxes],
    }[kind]
    runs = [run for members in groups.values() for run in members]
    return [
        panel
        for panel in wanted
        if any(panel.needs in row for run in runs for row in rows_of(run, panel.kind))
    ]


def draw_return(axes: Axes, groups: Groups, styles: Styles) -> None:
    """Return of the evaluations."""
    for label, runs in groups.items():
        draw_curve(axes, curve(runs, "eval", "return"), styles[label], marked=True)
    over_steps(axes, "return per episode (evaluation)")


def draw_cost(axes: Axes, groups: Groups, styles: Styles, index: int, end: str) -> None:
    """Cost of the evaluations against the budget."""
    for label, runs in groups.items():
        draw_curve(axes, curve(runs, "eval", f"cost{end}"), styles[label], marked=True)
    axes.set_ylim(bottom=0)
    over_steps(axes, cost_label(groups, index, "evaluation"))
    budget_line(axes, budgets_of(groups)[index])


def draw_multipliers(axes: Axes, groups: Groups, styles: Styles) -> None:
    """The multiplier; with several constraints each line bears its constraint's name."""
    budgets = budgets_of(groups)
    names = [budget["name"] for budget in budgets]
    highest: list[float] = []
    ends: list[tuple[float, str, str]] = []
    for label, runs in groups.items():
        for name, suffix in zip(names, metric_suffixes(names), strict=True):
            found = curve(runs, "train", f"lam{suffix}")
            draw_curve(axes, found, styles[label])
            if found is not None:
                highest.append(found.mean.max())
                ends.append((found.mean[-1], name, styles[label].color))
    if highest and max(highest) > 1000 * max(min(highest), 1e-3):
        # One that runs away would press the others flat.
        axes.set_yscale("symlog", linthresh=1.0)
        locator = SymmetricalLogLocator(base=10.0, linthresh=1.0)
        locator.set_params(numticks=6)
        axes.yaxis.set_major_locator(locator)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    # Below zero it is a higher limit; with room where it stays at its lower bound.
    from_zero(axes)
    over_steps(axes, "multiplier λ")
    if len(names) > 1:
        name_lines(axes, ends)


def from_zero(axes: Axes) -> None:
    """Begin the panel at zero, or below what is lower."""
    lowest = axes.dataLim.ymin
    axes.set_ylim(bottom=1.1 * lowest if lowest < 0.0 else 0.0)


def name_lines(axes: Axes, ends: Sequence[tuple[float, str, str]]) -> None:
    """Names beside the panel at the heights where the lines end, one above the other."""
    to_share = axes.transData + axes.transAxes.inverted()
    free = 0.0
    for value, name, color in sorted(ends):
        free = max(float(to_share.transform((0.0, value))[1]), free)
        beside(axes, name, free, axes.transAxes, color)
        free += LINE_HEIGHT


def beside(axes: Axes, text: str, height: float, of: Any, color: str = INK) -> None:
    """A word to the right of the panel, where it hides no curve."""
    look = {"va": "center", "fontsize": 8, "color": color}
    where = {"xycoords": ("axes fraction", of), "textcoords": "offset points"}
    axes.annotate(text, (1.0, height), (4, 0), **where, **look)


def draw_calibration(axes: Axes, groups: Groups, styles: Styles, index: int, end: str) -> None:
    """What the critics expect in the first step (line) and what the episodes cost (markers)."""
    for label, runs in groups.items():
        draw_curve(axes, curve(runs, "eval", f"expected_cost{end}"), styles[label], marked=True)
        measured = curve(runs, "eval", f"discounted_cost{end}")
        if measured is not None:
            look = {"color": styles[label].color, "ms": 4.5, "mfc": "white", "ls": "none"}
            axes.plot(measured.steps, measured.mean, styles[label].marker, **look)
    handles = [
        Line2D([], [], color=INK, lw=1.8, marker="o", ms=4, label="expected by the critics"),
        Line2D([], [], color=INK, ls="none", marker="o", mfc="white", ms=4.5, label="measured"),
    ]
    # Above the panel, where it hides no curve.
    place = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.4}
    axes.legend(handles=handles, frameon=False, fontsize=8, ncols=2, **place)
    # Critics that have not learnt yet may expect less than nothing.
    from_zero(axes)
    over_steps(axes, f"discounted cost from step 1{end.replace('/', ', ')}")


def draw_scatter(axes: Axes, groups: Groups, styles: Styles, index: int, end: str) -> None:
    """Last evaluations: a small marker per seed, a large one with intervals for their mean."""
    for label, runs in groups.items():
        style = styles[label]
        cost, earned = final(runs, f"cost{end}"), final(runs, "return")
        single = len(runs) == 1
        small = {} if single else {"s": 16, "alpha": 0.55, "lw": 0}
        axes.scatter(cost, earned, marker=style.marker, color=style.color, **small)
        if not single:
            look = {"marker": style.marker, "color": style.color, "ms": 9, "mec": "white"}
            reach = {"xerr": _lengths(cost), "yerr": _lengths(earned)}
            axes.errorbar(cost.mean(), earned.mean(), **reach, **look, lw=1.4)
    axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
    axes.margins(0.1)
    finish(axes, "return per episode")
    axes.set_xlabel(cost_label(groups, index, "last evaluation"))
    limit = budgets_of(groups)[index]["limit"]
    axes.axvline(limit, color=INK, ls="--", lw=1.1)
    axes.set_xlim(right=max(axes.get_xlim()[1], 1.05 * limit))
    # What lies beyond the budget is no solution, whatever it earns.
    axes.axvspan(limit, max(axes.get_xlim()[1], limit), color=INK, alpha=0.05, lw=0)
    above = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "ha": "center"}
    text = budget_text(budgets_of(groups)[index])
    axes.annotate(text, (limit, 1.0), (0, 3), fontsize=8, color=INK, **above)


def draw_boxes(axes: Axes, groups: Groups, styles: Styles, index: int, end: str) -> None:
    """Distribution of the training cost in equal intervals of the steps; few values as points."""
    width = 0.8 / len(groups)
    for place, (label, runs) in enumerate(groups.items()):
        style = styles[label]
        places = np.arange(INTERVALS) + (place + 0.5) * width - 0.4
        filled = {"alpha": 0.75, "hatch": style.hatch}
        for x, values in zip(places, training_costs(runs, end), strict=True):
            if not len(values):
                # An empty line would still take part in the layout, in the figure's corner.
                continue
            if len(values) < FEWEST:
                look = {"color": style.color, "ms": 5, "clip_on": False}
                axes.plot(np.full(len(values), x), values, style.marker, **look)
                continue
            axes.boxplot(
                values,
                positions=[x],
                widths=0.8 * width,
                patch_artist=True,
                medianprops={"color": INK, "lw": 1.6},
                whiskerprops={"color": INK, "lw": 0.9},
                capprops={"color": INK, "lw": 0.9},
                flierprops={"marker": ".", "ms": 3, "mec": style.color},
                boxprops={"facecolor": style.color, "edgecolor": INK, "lw": 0.9, **filled},
            )
    edges = np.linspace(0, 100, INTERVALS + 1)
    names = [f"{a:.0f}–{b:.0f} %" for a, b in pairwise(edges)]
    axes.set_xticks(np.arange(INTERVALS), names)
    axes.set_xlim(-0.55, INTERVALS - 0.45)
    axes.set_ylim(bottom=0)
    finish(axes, cost_label(groups, index, "training"))
    axes.set_xlabel("share of the environment steps")
    budget_line(axes, budgets_of(groups)[index])


def draw_curve(axes: Axes, found: Curve | None, style: Style, marked: bool = False) -> None:
    """A line with its interval; `marked` where the values are few and the line only joins them."""
    if found is None:
        return
    # A single point would be no line.
    marked = marked or len(found.steps) == 1
    look = {"ls": style.dash, "lw": 1.8, "marker": style.marker if marked else "", "ms": 4}
    axes.plot(found.steps, found.mean, color=style.color, **look)
    if len(found.values) > 1:
        low, high = found.interval
        axes.fill_between(found.steps, low, high, color=style.color, alpha=0.18, lw=0)


def budget_text(budget: Mapping[str, Any]) -> str:
    """The budget in words."""
    return f"budget {budget['limit']:g}"


def budget_line(axes: Axes, budget: Mapping[str, Any]) -> None:
    """A dashed line at the limit."""
    limit = budget["limit"]
    axes.axhline(limit, color=INK, ls="--", lw=1.1)
    axes.set_ylim(top=max(axes.get_ylim()[1], 1.15 * limit))
    beside(axes, budget_text(budget), limit, "data")


def cost_label(groups: Groups, index: int, when: str) -> str:
    """What the cost of a constraint is called, with its unit."""
    budgets = budgets_of(groups)
    name = f", {budgets[index]['name']}" if len(budgets) > 1 else ""
    unit = "discounted cost" if budgets[index]["discounted"] else "cost per episode"
    return f"{unit}{name} ({when})"


def over_steps(axes: Axes, ylabel: str) -> None:
    """A panel over environment steps."""
    finish(axes, ylabel)
    axes.set_xlabel(STEPS)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}")


def one_range(figure: Figure, tasks: Iterable[Groups]) -> None:
    """Every panel over steps reaches from the first step to the last of any run."""
    runs = [run for groups in tasks for members in groups.values() for run in members]
    steps = [row["step"] for run in runs for kind in KINDS_OF_ROWS for row in rows_of(run, kind)]
    # A run that was stopped before its first step has a picture too.
    last = max(steps) or 1
    for axes in figure.axes:
        if axes.get_xlabel() == STEPS:
            axes.set_xlim(-0.03 * last, 1.03 * last)


def finish(axes: Axes, ylabel: str) -> None:
    """The common look of every panel."""
    axes.set_ylabel(ylabel)
    axes.grid(alpha=0.25, lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _lengths(values: Float[np.ndarray, " seeds"]) -> Float[np.ndarray, "2 1"]:
    """How far the interval of the mean reaches below and above it."""
    low, high = bootstrap_interval(values)
    return np.array([[values.mean() - low], [high - values.mean()]])


# --- whole pictures ---------------------------------------------------------------------------


def styles_of(tasks: Mapping[str, Groups]) -> dict[str, Style]:
    """A style for each label, the same in all tasks; they repeat when there are very many."""
    labels = dict.fromkeys(label for groups in tasks.values() for label in groups)
    return {label: STYLES[i % len(STYLES)] for i, label in enumerate(labels)}


def seeds_text(groups: Groups) -> str:
    """What lines and bands mean, which depends on the number of seeds."""
    counts = sorted({len(runs) for runs in groups.values()})
    if counts == [1]:
        return "one seed"
    if counts[-1] == 2:
        # The bootstrap's interval of two values goes from the one to the other.
        return f"mean and range of {'one or ' if 1 in counts else ''}two seeds"
    number = f"{counts[-1]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"mean and 95 % interval over {number} seeds"


# Names come from runs: a dollar sign in one is no formula.
@matplotlib.rc_context({"text.parse_math": False})
def plot_tasks(tasks: Mapping[str, Groups], path: Path, kind: Kind = "curves") -> list[str]:
    """A picture with one row of panels for each task; a single task may take two rows.

    The tasks whose runs have nothing of this kind are left out, and returned.
    """
    drawn = {task: found for task, g in tasks.items() if (found := panels_of(kind, g))}
    if not drawn:
        raise UserError(f"These runs have nothing to show as {kind!r}.")
    left_out = [task for task in tasks if task not in drawn]
    tasks, panels = {task: tasks[task] for task in drawn}, drawn
    styles = styles_of(tasks)
    most = max(len(found) for found in panels.values())
    rows = 2 if len(tasks) == 1 and most > 3 else 1
    columns = -(-most // rows)
    size = (4.9 * columns, (3.1 * rows + 0.3) * len(tasks) + 0.4)
    figure = plt.figure(figsize=size, layout="constrained")
    parts: Any = figure.subfigures(len(tasks), 1, squeeze=False)
    single = sum(len(groups) for groups in tasks.values()) == 1
    for part, (task, groups) in zip(parts.flat, tasks.items(), strict=True):
        what = f"{next(iter(groups))} on {task}" if single else task
        part.suptitle(f"{what}, {seeds_text(groups)}", fontsize=11)
        grid = part.subplots(rows, columns, squeeze=False)
        for axes in grid.flat[len(panels[task]) :]:
            axes.set_visible(False)
        for axes, panel in zip(grid.flat, panels[task], strict=False):
            panel.draw(axes, groups, styles)
    one_range(figure, tasks.values())
    if not single:
        add_legend(figure, styles)
    try:
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be written: {error}.") from error
    finally:
        plt.close(figure)
    return left_out


def panel_svg(panel: Panel, groups: Groups, styles: Styles) -> bytes:
    """One panel as a picture of its own, the same bytes for the same runs."""
    with plt.rc_context({"svg.hashsalt": "algd", "text.parse_math": False}):
        figure, axes = plt.subplots(figsize=(4.9, 3.5), layout="constrained")
        panel.draw(axes, groups, styles)
        one_range(figure, [groups])
        if len(groups) > 1:
            add_legend(figure, {label: styles[label] for label in groups})
        content = io.BytesIO()
        figure.savefig(content, format="svg", metadata={"Date": None})
        plt.close(figure)
    return content.getvalue()


def add_legend(figure: Figure, styles: Styles) -> None:
    """What every group looks like, above all panels; the figure grows by its lines."""
    width, height = figure.get_size_inches()
    columns = legend_columns(width, styles)
    lines = -(-len(styles) // columns)
    figure.set_size_inches(width, height + 0.2 * (lines - 1))
    handles = [
        Line2D([], [], color=s.color, ls=s.dash, marker=s.marker, ms=5, lw=1.8, label=label)
        for label, s in styles.items()
    ]
    place = {"loc": "outside upper center", "ncols": columns, "handlelength": 3.5}
    figure.legend(handles=handles, frameon=False, fontsize=9, **place)


def legend_columns(width: float, labels: Iterable[str]) -> int:
    """How many of these labels stand side by side in a figure that is so many inches wide."""
    longest = max(map(len, labels), default=0)
    return max(int(width / (INCHES_BEFORE + INCHES_PER_LETTER * longest)), 1)


@cache
def picture_formats() -> frozenset[str]:
    """The endings of file names that a picture can have."""
    return frozenset(Figure().canvas.get_supported_filetypes())
