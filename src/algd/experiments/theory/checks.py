"""One row for each statement: what was measured and whether it holds."""

from typing import NamedTuple

import numpy as np


class Check(NamedTuple):
    """One statement and what became of it; `low` and `high` where the figure has an interval."""

    statement: str
    measured: str
    value: float
    low: float
    high: float
    criterion: str
    holds: bool


def at_most(statement: str, measured: str, value: float, bound: float) -> Check:
    """Holds if the figure is not above the bound."""
    return Check(statement, measured, value, np.nan, np.nan, f"≤ {bound:g}", bool(value <= bound))


def at_least(statement: str, measured: str, value: float, bound: float) -> Check:
    """Holds if the figure is not below the bound."""
    return Check(statement, measured, value, np.nan, np.nan, f"≥ {bound:g}", bool(value >= bound))


def equals(statement: str, measured: str, value: float, expected: float, width: float) -> Check:
    """Holds if the figure is within `width` of what is expected."""
    criterion, near = f"{expected:g} ± {width:g}", abs(value - expected) <= width
    return Check(statement, measured, value, np.nan, np.nan, criterion, bool(near))


def as_table(checks: list[Check]) -> str:
    """A Markdown table for a reader."""
    lines = ["| statement | measured | figure | would hold at | holds |", "|---|---|---|---|---|"]
    for check in checks:
        figure = f"{check.value:.3g}"
        if np.isfinite(check.low):
            figure += f" [{check.low:.3g}, {check.high:.3g}]"
        shown = (check.statement, check.measured, figure, check.criterion)
        cells = (*shown, "yes" if check.holds else "**no**")
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"
