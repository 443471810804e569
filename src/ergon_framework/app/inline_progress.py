"""How far the jobs of a drain are: the record that a drain has in the store while they report.

A worker tells how far its jobs are in its own record. A drain has none, unless one of its handlers
reports: then it writes one, at most once a second, and takes it away when it ends.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from typing import Any

from ergon_framework.engine.clocks import SYSTEM_CLOCK, current_clock
from ergon_framework.errors import StoreError
from ergon_framework.jobs.store_thread import PROGRESS_INTERVAL
from ergon_framework.jobs.totals import gone_record
from ergon_framework.jobs.worker import version
from ergon_framework.ports.jobstore import FullJobStore, WorkerRecord

logger = logging.getLogger("ergon.jobs")


class InlineProgress:
    """The record of one drain. Any thread may say that something was reported."""

    def __init__(
        self, store: FullJobStore, name: str, lease: float, reports: Callable[[], dict[str, Any]]
    ) -> None:
        """``reports``: what the handlers of the jobs in hand have told, by job id."""
        self._store = store
        self._name = name
        self._lease = lease
        self._reports = reports
        self._started_at: float | None = None
        self._is_told = False
        self._is_written = False
        self._next_at = 0.0

    def changed(self) -> None:
        """Have the record written soon, as a handler has reported."""
        self._is_told = True
        # No thread of a drain follows a virtual clock, so nobody else would write it.
        if current_clock() is not SYSTEM_CLOCK:
            try:
                self._write()
            except StoreError as error:  # the handler's work goes on without it
                logger.warning("how far a job is was not written: %s", error)

    def write_due(self, now: float) -> None:
        """Write the record if something was reported, and not more often than a worker does."""
        if self._is_told and now >= self._next_at:
            self._next_at = now + PROGRESS_INTERVAL
            self._write()

    def end(self) -> None:
        """Remove the record."""
        self._is_told = False
        if not self._is_written:
            return
        self._is_written = False
        try:
            self._store.heartbeat(gone_record(self._record()))
        except StoreError as error:  # retention forgets it, as that of a worker that was killed
            logger.warning("the record of a drain stays in the store: %s", error)

    def _write(self) -> None:
        self._is_told = False  # before it is written: what is told meanwhile comes next
        try:
            self._store.heartbeat(self._record())
        except BaseException:
            self._is_told = True
            raise
        self._is_written = True

    def _record(self) -> WorkerRecord:
        if self._started_at is None:
            self._started_at = self._store.now()
        return WorkerRecord(
            id=self._name,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=version(),
            started_at=self._started_at,
            lease=self._lease,
            progress=self._reports(),
        )
