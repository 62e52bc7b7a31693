"""Which runs a sweep is made of: environments x presets x seeds x settings."""

import dataclasses
import functools
import itertools
import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from algd.algorithms import canonical_preset, preset
from algd.runs.config import Settings, check, make_envs, parse_config
from algd.runs.directory import Run, directory_name
from algd.runs.record import Evidence, Record
from algd.runs.validation import check_fields, fitted, fitted_fields
from algd.types import Algorithm, UserError, nearest


@dataclasses.dataclass(frozen=True)
class Job:
    """One run that is wanted, and the number of episodes that judge its final policy."""

    directory: Path
    settings: Settings
    algorithm: Algorithm
    preset: str
    episodes: int = 100
    records: Path | None = None
    """Where the run's record goes, and counts as the run if it is there already."""

    @property
    def name(self) -> str:
        """The run's directory within the sweep's."""
        return self.directory.name

    @property
    def log_path(self) -> Path:
        """What the run's process said, and the traceback if it failed."""
        return self.directory.parent / "logs" / f"{self.name}.txt"

    @property
    def record(self) -> Record | None:
        """The record of the run, whether it is there or not."""
        return Record(self.records.absolute() / f"{self.name}.json") if self.records else None

    @property
    def evidence(self) -> Evidence:
        """What the run is judged by: its record, or else its directory."""
        record = self.record
        return record if record and record.path.exists() else Run(self.directory)


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Every combination of these; in `settings`, a tuple of values is an axis of its own."""

    env: tuple[str, ...] = ("DiffDrive",)
    preset: tuple[str, ...] = ("algd",)
    seeds: tuple[int, ...] = (0, 1, 2)
    episodes: int = 100
    settings: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    """Settings of the run or of the presets, each with the values it takes."""


def jobs(sweep: Sweep, out: Path, records: Path | None = None) -> list[Job]:
    """The runs of a sweep, all checked, seeds outermost so that early results compare presets."""
    if sweep.episodes < 1:
        raise UserError(f"episodes must be at least 1, not {sweep.episodes}.")
    varied = [name for name, values in sweep.settings.items() if len(values) > 1]
    combinations = [
        dict(zip(sweep.settings, values, strict=True))
        for values in itertools.product(*sweep.settings.values())
    ]
    found = [
        job(out, env, canonical_preset(name), seed, chosen, varied, sweep.episodes, records)
        for seed, env, name, chosen in itertools.product(
            sweep.seeds, sweep.env, sweep.preset, combinations
        )
    ]
    if not found:
        raise UserError("The sweep is empty: every list needs at least one value.")
    check_environments(found)
    return without_duplicates(found)


def job(
    out: Path,
    env: str,
    preset_name: str,
    seed: int,
    chosen: Mapping[str, Any] | None = None,
    named: Sequence[str] = (),
    episodes: int = 100,
    records: Path | None = None,
) -> Job:
    """One run with the chosen settings; those in `named` become part of its directory's name."""
    chosen = chosen or {}
    settings, algorithm = _configured(preset_name, tuple(chosen.items()))
    settings = dataclasses.replace(settings, env=env, seed=seed)
    check_fields(settings)
    values = vars(settings) | vars(algorithm)
    suffix = "".join(f"-{name}={shown(values[name])}" for name in named)
    stem = directory_name(f"{env}-{preset_name}-seed{seed}{suffix}")
    return Job(out.absolute() / stem, settings, algorithm, preset_name, episodes, records)


@functools.cache
def _configured(
    preset_name: str, chosen: tuple[tuple[str, Any], ...]
) -> tuple[Settings, Algorithm]:
    """A run of the preset with these settings, checked; the many seeds of a sweep share it."""
    algorithm = preset(preset_name)
    of_run = get_type_hints(Settings)
    known = (of_run.keys() - {"env", "seed"}) | {f.name for f in dataclasses.fields(algorithm)}
    for name, _ in chosen:
        if name in ("env", "seed"):
            raise UserError(f"{name} is an axis of its own: say --{name}{'s' * (name == 'seed')}.")
        if name not in known:
            raise UserError(
                f"Neither a run nor the preset {preset_name} has a setting {name!r}."
                f"{nearest(name, known)}"
            )
    run_values = {name: value for name, value in chosen if name in of_run}
    preset_values = {name: value for name, value in chosen if name not in of_run}
    settings = Settings(**fitted_fields(Settings, run_values))
    algorithm = dataclasses.replace(algorithm, **fitted_fields(type(algorithm), preset_values))
    check(settings, algorithm)
    return settings, algorithm


def check_environments(found: Sequence[Job]) -> None:
    """Make each environment once, so that a misspelt one is noticed before anything is trained."""
    distinct = {dataclasses.replace(j.settings, seed=0, steps=1): j.settings for j in found}
    for settings in distinct.values():
        make_envs(settings, 1).close()


def without_duplicates(found: Sequence[Job]) -> list[Job]:
    """Each run once, in order; two different runs of one name are a mistake."""
    by_directory: dict[Path, Job] = {}
    for wanted in found:
        if by_directory.setdefault(wanted.directory, wanted) != wanted:
            raise UserError(f"Two different runs would both be called {wanted.name}.")
    return list(by_directory.values())


def shown(value: Any) -> str:
    """A value as a name shows it."""
    if isinstance(value, list | tuple):
        return ":".join(shown(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


# --- what the user writes ---------------------------------------------------------------------


def parse_assignments(assignments: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """`rho=0.5,1,2` as `{"rho": (0.5, 1, 2)}`; the items of one value are parted by colons."""
    parsed: dict[str, tuple[Any, ...]] = {}
    for assignment in assignments:
        name, equals, values = assignment.partition("=")
        if not equals or not values:
            raise UserError(
                f"A setting is written name=value or name=value,value; not {assignment!r}."
            )
        name = name.strip().lstrip("-").replace("-", "_")
        if name in parsed:
            raise UserError(f"{name} is set twice; give all its values at once, parted by commas.")
        parsed[name] = tuple(_parse_value(value) for value in values.split(","))
    return parsed


def _parse_value(text: str) -> Any:
    if ":" in text:
        return tuple(_parse_value(item) for item in text.split(":"))
    try:
        value = json.loads(text)
    except ValueError:
        return text
    # Neither a list nor a table can be written here; what looks like one is a word.
    return text if isinstance(value, list | dict) else value


KEYS = {
    "env": "a task or a list of tasks",
    "preset": "a preset or a list of presets",
    "seeds": "a list of whole numbers",
    "episodes": "a whole number",
    "set": "a table of settings, each a value or a list of values",
}


def read_sweep(path: Path) -> Sweep:
    """A sweep from a TOML file."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not a TOML file: {error}.") from error
    for name in content:
        if name not in KEYS:
            raise UserError(
                f"{path} has an unknown key {name!r}.{nearest(name, KEYS)} "
                f"It may have {', '.join(KEYS)}; settings of runs and presets go under [set]."
            )

    def expect(good: object, key: str, value: Any) -> None:
        if not good:
            raise UserError(f"{path}: {key} must be {KEYS[key]}, not {value!r}.")

    given: dict[str, Any] = {}
    for key, kind in (("env", str), ("preset", str), ("seeds", int)):
        if key in content:
            value = content[key]
            items = [fitted(item, kind) for item in (value if isinstance(value, list) else [value])]
            expect(items and all(type(item) is kind for item in items), key, value)
            given[key] = tuple(items)
    if "episodes" in content:
        given["episodes"] = fitted(content["episodes"], int)
        expect(type(given["episodes"]) is int, "episodes", content["episodes"])
    table = content.get("set", {})
    flat = isinstance(table, dict) and not any(isinstance(v, dict) for v in table.values())
    expect(flat, "set", table)
    tuples = _tuple_settings(given.get("preset", Sweep.preset))
    given["settings"] = {name: _values(value, name in tuples) for name, value in table.items()}
    for name, values in given["settings"].items():
        expect(all(map(_is_plain, values)), "set", {name: table[name]})
    return Sweep(**given)


def _is_plain(value: Any) -> bool:
    items = value if isinstance(value, tuple) else (value,)
    return all(isinstance(item, str | int | float) for item in items)


def _values(value: Any, is_tuple: bool) -> tuple[Any, ...]:
    """The values a setting takes: a list is an axis, unless the setting is itself a list."""
    if not isinstance(value, list):
        return (value,)
    if is_tuple and not all(isinstance(item, list) for item in value):
        return (tuple(value),)
    return tuple(tuple(item) if isinstance(item, list) else item for item in value)


def _tuple_settings(presets: Sequence[str]) -> set[str]:
    kinds: list[Any] = [Settings, *(type(preset(name)) for name in presets)]
    hints = [item for kind in kinds for item in get_type_hints(kind).items()]
    return {name for name, hint in hints if get_origin(hint) is tuple}


# --- what is there already --------------------------------------------------------------------


def is_there(wanted: Job) -> bool:
    """Whether the directory holds the wanted run; a message if it holds another one."""
    run = Run(wanted.directory)
    if not run.config_path.exists():
        return False
    _check_same(wanted, run)
    return True


def is_recorded(wanted: Job) -> bool:
    """Whether the wanted run has its record; a message if that is damaged or another run's."""
    record = wanted.record
    if record is None or not record.path.exists():
        return False
    _check_same(wanted, record)
    judged = (record.evaluation() or {}).get("episodes")
    if judged != wanted.episodes:
        raise UserError(
            f"{record.path} judges the policy by {judged} episodes instead of {wanted.episodes}. "
            "Move it, or ask for as many."
        )
    return True


def _check_same(wanted: Job, run: Evidence) -> None:
    settings, algorithm, name = parse_config(run.config())
    found = {"preset": name, **vars(settings), **vars(algorithm)}
    asked = {"preset": wanted.preset, **vars(wanted.settings), **vars(wanted.algorithm)}
    if wanted.settings.loop is None:
        # The environment decided.
        asked["loop"] = settings.loop
    other = [key for key in asked if found.get(key) != asked[key]]
    if other:
        each = (f"{key} is {found.get(key)!r} instead of {asked[key]!r}" for key in other)
        listed = ", ".join(each)
        raise UserError(f"{run.place} holds another run: {listed}. Choose another directory.")
