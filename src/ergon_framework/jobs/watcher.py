"""One thread that waits for the ends of many jobs on behalf of an event loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeAlias

from ergon_framework.core.job import JobStatus
from ergon_framework.errors import StoreUnavailableError
from ergon_framework.jobs.requests import Store, batches
from ergon_framework.jobs.results import APART, not_found
from ergon_framework.ports.jobstore import Job, Search, Topic

FINAL = tuple(status for status in JobStatus if status.is_final)
AT_ONCE = 200
"""Ids in one question to the store."""

Told: TypeAlias = Callable[[Job | Exception], None]


class Watcher:
    """Tells each caller once: the job in its final state, or why that will not be known.

    Callers are told in this thread. With nothing to wait for it sleeps.
    """

    def __init__(self, store: Store, poll: float) -> None:
        self._store = store
        self._poll = poll
        self._bell = store.listen(Topic.DONE)
        self._lock = threading.Lock()
        self._awaited: dict[str, set[Told]] = {}
        self._is_new = False  # somebody came since the last look
        self._is_over = False  # nobody would be told any more
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ergon-results", daemon=True)
        self._thread.start()

    def add(self, job_id: str, told: Told) -> None:
        """Wait for one job; who comes too late is told at once."""
        with self._lock:
            is_over = self._is_over
            if not is_over:
                self._awaited.setdefault(job_id, set()).add(told)
                self._is_new = True
        if is_over:
            told(_closed())
        self._bell.ring()

    def remove(self, job_id: str, told: Told) -> None:
        """Wait no longer."""
        with self._lock:
            waiting = self._awaited.get(job_id)
            if waiting is not None:
                waiting.discard(told)
                if not waiting:
                    del self._awaited[job_id]

    def close(self) -> None:
        """Stop; whoever still waits is told that the store is closed."""
        self._closing.set()
        self._bell.ring()
        self._thread.join()
        self._bell.close()

    def _run(self) -> None:
        try:
            self._watch()
        finally:
            with self._lock:
                self._is_over = True
            self._tell_all(_closed())

    def _watch(self) -> None:
        is_rung = False
        while not self._closing.is_set():
            looked_at = time.monotonic()
            with self._lock:
                ids = list(self._awaited)
                # A bell tells of ends; whether a job exists at all is looked at now and then.
                is_thorough, self._is_new = self._is_new or not is_rung, False
            try:
                self._look(ids, is_thorough=is_thorough)
            except Exception as error:
                self._tell_all(error)
            is_rung = self._bell.wait(self._poll if self._awaited else None)
            if is_rung and not self._is_new:
                self._closing.wait(max(0.0, looked_at + APART - time.monotonic()))

    def _look(self, ids: list[str], *, is_thorough: bool) -> None:
        for batch in batches(ids, AT_ONCE):
            statuses = () if is_thorough else FINAL
            missing = set(batch)
            for job in self._store.search(Search(ids=tuple(batch), statuses=statuses)):
                missing.discard(job.id)
                if job.status.is_final:
                    self._tell(job.id, job)
            if is_thorough:
                for job_id in missing:
                    self._tell(job_id, not_found(job_id))

    def _tell(self, job_id: str, what: Job | Exception) -> None:
        with self._lock:
            waiting = self._awaited.pop(job_id, set())
        for told in waiting:
            told(what)

    def _tell_all(self, error: Exception) -> None:
        for job_id in list(self._awaited):
            self._tell(job_id, error)


def _closed() -> StoreUnavailableError:
    return StoreUnavailableError("the client was closed", remedy="open another")
