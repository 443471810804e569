"""Looking at jobs and queues: searches read in pages, and counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ergon_framework.core.job import JobStatus
from ergon_framework.jobs.stores.gates import Settings
from ergon_framework.jobs.stores.postgres.rows import jobs_from
from ergon_framework.jobs.stores.postgres.statements import statements, texts, writable
from ergon_framework.jobs.stores.postgres.words import Words
from ergon_framework.jobs.stores.queue_counts import listed
from ergon_framework.ports.jobstore import Job, Queue, Search

Read = Callable[[Callable[[Words], list[Job]]], list[Job]]
"""Runs something on what was committed last."""

PAGE = 200
_END = 2**63 - 1
_PLACES = {
    JobStatus.ACTIVE: "in_running",
    JobStatus.RETRYING: "in_retrying",
    JobStatus.FAILED: "in_dead",
    JobStatus.CANCELLED: "in_dead",
}
_FEW = ("in_ids", "in_running")
_SQL = statements("desk.sql")
_COUNTS = ("count_due", "count_later", "count_blocked", "count_running", "count_ended")


def search(read: Read, wanted: Search, limit: int | None) -> Iterator[Job]:
    """Matching jobs, the newest first; between pages nothing of the store is held."""
    statement, values = statement_of(wanted), _values(wanted)
    left = _END if limit is None else limit
    while left > 0:
        values["limit"] = min(PAGE, left)
        page = read(lambda words: jobs_from(words.say(statement, values)))
        yield from page
        if len(page) < PAGE:
            return
        left -= len(page)
        values["below"] = page[-1].key


def statement_of(wanted: Search) -> bytes:
    """What a search asks the server."""
    place = _place(wanted)
    where = _where(wanted, place)
    if place in _FEW:
        return b" ".join([_SQL["find_first"], *where, _SQL["then_newest"]])
    order = "newest_dead_first" if place == "in_dead" else "newest_first"
    return b" ".join([_SQL["jobs"], *where, _SQL["by_below"], _SQL[order]])


def count(words: Words, wanted: Search) -> int:
    """How many match."""
    parts = [b"SELECT count(*)", *_where(wanted, _place(wanted)), _SQL["by_below"]]
    return int(words.say(b" ".join(parts), _values(wanted)).fetchall()[0][0])


def _place(wanted: Search) -> str:
    """Where to look, so that few jobs have to be looked at."""
    if wanted.ids:
        return "in_ids"
    return _PLACES.get(wanted.statuses[0], "in_all") if len(wanted.statuses) == 1 else "in_all"


def _where(wanted: Search, place: str) -> list[bytes]:
    """The place, and what must match there."""
    filters = ["queue", "handler", "before", "code"]
    if place in ("in_all", "in_ids"):
        filters.append("statuses")
    found = [each for each in filters if getattr(wanted, each) not in (None, ())]
    return [_SQL[place], *(_SQL[f"by_{each}"] for each in found)]


def _values(wanted: Search) -> dict[str, Any]:
    statuses = [status.value for status in wanted.statuses]
    return {
        "below": _END if wanted.below is None else wanted.below,
        "ids": texts(wanted.ids),
        "status": statuses[0] if statuses else None,
        "statuses": texts(statuses),
        "queue": wanted.queue,
        "handler": wanted.handler,
        "before": wanted.before,
        "code": None if wanted.code is None else writable(wanted.code),
    }


def queues(words: Words, now: float) -> list[Queue]:
    """Every queue that has jobs or settings, with its counts."""
    counted = [words.say(_SQL[statement]) for statement in _COUNTS]
    tried_again = words.say(_SQL["count_retrying"])
    with_settings = words.say(_SQL["queues"])
    return listed(
        [row for each in counted for row in each.fetchall()],
        {name: number for name, _, number, _ in tried_again.fetchall()},
        {name: Settings(*row) for name, *row in with_settings.fetchall()},
        now,
    )
