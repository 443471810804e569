"""Transactions of a PostgreSQL job store, what is said within one, and notifications afterwards.

``Words`` is one transaction or one read: statements are gathered into a batch and sent with the
next answer that is read. ``Transactions`` runs them, retries what others spoiled, and notifies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg import Cursor
from psycopg.rows import tuple_row

from ergon_framework.errors import StoreError, StoreReadOnlyError
from ergon_framework.jobs.stores.postgres.rows import Answer, Row, page_of
from ergon_framework.jobs.stores.postgres.statements import (
    SQL,
    flags,
    numbers,
    statements,
    texts,
)
from ergon_framework.jobs.stores.transitions import AFTER, BEFORE
from ergon_framework.jobs.stores.unreadable import OddRowError, tell_set_aside
from ergon_framework.ports.jobstore import Bell, Job, Topic, Unreadable
from ergon_framework.storage.failpoints import failpoint
from ergon_framework.storage.postgres.database import PostgresDatabase
from ergon_framework.storage.postgres.migrations import PostgresSchema
from ergon_framework.storage.postgres.pipeline import Batch, taking_arrays, tell_unheard
from ergon_framework.storage.postgres.pool import Connection


class Words:
    """Who listens, and the instant, which is None where the server's own is meant."""

    __slots__ = ("_batch", "connection", "now")

    def __init__(
        self, connection: Connection, now: float | None, batch: Batch | None = None
    ) -> None:
        self.connection = connection
        self.now = now
        self._batch = batch

    def say(self, statement: bytes, values: Mapping[str, Any] | None = None) -> Answer:
        """Execute a statement: with the next answer that is read, or at once without a batch."""
        told = {"now": self.now, **(values or {})}
        if self._batch is not None:
            return self._batch.say(statement, told)
        # A cursor of ours: what the owner of the connection makes of rows is not asked.
        cursor: Cursor[Row] = Cursor(self.connection, row_factory=tuple_row)
        cursor.format = psycopg.pq.Format.BINARY
        return taking_arrays(cursor).execute(statement, told, prepare=False)

    def hint(self, statement: bytes, values: Mapping[str, Any] | None = None) -> None:
        """Say something when all is done, and never mind whether it is heard."""
        if self._batch is not None:
            self._batch.hint(statement, {"now": self.now, **(values or {})})
            return
        try:
            self.say(statement, values)
        except psycopg.Error as error:
            tell_unheard(error)


def is_conflict(error: BaseException) -> bool:
    """Whether the server refused a second row of the same id or key."""
    return isinstance(error.__cause__, psycopg.errors.UniqueViolation)


T = TypeVar("T")

SCHEMA = PostgresSchema("jobs", f"{SQL}.schema")

_CHANNELS = {topic: f"ergon_jobs_{topic.value}" for topic in Topic}
_SQL = statements("jobs.sql")
CONFLICTS = 4
"""How often work is done again that others have spoiled."""
# Every statement is written for an index, and for few rows of a table that may be empty now and
# have a million rows in a minute. What the planner remembers of it must hold then, too.
_GREETING = (
    "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off;"
    " SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off;"
    " SET plan_cache_mode = force_generic_plan"
)


def topics_of(*, is_work: bool, is_done: bool) -> set[Topic]:
    """What to ring for."""
    return {topic for topic, is_so in ((Topic.WORK, is_work), (Topic.DONE, is_done)) if is_so}


class Transactions:
    """Runs transactions on one database by one clock, and notifies when they are committed."""

    def __init__(
        self, url: str, *, clock: Callable[[], float] | None = None, read_only: bool = False
    ) -> None:
        self._given = clock
        self.is_read_only = read_only
        self.database = PostgresDatabase(
            url, schema=SCHEMA, clock=clock, read_only=read_only, greeting=_GREETING
        )

    def now(self) -> float:
        """The server's clock, or the one that was given."""
        return self.database.now()

    @property
    def name(self) -> str:
        """What to call the database in front of people."""
        return self.database.name

    def listen(self, topic: Topic) -> Bell:
        """A bell for this process, rung at each change of that kind, from any process."""
        return self.database.listen(_CHANNELS[topic])

    def announce(self) -> None:
        """Wake the workers: for those who added jobs in a transaction of their own."""
        self.ring({Topic.WORK})

    def close(self) -> None:
        """Let go of everything; may be called twice."""
        self.database.close()

    # ---- for the parts of the store -------------------------------------------------------------

    def words(self, connection: Connection, batch: Batch | None = None) -> Words:
        """What is said on a connection is said as of now."""
        return Words(connection, None if self._given is None else self._given(), batch)

    def pipe(
        self,
        send: Callable[[Words], Callable[[], T]],
        call: str,
        *,
        topics: Iterable[Topic] = (),
        is_synced: bool = True,
        is_single: bool = False,
    ) -> T:
        """Run one transaction in one batch, and ring.

        ``send`` says all there is to say, and answers how to read the answers once it is committed.
        ``is_single``: it says one statement, which is a transaction by itself.
        """
        self.refuse_to_write()

        def whole(connection: Connection) -> T:
            with Batch(connection) as batch:
                words = self.words(connection, batch)
                if not is_single:
                    words.say(b"BEGIN")
                if not is_synced:
                    words.say(_SQL["synced_later"])
                read = send(words)
                failpoint(BEFORE[call])
                if not is_single:
                    words.say(b"COMMIT")
                # After it: a transaction that notifies keeps all others that do from committing.
                _hint(words, topics)
            failpoint(AFTER[call])
            return read()

        while True:
            try:
                return self.database.run(whole)
            except OddRowError as error:  # of a transaction that changed nothing
                self.set_aside([(error.key, str(error))])

    def set_aside(self, odd: Sequence[tuple[int, str]], *, is_claimed: bool = False) -> None:
        """Take rows that cannot be read out of everybody's way, by number and problem.

        ``is_claimed``: they have just been claimed, which is undone.
        """
        values = {
            "seqs": numbers([seq for seq, _ in odd]),
            "problems": texts([problem for _, problem in odd]),
            "claimed": flags([is_claimed] * len(odd)),
        }

        def send(words: Words) -> Callable[[], list[Unreadable]]:
            words.say(_SQL["set_aside"], values)
            found = [words.say(_SQL["by_seq"], {"seq": seq}) for seq, _ in odd]
            return lambda: [each for one in found for each in page_of(one).odd]

        for each in self.pipe(send, "exchange", topics={Topic.WORK}):
            tell_set_aside(each)

    def step(
        self,
        work: Callable[[Words], T],
        call: str,
        *,
        topics: Iterable[Topic] = (),
        is_synced: bool = True,
    ) -> T:
        """Run one transaction whose statements depend on each other's answers, and ring."""

        def send(words: Words) -> Callable[[], T]:
            result = work(words)
            return lambda: result

        return self.pipe(send, call, topics=topics, is_synced=is_synced)

    def alone(self, work: Callable[[Words], T], call: str, *, topics: Iterable[Topic]) -> T:
        """Run one transaction without a batch: an error of one statement can be got over."""
        self.refuse_to_write()

        def whole(connection: Connection) -> T:
            words = self.words(connection)
            with connection.transaction():
                result = work(words)
                failpoint(BEFORE[call])
            failpoint(AFTER[call])
            _hint(words, topics)
            return result

        return self.database.run(whole)

    def insist(self, work: Callable[[Words], T], call: str, *, topics: Iterable[Topic]) -> T:
        """The same for work that others may spoil by adding a job of the same id or key first."""
        for _ in range(CONFLICTS):
            try:
                return self.step(work, call, topics=topics)
            except StoreError as error:
                if not is_conflict(error):
                    raise
        return self.step(work, call, topics=topics)

    def look(self, work: Callable[[Words], T], *, is_one: bool = False) -> T:
        """Run something that only reads; as ``is_one``, all of it at one instant."""

        def whole(connection: Connection) -> T:
            with Batch(connection) as batch:
                words = self.words(connection, batch)
                if is_one:
                    words.say(b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                found = work(words)
                if is_one:
                    words.say(b"COMMIT")
                return found

        return self.database.read(whole)

    def readable(self, statement: bytes, values: Mapping[str, Any]) -> list[Job]:
        """The jobs that a statement finds; rows that cannot be read are set aside."""
        page = self.look(lambda words: page_of(words.say(statement, values)))
        while page.odd and not self.is_read_only:
            self.set_aside([(each.key, each.problem) for each in page.odd])
            page = self.look(lambda words: page_of(words.say(statement, values)))
        return page.jobs

    def refuse_to_write(self) -> None:
        """Raise if the store was opened to be read."""
        if self.is_read_only:
            raise StoreReadOnlyError(
                f"{self.name} was opened to be read", remedy="open it without read_only"
            )

    def ring(self, topics: Iterable[Topic]) -> None:
        """Wake whoever listens."""

        def whole(connection: Connection) -> None:
            with Batch(connection) as batch:
                _hint(self.words(connection, batch), topics)

        if topics:
            self.database.run(whole)

    def notify(self, words: Words, topics: Iterable[Topic]) -> None:
        """The same when the transaction that is open has been committed."""
        for topic in topics:
            words.say(_SQL["notify"], {"channel": _CHANNELS[topic]})


def _hint(words: Words, topics: Iterable[Topic]) -> None:
    """The same for what is committed: it stands, whether or not anybody hears of it."""
    for topic in topics:
        words.hint(_SQL["notify"], {"channel": _CHANNELS[topic]})
