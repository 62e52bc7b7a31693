"""Give every hyperparameter odd values: each is refused with a message, or three steps are trained.

    python scripts/fuzz_settings.py --presets algd cal sac-lag ppo-lag hj

Prints one JSON object per preset; the exit code is 1 if anything else happens.
"""

import dataclasses
import json
import math
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import jax
import tyro

from algd.algorithms import preset
from algd.experiments.trials import tiny
from algd.runs.config import Settings, check, check_memory, kept_transitions, make_envs
from algd.runs.directory import create_run
from algd.training.state import Setup, start
from algd.training.steps import iterate, train_rows
from algd.types import ReplayOptions, UserError

SETTINGS = Settings(steps=6, envs=2, log_every=2)
ODD: dict[Any, tuple[Any, ...]] = {
    int: (-1, 0, 1, 2, 3, 10**5, 10**12),
    float: (-1.0, 0.0, 1e-30, 0.5, 1.0, 1e30, 1e300, math.nan, math.inf),
    bool: (False, True),
}


@dataclass(frozen=True)
class Fuzz:
    """What to try."""

    presets: tuple[str, ...] = ("algd", "cal", "sac-lag", "ppo-lag", "hj")
    """Whose hyperparameters."""


def odd_values(hint: Any) -> tuple[Any, ...]:
    """Values for a field of this type, most of them unwise."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    if get_origin(hint) is tuple:
        return tuple((x,) * len(get_args(hint)) for x in ODD[float])
    return ODD[hint]


def fate(algorithm: Any, environments: Any, folder: Path) -> str:
    """What becomes of three steps with these hyperparameters."""
    try:
        check(SETTINGS, algorithm)
        check_memory(environments.spec, kept_transitions(SETTINGS, algorithm), algorithm)
    except UserError:
        return "refused"
    try:
        run = create_run(Path(tempfile.mkdtemp(dir=folder)) / "run")
        setup = Setup(SETTINGS, algorithm, environments.spec, (run,))
        state = start(setup, [environments])
        for _ in range(3):
            state = iterate(setup, state)
        train_rows(setup, state)
    except UserError:
        return "stopped with a message"
    return "trained"


def main(fuzz: Fuzz) -> bool:
    """Try every value of every field; whether nothing went wrong."""
    environments, fine = make_envs(SETTINGS, SETTINGS.envs), True
    for name in fuzz.presets:
        base = dataclasses.replace(preset(name), **tiny(name))
        schedule = {"prefill": 0} if isinstance(base, ReplayOptions) else {"rollout_steps": 4}
        base = dataclasses.replace(base, **schedule)
        fates, wrong = Counter(), []
        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
            hints = get_type_hints(type(base))
            for field, hint in ((f.name, hints[f.name]) for f in dataclasses.fields(base)):
                for value in odd_values(hint):
                    odd = dataclasses.replace(base, **{field: value})
                    try:
                        fates[fate(odd, environments, Path(folder))] += 1
                    except Exception as error:
                        wrong.append(f"{field}={value}: {error!r}"[:300])
        print(json.dumps({"preset": name, **fates, "wrong": wrong}), flush=True)
        fine = fine and not wrong
    return fine


if __name__ == "__main__":
    # One operation at a time: compiling each variant as a whole would take hours.
    with jax.disable_jit():
        passed = main(tyro.cli(Fuzz, description=__doc__))
    sys.exit(0 if passed else 1)
