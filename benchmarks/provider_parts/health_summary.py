"""The health summary of a tenant with two hundred lanes, however many attempts there are."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

from comparison import Contestant, ContestantError, Record, RunOptions, Turn, race

from ergon_framework.ports.providerstore import AttemptRow, ProviderStore, RecordBatch
from ergon_framework.providers import open_store
from ergon_framework.providers.service import ProviderHealthService
from provider_parts.attempt_rows import TABLE, attempts, parts
from provider_parts.calls import TENANT
from provider_parts.costs import CostTarget, ratio_to, record

LANES = 200
HOUR = 3_500.0
RECORDED = 120_000
"""Rows that are written as calls write them, with their roll-ups: ten per lane and minute. Those
beyond are copies of them in the table alone, which a summary does not read.
"""
READS = 100


def summary(options: RunOptions) -> Iterator[Record]:
    """Reads between which something happened, at every size in turn."""
    sizes = [2_000] if options.is_quick else [10_000, 1_000_000, *([10_000_000] * options.is_huge)]
    reads = READS // 5 if options.is_quick else READS
    stores = {size: _filled(options.folder / f"{size}.db", size) for size in sizes}
    first = {size: _first(options.folder / f"{size}.db") for size in sizes}
    contestants = {
        size: Contestant(f"Ergon, {size:,} attempts", partial(_read, store, reads))
        for size, store in stores.items()
    }
    race(list(contestants.values()), options.rounds)
    for store in stores.values():
        store.close()
    target, least = CostTarget(p95_us=10_000.0), contestants[sizes[0]]
    for size, each in contestants.items():
        made = record(f"summary-{size}", each, None, target, by="wall")
        if each.skipped is None and least.skipped is None and each is not least:
            made |= ratio_to(each, least, "wall")
        yield made | {"first_ms": round(first[size] * 1e3, 1), "lanes": LANES}


def _read(store: ProviderStore, reads: int) -> Turn:
    """Before each read some lanes had a call, or the store would only remember."""
    service, latencies = ProviderHealthService(store), []
    cpu_time = 0.0
    for _ in range(reads):
        store.record(RecordBatch(attempts(LANES // 10, LANES)))
        cpu, began = time.process_time(), time.perf_counter()
        found = service.summary(TENANT)
        latencies.append(time.perf_counter() - began)
        cpu_time += time.process_time() - cpu
        if len(found["providers"]) != LANES:
            raise ContestantError(f"{len(found['providers'])} lanes instead of {LANES}")
    return Turn(reads, sum(latencies), latencies, cpu_time)


def _first(path: Path) -> float:
    """Seconds of the first read of a process, which has nothing to remember."""
    from ergon_framework.providers.stores.sql.store import SqlProviderStore
    from ergon_framework.providers.stores.sqlite import SqliteProviderDatabase

    store = SqlProviderStore(SqliteProviderDatabase(path))
    began = time.perf_counter()
    ProviderHealthService(store).summary(TENANT)
    seconds = time.perf_counter() - began
    store.close()
    return seconds


def _filled(path: Path, size: int) -> ProviderStore:
    store = open_store(f"sqlite:///{path}")
    recorded = min(size, RECORDED)
    for part in parts(attempts(recorded, LANES, span=HOUR), 2_000):
        store.record(RecordBatch(part))
    if size > recorded:
        store.close()
        _copy(path, recorded, size)
        store = open_store(f"sqlite:///{path}")
    return store


def _copy(path: Path, recorded: int, size: int) -> None:
    """Copy rows under new ids until there are so many, in a few large transactions."""
    names = ", ".join(AttemptRow._fields[1:])
    sql = (
        f"INSERT INTO {TABLE} (id, {names})"  # noqa: S608 - our own names
        f" SELECT 'copy-' || ? || '-' || rowid, {names} FROM {TABLE} WHERE id < 'row.' AND"
        " id >= 'row-' LIMIT ?"
    )
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        for number, start in enumerate(range(recorded, size, recorded)):
            connection.execute(sql, (number, min(recorded, size - start)))
