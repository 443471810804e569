"""The connector suite against a real server, in both colours, with its faults."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Literal

import pytest

from ergon_framework.connector.broker.message import reason_of
from ergon_framework.connector.redis_streams import RedisStreamsConnector
from ergon_framework.testing.suites import ConnectorFaults, exercise_connector
from tests.boundary.node.cables import Cable
from tests.connectors.recorded_results import check_recorded
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.slow
NUMBERS = itertools.count()


class Wired(RedisStreamsConnector):
    """One whose connection can be cut; it knows its server and its stream."""

    server: RedisServer
    cable: Cable
    stream: str


@contextmanager
def unclosed(server: RedisServer) -> Iterator[Wired]:
    """A fresh stream, read through a cable of its own."""
    stream = f"suite-{os.getpid()}-{next(NUMBERS)}"
    with Cable(server.port) as cable:
        url = f"redis://127.0.0.1:{cable.port}/0"
        connector = Wired(url, stream=stream, claim_idle=5.0, wait=0)
        connector.server, connector.cable, connector.stream = server, cable, stream
        yield connector


@contextmanager
def for_threads(server: RedisServer) -> Iterator[Wired]:
    """One that is closed as a program with threads does."""
    with unclosed(server) as connector, connector:
        yield connector


@asynccontextmanager
async def for_asyncio(server: RedisServer) -> AsyncIterator[Wired]:
    """One that is closed as a program with an event loop does."""
    with unclosed(server) as connector:
        try:
            yield connector
        finally:
            await connector.aclose()


def headers_of(fields: Mapping[str, str]) -> dict[str, str]:
    """What is not the body."""
    return {name: value for name, value in fields.items() if name != "body"}


def dead_letters(connector: Wired) -> list[tuple[str, str]]:
    """What is in the stream of dead letters, as ids and reasons."""
    with connector.server.connect() as client:
        entries = client.xrange(connector.dead_letter_file)
    return [(fields["ergon-transaction-id"], reason_of(fields)) for _, fields in entries]


def crash(connector: Wired) -> RedisStreamsConnector:
    """Its process is gone: nothing of it reaches the server any more."""
    connector.cable.cut()
    url, stream = connector.server.url, connector.stream
    return RedisStreamsConnector(url, stream=stream, claim_idle=0.3, wait=0)


def cut(connector: Wired) -> None:
    """Break every connection it has."""
    connector.cable.cut()
    connector.cable.heal()


def put(connector: Wired, fields: Mapping[str, Any]) -> None:
    """Add an entry as any program does."""
    with connector.server.connect() as client:
        client.xadd(connector.stream, dict(fields))


def read(connector: Wired) -> list[tuple[bytes, dict[str, str]]]:
    """What any program reads."""
    with connector.server.connect() as client:
        entries = client.xrange(connector.stream)
    return [(fields["body"].encode(), headers_of(fields)) for _, fields in entries]


FAULTS = ConnectorFaults(
    crash=crash,
    cut=cut,
    put_malformed=lambda connector: put(connector, {"body": "{"}),
    put_foreign=lambda connector, body, headers: put(connector, {"body": body, **headers}),
    read_foreign=read,
)


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_the_suite_passes(redis_server: RedisServer, colour: Literal["sync", "async"]) -> None:
    """Every promise of a connector to a broker, none left out."""
    report = exercise_connector(
        lambda: (for_threads if colour == "sync" else for_asyncio)(redis_server),
        colour=colour,
        order="strict",
        dead_letters=dead_letters,
        faults=FAULTS,
        skip=["parked_outlives_its_consumer"],  # for longer than claim_idle, the consumer keeps it
        patience=20.0,
    )
    report.raise_for_failures(recommended=True)
    assert report.skipped == ("parked_outlives_its_consumer",)
    check_recorded("redis-streams", report)
