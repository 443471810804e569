"""Copies of a zone, out of tables and into them. What a store's ledger does is its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol, cast

from ergon_framework.boundary.factstore.hashchain import NOBODY, OFFSET_BITS, read_proof
from ergon_framework.boundary.factstore.parts import StoreParts
from ergon_framework.boundary.factstore.records import (
    bounded,
    corrupted,
    dump_books,
    refuse_other_log,
)
from ergon_framework.boundary.factstore.sql.log import SqlLog
from ergon_framework.boundary.factstore.sql.rows import (
    LAST,
    LogRow,
    ViewSegment,
    Zones,
    all_logs,
    fact_of,
    last_run,
    log_named,
    log_or_new,
    view_of,
)
from ergon_framework.boundary.factstore.sql.session import SqlDatabase, SqlSession, StoreIdentity
from ergon_framework.ports.factstore import Quarantined
from ergon_framework.ports.transfer import (
    AwaitedObjectRecord,
    C,
    ConsumerCursorRecord,
    FactIdRecord,
    FactRecord,
    Fence,
    GapRecord,
    JournalRecord,
    LinkRecord,
    LogRecord,
    ObjectNameRecord,
    QuarantineRecord,
    TransferRecord,
    ZoneEpochRecord,
)


def copy_of(session: SqlSession, log: LogRow) -> LogRecord:
    """Everything about a log that does not follow from its kept facts."""
    return LogRecord(
        log.id,
        log.name,
        log.first,
        log.base_chain,
        log.base_total,
        log.last_at if log.head < log.first else None,
        _latest_below(session, log),
    )


def place(session: SqlSession, copy: LogRecord) -> None:
    """Start a log at the offset at which the copy starts, unless it has facts from there on."""
    log = log_named(session, copy.log)
    if log is None:
        session.run("records.new_log", copy.number, copy.log)
        log = log_named(session, copy.log)
        assert log is not None  # noqa: S101 - it was just made
    refuse_other_log(copy, log.id, log.first)
    if log.head >= copy.first or copy_of(session, log) == copy:
        return
    for view, _ in session.all("records.views", log.id):
        newest = last_run(session, view)
        if newest is not None and newest.last is None:
            session.run("logs.end_run", log.head, view, newest.first)
    for to_zone, offset in sorted(copy.latest.items()):
        _note_latest(session, log, to_zone, offset)
    base = (copy.first, copy.chain, copy.total, max(log.sealed, copy.first - 1), copy.last_at)
    session.run("records.rebase", *base, log.id)


def _latest_below(session: SqlSession, log: LogRow) -> dict[str, int]:
    """The last fact to each zone below the first that is kept."""
    found: dict[str, int] = {}
    for view, to_zone in session.all("records.views", log.id):
        row = session.one("records.first_run", view, log.first)
        run = last_run(session, view) if row is None else ViewSegment(*row)
        if run is not None and to_zone != NOBODY:
            end = log.head if run.last is None else run.last
            found[to_zone] = end if end < log.first else run.before(log.first)
    return {to_zone: offset for to_zone, offset in found.items() if offset}


def _note_latest(session: SqlSession, log: LogRow, to_zone: str, offset: int) -> None:
    """The facts of a view that are gone count as a run of one: what follows hangs on it."""
    view = view_of(session, log, to_zone)
    if view is None:
        view = session.add("logs.new_view", log.id, to_zone)
    newest = last_run(session, view)
    last, count = 0, 0
    if newest is not None:
        last = log.head if newest.last is None else newest.last
        count = newest.rank + last - newest.first
    if last < offset:
        session.run("logs.new_run", view, offset, offset, count + 1, last)


class RecordEngine(Protocol):
    """What copying needs of the engine that keeps the facts and their ids."""

    def dump_ids(self, after: bytes, limit: int) -> list[FactIdRecord]:
        """Ids after a key, in order, those of kept facts included."""

    def load_ids(self, ids: Sequence[FactIdRecord]) -> None:
        """Write ids down that are not known yet, in one commit."""

    def load_facts(self, facts: Sequence[FactRecord]) -> None:
        """Append copied facts to their logs in one commit, without those that are there already."""

    def log_was_placed(self, session: Any) -> None:
        """Note, in the transaction, that the row of a log was set, if other processes cache it."""

    def freeze(self, place: str | None) -> None:
        """Refuse every write to the tables of the zone, or allow writes again."""


class SqlFactRecords:
    """Everything in the store as records: the part that a move copies."""

    def __init__(
        self,
        database: SqlDatabase,
        identity: StoreIdentity,
        log: SqlLog,
        engine: RecordEngine,
        parts: StoreParts,
    ) -> None:
        self._database = database
        self._identity = identity
        self._log = log
        self._engine = engine
        self._parts = parts

    def dump(self, kind: type[C], after: Any, limit: int) -> list[C]:
        """The records of a kind after a place, in order."""
        if kind is FactIdRecord:
            return cast("list[C]", self._engine.dump_ids(after or b"", limit))
        read = partial(_facts, self._database.place) if kind is FactRecord else _DUMPS.get(kind)
        if read is None:
            return dump_books(self._parts, kind, after, limit)
        return self._database.read(
            lambda session: list(bounded(read(session, after, limit), limit))
        )

    def load(self, records: Sequence[TransferRecord], fence: Fence | None = None) -> None:
        """Write records of one kind, in order."""
        with self._database.guard.set(_check_of(fence)):
            if isinstance(records[0], FactRecord):
                self._engine.load_facts(cast("Sequence[FactRecord]", records))
            elif isinstance(records[0], FactIdRecord):
                self._engine.load_ids(cast("Sequence[FactIdRecord]", records))
            else:
                self._load_books(records)

    def discard(self, records: Sequence[TransferRecord], fence: Fence | None = None) -> None:
        """Delete records of one kind, those of them that are there."""

        def work(session: SqlSession) -> None:
            for copy in records:
                _DISCARDS[type(copy)](session, copy)

        with self._database.guard.set(_check_of(fence)):
            self._database.write(work, "move")

    def move_state(self) -> bytes | None:
        """What was written down about a move into this store."""
        return self._database.read(_mark)

    def set_move_state(self, state: bytes | None, fence: Fence | None = None) -> None:
        """Write something down about a move into this store, or forget it."""

        def work(session: SqlSession) -> None:
            if fence is not None:
                fence.check_change(_mark(session), state)
            if state is None:
                session.run("records.unmark")
            else:
                session.run("records.set_mark", state)

        self._database.write(work, "move")

    def freeze(self, place: str | None, fence: Fence | None = None) -> None:
        """Refuse every write to the tables of the zone, or allow writes again."""
        with self._database.guard.set(_check_of(fence)):
            self._engine.freeze(place)

    def _load_books(self, records: Sequence[TransferRecord]) -> None:
        for copy in records:
            if isinstance(copy, LogRecord):
                # In commits of its own, each of a bounded size: the other store may have dropped
                # millions since the last attempt.
                self._log.cut(copy.log, copy.first - 1)

        def work(session: SqlSession) -> None:
            for copy in records:
                _LOADS[type(copy)](session, copy)
            if isinstance(records[0], LogRecord):
                self._engine.log_was_placed(session)

        self._database.write(work, "move")
        for copy in records:
            if isinstance(copy, ZoneEpochRecord):
                self._identity.info = copy.info


def _check_of(fence: Fence | None) -> Callable[[SqlSession], None] | None:
    """What each transaction of a move looks at first: those of two moves take turns."""
    return None if fence is None else lambda session: fence.check(_mark(session))


def _mark(session: SqlSession) -> bytes | None:
    row = session.one("records.mark")
    return None if row is None else bytes(row[0])


# ---- out ----------------------------------------------------------------------------------------


def _logs(session: SqlSession, after: int | None, _limit: int) -> Iterator[LogRecord]:
    logs = sorted(all_logs(session), key=lambda log: log.id)
    return (copy_of(session, log) for log in logs if log.id > (after or 0))


def _facts(
    place: str, session: SqlSession, after: tuple[int, int] | None, limit: int
) -> Iterator[FactRecord]:
    number, offset = after or (0, 0)
    names = {log.id: log.name for log in all_logs(session)}
    zones = Zones(session)
    for row in session.each("records.facts", (number << OFFSET_BITS) + offset, limit):
        number, offset = row[0] >> OFFSET_BITS, row[0] & LAST
        fact, proof = fact_of(row, zones[row[1]], offset - 1), read_proof(row[4])
        if fact is None or proof is None:
            raise corrupted(names[number], offset, place)
        yield FactRecord(number, names[number], fact, proof.chain)


def _items(session: SqlSession, after: int | None, limit: int) -> Iterator[QuarantineRecord]:
    for row in session.each("records.items", after or 0, limit):
        yield QuarantineRecord(Quarantined(*row[:-1]), bool(row[-1]))


def _awaited(
    session: SqlSession, after: tuple[str, str] | None, limit: int
) -> Iterator[AwaitedObjectRecord]:
    for row in session.all("records.awaited", *(after or ("", "")), limit):
        yield AwaitedObjectRecord(*row)


def _notes(session: SqlSession, after: int | None, limit: int) -> Iterator[JournalRecord]:
    start = after or 0
    for position, row in enumerate(session.all("records.notes", limit, start), start + 1):
        yield JournalRecord(position, *row)


_DUMPS: dict[type[TransferRecord], Callable[[SqlSession, Any, int], Iterator[Any]]] = {
    LogRecord: _logs,
    QuarantineRecord: _items,
    AwaitedObjectRecord: _awaited,
    JournalRecord: _notes,
}


# ---- in -----------------------------------------------------------------------------------------


def _put_gap(session: SqlSession, copy: GapRecord) -> None:
    gap = copy.gap
    place = (log_or_new(session, gap.log).id, gap.first, gap.last, gap.reason, gap.at)
    session.run("records.put_gap", *place, gap.source_first, gap.source_last)


def _put_consumer(session: SqlSession, copy: ConsumerCursorRecord) -> None:
    one = copy.consumer
    session.run(
        "records.put_consumer",
        *(one.name, log_or_new(session, one.log).id, one.cursor, one.to_zone, one.is_required),
        *(one.served, one.deliveries, one.holder, one.held_until, one.lease, one.created_at),
    )


def _put_item(session: SqlSession, copy: QuarantineRecord) -> None:
    item = copy.item
    session.run(
        "records.put_item",
        *(item.id, item.consumer, item.log, item.offset, item.reason, item.message),
        *(item.attempts, item.at, item.state, item.envelope, item.fact, copy.is_served),
    )


def _put_name(session: SqlSession, copy: ObjectNameRecord) -> None:
    kept = copy.object
    session.run("objects.arrived", kept.bucket, kept.key)
    about = (kept.digest, kept.size, kept.at, kept.is_referenced)
    session.run("records.put_name", kept.bucket, kept.key, *about)


def _put_awaited(session: SqlSession, copy: AwaitedObjectRecord) -> None:
    session.run("objects.await", copy.bucket, copy.key)


def _put_link(session: SqlSession, copy: LinkRecord) -> None:
    link = copy.link
    about = (link.offset, link.chain, link.is_sealed, link.reason, link.at)
    session.run("records.put_link", link.peer, link.epoch, *about)


def _put_note(session: SqlSession, copy: JournalRecord) -> None:
    if copy.position > session.only("records.note_count")[0]:
        session.run("store.note", copy.at, copy.action, copy.details)


def _put_zone(session: SqlSession, copy: ZoneEpochRecord) -> None:
    session.run("records.put_zone", copy.info.epoch, copy.info.created_at)


_LOADS: dict[type[TransferRecord], Callable[[SqlSession, Any], None]] = {
    LogRecord: place,
    GapRecord: _put_gap,
    ConsumerCursorRecord: _put_consumer,
    QuarantineRecord: _put_item,
    ObjectNameRecord: _put_name,
    AwaitedObjectRecord: _put_awaited,
    LinkRecord: _put_link,
    JournalRecord: _put_note,
    ZoneEpochRecord: _put_zone,
}


# ---- away ---------------------------------------------------------------------------------------


def _drop_gap(session: SqlSession, copy: GapRecord) -> None:
    gap = copy.gap
    log = log_or_new(session, gap.log).id
    session.run("records.drop_gap", log, gap.first, gap.last, gap.reason, gap.at)


_DISCARDS: dict[type[TransferRecord], Callable[[SqlSession, Any], Any]] = {
    GapRecord: _drop_gap,
    ConsumerCursorRecord: lambda session, copy: session.run("consumers.delete", copy.sort_key),
    QuarantineRecord: lambda session, copy: session.run("records.drop_item", copy.sort_key),
    ObjectNameRecord: lambda session, copy: session.run("objects.unbind", *copy.sort_key),
    AwaitedObjectRecord: lambda session, copy: session.run("objects.arrived", *copy.sort_key),
    LinkRecord: lambda session, copy: session.run("records.drop_link", copy.sort_key),
}
