"""A disk that gives back other bytes than were written to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from ergon_framework.boundary.factstore.nats import NatsFactStore
from ergon_framework.boundary.factstore.nats.pages import entry_at
from ergon_framework.ports.factstore import FactStore
from ergon_framework.storage.nats import Stored, stream
from ergon_framework.storage.nats.client import NatsReply


def seq_of(store: FactStore, log: str, offset: int) -> int:
    """Where in the stream a fact lies."""
    assert isinstance(store, NatsFactStore)

    def work(transaction: Any) -> int:
        entry = entry_at(transaction, transaction.log_state(log), offset)
        assert entry is not None
        return entry.seq

    return store.database.read(work)


def lose(store: FactStore, log: str, offset: int) -> None:
    """Let the server lose a fact."""
    assert isinstance(store, NatsFactStore)
    store.database.stream.delete(seq_of(store, log, offset))


class Disk:
    """Damages what the server reads of its files, as far as the store can see."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._damaged: set[tuple[str, int]] = set()
        self._read = stream.stored_of
        monkeypatch.setattr(stream, "stored_of", self._stored)

    def damage(self, store: FactStore, log: str, offset: int) -> None:
        """From now on a fact is another one."""
        assert isinstance(store, NatsFactStore)
        self._damaged.add((store.database.stream.name, seq_of(store, log, offset)))

    def _stored(self, reply: NatsReply) -> Stored:
        found = self._read(reply)
        name: Mapping[str, str] = reply.headers
        if (name["Nats-Stream"], found.seq) in self._damaged:
            return replace(found, data=found.data + b"x")
        return found
