"""Two budgets at once: a robot that must spare both the hazards and its battery.

python examples/two_budgets.py [STEPS] [DIRECTORY]
"""

import sys
from pathlib import Path

import algd


def main(steps: int = 20_000, directory: str = "runs/two_budgets") -> None:
    """Train under both budgets, then with a tighter one for the battery from there on."""
    run = algd.train(
        "DiffDrive",
        steps=steps,
        env_options=("cost_parts=true",),
        budget=(20.0, 60.0),  # steps inside hazards; energy, both per episode
        eval_episodes=4,
        out=Path(directory) / "first",
    )
    tighter = algd.train(
        start_from=run.directory,
        steps=steps // 2,
        budget=(20.0, 40.0),
        eval_episodes=4,
        out=Path(directory) / "tighter",
    )
    for name, each in (("first", run), ("tighter", tighter)):
        row = each.rows("eval")[-1]
        limits = {budget["name"]: budget["limit"] for budget in each.config()["budgets"]}
        costs = [f"{c} {row[f'cost/{c}']:.1f} of {limit:g}" for c, limit in limits.items()]
        print(f"{name}: return {row['return']:.1f}, {', '.join(costs)}")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(*([int(arguments[0]), *arguments[1:]] if arguments else []))
