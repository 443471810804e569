"""The job store as the server reads it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ergon_framework.app.jobs import JobSetup
from ergon_framework.app.reading.store_files import file_has_table
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.requests import Store
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.jobs.stores.opening import open_store
from ergon_framework.storage.urls import SQLITE


@dataclass(frozen=True, slots=True)
class JobSource:
    """Opens the store for reading with every question, so that it may come and go."""

    setup: JobSetup

    @contextmanager
    def opened(self) -> Iterator[JobClient]:
        """A client of the store; of an empty one where nobody has stored a job yet."""
        with JobClient(settings=self.setup.jobs, store=self._store()) as client:
            yield client

    def check(self) -> None:
        """Raise ``StoreError`` unless the store can be read."""
        with self.opened() as client:
            client.store.workers()

    @property
    def file(self) -> Path:
        """Where the jobs are."""
        return Path(self.setup.url[len(SQLITE) :])

    def _store(self) -> Store:
        is_there = file_has_table(self.file, "ergon_jobs")
        return open_store(self.setup.url, read_only=True) if is_there else MemoryJobStore(time.time)
