"""Films of a policy in its task: the task's own picture above what the episode earned and cost.

A red border and a badge mark the steps that had a cost (those above the speed limit, where every
speed costs). Where a task cannot draw itself, the numbers are shown alone.
"""

import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import imageio_ffmpeg
import numpy as np
from jaxtyping import Bool, Float, UInt8
from PIL import Image, ImageDraw, ImageFont

from algd import envs
from algd.envs.adapters import CostReport, checked_actions
from algd.evaluation.acting import finite
from algd.evaluation.episodes import in_budget_unit
from algd.evaluation.policy import load
from algd.runs.checkpoint import Which
from algd.runs.config import NOTHING_MORE, Given, parse_options, with_environment
from algd.types import EnvSpec, UserError

FORMATS = ("mp4", "gif")

# Video codecs want sides that are multiples of 16.
BLOCK = 16
WIDTH, BORDER = 416, 8
PICTURE = WIDTH - 2 * BORDER
HEADER, STRIP = 32, 80
# Lines and letters are drawn larger and scaled down, for smooth edges.
FINE = 2

INK, FAINT, PAPER = "#2b2b33", "#d8d8d4", "#ffffff"
COST, ALARM = "#1f6f8b", "#c8321e"

Picture = UInt8[np.ndarray, "height width 3"]
Frame = UInt8[np.ndarray, "height width 3"]


class Moment(NamedTuple):
    """An episode up to one step: its picture, and what has been earned and spent so far.

    `spent` is the running cost as each budget counts it; `unsafe` marks the steps with a cost.
    """

    picture: Picture | None
    episode: int
    total_return: float
    spent: Float[np.ndarray, "steps constraints"]
    unsafe: Bool[np.ndarray, "steps constraints"]
    margins: Float[np.ndarray, "steps constraints"]

    @property
    def step(self) -> int:
        """Steps taken."""
        return len(self.spent)


@dataclass(frozen=True)
class Stage:
    """One copy of a task, ready to be filmed; `note` says why it cannot draw itself."""

    env: gymnasium.Env
    spec: EnvSpec
    draws: bool
    note: str

    @property
    def frames_per_second(self) -> int:
        """The rate at which a film runs in real time, as far as the task tells."""
        return max(1, round(self.env.metadata.get("render_fps") or 30))

    @property
    def speed_limit(self) -> float | None:
        """Of a velocity task."""
        return getattr(self.env.unwrapped, "speed_limit", None)


class Film(NamedTuple):
    """Frames as they are made, at most `length` of them; `standing` says which checkpoint acts."""

    frames: Iterator[Frame]
    length: int
    frames_per_second: int
    note: str
    standing: str


def film(
    directory: Path,
    episodes: int = 1,
    seed: int = 12345,
    sampled: bool = False,
    every: int = 1,
    most: int | None = None,
    given: Given = NOTHING_MORE,
    trust: bool = False,
    checkpoint: Which = "last",
) -> Film:
    """Film the policy of a run, every n-th step of it.

    With `most`, steps are left out as needed to keep an episode within so many frames. `given` says
    where the run's environment is found, or is it; a module that only the run's own files name is
    imported if they are to be trusted.
    """
    policy = load(directory, checkpoint, seed=seed)
    assert policy.source is not None
    settings, given = with_environment(policy.source.config, given, trust)
    given = given._replace(env=settings.env if given.env is None else given.env)
    stage = open_stage(given, parse_options(settings.env_options), policy.spec)
    if most is not None:
        every = max(every, -(-policy.spec.horizon // most))
    act = lambda obs: policy.predict(obs, deterministic=not sampled)  # noqa: E731
    moments = play(act, stage, episodes, seed, policy.algorithm.cost_discount, every)
    rate = stage.frames_per_second

    def frames() -> Iterator[Frame]:
        try:
            for moment, last in moments:
                drawn = draw(moment, stage, every, episodes)
                # A second to read the result.
                yield from [drawn] * (rate if last else 1)
        finally:
            stage.env.close()

    length = episodes * (-(-policy.spec.horizon // every) + 1 + rate)
    return Film(frames(), length, rate, stage.note, policy.standing)


# --- the episode ------------------------------------------------------------------------------


def open_stage(given: Given, options: dict[str, Any], spec: EnvSpec) -> Stage:
    """Make one copy of the task, with pictures if it has any."""
    assert given.env is not None
    name = envs.name_of(given.env)
    if not os.environ.get("DISPLAY"):
        # MuJoCo's pictures need no display, if it is told so before the first one.
        os.environ.setdefault("MUJOCO_GL", "egl")
    env, note = None, ""
    try:
        env = _make(given.env, {**options, "render_mode": "rgb_array"})
        env.reset(seed=0)
        picture = env.render()
        if not _is_picture(picture):
            note = f"{name} has no pictures (its render gives {type(picture).__name__})"
    except Exception as error:
        # Whatever a foreign renderer or a missing OpenGL raises: the numbers can still be shown.
        why = f"{type(error).__name__}: {error}"
        if env is None and isinstance(error, TypeError):
            why = f'it cannot be made with render_mode="rgb_array": {error}'
        note = f"{name} cannot draw itself here ({why})"
    if note:
        if env is not None:
            env.close()
        try:
            env = _make(given.env, options)
        except (ImportError, TypeError, ValueError, gymnasium.error.Error) as error:
            raise UserError(f"{name} could not be made: {error}") from error
    assert env is not None
    bare: Any = env.unwrapped
    if hasattr(bare, "budgets"):
        # A budget of the user's moves a speed limit.
        bare.budgets = spec.budgets
    report = CostReport(env, name, spec.budgets, spec.horizon, given.cost_function)
    return Stage(report, spec, not note, note)


def _make(env: envs.EnvLike, options: dict[str, Any]) -> gymnasium.Env:
    with warnings.catch_warnings():
        # Gymnasium warns of a render mode that is not announced; we look at what comes out.
        warnings.simplefilter("ignore")
        return envs.make_one(env, options)


def _is_picture(value: Any) -> bool:
    return (
        isinstance(value, np.ndarray)
        and value.dtype == np.uint8
        and value.ndim == 3
        and value.shape[2] == 3
    )


def play(
    act: Callable[[np.ndarray], np.ndarray],
    stage: Stage,
    episodes: int,
    seed: int,
    discount: float,
    every: int,
) -> Iterator[tuple[Moment, bool]]:
    """The shown moments of whole episodes, and whether each is its episode's last."""
    env, spec = stage.env, stage.spec
    box: Any = env.action_space
    for episode in range(episodes):
        obs, _ = env.reset(seed=seed if episode == 0 else None)
        total, plain, discounted = 0.0, np.zeros(len(spec.budgets)), np.zeros(len(spec.budgets))
        spent: list[np.ndarray] = []
        margins: list[np.ndarray] = []
        ended = False

        def moment() -> Moment:
            shape = (-1, len(spec.budgets))
            over = np.array(margins, float).reshape(shape)  # noqa: B023
            picture: Any = env.render() if stage.draws else None
            running = np.array(spent, float).reshape(shape)  # noqa: B023
            return Moment(picture, episode, total, running, over > 0.0, over)  # noqa: B023

        yield moment(), False
        while not ended:
            seen = np.nan_to_num(np.asarray(obs, np.float32), posinf=0.0, neginf=0.0)
            action = finite(act(seen))
            action = checked_actions(action.reshape(box.shape), box.low, box.high)
            obs, reward, terminated, truncated, info = env.step(action)
            discounted = discounted + discount ** len(spent) * info["cost"]
            plain, total = plain + info["cost"], total + float(reward)
            spent.append(in_budget_unit(plain, discounted, spec))
            margins.append(info.get("margin", np.where(info["cost"] > 0.0, 1.0, -1.0)))
            ended = terminated or truncated
            if ended or len(spent) % every == 0:
                yield moment(), ended


# --- the frame --------------------------------------------------------------------------------


def draw(moment: Moment, stage: Stage, every: int = 1, episodes: int = 1) -> Frame:
    """The picture with its border, and below it a strip for each budget and for the speed."""
    budgets, limit = stage.spec.budgets, stage.speed_limit
    alarm = bool(moment.unsafe[-every:].any())
    strips = len(budgets) + (limit is not None)
    shown = None if moment.picture is None else _fitted(moment.picture)
    above = 0 if shown is None else shown.height + 2 * BORDER
    height = -(-(above + HEADER + strips * STRIP) // BLOCK) * BLOCK
    frame = Image.new("RGB", (WIDTH, height), PAPER)
    pen = ImageDraw.Draw(frame)
    if shown is not None:
        pen.rectangle((0, 0, WIDTH, above - 1), fill=ALARM if alarm else FAINT)
        pen.rectangle((BORDER, BORDER, WIDTH - BORDER - 1, above - BORDER - 1), fill=PAPER)
        frame.paste(shown, ((WIDTH - shown.width) // 2, BORDER))
    frame.paste(_numbers(moment, stage, alarm, height - above, episodes), (0, above))
    return np.asarray(frame)


def _fitted(picture: Picture) -> Image.Image:
    """Scaled to the width of the frame, or to be no higher than wide."""
    image = Image.fromarray(picture)
    scale = PICTURE / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return image if image.size == size else image.resize(size, Image.Resampling.LANCZOS)


def _numbers(moment: Moment, stage: Stage, alarm: bool, height: int, episodes: int) -> Image.Image:
    """The lower part of a frame."""
    panel = Image.new("RGB", (FINE * WIDTH, FINE * height), PAPER)
    pen = ImageDraw.Draw(panel)
    spec = stage.spec
    count = f"   episode {moment.episode + 1} of {episodes}" if episodes > 1 else ""
    _text(pen, BORDER, 8, f"step {moment.step} of {spec.horizon}{count}")
    _text(pen, WIDTH - BORDER, 8, f"return {moment.total_return:.2f}", anchor="ra")
    if alarm:
        centre = WIDTH // 2 + (20 if episodes > 1 else 0)
        place = (FINE * (centre - 24), FINE * 5, FINE * (centre + 24), FINE * 27)
        pen.rounded_rectangle(place, FINE * 5, fill=ALARM)
        _text(pen, centre, 8, "cost", PAPER, anchor="ma")
    top = HEADER
    for i, budget in enumerate(spec.budgets):
        values = moment.spent[:, i]
        spent = values[-1] if len(values) else 0.0
        over = spent > budget.limit
        kind = "discounted cost" if budget.discounted else "cost"
        name = f" ({budget.name})" if len(spec.budgets) > 1 else ""
        text = f"{kind}{name} {spent:.4g} of {budget.limit:g}{', over the budget' if over else ''}"
        color = ALARM if over else COST
        _strip(pen, top, text, values, budget.limit, spec.horizon, moment.unsafe[:, i], color)
        top += STRIP
    limit = stage.speed_limit
    if limit is not None:
        speeds = moment.margins[:, 0] + limit
        now = speeds[-1] if len(speeds) else 0.0
        text = f"speed {now:.2f}, limit {limit:.2f}"
        _strip(pen, top, text, speeds, limit, spec.horizon, moment.unsafe[:, 0], INK)
    return panel.resize((WIDTH, height), Image.Resampling.BOX)


def _strip(
    pen: ImageDraw.ImageDraw,
    top: int,
    text: str,
    values: Float[np.ndarray, " steps"],
    limit: float,
    horizon: int,
    unsafe: Bool[np.ndarray, " steps"],
    color: str,
) -> None:
    """A line over the steps of the episode, its limit dashed, unsafe steps ticked below."""
    left, right, high, low = BORDER, WIDTH - BORDER, top + 20, top + STRIP - 12
    _text(pen, left, top, text, color if color == ALARM else INK)
    values = np.nan_to_num(values)
    floor = min(0.0, values.min(initial=0.0))
    ceiling = max(1.25 * limit, values.max(initial=0.0) * 1.05, floor + 1e-9)

    def at(step: float | int, value: float) -> tuple[float, float]:
        x = left + (right - left) * step / horizon
        return FINE * x, FINE * (low - (low - high) * (value - floor) / (ceiling - floor))

    pen.line([at(0, floor), at(horizon, floor)], fill=FAINT, width=FINE)
    for start in range(0, 60, 2):
        ends = [at(horizon * k / 60, limit) for k in (start, start + 1)]
        pen.line(ends, fill=INK, width=FINE)
    for step in np.flatnonzero(unsafe) + 1:
        x, y = at(int(step), floor)
        pen.line([(x, y + 2 * FINE), (x, y + 7 * FINE)], fill=ALARM, width=FINE)
    if len(values):
        points = [at(step, value) for step, value in enumerate(values.tolist(), 1)]
        pen.line(points, fill=color, width=2 * FINE, joint="curve")
        x, y = points[-1]
        pen.ellipse((x - 3 * FINE, y - 3 * FINE, x + 3 * FINE, y + 3 * FINE), fill=color)


def _text(
    pen: ImageDraw.ImageDraw, x: int, y: int, text: str, color: str = INK, anchor: str = "la"
) -> None:
    font = ImageFont.load_default(14 * FINE)
    pen.text((FINE * x, FINE * y), text, fill=color, font=font, anchor=anchor)


# --- the file ---------------------------------------------------------------------------------


def write_film(frames: Iterable[Frame], path: Path, frames_per_second: int) -> None:
    """Encode as .mp4 (H.264) or .gif; the file is whole or not there."""
    part = path.with_name(f"{path.stem}.part{path.suffix}")
    writer: Any = None
    try:
        for frame in frames:
            if writer is None:
                writer = _writer(part, frame, frames_per_second)
                with warnings.catch_warnings():
                    # JAX warns of any fork; this one becomes ffmpeg at once.
                    warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
                    writer.send(None)
            writer.send(np.ascontiguousarray(frame))
        if writer is not None:
            writer.close()
            os.replace(part, path)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error}.") from error
    finally:
        if writer is not None:
            writer.close()
        part.unlink(missing_ok=True)


def _writer(path: Path, first: Frame, frames_per_second: int) -> Any:
    size = (first.shape[1], first.shape[0])
    options = {"codec": "libx264", "macro_block_size": BLOCK}
    output = ["-movflags", "+faststart"]
    if path.suffix.lower() == ".gif":
        palette = "split[a][b];[a]palettegen=max_colors=128[p];[b][p]paletteuse=dither=none"
        options = {"codec": "gif", "macro_block_size": 1, "pix_fmt_out": "pal8"}
        output = ["-filter_complex", palette]
    shared = {"fps": frames_per_second, "ffmpeg_log_level": "error", "output_params": output}
    return imageio_ffmpeg.write_frames(path, size, **shared, **options)
