"""Brax's own environments, with a cost, as copies that training sees."""

# pyright: reportMissingImports=false

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest

brax = pytest.importorskip("brax.envs", reason="the extra algd[brax] is not installed")

from brax.envs.wrappers.training import AutoResetWrapper, EpisodeWrapper  # noqa: E402

from algd import envs  # noqa: E402
from algd.envs.brax_env import BraxEnv  # noqa: E402
from algd.envs.jax_vector import JaxVectorEnv  # noqa: E402
from algd.runs.config import Settings  # noqa: E402
from algd.training import loop  # noqa: E402
from algd.types import Budget, UserError  # noqa: E402
from same import differences  # noqa: E402
from support.small import small  # noqa: E402

BUDGETS = (Budget(5.0),)


@pytest.fixture(autouse=True)
def usual_promotion():
    """Brax adds numbers of different types."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def fast() -> BraxEnv:
    """Brax's environment for tests: it earns its speed, which is the action."""
    return BraxEnv(brax.get_environment("fast"), BUDGETS, 7, cost=lambda s: abs(s.obs[0]))


def push(copies, number):
    return np.full((copies.num_envs, copies.spec.action_size), number, np.float32)


def test_fast_ends_at_the_horizon_and_begins_anew():
    copies = JaxVectorEnv(fast(), 3, "fast")
    assert (copies.spec.action_low, copies.spec.action_high) == ((-1.0,), (1.0,))
    first = copies.reset(0)
    for step in range(1, 15):
        result = copies.step(push(copies, 0.5))
        assert (result.truncated == (step % 7 == 0)).all()
        assert not result.terminated.any()
        assert (result.next_obs != first).any()
        np.testing.assert_allclose(result.cost[:, 0], abs(result.next_obs[:, 0]))
        if step % 7 == 0:
            np.testing.assert_array_equal(result.obs, first)


def test_a_time_limit_of_brax_is_no_termination():
    limited = EpisodeWrapper(brax.get_environment("fast"), episode_length=4, action_repeat=1)
    copies = JaxVectorEnv(BraxEnv(limited, BUDGETS, 100, cost=lambda s: s.done), 2, "fast")
    copies.reset(0)
    results = [copies.step(push(copies, 0.1)) for _ in range(8)]
    assert [bool(r.truncated.all()) for r in results] == [False, False, False, True] * 2
    assert not any(r.terminated.any() for r in results)


def test_what_brax_does_not_say_is_refused():
    with pytest.raises(UserError, match="Fast reports no cost: there is none"):
        JaxVectorEnv(BraxEnv(brax.get_environment("fast"), BUDGETS), 1, "fast")
    with pytest.raises(UserError, match="AutoResetWrapper resets by itself"):
        BraxEnv(AutoResetWrapper(brax.get_environment("fast")), BUDGETS)


def test_a_run_on_brax_is_resumed_to_the_last_bit(tmp_path):
    settings = Settings(
        env=f"{__name__}:fast", steps=80, envs=2, log_every=20, eval_every=80, eval_episodes=2
    )
    whole = loop.train(settings, small("ppo-lag"), "ppo-lag", tmp_path / "whole")
    assert whole.config()["settings"]["loop"] == "device"
    part = dataclasses.replace(settings, steps=50)
    loop.train(part, small("ppo-lag"), "ppo-lag", tmp_path / "part")
    resumed, _ = loop.resume(tmp_path / "part", steps=80)
    assert differences(whole, resumed) == []


def test_a_body_falls_and_its_state_is_saved():
    body = BraxEnv(
        brax.get_environment("inverted_pendulum", backend="spring"),
        BUDGETS,
        cost=lambda s: abs(s.obs[0]) > 0.01,
    )
    copies, other = (JaxVectorEnv(body, 2, "pendulum") for _ in range(2))
    first = copies.reset(1)
    assert first.shape == (2, 4)
    fell = spent = 0
    for step in range(40):
        result = copies.step(push(copies, 1.0))
        fell, spent = fell + result.terminated.sum(), spent + result.cost.sum()
        assert not result.truncated.any()
        if step == 10:
            saved = copies.save_state()
    other.restore_state(saved)
    for _ in range(11, 40):
        again = other.step(push(other, 1.0))
    np.testing.assert_array_equal(again.obs, result.obs)
    assert fell > 1
    assert spent > 10


def test_the_examples_bodies_can_be_trained_on(monkeypatch):
    """Only traced: to compile a body takes a minute."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    made = envs.make("brax_velocity:hopper_on_brax", 1)
    assert isinstance(made, JaxVectorEnv)
    assert made.spec.horizon == 1_000
    assert made.spec.budgets[0].name == "speeding"
