"""The store of provider calls as the server reads it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ergon_framework.app.settings.stores import file_has_table
from ergon_framework.ports.providerlooking import ProviderLooking
from ergon_framework.ports.providerstore import LaneHealth, LaneKey, ProviderStore
from ergon_framework.providers.stores import open_store

if TYPE_CHECKING:
    from ergon_framework.providers.migrations.database import Database

_NOBODY = LaneKey("*", "ergon", "readiness")
"""A lane that nobody uses: reading it shows that the store answers."""


class ProviderSource:
    """Opens the store when it is there: opening one that is not would make its tables."""

    def __init__(self, store: str | ProviderStore) -> None:
        self._store = store
        self._is_open = False
        self._file: tuple[int, int] | None = None

    @cached_property
    def database(self) -> Database | None:
        """Where its tables are; None when it has none."""
        if not isinstance(self._store, str) or self._store.lower().startswith("memory:"):
            return None
        from ergon_framework.providers.migrations.database import database_of

        return database_of(self._store)

    @cached_property
    def looking(self) -> ProviderLooking | None:
        """Who reads its tables; None when it has none."""
        if self.database is None:
            return None
        from ergon_framework.providers.stores.looking import SqlProviderLooking

        return SqlProviderLooking(self.database)

    def has_tables(self) -> bool:
        """Whether there is anything to read; ``StoreError`` when the database does not answer."""
        database = self.database
        if database is None:
            return True
        if database.file is not None:
            return file_has_table(database.file, "provider_dead_letters")
        if self._is_open:
            return True  # whoever made them does not unmake them
        from ergon_framework.providers.migrations import running

        with database.connect() as connection:
            return running.current(connection) is not None

    def opened(self) -> ProviderStore:
        """The store, which the process shares; an empty one where there are no tables yet."""
        if not self.has_tables():
            from ergon_framework.providers.stores.memory import MemoryProviderStore

            return MemoryProviderStore(time.time)
        if self.database is not None and self.database.file is not None:
            self._notice(self.database.file)
        self._is_open = True
        return open_store(self._store)

    def check(self) -> None:
        """Raise ``StoreError`` unless the store can be read."""
        self.opened().standing(_NOBODY)

    def close(self) -> None:
        """Let go of what was opened by its URL."""
        if self._is_open and isinstance(self._store, str):
            self._is_open = False
            open_store(self._store).close()

    def _notice(self, file: Path) -> None:
        """Another file may have taken its place, from a backup: the old one is let go."""
        found = file.stat()
        mark = (found.st_dev, found.st_ino)
        if self._file not in {None, mark}:
            self.close()
        self._file = mark


def for_reading(sources: Sequence[ProviderSource]) -> ProviderStore:
    """How the lanes of all of them stand, as one store that is looked for with every call."""
    return cast(ProviderStore, _Found(sources))


class _Found:
    """Hands every call to the stores that are there by then; lanes may be in any of them."""

    def __init__(self, sources: Sequence[ProviderSource]) -> None:
        self._sources = sources

    def health(self, tenant_id: str) -> list[LaneHealth]:
        return [lane for each in self._sources for lane in each.opened().health(tenant_id)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sources[0].opened(), name)
