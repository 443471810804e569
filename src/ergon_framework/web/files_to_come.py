"""Stores whose files do not exist yet: pages show them as empty, and say so.

A server is often started before the first job is stored. The API tells programs that such a store
does not answer, because it may be a mistake. Pages tell people what will make it. A file that
existed since the server started, and is gone, is away for both.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.ports.providerstore import ProviderInspector, ProviderStore
from ergon_framework.storage.urls import file_of
from ergon_framework.web.backends import Backend, Backends, JobBackend, ProviderBackend

TO_COME = "not_there_yet"
"""The state of such a store, as pages call it."""


class FileToCome:
    """A file that may not exist yet."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._was_there = False

    def is_to_come(self) -> bool:
        """Whether it never existed since the server started, and can be made."""
        if self._file is None or self._was_there:
            return False
        try:
            self._was_there = self._file.exists() or self._file.is_symlink()
            return not self._was_there and self._file.absolute().parent.is_dir()
        except OSError:  # For example a folder that may not be entered: asking the store says why.
            return False


class JobsToCome(JobBackend):
    """A job store that pages show as empty while its file has never existed.

    Changes go to the store itself.
    """

    def __init__(self, inner: JobBackend) -> None:
        super().__init__(inner.setup)
        self._inner = inner
        self.file = FileToCome(file_of(inner.setup.url))

    @contextmanager
    def opened(self) -> Iterator[JobClient]:
        """A client of the store, or of an empty one."""
        if self.file.is_to_come():
            yield JobClient(settings=self.setup.jobs, store=MemoryJobStore(time.time))
            return
        with self._inner.opened() as client:
            yield client

    @contextmanager
    def writing(self, *, makes_tables: bool = False) -> Iterator[JobClient]:
        """Like the store itself: what does not exist cannot be changed."""
        with self._inner.writing(makes_tables=makes_tables) as client:
            yield client


class CallsToCome(ProviderBackend):
    """A store of provider calls that is empty while its file has never existed."""

    def __init__(self, inner: ProviderBackend) -> None:
        self._inner = inner
        database = inner.database
        self.file = FileToCome(None if database is None else database.file)

    @property
    def looking(self) -> ProviderInspector | None:
        """The inspector of its tables."""
        return self._inner.looking

    def has_tables(self) -> bool:
        """Whether there is anything to read."""
        return not self.file.is_to_come() and self._inner.has_tables()

    def opened(self) -> ProviderStore:
        """The store, or an empty one."""
        if self.file.is_to_come():
            from ergon_framework.providers.stores.memory import MemoryProviderStore

            return MemoryProviderStore(time.time)
        return self._inner.opened()

    def check(self) -> None:
        """Raise ``StoreError`` unless the store can be read, or does not exist yet."""
        if not self.file.is_to_come():
            self._inner.check()


def for_pages(backends: Backends) -> Backends:
    """The same stores, in the form that pages show."""
    return replace(
        backends,
        jobs=None if backends.jobs is None else JobsToCome(backends.jobs),
        providers={name: CallsToCome(each) for name, each in backends.providers.items()},
    )


def is_to_come(backend: Backend | None) -> bool:
    """Whether a backend is a store whose file does not exist yet."""
    return isinstance(backend, JobsToCome | CallsToCome) and backend.file.is_to_come()
