"""Facts that are checked while the store is at work on those before them."""

from __future__ import annotations

import threading
from collections import UserDict
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ergon_framework.boundary.facts.validation import ValidatedFact
from ergon_framework.boundary.factstore.memory import MemoryFactStore
from ergon_framework.boundary.model import Receipt
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.errors import (
    ArtifactError,
    BoundaryError,
    FactInvalidError,
    NodeUnavailableError,
    StoreUnavailableError,
)
from ergon_framework.ports.factstore import AppendOutcome, BeforeWait, NewFact
from ergon_framework.storage.objectstore.memory import MemoryObjectStore
from tests.boundary.test_zone_concurrent_producers import WAIT, message

pytestmark = pytest.mark.req("P1", "P7", "BOUNDARY:store")


class Producer(threading.Thread):
    """Appends one fact."""

    def __init__(self, zone: LocalZone, envelope: Any, fact: Any) -> None:
        super().__init__()
        self._zone, self._envelope, self._fact = zone, envelope, fact
        self.told: Receipt | BoundaryError | None = None
        self.start()

    def run(self) -> None:
        """Append."""
        try:
            self.told = self._zone.append(self._envelope, self._fact)
        except BoundaryError as error:
            self.told = error


class Slow(MemoryFactStore):
    """A store that waits for something after each append, as the test says."""

    def __init__(self) -> None:
        super().__init__("plant-a")
        self.acts: list[Callable[[], None]] = []
        self.sizes: list[int] = []

    def watch_waits(self, seen: BeforeWait) -> None:
        """Remember whom to tell."""
        self.seen = seen

    def append(
        self, log: str, facts: Sequence[NewFact], *, capacity: int | None = None
    ) -> list[AppendOutcome]:
        """Append, and wait."""
        self.sizes.append(len(facts))
        outcomes = super().append(log, facts, capacity=capacity)
        if self.acts:
            self.acts.pop(0)()
        return outcomes


class WatchedZone(LocalZone):
    """A zone that notes which facts are checked while its store waits."""

    is_waiting = False

    def __init__(self, store: Slow) -> None:
        super().__init__("plant-a", store, MemoryObjectStore())
        self.checked: list[bool] = []
        """Of each fact that was checked during the wait, whether it was found to be good."""

    def validate(self, envelope: Any, fact: Any) -> ValidatedFact:
        """Check one fact, and note it."""
        if not self.is_waiting:
            return super().validate(envelope, fact)
        self.checked.append(False)
        valid = super().validate(envelope, fact)
        self.checked[-1] = True
        return valid


class BusyZone:
    """A zone where some producers come while the store waits, and are checked meanwhile."""

    def __init__(self) -> None:
        self.store = Slow()
        self.zone = WatchedZone(self.store)
        self.counted: dict[tuple[str, str], int] = {}
        """What had been told by the end of the wait."""

    def play(self, *messages: tuple[Any, Any]) -> list[Receipt | BoundaryError | None]:
        """The answers to those who come meanwhile."""
        zone, producers = self.zone, list[Producer]()

        def first() -> None:
            producers.append(Producer(zone, *message("behind")))
            _until(lambda: zone.pending_appends == 1)

        def second() -> None:
            for each in messages:
                size = zone.pending_appends
                producers.append(Producer(zone, *each))
                _until(lambda before=size: zone.pending_appends > before)  # type: ignore[misc]
            zone.is_waiting = True
            self.store.seen(lambda: len(zone.checked) == len(messages))
            zone.is_waiting = False
            self.counted = dict(zone.events.counts)

        self.store.acts = [first, second]
        self.zone.append(*message("alone"))
        for each in producers:
            each.join(WAIT)
            assert not each.is_alive()
        self.zone.close()
        return [each.told for each in producers[1:]]


def _until(is_so: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(WAIT * 100)):
        if is_so():
            return
        pause.wait(0.01)
    raise AssertionError("it never came to that")


@pytest.fixture
def busy() -> BusyZone:
    """A fresh one."""
    return BusyZone()


def test_what_was_checked_meanwhile_is_appended_with_the_next_group(busy: BusyZone) -> None:
    """In the order of coming."""
    told = busy.play(message("1"), message("2"))
    assert busy.zone.checked == [True, True]
    assert [each.offset for each in told if isinstance(each, Receipt)] == [3, 4]
    assert busy.store.sizes == [1, 1, 2]


def test_a_bad_fact_is_refused_in_its_group(busy: BusyZone) -> None:
    """Alone, and told once: whoever listens is not called in the middle of a commit."""
    bad, good = busy.play(message("1", float("nan")), message("2"))
    assert busy.zone.checked == [False, True]
    assert busy.counted == {}
    assert isinstance(bad, FactInvalidError)
    assert isinstance(good, Receipt)
    assert busy.zone.events.counts["append_failures", "range"] == 1


def test_a_mapping_of_ones_own_kind_is_not_read_meanwhile(busy: BusyZone) -> None:
    """It may take its time, and the store would stand still."""
    envelope, fact = message("1")
    [told] = busy.play((UserDict(envelope), fact))
    assert busy.zone.checked == []
    assert isinstance(told, Receipt)


def artifact(zone: LocalZone) -> dict[str, Any]:
    """Bytes with a name, as a fact refers to them."""
    receipt = zone.put("b", "k", b"bytes")
    return {"bucket": "b", "key": "k", "digest": receipt.digest, "size": receipt.size}


def test_the_bytes_of_what_was_checked_meanwhile_are_looked_for(busy: BusyZone) -> None:
    """A fact whose artifact the disk has lost is refused, whenever it was checked."""
    referred = artifact(busy.zone)
    busy.zone.objects.delete(bytes.fromhex(referred["digest"].removeprefix("sha256:")))
    bad, good = busy.play(message("1", referred), message("2"))
    assert busy.zone.checked == [True, True]
    assert isinstance(bad, ArtifactError)
    assert isinstance(good, Receipt)
    assert busy.zone.events.counts["append_failures", bad.reason or bad.code] == 1


def test_a_store_that_cannot_tell_of_an_artifact(
    busy: BusyZone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only whoever refers to it hears of the trouble."""
    referred = artifact(busy.zone)

    def away(*_: object) -> None:
        raise StoreUnavailableError("away")

    monkeypatch.setattr(busy.store, "object", away)
    bad, good = busy.play(message("1", referred), message("2"))
    assert isinstance(bad, NodeUnavailableError)
    assert isinstance(good, Receipt)
