"""Output as its reader can take it: signs that a terminal knows, and an end when nobody reads."""

import codecs
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

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


def _spelt(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    signs = error.object[error.start : error.end]
    shown = (SPELT.get(sign) or sign.encode("ascii", "backslashreplace").decode() for sign in signs)
    return "".join(shown), error.end
