"""Measure what choosing the best of n draws is worth: return, cost and latency of given runs.

    python scripts/measure_best.py runs/DiffDrive-algd-seed* --csv best.csv --episodes 100

One row for each run and mode is appended: deterministic, sampled (n = 1), best of 4, 16, 64. Rows
that the file already holds are not measured again. Latency is the median of one observation's
action, in microseconds: of `Policy.predict`, and of the exported NumPy policy.
"""

import argparse
import csv
from pathlib import Path

import numpy as np

from algd.evaluation.episodes import evaluate
from algd.evaluation.policy import Policy
from algd.evaluation.stats import summarise
from algd.export.files import latency_of
from algd.runs.checkpoint import read_snapshot
from algd.runs.config import make_envs
from algd.types import Choice, UserError

COLUMNS = (
    "run",
    "preset",
    "env",
    "step",
    "mode",
    "candidates",
    "episodes",
    "return",
    "return_se",
    "constraint",
    "budget",
    "cost",
    "cost_se",
    "violation_rate",
    "latency_us",
    "numpy_latency_us",
)
CHOICES: tuple[tuple[Choice, int], ...] = (
    ("deterministic", 0),
    ("sampled", 1),
    ("best", 4),
    ("best", 16),
    ("best", 64),
)


def measured(path: Path) -> set[tuple[str, ...]]:
    """What has rows already."""
    if not path.exists():
        return set()
    with path.open(encoding="utf-8") as file:
        keys = ("run", "step", "mode", "candidates", "episodes")
        return {tuple(row[key] for key in keys) for row in csv.DictReader(file)}


def rows_of(
    directory: Path, mode: Choice, candidates: int, episodes: int, calls: int
) -> list[dict[str, object]]:
    """One row for each constraint."""
    found = read_snapshot(directory)
    policy = Policy(found.algorithm, found.state, found.spec)
    rolled = evaluate(
        found.algorithm,
        found.state,
        make_envs(found.settings, min(episodes, 25)),
        episodes,
        12345,
        mode,
        found.algorithm.cost_discount,
        max(candidates, 1),
    )
    obs = np.zeros(found.spec.obs_size, np.float32)
    plain, most = policy.portable, max(candidates, 1)
    seconds = [
        latency_of(lambda: policy.predict(obs, mode=mode, candidates=most), calls),
        latency_of(lambda: plain.predict(obs, mode, most), calls),
    ]
    summary = summarise(rolled, found.spec)
    costs = summary["cost"]
    if len(found.spec.budgets) == 1:
        costs = {found.spec.budgets[0].name: costs}
    return [
        {
            "run": directory,
            "preset": found.preset,
            "env": found.settings.env,
            "step": found.step,
            "mode": mode,
            "candidates": candidates,
            "episodes": episodes,
            "return": round(summary["return"]["mean"], 3),
            "return_se": round(summary["return"]["standard_error"], 3),
            "constraint": name,
            "budget": cost["budget"],
            "cost": round(cost["mean"], 3),
            "cost_se": round(cost["standard_error"], 3),
            "violation_rate": cost["violation_rate"],
            "latency_us": round(seconds[0] * 1e6, 1),
            "numpy_latency_us": round(seconds[1] * 1e6, 1),
        }
        for name, cost in costs.items()
    ]


def main() -> None:
    """Measure what is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--csv", type=Path, required=True)
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--calls", type=int, default=500)
    options = parser.parse_args()
    done = measured(options.csv)
    work = [(run, *choice) for run in options.runs for choice in CHOICES]
    for number, (run, mode, candidates) in enumerate(work, 1):
        try:
            key = (run, read_snapshot(run).step, mode, candidates, options.episodes)
            if tuple(map(str, key)) in done:
                continue
            rows = rows_of(run, mode, candidates, options.episodes, options.calls)
        except UserError as error:
            print(f"{run}, {mode}: left out: {error}")
            continue
        new = not options.csv.exists()
        with options.csv.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter[str](file, COLUMNS)
            if new:
                writer.writeheader()
            writer.writerows(rows)
        for row in rows:
            print(f"{number}/{len(work)}", *(f"{k} {row[k]}" for k in COLUMNS[:1] + COLUMNS[4:]))


if __name__ == "__main__":
    main()
