"""The connector class: its options, and the sync and async methods that the engines call."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, Self

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ergon_framework.connector.base import (
    Delivered,
    DroppedDeliveries,
    ThreadedConsuming,
    check_batch_size,
    refuse_extra,
    settling,
)
from ergon_framework.connector.broker.connection import BrokerConnection
from ergon_framework.connector.broker.options import SECONDS, takes_options
from ergon_framework.connector.broker.refusals import Refusals
from ergon_framework.connector.broker.wakeup import Wakeup
from ergon_framework.connector.database.engines import (
    checked,
    engine_of,
    refusal,
    refuse_missing_file,
    told,
)
from ergon_framework.connector.database.lease import LOOK, ReaderLease
from ergon_framework.connector.database.reading import (
    READERS,
    DatabaseConnectorError,
    ReaderLockedError,
    RowNotSettledError,
    RowReader,
    RowTakenError,
    reader_of,
)
from ergon_framework.connector.database.rows import LoadedRow, UnusableRowError
from ergon_framework.connector.database.status import (
    STATUSES,
    StatusColumn,
    StatusReader,
    status_reader_of,
)
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.engine.clocks import current_clock
from ergon_framework.errors import ConfigurationError, EnvelopeError, ErgonError, describe
from ergon_framework.ports.transaction import Transaction
from ergon_framework.storage.server import Observation

LATE = 300.0
"""Seconds for which a row may be committed whose number is lower than that of one that is done."""
_FLOORS_PER_LATE = 10
_READING = "a reader"
Reader = RowReader | StatusReader
logger = logging.getLogger("ergon.connector.database")


class _Row:
    """A row that is delivered and not settled."""

    __slots__ = ("key", "position")

    def __init__(self, key: str, position: Any) -> None:
        self.key = key
        self.position = position


class _Delivery(Delivered):
    __slots__ = ("row",)

    row: _Row


class DatabaseConnector(ThreadedConsuming):
    """Consumes the rows of a table in the order of a column that grows; the table is not changed.

    ``url`` is that of a database, with ``rows+`` before it or without, or an engine of SQLAlchemy,
    which stays the caller's to close. Of a PostgreSQL server ``host`` may be the folder of its
    socket, and ``sslmode`` how it is reached, such as ``verify-full``.

    ``key`` is a column whose values are unique, ``position`` the one that grows: a number, an
    instant or a uuid. ``where`` is a condition in SQL on columns that do not change. ``consumer``
    is the durable name under which is kept what is done, in tables of the same database.
    ``payload`` is the column that is the payload; without it, the payload is a dict of all columns.
    ``ids`` is the column with the transaction's id, by default it is the table and the key.

    ``status`` is a column that says itself whether a row is due: by the first word of ``statuses``.
    It gets the second one when the row is done, in the same transaction as the effect, and the
    third when it failed for good, with the reason in the column ``error``. With four words the
    second is that of rows in hand. Then nothing else is kept, and ``consumer`` and ``late`` mean
    nothing.

    A row that is committed after others with higher numbers is delivered when it is there, as long
    as that is within ``late`` seconds.
    """

    exclusive: ClassVar[bool] = True
    """One process at a time reads as one consumer."""

    @takes_options(late=SECONDS)
    def __init__(
        self,
        url: str | sa.Engine,
        *,
        table: str,
        key: str = "id",
        position: str | None = None,
        where: str | None = None,
        consumer: str = "ergon",
        payload: str | None = None,
        ids: str | None = None,
        name: str | None = None,
        late: float = LATE,
        status: str | None = None,
        statuses: str = STATUSES,
        error: str | None = None,
        host: str | None = None,
        sslmode: str | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        if not table or not consumer or len(f"{consumer}@{table}") > 200:
            raise ConfigurationError(
                "table and consumer are names, of 200 characters together at most",
                remedy="name the table with table=",
            )
        self._owned = isinstance(url, str)
        if isinstance(url, str):
            self._engine = engine_of(url, host=host, sslmode=sslmode)
        else:
            self._engine = checked(url)
        self.name = name or table
        self.malformed = 0
        """How many rows could not be read as transactions, and were set aside."""
        self._table = table
        if status is None and (error is not None or statuses != STATUSES):
            raise ConfigurationError(
                "statuses and error are for tables with a status", remedy="name its column: status="
            )
        self._words = None if status is None else StatusColumn.of(status, statuses, error)
        self._consumer = consumer
        self._options: dict[str, Any] = {
            "key": key,
            "position": position or key,
            "where": where,
        }
        self._payload = payload
        self._ids = ids
        self._late = late
        self._now = now
        self._floor_at = 0.0
        self._wakeup = Wakeup()
        place = self._engine.url
        self._connection: BrokerConnection[Reader] = BrokerConnection(
            f"{place.get_backend_name()}://{place.host or ''}/{place.database or ''}",
            self._look_at_the_table,
            lambda _: self._engine.dispose(),
            self._wakeup,
        )
        self._in_hand: dict[str, _Row] = {}
        self._dropped: DroppedDeliveries[_Row] = DroppedDeliveries()
        self._fetching = threading.Lock()
        self._lease: ReaderLease | None = None
        if status is None:
            self._lease = ReaderLease(self._engine, READERS, f"{consumer}@{table}")
        self._refusals = Refusals(self._connection.state.name)
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget connections and rows in hand in a forked child, because they are the parent's."""
        self._fetching = threading.Lock()
        self._in_hand = {}
        self._engine.dispose(close=False)

    # ---- opening and closing ---------------------------------------------------------------------

    def open(self) -> None:
        """Open the database and inspect the table; otherwise the first use does."""
        self._connection.get()

    def stop_waiting(self) -> None:
        """Make a fetch return that waits for its database. Any thread may call it."""
        self._wakeup.stop()

    def health(self) -> bool:
        """Whether it can be used, as far as is known; it cannot while another process reads."""
        return self._connection.state.is_healthy and not self._refusals

    def observe(self) -> list[Observation]:
        """What ``ergon doctor`` reports: whether the table fits the options, and what is due."""
        try:
            count, dead = self.get_transactions_count(), len(self.dead_letters())
            left_out = self._left_out()
        except ErgonError as error:
            remedy = error.remedy or "see that the database runs and can be reached"
            return [Observation("table", error.message, remedy, is_grave=True)]
        told = [Observation("table", f"{self._table} has {count} rows due")]
        if dead:
            remedy = "see why, and fix the rows"
            told.append(Observation("dead letters", f"{dead} rows failed for good", remedy))
        if left_out:
            remedy = "give them what is missing, or name other columns with key= and position="
            text = f"{left_out} rows are never delivered: they have no key or no position"
            told.append(Observation("rows left out", text, remedy))
        return told

    def close(self) -> None:
        """Close the connector. Unsettled deliveries go to the next reader. Closing
        twice is fine.
        """
        self._connection.close()
        if self._lease is not None:
            self._lease.close()
        if self._owned:
            self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- consuming ------------------------------------------------------------------------------

    def fetch_transactions(self, batch_size: int, **extra: Any) -> list[Transaction]:
        """Up to ``batch_size`` rows that are not done; an empty list when there are none now."""
        refuse_extra(self, extra, "it takes no settings per call")
        check_batch_size(batch_size)
        self._wakeup.begin()
        with self._fetching:
            self._forget_dropped()
            while (reader := self._connection.wait()) is not None:
                try:
                    if self._is_ours():
                        return self._fetch(reader, batch_size)
                except DBAPIError as error:
                    found = self._connection.lost(reader, self._refusal(error))
                    if isinstance(found, ConfigurationError):  # waiting does not repair it
                        raise found from error
                    continue
                until = current_clock().now() + LOOK
                self._wakeup.wait(until, lambda: self._connection.state.is_closed)
                if self._wakeup.is_stopped:
                    break
            return []

    def _is_ours(self) -> bool:
        """Whether this process, and no other one, reads as the consumer."""
        if self._lease is None:
            return True
        holder = self._lease.take()
        if holder is None:
            self._refusals.taken(_READING)
            return True
        self._in_hand.clear()  # it has these, too
        error = ReaderLockedError(
            f"{holder} reads {self._table} as {self._consumer!r}, and this one stands by",
            remedy="nothing: it takes over when the other one ends; or give it a consumer= of its"
            " own, which has all rows",
        )
        self._refusals.note(_READING, error)
        return False

    def _fetch(self, reader: Reader, wanted: int) -> list[Transaction]:
        self._raise_floor(reader)
        while True:
            # Before the rows are read: one that is settled meanwhile may be among them, and is not
            # due. Rows get into hand in this thread only.
            in_hand = {*self._in_hand}
            with self._engine.begin() as connection:
                due = reader.due(connection, wanted + len(in_hand))
                new = [row for row in due if row.key not in in_hand][:wanted]
                reader.claim(connection, new)
                rows = reader.load(connection, new)
            found = [each for row in rows if (each := self._delivery(reader, row)) is not None]
            was_released = any(row.key in in_hand and row.key not in self._in_hand for row in due)
            if found or not (rows or was_released):
                return found

    def _delivery(self, reader: Reader, row: LoadedRow) -> Transaction | None:
        """The row as a transaction. None for a row that cannot be one, which is set aside."""
        try:
            delivery: _Delivery = self._made(_Delivery, row)
        except (UnusableRowError, EnvelopeError) as error:
            self._set_aside(reader, row, f"no transaction: {error.message}")
            return None
        held = _Row(row.key, row.position)
        delivery.belongs_to(self, row=held)
        self._in_hand[row.key] = held
        self._dropped.watch(delivery, held)
        return delivery

    def _set_aside(self, reader: Reader, row: LoadedRow, reason: str) -> None:
        with suppress(RowTakenError), self._engine.begin() as connection:
            reader.mark(connection, row.key, row.position, self._now(), reason)
        self.malformed += 1
        if self.malformed & (self.malformed - 1) == 0:  # the 1st, 2nd, 4th …: no flood of the log
            text = "set aside a row of %s, %d so far; dead_letters() has them: %s"
            logger.warning(text, self._table, self.malformed, reason)

    def _made(self, kind: Any, row: LoadedRow) -> Any:
        if row.problem is not None:
            raise UnusableRowError(row.problem)
        identity = f"{self._table}:{row.key}"
        if self._ids is not None:
            named = self._column(row.columns, "ids")
            if named is None:
                raise UnusableRowError(f"it has no {self._ids!r}")
            identity = str(named)
        payload = row.columns if self._payload is None else self._column(row.columns, "payload")
        return kind(identity, payload, {"table": self._table, "key": row.key}, source=self.name)

    def _column(self, columns: dict[str, Any], option: str) -> Any:
        column = self._ids if option == "ids" else self._payload
        if column not in columns:
            raise ConfigurationError(
                f"the table {self._table!r} has no column {column!r}",
                remedy=f"{option}= names one of {', '.join(columns)}",
            )
        return columns[column]

    def _forget_dropped(self) -> None:
        """Make rows due again, after a while, whose deliveries were dropped."""
        for row in self._dropped.take_idle(self._now()):
            if self._in_hand.get(row.key) is row:
                del self._in_hand[row.key]

    def _raise_floor(self, reader: Reader) -> None:
        now = self._now()
        if now < self._floor_at:
            return
        self._floor_at = now + self._late / _FLOORS_PER_LATE
        with self._engine.begin() as connection:
            reader.raise_floor(connection, now - self._late)

    # ---- settling -------------------------------------------------------------------------------

    @contextmanager
    def transaction(self, transaction: Transaction) -> Iterator[sa.Connection]:
        """A database transaction in which the row is marked as done: both are committed, or
        neither.

        What is written with the connection, and the mark of the row, are one commit. The engine's
        own ``ack`` then does nothing. A statement that changes the row itself belongs here, too.
        """
        with self._claimed(transaction, "ack") as delivery:
            if delivery is None:
                raise DatabaseConnectorError(
                    f"transaction {transaction.transaction_id!r} is done already",
                    remedy="use transaction() once for each delivery",
                )
            with self._marked(self._connection.get(), delivery, None) as connection:
                yield connection

    def ack(self, transaction: Transaction) -> None:
        """The transaction succeeded: its row is not delivered again."""
        self._settle(transaction, "ack", None)

    def nack(self, transaction: Transaction, exc: Exception) -> None:
        """The transaction failed for good: its row is set aside with the reason."""
        self._settle(transaction, "nack", describe(exc) or "unknown")

    def release(self, transaction: Transaction) -> None:
        """The transaction was not finished: its row is due again."""
        with self._claimed(transaction, "release") as delivery:
            if delivery is not None:
                if self._words is not None and self._words.working is not None:
                    self._asked(lambda reader, on: reader.give_back(on, delivery.row.key))
                self._let_go(delivery)

    def dead_letters(self) -> list[tuple[str, float, str]]:
        """Key, instant and reason of rows that failed for good, oldest first."""
        found: list[tuple[str, float, str]] = self._asked(lambda reader, on: reader.dead(on))
        return found

    def get_transactions_count(self) -> int:
        """How many rows are not done, including those in hand."""
        count: int = self._asked(lambda reader, on: reader.count(on))
        return count

    def _left_out(self) -> int:
        count: int = self._asked(lambda reader, on: reader.left_out(on))
        return count

    def fetch_transaction_by_id(self, transaction_id: str) -> Transaction | None:
        """The row of this transaction, done or not. It claims nothing."""
        reader = self._connection.get()
        prefix = "" if self._ids else f"{self._table}:"
        if not transaction_id.startswith(prefix):
            return None
        column = reader.key if self._ids is None else reader.key.table.c[self._ids]
        text = transaction_id.removeprefix(prefix)
        row = self._asked(lambda reader, connection: reader.find(connection, column, text))
        return None if row is None or row.problem else self._made(Transaction, row)

    # ---- the same for event loops; what blocks is done by other threads -------------------------

    async def fetch_transactions_async(self, batch_size: int, **extra: Any) -> list[Transaction]:
        """The async version of :meth:`fetch_transactions`; cancelled, it gives the rows back."""
        return await self._fetch_in_thread(
            self.fetch_transactions, self.stop_waiting, batch_size, **extra
        )

    async def get_transactions_count_async(self) -> int:
        """The async version of :meth:`get_transactions_count`."""
        return await self._threads.run(self.get_transactions_count)

    async def fetch_transaction_by_id_async(self, transaction_id: str) -> Transaction | None:
        """The async version of :meth:`fetch_transaction_by_id`."""
        return await self._threads.run(self.fetch_transaction_by_id, transaction_id)

    # ---- inside ---------------------------------------------------------------------------------

    @contextmanager
    def _claimed(self, transaction: Transaction, verb: str) -> Iterator[_Delivery | None]:
        with settling(_Delivery, transaction, self, verb, DatabaseConnectorError) as delivery:
            yield delivery

    def _settle(self, transaction: Transaction, verb: str, reason: str | None) -> None:
        with self._claimed(transaction, verb) as delivery:
            if delivery is not None:
                reader = self._connection.get()
                try:
                    with self._marked(reader, delivery, reason):
                        pass
                except DBAPIError as error:  # at the commit
                    raise self._not_settled(reader, delivery, error) from error

    @contextmanager
    def _marked(
        self, reader: Reader, delivery: _Delivery, reason: str | None
    ) -> Iterator[sa.Connection]:
        """A transaction that marks the row first, so that another process waits and then sees the
        mark.
        """
        row = delivery.row
        try:
            with self._engine.begin() as connection:
                try:
                    reader.mark(connection, row.key, row.position, self._now(), reason)
                except DBAPIError as error:
                    raise self._not_settled(reader, delivery, error) from error
                yield connection
        except RowTakenError:
            self._let_go(delivery)
            raise
        except DBAPIError as error:
            if error.connection_invalidated:
                raise self._connection.lost(reader, self._refusal(error)) from error
            raise
        self._let_go(delivery)

    def _not_settled(self, reader: Reader, delivery: _Delivery, error: DBAPIError) -> Exception:
        if error.connection_invalidated:
            return self._connection.lost(reader, self._refusal(error))
        return RowNotSettledError(
            f"row {delivery.row.key[:40]!r} of {self._table} was not settled ({told(error)})",
            remedy="see that the table, and those that the connector made, can be written to",
        )

    def _let_go(self, delivery: _Delivery) -> None:
        row = delivery.row
        self._dropped.forget(row)
        if self._in_hand.get(row.key) is row:
            del self._in_hand[row.key]

    def _asked(self, question: Callable[[Reader, sa.Connection], Any]) -> Any:
        reader = self._connection.get()
        try:
            with self._engine.begin() as connection:
                return question(reader, connection)
        except DBAPIError as error:
            found = self._refusal(error)
            raise self._connection.lost(reader, found) from error

    def _look_at_the_table(self) -> Reader:
        refuse_missing_file(self._engine)
        try:
            if self._words is not None:
                return status_reader_of(self._engine, self._table, self._words, **self._options)
            reader = reader_of(self._engine, self._table, consumer=self._consumer, **self._options)
            reader.lease = self._lease
            return reader
        except DBAPIError as error:
            raise self._refusal(error) from error

    def _refusal(self, error: DBAPIError) -> Exception:
        is_file = self._engine.dialect.name == "sqlite"
        return refusal(error, self._connection.state.name, self._table, is_file=is_file)
