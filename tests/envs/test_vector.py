"""Our vector environments in other people's programs: both autoresets, Gymnasium's wrappers."""

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import vector as wrappers

from algd import envs
from algd.types import UserError

COPIES = 3


def made(name, mode=AutoresetMode.SAME_STEP, **options):
    return gymnasium.make_vec(f"algd/{name}-v0", num_envs=COPIES, autoreset_mode=mode, **options)


def begun(name, mode, wrapper=lambda env: env):
    """Copies whose episodes end after a few steps, each at its own time where they can."""
    env = wrapper(made(name, mode, **({"horizon": 4} if name == "DiffDrive" else {})))
    env.reset(seed=1)
    native = env.unwrapped
    if name.startswith("Point"):
        native.world.steps[:] = [397, 398, 399]
    if name.startswith("Hopper"):
        for copy, elapsed in zip(native.envs, (997, 998, 999), strict=True):
            copy._elapsed = elapsed
    return env


@pytest.mark.parametrize("name", ["DiffDrive", "PointButton1Random", "HopperVelocity"])
def test_the_next_step_tells_the_same_episodes_as_the_same_step(name):
    same, following = begun(name, AutoresetMode.SAME_STEP), begun(name, "NextStep")
    assert following.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    actions = np.random.default_rng(0).uniform(-0.3, 0.3, (9, *same.action_space.shape))
    actions = actions.astype(same.action_space.dtype)
    told = [[] for _ in range(COPIES)]
    for action in actions:
        obs, reward, terminated, truncated, infos = same.step(action)
        for i, rows in enumerate(told):
            ended = terminated[i] or truncated[i]
            last = infos["final_obs"][i] if ended else obs[i]
            rows.append((last, reward[i], terminated[i], truncated[i], infos["cost"][i], True))
            if ended:
                rows.append((obs[i], 0.0, False, False, 0.0, False))
    # Each copy goes through the same actions, at its own time.
    taken, rows = np.zeros(COPIES, int), [iter(own) for own in told]
    copies, waits = np.arange(COPIES), 0
    while taken.max() < len(actions):
        obs, reward, terminated, truncated, infos = following.step(actions[taken, copies])
        for i in range(COPIES):
            known = bool(infos["_cost"][i])
            step = (obs[i], reward[i], terminated[i], truncated[i], infos["cost"][i], known)
            for value, expected in zip(step, next(rows[i]), strict=True):
                np.testing.assert_array_equal(value, expected)
            waits += not known
            taken[i] += known
        if waits == 1:
            # Also in the middle of it.
            other = made(name, AutoresetMode.NEXT_STEP)
            other.unwrapped.restore_state(following.unwrapped.save_state())
            following = other
    assert waits >= COPIES


@pytest.mark.parametrize("name", ["DiffDrive", "PointButton1", "HopperVelocity"])
@pytest.mark.parametrize(
    "wrapper",
    [
        wrappers.NormalizeObservation,
        wrappers.NormalizeReward,
        wrappers.RecordEpisodeStatistics,
        wrappers.FlattenObservation,
        wrappers.ClipAction,
        wrappers.DictInfoToList,
        lambda env: wrappers.DtypeObservation(env, np.float32),
        lambda env: wrappers.RescaleAction(env, -2.0, 2.0),
        lambda env: wrappers.TransformObservation(env, lambda obs: obs + 1),
    ],
)
def test_under_the_vector_wrappers_of_gymnasium(name, wrapper):
    env, ends = begun(name, AutoresetMode.NEXT_STEP, wrapper), 0
    for _ in range(8):
        obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        assert obs.shape == (COPIES, *env.single_observation_space.shape)
        assert np.isfinite(obs).all()
        assert np.isfinite(reward).all()
        ends += (terminated | truncated).sum()
    assert ends >= COPIES
    env.close()


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_statistics_of_episodes_are_those_of_their_steps(mode):
    env = wrappers.RecordEpisodeStatistics(made("DiffDrive", mode, horizon=4))
    env.reset(seed=0)
    rewards, found = np.zeros(COPIES), []
    for _ in range(10):
        _, reward, _, truncated, infos = env.step(env.action_space.sample())
        rewards += reward
        if truncated.all():
            np.testing.assert_allclose(infos["episode"]["r"], rewards)
            found.append(infos["episode"]["l"])
            rewards = np.zeros(COPIES)
    np.testing.assert_array_equal(found, np.full((2, COPIES), 4))


def test_other_modes_are_refused():
    with pytest.raises(UserError, match="'SameStep' or 'NextStep', not 'Disabled'"):
        made("DiffDrive", "Disabled")
    with pytest.raises(UserError, match="a run has one of its own"):
        envs.make("DiffDrive", 1, env_options={"autoreset_mode": "NextStep"})
