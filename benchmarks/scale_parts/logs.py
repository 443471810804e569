"""Durable logs on each engine: a zone of ours, and the bare thing below it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from boundary_parts import clients
from boundary_parts.group_commit import GroupCommit
from boundary_parts.messages import FROM, Message
from boundary_parts.producers import append_to, run_producers
from boundary_parts.servers import NatsServer
from boundary_parts.wire_protocols import SUBJECT
from comparison import ContestantError, Turn

from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.errors import ErgonError

Parts = Sequence[Sequence[Message]]


class Log(Protocol):
    """Where facts go."""

    def append_each(self, parts: Parts) -> Turn:
        """Each producer appends its part one by one."""

    def append_all(self, batch: Sequence[Message]) -> None:
        """One commit."""

    def head(self) -> int:
        """How many facts there are."""

    def close(self) -> None:
        """Let go of it."""


class ZoneLog:
    """The whole way: checks, canonical form, ledger, hash chain, record, commit."""

    def __init__(self, folder: Path, store: str | None) -> None:
        more = {} if store is None else {"store": store}
        try:
            self._zone = LocalZone.open(FROM, ZoneSettings(data=str(folder), **more))
        except (ErgonError, ImportError, ValueError) as error:
            raise ContestantError(f"{type(error).__name__}: {error}") from error

    def append_each(self, parts: Parts) -> Turn:
        """Threads, which share commits."""
        return run_producers(append_to(self._zone), parts)

    def append_all(self, batch: Sequence[Message]) -> None:
        """As a producer does that has many at once."""
        zone = self._zone
        zone.append_all([zone.validate(each.envelope, each.fact) for each in batch])

    def head(self) -> int:
        """The last offset."""
        return sum(log.head for log in self._zone.store.logs())

    def close(self) -> None:
        """Let go of the folder and the store."""
        self._zone.close()


class GroupLog:
    """Rows with no key but their number, through a queue to one writer."""

    def __init__(self, log: GroupCommit) -> None:
        self._log, self._head = log, 0

    def append_each(self, parts: Parts) -> Turn:
        """Threads, which share commits."""
        turn = run_producers(lambda message: self._log.append(message.body), parts)
        self._head += turn.count
        return turn

    def append_all(self, batch: Sequence[Message]) -> None:
        """Past the queue."""
        self._log.append_all([message.body for message in batch])
        self._head += len(batch)

    def head(self) -> int:
        """What was acknowledged."""
        return self._head

    def close(self) -> None:
        """End the writer."""
        self._log.close()


class NatsLog:
    """Messages published to one subject, each acknowledged."""

    def __init__(self, server: NatsServer) -> None:
        self._server = server

    def append_each(self, parts: Parts) -> Turn:
        """A connection for each producer, all of them in one event loop."""
        return clients.run(self._server.port, clients.nats, parts)

    def append_all(self, batch: Sequence[Message]) -> None:
        """All of them before the first acknowledgement is waited for."""
        asyncio.run(self._publish(batch))

    async def _publish(self, batch: Sequence[Message]) -> None:
        from nats import connect

        connection = await connect(f"nats://127.0.0.1:{self._server.port}")
        try:
            stream = connection.jetstream()
            asked = [await stream.publish_async(SUBJECT, each.body) for each in batch]
            await asyncio.gather(*asked)
        finally:
            await connection.close()

    def head(self) -> int:
        """What the stream says."""
        return self._server.head()

    def close(self) -> None:
        """The server goes with the run."""


def new_database(url: str, name: str) -> str:
    """An empty database beside the one that the URL names."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)".encode())
        connection.execute(f"CREATE DATABASE {name}".encode())
    return f"{url.rpartition('/')[0]}/{name}"
