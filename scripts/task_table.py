"""A table of the tasks from their records, a row for each seed.

python scripts/task_table.py docs/data/runs [PRESET]
"""

import sys
from pathlib import Path
from statistics import fmean

from algd.experiments.pages import significant
from algd.runs.grouping import evidence_in
from algd.runs.record import Evidence
from algd.sweeps import results


def line(run: Evidence) -> str:
    """The mean of the last five evaluations, training's last fifth, and the final policy."""
    row = results.row(run)
    assert row is not None
    budget = row["budget"]
    train = [r for r in run.rows("train") if "return" in r and r["step"] > 0.8 * row["steps"]]
    length = fmean(r["length"] for r in run.rows("eval")[-5:])
    within = "yes" if row["last5_cost"] <= budget else "no"
    pairs = (
        (row["last5_return"], row["last5_cost"]),
        (fmean(r["return"] for r in train), fmean(r["cost"] for r in train)),
        (row["return"], row["cost"]),
    )
    first, *others = [f"{significant(a)} / {significant(b)}" for a, b in pairs]
    cells = [
        row["env"],
        row["seed"],
        f"{row['steps']:,}",
        f"{budget:g}",
        f"**{first}**",
        f"{length:,.0f}",
        within,
        *others,
    ]
    return "| " + " | ".join(map(str, cells)) + " |"


def main(folder: Path, preset: str = "algd") -> None:
    """Print the rows of one preset."""
    runs = [run for run in evidence_in(folder) if run.config()["preset"] == preset]
    lines = sorted(line(run) for run in runs)
    print("\n".join(lines))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
