"""The job store as the server reads it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

from ergon_framework.app.jobs import JobSetup
from ergon_framework.app.settings.stores import file_has_table, has_jobs
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.requests import Store
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.jobs.stores.opening import open_store
from ergon_framework.storage.urls import file_of


class JobSource:
    """Opens a file for reading with every question, so that it may come and go.

    A store on a server is opened with the first one: that costs much there, and its connections
    find their way back by themselves.
    """

    def __init__(self, setup: JobSetup) -> None:
        self.setup = setup
        self._lock = threading.Lock()
        self._server: Store | None = None

    @contextmanager
    def opened(self) -> Iterator[JobClient]:
        """A client of the store; of an empty one where nobody has stored a job yet."""
        with self._store() as store:
            yield JobClient(settings=self.setup.jobs, store=store)

    def check(self) -> None:
        """Raise ``StoreError`` unless the store can be read."""
        with self.opened() as client:
            client.store.workers()

    def close(self) -> None:
        """Let go of a store on a server."""
        with self._lock:
            store, self._server = self._server, None
        if store is not None:
            store.close()

    @contextmanager
    def _store(self) -> Iterator[Store]:
        file = file_of(self.setup.url)
        if file is None:
            yield self._on_server()
        elif file_has_table(file, "ergon_jobs"):
            with closing(open_store(self.setup.url, read_only=True)) as store:
                yield store
        else:
            yield MemoryJobStore(time.time)

    def _on_server(self) -> Store:
        with self._lock:
            if self._server is None:
                if not has_jobs(self.setup.url):
                    return MemoryJobStore(time.time)
                self._server = open_store(self.setup.url, read_only=True)
            return self._server
