"""The house rules: lint, types, layers, and a README whose commands are the ones that are run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CODE = ("src", "tests", "scripts", "benchmarks", "examples")


@pytest.mark.parametrize(
    "command",
    [
        ("-m", "ruff", "check", *CODE),
        ("-m", "ruff", "format", "--check", *CODE),
        ("-m", "pyright", "--pythonpath", sys.executable),
    ],
    ids=lambda command: " ".join(command[1:3]),
)
def test_clean(command):
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_layers():
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ci_runs_the_command_of_the_readme():
    commands = re.findall(r"^    (.*)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(commands) == 2
    assert commands[1].endswith("pytest")
    done = subprocess.run(
        ["bash", "-c", "grep -E '^    .*pytest$' README.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == commands[1]


def test_links_in_the_documents_lead_somewhere():
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_documents_are_wrapped():
    """Prose ends at 100 columns; tables, pictures and commands are as long as they are."""
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")):
        prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for line in prose.splitlines():
            assert len(line) <= 100 or line.startswith(("|", "![", "    ")), f"{page.name}: {line}"
