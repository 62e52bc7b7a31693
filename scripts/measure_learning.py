"""Train presets over seeds and append one row per run to a CSV file: the tables of docs/results.md.

    python scripts/measure_learning.py --env DiffDrive --presets algd lgd --seeds 0 1 2 3 4 \
        --runs runs/table --csv docs/data/diffdrive.csv

Rows that the file already holds are not measured again; a run that was cut short is continued.
`seconds` is processor time, so that a table can be made on a machine with other work; on one
thread (`taskset -c 0`) it is the wall-clock time of an idle core.
"""

import argparse
import csv
import dataclasses
import json
import time
from pathlib import Path

from algd import training
from algd.algorithms import preset
from algd.evaluation import evaluate
from algd.policy import load
from algd.runs import Run
from algd.settings import Settings, make_envs, restored
from algd.stats import summarise

COLUMNS = (
    "env",
    "preset",
    "seed",
    "steps",
    "return",
    "return_se",
    "cost",
    "cost_se",
    "violation_rate",
    "last5_return",
    "last5_cost",
    "training_cost",
    "seconds",
)


def measured(path: Path) -> set[tuple[str, ...]]:
    """The runs that have a row already."""
    if not path.exists():
        return set()
    with path.open() as file:
        return {(r["env"], r["preset"], r["seed"], r["steps"]) for r in csv.DictReader(file)}


def final_row(run: Run, episodes: int, seconds: float) -> dict[str, object]:
    """Evaluate the last policy on fresh episodes and read the rest off the metrics."""
    settings, algorithm, name = restored(run.config())
    policy = load(run.directory)
    rolled = evaluate(
        algorithm,
        policy.state,
        make_envs(settings, min(episodes, 25)),
        episodes,
        seed=12345,
        discount=algorithm.cost_discount,
    )
    summary = summarise(rolled, policy.spec)
    last = run.rows("eval")[-5:]
    values = {
        "env": settings.env,
        "preset": name,
        "seed": settings.seed,
        "steps": settings.steps,
        "return": summary["return"]["mean"],
        "return_se": summary["return"]["standard_error"],
        "cost": summary["cost"]["mean"],
        "cost_se": summary["cost"]["standard_error"],
        "violation_rate": summary["cost"]["violation_rate"],
        "last5_return": sum(row["return"] for row in last) / len(last),
        "last5_cost": sum(row["cost"] for row in last) / len(last),
        "training_cost": run.rows("train")[-1]["total_cost"],
        "seconds": seconds,
    }
    return {k: round(v, 3) if isinstance(v, float) else v for k, v in values.items()}


def main() -> None:
    """Train what is missing, one run after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="DiffDrive")
    parser.add_argument("--presets", nargs="+", default=["algd"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, default=Settings.steps)
    parser.add_argument("--envs", type=int, default=Settings.envs)
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--csv", type=Path, required=True)
    parser.add_argument("--set", nargs="*", default=[], help="hyperparameters as name=json")
    given = parser.parse_args()
    changes = {k: json.loads(v) for k, v in (pair.split("=") for pair in given.set)}
    for seed in given.seeds:
        for name in given.presets:
            if (given.env, name, str(seed), str(given.steps)) in measured(given.csv):
                continue
            settings = Settings(env=given.env, seed=seed, steps=given.steps, envs=given.envs)
            directory = given.runs / f"{given.env}-{name}-{seed}"
            start = time.process_time()
            if (directory / "config.json").exists():
                run, _ = training.resume(directory)
            else:
                algorithm = dataclasses.replace(preset(name), **changes)
                run = training.train(settings, algorithm, name, directory)
            row = final_row(run, given.episodes, time.process_time() - start)
            new = not given.csv.exists()
            with given.csv.open("a", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS)
                if new:
                    writer.writeheader()
                writer.writerow(row)
            print(row, flush=True)


if __name__ == "__main__":
    main()
