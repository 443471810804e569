"""Admin operations on an SQLite job store: search, counts, queues, purge and retention."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from ergon_framework.core.claim import limits_from
from ergon_framework.core.job import JobStatus
from ergon_framework.jobs.stores.documents import listed, named_in, options_text, text_of
from ergon_framework.jobs.stores.erasure import erased
from ergon_framework.jobs.stores.pages import (
    ABOVE_ALL,
    MOST_LISTED,
    JobRowPage,
    jobs_in_pages,
    page_among,
)
from ergon_framework.jobs.stores.sqlite.flow_tables import purge_flows
from ergon_framework.jobs.stores.sqlite.queue_counts import numbers_in_queue
from ergon_framework.jobs.stores.sqlite.rows import SQL, lossy_if_misread, page_of
from ergon_framework.jobs.stores.sqlite.transitions import SqliteTransitions
from ergon_framework.jobs.stores.transitions import WORKER_FORGOTTEN_AFTER
from ergon_framework.jobs.stores.unreadable import UNREADABLE, SkippedRows
from ergon_framework.ports.jobstore import Job, Named, PruneResult, Queue, Search
from ergon_framework.storage.sql_files import load


class SqliteRead(Protocol):
    """Runs a query on the data that was committed last."""

    def __call__(self, work: Callable[[sqlite3.Cursor], T], /) -> T:
        """The result."""


T = TypeVar("T")
_PLACES = {
    JobStatus.ACTIVE: "in_running",
    JobStatus.RETRYING: "in_retrying",
    JobStatus.FAILED: "in_dead",
    JobStatus.CANCELLED: "in_dead",
}
_SQL = load(SQL, "admin.sql")
_COUNTS = (
    *("count_due", "count_later", "count_blocked", "count_steps", "count_running"),
    "count_ended",
)


def search_jobs(
    read: SqliteRead,
    wanted: Search,
    limit: int | None,
    log: SkippedRows,
    *,
    most_listed: int = MOST_LISTED,
) -> Iterator[Job]:
    """Matching jobs, the newest first; see :func:`jobs_in_pages`."""
    statement, values = statement_of(wanted), _values(wanted)
    if wanted.queue is not None and _place(wanted) not in ("in_ids", "in_flow", "in_tag"):
        queue, statuses = wanted.queue, frozenset(wanted.statuses or JobStatus)
        numbers = read(lambda cursor: numbers_in_queue(cursor, queue, statuses, most_listed))
        if numbers is not None:
            few = " ".join(_SQL[each] for each in ("jobs", "in_seqs", "matching", "newest_first"))

            def some(seqs: Sequence[int], size: int) -> JobRowPage:
                place = {"seqs": text_of(seqs), "limit": size}
                return read(lambda cursor: page_of(cursor, few, values | place))

            yield from jobs_in_pages(partial(page_among, numbers, some), wanted.below, limit, log)
            return

    def page(size: int, below: int) -> JobRowPage:
        place = {"limit": size, "below": below}
        return read(lambda cursor: page_of(cursor, statement, values | place))

    yield from jobs_in_pages(page, wanted.below, limit, log)


def statement_of(wanted: Search) -> str:
    """The statement of a search."""
    place = _place(wanted)
    page = "newest_tagged_first" if place == "in_tag" else "newest_first"
    pieces = ("jobs", place, "matching", page)
    return " ".join(_SQL[piece] for piece in pieces)


def count_jobs(cursor: sqlite3.Cursor, wanted: Search) -> int:
    """How many jobs match."""
    statement = " ".join((_SQL["number"], _SQL[_place(wanted)], _SQL["matching"]))
    number: int = cursor.execute(statement, _values(wanted)).fetchone()[0]
    return number


def _place(wanted: Search) -> str:
    """The index to read, so that few jobs have to be read."""
    if wanted.ids:
        return "in_ids"
    if wanted.flow is not None:
        return "in_flow"
    if wanted.labels:
        return "in_tag"
    if len(wanted.statuses) == 1:
        return _PLACES.get(wanted.statuses[0], "in_all")
    return "in_all"


def _values(wanted: Search) -> dict[str, Any]:
    statuses = [status.value for status in wanted.statuses]
    labels = wanted.labels
    is_by_tag = _place(wanted) == "in_tag"
    others = labels[1:] if is_by_tag else labels
    return {
        "below": ABOVE_ALL if wanted.below is None else wanted.below,
        "ids": text_of(wanted.ids),
        "status": statuses[0] if statuses else None,
        "statuses": text_of(statuses) if statuses else None,
        "queue": wanted.queue,
        "handler": wanted.handler,
        "flow": wanted.flow,
        "is_released": wanted.is_released,
        "before": wanted.before,
        "since": wanted.since,
        "until": wanted.until,
        "label": labels[0] if is_by_tag else None,
        "labels": text_of(others) if others else None,
        "code": wanted.code,
        "error": wanted.error,
        "aside": UNREADABLE,
    }


def named_executors(cursor: sqlite3.Cursor) -> list[Named]:
    """The executors that due jobs name, from one to the next."""
    seen = dict(cursor.execute(_SQL["seen_executors"]).fetchall())
    return named_in(list(_pairs(cursor, "next_named_queue", "next_named")), seen)


def list_queues(cursor: sqlite3.Cursor, now: float) -> list[Queue]:
    """Every queue that has jobs or settings, with its counts."""
    return lossy_if_misread(cursor, lambda cursor: _queues(cursor, now))


def _queues(cursor: sqlite3.Cursor, now: float) -> list[Queue]:
    counted = [row for each in _COUNTS for row in cursor.execute(_SQL[each]).fetchall()]
    retrying = {name: number for name, _, number, _ in cursor.execute(_SQL["count_retrying"])}
    settings = {name: limits_from(row) for name, *row in cursor.execute(_SQL["queues"])}
    return listed(counted, retrying, settings, now)


def prune_jobs(tx: SqliteTransitions, limit: int, *, purges: bool) -> PruneResult:
    """Delete jobs, end expired ones, forget dead workers, and wake jobs whose limit key is free."""
    purged = 0
    if purges:
        purged = _purge_due(tx, limit)
        purged += purge_flows(tx, limit - purged)
    tx.flows.do_slice()
    outdated = _end_outdated(tx, limit - purged)
    tx.cursor.execute(_SQL["forget_workers"], (tx.now - WORKER_FORGOTTEN_AFTER,))
    workers = tx.cursor.rowcount
    tx.wake_keys(limit)
    tx.cursor.execute(_SQL["forget_keys"], (tx.now, limit))
    return PruneResult(purged, outdated, workers, purged + outdated >= limit)


def purge_jobs(tx: SqliteTransitions, jobs: Sequence[Job]) -> int:
    """Delete ended jobs that have not changed since they were read."""
    if not jobs:
        return 0
    tx.cursor.executemany(
        _SQL["purge"],
        [(job.key, job.id, job.fence, job.status.value, job.finished_at) for job in jobs],
    )
    return tx.cursor.rowcount


def erase_jobs(tx: SqliteTransitions, jobs: Sequence[Job]) -> int:
    """Erase the content of ended jobs that have not changed since they were read."""
    number = 0
    for job in jobs:
        left = erased(job, tx.now)
        failure = None if left.last_error is None else text_of(left.last_error)
        history = b"\n".join(left.history).decode()
        values = (left.args, left.kwargs, failure, history, options_text(left))
        place = (job.key, job.id, job.fence, job.status.value, job.finished_at)
        if tx.cursor.execute(_SQL["erase"], (*values, *place)).rowcount == 1:
            tx.cursor.execute(_SQL["erase_payload"], (job.key,))
            tx.cursor.execute(_SQL["erase_tags"], (job.key,))
            tx.cursor.execute(_SQL["erase_key"], (job.key,))
            number += 1
    return number


def _purge_due(tx: SqliteTransitions, limit: int) -> int:
    seqs: list[int] = []
    for queue, status in ended_statuses(tx.cursor):
        if len(seqs) >= limit:
            break
        values = (queue, status, tx.now, limit - len(seqs))
        seqs += [seq for (seq,) in tx.cursor.execute(_SQL["kept_long_enough"], values)]
    # Most stores have no such key, and need not look at each job.
    if seqs and tx.cursor.execute(_SQL["any_unique_key"]).fetchone() is not None:
        seqs = [seq for seq in seqs if not _is_kept(tx, seq)]
    if seqs:
        tx.cursor.executemany(_SQL["delete"], [(seq,) for seq in seqs])
    return len(seqs)


def _is_kept(tx: SqliteTransitions, seq: int) -> bool:
    """Whether a job holds its unique key for longer, and is therefore kept until then."""
    return tx.cursor.execute(_SQL["keep_holder"], (seq, tx.now)).rowcount == 1


def ended_statuses(cursor: sqlite3.Cursor) -> Iterator[tuple[str, str]]:
    """The queues and states in which jobs have ended."""
    return _pairs(cursor, "next_ended_status", "next_ended")


def _pairs(cursor: sqlite3.Cursor, beside: str, after: str) -> Iterator[tuple[str, str]]:
    """From pair to pair: ``beside`` finds the next of the same first value, ``after`` of others."""
    # Each step is one look into an index; a DISTINCT would read every job.
    pair = None
    while row := (
        (pair and cursor.execute(_SQL[beside], pair).fetchone())
        or cursor.execute(_SQL[after], pair[:1] if pair else ("",)).fetchone()
    ):
        pair = row
        yield pair


def _end_outdated(tx: SqliteTransitions, limit: int) -> int:
    rows = tx.cursor.execute(_SQL["outdated"], (tx.now, limit)).fetchall()
    for row in rows:
        tx.end_outdated(row)
    return len(rows)
