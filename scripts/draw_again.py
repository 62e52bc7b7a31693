"""Draw the figures of the plain benchmark again from its rows in docs/data, with today's code.

python scripts/draw_again.py docs/data docs/images
"""

import csv
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from algd.experiments.benchmark import ON_POLICY
from algd.visualization.grids import COMPARISON, plot_grid


@dataclass(eq=False)
class Recorded:
    """As much of a run as figures ask for."""

    metrics_path: Path
    budget: float
    lines: list[dict[str, Any]] = field(default_factory=list)

    def rows(self) -> list[dict[str, Any]]:
        """The rows of its log."""
        return self.lines

    def config(self) -> dict[str, Any]:
        """Its budget, as `config.json` has it."""
        return {"budgets": [{"name": "cost", "limit": self.budget, "discounted": False}]}


def read(folder: Path, name: str) -> list[dict[str, str]]:
    """The rows of a table."""
    with open(folder / name, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def recorded_tasks(folder: Path) -> dict[str, Any]:
    """Runs by task and algorithm."""
    budgets = {row["env"]: float(row["budget"]) for row in read(folder, "benchmark.csv")}
    runs: dict[tuple[str, str, str], Recorded] = {}
    for kind, name in (("eval", "benchmark_evaluations.csv"), ("train", "benchmark_training.csv")):
        for row in read(folder, name):
            env, algorithm, _, seed = (
                row.pop(key) for key in ("env", "algorithm", "preset", "seed")
            )
            run = runs.setdefault((env, algorithm, seed), Recorded(folder / name, budgets[env]))
            numbers = {key: float(value) for key, value in row.items() if value}
            run.lines.append({"kind": kind, **numbers, "step": int(row["step"])})
    tasks: dict[str, Any] = {}
    for (env, algorithm, _), run in runs.items():
        tasks.setdefault(env, {}).setdefault(algorithm, []).append(run)
    return tasks


def main(data: Path, images: Path) -> None:
    """Both figures."""
    tasks = recorded_tasks(data)
    off_policy = {
        env: {label: runs for label, runs in groups.items() if label not in ON_POLICY[1:]}
        for env, groups in tasks.items()
    }
    plot_grid(off_policy, COMPARISON, images / "plain_benchmark.png")
    pairs = {
        env: {label: groups[label] for label in ON_POLICY if label in groups}
        for env, groups in tasks.items()
        if groups.keys() & set(ON_POLICY[1:])
    }
    plot_grid(pairs, COMPARISON, images / "plain_on_policy.png")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
