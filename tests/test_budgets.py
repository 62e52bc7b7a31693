"""Several budgets at once, from the environment to the last table."""

import json

import jax
import numpy as np
import pytest

import algd
from algd import api, envs
from algd.cli import main
from algd.envs.requirements import with_distinct_names
from algd.evaluation.acting import act
from algd.runs.config import Settings
from algd.training import loop
from algd.types import Budget, UserError
from support.small import small

PARTS = ("hazards", "energy")
TWO = Settings(
    steps=120,
    envs=2,
    env_options=("cost_parts=true", "horizon=40"),
    budget=(3.0, 16.0),
    log_every=40,
    eval_every=60,
    eval_episodes=2,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("budgets") / "run"
    return loop.train(TWO, small("algd-plain", dual_rate=0.05), "algd-plain", directory)


def test_every_row_names_its_constraint(run):
    assert [b["name"] for b in run.config()["budgets"]] == list(PARTS)
    for kind, names in {
        "train": ("lam", "qc_mean", "violation", "total_cost", "total_unsafe_steps"),
        "eval": ("cost", "cost_std", "violation_rate", "expected_cost", "discounted_cost"),
    }.items():
        row = run.rows(kind)[-1]
        for name in names:
            assert name not in row
            assert all(np.isfinite(row[f"{name}/{part}"]) for part in PARTS)
    # Each multiplier follows its own constraint.
    last = run.rows("train")[-1]
    assert last["lam/hazards"] != last["lam/energy"]


def test_evaluate_agrees_with_a_plain_loop(run, capsys):
    main(["evaluate", str(run.directory), "--episodes", "3", "--seed", "5", "--json"])
    summary = json.loads(capsys.readouterr().out)
    assert list(summary["cost"]) == list(PARTS)
    # The same again by hand: the task's own costs, summed over whole episodes.
    policy = algd.load(run.directory).policy
    env = envs.make("DiffDrive", 3, env_options={"cost_parts": True, "horizon": 40})
    obs, total, steps = env.reset(5), np.zeros((3, 2)), 0
    key = jax.random.key(5)
    while True:
        action = act(
            policy.algorithm,
            policy.state,
            jax.numpy.asarray(obs),
            jax.random.fold_in(key, steps),
            "deterministic",
        )[0]
        step = env.step(np.asarray(action))
        wheels = np.asarray(action, np.float64)
        # Energy is the mean square of the wheel commands, hazards is the sign of their margin.
        np.testing.assert_allclose(step.cost[:, 1], (wheels**2).mean(axis=1), rtol=1e-5)
        np.testing.assert_array_equal(step.cost[:, 0], step.margin[:, 0] > 0)
        total += step.cost
        obs, steps = step.obs, steps + 1
        if step.truncated.all():
            break
    for i, (part, limit) in enumerate(zip(PARTS, TWO.budget, strict=True)):
        row = summary["cost"][part]
        np.testing.assert_allclose(row["mean"], total[:, i].mean(), rtol=1e-5)
        assert row["budget"] == limit
        np.testing.assert_allclose(row["violation_rate"], (total[:, i] > limit).mean())


def test_the_table_and_the_picture_have_both(run, capsys):
    main(["evaluate", str(run.directory), "--episodes", "2"])
    table = capsys.readouterr().out
    assert all(part in table for part in PARTS)
    api.draw(run)
    assert (run.directory / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_three_parts_are_collected_logged_and_evaluated(tmp_path):
    settings = Settings(
        env="PointButton1",
        steps=8,
        envs=2,
        env_options=("cost_parts=true",),
        log_every=8,
        eval_every=100,
        eval_episodes=1,
    )
    # Every preset's update has several constraints in its battery; here nothing is learnt.
    algorithm = small("ppo-lag", rollout_steps=1_000)
    run = loop.train(settings, algorithm, "ppo-lag", tmp_path / "run")
    parts = {"hazards", "buttons", "gremlins"}
    assert {b["name"] for b in run.config()["budgets"]} == parts
    assert {f"cost/{part}" for part in parts} <= set(run.rows("eval")[-1])
    assert {f"total_cost/{part}" for part in parts} <= set(run.rows("train")[-1])


def test_unnamed_budgets_get_names_that_can_be_told_apart():
    plain = (Budget(1.0), Budget(2.0))
    assert [b.name for b in with_distinct_names("x", plain, None)] == ["cost1", "cost2"]
    assert [b.name for b in with_distinct_names("x", plain, ("a", "b"))] == ["a", "b"]
    assert with_distinct_names("x", plain[:1], None) == plain[:1]
    with pytest.raises(UserError, match="names its costs a, but 2 budget"):
        with_distinct_names("x", plain, ("a",))


def test_a_budget_for_each_constraint_is_asked_for(tmp_path):
    settings = Settings(**{**vars(TWO), "budget": (1.0, 2.0, 3.0)})
    with pytest.raises(UserError, match=r"2 constraint\(s\) \(hazards, energy\), but 3"):
        loop.train(settings, small("algd"), "algd", tmp_path / "run")
