"""What a run tells and keeps while it is trained: callbacks, checkpoints by name, faults."""

import json
import shutil
import subprocess
import sys
import traceback

import gymnasium
import numpy as np
import pytest

import algd
from algd.api import several
from algd.cli import main
from algd.evaluation.policy import load
from algd.runs.best import best_step, excess
from algd.runs.checkpoint import read_checkpoint, to_arrays
from algd.runs.config import Settings
from algd.runs.directory import Run
from algd.training import loop
from algd.training.callbacks import stop_when_flat
from algd.training.loop import Event
from algd.types import Budget, UserError
from same import differences
from support.made_up import write_run
from support.small import small

SHORT = Settings(
    steps=120,
    envs=2,
    log_every=20,
    eval_every=40,
    eval_episodes=2,
    checkpoint_every=1_000,
    env_options=("horizon=20",),
)


def train(directory, settings=SHORT, name="sac-lag", callbacks=(), **changes):
    return loop.train(settings, small(name, **changes), name, directory, callbacks=callbacks)


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """A run, and all that its callback heard."""
    heard = []
    run = train(tmp_path_factory.mktemp("callbacks") / "run", callbacks=[heard.append])
    return run, heard


def test_every_row_and_every_evaluation_is_told_as_it_is_written(told):
    run, heard = told
    rows = run.rows()
    assert [(event.kind, event.step) for event in heard] == [(r["kind"], r["step"]) for r in rows]
    assert {event.kind for event in heard} == {"train", "eval"}
    for event, row in zip(heard, rows, strict=True):
        numbers = {k: v for k, v in row.items() if k not in ("kind", "step")}
        assert event.metrics == {f"{row['kind']}/{name}": x for name, x in numbers.items()}
        assert (event.run, event.steps) == (run, 120)
        assert all(isinstance(x, int | float) for x in event.metrics.values())
    assert heard[0].metrics["eval/return"] == rows[0]["return"]


@pytest.mark.parametrize("no", [False, np.False_])
def test_false_stops_with_everything_saved(no, told, tmp_path):
    whole, _ = told
    heard = []

    def second(event):
        heard.append(event.step)
        return no if event.step == 60 else None

    run = train(tmp_path / "run", callbacks=[lambda event: None, second])
    assert heard[-1] == run.checkpoints()[-1][0] == 60
    # It goes on to the last bit.
    loop.resume(run.directory)
    assert differences(whole, run) == []


@pytest.mark.parametrize("answer", [None, True, 0, ""])
def test_nothing_but_false_stops(answer, tmp_path):
    run = train(tmp_path / "run", callbacks=[lambda event: answer])
    assert run.checkpoints()[-1][0] == 120


@pytest.mark.parametrize(("kind", "at"), [("train", 60), ("eval", 80), ("eval", 0)])
def test_an_exception_of_a_callback_saves_first_and_says_how_to_go_on(kind, at, told, tmp_path):
    whole, _ = told

    def fails(event):
        if (event.kind, event.step) == (kind, at):
            raise ConnectionError("the tracker is gone")

    with pytest.raises(ConnectionError, match="the tracker is gone") as caught:
        train(tmp_path / "run", callbacks=[fails])
    (note,) = caught.value.__notes__
    assert note == f"Step {at} is saved. Go on with: algd resume {tmp_path / 'run'}"
    assert note in "".join(traceback.format_exception(caught.value))
    run = Run(tmp_path / "run")
    assert run.checkpoints()[-1][0] == at
    loop.resume(run.directory)
    assert differences(whole, run) == []


class Fragile(gymnasium.Env):
    """Breaks, or forgets its cost, in the given step of a process."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    steps, breaks_at, how = 0, 0, "raise"

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        Fragile.steps += 1
        if Fragile.steps == Fragile.breaks_at:
            if Fragile.how == "raise":
                raise OSError("the robot fell over")
            return np.zeros(2, np.float32), 0.0, False, False, {}
        return np.zeros(2, np.float32), 0.0, False, False, {"cost": 1.0}


gymnasium.register("Fragile-v0", entry_point=Fragile, max_episode_steps=20)


@pytest.mark.parametrize("how", ["raise", "forget"])
@pytest.mark.parametrize("where", ["training", "overlap", "evaluation"])
def test_an_exception_of_the_environment_saves_first(where, how, tmp_path, monkeypatch):
    # Two copies are tried beforehand in training and in evaluation, 40 steps are the first one.
    first = 2 + 2 + 40
    monkeypatch.setattr(Fragile, "breaks_at", first + (40 + 5 if where == "evaluation" else 31))
    monkeypatch.setattr(Fragile, "steps", 0)
    monkeypatch.setattr(Fragile, "how", how)
    fields = {"env": "Fragile-v0", "env_options": (), "budget": (5.0,)}
    settings = Settings(**{**vars(SHORT), **fields, "overlap": where == "overlap"})
    error = OSError if how == "raise" else UserError
    with pytest.raises(error) as caught:
        train(tmp_path / "run", settings)
    step = 40 if where == "evaluation" else 30
    said = "".join(traceback.format_exception(caught.value))
    assert f"Step {step} is saved. Go on with: algd resume" in said
    assert ("the robot fell over" if how == "raise" else "reports no cost") in said
    run, _ = loop.resume(tmp_path / "run")
    assert run.checkpoints()[-1][0] == 120
    assert [row["step"] for row in run.rows("eval")] == [0, 40, 80, 120]


def test_prefill_and_time_bring_checkpoints(tmp_path, monkeypatch):
    steps = []
    write = Run.write_checkpoint

    def noted(run, step, *rest):
        steps.append(step)
        write(run, step, *rest)

    monkeypatch.setattr(Run, "write_checkpoint", noted)
    settings = Settings(**{**vars(SHORT), "eval_every": 1_000})
    train(tmp_path / "prefilled", settings, prefill=50)
    assert steps == [0, 50, 120]
    steps.clear()
    monkeypatch.setattr(loop, "LONGEST_UNSAVED", 0.0)
    train(tmp_path / "slow", settings, prefill=50)
    assert steps == [*range(0, 121, 2), 120]


# --- the best and the last -----------------------------------------------------------------------

TWO = (Budget(10.0, "a"), Budget(0.0, "b"))


def test_a_kept_budget_comes_before_any_return():
    rows = [
        {"step": 0, "return": 9.0, "cost/a": 10.0, "cost/b": 0.5},
        {"step": 1, "return": 1.0, "cost/a": 10.0, "cost/b": 0.0},
        {"step": 2, "return": 1.0, "cost/a": 2.0, "cost/b": 0.0},
        {"step": 3, "return": 8.0, "cost/a": 15.0, "cost/b": 0.0},
    ]
    assert [excess(row, TWO) for row in rows] == [0.5, 0.0, 0.0, 0.5]
    assert best_step(rows, TWO) == 1
    assert best_step(rows[2:], TWO) == 2
    assert best_step([rows[0], rows[3]], TWO) == 0
    assert best_step([], TWO) is None


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """A run of which the second evaluation is the best, with its learner at each of them."""
    returns, learners = {0: 1.0, 40: 3.0, 80: 2.0, 120: 0.0, 160: 2.5}, {}

    def rated(setup, state, wanted):
        learners[state.step] = to_arrays(state.learner)
        row = {"kind": "eval", "step": state.step, "return": returns[state.step], "cost": 1.0}
        return state, [row]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "evaluate", rated)
        settings = Settings(**{**vars(SHORT), "steps": 160, "checkpoint_every": 60})
        run = train(tmp_path_factory.mktemp("best") / "run", settings)
    return run, learners


def test_the_best_checkpoint_is_kept_beside_the_newest(judged):
    run, learners = judged
    assert [step for step, _ in run.checkpoints()] == [40, 120, 160]
    held = read_checkpoint(run, dict(run.checkpoints())[40]).learner
    assert all(np.array_equal(held[name], x) for name, x in learners[40].items())


@pytest.mark.parametrize(
    ("which", "step"), [("best", 40), ("last", 160), (120, 120), ("1.2e2", 120)]
)
def test_a_checkpoint_by_its_name(which, step, judged, tmp_path, capsys):
    run, learners = judged
    policy = load(run.directory, which)
    assert policy.standing == f"step {step} of 160"
    found = to_arrays(policy.state)
    assert all(np.array_equal(found[name], x) for name, x in learners[step].items())
    main(["evaluate", str(run.directory), "--episodes", "2", "--json", "--checkpoint", str(which)])
    told = json.loads(capsys.readouterr().out)
    assert (told["step"], told["steps"]) == (step, 160)
    main(["evaluate", str(run.directory), "--episodes", "2", "--checkpoint", str(which)])
    assert f"at step {step}" in capsys.readouterr().out
    out = tmp_path / "policy"
    main(["export", str(run.directory), "--out", str(out), "--checkpoint", str(which)])
    assert f"step {step} of 160" in capsys.readouterr().out
    assert f"| checkpoint | step {step} of 160 |" in (out / "README.md").read_text()
    film = ["--out", str(tmp_path / "film.gif"), "--every", "10", "--quiet"]
    main(["render", str(run.directory), *film, "--checkpoint", str(which)])
    assert f"the policy of step {step} of 160" in capsys.readouterr().out


@pytest.mark.parametrize("which", ["80", "bets", "-1", "nan"])
def test_a_checkpoint_that_is_not_there_is_answered_with_those_that_are(which, judged, capsys):
    with pytest.raises(SystemExit):
        main(["evaluate", str(judged[0].directory), "--checkpoint", which])
    said = capsys.readouterr().err
    assert repr(which) in said
    assert "40, 120, 160" in said
    assert "best and last" in said


def test_a_finished_run_is_loaded_without_a_word_and_an_unfinished_one_with_one(
    judged, tmp_path, recwarn
):
    load(judged[0].directory)
    load(judged[0].directory, "best")
    assert not recwarn
    run = train(tmp_path / "run", callbacks=[lambda event: event.step < 60])
    with pytest.warns(UserWarning, match=r"is unfinished: the policy is that of step 60 of 120"):
        load(run.directory)
    with pytest.warns(UserWarning, match="unfinished"):
        main(["export", str(run.directory), "--out", str(tmp_path / "policy")])


def test_the_best_is_found_again_after_going_on(judged, tmp_path):
    run, _ = judged
    shutil.copytree(run.directory, tmp_path / "run")
    longer, _ = loop.resume(tmp_path / "run", steps=200)
    kept = [step for step, _ in longer.checkpoints()]
    best = best_step(longer.rows("eval"), (Budget(20.0),))
    assert best in kept
    assert {180, 200} <= set(kept) <= {40, 160, 180, 200}


# --- stop when flat ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last_return", "last_cost", "stops"),
    [(0.0, 20.0, True), (0.0, 21.0, False), (9.0, 5.0, False)],
)
def test_a_flat_return_within_the_budget_stops(last_return, last_cost, stops, tmp_path):
    # Returns and costs rise evenly over five evaluations.
    run = write_run(tmp_path / "run", last_return=last_return, last_cost=last_cost)
    event = Event(run, "eval", 800, 900, 1.0, {})
    assert stop_when_flat(2)(event) is (False if stops else None)
    assert stop_when_flat(3)(event) is None
    assert stop_when_flat(2)(event._replace(kind="train")) is None


def test_stop_when_flat_ends_a_run(tmp_path):
    fields = {"env": "Fragile-v0", "env_options": (), "budget": (30.0,)}
    run = train(
        tmp_path / "run", Settings(**{**vars(SHORT), **fields}), callbacks=[stop_when_flat(1)]
    )
    assert run.checkpoints()[-1][0] == 40


# --- what a user sees ----------------------------------------------------------------------------

PROGRAM = """
import algd
def callback(event):
    if event.step >= 8:
        raise RuntimeError("no network")
algd.train("DiffDrive", "sac-lag", steps=400, envs=2, log_every=4, eval_episodes=1, out="run",
           env_options=["horizon=10"], callback=callback, critic_hidden=8, actor_hidden=8)
"""


def test_a_program_that_fails_says_how_to_go_on(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "RuntimeError: no network\nStep 8 is saved. Go on with: algd resume run" in done.stderr
    assert Run(tmp_path / "run").checkpoints()[-1][0] == 8


@pytest.mark.parametrize("leave", [SystemExit("closed"), KeyboardInterrupt()])
def test_who_leaves_loses_nothing_either(leave, tmp_path, recwarn):
    def callback(event):
        if event.step == 60:
            raise leave

    with pytest.raises(type(leave)) as left:
        train(tmp_path / "run", callbacks=[callback])
    # Of an exit's notes Python shows none.
    told = [str(one.message) for one in recwarn if one.category is UserWarning]
    assert any("Step 60 is saved" in one for one in told) == isinstance(leave, SystemExit)
    assert "Step 60 is saved. Go on with: algd resume" in "".join(left.value.__notes__)
    assert Run(tmp_path / "run").checkpoints()[-1][0] == 60


@pytest.mark.parametrize("wrong", [3, [print, "no"]])
def test_what_cannot_be_called_is_no_callback(wrong):
    with pytest.raises(UserError, match="A callback is a function of one event"):
        several(wrong)
    assert list(several(None)) == []


def test_python_takes_one_callback_or_several(tmp_path, monkeypatch):
    monkeypatch.setattr("algd.api.preset", lambda name: small(name))
    fields = {k: v for k, v in vars(SHORT).items() if k != "env"}
    for callback in (lambda event: False, [stop_when_flat(9), lambda event: False]):
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        run = algd.train("DiffDrive", "sac-lag", out=out, callback=callback, **fields)
        assert run.checkpoints()[-1][0] == 0
        run, _ = algd.resume(run.directory, callback=lambda event: event.step < 40)
        assert run.checkpoints()[-1][0] == 40
    assert algd.resume(run.directory, steps=80, callback=None)[0].checkpoints()[-1][0] == 80
