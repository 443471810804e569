"""Many producers whose facts are checked while the server commits those of others."""

from __future__ import annotations

from typing import Any

import pytest

from ergon_framework.boundary.facts.validation import ValidatedFact
from ergon_framework.boundary.factstore.postgres import PostgresFactStore
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.storage.objectstore.memory import MemoryObjectStore
from tests.boundary.test_zone_concurrent_producers import EACH, PRODUCERS, produce_in_a_crowd

pytestmark = pytest.mark.req("P1", "P7", "SCALE:boundary-postgres")


def test_each_producer_hears_of_its_own_facts(
    store: PostgresFactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And each good fact is checked once, whenever that is."""
    zone = LocalZone("plant-a", store, MemoryObjectStore())
    checked: list[str] = []
    validate = zone.validate

    def counted(envelope: Any, fact: Any) -> ValidatedFact:
        valid = validate(envelope, fact)
        checked.append(envelope["message_id"])
        return valid

    monkeypatch.setattr(zone, "validate", counted)
    produce_in_a_crowd(zone)
    assert len(checked) == 2 * PRODUCERS * EACH
    assert zone.events.counts["append_failures", "range"] == PRODUCERS * EACH
    zone.close()
