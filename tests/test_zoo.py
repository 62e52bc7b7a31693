"""The policies that come with the package act, keep their budgets, and say what they cannot do."""

import dataclasses
import json
import statistics
import timeit
from typing import Any

import numpy as np
import pytest

import algd
from algd import envs, zoo
from algd.cli import main
from algd.evaluation.policy import load
from algd.networks.numpy_policy import NumpyPolicy, flattened
from algd.types import UserError

TASKS = zoo.tasks()
SHOWN = "DiffDrive"


def test_every_task_has_one_and_all_are_small():
    paper = {name for name in envs.names() if not name.endswith(("Random", "Indicator"))}
    assert paper == {*TASKS}
    assert sum(path.stat().st_size for path in zoo.PLACE.glob("*.*")) < 4_000_000


def judged(task: str) -> dict[str, Any]:
    told = zoo.record(task).evaluation()
    assert told is not None
    return told


@pytest.mark.parametrize("task", TASKS)
def test_a_policy_keeps_its_budget_and_earns_what_its_record_says(task):
    found, told = algd.evaluate(f"zoo:{task}", 5), judged(task)
    # A mean of five is uncertain: what is refused is one that is significantly over.
    cost = found["cost"]
    assert cost["mean"] <= 1.05 * cost["budget"] + 3 * cost["standard_error"]
    earned, error = told["return"]["mean"], told["return"]["standard_error"]
    deviation = error * (told["episodes"] / 5) ** 0.5
    assert abs(found["return"]["mean"] - earned) < 4 * deviation + 0.05 * abs(earned)


@pytest.mark.parametrize("task", TASKS)
def test_a_policy_acts_at_once_and_inside_its_box(task):
    policy = algd.load(f"zoo:{task}").policy
    rows = np.random.default_rng(0).normal(size=(8, policy.spec.obs_size)).astype(np.float32)
    for mode in ("deterministic", "sampled", "best"):
        actions = policy.predict(rows, mode=mode)
        assert (policy.spec.action_low <= actions).all()
        assert (actions <= policy.spec.action_high).all()
    # About a tenth of a millisecond; an action that JAX dispatches takes many times the bound.
    times = timeit.repeat(lambda: policy.predict(rows[0]), repeat=100, number=1)
    assert statistics.median(times) < 0.005


def test_what_is_written_is_read_again(tmp_path):
    data = zoo.policy(SHOWN)
    zoo.write("Mine", data, zoo.record(SHOWN).path, tmp_path)
    assert zoo.tasks(tmp_path) == ["Mine"]
    again = flattened(zoo.policy("Mine", tmp_path))
    assert all(np.array_equal(array, again[name]) for name, array in flattened(data).items())
    assert all(x.dtype == np.float32 for x in again.values() if x.dtype.kind == "f" and x.ndim > 1)
    whole = NumpyPolicy(data)
    rows = np.random.default_rng(1).normal(size=(4, data.obs_size)).astype(np.float32)
    halved = NumpyPolicy.load(tmp_path / "Mine.npz")
    np.testing.assert_array_equal(whole.predict(rows, "sampled"), halved.predict(rows, "sampled"))


def test_numbers_that_half_precision_lacks_are_refused(tmp_path):
    data = zoo.policy(SHOWN)
    large = dataclasses.replace(data.policy, embedding=data.policy.embedding * 1e9)
    with pytest.raises(UserError, match="beyond half precision"):
        zoo.write("Mine", dataclasses.replace(data, policy=large), zoo.record(SHOWN).path, tmp_path)
    assert not zoo.tasks(tmp_path)


def test_the_command_line_knows_it(capsys, tmp_path):
    main(["evaluate", f"zoo:{SHOWN}", "--episodes", "3", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["run"] == f"zoo:{SHOWN}"
    assert found["env"] == SHOWN
    assert found["step"] == found["steps"]
    main(["list"])
    told = judged(SHOWN)
    assert f"{told['return']['mean']:.4g} / {told['cost']['mean']:.3g}" in capsys.readouterr().out
    film = tmp_path / "film.gif"
    main(["render", f"zoo:{SHOWN}", "--out", str(film), "--every", "50", "--quiet"])
    assert film.stat().st_size > 1_000
    main(["export", f"zoo:{SHOWN}", "--out", str(tmp_path / "mine"), "--format", "onnx"])
    assert (tmp_path / "mine" / "policy_sampled.onnx").exists()


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (lambda: algd.load("zoo:DifDrive"), r"no policy of 'DifDrive'.*Did you mean.*DiffDrive"),
        (lambda: algd.load(f"zoo:{SHOWN}", "best"), "has no checkpoint 'best'"),
        (lambda: algd.load(f"zoo:{SHOWN}").learn(100), "nothing to go on from"),
        (lambda: algd.resume(f"zoo:{SHOWN}"), f"zoo:{SHOWN}"),
        (lambda: algd.train(start_from=f"zoo:{SHOWN}"), f"zoo:{SHOWN}"),
        (lambda: load(f"zoo:{SHOWN}").predict(np.zeros(17), return_info=True), "no forecast"),
        (lambda: load(f"zoo:{SHOWN}").export("never", "stablehlo"), "as numpy or onnx"),
        (lambda: algd.evaluate(f"zoo:{SHOWN}", mode="best", candidates=10**5), "From 1 to 10,000"),
        (lambda: algd.evaluate(f"zoo:{SHOWN}", env="PointButton1"), "numbers|observation|spaces"),
    ],
)
def test_what_it_cannot_do_is_said(what, message):
    with pytest.raises(UserError, match=message):
        what()
