"""Which store a URL names."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ergon_framework.errors import ConfigurationError
from ergon_framework.storage.urls import path_in, taken_apart

if TYPE_CHECKING:
    from ergon_framework.jobs.stores.memory import MemoryJobStore
    from ergon_framework.jobs.stores.sqlite import SqliteJobStore

_LATER = {"postgresql": "PostgreSQL", "redis": "Redis", "nats": "NATS"}
_KNOWN = ("sqlite", "memory", *_LATER)
_FORMS = "write sqlite:///work.db, sqlite:////var/lib/work.db or memory://"


def open_store(
    url: str, *, clock: Callable[[], float] | None = None, read_only: bool = False
) -> SqliteJobStore | MemoryJobStore:
    """Open the job store that a URL names; the caller closes it.

    With ``read_only`` a store that is there is only looked at: no lock is taken, no table made.
    """
    check_url(url)
    scheme, _, rest = url.partition("://")
    if scheme.lower() == "memory":
        return _open_memory(rest, clock or time.time)
    from ergon_framework.jobs.stores.sqlite import SqliteJobStore

    path = path_in(rest)
    return SqliteJobStore(
        path, clock=clock or time.time, read_only=read_only and Path(path).exists()
    )


def check_url(url: str) -> None:
    """Refuse a URL that names no job store; nothing is opened."""
    kind, rest = taken_apart(url, _KNOWN, _FORMS)
    if kind in _LATER:
        raise ConfigurationError(
            f"jobs on {_LATER[kind]} come with a later version", remedy=f"until then, {_FORMS}"
        )
    if kind == "sqlite":
        path_in(rest)


def _open_memory(rest: str, clock: Callable[[], float]) -> MemoryJobStore:
    from ergon_framework.jobs.stores.memory import MemoryJobStore

    if rest:
        raise ConfigurationError(
            "a memory store has no name and no options", remedy="write memory://"
        )
    return MemoryJobStore(clock)
