"""What the commands share: how options are parsed, and where compiled programs are kept."""

import sys
from collections.abc import Iterable
from pathlib import Path
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


def enable_compilation_cache() -> None:
    """Keep compiled programs on disk, unless the user has said where or whether to."""
    import os

    import jax

    if not jax.config.values["jax_compilation_cache_dir"]:
        home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        jax.config.update("jax_compilation_cache_dir", str(home / "algd" / "xla"))
