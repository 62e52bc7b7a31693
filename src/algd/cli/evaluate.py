"""`algd evaluate RUN --episodes 100 --mode best --json`."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from algd.api import evaluate
from algd.cli.arguments import parse, refuse_idle, search_here
from algd.evaluation.acting import CANDIDATES
from algd.runs.validation import check_fields
from algd.types import Choice, Count, UserError


@dataclass(frozen=True)
class Evaluate:
    """Roll out the policy of a run on fresh environments."""

    run: tyro.conf.Positional[Path]
    """The run directory, or zoo:TASK for a policy that comes with the package."""
    episodes: int = 100
    """How many episodes."""
    seed: Count = 12345
    """Seed of the environments and of sampled actions."""
    mode: Choice = "deterministic"
    """How actions are chosen; best draws candidates and takes the one its critics prefer."""
    candidates: int = CANDIDATES
    """Draws that the mode best chooses from."""
    sampled: bool = False
    """The same as --mode sampled."""
    env: str | None = None
    """Where the run's environment is found, as module:Name; or another task than the run's, with
    the same observations, actions and constraints."""
    trust: bool = False
    """Import the module that the run's own files name: its code is run."""
    env_options: tuple[str, ...] = ()
    """Options of that environment as name=value."""
    budget: tuple[float, ...] = ()
    """Another budget than the run's, one number per constraint."""
    horizon: int | None = None
    """Episode length of a foreign environment without a time limit."""
    bad_steps: Literal["stop", "drop"] | None = None
    """What to do when the environment reports a number that is not finite; by default what the run
    did."""
    checkpoint: str = "last"
    """Whose policy: that of a step, best (of the best evaluation) or last."""
    eval_envs: int | None = None
    """Most copies of the environment; by default what the run's evaluations made."""
    json: bool = False
    """Print one JSON object."""


def run(arguments: list[str]) -> None:
    """`algd evaluate RUN --episodes 100 --mode best --json`."""
    chosen = parse(Evaluate, arguments, "evaluate")
    check_fields(chosen)
    if chosen.mode != "best":
        refuse_idle(chosen, ["candidates"], "without --mode best")
    if chosen.sampled and chosen.mode == "best":
        raise UserError("--sampled and --mode best exclude each other.")
    search_here([chosen.env], chosen.trust)
    asked: dict[str, Any] = dict(vars(chosen))
    as_json = asked.pop("json")
    if asked.pop("sampled"):
        asked["mode"] = "sampled"
    summary = evaluate(**asked)
    if as_json:
        print(json.dumps(summary))
        return
    print_summary(summary)


def print_summary(summary: dict[str, Any]) -> None:
    """The same numbers for a reader."""
    at = f"{summary['preset']} on {summary['env']} at step {summary['step']:,}"
    count = summary["episodes"]
    table = Table(title=f"{at}, {count} episode{'s' * (count != 1)}")
    for column in ("", "mean", "± s.e.", "IQM", "CVaR 0.9", "budget", "episodes over"):
        table.add_column(column, justify="left" if not column else "right")
    row = summary["return"]
    number = lambda value: "–" if value is None else f"{value:.2f}"  # noqa: E731
    shown = [number(row[key]) for key in ("mean", "standard_error", "iqm")]
    table.add_row("return", *shown, "", "", "")
    costs = summary["cost"]
    if "budget" in costs:
        costs = {summary["constraints"][0]: costs}
    for name, row in costs.items():
        shown = [number(row[key]) for key in ("mean", "standard_error", "iqm", "cvar_0.9")]
        table.add_row(
            name, *shown, f"{row['budget']:g} ({row['unit']})", f"{row['violation_rate']:.0%}"
        )
    Console().print(table)
