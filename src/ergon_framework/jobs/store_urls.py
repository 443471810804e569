"""Opens the store of jobs that a URL names."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ergon_framework.ports.transfer import move_state_of, refuse_unusable
from ergon_framework.storage.incoming import refuse_incoming, refuse_to_make
from ergon_framework.storage.substitutes import find_substitute
from ergon_framework.storage.urls import (
    file_of,
    path_in,
    refuse_unreadable,
    store_operand,
    taken_apart,
)

if TYPE_CHECKING:
    from ergon_framework.ports.jobstore import FullJobStore

Clock = Callable[[], float]

_REDIS = ("redis", "rediss")
_KNOWN = ("sqlite", "memory", "postgresql", *_REDIS)
_FORMS = (
    "write sqlite:///work.db, sqlite:////var/lib/work.db, postgresql://host/name,"
    " redis://host:6379/0 or memory://"
)


def open_store(
    url: str, *, clock: Clock | None = None, read_only: bool = False, half_moved: bool = False
) -> FullJobStore:
    """Open the job store that a URL names. The caller closes it.

    Without a ``clock``, a server's own is used, or else this machine's. With ``read_only`` an
    existing store is only read: no lock is taken and no table is made. A store into which a move
    has not ended, or that was shut after one, is opened only for a move, which says ``half_moved``.
    """
    substitute: FullJobStore | None = find_substitute("jobs", url)
    if substitute is not None:
        return substitute
    file = None if read_only or half_moved else file_of(url)
    if file is not None:
        refuse_to_make(file.absolute())
    store = _opened(url, clock, read_only=read_only)
    try:
        if not read_only and not half_moved:
            refuse_moved(store, url)
    except BaseException:
        store.close()
        raise
    return store


def make_marked(url: str, state: bytes) -> None:
    """Make a store on a server with a move state in it. An existing store stays as it is.

    Other programs are so refused from its first moment on. A new file is announced by a file beside
    it.
    """
    kind, _ = check_url(url)
    if find_substitute("jobs", url) is not None:
        return
    if kind in _REDIS:
        from ergon_framework.jobs.stores.redis.records import make_marked as make_marked_redis

        make_marked_redis(url, state)
    elif kind == "postgresql":
        from ergon_framework.jobs.stores.postgres.records import make_marked as make_marked_tables

        make_marked_tables(url, state)


def refuse_moved(store: FullJobStore, url: str) -> None:
    """Refuse a store that a move has not filled yet, or whose jobs were moved elsewhere."""
    state = move_state_of(store)
    refuse_unusable(state, store_operand(url))
    file = file_of(url)
    if file is not None:
        refuse_incoming(file.absolute(), state)


def _opened(url: str, clock: Clock | None, *, read_only: bool) -> FullJobStore:
    kind, rest = check_url(url)
    if kind == "memory":
        return _memory(clock or time.time)
    if kind == "sqlite":
        return _sqlite(path_in(rest), clock or time.time, read_only=read_only)
    if kind in _REDIS:
        from ergon_framework.jobs.stores.redis.store import RedisJobStore

        return RedisJobStore(url, clock=clock, read_only=read_only)
    if kind == "postgresql":
        from ergon_framework.jobs.stores.postgres.store import PostgresJobStore

        return PostgresJobStore(url, clock=clock, read_only=read_only)
    raise AssertionError(f"a job store of the kind {kind} is known and cannot be opened")


def check_url(url: str) -> tuple[str, str]:
    """The kind of store and what follows it in the URL. Refused if the URL names no job store.

    Nothing is opened. It is refused, too, if a driver is missing, or if a file that the URL names
    cannot be read.
    """
    kind, rest = taken_apart(url, _KNOWN, _FORMS, "jobs")
    if kind == "sqlite":
        path_in(rest)
    elif kind == "postgresql":
        from ergon_framework.storage.postgres.address import address_of

        address_of(url)
    elif kind in _REDIS:
        from ergon_framework.storage.redis.address import address_of as redis_address_of

        refuse_unreadable(**redis_address_of(url).files)
    return kind, rest


def _sqlite(path: str, clock: Clock, *, read_only: bool) -> FullJobStore:
    from ergon_framework.jobs.stores.sqlite import SqliteJobStore

    return SqliteJobStore(path, clock=clock, read_only=read_only and Path(path).exists())


def _memory(clock: Clock) -> FullJobStore:
    from ergon_framework.jobs.stores.memory import MemoryJobStore

    return MemoryJobStore(clock)
