"""The ledger: what an id costs for ever, and whether millions of them slow appends down."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from comparison import Contestant, Record, RunOptions, Target, Turn, race, records

from boundary_parts.messages import FROM, TO, identifiers, split_messages
from boundary_parts.producers import append_to, new_zone, run_producers, turn_folder
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.ports.factstore import OUTBOUND, NewFact

BATCH = 2_000
SLICE = 100_000
"""Facts after which the payloads are dropped, so that a small disk is enough."""
PRODUCERS = 64


def ledger(options: RunOptions) -> Iterator[Record]:
    """Appends with so many ids known, beside appends to an empty ledger."""
    sizes = [20_000] if options.is_quick else [100_000, 1_000_000]
    sizes += [10_000_000] * options.is_huge
    for size in sizes:
        yield from _at(options, size)


def _at(options: RunOptions, size: int) -> Iterator[Record]:
    count = max(PRODUCERS * 20, int(16_000 * options.seconds) // PRODUCERS * PRODUCERS)
    with (
        turn_folder(options.folder) as path,
        LocalZone.open(FROM, ZoneSettings(data=str(path))) as zone,
    ):
        slices = _fill(zone, size)
        used = _used(path / "facts.db")
        full = Contestant(f"Ergon, {size:,} ids", partial(_append, zone, count))
        empty = Contestant("Ergon, empty ledger", partial(_append_to_new, options.folder, count))
        race([full, empty], options.rounds)
    first, second = records(f"ledger-{size}", full, [(empty, Target(ratio=0.8))])
    per_id = round(used / size, 1)
    yield first | {
        "bytes_per_id": per_id,
        "fill_cpu_us": [round(slices[0] * 1e6, 1), round(slices[-1] * 1e6, 1)],
        "fill_cpu_us_most": round(max(slices) * 1e6, 1),
        "target": "<= 60 bytes per id",
        "met": per_id <= 60,
    }
    yield second


def _fill(zone: LocalZone, size: int) -> list[float]:
    """Small facts, straight into the store, whose payloads go at once.

    Answers the processor time of a fact in each slice, with all that the ledger's upkeep takes.
    """
    slices: list[float] = []
    for start in range(0, size, SLICE):
        end, began = min(start + SLICE, size), time.process_time()
        for at in range(start, end, BATCH):
            facts = [_fact(each) for each in identifiers("fill", at, min(at + BATCH, end))]
            zone.store.append(OUTBOUND, facts)
        slices.append((time.process_time() - began) / (end - start))
        zone.store.truncate(OUTBOUND, end, loss_reason="benchmark")
    return slices


def _fact(message_id: str) -> NewFact:
    digest = sha256(message_id.encode()).digest()
    return NewFact(FROM, message_id, TO, digest, b"{}", b"{}", (), None)


def _used(path: Path) -> int:
    """Bytes of the file that hold something; the payloads are gone, so it is nearly all ids."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:

        def number(pragma: str) -> Any:
            return connection.execute(f"PRAGMA {pragma}").fetchone()[0]

        return int((number("page_count") - number("freelist_count")) * number("page_size"))


def _append(zone: LocalZone, count: int) -> Turn:
    return run_producers(append_to(zone), split_messages(count, PRODUCERS))


def _append_to_new(folder: Path, count: int) -> Turn:
    with new_zone(folder) as zone:
        return _append(zone, count)
