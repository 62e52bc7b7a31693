"""`algd list`."""

from dataclasses import dataclass
from typing import Any

from algd import envs, zoo
from algd.algorithms import summaries
from algd.cli.arguments import parse
from algd.cli.terminal import table


@dataclass(frozen=True)
class List:
    """Show the presets and the tasks."""


def run(arguments: list[str]) -> None:
    """`algd list`."""
    parse(List, arguments, "list")
    print("Presets (algd train PRESET; algd help train PRESET shows their hyperparameters):\n")
    print(table([{"preset": name, "what it is": line} for name, line in summaries().items()]))
    print("\nTasks (algd train --env TASK):\n")
    print(table([describe(name) for name in envs.names()]))
    print("\nzoo: return / cost of a policy that comes with algd (algd evaluate zoo:TASK)")
    print("\nAny Gymnasium environment with a cost will do, too: docs/own_environment.md")


def describe(name: str) -> dict[str, Any]:
    """What there is to know of a task before it is chosen."""
    env: Any = envs.make_one(name, {}).unwrapped
    (budget,) = env.budgets
    limit = f"{budget.limit:g}{' (discounted)' if budget.discounted else ''}"
    env.close()
    return {
        "task": name,
        "observation": env.observation_space.shape[0],
        "actions": env.action_space.shape[0],
        "horizon": env.horizon,
        "cost of a step": env.metadata["cost"],
        "budget": limit,
        "zoo": judged(name),
    }


def judged(task: str) -> str | None:
    """What the zoo's policy of a task earned and cost."""
    found = zoo.record(task).evaluation() if task in zoo.tasks() else None
    return f"{found['return']['mean']:.4g} / {found['cost']['mean']:.3g}" if found else None
