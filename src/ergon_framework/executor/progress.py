"""Progress of the jobs of this process: what handlers report, written to a separate file
descriptor.

A report is written at once if the job has reported nothing for ``INTERVAL`` seconds. Otherwise a
background thread writes the latest one when that time is over. No handler waits for a worker that
does not read. The thread lives only while there is something to write.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Protocol

from ergon_framework.core.executor_protocol import encode_progress

INTERVAL = 1.0
"""Seconds between two reports of one job, at least."""


class Reporting(Protocol):
    """A request that is worked on."""

    is_answered: bool

    @property
    def job_id(self) -> str:
        """The id of the job."""
        ...


class ProgressWriter:
    """Writes reports to the worker. Any thread may report."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._waiting: dict[Reporting, bytes] = {}
        self._next_at: dict[Reporting, float] = {}
        self._is_serving = False
        self._pause = threading.Event()  # never set: only to wait on

    def report(self, job: Reporting, fraction: float | None, message: str) -> None:
        """Write the progress of a job, now or soon."""
        line = encode_progress(job.job_id, fraction, message)
        with self._lock:
            self._waiting[job] = line
            self._write_due(time.monotonic())
            if not self._is_serving:
                self._is_serving = True
                name = "ergon-progress"
                threading.Thread(target=self._serve, name=name, daemon=True).start()

    def _serve(self) -> None:
        while True:
            with self._lock:
                now = time.monotonic()
                self._write_due(now)
                if not self._next_at:
                    self._is_serving = False
                    return
                wait = min(self._next_at.values()) - now
            self._pause.wait(max(0.01, wait))

    def _write_due(self, now: float) -> None:
        """Write what is due. The caller holds the lock."""
        for job in [job for job, at in self._next_at.items() if at <= now]:
            del self._next_at[job]
        for job in [job for job in self._waiting if job not in self._next_at]:
            line = self._waiting.pop(job)
            if not job.is_answered:  # its worker would take it for one of the next attempt
                self._next_at[job] = now + INTERVAL
                self._write(job, line)

    def _write(self, job: Reporting, line: bytes) -> None:
        try:
            os.write(self._descriptor, line)  # all of it or nothing: it is shorter than PIPE_BUF
        except BlockingIOError:
            self._waiting[job] = line  # its worker does not read: once more when it is due
        except OSError:
            self._waiting.clear()  # the worker has closed its end


class _Reports:
    """Where handlers of this process report; nowhere outside of a worker's executor."""

    writer: ProgressWriter | None = None


def report_to(descriptor: int) -> None:
    """Write the reports of this process to a descriptor."""
    _Reports.writer = ProgressWriter(descriptor)


def report(job: Reporting, fraction: float | None, message: str) -> None:
    """Write the progress of a job, if the worker has asked for progress."""
    writer = _Reports.writer
    if writer is not None and not job.is_answered:
        writer.report(job, fraction, message)
