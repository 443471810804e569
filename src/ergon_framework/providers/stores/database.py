"""What the SQL store needs of a database: transactions, statements and times.

Statements are written once, in the SQL that SQLite and PostgreSQL share, with ``:name`` where a
value goes. A database spells them its own way, keeps connections, and translates errors. It is
opened as soon as it is there: a provider can be built while its database is down.
"""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.errors import (
    ConfigurationError,
    StoreError,
    StoreSchemaError,
    StoreUnavailableError,
)
from ergon_framework.ports.transfer import moved_away, read_move_state
from ergon_framework.providers.redaction import describe_safely
from ergon_framework.providers.telemetry import emit
from ergon_framework.storage.deadlines import PROVIDER_BUDGET
from ergon_framework.storage.failpoints import declare

T = TypeVar("T")


class LazyOpen(Generic[T]):
    """Something that is opened once, as early as it can be. Any thread may ask.

    A caller that waited while another one failed gets that failure, and does not try again.
    """

    def __init__(
        self, opening: Callable[[], T], ticks: Callable[[], float] = time.monotonic
    ) -> None:
        self.value: T | None = None
        """What was opened, if it was."""
        self._opening = opening
        self._ticks = ticks
        self._failure: ConfigurationError | StoreError | None = None
        self._failed_at = float("-inf")
        self._lock = threading.Lock()
        renew_after_fork(self)

    def open_early(self) -> None:
        """Open it; if the database is only away, the first call that needs it tries again.

        A database of the wrong version, or a file that is none, does not fix itself: that is
        raised.
        """
        try:
            self.get()
        except StoreSchemaError:
            raise
        except StoreError as error:
            emit("store.lost", error=describe_safely(error))

    def get(self) -> T:
        """What was opened; ``StoreError`` when it cannot be."""
        found = self.value
        return found if found is not None else self._open(self._ticks())

    def wait_opened(self) -> T | None:
        """What was opened; waits for another thread that is opening it."""
        with self._lock:
            return self.value

    def renew(self) -> None:
        """Called in a forked child: a thread of the parent may hold the lock."""
        self._lock = threading.Lock()

    def _open(self, asked_at: float) -> T:
        lock = self._lock
        # In the time of the call: the thread that opens may hang on a server that does not answer.
        if not lock.acquire(timeout=PROVIDER_BUDGET.at_most(threading.TIMEOUT_MAX)):
            raise StoreUnavailableError("the store is still being opened", remedy="try again")
        try:
            if self.value is not None:
                return self.value
            known = self._failure
            # Raised anew with a copy: one exception object in several threads would collect all
            # their tracebacks.
            if known is not None and self._failed_at > asked_at:
                raise type(known)(known.message, remedy=known.remedy, details=known.details)
            try:
                self.value = self._opening()
            except (ConfigurationError, StoreError) as error:
                self._failure, self._failed_at = error, self._ticks()
                raise
            self._failure = None
            return self.value
        finally:
            lock.release()


MARKS = "ergon_provider_moves"
"""The table in which a move leaves word; it is there once something was moved."""
FIND_MARK = f"SELECT mark FROM {MARKS}"  # noqa: S608 - our own name


def refuse_moved_tables(found: bytes | None, name: str, url: str) -> None:
    """Refuse tables that a move has not filled yet, or whose rows went elsewhere.

    A call that is recorded there would be missing where it is looked for; a quota would be spent
    twice. ``url`` is that of the store, without a password.
    """
    mark = read_move_state(found)
    if mark.is_incomplete:
        raise StoreSchemaError(
            f"{mark.what_is_incomplete} of provider calls into {name} has not ended",
            remedy=f"{mark.resume_remedy}: it goes on where it was cut off",
        )
    if mark.destination is not None:
        gone = moved_away(name, mark.destination, shlex.quote(url))
        raise StoreSchemaError(
            f"the provider calls of {name} were moved to {mark.moved_to}",
            remedy=gone.remedy,
            details=gone.details,
        )


Values = Mapping[str, Any]
Row = tuple[Any, ...]

PACKAGE = "ergon_framework.providers.stores.sql"
"""Where the statements are."""

_CALLS = (
    *("reserve", "refund", "swap", "cool", "record", "settle"),
    *("claim", "finish", "letters", "prune"),
)
BEFORE = {call: f"providers.{call}.before" for call in _CALLS}
AFTER = {call: f"providers.{call}.after" for call in _CALLS}
declare(*BEFORE.values(), *AFTER.values())

_FIRST, _LAST = -62_135_596_800.0, 253_402_300_799.0  # the years 1 and 9999


class TaskMissingError(StoreError):
    """An attempt names a task execution that the host's table does not have."""


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A table for rows that are inserted unless their first column is there already."""

    table: str
    columns: tuple[tuple[str, str], ...]
    """Names, and types as PostgreSQL calls them."""


class SqlCursor(Protocol):
    """What work may do in a transaction."""

    def fetch(self, sql: str, values: Values) -> list[Row]:
        """Run a statement that answers with rows."""

    def execute(self, sql: str, values: Values) -> int:
        """Run a statement that changes rows; how many."""

    def fetch_each(self, sql: str, values: Sequence[Values]) -> list[list[Row]]:
        """Run a statement once for each, in this order; what each answered."""

    def executemany(self, sql: str, values: Sequence[Values]) -> None:
        """Run a statement that answers nothing once for each, in this order."""

    def insert_missing(self, into: TableSpec, rows: Sequence[Row]) -> set[str]:
        """Insert rows unless they are there; the first columns of those that were not."""


class ProviderDatabase(Protocol):
    """A database of provider calls. ``work`` may be run more than once, and by another thread."""

    name: str
    """The name shown to users, without a password."""
    is_closed: bool

    @property
    def path(self) -> Path | None:
        """The file that it is in; None for a server."""

    def now(self) -> float:
        """The database's clock."""

    def write(
        self,
        call: str,
        work: Callable[[SqlCursor], T],
        *,
        is_synced: bool = True,
        is_large: bool = False,
    ) -> T:
        """Run ``work`` in a transaction, and return what it returns once that is committed.

        Without ``is_synced`` the commit need not wait for the disk, where that makes a difference.
        What ``is_large`` takes longer to get to a server.
        """

    def read(self, work: Callable[[SqlCursor], T]) -> T:
        """Run ``work``, which changes nothing."""

    def to_db_time(self, instant: float | None) -> Any:
        """An instant as the database takes it."""

    def close(self) -> None:
        """Close the database. May be called twice."""


def to_datetime(instant: float) -> datetime:
    """An instant in the form of a calendar; one that no calendar has becomes the nearest."""
    # Written so that a number that is none ends up as the first.
    bounded = min(instant, _LAST) if instant > _FIRST else _FIRST
    return datetime.fromtimestamp(bounded, UTC)


def from_optional_db_time(value: Any) -> float | None:
    """What a database gave for an instant."""
    if value is None:
        return None
    found = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    return found.timestamp()


def from_db_time(value: Any) -> float:
    """What a database gave for an instant that is always there."""
    found = from_optional_db_time(value)
    return 0.0 if found is None else found


def same_instant(one: float | None, other: float | None) -> bool:
    """Whether two instants differ by less than a database keeps."""
    if one is None or other is None:
        return one is other
    return abs(one - other) < 2e-6


def truncated(text: str, most: int) -> str:
    """A text as every database takes it: not too long, and nothing in it that is no character."""
    if len(text) > most:
        text = text[:most]
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def placeholders(prefix: str, items: Iterable[Any]) -> tuple[str, dict[str, Any]]:
    """Placeholders for a list of values, and the values."""
    values = {f"{prefix}{number}": item for number, item in enumerate(items)}
    return ", ".join(f":{name}" for name in values), values


_PRUNE_BATCH = 1000  # rows of one transaction, so that other writers do not wait long for it


def prune_rows(database: ProviderDatabase, sql: str, before: float, limit: int) -> int:
    """Delete up to ``limit`` rows older than ``before``, some in each transaction; how many."""
    count, end = 0, database.to_db_time(before)
    while count < limit:
        values = {"before": end, "limit": min(_PRUNE_BATCH, limit - count)}
        # Not synced: rows that come back after a power cut are deleted again.
        deleted = database.write("prune", partial(_run, sql=sql, values=values), is_synced=False)
        count += deleted
        if deleted < values["limit"]:
            break
    return count


def _run(cursor: SqlCursor, sql: str, values: Values) -> int:
    return cursor.execute(sql, values)
