"""Going on from what another run has learnt."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algd
from algd.cli import main
from algd.objectives.critic_learning import budget_unit
from algd.runs.checkpoint import Snapshot, read_snapshot
from algd.runs.config import Settings
from algd.training import loop
from algd.training.updates import fresh_state
from algd.training.warm_start import check_fits, warm_start
from algd.types import Budget, EnvSpec, UserError
from same import differences, last_arrays
from support.small import small

SHORT = Settings(
    steps=80,
    envs=2,
    log_every=40,
    eval_every=200,
    eval_episodes=1,
    budget=(15.0,),
    env_options=("horizon=40",),
)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    directory = tmp_path_factory.mktemp("from") / "source"
    return loop.train(SHORT, small("sac-lag", rho=3.0), "sac-lag", directory)


def first_state(directory):
    return read_snapshot(directory, 0).state


def test_networks_and_multiplier_are_kept_and_the_limit_is_new(source, tmp_path):
    run = algd.train(
        start_from=source.directory,
        budget=5.0,
        steps=4,
        envs=2,
        eval_episodes=1,
        out=tmp_path / "a",
    )
    old, new = read_snapshot(source.directory), first_state(run.directory)
    assert float(old.state.rounds) > 0
    fresh = jax.tree.map(np.asarray, fresh_state(old.algorithm, old.spec, jax.random.key(0)))
    assert not np.array_equal(new.actor.layers[0].weight, fresh.actor.layers[0].weight)
    for name in (field.name for field in dataclasses.fields(new)):
        pairs = zip(
            jax.tree.leaves(getattr(old.state, name)),
            jax.tree.leaves(getattr(new, name)),
            strict=True,
        )
        assert all(np.array_equal(a, b) for a, b in pairs) == (name != "limit")
    np.testing.assert_allclose(new.limit, old.state.limit / 3.0, rtol=1e-6)
    config = run.config()
    origin = {"run": str(source.directory), "id": source.id, "step": 80}
    assert config["started_from"] == origin
    # What is not said is the source's.
    assert config["preset"] == "sac-lag"
    assert config["hyperparameters"]["rho"] == 3.0


@pytest.mark.parametrize("critics", ["batch-norm", "plain"])
def test_what_is_measured_by_the_limit_keeps_its_meaning_under_another(critics):
    """The cost that critics expect, the multiplier's price of a unit of cost, and the scale of
    episodes, which is the new horizon's."""
    algorithm = small("algd", critics=critics, target_critics=True)
    old, new = (EnvSpec(3, (-1.0,), (1.0,), (Budget(b),), n) for b, n in ((20.0, 200), (5.0, 400)))
    state, fresh = (algorithm.init(spec, jax.random.key(i)) for i, spec in enumerate((old, new)))
    state = dataclasses.replace(
        state,
        dual=dataclasses.replace(state.dual, lam=jnp.array([0.8])),
        excess=jnp.ones((2, 1)),
        reach=jnp.array([0.5]),
        units=dataclasses.replace(state.units, count=jnp.asarray(1)),
    )
    source = Snapshot(Path(), SHORT, algorithm, "algd", old, state, 0, 0, [], {})
    started = warm_start(source, fresh)
    obs, action = jnp.ones(3), jnp.full(1, 0.3)
    expected = [algorithm.assess(each, obs, action).cost for each in (state, started)]
    np.testing.assert_allclose(*expected, rtol=1e-5)
    assert np.abs(expected[0]) > 0.0
    price = [each.dual.lam / budget_unit(algorithm, each) for each in (state, started)]
    np.testing.assert_allclose(*price, rtol=1e-6)
    # The highest expectations, above the limits that they are compared with.
    units = [budget_unit(algorithm, each) for each in (state, started)]
    highest = [each.reach * u + each.limit for each, u in zip((state, started), units, strict=True)]
    np.testing.assert_allclose(*highest, rtol=1e-5)
    for name in ("episode_scale", "limit", "excess"):
        np.testing.assert_array_equal(getattr(started, name), getattr(fresh, name))


def test_the_constraint_comes_after_the_reward():
    """A run without a constraint has no floor that follows; one that goes on from it has."""
    free, bound = small("algd-unconstrained"), small("algd")
    spec = EnvSpec(3, (-1.0,), (1.0,), (Budget(20.0),), 100)
    learnt, fresh = (each.init(spec, jax.random.key(0)) for each in (free, bound))
    source = Snapshot(Path(), SHORT, free, "algd-unconstrained", spec, learnt, 0, 0, [], {})
    check_fits(source, bound, fresh, "DiffDrive", spec)
    assert learnt.reach is None
    np.testing.assert_array_equal(warm_start(source, fresh).reach, [0.0])


@pytest.mark.parametrize(("follower", "lowest"), [("lgd", 0.0), ("algd", -0.7)])
def test_a_relaxed_limit_is_not_taken_for_a_price_below_zero(follower, lowest):
    """Where the energy is plain, a multiplier below zero would pay for cost."""
    leader, after = small("algd"), small(follower)
    spec = EnvSpec(3, (-1.0,), (1.0,), (Budget(20.0),), 100)
    learnt, fresh = (each.init(spec, jax.random.key(0)) for each in (leader, after))
    learnt = dataclasses.replace(
        learnt, dual=dataclasses.replace(learnt.dual, lam=jnp.array([-0.7]))
    )
    source = Snapshot(Path(), SHORT, leader, "algd", spec, learnt, 0, 0, [], {})
    np.testing.assert_allclose(warm_start(source, fresh).dual.lam, [lowest])


def test_such_a_run_resumes_exactly(source, tmp_path):
    start, algorithm = read_snapshot(source.directory), small("sac-lag", rho=3.0)
    longer = dataclasses.replace(SHORT, seed=1, budget=(7.0,))
    whole = loop.train(longer, algorithm, "sac-lag", tmp_path / "whole", start_from=start)
    shorter = dataclasses.replace(longer, steps=44)
    loop.train(shorter, algorithm, "sac-lag", tmp_path / "part", start_from=start)
    resumed, notes = loop.resume(tmp_path / "part", steps=80)
    assert notes == []
    assert differences(whole, resumed) == []
    assert resumed.config()["started_from"] == whole.config()["started_from"]
    # Stopped before the first checkpoint: it begins again from the same networks.
    lost = loop.train(
        dataclasses.replace(longer, steps=2),
        algorithm,
        "sac-lag",
        tmp_path / "lost",
        start_from=start,
    )
    for _, path in lost.checkpoints():
        path.unlink()
    lost.metrics_path.write_bytes(b"")
    again, notes = loop.resume(tmp_path / "lost", steps=80)
    assert "no checkpoint yet" in notes[0]
    ours, theirs = last_arrays(again), last_arrays(whole)
    assert all(np.array_equal(ours[n], theirs[n]) for n in ours if n.startswith("learner/"))


def test_the_command_line_takes_task_and_algorithm_from_the_run(source, tmp_path):
    flags = "--steps 2 --envs 2 --eval-episodes 1 --quiet"
    main(f"train {flags} --from {source.directory} --out {tmp_path / 'a'}".split())
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert config["settings"]["budget"] == [15.0]
    assert config["hyperparameters"]["actor_hidden"] == 16
    main(f"train {flags} --from {source.directory} --budget 4 --out {tmp_path / 'b'}".split())
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    assert config["settings"]["budget"] == [4.0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env": "PointButton1"}, r"observations of 17 numbers, but PointButton1 has .* 76"),
        ({"env": "HalfCheetahVelocity"}, "actions of 2 numbers"),
        ({"env_options": ("cost_parts=true",), "budget": (1.0, 2.0)}, r"1 constraint\(s\)"),
        ({"algorithm": "algd"}, r"sac-lag \(SACLag\); ALGD cannot go on"),
        ({"actor_hidden": 32}, r"actor.layers\[0\].* of the shape \[17, 16\].*\[17, 32\]"),
        ({"dual": "projected"}, "same kind of multiplier"),
        ({"start_from": "/nonexistent"}, "no directory"),
    ],
)
def test_what_does_not_fit_is_refused(source, tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        algd.train(**{"start_from": source.directory, "out": tmp_path / "run", **changes})
    assert not (tmp_path / "run").exists()


def test_evaluation_elsewhere(source, capsys):
    arguments = ["evaluate", str(source.directory), "--episodes", "2", "--json"]
    main([*arguments, "--budget", "3"])
    elsewhere = json.loads(capsys.readouterr().out)
    main(arguments)
    here = json.loads(capsys.readouterr().out)
    assert (elsewhere["cost"]["budget"], here["cost"]["budget"]) == (3.0, 15.0)
    assert elsewhere["cost"]["mean"] == here["cost"]["mean"]
    with pytest.raises(SystemExit) as stop:
        main([*arguments, "--env", "PointButton1"])
    assert stop.value.code == 2
    assert "do not fit" in capsys.readouterr().err
