"""The site is built without a warning, fetches nothing, and what the tutorial says can be done."""

import importlib
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser

import pytest

import algd
from algd import api
from algd.cli import main
from support.alone import ROOT
from support.small import small

TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
BLOCKS = re.findall(
    r"^```(\w+)(?: title=\"([^\"\n]+)\")?\n(.*?)^```$", TUTORIAL, re.DOTALL | re.MULTILINE
)


class Fetched(HTMLParser):
    """What a page makes the browser load."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        if tag in ("script", "img", "iframe", "source", "video"):
            self.found.append(named.get("src"))
        if tag == "link" and named.get("rel") in ("stylesheet", "icon", "preconnect"):
            self.found.append(named["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    command = ["-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_pages_fetch_nothing_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(list((ROOT / "docs").glob("*.md")))
    for page in pages:
        outside = [x for x in Fetched(page.read_text()).found if x and "//" in x]
        assert outside == [], page


def test_public_names_are_explained_and_found_by_the_search(site):
    index = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    found = {entry["location"]: entry["text"] for entry in index}
    names = [name for name in algd.__all__ if not inspect.ismodule(getattr(algd, name))]
    for name in names:
        assert len(found[f"api/#algd.{name}"]) > 15, name
    # Formulas are written so that no program is needed to show them.
    assert not any("$" in text for text in found.values())


def test_the_guide_for_newcomers_comes_first(site):
    links = re.findall(r'<a href="([^"]+)" class="md-nav__link', (site / "index.html").read_text())
    assert links.index("tutorial/") < min(
        place for place, link in enumerate(links) if link.endswith("/") and link != "tutorial/"
    )


@pytest.fixture
def _elsewhere(tmp_path, monkeypatch):
    """An empty directory, and presets too small to learn, so that programs take a moment."""
    monkeypatch.setattr(api, "preset", lambda name: small(name, prefill=100_000))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])


@pytest.mark.usefixtures("_elsewhere")
def test_the_program_of_the_readme(tmp_path):
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(block.splitlines()) == 10
    names = {}
    exec(compile(block, "README", "exec"), names)
    assert names["env"].observation_space.contains(names["obs"])
    assert (tmp_path / "policy" / "policy.npz").exists()


@pytest.mark.usefixtures("_elsewhere")
def test_every_block_of_the_tutorial(tmp_path, capsys):
    """In their order."""
    kinds, names = [], {"__name__": "tutorial"}
    for language, title, block in BLOCKS:
        kinds.append(language)
        if title:
            (tmp_path / title).write_text(block)
            importlib.invalidate_caches()
        elif language == "python":
            exec(compile(block, "tutorial", "exec"), names)
        else:
            for line in block.splitlines():
                program, *arguments = shlex.split(line)
                if program == "pip":
                    dry_install(arguments)
                else:
                    assert program == "algd"
                    main(arguments)
    assert kinds.count("python") == len(kinds) - kinds.count("bash") > 7
    shown = capsys.readouterr()
    assert "of 5" in shown.out
    assert re.search("full speed ahead|careful", shown.out)
    assert {"cart.png", "policy", "policy_onnx"} <= {path.name for path in tmp_path.iterdir()}


def dry_install(arguments):
    """What pip would do, short of fetching the packages that are required."""
    verb, what = arguments
    assert verb == "install"
    options = ["--dry-run", "--no-deps", "--no-build-isolation", "--quiet"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", verb, *options, what],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "does not provide the extra" not in done.stderr


def test_no_block_is_passed_over():
    assert TUTORIAL.count("\n```") == 2 * len(BLOCKS)
    assert {language for language, *_ in BLOCKS} == {"python", "bash"}
