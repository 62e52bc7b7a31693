"""The replay buffer as a Minari dataset: every transition once, episodes whole and in order."""

import gymnasium
import numpy as np
import pytest

from algd.cli import main
from algd.export.minari import episodes_of, stored_transitions
from algd.runs.config import Settings
from algd.training import loop
from algd.types import UserError
from same import buffer
from support.small import small

minari = pytest.importorskip("minari")

# Nothing is learnt: only what is stored matters here, and that is everything.
IDLE = {"prefill": 10_000, "replay_size": 90}
SHORT = Settings(
    env="Counter-v0", steps=90, envs=3, budget=(5.0, 7.0), log_every=1_000, eval_episodes=1
)


class Counter(gymnasium.Env):
    """Observes its own name, its episode and its step, so that each transition can be checked."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gymnasium.spaces.Box(-2.0, 1.0, (1,), np.float32)
    cost_names = ("first", "second")
    made = 0

    def __init__(self, faulty=False):
        Counter.made += 1
        self.name, self.episode, self.faulty = Counter.made, 0, faulty

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.step_number, self.episode = 0, self.episode + 1
        return self.observe(), {}

    def step(self, action):
        self.step_number += 1
        terminated = self.step_number == 4 + self.name % 3
        bad = self.faulty and self.step_number == 2 and self.episode % 2 == 0
        cost = [0.1 * self.step_number, float("nan") if bad else 1.0]
        return self.observe(), float(self.name), terminated, False, {"cost": cost}

    def observe(self):
        return np.array([self.name, self.episode, self.step_number], np.float32)


gymnasium.register("Counter-v0", entry_point=Counter, max_episode_steps=6)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("dataset") / "run"
    return loop.train(SHORT, small("sac-lag", **IDLE), "sac-lag", directory)


def check_episodes(rows, episodes):
    assert sorted(np.concatenate(episodes)) == list(range(len(rows["reward"])))
    for own in episodes:
        names, numbers, steps = rows["obs"][own].T
        assert len(set(names)) == len(set(numbers)) == 1
        np.testing.assert_array_equal(steps, steps[0] + np.arange(len(own)))
        assert not (rows["terminated"] | rows["truncated"])[own[:-1]].any()


def test_minari_reads_the_buffer_back(run, tmp_path, monkeypatch, capsys):
    out = tmp_path / "data"
    main(["dataset", str(run.directory), "--out", str(out)])
    assert "90 steps" in capsys.readouterr().out
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(out))
    data = minari.load_dataset("Counter-v0/sac-lag-v0")
    stored = buffer(run)
    assert data.total_steps == 90
    assert data.action_space == gymnasium.spaces.Box(-2.0, 1.0, (1,), np.float32)
    seen = {}
    for episode in data.iterate_episodes():
        assert len(episode.observations) == len(episode.actions) + 1
        assert episode.terminations[-1] or episode.truncations[-1]
        assert not (episode.terminations[:-1] | episode.truncations[:-1]).any()
        for t in range(len(episode.actions)):
            costs = episode.infos["cost"][t + 1]
            assert costs[0] == episode.infos["cost_first"][t + 1]
            key = tuple(episode.observations[t])
            seen[key] = (
                *episode.actions[t],
                episode.rewards[t],
                *costs,
                *episode.observations[t + 1],
                episode.terminations[t],
            )
    for i in range(90):
        wanted = (
            *stored["action"][i],
            stored["reward"][i],
            *stored["cost"][i],
            *stored["next_obs"][i],
            stored["terminated"][i],
        )
        assert seen[tuple(stored["obs"][i])] == wanted
    with pytest.raises(ValueError, match="cannot be recovered"):
        data.recover_environment()


def test_a_root_takes_another_run_and_environments_are_recovered(
    run, tmp_path, monkeypatch, capsys
):
    out = tmp_path / "data"
    settings = Settings(steps=8, eval_episodes=1, env_options=("horizon=4", "cost_parts=true"))
    ours = loop.train(settings, small("sac-lag", **IDLE), "sac-lag", tmp_path / "ours")
    for directory in (ours.directory, run.directory, ours.directory):
        main(["dataset", str(directory), "--out", str(out)])
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(out))
    names = {"DiffDrive/sac-lag-v0", "DiffDrive/sac-lag-v1", "Counter-v0/sac-lag-v0"}
    assert set(minari.list_local_datasets()) == names
    env = minari.load_dataset("DiffDrive/sac-lag-v1").recover_environment()
    env.reset(seed=0)
    *_, info = env.step(env.action_space.sample())
    assert env.unwrapped.horizon == 4
    assert info["cost"].shape == (2,)
    (tmp_path / "file").touch()
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main(["dataset", str(run.directory), "--out", str(tmp_path / "file")])
    assert stop.value.code == 2
    assert "is a file" in capsys.readouterr().err


def test_episodes_of_interleaved_copies(run):
    rows, first, dropped = stored_transitions(run)
    assert (first, dropped) == (0, 0)
    check_episodes(rows, episodes_of(rows, first, 3, dropped))


def test_a_full_ring_begins_in_the_middle(run):
    rows, _, _ = stored_transitions(run)
    cut = {name: values[40:] for name, values in rows.items()}
    check_episodes(cut, episodes_of(cut, 40, 3, 0))


def test_dropped_steps_and_fresh_episodes_cut_an_episode(tmp_path):
    settings = Settings(
        **{**vars(SHORT), "bad_steps": "drop", "env_options": ("faulty=true",), "steps": 60}
    )
    run = loop.train(settings, small("sac-lag", **IDLE), "sac-lag", tmp_path / "run")
    # A foreign environment resumes with fresh episodes.
    loop.resume(tmp_path / "run", steps=90)
    rows, first, dropped = stored_transitions(run)
    assert dropped > 0
    episodes = episodes_of(rows, first, 3, dropped)
    check_episodes(rows, episodes)
    # As many pieces as there are gaps in the counters.
    starts = [rows["obs"][own[0]] for own in episodes]
    ends = {tuple(rows["next_obs"][own[-1]]) for own in episodes}
    assert not ends & {tuple(start) for start in starts}


def test_a_run_without_a_buffer_is_refused(tmp_path):
    settings = Settings(**{**vars(SHORT), "steps": 3})
    run = loop.train(settings, small("ppo-lag"), "ppo-lag", tmp_path / "run")
    with pytest.raises(UserError, match="keeps no replay buffer"):
        stored_transitions(run)
