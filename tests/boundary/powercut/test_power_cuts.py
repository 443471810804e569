"""After a power cut at any moment, everything that was acknowledged is there, once and whole."""

from __future__ import annotations

import re
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.boundary.node.processes import running
from tests.boundary.powercut.disk import Disk, Luck, nothing
from tests.boundary.powercut.promises import Promises, broken, promised
from tests.boundary.powercut.recorder import ZONE, Kind, Recording, read, watched

pytestmark = [
    pytest.mark.slow,
    pytest.mark.req("P11", "BOUNDARY:store", "BOUNDARY:objects"),
]

Cut = tuple[int, int | None]
"""Before which event the power fails; a seed for what else is left, None for nothing else."""

MOST = 60
"""Folders built by one test."""


def test_every_acknowledged_fact_and_object_survives(recording: Recording, tmp_path: Path) -> None:
    """Whenever the power fails, and whatever of the unsynced writes is left."""
    found = []
    for cut, folder in after(recording, chosen(recording), tmp_path):
        before = [each for each in recording.exchanges if each.answered <= cut[0]]
        found += [f"{cut}: {what}" for what in broken(folder, ZONE, promised(before))]
    assert found == []


def test_the_node_goes_on_where_it_was(recording: Recording, tmp_path: Path) -> None:
    """Started again after the cut, it knows each id, and gives the next offset to the next fact."""
    last = recording.exchanges[-1].answered
    facts = promised(recording.exchanges).facts
    for _cut, folder in after(recording, [(last, None)], tmp_path):
        with running(ZONE, folder) as node:
            for message_id, (offset, content) in facts.items():
                again = node.append(message_id, content)
                assert (again["offset"], again["duplicate"]) == (offset, True), message_id
            assert node.append("order:1:invoiced")["offset"] == len(facts) + 1


@pytest.mark.req("BOUNDARY:zones")
def test_what_was_confirmed_to_a_peer_survives(receiving: Recording, tmp_path: Path) -> None:
    """A peer may forget what this zone has confirmed: it must be safe here, artifacts included."""
    known, offsets = promised(receiving.exchanges).facts, dict(receiving.confirmations)
    assert max(offsets.values()) == len(known)
    cuts: list[Cut] = [(at, seed) for at in sorted(offsets)[-15:] for seed in (None, at)]
    found = []
    for cut, folder in after(receiving, cuts, tmp_path, "plant-b"):
        held = {name: told for name, told in known.items() if told[0] <= offsets[cut[0]]}
        names = broken(folder, "plant-b", Promises(held, artifacts(held)), f"inbound:{ZONE}")
        found += [f"{cut}: {what}" for what in names]
    assert found == []


def test_a_folder_that_the_node_made_survives(recorder: Path, tmp_path: Path) -> None:
    """The first fact of a zone whose folder was not there before is as safe as any other."""
    root = tmp_path / "disk"
    root.mkdir()
    with watched(recorder, root, tmp_path / "record") as node:
        node.append("order:1:created")
    made = Recording(root, list(read(tmp_path / "record")))
    at = made.exchanges[0].answered
    for _cut, folder in after(made, [(at, None)], tmp_path):
        assert folder.exists(), f"{root} was not synced after {ZONE} was made in it"
        assert broken(folder, ZONE, promised(made.exchanges)) == []


@pytest.mark.parametrize(
    ("is_missing", "expected"),
    [
        (lambda path: path.endswith("facts.db-wal"), "cannot be used|is missing"),
        (lambda path: "/uploads/" in path, "is damaged"),
        (lambda path: "/sha256/" in path, "is damaged"),
        (lambda path: path.endswith("/sha256"), "is damaged"),
        (lambda path: path.endswith(f"/{ZONE}"), "is missing"),
    ],
    ids=["the log", "the bytes of objects", "their names", "their folders", "the zone's folder"],
)
def test_a_sync_that_is_left_out_is_noticed(
    recording: Recording, tmp_path: Path, is_missing: Callable[[str], bool], expected: str
) -> None:
    """The tests above fail for a node that does not sync one of the things it has to."""
    syncs = (Kind.SYNC_BEGIN, Kind.SYNC_END)
    careless = recording.without(
        *(each for each in recording.events if each.kind in syncs and is_missing(each.path))
    )
    last = recording.exchanges[-1].answered
    for _cut, folder in after(careless, [(last, None)], tmp_path):
        found = broken(folder, ZONE, promised(recording.exchanges))
        assert any(re.search(expected, what) for what in found), found


def chosen(recording: Recording) -> list[Cut]:
    """At replies, and where much is under way: start, checkpoints, the end, and anywhere."""
    events, replies = recording.events, [each.answered for each in recording.exchanges]
    first, last, end = replies[0], replies[-1], len(events)
    database = f"{recording.root}/{ZONE}/facts.db"
    moved = [each.at + 1 for each in events[first:] if each.path == database]
    assert moved[0] < last, "there was no checkpoint while the node was at work"
    anywhere = Random(11).sample(range(first, end), 8)  # noqa: S311 - the same each time
    unlucky = [*spread(replies, 14), *spread(moved, 5)]
    lucky = [*spread(replies, 10), *spread(moved, 12), *anywhere]
    lucky += [*spread(range(first), 5), *spread(range(last, end + 1), 6)]
    return [*((at, None) for at in unlucky), *((at, at) for at in lucky)]


def spread(places: Sequence[int], count: int) -> list[int]:
    """So many of them, the first and the last among them."""
    step = (len(places) - 1) / (count - 1)
    return [places[round(number * step)] for number in range(count)]


def after(
    recording: Recording, cuts: Sequence[Cut], tmp_path: Path, zone: str = ZONE
) -> Iterator[tuple[Cut, Path]]:
    """For each power cut, what is left of the zone's folder."""
    assert len(cuts) <= MOST
    disk, events = Disk(recording.root, recording.existing), deque(recording.events)
    place = tmp_path / "left"
    for at, seed in sorted(cuts, key=lambda cut: cut[0]):
        while events and events[0].at < at:
            disk.happen(events.popleft())
        disk.build(place, nothing if seed is None else Luck(seed))
        yield (at, seed), place / zone
        shutil.rmtree(place)


def artifacts(facts: Mapping[str, tuple[int, Any]]) -> dict[tuple[str, str], tuple[str, int]]:
    """What these facts refer to."""
    contents = [content for _offset, content in facts.values() if isinstance(content, dict)]
    return {(each["bucket"], each["key"]): (each["digest"], each["size"]) for each in contents}
