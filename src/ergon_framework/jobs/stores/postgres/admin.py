"""Admin operations on a PostgreSQL job store: search, counts, queues, purge and retention."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from ergon_framework.core.claim import QueueLimits
from ergon_framework.core.job import JobStatus
from ergon_framework.jobs.stores.documents import listed, named_in, options_text, text_of
from ergon_framework.jobs.stores.erasure import erased
from ergon_framework.jobs.stores.pages import (
    ABOVE_ALL,
    PAGE_SIZE,
    JobRowPage,
    jobs_in_pages,
    page_among,
)
from ergon_framework.jobs.stores.postgres.queue_counts import numbers_in_queue
from ergon_framework.jobs.stores.postgres.rows import page_of
from ergon_framework.jobs.stores.postgres.settle import SettleBatch, blocked_keys, try_keys, wake
from ergon_framework.jobs.stores.postgres.statements import numbers, statements, texts, writable
from ergon_framework.jobs.stores.postgres.transactions import PostgresTx
from ergon_framework.jobs.stores.transitions import WORKER_FORGOTTEN_AFTER, expire
from ergon_framework.jobs.stores.unreadable import SkippedRows
from ergon_framework.ports.jobstore import Job, Named, Queue, Search, Settlement


class PostgresRead(Protocol):
    """Runs a query on the data that was committed last."""

    def __call__(self, work: Callable[[PostgresTx], T], /) -> T:
        """The result."""


T = TypeVar("T")

MAX_SORTED = 10_000
"""As many jobs as are sorted for a page."""
_PLACES: Mapping[JobStatus, tuple[str, ...]] = {
    JobStatus.PENDING: ("in_due", "in_later", "in_blocked", "in_joining", "in_signalling"),
    JobStatus.ACTIVE: ("in_running",),
    JobStatus.RETRYING: ("in_retrying",),
    JobStatus.COMPLETED: ("in_completed",),
    JobStatus.FAILED: ("in_failed",),
    JobStatus.CANCELLED: ("in_cancelled",),
}
_PAGES = {
    "in_all": "newest_first",
    "in_flow": "newest_step_first",
    "in_tag": "newest_tagged_first",
    "in_retrying": "newest_first",
    "in_failed": "newest_dead_first",
    "in_cancelled": "newest_dead_first",
}
"""Places whose jobs are read from the newest on, and how. Elsewhere all are read, and sorted."""
_MANY = {"in_due": 2, "in_later": 3, "in_blocked": 4, "in_joining": 5, "in_completed": 0}
"""Stages of places that may hold almost all jobs, too many to be sorted."""
_SQL = statements("admin.sql")
_COUNTS = (
    *("count_due", "count_later", "count_blocked", "count_joining", "count_signalling"),
    *("count_running", "count_ended"),
)


def search_jobs(
    read: PostgresRead,
    wanted: Search,
    limit: int | None,
    log: SkippedRows,
    *,
    page_size: int = PAGE_SIZE,
    max_sorted: int = MAX_SORTED,
) -> Iterator[Job]:
    """Matching jobs, the newest first; see :func:`jobs_in_pages`."""
    statement, values = statement_of(wanted), values_of(wanted, max_sorted)
    if wanted.queue is not None and not (wanted.ids or wanted.flow is not None or wanted.labels):
        queue, statuses = wanted.queue, frozenset(wanted.statuses or JobStatus)
        listed_seqs = read(lambda tx: numbers_in_queue(tx, queue, statuses, max_sorted))
        if listed_seqs is not None:
            where = _where(wanted, "in_seqs")
            few = b" ".join([_SQL["jobs"], *where, _SQL["newest_first"]])

            def some(seqs: Sequence[int], size: int) -> JobRowPage:
                place = {"seqs": numbers(seqs), "limit": size}
                return read(lambda tx: page_of(tx.execute(few, values | place)))

            among = partial(page_among, listed_seqs, some)
            yield from jobs_in_pages(among, wanted.below, limit, log, page_size=page_size)
            return

    def page(size: int, below: int) -> JobRowPage:
        place = {"limit": size, "below": below}
        return read(lambda tx: page_of(tx.execute(statement, values | place)))

    yield from jobs_in_pages(page, wanted.below, limit, log, page_size=page_size)


def statement_of(wanted: Search) -> bytes:
    """The statement of a search."""
    places = _places(wanted)
    many = [_MANY[place] for place in places if place in _MANY]
    if len(places) == 1 and places[0] in _PAGES:
        return b" ".join([_SQL["jobs"], *_where(wanted, places[0]), *_page_of(places[0])])
    if not many:
        parts = [_part(wanted, place) for place in places]
        return b" ".join([_SQL["find_first"], b" UNION ALL ".join(parts), _SQL["then_newest"]])
    # Where there are many of them, a page of them is soon found from the newest job on.
    parts = [_part(wanted, place, _SQL["by_few"]) for place in places]
    parts.append(_part(wanted, "in_all", _SQL["by_many"]))
    few = b" AND ".join([_SQL["few"].replace(b"{stage}", b"%d" % stage) for stage in many])
    start = [_SQL["look_first"], few, _SQL["then_find"]]
    return b" ".join([*start, b" UNION ALL ".join(parts), _SQL["then_newest"]])


def count_jobs(tx: PostgresTx, wanted: Search) -> int:
    """How many jobs match."""
    counts = [
        b" ".join([b"(SELECT count(*)", *_where(wanted, place), _below(place), b")"])
        for place in _places(wanted)
    ]
    statement = b"SELECT " + b" + ".join(counts)
    return int(tx.execute(statement, values_of(wanted)).fetchall()[0][0])


def _places(wanted: Search) -> list[str]:
    """The indexes to read, so that few jobs have to be read. No job is in two of them."""
    if wanted.ids:
        return ["in_ids"]
    if wanted.flow is not None:
        return ["in_flow"]
    if wanted.labels:
        return ["in_tag"]
    statuses = frozenset(wanted.statuses)
    if not statuses or statuses == frozenset(JobStatus):
        return ["in_all"]
    return [place for status in JobStatus if status in statuses for place in _PLACES[status]]


def _part(wanted: Search, place: str, *conditions: bytes) -> bytes:
    """What of one place may be on a page that has jobs of several."""
    page = _page_of(place) if place in _PAGES else ()
    where = [*_where(wanted, place), *conditions]
    return b" ".join([b"(SELECT seq AS place", *where, *page, b")"])


def _page_of(place: str) -> tuple[bytes, bytes]:
    return _below(place), _SQL[_PAGES[place]]


def _below(place: str) -> bytes:
    return _SQL["by_below_tag" if place == "in_tag" else "by_below"]


def _where(wanted: Search, place: str) -> list[bytes]:
    """The place, and what must match there."""
    filters = ["queue", "handler", "before", "since", "until", "code", "error", "is_released"]
    if place != "in_flow":
        filters.append("flow")
    if place in ("in_all", "in_ids", "in_seqs", "in_flow", "in_tag"):
        filters.append("statuses")
    found = [each for each in filters if _is_set(getattr(wanted, each))]
    if _other_labels(wanted):
        found.append("labels")
    aside = [] if "statuses" in found or "statuses" not in filters else [_SQL["not_aside"]]
    return [_SQL[place], *(_SQL[f"by_{each}"] for each in found), *aside]


def _other_labels(wanted: Search) -> tuple[str, ...]:
    """Those by which jobs are not looked up."""
    return wanted.labels[1:] if _places(wanted) == ["in_tag"] else wanted.labels


def _is_set(value: object) -> bool:
    return value is not None and value is not False and value != ()


def values_of(wanted: Search, max_sorted: int = MAX_SORTED) -> dict[str, Any]:
    """What the statement of a search is executed with."""
    return {
        "few": max_sorted,
        "below": ABOVE_ALL if wanted.below is None else wanted.below,
        "ids": texts(wanted.ids),
        "statuses": texts([status.value for status in wanted.statuses]),
        "queue": wanted.queue,
        "handler": wanted.handler,
        "flow": wanted.flow,
        "before": wanted.before,
        "since": wanted.since,
        "until": wanted.until,
        "label": wanted.labels[0] if wanted.labels else None,
        "others": texts(_other_labels(wanted)),
        "code": _written("code", wanted.code),
        "error_code": _written("code", wanted.error),
        "error_kind": _written("kind", wanted.error),
    }


def _written(name: str, value: str | None) -> str | None:
    """How a field of the last failure stands in its JSON."""
    return None if value is None else f'"{name}":{text_of(writable(value))}'


def named_executors(tx: PostgresTx) -> list[Named]:
    """The executors that due jobs name."""
    lanes, seen = tx.execute(_SQL["named"]), tx.execute(_SQL["seen_executors"])
    return named_in(lanes.fetchall(), dict(seen.fetchall()))


def list_queues(tx: PostgresTx, now: float) -> list[Queue]:
    """Every queue that has jobs or settings, with its counts."""
    counted = [tx.execute(_SQL[statement]) for statement in _COUNTS]
    tried_again = tx.execute(_SQL["count_retrying"])
    with_settings = tx.execute(_SQL["queues"])
    return listed(
        [row for each in counted for row in each.fetchall()],
        {name: number for name, _, number, _ in tried_again.fetchall()},
        {name: QueueLimits(*row) for name, *row in with_settings.fetchall()},
        now,
    )


def purge_jobs(tx: PostgresTx, jobs: Sequence[Job]) -> int:
    """Delete ended jobs that have not changed since they were read."""
    return tx.execute(_SQL["purge"], _as_read(jobs)).rowcount


def erase_jobs(tx: PostgresTx, jobs: Sequence[Job], now: float) -> int:
    """Erase the content of ended jobs that have not changed since they were read."""
    left = [erased(job, now) for job in jobs]
    values = _as_read(jobs) | {
        "failures": texts([None if e.last_error is None else text_of(e.last_error) for e in left]),
        "histories": texts([b"\n".join(each.history).decode() for each in left]),
        "options": texts([options_text(each) for each in left]),
    }
    return int(tx.execute(_SQL["erase"], values).fetchall()[0][0])


def _as_read(jobs: Sequence[Job]) -> dict[str, Any]:
    """By what jobs are known that nobody has moved since."""
    return {
        "seqs": numbers([job.key for job in jobs]),
        "ids": texts([job.id for job in jobs]),
        "fences": numbers([job.fence for job in jobs]),
        "statuses": texts([job.status.value for job in jobs]),
        "finished": numbers([job.finished_at for job in jobs]),
    }


def purge_due(tx: PostgresTx, limit: int) -> int:
    """Delete what has been kept long enough."""
    # Most stores have no job that holds its key after its end, and need not look for those to keep.
    if tx.execute(_SQL["any_keys"]).fetchall():
        tx.execute(_SQL["keep_holders"], {"limit": limit})
    return tx.execute(_SQL["purge_due"], {"limit": limit}).rowcount


class Outdated(NamedTuple):
    """Jobs that were not started before their expiry."""

    number: int
    freed: Counter[str]  # limit keys for which others wait
    steps: list[Settlement]  # ends of steps, which only a transaction that holds their flows writes


def end_outdated(tx: PostgresTx, limit: int) -> Outdated:
    """Dead-letter what was not started before its expiry."""
    rows = tx.execute(_SQL["outdated"], {"limit": limit}).fetchall()
    ends = [expire(row[:8], row[8], tx.retention) for row in rows]
    batch = SettleBatch(tx, ends)
    applied = batch.read()
    # The rows are locked, so that only steps were not applied: the batch passes over them.
    steps = [end for end, was_applied in zip(ends, applied, strict=True) if not was_applied]
    return Outdated(len(rows), batch.effects.freed, steps)


def forget_idle(tx: PostgresTx, limit: int) -> int:
    """Forget limit keys with full buckets, and workers that have been silent for long: how many."""
    tx.execute(_SQL["forget_keys"], {"limit": limit})
    return tx.execute(_SQL["forget_workers"], {"age": WORKER_FORGOTTEN_AFTER}).rowcount


def wake_blocked(tx: PostgresTx, freed: Counter[str], after: str, limit: int) -> tuple[bool, str]:
    """Make blocked jobs due whose limit key is free, also where a wake-up was missed.

    Answers whether any goes, and after which key to look the next time: all have their turn.
    """
    keys = [row[0] for row in blocked_keys(tx, after, limit).fetchall()]
    last = keys[-1] if len(keys) == limit else ""
    both = Counter[str](keys)
    both |= freed
    if not both:
        return False, last
    try_keys(tx, both)  # a job that is missed because others hold its key: the next sweep's
    return bool(wake(tx, both).fetchall()), last
