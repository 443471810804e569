"""Transactions of a PostgreSQL job store, the statements of one, and notifications afterwards.

``PostgresTx`` is one transaction or one read: statements are gathered into a pipeline and sent when
the next result is read. ``PostgresTransactions`` runs them, retries after conflicts, and notifies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg import Cursor
from psycopg.rows import tuple_row

from ergon_framework.core.retention import STANDARD, JobRetention
from ergon_framework.errors import StoreReadOnlyError
from ergon_framework.jobs.stores.postgres.rows import Row, StatementResult, page_of
from ergon_framework.jobs.stores.postgres.statements import (
    SQL,
    flags,
    numbers,
    statements,
    texts,
)
from ergon_framework.jobs.stores.transitions import AFTER, BEFORE
from ergon_framework.jobs.stores.unreadable import UnreadableRowError, log_set_aside
from ergon_framework.ports.jobstore import Job, Subscription, Topic, Unreadable
from ergon_framework.storage.conflicts import retry_conflicts
from ergon_framework.storage.failpoints import failpoint
from ergon_framework.storage.postgres.database import PostgresDatabase
from ergon_framework.storage.postgres.migrations import PostgresSchema
from ergon_framework.storage.postgres.pipeline import Pipeline, log_lost_notification, taking_arrays
from ergon_framework.storage.postgres.pool import DEFAULT_TIMEOUTS, Connection, PostgresTimeouts
from ergon_framework.storage.write_guard import WriteGuard


class PostgresTx:
    """One transaction or read on a connection, at one instant; None means the server's own."""

    __slots__ = ("_pipeline", "connection", "now", "retention")

    def __init__(
        self,
        connection: Connection,
        now: float | None,
        pipeline: Pipeline | None = None,
        retention: JobRetention = STANDARD,
    ) -> None:
        self.connection = connection
        self.now = now
        self.retention = retention
        self._pipeline = pipeline

    def execute(self, statement: bytes, values: Mapping[str, Any] | None = None) -> StatementResult:
        """Execute a statement: sent when the next result is read, or at once without a pipeline."""
        bound = {"now": self.now, **(values or {})}
        if self._pipeline is not None:
            return self._pipeline.execute(statement, bound)
        # A cursor of ours: what the owner of the connection makes of rows is not asked.
        cursor: Cursor[Row] = Cursor(self.connection, row_factory=tuple_row)
        cursor.format = psycopg.pq.Format.BINARY
        return taking_arrays(cursor).execute(statement, bound, prepare=False)

    def notify_after(self, statement: bytes, values: Mapping[str, Any] | None = None) -> None:
        """Execute a NOTIFY after the commit; a failure is logged, not raised."""
        if self._pipeline is not None:
            self._pipeline.execute_after(statement, {"now": self.now, **(values or {})})
            return
        try:
            self.execute(statement, values)
        except psycopg.Error as error:
            # The jobs are committed: a lost hint only makes somebody poll.
            log_lost_notification(error)


def is_conflict(error: BaseException) -> bool:
    """Whether the server refused a second row of the same id or key."""
    return isinstance(error.__cause__, psycopg.errors.UniqueViolation)


T = TypeVar("T")

SCHEMA = PostgresSchema("jobs", f"{SQL}.schema")

_CHANNELS = {topic: f"ergon_jobs_{topic.value}" for topic in Topic}
_SQL = statements("jobs.sql")
MAX_CONFLICTS = 4
"""How often work is done again after a conflict with others."""
# Every statement is written for an index, and for few rows of a table that may be empty now and
# have a million rows in a minute. What the planner remembers of it must hold then, too.
PLANNER_SETTINGS = (
    "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off;"
    " SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off;"
    " SET plan_cache_mode = force_generic_plan"
)


def topics_of(*, is_work: bool, is_done: bool) -> set[Topic]:
    """The topics to notify of."""
    return {topic for topic, is_so in ((Topic.WORK, is_work), (Topic.DONE, is_done)) if is_so}


class PostgresTransactions:
    """Runs transactions on one database by one clock, and notifies when they are committed."""

    def __init__(
        self,
        url: str,
        *,
        clock: Callable[[], float] | None = None,
        read_only: bool = False,
        timeouts: PostgresTimeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        self._given = clock
        self.is_read_only = read_only
        self.guard: WriteGuard[PostgresTx] = WriteGuard()
        self.retention = STANDARD
        self.database = PostgresDatabase(
            url,
            schema=SCHEMA,
            clock=clock,
            read_only=read_only,
            timeouts=timeouts,
            on_connect=PLANNER_SETTINGS,
        )

    def now(self) -> float:
        """The server's clock, or the one that was given."""
        return self.database.now()

    @property
    def name(self) -> str:
        """The name of the database shown to users."""
        return self.database.name

    def subscribe(self, topic: Topic) -> Subscription:
        """Subscribe this process to each change of that kind, made by any process."""
        return self.database.subscribe(_CHANNELS[topic])

    def check_tables(self) -> None:
        """Refuse a database that lacks tables of ours."""
        self.database.read(lambda connection: SCHEMA.check(connection, self.name, None))

    def announce(self) -> None:
        """Wake the workers. For callers that added jobs in a transaction of their own."""
        self.notify({Topic.WORK})

    def close(self) -> None:
        """Close everything. May be called twice."""
        self.database.close()

    # ---- for the parts of the store -------------------------------------------------------------

    def tx(self, connection: Connection, pipeline: Pipeline | None = None) -> PostgresTx:
        """A transaction on a connection, as of now."""
        now = None if self._given is None else self._given()
        return PostgresTx(connection, now, pipeline, self.retention)

    def pipelined(
        self,
        send: Callable[[PostgresTx], Callable[[], T]],
        call: str,
        *,
        topics: Iterable[Topic] = (),
        is_synced: bool = True,
        is_single: bool = False,
    ) -> T:
        """Run one transaction in one pipeline, and notify.

        ``send`` executes all statements, and returns what reads their results after the commit:
        reading one earlier would cost a round trip. ``is_single``: it is one statement, which is a
        transaction by itself.
        """
        self.refuse_to_write()
        check = self.guard.check
        # A guard adds a statement of its own: then it takes a transaction.
        is_single = is_single and check is None

        def whole(connection: Connection) -> T:
            with Pipeline(connection) as pipeline:
                tx = self.tx(connection, pipeline)
                if not is_single:
                    tx.execute(b"BEGIN")
                # A lease or a heartbeat that a power cut undoes is no promise that was broken.
                if not is_synced:
                    tx.execute(_SQL["synced_later"])
                if check is not None:
                    check(tx)
                read = send(tx)
                failpoint(BEFORE[call])
                if not is_single:
                    tx.execute(b"COMMIT")
                # After it: a transaction that notifies keeps all others that do from committing.
                _notify_after(tx, topics)
            failpoint(AFTER[call])
            return read()

        # Ends by itself: each turn sets aside a row that the one before could not read.
        while True:
            try:
                found = self.database.run(whole)
                if topics:
                    self.database.changed()
                return found
            except UnreadableRowError as error:  # of a transaction that changed nothing
                self.set_aside([(error.key, str(error))])

    def set_aside(self, unreadable: Sequence[tuple[int, str]], *, is_claimed: bool = False) -> None:
        """Set rows aside that cannot be read, by number and problem.

        ``is_claimed``: they have just been claimed, which is undone.
        """
        values = {
            "seqs": numbers([seq for seq, _ in unreadable]),
            "problems": texts([problem for _, problem in unreadable]),
            "claimed": flags([is_claimed] * len(unreadable)),
        }

        def send(tx: PostgresTx) -> Callable[[], list[Unreadable]]:
            tx.execute(_SQL["set_aside"], values)
            found = [tx.execute(_SQL["by_seq"], {"seq": seq}) for seq, _ in unreadable]
            return lambda: [each for one in found for each in page_of(one).unreadable]

        for each in self.pipelined(send, "exchange", topics={Topic.WORK}):
            log_set_aside(each)

    def stepwise(
        self,
        work: Callable[[PostgresTx], T],
        call: str,
        *,
        topics: Iterable[Topic] = (),
        is_synced: bool = True,
    ) -> T:
        """Run one transaction whose statements depend on each other's results, and notify."""

        def send(tx: PostgresTx) -> Callable[[], T]:
            result = work(tx)
            return lambda: result

        return self.pipelined(send, call, topics=topics, is_synced=is_synced)

    def unpipelined(
        self, work: Callable[[PostgresTx], T], call: str, *, topics: Iterable[Topic]
    ) -> T:
        """Run one transaction without a pipeline: the error of one statement can be handled."""
        self.refuse_to_write()

        def whole(connection: Connection) -> T:
            tx = self.tx(connection)
            with connection.transaction():
                if self.guard.check is not None:
                    self.guard.check(tx)
                result = work(tx)
                failpoint(BEFORE[call])
            failpoint(AFTER[call])
            # Outside of the transaction: one that notifies keeps all others that do from
            # committing.
            _notify_after(tx, topics)
            return result

        return self.database.run(whole)

    def retrying(self, work: Callable[[PostgresTx], T], call: str, *, topics: Iterable[Topic]) -> T:
        """Like ``stepwise``, again after a conflict: others may add a job of the same id or key."""
        return retry_conflicts(
            lambda: self.stepwise(work, call, topics=topics),
            max_attempts=MAX_CONFLICTS + 1,
            is_conflict=is_conflict,
        )

    def read(self, work: Callable[[PostgresTx], T], *, is_one: bool = False) -> T:
        """Run work that only reads; with ``is_one``, all of it on one snapshot."""

        def whole(connection: Connection) -> T:
            with Pipeline(connection) as pipeline:
                tx = self.tx(connection, pipeline)
                if is_one:
                    # Several statements of one page: a job that moves between them would be seen
                    # twice, or not at all.
                    tx.execute(b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                found = work(tx)
                if is_one:
                    tx.execute(b"COMMIT")
                return found

        return self.database.read(whole)

    def readable(self, statement: bytes, values: Mapping[str, Any]) -> list[Job]:
        """The jobs that a statement finds; rows that cannot be read are set aside."""
        page = self.read(lambda tx: page_of(tx.execute(statement, values)))
        while page.unreadable and not self.is_read_only:
            self.set_aside([(each.key, each.problem) for each in page.unreadable])
            page = self.read(lambda tx: page_of(tx.execute(statement, values)))
        return page.jobs

    def refuse_to_write(self) -> None:
        """Raise if the store was opened to be read."""
        if self.is_read_only:
            raise StoreReadOnlyError(
                f"{self.name} was opened to be read", remedy="open it without read_only"
            )

    def notify(self, topics: Iterable[Topic]) -> None:
        """Wake the subscribers of topics."""

        def whole(connection: Connection) -> None:
            with Pipeline(connection) as pipeline:
                _notify_after(self.tx(connection, pipeline), topics)

        if topics:
            self.database.run(whole)
            self.database.changed()

    def notify_on_commit(self, tx: PostgresTx, topics: Iterable[Topic]) -> None:
        """Wake them when the transaction that is open is committed."""
        for topic in topics:
            tx.execute(_SQL["notify"], {"channel": _CHANNELS[topic]})


def _notify_after(tx: PostgresTx, topics: Iterable[Topic]) -> None:
    """Notify of what is committed; a failure changes nothing about it."""
    for topic in topics:
        tx.notify_after(_SQL["notify"], {"channel": _CHANNELS[topic]})
