"""The house rules: lint, types, layers, and a README whose commands are the ones that are run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    "command",
    [
        ("-m", "ruff", "check", "src", "tests"),
        ("-m", "ruff", "format", "--check", "src", "tests"),
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
