"""Output as its reader can take it: signs that a terminal knows, and an end when nobody reads."""

import codecs
import io
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

SPELT = {"λ": "lambda", "±": "+-", "×": "x", "–": "-", "−": "-", "…": "...", "•": "*", "µ": "u"}


@contextmanager
def considerate_output() -> Iterator[None]:
    """Spell what the terminal cannot show; end quietly where a reader such as `head` has gone."""
    codecs.register_error("algd-spelt", _spelt)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="algd-spelt")
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes once more at its end.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.dup2(nowhere, sys.stderr.fileno())
        # As a program that the signal ends.
        sys.exit(128 + 13)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows under the names of their columns, as wide as they are; numbers stand to the right."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [names, *([_cell(row.get(name)) for name in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    numbers = [any(isinstance(row.get(name), int | float) for row in rows) for name in names]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(line, widths, numbers, strict=True)
        ).rstrip()
        for line in lines
    )


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _spelt(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    signs = error.object[error.start : error.end]
    shown = (SPELT.get(sign) or sign.encode("ascii", "backslashreplace").decode() for sign in signs)
    return "".join(shown), error.end
