"""Facts on their way into logs, within one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain

from ergon_framework.boundary.logs.sqlite.ground import SQL
from ergon_framework.boundary.logs.sqlite.ledger import Ledger
from ergon_framework.boundary.logs.sqlite.records import Prepared, linked
from ergon_framework.boundary.logs.sqlite.rows import LogRow, Row
from ergon_framework.boundary.logs.sqlite.runs import Run, last_run, view_of
from ergon_framework.ports.factstore import (
    Appended,
    Conflict,
    Full,
    NewFact,
    Outcome,
    Reference,
    Unfounded,
)
from ergon_framework.storage.statements import load

_SQL = load(SQL, "logs.sql")
_OBJECTS = load(SQL, "objects.sql")

MOST_ROWS = 64
"""Rows of one statement: a power of two, with fewer values than any SQLite takes."""


@dataclass(slots=True)
class _View:
    """The facts of a log to one zone, and their newest run."""

    id: int
    run: Run | None
    is_new: bool = False
    """The run is not in the database yet."""


class Entry:
    """Decides fact by fact, remembers what is to be written, and writes it all at the end."""

    def __init__(self, cursor: sqlite3.Cursor, now: float, ledger: Ledger) -> None:
        self._cursor = cursor
        self._now = now
        self._ledger = ledger
        self._fresh: dict[bytes, tuple[int, NewFact]] = {}
        self._logs: dict[str, LogRow] = {}
        self._runs: dict[int, _View] = {}
        self._new_runs: list[Row] = []
        self._rows: list[Row] = []

    def append(self, log: str, facts: Sequence[Prepared], capacity: int | None) -> list[Outcome]:
        """Take in what is new, founded and fits."""
        found = self._log(log)
        outcomes: list[Outcome] = []
        for fact in facts:
            outcome = self._seen(found, fact)
            if outcome is None and (capacity is not None or fact.new.references):
                outcome = self._refused(found, fact, capacity)
                if isinstance(outcome, Full):
                    capacity = 0  # a smaller one behind it would change the order
            outcomes.append(outcome or self._add(found, fact))
        return outcomes

    def receive(self, log: str, facts: Sequence[Prepared]) -> list[Outcome]:
        """Take in what is new."""
        found = self._log(log)
        return [self._seen(found, fact) or self._add(found, fact) for fact in facts]

    def finish(self) -> int:
        """Write it all; how many facts that was."""
        if not self._rows:
            return 0
        cursor = self._cursor
        _insert(cursor, self._rows)
        for view in self._runs.values():
            if view.is_new and view.run is not None:
                self._new_runs.append(_run_row(view.id, view.run))
        if self._new_runs:
            cursor.executemany(_SQL["new_run"], self._new_runs)
        # Only now: had one of these statements failed, nobody would notice what was remembered.
        self._ledger.add_all(self._fresh)
        for log in self._logs.values():
            self._ledger.reach(log)
        return len(self._rows)

    def _log(self, name: str) -> LogRow:
        """A log as it is after what was taken in so far."""
        log = self._logs.get(name)
        if log is None:
            log = self._logs[name] = self._ledger.log(self._cursor, name)
        return log

    def _seen(self, log: LogRow, fact: Prepared) -> Outcome | None:
        """What the ledger has to say about it, if anything."""
        fresh = self._fresh.get(fact.key)
        envelope: bytes | None
        if fresh is not None:
            offset, digest, envelope = fresh[0], fresh[1].digest, fresh[1].envelope
        else:
            known = self._ledger.known(self._cursor, fact.key)
            if known is None:
                return None
            digest, offset = known
            row = self._cursor.execute(_SQL["identity"], (log.base + offset,)).fetchone()
            digest, envelope = row or (digest, None)
        if fact.new.digest[: len(digest)] != digest:
            return Conflict(offset, digest)
        return Appended(offset, True, envelope)

    def _refused(self, log: LogRow, fact: Prepared, capacity: int | None) -> Outcome | None:
        for reference in fact.new.references:
            found = self._object(reference)
            if found != reference:
                return Unfounded(reference, found)
        if capacity is not None and log.size + fact.size > capacity:
            return Full(log.size)
        return None

    def _object(self, wanted: Reference) -> Reference | None:
        values = (wanted.bucket, wanted.key)
        row = self._cursor.execute(_OBJECTS["object"], values).fetchone()
        return None if row is None else Reference(*row[:4])

    def _add(self, log: LogRow, fact: Prepared) -> Appended:
        new = fact.new
        if new.references:
            self._refer(new.references)
        view = log.views.get(new.to_zone) or self._view(log, new.to_zone)
        if view != log.view:
            self._turn(log, view)
        offset = log.head + 1
        number, total = log.base + offset, log.total + fact.size
        proof, log.chain = linked(number, total, self._now, fact, log.chain)
        self._rows.append((number, view, total, self._now, proof, new.envelope, new.fact))
        self._fresh[fact.key] = offset, new
        log.head, log.total, log.last_at = offset, total, self._now
        return Appended(offset)

    def _refer(self, references: Sequence[Reference]) -> None:
        for each in references:
            name = (each.bucket, each.key)
            if not self._cursor.execute(_OBJECTS["refer"], name).rowcount:
                self._cursor.execute(_OBJECTS["await"], name)

    def _view(self, log: LogRow, to_zone: str) -> int:
        view = view_of(self._cursor, log, to_zone)
        if view is None:
            self._cursor.execute(_SQL["new_view"], (log.id, to_zone))
            view = self._cursor.lastrowid or 0
        log.views[to_zone] = view
        return view

    def _turn(self, log: LogRow, number: int) -> None:
        """The facts to one zone end here, and those to another begin."""
        if log.view is not None:
            self._end_run(self._newest(log.view), log.head)
        view = self._newest(number)
        last, count = 0, 0
        if view.run is not None and view.run.last is not None:
            last, count = view.run.last, view.run.rank + view.run.last - view.run.first
        view.run, view.is_new = Run(log.head + 1, None, count + 1, last), True
        log.view = number

    def _end_run(self, view: _View, last: int) -> None:
        if view.run is None:
            return
        view.run.last = last
        if view.is_new:
            self._new_runs.append(_run_row(view.id, view.run))
            view.is_new = False
        else:
            self._cursor.execute(_SQL["end_run"], (last, view.id, view.run.first))

    def _newest(self, number: int) -> _View:
        view = self._runs.get(number)
        if view is None:
            view = self._runs[number] = _View(number, last_run(self._cursor, number))
        return view


def _insert(cursor: sqlite3.Cursor, rows: Sequence[Row]) -> None:
    """Write rows with few statements: after each, threads that wait would be let in between."""
    at = 0
    while left := len(rows) - at:
        count = min(1 << left.bit_length() - 1, MOST_ROWS)
        cursor.execute(_insert_of(count), [*chain.from_iterable(rows[at : at + count])])
        at += count


@cache
def _insert_of(count: int) -> str:
    """The statement for so many rows."""
    one = _SQL["insert_fact"]
    return one + f", {one[one.rindex('(') :]}" * (count - 1)


def _run_row(view: int, run: Run) -> Row:
    return (view, run.first, run.last, run.rank, run.previous)
