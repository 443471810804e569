"""Sending to Kafka: an idempotent producer whose delivery reports are waited for.

The producer of the client library reports deliveries where somebody polls it. A thread does, so
that threads and event loops alike only wait for a future.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ergon_framework.connector.broker.connection import BrokerUnavailableError, closed
from ergon_framework.connector.broker.refusals import Refusals
from ergon_framework.connector.kafka.client import leave_to_parent
from ergon_framework.connector.kafka.errors import is_of_ended, refusal_of, told_by
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.errors import ConnectorError

POLL = 0.2
"""Seconds of one poll for delivery reports. Closing waits that long at most for the thread."""
ASK_AGAIN = 1.0
"""Seconds after which a topic is looked at again that was refused."""
ASK_TIMEOUT = 2.0
SLICE = 1000
"""Records that are given to the client library before their reports are waited for."""


@dataclass(frozen=True, slots=True)
class Record:
    """One message to send, in the form of the client library."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes]] = field(default_factory=tuple)

    @property
    def size(self) -> int:
        """Its size in bytes, about as the broker counts it."""
        headers = sum(len(name) + len(value) for name, value in self.headers)
        return len(self.value or b"") + len(self.key or b"") + headers


class _Reports:
    """The delivery reports of one batch: how many are missing, and the first error."""

    def __init__(
        self, name: str, count: int, refusals: Refusals, ended_by: Callable[[], Any]
    ) -> None:
        self._name = name
        self._ended_by = ended_by
        self.done: Future[None] = Future()
        self._lock = threading.Lock()  # closing looks for reports in a thread of its own
        self._left = count
        self._failure: ConnectorError | None = None
        self._refusals = refusals
        if not count:
            self.done.set_result(None)

    def report(self, error: Any, message: Any) -> None:
        """One record was delivered, or will not be."""
        with self._lock:
            if error is not None:
                self._note(error, message.topic())
            elif self._refusals:
                self._refusals.taken(message.topic())
            self._left -= 1
            if self._left:
                return
        if self._failure is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(self._failure)

    def fail(self, error: Exception, topic: str, count: int) -> None:
        """So many records were not taken by the client library."""
        with self._lock:
            self._note(error.args[0] if error.args else error, topic)
            self._left -= count
            if self._left:
                return
        self.done.set_exception(self._failure)

    def _note(self, error: Any, topic: str) -> None:
        if is_of_ended(error):
            error = self._ended_by() or error
        found: ConnectorError | None = refusal_of(self._name, topic, error)
        if found is not None:
            self._refusals.note(topic, found)
        if self._failure is None:
            self._failure = found or BrokerUnavailableError(
                f"{self._name}: not all messages were delivered: {told_by(error)}",
                remedy="dispatch again: messages that did arrive will be there twice",
            )


class Sender:
    """One producer, made at its first use and polled by a thread of its own."""

    def __init__(self, name: str, make_producer: Callable[[], Any], timeout: float) -> None:
        self._name = name
        self._make_producer = make_producer
        self._timeout = timeout
        self.refusals = Refusals(name)
        self._producer: Any = None
        self._ended_by: Any = None
        """The error that has ended a producer; the next use makes another one."""
        self._is_closed = False
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget the producer in a forked child, because it and its threads are the parent's."""
        self._lock = threading.Lock()
        if self._producer is not None:
            leave_to_parent(self._producer)
        self._producer = None
        self._thread: threading.Thread | None = None

    def send(self, records: Sequence[Record]) -> None:
        """Send all records. Returns when each is on the broker."""
        for start in range(0, len(records), SLICE):
            self.begin(records[start : start + SLICE]).result()

    def begin(self, records: Sequence[Record]) -> Future[None]:
        """Hand at most ``SLICE`` records to the client library; the caller cuts them.

        The future ends with their reports.
        It always ends: the client library gives up on a record after ``timeout`` seconds.
        """
        producer = self._opened()
        reports = _Reports(self._name, len(records), self.refusals, lambda: self._ended_by)
        for count, record in enumerate(records):
            try:
                producer.produce(
                    record.topic,
                    record.value,
                    record.key,
                    headers=list(record.headers),
                    on_delivery=reports.report,
                )
            except Exception as error:
                reports.fail(error, record.topic, len(records) - count)
                break
        return reports.done

    def metadata(self, topic: str | None, timeout: float) -> Any:
        """What the brokers say of themselves and of a topic."""
        arguments: Mapping[str, Any] = {} if topic is None else {"topic": topic}
        return self._opened().list_topics(timeout=timeout, **arguments)

    def close(self) -> None:
        """Wait for records under way, for as long as they may take, and close."""
        with self._lock:
            self._is_closed, thread = True, self._thread
        if thread is None:
            return
        with suppress(Exception):  # also where there is none, because it has ended
            self._producer.flush(self._timeout)
        thread.join(self._timeout)
        self._producer = None  # with it go its connections

    def _opened(self) -> Any:
        with self._lock:
            if self._is_closed:
                raise closed(self._name)
            if self._producer is None:
                producer = self._producer = self._make_producer()
                self._thread = SYSTEM_CLOCK.spawn(
                    "ergon-kafka-reports", partial(self._poll, producer)
                )
            return self._producer

    def _poll(self, producer: Any) -> None:
        asked_at = 0.0
        while not self._is_closed:
            try:
                producer.poll(POLL)
            except Exception as error:  # the library takes nothing any more from this producer
                self._end(producer, error)
                return
            if self.refusals and SYSTEM_CLOCK.now() >= asked_at:
                self._ask_again(producer)
                asked_at = SYSTEM_CLOCK.now() + ASK_AGAIN

    def _end(self, producer: Any, error: Exception) -> None:
        with self._lock:
            self._ended_by = error.args[0] if error.args else error
            if self._producer is producer:
                self._producer = None
        with suppress(Exception):
            producer.flush(self._timeout)  # what it had is reported as purged

    def _ask_again(self, producer: Any) -> None:
        """Ask for the topics that were refused: by itself the library does so after minutes."""
        for topic in self.refusals.names():
            with suppress(Exception):
                producer.list_topics(topic, timeout=ASK_TIMEOUT)
