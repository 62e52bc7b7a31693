"""`algd bench update --json`, `algd bench env --json`, `algd bench train --json`."""

import json
import math
from dataclasses import dataclass

import tyro

from algd.algorithms import preset, presets
from algd.cli.arguments import parse
from algd.types import UserError, nearest


@dataclass(frozen=True)
class Bench:
    """Measure speed on this machine, in ratios within one run."""

    what: tyro.conf.Positional[str]
    """update (gradient rounds and acting), env (environment steps) or train (whole runs)."""
    presets: tuple[str, ...] = ()
    """For update and train: which presets; update takes algd-code alone if nothing is said,
    `all` means every one."""
    seconds: float = 15.0
    """For train: how long each preset is measured, behind its compilation."""
    overlap: bool = False
    """For train: let the environments step while the device learns."""
    seeds: int = 1
    """For train: so many seeds in one program."""
    json: bool = False
    """Print JSON."""


def run(arguments: list[str]) -> None:
    """`algd bench update --json`, `algd bench env --json`, `algd bench train --json`."""
    chosen = parse(Bench, arguments, "bench")
    names = tuple(presets()) if chosen.presets == ("all",) else chosen.presets
    for name in names:
        preset(name)
    if chosen.what == "update":
        from algd.profiling.update import bench_update

        rows = bench_update(names or ("algd-code",))
    elif chosen.what == "train":
        from algd.profiling.train import bench_train
        from algd.training.loop import Interrupted

        if not 0.0 < chosen.seconds < math.inf:
            raise UserError(f"--seconds must be positive, not {chosen.seconds}.")
        if chosen.seeds < 1:
            raise UserError(f"--seeds must be at least 1, not {chosen.seeds}.")
        try:
            rows = bench_train(names, chosen.seconds, chosen.overlap, chosen.seeds)
        except Interrupted as stop:
            raise KeyboardInterrupt from stop
    elif chosen.what == "env":
        from algd.profiling.env import bench_env

        rows = bench_env()
    else:
        known = ("update", "env", "train")
        raise UserError(f"There is no benchmark {chosen.what!r}.{nearest(chosen.what, known)}")
    if chosen.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{v}" for k, v in row.items()))
