"""Set two commits against each other: the same benchmarks, in turns, on one machine.

    python benchmarks/compare.py main~5 main --turns 3

Each commit is checked out in a temporary worktree and its own benchmarks run there, because modules
move; for those that both have, the ratio of the medians of the fastest turns is printed. Machines
drift, so absolute times are not compared across turns. The exit code is 1 if anything got slower by
more than `--worst`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path


def measured(source: Path, result: Path) -> dict[str, float]:
    """The median seconds of each benchmark on the sources in a directory."""
    subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "pytest",
                "benchmarks",
                "-q",
                "-n",
                "0",
                "-p",
                "no:cacheprovider",
            ),
            *("--benchmark-only", f"--benchmark-json={result}"),
        ],
        env={**os.environ, "PYTHONPATH": str(source / "src")},
        cwd=source,
        check=True,
    )
    rows = json.loads(result.read_bytes())["benchmarks"]
    return {row["name"]: row["stats"]["median"] for row in rows}


def main() -> int:
    """Measure both commits in turns and print the ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--worst", type=float, default=1.2)
    given = parser.parse_args()
    best: dict[str, dict[str, float]] = {given.old: {}, given.new: {}}
    with tempfile.TemporaryDirectory(prefix="algd-compare-") as folder:
        trees = {commit: Path(folder) / name for commit, name in zip(best, "ab", strict=True)}
        for commit, tree in trees.items():
            subprocess.run(["git", "worktree", "add", "--detach", tree, commit], check=True)
        try:
            for _ in range(given.turns):
                for commit, tree in trees.items():
                    for name, seconds in measured(tree, Path(folder) / "out.json").items():
                        fastest = best[commit].get(name, seconds)
                        best[commit][name] = min(fastest, seconds)
        finally:
            for tree in trees.values():
                subprocess.run(["git", "worktree", "remove", "--force", tree], check=True)
    shared = best[given.old].keys() & best[given.new].keys()
    ratios = {name: best[given.new][name] / best[given.old][name] for name in sorted(shared)}
    for name, ratio in ratios.items():
        print(f"{name:45s} {1e3 * best[given.new][name]:10.3f} ms   {ratio:5.2f} of {given.old}")
    return int(any(ratio > given.worst for ratio in ratios.values()))


if __name__ == "__main__":
    sys.exit(main())
