"""Which evaluation of a run is the best: budgets kept first, then the return."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from algd.types import Budget, metric_suffixes


def excess(row: Mapping[str, Any], budgets: Sequence[Budget]) -> float:
    """By what share of its limit the worst mean cost of an evaluation is over it; 0 if none is."""
    ends = metric_suffixes(budget.name for budget in budgets)
    over = [
        (row.get(f"cost{end}", math.inf) - budget.limit) / (budget.limit or 1.0)
        for end, budget in zip(ends, budgets, strict=True)
    ]
    return max(0.0, *over)


def best_step(rows: Iterable[Mapping[str, Any]], budgets: Sequence[Budget]) -> int | None:
    """The step of the best of these evaluations, of equals the first."""
    rank = lambda row: (-excess(row, budgets), row.get("return", -math.inf))  # noqa: E731
    found = max(rows, key=rank, default=None)
    return None if found is None else found["step"]
