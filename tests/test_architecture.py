"""docs/architecture.md says what the imports say."""

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "algd"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
MODULES = sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))


def room_of(name: str) -> str:
    """The package, or the module beside them, that `algd.name` lies in."""
    return name.split(".")[0]


def imported(path: Path) -> set[str]:
    """The rooms that a module imports from, at its top or later."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "algd":
            inside = node.module.partition(".")[2]
            names = [inside] if inside else [alias.name for alias in node.names]
            found |= {room_of(name) for name in names if (SOURCE / room_of(name)).exists()}
            found |= {room_of(n) for n in names if (SOURCE / f"{room_of(n)}.py").exists()}
    return found


@cache
def rooms() -> dict[str, set[str]]:
    """What each room imports from the others."""
    found: dict[str, set[str]] = {}
    for module in MODULES:
        room = room_of(module.removesuffix(".py").replace("/", "."))
        found.setdefault(room, set()).update(imported(SOURCE / module) - {room})
    return found


def test_every_module_is_described_once():
    listed = re.findall(r"^\| `([\w/]+\.py)` \| (.+) \|$", PAGE, re.MULTILINE)
    assert sorted(name for name, _ in listed) == MODULES


def test_the_picture_shows_the_layers_of_the_linter():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = (c["layers"] for c in contracts["contracts"] if c["type"] == "layers")
    drawn = re.search(r"## Layers.*?```text\n(.*?)```", PAGE, re.DOTALL)
    assert drawn
    assert [line.split("  ")[0] for line in drawn[1].splitlines()] == layers


@pytest.mark.parametrize("room", [room for room, others in rooms().items() if others])
def test_what_a_room_stands_on(room):
    said = re.search(rf"^`{room}` stands on (.*?)\.$", PAGE, re.MULTILINE | re.DOTALL)
    assert said, f"docs/architecture.md does not say what {room} stands on"
    assert set(re.findall(r"`(\w+)`", said[1])) == rooms()[room]


def test_the_way_of_a_step_names_what_there_is():
    way = PAGE.split("## The way of one step")[1].split("\n## ")[0]
    named = re.findall(r"`(\w+)\.(\w+)\.(\w+)`", way)
    assert len(named) > 10
    for room, module, name in named:
        tree = ast.parse((SOURCE / room / f"{module}.py").read_text(encoding="utf-8"))
        defined = {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
        assert name in defined, f"{room}.{module} has no {name}"
