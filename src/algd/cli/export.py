"""`algd export RUN --format numpy --out DIR`."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from algd.cli.arguments import parse
from algd.evaluation.policy import load


@dataclass(frozen=True)
class Export:
    """Write the policy of a run in a form that needs no algd."""

    run: tyro.conf.Positional[Path]
    """The run directory, or zoo:TASK for a policy that comes with the package."""
    out: Path
    """A new directory."""
    format: str = "numpy"
    """numpy, onnx or stablehlo."""
    checkpoint: str = "last"
    """A step, best (of the best evaluation) or last."""


def run(arguments: list[str]) -> None:
    """`algd export RUN --format numpy --out DIR`."""
    chosen = parse(Export, arguments, "export")
    policy = load(chosen.run, chosen.checkpoint)
    for path in policy.export(chosen.out, chosen.format):
        print(f"Wrote {path}")
    print(f"The policy is that of {policy.standing}.")
