"""Records: what a finished run is judged by, in one small file that goes from machine to machine.

A record holds the settings with their versions and processor, the evaluations and rows of training
by columns, the judgement of the final policy and what the run took, under one checksum. It has no
networks: whoever wants the policy itself trains it again from the settings.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from algd.runs.directory import Run, Seconds
from algd.runs.files import DamagedFile, is_row, read_record, write_record
from algd.types import UserError

# A row for every 500 steps of 100,000; what is longer is thinned.
MOST_ROWS = 200
DIGITS = 6
# What a record's file is called within a directory.
PATTERN = "*-seed[0-9]*.json"


@dataclass(frozen=True)
class Record:
    """A finished run in one file."""

    path: Path

    @property
    def place(self) -> Path:
        """The file."""
        return self.path

    @property
    def metrics_path(self) -> Path:
        """The file, which holds the rows too."""
        return self.path

    def config(self) -> dict[str, Any]:
        """The settings, or a message that says what is wrong with the file."""
        return self._content()["config"]

    def rows(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The metrics, of one kind or all, by their steps."""
        kept = self._content()["rows"]
        wanted = kept if kind is None else [kind] if kind in kept else []
        found = [row for name in wanted for row in _from_columns(name, kept[name])]
        return sorted(found, key=lambda row: row["step"])

    def evaluation(self) -> dict[str, Any] | None:
        """The judgement of the final policy."""
        return self._content()["evaluation"]

    def seconds(self) -> Seconds:
        """What training took; NaN if it was not written down."""
        kept = self._content()["seconds"].values()
        return Seconds(*(float("nan") if value is None else float(value) for value in kept))

    def _content(self) -> dict[str, Any]:
        try:
            content = read_record(self.path)
            if content.keys() < {"config", "rows", "evaluation", "seconds"}:
                raise UserError(f"{self.path} is not the record of a run.")
            rows = [row for item in content["rows"].items() for row in _from_columns(*item)]
            times = {name: type(value) for name, value in content["seconds"].items()}
        except DamagedFile as error:
            raise UserError(f"{error}.") from error
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{self.path} is not the record of a run: {error}.") from error
        sound = [*times] == [*Seconds._fields] and {*times.values()} <= {int, float, type(None)}
        if not sound or not all(map(is_row, rows)):
            raise UserError(f"{self.path} is not the record of a run: it holds no numbers of one.")
        return content


Evidence = Run | Record
"""What a run is judged by, in its directory or in a record: settings, rows, judgement, times."""


def write(run: Run, path: Path) -> None:
    """Leave the record of a run that was judged; that of another run is not written over."""
    if path.exists() and Record(path).config().get("id") != run.id:
        raise UserError(f"{path} is the record of another run than {run.directory}. Move it.")
    # At one step the log tells of training first.
    kinds = ("train", thinned(run.rows("train"))), ("eval", run.rows("eval"))
    content = {
        "config": run.config(),
        "rows": {kind: _columns(rows) for kind, rows in kinds},
        "evaluation": run.evaluation(),
        "seconds": {
            name: None if value != value else rounded(value)
            for name, value in run.seconds()._asdict().items()
        },
    }
    write_record(path, content, indent=None)


def thinned(rows: Sequence[dict[str, Any]], most: int = MOST_ROWS) -> list[dict[str, Any]]:
    """At most so many rows, evenly spaced, the last one among them."""
    stride = max(-(-len(rows) // most), 1)
    return list(rows[::-1][::stride][::-1])


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Each name once, with a value or nothing of every row."""
    names = dict.fromkeys(name for row in rows for name in row if name != "kind")
    return {name: [rounded(row.get(name)) for row in rows] for name in names}


def _from_columns(kind: str, columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    lines = zip(*columns.values(), strict=True)
    return [
        {"kind": kind, **{k: v for k, v in zip(columns, line, strict=True) if v is not None}}
        for line in lines
    ]


def rounded(value: Any) -> Any:
    """A float to as many digits as records and tables keep."""
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
