"""Names of queues in an SQLite job store, and counts of their jobs that end at a bound."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from ergon_framework.core.claim import QueueLimits, limits_from
from ergon_framework.core.job import JobStatus
from ergon_framework.jobs.stores.bounded_counts import (
    MOST_PRIORITIES,
    BoundedCounts,
    first_name,
    next_names,
    status_counts,
)
from ergon_framework.jobs.stores.sqlite.rows import SQL
from ergon_framework.ports.jobstore import MOST_SAMPLED, Queue, StatusCounts
from ergon_framework.storage.sql_files import load

_SQL = load(SQL, "queue_counts.sql")
_SAMPLED = ("later", "blocked", "joining", "signalling", "retrying")
_WAITING = tuple(f"whole_{kind}" for kind in ("due", "later", "blocked", "joining", "signalling"))
_LISTED = tuple(f"listed_{kind}" for kind in ("later", "blocked", "joining", "signalling"))
_FROM = {
    name: {True: text.replace("{from}", ">"), False: text.replace("{from}", ">=")}
    for name, text in _SQL.items()
    if "{from}" in text
}


def queue_names(
    cursor: sqlite3.Cursor, now: float, *, prefix: str, after: str, limit: int, is_due: bool
) -> list[str]:
    """The next queues that have jobs or settings, or due jobs, in order."""
    place = first_name(prefix, after)
    found = _due_names(cursor, place, limit)
    for source in () if is_due else ("names_running", "names_ended", "names_set"):
        found += _column(cursor, _FROM[source][place[1]], (place[0], limit))
    sampled: tuple[str, ...] = ("later", "blocked", "joining", "signalling")
    if is_due:
        found += _column(cursor, _FROM["names_late"][place[1]], (place[0], MOST_SAMPLED, now))
        sampled = ("blocked",)
    for kind in sampled:
        found += _column(cursor, _FROM[f"names_{kind}"][place[1]], (place[0], MOST_SAMPLED))
    return next_names(found, prefix=prefix, after=after, limit=limit)


def _due_names(cursor: sqlite3.Cursor, place: tuple[str, bool], limit: int) -> list[str]:
    statement = _FROM["names_due"][place[1]]
    return [
        name
        for executor in _due_executors(cursor)
        for name in _column(cursor, statement, (executor, place[0], limit))
    ]


def _due_executors(cursor: sqlite3.Cursor) -> Iterator[str]:
    """Those that due jobs name; each step is one look into an index."""
    row = cursor.execute(_SQL["first_due_executor"]).fetchone()
    last = None
    # A name that is not UTF-8 is shown as another one, behind which it would be found again.
    while row is not None and (last is None or row[0] > last):
        last = row[0]
        yield last
        row = cursor.execute(_SQL["next_due_executor"], (last,)).fetchone()


def _column(cursor: sqlite3.Cursor, statement: str, values: Sequence[object]) -> list[str]:
    return [name for (name,) in cursor.execute(statement, values).fetchall()]


def look_at_queues(
    cursor: sqlite3.Cursor, names: Sequence[str], now: float, *, most: int, sample: int
) -> list[Queue]:
    """The given queues. Each state is counted up to a bound."""
    counts = BoundedCounts(names, most=most, sample=sample, now=now)
    executors = list(_due_executors(cursor))
    for name in names:
        told = cursor.execute(_SQL["told_apart"], (name, most + 1)).fetchone()
        counts.add_apart([(name, *told)])
        for executor in executors:
            number = _number(cursor, "due", executor, name, most + 1)
            if number:
                place = (executor, name, MOST_PRIORITIES)
                (oldest,) = cursor.execute(_SQL["oldest_due"], place).fetchone()
                counts.add_due([(name, number, oldest)])
    wanted = json.dumps(list(names))
    for kind in _SAMPLED:
        counts.add_samples(_sampled(cursor, kind, wanted, sample + 1))
    return counts.queues({name: limits for name in names if (limits := _limits(cursor, name))})


def _sampled(
    cursor: sqlite3.Cursor, kind: str, wanted: str, most: int
) -> list[tuple[Any, Any, int, Any]]:
    """Of so many jobs that wait in one way, those of the wanted queues, and the number of others.

    Rows of queues that nobody asked for would be most of the time that a look takes.
    """
    number = _number(cursor, f"whole_{kind}", most)
    if not number:
        return []
    found = cursor.execute(_SQL[f"sample_{kind}"], (most, wanted)).fetchall()
    return [*found, (kind, None, number - sum(row[2] for row in found), None)]


def _limits(cursor: sqlite3.Cursor, name: str) -> QueueLimits | None:
    row = cursor.execute(_SQL["settings"], (name,)).fetchone()
    return None if row is None else limits_from(row)


def _number(cursor: sqlite3.Cursor, statement: str, *values: object) -> int:
    number: int = cursor.execute(_SQL[statement], values).fetchone()[0]
    return number


def count_by_status(cursor: sqlite3.Cursor, *, most: int) -> StatusCounts:
    """The jobs of all queues by status, each counted up to a bound."""
    dead = {
        status: _number(cursor, "whole_dead", status, most + 1)
        for status in ("failed", "cancelled", "unreadable")
    }
    # Only queue by queue does an index have those that ended well: all ends are read up to a bound.
    bound = most + sum(dead.values()) + 1
    completed, ended = cursor.execute(_SQL["whole_ended"], (bound,)).fetchone()
    return status_counts(
        dead | {"completed": completed, "active": _number(cursor, "whole_running", most + 1)},
        [_number(cursor, each, most + 1) for each in _WAITING],
        _number(cursor, "whole_retrying", most + 1),
        most=most,
        cut=["completed"] if ended == bound else [],
    )


def numbers_in_queue(
    cursor: sqlite3.Cursor, queue: str, statuses: AbstractSet[JobStatus], most: int
) -> list[int] | None:
    """The rows of a queue in some states, the newest first; None where there are more than that.

    ``most`` is of those that have ended in one way, run or are due. Ten times as many may wait in
    each other way, in the whole store: no index has them by queue.
    """
    most, pool = most + 1, 10 * most + 1
    lists = [
        _seqs(cursor, "listed_ended", queue, status.value, most)
        for status in (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED)
        if status in statuses
    ]
    if JobStatus.ACTIVE in statuses:
        lists.append(_seqs(cursor, "listed_running", queue, most))
    if not statuses.isdisjoint({JobStatus.PENDING, JobStatus.RETRYING}):
        lists += [
            _seqs(cursor, "listed_due", executor, queue, most)
            for executor in list(_due_executors(cursor))
        ]
        for each in _LISTED:
            seqs, number = cursor.execute(_SQL[each], (queue, pool)).fetchone()
            if number == pool:
                return None
            lists.append(json.loads(seqs))
    if any(len(each) == most for each in lists):
        return None
    return sorted({seq for each in lists for seq in each}, reverse=True)


def _seqs(cursor: sqlite3.Cursor, statement: str, *values: object) -> list[int]:
    return [seq for (seq,) in cursor.execute(_SQL[statement], values).fetchall()]
