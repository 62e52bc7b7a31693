"""A run directory, or a sweep's file, from a stranger runs none of the stranger's code."""

import json
import re
import sys

import pytest

import algd
from algd.cli import main
from algd.runs.directory import Run
from algd.sweeps import executors

MODULE = """
import gymnasium, pathlib
import numpy as np

pathlib.Path("imported").touch()

class Shelf(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 1.0, False, False, {"cost": 1.0}

gymnasium.register("Shelf-v0", entry_point=Shelf, max_episode_steps=8)
"""
ENV = "gift.tensorboard.shelf:Shelf-v0"
TINY = "algd --critic-hidden 16 --score-hidden 16 --batch-size 16 --cost-ensemble 2 --mc-samples 2"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a run whose environment is a module in the run's own directory."""
    folder = tmp_path_factory.mktemp("trust")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", [place for place in sys.path if place])
        module = folder / "gift" / "tensorboard" / "shelf.py"
        module.parent.mkdir(parents=True)
        module.write_text(MODULE)
        options = "--budget 5 --steps 4 --envs 1 --eval-episodes 1 --quiet --out new"
        main(f"train --env {ENV} {options} {TINY}".split())
        forget()
        for part in (folder / "new").iterdir():
            if part.name != "tensorboard":
                part.rename(folder / "gift" / part.name)
        (folder / "imported").unlink()
    return folder


def forget():
    for name in [name for name in sys.modules if name.split(".")[0] == "gift"]:
        del sys.modules[name]


@pytest.fixture
def here(made, monkeypatch):
    """The user stands in that folder; the path is what Python's own program has."""
    monkeypatch.chdir(made)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    forget()
    (made / "imported").unlink(missing_ok=True)
    (made / "sweep.toml").write_text(f'env = "{ENV}"\nset = {{ budget = 5.0 }}\n')
    return made


COMMANDS = [
    "resume gift --steps 6 --quiet",
    "evaluate gift --episodes 1 --json",
    "render gift --out film.gif --force --quiet",
    "train --from gift --steps 4 --envs 1 --eval-episodes 1 --quiet --out next",
    "sweep --file sweep.toml --dry-run --no-estimate",
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.split()[0])
def test_a_module_that_only_a_file_names_is_not_imported(here, command, capsys):
    with pytest.raises(SystemExit) as stop:
        main(command.split())
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert f"--env {ENV}" in said
    assert "--trust" in said
    assert not (here / "imported").exists()
    assert "" not in sys.path


@pytest.mark.parametrize("word", [f"--env {ENV}", "--trust"])
def test_a_module_that_the_user_names_or_trusts_is(here, word, capsys):
    main(f"evaluate gift --episodes 1 --json {word}".split())
    assert json.loads(capsys.readouterr().out)["cost"]["budget"] == 5.0
    assert (here / "imported").exists()


def test_an_environment_may_have_moved(here, capsys):
    (here / "elsewhere.py").write_text(MODULE)
    main(["resume", "gift", "--steps", "8", "--quiet", "--env", "elsewhere:Shelf-v0"])
    config = Run(here / "gift").config()
    assert (config["settings"]["env"], config["settings"]["steps"]) == ("elsewhere:Shelf-v0", 8)
    # What is suggested is what works.
    (suggested,) = re.findall(r"^Evaluate it with: algd (.*)$", capsys.readouterr().out, re.M)
    assert suggested == "evaluate gift --env elsewhere:Shelf-v0"
    main([*suggested.split(), "--episodes", "1"])
    main(f"resume gift --steps 10 --quiet --env {ENV}".split())


def test_another_task_is_no_continuation(here, capsys):
    with pytest.raises(SystemExit):
        main(["resume", "gift", "--env", "DiffDrive"])
    assert "train --from" in capsys.readouterr().err


def test_an_environment_that_is_no_longer_the_same_is_refused(here, capsys):
    (here / "longer.py").write_text(MODULE.replace("max_episode_steps=8", "max_episode_steps=9"))
    with pytest.raises(SystemExit):
        main(["resume", "gift", "--env", "longer:Shelf-v0"])
    assert "horizon 9 instead of 8" in capsys.readouterr().err


def test_a_report_imports_nothing(here):
    main(["report", "gift", "--unfinished", "--force", "--quiet", "--out", "page.html"])
    text = (here / "page.html").read_text()
    assert "No film of" in text
    assert ENV in text
    assert not (here / "imported").exists()


def test_python_is_asked_too(here):
    for call in (algd.resume, lambda run: algd.train(start_from=run, out="never")):
        with pytest.raises(algd.UserError, match="tensorboard"):
            call("gift")
    sys.path.append("")
    algd.resume("gift", steps=12, trust=True)
    assert (here / "imported").exists()


def test_a_worker_finds_what_its_parent_finds(here):
    """And is not misled by a file that has the name of a part of Python."""
    (here / "pickle.py").write_text("raise SystemExit('a stranger')")
    sys.path.append(str(here / "somewhere"))
    process = executors.start(eval, ("__import__('sys').path",), 1, None)
    assert executors.answer(process) == sys.path
