"""One page about a set of runs, in a single file that asks nothing of the network."""

import base64
import html
import io
import json
import math
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from algd.evaluation.stats import Interval, bootstrap_interval, run_figures
from algd.runs.directory import Run
from algd.runs.grouping import Groups, differing_settings, training_settings
from algd.types import Budget, UserError
from algd.visualization.curves import Panel, budgets_of, panel_svg, panels_of, seeds_text, styles_of
from algd.visualization.video import film, write_film

# Of one episode: enough to follow it, and small enough to send the page by mail.
FRAMES = 250
# The page itself forbids what it promises not to do.
POLICY = "default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'"


class Page(NamedTuple):
    """The text of a page, and what could not be put on it."""

    text: str
    complaints: list[str]


class Row(NamedTuple):
    """The figures of one run."""

    run: Run
    seed: int
    figures: dict[str, float]
    seconds: float


def build(
    tasks: Mapping[str, Groups],
    complaints: Sequence[str] = (),
    episodes: int = 1,
    report: Callable[[str], None] = lambda what: None,
) -> Page:
    """The page; `report` hears of each figure and film begun, without films if 0 `episodes`."""
    styles = styles_of(tasks)
    notes = list(complaints)
    sections = []
    for task, groups in tasks.items():
        rows = {label: [row_of(run) for run in runs] for label, runs in groups.items()}
        budgets = [Budget(**budget) for budget in budgets_of(groups)]
        alt = said(rows, budgets)
        parts = [f'<h2 id="{anchor(task)}">{html.escape(task)}</h2>', introduction(groups, budgets)]
        parts.append(summary(rows, budgets))
        figures = []
        for panel in panels_of("all", groups):
            report(f"{task}: {panel.name}")
            figures.append(figure(panel, panel_svg(panel, groups, styles), f"{task}. {alt}"))
        parts.append(f'<div class="figures">{"".join(figures)}</div>')
        films = []
        for label, members in rows.items() if episodes else ():
            report(f"{task}: film of {label}")
            chosen = middle(members)
            try:
                films.append(film_figure(chosen, label, episodes))
            except UserError as error:
                notes.append(f"No film of {label} on {task}: {error}")
        if films:
            parts.append(f'<h3>Films</h3><div class="films">{"".join(films)}</div>')
        parts += details(groups, rows, budgets)
        sections.append(f"<section>{''.join(parts)}</section>")
    return Page(page(tasks, sections, notes), notes)


# --- numbers ----------------------------------------------------------------------------------


def row_of(run: Run) -> Row:
    """The figures of a run at its last evaluation."""
    config = run.config()
    figures = run_figures(run.rows(), [Budget(**budget) for budget in config["budgets"]])
    return Row(run, config["settings"]["seed"], figures, wall_seconds(run))


def wall_seconds(run: Run) -> float:
    """Time of training, from its last measured speed; NaN if none was written down."""
    try:
        row = json.loads(run.timing_path.read_text().splitlines()[-1])
        return float(row["step"] / row["steps_per_second"])
    except (OSError, ValueError, LookupError, TypeError, ZeroDivisionError):
        return math.nan


def middle(rows: Sequence[Row]) -> Row:
    """The run of the median return: neither the luckiest nor the worst."""
    ordered = sorted(rows, key=lambda row: row.figures["return"])
    return ordered[(len(ordered) - 1) // 2]


def ends(budgets: Sequence[Budget]) -> list[str]:
    """What stands behind the name of each constraint's figures."""
    return [f"/{budget.name}" for budget in budgets] if len(budgets) > 1 else [""]


def number(value: float) -> str:
    """Four digits, or a dash for what is not known."""
    if math.isnan(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def duration(seconds: float) -> str:
    """As people say it."""
    if math.isnan(seconds):
        return "–"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def with_interval(values: Sequence[float]) -> str:
    """The mean, and below it the interval of the mean."""
    sample = np.array(values, float)
    interval: Interval = bootstrap_interval(sample)
    shown = number(float(sample.mean()))
    if np.isnan(interval.low):
        return shown
    return f"{shown}<small>{number(interval.low)} to {number(interval.high)}</small>"


# --- parts of the page ------------------------------------------------------------------------


def introduction(groups: Groups, budgets: Sequence[Budget]) -> str:
    """What the task allows and what the numbers mean."""
    config = next(iter(groups.values()))[0].config()
    allowed = ", ".join(
        f"{number(b.limit)} of {b.name}" if len(budgets) > 1 else number(b.limit) for b in budgets
    )
    kind = " (discounted)" if any(b.discounted for b in budgets) else ""
    return (
        f"<p>An episode of {config['horizon']:,} steps may cost {html.escape(allowed)}{kind}. "
        f"Figures show {seeds_text(groups)}; tables the last evaluation, of "
        f"{config['settings']['eval_episodes']} episodes a seed.</p>"
    )


def summary(rows: Mapping[str, Sequence[Row]], budgets: Sequence[Budget]) -> str:
    """A line for each group: means and intervals over its seeds."""
    names = [f", {b.name}" if len(budgets) > 1 else "" for b in budgets]
    columns = ["", "seeds", "return"]
    columns += [f"{what}{name}" for name in names for what in ("cost", "episodes over budget")]
    columns += [f"training cost{name}" for name in names] + ["wall time"]
    lines = []
    for label, members in rows.items():
        of = lambda name, members=members: [row.figures[name] for row in members]  # noqa: E731
        cells = [html.escape(label), str(len(members)), with_interval(of("return"))]
        for budget, end in zip(budgets, ends(budgets), strict=True):
            over = float(np.mean(of(f"cost{end}"))) > budget.limit
            word = '<small class="over">over' if over else '<small class="within">within'
            cells.append(f"{with_interval(of(f'cost{end}'))}{word} {number(budget.limit)}</small>")
            cells.append(f"{np.mean(of(f'episodes_over_budget{end}')):.0%}")
        cells += [with_interval(of(f"training_cost{end}")) for end in ends(budgets)]
        cells.append(duration(float(np.mean([row.seconds for row in members]))))
        lines.append(cells)
    return table("Mean over seeds, with its 95 % bootstrap interval below", columns, lines)


def details(
    groups: Groups, rows: Mapping[str, Sequence[Row]], budgets: Sequence[Budget]
) -> list[str]:
    """Each group's settings and seeds."""
    configs = [runs[0].config() for runs in groups.values()]
    parts = []
    for (label, members), config, own in zip(
        rows.items(), configs, differing_settings(configs), strict=True
    ):
        parts.append(f"<h3>{html.escape(label)}</h3>")
        if own:
            parts.append(f'<p class="soft">Settings in which the groups differ</p>{listing(own)}')
        columns = ["seed", "return"]
        columns += [f"cost{end.replace('/', ', ')}" for end in ends(budgets)]
        columns += [f"training cost{end.replace('/', ', ')}" for end in ends(budgets)]
        lines = [
            [
                str(row.seed),
                number(row.figures["return"]),
                *(number(row.figures[f"cost{end}"]) for end in ends(budgets)),
                *(number(row.figures[f"training_cost{end}"]) for end in ends(budgets)),
                duration(row.seconds),
                html.escape(row.run.directory.name),
            ]
            for row in members
        ]
        seeds = table("Last evaluation of each seed", [*columns, "wall time", "run"], lines)
        settings = listing({"preset": config["preset"], **training_settings(config)})
        versions = listing({k: v for k, v in config["versions"].items()})
        parts += [fold("Seeds", seeds), fold("All settings", settings + versions)]
    return parts


def said(rows: Mapping[str, Sequence[Row]], budgets: Sequence[Budget]) -> str:
    """The outcome in words, for those who do not see the figures."""
    sentences = []
    for label, members in rows.items():
        mean = lambda name, members=members: float(  # noqa: E731
            np.mean([row.figures[name] for row in members])
        )
        costs = ", ".join(
            f"{b.name} {number(mean(f'cost{end}'))} (budget {number(b.limit)})"
            for b, end in zip(budgets, ends(budgets), strict=True)
        )
        sentences.append(f"{label} ends with return {number(mean('return'))}, {costs}")
    return "; ".join(sentences) + "."


def figure(panel: Panel, picture: bytes, alt: str) -> str:
    """A figure with its caption."""
    source = inlined(picture, "image/svg+xml")
    text = html.escape(f"{panel.name} on {alt}", quote=True)
    caption = html.escape(panel.name)
    return f'<figure><img src="{source}" alt="{text}"><figcaption>{caption}</figcaption></figure>'


def film_figure(row: Row, label: str, episodes: int) -> str:
    """A film of one seed, and a still of it for print."""
    made = film(row.run.directory, episodes, most=FRAMES)
    frames = []

    def watched() -> Iterable[np.ndarray]:
        for frame in made.frames:
            frames.append(frame)
            yield frame

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "film.mp4"
        write_film(watched(), path, made.frames_per_second)
        source = inlined(path.read_bytes(), "video/mp4")
    height, width, _ = frames[-1].shape
    picture = io.BytesIO()
    Image.fromarray(frames[-1]).save(picture, "JPEG", quality=80)
    still = inlined(picture.getvalue(), "image/jpeg")
    earned = f"return {number(row.figures['return'])} in its last evaluation"
    caption = f"{label}, seed {row.seed}: the median of the seeds, {earned}"
    if made.note:
        caption += f". {made.note}"
    text = html.escape(f"Film of {caption}", quote=True)
    return (
        f'<figure><video controls muted playsinline loop preload="metadata" width="{width}" '
        f'height="{height}" aria-label="{text}" poster="{still}" src="{source}"></video>'
        f'<img class="still" src="{still}" alt="Last frame. {text}">'
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
    )


# --- HTML -------------------------------------------------------------------------------------


def page(tasks: Mapping[str, Groups], sections: Sequence[str], notes: Sequence[str]) -> str:
    """The whole document."""
    runs = [run for groups in tasks.values() for runs in groups.values() for run in runs]
    count = f"{len(runs)} run{'s' * (len(runs) != 1)} on {', '.join(tasks)}"
    links = "".join(f'<li><a href="#{anchor(t)}">{html.escape(t)}</a></li>' for t in tasks)
    contents = f'<nav aria-label="Tasks"><ul>{links}</ul></nav>' if len(tasks) > 1 else ""
    left_out = ""
    if notes:
        items = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
        left_out = f'<aside class="note"><h2>Not on this page</h2><ul>{items}</ul></aside>'
    style = files("algd.visualization").joinpath("report.css").read_text()
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>algd: {html.escape(count)}</title>
<style>
{style}</style>
</head>
<body>
<header>
<h1>Trained policies and what they cost</h1>
<p>{html.escape(count)}.</p>
{contents}
</header>
<main>
{left_out}
{"".join(sections)}
</main>
<footer>Made by algd. Training cost is the sum over all steps of training, wall time that of
training with its evaluations.</footer>
</body>
</html>
"""


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose rows become cards where there is no room; the roles keep it a table then."""
    head = "".join(
        f'<th scope="col" role="columnheader">{html.escape(column) or "preset"}</th>'
        for column in columns
    )
    body = []
    for first, *others in rows:
        cells = "".join(
            f'<td role="cell" data-label="{html.escape(column)}"><span>{cell}</span></td>'
            for column, cell in zip(columns[1:], others, strict=True)
        )
        name = f"{columns[0]} {first}".strip()
        body.append(f'<tr role="row"><th scope="row" role="rowheader">{name}</th>{cells}</tr>')
    return (
        f'<table role="table"><caption>{html.escape(caption)}</caption>'
        f'<thead role="rowgroup"><tr role="row">{head}</tr></thead>'
        f'<tbody role="rowgroup">{"".join(body)}</tbody></table>'
    )


def listing(values: Mapping[str, Any]) -> str:
    """Names and values."""
    shown = {k: " ".join(map(str, v)) if isinstance(v, list) else str(v) for k, v in values.items()}
    pairs = "".join(
        f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value) or '–'}</dd></div>"
        for name, value in shown.items()
    )
    return f"<dl>{pairs}</dl>"


def fold(title: str, content: str) -> str:
    """What only some readers want to see."""
    return f"<details><summary>{html.escape(title)}</summary>{content}</details>"


def anchor(task: str) -> str:
    """A name for links."""
    return re.sub(r"[^A-Za-z0-9]+", "-", task).strip("-") or "task"


def inlined(content: bytes, kind: str) -> str:
    """A file as an address that holds it."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
