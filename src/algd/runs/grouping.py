"""Runs and records as they come from the command line, sorted by task and by what was trained."""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from algd.algorithms import preset
from algd.runs.config import check_config, hyperparameters
from algd.runs.directory import Run
from algd.runs.record import PATTERN, Evidence, Record
from algd.types import UserError

# How a run is watched and kept, not what is trained.
ASIDE = {"seed", "eval_every", "eval_episodes", "log_every", "checkpoint_every"}
# A directory with one of these is meant to be a run, even if the rest of it is lost.
PARTS = ("config.json", "metrics.jsonl", "checkpoints")

Groups = dict[str, list[Evidence]]
"""Runs that differ in their seeds only, under a label that tells them from the other groups."""


class Gathered(NamedTuple):
    """The groups of each task, and a sentence for each input that is left out."""

    tasks: dict[str, Groups]
    complaints: list[str]


def gather(paths: Sequence[Path], unfinished: bool = False) -> Gathered:
    """The runs at these places, each a run, a record, or a directory with some at any depth.

    Runs that are damaged, foreign, given twice or, unless `unfinished`, not at their last step are
    left out; so is, without a word, the record of a run that is there itself.
    """
    found: dict[Path, tuple[Evidence, dict[str, Any]]] = {}
    identities: dict[str, tuple[Evidence, dict[str, Any]]] = {}
    complaints: list[str] = []
    everything = [one for path in paths for one in list(evidence_in(path)) or [_evidence_at(path)]]
    # Of two alike the one that is further stands for both, and a run before its record.
    for one in sorted(everything, key=lambda one: (isinstance(one, Record), -_reached(one))):
        if one.place.resolve() in found:
            continue
        try:
            config = _checked_config(one, unfinished)
            first, other = identities.setdefault(_identity(config), (one, config))
            if first == one:
                found[one.place.resolve()] = one, config
            elif not isinstance(one, Record) or other["id"] != config["id"]:
                raise UserError(f"{one.place} has the settings and the seed of {first.place}.")
        except UserError as error:
            complaints.append(str(error))
    return Gathered(_by_task(list(found.values())), complaints)


def differing_settings(configs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each of these configurations, its settings that not all of them share."""
    flat = [training_settings(config) for config in configs]
    names = list(dict.fromkeys(name for settings in flat for name in settings))
    missing = object()
    differ = [n for n in names if any(s.get(n, missing) != flat[0].get(n, missing) for s in flat)]
    return [{name: s[name] for name in differ if name in s} for s in flat]


def training_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting that makes a difference to what is learned, except the seed."""
    settings = {k: v for k, v in config["settings"].items() if k not in ASIDE}
    # Without a budget of the user's the task's own counts, which the settings do not name.
    budget = [budget["limit"] for budget in config["budgets"]]
    return {**settings, "budget": budget, **_own_defaults(config), **hyperparameters(config)}


def _own_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """What options that are younger than the run were before there was a choice."""
    try:
        fields = dataclasses.fields(type(preset(str(config["preset"]))))
    except UserError:
        return {}
    return {f.name: list(f.default) if isinstance(f.default, tuple) else f.default for f in fields}


def task_of(config: Mapping[str, Any]) -> str:
    """The environment with its options: runs on different ones are never compared."""
    settings = config["settings"]
    return " ".join([settings["env"], *settings["env_options"]])


def evidence_in(path: Path) -> Iterator[Evidence]:
    """Runs and records at any depth below; what lies inside a run is its own. Links are followed
    once."""
    seen: set[Path] = set()
    todo = [path]
    while todo:
        here = todo.pop()
        if not here.is_dir() or here.resolve() in seen:
            continue
        seen.add(here.resolve())
        if any((here / part).exists() for part in PARTS):
            yield Run(here)
        else:
            yield from map(Record, sorted(here.glob(PATTERN)))
            todo.extend(sorted(here.iterdir(), reverse=True))


def _reached(run: Evidence) -> int:
    """The step of its last evaluation; -1 where none can be read."""
    try:
        return max((row["step"] for row in run.rows("eval")), default=-1)
    except (UserError, LookupError, TypeError):
        return -1


def _evidence_at(path: Path) -> Evidence:
    return Record(path) if path.is_file() else Run(path)


def _checked_config(run: Evidence, unfinished: bool) -> dict[str, Any]:
    """The settings of a run with something to show, or a message that says what it lacks."""
    config = run.config()
    try:
        steps = check_config(config).steps
    except UserError as error:
        file = run.config_path if isinstance(run, Run) else run.place
        raise UserError(f"{file}: {error}") from error
    last = max((row["step"] for row in run.rows("eval")), default=None)
    if last is None:
        raise UserError(f"{run.place} has no evaluation yet.")
    if last < steps and not unfinished:
        raise UserError(
            f"{run.place} is unfinished: its last evaluation is that of step {last:,} of {steps:,}."
        )
    return config


def _identity(config: Mapping[str, Any], seed: bool = True) -> str:
    """Equal for runs that train the same; with `seed` only for the same run twice."""
    number = config["settings"]["seed"] if seed else None
    return json.dumps([config["preset"], training_settings(config), number], sort_keys=True)


def _tasks_of(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The task of each; where one is trained on under several budgets, each is a task of its own:
    what keeps one budget may break another."""
    names = [task_of(config) for config in configs]
    limits = [[budget["limit"] for budget in config["budgets"]] for config in configs]
    several = {
        name
        for name, own in zip(names, limits, strict=True)
        if any(other != own for n, other in zip(names, limits, strict=True) if n == name)
    }
    return [
        f"{name}, budget {', '.join(f'{x:g}' for x in own)}" if name in several else name
        for name, own in zip(names, limits, strict=True)
    ]


def _by_task(found: Sequence[tuple[Evidence, dict[str, Any]]]) -> dict[str, Groups]:
    same: dict[str, list[tuple[Evidence, dict[str, Any]]]] = {}
    for run, config in found:
        same.setdefault(_identity(config, seed=False), []).append((run, config))
    tasks: dict[str, Groups] = {}
    firsts = [members[0][1] for members in same.values()]
    named = _tasks_of(firsts)
    for members, task in zip(same.values(), named, strict=True):
        config = members[0][1]
        # The settings go into the label where the preset's name is not enough.
        rivals = [
            other
            for other, its_task in zip(firsts, named, strict=True)
            if (its_task, other["preset"]) == (task, config["preset"])
        ]
        own = differing_settings(rivals)[rivals.index(config)]
        label = ", ".join([config["preset"], *(f"{k} {_shown(v)}" for k, v in own.items())])
        ordered = sorted(members, key=lambda member: member[1]["settings"]["seed"])
        tasks.setdefault(task, {})[label] = [run for run, _ in ordered]
    return dict(sorted((task, dict(sorted(groups.items()))) for task, groups in tasks.items()))


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
