"""One page about a set of runs, in a single file that asks nothing of the network.

What stands on it is gathered here; how it is laid out, and that all of it is escaped, is up to the
template `report.html`.
"""

import base64
import io
import math
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from algd.evaluation.stats import Interval, bootstrap_interval, run_figures
from algd.runs.grouping import Groups, differing_settings, training_settings
from algd.runs.record import Evidence, Record
from algd.types import Budget, UserError, metric_suffixes
from algd.visualization.curves import budgets_of, panel_svg, panels_of, seeds_text, styles_of
from algd.visualization.video import film, write_film

# Of one episode: enough to follow it, and small enough to send the page by mail.
FRAMES = 250
# The page itself forbids what it promises not to do.
POLICY = Markup("default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'")


class Page(NamedTuple):
    """The text of a page, and what could not be put on it."""

    text: str
    complaints: list[str]


class Row(NamedTuple):
    """The figures of one run; `last` is its last evaluation, of so many `episodes`."""

    run: Evidence
    seed: int
    figures: dict[str, float]
    seconds: float
    last: dict[str, Any]
    episodes: int


class Cell(NamedTuple):
    """A number of a table, with the interval and the verdict below it."""

    text: str
    interval: str = ""
    verdict: str = ""


class Figure(NamedTuple):
    """A picture, and the same in words."""

    name: str
    source: str
    alt: str


class Filmed(NamedTuple):
    """A film of one seed, and a still of it for print."""

    caption: str
    source: str
    still: str
    width: int
    height: int


def build(
    tasks: Mapping[str, Groups],
    complaints: Sequence[str] = (),
    episodes: int = 1,
    report: Callable[[str], None] = lambda what: None,
) -> Page:
    """The page; `report` hears of each figure and film begun, without films if 0 `episodes`."""
    styles = styles_of(tasks)
    notes, recorded = list(complaints), []
    sections = []
    for task, groups in tasks.items():
        rows = {label: [row_of(run) for run in runs] for label, runs in groups.items()}
        budgets = [Budget(**budget) for budget in budgets_of(groups)]
        alt = f"{task}. {said(rows, budgets)}"
        figures, films = [], []
        for panel in panels_of("all", groups):
            report(f"{task}: {panel.name}")
            source = inlined(panel_svg(panel, groups, styles), "image/svg+xml")
            figures.append(Figure(panel.name, source, f"{panel.name} on {alt}"))
        for label, members in rows.items() if episodes else ():
            report(f"{task}: film of {label}")
            chosen = middle(members)
            if isinstance(chosen.run, Record):
                recorded.append(f"{label} on {task}")
                continue
            try:
                films.append(filmed(chosen, label, episodes, len(members)))
            except UserError as error:
                notes.append(f"No film of {label} on {task}: {error}")
        sections.append(
            {
                "task": task,
                "introduction": introduction(groups, budgets),
                **summary(rows, budgets),
                "figures": figures,
                "films": films,
                "groups": details(groups, rows, budgets),
            }
        )
    if recorded:
        what = ", ".join(recorded)
        notes.append(f"No film of {what}: their records have no policy, only the runs do.")
    return Page(page(tasks, sections, notes), notes)


def page(
    tasks: Mapping[str, Groups], sections: Sequence[Mapping[str, Any]], notes: Sequence[str]
) -> str:
    """The whole document."""
    runs = sum(len(runs) for groups in tasks.values() for runs in groups.values())
    templates = Environment(
        loader=PackageLoader("algd", "visualization"), autoescape=True, undefined=StrictUndefined
    )
    return templates.get_template("report.html").render(
        count=f"{runs} run{'s' * (runs != 1)} on {', '.join(tasks)}",
        policy=POLICY,
        style=Markup(files("algd.visualization").joinpath("report.css").read_text("utf-8")),
        sections=sections,
        notes=notes,
    )


# --- numbers ----------------------------------------------------------------------------------


def row_of(run: Evidence) -> Row:
    """The figures of a run at its last evaluation."""
    config = run.config()
    rows, settings = run.rows(), config["settings"]
    figures = run_figures(rows, [Budget(**budget) for budget in config["budgets"]])
    last = [row for row in rows if row["kind"] == "eval"][-1]
    episodes = settings["eval_episodes"]
    known = episodes if isinstance(episodes, int) else 0
    return Row(run, settings["seed"], figures, run.seconds().wall, last, known)


def middle(rows: Sequence[Row]) -> Row:
    """The run of the median return: neither the luckiest nor the worst."""
    ordered = sorted(rows, key=lambda row: row.figures["return"])
    return ordered[(len(ordered) - 1) // 2]


def ends(budgets: Sequence[Budget]) -> list[str]:
    """What stands behind the name of each constraint's figures."""
    return metric_suffixes(budget.name for budget in budgets)


def number(value: float) -> str:
    """Four digits, or a dash for what is not known."""
    if math.isnan(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def duration(seconds: float) -> str:
    """As people say it."""
    if not math.isfinite(seconds):
        return "–"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def interval_of(rows: Sequence[Row], name: str) -> Interval:
    """Where the mean lies: by the spread over seeds, or of a single seed over its episodes."""
    if len(rows) > 1:
        return bootstrap_interval([row.figures[name] for row in rows])
    (row,) = rows
    quantity, slash, constraint = name.partition("/")
    spread = row.last.get(f"{quantity}_std{slash}{constraint}", math.nan)
    reach = 1.96 * spread / math.sqrt(row.episodes - 1) if row.episodes > 1 else math.nan
    # No episode costs less than nothing.
    lowest = 0.0 if quantity == "cost" else -math.inf
    return Interval(max(row.figures[name] - reach, lowest), row.figures[name] + reach)


def with_interval(rows: Sequence[Row], name: str, verdict: str = "") -> Cell:
    """The mean, and below it where it may lie."""
    low, high = interval_of(rows, name)
    interval = "" if math.isnan(low) else f"{number(low)} to {number(high)}"
    return Cell(number(mean_of(rows, name)), interval, verdict)


def verdict(rows: Sequence[Row], budget: Budget, end: str) -> str:
    """What the interval says of the mean cost, and how many episodes kept the budget."""
    low, high = interval_of(rows, f"cost{end}")
    word = "within" if high <= budget.limit else "over" if low > budget.limit else "undecided"
    over = [(row.figures[f"episodes_over_budget{end}"], row.episodes) for row in rows]
    counted = ""
    if all(episodes and math.isfinite(share) for share, episodes in over):
        kept = sum(round((1.0 - share) * episodes) for share, episodes in over)
        counted = f", {kept} of {sum(row.episodes for row in rows)} episodes within"
    preposition = "at " if word == "undecided" else ""
    return f"{word} {preposition}{number(budget.limit)} on average{counted}"


# --- parts of the page ------------------------------------------------------------------------


def introduction(groups: Groups, budgets: Sequence[Budget]) -> str:
    """What the task allows and what the numbers mean."""
    config = next(iter(groups.values()))[0].config()
    allowed = ", ".join(
        f"{number(b.limit)} of {b.name}" if len(budgets) > 1 else number(b.limit) for b in budgets
    )
    kind = " (discounted)" if any(b.discounted for b in budgets) else ""
    single = seeds_text(groups) == "one seed"
    return (
        f"An episode of {config['horizon']:,} steps may cost {allowed}{kind}. "
        f"Figures show {seeds_text(groups)}; tables {'its' if single else 'the'} last evaluation, "
        f"of {config['settings']['eval_episodes']} episodes{'' if single else ' a seed'}."
    )


def caption(counts: Iterable[int]) -> str:
    """What stands below the means, which depends on the number of seeds."""
    meant = {
        1: ("one seed", "the 95 % interval over its episodes"),
        2: ("two seeds", "the range between them"),
        3: ("more seeds", "the 95 % bootstrap interval over seeds"),
    }
    found = [meant[kind] for kind in sorted({min(count, 3) for count in counts})]
    below = [f"for {whose} {what}" if len(found) > 1 else what for whose, what in found]
    return f"Last evaluation: means, and below them {', '.join(below)}"


def summary(rows: Mapping[str, Sequence[Row]], budgets: Sequence[Budget]) -> dict[str, Any]:
    """A line for each group: means and intervals over its seeds."""
    names = [f", {b.name}" if len(budgets) > 1 else "" for b in budgets]
    columns = ["preset", "seeds", "return"]
    columns += [f"{what}{name}" for name in names for what in ("cost", "episodes over budget")]
    columns += [f"training cost{name}" for name in names] + ["wall time"]
    lines = []
    for label, members in rows.items():
        cells: list[Cell | str] = [label, str(len(members)), with_interval(members, "return")]
        for budget, end in zip(budgets, ends(budgets), strict=True):
            cells.append(with_interval(members, f"cost{end}", verdict(members, budget, end)))
            cells.append(f"{mean_of(members, f'episodes_over_budget{end}'):.0%}")
        cells += [with_interval(members, f"training_cost{end}") for end in ends(budgets)]
        cells.append(duration(float(np.mean([row.seconds for row in members]))))
        lines.append(cells)
    words = caption(len(members) for members in rows.values())
    return {"columns": columns, "summary": lines, "caption": words}


def mean_of(rows: Sequence[Row], name: str) -> float:
    """One figure, the mean over runs."""
    return float(np.mean([row.figures[name] for row in rows]))


def details(
    groups: Groups, rows: Mapping[str, Sequence[Row]], budgets: Sequence[Budget]
) -> list[dict[str, Any]]:
    """Each group's settings and seeds."""
    configs = [runs[0].config() for runs in groups.values()]
    figures = ["return", *(f"cost{e}" for e in ends(budgets))]
    figures += [f"training_cost{end}" for end in ends(budgets)]
    named = [name.replace("/", ", ").replace("_", " ") for name in figures]
    return [
        {
            "label": label,
            "own": own,
            "columns": ["seed", *named, "wall time", "run"],
            "seeds": [
                [
                    f"seed {row.seed}",
                    *(number(row.figures[name]) for name in figures),
                    duration(row.seconds),
                    row.run.place.name,
                ]
                for row in members
            ],
            "settings": {"preset": config["preset"], **training_settings(config)},
            "versions": config["versions"],
        }
        for (label, members), config, own in zip(
            rows.items(), configs, differing_settings(configs), strict=True
        )
    ]


def said(rows: Mapping[str, Sequence[Row]], budgets: Sequence[Budget]) -> str:
    """The outcome in words, for those who do not see the figures."""
    sentences = []
    for label, members in rows.items():
        costs = ", ".join(
            f"{b.name} {number(mean_of(members, f'cost{end}'))} ({verdict(members, b, end)})"
            for b, end in zip(budgets, ends(budgets), strict=True)
        )
        earned = number(mean_of(members, "return"))
        sentences.append(f"{label} ends with return {earned}, {costs}")
    return "; ".join(sentences) + "."


def filmed(row: Row, label: str, episodes: int, seeds: int) -> Filmed:
    """A film of one of the seeds."""
    made = film(row.run.place, episodes, most=FRAMES)
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
    earned = f"return {number(row.figures['return'])} in its last evaluation"
    among = {1: "", 2: "the lower of two seeds, "}.get(seeds, "the median of the seeds, ")
    caption = f"{label}, seed {row.seed}: {among}{earned}"
    if made.note:
        caption += f". {made.note}"
    return Filmed(caption, source, inlined(picture.getvalue(), "image/jpeg"), width, height)


def inlined(content: bytes, kind: str) -> str:
    """A file as an address that holds it."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
