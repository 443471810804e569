"""Which store a URL names."""

from __future__ import annotations

import time
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from ergon_framework.errors import ConfigurationError

if TYPE_CHECKING:
    from ergon_framework.jobs.stores.memory import MemoryJobStore
    from ergon_framework.jobs.stores.sqlite import SqliteJobStore

_LATER = {"postgresql": "PostgreSQL", "postgres": "PostgreSQL", "redis": "Redis", "nats": "NATS"}
_KNOWN = ("sqlite", "memory", *_LATER)
_FORMS = "write sqlite:///work.db, sqlite:////var/lib/work.db or memory://"

# What stands behind the scheme may hold a password: no error shows it.


def open_store(
    url: str, *, clock: Callable[[], float] | None = None, read_only: bool = False
) -> SqliteJobStore | MemoryJobStore:
    """Open the job store that a URL names; the caller closes it.

    With ``read_only`` a store that is there is only looked at: no lock is taken, no table made.
    """
    scheme, mark, rest = url.partition("://")
    scheme = scheme.lower()
    if not mark:
        raise _no_scheme(url)
    if scheme == "sqlite":
        return _open_sqlite(rest, clock or time.time, read_only=read_only)
    if scheme == "memory":
        return _open_memory(rest, clock or time.time)
    raise _refused(scheme)


def _open_sqlite(rest: str, clock: Callable[[], float], *, read_only: bool) -> SqliteJobStore:
    from ergon_framework.jobs.stores.sqlite import SqliteJobStore

    path = rest.removeprefix("/")
    if path in {"", ":memory:"}:
        raise ConfigurationError(
            "an SQLite job store needs a file: workers in other processes could not see it",
            remedy="write sqlite:///work.db; memory:// keeps jobs in this process only",
        )
    if path == rest:
        raise ConfigurationError(
            "an SQLite URL has no host: three slashes come before the path",
            remedy="write sqlite:///work.db, or four slashes for an absolute path",
        )
    if "?" in path or "#" in path:
        raise ConfigurationError(
            "an SQLite job store takes no options in its URL", remedy="leave out ? and #"
        )
    if "\0" in path:
        raise ConfigurationError("the path of the SQLite file has a NUL character", remedy=_FORMS)
    return SqliteJobStore(path, clock=clock, read_only=read_only and Path(path).exists())


def _open_memory(rest: str, clock: Callable[[], float]) -> MemoryJobStore:
    from ergon_framework.jobs.stores.memory import MemoryJobStore

    if rest:
        raise ConfigurationError(
            "a memory store has no name and no options", remedy="write memory://"
        )
    return MemoryJobStore(clock)


def _no_scheme(url: str) -> ConfigurationError:
    scheme = url.partition(":")[0].lower()
    if scheme in _KNOWN:
        return ConfigurationError(f"the URL of a {scheme} store lacks ://", remedy=_FORMS)
    return ConfigurationError(
        "the URL of a job store must say of which kind it is", remedy=f"for a file, {_FORMS}"
    )


def _refused(scheme: str) -> ConfigurationError:
    if scheme in _LATER:
        return ConfigurationError(
            f"jobs on {_LATER[scheme]} come with a later version", remedy=f"until then, {_FORMS}"
        )
    close = get_close_matches(scheme, _KNOWN, n=1)
    meant = f"did you mean {close[0]}://? Otherwise " if close else ""
    return ConfigurationError(
        f"there is no job store of the kind {scheme[:32]!r}", remedy=f"{meant}{_FORMS}"
    )
