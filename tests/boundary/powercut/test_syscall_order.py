"""Nothing is acknowledged before the call that syncs it has returned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.boundary.powercut.disk import Disk, everything
from tests.boundary.powercut.recorder import ZONE, Event, Exchange, Kind, Recording, compiled

pytestmark = [pytest.mark.slow, pytest.mark.req("P11", "BOUNDARY:store")]

CARRIED = {
    "AppendFact": (b"order:1:described", b"long-end"),
    "AppendFacts": (b"order:0:packed", b"order:9:packed"),
    "CreateConsumer": (b"rover",),
    "ConfirmReceipt": (b"rover",),
    "SeekConsumer": (b"rover", b"skip the trial run"),
    "Seal": (b"works on the line",),
    "PutObject": (b"order-0.txt",),
}
"""Operations, and what the writes that carry each of them hold."""


@pytest.mark.parametrize("operation", CARRIED)
def test_the_log_is_synced_between_the_last_write_and_the_reply(
    recording: Recording, operation: str
) -> None:
    """What a reply acknowledges was written after the request came and synced before it left."""
    marks = CARRIED[operation]
    exchange = asked(recording, operation, marks[0])
    log = f"{recording.root}/{ZONE}/facts.db-wal"
    for mark in marks:
        carrying = [each.at for each in writes(recording, exchange, log) if mark in each.data]
        assert carrying, f"{operation}: no write to the log carries {mark!r}"
        assert synced(recording, log, max(carrying)) < exchange.answered, operation


@pytest.mark.req("BOUNDARY:objects")
@pytest.mark.parametrize("name", ["order-0.txt", "order-4.txt"])
def test_an_object_is_synced_before_its_name_and_its_folders_before_the_reply(
    recording: Recording, name: str
) -> None:
    """Bytes, then the file's name, then every folder above it, then the entry in the log."""
    exchange = asked(recording, "PutObject", name.encode())
    [rename] = within(recording, exchange, lambda each: each.kind is Kind.RENAME)
    uploaded = writes(recording, exchange, rename.path)
    assert sum(len(each.data) for each in uploaded) == exchange.answer["size"]
    assert synced(recording, rename.path, uploaded[-1].at) < rename.at

    folder, log = Path(rename.other).parent, f"{recording.root}/{ZONE}/facts.db-wal"
    naming = [each for each in writes(recording, exchange, log) if name.encode() in each.data]
    entered = naming[0].at
    assert synced(recording, str(folder), rename.at) < entered
    made = {
        each.path: each.at
        for each in within(recording, exchange, lambda each: each.kind is Kind.MKDIR)
    }
    assert set(made) <= {str(folder), str(folder.parent)}
    for path, at in made.items():
        assert synced(recording, str(Path(path).parent), at) < entered


@pytest.mark.req("BOUNDARY:objects")
@pytest.mark.parametrize("name", ["recording", "receiving"])
def test_the_record_misses_nothing(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Doing again what was recorded gives the node's folder, byte for byte."""
    record: Recording = request.getfixturevalue(name)
    disk = Disk(record.root, record.existing)
    for event in record.events:
        disk.happen(event)
    disk.build(tmp_path / "again", everything)
    [zone] = record.existing
    assert contents(tmp_path / "again" / zone) == contents(record.root / zone)


@pytest.mark.parametrize(
    ("is_ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)]
)
def test_a_machine_without_a_compiler_is_not_passed_over_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_ci: str, outcome: type[BaseException]
) -> None:
    """The tests say that they were not run, and where every test has to run they fail."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CI", is_ci)
    with pytest.raises(outcome, match="no C compiler"):
        compiled(tmp_path)


def asked(recording: Recording, operation: str, mark: bytes) -> Exchange:
    """The first request of that kind that names it."""
    return next(
        each
        for each in recording.exchanges
        if each.operation == operation and mark in each.path.encode() + each.body
    )


def within(
    recording: Recording, exchange: Exchange, is_meant: Callable[[Event], bool]
) -> list[Event]:
    """Events between the request's arrival and the reply."""
    return [
        each for each in recording.events[exchange.arrived : exchange.answered] if is_meant(each)
    ]


def writes(recording: Recording, exchange: Exchange, path: str) -> list[Event]:
    """What was written to a file meanwhile."""
    return within(recording, exchange, lambda each: each.kind is Kind.WRITE and each.path == path)


def synced(recording: Recording, path: str, after: int) -> int:
    """When the first sync of it that began after then was done."""
    begun: set[int] = set()
    for event in recording.events[after + 1 :]:
        if event.path == path and event.kind is Kind.SYNC_BEGIN:
            begun.add(event.thread)
        elif event.path == path and event.kind is Kind.SYNC_END and event.thread in begun:
            return event.at
    raise AssertionError(f"{path} was never synced after event {after}")


def contents(folder: Path) -> dict[str, bytes]:
    """Every file but the shared memory of SQLite, which is made anew whenever nobody has it."""
    return dict(_contents(folder))


def _contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in folder.rglob("*"):
        if path.is_file() and not path.name.endswith("-shm"):
            yield str(path.relative_to(folder)), path.read_bytes()
