"""Make the zoo again: for each task the run whose return is the median over its seeds.

python scripts/zoo.py RECORDS RUNS [PRESET]

RECORDS is a directory of records, RUNS one that contains their runs. The policy is rolled out as it
ships, and marked if it earns or costs significantly another amount than its record says.
"""

import sys
from pathlib import Path
from statistics import median_low
from typing import Any

import algd
from algd import zoo
from algd.evaluation.policy import load
from algd.runs.directory import Run
from algd.runs.grouping import evidence_in
from algd.runs.record import Record
from algd.sweeps import results

EPISODES = 20
# Standard errors of a difference.
MOST = 3.0


def chosen(records: list[Record]) -> Record:
    """The record of median return, by the mean of the last five evaluations."""
    rows = {record: results.row(record) for record in records}
    by_return = {row["last5_return"]: record for record, row in rows.items() if row}
    return by_return[median_low(by_return)]


def differs(told: dict[str, Any], found: dict[str, Any]) -> bool:
    """Whether two judgements say significantly different things."""
    return any(
        abs(told[what]["mean"] - found[what]["mean"])
        > MOST * sum(each[what]["standard_error"] ** 2 for each in (told, found)) ** 0.5 + 1e-6
        for what in ("return", "cost")
    )


def main(records: Path, runs: Path, preset: str = "algd") -> None:
    """Write the policies, and print what they do."""
    directories = {run.id: run for run in evidence_in(runs) if isinstance(run, Run)}
    tasks: dict[str, list[Record]] = {}
    for record in evidence_in(records):
        config = record.config()
        is_wanted = config["preset"] == preset and config["id"] in directories
        if isinstance(record, Record) and is_wanted:
            tasks.setdefault(config["settings"]["env"], []).append(record)
    for task, seeds in sorted(tasks.items()):
        record = chosen(seeds)
        policy = load(directories[record.config()["id"]])
        zoo.write(task, policy.portable.data, record.path)
        told, found = record.evaluation(), algd.evaluate(f"{zoo.PREFIX}{task}", EPISODES)
        assert told is not None
        print(
            f"{task} seed {record.config()['settings']['seed']} of {len(seeds)}: return "
            f"{told['return']['mean']:.1f} -> {found['return']['mean']:.1f}, cost "
            f"{told['cost']['mean']:.1f} -> {found['cost']['mean']:.1f}"
            + " DIFFERENT"
            * differs(told, found),
            flush=True,
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
