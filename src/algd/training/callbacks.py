"""Callbacks that are ready to be used: a run calls them with every row and every evaluation."""

from algd.runs.best import excess
from algd.runs.config import spec_of
from algd.runs.validation import checked
from algd.training.loop import Callback, Event


def stop_when_flat(evaluations: int = 5, tolerance: float = 0.05) -> Callback:
    """Stop a run once its budgets are kept and its return no longer rises.

    It looks at the last `2 * evaluations` evaluations: all of them keep every budget on average,
    and the later half's mean return exceeds the earlier half's by at most `tolerance` of its size.
    """

    evaluations = checked("evaluations", evaluations, int)

    def callback(event: Event) -> bool | None:
        if event.kind != "eval":
            return None
        rows = event.run.rows("eval")[-2 * evaluations :]
        if len(rows) < 2 * evaluations:
            return None
        budgets = spec_of(event.run.config()).budgets
        if any(excess(row, budgets) > 0.0 for row in rows):
            return None
        returns = [row["return"] for row in rows]
        earlier, later = (sum(half) for half in (returns[:evaluations], returns[evaluations:]))
        return None if later - earlier > tolerance * abs(earlier) else False

    return callback
