import warnings
from itertools import pairwise

import gymnasium
import mujoco
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from scipy.spatial.transform import Rotation

from algd.envs.safety_gym.env import SafetyGymEnv, SafetyGymVectorEnv
from algd.envs.safety_gym.layout import Layout, draw_layout
from algd.envs.safety_gym.lidar import lidar_cells, pseudo_lidar
from algd.envs.safety_gym.scene import compile_scene, place
from algd.envs.safety_gym.tasks import HORIZON, TASKS
from algd.envs.safety_gym.world import rotation_matrices
from algd.profiling.env import bench_env
from algd.registration import SAFETY_GYM_TASKS
from algd.types import Budget

LAYOUTS = ("fixed", "random")
# Below, at and above the lengths of vectors, and such as leave a rest.
COPIES = (1, 2, 3, 7, 8, 16, 33)
PARTS = {
    "PointButton1": ("hazards", "buttons", "gremlins"),
    "PointButton2": ("hazards", "buttons"),
    "CarButton1": ("hazards", "buttons", "gremlins"),
    "CarButton2": ("hazards", "buttons"),
    "PointPush1": ("hazards", "pillars"),
}
each_task = pytest.mark.parametrize("task", SAFETY_GYM_TASKS)
each_layout = pytest.mark.parametrize("layout", LAYOUTS)


def some_actions(steps: int, copies: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1.0, 1.0, (steps, copies, 2))


def driving(env: SafetyGymVectorEnv, target: str) -> np.ndarray:
    """Actions that drive Point robots straight to the nearest object of a kind."""
    world = env.world
    offset = world.places[:, world.rows[target]] - world.robot[:, None, :2]
    nearest = np.argmin(np.linalg.norm(offset, axis=-1), axis=1)
    offset = offset[np.arange(env.num_envs), nearest]
    ahead, left = np.einsum("nij,nj->in", world._axes[..., :2], offset)
    angle = np.arctan2(left, ahead)
    return np.stack([0.05 * (np.abs(angle) < 0.5), np.clip(angle, -1, 1)], axis=1)


@each_task
@each_layout
def test_check_env_is_clean(task, layout):
    suffix = "" if layout == "fixed" else "Random"
    env = gymnasium.make(f"algd/{task}{suffix}-v0", render_mode="rgb_array")
    assert env.spec is not None
    assert env.spec.max_episode_steps is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # The sensors have no bounds, which is what the space says.
        warnings.filterwarnings("ignore", ".*Box observation space m.*imum value is.*infinity.*")
        check_env(env.unwrapped)
    env.close()


@each_task
def test_spaces_budgets_and_native_vector_form(task):
    envs = gymnasium.make_vec(f"algd/{task}-v0", num_envs=3, cost_parts=True)
    native = envs.unwrapped
    assert isinstance(native, SafetyGymVectorEnv)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    size = {"PointButton1": 76, "PointButton2": 60, "CarButton1": 88, "CarButton2": 72}
    assert envs.observation_space.shape == (3, size.get(task, 76))
    assert envs.observation_space.dtype == envs.action_space.dtype == np.float64
    assert native.horizon == 400
    assert native.budgets == tuple(Budget(10.0, name=part) for part in PARTS[task])
    assert SafetyGymEnv(task).budgets == (Budget(10.0),)
    envs.close()


@pytest.mark.exact
@each_task
@each_layout
def test_vector_copies_equal_single_environments(task, layout):
    """Over the end of an episode, so that the autoreset is compared too."""
    steps, last = 15, 9
    actions = some_actions(steps, max(COPIES))
    single = SafetyGymEnv(task, layout)
    trails = []
    for i in range(max(COPIES)):
        trail = [{"obs": single.reset(seed=7 + i)[0]}]
        single.world.steps[:] = HORIZON - last
        for t in range(steps):
            obs, reward, terminated, truncated, info = single.step(actions[t, i])
            assert truncated == (t == last - 1)
            assert type(info["cost"]) is float
            assert type(info["goal_met"]) is bool
            told = {"final": obs, "reward": reward, "terminated": terminated, **info}
            trail.append({"obs": single.reset()[0] if truncated else obs, **told})
        trails.append(trail)
    for copies in COPIES:
        envs = SafetyGymVectorEnv(copies, task, layout, num_threads=min(2, copies))
        seen = [{"obs": envs.reset(seed=7)[0]}]
        envs.world.steps[:] = HORIZON - last
        for action in actions[:, :copies]:
            obs, reward, terminated, truncated, infos = envs.step(action)
            assert ("final_obs" in infos) == truncated.any()
            np.testing.assert_array_equal(infos.pop("_final_obs", truncated), truncated)
            told = {"final": infos.pop("final_obs", obs), "terminated": terminated}
            seen.append({"obs": obs, "reward": reward, **told, **infos})
        for t, step in enumerate(seen):
            for name, of_first in trails[0][t].items():
                alone = np.stack([of_first, *(trail[t][name] for trail in trails[1:copies])])
                np.testing.assert_array_equal(step[name], alone, f"{name}, {copies} copies")
                assert np.all(step.get(f"_{name}", True))
        envs.close()


@pytest.mark.exact
@pytest.mark.parametrize("task", ["PointButton1", "CarButton2", "PointPush1"])
def test_threads_change_nothing(task):
    runs = []
    for threads in (1, 2, 3):
        envs = SafetyGymVectorEnv(5, task, "random", num_threads=threads)
        trail = [envs.reset(seed=3)[0]]
        for action in some_actions(60, 5):
            obs, reward, *_, infos = envs.step(action)
            trail += [obs, reward, infos["margin"]]
        runs.append(trail)
        envs.close()
    for other in runs[1:]:
        for a, b in zip(runs[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.exact
@each_task
@each_layout
def test_a_restored_environment_continues_to_the_last_bit(task, layout):
    """Saved in the middle of an episode and continued, with goals met, into the next one."""
    first = SafetyGymVectorEnv(2, task, layout)
    first.reset(seed=11)
    actions = some_actions(120, 2)
    for action in actions[:70]:
        first.step(action)
    first.world.steps[:] = (385, 250)
    first.world._draw_goal(0)
    saved = first.save_state()
    assert all(isinstance(v, np.ndarray) and v.dtype != object for v in saved.values())
    second = SafetyGymVectorEnv(2, task, layout)
    second.restore_state({name: value.copy() for name, value in saved.items()})
    for t, action in enumerate(actions[70:]):
        if t == 40:
            first.world._draw_goal(1)
            second.world._draw_goal(1)
        a, b = first.step(action), second.step(action)
        for x, y in zip(a[:4], b[:4], strict=True):
            np.testing.assert_array_equal(x, y)
        for name in a[4]:
            np.testing.assert_array_equal(a[4][name], b[4][name])
    for name, value in first.save_state().items():
        np.testing.assert_array_equal(value, second.save_state()[name])


def test_a_single_environment_saves_its_generator_too():
    first, second = SafetyGymEnv("PointButton2", "random"), SafetyGymEnv("PointButton2", "random")
    first.reset(seed=5)
    first.step(np.zeros(2))
    second.restore_state(first.save_state())
    for env in (first, second):
        env.step(np.ones(2))
    np.testing.assert_array_equal(first.reset()[0], second.reset()[0])


def test_a_state_of_another_environment_is_refused():
    state = SafetyGymVectorEnv(2, "PointButton1").save_state()
    with pytest.raises(ValueError, match="3 copies of PointButton1"):
        SafetyGymVectorEnv(3, "PointButton1").restore_state(state)
    with pytest.raises(ValueError, match="PointPush1"):
        SafetyGymVectorEnv(2, "PointPush1").restore_state(state)


@each_task
def test_random_layouts_are_valid_new_and_seeded(task):
    env = SafetyGymEnv(task, "random")
    groups = TASKS[task].random
    keepouts = np.array([g.keepout for g in groups for _ in g.rectangles])
    edges = np.array([r for g in groups for r in g.rectangles])
    seen = []
    for episode in range(12):
        env.reset(seed=1 if episode == 0 else None)
        xy = env.world.layouts[0, :, :2].copy()
        apart = np.linalg.norm(xy[:, None] - xy[None], axis=-1) + 9.0 * np.eye(len(xy))
        assert (apart >= keepouts[:, None] + keepouts[None]).all()
        assert (xy - keepouts[:, None] >= edges[:, :2]).all()
        assert (xy + keepouts[:, None] <= edges[:, 2:]).all()
        seen.append(xy)
        *_, info = env.step(np.zeros(2))
        assert info["cost"] == 0.0
    for a, b in pairwise(seen):
        assert (np.abs(a - b).max(axis=1) > 1e-3).mean() > 0.9
    again = SafetyGymEnv(task, "random")
    for xy in seen:
        again.reset(seed=1 if xy is seen[0] else None)
        np.testing.assert_array_equal(again.world.layouts[0, :, :2], xy)
    other = SafetyGymEnv(task, "random")
    other.reset(seed=2)
    assert np.abs(other.world.layouts[0, :, :2] - seen[0]).max() > 0.01


@each_task
def test_moving_a_model_equals_compiling_it(task):
    paper = draw_layout(TASKS[task].fixed, np.random.RandomState(0))
    drawn = draw_layout(TASKS[task].random, np.random.RandomState(5))
    moved, compiled = compile_scene(TASKS[task], paper), compile_scene(TASKS[task], drawn)
    place(TASKS[task], moved, Layout(drawn.xy, drawn.yaw))
    for name in ("body_pos", "body_quat", "qpos0", "eq_data"):
        np.testing.assert_allclose(
            getattr(moved, name), getattr(compiled, name), rtol=0, atol=1e-15, err_msg=name
        )
    states = []
    for model in (moved, compiled):
        data = mujoco.MjData(model)
        data.ctrl[:] = 0.01
        mujoco.mj_step(model, data, 30)
        states.append(data.qpos.copy())
    np.testing.assert_allclose(states[0], states[1], rtol=0, atol=1e-9)


@each_task
def test_fixed_layout_ignores_the_seed(task):
    env = SafetyGymEnv(task)
    first, _ = env.reset(seed=1)
    for action in some_actions(3, 1)[:, 0]:
        env.step(action)
    again, _ = env.reset(seed=2)
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize("kind", ["hazard", "button", "gremlin"])
def test_margins_and_costs_agree_and_parts_add_up(kind):
    whole = SafetyGymVectorEnv(4, "PointButton1", "random")
    parts = SafetyGymVectorEnv(4, "PointButton1", "random", cost_parts=True)
    whole.reset(seed=0)
    parts.reset(seed=0)
    total = np.zeros(3)
    for _ in range(150):
        actions = driving(whole, kind)
        *_, infos = whole.step(actions)
        *_, split = parts.step(actions)
        assert split["cost"].shape == split["margin"].shape == (4, 3)
        np.testing.assert_array_equal(split["cost"] > 0.0, split["margin"] > 0.0)
        np.testing.assert_array_equal(infos["cost"], split["cost"].max(axis=1))
        np.testing.assert_array_equal(infos["margin"], split["margin"].max(axis=1))
        for i, part in enumerate(PARTS["PointButton1"]):
            np.testing.assert_array_equal(infos[f"cost_{part}"], split["cost"][:, i])
        total += split["cost"].sum(axis=0)
    assert total[("hazard", "button", "gremlin").index(kind)] > 0


def test_hazard_margin_is_the_depth_in_the_hazard():
    env = SafetyGymVectorEnv(1, "PointButton2", cost_parts=True)
    env.reset()
    inside = 0.0
    for _ in range(100):
        *_, infos = env.step(driving(env, "hazard"))
        inside += infos["cost_hazards"][0]
        hazards = env.world.places[0, env.world.rows["hazard"]]
        distance = np.linalg.norm(hazards - env.world.robot[0, :2], axis=1).min()
        assert infos["margin"][0, 0] == pytest.approx(0.22 - distance, abs=1e-12)
    assert 0 < inside < 100


def test_contacts_are_those_of_the_contact_list():
    env = SafetyGymVectorEnv(2, "CarButton1", "random")
    env.reset(seed=0)
    world, physics = env.world, env.world.physics
    model = physics.models[0]
    robot = model.body_rootid[model.geom_bodyid] == model.body("robot").id
    names = [*(f"button{i}" for i in range(4)), *(f"gremlin{i}" for i in range(4))]
    found = 0
    rng = np.random.default_rng(0)
    for step in range(150):
        if step % 10 == 0:
            chosen = world.places[0, rng.integers(len(world.places[0]))]
            physics.copies.qpos[0, :2] = chosen
            physics.copies.qpos[0, 2:7] = (0.1, 1, 0, 0, 0)
        env.step(rng.uniform(-0.02, 0.02, (2, 2)))
        pairs = physics.data(0).contact.geom
        bodies = model.geom_bodyid[pairs]
        for name, sensed in zip(names, physics.sensed[0, world._touch], strict=True):
            touches = robot[pairs] & (bodies[:, ::-1] == model.body(name).id)
            assert touches.any() == (sensed > 0)
            found += touches.any()
    assert found > 20


def test_button_timer_hides_the_buttons_for_ten_observations():
    env = SafetyGymVectorEnv(1, "PointButton2")
    env.reset()
    hidden = []
    for _ in range(200):
        obs, reward, *_, infos = env.step(driving(env, "goal"))
        if infos["goal_met"][0]:
            assert reward[0] > 0.9
            env.world.goal_button[:] = (env.world.goal_button + 2) % 4
            break
    else:
        pytest.fail("no goal was met")
    hidden.append(not obs[0, env.world.components["buttons_lidar"]].any())
    for _ in range(11):
        obs, *_ = env.step(np.zeros((1, 2)))
        hidden.append(not obs[0, env.world.components["buttons_lidar"]].any())
    assert hidden == [True] * 10 + [False] * 2


def readings_of(robot, axes, places, cells):
    """The lidar of robots among objects."""
    x, y = np.moveaxis(places - robot[:, None, :2], -1, 0)
    return pseudo_lidar(axes, robot[:, 2], x, y, cells)


def test_lidar_by_hand():
    robot = np.array([[1.0, 1.0, 0.0]])
    turned = np.array([[[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0]]])
    # One metre behind x (to the robot's left, bin 4), and one beyond the range.
    places = np.array([[[0.0, 1.0], [1.0, 4.5]]])
    near, far = readings_of(robot, turned, places, lidar_cells([1, 1], 1))[:, 0]
    expected = np.zeros(16)
    expected[[3, 4]] = 2.0 / 3.0
    np.testing.assert_allclose(near, expected, atol=1e-12)
    assert not far.any()
    # A quarter of a bin past the axis: shared with both neighbours.
    angle = (0.25 + 2) * 2 * np.pi / 16
    place_ = np.array([[[1.5 * np.cos(angle), 1.5 * np.sin(angle)]]])
    upright = np.array([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])
    reading = readings_of(np.zeros((1, 3)), upright, place_, lidar_cells([1], 1))[0, 0]
    np.testing.assert_allclose(reading[[1, 2, 3]], [0.375, 0.5, 0.125], atol=1e-12)


def test_each_bin_shows_the_largest_reading_of_its_group_in_its_own_copy():
    rng = np.random.default_rng(0)
    robot = np.concatenate([rng.uniform(-1, 1, (3, 2)), np.zeros((3, 1))], axis=1)
    angle = rng.uniform(0, 2 * np.pi, 3)
    cos, sin, zero = np.cos(angle), np.sin(angle), np.zeros(3)
    axes = np.stack([np.stack([cos, sin, zero], 1), np.stack([-sin, cos, zero], 1)], axis=1)
    places = rng.uniform(-2, 2, (3, 7, 2))
    readings = readings_of(robot, axes, places, lidar_cells([4, 1, 2], 3))
    assert readings.shape == (3, 3, 16)
    alone = np.stack(
        [readings_of(robot, axes, places[:, [k]], lidar_cells([1], 3))[0] for k in range(7)]
    )
    for group, rows in enumerate((alone[:4], alone[4:5], alone[5:])):
        np.testing.assert_allclose(readings[group], rows.max(axis=0), rtol=0, atol=1e-12)


def test_rotation_matrices():
    quaternions = np.random.default_rng(0).normal(size=(5, 4))
    quaternions /= np.linalg.norm(quaternions, axis=1, keepdims=True)
    expected = Rotation.from_quat(quaternions, scalar_first=True).as_matrix()
    np.testing.assert_allclose(rotation_matrices(quaternions), expected.reshape(5, 9), atol=1e-14)


@pytest.mark.parametrize("form", ["single", "vector"])
@pytest.mark.parametrize(
    ("action", "message"),
    [
        ([np.nan, 0.0], "finite"),
        ([0.0, np.inf], "finite"),
        ([0.0, 0.0, 0.0], r"shape .*3.* must have .*2"),
        (0.0, "shape"),
    ],
)
def test_bad_actions_are_refused(form, action, message):
    env = SafetyGymEnv() if form == "single" else SafetyGymVectorEnv(2)
    env.reset()
    actions = np.array(action) if form == "single" else np.array([action, action])
    with pytest.raises(ValueError, match=message):
        env.step(actions)


def test_out_of_range_actions_are_clipped():
    one, two = SafetyGymEnv(), SafetyGymEnv()
    one.reset()
    two.reset()
    np.testing.assert_array_equal(
        one.step(np.array([7.0, -3.0]))[0], two.step(np.array([1.0, -1.0]))[0]
    )


def test_mistakes_get_a_clear_answer():
    with pytest.raises(ValueError, match=r"unknown layout 'fxied': .*'fixed'"):
        gymnasium.make("algd/PointButton1-v0", layout="fxied")
    with pytest.raises(ValueError, match="did you mean 'PointPush1'"):
        SafetyGymEnv("PointPush")
    with pytest.raises(ValueError, match="render_mode 'human'"):
        SafetyGymVectorEnv(1, render_mode="human")
    with pytest.raises(ValueError, match="at least one copy"):
        SafetyGymVectorEnv(0)
    with pytest.raises(ValueError, match="unknown renderer 'opengl'"):
        SafetyGymEnv(renderer="opengl")
    for env in (SafetyGymEnv(), SafetyGymVectorEnv(1)):
        with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
            env.step(np.zeros(2))


@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e30])
@pytest.mark.parametrize("task", ["PointButton1", "CarButton2", "PointPush1"])
def test_divergence_ends_the_episode_and_nothing_else(task, poison, tmp_path, monkeypatch):
    # MuJoCo writes its warnings to a file where it runs.
    monkeypatch.chdir(tmp_path)
    sick, healthy = SafetyGymVectorEnv(3, task), SafetyGymVectorEnv(3, task)
    start, _ = sick.reset()
    healthy.reset()
    for action in some_actions(5, 3):
        sick.step(action)
        healthy.step(action)
    sick.world.physics.copies.qvel[1, 1] = poison
    action = some_actions(1, 3, seed=1)[0]
    obs, reward, terminated, truncated, infos = sick.step(action)
    expected, *_ = healthy.step(action)
    np.testing.assert_array_equal(terminated, [False, True, False])
    np.testing.assert_array_equal(infos["diverged"], terminated)
    assert not truncated.any()
    assert reward[1] == -10.0
    assert infos["cost"][1] == 0.0
    assert infos["margin"][1] <= 0.0
    np.testing.assert_array_equal(infos["final_obs"][1], 0.0)
    np.testing.assert_array_equal(obs[1], start[1])
    np.testing.assert_array_equal(obs[[0, 2]], expected[[0, 2]])
    for action in some_actions(5, 3, seed=2):
        obs, reward, terminated, *_ = sick.step(action)
        expected, *_ = healthy.step(action)
        assert np.isfinite(obs).all()
        assert not terminated.any()
        np.testing.assert_array_equal(obs[[0, 2]], expected[[0, 2]])


def test_a_single_environment_must_be_reset_after_divergence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = SafetyGymEnv("PointPush1")
    env.reset()
    env.world.physics.copies.qpos[0, 0] = np.nan
    obs, reward, terminated, truncated, info = env.step(np.zeros(2))
    assert (reward, terminated, truncated, info["diverged"]) == (-10.0, True, False, True)
    assert np.isfinite(obs).all()
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(np.zeros(2))
    env.reset()
    assert not env.step(np.zeros(2))[4]["diverged"]


def test_an_episode_without_room_for_a_goal_is_truncated(monkeypatch):
    env = SafetyGymVectorEnv(1, "PointPush1")
    env.reset()
    env.world.places[0, env.world.rows["goal"].start] = (0.0, -1.5)
    monkeypatch.setattr("algd.envs.safety_gym.world.redraw", lambda *_: None)
    *_, terminated, truncated, infos = env.step(np.zeros((1, 2)))
    assert infos["goal_met"][0]
    assert truncated[0]
    assert not terminated[0]
    assert env.world.steps[0] == 0


@each_task
def test_pictures_show_what_moves(task):
    env = SafetyGymEnv(task, render_mode="rgb_array")
    env.reset()
    before = env.render()
    assert before.shape == (400, 400, 3)
    assert before.dtype == np.uint8
    for _ in range(10):
        env.step(np.ones(2))
    assert (env.render() != before).any()
    assert SafetyGymEnv(task).render() is None


def test_a_cost_shows_in_the_picture():
    envs = SafetyGymVectorEnv(2, "PointButton2", render_mode="rgb_array")
    envs.reset()
    frames = envs.render()
    assert frames is not None
    quiet = frames[0][0, 0]
    for _ in range(60):
        *_, infos = envs.step(driving(envs, "hazard"))
        if infos["cost"].all():
            break
    frames = envs.render()
    assert frames is not None
    assert len(frames) == 2
    assert (frames[0][0, 0] != quiet).any()


def test_speed_is_reported_for_each_environment_and_number_of_copies():
    ids = ("algd/PointButton2-v0", "algd/PointButton1Random-v0")
    rows = bench_env(seconds=0.02, env_ids=ids, copies=(1, 2))
    assert [(row["env"], row["copies"]) for row in rows] == [(i, n) for i in ids for n in (1, 2)]
    for row in rows:
        assert row["steps_per_second"] > 10
        assert row["physics_steps_per_second"] > 10
        assert row["ratio"] > 0
        assert row["threads"] == 1
