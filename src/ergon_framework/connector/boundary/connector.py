"""The connector for a zone's node: its arguments, its sync and async methods, and settlement by
transaction.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypedDict

from ergon_framework.boundary.client.artifacts import getting, reference_of, saving
from ergon_framework.boundary.client.consumer import ConsumerBase, FactConsumerOptions, warn_of_gap
from ergon_framework.boundary.client.effects import RETRY_RULE, ClientEffects
from ergon_framework.boundary.client.options import ProducerBase, ProducerOptions
from ergon_framework.boundary.facts.schema import ZONE
from ergon_framework.boundary.model import Loss
from ergon_framework.connector.base import (
    CancelledFetches,
    check_batch_size,
    refuse_extra,
    settling,
)
from ergon_framework.connector.boundary.link import BoundaryConnectorError, NodeLink, NodeOrUrl
from ergon_framework.connector.boundary.publisher import FactPublisher
from ergon_framework.connector.boundary.reader import Driver, FactReader
from ergon_framework.connector.boundary.transactions import DeliveredFact, delivered
from ergon_framework.connector.boundary.window import EntryState, WindowEntry
from ergon_framework.connector.broker.options import (
    COUNT,
    SECONDS,
    SOME_SECONDS,
    seconds_of,
    takes_options,
)
from ergon_framework.core.retry import RetryRule
from ergon_framework.errors import ConfigurationError, TransactionException, describe
from ergon_framework.ports.factstore import Reference
from ergon_framework.ports.transaction import Transaction
from ergon_framework.telemetry.tracing import dispatching

MAX_WINDOW = 1000
"""How many facts may lie between the cursor and the last one read: what a node returns
in one page.
"""

Zones = tuple[str | None, str | None]


class Shared(TypedDict):
    """The arguments that both directions use."""

    retry: RetryRule
    timeout: float
    expected_zone: str | None


class Parts(NamedTuple):
    """The parts of a connector."""

    link: NodeLink
    driver: Driver | None
    writer: FactPublisher


def parts_of(
    node: NodeOrUrl,
    consumer: str | None,
    zones: Zones,
    reading: FactConsumerOptions,
    writing: ProducerOptions,
    shared: Shared,
    outbox: str | PathLike[str] | None,
    drain: float,
) -> Parts:
    """Check every argument, then make the parts. Nothing is sent."""
    _check_names(consumer, reading.get("log"), zones)
    reader = None if consumer is None else _reader(consumer, reading, shared)
    writing["retry"] = shared["retry"]
    link = NodeLink(
        node, writing, {"timeout": shared["timeout"], "expected_zone": shared["expected_zone"]}
    )
    # The outbox is sent by a thread, which cannot use the transport of an event loop.
    if outbox is not None and link.tasks is not None:
        raise ConfigurationError(
            "an outbox needs a node that threads can reach", remedy="give the node's URL"
        )
    path = None if outbox is None else _path(outbox)
    writer = FactPublisher(link, ProducerBase(writing), zones, path, drain)
    return Parts(link, None if reader is None else Driver(link, reader), writer)


def _reader(consumer: str, options: FactConsumerOptions, shared: Shared) -> FactReader:
    options["retry"], options["timeout"] = shared["retry"], shared["timeout"]
    reading = ConsumerBase(consumer, options)
    on_gap = options.get("on_gap") or warn_of_gap
    return FactReader(reading.session, reading.limit, reading.max_attempts, on_gap)


def _check_names(consumer: Any, log: Any, zones: tuple[Any, Any]) -> None:
    if consumer is None and zones[0] is None:
        raise ConfigurationError(
            "a BoundaryConnector needs a consumer or a from_zone",
            remedy='consumer="billing" to consume, from_zone="plant-a" to produce',
        )
    if log is not None and consumer is None:
        raise ConfigurationError("log without a consumer", remedy="name the consumer, too")
    if consumer is not None and not (isinstance(consumer, str) and ZONE.fullmatch(consumer)):
        raise ConfigurationError("consumer is no name", remedy="give 1 to 128 characters")
    for name, zone in zip(("from_zone", "to_zone"), zones, strict=True):
        if zone is not None and not (isinstance(zone, str) and ZONE.fullmatch(zone)):
            raise ConfigurationError(
                f"{name} is no zone", remedy="1 to 128 characters, none of them a control character"
            )


def _path(outbox: Any) -> Path:
    if not outbox or not isinstance(outbox, str | PathLike):
        raise ConfigurationError(f"outbox is {outbox!r}", remedy="give the path of a file")
    return Path(outbox)


_SETTINGS = "a fetch takes wait, and a dispatch takes none"
_SPAN = ("boundary.publish", "ergon.message_id")


class BoundaryConnector:
    """Consumes the facts of one named consumer of a node, and produces facts into the node.

    ``node`` is its URL, or a transport, which stays the caller's to close. ``consumer`` is the
    durable name under which facts are read; with ``log`` it is created when the node has none of
    that name. ``from_zone`` and ``to_zone`` are those of facts that are produced. With ``outbox``,
    the path of a file, facts are on disk there when a dispatch returns, and reach the node later;
    closing gives them ``drain`` seconds for that, and what is left stays on disk.
    ``name`` becomes the source of what is delivered.
    """

    redelivers: ClassVar[bool] = False
    """Whether failed transactions are delivered again. They are not, but set aside: retrying them
    before that is up to the task.
    """
    joins_trace: ClassVar[bool] = True
    """Whether a delivery continues the trace in which its fact was published."""
    exclusive_with: ClassVar[tuple[str, ...]] = ("consumer",)
    """The option that names the consumer, whose name only one process may use at a time."""

    @takes_options(
        lease=SOME_SECONDS,
        limit=COUNT,
        max_deliveries=COUNT,
        drain=SECONDS,
        timeout=SOME_SECONDS,
    )
    def __init__(
        self,
        node: NodeOrUrl,
        *,
        consumer: str | None = None,
        log: str | None = None,
        from_zone: str | None = None,
        to_zone: str | None = None,
        name: str | None = None,
        start: Literal["start", "end"] = "start",
        view: str | None = None,
        required: bool = True,
        lease: float = 30.0,
        wait: float = 0.0,
        limit: int = MAX_WINDOW,
        max_deliveries: int = 5,
        on_gap: Callable[[Loss], Any] = warn_of_gap,
        outbox: str | PathLike[str] | None = None,
        drain: float = 5.0,
        strict_ids: bool = False,
        retry: RetryRule = RETRY_RULE,
        timeout: float = 30.0,
        expected_zone: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        ca: str | None = None,
    ) -> None:
        self.name = name
        self._wait = wait
        self.waits_for_work = self._wait > 0
        reading: FactConsumerOptions = {
            "log": log,
            "start": start,
            "to_zone": view,
            "required": required,
            "lease": lease,
            "limit": limit,
            "max_attempts": max_deliveries,
            "on_gap": on_gap,
        }
        shared: Shared = {"retry": retry, "timeout": timeout, "expected_zone": expected_zone}
        self._link, self._driver, self._writer = parts_of(
            node,
            consumer,
            (from_zone, to_zone),
            reading,
            {"strict_ids": strict_ids, "cert": cert, "key": key, "ca": ca},
            shared,
            outbox,
            drain,
        )
        self._cancelled = CancelledFetches()

    # ---- opening and closing ----

    def open(self) -> None:
        """Start sending what an earlier process left in the outbox; otherwise the first
        use does.
        """
        self._link.check()
        self._writer.resume()

    async def aopen(self) -> None:
        """The async version of :meth:`open`."""
        await self._link.own_threads.run(self.open)

    def health(self) -> bool:
        """Whether it can be used: it is not closed, and no other process has the
        consumer's name.
        """
        is_held = self._driver is None or self._driver.reader.session.standing.lost is None
        return not self._link.is_closed and is_held

    def close(self) -> None:
        """Confirm what is done, and release the consumer's name. Closing twice is fine.

        What is in the outbox has ``drain`` seconds to reach the node. The transport of an event
        loop cannot be used from here: the name is free when its lease ends, or at once after
        :meth:`aclose`.
        """
        if not self._link.is_closed and self._driver is not None:
            # The transport of an event loop can only be used from its loop, and this may be any
            # thread.
            if self._link.tasks is None:
                self._driver.leave()
            else:
                self._driver.drop_the_name()
        self._writer.close()
        self._link.close()

    async def aclose(self) -> None:
        """The async version of :meth:`close`."""
        if self._link.tasks is None:
            await self._link.own_threads.run(self.close)
            return
        if not self._link.is_closed and self._driver is not None:
            await self._driver.leave_async()
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- producing ----

    def dispatch_transactions(self, transactions: Iterable[Transaction], **extra: Any) -> None:
        """Publish a fact for each transaction, in order. Dispatching the same ones again changes
        nothing.

        When this returns, all of them are on the node's disk, or with an outbox on this machine's.
        """
        refuse_extra(self, extra, _SETTINGS)
        self._link.check()
        given = list(transactions)
        with dispatching(*_SPAN, given):
            messages = self._writer.messages(given)
            if self._writer.spools:
                self._writer.spool(messages)
            else:
                self._link.run(self._writer.publish(messages))

    async def dispatch_transactions_async(
        self, transactions: Iterable[Transaction], **extra: Any
    ) -> None:
        """The async version of :meth:`dispatch_transactions`."""
        if self._link.tasks is None:
            await self._link.own_threads.run(
                self.dispatch_transactions, list(transactions), **extra
            )
            return
        refuse_extra(self, extra, _SETTINGS)
        self._link.check()
        given = list(transactions)
        with dispatching(*_SPAN, given):
            await self._link.run_async(self._writer.publish(self._writer.messages(given)))

    # ---- consuming ----

    def fetch_transactions(
        self, batch_size: int, *, wait: float | None = None, **extra: Any
    ) -> list[Transaction]:
        """Up to ``batch_size`` facts in order; empty at once, or after ``wait`` seconds."""
        driver, seconds = self._asked(batch_size, wait, extra)
        return list(self._fetch(driver, batch_size, seconds, threading.Event()))

    def stop_waiting(self) -> None:
        """Make the fetch under way, or the next one, stop waiting. Any thread may call it."""
        if self._driver is not None:
            self._driver.stop_waiting()

    def ack(self, transaction: Transaction) -> None:
        """The transaction succeeded. Its fact is confirmed once all before it have an outcome."""
        self._settle(transaction, "ack", EntryState.DONE)

    def nack(self, transaction: Transaction, exc: Exception) -> None:
        """The transaction failed. Its fact is set aside with the reason when its turn comes."""
        self._settle(transaction, "nack", EntryState.FAILED, _reason(exc))

    def release(self, transaction: Transaction) -> None:
        """The transaction was not finished. Deliver its fact again."""
        self._settle(transaction, "release", EntryState.WAITING)

    def release_after(self, transaction: Transaction, seconds: float) -> None:
        """A gate is closed: deliver the fact again after that time. Nothing from it on is confirmed
        before.
        """
        seconds_of("seconds", seconds)
        self._settle(transaction, "release_after", EntryState.WAITING, hold=seconds)

    # ---- the same for event loops ----

    async def fetch_transactions_async(
        self, batch_size: int, *, wait: float | None = None, **extra: Any
    ) -> list[Transaction]:
        """The async version of :meth:`fetch_transactions`; cancelled, it takes the facts back."""
        driver, seconds = self._asked(batch_size, wait, extra)
        gave_up = threading.Event()
        if self._link.tasks is None:
            work = self._link.own_threads.run(self._fetch, driver, batch_size, seconds, gave_up)
        else:
            work = self._fetch_in_task(driver, batch_size, seconds, gave_up)

        async def take_back(found: list[DeliveredFact]) -> None:
            for fact in found:
                driver.reader.note(fact.entry, EntryState.WAITING)

        # The node has leased what a fetch brings, so the reader knows it in any case.
        served = await self._cancelled.run(work, end=gave_up.set, give_back=take_back)
        return list(served)

    async def ack_async(self, transaction: Transaction) -> None:
        """The async version of :meth:`ack`."""
        await self._settle_async(transaction, "ack", EntryState.DONE)

    async def nack_async(self, transaction: Transaction, exc: Exception) -> None:
        """The async version of :meth:`nack`."""
        await self._settle_async(transaction, "nack", EntryState.FAILED, _reason(exc))

    async def release_async(self, transaction: Transaction) -> None:
        """The async version of :meth:`release`."""
        await self._settle_async(transaction, "release", EntryState.WAITING)

    async def release_after_async(self, transaction: Transaction, seconds: float) -> None:
        """The async version of :meth:`release_after`."""
        seconds_of("seconds", seconds)
        await self._settle_async(transaction, "release_after", EntryState.WAITING, hold=seconds)

    # ---- artifacts ----

    def get_object(self, reference: Reference | Mapping[str, Any]) -> bytes:
        """The artifact that a part of ``object_json`` refers to; its digest is compared."""
        return self._link.run(self._getting(reference))

    async def get_object_async(self, reference: Reference | Mapping[str, Any]) -> bytes:
        """The async version of :meth:`get_object`."""
        return await self._link.run_async(self._getting(reference))

    def save_object(
        self, reference: Reference | Mapping[str, Any], path: str | PathLike[str]
    ) -> Path:
        """Save the artifact to a file, which appears when it is complete and its digest was
        compared.
        """
        return self._link.run(self._saving(reference, path))

    async def save_object_async(
        self, reference: Reference | Mapping[str, Any], path: str | PathLike[str]
    ) -> Path:
        """The async version of :meth:`save_object`."""
        return await self._link.run_async(self._saving(reference, path))

    def _getting(self, reference: Reference | Mapping[str, Any]) -> ClientEffects[bytes]:
        session = self._reading().reader.session
        return getting(reference_of(reference), session.rule, session.dice)

    def _saving(
        self, reference: Reference | Mapping[str, Any], path: str | PathLike[str]
    ) -> ClientEffects[Path]:
        session = self._reading().reader.session
        return saving(reference_of(reference), path, session.rule, session.dice)

    # ---- inside ----

    def _reading(self) -> Driver:
        self._link.check()
        if self._driver is None:
            raise ConfigurationError(
                "this BoundaryConnector has no consumer, so it cannot consume",
                remedy='give it the durable name to read under: consumer="billing"',
            )
        return self._driver

    def _asked(
        self, batch_size: int, wait: float | None, extra: Mapping[str, Any]
    ) -> tuple[Driver, float]:
        """Who fetches, and how many seconds it may wait."""
        refuse_extra(self, extra, _SETTINGS)
        check_batch_size(batch_size)
        seconds = self._wait if wait is None else seconds_of("wait", wait)
        return self._reading(), seconds

    def _fetch(
        self, driver: Driver, most: int, wait: float, gave_up: threading.Event
    ) -> list[DeliveredFact]:
        # A process that only consumes must also send what an earlier process left in the outbox.
        self._writer.resume()
        return self._handed(driver, driver.fetch(most, wait, gave_up))

    async def _fetch_in_task(
        self, driver: Driver, most: int, wait: float, gave_up: threading.Event
    ) -> list[DeliveredFact]:
        return self._handed(driver, await driver.fetch_async(most, wait, gave_up))

    def _handed(self, driver: Driver, entries: list[WindowEntry]) -> list[DeliveredFact]:
        """Wrap facts as soon as they are taken, so that one that is dropped on its way
        is noticed.
        """
        handed = []
        for entry in entries:
            if entry.delivery is not None:
                fact = delivered(entry, entry.delivery, self, self.name)
                driver.reader.dropped.watch(fact, entry)
                handed.append(fact)
        return handed

    def _settle(
        self,
        transaction: Transaction,
        verb: str,
        state: EntryState,
        reason: str = "",
        hold: float = 0.0,
    ) -> None:
        with self._claimed(transaction, verb) as entry:
            if entry is not None:
                driver = self._reading()
                driver.reader.note(entry, state, reason, driver.now() + hold if hold else 0.0)
                driver.advance()

    async def _settle_async(
        self,
        transaction: Transaction,
        verb: str,
        state: EntryState,
        reason: str = "",
        hold: float = 0.0,
    ) -> None:
        if self._link.tasks is None:
            await self._link.own_threads.run(self._settle, transaction, verb, state, reason, hold)
            return
        with self._claimed(transaction, verb) as entry:
            if entry is not None:
                # The clock of the event loop, by which the async reader measures its holds.
                driver, now = self._reading(), asyncio.get_running_loop().time()
                driver.reader.note(entry, state, reason, now + hold if hold else 0.0)
                await driver.advance_async()

    @contextmanager
    def _claimed(self, transaction: Transaction, verb: str) -> Iterator[WindowEntry | None]:
        """The delivery to settle, or None when it was already settled with this verb."""
        self._reading()
        with settling(DeliveredFact, transaction, self, verb, BoundaryConnectorError) as delivery:
            yield None if delivery is None else delivery.entry


def _reason(error: Exception) -> str:
    """The exception that the task raised, without the category in which the engine has
    wrapped it.
    """
    # The engine wraps what a task raised, and people who read the quarantine want the cause.
    cause = error.__cause__
    is_wrapped = type(error) is TransactionException and isinstance(cause, Exception)
    return describe(cause if is_wrapped and cause is not None else error)
