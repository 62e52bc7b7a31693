"""Any value of any setting is taken, or refused by its name before anything is written."""

import dataclasses
import json
import math
from typing import get_type_hints

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from algd.algorithms import preset, presets
from algd.runs.config import Settings, describe, parse_config
from algd.runs.directory import create_run
from algd.runs.files import LogPosition
from algd.runs.validation import check_fields, check_hyperparameters
from algd.training import loop
from algd.training.steps import evaluate, iterate
from algd.types import Budget, EnvSpec, UserError
from support.small import one_of_each, small
from support.trainer import Trainer, outcome

NUMBERS = (
    st.sampled_from(
        [
            0,
            1,
            2,
            -1,
            10**12,
            0.0,
            0.5,
            1.0,
            -1.0,
            1e-30,
            1e30,
            1e300,
            math.nan,
            math.inf,
            -math.inf,
        ]
    )
    | st.integers()
    | st.floats()
)
ANYTHING = NUMBERS | st.booleans() | st.none() | st.text(max_size=3) | st.tuples(NUMBERS, NUMBERS)


def with_values(frozen, changes):
    """The same with changes, around the type check of the tests, which users do not have."""
    copy = dataclasses.replace(frozen)
    for name, value in changes.items():
        object.__setattr__(copy, name, value)
    return copy


@settings(max_examples=300, deadline=None, database=None, derandomize=True)
@given(data=st.data())
def test_any_value_of_any_setting_is_taken_or_refused_by_its_name(data):
    value = data.draw(st.sampled_from([Settings(), *presets().values()]))
    field = data.draw(st.sampled_from(dataclasses.fields(value)))
    odd = with_values(value, {field.name: data.draw(ANYTHING)})
    check = check_fields if isinstance(odd, Settings) else check_hyperparameters
    _, said = outcome(check, odd)
    if said:
        assert f"--{field.name.replace('_', '-')}" in said
        return
    taken, kind = getattr(odd, field.name), get_type_hints(type(odd))[field.name]
    assert kind is not int or (isinstance(taken, int) and 0 <= taken < 2**31)
    assert kind is not float or math.isfinite(taken)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("algd", {"critic_rate": -1.0}, "--critic-rate must be above 0, not -1.0"),
        ("algd", {"discount": 1.01}, "--discount must be at most 1"),
        ("algd", {"beta": math.nan}, "--beta must be a finite number"),
        ("algd", {"batch_size": 0}, "--batch-size must be at least 1"),
        ("algd", {"batch_size": 2.5}, "--batch-size must be a whole number"),
        ("algd", {"sigma_min": 2.0}, "--sigma-min must not exceed --sigma-max"),
        ("algd-plain", {"initial_lam": 0.0}, "--initial-lam must be above 0"),
        ("algd-plain", {"initial_lam": -1.0}, "--initial-lam must be above 0"),
        ("algd", {"energy": "plain"}, "only where it is a higher limit"),
        ("algd", {"dual": "ascent"}, "--dual must be one of projected"),
        ("algd", {"pid": (0.1, 0.1)}, "--pid must be 3 numbers"),
        ("algd", {"replay_size": 1}, "--replay-size must be at least the 4 of --envs"),
        ("sac-lag", {"log_std_bounds": (2.0, -2.0)}, "--log-std-bounds must be a lower and"),
        ("algd", {"critic_hidden": 65_536}, "GiB"),
        ("algd", {"batch_size": 65_536, "mc_samples": 1_000}, "Updates of this size need"),
        ("cal", {"batch_size": 65_536, "cost_ensemble": 1_000}, "smaller --batch-size"),
        ("ppo-lag", {"passes": 0}, "--passes must be at least 1"),
    ],
)
def test_bad_hyperparameters_are_refused_before_anything_is_written(
    name, changes, message, tmp_path
):
    algorithm = with_values(presets()[name], changes)
    with pytest.raises(UserError, match=message):
        loop.train(Settings(), algorithm, name, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", one_of_each())
def test_a_diverged_policy_stops_the_run_instead_of_reaching_the_environment(name, tmp_path):
    run = create_run(tmp_path / "run")
    settings = Settings(envs=2, steps=40)
    trainer = Trainer(settings, small(name), run).start()
    spoilt = lambda x: jnp.full_like(x, jnp.nan) if jnp.issubdtype(x.dtype, jnp.floating) else x  # noqa: E731
    learner = trainer.state.learner
    broken = jax.tree.map(spoilt, learner)
    learner = dataclasses.replace(broken, low=learner.low, high=learner.high)
    trainer.state = trainer.state._replace(learner=learner)
    for work in (iterate, evaluate):
        with pytest.raises(UserError, match=r"action became .*not a number"):
            work(trainer.setup, trainer.state)
    with pytest.raises(UserError, match=r"the parameters of .* became infinite"):
        trainer.save(LogPosition())
    assert run.checkpoints() == []


def test_an_option_that_is_no_longer_there_is_forgotten_where_it_was_not_used():
    spec = EnvSpec(3, (-1.0,), (1.0,), (Budget(10.0),), 20)
    config = json.loads(json.dumps(describe(Settings(), preset("algd"), "algd", spec)))
    config["hyperparameters"]["dual_debt"] = 0.0
    assert parse_config(config)[1] == preset("algd")
    config["hyperparameters"]["dual_debt"] = 2_000.0
    with pytest.raises(UserError, match="no --dual-debt here; another version may"):
        parse_config(config)


def test_an_option_younger_than_the_run_is_as_before_and_not_as_todays_preset_has_it():
    spec = EnvSpec(3, (-1.0,), (1.0,), (Budget(10.0),), 20)
    config = json.loads(json.dumps(describe(Settings(), preset("algd"), "algd", spec)))
    assert parse_config(config)[1] == preset("algd")
    assert config["hyperparameters"].pop("n_step") == 3
    assert parse_config(config)[1] == dataclasses.replace(preset("algd"), n_step=1)
    config["hyperparameters"]["of_tomorrow"] = 1
    with pytest.raises(UserError, match="no --of-tomorrow here; another version may"):
        parse_config(config)
    config["settings"]["of_next_week"] = 1
    with pytest.raises(UserError, match="no --of-next-week here; another version may"):
        parse_config(config)
