"""What facts refer to is kept and looked for, also when nobody checks it before an append."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.boundary.maintenance import run_maintenance
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.boundary.verification import VerificationFinding, verified
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.errors import BoundaryError
from ergon_framework.ports.factstore import OUTBOUND, NewFact

DAY = 86_400.0
START = 1_800_000_000.0


class Clock:
    """A clock that goes where the test wants it."""

    now = START

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """The zone's time."""
    return Clock()


@pytest.fixture(params=["sqlite", "postgresql", "nats", "memory"])
def zone(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[LocalZone]:
    """A zone on each store that checks no references."""
    url = f"sqlite:///{tmp_path / 'facts.db'}"
    if request.param == "memory":
        url = "memory://"
    elif request.param != "sqlite":
        url = request.getfixturevalue(f"{request.param.removesuffix('ql')}_url")
    settings = ZoneSettings.model_validate(
        {"data": str(tmp_path / "data"), "store": url, "verify_refs": False}
    )
    with LocalZone.open("plant-a", settings, clock=clock) as opened:
        yield opened


def told(zone: LocalZone, message_id: str, **reference: Any) -> int:
    """A fact that refers to an artifact; its offset."""
    envelope = {"message_id": message_id, "from_zone": "plant-a", "to_zone": "enterprise"}
    envelope["produced_at_unix_ms"] = int(START * 1000)  # type: ignore[assignment]
    fact = {"subject": "unit:1", "predicate": "measured", "object_json": {"file": reference}}
    return zone.append(envelope, fact).offset


def put(zone: LocalZone, key: str) -> dict[str, Any]:
    """An artifact; how a fact refers to it."""
    receipt = zone.put("files", key, f"bytes of {key}".encode())
    return {"bucket": "files", "key": key, "digest": receipt.digest, "size": receipt.size}


def names(zone: LocalZone) -> list[str]:
    """The keys of all artifacts."""
    return [each.key for each in zone.store.objects()]


def findings(zone: LocalZone) -> list[tuple[str, str]]:
    """What verification finds: the kind, and where."""
    found = (each for each in verified(zone) if isinstance(each, VerificationFinding))
    return [(each.kind, each.where) for each in found]


@pytest.mark.req("BOUNDARY:objects")
def test_artifacts_of_facts_outlive_the_collector(zone: LocalZone, clock: Clock) -> None:
    """With ``verify_refs = false`` references are recorded all the same, also ahead of the put."""
    told(zone, "a", **put(zone, "before"))
    ahead = put(zone, "after")
    zone.delete("files", "after")
    told(zone, "b", **ahead)
    put(zone, "after")
    put(zone, "orphan")
    clock.now += 3 * DAY
    run_maintenance(zone, is_thorough=True)
    assert names(zone) == ["after", "before"]
    with pytest.raises(BoundaryError, match="a fact refers to"):
        zone.delete("files", "before")


@pytest.mark.req("BOUNDARY:objects")
def test_verification_reports_what_is_referred_to_and_absent(zone: LocalZone) -> None:
    """Whether it was never put, stands for other bytes, or is of another size."""
    there = put(zone, "there")
    told(zone, "a", **there)
    told(zone, "b", **there | {"key": "never"})
    told(zone, "c", **there | {"digest": put(zone, "other")["digest"]})
    assert findings(zone) == [("reference", "outbound 2"), ("reference", "outbound 3")]


def unrecorded(zone: LocalZone, message_id: str, **reference: Any) -> None:
    """A fact as versions before this one stored it: its references are nowhere but in its text."""
    envelope = {"message_id": message_id, "from_zone": "plant-a", "to_zone": "enterprise"}
    envelope["produced_at_unix_ms"] = int(START * 1000)  # type: ignore[assignment]
    fact = {"subject": "unit:1", "predicate": "measured", "object_json": {"file": reference}}
    new: NewFact = zone.validate(envelope, fact).new_fact
    new.references = ()
    zone.store.append(OUTBOUND, [new])


@pytest.mark.req("BOUNDARY:objects")
def test_references_of_an_earlier_version_are_found(zone: LocalZone, clock: Clock) -> None:
    """The log is read once, before anything is collected or deleted by its name."""
    unrecorded(zone, "a", **put(zone, "one"))
    unrecorded(zone, "b", **put(zone, "two"))
    with pytest.raises(BoundaryError, match="a fact refers to"):
        zone.delete("files", "one")
    put(zone, "orphan")
    clock.now += 3 * DAY
    run_maintenance(zone)
    assert names(zone) == ["one", "two"]


@pytest.mark.req("BOUNDARY:objects")
def test_what_truncated_facts_referred_to_is_kept(zone: LocalZone, clock: Clock) -> None:
    """Nobody can tell any more: all that was there when the log was read stays; later ones go."""
    unrecorded(zone, "a", **put(zone, "one"))
    zone.store.truncate(OUTBOUND, 1, loss_reason="disk")
    run_maintenance(zone)
    put(zone, "orphan")
    clock.now += 3 * DAY
    run_maintenance(zone)
    assert names(zone) == ["one"]
