"""A zone's part of a database: its names, its transactions, its clock, and notifications."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from hashlib import blake2b
from typing import TypeVar

import psycopg
from psycopg import sql

from ergon_framework.boundary.factstore.postgres.session import SQL, PostgresSession, wordings
from ergon_framework.boundary.factstore.sql.session import AFTER, BEFORE, SqlDatabase, logger
from ergon_framework.errors import StoreError, StoreReadOnlyError, StoreUnavailableError
from ergon_framework.storage.failpoints import failpoint
from ergon_framework.storage.notifier import LocalSubscription
from ergon_framework.storage.postgres.database import PostgresDatabase
from ergon_framework.storage.postgres.migrations import PostgresSchema
from ergon_framework.storage.postgres.pool import Connection

__all__ = ["SCHEMA", "PostgresGround", "namespace_of", "zones_in"]


PREFIX = "ergon_zone_"
"""What the schemas of zones begin with."""
_READABLE = 40  # letters of the zone's name that are kept


def namespace_of(zone: str) -> str:
    """The schema with a zone's tables: a readable part, and a hash, so that no two are alike."""
    readable = re.sub(r"[^a-z0-9]+", "_", zone.lower()).strip("_")[:_READABLE]
    return f"{PREFIX}{readable or 'x'}_{_hash(zone).hex()[:8]}"


def channel_of(zone: str) -> str:
    """Where new facts of a zone are announced."""
    return f"ergon_facts_{_hash(zone).hex()[:16]}"


def lock_of(zone: str) -> int:
    """The number under which changes to a zone's books, other than appends, take turns."""
    return int.from_bytes(_hash(f"{zone} books"), "big", signed=True)


def _hash(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=8).digest()


T = TypeVar("T")


SCHEMA = PostgresSchema("boundary", f"{SQL}.schema")
LOOK = 5.0
"""Seconds after which new facts are looked for without a notification, while somebody waits."""
_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_ALONE = frozenset({"receive", "truncate", "bind", "quarantine", "desk", "move"})
"""Calls that take turns: each looks at several tables before it decides."""
_PLACE = (
    "SELECT database.oid, namespace.oid FROM pg_database AS database, pg_namespace AS namespace"
    " WHERE datname = current_database() AND nspname = %s"
)
_NAMESPACES = (
    "SELECT nspname FROM pg_namespace WHERE nspname LIKE %s"
    " AND to_regclass(format('%%I.store', nspname)) IS NOT NULL"
)
_SERVER = "SELECT system_identifier FROM pg_control_system()"


class PostgresGround(SqlDatabase):
    """Runs transactions in the tables of one zone."""

    def __init__(
        self,
        url: str,
        *,
        zone: str,
        clock: Callable[[], float] | None = None,
        read_only: bool = False,
    ) -> None:
        self.namespace = namespace_of(zone)
        self._channel = channel_of(zone)
        self._is_read_only = read_only
        self._is_closed = False
        self._beginning = threading.Lock()
        self._heads: dict[str, int] = {}
        self._hearing: threading.Thread | None = None
        self._database = PostgresDatabase(
            url, schema=SCHEMA, namespace=self.namespace, clock=clock, read_only=read_only
        )
        super().__init__(self._database.now)
        self._turn = f"SELECT pg_advisory_xact_lock({lock_of(zone)})"
        try:
            place = self._database.read(self._find_place)
            self._wordings = wordings(self.namespace, place)
            self._info = self._meet(zone) if read_only else self._move_in(zone)
        except BaseException:
            self._database.close()
            raise

    @property
    def clock(self) -> Callable[[], float]:
        """What time it is at the server, or by the clock that was given."""
        return self._clock

    @property
    def _place(self) -> str:
        return self._database.name

    def _asked_now(self) -> float:
        return self._database.server_now()

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Call ``wake()``, from any thread, after each commit that added facts, of any process."""
        with self._beginning:
            if self._hearing is None and not self._is_closed:
                subscription = self._database.subscribe(self._channel)
                self._has_news()  # only now: what comes later is heard of
                self._hearing = threading.Thread(
                    target=self._hear, args=(subscription,), name="ergon-facts", daemon=True
                )
                self._hearing.start()
        super().subscribe(wake)

    def close(self) -> None:
        """Let go of everything. Closing twice is fine."""
        with self._beginning:
            thread, self._hearing = self._hearing, None
            self._is_closed = True
        self._database.close()  # which wakes who waits for a notification
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _hear(self, subscription: LocalSubscription) -> None:
        """Wake who waits when others have added facts.

        A notification may come for nothing, or not at all, say behind a pooler.
        """
        while True:
            subscription.wait(LOOK)
            if self._is_closed:
                return
            try:
                if self._has_news():
                    self._wake()
            except StoreError as error:
                logger.info("%s was not asked for new facts: %s", self._place, error)

    def _has_news(self) -> bool:
        """Whether any log is longer than it was when last looked at."""
        rows = self._read(lambda books: books.all("logs.heads"))
        return self._reached({log: head for log, head in rows})  # noqa: C416 - rows have a type

    def _reached(self, heads: dict[str, int]) -> bool:
        """Logs end there; whether that was not known. Logs only ever grow."""
        with self._waking:
            news = {log: head for log, head in heads.items() if head > self._heads.get(log, 0)}
            self._heads.update(news)
            return bool(news)

    def _find_place(self, connection: Connection) -> str:
        """What sets these tables apart from every copy of them."""
        [[database, namespace]] = connection.execute(_PLACE, (self.namespace,)).fetchall()
        try:
            [[server]] = connection.execute(_SERVER).fetchall()
        except psycopg.errors.InsufficientPrivilege:
            server = "?"
        return f"{server}/{database}/{namespace}"

    def _write(
        self, work: Callable[[PostgresSession], T], call: str, *, is_synced: bool = True
    ) -> T:
        """Run one transaction."""
        self._refuse_reading_only()
        begin = "BEGIN" if is_synced else "BEGIN; SET LOCAL synchronous_commit = off"
        if call in _ALONE:
            begin = f"{begin}; {self._turn}"

        def whole(connection: Connection) -> T:
            connection.execute(begin.encode(), prepare=False)
            result = work(PostgresSession(connection, self._wordings.writing))
            failpoint(BEFORE[call])
            connection.execute("COMMIT")
            return result

        result = self._committed(whole)
        failpoint(AFTER[call])
        return result

    def _committed(
        self, whole: Callable[[Connection], T], before_waiting: Callable[[], None] | None = None
    ) -> T:
        """Run what ends with a commit; an answer that was lost is told as what it is."""
        try:
            return self._database.run(whole, before_waiting=before_waiting)
        except StoreUnavailableError as error:
            if not error.details.get("is_lost"):
                raise
            raise StoreUnavailableError(
                f"{error.message}; whether the change was made is not known",
                remedy="do the same again: nothing is stored twice",
                details=error.details,
            ) from error

    def _read(self, work: Callable[[PostgresSession], T]) -> T:
        def whole(connection: Connection) -> T:
            connection.execute(_READ)
            result = work(PostgresSession(connection, self._wordings.reading))
            connection.execute("COMMIT")
            return result

        return self._database.read(whole)

    def _refuse_reading_only(self) -> None:
        if self._is_read_only:
            raise StoreReadOnlyError(
                f"{self._place} was opened to be read only", remedy="open it for writing"
            )


def zones_in(connection: Connection) -> list[str]:
    """The zones that a database holds, by name."""
    found = connection.execute(_NAMESPACES, (f"{PREFIX}%",)).fetchall()
    stores = [sql.SQL("SELECT zone FROM {}.store").format(sql.Identifier(row[0])) for row in found]
    return sorted(row[0] for each in stores for row in connection.execute(each).fetchall())
