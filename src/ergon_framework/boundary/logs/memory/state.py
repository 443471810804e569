"""Everything a memory store holds, and the lock it is held under."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from ergon_framework.boundary.logs.memory.shelf import Shelf
from ergon_framework.boundary.logs.refusing import unknown
from ergon_framework.boundary.logs.settling import OPEN
from ergon_framework.errors import StoreUnavailableError
from ergon_framework.ports.factstore import (
    OUTBOUND,
    ConsumerInfo,
    Link,
    Quarantined,
    StoredObject,
    StoreInfo,
)


@dataclass(slots=True)
class State:
    """The books of one zone."""

    info: StoreInfo
    logs: dict[str, Shelf] = field(default_factory=dict)
    ledger: dict[bytes, tuple[int, bytes]] = field(default_factory=dict)
    """Of all logs: an id's key stands for its log as well."""
    consumers: dict[str, ConsumerInfo] = field(default_factory=dict)
    """Without ``lag`` and ``waiting_since``, which are worked out when somebody asks."""
    items: dict[int, Quarantined] = field(default_factory=dict)
    items_made: int = 0
    served: set[int] = field(default_factory=set)
    """Released items that went out since."""
    objects: dict[tuple[str, str], StoredObject] = field(default_factory=dict)
    """Without ``is_referenced``: a fact may be here before its object."""
    referenced: set[tuple[str, str]] = field(default_factory=set)
    links: dict[str, Link] = field(default_factory=dict)
    journal: list[tuple[float, str, str]] = field(default_factory=list)
    attributes: dict[str, str] = field(default_factory=dict)
    """Texts about this very store."""
    is_longer: bool = False
    """Whether this step added facts."""

    def __post_init__(self) -> None:
        """There is always a log of facts that go out."""
        self.shelf(OUTBOUND)

    def shelf(self, log: str) -> Shelf:
        """A log, which comes into being when it is not there."""
        if log not in self.logs:
            number = max((shelf.number for shelf in self.logs.values()), default=0) + 1
            self.logs[log] = Shelf(log, number, ledger=self.ledger)
        return self.logs[log]

    def consumer(self, name: str) -> ConsumerInfo:
        """A consumer that must be there."""
        found = self.consumers.get(name)
        if found is None:
            raise unknown(name)
        return found

    def set_aside(self, item: Quarantined) -> Quarantined:
        """Keep an item; when its fact lies in quarantine already, it is the same item."""
        for known in self.open_items(item.consumer):
            if (known.log, known.offset) == (item.log, item.offset):
                self.served.discard(known.id)
                self.items[known.id] = replace(item, id=known.id, at=known.at)
                return self.items[known.id]
        return self._keep(item)

    def set_aside_whole(self, item: Quarantined) -> None:
        """Keep an item with its payload, unless it is there, whatever became of it."""
        whole = (item.consumer, item.log, item.offset, item.envelope, item.fact)
        for known in self.items.values():
            if (known.consumer, known.log, known.offset, known.envelope, known.fact) == whole:
                return
        self._keep(item)

    def _keep(self, item: Quarantined) -> Quarantined:
        self.items_made += 1
        self.items[self.items_made] = replace(item, id=self.items_made)
        return self.items[self.items_made]

    def open_items(self, consumer: str) -> list[Quarantined]:
        """What was set aside for a consumer and not dealt with."""
        mine = (item for item in self.items.values() if item.consumer == consumer)
        return [item for item in mine if item.state in OPEN]

    def released_to(self, consumer: str) -> list[Quarantined]:
        """What is to be delivered to a consumer again."""
        return [item for item in self.open_items(consumer) if item.state == "released"]


class Steps:
    """A state that one caller at a time sees and changes."""

    def __init__(self, zone: str, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._state = State(StoreInfo(zone, secrets.token_hex(8), clock()))
        self._is_closed = False
        self._wakes: list[Callable[[], None]] = []

    @contextmanager
    def _step(self) -> Iterator[State]:
        """The state for one step of one caller; who waits for facts is woken afterwards."""
        with self._lock:
            if self._is_closed:
                raise StoreUnavailableError(
                    "the memory store is closed", remedy="open a new one; what it held is gone"
                )
            state = self._state
            state.is_longer = False
            yield state
            wakes = tuple(self._wakes) if state.is_longer else ()
        for wake in wakes:
            wake()
