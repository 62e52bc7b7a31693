"""An agent learns, goes on, acts, is judged, saved and loaded; its run is a run like any other."""

import json
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest

import algd
from algd import algorithms, api
from algd.cli import main
from algd.evaluation.policy import load as load_policy
from algd.runs.checkpoint import to_arrays
from algd.types import UserError
from same import differences
from support.alone import ROOT
from support.small import small
from test_any_environment import Meter, make_meter

SIZES = {
    "envs": 2,
    "eval_every": 20,
    "eval_episodes": 2,
    "log_every": 10,
    "env_options": ["horizon=10"],
}
OBS = np.linspace(-1, 1, 17)
unpainted = pytest.mark.usefixtures("unpainted")


@pytest.fixture(autouse=True)
def _small(monkeypatch, tmp_path):
    monkeypatch.setattr(api, "preset", lambda name: small(name))
    monkeypatch.chdir(tmp_path)


def test_to_learn_again_is_to_have_learnt_at_once():
    agent = algd.Agent("sac-lag", "DiffDrive", budget=10.0, discount=0.5, out="agent", **SIZES)
    assert agent.learn(20).learn(20) is agent
    whole = algd.train(
        "DiffDrive", "sac-lag", budget=10.0, discount=0.5, out="whole", steps=40, **SIZES
    )
    assert differences(whole, agent.run) == []
    config = agent.run.config()
    assert (config["settings"]["steps"], config["settings"]["budget"]) == (40, [10.0])
    assert (config["preset"], config["hyperparameters"]["discount"]) == ("sac-lag", 0.5)
    assert (agent.run.directory / "curves.png").exists()


@unpainted
def test_an_agent_acts_before_and_after_it_has_learnt(capsys):
    agent = algd.Agent("sac-lag", "DiffDrive", out="agent", **SIZES)
    before = agent.predict(OBS)
    assert agent.run.checkpoints()[-1][0] == 0
    agent.learn(100)
    after = agent.predict(OBS)
    assert not np.array_equal(before, after)
    whole = algd.train("DiffDrive", "sac-lag", out="whole", steps=100, **SIZES)
    assert differences(whole, agent.run) == []
    assert np.array_equal(after, load_policy(whole).predict(OBS))
    action, forecast = agent.predict(OBS, mode="best", return_info=True)
    assert (action.shape, forecast.cost.shape) == ((2,), (1,))
    told = agent.evaluate(episodes=4)
    main(["evaluate", str(agent.run), "--episodes", "4", "--json"])
    assert told == json.loads(capsys.readouterr().out)
    assert algd.evaluate(agent, 4) == told
    assert {path.name for path in agent.export("policy")} >= {"policy.npz"}


@unpainted
def test_saved_and_loaded_it_goes_on_as_if_nothing_had_happened():
    agent = algd.Agent("sac-lag", "DiffDrive", out="agent", **SIZES).learn(20)
    saved = agent.save("saved")
    with pytest.raises(UserError, match="exists already"):
        agent.save("saved")
    again = algd.load("saved")
    assert np.array_equal(again.predict(OBS), agent.predict(OBS))
    agent.learn(20)
    again.learn(20)
    assert differences(agent.run, again.run) == []
    assert again.run == saved
    # Loaded once more, with a checkpoint by its name.
    first = algd.load(saved, 20)
    assert first.policy.standing == "step 20 of 40"
    # What it learns is behind the newest checkpoint all the same.
    first.learn(10)
    assert first.policy.standing == "step 50 of 50"
    # Commands go on with its run, and it with theirs.
    main(["resume", str(again.run), "--steps", "60", "--quiet"])
    assert again.learn(2).run.checkpoints()[-1][0] == 62


@unpainted
def test_a_stopped_agent_learns_on():
    agent = algd.Agent("sac-lag", "DiffDrive", out="agent", **SIZES)
    agent.learn(1_000, callback=lambda event: event.step < 10)
    assert agent.policy.standing == "step 10 of 1,000"
    agent.learn(10)
    assert agent.policy.standing == "step 20 of 20"

    def fails(event):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        agent.learn(10, callback=[fails])
    assert agent.learn(10).run.checkpoints()[-1][0] == 40


def test_defaults_are_those_of_the_command_line(monkeypatch):
    monkeypatch.setattr(api, "preset", algd.presets().__getitem__)
    agent = algd.Agent()
    assert agent._plan.settings == api.Settings()
    assert (agent._plan.preset, agent._plan.algorithm) == ("algd", algd.presets()["algd"])


@unpainted
def test_an_agent_on_an_environment_without_a_name():
    with pytest.warns(UserWarning, match="No other process finds"):
        agent = algd.Agent(
            "sac-lag",
            lambda: make_meter(),
            budget={"cost": 3},
            out="agent",
            envs=1,
            eval_episodes=1,
        )
    agent.learn(6).learn(np.int64(6))
    env = make_meter()
    obs, _ = env.reset(seed=0)
    assert env.action_space.contains(agent.predict(obs))
    assert agent.evaluate(2)["cost"]["budget"] == 3.0
    with pytest.raises(UserError, match="came from a program"):
        algd.load(agent.run).learn(6)
    again = algd.load(agent.run, env=make_meter)
    assert again.learn(6).evaluate(2)["step"] == 18
    env.close()


@unpainted
def test_an_agent_that_was_stopped_says_so_when_it_acts():
    agent = algd.Agent("sac-lag", "DiffDrive", out="agent", **SIZES)
    agent.learn(100, callback=lambda event: event.step < 40)
    with pytest.warns(UserWarning, match=r"agent is unfinished: .* step 40 of 100"):
        agent.predict(OBS)
    again = algd.load("zoo:DiffDrive", seed=1e1)
    first = again.predict(OBS, mode="best", candidates=2e0)
    assert np.array_equal(
        first, algd.load("zoo:DiffDrive", seed=10).predict(OBS, mode="best", candidates=2)
    )


@unpainted
def test_start_from_another():
    first = algd.Agent("sac-lag", "DiffDrive", out="first", **SIZES).learn(20)
    second = algd.Agent(start_from=first.run, budget=5, out="second", envs=2, eval_episodes=1)
    old, new = (to_arrays(agent.policy.state) for agent in (first, second))
    assert new["limit"] != old["limit"]
    assert all(np.array_equal(new[name], old[name]) for name in new if name != "limit")


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (lambda: algd.Agent("DiffDrive"), r"DiffDrive is an environment: Agent\('algd', 'DiffD"),
        (lambda: algd.Agent("DiffDrive", "algd"), "DiffDrive is an environment"),
        (lambda: algd.Agent("sac-leg", "DiffDrive"), "no preset 'sac-leg'"),
        (lambda: algd.Agent("algd", "DifDrive"), r"no environment 'DifDrive'. Did you mean Diff"),
        (lambda: algd.Agent("algd", "DiffDrive", rhoo=2), r"no setting 'rhoo'.*rho"),
        (lambda: algd.Agent("algd", Meter).learn(4), "has no budget of its own"),
        (lambda: algd.Agent().learn(total_timesteps=9), r"no total_timesteps\. .* called steps"),
        (lambda: algd.Agent().learn(9, progress_bar=True), r"no progress_bar\. .* progress\?"),
        (lambda: algd.load("nowhere"), "There is no directory nowhere"),
        (lambda: algd.Agent("algd", "DiffDrive", budget=-1), "must be a finite number"),
        (lambda: algd.load("zoo:DiffDrive", seed=0.5), "seed must be a whole number"),
        (
            lambda: algd.evaluate(algd.load("zoo:diffdrive").policy, checkpoint=0),
            r"one checkpoint: algd.load\(run, 0\)",
        ),
        (
            lambda: algd.Agent("algd", "DiffDrive", cost_function=lambda *_: 1.0, out="x").learn(4),
            "What may an episode of DiffDrive cost by this cost_function",
        ),
    ],
)
def test_mistakes(mistake, said, monkeypatch):
    monkeypatch.setattr(api, "preset", algorithms.preset)
    with pytest.raises(UserError, match=said):
        mistake()
    with pytest.raises(TypeError):
        type(algd.presets()["algd"])("DiffDrive")


@unpainted
def test_a_directory_that_is_taken_is_not_the_agents():
    algd.Agent("sac-lag", "DiffDrive", out="agent", **SIZES).learn(4)
    other = algd.Agent("sac-lag", "DiffDrive", out="agent", **SIZES)
    with pytest.raises(UserError, match="already holds a run"):
        other.learn(4)
    assert other._run is None
    # Without a word each has a directory of its own.
    runs = [algd.Agent("sac-lag", "DiffDrive", **SIZES).learn(4).run for _ in range(2)]
    assert runs[0] != runs[1]


@unpainted
def test_progress_is_shown_if_asked_for(capfd):
    agent = algd.Agent("sac-lag", "DiffDrive", out="agent", **SIZES)
    agent.learn(20)
    assert capfd.readouterr().err == ""
    agent.learn(20, progress=True)
    assert "40/40 steps" in capfd.readouterr().err


def test_a_run_is_a_path_wherever_one_goes():
    run = algd.Agent("sac-lag", "DiffDrive", out="agent", **SIZES).learn(4).run
    shutil.copytree(run, "copy")
    code = "import sys, os; print(os.listdir(sys.argv[1]))"
    listed = subprocess.run([sys.executable, "-c", code, run], capture_output=True)
    assert b"config.json" in listed.stdout
    assert f"{run}" == "agent"
    assert algd.Run("agent") == run == algd.Run(run)
    assert algd.Run("agent").checkpoints() == run.checkpoints()
    assert gymnasium.make("algd/DiffDrive-v0").action_space.contains(algd.load(run).predict(OBS))


@unpainted
def test_what_the_page_says_of_callbacks(monkeypatch, capsys):
    """Its program and the lines for trackers, which want numbers under names, and a step."""
    page = (ROOT / "docs" / "own_problem.md").read_text()
    program, trackers, *_ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    logged = []

    def log(metrics, step):
        assert all(re.fullmatch(r"[\w/ .-]+", name) for name in metrics)
        assert all(isinstance(value, int | float) for value in metrics.values())
        logged.append(step)

    scope = {"algd": algd, "wandb": SimpleNamespace(log=log)}
    scope["mlflow"] = SimpleNamespace(log_metrics=log)
    tiny = "envs=2, eval_every=20, eval_episodes=1, log_every=10, env_options=['horizon=10']"
    small_program = program.replace("budget=20.0", f"budget=20.0, {tiny}")
    for text in (small_program, trackers):
        exec(text.replace("20_000", "20"), scope)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["0", "20"]
    assert logged == [30, 40, 40, 50, 60, 60]
