"""Environments of every kind, budgets of every form, and runs that another process goes on with."""

import dataclasses
import json
import os
import subprocess
import sys
import warnings
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import algd
from algd import api, envs
from algd.cli import main
from algd.envs.adapters import layout_of
from algd.envs.requirements import settled_budgets
from algd.evaluation.episodes import evaluate as roll_out
from algd.evaluation.observations import flattened
from algd.evaluation.policy import load
from algd.runs.config import Given, Settings, make_envs
from algd.runs.directory import Run
from algd.training import loop
from algd.types import Budget, EnvSpec, UserError, budgets_of
from support.jax_worlds import Cart
from support.scattered import scattered
from support.small import small

pytestmark = pytest.mark.usefixtures("unpainted")
SIZES = {"envs": 2, "steps": 24, "eval_every": 12, "eval_episodes": 2, "log_every": 8}


class Meter(gymnasium.Env):
    """Observes its position and, as a picture, the last moves; each long move costs 1."""

    observation_space = gymnasium.spaces.Dict(
        {
            "place": gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64),
            "moves": gymnasium.spaces.Box(-1.0, 1.0, (2, 2), np.float32),
        }
    )
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2, 1), np.float32)
    living: list["Meter"] = []  # noqa: RUF012

    def __init__(self, limit=0.5, ends=6):
        self.limit, self.ends = limit, ends
        Meter.living.append(self)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.count = self.np_random.uniform(), 0
        self.moves = np.zeros((2, 2), np.float32)
        return self.seen(), {}

    def seen(self):
        return {"place": np.array([self.place]), "moves": self.moves.copy()}

    def step(self, action):
        assert action.shape == (2, 1)
        self.moves = np.concatenate([self.moves[1:], action.reshape(1, 2)])
        self.place += float(action.sum())
        self.count += 1
        cost = float(np.abs(action).max() > self.limit)
        return self.seen(), self.place, self.count == self.ends, False, {"cost": cost}

    def close(self):
        Meter.living.remove(self)


def make_meter(**options):
    return gymnasium.wrappers.TimeLimit(Meter(**options), 8)


def make_vector():
    return SyncVectorEnv([make_meter, make_meter])


gymnasium.register("Meter-v0", entry_point=Meter, max_episode_steps=8)
SPEC = gymnasium.envs.registration.EnvSpec("Lost-v0", entry_point=Meter, max_episode_steps=8)
KINDS = {
    "id": "Meter-v0",
    "module:Id": "test_any_environment:Meter-v0",
    "module:Class": "test_any_environment:Meter",
    "module:function": "test_any_environment:make_meter",
    "class": Meter,
    "function": make_meter,
    "lambda": lambda: make_meter(),
    "partial": partial(make_meter, limit=0.5),
    "spec": SPEC,
    "function of copies": make_vector,
}


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(api, "preset", lambda name: small(name))
    monkeypatch.setattr(Meter, "living", [])


def numbers(run):
    return [{**row, "crc": None} for row in run.rows()]


@pytest.fixture(scope="module")
def by_id(tmp_path_factory):
    """The numbers of a run on the environment with an id."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "preset", small)
        out = tmp_path_factory.mktemp("by_id") / "run"
        return numbers(algd.train("Meter-v0", "sac-lag", budget=3, out=out, **SIZES))


@pytest.mark.filterwarnings("ignore:No other process")
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_trained_on_alike(kind, by_id, tmp_path):
    horizon = {} if kind not in ("class", "module:Class") else {"horizon": 8}
    run = algd.train(KINDS[kind], "sac-lag", budget=3, out=tmp_path / "run", **SIZES, **horizon)
    assert Meter.living == []
    assert numbers(run) == by_id


class Remote(AsyncVectorEnv):
    """Copies in processes of their own."""


@pytest.mark.parametrize("kind", ["wrapped", "async"])
def test_copies_that_are_there_are_what_they_would_be_alone(kind):
    """Costs, final observations and ends, of episodes that end at different times."""
    makers = [partial(make_meter, ends=5), partial(make_meter, ends=7)]
    mode = AutoresetMode.SAME_STEP
    if kind == "async":
        there = AsyncVectorEnv(makers, autoreset_mode=mode)
    else:
        there = gymnasium.wrappers.vector.RescaleAction(
            SyncVectorEnv(makers, autoreset_mode=mode), -1.0, 1.0
        )
    copies = envs.make(there, 2, budgets=(Budget(3.0),), horizon=8)
    listed = envs.make(SyncVectorEnv(makers), 2, budgets=(Budget(3.0),), horizon=8)
    # They seed their copies in another way: the moves tell them apart, not the places.
    moves = slice(0, 4)
    assert np.array_equal(copies.reset(0)[:, moves], listed.reset(0)[:, moves])
    ends, rng = 0, np.random.default_rng(0)
    for _ in range(20):
        actions = rng.uniform(-1, 1, (2, 2)).astype(np.float32)
        one, other = copies.step(actions), listed.step(actions)
        for name in ("cost", "terminated", "truncated", "margin"):
            assert np.array_equal(getattr(one, name), getattr(other, name)), name
        for name in ("obs", "next_obs"):
            seen = (getattr(each, name)[:, moves] for each in (one, other))
            assert np.array_equal(*seen), name
        ends += int(one.terminated.sum())
    assert ends > 4
    there.close()


def test_copies_that_are_there_are_used_and_left_open(tmp_path):
    there = SyncVectorEnv([make_meter] * 2)
    with pytest.warns(UserWarning, match="No other process finds"):
        run = algd.train(there, "sac-lag", budget=3, steps=24, out=tmp_path / "run")
    settings = run.config()["settings"]
    assert (settings["envs"], settings["eval_envs"]) == (2, 0)
    assert len(Meter.living) == 2
    assert algd.evaluate(run, 3, env=there)["episodes"] == 3
    run, _ = algd.resume(run.directory, steps=30, env=there)
    assert run.checkpoints()[-1][0] == 30
    with pytest.raises(UserError, match="has 2 copies, but --envs says 4"):
        algd.train(make_vector, "sac-lag", budget=3, steps=24, out=tmp_path / "more", envs=4)
    with pytest.raises(UserError, match="eval_envs must be 0"):
        algd.train(there, "sac-lag", budget=3, out=tmp_path / "more", eval_envs=2)
    there.close()


def test_an_environment_that_is_there_is_the_only_copy(tmp_path):
    there = make_meter()
    with pytest.warns(UserWarning, match="No other process finds Meter"):
        run = algd.train(there, "sac-lag", budget=3, steps=24, out=tmp_path / "run")
    settings = run.config()["settings"]
    assert (settings["envs"], settings["eval_envs"]) == (1, 0)
    assert algd.evaluate(run, 2, env=there)["episodes"] == 2
    assert len(Meter.living) == 1
    with pytest.raises(UserError, match="same environment again and again"):
        envs.make(lambda: there, 2, budgets=(Budget(3.0),))
    there.close()


def test_an_autoreset_that_comes_too_late_is_refused():
    late = AsyncVectorEnv([make_meter])
    with pytest.raises(UserError, match="SAME_STEP"):
        envs.make(late, 1, budgets=(Budget(3.0),), horizon=8)
    late.close()


def test_our_own_copies_keep_their_state():
    own = gymnasium.make_vec("algd/DiffDrive-v0", num_envs=3)
    adapted = envs.make(own, 3)
    assert adapted.exact_state
    assert adapted.spec == envs.make("DiffDrive", 3).spec


# --- one robot -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sac-lag", "ppo-lag"])
def test_one_copy_is_enough_for_everything(name, tmp_path):
    """As with a robot, or a simulator with one connection."""
    most = []

    class Robot(Meter):
        def __init__(self):
            super().__init__()
            most.append(len(Meter.living))

    options = {**SIZES, "envs": 1, "eval_envs": 0, "horizon": 8}
    make = lambda: Robot()  # noqa: E731
    with pytest.warns(UserWarning, match=r"--env module:Name \(in Python: env=\.\.\.\)"):
        run = algd.train(make, name, budget=3, out=tmp_path / "run", **options)
    run, _ = algd.resume(run.directory, steps=40, env=make)
    algd.evaluate(run, 3, env=make, eval_envs=1)
    assert set(most) == {1}
    assert Meter.living == []
    assert [row["step"] for row in run.rows("eval")] == [0, 12, 24, 36, 40]
    # Evaluations broke episodes off: none that was counted is longer than one.
    assert all(row.get("length", 6) == 6 for row in run.rows("train"))


def test_an_evaluation_that_borrows_leaves_no_trace_where_states_are_saved(tmp_path):
    fields = {**SIZES, "env_options": ("horizon=10",)}
    rows = []
    for copies in (0, 16):
        settings = Settings(eval_envs=copies, **fields)
        run = loop.train(settings, small("sac-lag"), "sac-lag", tmp_path / str(copies))
        rows.append([{**row, "crc": 0} for row in run.rows("train")])
    assert rows[0] == rows[1]


# --- costs and budgets ---------------------------------------------------------------------------


def too_far(obs, action, next_obs, info):
    return [float(abs(next_obs[2]) > 1.0), abs(float(action[0]))]


def test_a_cost_function_is_trained_with_and_asked_for_again(tmp_path, capsys):
    options = {**SIZES, "cost_function": too_far, "budget": {"speed": 2, "torque": 9.0}}
    with pytest.warns(UserWarning, match="Pendulum-v1 with this cost"):
        run = algd.train("Pendulum-v1", "sac-lag", out=tmp_path / "run", horizon=8, **options)
    assert [b["name"] for b in run.config()["budgets"]] == ["speed", "torque"]
    row = run.rows("eval")[-1]
    assert 0 < row["cost/torque"] <= 16.0
    with pytest.raises(SystemExit):
        main(["evaluate", str(run.directory)])
    assert "cost_function=..." in capsys.readouterr().err
    for call in (algd.evaluate, algd.resume):
        with pytest.raises(UserError, match=r"cost function .*Pendulum-v1"):
            call(run.directory)
    judged = algd.evaluate(run.directory, 2, cost_function=too_far)
    assert set(judged["cost"]) == {"speed", "torque"}
    assert judged["cost"]["torque"]["budget"] == 9.0
    again, _ = algd.resume(run.directory, steps=30, cost_function=too_far)
    assert again.config()["budgets"] == run.config()["budgets"]


@pytest.mark.parametrize(
    "given",
    [
        3,
        3.0,
        np.float32(3),
        np.int64(3),
        [3],
        (3.0,),
        np.array([3.0]),
        np.array(3),
        Budget(3.0),
        [Budget(3.0)],
        {"cost": 3},
    ],
)
def test_one_budget_in_every_form(given):
    assert budgets_of(given) == (Budget(3.0),)
    assert type(budgets_of(given)[0].limit) is float


def test_several_budgets():
    two = (Budget(1.0, "a"), Budget(2.0, "b", discounted=True))
    assert budgets_of(two) == two
    assert budgets_of({"a": 1, "b": Budget(2.0, discounted=True)}) == two
    assert budgets_of(np.array([1, 2])) == (Budget(1.0), Budget(2.0))
    for wrong in ("much", [None], {"a": "b"}, True):
        with pytest.raises(UserError, match="A budget is a number"):
            budgets_of(wrong)


def test_budgets_by_name_find_their_costs_and_are_the_same_when_it_goes_on(tmp_path):
    options = {**SIZES, "env_options": ["cost_parts=true", "horizon=10"]}
    for i, budget in enumerate([{"energy": 6.0, "hazards": 2}, [2, 6], np.array([2.0, 6.0])]):
        run = algd.train("DiffDrive", "sac-lag", budget=budget, out=tmp_path / str(i), **options)
        found = {each["name"]: each["limit"] for each in run.config()["budgets"]}
        assert found == {"hazards": 2.0, "energy": 6.0}
        algd.resume(run.directory, steps=26)
        source = algd.train(start_from=run, out=tmp_path / f"from{i}", **SIZES)
        assert source.config()["budgets"] == run.config()["budgets"]
        words = ["--from", str(run), "--out", str(tmp_path / f"cli{i}"), "--steps", "8", "--quiet"]
        main(["train", *words, "--eval-episodes", "1", "--envs", "1"])
        assert Run(tmp_path / f"cli{i}").config()["budgets"] == run.config()["budgets"]
    mixed = [Budget(2.0, "a", discounted=True), Budget(6.0, "b")]
    run = algd.train("DiffDrive", "sac-lag", budget=mixed, out=tmp_path / "mixed", **options)
    again, _ = algd.resume(run.directory, steps=26)
    assert [each["discounted"] for each in again.config()["budgets"]] == [True, False]
    told = algd.evaluate(again, 2)["cost"]
    assert [told[name]["unit"] for name in "ab"] == ["discounted sum", "sum per episode"]


@pytest.mark.parametrize(
    "budget", [{"plac": 2, "speed": 1}, {"Place": 2, "Speed": 1}, [Budget(1.0, "place"), 2.0]]
)
def test_misspelt_costs_do_not_go_by_position(budget):
    """Of an environment that names its costs, and of one that has budgets for them."""

    two, names = (Budget(9.0, "speed"), Budget(9.0, "place")), ("speed", "place")
    for own, known in ((None, names), (two, None)):
        with pytest.raises(UserError, match="speed, place"):
            settled_budgets("Meter", own, budgets_of(budget), known)
        found = settled_budgets("Meter", own, budgets_of({"place": 2, "speed": 1}), known)
        assert found == (Budget(1.0, "speed"), Budget(2.0, "place"))


def test_the_suggestion_is_a_name_that_there_is():
    with pytest.raises(UserError, match=r"no cost called 'place': .* Did you mean Place\?"):
        settled_budgets("Meter", None, (Budget(1.0, "place"), Budget(2.0, "x")), ("Place", "Speed"))


def test_a_cost_that_is_called_cost_has_a_name():
    """Although that is how a budget without a name is called."""
    own = (Budget(9.0, "cost"), Budget(9.0, "speed"))
    found = settled_budgets("Meter", own, budgets_of({"speed": 2, "cost": 1}), None)
    assert found == (Budget(1.0, "cost"), Budget(2.0, "speed"))


@pytest.mark.parametrize("own", [4, [4.0], Budget(4.0), {"cost": 4}])
def test_an_environment_may_know_its_budget(own):
    class Careful(Meter):
        budgets = own

    assert envs.make(Careful, 1, horizon=8).spec.budgets == (Budget(4.0),)
    limited = envs.make(Careful, 1, horizon=8, budgets=(Budget(1.0),))
    assert limited.spec.budgets == (Budget(1.0),)


def test_numpys_numbers_and_floats_wherever_a_number_goes(tmp_path):
    sizes = {name: np.int64(value) for name, value in SIZES.items()}
    options = {**sizes, "steps": 2.4e1, "seed": np.int32(3), "discount": np.float32(0.5)}
    run = algd.train("Meter-v0", "sac-lag", budget=np.float64(3), out=tmp_path / "run", **options)
    config = run.config()
    assert config["settings"]["steps"] == 24
    assert config["hyperparameters"]["discount"] == 0.5
    algd.resume(run.directory, steps=np.float64(26))
    assert algd.evaluate(run, np.int64(2), seed=np.int64(1))["episodes"] == 2


# --- names ---------------------------------------------------------------------------------------


def test_names():
    class Local(Meter):
        pass

    named = {
        "test_any_environment:Meter": Meter,
        "test_any_environment:make_meter": make_meter,
        "Lost-v0": SPEC,
        "make_meter": partial(make_meter),
        "SyncVectorEnv": make_vector(),
        "DiffDrive": "DiffDrive",
    }
    assert {envs.name_of(value): value for value in named.values()} == named
    assert envs.name_of(Local).endswith("<locals>.Local")
    found = [envs.is_found_again(value) for value in named.values()]
    assert found == [True, True, False, False, False, True]
    assert envs.is_found_again("Pendulum-v1")
    assert not envs.is_found_again("Meter-v0")
    assert not envs.is_found_again(Local)
    assert Given(Local, len).unnamed == ["env", "cost_function"]
    assert Given("Meter-v0").unnamed == Given(Meter).unnamed == []


def test_what_is_no_environment_is_refused():
    for wrong, said in (
        (lambda: 3, "gives int"),
        (dict, "gives dict"),
        ("test_any_environment:SIZES", "neither an environment"),
        ("test_any_environment:Mter", "There is no environment"),
    ):
        with pytest.raises(UserError, match=said):
            envs.make(wrong, 1, budgets=(Budget(1.0),))


@pytest.mark.filterwarnings("ignore:No other process")
def test_a_run_whose_environment_has_no_name_takes_it_by_env(tmp_path, capsys):
    run = algd.train(lambda: make_meter(), "sac-lag", budget=3, out=tmp_path / "run", **SIZES)
    assert run.config()["given"] == ["env"]
    for command in (["evaluate"], ["resume"], ["render", "--out", str(tmp_path / "film.gif")]):
        with pytest.raises(SystemExit):
            main([command[0], str(run.directory), *command[1:]])
        said = capsys.readouterr().err
        assert "came from a program" in said
        assert "--env module:Name" in said
    words = [str(run.directory), "--env", "test_any_environment:make_meter"]
    main(["evaluate", *words, "--episodes", "2", "--json"])
    assert json.loads(capsys.readouterr().out)["cost"]["budget"] == 3.0
    main(["render", *words, "--out", str(tmp_path / "film.gif"), "--quiet"])
    assert (tmp_path / "film.gif").exists()
    main(["resume", *words, "--steps", "30", "--quiet"])
    # Now it has a name, and is found by it.
    config = Run(tmp_path / "run").config()
    assert config["settings"]["env"] == "test_any_environment:make_meter"
    assert "given" not in config
    main(["resume", str(run.directory), "--steps", "32", "--quiet"])


def test_a_loaded_policy_is_evaluated_as_its_run_is(tmp_path):
    run = algd.train("Meter-v0", "sac-lag", budget=3, out=tmp_path / "run", **SIZES)
    policy = load(run.directory)
    told = algd.evaluate(policy, 4, seed=5)
    assert told == algd.evaluate(str(run.directory), 4, seed=5)
    assert told == algd.evaluate(algd.load(run), 4, seed=5)
    assert (told["step"], told["steps"], told["constraints"]) == (24, 24, ["cost"])
    settings = dataclasses.replace(Settings(), env="Meter-v0", budget=(3.0,))
    episodes = roll_out(policy.algorithm, policy.state, make_envs(settings, 4), 4, 5)
    assert told["return"]["mean"] == episodes.returns.mean()
    for wrong, said in (({"episodes": 0}, "--episodes"), ({"candidates": 0}, "--candidates")):
        with pytest.raises(UserError, match=said):
            algd.evaluate(run, **wrong)


def test_a_program_in_a_script_says_at_its_start_what_will_be_needed(tmp_path):
    script = """
import gymnasium, algd
from test_any_environment import Meter
class Mine(Meter): pass
if __name__ == "__main__":
    algd.train(Mine, "sac-lag", budget=3, horizon=8, steps=8, eval_episodes=1, out="run",
               critic_hidden=8, actor_hidden=8)
"""
    (tmp_path / "mine.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "mine.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "No other process finds Mine by its name" in done.stderr
    assert Run(tmp_path / "run").config()["given"] == ["env"]


# --- acting in the environment's own spaces ------------------------------------------------------


def test_predict_speaks_the_environments_spaces(tmp_path):
    run = algd.train("Meter-v0", "sac-lag", budget=3, out=tmp_path / "run", **SIZES)
    policy = load(run.directory)
    env = gymnasium.make("Meter-v0")
    obs, _ = env.reset(seed=0)
    action = policy.predict(obs)
    assert env.action_space.contains(action)
    flat = np.concatenate([obs["moves"].ravel(), obs["place"]]).astype(np.float32)
    assert np.array_equal(policy.predict(flat), action)
    obs, *_ = env.step(action)
    batch = {"place": np.stack([obs["place"]] * 3), "moves": np.stack([obs["moves"]] * 3)}
    rows, forecast = policy.predict(batch, return_info=True)
    assert (rows.shape, forecast.value.shape) == ((3, 2, 1), (3,))
    assert np.allclose(rows[1], policy.predict(obs), atol=1e-5)
    for wrong, said in (
        ({"place": obs["place"]}, r"dictionary with moves, place; this one is with place"),
        ({**obs, "moves": np.zeros(4)}, r"part /moves has the shape \[2, 2\], a batch"),
        ({**obs, "place": np.zeros((3, 1))}, "different numbers of observations"),
        (np.zeros(4), "is a dictionary"),
    ):
        with pytest.raises(UserError, match=said):
            policy.predict(wrong)


FRAMES = EnvSpec(6, (-1.0,) * 2, (1.0,) * 2, (Budget(1.0),), 5, (3, 2))
PAIRED = EnvSpec(5, (-1.0,) * 2, (1.0,) * 2, (Budget(1.0),), 5, ((2,), (3, 1)), (1, 2))


def test_stacked_frames_and_tuples():
    frames, paired = scattered("sac-lag", FRAMES), scattered("sac-lag", PAIRED)
    stack = np.arange(6, dtype=np.float32).reshape(3, 2)
    action = frames.predict(stack)
    assert np.array_equal(action, frames.predict(stack.ravel()))
    assert np.array_equal(action, frames.predict(stack.tolist()))
    assert frames.predict(stack[None]).shape == (1, 2)
    two = (np.zeros(2), np.ones((3, 1)))
    assert paired.predict(two).shape == (1, 2)
    assert np.array_equal(paired.predict(two), paired.predict(np.array([0, 0, 1, 1, 1.0])))
    assert paired.predict((np.zeros((4, 2)), np.ones((4, 3, 1)))).shape == (4, 1, 2)
    with pytest.raises(UserError, match="tuple of 2"):
        paired.predict(two[:1])


class Bare(gymnasium.Env):
    """Numbers without an axis, where it is told to have some."""

    def __init__(self, observed=(), acted=(1,)):
        box = gymnasium.spaces.Box
        parts = (box(-9, 9, observed), box(-9, 9, (1,)))
        self.observation_space = gymnasium.spaces.Tuple(parts) if observed == () else parts[1]
        self.action_space = box(-1, 1, acted)

    def _seen(self):
        return self.observation_space.sample()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self._seen(), {}

    def step(self, action):
        return self._seen(), 0.0, False, False, {"cost": 1.0}


def test_a_tuple_with_a_bare_number_is_trained_on_and_read_again(tmp_path):
    run = algd.train(Bare, "sac-lag", budget=3, horizon=8, out=tmp_path / "run", **SIZES)
    seen = Bare().observation_space.sample()
    assert seen[0].shape == ()
    assert load(run.directory).predict(seen).shape == (1,)
    assert algd.evaluate(run, 2, env=Bare)["episodes"] == 2


@pytest.mark.parametrize(("observed", "acted", "what"), [((1,), (), "actions")])
def test_bare_numbers_as_a_whole_space_are_refused(observed, acted, what, tmp_path):
    def make():
        return Bare(observed, acted)

    with pytest.raises(UserError, match=f"The {what} of .* numbers without an axis: .*\\(1,\\)"):
        algd.train(make, "sac-lag", budget=3, horizon=8, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_options_of_an_environment_may_be_a_dictionary(tmp_path):
    told = {**SIZES, "env_options": {"horizon": np.int64(10), "cost_parts": False}}
    run = algd.train("DiffDrive", "sac-lag", out=tmp_path / "run", **told)
    assert run.config()["settings"]["env_options"] == ["horizon=10", "cost_parts=false"]
    found = algd.evaluate(run, 2, env_options={"horizon": 5})
    assert found["episodes"] == 2
    with pytest.raises(UserError, match="env_options are numbers, texts"):
        algd.train("DiffDrive", "sac-lag", env_options={"horizon": object()})


@pytest.mark.parametrize("kind", [gymnasium.spaces.Dict, gymnasium.spaces.Tuple])
def test_layouts_are_those_of_gymnasiums_flatten(kind):
    boxes = [gymnasium.spaces.Box(-1, 1, shape) for shape in ((2,), (3, 2), ())]
    inner = gymnasium.spaces.Tuple(boxes[:2])
    parts = {"b": boxes[0], "a": inner, "c": boxes[2]}
    space = kind(parts if kind is gymnasium.spaces.Dict else list(parts.values()))
    for _ in range(5):
        seen = space.sample()
        expected = gymnasium.spaces.flatten(space, seen)
        assert np.array_equal(flattened(layout_of(space), seen), expected)


PAIR = """
import numpy as np, algd
from support.jax_worlds import Cart
from support.scattered import scattered
from algd.types import Budget, EnvSpec
policy = scattered("sac-lag", EnvSpec(3, (-1.0,) * 2, (1.0,) * 2, (Budget(1.0),), 5))
obs = np.zeros(3)
left, right = policy.predict(obs).tolist()
first, second = policy.predict(np.zeros((2, 3)))[:2]
action, forecast = policy.predict(obs, return_info=True)
action = policy.predict(obs)
left, right = action
one, two = [policy.predict(obs) for _ in range(2)]
one, two = policy.predict(obs), policy.predict(obs)
for _ in range(300):
    policy.predict(obs)
mistakes = ["action, state = policy.predict(obs)", "a, _ = policy.predict(obs, mode='sampled')"]
for mistake in mistakes:
    try:
        exec(mistake)
    except algd.UserError as error:
        print(str(error)[:32])
"""


def test_a_pair_of_another_library_is_refused():
    """In a program of its own: here every function is wrapped."""
    done = subprocess.run(
        [sys.executable, "-c", PAIR],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "predict returns the action alone\n" * 2


@pytest.mark.parametrize("kind", ["class", "object"])
def test_an_environment_in_jax_is_one_of_them(kind, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if kind == "object" else "error", UserWarning)
        agent = algd.Agent(
            "sac-lag", Cart if kind == "class" else Cart(), out=tmp_path / "run", **SIZES
        )
    agent.learn(24).learn(12)
    config = agent.run.config()
    assert (config["settings"]["loop"], agent.run.checkpoints()[-1][0]) == ("device", 36)
    assert config.get("given", []) == (["env"] if kind == "object" else [])
    assert agent.evaluate(2)["step"] == 36
