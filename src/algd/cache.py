"""Where compiled programs are kept between processes."""

import os
from pathlib import Path

import jax


def cache_folder() -> Path | None:
    """Our folder among the user's caches; none if the system names no home for this user."""
    try:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    return caches / "algd"


def keep_programs() -> None:
    """Keep what XLA compiles on disk, unless the user has said where or whether to."""
    folder = cache_folder()
    if folder is not None and not jax.config.values["jax_compilation_cache_dir"]:
        jax.config.update("jax_compilation_cache_dir", str(folder / "xla"))
