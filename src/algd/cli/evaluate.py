"""`algd evaluate RUN --episodes 100 --mode best --json`."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from algd.cli.arguments import parse, refuse_idle, search_here
from algd.evaluation.acting import CANDIDATES
from algd.evaluation.episodes import evaluate
from algd.evaluation.policy import load
from algd.evaluation.stats import summarise
from algd.runs.config import (
    Settings,
    is_same_environment,
    make_envs,
    parse_config,
    with_environment,
)
from algd.runs.directory import Run
from algd.runs.validation import check_fields
from algd.training.warm_start import check_same_spaces
from algd.types import Choice, Count, EnvSpec, UserError


@dataclass(frozen=True)
class Evaluate:
    """Roll out the policy of a run on fresh environments."""

    run: tyro.conf.Positional[Path]
    """The run directory."""
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
    """Where the run's environment is found, as module:Id; or another task than the run's, with
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
    mode: Choice = "sampled" if chosen.sampled else chosen.mode
    search_here([chosen.env], chosen.trust)
    policy = load(chosen.run, chosen.checkpoint)
    settings, algorithm, name = parse_config(Run(chosen.run).config())
    settings = elsewhere(settings, chosen)
    environments = make_envs(settings, min(chosen.episodes, 16))
    check_same_spaces(str(chosen.run), policy.spec, settings.env, environments.spec)
    episodes = evaluate(
        algorithm,
        policy.state,
        environments,
        chosen.episodes,
        chosen.seed,
        mode,
        algorithm.cost_discount,
        chosen.candidates,
        chosen.bad_steps or settings.bad_steps,
    )
    summary = {"run": str(chosen.run), "preset": name, "env": settings.env, "mode": mode}
    summary |= {"step": policy.source.step, "steps": settings.steps} if policy.source else {}
    summary |= summarise(episodes, environments.spec)
    if chosen.json:
        print(json.dumps(summary))
        return
    print_summary(summary, environments.spec)


def elsewhere(settings: Settings, chosen: Evaluate) -> Settings:
    """The run's settings, or those of another task; another task has a budget of its own."""
    if chosen.env is None or is_same_environment(chosen.env, settings.env):
        settings = with_environment(settings, chosen.env, chosen.trust)
    else:
        settings = dataclasses.replace(
            settings, env=chosen.env, budget=(), env_options=(), horizon=None
        )
    given = {"budget": chosen.budget, "env_options": chosen.env_options, "horizon": chosen.horizon}
    return dataclasses.replace(settings, **{name: value for name, value in given.items() if value})


def print_summary(summary: dict[str, Any], spec: EnvSpec) -> None:
    """The same numbers for a reader."""

    at = f"{summary['preset']} on {summary['env']} at step {summary['step']:,}"
    table = Table(title=f"{at}, {summary['episodes']} episodes")
    for column in ("", "mean", "± s.e.", "IQM", "CVaR 0.9", "budget", "episodes over"):
        table.add_column(column, justify="left" if not column else "right")
    row = summary["return"]
    number = lambda value: "–" if value is None else f"{value:.2f}"  # noqa: E731
    shown = [number(row[key]) for key in ("mean", "standard_error", "iqm")]
    table.add_row("return", *shown, "", "", "")
    costs = summary["cost"]
    if len(spec.budgets) == 1:
        costs = {spec.budgets[0].name: costs}
    for name, row in costs.items():
        shown = [number(row[key]) for key in ("mean", "standard_error", "iqm", "cvar_0.9")]
        table.add_row(
            name, *shown, f"{row['budget']:g} ({row['unit']})", f"{row['violation_rate']:.0%}"
        )
    Console().print(table)
