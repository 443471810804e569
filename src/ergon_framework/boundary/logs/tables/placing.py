"""A log as another store has it: where its facts begin, and what came before them."""

from __future__ import annotations

from ergon_framework.boundary.logs.losses import NOBODY
from ergon_framework.boundary.logs.moving import refuse_other_log
from ergon_framework.boundary.logs.tables.ground import Books
from ergon_framework.boundary.logs.tables.rows import LogRow, log_named
from ergon_framework.boundary.logs.tables.runs import Run, last_run, view_of
from ergon_framework.ports.copies import LogCopy


def copy_of(books: Books, log: LogRow) -> LogCopy:
    """All that the kept facts of a log do not tell."""
    return LogCopy(
        log.id,
        log.name,
        log.first,
        log.base_chain,
        log.base_total,
        log.last_at if log.head < log.first else None,
        _latest_below(books, log),
    )


def place(books: Books, copy: LogCopy) -> None:
    """Let a log begin where the copy does; one that has facts from there on does so already."""
    log = log_named(books, copy.log)
    if log is None:
        books.run("moving.new_log", copy.number, copy.log)
        log = log_named(books, copy.log)
        assert log is not None  # noqa: S101 - it was just made
    refuse_other_log(copy, log.id, log.first)
    if log.head >= copy.first or copy_of(books, log) == copy:
        return
    for view, _ in books.all("moving.views", log.id):
        newest = last_run(books, view)
        if newest is not None and newest.last is None:
            books.run("logs.end_run", log.head, view, newest.first)
    for to_zone, offset in sorted(copy.latest.items()):
        _note_latest(books, log, to_zone, offset)
    base = (copy.first, copy.chain, copy.total, max(log.sealed, copy.first - 1), copy.last_at)
    books.run("moving.rebase", *base, log.id)


def _latest_below(books: Books, log: LogRow) -> dict[str, int]:
    """The last fact to each zone below the first that is kept."""
    found: dict[str, int] = {}
    for view, to_zone in books.all("moving.views", log.id):
        row = books.one("moving.first_run", view, log.first)
        run = last_run(books, view) if row is None else Run(*row)
        if run is not None and to_zone != NOBODY:
            end = log.head if run.last is None else run.last
            found[to_zone] = end if end < log.first else run.before(log.first)
    return {to_zone: offset for to_zone, offset in found.items() if offset}


def _note_latest(books: Books, log: LogRow, to_zone: str, offset: int) -> None:
    """The facts of a view that are gone count as a run of one: what follows hangs on it."""
    view = view_of(books, log, to_zone)
    if view is None:
        view = books.add("logs.new_view", log.id, to_zone)
    newest = last_run(books, view)
    last, count = 0, 0
    if newest is not None:
        last = log.head if newest.last is None else newest.last
        count = newest.rank + last - newest.first
    if last < offset:
        books.run("logs.new_run", view, offset, offset, count + 1, last)
