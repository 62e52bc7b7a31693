"""`algd bench update --json`, `algd bench env --json`."""

import json
from dataclasses import dataclass

import tyro

from algd.algorithms import preset, presets
from algd.commands.arguments import parse
from algd.types import UserError, nearest


def run(arguments: list[str]) -> None:
    """`algd bench update --json`, `algd bench env --json`."""

    @dataclass(frozen=True)
    class Bench:
        """Measure speed on this machine, in ratios within one run."""

        what: tyro.conf.Positional[str]
        """update (gradient rounds and acting) or env (environment steps)."""
        presets: tuple[str, ...] = ()
        """For update: which presets; by default algd-code alone, `all` for every one."""
        json: bool = False
        """Print JSON."""

    chosen = parse(Bench, arguments, "bench")
    if chosen.what == "update":
        from algd.experiments.bench_update import bench_update

        names = chosen.presets or ("algd-code",)
        names = tuple(presets()) if names == ("all",) else names
        for name in names:
            preset(name)
        rows = bench_update(names)
    elif chosen.what == "env":
        from algd.experiments.bench_env import bench_env

        rows = bench_env()
    else:
        raise UserError(
            f"There is no benchmark {chosen.what!r}.{nearest(chosen.what, ('update', 'env'))}"
        )
    if chosen.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{v}" for k, v in row.items()))
