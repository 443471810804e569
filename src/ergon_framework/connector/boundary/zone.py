"""The short form of a zone: publish facts and consume them, with no node to start or to address.

::

    plant = Zone("plant", "ergon.zones/plant")
    plant.publish(
        "work_order:WO-1", "released", {"pieces": 40}, to="enterprise", id=("released", "WO-1", 1)
    )

Everything in it is a :class:`~ergon_framework.boundary.Producer`, a
:class:`~ergon_framework.boundary.Consumer` or a ``BoundaryConnector`` over one transport, which
finds whoever serves the zone (:mod:`ergon_framework.boundary.node.local_node`).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypedDict, TypeVar, Unpack
from weakref import WeakSet

from ergon_framework.boundary.arguments import is_list
from ergon_framework.boundary.facts.schema import ZONE
from ergon_framework.core.failure import Kind
from ergon_framework.core.retry import Backoff, RetryRule
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.errors import (
    BoundaryError,
    ConfigurationError,
    FactInvalidError,
    UsageError,
)
from ergon_framework.lazy_exports import LateModule
from ergon_framework.ports.usage import shows

if TYPE_CHECKING:
    import asyncio

    import ergon_framework.boundary.client.artifacts as fact_files
    import ergon_framework.boundary.client.consumer as fact_consumer
    import ergon_framework.boundary.client.options as client_options
    import ergon_framework.boundary.model as fact_model
    import ergon_framework.boundary.node.local_node as local_nodes
    import ergon_framework.boundary.settings as zone_settings
    import ergon_framework.connector.boundary.connector as boundary_connector
    import ergon_framework.ports.transaction as transaction_port
    from ergon_framework.boundary.client.producer import Producer
    from ergon_framework.boundary.client.transport import Transport
else:
    fact_files = LateModule("ergon_framework.boundary.client.artifacts")
    fact_consumer = LateModule("ergon_framework.boundary.client.consumer")
    client_options = LateModule("ergon_framework.boundary.client.options")
    fact_model = LateModule("ergon_framework.boundary.model")
    local_nodes = LateModule("ergon_framework.boundary.node.local_node")
    zone_settings = LateModule("ergon_framework.boundary.settings")
    boundary_connector = LateModule("ergon_framework.connector.boundary.connector")
    transaction_port = LateModule("ergon_framework.ports.transaction")

ZonePlace: TypeAlias = (
    "str | os.PathLike[str] | zone_settings.ZoneSettings | Callable[[], zone_settings.ZoneSettings]"
)
"""Where a zone is: a URL, a path, its settings, or a function that returns one of these at the
first use.
"""
FactId: TypeAlias = str | Sequence[str | int]
"""The parts of an id, from the event: ``("released", "WO-1", 1)``; or the id itself."""
T = TypeVar("T")

TIMEOUT = 30.0
"""Seconds that a call may take with all its attempts."""
MAX_THREADS = 32
"""How many calls an event loop may have under way at the same time."""
RULE = RetryRule(
    attempts=1 << 30,  # The timeout ends it.
    backoff=Backoff(base=0.05, factor=2.0, cap=1.0, low=0.5, high=1.0),
    on=frozenset({Kind.TRANSIENT, Kind.THROTTLED, Kind.TIMEOUT}),
    max_retry_after=5.0,
)
"""The retry rule of calls, for the time in which another process starts or takes over."""
MAX_ID = 255
"""How many characters a message id may have."""


def _checked_name(name: object) -> str:
    if isinstance(name, str) and ZONE.fullmatch(name):
        return name
    raise ConfigurationError(
        f"{name!r} is no name for a zone",
        remedy="write a text of 1 to 128 characters, none of them a control character",
    )


class FactItem(TypedDict, total=False):
    """One fact for :meth:`Zone.publish_many`, with the names of :meth:`Zone.publish`."""

    subject: str
    predicate: str
    object: Any
    to: str
    id: FactId
    correlation_id: str | None
    causation_id: str | None
    labels: dict[str, str] | None


class FactOptions(TypedDict, total=False):
    """The other fields of an envelope."""

    correlation_id: str | None
    causation_id: str | None
    labels: dict[str, str] | None
    produced_at_unix_ms: int | None
    object_media_type: str | None
    object_schema: str | None


class Zone:
    """A zone by its name: facts go in with :meth:`publish`, and come out with :meth:`facts`.

    ``place`` is the folder in which the zone lives, the URL of its node (``https://…``, with
    ``cert``, ``key`` and ``ca``), or ``ZoneSettings``, or what gives them at the first use. A
    folder needs no node: the first process that asks serves the zone to all others of this machine.
    Nothing is opened before the first use. Any thread may use it.
    """

    def __init__(
        self,
        name: str,
        place: ZonePlace,
        *,
        timeout: float = TIMEOUT,
        **files: Unpack[client_options.TlsOptions],
    ) -> None:
        self.name = _checked_name(name)
        self._timeout = timeout
        self._place = place
        self._files = files
        self._opening = threading.RLock()
        self._settings: zone_settings.ZoneSettings | None = None
        self._transport: Transport | None = None
        self._producer: Producer | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._connectors: WeakSet[boundary_connector.BoundaryConnector] = WeakSet()
        if is_url(place):
            self._transport = self._addressed(str(place), files)
        elif files:
            raise ConfigurationError(
                f"{', '.join(sorted(files))} belong to the address of a node",
                remedy="give https://host:port, or ZoneSettings with the same names",
            )
        elif isinstance(place, str | os.PathLike):
            check_folder(place)
        renew_after_fork(self)

    def renew(self) -> None:
        """Make new locks in a forked process, because locks and threads are the parent's."""
        self._opening = threading.RLock()
        self._threads = None

    def __repr__(self) -> str:
        return f"<zone {self.name!r}>"

    # ---- publishing ----

    @shows('plant.publish("WO-1", "released", {"by": "ann"}, to="enterprise", id=("WO-1", 1))')
    def publish(
        self,
        subject: str,
        predicate: str,
        object: Any = None,
        *,
        to: str,
        id: FactId,
        files: Sequence[fact_files.Artifact | fact_files.FileContent] = (),
        **more: Unpack[FactOptions],
    ) -> fact_model.Receipt:
        """Publish one fact; when this returns, it is in the zone's log, on disk.

        ``id`` is made of what happened, never of chance or the time: publishing the same again
        answers the offset that it has, and other content under the same id is refused with
        ``ConflictingDuplicateError``. Files are stored before the fact that refers to them.
        """
        fact = {"subject": subject, "predicate": predicate, "object_json": object}
        return self._publishing().publish(fact, files, message_id=fact_id(id), to_zone=to, **more)

    async def apublish(
        self,
        subject: str,
        predicate: str,
        object: Any = None,
        *,
        to: str,
        id: FactId,
        files: Sequence[fact_files.Artifact | fact_files.FileContent] = (),
        **more: Unpack[FactOptions],
    ) -> fact_model.Receipt:
        """The async version of :meth:`publish`. Cancelled, it may publish all the same."""
        return await self._in_thread(
            lambda: self.publish(subject, predicate, object, to=to, id=id, files=files, **more)
        )

    @shows('plant.publish_many([{"subject": "WO-1", ...}, ...], to="enterprise")')
    def publish_many(
        self, facts: Iterable[FactItem], *, to: str | None = None
    ) -> list[fact_model.Receipt | BoundaryError]:
        """Publish facts in order, some hundreds to a commit; an answer for each, in order.

        A fact is a mapping with the names of :meth:`publish`; ``to`` is for those that have none.
        One that is refused holds up no other, also where a name in it is misspelt: its answer is
        the error. Raises when the zone cannot be reached: what was committed by then stays, and
        publishing all of it again is harmless.
        """
        if isinstance(facts, Mapping | str) or not isinstance(facts, Iterable):
            raise UsageError(
                f"Zone.publish_many: facts is of type {type(facts).__name__}, and no list of them",
                remedy="write a list, also for one fact: publish_many([fact])",
            )
        answers: list[fact_model.Receipt | BoundaryError | None] = []
        items = []
        for number, each in enumerate(facts):
            try:
                items.append(_item(each, self.name, to))
                answers.append(None)
            except FactInvalidError as error:
                answers.append(_numbered(error, number))
        published = iter(self._publishing().append_facts(items) if items else ())
        return [next(published) if each is None else each for each in answers]

    async def apublish_many(
        self, facts: Iterable[FactItem], *, to: str | None = None
    ) -> list[fact_model.Receipt | BoundaryError]:
        """The async version of :meth:`publish_many`."""
        return await self._in_thread(lambda: self.publish_many(facts, to=to))

    def find(self, id: FactId) -> fact_model.Receipt | None:
        """The place of a fact that this zone has published at any time. None if it never was."""
        return self._publishing().lookup_fact(self.name, fact_id(id))

    # ---- consuming ----

    @shows('@app.consumer(plant.facts("orders"))')
    def facts(
        self, consumer: str, *, from_zone: str | None = None, to: str | None = None, **options: Any
    ) -> boundary_connector.BoundaryConnector:
        """A connector that delivers facts under a durable name, for ``@app.consumer`` or a task.

        It delivers the facts that this zone has published, or with ``from_zone`` those that it has
        pulled from another; with ``to`` only those for one zone. Options are those of
        ``BoundaryConnector``.
        """
        from ergon_framework.connector.boundary.connector import BoundaryConnector

        log = log_of(self.name, from_zone)
        options.setdefault("name", consumer)
        made = BoundaryConnector(
            self._reached(), consumer=consumer, log=log, view=to, retry=RULE, **options
        )
        self._connectors.add(made)
        return made

    @shows('plant.consume("orders", handle)', '@app.consumer(plant.facts("orders"))')
    def consume(
        self,
        consumer: str,
        handler: Callable[[fact_model.Delivery], Any],
        *,
        from_zone: str | None = None,
        to: str | None = None,
        until_empty: bool = False,
        stop: fact_consumer.Stop | None = None,
        **options: Unpack[fact_consumer.FactConsumerOptions],
    ) -> fact_consumer.ConsumeReport:
        """Call a handler for each fact, in order, until ``stop`` is set or the log is read.

        When the handler returns, its fact is confirmed. When it raises, it is called again, and
        after ``max_attempts`` its fact is set aside.
        """
        from ergon_framework.boundary.client.consumer import Consumer

        given: fact_consumer.FactConsumerOptions = {
            "log": log_of(self.name, from_zone),
            "to_zone": to,
            "timeout": self._timeout,
            **options,
        }
        with Consumer(self._reached(), consumer, **given) as reader:
            return reader.run(handler, stop=stop, until_empty=until_empty)

    @shows('for fact in plant.read("orders"): ...')
    def read(
        self, consumer: str, *, from_zone: str | None = None, to: str | None = None
    ) -> Iterator[transaction_port.Transaction]:
        """The unconfirmed facts, one by one, as a connector delivers them.

        A fact is confirmed when the next one is asked for. Leaving the loop early, or with an
        exception, leaves the last fact for the next time.
        """
        source = self.facts(consumer, from_zone=from_zone, to=to)
        try:
            while page := source.fetch_transactions(100):
                yield from _confirmed(source, page)
        finally:
            source.close()

    # ---- serving ----

    def node(self) -> local_nodes.LocalNode | None:
        """The zone's node, to be served by this process with ``start()`` and ``stop()``.

        None when the zone is known by the address of its node, which another process serves.
        """
        from ergon_framework.boundary.node.local_node import LocalNode

        settings = self.settings
        return None if settings is None else LocalNode(self.name, settings)

    @property
    def settings(self) -> zone_settings.ZoneSettings | None:
        """The settings of the zone. None when only the address of its node is known."""
        with self._opening:
            if self._settings is None and not is_url(self._place):
                self._settings = settings_of(self._place)
            return self._settings

    # ---- the end ----

    def open_early(self) -> None:
        """Import and set up now what the first use would, before a job's time runs; nothing is
        called.

        The first use still reports what is wrong with the settings.
        """
        with suppress(Exception):
            self._publishing()

    def close(self) -> None:
        """Close the zone and the connectors to it. The next use opens it again. Closing twice is
        fine.
        """
        for connector in list(self._connectors):
            connector.close()  # It confirms what is done, which needs the transport.
        with self._opening:
            transport, self._transport, self._producer = self._transport, None, None
            threads, self._threads = self._threads, None
        if transport is not None:
            transport.close()
        if threads is not None:
            threads.shutdown(wait=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- inside ----

    def _addressed(self, url: str, files: client_options.TlsOptions) -> Transport:
        from ergon_framework.boundary.client.options import client_tls
        from ergon_framework.boundary.http.client import HttpTransport

        tls = client_tls(files)
        # Without certificates nothing proves that it is this zone, so the node is asked for its
        # name.
        expected, asked = (None, self.name) if tls is None else (self.name, None)
        return HttpTransport(
            url, tls=tls, expected_zone=expected, asked_zone=asked, timeout=self._timeout
        )

    def _reached(self) -> Transport:
        """The transport to the process that serves the zone; nothing is called yet."""
        from ergon_framework.boundary.node.local_node import LocalTransport

        with self._opening:
            if self._transport is None and is_url(self._place):
                self._transport = self._addressed(str(self._place), self._files)
            if self._transport is None:
                settings = self._settings = self._settings or settings_of(self._place)
                self._transport = LocalTransport(self.name, settings, timeout=self._timeout)
            return self._transport

    def _publishing(self) -> Producer:
        from ergon_framework.boundary.client.producer import Producer

        with self._opening:
            if self._producer is None:
                self._producer = Producer(
                    self._reached(), from_zone=self.name, retry=RULE, timeout=self._timeout
                )
            return self._producer

    async def _in_thread(self, work: Callable[[], T]) -> T:
        import asyncio

        if self._threads is None:
            self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="ergon-zone")
        context = copy_context()  # Within the trace that the fact belongs to.
        loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: context.run(work))


def is_url(place: object) -> bool:
    """Whether a zone is known by the URL of its node."""
    return isinstance(place, str) and place.lower().startswith(("http://", "https://"))


def check_folder(place: str | os.PathLike[str]) -> None:
    """Refuse what cannot be a folder, such as the URL of a store."""
    text = os.fspath(place)
    if not text or "://" in text:
        raise ConfigurationError(
            f"{text!r} is no place for a zone",
            remedy="give a folder, the URL of a node (https://host:port) or ZoneSettings, which has"
            " a store of its own",
        )


def settings_of(place: ZonePlace) -> zone_settings.ZoneSettings:
    """The settings of a zone, wherever they come from.

    A zone in a folder is served to this user, on any free port.
    """
    from ergon_framework.boundary.settings import ZoneSettings

    if isinstance(place, ZoneSettings):
        return place
    if isinstance(place, str | os.PathLike):
        folder = Path(place).absolute()
        return ZoneSettings(data=str(folder), listen="127.0.0.1:0", insecure=True)
    return place()


def log_of(zone: str, from_zone: str | None) -> str:
    """The log with the facts that a zone has published itself, or pulled from another zone."""
    # Imported here, because a script that declares a zone must start without the classes of its
    # store.
    from ergon_framework.ports.factstore import INBOUND, OUTBOUND

    return OUTBOUND if from_zone in (None, zone) else f"{INBOUND}{from_zone}"


def fact_id(given: FactId) -> str:
    """The message id that stands for these parts: ``released:WO-1:1``.

    A part is text or a whole number; a colon in one is escaped, so that no two lists of parts have
    the same id.
    """
    if isinstance(given, str):
        return given
    if not is_list(given):
        raise _no_id(
            f"is of type {type(given).__name__}",
            'give its parts in order, for example id=("released", "WO-1", 1), or a text',
        )
    found = ":".join(_part(each) for each in given)
    if not found or len(found) > MAX_ID:
        raise _no_id(f"has {len(found)} characters", f"give 1 to {MAX_ID} characters in all")
    return found


def _part(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise _no_id(
            f"has a part of type {type(value).__name__}",
            "give text or whole numbers from the record of the event; a time as the text in it",
        )
    if value == "":
        raise _no_id("has an empty part", "give what the record of the event says")
    return str(value).replace("%", "%25").replace(":", "%3A")


def _no_id(problem: str, remedy: str) -> FactInvalidError:
    return FactInvalidError(
        f"the id of a fact {problem}", reason="type", remedy=remedy, details={"field": "id"}
    )


_ENVELOPE = ("correlation_id", "causation_id", "labels")
_NAMES = frozenset(FactItem.__annotations__)


def _item(given: FactItem, zone: str, to: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The envelope and the fact of one item."""
    wrong = _wrong_names(given)
    if wrong:
        raise FactInvalidError(
            wrong,
            reason="type",
            remedy='give {"subject": …, "predicate": …, "object": …, "id": …}; a fact with files is'
            " published alone",
            details={"field": "fact"},
        )
    envelope = {
        "message_id": fact_id(given["id"]),
        "from_zone": zone,
        "to_zone": given.get("to", to),
        "produced_at_unix_ms": round(time.time() * 1000),
        **{name: given.get(name) for name in _ENVELOPE if given.get(name) is not None},
    }
    fact = {
        "subject": given["subject"],
        "predicate": given["predicate"],
        "object_json": given.get("object"),
    }
    return {name: value for name, value in envelope.items() if value is not None}, fact


def _numbered(error: FactInvalidError, number: int) -> FactInvalidError:
    """The error for one of many facts, with its number, counted from 0 like a list."""
    return FactInvalidError(
        f"fact {number} of publish_many is not published: {error.message}",
        reason=error.reason,
        remedy=error.remedy,
        details={**error.details, "index": number},
    )


_NEEDED = ("subject", "predicate", "id")


def _wrong_names(given: object) -> str:
    """What is wrong with the names of an item; empty if nothing."""
    if not isinstance(given, Mapping):
        return f"it is of type {type(given).__name__}"
    unknown = sorted(map(str, given.keys() - _NAMES))
    missing = [name for name in _NEEDED if name not in given]
    problems = [f"it has no {name}" for name in missing]
    problems += [f"publish_many knows no {name!r}" for name in unknown]
    return " and ".join(problems)


def _confirmed(
    source: boundary_connector.BoundaryConnector, page: Sequence[transaction_port.Transaction]
) -> Iterator[transaction_port.Transaction]:
    """The facts of a page. Each is confirmed when the next one is asked for; the rest are given
    back.
    """
    left = list(page)
    try:
        while left:
            yield left[0]
            source.ack(left.pop(0))
    finally:
        for each in left:
            source.release(each)
