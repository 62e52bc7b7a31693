"""Checkpoints of environments of every kind, and the replay buffer in pieces."""

import dataclasses
from itertools import pairwise

import gymnasium
import jax
import numpy as np
import pytest

from algd.runs.config import Settings
from algd.runs.directory import create_run
from algd.runs.files import LogPosition
from algd.training import loop
from algd.training.statistics import count_step
from algd.training.updates import store
from algd.types import Transition
from support.small import small
from support.trainer import Trainer, contents, trainer_of

# --- the replay buffer in pieces ---------------------------------------------------------------


def transitions(first, count):
    """Recognisable ones."""
    numbers = np.arange(first, first + count, dtype=np.float32)
    column = numbers[:, None]
    many = {"obs": np.tile(column, 17), "next_obs": np.tile(column, 17)}
    few = {"action": np.tile(column, 2), "reward": numbers, "cost": column, "margin": column}
    flags = dict.fromkeys(("terminated", "truncated", "goal_met"), np.zeros(count, bool))
    return Transition(**jax.device_put({**many, **few, **flags}), extras={})


@pytest.mark.parametrize("interval", [3, 8, 25])
def test_every_kept_checkpoint_has_its_pieces_when_the_buffer_wraps(interval, tmp_path):
    run = create_run(tmp_path / "run")
    settings = Settings(steps=1_000, envs=1)
    trainer = Trainer(settings, small("algd", replay_size=10), run).start()
    run.write_config({})
    run.metrics_path.touch()
    for step in range(0, 6 * interval, interval):
        for one in range(step, step + interval):
            replay = store(trainer.state.replay, transitions(one, 1), np.ones(1, bool))
            trainer.state = trainer.state._replace(replay=replay)
        trainer.at_step(step + interval)
        trainer.save(LogPosition())
    for step, path in run.checkpoints():
        trainer.load(path)
        held = sorted(np.asarray(trainer.state.replay.data.reward).tolist())
        assert held[-min(step, 10) :] == list(range(max(step - 10, 0), step))
    spans = [(first, last) for first, last, _ in run.pieces()]
    assert all(a[1] <= b[0] for a, b in pairwise(spans))
    assert sum(last - first for first, last in spans) <= 10 + 2 * interval + interval


# --- environments that can be saved, and others -------------------------------------------------


def test_a_task_in_mujoco_goes_on_exactly(tmp_path):
    """From the middle of an episode, with gradient rounds before and after."""
    settings, run = Settings(env="PointButton1", envs=2, steps=80), create_run(tmp_path / "run")
    run.write_config({})
    run.write_config({})
    run.metrics_path.touch()
    trainers = [Trainer(settings, small("sac-lag"), run) for _ in range(2)]
    trainers[0].start().iterate(30)
    trainers[0].save(LogPosition())
    trainers[1].load_newest()
    for trainer in trainers:
        trainer.iterate(10)
    assert int(trainers[0].state.learner.rounds) > 10
    assert contents(trainers[0]) == contents(trainers[1])


class Drifting(gymnasium.Env):
    """Counts its steps in its observation; an episode of its own every time."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        self.start = self.np_random.random()
        return self.observation(), {}

    def observation(self):
        return np.array([self.count, self.start], np.float32)

    def step(self, action):
        self.count += 1
        return self.observation(), 1.0, False, False, {"cost": 1.0}


gymnasium.register("Drifting-v0", entry_point=Drifting, max_episode_steps=50)


@pytest.mark.parametrize("name", ["algd", "ppo-lag"])
def test_a_foreign_environment_goes_on_with_fresh_episodes(name, tmp_path):
    settings = Settings(env="Drifting-v0", budget=(5.0,), envs=2, steps=40)
    run = create_run(tmp_path / "run")
    trainer = Trainer(settings, small(name), run).start()
    run.write_config({})
    run.metrics_path.touch()
    (sums,), result = trainer.state.statistics, None
    for _ in range(3):
        result = trainer.envs.step(np.zeros((2, 1), np.float32))
        sums, _ = count_step(sums, result, np.ones(2, bool), trainer.envs.spec, 0.99)
    trainer.state = trainer.state._replace(obs=result.obs, statistics=(sums,))
    trainer.at_step(6)
    trainer.save(LogPosition())
    again = Trainer(settings, small(name), run)
    again.load_newest()
    assert again.state.step == 6
    assert (again.state.obs[:, 0] == 0).all()
    assert (again.state.obs[:, 1] != trainer.state.obs[:, 1]).all()
    (held,) = again.state.statistics
    assert not held.running.length.any()
    assert not held.running.plain.any()
    assert held.tally.total_cost == 6.0
    np.testing.assert_array_equal(again.envs.step(np.zeros((2, 1), np.float32)).obs[:, 0], 1)


@pytest.mark.parametrize("name", ["sac-lag", "ppo-lag"])
def test_a_checkpoint_of_other_shapes_is_refused_and_the_older_one_taken(name, tmp_path):
    """Each of its arrays in turn; environments and statistics are not touched by what is wrong."""
    settings = Settings(
        steps=44, envs=2, eval_episodes=1, checkpoint_every=20, env_options=("horizon=40",)
    )
    settings = dataclasses.replace(settings, overlap=name == "sac-lag")
    run = loop.train(settings, small(name), name, tmp_path / "run")
    (older, _), (_, path) = run.checkpoints()[-2:]
    trainer, arrays = trainer_of(run), run.read(path)
    for key, x in arrays.items():
        for wrong in (np.zeros((3, 5, 2)), np.zeros((0,), x.dtype), np.array("text")):
            run.write(path, {**arrays, key: wrong})
            _, notes = trainer.load_newest()
            assert trainer.state.step == older, key
            assert path.name in notes[0]
