"""A store in trouble fills no log: what everybody meets is said once, and that it is over."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.boundary.telemetry import MAX_TROUBLES, REPEAT_INTERVAL, ZoneEvents
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.errors import BoundaryError, StoreUnavailableError
from ergon_framework.ports.notice import Notice
from ergon_framework.telemetry.notices import add_listener, remove_listener
from ergon_framework.testing.suites.drivers import HandClock

AWAY = StoreUnavailableError("the server cannot be reached")
FACT = {"subject": "order:1", "predicate": "order_placed", "object_json": {"n": 1}}
pytestmark = pytest.mark.req("SCALE:fleet-outage")


def envelope(message_id: str) -> dict[str, object]:
    """Of a fact from here."""
    return {
        "message_id": message_id,
        "from_zone": "plant",
        "to_zone": "hall",
        "produced_at_unix_ms": 1_750_000_000_000,
    }


def test_an_outage_is_two_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One when it begins, however many producers come, and one when facts are taken again."""
    with LocalZone.open("plant", ZoneSettings(data=str(tmp_path / "data"))) as zone:

        def refuse(*_: object, **__: object) -> None:
            raise AWAY

        with monkeypatch.context() as patch:
            patch.setattr(zone.store, "append", refuse)
            for n in range(50):
                with pytest.raises(BoundaryError):
                    zone.append(envelope(f"m{n}"), FACT)
        zone.append(envelope("m0"), FACT)
        zone.append(envelope("m1"), FACT)
        assert zone.events.counts["append_failures", "store_unavailable"] == 50
    assert [record.getMessage() for record in caplog.records] == [
        "the store of zone plant: the server cannot be reached",
        "the store of zone plant takes facts again",
    ]


def test_a_repaired_fact_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By a line of the log and a notice; one that stays damaged by another, with what to do."""
    heard: list[Notice] = []
    add_listener(heard.append)
    try:
        with LocalZone.open("plant", ZoneSettings(data=str(tmp_path / "data"))) as zone:
            for name in "ab":
                zone.append(envelope(name), FACT)
            with closing(sqlite3.connect(tmp_path / "data" / "facts.db")) as other, other:
                other.execute("UPDATE ergon_boundary_facts SET fact = x'20' WHERE id & 15 = 1")
                other.execute("UPDATE ergon_boundary_facts SET recorded_at = 5 WHERE id & 15 = 2")
            assert [zone.append(envelope(name), FACT).offset for name in "ab"] == [1, 2]
    finally:
        remove_listener(heard.append)
    names = {"fact.repaired", "fact.damaged"}
    told = [(each.name, each.fields["offset"]) for each in heard if each.name in names]
    assert told == [("fact.repaired", 1), ("fact.damaged", 2)]
    lines = [record.getMessage() for record in caplog.records]
    assert any("1 of outbound was damaged" in line and "repaired" in line for line in lines)
    assert any("the fact at 2 of outbound is damaged" in line for line in lines)


def test_the_content_of_a_fact_is_told_nowhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not by a log, a notice or an error, whatever becomes of the fact."""
    caplog.set_level(logging.DEBUG)
    heard: list[Notice] = []
    told: list[object] = []
    add_listener(heard.append)
    try:
        with LocalZone.open("plant", ZoneSettings(data=str(tmp_path / "data"))) as zone:
            secret = {**FACT, "object_json": {"card": "4111-secret"}}
            zone.append(envelope("a"), secret)
            zone.append(envelope("a"), secret)
            for name, fact in (
                ("a", {**FACT, "object_json": "other-secret"}),
                ("b", {**secret, "subject": "no kind"}),
            ):
                with pytest.raises(BoundaryError) as caught:
                    zone.append(envelope(name), fact)
                told += [str(caught.value), repr(caught.value), caught.value.details]
            with closing(sqlite3.connect(tmp_path / "data" / "facts.db")) as other, other:
                other.execute("UPDATE ergon_boundary_facts SET recorded_at = 5")
            zone.append(envelope("a"), secret)
    finally:
        remove_listener(heard.append)
    assert "is damaged" in caplog.text
    assert heard
    told += [caplog.text, [str(each) for each in heard]]
    assert "secret" not in str(told)


def test_what_lasts_or_is_new_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """Every minute again, also after the clock was set back; and what differs at once."""
    clock = HandClock()
    events = ZoneEvents(clock)
    for wait, lines in ((0, 1), (REPEAT_INTERVAL - 1, 1), (1, 2), (-3600, 3), (1, 3)):
        clock.forward(wait)
        events.note_store_error("plant", AWAY, is_append=True)
        assert len(caplog.records) == lines
    for n in range(3 * MAX_TROUBLES):
        events.note_store_error("plant", StoreUnavailableError(f"trouble {n}"), is_append=False)
    assert len(caplog.records) == 3 + 3 * MAX_TROUBLES


def test_trouble_with_objects_is_not_over_when_a_fact_comes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The store of facts was never in trouble."""
    events = ZoneEvents(HandClock())
    for _ in range(100):
        events.note_store_error(
            "plant", StoreUnavailableError("the bucket is away"), is_append=False
        )
        events.committed(1, 0.001)
    assert len(caplog.records) == 1


def test_warnings_of_one_kind_are_logged_in_sums(caplog: pytest.LogCaptureFixture) -> None:
    """A thousand refusals are two lines: the first at once, the others as a number."""
    now = [100.0]
    events = ZoneEvents(lambda: now[0])
    for number in range(1000):
        events.warn_in_sums("full", "call.denied", f"10.0.0.{number} was refused")
    events.warn_in_sums("other", "call.denied", "somebody else")
    now[0] += 11
    events.tell_sums()
    events.tell_sums(is_last=True)
    assert [record.getMessage() for record in caplog.records] == [
        "10.0.0.0 was refused",
        "somebody else",
        "10.0.0.999 was refused (998 more like it since)",
    ]
