"""Zone to zone: how fast a zone catches up, and how soon it begins once a link is back."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from jobs_parts.processes import wait_until
from comparison import (
    Effort,
    Entry,
    FailedError,
    Goal,
    Record,
    Turn,
    race,
    record,
    records,
)

from boundary_parts import producers
from boundary_parts.tcp_relay import Link
from boundary_parts.messages import FROM, TO, messages
from boundary_parts.producers import fresh
from boundary_parts.servers import Node
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.boundary.zone import LocalZone

LOG = f"inbound:{FROM}"
BATCH = 500
PATIENCE = 60.0
LOOK = 0.05
OUTAGE = 2.0
"""Seconds of a cut link: enough for the puller to wait as long as it ever does."""


def catch_up(effort: Effort) -> Iterator[Record]:
    """Facts per second into a zone that was off, beside the appends of one process."""
    count = max(2_000, int(20_000 * effort.seconds))
    crossed = Entry("Ergon, zone to zone", partial(_catch_up, effort.folder, count))
    local = Entry("Ergon, in process, 64 producers",
                  partial(producers.ours, effort.folder, 64, count // 64 * 64))  # fmt: skip
    race([crossed, local], effort.rounds)
    yield from records("catch-up", crossed, [(local, Goal(ratio=0.5))])


def _catch_up(folder: Path, count: int) -> Turn:
    """From the first page that has arrived to the last; starting the processes is not timed."""
    with fresh(folder) as path:
        _fill(path / "a", count)
        source = Node(path / "a")
        try:
            target = Node(path / "b", TO, peers={FROM: source.url})
            try:
                return _arrival(target, count)
            finally:
                target.stop()
        finally:
            source.stop()


def _fill(path: Path, count: int) -> None:
    with LocalZone.open(FROM, ZoneSettings(data=str(path))) as zone:
        made = messages(count)
        for at in range(0, count, BATCH):
            zone.append_all([zone.admit(*each[:2]) for each in made[at : at + BATCH]])


def _arrival(target: Node, count: int) -> Turn:
    wait_until(lambda: target.head(LOG) > 0, PATIENCE, LOOK)
    before, began = target.head(LOG), time.perf_counter()
    if not wait_until(lambda: target.head(LOG) >= count, PATIENCE, LOOK):
        raise FailedError(f"{target.head(LOG)} of {count} facts have arrived")
    return Turn(count - before, time.perf_counter() - began)


def healing(effort: Effort) -> Iterator[Record]:
    """Seconds from the end of an outage to the first fact on the other side."""
    with fresh(effort.folder) as path:
        source = Node(path / "a")
        link = Link(source.port)
        try:
            target = Node(path / "b", TO, peers={FROM: f"http://127.0.0.1:{link.port}"})
            try:
                entry = Entry("Ergon", partial(_heal, source, target, link))
                race([entry], effort.rounds if effort.is_quick else effort.rounds * 3)
            finally:
                target.stop()
        finally:
            link.close()
            source.stop()
    yield record("healing", _pooled(entry), None, Goal(p99_ms=1000.0))


def _heal(source: Node, target: Node, link: Link) -> Turn:
    before = target.head(LOG)
    link.cut()
    time.sleep(OUTAGE)
    (message,) = messages(1)
    source.ask("BoundaryAdmin/AppendFacts", items=[json.loads(message.body)])
    if target.head(LOG) != before:
        raise FailedError("a fact crossed a link that was cut")
    began = time.perf_counter()
    link.heal()
    if not wait_until(lambda: target.head(LOG) > before, PATIENCE, 0.005):
        raise FailedError("the fact has not arrived")
    taken = time.perf_counter() - began
    return Turn(1, taken, [taken])


def _pooled(entry: Entry) -> Entry:
    """One turn of all samples, for quantiles of a single one say nothing."""
    if entry.skipped is None:
        taken = [turn.seconds for turn in entry.turns]
        entry.turns = [Turn(len(taken), sum(taken), taken)]
    return entry
