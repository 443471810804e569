"""Clocks that jump by hours, back and forth: offsets, leases and retention stay right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.boundary.maintenance import run_maintenance
from ergon_framework.boundary.node.metrics import metrics
from ergon_framework.boundary.node.status import status
from ergon_framework.boundary.settings import RetentionSettings, ZoneSettings
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.errors import BoundaryNotFoundError, ConsumerHeldError
from tests.boundary.node.processes import fact

pytestmark = pytest.mark.req("BOUNDARY:badinput")

HOUR = 3600.0
START = 1_800_000_000.0


class Clock:
    """A clock that goes where the test wants it."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """The zone's time."""
    return Clock()


@pytest.fixture
def zone(tmp_path: Path, clock: Clock) -> Iterator[LocalZone]:
    """A zone on disk that keeps payloads for an hour, and orphans for a day."""
    settings = ZoneSettings(
        data=str(tmp_path / "data"), retention=RetentionSettings(facts=HOUR, orphans=24 * HOUR)
    )
    with LocalZone.open("plant-a", settings, clock=clock) as zone:
        yield zone


def append(zone: LocalZone, name: str, content: Any = 1) -> int:
    """One fact; its offset."""
    body = fact(f"{name}:created", content)
    return zone.append(body["envelope"], body["fact"]).offset


@pytest.mark.req("P12")
def test_offsets_do_not_follow_the_clock(zone: LocalZone, clock: Clock) -> None:
    """Appends go on densely while the clock jumps, and pages come in that order."""
    jumps = [0.0, 5 * HOUR, -9 * HOUR, 100 * HOUR, -200 * HOUR, 0.5]
    offsets = []
    for number, jump in enumerate(jumps * 3):
        clock.now += jump
        offsets.append(append(zone, f"order:{number}"))
    assert offsets == list(range(1, len(offsets) + 1))
    zone.store.create_consumer("c", "outbound")
    page = zone.serve("c", 100, None, None, None).page
    assert [each.offset for each in page.facts] == offsets
    assert [each for each in zone.store.verify("outbound") if not isinstance(each, int)] == []
    assert append(zone, "order:3") == 4


@pytest.mark.req("C11")
def test_a_lease_taken_before_the_clock_went_back_ends(zone: LocalZone, clock: Clock) -> None:
    """A dead holder keeps a name for its lease, not for the hours the clock went back."""
    append(zone, "order:1")
    zone.store.create_consumer("c", "outbound")
    zone.serve("c", 10, None, "dead", 30.0)
    clock.now -= 3 * HOUR
    with pytest.raises(ConsumerHeldError):
        zone.serve("c", 10, None, "alive", 30.0)
    clock.now += 31.0
    assert zone.serve("c", 10, None, "alive", 30.0).page.facts


@pytest.mark.req("C11")
def test_a_lease_when_the_clock_goes_forth(zone: LocalZone, clock: Clock) -> None:
    """A lease may end early by that, and then its old holder can confirm nothing."""
    append(zone, "order:1")
    zone.store.create_consumer("c", "outbound")
    zone.serve("c", 10, None, "slow", 30.0)
    clock.now += 3 * HOUR
    assert zone.serve("c", 10, None, "fast", 30.0).page.facts
    with pytest.raises(ConsumerHeldError):
        zone.store.confirm("c", 1, holder="slow")
    assert zone.store.confirm("c", 1, holder="fast") == 1
    clock.now -= 3 * HOUR
    with pytest.raises(ConsumerHeldError):
        zone.serve("c", 10, None, "slow", 30.0)


@pytest.mark.req("BOUNDARY:store")
def test_retention_when_the_clock_goes_back(zone: LocalZone, clock: Clock) -> None:
    """A fact below one that is too young stays, whatever its own time says."""
    zone.store.create_consumer("c", "outbound")
    clock.now += 10 * HOUR
    append(zone, "order:1")
    clock.now -= 10 * HOUR
    append(zone, "order:2")
    zone.serve("c", 10, None, None, None)
    zone.store.confirm("c", 2)
    clock.now += 2 * HOUR  # order:2 is old now, order:1 comes from the future
    assert run_maintenance(zone).facts == 0
    clock.now += 10 * HOUR
    assert run_maintenance(zone).facts == 2
    assert append(zone, "order:1") == 1
    assert append(zone, "order:3") == 3


@pytest.mark.req("BOUNDARY:store", "P7")
def test_retention_when_the_clock_goes_forth(zone: LocalZone, clock: Clock) -> None:
    """However late it seems to be: what a required consumer has not confirmed stays."""
    zone.store.create_consumer("c", "outbound")
    for number in range(4):
        append(zone, f"order:{number}")
    zone.serve("c", 2, None, None, None)
    zone.store.confirm("c", 2)
    clock.now += 10_000 * HOUR
    assert run_maintenance(zone).facts == 2
    clock.now -= 10_000 * HOUR
    assert [each.offset for each in zone.serve("c", 10, None, None, None).page.facts] == [3, 4]
    assert zone.store.gaps() == []


@pytest.mark.req("P15")
def test_orphans_when_the_clock_jumps(zone: LocalZone, clock: Clock) -> None:
    """An orphan may go early or late by a jump; a referenced object never goes."""
    kept = zone.put("files", "kept", b"kept")
    told = {"bucket": "files", "key": "kept", "digest": kept.digest, "size": kept.size}
    append(zone, "order:1", told)
    clock.now += 1000 * HOUR
    zone.put("files", "orphan", b"orphan")
    clock.now -= 1000 * HOUR
    assert run_maintenance(zone, is_thorough=True).objects == 0
    assert zone.found("files", "orphan").size == 6
    clock.now += 2000 * HOUR
    assert run_maintenance(zone, is_thorough=True).objects == 1
    with pytest.raises(BoundaryNotFoundError):
        zone.found("files", "orphan")
    assert zone.objects.verify(zone.found("files", "kept").digest, 4) is None


def test_the_status_never_shows_a_negative_age(zone: LocalZone, clock: Clock) -> None:
    """Whoever looks while the clock is behind gets figures that make sense."""
    zone.store.create_consumer("c", "outbound")
    append(zone, "order:1")
    clock.now -= 5 * HOUR
    shape = status(zone)
    assert shape["alerts"] == []
    lines = metrics(zone).splitlines()
    (age,) = [line for line in lines if line.startswith("bsfg_oldest_unconfirmed_seconds{")]
    assert float(age.rpartition(" ")[2]) >= 0


def test_a_producer_from_the_future_is_taken(zone: LocalZone) -> None:
    """Its time is its own business; it is noted, and decides nothing."""
    body = fact("order:1:created", produced_at_unix_ms=int((START + 48 * HOUR) * 1000))
    valid = zone.validate(body["envelope"], body["fact"])
    assert any("produced_at_unix_ms" in warning for warning in valid.warnings)
    assert zone.append(body["envelope"], body["fact"]).offset == 1
    assert append(zone, "order:2") == 2


def test_a_restart_in_another_time(tmp_path: Path, clock: Clock) -> None:
    """A zone that is opened hours before it was closed goes on where it was."""
    settings = ZoneSettings(data=str(tmp_path / "data"))
    with LocalZone.open("plant-a", settings, clock=clock) as zone:
        zone.store.create_consumer("c", "outbound")
        assert append(zone, "order:1") == 1
        zone.serve("c", 10, None, "holder", 30.0)
    clock.now -= 7 * HOUR
    with LocalZone.open("plant-a", settings, clock=clock) as zone:
        assert append(zone, "order:1") == 1
        assert append(zone, "order:2") == 2
        page = zone.serve("c", 10, None, "holder", 30.0).page
        assert [each.offset for each in page.facts] == [1, 2]
        assert zone.store.confirm("c", 2, holder="holder") == 2
