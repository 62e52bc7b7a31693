"""Pictures of runs. Matplotlib stays in this module."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from algd.runs import Run

INK = "#2b2b33"
COLOURS: tuple[str, ...] = (
    "#1f6f8b",
    "#d1603d",
    "#5b8c5a",
    "#7d5ba6",
    "#c9a227",
    "#8c564b",
    "#4c4c4c",
    "#e377c2",
)


@dataclass(frozen=True)
class Curve:
    """One quantity over environment steps, one row per seed on a common axis."""

    steps: np.ndarray
    values: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """Mean over seeds."""
        return self.values.mean(axis=0)

    @property
    def interval(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean plus and minus 1.96 standard errors over seeds; the mean itself for one seed."""
        count = len(self.values)
        error = self.values.std(axis=0, ddof=1) / np.sqrt(count) if count > 1 else 0.0
        return self.mean - 1.96 * error, self.mean + 1.96 * error


def curve(runs: Sequence[Run], kind: str, name: str) -> Curve | None:
    """The quantity over the steps that all runs have, or nothing if one never reported it."""
    by_run = [{r["step"]: r[name] for r in run.rows(kind) if name in r} for run in runs]
    common = sorted(set.intersection(*(set(rows) for rows in by_run)))
    if not common:
        return None
    return Curve(np.array(common), np.array([[rows[s] for s in common] for rows in by_run]))


def title_of(run: Run) -> str:
    """What the runs of one group have in common: preset and environment."""
    config = run.config()
    return f"{config['preset']} on {config['settings']['env']}"


def draw_curve(axes: Axes, found: Curve | None, colour: str, label: str) -> None:
    """A line with its interval."""
    if found is None:
        return
    axes.plot(found.steps, found.mean, color=colour, lw=1.8, label=label)
    low, high = found.interval
    axes.fill_between(found.steps, low, high, color=colour, alpha=0.18, lw=0)


def budget_lines(axes: Axes, budgets: Sequence[dict[str, Any]]) -> None:
    """A dashed line at each limit."""
    for budget in budgets:
        axes.axhline(budget["limit"], color=INK, ls="--", lw=1.1)
        text = "budget" if len(budgets) == 1 else f"budget of {budget['name']}"
        axes.annotate(
            f"{text} {budget['limit']:g}",
            (0.99, budget["limit"]),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
            fontsize=8,
            color=INK,
        )


def finish(axes: Axes, ylabel: str) -> None:
    """The common look of every panel."""
    axes.set_ylabel(ylabel)
    axes.grid(alpha=0.25, lw=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def plot_curves(groups: dict[str, list[Run]], path: Path) -> None:
    """Return, cost against the budget, multiplier and the cost critic's calibration.

    Each group is one colour; its line is the mean over its runs, the band a 95 % interval.
    """
    figure, panels = plt.subplots(2, 2, figsize=(10, 6.4), sharex=True, layout="constrained")
    (returns, costs), (multiplier, calibration) = panels
    budgets: list[dict[str, Any]] = []
    for (label, runs), colour in zip(groups.items(), _colours(), strict=False):
        budgets = budgets or runs[0].config()["budgets"]
        names = _by_constraint([b["name"] for b in runs[0].config()["budgets"]])
        draw_curve(returns, curve(runs, "eval", "return"), colour, label)
        for suffix, style in names:
            shown = label + suffix.replace("/", " ")
            draw_curve(costs, curve(runs, "eval", f"cost{suffix}"), colour, shown)
            draw_curve(multiplier, curve(runs, "train", f"lam{suffix}"), colour, shown)
            foretold = curve(runs, "eval", f"expected_cost{suffix}")
            measured = curve(runs, "eval", f"discounted_cost{suffix}")
            which = f"{shown}: " if len(groups) > 1 or suffix else ""
            draw_curve(calibration, foretold, colour, f"{which}expected by the critics")
            if measured is not None:
                calibration.plot(measured.steps, measured.mean, style, color=colour, lw=1.2)
                calibration.lines[-1].set_label(f"{which}measured")
            for line in (costs.lines, multiplier.lines):
                if line:
                    line[-1].set_linestyle(style if style != ":" or suffix else "-")
    budget_lines(costs, budgets)
    finish(returns, "return per episode (evaluation)")
    finish(costs, "cost per episode (evaluation)")
    finish(multiplier, "multiplier λ")
    finish(calibration, "discounted cost, first step")
    for axes in (multiplier, calibration):
        axes.set_xlabel("environment steps")
        axes.set_ylim(bottom=0)
    costs.set_ylim(bottom=0)
    calibration.legend(frameon=False, fontsize=8)
    if len(groups) > 1 or any("/" in line.get_label() for line in costs.lines):
        returns.legend(frameon=False, fontsize=8)
    else:
        figure.suptitle(next(iter(groups)))
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _colours() -> list[str]:
    return list(COLOURS) * 4


def _by_constraint(names: list[str]) -> list[tuple[str, str]]:
    """The suffix of each constraint's metrics and a line style for it."""
    if len(names) == 1:
        return [("", ":")]
    return [(f"/{n}", s) for n, s in zip(names, ["-", "--", "-.", ":"] * 8, strict=False)]
