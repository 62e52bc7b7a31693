"""Environments that hold what some requirements bring and nothing else, made of links."""

import os
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent.parent


def requirements(*extras: str) -> list[str]:
    """What pip installs beside this library with these extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chosen = [project["optional-dependencies"][extra] for extra in extras]
    return [line for lines in (project["dependencies"], *chosen) for line in lines]


def installed_with(lines: list[str]) -> set[str]:
    """The distributions that these requirements bring, with all that those require."""
    found: dict[str, set[str]] = {}
    todo = [Requirement(line) for line in lines]
    while todo:
        wanted = todo.pop()
        extras = found.setdefault(wanted.name, set())
        new = ({""} | wanted.extras) - extras
        extras |= new
        try:
            further = distribution(wanted.name).requires if new else None
        except PackageNotFoundError:
            continue
        for one in map(Requirement, further or ()):
            if one.marker is None or any(one.marker.evaluate({"extra": e}) for e in new):
                todo.append(one)
    return set(found)


def run_alone(program: str, lines: list[str], folder: Path, *paths: Path) -> str:
    """What the program prints where only these requirements, and these paths, can be imported."""
    site = folder / "site"
    site.mkdir()
    for name in installed_with(lines):
        tops = {file.parts[0] for file in distribution(name).files or ()}
        for top in tops - {"..", "__pycache__"}:
            link = site / top
            if not link.exists():
                link.symlink_to(distribution(name).locate_file(top))
    path = os.pathsep.join(map(str, (*paths, site)))
    # -S: without the packages that are installed beside Python.
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
