"""Opens the store of provider calls that a URL names. A process has one object per URL."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from ergon_framework.storage.substitutes import find_substitute
from ergon_framework.storage.urls import path_in, taken_apart

if TYPE_CHECKING:
    from ergon_framework.ports.providerstore import ProviderStore
    from ergon_framework.providers.stores.memory import MemoryProviderStore
    from ergon_framework.providers.stores.sql.store import SqlProviderStore

_KNOWN = ("sqlite", "postgresql", "memory")
_FORMS = (
    "write sqlite:///work.db, sqlite:////var/lib/work.db, postgresql://user@host/name or memory://"
)

_MODULES = (
    "ergon_framework.providers.stores.memory",
    "ergon_framework.providers.stores.sql.store",
    "ergon_framework.providers.stores.sqlite",
    "ergon_framework.providers.stores.postgres",
    "sqlalchemy.dialects.postgresql.psycopg",
)


@dataclass(slots=True)
class _SharedStore:
    """The open store of one URL, and the objects that use it."""

    store: MemoryProviderStore | SqlProviderStore
    holders: weakref.WeakSet[object] = field(default_factory=weakref.WeakSet)
    """The objects that report when they are done with the store."""
    is_kept: bool = False
    """Whether user code has it without being counted: then only that code closes it."""


_shared: dict[str, _SharedStore] = {}
_turns: dict[str, threading.RLock] = {}
"""Held while the store of a URL is opened."""
_lock = threading.RLock()


def open_store(
    store: str | ProviderStore, *, clock: Callable[[], float] | None = None
) -> ProviderStore:
    """The store that a URL names, or the one that was given.

    Opening makes the tables of an empty database. The store is shared by all of the process who
    name the same URL, and goes on in a child that is forked; closing it closes it for all of them,
    and the next to ask gets a new one. One with a clock of its own is not shared.
    """
    if clock is not None and isinstance(store, str):
        substitute: ProviderStore | None = find_substitute("providers", store)
        return _open(*_parts_of(store), clock) if substitute is None else substitute
    return _found(store, None, is_kept=True)


def current_store(store: str | ProviderStore) -> ProviderStore:
    """The store for a single query; the next query asks for the store again."""
    return _found(store, None, is_kept=False)


def hold_store(store: str | ProviderStore, holder: object) -> ProviderStore:
    """Open a store for as long as ``holder`` lives, or until it calls :func:`release_store`."""
    return _found(store, holder, is_kept=False)


def keep_store(store: ProviderStore) -> None:
    """Keep a store open that user code has, as user code does not report when it is done."""
    with _lock:
        for shared in _shared.values():
            shared.is_kept |= shared.store is store


def release_store(store: ProviderStore, holder: object) -> None:
    """One user less; the last one closes it, with its thread and its files.

    What is in memory stays: closing would lose it, and there is nothing to give back.
    """
    with _lock:
        name = next((name for name, each in _shared.items() if each.store is store), None)
        if name is None:
            return
        shared = _shared[name]
        shared.holders.discard(holder)
        if shared.holders or shared.is_kept or name.startswith("memory:"):
            return
        # Callers from now on get a new one, while this one writes its last rows.
        del _shared[name]
    store.close()


def _found(store: str | ProviderStore, holder: object, *, is_kept: bool) -> ProviderStore:
    if not isinstance(store, str):
        return store
    substitute: ProviderStore | None = find_substitute("providers", store)
    if substitute is not None:
        return substitute
    kind, rest = _parts_of(store)
    name = f"{kind}://{Path(path_in(rest)).absolute() if kind == 'sqlite' else rest}"
    with _lock:
        turn = _turns.setdefault(name, threading.RLock())
    # One opening of each store, and none of them in the way of another store: a server that does
    # not answer is waited for.
    with turn:
        with _lock:
            shared = _shared.get(name)
            if shared is not None and not shared.store.is_closed:
                return _used(shared, holder, is_kept=is_kept)
        opened = _SharedStore(_open(kind, rest, None))
        with _lock:
            _shared[name] = opened
            return _used(opened, holder, is_kept=is_kept)


def _used(shared: _SharedStore, holder: object, *, is_kept: bool) -> ProviderStore:
    """The store, and a note of who uses it; called with the lock."""
    shared.is_kept |= is_kept
    if holder is not None:
        shared.holders.add(holder)
    return shared.store


def check_url(url: str) -> None:
    """Refuse a URL that names no store; nothing is opened."""
    if check_form(url) == "postgresql":
        from ergon_framework.providers.migrations.database import database_of

        database_of(url)


def check_form(url: str) -> str:
    """The kind of store that a URL names, by its form alone: no driver is imported."""
    kind, rest = _parts_of(url)
    if kind == "sqlite":
        path_in(rest)
    return kind


def _parts_of(url: str) -> tuple[str, str]:
    return taken_apart(url, _KNOWN, _FORMS, "provider calls")


def preload() -> None:
    """Import what the opening of a store imports, and open nothing: once, before processes fork.

    A program may lack the drivers of the stores that it does not use.
    """
    for name in _MODULES:
        with suppress(ImportError):
            import_module(name)


def _open(
    kind: str, rest: str, clock: Callable[[], float] | None
) -> MemoryProviderStore | SqlProviderStore:
    if kind == "memory":
        from ergon_framework.providers.stores.memory import MemoryProviderStore

        return MemoryProviderStore(clock or time.time)
    # Imported late: a program without a database needs no SQLAlchemy.
    from ergon_framework.providers.stores.sql.store import SqlProviderStore

    if kind == "sqlite":
        from ergon_framework.providers.stores.sqlite import SqliteProviderDatabase

        return SqlProviderStore(SqliteProviderDatabase(path_in(rest), clock or time.time))
    from ergon_framework.providers.migrations.database import database_of

    database = database_of(f"postgresql://{rest}")  # names the extra that is missing
    from ergon_framework.providers.stores.postgres import PostgresProviderDatabase

    return SqlProviderStore(PostgresProviderDatabase(database, clock))


def _after_fork() -> None:
    """The thread that held a lock does not exist in the child."""
    global _lock  # noqa: PLW0603 - a lock cannot be renewed in place
    _lock = threading.RLock()
    _turns.clear()


os.register_at_fork(after_in_child=_after_fork)
