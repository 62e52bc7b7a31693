"""What the commands share: how options are parsed, and where compiled programs are kept."""

from pathlib import Path
from typing import Any


def parse(kind: Any, arguments: list[str], command: str, *markers: Any) -> Any:
    """Parse with tyro, whose own complaints also end with the exit code 2."""
    import tyro

    config = (tyro.conf.OmitArgPrefixes, *markers)
    return tyro.cli(kind, args=arguments, prog=f"algd {command}", config=config)


def enable_compilation_cache() -> None:
    """Keep compiled programs on disk, unless the user has said where or whether to."""
    import os

    import jax

    if not jax.config.values["jax_compilation_cache_dir"]:
        home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        jax.config.update("jax_compilation_cache_dir", str(home / "algd" / "xla"))
