"""A zone's part of a database: its names, its transactions, its clock, and notifications."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeVar

import psycopg
from psycopg import sql

from ergon_framework.boundary.factstore.postgres.session import SQL, PostgresSession, statements_for
from ergon_framework.boundary.factstore.sql.session import AFTER, BEFORE, Subscribers, logger
from ergon_framework.errors import StoreError, StoreReadOnlyError, StoreUnavailableError
from ergon_framework.storage.failpoints import failpoint
from ergon_framework.storage.notifier import LocalSubscription
from ergon_framework.storage.postgres.database import PostgresDatabase
from ergon_framework.storage.postgres.migrations import PostgresSchema, make_with
from ergon_framework.storage.postgres.pool import DEFAULT_TIMEOUTS, Connection, PostgresTimeouts
from ergon_framework.storage.write_guard import WriteGuard

__all__ = [
    "SCHEMA",
    "FactNotifier",
    "PostgresTuning",
    "PostgresZoneDatabase",
    "make_marked",
    "namespace_of",
    "zones_in",
]


PREFIX = "ergon_zone_"
"""What the schemas of zones begin with."""
_READABLE = 40  # letters of the zone's name that are kept


def namespace_of(zone: str) -> str:
    """The schema with a zone's tables: a readable part, and a hash, so that no two are alike."""
    readable = re.sub(r"[^a-z0-9]+", "_", zone.lower()).strip("_")[:_READABLE]
    # The hash keeps apart names that look alike once their letters are folded.
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
_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_SERIALIZED_CALLS = frozenset({"receive", "truncate", "bind", "quarantine", "desk", "move"})
"""Calls that take an advisory lock first: each reads several tables before it decides."""
_PLACE = (
    "SELECT database.oid, namespace.oid FROM pg_database AS database, pg_namespace AS namespace"
    " WHERE datname = current_database() AND nspname = %s"
)
_NAMESPACES = (
    "SELECT nspname FROM pg_namespace WHERE nspname LIKE %s"
    " AND to_regclass(format('%%I.store', nspname)) IS NOT NULL"
)
_SERVER = "SELECT system_identifier FROM pg_control_system()"


@dataclass(frozen=True, slots=True)
class PostgresTuning:
    """How a store behaves when the server does not do what is expected of it."""

    poll_interval: float = 5.0
    """Seconds after which new facts are looked for without a notification, for subscribers."""
    locked_groups: int = 16
    """Groups for which the logs are locked, after one that could not be appended otherwise."""
    lost_answer_timeout: float = 5.0
    """Seconds for which an append whose answer was lost is repeated."""


_MARK = b"INSERT INTO moves (one, mark) VALUES (1, %(mark)s)"


def make_marked(url: str, zone: str, state: bytes) -> None:
    """Make a zone's tables with a move state in them, in one commit; nothing if they are there."""
    make_with(url, SCHEMA, namespace_of(zone), _MARK, {"mark": state})


class PostgresZoneDatabase:
    """Runs transactions in the tables of one zone, which have a schema of their own."""

    def __init__(
        self,
        url: str,
        *,
        zone: str,
        clock: Callable[[], float] | None = None,
        read_only: bool = False,
        timeouts: PostgresTimeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        self.namespace = namespace_of(zone)
        self.channel = channel_of(zone)
        """Where new facts of the zone are announced."""
        self.is_closed = False
        self.guard: WriteGuard[PostgresSession] = WriteGuard()
        self._is_read_only = read_only
        self.server = PostgresDatabase(
            url,
            schema=SCHEMA,
            namespace=self.namespace,
            clock=clock,
            read_only=read_only,
            timeouts=timeouts,
        )
        self.clock: Callable[[], float] = self.server.now
        self.turn = f"SELECT pg_advisory_xact_lock({lock_of(zone)})"
        """The statement after which changes to the zone's books take turns."""
        try:
            self.wordings = statements_for(self.namespace, self.server.read(self._find_place))
        except BaseException:
            self.server.close()
            raise

    @property
    def place(self) -> str:
        """Where the store is, for a reader of errors."""
        return self.server.name

    def asked_now(self) -> float:
        """The server's time, read from the server rather than estimated here."""
        return self.server.server_now()

    def close(self) -> None:
        """Close everything, and end the wait for notifications. Closing twice is fine."""
        self.is_closed = True
        self.server.close()

    def write(
        self, work: Callable[[PostgresSession], T], call: str, *, is_synced: bool = True
    ) -> T:
        """Run one transaction that may change something."""
        self.refuse_reading_only()
        # Not synced only where nothing is promised; the server still writes it within moments.
        begin = "BEGIN" if is_synced else "BEGIN; SET LOCAL synchronous_commit = off"
        if call in _SERIALIZED_CALLS:
            begin = f"{begin}; {self.turn}"

        def whole(connection: Connection) -> T:
            connection.execute(begin.encode(), prepare=False)
            session = PostgresSession(connection, self.wordings.writing)
            if self.guard.check is not None:
                self.guard.check(session)
            result = work(session)
            failpoint(BEFORE[call])
            connection.execute("COMMIT")
            return result

        result = self.committed(whole)
        failpoint(AFTER[call])
        return result

    def committed(
        self, whole: Callable[[Connection], T], before_waiting: Callable[[], None] | None = None
    ) -> T:
        """Run work that ends with a commit; a lost answer is raised as an unknown outcome."""
        try:
            return self.server.run(whole, before_waiting=before_waiting)
        except StoreUnavailableError as error:
            if not error.details.get("is_lost"):
                raise
            raise StoreUnavailableError(
                f"{error.message}; whether the change was made is not known",
                remedy="do the same again: nothing is stored twice",
                details=error.details,
            ) from error

    def read(self, work: Callable[[PostgresSession], T]) -> T:
        """Run something on what was committed last."""

        def whole(connection: Connection) -> T:
            # One snapshot for all statements: pages and cursors have to fit together.
            connection.execute(_READ)
            result = work(PostgresSession(connection, self.wordings.reading))
            connection.execute("COMMIT")
            return result

        return self.server.read(whole)

    def refuse_reading_only(self) -> None:
        """Raise ``StoreReadOnlyError`` if the store was opened to be read only."""
        if self._is_read_only:
            raise StoreReadOnlyError(
                f"{self.place} was opened to be read only", remedy="open it for writing"
            )

    def _find_place(self, connection: Connection) -> str:
        """What sets these tables apart from every copy of them."""
        [[database, namespace]] = connection.execute(_PLACE, (self.namespace,)).fetchall()
        try:
            [[server]] = connection.execute(_SERVER).fetchall()
        # Managed servers hide it: then a copy on another server cannot be distinguished from the
        # original.
        except psycopg.errors.InsufficientPrivilege:
            server = "?"
        return f"{server}/{database}/{namespace}"


class FactNotifier:
    """Wakes subscribers when facts were added, by this process or by others.

    It listens for notifications of the server from the first subscriber on.
    """

    def __init__(
        self, database: PostgresZoneDatabase, subscribers: Subscribers, poll_interval: float
    ) -> None:
        self._database = database
        self._subscribers = subscribers
        self._poll_interval = poll_interval
        self._beginning = threading.Lock()
        self._counting = threading.Lock()
        self._heads: dict[str, int] = {}
        self._listener: threading.Thread | None = None

    def add(self, wake: Callable[[], None]) -> None:
        """Call ``wake()``, from any thread, after each commit that added facts, of any process."""
        with self._beginning:
            if self._listener is None and not self._database.is_closed:
                # First subscribe, then read the heads: facts that are appended in between are
                # notified. The other way round they would be missed.
                subscription = self._database.server.subscribe(self._database.channel)
                self._has_grown()
                self._listener = threading.Thread(
                    target=self._listen, args=(subscription,), name="ergon-facts", daemon=True
                )
                self._listener.start()
        self._subscribers.add(wake)

    def remove(self, wake: Callable[[], None]) -> None:
        """Call it no longer. Does nothing if it was never added."""
        self._subscribers.remove(wake)

    def close(self) -> None:
        """Close the database, and wait until nothing listens any more. Closing twice is fine."""
        with self._beginning:
            thread, self._listener = self._listener, None
            # Under the lock: a subscriber that comes now starts no thread any more.
            self._database.is_closed = True
        self._database.close()  # which ends the wait for a notification
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def reached(self, heads: dict[str, int]) -> bool:
        """Logs end there; whether that was not known. Logs only ever grow."""
        with self._counting:
            # Commits of several threads may come here in another order.
            news = {log: head for log, head in heads.items() if head > self._heads.get(log, 0)}
            self._heads.update(news)
            return bool(news)

    def _listen(self, subscription: LocalSubscription) -> None:
        """Wake subscribers when other processes have added facts.

        A notification may come for nothing, and none may come at all, say behind a pooler.
        """
        while True:
            subscription.wait(self._poll_interval)
            if self._database.is_closed:
                return
            try:
                if self._has_grown():
                    self._subscribers.wake()
            except StoreError as error:
                logger.info("%s was not asked for new facts: %s", self._database.place, error)

    def _has_grown(self) -> bool:
        """Whether any log is longer than it was when last looked at."""
        rows = self._database.read(lambda session: session.all("logs.heads"))
        return self.reached({log: head for log, head in rows})  # noqa: C416 - rows have a type


def zones_in(connection: Connection) -> list[str]:
    """The zones that a database holds, by name."""
    found = connection.execute(_NAMESPACES, (f"{PREFIX}%",)).fetchall()
    stores = [sql.SQL("SELECT zone FROM {}.store").format(sql.Identifier(row[0])) for row in found]
    return sorted(row[0] for each in stores for row in connection.execute(each).fetchall())
