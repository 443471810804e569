"""The whole fact store in one database: appending, receiving, finding, dropping, moving."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import TypeAlias, TypeVar

from ergon_framework.boundary.factstore.append_plan import Append
from ergon_framework.boundary.factstore.hashchain import key_of, new_of, prepare
from ergon_framework.boundary.factstore.parts import FactStoreOfParts, StoreParts
from ergon_framework.boundary.factstore.postgres.append import (
    LockedAppend,
    LogCache,
    Lookup,
    OptimisticAppend,
    PipelineExecutor,
)
from ergon_framework.boundary.factstore.postgres.database import (
    FactNotifier,
    PostgresTuning,
    PostgresZoneDatabase,
)
from ergon_framework.boundary.factstore.postgres.session import PostgresSession
from ergon_framework.boundary.factstore.records import FROZEN_TABLES
from ergon_framework.boundary.factstore.sql.append import Arrival, take_in
from ergon_framework.boundary.factstore.sql.consumers import SqlConsumers
from ergon_framework.boundary.factstore.sql.log import (
    Cut,
    KnownId,
    Knows,
    LastOf,
    SqlLog,
    VerificationStep,
    cut,
)
from ergon_framework.boundary.factstore.sql.objects_and_links import SqlLinks, SqlObjects
from ergon_framework.boundary.factstore.sql.records import SqlFactRecords
from ergon_framework.boundary.factstore.sql.rows import LAST, LogRow, log_named
from ergon_framework.boundary.factstore.sql.session import (
    AFTER,
    BEFORE,
    BatchLimits,
    StoreIdentity,
    Subscribers,
)
from ergon_framework.engine.clocks import SYSTEM_CLOCK, sleep_until
from ergon_framework.errors import StoreError, StoreUnavailableError
from ergon_framework.ports.factstore import AppendOutcome, BeforeWait, LedgerEntry, NewFact
from ergon_framework.ports.transfer import FactIdRecord, FactRecord
from ergon_framework.storage.failpoints import failpoint
from ergon_framework.storage.freeze import postgres_bars
from ergon_framework.storage.postgres.external_transaction import PostgresJoinable, joined
from ergon_framework.storage.postgres.pipeline import Bigints, ByteaArray
from ergon_framework.storage.postgres.pool import DEFAULT_TIMEOUTS, Connection, PostgresTimeouts

T = TypeVar("T")

Written: TypeAlias = tuple[T, int, dict[str, int]]
"""What came of a transaction, how many facts it added, and where their logs end."""

_RETRY_DELAY = 0.2  # seconds between two attempts at an append whose answer was lost


class PostgresAppender:
    """Writes facts into the tables, with as few round trips as possible.

    A group of appends is first sent optimistically: one statement that assumes that no other
    process has appended and that all ids are new. If the server refuses it, the logs are locked and
    everything is looked up first.
    """

    def __init__(
        self, database: PostgresZoneDatabase, notifier: FactNotifier, tuning: PostgresTuning
    ) -> None:
        self._database = database
        self._notifier = notifier
        self._tuning = tuning
        self.cache = LogCache()
        """Used only by the thread that appends; group commit lets in one at a time."""
        self.locked_groups = 0
        """Groups that are still to be appended with locks before optimism is tried again."""
        announced = (database.channel, database.server.own_payload)
        self.pipeline = PipelineExecutor(database.wordings.writing, announced)

    def append(
        self, asked: Sequence[Append], before_wait: BeforeWait
    ) -> tuple[list[list[AppendOutcome]], int]:
        """Append for several callers in one commit; the outcomes, and how many facts are new."""
        facts = [fact for each in asked for fact in each.facts]
        names = [reference for fact in facts for reference in fact.new.references]
        zones = {fact.new.to_zone for fact in facts}
        wanted = Lookup({each.log for each in asked}, [fact.key for fact in facts], zones, names)

        def whole(connection: Connection) -> Written[list[list[AppendOutcome]]]:
            written = self._append_optimistically(connection, asked, wanted, before_wait)
            if written is not None:
                return written
            before_wait()

            def work(session: PostgresSession) -> tuple[list[list[AppendOutcome]], LockedAppend]:
                entry = LockedAppend(session, self._database.clock(), self.cache, wanted)
                return entry.placed.append(asked), entry

            return self.run_locked(connection, work, self.cache, "append")

        return self._repeat_if_lost(lambda: self._write(whole, "append", before_wait))

    def append_in(
        self,
        connection: PostgresJoinable,
        log: str,
        facts: Sequence[NewFact],
        capacity: int | None,
        epoch: str,
    ) -> list[AppendOutcome]:
        """Append in a transaction of the caller, in the store that has this epoch."""
        database = self._database
        # Before the caller's transaction is touched: an error there would have to be undone.
        database.refuse_reading_only()
        if database.is_closed:
            raise StoreUnavailableError(f"{database.place} is closed", remedy="open the zone again")
        ready = [prepare(log, each) for each in facts]
        names = [reference for each in facts for reference in each.references]
        with joined(connection, database.place) as driver:
            session = PostgresSession(driver, database.wordings.writing)
            wanted = Lookup([log], [each.key for each in ready], names=names)
            # A cache of its own: the caller may roll back, and what was cached would be wrong.
            entry = LockedAppend(session, database.clock(), LogCache(), wanted)
            # The connection may lead to a copy of the database, such as a standby that was
            # restored.
            if entry.epoch != epoch:
                raise StoreError(
                    f"the connection leads to another store than {database.place}",
                    remedy="connect to the database of this store",
                )
            outcomes = entry.placed.planner.append(log, ready, capacity)
            entry.finish()
            if entry.placed.added:
                # Within the caller's transaction: only its commit may wake subscribers. The payload
                # is empty, so that our own subscribers do not ignore it.
                session.send("logs.announce", database.channel, "")
        return outcomes

    def receive(
        self, peer: str, arrived: Arrival, before_wait: BeforeWait
    ) -> tuple[list[AppendOutcome], int]:
        """Append a peer's page in one commit; returns the outcomes, and how many rows are new."""
        keys = [fact.key for fact in arrived.prepared]
        wanted = Lookup([arrived.log] if keys else [], keys)

        def whole(connection: Connection) -> Written[list[AppendOutcome]]:
            # Pages of peers do not share the cache: several may be taken in at once.
            cache = LogCache()

            def work(session: PostgresSession) -> tuple[list[AppendOutcome], LockedAppend]:
                now = self._database.clock()
                entry = LockedAppend(session, now, cache, wanted)
                return take_in(session, entry.placed.planner, peer, arrived, now), entry

            return self.run_locked(connection, work, cache, "receive")

        return self._write(whole, "receive", before_wait)

    def find(self, from_zone: str, message_id: str, log: str | None) -> LedgerEntry | None:
        """Find a fact by its id in one log, or in all logs, ``outbound`` first."""

        def work(session: PostgresSession) -> LedgerEntry | None:
            names = [row[0] for row in session.all("logs.logs")]
            wanted = [name for name in names if log in {None, name}]
            keys = {key_of(name, from_zone, message_id): name for name in wanted}
            known = {row[0]: row[1:] for row in session.all("logs.known", list(keys))}
            for key, name in keys.items():
                if key in known:
                    number, digest, envelope = known[key]
                    return LedgerEntry(
                        name, number & LAST, digest, is_retained=envelope is not None
                    )
            return None

        return self._database.read(work)

    def drop(self, log: str, last_of: LastOf, loss_reason: str | None, max_facts: int) -> Cut:
        """Drop up to ``max_facts`` payloads, up to where ``last_of`` says, in one commit."""

        def work(session: PostgresSession) -> Cut:
            found = log_named(session, log)
            if found is None:
                return Cut(0, True)
            last = last_of(session, found)
            return cut(session, found, last, loss_reason, self._database.clock(), max_facts)

        return self._database.write(work, "truncate")

    def look(self, work: Callable[[PostgresSession, Knows], VerificationStep]) -> VerificationStep:
        """Run something on what was committed last, and on the ledger."""
        return self._database.read(lambda session: work(session, _knows(session)))

    def _append_optimistically(
        self,
        connection: Connection,
        asked: Sequence[Append],
        wanted: Lookup,
        before_wait: BeforeWait,
    ) -> Written[list[list[AppendOutcome]]] | None:
        """Append with one statement, if all it needs is cached; None if locks are needed."""
        self.locked_groups = max(0, self.locked_groups - 1)
        # After a refusal it is likely that another process appends as well, so that the next ones
        # would be refused, too.
        if self.locked_groups or not OptimisticAppend.may(self.cache, wanted):
            return None
        try:
            entry = OptimisticAppend(self._database.clock(), self.cache, asked[0].log)
            outcomes, statements = entry.append(asked), entry.statements()
            failpoint(BEFORE["append"])
            self.pipeline.run(
                connection, statements, is_planned=entry.is_searched, meanwhile=before_wait
            )
        except OptimisticAppend.REFUSALS:
            # What was cached is out of date: that is why the server refused.
            self.cache.forget()
            self.locked_groups = self._tuning.locked_groups
            return None
        except BaseException:
            self.cache.forget()  # it may name views that are rolled back
            raise
        return outcomes, entry.placed.added, entry.placed.heads

    def _repeat_if_lost(self, attempt: Callable[[], T]) -> T:
        """Repeat an append when the connection was lost before the server had answered.

        Then it is not known whether it was committed. Repeating is safe: ids that are there already
        are answered as duplicates.
        """
        try:
            return attempt()
        except StoreUnavailableError as error:
            if not error.details.get("is_lost"):
                raise
            unknown = error
        # Bounded, and only for an answer that was lost: the caller waits, and its facts are nowhere
        # else.
        until = monotonic() + self._tuning.lost_answer_timeout
        while monotonic() < until:
            sleep_until(SYSTEM_CLOCK, SYSTEM_CLOCK.now() + _RETRY_DELAY)
            try:
                return attempt()
            except StoreUnavailableError:
                continue
        raise unknown

    def _write(
        self, whole: Callable[[Connection], Written[T]], call: str, before_wait: BeforeWait
    ) -> tuple[T, int]:
        """Run a transaction that adds facts; its result, and how many it were."""
        self._database.refuse_reading_only()
        result, added, heads = self._database.committed(whole, before_wait)
        failpoint(AFTER[call])
        self._notifier.reached(heads)
        return result, added

    def run_locked(
        self,
        connection: Connection,
        work: Callable[[PostgresSession], tuple[T, LockedAppend]],
        cache: LogCache,
        call: str,
    ) -> Written[T]:
        """Run one transaction in one pipeline, and notify listeners behind it.

        A ``NOTIFY`` within the transaction would serialize all commits of the database: PostgreSQL
        takes a global lock for its queue of notifications.
        """
        database = self._database
        try:
            with connection.pipeline():
                connection.execute("BEGIN")
                # Pages of several peers, and changes of operators, read tables before they decide:
                # they take turns.
                if call == "receive":
                    connection.execute(database.turn.encode())
                session = PostgresSession(connection, database.wordings.writing)
                result, entry = work(session)
                entry.finish()
                failpoint(BEFORE[call])
                connection.execute("COMMIT")
                if entry.placed.added:
                    session.send("logs.announce", database.channel, database.server.own_payload)
        except BaseException:
            cache.forget()  # it may name views that are rolled back
            raise
        return result, entry.placed.added, entry.placed.heads


def _knows(session: PostgresSession) -> Knows:
    def knows(_: LogRow, keys: Sequence[bytes]) -> Mapping[bytes, KnownId]:
        rows = session.all("logs.ids", list(keys))
        return {key: (digest, number & LAST) for key, digest, number in rows}

    return knows


class PostgresRecordEngine:
    """Copies of facts and ids, into the tables and out of them."""

    def __init__(self, database: PostgresZoneDatabase) -> None:
        self._database = database

    def dump_ids(self, after: bytes, limit: int) -> list[FactIdRecord]:
        """Ids after a key, in order, those of kept facts included."""
        rows = self._database.read(lambda session: session.all("records.ids", after, limit))
        return [FactIdRecord(key, digest, number & LAST) for key, digest, number in rows]

    def load_ids(self, ids: Sequence[FactIdRecord]) -> None:
        """Write ids down that are not known yet, in one commit."""
        columns = (
            ByteaArray([each.key for each in ids]),
            ByteaArray([each.digest for each in ids]),
            Bigints([each.offset for each in ids]),
        )
        self._database.write(lambda session: session.run("records.put_ids", *columns), "move")

    def load_facts(self, facts: Sequence[FactRecord]) -> None:
        """Append copied facts to their logs in one commit, without those that are there already."""
        prepared = [prepare(copy.log, new_of(copy.fact)) for copy in facts]
        wanted = Lookup({copy.log for copy in facts}, [each.key for each in prepared])

        def work(session: PostgresSession) -> None:
            entry = LockedAppend(session, self._database.clock(), LogCache(), wanted)
            for copy, fact in zip(facts, prepared, strict=True):
                entry.placed.placement.load(copy, fact)
            entry.finish()
            # A store that grows while it is moved gave them out before their facts.
            session.send("records.drop_ids", ByteaArray(wanted.keys))

        self._database.write(work, "move")

    def log_was_placed(self, session: PostgresSession) -> None:
        """Nothing to do: other processes read the log's own row."""

    def freeze(self, place: str | None) -> None:
        """Refuse whatever changes facts and books, or let it in again."""
        schema = f'"{self._database.namespace}"'

        def work(session: PostgresSession) -> None:
            for statement in postgres_bars(FROZEN_TABLES, place, schema):
                session.alter(statement)

        self._database.write(work, "move")


_ACKNOWLEDGED = (
    "An acknowledged fact is synced to the disk of the PostgreSQL server (synchronous_commit is"
    " on): it survives the end of every process and power cuts, and the loss of that disk only"
    " where the server waits for a standby."
)


class PostgresFactStore(FactStoreOfParts):
    """A zone's facts in a PostgreSQL database. Any thread and any process may call any method."""

    log: SqlLog
    """The logs and their ledger."""

    largest: int | None = None
    """The store itself does not limit the size of a fact."""

    def __init__(
        self,
        url: str,
        *,
        zone: str,
        clock: Callable[[], float] | None = None,
        read_only: bool = False,
        limits: BatchLimits | None = None,
        tuning: PostgresTuning | None = None,
        timeouts: PostgresTimeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        self.database = PostgresZoneDatabase(
            url, zone=zone, clock=clock, read_only=read_only, timeouts=timeouts
        )
        self._identity = StoreIdentity(self.database)
        try:
            self._identity.open(zone, read_only=read_only)
        except BaseException:
            self.database.close()
            raise
        limits, tuning = limits or BatchLimits(), tuning or PostgresTuning()
        subscribers = Subscribers()
        self._notifier = FactNotifier(self.database, subscribers, tuning.poll_interval)
        self.appender = PostgresAppender(self.database, self._notifier, tuning)
        log = SqlLog(self.database, self.appender, subscribers, limits)
        parts = StoreParts(
            log,
            SqlConsumers(self.database, limits),
            SqlObjects(self.database),
            SqlLinks(self.database, self._identity),
        )
        super().__init__(parts, self._notifier)
        copies = PostgresRecordEngine(self.database)
        self.records = SqlFactRecords(self.database, self._identity, log, copies, parts)
        """All that the store holds, to be copied into another store or out of one."""

    @property
    def namespace(self) -> str:
        """The schema with the zone's tables."""
        return self.database.namespace

    @property
    def clock(self) -> Callable[[], float]:
        """What time it is at the server, or by the clock that was given."""
        return self.database.clock

    @property
    def acknowledgement(self) -> str:
        """What an acknowledged append survives."""
        return self.database.server.acknowledged("fact", _ACKNOWLEDGED)

    @property
    def is_synced(self) -> bool:
        """Whether the server's own settings keep what it acknowledges."""
        return self.database.server.is_safe

    def append_in(
        self,
        connection: PostgresJoinable,
        log: str,
        facts: Sequence[NewFact],
        *,
        capacity: int | None = None,
    ) -> list[AppendOutcome]:
        """Append in the caller's own transaction: the facts are there when the caller commits.

        ``connection`` is one of psycopg, or a connection or session of SQLAlchemy with it, to the
        database of this store. Until the transaction ends no other caller can append to the log:
        commit soon.
        """
        epoch = self._identity.info.epoch
        return self.appender.append_in(connection, log, facts, capacity, epoch)

    def backup(self, folder: str) -> None:
        """Refuse: the server's own programs copy a database, and do it well."""
        raise StoreError(
            f"{self.database.place} is not backed up by a node",
            remedy=f"run pg_dump with --schema={self.namespace}, or back up the whole server; what"
            " pg_restore puts into another database begins a new epoch when it is opened, a server"
            " that was set back does not: copy the database there (createdb -T OLD NEW)",
        )

    def close(self) -> None:
        """Close the store after pending appends. May be called twice."""
        self.log.close()
        self._notifier.close()
