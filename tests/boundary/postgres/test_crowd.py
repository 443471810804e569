"""Many producers whose facts are checked while the server commits those of others."""

from __future__ import annotations

from typing import Any

import pytest

from ergon_framework.boundary.facts.edge import Admission
from ergon_framework.boundary.logs.postgres import PostgresFactStore
from ergon_framework.boundary.objects.memory import MemoryObjectStore
from ergon_framework.boundary.zone import Zone
from tests.boundary.test_zone_crowd import EACH, PRODUCERS, produce_in_a_crowd

pytestmark = pytest.mark.req("P1", "P7", "SCALE:boundary-postgres")


def test_each_producer_hears_of_its_own_facts(
    store: PostgresFactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And each fact is checked once, whenever that is."""
    zone = Zone("plant-a", store, MemoryObjectStore())
    checked: list[str] = []
    looked: list[object] = []
    admit, look = zone.admit, zone._crowd._look

    def counted(envelope: Any, fact: Any) -> Admission:
        checked.append(envelope["message_id"])
        return admit(envelope, fact)

    def noted(asked: Any) -> None:
        looked.append(asked)
        look(asked)

    monkeypatch.setattr(zone, "admit", counted)
    monkeypatch.setattr(zone._crowd.grouping, "_look", noted)
    produce_in_a_crowd(zone)
    assert len(checked) == 3 * PRODUCERS * EACH
    assert looked  # while the server was at work
    zone._crowd.close()
