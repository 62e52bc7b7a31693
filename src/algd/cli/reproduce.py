"""`algd reproduce NAME --scale smoke|cpu|paper --out DIR`."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import tyro

from algd.cli.arguments import parse, refuse_idle
from algd.experiments.scale import Scale
from algd.runs.files import make_directory
from algd.sweeps.executors import Workers
from algd.types import UserError, nearest

# Those that need trained runs, and those that need none.
OF_RUNS = {
    "stability": "stability:reproduce",
    "benchmark": "benchmark:reproduce",
    "ablation-mc": "ablations:reproduce_mc",
    "ablation-ensemble": "ablations:reproduce_ensemble",
    "ablation-rho": "ablations:reproduce_rho",
    "runtime": "runtime:reproduce",
}
WITHOUT_RUNS = {"theory": "theory:reproduce", "landscape": "landscape:reproduce"}


@dataclass(frozen=True)
class Reproduce:
    """Remake a figure or table of the paper; issued again, go on with what is missing."""

    name: tyro.conf.Positional[str]
    """stability, benchmark, ablation-mc, ablation-ensemble, ablation-rho, runtime, theory or
    landscape."""
    scale: Scale = "cpu"
    """smoke: minutes and tiny networks; cpu: hours on a few cores; paper: what the paper did,
    which is asked for again before it starts."""
    out: Path | None = None
    """Where runs, figures and tables go; by default reproduced/SCALE."""
    records: Path | None = None
    """Where the record of each finished run goes; what has one is not computed again. By default
    records in the directory of --out."""
    present: bool = False
    """Draw from the runs and records that are there, name what is missing, and train nothing."""
    yes: bool = False
    """Start the scale of the paper without being asked."""
    workers: Workers = field(default_factory=Workers)


def run(arguments: list[str]) -> None:
    """`algd reproduce NAME --scale smoke|cpu|paper --out DIR`."""
    chosen = parse(Reproduce, arguments, "reproduce")
    if chosen.scale != "paper":
        refuse_idle(chosen, ["yes"], "at this scale, which does not ask")
    if chosen.name in WITHOUT_RUNS:
        fields = [field.name for field in dataclasses.fields(Workers)]
        refuse_idle(chosen.workers, fields, f"on {chosen.name}, which trains nothing")
        idle = ["records", "present"]
        refuse_idle(chosen, idle, f"on {chosen.name}, which reads no records")
    if chosen.name == "runtime":
        refuse_idle(chosen, ["records", "present"], "on runtime, which measures and reads no runs")
    known = [*OF_RUNS, *WITHOUT_RUNS]
    if chosen.name not in known:
        raise UserError(
            f"There is no experiment {chosen.name!r}.{nearest(chosen.name, known)} "
            f"There are {', '.join(known)}."
        )
    out = chosen.out or Path("reproduced") / chosen.scale
    make_directory(out)
    if chosen.name in WITHOUT_RUNS:
        experiment(WITHOUT_RUNS[chosen.name])(chosen.scale, out)
        return
    from algd.experiments.trials import Resources

    means = Resources(chosen.workers, chosen.yes, chosen.present, chosen.records)
    experiment(OF_RUNS[chosen.name])(chosen.scale, out, means)


def experiment(place: str) -> Callable[..., Any]:
    """The function at `module:function` among the experiments."""
    module, _, function = place.partition(":")
    return getattr(import_module(f"algd.experiments.{module}"), function)
