"""The rows of a run in progress, on the disk and for TensorBoard."""

import errno
import json
import os
import time
from io import FileIO
from typing import Any

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import (
    Event,  # pyright: ignore[reportAttributeAccessIssue]
    SessionLog,  # pyright: ignore[reportAttributeAccessIssue]
)
from tensorboardX.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]

from algd.runs.directory import Run
from algd.runs.files import LogPosition, seal


class MetricsLog:
    """Appends to metrics.jsonl behind a mark; what was there behind it is taken back.

    TensorBoard's events are written here and now instead of by the writer's own thread, which
    would die unseen on a full disk and leave the run waiting for it.
    """

    def __init__(self, run: Run, mark: LogPosition, step: int) -> None:
        self.run, self.mark, self.owner = run, mark, run.id
        self.latest: dict[str, Any] = {}
        with run.writing():
            # Without a buffer: a row is on its way to the disk once it is written.
            self._metrics = open(run.metrics_path, "ab", buffering=0)  # noqa: SIM115
            self._metrics.truncate(mark.size)
            folder = run.directory / "tensorboard"
            folder.mkdir(exist_ok=True)
            # The library tells files apart by the second only.
            self._board = EventsWriter(str(folder / "events"), f".{os.getpid()}.{step}")
            # Rows of the mark's own step are kept, unless the run begins again.
            start = SessionLog(status=SessionLog.START)
            self._add_event(Event(step=step + 1 if step else 0, session_log=start))

    def write(self, row: dict[str, Any]) -> dict[str, int | float]:
        """Append one row; its numbers, under the names that TensorBoard shows."""
        line, behind = seal(row, self.mark, self.owner)
        kind, step = row["kind"], row["step"]
        values = {f"{kind}/{k}": v for k, v in row.items() if k not in ("kind", "step")}
        with self.run.writing():
            _write_whole(self._metrics, line)
            points = [Summary.Value(tag=tag, simple_value=v) for tag, v in values.items()]
            self._add_event(Event(step=step, summary=Summary(value=points)))
        self.mark = behind
        self.latest.update({**values, f"{kind}/step": step})
        return values

    def write_speed(self, begun: int, step: int, steps_per_second: float) -> None:
        """Append the speed since the step `begun` to timing.jsonl, which holds what differs between
        equal runs."""
        where = {"run": self.owner, "from": begun, "step": step}
        row = {**where, "steps_per_second": steps_per_second}
        line = json.dumps(row).encode() + b"\n"
        with self.run.writing(), open(self.run.timing_path, "ab", buffering=0) as file:
            _write_whole(file, line)

    def flush(self) -> LogPosition:
        """The mark, once everything before it is on the disk."""
        with self.run.writing():
            os.fsync(self._metrics.fileno())
            self._board.flush()
        return self.mark

    def close(self) -> None:
        """Close both files."""
        self._metrics.close()
        with self.run.writing():
            self._board.close()

    def _add_event(self, event: Event) -> None:
        event.wall_time = time.time()
        self._board.write_event(event)


def _write_whole(file: FileIO, line: bytes) -> None:
    """Write the line; a disk that takes only a part of it is full."""
    if file.write(line) < len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
