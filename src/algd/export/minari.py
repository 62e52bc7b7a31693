"""A run's replay buffer as a Minari dataset, for offline safe reinforcement learning."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.envs.registration import EnvSpec
from jaxtyping import Float, Int

from algd import envs
from algd.runs.checkpoint import newest_checkpoint, read_pieces
from algd.runs.config import (
    Given,
    Settings,
    kept_transitions,
    parse_config,
    parse_options,
    spec_of,
    with_environment,
)
from algd.runs.directory import Run
from algd.runs.files import DamagedFile
from algd.types import ReplayOptions, UserError

Rows = dict[str, np.ndarray]


def stored_transitions(run: Run) -> tuple[Rows, int, int]:
    """What the newest checkpoint's buffer holds, oldest first; the number of the first transition
    among all that were ever stored; and how many steps were dropped."""
    settings, algorithm, name = parse_config(run.config())
    kept = kept_transitions(settings, algorithm)
    if not isinstance(algorithm, ReplayOptions):
        raise UserError(
            f"{run.directory} was trained with {name}, which keeps no replay buffer: "
            "there are no transitions to write."
        )
    held, _ = newest_checkpoint(run)
    try:
        rows, first = read_pieces(run, held.stored, kept)
    except DamagedFile as error:
        raise UserError(f"The replay buffer cannot be read: {error}.") from error
    if not rows:
        raise UserError(f"{run.directory} has stored no transitions yet.")
    return rows, first, int(held.statistics["dropped"])


def episodes_of(rows: Rows, first: int, envs: int, dropped: int) -> list[Int[np.ndarray, " steps"]]:
    """The rows of each episode in their order.

    The copies' steps are stored in turn: transition i is of copy i mod envs. Where steps were
    dropped that is lost, and each step is found by where it starts: at the end of another one.
    """
    ends = rows["terminated"] | rows["truncated"]
    if dropped:
        return _linked(rows["obs"], rows["next_obs"], ends)
    numbers = np.arange(len(ends))
    found = []
    for copy in range(envs):
        own = numbers[(numbers + first) % envs == copy]
        # A resumed run may go on with a fresh episode where the old one had not ended.
        follows = (rows["next_obs"][own[:-1]] == rows["obs"][own[1:]]).all(axis=1)
        cuts = np.flatnonzero(ends[own[:-1]] | ~follows) + 1
        found += [part for part in np.split(own, cuts) if len(part)]
    return sorted(found, key=lambda part: int(part[0]))


def _linked(
    obs: Float[np.ndarray, "rows obs"], next_obs: Float[np.ndarray, "rows obs"], ends: np.ndarray
) -> list[np.ndarray]:
    found: list[list[int]] = []
    running: dict[bytes, list[int]] = {}
    for i in range(len(ends)):
        episode = running.pop(obs[i].tobytes(), None)
        if episode is None:
            episode = []
            found.append(episode)
        episode.append(i)
        if not ends[i]:
            running[next_obs[i].tobytes()] = episode
    return [np.array(episode) for episode in found]


def write_dataset(
    run: Run, directory: Path, env: str | None = None, trust: bool = False
) -> tuple[str, int, int]:
    """Write the dataset below a root of datasets; its name, its episodes and its steps.

    Minari can recover an environment that is registered, or made known by `env` or by `trust`.
    An episode that the buffer's end or a dropped step cuts is marked as truncated there; one whose
    beginning the buffer has forgotten begins in its middle.
    """
    try:
        import minari
        from gymnasium.spaces import Box
        from minari.data_collector import EpisodeBuffer
    except ImportError as error:
        raise UserError("Minari is an extra package: pip install 'algd[data]'") from error
    if directory.exists() and not directory.is_dir():
        raise UserError(f"{directory} is a file, not a directory.")
    settings, _, preset = parse_config(run.config())
    if env is not None or trust:
        settings, _ = with_environment(run.config(), Given(env), trust)
        envs.find(settings.env)
    rows, first, dropped = stored_transitions(run)
    names = [budget["name"] for budget in run.config()["budgets"]]
    episodes = episodes_of(rows, first, settings.envs, dropped)
    buffers: list[Any] = []
    for number, own in enumerate(episodes):
        part = {name: values[own] for name, values in rows.items()}
        truncated = part["truncated"].copy()
        truncated[-1] |= not part["terminated"][-1]
        buffers.append(
            EpisodeBuffer(
                id=number,
                observations=np.concatenate([part["obs"], part["next_obs"][-1:]]),  # pyright: ignore[reportArgumentType]
                actions=part["action"],  # pyright: ignore[reportArgumentType]
                rewards=part["reward"],  # pyright: ignore[reportArgumentType]
                terminations=part["terminated"],  # pyright: ignore[reportArgumentType]
                truncations=truncated,  # pyright: ignore[reportArgumentType]
                infos=_infos(part, names),
            )
        )
    spec = spec_of(run.config())
    low, high = np.array([spec.action_low, spec.action_high], np.float32)
    stem = f"{''.join(c if c.isalnum() else '-' for c in settings.env)}/{preset}"
    name = next(n for i in count() if not (directory / (n := f"{stem}-v{i}")).exists())
    with _minari_root(directory), warnings.catch_warnings():
        # Minari misses an author and an environment to evaluate on besides.
        warnings.simplefilter("ignore", UserWarning)
        minari.create_dataset_from_buffers(
            name,
            buffers,
            env=recoverable(settings),
            action_space=Box(low, high, dtype=np.float32),
            observation_space=Box(-np.inf, np.inf, rows["obs"].shape[1:], np.float32),
            algorithm_name=preset,
            description=(
                f"Replay buffer of {preset} on {settings.env}; infos/cost has one number for each "
                f"of the constraints {', '.join(names)}."
            ),
        )
    return name, len(episodes), len(rows["reward"])


def recoverable(settings: Settings) -> EnvSpec | None:
    """The run's environment as Minari can write it down, if it is known and has a name."""
    spec = envs.registered(settings.env)
    if spec is None or callable(spec.entry_point):
        return None
    return replace(spec, kwargs={**spec.kwargs, **parse_options(settings.env_options)})


def _infos(part: Rows, names: list[str]) -> dict[str, np.ndarray]:
    """Costs by step, all of them and by name; `goal_met` and `margin` beside them.

    Minari's infos begin with that of the reset, which costs nothing.
    """
    infos = {"cost": part["cost"], "margin": part["margin"], "goal_met": part["goal_met"]}
    if len(names) > 1:
        infos |= {f"cost_{name}": part["cost"][:, i] for i, name in enumerate(names)}
    return {key: np.concatenate([np.zeros_like(x[:1]), x]) for key, x in infos.items()}


@contextmanager
def _minari_root(directory: Path) -> Iterator[None]:
    """Let Minari write below this directory and not in the user's home."""
    variable = "MINARI_DATASETS_PATH"
    before = os.environ.get(variable)
    os.environ[variable] = str(directory.absolute())
    try:
        yield
    except OSError as error:
        raise UserError(f"Cannot write to {directory}: {error.strerror}.") from error
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before
