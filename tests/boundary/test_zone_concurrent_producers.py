"""Many producers in one process: they share commits, and each hears of its own fact."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.boundary.append_batcher import AppendBatcher
from ergon_framework.boundary.factstore.memory import MemoryFactStore
from ergon_framework.boundary.model import Receipt
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.errors import ArtifactError, FactInvalidError
from ergon_framework.ports.factstore import OUTBOUND, Corruption
from ergon_framework.storage.objectstore.memory import MemoryObjectStore

WAIT = 60.0
PRODUCERS, EACH = 12, 40
pytestmark = pytest.mark.req("P1", "P7", "BOUNDARY:store")


def message(name: str, value: Any = 1) -> tuple[dict[str, Any], dict[str, Any]]:
    """An envelope and a fact."""
    envelope = {
        "message_id": f"order/{name}",
        "from_zone": "plant-a",
        "to_zone": "plant-b",
        "produced_at_unix_ms": 1_741_248_600_000,
    }
    return envelope, {"subject": "order:1", "predicate": "was_told", "object_json": value}


def produce_in_a_crowd(zone: LocalZone) -> None:
    """Each producer hears of its own facts: of new ones, of those it told before, of bad ones."""
    heard: dict[str, Receipt] = {}
    refused: list[str] = []

    def produce(number: int) -> None:
        for turn in range(EACH):
            name = f"{number}/{turn}"
            heard[name] = zone.append(*message(name))
            heard[f"{name} again"] = zone.append(*message(name))
            try:
                zone.append(*message(f"{name}/bad", float("nan")))
            except FactInvalidError:
                refused.append(name)

    producers = [threading.Thread(target=produce, args=(n,)) for n in range(PRODUCERS)]
    for each in producers:
        each.start()
    for each in producers:
        each.join(WAIT)
        assert not each.is_alive()
    kept = zone.store.page(OUTBOUND, 0, 10_000, 1 << 24).facts
    flaws = [each for each in zone.store.verify(OUTBOUND) if isinstance(each, Corruption)]
    assert flaws == []
    assert len(kept) == len(refused) == PRODUCERS * EACH
    for fact in kept:
        name = fact.message_id.removeprefix("order/")
        assert (heard[name].offset, heard[name].duplicate) == (fact.offset, False)
        assert (heard[f"{name} again"].offset, heard[f"{name} again"].duplicate) == (
            fact.offset,
            True,
        )
    assert zone.events.counts["duplicates", ""] == PRODUCERS * EACH


def test_each_producer_hears_of_its_own_facts(tmp_path: Path) -> None:
    """Also of those that are refused, or came before, in the middle of a crowd."""
    with LocalZone.open("plant-a", ZoneSettings(data=str(tmp_path))) as zone:
        produce_in_a_crowd(zone)


def test_nobody_sleeps_on_while_artifacts_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects may lie on a server that takes its time."""
    zone = LocalZone("plant-a", MemoryFactStore("plant-a"), MemoryObjectStore())
    batcher, told = AppendBatcher(zone, max_check_time=600.0), list[str]()
    monkeypatch.setattr(batcher.appends, "let_go", lambda: told.append("let go"))
    monkeypatch.setattr(zone, "check_bytes", lambda _: told.append("asked"))
    artifact = {"bucket": "b", "key": "k", "digest": "sha256:" + "0" * 64, "size": 5}
    assert isinstance(batcher.append(*message("1", artifact)), ArtifactError)
    assert told == ["let go", "asked"]


def test_nobody_sleeps_on_while_large_facts_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who was served is let go in any case after some milliseconds."""
    zone = LocalZone("plant-a", MemoryFactStore("plant-a"), MemoryObjectStore())
    batcher, told = AppendBatcher(zone, max_check_time=-1.0), list[str]()
    monkeypatch.setattr(batcher.appends, "let_go", lambda: told.append("let go"))
    batcher.append(*message("1"))
    assert told == ["let go"]


class Text(str):
    """Text of somebody's own kind."""

    __slots__ = ()


def test_an_odd_fact_is_refused_alone(tmp_path: Path) -> None:
    """Whoever shares its group hears nothing of it."""
    errors: list[BaseException] = []

    def produce(number: int) -> None:
        for turn in range(EACH):
            envelope, fact = message(f"{number}/{turn}")
            try:
                zone.append(envelope, {**fact, "predicate": Text("odd")} if not number else fact)
            except BaseException as error:
                errors.append(error)

    with LocalZone.open("plant-a", ZoneSettings(data=str(tmp_path))) as zone:
        producers = [threading.Thread(target=produce, args=(n,)) for n in range(4)]
        for each in producers:
            each.start()
        for each in producers:
            each.join(WAIT)
        assert zone.store.logs()[0].head == 3 * EACH
    assert {type(each) for each in errors} == {FactInvalidError}
    assert len(errors) == EACH
    assert "plain text" in str(errors[0])


class OtherStore(MemoryFactStore):
    """A store that was made elsewhere, before there was such a thing."""

    watch_waits = None  # type: ignore[assignment]


def test_a_store_that_tells_nothing_of_its_waits() -> None:
    """Whoever was served is woken at once then."""
    zone = LocalZone("plant-a", OtherStore("plant-a"), MemoryObjectStore())  # type: ignore[arg-type]
    assert zone.append(*message("1")).offset == 1
    assert AppendBatcher(zone).appends.lets_go is False
