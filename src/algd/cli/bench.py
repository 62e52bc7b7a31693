"""`algd bench update|env|train|loop --json`."""

import json
import math
import sys
from dataclasses import dataclass
from typing import Literal

import tyro

from algd.algorithms import canonical_preset, presets
from algd.cli.arguments import parse, refuse_idle
from algd.cli.terminal import table
from algd.types import UserError, nearest


@dataclass(frozen=True)
class Bench:
    """Measure speed on this machine, in ratios within one run."""

    what: tyro.conf.Positional[str]
    """update (gradient rounds and acting), env (environment steps), train (whole runs) or loop
    (training and evaluation with environments on the host and on the device)."""
    presets: tuple[str, ...] = ()
    """For update and train: which presets; update takes algd-code alone (algd with
    `--sizes default`) if nothing is said, `all` means every one."""
    sizes: Literal["paper", "default"] = "paper"
    """For update: batch, widths and ensembles of the paper, or those of the preset."""
    seconds: float = 15.0
    """For train and loop: how long each preset is measured, behind its compilation."""
    overlap: bool = False
    """For train: let the environments step while the device learns."""
    seeds: tuple[int, ...] = (0,)
    """For train: runs with these seeds in one program."""
    json: bool = False
    """Print JSON."""


def run(arguments: list[str]) -> None:
    """`algd bench update|env|train|loop --json`."""
    chosen = parse(Bench, arguments, "bench")
    names = presets() if chosen.presets == ("all",) else map(canonical_preset, chosen.presets)
    names = tuple(names)
    if chosen.what in ("update", "env"):
        refuse_idle(chosen, ("seconds", "overlap", "seeds"), f"on `algd bench {chosen.what}`")
    if chosen.what == "update":
        from algd.profiling.update import bench_update

        usual = "algd-code" if chosen.sizes == "paper" else "algd"
        rows = bench_update(names or (usual,), chosen.sizes, measuring)
    elif chosen.what == "train":
        from algd.profiling.train import bench_train
        from algd.training.loop import Interrupted

        refuse_idle(chosen, ("sizes",), "on `algd bench train`")
        check_seconds(chosen.seconds)
        try:
            rows = bench_train(names, chosen.seconds, chosen.overlap, chosen.seeds, measuring)
        except Interrupted as stop:
            raise KeyboardInterrupt from stop
    elif chosen.what == "loop":
        from algd.profiling.loop import bench_loop

        refuse_idle(chosen, ("overlap", "seeds", "sizes"), "on `algd bench loop`")
        check_seconds(chosen.seconds)
        rows = bench_loop(names, chosen.seconds, measuring)
    elif chosen.what == "env":
        from algd.profiling.env import bench_env

        refuse_idle(chosen, ("presets", "sizes"), "on `algd bench env`")
        rows = bench_env(tell=measuring)
    else:
        known = ("update", "env", "train", "loop")
        raise UserError(f"There is no benchmark {chosen.what!r}.{nearest(chosen.what, known)}")
    if not rows:
        raise UserError("Gradient rounds are those of presets that learn from replay.")
    print(json.dumps(rows) if chosen.json else table(rows))


def check_seconds(seconds: float) -> None:
    """Refuse a time that cannot be measured for."""
    if not 0.0 < seconds < math.inf:
        raise UserError(f"--seconds must be positive, not {seconds}.")


def measuring(what: str) -> None:
    """Say what is being measured."""
    print(f"measuring {what}", file=sys.stderr, flush=True)
