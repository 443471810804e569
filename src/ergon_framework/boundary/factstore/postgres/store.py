"""The whole fact store in one database: appending, receiving, finding, dropping, moving."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from time import monotonic
from typing import TypeAlias, TypeVar

from ergon_framework.boundary.factstore.archive import BARRED
from ergon_framework.boundary.factstore.hashchain import key_of, new_of, prepare
from ergon_framework.boundary.factstore.postgres.append import (
    LockedAppend,
    LogCache,
    Lookup,
    OptimisticAppend,
    PipelineExecutor,
    PostgresEntry,
)
from ergon_framework.boundary.factstore.postgres.database import PostgresGround
from ergon_framework.boundary.factstore.postgres.session import PostgresSession
from ergon_framework.boundary.factstore.sql import append
from ergon_framework.boundary.factstore.sql.archive import SqlArchive
from ergon_framework.boundary.factstore.sql.consumers import SqlConsumers
from ergon_framework.boundary.factstore.sql.log import (
    Append,
    Cut,
    Known,
    Knows,
    Leg,
    SqlLog,
    cut,
    last_to_drop,
    walk,
)
from ergon_framework.boundary.factstore.sql.registry import SqlLinks, SqlObjects
from ergon_framework.boundary.factstore.sql.rows import LAST, LogRow, log_named
from ergon_framework.boundary.factstore.sql.session import AFTER, BEFORE
from ergon_framework.engine.clocks import SYSTEM_CLOCK, sleep_until
from ergon_framework.errors import StoreError, StoreUnavailableError
from ergon_framework.ports.copies import FactCopy, IdCopy
from ergon_framework.ports.factstore import Flaw, Found, NewFact, Outcome
from ergon_framework.storage.failpoints import failpoint
from ergon_framework.storage.freeze import postgres_bars
from ergon_framework.storage.postgres.external_transaction import Joinable, joined
from ergon_framework.storage.postgres.pipeline import Bigints, Bytes
from ergon_framework.storage.postgres.pool import Connection

T = TypeVar("T")

Poured: TypeAlias = tuple[T, int, dict[str, int]]
"""What came of a transaction, how many facts it added, and where their logs end."""

CAUTION = 16
"""Groups that are appended with care after one for which hope was not enough."""
PATIENCE = 5.0
"""Seconds for which an append whose answer was lost is repeated."""
_AGAIN = 0.2  # seconds between two attempts


class PostgresLogs(SqlLog, PostgresGround):
    """The part of the store that keeps facts."""

    def __init__(
        self,
        url: str,
        *,
        zone: str,
        clock: Callable[[], float] | None = None,
        read_only: bool = False,
    ) -> None:
        super().__init__(url, zone=zone, clock=clock, read_only=read_only)
        self._memory = LogCache()
        """Used by whose turn it is to append, and nobody else."""
        self._caution = 0
        told = (self._channel, self._database.own_payload)
        self._straight = PipelineExecutor(self._wordings.writing, told)

    def append_in(
        self,
        connection: Joinable,
        log: str,
        facts: Sequence[NewFact],
        *,
        capacity: int | None = None,
    ) -> list[Outcome]:
        """Append in the caller's own transaction: the facts are there when the caller commits.

        ``connection`` is one of psycopg, or a connection or session of SQLAlchemy with it, to the
        database of this store. Until the transaction ends nobody else can append to the log: commit
        soon.
        """
        self._refuse_reading_only()
        if self._is_closed:
            raise StoreUnavailableError(f"{self._place} is closed", remedy="open the zone again")
        ready = [prepare(log, each) for each in facts]
        names = [reference for each in facts for reference in each.references]
        with joined(connection, self._place) as driver:
            books = PostgresSession(driver, self._wordings.writing)
            wanted = Lookup([log], [each.key for each in ready], names=names)
            entry = LockedAppend(books, self._clock(), LogCache(), wanted)
            if entry.epoch != self._info.epoch:
                raise StoreError(
                    f"the connection leads to another store than {self._place}",
                    remedy="connect to the database of this store",
                )
            outcomes = entry.append(log, ready, capacity)
            entry.finish()
            if entry.added:
                books.send("logs.announce", self._channel, "")
        return outcomes

    def find(self, from_zone: str, message_id: str, log: str | None = None) -> Found | None:
        """Look an id up in one log, or in all: ``outbound`` first."""

        def work(books: PostgresSession) -> Found | None:
            names = [row[0] for row in books.all("logs.logs")]
            wanted = [name for name in names if log in {None, name}]
            keys = {key_of(name, from_zone, message_id): name for name in wanted}
            known = {row[0]: row[1:] for row in books.all("logs.known", list(keys))}
            for key, name in keys.items():
                if key in known:
                    number, digest, envelope = known[key]
                    return Found(name, number & LAST, digest, is_retained=envelope is not None)
            return None

        return self._read(work)

    def truncate(self, log: str, through: int, *, loss_reason: str | None = None) -> int:
        """Drop payloads up to ``through``; how many were dropped. The ledger keeps their ids.

        Many are dropped in several commits, so that appends pass in between.
        """

        def last(books: PostgresSession, found: LogRow) -> int:
            return last_to_drop(books, found, through, loss_reason)

        return self._drop(log, last, loss_reason)

    def _drop(
        self, log: str, last_of: Callable[[PostgresSession, LogRow], int], loss_reason: str | None
    ) -> int:
        """Drop payloads up to where something says; how many were dropped."""

        def work(books: PostgresSession) -> Cut:
            found = log_named(books, log)
            if found is None:
                return Cut(0, True)
            last = last_of(books, found)
            return cut(books, found, last, loss_reason, self._clock())

        dropped = 0
        while True:
            done = self._write(work, "truncate")
            dropped += done.dropped
            if done.is_last:
                return dropped

    def verify(self, log: str, after: int = 0) -> Iterator[Flaw | int]:
        """Walk the hash chain: flaws as they are found, and now and then the offset reached."""

        def look(work: Callable[[PostgresSession, Knows], Leg]) -> Leg:
            return self._read(lambda books: work(books, _knows(books)))

        return walk(look, log, after)

    def close(self) -> None:
        """Let go of everything, after what was left to be appended. Closing twice is fine."""
        self._appends.close()
        super().close()

    def _enter(self, asked: Sequence[Append]) -> tuple[list[list[Outcome]], int]:
        facts = [fact for each in asked for fact in each.facts]
        names = [reference for fact in facts for reference in fact.new.references]
        zones = {fact.new.to_zone for fact in facts}
        wanted = Lookup({each.log for each in asked}, [fact.key for fact in facts], zones, names)

        def whole(connection: Connection) -> Poured[list[list[Outcome]]]:
            poured = self._hope(connection, asked, wanted)
            if poured is not None:
                return poured
            self._before_waiting()

            def work(books: PostgresSession) -> tuple[list[list[Outcome]], LockedAppend]:
                entry = LockedAppend(books, self._clock(), self._memory, wanted)
                return _appended(entry, asked), entry

            return self._poured(connection, work, self._memory, "append")

        return self._insist(lambda: self._pour(whole, "append"))

    def _hope(
        self, connection: Connection, asked: Sequence[Append], wanted: Lookup
    ) -> Poured[list[list[Outcome]]] | None:
        """Append without a look at what is there, where that is enough."""
        self._caution = max(0, self._caution - 1)
        if self._caution or not OptimisticAppend.may(self._memory, wanted):
            return None
        try:
            entry = OptimisticAppend(self._clock(), self._memory, asked[0].log)
            outcomes, statements = _appended(entry, asked), entry.statements()
            failpoint(BEFORE["append"])
            self._straight.run(
                connection,
                statements,
                is_planned=entry.is_searched,
                meanwhile=self._before_waiting,
            )
        except OptimisticAppend.REFUSALS:
            self._memory.forget()
            self._caution = CAUTION
            return None
        except BaseException:
            self._memory.forget()  # it may have names of what is now undone
            raise
        return outcomes, entry.added, entry.heads

    def _take_in(self, peer: str, arrived: append.Arrival) -> tuple[list[Outcome], int]:
        keys = [fact.key for fact in arrived.prepared]
        wanted = Lookup([arrived.log] if keys else [], keys)

        def whole(connection: Connection) -> Poured[list[Outcome]]:
            memory = LogCache()

            def work(books: PostgresSession) -> tuple[list[Outcome], LockedAppend]:
                now = self._clock()
                entry = LockedAppend(books, now, memory, wanted)
                return append.take_in(books, entry, peer, arrived, now), entry

            return self._poured(connection, work, memory, "receive")

        return self._pour(whole, "receive")

    def _pour(self, whole: Callable[[Connection], Poured[T]], call: str) -> tuple[T, int]:
        """Run a transaction that adds facts; its result, and how many it were."""
        self._refuse_reading_only()
        result, added, heads = self._committed(whole, self._before_waiting)
        failpoint(AFTER[call])
        self._reached(heads)
        return result, added

    def _poured(
        self,
        connection: Connection,
        work: Callable[[PostgresSession], tuple[T, LockedAppend]],
        memory: LogCache,
        call: str,
    ) -> Poured[T]:
        """One attempt at it, in one pipeline, with the announcement behind the transaction.

        Within it, an announcement would make all commits of the database wait for one another.
        """
        try:
            with connection.pipeline():
                connection.execute("BEGIN")
                if call == "receive":
                    connection.execute(self._turn.encode())
                books = PostgresSession(connection, self._wordings.writing)
                result, entry = work(books)
                entry.finish()
                failpoint(BEFORE[call])
                connection.execute("COMMIT")
                if entry.added:
                    books.send("logs.announce", self._channel, self._database.own_payload)
        except BaseException:
            memory.forget()  # it may have names of what is now undone
            raise
        return result, entry.added, entry.heads

    def _insist(self, attempt: Callable[[], T]) -> T:
        """Repeat what can be repeated when nobody knows whether it was done."""
        try:
            return attempt()
        except StoreUnavailableError as error:
            if not error.details.get("is_lost"):
                raise
            unknown = error
        until = monotonic() + PATIENCE
        while monotonic() < until:
            sleep_until(SYSTEM_CLOCK, SYSTEM_CLOCK.now() + _AGAIN)
            try:
                return attempt()
            except StoreUnavailableError:
                continue
        raise unknown


def _appended(entry: PostgresEntry, asked: Sequence[Append]) -> list[list[Outcome]]:
    return [entry.append(each.log, each.facts, each.capacity) for each in asked]


def _knows(books: PostgresSession) -> Knows:
    def knows(_: LogRow, keys: Sequence[bytes]) -> Mapping[bytes, Known]:
        rows = books.all("logs.ids", list(keys))
        return {key: (digest, number & LAST) for key, digest, number in rows}

    return knows


class PostgresMoving(SqlArchive, PostgresLogs):
    """The part of the store that is copied."""

    def _dump_ids(self, after: bytes, limit: int) -> list[IdCopy]:
        rows = self._read(lambda books: books.all("moving.ids", after, limit))
        return [IdCopy(key, digest, number & LAST) for key, digest, number in rows]

    def _load_ids(self, ids: Sequence[IdCopy]) -> None:
        columns = (
            Bytes([each.key for each in ids]),
            Bytes([each.digest for each in ids]),
            Bigints([each.offset for each in ids]),
        )
        self._write(lambda books: books.run("moving.put_ids", *columns), "move")

    def _load_facts(self, facts: Sequence[FactCopy]) -> None:
        prepared = [prepare(copy.log, new_of(copy.fact)) for copy in facts]
        wanted = Lookup({copy.log for copy in facts}, [each.key for each in prepared])

        def work(books: PostgresSession) -> None:
            entry = LockedAppend(books, self._clock(), LogCache(), wanted)
            for copy, fact in zip(facts, prepared, strict=True):
                entry.load(copy, fact)
            entry.finish()
            # A store that grows while it is moved gave them out before their facts.
            books.send("moving.drop_ids", Bytes(wanted.keys))

        self._write(work, "move")

    def _cut_log(self, log: str, through: int) -> None:
        self._drop(log, lambda _, found: min(through, found.head), None)

    def _log_was_placed(self, books: PostgresSession) -> None:
        """The log's own row says so."""

    def bar(self, place: str | None) -> None:
        """Refuse whatever changes facts and books, or let it in again."""
        schema = f'"{self.namespace}"'

        def work(books: PostgresSession) -> None:
            for statement in postgres_bars(BARRED, place, schema):
                books.alter(statement)

        self._write(work, "move")


_ACKNOWLEDGED = (
    "An acknowledged fact is synced to the disk of the PostgreSQL server (synchronous_commit is"
    " on): it survives the end of every process and power cuts, and the loss of that disk only"
    " where the server waits for a standby."
)


class PostgresFactStore(PostgresMoving, SqlConsumers, SqlObjects, SqlLinks):
    """A zone's facts in a PostgreSQL database. Any thread and any process may call any method."""

    @property
    def acknowledgement(self) -> str:
        """What an acknowledged append survives."""
        return self._database.acknowledged("fact", _ACKNOWLEDGED)

    @property
    def is_synced(self) -> bool:
        """Whether the server's own settings keep what it acknowledges."""
        return self._database.is_safe

    largest: int | None = None
    """Nobody but the settings limits a fact."""

    def backup(self, folder: str) -> None:
        """Refuse: the server's own programs copy a database, and do it well."""
        raise StoreError(
            f"{self._place} is not backed up by a node",
            remedy=f"run pg_dump with --schema={self.namespace}, or back up the whole server; what"
            " pg_restore puts into another database begins a new epoch when it is opened, a server"
            " that was set back does not: copy the database there (createdb -T OLD NEW)",
        )
