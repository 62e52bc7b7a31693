"""`algd evaluate RUN --episodes 100 --json`."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table

from algd.commands.arguments import parse
from algd.evaluation import evaluate
from algd.policy import load
from algd.runs import Run
from algd.settings import make_envs, restored
from algd.stats import summarise
from algd.types import UserError


def run(arguments: list[str]) -> None:
    """`algd evaluate RUN --episodes 100 --json`."""

    @dataclass(frozen=True)
    class Evaluate:
        """Roll out the policy of a run's newest checkpoint on fresh environments."""

        run: tyro.conf.Positional[Path]
        """The run directory."""
        episodes: int = 100
        """How many episodes."""
        seed: int = 12345
        """Seed of the environments and of sampled actions."""
        sampled: bool = False
        """Draw actions from the policy instead of its deterministic ones."""
        json: bool = False
        """Print one JSON object."""

    chosen = parse(Evaluate, arguments, "evaluate")
    if chosen.episodes < 1:
        raise UserError(f"--episodes must be at least 1, not {chosen.episodes}.")
    policy = load(chosen.run)
    settings, algorithm, name = restored(Run(chosen.run).config())
    episodes = evaluate(
        algorithm,
        policy.state,
        make_envs(settings, min(chosen.episodes, 16)),
        chosen.episodes,
        chosen.seed,
        "sampled" if chosen.sampled else "deterministic",
        algorithm.cost_discount,
    )
    summary = {"run": str(chosen.run), "preset": name, "env": settings.env}
    summary |= summarise(episodes, policy.spec)
    if chosen.json:
        print(json.dumps(summary))
        return
    print_summary(summary, policy.spec)


def print_summary(summary: dict[str, Any], spec: Any) -> None:
    """The same numbers for a reader."""

    table = Table(title=f"{summary['preset']} on {summary['env']}, {summary['episodes']} episodes")
    for column in ("", "mean", "± s.e.", "IQM", "CVaR 0.9", "budget", "episodes over"):
        table.add_column(column, justify="left" if not column else "right")
    row = summary["return"]
    shown = [f"{row[key]:.2f}" for key in ("mean", "standard_error", "iqm")]
    table.add_row("return", *shown, "", "", "")
    costs = summary["cost"]
    if len(spec.budgets) == 1:
        costs = {spec.budgets[0].name: costs}
    for name, row in costs.items():
        shown = [f"{row[key]:.2f}" for key in ("mean", "standard_error", "iqm", "cvar_0.9")]
        table.add_row(
            name, *shown, f"{row['budget']:g} ({row['unit']})", f"{row['violation_rate']:.0%}"
        )
    Console().print(table)
