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
from typing import Any

from ergon_framework.connector.broker.connection import BrokerUnavailableError, closed
from ergon_framework.connector.kafka.client import leave_to_parent
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.engine.clocks import SYSTEM_CLOCK

POLL = 0.2
"""Seconds of one look for delivery reports; closing waits that long at most for the thread."""
SLICE = 1000
"""Records that are given to the client library before their reports are waited for."""


@dataclass(frozen=True, slots=True)
class Record:
    """What is sent: the client library's words for one message."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes]] = field(default_factory=tuple)

    @property
    def size(self) -> int:
        """Bytes of it, about as the broker counts them."""
        headers = sum(len(name) + len(value) for name, value in self.headers)
        return len(self.value or b"") + len(self.key or b"") + headers


class _Reports:
    """The reports that are missing of one batch, and what they said."""

    def __init__(self, name: str, count: int) -> None:
        self._name = name
        self.done: Future[None] = Future()
        self._lock = threading.Lock()  # closing looks for reports in a thread of its own
        self._left = count
        self._failure: str | None = None
        if not count:
            self.done.set_result(None)

    def report(self, error: Any, _message: object) -> None:
        """One record was delivered, or will not be."""
        with self._lock:
            if error is not None and self._failure is None:
                self._failure = error.str()
            self._left -= 1
            if self._left:
                return
        if self._failure is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(
                BrokerUnavailableError(
                    f"{self._name}: not all messages were delivered: {self._failure}",
                    remedy="dispatch again: messages that did arrive will be there twice",
                )
            )


class Sender:
    """One producer, made at its first use and polled by a thread of its own."""

    def __init__(self, name: str, make_producer: Callable[[], Any], timeout: float) -> None:
        self._name = name
        self._make_producer = make_producer
        self._timeout = timeout
        self._producer: Any = None
        self._is_closed = False
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Also in a forked child: the producer and its threads are the parent's."""
        self._lock = threading.Lock()
        if self._producer is not None:
            leave_to_parent(self._producer)
        self._producer = None
        self._thread: threading.Thread | None = None

    def send(self, records: Sequence[Record]) -> None:
        """Send them all; returns when each is on the broker."""
        for start in range(0, len(records), SLICE):
            self.begin(records[start : start + SLICE]).result()

    def begin(self, records: Sequence[Record]) -> Future[None]:
        """Give up to ``SLICE`` records to the client library; the future ends with their reports.

        It always ends: the client library gives up on a record after ``timeout`` seconds.
        """
        producer = self._opened()
        reports = _Reports(self._name, len(records))
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
                for _ in range(count, len(records)):
                    reports.report(_Refused(error), None)
                break
        return reports.done

    def metadata(self, topic: str | None, timeout: float) -> Any:
        """What the brokers say of themselves and of a topic."""
        arguments: Mapping[str, Any] = {} if topic is None else {"topic": topic}
        return self._opened().list_topics(timeout=timeout, **arguments)

    def close(self) -> None:
        """Wait for what is under way, so long as it may take, and let go."""
        with self._lock:
            self._is_closed, thread = True, self._thread
        if thread is None:
            return
        with suppress(Exception):
            self._producer.flush(self._timeout)
        thread.join(self._timeout)
        self._producer = None  # with it go its connections

    def _opened(self) -> Any:
        with self._lock:
            if self._is_closed:
                raise closed(self._name)
            if self._producer is None:
                self._producer = self._make_producer()
                self._thread = SYSTEM_CLOCK.spawn("ergon-kafka-reports", self._poll)
            return self._producer

    def _poll(self) -> None:
        producer = self._producer
        while not self._is_closed:
            producer.poll(POLL)


class _Refused:
    """What the client library raised instead of a report."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def str(self) -> str:
        """In words, as reports have them."""
        return f"{self._error}"
