"""Parity with recorded episodes: a few of them are kept here, all of them beside the clone."""

import math
from pathlib import Path

import mujoco
import numpy as np
import pytest

from algd.envs.safety_gym.env import SafetyGymVectorEnv
from algd.registration import SAFETY_GYM_TASKS

ROOT = Path(__file__).parents[2]
BUNDLED = ROOT / "tests/data/safety_gym"
COMPLETE = ROOT.parent / "shared/golden/safety_gym"
PLACES = [
    BUNDLED,
    pytest.param(
        COMPLETE,
        marks=pytest.mark.skipif(
            not COMPLETE.exists(), reason="the complete traces are not beside the clone"
        ),
    ),
]

pytestmark = pytest.mark.skipif(
    not mujoco.__version__.startswith("4.0."),
    reason="contacts differ between releases of MuJoCo; the traces were recorded with 4.0.0",
)

BATCH = 100
# The last bits of the C library with which the traces were recorded: where a processor cannot fuse
# products and sums, or the library rounds better, they fall otherwise, and contacts amplify that.
SINE, COSINE, ARCTANGENT = "0x1.967566cdcff98p-3", "-0x1.acbd6520fe1b5p-2", "0x1.de2229cde4998p-1"
SAME_ROUNDING = (
    math.sin(2.9418).hex() == SINE
    and math.cos(2.0028).hex() == COSINE
    and math.atan2(0.9462, 0.7).hex() == ARCTANGENT
)


def load(place: Path, task: str) -> dict[str, np.ndarray]:
    with np.load(place / f"{task}.npz") as file:
        return dict(file)


def synchronise(env: SafetyGymVectorEnv, trace: dict[str, np.ndarray], episode: int, rows: range):
    """Put copy i into the recorded state before step rows[i]."""
    env.reset(seed=0)
    world = env.world
    for name in ("time", "qpos", "qvel", "qacc_warmstart"):
        world.physics.copies.bind(name)[:] = trace[name][episode, rows]
    world.physics.sense()
    for generator in world.generators:
        generator.seed(0)
    world.words_due[:] = trace["rng_words"][episode, rows]
    world.steps[:] = rows
    if "goal_button" in trace:
        world.goal_button[:] = trace["goal_button"][episode, rows]
        world.timer[:] = trace["button_timer"][episode, rows]
    world.places[:, world.rows["goal"].start] = trace["goal_xy"][episode, rows]
    world._follow()
    world.distances = world._distances(world._offsets())


def tolerances(env: SafetyGymVectorEnv) -> np.ndarray:
    limit = np.full(env.world.obs_size, 1e-6)
    limit[env.world.components["accelerometer"]] = 1e-5
    return limit


@pytest.mark.parametrize("task", SAFETY_GYM_TASKS)
@pytest.mark.parametrize("place", PLACES)
def test_single_steps_from_recorded_states(place, task):
    trace = load(place, task)
    env = SafetyGymVectorEnv(BATCH, task)
    for episode in range(len(trace["action"])):
        for start in range(0, 400, BATCH):
            rows = range(start, start + BATCH)
            synchronise(env, trace, episode, rows)
            obs, reward, _, truncated, infos = env.step(trace["action"][episode, rows])
            obs = infos.get("final_obs", obs)
            assert list(np.flatnonzero(truncated)) == ([BATCH - 1] if start + BATCH == 400 else [])
            for name in ("cost", "goal_met", *(name for name in trace if name.startswith("cost_"))):
                np.testing.assert_array_equal(infos[name], trace[name][episode, rows], name)
            # The last copy of the last batch has begun a new episode.
            going = ~truncated
            after = np.array(rows)[going] + 1
            if "goal_button" in trace:
                np.testing.assert_array_equal(
                    env.world.goal_button[going], trace["goal_button"][episode, after]
                )
                np.testing.assert_array_equal(
                    env.world.timer[going], trace["button_timer"][episode, after]
                )
            np.testing.assert_allclose(
                env.world.places[going, env.world.rows["goal"].start],
                trace["goal_xy"][episode, after],
                atol=1e-9,
            )
            firm = ~trace["fragile"][episode, rows]
            off = np.abs(obs - trace["obs"][episode, np.array(rows) + 1])[firm]
            assert (off <= tolerances(env)).all()
            np.testing.assert_allclose(
                reward[firm], trace["reward"][episode, rows][firm], rtol=0, atol=1e-8
            )
            firm &= going
            qpos = env.world.physics.copies.qpos
            np.testing.assert_allclose(
                qpos[firm], trace["qpos"][episode, np.array(rows) + 1][firm], rtol=0, atol=1e-8
            )
    env.close()


@pytest.mark.parametrize("task", SAFETY_GYM_TASKS)
def test_free_runs_follow_the_record(task):
    """From reset, as far as rounding lets any rebuilt scene follow, halved for good measure."""
    trace = load(BUNDLED, task)
    env = SafetyGymVectorEnv(len(trace["action"]), task)
    obs, _ = env.reset(seed=1)
    np.testing.assert_allclose(obs - trace["reset_obs"], 0.0, atol=1e-9)
    smooth = np.ones(env.world.obs_size, bool)
    smooth[env.world.components["accelerometer"]] = False
    lengths = trace["free_run_steps"] // 2
    for t in range(lengths.max()):
        obs, reward, _, _, infos = env.step(trace["action"][:, t])
        runs = lengths > t
        off = np.abs(obs - trace["obs"][:, t + 1])[runs]
        assert (off[:, smooth] <= 1e-6).all()
        assert (np.abs(reward - trace["reward"][:, t])[runs] <= 1e-8).all()
        np.testing.assert_array_equal(infos["cost"][runs], trace["cost"][runs, t])
        np.testing.assert_array_equal(infos["goal_met"][runs], trace["goal_met"][runs, t])
    env.close()


@pytest.mark.skipif(not COMPLETE.exists(), reason="the complete traces are not beside the clone")
@pytest.mark.skipif(not SAME_ROUNDING, reason="sines round otherwise than where it was recorded")
@pytest.mark.parametrize("task", SAFETY_GYM_TASKS)
def test_whole_episodes_to_the_last_bits(task):
    trace = load(COMPLETE, task)
    env = SafetyGymVectorEnv(len(trace["action"]), task)
    env.reset(seed=2)
    for t in range(400):
        obs, reward, _, truncated, infos = env.step(trace["action"][:, t])
        obs = infos.get("final_obs", obs)
        np.testing.assert_allclose(obs, trace["obs"][:, t + 1], rtol=0, atol=1e-14)
        np.testing.assert_allclose(reward, trace["reward"][:, t], rtol=0, atol=1e-14)
        for name in ("cost", "goal_met", *(name for name in trace if name.startswith("cost_"))):
            np.testing.assert_array_equal(infos[name], trace[name][:, t], name)
        assert truncated.all() == (t == 399)
    env.close()


@pytest.mark.parametrize("task", SAFETY_GYM_TASKS)
def test_reset_is_the_recorded_one(task):
    trace = load(BUNDLED, task)
    env = SafetyGymVectorEnv(2, task)
    obs, _ = env.reset()
    assert obs.shape == (2, trace["obs_stop"][-1])
    names = zip(trace["obs_names"], trace["obs_start"], trace["obs_stop"], strict=True)
    assert env.world.components == {str(n): slice(int(a), int(b)) for n, a, b in names}
    np.testing.assert_allclose(obs - trace["reset_obs"], 0.0, atol=1e-9)
    assert env.world._start is not None
    assert env.world._start.words == trace["reset_rng_words"]
    groups = env.world.groups
    kinds = [group.kind for group in groups for _ in group.rectangles]
    for kind in set(kinds) - {"goal"}:
        own = np.array(kinds) == kind
        recorded = trace["object_kind"] == kind
        np.testing.assert_array_equal(
            env.world.layouts[0, own, :2], trace["object_xyz"][recorded, :2]
        )
        np.testing.assert_array_equal(env.world.layouts[0, own, 2], trace["object_yaw"][recorded])


@pytest.mark.parametrize(
    ("task", "goals"),
    [
        ("PointButton1", [3, 0, 0, 1, 3, 1, 0, 2, 0, 2]),
        ("CarButton2", [0, 2, 3, 2, 3, 0, 0, 0, 2, 0]),
    ],
)
def test_the_next_goal_depends_on_the_step_it_is_met_at(task, goals):
    env = SafetyGymVectorEnv(10, task)
    env.reset()
    assert (env.world.goal_button == (0 if task == "PointButton1" else 2)).all()
    for step in range(10):
        env.step(np.zeros((10, 2)))
        env.world._draw_goal(step)
    np.testing.assert_array_equal(env.world.goal_button, goals)
