"""The command line: `algd COMMAND ...`."""

from algd.cli.main import main

__all__ = ["main"]
