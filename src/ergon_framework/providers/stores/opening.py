"""Which store a URL names. A process has one store object per URL, whoever asks."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from ergon_framework.errors import ConfigurationError

if TYPE_CHECKING:
    from ergon_framework.ports.providerstore import ProviderStore
    from ergon_framework.providers.stores.memory import MemoryProviderStore
    from ergon_framework.providers.stores.sql_store import SqlProviderStore

_KNOWN = ("sqlite", "postgresql", "postgres", "memory")
_FORMS = (
    "write sqlite:///work.db, sqlite:////var/lib/work.db, postgresql://user@host/name or memory://"
)

_shared: dict[str, MemoryProviderStore | SqlProviderStore] = {}
_lock = threading.RLock()

# What stands behind the scheme may hold a password: no error shows it.


def open_store(
    store: str | ProviderStore, *, clock: Callable[[], float] | None = None
) -> ProviderStore:
    """The store that a URL names, or the one that was given.

    Opening makes the tables of an empty database. The store is shared by all of the process who
    name the same URL, and goes on in a child that is forked; closing it closes it for all of them,
    and the next to ask gets a new one. One with a clock of its own is not shared.
    """
    if not isinstance(store, str):
        return store
    scheme, rest = _taken_apart(store)
    if clock is not None:
        return _opened(scheme, rest, clock)
    name = f"{scheme}://{Path(_path_of(rest)).absolute() if scheme == 'sqlite' else rest}"
    with _lock:
        found = _shared.get(name)
        if found is None or found.is_closed:
            found = _shared[name] = _opened(scheme, rest, None)
        return found


def _taken_apart(url: str) -> tuple[str, str]:
    scheme, mark, rest = url.partition("://")
    scheme = scheme.lower()
    if not mark:
        kind = url.partition(":")[0].lower()
        if kind in _KNOWN:
            raise ConfigurationError(f"the URL of a {kind} store lacks ://", remedy=_FORMS)
        raise ConfigurationError(
            "the URL of a store must say of which kind it is", remedy=f"for a file, {_FORMS}"
        )
    kind, _, driver = scheme.partition("+")
    if kind in {"postgresql", "postgres"} and driver in {"", "psycopg"}:
        return "postgresql", rest
    if kind in _KNOWN and driver:
        raise ConfigurationError(
            f"a store on {kind} takes no other driver than ours", remedy=f"leave out +{driver}"
        )
    if kind not in _KNOWN:
        close = get_close_matches(kind, _KNOWN, n=1)
        meant = f"did you mean {close[0]}://? Otherwise " if close else ""
        raise ConfigurationError(
            f"there is no store of the kind {scheme[:32]!r}", remedy=f"{meant}{_FORMS}"
        )
    return scheme, rest


def _opened(
    scheme: str, rest: str, clock: Callable[[], float] | None
) -> MemoryProviderStore | SqlProviderStore:
    if scheme == "memory":
        return _open_memory(rest, clock or time.time)
    # Imported late: whoever has no database needs none of it.
    from ergon_framework.providers.stores.sql_store import SqlProviderStore

    if scheme == "sqlite":
        from ergon_framework.providers.stores.sqlite import SqliteGround

        return SqlProviderStore(SqliteGround(_path_of(rest), clock or time.time))
    from ergon_framework.providers.migrations.database import database_of

    database = database_of(f"postgresql://{rest}")  # names the extra that is missing
    from ergon_framework.providers.stores.postgres import PostgresGround

    return SqlProviderStore(PostgresGround(database, clock))


def _open_memory(rest: str, clock: Callable[[], float]) -> MemoryProviderStore:
    from ergon_framework.providers.stores.memory import MemoryProviderStore

    if rest:
        raise ConfigurationError(
            "a memory store has no name and no options", remedy="write memory://"
        )
    return MemoryProviderStore(clock)


def _path_of(rest: str) -> str:
    path = rest.removeprefix("/")
    if path in {"", ":memory:"}:
        raise ConfigurationError(
            "an SQLite store needs a file: other processes could not see it",
            remedy="write sqlite:///work.db; memory:// keeps everything in this process only",
        )
    if path == rest:
        raise ConfigurationError(
            "an SQLite URL has no host: three slashes come before the path",
            remedy="write sqlite:///work.db, or four slashes for an absolute path",
        )
    if {*path} & {"?", "#", "\0"}:
        raise ConfigurationError(
            "an SQLite store takes no options in its URL", remedy="leave out ? and #"
        )
    return path


def _after_fork() -> None:
    """Whoever held the lock is not there any more to let it go."""
    global _lock  # noqa: PLW0603 - a lock cannot be renewed in place
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
