"""Run directories with numbers written by hand, made without any training."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from algd.runs.config import Settings, describe
from algd.runs.directory import Run, create_run
from algd.runs.files import LogPosition, seal
from algd.types import Budget, EnvSpec
from support.small import small

EVALUATIONS = 5
LOGS = 8


def write_run(
    directory: Path,
    preset: str = "algd",
    seed: int = 0,
    env: str = "DiffDrive",
    last_return: float = 10.0,
    last_cost: float = 12.0,
    budgets: Sequence[Budget] = (Budget(20.0, name="hazards"),),
    steps: int = 800,
    reached: int | None = None,
    lam: bool = True,
    **hyperparameters: Any,
) -> Run:
    """A run whose return and cost rise evenly to their last values, with costs 1, 2, ... logged."""
    run = create_run(directory)
    spec = EnvSpec(3, (-1.0,), (1.0,), tuple(budgets), 200)
    settings = Settings(env=env, steps=steps, seed=seed, eval_episodes=20)
    run.write_config(describe(settings, small(preset, **hyperparameters), preset, spec))
    ends = [f"/{budget.name}" for budget in budgets] if len(budgets) > 1 else [""]
    rows: list[dict[str, Any]] = []
    for i in range(EVALUATIONS):
        share = i / (EVALUATIONS - 1)
        row = {"kind": "eval", "step": int(share * steps), "return": share * last_return}
        for end in ends:
            row |= {f"cost{end}": share * last_cost, f"violation_rate{end}": 0.25}
            row |= {f"cost_std{end}": 2.0}
            row |= {f"expected_cost{end}": 3.0 * share, f"discounted_cost{end}": 4.0 * share}
        rows.append(row)
    for i in range(1, LOGS + 1):
        row = {"kind": "train", "step": i * steps // LOGS, "episodes": i}
        for end in ends:
            row |= {f"cost{end}": float(i), f"total_cost{end}": 10.0 * i}
            row |= {f"total_unsafe_steps{end}": float(i)}
            row |= {f"lam{end}": 1.0 / i} if lam else {}
        rows.append(row)
    rows.sort(key=lambda row: row["step"])
    mark = LogPosition()
    with open(run.metrics_path, "wb") as file:
        for row in rows:
            if reached is None or row["step"] <= reached:
                line, mark = seal(row, mark, run.id)
                file.write(line)
    run.timing_path.write_text(
        json.dumps({"run": run.id, "step": steps, "steps_per_second": 4.0}) + "\n"
    )
    return run
