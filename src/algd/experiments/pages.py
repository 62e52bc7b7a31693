"""Tables of a comparison as Markdown, for readers."""

import math
from collections.abc import Callable, Iterable, Sequence

from algd.sweeps.results import Row

# Of the aggregates: heading, column, and whether an interval belongs to it.
AGGREGATES = (
    ("return", "return_iqm", True),
    ("cost / budget", "cost_iqm", True),
    ("return within budget", "safe_return_iqm", True),
    ("runs over", "runs_over_budget", False),
    ("episodes over", "episodes_over_budget", False),
    ("excess where over", "excess_where_over", False),
    ("episodes until safe", "episodes_until_safe_median", False),
    ("training cost / budget", "training_cost", False),
    ("CVaR / budget", "cost_cvar", False),
    ("ALGD better", "improvement", True),
)


def comparison_page(summary: Sequence[Row]) -> str:
    """Tasks by algorithms: return / cost, means of the last five evaluations over the seeds, with
    how many these are; bold where the cost is above the budget."""
    return _tasks_by_algorithms(summary, _pair)


def swing_page(summary: Sequence[Row]) -> str:
    """Tasks by algorithms: the cost of the worst of the last five evaluations, in budgets, a mean
    over the seeds. A policy that swings about its budget keeps it on average only."""
    return _tasks_by_algorithms(summary, lambda x: f"{x['last5_worst_cost'] / x['budget']:.2f}")


def aggregate_page(table: Sequence[Row]) -> str:
    """A row for each algorithm, over tasks; intervals in brackets."""
    rows = [
        [line["algorithm"], f"{line['tasks']} x {line['seeds']}"]
        + [_figure(line, name, ranged) for _, name, ranged in AGGREGATES]
        for line in table
    ]
    return _markdown(["algorithm", "tasks x seeds", *(title for title, _, _ in AGGREGATES)], rows)


def significant(value: float) -> str:
    """Three digits or so."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}"


def _tasks_by_algorithms(summary: Sequence[Row], cell: Callable[[Row], str]) -> str:
    algorithms = list(dict.fromkeys(line["algorithm"] for line in summary))
    rows = []
    for task in dict.fromkeys(line["env"] for line in summary):
        own = {line["algorithm"]: line for line in summary if line["env"] == task}
        budget = next(iter(own.values()))["budget"]
        cells = [cell(own[name]) if name in own else "" for name in algorithms]
        rows.append([task, f"{budget:g}", *cells])
    return _markdown(["task", "budget", *algorithms], rows)


def _pair(line: Row) -> str:
    earned, paid = (significant(line[f"last5_{what}"]) for what in ("return", "cost"))
    paid = f"**{paid}**" if line["last5_cost"] > line["budget"] else paid
    return f"{earned} / {paid} ({line['seeds']})"


def _figure(line: Row, name: str, ranged: bool) -> str:
    value = line.get(name, math.nan)
    if math.isnan(value):
        return ""
    low, high = (line[f"{name}_{end}"] if ranged else math.nan for end in ("low", "high"))
    known = math.isfinite(low) and math.isfinite(high)
    return f"{value:.2f} [{low:.2f}, {high:.2f}]" if known else f"{value:.3g}"


def _markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
