"""What the commands share: how options are parsed."""

import sys
from collections.abc import Iterable
from typing import Any


def parse(kind: Any, arguments: list[str], command: str, *markers: Any) -> Any:
    """Parse with tyro, whose own complaints also end with the exit code 2."""
    import tyro

    config = (tyro.conf.OmitArgPrefixes, *markers)
    return tyro.cli(kind, args=arguments, prog=f"algd {command}", config=config)


def search_here(envs: Iterable[str | None], trust: bool = False) -> None:
    """Find the module of a `module:Id` that the user typed, or trusts, in the folder they stand in.

    Behind all else, so that no file there is taken for a part of Python.
    """
    if trust or any(env and ":" in env for env in envs):
        sys.path.append("")
