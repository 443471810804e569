"""The checks of the connector's arguments, and the parts that are made of them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from ergon_framework.boundary.client.consumer import ConsumerOptions, Reading, warn_of_gap
from ergon_framework.boundary.client.options import ProducerOptions, Telling
from ergon_framework.boundary.facts.schema import ZONE
from ergon_framework.connector.boundary.consuming import Driver
from ergon_framework.connector.boundary.line import Line, Node
from ergon_framework.connector.boundary.reading import Reader
from ergon_framework.connector.boundary.writing import Writer
from ergon_framework.core.retry import RetryRule
from ergon_framework.errors import ConfigurationError

MOST_IN_WINDOW = 1000
"""Facts between the cursor and the last one read: what a node gives in one page."""

_MAY_BE_NONE = ("wait", "drain", "seconds")

Zones = tuple[str | None, str | None]


class Shared(TypedDict):
    """What counts for both directions."""

    retry: RetryRule
    timeout: float
    expected_zone: str | None


class Parts(NamedTuple):
    """What the connector is made of."""

    line: Line
    driver: Driver | None
    writer: Writer


def parts_of(
    node: Node,
    consumer: str | None,
    zones: Zones,
    reading: ConsumerOptions,
    writing: ProducerOptions,
    shared: Shared,
    wait: float,
    outbox: str | PathLike[str] | None,
    drain: float,
) -> Parts:
    """Check everything, then make the parts. Nothing is sent."""
    _check_names(consumer, reading.get("log"), zones)
    check_seconds(lease=reading["lease"], timeout=shared["timeout"], wait=wait, drain=drain)
    check_counts(limit=reading["limit"], max_deliveries=reading["max_attempts"])
    reader = None if consumer is None else _reader(consumer, reading, shared)
    writing["retry"] = shared["retry"]
    line = Line(
        node, writing, {"timeout": shared["timeout"], "expected_zone": shared["expected_zone"]}
    )
    if outbox is not None and line.tasks is not None:
        raise ConfigurationError(
            "an outbox needs a node that threads can reach", remedy="give the node's URL"
        )
    path = None if outbox is None else _path(outbox)
    writer = Writer(line, Telling(writing), zones, path, drain)
    return Parts(line, None if reader is None else Driver(line, reader), writer)


def _reader(consumer: str, options: ConsumerOptions, shared: Shared) -> Reader:
    options["retry"], options["timeout"] = shared["retry"], shared["timeout"]
    reading = Reading(consumer, options)
    on_gap = options.get("on_gap") or warn_of_gap
    return Reader(reading.desk, reading.limit, reading.max_attempts, on_gap)


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


def check_seconds(**given: Any) -> None:
    """Refuse what is no number of seconds."""
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigurationError(f"{name} is {value!r}", remedy="give seconds")
        is_finite = 0 <= value <= sys.float_info.max
        if not is_finite or (value == 0 and name not in _MAY_BE_NONE):
            raise ConfigurationError(f"{name} is {value!r}", remedy="give a positive number")


def check_counts(**given: Any) -> None:
    """Refuse what is no number of things."""
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigurationError(f"{name} is {value!r}", remedy="give a whole number above 0")


def refuse_extra(extra: Mapping[str, Any]) -> None:
    """Refuse a setting of one call that nobody knows."""
    if extra:
        raise ConfigurationError(
            f"BoundaryConnector does not know the setting {min(extra)!r}",
            remedy="a fetch takes wait, and a dispatch takes none",
        )
