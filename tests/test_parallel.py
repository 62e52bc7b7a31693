"""Overlapped steps, several seeds in one program, several devices."""

import dataclasses
import os
import subprocess
import sys

import numpy as np
import pytest

from algd.cli import main
from algd.evaluation.policy import load
from algd.experiments.trials import tiny
from algd.runs.config import Settings
from algd.runs.directory import Run
from algd.training import loop
from algd.types import UserError
from same import differences, last_arrays
from support.small import small

SHORT = Settings(
    steps=160, envs=2, log_every=40, eval_every=160, eval_episodes=2, env_options=("horizon=40",)
)


# Larger than the buffer of the other tests.
ALL_KEPT = {"replay_size": SHORT.steps}


@pytest.mark.parametrize(("name", "changes"), [("sac-lag", ALL_KEPT), ("ppo-lag", {})])
def test_an_overlapped_run_resumes_exactly(name, changes, tmp_path):
    algorithm, settings = small(name, **changes), dataclasses.replace(SHORT, overlap=True)
    whole = loop.train(settings, algorithm, name, tmp_path / "whole")
    part = dataclasses.replace(settings, steps=90)
    loop.train(part, algorithm, name, tmp_path / "part")
    resumed, notes = loop.resume(tmp_path / "part", steps=SHORT.steps)
    assert notes == []
    assert differences(whole, resumed) == []


def test_overlap_is_a_lag_of_one_step(tmp_path):
    """Until the first gradient round both runs act alike; then the policy is one step behind."""
    algorithm = small("sac-lag", **ALL_KEPT)
    plain = loop.train(SHORT, algorithm, "sac-lag", tmp_path / "plain")
    settings = dataclasses.replace(SHORT, overlap=True)
    lagging = loop.train(settings, algorithm, "sac-lag", tmp_path / "lagging")
    first, second = (buffer_actions(run) for run in (plain, lagging))
    assert len(second) == len(first) - SHORT.envs
    # Rows 0..39 are the prefill; the rounds owed after step 42 change the actions of rows 42 and
    # 43 at once, or, with the lag, those of rows 44 and 45.
    np.testing.assert_array_equal(first[:42], second[:42])
    differing = np.flatnonzero((first[: len(second)] != second).any(axis=1))
    assert differing[0] in (42, 43)


def buffer_actions(run: Run) -> np.ndarray:
    return np.concatenate([run.read(path)["action"] for _, _, path in run.pieces()])


@pytest.mark.parametrize("name", ["algd", "ppo-lag"])
def test_seeds_in_one_program_are_the_runs_of_their_own(name, tmp_path):
    """Equal up to the order of sums: 1e-4 relative in the networks after a short run.

    Short, because sooner or later that order decides on which side of its kink a unit falls.
    """
    settings = dataclasses.replace(SHORT, steps=100)
    directories = [tmp_path / f"seed{i}" for i in range(2)]
    each = [dataclasses.replace(settings, seed=i) for i in range(2)]
    runs = loop.train_seeds(each, small(name), name, directories)
    for i, run in enumerate(runs):
        alone = loop.train(
            dataclasses.replace(settings, seed=i), small(name), name, tmp_path / f"alone{i}"
        )
        together, single = last_arrays(run), last_arrays(alone)
        assert together.keys() == single.keys()
        # "log" is the size and checksum of a file of printed numbers.
        for key in together.keys() - {"log"}:
            np.testing.assert_allclose(together[key], single[key], rtol=1e-4, atol=1e-4)
    for steps in (120, 140):
        resumed, notes = loop.resume(runs[0].directory, steps=steps)
        assert resumed.checkpoints()[-1][0] == steps
        assert "with 2 seeds in one program" in notes[0]


def test_seeds_on_the_command_line(tmp_path, capsys):
    # The same preset and sizes as above, so that nothing is compiled again.
    sizes = " ".join(f"--{k.replace('_', '-')} {v}" for k, v in tiny("ppo-lag").items())
    options = "--steps 80 --envs 2 --eval-every 80 --eval-episodes 2 --seeds 8 5 --quiet "
    options += "--env-options horizon=40"
    main(f"train {options} --out {tmp_path / 'many'} ppo-lag {sizes}".split())
    actions = [load(tmp_path / "many" / f"seed{seed}").predict(np.full(17, 0.1)) for seed in (8, 5)]
    assert not np.array_equal(*actions)
    with pytest.raises(UserError, match="neither"):
        loop.train_seeds(
            2 * [dataclasses.replace(SHORT, overlap=True)],
            small("algd"),
            "algd",
            [tmp_path / "x", tmp_path / "y"],
        )


SHARDED = """
import dataclasses, pathlib, sys
import jax
from support.small import small
from test_parallel import SHORT
from algd.training import loop
assert len(jax.devices()) == 4
settings = dataclasses.replace(SHORT, steps=120, devices=4)
loop.train(settings, small("algd"), "algd", pathlib.Path(sys.argv[1]))
"""


def test_four_devices_share_out_the_minibatch(tmp_path):
    """The same run on 1 and on 4 simulated devices, up to the order of sums."""
    four = os.environ["XLA_FLAGS"] + " --xla_force_host_platform_device_count=4"
    done = subprocess.run(
        [sys.executable, "-c", SHARDED, str(tmp_path / "four")],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "XLA_FLAGS": four,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        },
    )
    assert done.returncode == 0, done.stderr
    settings = dataclasses.replace(SHORT, steps=120)
    alone = last_arrays(loop.train(settings, small("algd"), "algd", tmp_path / "one"))
    shared = last_arrays(Run(tmp_path / "four"))
    assert int(shared["learner/rounds"]) == 40
    for name in alone:
        if name.startswith("learner/"):
            np.testing.assert_allclose(shared[name], alone[name], atol=1e-4, err_msg=name)


def test_devices_that_do_not_exist_or_do_not_fit_are_refused(tmp_path):
    with pytest.raises(UserError, match="this machine has 1"):
        loop.train(dataclasses.replace(SHORT, devices=2), small("algd"), "algd", tmp_path / "run")
