"""The multiplier's rules: direction, length of the first step, integral, bounds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algd.objectives.multipliers import (
    PID,
    LogAdam,
    ProjectedAdam,
    ProjectedAscent,
    SmoothedPID,
    dual_rule,
)

GAINS = (0.1, 0.01, 0.5)
START = jnp.array([0.5, 0.5])


@pytest.mark.parametrize("name", ["projected", "adam", "log-adam", "pid"])
def test_a_violation_raises_the_multiplier_and_slack_lowers_it(name):
    rule = dual_rule(name, 1e-2, GAINS)
    state = rule.step(rule.init(START), jnp.array([1.0, -1.0]))
    assert state.lam[0] > START[0] > state.lam[1]


@pytest.mark.parametrize("violation", [1e-2, 1.0, 50.0])
def test_first_log_adam_step_is_the_rate_in_log_space(violation):
    rule = LogAdam(3e-4)
    before = rule.init(START)
    after = rule.step(before, jnp.array([violation, -violation]))
    change = np.array(after.log_lam - before.log_lam)
    np.testing.assert_allclose(change, [3e-4, -3e-4], rtol=2e-3)


def test_log_adam_never_reaches_zero():
    rule = LogAdam(0.1)
    state, _ = jax.lax.scan(
        lambda s, _: (rule.step(s, -jnp.ones(2)), None), rule.init(START), length=200
    )
    assert (state.lam > 0).all()
    assert (state.lam < 1e-2).all()


@pytest.mark.parametrize("rule", [ProjectedAscent(0.3), ProjectedAdam(0.3)])
def test_projection_stops_at_zero(rule):
    state = rule.init(START)
    for _ in range(5):
        state = rule.step(state, -jnp.ones(2))
    np.testing.assert_array_equal(state.lam, 0.0)


def test_projected_ascent_by_hand():
    state = ProjectedAscent(0.1).step(ProjectedAscent(0.1).init(START), jnp.array([2.0, -1.0]))
    np.testing.assert_allclose(state.lam, [0.7, 0.4], rtol=1e-6)


def test_pid_under_a_constant_error():
    rule, error = PID(*GAINS), jnp.array([2.0, 3.0])
    state = rule.init(jnp.zeros(2))
    lams = []
    for step in range(1, 6):
        state = rule.step(state, error)
        np.testing.assert_allclose(state.integral, step * error, rtol=1e-6)
        lams.append(np.array(state.lam))
    expected = [0.1 * np.array(error) + 0.01 * t * np.array(error) for t in range(1, 6)]
    expected[0] = expected[0] + 0.5 * np.array(error)
    np.testing.assert_allclose(lams, expected, rtol=1e-5)


def test_pid_is_never_negative():
    rule = PID(*GAINS)
    state = rule.init(START)
    for error in (-5.0, -1.0, -20.0):
        state = rule.step(state, jnp.full(2, error))
        assert (state.lam >= 0).all()
        assert (state.integral >= 0).all()


def test_smoothed_pid_by_hand():
    rule = SmoothedPID(0.1, 0.01, 0.5, delay=3, smoothing=0.9)
    state, limit = rule.init(jnp.array([0.2])), jnp.array([10.0])
    integral, error, costs = 0.2, 0.0, [0.0]
    for cost in (12.0, 30.0, 5.0, 5.0, 8.0, 40.0):
        state = rule.step(state, jnp.array([cost]), limit)
        integral = max(0.0, integral + 0.01 * (cost - 10.0))
        error = 0.9 * error + 0.1 * (cost - 10.0)
        costs.append(0.9 * costs[-1] + 0.1 * cost)
        past = costs[-4] if len(costs) > 4 else 0.0
        rise = max(0.0, costs[-1] - past)
        expected = max(0.0, 0.1 * error + integral + 0.5 * rise)
        np.testing.assert_allclose(state.lam, [expected], rtol=1e-5)


def test_constraints_do_not_touch_each_other():
    for name in ("projected", "adam", "log-adam", "pid"):
        rule = dual_rule(name, 1e-2, GAINS)
        one = rule.step(rule.init(START), jnp.array([1.0, 2.0]))
        other = rule.step(rule.init(START), jnp.array([1.0, -7.0]))
        assert one.lam[0] == other.lam[0]
