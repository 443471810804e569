"""Names of queues in a PostgreSQL job store, and counts of their jobs that end at a bound."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from ergon_framework.core.claim import QueueLimits
from ergon_framework.core.job import JobStatus
from ergon_framework.jobs.stores.bounded_counts import (
    MOST_PRIORITIES,
    BoundedCounts,
    first_name,
    next_names,
    status_counts,
)
from ergon_framework.jobs.stores.postgres.statements import statements, texts, writable
from ergon_framework.jobs.stores.postgres.transactions import PostgresTx
from ergon_framework.ports.jobstore import MOST_SAMPLED, Queue, StatusCounts

_SQL = statements("queue_counts.sql")
_FROM = {True: b">", False: b">="}
_TOLD_APART = _SQL["told_apart"]
for _status in ("completed", "failed", "cancelled", "unreadable"):
    _TOLD_APART = _TOLD_APART.replace(
        b"{%s}" % _status.encode(),
        _SQL["of_status"].replace(b"{status}", b"'%s'" % _status.encode()),
    )


def queue_names(tx: PostgresTx, *, prefix: str, after: str, limit: int, is_due: bool) -> list[str]:
    """The next queues that have jobs or settings, or due jobs, in order."""
    first, is_after = first_name(writable(prefix), writable(after))
    statement = _SQL["names_due" if is_due else "names"].replace(b"{from}", _FROM[is_after])
    found = tx.execute(statement, {"first": first, "limit": limit, "sample": MOST_SAMPLED})
    names = [name for (name,) in found.fetchall()]
    return next_names(names, prefix=prefix, after=after, limit=limit)


def look_at_queues(
    tx: PostgresTx, names: Sequence[str], now: float, *, most: int, sample: int
) -> list[Queue]:
    """The given queues. Each state is counted up to a bound."""
    counts = BoundedCounts(names, most=most, sample=sample, now=now)
    values = {
        "names": texts(names),
        "most": most + 1,
        "sample": sample + 1,
        "priorities": MOST_PRIORITIES,
    }
    apart, due, samples, settings = (
        tx.execute(each, values)
        for each in (_TOLD_APART, _SQL["due"], _SQL["samples"], _SQL["settings"])
    )
    counts.add_apart(apart.fetchall())
    counts.add_due(due.fetchall())
    counts.add_samples(samples.fetchall())
    return counts.queues({name: QueueLimits(*row) for name, *row in settings.fetchall()})


def count_by_status(tx: PostgresTx, *, most: int) -> StatusCounts:
    """The jobs of all queues by status, each counted up to a bound."""
    (row,) = tx.execute(_SQL["whole"], {"most": most + 1}).fetchall()
    active, failed, cancelled, unreadable, *waiting, retrying = row
    # Only queue by queue does an index have those that ended well: all ends are read up to a bound.
    bound = most + failed + cancelled + unreadable + 1
    ((completed, ended),) = tx.execute(_SQL["whole_ended"], {"bound": bound}).fetchall()
    apart = {"failed": failed, "cancelled": cancelled, "unreadable": unreadable}
    return status_counts(
        apart | {"completed": completed, "active": active},
        waiting,
        retrying,
        most=most,
        cut=["completed"] if ended == bound else [],
    )


def numbers_in_queue(
    tx: PostgresTx, queue: str, statuses: AbstractSet[JobStatus], most: int
) -> list[int] | None:
    """The rows of a queue in some states, the newest first; None where there are more than that.

    ``most`` is of those that have ended in one way, run or are due. Ten times as many may wait in
    each other way, in the whole store: no index has them by queue.
    """
    most, pool = most + 1, 10 * most + 1
    values = {"queue": writable(queue), "most": most}
    asked = [
        tx.execute(_SQL["listed_ended"], values | {"status": status.value})
        for status in (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED)
        if status in statuses
    ]
    if JobStatus.ACTIVE in statuses:
        asked.append(tx.execute(_SQL["listed_running"], values))
    waiting = None
    if not statuses.isdisjoint({JobStatus.PENDING, JobStatus.RETRYING}):
        asked.append(tx.execute(_SQL["listed_due"], values))
        waiting = tx.execute(_SQL["listed_waiting"], values | {"most": pool})
    lists = [[seq for (seq,) in each.fetchall()] for each in asked]
    for seqs, number in () if waiting is None else waiting.fetchall():
        if number == pool:
            return None
        lists.append(seqs or [])
    if any(len(each) == most for each in lists):
        return None
    return sorted({seq for each in lists for seq in each}, reverse=True)
