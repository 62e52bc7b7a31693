"""A sweep on a cluster that loses a machine ends with the same runs as one on a single machine."""

import dataclasses
import socket
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from rich.console import Console

from algd.runs.config import Settings
from algd.runs.directory import Run
from algd.sweeps import executors
from algd.sweeps.execution import execute, plan
from algd.sweeps.executors import Workers, compute
from algd.sweeps.job import is_complete, last_beat
from algd.sweeps.plan import Job
from algd.types import UserError
from same import differences
from support.small import small

pytestmark = pytest.mark.skipif(
    find_spec("ray") is None, reason="Ray is not installed: pip install 'algd[ray]'"
)

SETTINGS = Settings(
    steps=320,
    envs=2,
    log_every=40,
    eval_every=160,
    eval_episodes=2,
    checkpoint_every=40,
    env_options=("horizon=40",),
)
QUIET = Console(quiet=True)


def two_jobs(directory):
    return [
        Job(
            directory / f"DiffDrive-sac-lag-seed{seed}",
            dataclasses.replace(SETTINGS, seed=seed),
            small("sac-lag"),
            "sac-lag",
            4,
        )
        for seed in range(2)
    ]


def parent_of(pid):
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return None


def remove_when_busy(cluster, node, jobs, removed):
    """Take the machine away once it is in the middle of a run."""
    raylet = node.all_processes["raylet"][0].process.pid
    while True:
        # Checkpoints tell how far a run is; its progress, told once a second, only where.
        begun = [(job, beat) for job in jobs if (beat := last_beat(job.directory))]
        here = [Run(job.directory) for job, beat in begun if parent_of(beat.pid) == raylet]
        if any(40 <= step <= 240 for run in here for step, _ in run.checkpoints()[-1:]):
            cluster.remove_node(node, allow_graceful=False)
            removed.set()
            return
        time.sleep(0.02)


@pytest.mark.slow
def test_runs_of_a_lost_machine_are_continued_elsewhere(tmp_path, monkeypatch):
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    # It would let everything else on the machine go first.
    monkeypatch.setenv("RAY_worker_niceness", "0")
    alone, shared = two_jobs(tmp_path / "alone"), two_jobs(tmp_path / "shared")
    planned = plan(alone, tmp_path / "alone", Workers(), False, QUIET)
    assert execute(planned, tmp_path / "alone", Workers(), QUIET) == {}

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    removed = threading.Event()
    try:
        node = cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        killing = (cluster, node, shared, removed)
        threading.Thread(target=remove_when_busy, args=killing, daemon=True).start()
        workers = Workers(engine="ray", address=cluster.address)
        planned = plan(shared, tmp_path / "shared", workers, False, QUIET)
        assert execute(planned, tmp_path / "shared", workers, QUIET) == {}
        assert removed.is_set()
    finally:
        cluster.shutdown()
    for one, other in zip(alone, shared, strict=True):
        assert is_complete(one)
        assert is_complete(other)
        assert differences(Run(one.directory), Run(other.directory)) == []
    # All columns but the processor time are the same.
    texts = [(tmp_path / where / "results.csv").read_text() for where in ("alone", "shared")]
    tables = [[line.rsplit(",", 1)[0] for line in text.splitlines()] for text in texts]
    assert len(tables[0]) == 3
    assert tables[0] == tables[1]


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:9", "Nobody answers at the Ray address 127.0.0.1:9"),
        ("ray://nowhere.invalid:10001", "Nobody answers"),
        ("cluster", "host:port"),
    ],
)
def test_an_address_where_nobody_is(address, message, tmp_path):
    import ray

    with pytest.raises(UserError, match=message):
        next(compute(two_jobs(tmp_path), Workers("ray", address), None))
    # Ray itself, which would wait for it, was not asked.
    assert not ray.is_initialized()


@pytest.mark.parametrize("says", [b"SSH-2.0-else\r\n", b"", None])
def test_an_address_where_something_else_is(says, tmp_path, monkeypatch):
    monkeypatch.setattr(executors, "SECONDS_TO_CONNECT", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            caller, _ = server.accept()
            if says is None:
                caller.recv(1)
                time.sleep(2)
            else:
                caller.sendall(says)
            caller.close()

        thread = threading.Thread(target=serve)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(UserError, match=r"not Ray|Nobody answers"):
            next(compute(two_jobs(tmp_path), Workers("ray", address), None))
        thread.join()
