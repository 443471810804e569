"""Whether a zone takes facts: its last appends, its disk, and damage that is known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.boundary.factstore.sqlite import SqliteFactStore
from ergon_framework.boundary.node.status import status
from ergon_framework.boundary.settings import LimitSettings, ZoneSettings
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.errors import BoundaryError, StoreFullError
from ergon_framework.ports.factstore import AppendOutcome, NewFact
from ergon_framework.storage.objectstore.memory import MemoryObjectStore
from tests.cli.boundary_node import message

pytestmark = pytest.mark.req("BOUNDARY:node", "BOUNDARY:operator")


class FullStore(SqliteFactStore):
    """A store whose disk is full for as long as the test says."""

    is_full = False

    def append(
        self, log: str, facts: Sequence[NewFact], *, capacity: int | None = None
    ) -> list[AppendOutcome]:
        self._refuse_full()
        return super().append(log, facts, capacity=capacity)

    def set_attribute(self, name: str, value: str) -> None:
        self._refuse_full()
        super().set_attribute(name, value)

    def _refuse_full(self) -> None:
        if self.is_full:
            raise StoreFullError("there is no room left", remedy="free some")


def told(zone: LocalZone, message_id: str) -> None:
    """A fact."""
    whole = json.loads(message(message_id))
    zone.append(whole["envelope"], whole["fact"])


def alerts(zone: LocalZone) -> list[str]:
    """Which there are."""
    return [each["kind"] for each in status(zone)["alerts"]]


def test_a_failed_append_makes_a_node_unready(tmp_path: Path) -> None:
    """Until the store can be written again, which the probe itself finds out."""
    store = FullStore(tmp_path / "facts.db", zone="plant-a")
    with LocalZone("plant-a", store, MemoryObjectStore()) as zone:
        assert zone.takes_facts()
        store.is_full = True
        with pytest.raises(BoundaryError):
            told(zone, "a")
        assert alerts(zone) == ["appends"]
        with pytest.raises(StoreFullError):  # which a probe answers with 503
            zone.takes_facts()
        store.is_full = False
        assert zone.takes_facts()
        assert alerts(zone) == []
        told(zone, "a")


def opened(folder: Path, **more: Any) -> LocalZone:
    """The zone in a folder."""
    return LocalZone.open("plant-a", ZoneSettings(data=str(folder), **more))


def test_a_disk_with_little_room_makes_a_node_unready(tmp_path: Path) -> None:
    """It is told before appends fail."""
    with opened(tmp_path, limits=LimitSettings(free_bytes=1 << 60)) as zone:
        assert not zone.takes_facts()
        assert alerts(zone) == ["disk"]


def test_damage_is_looked_for_at_the_start(tmp_path: Path) -> None:
    """A page in the middle of the file that is not what was written makes a node unready."""
    with opened(tmp_path) as zone:
        for n in range(200):
            told(zone, f"order:{n}:created")
        assert zone.takes_facts()
    file = tmp_path / "facts.db"
    data = bytearray(file.read_bytes())
    page = int.from_bytes(data[16:18])
    at = data.index(b"order:50:created") // page * page
    data[at : at + 16] = b"\xff" * 16
    file.write_bytes(bytes(data))
    with opened(tmp_path) as zone:
        assert not zone.takes_facts()
        assert zone.damage is not None
        assert "is damaged" in zone.damage
    with opened(tmp_path, check_seconds=0) as zone:
        assert zone.damage is None  # there was no time to look
