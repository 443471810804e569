"""How many rows the writer takes per second, beside a bare batched insert into the same table."""

from __future__ import annotations

import itertools
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

from comparison import Contestant, ContestantError, Record, RunOptions, Turn, race

from ergon_framework.ports.providerstore import ProviderStore
from ergon_framework.providers import open_store
from ergon_framework.providers.recorder import Recorder
from provider_parts.attempt_rows import TABLE, attempts, bare, insertion, parts
from provider_parts.costs import CostTarget, contestant, records
from provider_parts.postgres import opened, postgres

BATCH = 500
LANES = 20
_numbers = itertools.count(1)


def writer(options: RunOptions) -> Iterator[Record]:
    """Rows handed over one by one until the last is in the store."""
    count = max(1_000, int(20_000 * options.seconds))
    ours = Contestant("Ergon", partial(_into_file, options.folder, count))
    theirs = Contestant("bare sqlite3", partial(_bare_sqlite, options.folder, count))
    race([ours, theirs], options.rounds)
    yield from _writer_records("writer-sqlite", ours, theirs, CostTarget(rate=20_000))
    with postgres(options) as url:
        ours = contestant("Ergon", lambda: _into_server(url(), count))
        theirs = contestant("bare psycopg", lambda: _bare_postgres(url(), count))
        race([ours, theirs], options.rounds)
        if ours.skipped is None:
            opened(url()).close()
        yield from _writer_records("writer-postgres", ours, theirs, CostTarget(rate=10_000))


def _writer_records(
    case: str, ours: Contestant, theirs: Contestant, target: CostTarget
) -> list[Record]:
    return records(case, ours, [(theirs, CostTarget(least=0.3))], target, by="rate")


def _into_file(folder: Path, count: int) -> Turn:
    """Into a new file each time: an index that grows would slow down whoever comes last."""
    store = open_store(f"sqlite:///{_fresh(folder)}")
    try:
        return _recorded(store, count)
    finally:
        store.close()


def _into_server(url: str, count: int) -> Callable[[], Turn]:
    store = opened(url)

    def turn() -> Turn:
        _empty(url)
        return _recorded(store, count)

    return turn


def _recorded(store: ProviderStore, count: int) -> Turn:
    rows = [[row] for row in attempts(count, LANES)]
    recorder = Recorder(store, spill=None)
    cpu_time, began = time.process_time(), time.perf_counter()
    for row in rows:
        recorder.add(row)
    is_done = recorder.flush(120.0)
    turn = Turn(count, time.perf_counter() - began, cpu_time=time.process_time() - cpu_time)
    stats = recorder.stats()
    recorder.close()
    if not is_done or stats.written_rows != count:
        raise ContestantError(f"not every row was written: {stats}")
    return turn


def _bare_sqlite(folder: Path, count: int) -> Turn:
    path = _fresh(folder)
    open_store(f"sqlite:///{path}").close()  # the same table with the same indexes
    rows, sql = bare(attempts(count, LANES), is_text=True), insertion("?")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        cpu_time, began = time.process_time(), time.perf_counter()
        for part in parts(rows, BATCH):
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(sql, part)
            connection.execute("COMMIT")
        return Turn(count, time.perf_counter() - began, cpu_time=time.process_time() - cpu_time)


def _bare_postgres(url: str, count: int) -> Callable[[], Turn]:
    import psycopg

    opened(url)
    sql = insertion("%s").encode()

    def turn() -> Turn:
        _empty(url)
        rows = bare(attempts(count, LANES), is_text=False)
        with psycopg.connect(url) as connection, connection.cursor() as cursor:
            cpu_time, began = time.process_time(), time.perf_counter()
            for part in parts(rows, BATCH):
                cursor.executemany(sql, part)
                connection.commit()
            return Turn(count, time.perf_counter() - began, cpu_time=time.process_time() - cpu_time)

    return turn


def _empty(url: str) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"TRUNCATE {TABLE}, provider_metric_rollups".encode())


def _fresh(folder: Path) -> Path:
    return folder / f"rows-{next(_numbers)}.db"
