"""Anyone's environment as a CostVectorEnv, and what is said to those whose is none."""

import pathlib
import re
import subprocess
import sys
import textwrap
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from algd import envs
from algd.cli import main
from algd.envs import adapters, requirements
from algd.registration import VELOCITY_TASKS
from algd.runs.directory import Run
from algd.types import Budget, CostVectorEnv, UserError
from support.walks import (
    Costless,
    DiscreteActions,
    DiscreteObservations,
    FourValues,
    GrowingCost,
    InPlace,
    NegativeCost,
    Nested,
    NoActions,
    NoObservations,
    NotANumber,
    OddReward,
    SixValues,
    TwoCosts,
    UnboundedActions,
    Walk,
    WholeNumberActions,
    WordyCost,
)

GUIDE = pathlib.Path(__file__).parents[2] / "docs" / "own_environment.md"
NAMESPACE = "adapter-tests"
ONE_BUDGET = (Budget(5.0),)


def registered(env_class: type, max_episode_steps: int | None = 10) -> str:
    env_id = f"{NAMESPACE}/{env_class.__name__}{max_episode_steps or ''}-v0"
    if env_id not in gymnasium.registry:
        gymnasium.register(env_id, entry_point=env_class, max_episode_steps=max_episode_steps)
    return env_id


def made(env_class: type, num_envs: int = 1, budgets=ONE_BUDGET, **options):
    return envs.make(registered(env_class), num_envs, budgets=budgets, **options)


def push(env: CostVectorEnv, value: float) -> np.ndarray:
    return np.full((env.num_envs, env.spec.action_size), value, np.float32)


def test_contract():
    env = made(Walk, 3)
    assert isinstance(env, CostVectorEnv)
    assert not env.exact_state
    assert env.spec.obs_size == 2
    assert env.spec.action_low == (-1.0,)
    assert env.spec.action_high == (1.0,)
    assert env.spec.budgets == (Budget(5.0),)
    assert env.spec.horizon == 10
    obs = env.reset(0)
    step = env.step(push(env, 0.5))
    assert obs.dtype == step.obs.dtype == step.reward.dtype == step.cost.dtype == np.float32
    assert obs.shape == step.obs.shape == step.next_obs.shape == (3, 2)
    assert step.cost.shape == step.margin.shape == (3, 1)
    np.testing.assert_allclose(step.next_obs[:, 0], obs[:, 0] + 0.5, rtol=1e-6)
    np.testing.assert_allclose(step.reward, -step.next_obs[:, 0])


@pytest.mark.parametrize("env_class", [Walk, SixValues])
def test_the_last_step_of_an_episode_is_kept_apart_from_the_next_episode(env_class):
    env = made(env_class, 2)
    place = env.reset(3)[:, 0]
    for count in range(1, 5):
        step = env.step(push(env, 0.9))
        place = place + 0.9
        over = place > 3.0
        np.testing.assert_allclose(step.next_obs[:, 0], place, rtol=1e-6)
        np.testing.assert_allclose(step.next_obs[:, 1], count)
        np.testing.assert_allclose(step.cost[:, 0], np.maximum(0.0, place - 2.0), atol=1e-6)
        np.testing.assert_array_equal(step.terminated, over)
        np.testing.assert_array_equal(step.goal_met, over)
        np.testing.assert_array_equal(step.margin[:, 0], np.where(place > 2.0, 1.0, -1.0))
        assert not step.truncated.any()
        if over.any():
            break
        np.testing.assert_array_equal(step.obs, step.next_obs)
    assert over.any()
    np.testing.assert_array_equal(step.obs[over, 1], 0.0)
    assert (step.obs[over, 0] < 1.0).all()
    np.testing.assert_array_equal(step.obs[~over], step.next_obs[~over])


@pytest.mark.parametrize("env_class", [Walk, SixValues])
def test_time_limit_truncates_and_does_not_terminate(env_class):
    env = made(env_class, 2)
    env.reset(0)
    ends = [env.step(push(env, 0.0)) for _ in range(20)]
    assert [bool(step.truncated.all()) for step in ends] == ([False] * 9 + [True]) * 2
    assert not any(step.terminated.any() for step in ends)
    np.testing.assert_array_equal(ends[9].next_obs[:, 1], 10.0)
    np.testing.assert_array_equal(ends[9].obs[:, 1], 0.0)


def test_horizon_argument():
    env_id = registered(Walk, max_episode_steps=None)
    env = envs.make(env_id, 1, budgets=(Budget(1.0),), horizon=3)
    assert env.spec.horizon == 3
    env.reset(0)
    assert [bool(env.step(push(env, 0.0)).truncated[0]) for _ in range(3)] == [False, False, True]


def test_time_limit_inside_the_constructor_is_found():
    env_id = f"{NAMESPACE}/Limited-v0"
    gymnasium.register(env_id, entry_point=lambda: gymnasium.wrappers.TimeLimit(Walk(), 7))
    assert envs.make(env_id, 1, budgets=(Budget(1.0),)).spec.horizon == 7


def test_several_constraints_and_given_margins():
    env = made(TwoCosts, 2, budgets=(Budget(5.0, "far"), Budget(9.0, "always", discounted=True)))
    place = env.reset(0)[:, 0]
    step = env.step(push(env, 1.0))
    np.testing.assert_array_equal(step.cost[:, 1], 1.0)
    np.testing.assert_allclose(step.margin[:, 0], place - 1.0, atol=1e-6)
    np.testing.assert_array_equal(step.margin[:, 1], 7.0)
    assert [budget.name for budget in env.spec.budgets] == ["far", "always"]


def test_nested_spaces_are_flattened():
    env = made(Nested)
    assert env.spec.obs_size == 5
    assert env.spec.action_low == (-0.5, -0.5)
    assert env.spec.action_high == (2.0, 2.0)
    obs = env.reset(0)
    # Gymnasium's Dict goes by the names of its parts.
    np.testing.assert_array_equal(obs[0, :3], 9.0)
    step = env.step(np.array([[0.25, 0.5]], np.float32))
    np.testing.assert_allclose(step.next_obs[0, 3], obs[0, 3] + 0.75)


@pytest.mark.parametrize("env_class", [Costless, TwoCosts, InPlace])
def test_cost_function_sees_both_sides_of_the_step(env_class):
    def travelled(obs, action, next_obs, info):
        return [next_obs[0] - obs[0], float(action[0])]

    env = made(env_class, 2, budgets=(Budget(1.0), Budget(1.0)), cost_function=travelled)
    env.reset(0)
    for _ in range(2):
        step = env.step(push(env, 0.25))
        np.testing.assert_allclose(step.cost, 0.25, rtol=1e-6)
        # The environment's own margins tell of its own costs.
        np.testing.assert_array_equal(step.margin, 1.0)


def test_cost_function_on_a_task_of_ours():
    env = envs.make(
        "HopperVelocity",
        1,
        budgets=(Budget(3.0),),
        cost_function=lambda obs, action, next_obs, info: info["reward_survive"],
    )
    assert env.spec.budgets == (Budget(3.0),)
    assert env.spec.horizon == 1000
    env.reset(0)
    assert env.step(push(env, 0.0)).cost[0, 0] == 1.0


def test_nan_from_an_environment_is_passed_on():
    env = made(NotANumber)
    env.reset(0)
    step = env.step(push(env, 0.0))
    assert np.isnan(step.next_obs).all()
    assert np.isnan(step.reward).all()
    assert np.isnan(step.cost).all()


def test_seeds():
    env = made(Walk, 4)
    first = env.reset(5)
    assert len(np.unique(first[:, 0])) == 4
    np.testing.assert_array_equal(env.reset(5), first)
    assert not np.isin(env.reset(6)[:, 0], first[:, 0]).any()
    # A copy's episodes do not depend on how many others there are, and neither repeat.
    alone = made(Walk, 1)
    np.testing.assert_array_equal(alone.reset(5), first[:1])
    starts = [alone.step(push(alone, 0.0)).obs[0, 0] for _ in range(30)]
    assert len(np.unique(starts)) == 4
    assert len(set(adapters.copy_seeds(0, 1000))) == 1000


def test_generator_state_continues_a_generator():
    generator = np.random.default_rng(3)
    generator.integers(0, 7, dtype=np.int32)  # leaves half a word in the generator
    copied = adapters.restored_generator(adapters.generator_state(generator))
    for draw in (lambda g: g.integers(0, 1 << 30, 5, dtype=np.int32), lambda g: g.normal(size=5)):
        np.testing.assert_array_equal(draw(copied), draw(generator))
    with pytest.raises(ValueError, match="MT19937"):
        adapters.generator_state(np.random.Generator(np.random.MT19937(0)))


def test_inexact_state_asks_for_a_reset():
    env = made(Walk)
    env.reset(0)
    state = env.save_state()
    assert state == {}
    env.restore_state(state)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(push(env, 0.0))
    env.reset(1)
    env.step(push(env, 0.0))


def test_step_before_reset():
    env = made(Walk)
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
        env.step(push(env, 0.0))


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (np.array([[np.nan], [0.0]], np.float32), "not finite"),
        (np.array([[np.inf], [0.0]], np.float32), "not finite"),
        (np.array([[1.1], [0.0]], np.float32), "out of its bounds"),
        (np.zeros((1, 1), np.float32), r"\(1, 1\) instead of \(2, 1\)"),
        (np.zeros((2, 3), np.float32), r"\(2, 3\) instead of \(2, 1\)"),
    ],
)
def test_bad_actions(actions, message):
    env = made(Walk, 2)
    env.reset(0)
    with pytest.raises(ValueError, match=message):
        env.step(actions)


def test_rounding_is_no_mistake():
    env = made(Walk)
    place = env.reset(0)[0, 0]
    step = env.step(push(env, 1.000001))
    np.testing.assert_allclose(step.next_obs[0, 0], place + 1.0, rtol=1e-7)


@pytest.mark.parametrize(
    ("env_class", "arguments", "message"),
    [
        (DiscreteActions, {}, r"Discrete\(2\).*only a Box of floats"),
        (WholeNumberActions, {}, "int64.*only a Box of floats"),
        (UnboundedActions, {}, "no finite bounds.*RescaleAction"),
        (DiscreteObservations, {}, r"Discrete\(3\).*Dict or Tuple"),
        (NoActions, {}, "nothing to choose"),
        (NoObservations, {}, "nothing to learn from"),
        (Walk, {"budgets": None}, "--budget"),
        (Walk, {"budgets": ()}, "--budget"),
        (Walk, {"budgets": (Budget(-1.0),)}, r"-1\.0 .*not negative"),
        (Walk, {"budgets": (Budget(np.nan, "heat"),)}, "nan for 'heat'"),
        (Walk, {"budgets": (Budget(np.inf),)}, "finite"),
        (Walk, {"num_envs": 0}, "0 copies.*at least 1"),
        (Walk, {"horizon": 0}, "at least 1 step, not 0"),
        (Walk, {"env_options": {"colour": "red"}}, "colour='red'.*no arguments"),
    ],
)
def test_refused_at_once(env_class, arguments, message):
    with pytest.raises(UserError, match=message):
        made(env_class, **arguments)


def test_no_horizon():
    env_id = registered(Walk, max_episode_steps=None)
    with pytest.raises(UserError, match=r"no time limit.*--horizon"):
        envs.make(env_id, 1, budgets=(Budget(1.0),))


@pytest.mark.parametrize(
    ("env_class", "arguments", "message"),
    [
        (Costless, {}, r"reports no cost.*info\['cost'\].*around it"),
        (Walk, {"budgets": (Budget(1.0), Budget(2.0))}, r"shape \(1,\), but 2 budget.*1\.0, 2\.0"),
        (TwoCosts, {}, r"shape \(2,\), but 1 budget"),
        (WordyCost, {}, "'high' as its cost"),
        (OddReward, {"env_options": {"reward": "1.0"}}, "'1.0' as its reward"),
        (OddReward, {"env_options": {"reward": None}}, "None as its reward"),
        (OddReward, {"env_options": {"reward": [1.0, 2.0]}}, r"\[1.0, 2.0\] as its reward"),
        (OddReward, {"env_options": {"reward": 1j}}, "1j as its reward"),
        (FourValues, {}, "returned 4 values"),
    ],
)
def test_refused_by_a_trial_step(env_class, arguments, message):
    with pytest.raises(UserError, match=message):
        made(env_class, **arguments)


@pytest.mark.parametrize("reward", [1, True, np.array([1.0]), np.float32(1.0), [[1.0]]])
def test_a_reward_is_one_number(reward):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = made(OddReward, env_options={"reward": reward})
        env.reset(0)
        assert env.step(push(env, 0.0)).reward.tolist() == [1.0]


def test_a_negative_cost_is_told_once():
    with pytest.warns(UserWarning, match="negative cost"):
        env = made(NegativeCost)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env.reset(0)
        assert env.step(push(env, 0.0)).cost.tolist() == [[-1.0]]


def test_a_cost_that_changes_its_length_is_refused_when_it_does():
    env = made(GrowingCost)
    env.reset(0)
    env.step(push(env, 0.0))
    with pytest.raises(UserError, match=r"shape \(2,\) after one of length 1.*must not change"):
        env.step(push(env, 0.0))


def test_budgets_of_our_tasks_keep_what_a_plain_budget_leaves_open():
    defaults = (Budget(10.0, "hazards"), Budget(3.0, "buttons", discounted=True))
    given = (Budget(1.0), Budget(2.0, "touches"))
    assert requirements.with_new_limits("Task", defaults, given) == (
        Budget(1.0, "hazards"),
        Budget(2.0, "touches", discounted=True),
    )
    with pytest.raises(UserError, match=r"2 constraint.*hazards, buttons.*1 budget"):
        requirements.with_new_limits("Task", defaults, given[:1])
    with pytest.raises(UserError, match="not negative"):
        requirements.with_new_limits("Task", defaults, (Budget(1.0), Budget(-2.0)))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("HalfCheetahVelocty", "Did you mean HalfCheetahVelocity "),
        ("diffdrive", "Did you mean DiffDrive"),
        ("HalfCheetah-v55", "HalfCheetah-v5"),
        ("nothing like it", "Our own are .*DiffDrive.*HopperVelocity"),
        ("no_such_module:Thing-v0", "module 'no_such_module'"),
        ("math:Thing-v0", "no environment 'Thing-v0'"),
        ("HalfCheetah-v3", "could not be made: .*moved to"),
    ],
)
def test_unknown_or_unusable_names(given, message):
    with pytest.raises(UserError, match=message):
        envs.make(given, 1, budgets=(Budget(1.0),))


def test_module_and_id(tmp_path, monkeypatch):
    (tmp_path / "somebodys_module.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.mujoco.swimmer_v5 import SwimmerEnv\n"
        "class Swimmer(SwimmerEnv):\n"
        "    def step(self, action):\n"
        "        *answer, info = super().step(action)\n"
        "        return *answer, info | {'cost': 0.5}\n"
        "gymnasium.register('Somebodys-v3', entry_point=Swimmer, max_episode_steps=20)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    env = envs.make("somebodys_module:Somebodys-v3", 1, budgets=(Budget(1.0),))
    assert env.spec.horizon == 20
    env.reset(0)
    assert env.step(push(env, 0.0)).cost[0, 0] == 0.5


def test_names_and_registration():
    assert {"DiffDrive", *VELOCITY_TASKS} <= set(envs.names())
    for name in envs.names():
        assert f"algd/{name}-v0" in gymnasium.registry


@pytest.mark.exact
@pytest.mark.parametrize("name", envs.names())
def test_every_task_of_ours_keeps_the_contract(name):
    env, other = envs.make(name, 2), envs.make(name, 2)
    assert isinstance(env, CostVectorEnv)
    assert env.exact_state
    first = env.reset(0)
    np.testing.assert_array_equal(other.reset(0), first)
    assert first.shape == (2, env.spec.obs_size)
    low, high = np.array(env.spec.action_low), np.array(env.spec.action_high)
    shape = (40, 2, env.spec.action_size)
    actions = np.random.default_rng(0).uniform(low, high, shape).astype(np.float32)
    for action in actions[:20]:
        step = env.step(action)
        assert step.next_obs.shape == step.obs.shape == first.shape
        assert step.cost.shape == step.margin.shape == (2, len(env.spec.budgets))
        assert all(np.isfinite(field).all() for field in step)
        going_on = ~(step.terminated | step.truncated)
        np.testing.assert_array_equal(step.obs[going_on], step.next_obs[going_on])
    other.restore_state(env.save_state())
    for action in actions[20:]:
        for field, repeated in zip(env.step(action), other.step(action), strict=True):
            np.testing.assert_array_equal(field, repeated)
    with pytest.raises(ValueError, match="not finite"):
        env.step(push(env, np.nan))
    env.close()


def test_gymnasium_alone_finds_our_tasks_and_loads_nothing_it_does_not_need():
    program = (
        "import sys, gymnasium\n"
        "gymnasium.make_vec('algd.envs:algd/SwimmerVelocityIndicator-v0', num_envs=2).reset()\n"
        "assert 'algd.envs.diff_drive' not in sys.modules\n"
    )
    light = "import sys, algd.envs; sys.exit(int('mujoco' in sys.modules))"
    for source in (program, light):
        subprocess.run([sys.executable, "-c", source], check=True)


def guide(language: str) -> str:
    """The first block of the guide in this language."""
    found = re.search(rf"```{language}[^\n]*\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert found is not None
    return found.group(1)


def test_environment_of_the_guide():
    scope = {"__name__": "corridor"}
    exec(guide("python"), scope)
    check_env(scope["Corridor"]())
    env = envs.make(scope["Corridor"], 2)
    assert env.spec.horizon == 50
    assert env.spec.budgets == (Budget(5.0),)
    env.reset(0)
    costs = [env.step(push(env, 1.0)).cost for _ in range(7)]
    # The speed is 1 - 0.9^t.
    assert [cost[0, 0] for cost in costs] == [0.0] * 6 + [1.0]
    assert len(guide("python").splitlines()) <= 40


def test_program_and_commands_of_the_guide(tmp_path, monkeypatch, capsys):
    """In processes of their own, as a reader would: the program, then commands on its run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    # Shorter than the guide says, with small networks, but with gradient rounds.
    program = guide("python")
    less = "prefill=100, critic_hidden=16, score_hidden=16, batch_size=16, denoise_steps=3"
    for long, short in (
        ('out="runs/corridor"', f'out="runs/corridor", eval_episodes=2, {less}'),
        ("2_000", "140"),
        ("episodes=20", "episodes=2"),
    ):
        assert long in program
        program = program.replace(long, short)
    (tmp_path / "corridor.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "corridor.py"], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "'budget': 5.0" in done.stdout
    assert "No other process finds Corridor by its name" in done.stderr
    commands = guide("bash").splitlines()
    assert [line.split()[1] for line in commands] == ["evaluate", "resume", "render"]
    for line in commands:
        main(line.replace("3000", "148").split()[1:])
    shown = capsys.readouterr().out
    assert "at step 140" in shown
    assert "the policy of step 148 of 148" in shown
    assert (tmp_path / "corridor.gif").stat().st_size > 1_000
    few = "--steps 8 --envs 2 --eval-episodes 1 --quiet --out runs/again"
    assert "`algd train --env corridor:Corridor --steps 2000`" in GUIDE.read_text()
    main(f"train --env corridor:Corridor {few}".split())
    assert Run(pathlib.Path("runs/again")).config()["budgets"][0]["limit"] == 5.0


def test_cost_function_of_the_guide(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = re.search(r"   ```python\n(.*?)   ```", GUIDE.read_text(), re.DOTALL)
    assert found is not None
    program = textwrap.dedent(found.group(1))
    assert "steps=1_000" in program
    scope = {}
    with pytest.warns(UserWarning, match="Pendulum-v1 with this cost"):
        exec(program.replace("steps=1_000", "steps=8, eval_episodes=1"), scope)
    row = scope["run"].rows("eval")[-1]
    assert 0.0 <= row["cost"] <= 200.0


def test_diff_drive_of_another_length():
    env = envs.make("DiffDrive", 2, env_options={"horizon": 10, "cost_parts": True})
    assert env.spec.horizon == 10
    # In proportion to the 20 and 100 of 200 steps.
    assert [budget.limit for budget in env.spec.budgets] == [1.0, 5.0]
    env.reset(0)
    ends = [bool(env.step(np.zeros((2, 2), np.float32)).truncated.all()) for _ in range(20)]
    assert [i for i, end in enumerate(ends, 1) if end] == [10, 20]
    with pytest.raises(UserError, match="at least 1, not 0"):
        envs.make("DiffDrive", 1, env_options={"horizon": 0})


def test_the_end_of_an_episode_can_be_looked_at():
    env = gymnasium.make("algd/DiffDrive-v0", render_mode="rgb_array", horizon=3)
    env.reset(seed=0)
    before = env.render()
    ends = [env.step(np.zeros(2, np.float32))[3] for _ in range(3)]
    assert ends == [False, False, True]
    assert np.mean(env.render() != before) < 0.01
    env.reset()
    assert np.mean(env.render() != before) > 0.01
