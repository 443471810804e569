"""Facts on their way into the tables of logs, within one transaction.

Also here: what a peer sent, and what it lost, on the way into its inbound log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from ergon_framework.boundary.factstore import hashchain
from ergon_framework.boundary.factstore.append_plan import AppendPlanner, Condition, KnownFact
from ergon_framework.boundary.factstore.consumers import conflicting
from ergon_framework.boundary.factstore.hashchain import (
    PreparedFact,
    linked,
    next_chain,
    prepare,
    proof_chain,
    relinked,
    repaired_row,
)
from ergon_framework.boundary.factstore.records import refuse_hole, refuse_other_chain
from ergon_framework.boundary.factstore.sql import consumers
from ergon_framework.boundary.factstore.sql.objects_and_links import link_to
from ergon_framework.boundary.factstore.sql.rows import (
    LAST,
    LogRow,
    ViewSegment,
    log_or_new,
    seal_in,
)
from ergon_framework.boundary.factstore.sql.session import Row, SqlSession
from ergon_framework.core.zone_link import leads_to
from ergon_framework.ports.factstore import (
    INBOUND,
    Appended,
    AppendOutcome,
    Conflict,
    Gap,
    Link,
    NewFact,
    Quarantined,
    Reference,
)
from ergon_framework.ports.transfer import FactRecord

Identity: TypeAlias = tuple[int, bytes, Row | None]
"""Where a fact lies, its digest or the half that is known, and its row when it is kept."""


@dataclass(slots=True)
class ZoneView:
    """The facts of a log to one zone, and their newest run."""

    id: int
    run: ViewSegment | None
    is_new: bool = False
    """The run is not in the database yet."""


class LogTables(Protocol):
    """The tables of an engine within one transaction, as far as appending facts needs them."""

    def log(self, name: str) -> LogRow:
        """A log as it is after what was placed so far."""

    def known(self, log: LogRow, key: bytes) -> Identity | None:
        """What the ledger has to say about an id, if anything."""

    def stored(self, number: int) -> Row | None:
        """A row as it is in the database."""

    def zone_of(self, view: int) -> str | None:
        """Where the facts of a view go."""

    def write_back(self, row: Row) -> None:
        """Overwrite the stored row that has the number of this one."""

    def object(self, wanted: Reference) -> Reference | None:
        """What a name stands for."""

    def refer(self, references: Sequence[Reference]) -> None:
        """A fact refers to these from now on."""

    def view(self, log: LogRow, to_zone: str) -> int:
        """The number of a view that this log has not been asked for yet."""

    def last_run(self, view: int) -> ViewSegment | None:
        """The newest stored segment of a view."""

    def write_end(self, view: ZoneView, run: ViewSegment) -> None:
        """A run that is written down has ended."""


class RowPlacement:
    """Facts that become rows of tables: places them, and remembers what is to be written."""

    __slots__ = ("_new_runs", "_tables", "_views", "fresh", "log", "now", "object", "rows")

    def __init__(
        self, now: float, tables: LogTables, views: dict[int, ZoneView] | None = None
    ) -> None:
        self.now = now
        self.rows: list[Row] = []
        self.fresh: dict[bytes, tuple[int, NewFact]] = {}
        """The fact of each row by its key, in the order of the rows."""
        self._tables = tables
        self._views: dict[int, ZoneView] = {} if views is None else views
        self._new_runs: list[Row] = []
        self.log = tables.log
        self.object = tables.object

    def size(self, log: LogRow) -> int:
        """The bytes that a log keeps."""
        return log.size

    def known(self, log: LogRow, fact: PreparedFact) -> KnownFact | None:
        """What lies under the id of a fact; what is damaged is repaired by it, if it can be."""
        known = self._tables.known(log, fact.key)
        if known is None:
            return None
        offset, digest, row = known
        if row is None:
            return KnownFact(offset, digest, Condition.GONE)
        if self._is_intact(log, row, fact):
            return KnownFact(offset, digest, Condition.INTACT, row[5])
        repaired = self._repaired(log, row, fact)
        if repaired is None:
            return KnownFact(offset, digest, Condition.DAMAGED)
        self._tables.write_back(repaired)
        return KnownFact(offset, digest, Condition.REPAIRED, repaired[5])

    def place(self, log: LogRow, fact: PreparedFact) -> int:
        """Append a new fact to a log; returns its offset."""
        new = fact.new
        if new.references:
            self._tables.refer(new.references)
        view = self._view_to(log, new.to_zone)
        if view != log.view:
            self._turn(log, view)
        offset = log.head + 1
        number, total = log.base + offset, log.total + fact.size
        proof, log.chain = linked(number, total, self.now, fact, log.chain)
        self.rows.append((number, view, total, self.now, proof, new.envelope, new.fact))
        self.fresh[fact.key] = offset, new
        log.head, log.total, log.last_at = offset, total, self.now
        return offset

    def load(self, copy: FactRecord, fact: PreparedFact) -> None:
        """Append a fact of another store at the offset that it has there, unless it is here
        already.
        """
        log = self.log(copy.log)
        # A move that goes on after it was cut off brings its last page again.
        if copy.fact.offset <= log.head:
            return
        refuse_hole(copy, log.head)
        # The instant is part of the seal. With another one the chain would not be the one of the
        # copy.
        self.now = copy.fact.recorded_at
        self.place(log, fact)
        refuse_other_chain(copy, log.chain)

    def runs_to_write(self) -> list[Row]:
        """Every run that is not in the database yet."""
        for view in self._views.values():
            if view.is_new and view.run is not None:
                self._new_runs.append(_run_row(view.id, view.run))
                view.is_new = False
        return self._new_runs

    def _is_intact(self, log: LogRow, row: Row, fact: PreparedFact) -> bool:
        """Whether the stored row of a duplicate is undamaged."""
        zone = fact.new.to_zone
        return seal_in(row, zone) is not None and row[1] == self._view_to(log, zone)

    def _repaired(self, log: LogRow, row: Row, fact: PreparedFact) -> Row | None:
        """A damaged row as it was, when its mark or the hash chain shows that it was so."""
        number, _, total, at, proof, *stored = row[:7]
        zone, content = fact.new.to_zone, (stored[0], stored[1])
        pair = repaired_row(number, total, at, proof, content, fact)
        if pair is None:
            before = self._place_before(log, number)
            if before is None:
                return None
            found = relinked(
                number, at, before, lambda chain: self._leads_on(log, row, chain), content, fact
            )
            if found is None:
                return None
            total, proof, pair = found
        return number, self._view_to(log, zone), total, at, proof, *pair

    def _place_before(self, log: LogRow, number: int) -> tuple[bytes, int] | None:
        """The hash chain and the log's bytes before a row; None when they are not known."""
        if number & LAST == log.first:
            return log.base_chain, log.base_total
        row = self._tables.stored(number - 1)
        if row is None or not isinstance(row[2], int):
            return None
        return proof_chain(row[4]), row[2]

    def _leads_on(self, log: LogRow, row: Row, chain: bytes) -> bool:
        """Whether the chain after a row is the one that was there, by the row or what follows."""
        number = row[0]
        if chain == proof_chain(row[4]) or (number & LAST, chain) == (log.head, log.chain):
            return True
        following = self._tables.stored(number + 1)
        zone = None if following is None else self._tables.zone_of(following[1])
        seal = None if following is None or zone is None else seal_in(following, zone)
        if following is None or seal is None:
            return False
        return next_chain(chain, seal) == proof_chain(following[4])

    def _view_to(self, log: LogRow, zone: str) -> int:
        view = log.views.get(zone)
        if view is None:
            view = log.views[zone] = self._tables.view(log, zone)
        return view

    def _turn(self, log: LogRow, number: int) -> None:
        """End the view segment of one zone, and begin that of another."""
        if log.view is not None:
            self._end_run(self._newest(log.view), log.head)
        view = self._newest(number)
        last, count = 0, 0
        if view.run is not None and view.run.last is not None:
            last, count = view.run.last, view.run.rank + view.run.last - view.run.first
        view.run, view.is_new = ViewSegment(log.head + 1, None, count + 1, last), True
        log.view = number

    def _end_run(self, view: ZoneView, last: int) -> None:
        if view.run is None:
            return
        view.run.last = last
        if view.is_new:
            self._new_runs.append(_run_row(view.id, view.run))
            view.is_new = False
        else:
            self._tables.write_end(view, view.run)

    def _newest(self, number: int) -> ZoneView:
        view = self._views.get(number)
        if view is None:
            view = self._views[number] = ZoneView(number, self._tables.last_run(number))
        return view


def _run_row(view: int, run: ViewSegment) -> Row:
    return (view, run.first, run.last, run.rank, run.previous)


@dataclass(slots=True)
class Arrival:
    """A page of a peer and all that can be worked out before a transaction begins."""

    link: Link
    log: str
    entries: list[hashchain.ChainEntry]
    prepared: list[PreparedFact]
    refused: Sequence[Quarantined]


def arrival(
    peer: str,
    facts: Sequence[NewFact],
    link: Link,
    refused: Sequence[Quarantined],
    gaps: Sequence[Gap],
) -> Arrival:
    """Sort facts and losses by offset, and prepare them."""
    log = INBOUND + peer
    entries = hashchain.in_order(facts, gaps)
    new = [hashchain.marker(each) if isinstance(each, Gap) else each for each in entries]
    return Arrival(link, log, entries, [prepare(log, each) for each in new], refused)


def take_in(
    session: SqlSession, planner: AppendPlanner[LogRow], peer: str, arrived: Arrival, now: float
) -> list[AppendOutcome]:
    """Insert what is absent, set the rest aside, move the link; the outcomes of the facts."""
    outcomes: list[AppendOutcome] = []
    found = planner.receive(arrived.log, arrived.prepared) if arrived.prepared else []
    for each, outcome in zip(arrived.entries, found, strict=True):
        if isinstance(each, Gap):
            _record(session, arrived.log, each, outcome)
            continue
        outcomes.append(outcome)
        if isinstance(outcome, Conflict):
            consumers.keep(session, conflicting(peer, arrived.log, each, now))
    for item in arrived.refused:
        consumers.keep(session, item, consumer=f"pull:{peer}")
    link = arrived.link
    # Another node of the zone may have taken in a later page since this one was fetched.
    if leads_to(link_to(session, peer), link):
        session.run("store.move", peer, link.epoch, link.offset, link.chain, link.at)
    return outcomes


def _record(session: SqlSession, log: str, gap: Gap, outcome: AppendOutcome) -> None:
    """Write a loss down where its marker lies, unless it is there already."""
    if not isinstance(outcome, Appended) or outcome.is_duplicate:
        return
    kept = hashchain.recorded(gap, log, outcome.offset)
    place = (log_or_new(session, log).id, kept.first, kept.last)
    about = (kept.reason, kept.at, kept.source_first, kept.source_last)
    session.run("logs.add_peer_gap", *place, *about)
