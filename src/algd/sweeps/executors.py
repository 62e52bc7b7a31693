"""Where the runs of a sweep are computed: processes of this machine, or a Ray cluster.

An engine is a generator. Each time it is asked, it gives the runs that ended since, after a moment
at the most; when it is closed, it has the others save what they have and stop.
"""

import dataclasses
import logging
import os
import pickle
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import IO, Any, Literal

from algd.runs.validation import check_fields
from algd.sweeps.cores import claimed_cores, usable_cores
from algd.sweeps.job import Outcome, attempt
from algd.sweeps.plan import Job
from algd.types import UserError

MOMENT = 0.25
# How often a run is started again whose process died without a word.
DEATHS = 3
SECONDS_TO_SAVE = 60.0
SECONDS_TO_CONNECT = 5.0
# How a client of HTTP/2, which Ray speaks, begins: its greeting, and settings that change nothing.
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))

Ended = Generator[list[tuple[Job, Outcome]], None, None]


@dataclasses.dataclass(frozen=True)
class Workers:
    """Where runs are computed and how many at a time."""

    engine: Literal["local", "ray"] = "local"
    """Processes of this machine, or a Ray cluster (needs the extra algd[ray])."""
    address: str | None = None
    """Of the Ray cluster to join; without one, a cluster on this machine is started."""
    threads: int = 1
    """Threads of each run. The same run with another number of threads gives other numbers."""
    at_once: int | None = None
    """Runs at a time, for the local engine; by default as many as the cores allow."""

    @property
    def slots(self) -> int:
        """Runs at a time on this machine."""
        return self.at_once or max(usable_cores() // self.threads, 1)


def check_workers(workers: Workers) -> None:
    """Refuse what cannot be meant."""
    check_fields(workers)
    if workers.address is not None and workers.engine != "ray":
        raise UserError("--address is for --engine ray.")


def compute(jobs: Sequence[Job], workers: Workers, cache: str | None) -> Ended:
    """The engine that was asked for."""
    check_workers(workers)
    if workers.engine == "ray":
        return _on_ray(jobs, workers, cache)
    return _locally(jobs, workers, cache)


# --- this machine -----------------------------------------------------------------------------


def start(
    function: Callable[..., Any], arguments: tuple[Any, ...], threads: int, log: IO[bytes] | None
) -> subprocess.Popen[bytes]:
    """Call a function in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "algd.sweeps.worker", str(threads)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
    )
    assert process.stdin is not None
    try:
        process.stdin.write(pickle.dumps(sys.path) + pickle.dumps((function, arguments)))
        process.stdin.close()
    except BrokenPipeError:
        # It died at once; whoever waits for its answer will see that there is none.
        pass
    return process


def answer(process: subprocess.Popen[bytes]) -> Any:
    """What the function returned, or nothing if its process died."""
    assert process.stdout is not None
    with process.stdout as channel:
        content = channel.read()
    return pickle.loads(content) if process.wait() == 0 else None


def _locally(jobs: Sequence[Job], workers: Workers, cache: str | None) -> Ended:
    waiting = deque((job, 1) for job in jobs)
    running: dict[subprocess.Popen[bytes], tuple[Job, int]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers.slots:
                job, tries = waiting.popleft()
                job.log_path.parent.mkdir(parents=True, exist_ok=True)
                with job.log_path.open("ab") as log:
                    process = start(attempt, (job, cache, os.getpid()), workers.threads, log)
                running[process] = (job, tries)
            time.sleep(MOMENT)
            ended = []
            for process in [p for p in running if p.poll() is not None]:
                job, tries = running.pop(process)
                outcome = answer(process)
                if outcome is None and tries < DEATHS:
                    waiting.append((job, tries + 1))
                else:
                    ended.append((job, outcome or _died(job, process.returncode)))
            yield ended
    finally:
        for process in running:
            process.terminate()
        deadline = time.monotonic() + SECONDS_TO_SAVE
        for process in running:
            try:
                process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()


def _died(job: Job, code: int) -> Outcome:
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    said = job.log_path.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-20:]
    return Outcome("failed", "\n".join([f"Its process died {DEATHS} times ({how}).", *said]))


# --- Ray --------------------------------------------------------------------------------------


def pinned_attempt(job: Job, threads: int, cache: str | None) -> Outcome:
    """The same work as a task of Ray, in a process that does nothing after it."""
    with claimed_cores(threads):
        return attempt(job, cache)


def _on_ray(jobs: Sequence[Job], workers: Workers, cache: str | None) -> Ended:
    ray = _connected(workers)
    # A task whose process or node dies is started again elsewhere, where it finds its checkpoint.
    task = ray.remote(num_cpus=workers.threads, max_retries=DEATHS - 1, max_calls=1)(pinned_attempt)
    pending = {task.remote(job, workers.threads, cache): job for job in jobs}
    try:
        while pending:
            ready, _ = ray.wait(list(pending), num_returns=len(pending), timeout=MOMENT)
            yield [(pending.pop(reference), _answer(ray, reference)) for reference in ready]
    finally:
        for reference in pending:
            ray.cancel(reference, force=False)
        if pending:
            ray.wait(list(pending), num_returns=len(pending), timeout=SECONDS_TO_SAVE)
        ray.shutdown()


def _answer(ray: Any, reference: Any) -> Outcome:
    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:
        return Outcome("failed", f"Ray could not compute it: {error}")


def _connected(workers: Workers) -> Any:
    """Ray, joined to the cluster of the address or to a new one of this machine."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise UserError("The engine ray needs Ray: pip install 'algd[ray]'.") from error
    if workers.address is None:
        cores = workers.slots * workers.threads
        ray.init(
            address="local",
            num_cpus=cores,
            include_dashboard=False,
            logging_level=logging.ERROR,
            log_to_driver=False,
        )
        return ray
    _check_reachable(workers.address)
    try:
        ray.init(address=workers.address, logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise UserError(f"No Ray cluster could be joined at {workers.address}: {error}") from error
    return ray


def _check_reachable(address: str) -> None:
    """Refuse an address where nobody answers, or something else; Ray itself would wait."""
    if address == "auto":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise UserError(f"A Ray address is host:port, ray://host:port or auto, not {address!r}.")
    try:
        with socket.create_connection((host, int(port)), timeout=SECONDS_TO_CONNECT) as channel:
            channel.sendall(GREETING)
            frame = channel.makefile("rb").read(9)
    except (OSError, OverflowError) as error:
        raise UserError(f"Nobody answers at the Ray address {address} ({error}).") from error
    # A server's first frame are its settings, type 4; encrypted, it would not understand us.
    if frame[3:4] != b"\x04" and not os.environ.get("RAY_USE_TLS"):
        raise UserError(f"What answers at {address} is not Ray.")
