"""Many producers in one process: they share commits, and each hears of its own fact."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.boundary.logs.memory import MemoryFactStore
from ergon_framework.boundary.model import Receipt
from ergon_framework.boundary.objects.memory import MemoryObjectStore
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.boundary.zone import Zone
from ergon_framework.errors import ArtifactError, FactInvalidError
from ergon_framework.ports.factstore import OUTBOUND, Flaw

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


def test_each_producer_hears_of_its_own_facts(tmp_path: Path) -> None:
    """Also of those that are refused, or came before, in the middle of a crowd."""
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

    with Zone.open("plant-a", ZoneSettings(data=str(tmp_path))) as zone:
        producers = [threading.Thread(target=produce, args=(n,)) for n in range(PRODUCERS)]
        for each in producers:
            each.start()
        for each in producers:
            each.join(WAIT)
            assert not each.is_alive()
        kept = zone.store.page(OUTBOUND, 0, 10_000, 1 << 24).facts
        flaws = [each for each in zone.store.verify(OUTBOUND) if isinstance(each, Flaw)]
    assert flaws == []
    assert len(kept) == len(refused) == PRODUCERS * EACH
    for fact in kept:
        name = fact.message_id.removeprefix("order/")
        assert (heard[name].offset, heard[name].duplicate) == (fact.offset, False)
        assert (heard[f"{name} again"].offset, heard[f"{name} again"].duplicate) == (
            fact.offset,
            True,
        )
    assert zone.telling.counts["duplicates", ""] == PRODUCERS * EACH


def test_nobody_sleeps_on_while_artifacts_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects may lie on a server that takes its time."""
    zone = Zone("plant-a", MemoryFactStore("plant-a"), MemoryObjectStore())
    told: list[str] = []
    monkeypatch.setattr(zone._appends, "let_go", lambda: told.append("let go"))
    monkeypatch.setattr(zone, "check_bytes", lambda _: told.append("asked"))
    artifact = {"bucket": "b", "key": "k", "digest": "sha256:" + "0" * 64, "size": 5}
    with pytest.raises(ArtifactError):
        zone.append(*message("1", artifact))
    assert told == ["let go", "asked"]
