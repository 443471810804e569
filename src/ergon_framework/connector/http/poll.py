"""The connector class: its options, and the sync and async methods that the engines call."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar, Self

import msgspec

from ergon_framework.connector.base import (
    DROPPED_FOR,
    Delivered,
    DroppedDeliveries,
    ThreadedConsuming,
    check_batch_size,
    inherited,
    refuse_extra,
    settling,
)
from ergon_framework.connector.broker.connection import BrokerConnection, closed
from ergon_framework.connector.broker.in_flight import MAX_IN_FLIGHT, MAX_IN_FLIGHT_BYTES, InFlight
from ergon_framework.connector.broker.message import MAX_MESSAGE_BYTES
from ergon_framework.connector.broker.options import COUNT, SECONDS, Bound, takes_options
from ergon_framework.connector.broker.wakeup import Wakeup
from ergon_framework.connector.http.options import address_of, client_rules, page_rules
from ergon_framework.connector.http.page import found_at
from ergon_framework.connector.http.paging import paging_of
from ergon_framework.connector.http.progress import PollProgress, state_path, unavailable
from ergon_framework.connector.http.reading import HeldItem, PageReader, first_page
from ergon_framework.connector.http.waiting_items import WaitingItems
from ergon_framework.core.broker_reconnect import RECONNECT, Outage
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.engine.clocks import current_clock
from ergon_framework.errors import (
    ChannelLostError,
    ConfigurationError,
    ConnectorError,
    EnvelopeError,
    StoreError,
    describe,
)
from ergon_framework.ports.transaction import Transaction
from ergon_framework.storage.server import Observation

INTERVAL = 60.0
"""Seconds between two requests for the last page."""
SHORTEST = 0.05
"""The shortest interval, in seconds, in which a fetch makes another request."""
LATE = 300.0
"""Seconds by which an item may appear later than its instant says."""
REMEMBER = 10_000
MAX_RETRY_AFTER = 3600.0
"""The longest Retry-After, in seconds, that is honoured."""


class HttpPollConnectorError(ConnectorError):
    """The connector refuses what it was asked to do."""

    code = "http_poll_connector"


class _Delivery(Delivered):
    __slots__ = ("held", "life")

    held: HeldItem
    life: object


class HttpPollConnector(ThreadedConsuming):
    """Polls an HTTP API that answers with pages of items; each item is a transaction.

    ``url`` is ``https://host/path?query``, or ``poll+https://host/path`` with options in its query.
    ``state`` is the SQLite file that keeps the cursor, in an App by default that of its store, and
    ``consumer`` the name under which it is kept. ``items`` is the path of the list in an answer
    (``data.orders``), by default the whole answer. ``ids`` are the paths of an item's id, with
    commas between them; without it the id is a digest of the item. The next page is named by a
    Link header (``link_header``), by a link in the body (``next_link``), by a cursor (``cursor`` is
    the parameter, ``next_cursor`` the path), by a number (``page``, ``page_size``) or by an
    ``offset``. ``since`` is a parameter that asks for what came after the highest ``since_field``
    seen; then, and with ``again="first"``, every look begins at the first page, and otherwise at
    the last one that was read.
    """

    exclusive: ClassVar[bool] = True
    """One process at a time polls as one consumer."""

    @takes_options(
        may_be_empty=["since_start"],
        page_size=COUNT,
        first_page=Bound(0),
        late=SECONDS,
        interval=SECONDS,
        timeout=Bound(0.001, 3600),
        remember=COUNT,
        max_page_bytes=COUNT,
    )
    def __init__(
        self,
        url: str,
        *,
        state: str | None = None,
        consumer: str = "ergon",
        name: str | None = None,
        items: str = "",
        ids: str | None = None,
        payload: str = "",
        correlation: str | None = None,
        link_header: bool = False,
        next_link: str | None = None,
        cursor: str | None = None,
        next_cursor: str | None = None,
        page: str | None = None,
        page_size: int | None = None,
        first_page: int = 1,
        offset: str | None = None,
        since: str | None = None,
        since_field: str | None = None,
        since_start: str | float | None = None,
        late: float = LATE,
        again: str = "last",
        query: str = "",
        format: str = "json",
        interval: float = INTERVAL,
        wait: float = 1.0,
        timeout: float = 30.0,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        remember: int = REMEMBER,
        max_page_bytes: int = MAX_MESSAGE_BYTES,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        max_in_flight: int = MAX_IN_FLIGHT,
        max_in_flight_bytes: int = MAX_IN_FLIGHT_BYTES,
        ca: str | None = None,
    ) -> None:
        given = dict(locals())
        address = address_of(url, query)
        self._consumer = f"{consumer}@{address.name}"
        self.name = name or address.name
        self.malformed = 0
        self._title = address.name
        self._path = state_path(state)
        self._paging = paging_of(address.url, given)
        self._rules = page_rules(given)
        self._client_rules = client_rules(given, address)
        self._is_sweeping = again == "first" or since is not None
        self._interval = max(interval, SHORTEST) if wait else interval
        self._remember, self._wait = remember, wait
        self.waits_for_work = wait > 0
        self._payload = self._rules.payload
        self._wakeup = Wakeup()
        self._connection: BrokerConnection[PageReader] = BrokerConnection(
            self._title, self._open, PageReader.close, self._wakeup
        )
        self._connection.state.outage = Outage(replace(RECONNECT, max_retry_after=MAX_RETRY_AFTER))
        self._in_flight = InFlight(self._wakeup, max_in_flight, max_in_flight_bytes)
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget what was read and delivered in a forked child, because it is the parent's."""
        self._life = object()
        self._fetching = threading.Lock()
        self._waiting = WaitingItems()
        self._dropped: DroppedDeliveries[HeldItem] = DroppedDeliveries()

    # ---- opening and closing ---------------------------------------------------------------------

    def open(self) -> None:
        """Open the state and lock the cursor; otherwise the first fetch does."""
        self._connection.get()

    def stop_waiting(self) -> None:
        """Make a waiting fetch return. What its request brings is for the next fetch."""
        self._wakeup.stop()

    def health(self) -> bool:
        """Whether it can be used, as far as is known."""
        return self._connection.state.is_healthy

    def observe(self) -> list[Observation]:
        """What ``ergon doctor`` reports. One page is requested, and nothing is changed."""
        try:
            count = first_page(self._paging, self._rules, self._client_rules)
        except Exception as error:
            remedy = (
                getattr(error, "remedy", "") or "see that the URL and the credentials are right"
            )
            found = f"{self._title} cannot be polled: {describe(error)}"
            return [Observation("first page", found, remedy, is_grave=True)]
        return [Observation("first page", f"{self._title} answers, with {count} items")]

    def close(self) -> None:
        """Close the connector. Unsettled deliveries go to the next reader. Closing
        twice is fine.
        """
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- consuming ------------------------------------------------------------------------------

    def fetch_transactions(
        self, batch_size: int, *, wait: float | None = None, **extra: Any
    ) -> list[Transaction]:
        """Up to ``batch_size`` items; an empty list when none came within ``wait`` seconds."""
        refuse_extra(self, extra, "the one setting of a fetch is wait, in seconds")
        check_batch_size(batch_size)
        self._wakeup.begin()
        with self._fetching:
            until = current_clock().now() + (self._wait if wait is None else wait)
            while (reader := self._connection.wait()) is not None:
                self._return_due()
                room = self._in_flight.room(batch_size)
                if room and (taken := self._take(reader, room)):
                    return taken
                if not room and not self._await_room():
                    break
                if not room:
                    continue
                if not self._read(reader, until):
                    return []
            if self._connection.state.is_closed:
                raise closed(self._title)
            return []

    def _read(self, reader: PageReader, until: float) -> bool:
        """Read another page, or wait until one may be read. Returns whether to continue
        fetching.
        """
        state, clock = self._connection.state, current_clock()
        now = clock.now()
        if not state.outage.may_try(now):  # the server is away, or wants to be left alone
            self._wakeup.wait(
                self._first(state.outage.retry_at),
                lambda: state.is_closed or self._waiting.is_ready,
            )
            return not self._wakeup.is_stopped
        try:
            reader.advance()
            is_held_up = reader.is_held_up
            if is_held_up or now < reader.due_at:
                return self._await_work(reader, until, is_held_up=is_held_up)
            found = reader.read(self._wakeup)
        except (ConfigurationError, ConnectorError, StoreError) as error:
            if state.is_closed:
                raise closed(self._title) from None
            if isinstance(error, ChannelLostError):
                self._connection.lost(reader, error)
                return not self._wakeup.is_stopped
            raised = state.failed(error, clock.now())
            if isinstance(raised, ConfigurationError):
                raise raised from error
            return not self._wakeup.is_stopped
        if found is None:
            return False
        if state.outage.since is not None:
            state.connected(clock.now())
        self.malformed += reader.take_malformed()
        self._waiting.put(found)
        return bool(found) or not reader.is_at_end or clock.now() < until

    def _await_work(self, reader: PageReader, until: float, *, is_held_up: bool) -> bool:
        """Wait until a page may be read, or an item is there. Returns whether to
        continue fetching.
        """
        state = self._connection.state
        self._wakeup.wait(
            self._first(until if is_held_up else min(until, reader.due_at)),
            lambda: (
                state.is_closed or self._waiting.is_ready or (is_held_up and not reader.is_held_up)
            ),
        )
        now = current_clock().now()
        parked_until = self._waiting.next_at
        is_there = self._waiting.is_ready or (parked_until is not None and parked_until <= now)
        return state.is_closed or is_there or not (self._wakeup.is_stopped or now >= until)

    def _await_room(self) -> bool:
        """Wait until an item is settled or due again. Returns whether to continue fetching."""
        due = self._waiting.next_at
        self._wakeup.wait(
            due,
            lambda: (
                self._connection.state.is_closed
                or self._in_flight.room(1) > 0
                or self._waiting.next_at != due  # one was parked meanwhile
            ),
        )
        return not (self._wakeup.is_stopped or self._connection.state.is_closed)

    def _first(self, instant: float) -> float:
        """The earlier of an instant and that of the first parked item."""
        parked_until = self._waiting.next_at
        return instant if parked_until is None else min(instant, parked_until)

    def _take(self, reader: PageReader, wanted: int) -> list[Transaction]:
        found: list[Transaction] = []
        while len(found) < wanted and (held := self._waiting.take()) is not None:
            if not reader.is_open(held):  # of a reader before, or settled since: no second delivery
                continue
            try:
                found.append(self._delivery(held))
            except EnvelopeError as error:  # one bad item does not hold up the others
                try:
                    reader.settle(held, f"no transaction: {describe(error)}")
                except Exception:
                    self._waiting.put([held])
                    raise
                self.malformed += 1
        return found

    def _delivery(self, held: HeldItem) -> Transaction:
        document = msgspec.json.decode(held.item.data)
        correlation = None
        if self._rules.correlation is not None:
            given = found_at(document, self._rules.correlation)
            correlation = str(given) if isinstance(given, str | int) and given != "" else None
        identity = held.item.identity
        delivery = _Delivery(
            identity if self._rules.ids else f"{self.name}:{identity}",
            found_at(document, self._payload),
            correlation_id=correlation,
            source=self.name,
        )
        delivery.belongs_to(self, held=held, life=self._life)
        self._in_flight.add(len(held.item.data))
        self._dropped.watch(delivery, held)
        return delivery

    def _return_due(self) -> None:
        """Make parked items ready again, and after a while those whose deliveries were dropped.

        The code that dropped one may still be at work on its content.
        """
        now = current_clock().now()
        for held in self._dropped.take():
            self._waiting.put_for_later(held, now + DROPPED_FOR)
        due = self._waiting.take_due(now)
        for held in due:
            self._in_flight.remove(len(held.item.data))
        self._waiting.put(due)

    # ---- settling -------------------------------------------------------------------------------

    def ack(self, transaction: Transaction) -> None:
        """The transaction succeeded: its item is not delivered again."""
        self._settle(transaction, "ack", None)

    def nack(self, transaction: Transaction, exc: Exception) -> None:
        """The transaction failed for good: its item is set aside with the reason."""
        self._settle(transaction, "nack", describe(exc) or "unknown")

    def release(self, transaction: Transaction) -> None:
        """The transaction was not finished: its item is delivered again."""
        with self._claimed(transaction, "release") as delivery:
            if delivery is not None:
                self._let_go(delivery)
                self._waiting.put([delivery.held])
                self._wakeup.notify()

    def release_after(self, transaction: Transaction, seconds: float) -> None:
        """A gate is closed: the item is delivered again in so many seconds, from memory."""
        with self._claimed(transaction, "release_after") as delivery:
            if delivery is not None:
                # It counts as in flight, so that a closed gate does not fill the memory.
                self._dropped.forget(delivery.held)
                self._waiting.put_for_later(delivery.held, current_clock().now() + seconds)
                self._wakeup.notify()

    def dead_letters(self) -> list[tuple[str, float, str, str | None]]:
        """Id, instant, reason and JSON of items that failed for good, oldest first."""
        return self._connection.get().progress.dead()

    def _settle(self, transaction: Transaction, verb: str, reason: str | None) -> None:
        with self._claimed(transaction, verb) as delivery:
            if delivery is not None:
                if self._recorded(self._connection.get(), delivery.held, reason):
                    self._wakeup.notify()
                self._let_go(delivery)

    def _recorded(self, reader: PageReader, held: HeldItem, reason: str | None) -> bool:
        """Record that an item is settled. If that fails, health says so."""
        try:
            return reader.settle(held, reason)
        except ChannelLostError as error:
            self._connection.lost(reader, error)  # the next fetch begins where the file says
            raise
        except StoreError as error:
            self._connection.state.failed(error, current_clock().now())
            raise

    @contextmanager
    def _claimed(self, transaction: Transaction, verb: str) -> Iterator[_Delivery | None]:
        with settling(_Delivery, transaction, self, verb, HttpPollConnectorError) as delivery:
            if delivery is not None and delivery.life is not self._life:
                raise inherited(delivery, verb)
            yield delivery

    def _let_go(self, delivery: _Delivery) -> None:
        self._dropped.forget(delivery.held)
        self._in_flight.remove(len(delivery.held.item.data))

    # ---- the same for event loops; what blocks is done by other threads -------------------------

    async def fetch_transactions_async(
        self, batch_size: int, *, wait: float | None = None, **extra: Any
    ) -> list[Transaction]:
        """The async version of :meth:`fetch_transactions`; cancelled, it gives the items back."""
        return await self._fetch_in_thread(
            self.fetch_transactions, self.stop_waiting, batch_size, wait=wait, **extra
        )

    async def release_async(self, transaction: Transaction) -> None:
        """The async version of :meth:`release`."""
        self.release(transaction)  # it asks nobody

    async def release_after_async(self, transaction: Transaction, seconds: float) -> None:
        """The async version of :meth:`release_after`."""
        self.release_after(transaction, seconds)

    # ---- inside ---------------------------------------------------------------------------------

    def _open(self) -> PageReader:
        try:
            progress = PollProgress(self._path, self._consumer)
        except Exception as error:
            raise unavailable(error) from error
        for held in self._waiting.clear():  # they counted while they were parked
            self._in_flight.remove(len(held.item.data))
        try:
            return self._reader(progress)
        except BaseException:
            progress.close()
            raise

    def _reader(self, progress: PollProgress) -> PageReader:
        return PageReader(
            self._paging,
            self._rules,
            self._client_rules,
            progress,
            is_sweeping=self._is_sweeping,
            interval=self._interval,
            remember=self._remember,
        )
