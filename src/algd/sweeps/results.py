"""The rows of a sweep: one for each complete run in a directory."""

import csv
import dataclasses
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from algd.algorithms import preset
from algd.evaluation.stats import known
from algd.runs.config import Settings, parse_config
from algd.runs.directory import Run
from algd.runs.files import write_atomically
from algd.runs.record import Evidence, rounded
from algd.sweeps.plan import Job, shown
from algd.types import Algorithm, UserError, metric_suffixes

Row = dict[str, Any]


def row(run: Evidence) -> Row | None:
    """What a complete run earned and cost; nothing for a run that is not complete."""
    judged = run.evaluation()
    if judged is None:
        return None
    try:
        return _row(run, judged)
    except (LookupError, TypeError, AttributeError) as error:
        raise UserError(f"{run.place} is not complete: {error!r} in its evaluation.") from error


def _row(run: Evidence, judged: dict[str, Any]) -> Row:
    config = run.config()
    settings, algorithm, name = parse_config(config)
    names = [budget["name"] for budget in config["budgets"]]
    ends = metric_suffixes(names)
    costs = [judged["cost"]] if len(names) == 1 else [judged["cost"][name] for name in names]
    evaluations, trained = run.rows("eval")[-5:], run.rows("train")

    def last_five(quantity: str) -> float:
        return sum(r[quantity] for r in evaluations) / len(evaluations)

    values: Row = {
        "env": settings.env,
        "preset": name,
        "seed": settings.seed,
        "overrides": overrides(settings, algorithm, name),
        "steps": judged["step"],
        "episodes": judged["episodes"],
        "return": judged["return"]["mean"],
        "return_se": judged["return"]["standard_error"],
    }
    for end, cost in zip(ends, costs, strict=True):
        values[f"budget{end}"] = cost["budget"]
        values[f"cost{end}"] = cost["mean"]
        values[f"cost_se{end}"] = cost["standard_error"]
        values[f"violation_rate{end}"] = cost["violation_rate"]
    values["last5_return"] = last_five("return")
    values |= {f"last5_cost{end}": last_five(f"cost{end}") for end in ends}
    for end in ends:
        totals = [r[f"total_cost{end}"] for r in trained]
        values[f"training_cost{end}"] = totals[-1] if totals else None
    values["processor_seconds"] = known(run.seconds().processor)
    return values


def overrides(settings: Settings, algorithm: Algorithm, name: str) -> str:
    """What differs from the preset and from the usual settings of a run."""
    usual = Settings(env=settings.env, seed=settings.seed, steps=settings.steps)
    pairs = ((settings, usual), (algorithm, preset(name)))
    return " ".join(
        f"{field.name}={shown(getattr(own, field.name))}"
        for own, other in pairs
        for field in dataclasses.fields(own)
        if getattr(own, field.name) != getattr(other, field.name)
    )


def rows(directory: Path, wanted: Sequence[Job] = ()) -> list[Row]:
    """All complete runs of a directory and those that are wanted, in the order of their names."""
    folders = [path.parent for path in directory.glob("*/evaluation.json")]
    runs = {folder.name: Run(folder) for folder in folders} | {j.name: j.evidence for j in wanted}
    return [found for _, run in sorted(runs.items()) if (found := row_or_nothing(run))]


def row_or_nothing(run: Evidence) -> Row | None:
    """The row of a run that may be damaged or another one's."""
    try:
        return row(run)
    except UserError:
        # Somebody else's directory, or a damaged run, which its own job reports.
        return None


def check_ours(path: Path) -> None:
    """Refuse to write over a table that no sweep has written."""
    if path.exists() and not path.read_bytes().startswith(b"env,preset,seed,"):
        raise UserError(f"{path} is not a sweep's table. Move it, or choose another directory.")


def write_csv(table: Sequence[Row], path: Path) -> None:
    """A table with every column that a row of it has; nothing if there is no row."""
    if not table:
        return
    columns = list(dict.fromkeys(name for line in table for name in line))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns)
    writer.writeheader()
    writer.writerows({k: rounded(v) for k, v in line.items()} for line in table)
    write_atomically(path, text.getvalue().encode())
