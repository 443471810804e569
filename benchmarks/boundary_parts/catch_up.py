"""Zone to zone: how fast a zone catches up, and how soon it begins once a link is back."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from comparison import (
    Contestant,
    ContestantError,
    Record,
    RunOptions,
    Target,
    Turn,
    race,
    record,
    records,
)
from jobs_parts.processes import wait_until

from boundary_parts import producers
from boundary_parts.messages import FROM, TO, messages
from boundary_parts.producers import turn_folder
from boundary_parts.servers import Node
from boundary_parts.tcp_relay import TcpRelay
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.boundary.zone import LocalZone

LOG = f"inbound:{FROM}"
BATCH = 500
TIMEOUT = 60.0
POLL_INTERVAL = 0.05
OUTAGE = 2.0
"""Seconds of a cut link: enough for the puller to wait as long as it ever does."""


def catch_up(options: RunOptions) -> Iterator[Record]:
    """Facts per second into a zone that was off, beside the appends of one process."""
    count = max(2_000, int(20_000 * options.seconds))
    crossed = Contestant("Ergon, zone to zone", partial(_catch_up, options.folder, count))
    local = Contestant("Ergon, in process, 64 producers",
                  partial(producers.ours, options.folder, 64, count // 64 * 64))  # fmt: skip
    race([crossed, local], options.rounds)
    yield from records("catch-up", crossed, [(local, Target(ratio=0.5))])


def _catch_up(folder: Path, count: int) -> Turn:
    """From the first page that has arrived to the last; starting the processes is not timed."""
    with turn_folder(folder) as path:
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
            zone.append_all([zone.validate(*each[:2]) for each in made[at : at + BATCH]])


def _arrival(target: Node, count: int) -> Turn:
    wait_until(lambda: target.head(LOG) > 0, TIMEOUT, POLL_INTERVAL)
    before, began = target.head(LOG), time.perf_counter()
    if not wait_until(lambda: target.head(LOG) >= count, TIMEOUT, POLL_INTERVAL):
        raise ContestantError(f"{target.head(LOG)} of {count} facts have arrived")
    return Turn(count - before, time.perf_counter() - began)


def healing(options: RunOptions) -> Iterator[Record]:
    """Seconds from the end of an outage to the first fact on the other side."""
    with turn_folder(options.folder) as path:
        source = Node(path / "a")
        relay = TcpRelay(source.port)
        try:
            target = Node(path / "b", TO, peers={FROM: f"http://127.0.0.1:{relay.port}"})
            try:
                contestant = Contestant("Ergon", partial(_heal, source, target, relay))
                race([contestant], options.rounds if options.is_quick else options.rounds * 3)
            finally:
                target.stop()
        finally:
            relay.close()
            source.stop()
    yield record("healing", _pooled(contestant), None, Target(p99_ms=1000.0))


def _heal(source: Node, target: Node, relay: TcpRelay) -> Turn:
    before = target.head(LOG)
    relay.cut()
    time.sleep(OUTAGE)
    (message,) = messages(1)
    source.ask("BoundaryAdmin/AppendFacts", items=[json.loads(message.body)])
    if target.head(LOG) != before:
        raise ContestantError("a fact crossed a link that was cut")
    began = time.perf_counter()
    relay.heal()
    if not wait_until(lambda: target.head(LOG) > before, TIMEOUT, 0.005):
        raise ContestantError("the fact has not arrived")
    seconds = time.perf_counter() - began
    return Turn(1, seconds, [seconds])


def _pooled(contestant: Contestant) -> Contestant:
    """One turn of all samples, for quantiles of a single one say nothing."""
    if contestant.skipped is None:
        seconds = [turn.seconds for turn in contestant.turns]
        contestant.turns = [Turn(len(seconds), sum(seconds), seconds)]
    return contestant
