"""Films: what they show of an episode, and that they show something wherever a policy can act."""

import importlib

import gymnasium
import imageio_ffmpeg
import numpy as np
import pytest
from gymnasium import spaces

from algd.cli import main
from algd.runs.config import Given, Settings
from algd.training import loop
from algd.types import Budget, EnvSpec
from algd.visualization.video import ALARM, WIDTH, draw, film, open_stage, play, write_film
from support.small import small

RED = tuple(int(ALARM[i : i + 2], 16) for i in (1, 3, 5))


class Line(gymnasium.Env):
    """Six steps; the third and fourth cost 1 and 2. Without `paints` there is no picture."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    observation_space = spaces.Box(-9.0, 9.0, (1,), np.float32)

    def __init__(self, render_mode=None, paints=True):
        self.render_mode, self.paints = render_mode, paints

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        cost = {3: 1.0, 4: 2.0}.get(self.steps, 0.0)
        obs = np.full(1, self.steps, np.float32)
        return obs, 0.5, self.steps == 6, False, {"cost": cost}

    def render(self):
        if not self.paints:
            raise RuntimeError("no OpenGL")
        return np.full((60, 120, 3), 10 * self.steps, np.uint8)


gymnasium.register("RenderedLine-v0", entry_point=Line)


def stage_of(limit=2.0, discounted=False, **options):
    budget = Budget(limit, discounted=discounted)
    return open_stage(Given("RenderedLine-v0"), options, EnvSpec(1, (-1.0,), (1.0,), (budget,), 6))


def watched(stage, every=1, discount=0.5):
    return list(play(lambda obs: np.zeros(1, np.float32), stage, 1, 0, discount, every))


class Blind(Line):
    def __init__(self):
        super().__init__()


def test_an_environment_that_takes_no_render_mode_is_said_to():
    spec = EnvSpec(1, (-1.0,), (1.0,), (Budget(2.0),), 6)
    stage = open_stage(Given(Blind), {}, spec)
    assert 'cannot be made with render_mode="rgb_array"' in stage.note
    assert len(watched(stage)) == 7


def test_moments_add_up():
    moments = watched(stage_of())
    assert [moment.step for moment, _ in moments] == [0, 1, 2, 3, 4, 5, 6]
    assert [last for _, last in moments] == [False] * 6 + [True]
    final = moments[-1][0]
    assert final.total_return == 3.0
    assert final.spent[:, 0].tolist() == [0.0, 0.0, 1.0, 3.0, 3.0, 3.0]
    assert final.unsafe[:, 0].tolist() == [False, False, True, True, False, False]


def test_a_discounted_budget_is_counted_discounted():
    final = watched(stage_of(discounted=True))[-1][0]
    np.testing.assert_allclose(final.spent[-1], 0.5**2 * 1.0 + 0.5**3 * 2.0)


def test_the_border_is_red_just_where_a_step_has_a_cost():
    stage = stage_of()
    frames = [draw(moment, stage) for moment, _ in watched(stage)]
    # A picture twice as wide as high: 200 of its own and 16 of border, above the numbers.
    assert {frame.shape for frame in frames} == {(336, WIDTH, 3)}
    red = [tuple(frame[2, 200]) == RED for frame in frames]
    assert red == [False, False, False, True, True, False, False]
    assert [int(frame[100, 200, 0]) for frame in frames] == [0, 10, 20, 30, 40, 50, 60]


def test_steps_that_are_not_shown_still_raise_the_alarm():
    stage = stage_of()
    moments = [moment for moment, _ in watched(stage, every=4)]
    assert [moment.step for moment in moments] == [0, 4, 6]
    assert tuple(draw(moments[1], stage, every=4)[2, 200]) == RED


def test_a_task_that_cannot_draw_itself_shows_its_numbers():
    stage = stage_of(paints=False)
    assert "no OpenGL" in stage.note
    assert {draw(moment, stage).shape for moment, _ in watched(stage)} == {(112, WIDTH, 3)}


def test_velocity_tasks_show_speed_and_limit_without_opengl(monkeypatch):
    # MuJoCo refuses this when it is imported, its renderer when it is opened: the second is meant.
    importlib.import_module("mujoco")
    monkeypatch.setenv("MUJOCO_GL", "nothing")
    budget = Budget(82.748, discounted=True)
    spec = EnvSpec(11, (-1.0,) * 3, (1.0,) * 3, (budget,), 1000)
    stage = open_stage(Given("HopperVelocity"), {}, spec)
    assert not stage.draws
    assert stage.speed_limit == pytest.approx(0.8275, abs=1e-4)
    moments = play(lambda obs: np.ones(3, np.float32), stage, 1, 0, 0.99, 5)
    next(moments)
    moment, _ = next(moments)
    speeds = moment.margins[:, 0] + stage.speed_limit
    weights = 0.99 ** np.arange(5)
    np.testing.assert_allclose(weights @ speeds, moment.spent[-1, 0], rtol=1e-6)
    # The header, one strip for the cost and one for the speed.
    assert draw(moment, stage).shape == (192, WIDTH, 3)
    stage.env.close()


def decoded(path):
    frames = imageio_ffmpeg.read_frames(path)
    meta = next(frames)
    return meta, [np.frombuffer(f, np.uint8).reshape(*meta["size"][::-1], 3) for f in frames]


def test_files_hold_the_frames(tmp_path):
    stage = stage_of()
    frames = [draw(moment, stage) for moment, _ in watched(stage)]
    for name in ("film.mp4", "film.gif"):
        write_film(frames, tmp_path / name, 5)
        meta, found = decoded(tmp_path / name)
        assert len(found) == 7
        assert meta["fps"] == 5
        error = np.abs(np.array(found).astype(int) - np.array(frames)).mean()
        assert error < 3.0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["film.gif", "film.mp4"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    settings = Settings(steps=2, envs=1, eval_episodes=1, env_options=("horizon=40",))
    return loop.train(
        settings, small("algd"), "algd", tmp_path_factory.mktemp("runs") / "run"
    ).directory


def test_command_films_a_run(trained, tmp_path, capsys):
    out = tmp_path / "film.mp4"
    arguments = ["render", str(trained), "--every", "10", "--quiet", "--out", str(out)]
    main(arguments)
    meta, frames = decoded(out)
    # The start, four times 10 steps, and the rest of a second in which the last is held.
    assert len(frames) == 5 + meta["fps"] - 1
    assert meta["size"] == (416, 528)
    for wrong, message in (
        (arguments, "exists"),
        ([*arguments[:-1], str(tmp_path / "film.avi")], ".mp4"),
        ([*arguments[:-1], str(tmp_path / "a.gif"), "--episodes", "0"], "--episodes"),
        (["render", str(tmp_path), "--out", str(tmp_path / "b.gif")], "no config.json"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(wrong)
        assert stop.value.code == 2
        assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [out]


def test_the_same_seed_gives_the_same_film(trained):
    def frames(seed):
        return np.array(list(film(trained, seed=seed, sampled=True, every=20).frames))

    assert (frames(1) == frames(1)).all()
    assert (frames(1) != frames(2)).any()
