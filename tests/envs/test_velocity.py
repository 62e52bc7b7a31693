"""The velocity tasks: costs from the positions, budgets, ends of episodes, exact states."""

import math

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from algd import envs
from algd.envs.velocity import TASKS, VelocityEnv
from algd.registration import VELOCITY_TASKS
from algd.types import Budget, UserError

PAPER = {
    # discounted budget, constant speed that spends it, size of the observation
    "HalfCheetahVelocity": (151.989, 1.520, 17),
    "HopperVelocity": (82.748, 0.828, 11),
    "AntVelocity": (103.115, 1.031, 27),
    "HumanoidVelocity": (20.140, 0.201, 45),
}
INDICATOR = {
    # threshold, size of the observation
    "HalfCheetahVelocityIndicator": (3.2096, 17),
    "HopperVelocityIndicator": (0.7402, 11),
    "AntVelocityIndicator": (2.6222, 105),
    "HumanoidVelocityIndicator": (1.4149, 348),
    "Walker2dVelocityIndicator": (2.3415, 17),
    "SwimmerVelocityIndicator": (0.2282, 8),
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """MuJoCo logs its warnings to a file where it runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def actions_for(env, count: int, *, seed: int = 0) -> np.ndarray:
    low, high = np.array(env.spec.action_low), np.array(env.spec.action_high)
    shape = (count, env.num_envs, env.spec.action_size)
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


def place(data, body: str) -> np.ndarray:
    """Where Gymnasium sees the body in the plane, from the physics alone."""
    if body == "Humanoid-v5":
        mass = data.model.body_mass
        return (mass @ data.xipos / mass.sum())[:2].copy()
    if body == "Ant-v5":
        return data.body("torso").xpos[:2].copy()
    x = data.qpos[0]
    return np.array([x, 0.0])


def test_every_task_is_registered_and_none_is_forgotten():
    assert set(TASKS) == set(VELOCITY_TASKS) == {*PAPER, *INDICATOR}


@pytest.mark.parametrize("name", TASKS)
def test_costs_follow_from_the_positions(name):
    env = VelocityEnv(name)
    env.reset(seed=1)
    env.action_space.seed(1)
    data, body = env._body.data, TASKS[name].body
    dt = env._body.model.opt.timestep * env._body.frame_skip
    for t in range(15):
        # A running start of either direction, so that thresholds are met from both sides.
        data.qvel[0] += (6.0, -6.0, 0.0)[t % 3]
        before = place(data, body)
        *_, info = env.step(env.action_space.sample())
        vx, vy = (place(data, body) - before) / dt
        speed = math.hypot(vx, vy)
        if name in PAPER:
            expected, margin = speed, speed - PAPER[name][0] / sum(0.99**k for k in range(1000))
        else:
            signed = speed if body in ("Ant-v5", "Humanoid-v5") else vx
            threshold, _ = INDICATOR[name]
            expected, margin = float(signed > threshold), signed - threshold
        assert info["cost"] == pytest.approx(expected, abs=1e-9)
        assert info["margin"] == pytest.approx(margin, abs=1e-9)
        assert not info["diverged"]


@pytest.mark.parametrize("name", INDICATOR)
def test_thresholds_are_met_from_both_sides(name):
    env = VelocityEnv(name)
    costs = set()
    for push in (-3.0, 6.0):
        env.reset(seed=0)
        env._body.data.qvel[0] = push
        *_, info = env.step(np.zeros(env.action_space.shape, np.float32))
        costs.add((push > 0.0, info["cost"]))
    two_ways = "Ant" in name or "Humanoid" in name
    assert costs == {(True, 1.0), (False, float(two_ways))}


@pytest.mark.parametrize("name", TASKS)
def test_specification(name):
    env = envs.make(name, 2)
    assert env.exact_state
    assert env.spec.horizon == 1000
    if name in PAPER:
        limit, speed, size = PAPER[name]
        assert env.spec.budgets == (Budget(limit, discounted=True, rate=True),)
        assert VelocityEnv(name).speed_limit == pytest.approx(speed, abs=5e-4)
    else:
        _, size = INDICATOR[name]
        assert env.spec.budgets == (Budget(25.0),)
    assert env.reset(0).shape == (2, env.spec.obs_size) == (2, size)
    env.close()


@pytest.mark.parametrize("name", TASKS)
def test_the_body_is_gymnasiums(name):
    env, body = VelocityEnv(name), gymnasium.make(TASKS[name].body)
    obs, _ = env.reset(seed=7)
    expected, _ = body.reset(seed=7)
    env.action_space.seed(7)
    np.testing.assert_array_equal(obs, expected[: len(obs)])
    for _ in range(20):
        action = env.action_space.sample()
        obs, reward, terminated, truncated, info = env.step(action)
        expected, its_reward, its_end, _, its_info = body.step(action)
        np.testing.assert_array_equal(obs, expected[: len(obs)])
        assert reward == its_reward
        assert terminated == its_end
        assert not truncated
        assert set(info) == set(its_info) | {"cost", "margin", "diverged"}
        if terminated:
            break


@pytest.mark.parametrize("name", TASKS)
def test_gymnasiums_checker_is_content(name, recwarn):
    check_env(gymnasium.make(f"algd/{name}-v0").unwrapped, skip_render_check=True)
    complaints = [str(warning.message) for warning in recwarn]
    # Gymnasium's own bodies have unbounded observations.
    assert [text for text in complaints if "infinity" not in text] == []


@pytest.mark.exact
@pytest.mark.parametrize("name", TASKS)
def test_a_restored_state_continues_to_the_last_bit(name):
    env, other = envs.make(name, 2), envs.make(name, 2)
    env.reset(0)
    other.reset(1)
    actions = actions_for(env, 120)
    for action in actions[:17]:
        env.step(action)
    state = {key: value.copy() for key, value in env.save_state().items()}
    assert all(value.dtype != object for value in state.values())
    going_on = [env.step(action) for action in actions[17:]]
    other.restore_state(state)
    restored = [other.step(action) for action in actions[17:]]
    for step, again in zip(going_on, restored, strict=True):
        for field, repeated in zip(step, again, strict=True):
            np.testing.assert_array_equal(field, repeated)
    if "Hopper" in name:
        # Then resets were among the steps, and the generators had to go on as well.
        assert sum(step.terminated.sum() for step in going_on) > 1


def test_the_clock_is_part_of_the_state():
    env, other = envs.make("SwimmerVelocityIndicator", 1), envs.make("SwimmerVelocityIndicator", 1)
    env.reset(0)
    rest = np.zeros((1, 2), np.float32)
    for _ in range(990):
        assert not env.step(rest).truncated.any()
    other.restore_state(env.save_state())
    for each in (env, other):
        steps = [each.step(rest) for _ in range(11)]
        assert [bool(step.truncated[0]) for step in steps] == [False] * 9 + [True, False]
        assert not any(step.terminated.any() for step in steps)
        # The tenth step led on, and the next episode starts elsewhere.
        assert not np.array_equal(steps[9].next_obs, steps[9].obs)
        np.testing.assert_allclose(steps[9].next_obs, steps[8].next_obs, atol=0.05)


def test_falling_terminates_and_final_observations_are_unhealthy():
    env = envs.make("HopperVelocity", 3)
    env.reset(0)
    ended = 0
    for action in actions_for(env, 150):
        step = env.step(action)
        assert not step.truncated.any()
        angle, height = step.next_obs[:, 1], step.next_obs[:, 0]
        healthy = (height > 0.7) & (np.abs(angle) < 0.2)
        np.testing.assert_array_equal(step.terminated, ~healthy)
        assert (np.abs(step.obs[:, 1]) < 0.2).all()
        ended += step.terminated.sum()
    assert ended > 3


def test_vector_infos_are_of_the_step_just_taken():
    vector = gymnasium.make_vec("algd/HopperVelocity-v0", num_envs=2)
    assert vector.metadata["autoreset_mode"] is gymnasium.vector.AutoresetMode.SAME_STEP
    vector.reset(seed=0)
    vector.action_space.seed(0)
    position = np.zeros(2)
    for _ in range(300):
        obs, _, terminated, _, infos = vector.step(vector.action_space.sample())
        assert infos["cost"].shape == infos["margin"].shape == (2,)
        if not terminated.any():
            position = infos["x_position"]
            assert "final_obs" not in infos
            continue
        moved = np.abs(infos["x_position"] - position) / 0.008
        np.testing.assert_allclose(infos["cost"], moved, rtol=1e-6)
        np.testing.assert_array_equal(infos["_final_obs"], terminated)
        assert infos["final_obs"].shape == obs.shape == (2, 11)
        assert not np.array_equal(infos["final_obs"][terminated], obs[terminated])
        break
    assert terminated.any()
    vector.close()


def test_seeds():
    env = envs.make("HalfCheetahVelocity", 3)
    first = env.reset(4)
    assert len(np.unique(first[:, 0])) == 3
    steps = [env.step(action) for action in actions_for(env, 5)]
    np.testing.assert_array_equal(env.reset(4), first)
    again = [env.step(action) for action in actions_for(env, 5)]
    np.testing.assert_array_equal(steps[-1].obs, again[-1].obs)
    assert not np.isin(env.reset(5)[:, 0], first[:, 0]).any()


def test_a_new_limit_moves_the_margin_with_it():
    env, usual = (
        envs.make("HalfCheetahVelocity", 1, budgets=(Budget(100.0),)),
        envs.make("HalfCheetahVelocity", 1),
    )
    assert env.spec.budgets == (Budget(100.0, discounted=True, rate=True),)
    env.reset(0)
    usual.reset(0)
    still = np.zeros((1, 6), np.float32)
    moved = env.step(still).margin - usual.step(still).margin
    per_step = 0.01 / (1.0 - 0.99**1000)
    np.testing.assert_allclose(moved, (151.989 - 100.0) * per_step, rtol=1e-5)
    with pytest.raises(UserError, match=r"1 constraint.*2 budget"):
        envs.make("HalfCheetahVelocity", 1, budgets=(Budget(1.0), Budget(2.0)))
    with pytest.raises(UserError, match="1000 steps"):
        envs.make("HalfCheetahVelocity", 1, horizon=10)


@pytest.mark.parametrize("name", ["HalfCheetahVelocity", "AntVelocityIndicator"])
@pytest.mark.parametrize("value", [np.nan, 1e12])
def test_divergence_ends_the_episode_with_a_flag(name, value):
    env = VelocityEnv(name)
    env.reset(seed=0)
    still = np.zeros(env.action_space.shape, np.float32)
    sound, *_ = env.step(still)
    env._body.data.qvel[:] = value
    obs, reward, terminated, truncated, info = env.step(still)
    assert terminated
    assert not truncated
    assert info["diverged"]
    np.testing.assert_array_equal(obs, sound)
    assert reward == 0.0
    assert np.isfinite([info["cost"], info["margin"]]).all()
    env.reset()
    *_, info = env.step(still)
    assert not info["diverged"]


def test_divergence_in_one_copy_leaves_the_others_alone():
    env = envs.make("HalfCheetahVelocity", 3)
    env.reset(0)
    still = np.zeros((3, 6), np.float32)
    env.step(still)
    env._envs.envs[1]._body.data.qvel[:] = np.nan
    step = env.step(still)
    np.testing.assert_array_equal(step.terminated, [False, True, False])
    assert all(np.isfinite(field).all() for field in step)
    assert not env.step(still).terminated.any()


def test_bad_input():
    env = VelocityEnv("HopperVelocity")
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(np.zeros(3, np.float32))
    env.reset(seed=0)
    for action, message in [
        (np.full(3, np.nan, np.float32), "not finite"),
        (np.full(3, 1.5, np.float32), "out of its bounds"),
        (np.zeros(2, np.float32), r"\(2,\) instead of \(3,\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            env.step(action)
    with pytest.raises(UserError, match=r"'Hoper'.*HopperVelocity"):
        VelocityEnv("Hoper")
    with pytest.raises(UserError, match=r"colour='red'.*unexpected keyword"):
        envs.make("HopperVelocity", 1, env_options={"colour": "red"})


def test_quiet_and_without_a_log_in_the_users_folder(folder, capfd):
    envs.make("HalfCheetahVelocity", 2).reset(0)
    assert capfd.readouterr() == ("", "")
    assert list(folder.iterdir()) == []


def test_render_mode_reaches_gymnasium(monkeypatch):
    env = gymnasium.make("algd/HalfCheetahVelocity-v0", render_mode="rgb_array")
    env.reset(seed=0)
    picture = np.zeros((4, 4, 3), np.uint8)
    renderer = env.unwrapped._body.mujoco_renderer
    monkeypatch.setattr(renderer, "render", lambda mode: picture if mode == "rgb_array" else None)
    assert env.render() is picture
