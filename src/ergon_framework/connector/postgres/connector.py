"""``PostgresConnector``: its fetch, dispatch and settlement, sync and async."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar
from urllib.parse import urlencode

from ergon_framework.connector.base import (
    ThreadedProducing,
    refuse_extra,
)
from ergon_framework.connector.broker.in_flight import MAX_IN_FLIGHT, MAX_IN_FLIGHT_BYTES
from ergon_framework.connector.broker.leased_source import LeasedSource
from ergon_framework.connector.broker.leases import DeliveryExpiredError, Lease, LeasedDelivery
from ergon_framework.connector.broker.message import (
    MAX_MESSAGE_BYTES,
    MalformedMessageError,
    MessageCodec,
)
from ergon_framework.connector.broker.options import SOME_SECONDS, Bound, takes_options
from ergon_framework.connector.postgres.columns import options_of
from ergon_framework.connector.postgres.errors import PostgresConnectorError, TableRefusedError
from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.errors import (
    ChannelLostError,
    ConfigurationError,
    ErgonError,
    PayloadError,
    StoreUnavailableError,
    describe,
)
from ergon_framework.ports.transaction import Transaction
from ergon_framework.storage.postgres.address import address_of
from ergon_framework.storage.server import Observation, latency
from ergon_framework.storage.urls import refuse_unreadable
from ergon_framework.telemetry.tracing import dispatching

if TYPE_CHECKING:
    from ergon_framework.connector.postgres.rows import NewRow, TableRow, TableSession

R = TypeVar("R")
T = TypeVar("T")
_SETTINGS = "a fetch takes wait, and a dispatch takes connection"
_MAX_REASON = 4000
_LONGEST_LOOK = 5.0
"""Seconds after which a waiting fetch reads the table by itself, because no notification tells of
expired leases.
"""
_STANDBY = 1.0
"""The same for a reader that stands by while another one has the table."""


class PostgresConnector(ThreadedProducing):
    """Consumes the rows of a table, and inserts rows into it.

    ``columns`` says which columns play which role: ``"headers, status=state, lease, visible_at"``.
    With ``lease`` and ``visible_at`` any number of processes share the table. Without them one
    reader at a time has it, in order, and others stand by: that is how an outbox is read. A row
    that is done is deleted, or kept with another status by ``keep``. One that failed for good gets
    the third of the ``statuses``, or is moved to the table ``dead_letters``; so is one that was
    delivered more than ``max_deliveries`` times without an outcome.
    """

    redelivers: ClassVar[bool] = False
    """What failed is set aside: whether a task tries again before that is the task's business."""
    joins_trace: ClassVar[bool] = True
    """What is delivered goes on with the trace that its row was inserted in."""

    @takes_options(lease=SOME_SECONDS, max_deliveries=Bound(0))
    def __init__(
        self,
        url: str,
        *,
        table: str,
        columns: str = "",
        statuses: str = "pending, done, dead",
        keep: bool = False,
        dead_letters: str | None = None,
        lease: float = 30.0,
        max_deliveries: int = 5,
        channel: str | None = None,
        wait: float = 1.0,
        max_in_flight: int = MAX_IN_FLIGHT,
        max_in_flight_bytes: int = MAX_IN_FLIGHT_BYTES,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        format: str = "json",
        name: str | None = None,
        host: str | None = None,
        pooler: str | None = None,
        sslmode: str | None = None,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
    ) -> None:
        # libpq also takes ca=system, and the name of a key in a device: pkcs11:…
        refuse_unreadable(
            ca=None if ca == "system" else ca, cert=cert, key=None if ":" in (key or "") else key
        )
        given = {"host": host, "pooler": pooler, "sslmode": sslmode, "sslrootcert": ca}
        self._url = _with_options(url, {**given, "sslcert": cert, "sslkey": key})
        address = address_of(self._url)
        self._options = options_of(table, columns, statuses, keep, dead_letters, lease)
        self.name = name
        self._is_leased = self._options.is_leased
        if address.is_shared and not self._is_leased:
            raise ConfigurationError(
                f"the table {table!r} has no leases, so one reader locks it for its session, which"
                " a pooler in transaction mode does not give",
                remedy='name two columns, columns="lease, visible_at", or write the address of the'
                " server itself",
            )
        self._channel = channel or table
        self._wait = wait
        self.waits_for_work = self._wait > 0
        self._room = max_in_flight_bytes
        self._max_deliveries = max_deliveries if "attempts" in self._options.columns else 0
        self._codec = MessageCodec(format, max_message_bytes, name)
        self._source: LeasedSource[TableSession] = LeasedSource(
            address.name,
            type(self),
            PostgresConnectorError,
            connect=self._connect,
            end=lambda session: session.close(),
            lease=self._options.seconds,
            renew=self._renew,
            give_back=self._give_back,
            bounds=(max_in_flight, max_in_flight_bytes),
        )
        self._refused: set[str] = set()
        """Statements for which the user had no rights when they were last tried."""
        self.malformed = 0
        if not self._is_leased:
            self._offer_no_parking()

    # ---- opening and closing ----

    def open(self) -> None:
        """Connect, and inspect the table; otherwise the first use does."""
        self._source.connection.get()

    def health(self) -> bool:
        """Whether it can be used: it is not closed, and its server answered the last call."""
        return self._source.is_healthy

    def observe(self) -> Iterator[Observation]:
        """What ``ergon doctor`` reports of the connector."""
        session = self._source.connection.get()
        yield latency(lambda: session.database.run(lambda on: on.execute(b"SELECT 1")))
        yield Observation("table", f"{self._options.table}: {self._roles()}")
        session.statements.refuse_reading()
        unsafe = session.database.unsafe_settings
        if unsafe is not None:
            yield Observation(
                "durability",
                f"the server has {unsafe} off",
                "set them to on: what was committed may be lost in a power cut",
                is_grave=True,
            )

    def _roles(self) -> str:
        held = "shared by leases" if self._is_leased else "one reader at a time"
        columns = (f"{role}={column}" for role, column in self._options.columns.items())
        return f"{', '.join(columns)}; {held}"

    def stop_waiting(self) -> None:
        """Make the fetch under way stop waiting. Any thread may call it."""
        self._source.wakeup.stop()
        session = self._session
        if session is not None and session.subscription is not None:
            session.subscription.wake()

    def close(self) -> None:
        """Give back what is in hand, and close the connection. Closing twice is fine."""
        self._source.close(self.stop_waiting)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- producing ----

    def dispatch_transactions(
        self, transactions: Iterable[Transaction], *, connection: Any = None, **extra: Any
    ) -> None:
        """Insert a row for each transaction, all or none. Rows with existing ids are left as they
        are.

        With ``connection`` they are inserted in the transaction of that connection, which is the
        caller's: they exist when the caller commits, and only then.
        """
        refuse_extra(self, extra, _SETTINGS)
        self._source.refuse_closed()
        given = list(transactions)
        with dispatching("postgres.insert", "messaging.message.id", given):
            session = self._source.connection.get()
            rows = self._new_rows(session, given)
            if not rows:
                return
            if connection is None:
                self._with_session(lambda each: each.insert(rows))
                return
            from ergon_framework.storage.postgres.external_transaction import joined

            with joined(connection, session.database.name) as driver:
                session.insert(rows, driver)

    def _new_rows(self, session: TableSession, given: Sequence[Transaction]) -> list[NewRow]:
        from ergon_framework.connector.postgres.rows import NewRow

        session.statements.refuse_dispatch()
        rows = []
        for each, message in zip(given, self._codec.encode_all(given), strict=True):
            if session.statements.refuses(message.body):
                raise PayloadError(
                    f"transaction {each.transaction_id!r} has a NUL character, which jsonb cannot"
                    " keep",
                    remedy="take it out, or let the column be json, text or bytea",
                    details={"transaction_id": each.transaction_id},
                )
            rows.append(NewRow(each.transaction_id, message))
        return rows

    # ---- consuming ----

    def fetch_transactions(
        self, batch_size: int, *, wait: float | None = None, **extra: Any
    ) -> list[Transaction]:
        """Up to ``batch_size`` rows; empty at once, or after ``wait`` seconds without any."""
        refuse_extra(self, extra, _SETTINGS)
        return self._source.fetch(
            batch_size,
            self._wait if wait is None else wait,
            lambda session, room, until: self._do(
                session, lambda it: self._claimed(it, room, until)
            ),
        )

    def _claimed(self, session: TableSession, room: int, until: float) -> list[Transaction] | None:
        """The claimed rows. None after a wait, when the table is to be read again."""
        is_waiting = SYSTEM_CLOCK.now() < until
        # Before the look: what is put in between the look and the wait must end the wait.
        subscription = session.subscribed() if is_waiting else None
        rows = session.rows()
        claimed = rows.claim(room, self._room)
        found = self._delivered(session, claimed)
        if claimed and not found and not self._source.wakeup.is_stopped:
            return None  # all were set aside: there may be work behind them
        left = until - SYSTEM_CLOCK.now()
        if found or subscription is None or left <= 0 or self._source.wakeup.is_stopped:
            return found
        subscription.wait(min(left, session.look_within(_LONGEST_LOOK, _STANDBY)))
        return None

    def _delivered(self, session: TableSession, rows: list[TableRow]) -> list[Transaction]:
        found: list[LeasedDelivery] = []
        left = deque(rows)
        try:
            while left:
                delivery = self._delivery_of(session, left[0])
                left.popleft()
                found += [] if delivery is None else [delivery]
        except BaseException:
            for each in found:
                self._source.leases.let_go(each.lease)
            # A reader that has them all would never see them again.
            for row in [*(each.lease.place for each in found), *left]:
                with suppress(ErgonError):
                    session.rows().settle(_parked(session), row, seconds=0.0)
            raise
        return list(found)

    def _delivery_of(self, session: TableSession, row: TableRow) -> LeasedDelivery | None:
        """The delivery of a row. None when the row is set aside."""
        if self._max_deliveries and row.attempts > self._max_deliveries:
            self._set_aside(row, f"delivered {row.attempts - 1} times without an outcome")
            return None
        try:
            delivery = self._codec.decode(
                LeasedDelivery, row.body, row.headers, fallback_id=str(row.id)
            )
        except MalformedMessageError as error:
            session.refuse_changed(str(error))  # or all its rows would be set aside
            self._set_aside(row, str(error))
            self.malformed += 1
            return None
        ends = SYSTEM_CLOCK.now() + self._options.seconds if self._is_leased else math.inf
        lease = Lease(row, len(row.body), ends)
        delivery.belongs_to(self, lease=lease)
        self._source.hold(delivery)
        return delivery

    # ---- settling ----

    def ack(self, transaction: Transaction) -> None:
        """The transaction succeeded: delete the row, or mark it as done."""
        self._settle(transaction, "ack", lambda session: session.statements.done)

    def nack(self, transaction: Transaction, exc: Exception) -> None:
        """The transaction failed for good: mark the row with the reason, or move it to the dead
        letters.
        """
        reason = describe(exc)[:_MAX_REASON]
        self._settle(transaction, "nack", lambda session: session.statements.dead, reason=reason)

    def release(self, transaction: Transaction) -> None:
        """The transaction was not finished: its row waits again."""
        self._settle(transaction, "release", _parked, seconds=0.0)

    def release_after(self, transaction: Transaction, seconds: float) -> None:
        """A gate is closed: the row waits for so many seconds."""
        self._settle(transaction, "release_after", _parked, seconds=seconds)

    async def release_after_async(self, transaction: Transaction, seconds: float) -> None:
        """The async version of :meth:`release_after`."""
        await self._threads.run(self.release_after, transaction, seconds)

    def _settle(
        self,
        transaction: Transaction,
        verb: str,
        statement: Callable[[TableSession], str],
        **values: Any,
    ) -> None:
        with self._source.settling(self, transaction, verb) as lease:
            if lease is not None:
                self._tell(lease, statement, values)

    def _tell(
        self, lease: Lease, statement: Callable[[TableSession], str], values: Mapping[str, Any]
    ) -> None:
        def settle(session: TableSession) -> None:
            session.rows().settle(statement(session), lease.place, **values)

        try:
            try:
                self._with_session(settle)
            except StoreUnavailableError as error:
                if error.details.get("is_undone"):
                    raise  # whoever stood in the way does so still: the engine tries it later
                lease.is_unsure = lease.is_unsure or bool(error.details.get("is_lost"))
                if not self._is_leased:
                    raise ChannelLostError(
                        f"the connection that row {lease.place.id!r} was delivered on is lost:"
                        f" {error.message}",
                        remedy=error.remedy,
                    ) from error
                self._with_session(settle)  # a lease belongs to no connection
        except DeliveryExpiredError:
            # Ours by our own clock, and not by the table: an earlier attempt was heard after all.
            if not lease.is_unsure:
                raise

    def _set_aside(self, row: TableRow, reason: str) -> None:
        """Set a row aside that cannot be delivered, like one that failed for good."""
        values = {"reason": reason[:_MAX_REASON]}
        self._with_session(
            lambda session: session.rows().settle(session.statements.dead, row, **values)
        )

    def get_transactions_count(self) -> int:
        """How many rows wait, including parked ones."""
        return self._with_session(lambda session: session.count())

    def fetch_transaction_by_id(self, transaction_id: str) -> Transaction | None:
        """The row of this id in any state. It claims nothing."""
        row = self._with_session(lambda session: session.find(transaction_id))
        if row is None:
            return None
        return self._codec.decode(Transaction, row.body, row.headers, fallback_id=str(row.id))

    # ---- the same for event loops; what blocks is done by other threads ----

    async def fetch_transactions_async(
        self, batch_size: int, *, wait: float | None = None, **extra: Any
    ) -> list[Transaction]:
        """The async version of :meth:`fetch_transactions`; cancelled, it gives the rows back."""
        return await self._fetch_in_thread(
            self.fetch_transactions, self.stop_waiting, batch_size, wait=wait, **extra
        )

    # ---- inside ----

    def _connect(self) -> TableSession:
        from ergon_framework.connector.postgres.rows import TableSession

        # What was refused is asked for first: connected alone, the table would seem to be usable.
        session = TableSession(self._url, self._options, self._channel, tuple(self._refused))
        self._refused.clear()
        self._session = session
        return session

    _session: TableSession | None = None

    def _do(self, session: TableSession, work: Callable[[TableSession], R]) -> R:
        try:
            return session.do(work)
        except TableRefusedError as error:
            self._refused.add(error.statement)
            raise

    def _with_session(self, work: Callable[[TableSession], T]) -> T:
        return self._source.with_session(lambda session: self._do(session, work))

    def _renew(self, leases: Sequence[Lease]) -> Collection[Lease]:
        """Renew the leases of held rows. Returns the rows that were lost."""
        if not self._is_leased:
            return ()
        kept = self._with_session(lambda session: session.renew([each.place for each in leases]))
        return [each for each in leases if (each.place.id, each.place.token) not in kept]

    def _give_back(self, lease: Lease) -> None:
        self._source.with_session(
            lambda session: session.rows().settle(_parked(session), lease.place, seconds=0.0)
        )

    def _offer_no_parking(self) -> None:
        """The engine finds methods by name: without it a row waits in place, and keeps its turn."""
        for verb in ("release_after", "release_after_async"):
            setattr(self, verb, None)


def _parked(session: TableSession) -> str:
    return session.statements.park


def _with_options(url: str, options: Mapping[str, str | None]) -> str:
    given = {name: value for name, value in options.items() if value}
    if not given or not isinstance(url, str):
        return url
    return f"{url}{'&' if '?' in url else '?'}{urlencode(given)}"
