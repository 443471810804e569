"""Names of OpenTelemetry's semantic conventions, version 1.44.0, and the instruments they ask for.

Consumers, producers and jobs follow those for messaging, provider calls those for remote procedure
calls: a provider is any service, and what is known of a call is who was asked for what, not an
HTTP method. Both are conventions in development. The names that Ergon had before them stay beside.

``messaging.system`` is ``ergon`` whatever broker a connector uses: what is measured is Ergon's own
processing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Meter, Observation

from ergon_framework.ports.context import Call
from ergon_framework.telemetry.tracing import SCOPE, is_real

SYSTEM = "ergon"
MESSAGING = {"messaging.system": SYSTEM}
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""The buckets that the conventions advise for durations."""

MAX_NAMES = 1000
"""Distinct destinations and methods that one process records: users may choose any number of
names.
"""
OTHERS = "(others)"
"""What all further ones are measured under."""

_TYPES = {"consumer": "process", "producer": "send"}
Labels = tuple[tuple[str, str], ...]
Place = tuple[str, str]
"""The attribute that names a place, and its name."""


def queue_place(queue: str) -> Place:
    """A queue of jobs."""
    return ("messaging.destination.name", queue)


def task_place(task: str, role: str) -> Place:
    """A task. Its source is the connector's own matter, and may have names without number."""
    return ("messaging.consumer.group.name" if role == "consumer" else "ergon.task", task)


def messaging_attributes(
    operation: str, kind: str, destination: str | None = None, message_id: str | None = None
) -> dict[str, Any]:
    """Attributes of a span that is about messages; ``kind`` is send, receive, process or settle."""
    attributes = {
        **MESSAGING,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
    }
    if destination is not None:
        attributes["messaging.destination.name"] = destination
    if message_id is not None:
        attributes["messaging.message.id"] = message_id
    return attributes


def lifecycle_attributes(call: Call) -> dict[str, Any]:
    """Attributes of all lifecycles of a call: made once per call."""
    is_consumer = call.role == "consumer"
    place, name = task_place(call.task, call.role)
    attributes = messaging_attributes("process" if is_consumer else "produce", _TYPES[call.role])
    return {**attributes, place: name}


def call_attributes(provider: str, capability: str, operation: str) -> dict[str, Any]:
    """Attributes of the span of a provider call, and of what is measured of it."""
    return {"rpc.system.name": SYSTEM, "rpc.method": f"{provider}/{capability}/{operation}"}


class BoundedNames:
    """Bounds the distinct names in metrics. A series per name lives as long as the process does."""

    def __init__(self, most: int = MAX_NAMES) -> None:
        self._most = most
        self._known: set[str] = set()

    def bounded(self, name: str) -> str:
        """The name, or the one for all others."""
        if name in self._known:
            return name
        if len(self._known) >= self._most:
            return OTHERS
        self._known.add(name)
        return name


class MessageSums:
    """One sum per combination of labels, which an observable counter reads when it is collected."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._sums: dict[Labels, int] = {}

    def add(self, labels: Labels, number: int) -> None:
        """Count some more."""
        with self._lock:
            self._sums[labels] = self._sums.get(labels, 0) + number

    def observe(self, _: CallbackOptions) -> Iterable[Observation]:
        """All sums as they are now."""
        with self._lock:
            sums = list(self._sums.items())
        for labels, number in sums:
            yield Observation(number, {**MESSAGING, **dict(labels)})


class MessagingInstruments:
    """What the conventions for messaging measure, by where messages come from or go to."""

    def __init__(self, meter: Meter) -> None:
        self._places = BoundedNames()
        self._sent, self._consumed = MessageSums(), MessageSums()
        for name, sums, text in (
            ("messaging.client.sent.messages", self._sent, "Messages that were to be sent."),
            ("messaging.client.consumed.messages", self._consumed, "Messages that were delivered."),
        ):
            meter.create_observable_counter(name, [sums.observe], "{message}", text)
        self._operation = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Receiving, sending or settling messages.",
            explicit_bucket_boundaries_advisory=SECONDS,
        ).record
        self._process = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Processing one message, once.",
            explicit_bucket_boundaries_advisory=SECONDS,
        ).record

    def sent(self, operation: str, place: Place, number: int = 1, error: str = "") -> None:
        """Count messages sent to a place."""
        failed = (("error.type", error),) if error else ()
        where = self._bounded(place)
        self._sent.add((("messaging.operation.name", operation), where, *failed), number)

    def consumed(self, operation: str, place: Place, number: int = 1) -> None:
        """Count messages delivered from a place."""
        where = self._bounded(place)
        self._consumed.add((("messaging.operation.name", operation), where), number)

    def operated(
        self, operation: str, kind: str, place: Place, seconds: float, error: str | None
    ) -> None:
        """An operation of a client took so long."""
        where, name = self._bounded(place)
        labels = {**messaging_attributes(operation, kind), where: name}
        self._operation(max(0.0, seconds), _with_error(labels, error))

    def processed(self, place: Place, seconds: float, error: str | None) -> None:
        """An attempt was made to process a message."""
        where, name = self._bounded(place)
        labels = {**messaging_attributes("process", "process"), where: name}
        self._process(max(0.0, seconds), _with_error(labels, error))

    def _bounded(self, place: Place) -> Place:
        return place[0], self._places.bounded(place[1])


class CallInstruments:
    """What the conventions for remote procedure calls measure."""

    def __init__(self, meter: Meter) -> None:
        self._methods = BoundedNames()
        self._duration = meter.create_histogram(
            "rpc.client.call.duration",
            "s",
            "One attempt of a provider call.",
            explicit_bucket_boundaries_advisory=SECONDS,
        ).record

    def called(
        self, attributes: Mapping[str, Any], seconds: float, error: str | None, status: int | None
    ) -> None:
        """An attempt has ended."""
        labels = _with_error(dict(attributes), error)
        labels["rpc.method"] = self._methods.bounded(labels["rpc.method"])
        if status is not None:
            labels["http.response.status_code"] = status
        self._duration(max(0.0, seconds), labels)


def _with_error(labels: dict[str, Any], error: str | None) -> dict[str, Any]:
    if error:
        labels["error.type"] = error
    return labels


_IS_NAMED = "OTEL_PYTHON_METER_PROVIDER" in os.environ
_of_the_api = metrics.get_meter_provider
_made: WeakKeyDictionary[Any, tuple[MessagingInstruments, CallInstruments]] = WeakKeyDictionary()
_lock = Lock()


def messaging_instruments(
    provider: metrics.MeterProvider | None = None,
) -> MessagingInstruments | None:
    """The instruments for messages of the meter provider that is set up; None without one."""
    if provider is None and not may_have_meters():
        return None
    found = _instruments(provider)
    return None if found is None else found[0]


def call_instruments() -> CallInstruments | None:
    """The instruments of provider calls; None if metrics are off."""
    if not may_have_meters():
        return None
    found = _instruments(None)
    return None if found is None else found[1]


def _instruments(
    provider: metrics.MeterProvider | None,
) -> tuple[MessagingInstruments, CallInstruments] | None:
    chosen = metrics.get_meter_provider() if provider is None else provider
    if not is_real(chosen):
        return None
    with _lock:
        if chosen not in _made:
            meter = chosen.get_meter(SCOPE)
            _made[chosen] = MessagingInstruments(meter), CallInstruments(meter)
        return _made[chosen]


def may_have_meters() -> bool:
    """Whether a meter provider may have been set up; the API itself takes longer to say no.

    Every enqueue asks, and the API reads a variable of the environment each time.
    """
    if metrics.get_meter_provider is not _of_the_api:
        return True  # user code has replaced it, and must be asked
    try:
        return metrics._internal._METER_PROVIDER is not None or _IS_NAMED  # noqa: SLF001
    except AttributeError:  # an API that keeps its provider elsewhere
        return True
