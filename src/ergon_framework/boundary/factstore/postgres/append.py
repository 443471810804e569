"""Facts on their way into logs, within one transaction and few round trips.

An append locks the rows of its logs, so that no other process can append there until it commits.
What it read and wrote is cached for the next append, and valid as long as the log's row is the
same.

When few producers append at once, groups are small, and the driver's work around each statement
costs more than the facts. So statements are sent by the driver's lowest layer, libpq, as one
pipeline in one round trip.
"""

from __future__ import annotations

import select
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias
from weakref import WeakKeyDictionary

import psycopg
from psycopg.errors import error_from_result
from psycopg.pq import DiagnosticField, ExecStatus, Format
from psycopg.pq.abc import PGconn, PGresult

from ergon_framework.boundary.factstore.append_plan import Append, AppendPlanner
from ergon_framework.boundary.factstore.postgres.session import PostgresSession
from ergon_framework.boundary.factstore.sql.append import Identity, RowPlacement, ZoneView
from ergon_framework.boundary.factstore.sql.rows import (
    LAST,
    LogRow,
    ViewSegment,
    last_run,
    log_or_new,
    view_of,
)
from ergon_framework.boundary.factstore.sql.session import Row
from ergon_framework.ports.factstore import (
    AppendOutcome,
    BeforeWait,
    CapacityExceeded,
    MissingReference,
    Reference,
)
from ergon_framework.storage.postgres.pipeline import Bigints, ByteaArray, Floats, Integers, Packed
from ergon_framework.storage.postgres.pool import Connection, local_settings

_ANNOUNCE = "logs.announce"
_BIGINT, _BYTEA, _FLOAT = 20, 17, 701  # the numbers that PostgreSQL knows these types by
_NOT_PREPARED, _PREPARED_BEFORE = b"26000", b"42P05"
_TYPES = {int: _BIGINT, bytes: _BYTEA, float: _FLOAT}

Value: TypeAlias = int | bytes | float | Packed
Values: TypeAlias = tuple[Value, ...]
Statement: TypeAlias = tuple[str, Values]
"""The name of a statement, and what it is given."""


class PipelineExecutor:
    """Statements on the connections of one store."""

    def __init__(self, wordings: Mapping[str, bytes], told: Sequence[str]) -> None:
        self._wordings = wordings
        self._told = [each.encode() for each in told]
        self._prepared: WeakKeyDictionary[Connection, set[str]] = WeakKeyDictionary()

    def run(
        self,
        connection: Connection,
        statements: Sequence[Statement],
        *,
        is_planned: bool,
        meanwhile: BeforeWait,
    ) -> None:
        """Execute these as one transaction, commit and notify, in one round trip.

        Raises what the server refuses. Statements between two syncs of a pipeline are one implicit
        transaction, so no BEGIN is sent. With ``is_planned`` they are planned anew: the tables that
        they search may have grown since they were prepared. ``meanwhile`` is called before the
        server is waited for.
        """
        answers = self._sent(connection, statements, meanwhile, is_planned=is_planned)
        # The driver deallocates all prepared statements after a rollback. They are prepared anew
        # and sent once more; nothing was committed.
        if any(map(_is_forgotten, answers)):
            answers = self._sent(connection, statements, meanwhile, is_planned=is_planned)
        for answer in answers:
            _check(answer)

    def _sent(
        self,
        connection: Connection,
        statements: Sequence[Statement],
        meanwhile: BeforeWait,
        *,
        is_planned: bool,
    ) -> list[PGresult]:
        """Send one attempt of a transaction; returns the answers."""
        line = connection.pgconn
        is_shared = local_settings(connection) is not None
        is_planned = is_planned or is_shared
        # Prepared outside of the pipeline: an error there would abort the transaction behind it.
        # Never behind a pooler, where another client may get the connection with the statement.
        if not is_shared:
            self._prepare(connection, [] if is_planned else statements, meanwhile)
        line.enter_pipeline_mode()
        try:
            for name, values in statements:
                data, forms = [_data(each) for each in values], [Format.BINARY] * len(values)
                if is_planned:
                    types = [_type(each) for each in values]
                    line.send_query_params(self._wordings[name], data, types, forms)
                else:
                    line.send_query_prepared(_called(name), data, forms)
            # The first sync ends the implicit transaction, so NOTIFY is sent after the commit and
            # on its own: its lock, which is one for the whole server, is not held while the facts
            # are synced.
            line.pipeline_sync()
            if is_shared:
                line.send_query_params(self._wordings[_ANNOUNCE], self._told)
            else:
                line.send_query_prepared(_called(_ANNOUNCE), self._told)
            line.pipeline_sync()
            answers, announced = _answers(line, meanwhile)
            line.exit_pipeline_mode()
        except BaseException:
            connection.close()  # it may be in the middle of anything
            raise
        if any(map(_is_forgotten, (*answers, *announced))):
            self._prepared.pop(connection, None)
        return answers

    def _prepare(
        self,
        connection: Connection,
        statements: Sequence[Statement],
        meanwhile: BeforeWait,
    ) -> None:
        known = self._prepared.setdefault(connection, set())
        for name, values in (*statements, (_ANNOUNCE, ())):
            if name in known:
                continue
            meanwhile()
            types = [_type(each) for each in values]
            answer = connection.pgconn.prepare(_called(name), self._wordings[name], types)
            if _state(answer) != _PREPARED_BEFORE:
                _check(answer)
            known.add(name)


def _called(name: str) -> bytes:
    """What a statement is called at the server."""
    return f"ergon.{name}".encode()


def _answers(line: PGconn, meanwhile: BeforeWait) -> tuple[list[PGresult], list[PGresult]]:
    """What came before the first sync, and what came before the second.

    An error at the commit itself comes behind the answers to all statements.
    """
    found: list[list[PGresult]] = [[]]
    wait = select.poll()
    wait.register(line.socket, select.POLLIN | select.POLLOUT)
    # Also reads while it writes: a server that waits for us to read would never take the rest, and
    # both would wait for ever.
    while line.flush():
        meanwhile()
        wait.poll()
        line.consume_input()
    wait.modify(line.socket, select.POLLIN)
    # Two syncs were sent, and each ends a list.
    while len(found) < 3:
        # ``get_result`` would block with the interpreter's lock held: no other thread could run.
        while line.is_busy():
            meanwhile(lambda: bool(wait.poll(0)))
            wait.poll()
            line.consume_input()
        answer = line.get_result()
        # The end of one statement's results, not of the pipeline.
        if answer is None:
            continue
        if answer.status == ExecStatus.PIPELINE_SYNC:
            found.append([])
        else:
            found[-1].append(answer)
    return found[0], found[1]


def _is_forgotten(answer: PGresult) -> bool:
    """Whether a statement is not prepared any more: the driver lets go of all after a rollback."""
    return _state(answer) == _NOT_PREPARED


def _state(answer: PGresult) -> bytes | None:
    return answer.error_field(DiagnosticField.SQLSTATE)


def _check(answer: PGresult) -> None:
    if answer.status not in {ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK}:
        raise error_from_result(answer)


def _type(value: Value) -> int:
    return value.array if isinstance(value, Packed) else _TYPES[type(value)]


def _data(value: Value) -> bytes:
    if isinstance(value, Packed):
        return value.data
    if isinstance(value, int):
        return struct.pack(">q", value)
    return value if isinstance(value, bytes) else struct.pack(">d", value)


@dataclass(slots=True)
class LogCache:
    """The logs as they were after the last commit, and the newest runs of their views."""

    logs: dict[str, LogRow] = field(default_factory=dict)
    cuts: dict[str, int] = field(default_factory=dict)
    runs: dict[int, ZoneView] = field(default_factory=dict)

    def forget(self) -> None:
        """Read everything anew at the next use."""
        self.logs, self.cuts, self.runs = {}, {}, {}


@dataclass(frozen=True, slots=True)
class Lookup:
    """What has to be looked up before anything can be decided."""

    logs: Collection[str]
    keys: list[bytes]
    zones: Collection[str] = ()
    names: Collection[Reference] = ()


class CachedTables:
    """The tables of logs as far as they are remembered, for facts on their way in."""

    def __init__(self, cache: LogCache) -> None:
        self.cache = cache
        self.ids: dict[bytes, Identity] = {}
        self.names: dict[tuple[str, str], Reference] = {}
        self.ended: list[tuple[int, int, int]] = []
        """Runs that are written down and have ended: where, of which view, their beginning."""
        self.referred: set[tuple[str, str]] = set()

    def log(self, name: str) -> LogRow:
        """A log as it is after what was placed so far."""
        return self.cache.logs[name]

    def known(self, _log: LogRow, key: bytes) -> Identity | None:
        """What the ledger has to say about an id, if anything."""
        return self.ids.get(key)

    def object(self, wanted: Reference) -> Reference | None:
        """What a name stands for."""
        return self.names.get((wanted.bucket, wanted.key))

    def refer(self, references: Sequence[Reference]) -> None:
        """A fact refers to these from now on."""
        self.referred.update((each.bucket, each.key) for each in references)

    def write_end(self, view: ZoneView, run: ViewSegment) -> None:
        """A run that is written down has ended."""
        self.ended.append((run.last or 0, view.id, run.first))

    def stored(self, number: int) -> Row | None:
        """A row as it is in the database: not known without a look-up."""
        raise LookupNeededError

    def zone_of(self, view: int) -> str | None:
        """Where the facts of a view go, which is not remembered."""
        raise LookupNeededError

    def write_back(self, row: Row) -> None:
        """Overwrite the stored row that has the number of this one."""
        raise LookupNeededError

    def view(self, log: LogRow, to_zone: str) -> int:
        """The number of a view that this log has not been asked for yet."""
        raise LookupNeededError

    def last_run(self, view: int) -> ViewSegment | None:
        """The newest stored segment of a view."""
        raise LookupNeededError


class LockedTables(CachedTables):
    """The tables of logs that are locked: what is not remembered is looked up."""

    def __init__(self, session: PostgresSession, cache: LogCache) -> None:
        super().__init__(cache)
        self._session = session

    def stored(self, number: int) -> Row | None:
        """A row as it is in the database."""
        return self._session.one("logs.fact", number)

    def zone_of(self, view: int) -> str | None:
        """Where the facts of a view go."""
        row = self._session.one("logs.zone_of", view)
        return None if row is None else row[0]

    def write_back(self, row: Row) -> None:
        """Overwrite the stored row that has the number of this one."""
        number, *columns = row
        self._session.send("logs.write_back", *columns, number)

    def view(self, log: LogRow, to_zone: str) -> int:
        """The number of a view that this log has not been asked for yet."""
        view = view_of(self._session, log, to_zone)
        return self._session.add("logs.new_view", log.id, to_zone) if view is None else view

    def last_run(self, view: int) -> ViewSegment | None:
        """The newest stored segment of a view."""
        return last_run(self._session, view)


class PlacedRows:
    """Facts that are appended by one transaction, and what is written about them."""

    def __init__(self, now: float, tables: CachedTables) -> None:
        self._tables = tables
        self.placement = RowPlacement(now, tables, tables.cache.runs)
        self.planner = AppendPlanner(self.placement)

    def append(self, asked: Sequence[Append]) -> list[list[AppendOutcome]]:
        """Append for several callers; the outcomes."""
        append_to = self.planner.append
        return [append_to(each.log, each.facts, each.capacity) for each in asked]

    @property
    def added(self) -> int:
        """How many facts are new."""
        return len(self.placement.rows)

    @property
    def heads(self) -> dict[str, int]:
        """Where the logs end that have new facts."""
        return {log.name: log.head for log in self.touched()}

    def columns(self) -> tuple[Packed, ...]:
        """The new rows, column by column."""
        number, view, total, at, proof, envelope, fact = zip(*self.placement.rows, strict=True)
        figures = Bigints(number), Integers(view), Bigints(total), Floats(at)
        return *figures, *map(ByteaArray, (list(self.placement.fresh), proof, envelope, fact))

    def changes_of_runs(self) -> list[Statement]:
        """What has to be written about runs: in most groups nothing."""
        made: list[Statement] = []
        if self._tables.ended:
            last, view, first = zip(*self._tables.ended, strict=True)
            made.append(("logs.end_runs", (Bigints(last), Integers(view), Bigints(first))))
        runs = self.placement.runs_to_write()
        if runs:
            view, first, last, rank, previous = zip(*runs, strict=True)
            ends = Bigints([each or 0 for each in last])
            values = Integers(view), Bigints(first), ends, Bigints(rank), Bigints(previous)
            made.append(("logs.new_runs", values))
        return made

    def touched(self) -> list[LogRow]:
        """The logs that have new facts."""
        bases = {row[0] & ~LAST for row in self.placement.rows}
        return [log for log in self._tables.cache.logs.values() if log.base in bases]


class LockedAppend:
    """Locks the logs, and looks everything up at once, before anything is decided."""

    def __init__(
        self, session: PostgresSession, now: float, cache: LogCache, wanted: Lookup
    ) -> None:
        self._session = session
        self._tables = LockedTables(session, cache)
        self.placed = PlacedRows(now, self._tables)
        self.epoch = ""
        """The epoch of the store that the logs belong to."""
        self._look_up(wanted)

    def finish(self) -> None:
        """Send all that is to be written, without waiting for answers."""
        placed, session = self.placed, self._session
        if not placed.added:
            return
        session.send("logs.enter", *placed.columns(), is_prepared=True)
        for log in placed.touched():
            state = (log.head, log.total, log.chain, log.last_at, log.view)
            session.send("logs.reach", log.id, *state, is_prepared=True)
        for statement, values in placed.changes_of_runs():
            session.send(statement, *values)
        if self._tables.referred:
            names = [*map(list, zip(*sorted(self._tables.referred), strict=True))]
            session.send("objects.refer_all", *names)
            session.send("objects.await_all", *names)

    def _look_up(self, wanted: Lookup) -> None:
        session, names = self._session, sorted(wanted.logs)
        # In the order of names: two transactions that need the same logs take their locks in the
        # same order.
        held = session.send("logs.hold", names, is_prepared=True)
        known = session.send("logs.known_rows", ByteaArray(wanted.keys))
        pairs = sorted({(each.bucket, each.key) for each in wanted.names})
        named = (
            session.send("objects.named", *map(list, zip(*pairs, strict=True))) if pairs else None
        )
        rows = held.fetchall()
        # A log is made by its first fact. ON CONFLICT does nothing, so two processes may both try.
        if len(rows) < len(names):
            for name in names:
                session.send("logs.new_log", name)
            rows = session.all("logs.hold", names)
        for name, head, chain, cuts, epoch, _ in rows:
            self.epoch = epoch
            self._meet(name, (head, chain, cuts))
        self._tables.ids = {
            key: (number & LAST, digest, None if columns[0] is None else (number, *columns))
            for key, number, digest, *columns in known.fetchall()
        }
        found = [] if named is None else named.fetchall()
        self._tables.names = {(row[0], row[1]): Reference(*row) for row in found}

    def _meet(self, name: str, state: tuple[int, bytes, int]) -> None:
        """Cache a log as it stands; if another process has changed it, read it anew."""
        cache = self._tables.cache
        log = cache.logs.get(name)
        if log is not None and (log.head, log.chain, cache.cuts[name]) == state:
            return
        if log is not None:
            # Another process has appended, so the newest runs of views may be others as well.
            cache.runs.clear()
        cache.logs[name] = log_or_new(self._session, name)
        cache.cuts[name] = state[2]


class LookupNeededError(Exception):
    """What is to be done cannot be decided without looking ids up."""


class OptimisticAppend:
    """Assumes that no other process has changed the log, and that all ids are new.

    Nothing is looked up, so one statement is enough. If the assumption was wrong, the server
    refuses the statement, and ``LockedAppend`` does everything again.
    """

    REFUSALS = (
        LookupNeededError,
        psycopg.errors.DivisionByZero,  # how the statement refuses: another head, or a known id
        psycopg.errors.UniqueViolation,
        psycopg.errors.InvalidSqlStatementName,  # a pooler gave us another server connection
    )

    def __init__(self, now: float, cache: LogCache, log: str) -> None:
        self.placed = PlacedRows(now, CachedTables(cache))
        self._log = cache.logs[log]
        self._before = self._log.head, self._log.chain, cache.cuts[log]

    @staticmethod
    def may(cache: LogCache, wanted: Lookup) -> bool:
        """Whether all is remembered that will be needed."""
        [name, *others] = wanted.logs
        log = cache.logs.get(name)
        if log is None or others or wanted.names:
            return False
        # Only the view of the last fact, or views whose newest runs are remembered, can be
        # continued without a look-up.
        views = {log.views.get(zone) for zone in wanted.zones}
        return views == {log.view} or (views | {log.view} <= cache.runs.keys())

    @property
    def is_searched(self) -> bool:
        """Whether old ids have to be looked through."""
        return self._log.first > 1

    def append(self, asked: Sequence[Append]) -> list[list[AppendOutcome]]:
        """Append for several callers; the outcomes, if nothing was refused."""
        outcomes = self.placed.append(asked)
        if any(
            isinstance(each, CapacityExceeded | MissingReference)
            for found in outcomes
            for each in found
        ):
            # The optimistic way knows no ids: a fact that seems not to fit may be one that is in
            # the log already.
            raise LookupNeededError  # were it a duplicate, it would not be refused
        return outcomes

    def statements(self) -> list[Statement]:
        """What appends, and what else belongs to the same transaction."""
        log = self._log
        if not self.placed.added or log.last_at is None or log.view is None:
            raise LookupNeededError
        after: Values = (log.id, log.head, log.total, log.chain, log.last_at, log.view)
        append: Statement = ("logs.append", (*after, *self._before, *self.placed.columns()))
        return [append, *self.placed.changes_of_runs()]
