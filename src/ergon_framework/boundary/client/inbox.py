"""The inbox: a fact that arrives twice takes effect once.

The consumer writes down which facts it has handled, in its own database and in the transaction that
holds their effect. Both are there or neither is; a fact that comes again is known.

::

    inbox = Inbox("billing")
    consumer.run(inbox.handler(lambda: sqlite3.connect("billing.db"), bill))
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from ergon_framework.boundary.arguments import FUNCTION, NAME, TEXT
from ergon_framework.boundary.client.effects import refuse_unrun
from ergon_framework.boundary.facts.canonical import canonical
from ergon_framework.boundary.facts.schema import digest_text, identity_digest
from ergon_framework.boundary.model import Delivery
from ergon_framework.errors import ConfigurationError, ConflictingDuplicateError
from ergon_framework.storage.failpoints import declare, failpoint

ParamStyle: TypeAlias = Literal["qmark", "numeric", "format", "pyformat"]

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?")
_IDLE = 0  # what psycopg says of a connection without a transaction

declare("boundary.inbox.commit.before", "boundary.inbox.commit.after")


class Connection(Protocol):
    """A connection as PEP 249 describes it."""

    def cursor(self) -> Any:
        """A new cursor."""

    def commit(self) -> Any:
        """Commit the transaction."""

    def rollback(self) -> Any:
        """Undo it."""

    def close(self) -> Any:
        """Close the connection."""


C = TypeVar("C", bound=Connection)


class Inbox:
    """What one consumer has handled. It holds no connection: every call is given one.

    SQLite and PostgreSQL understand its statements; ``paramstyle`` is that of the driver's module
    (``qmark`` for sqlite3, ``pyformat`` for psycopg).
    """

    def __init__(
        self,
        consumer: str,
        *,
        table: str = "ergon_inbox",
        paramstyle: ParamStyle = "qmark",
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not consumer:
            raise ConfigurationError("an inbox needs the name of its consumer")
        NAME.check("consumer", consumer)
        FUNCTION.check("clock", clock)
        TEXT.check("table", table)
        if not _PLAIN.fullmatch(table):
            raise ConfigurationError(
                f"{table!r} cannot be the name of a table", remedy="use letters, digits and _"
            )
        self.consumer = consumer
        self._table = table
        self._clock = clock
        self._insert = with_placeholders_of(
            # The name was checked.
            f"INSERT INTO {table} (consumer, from_zone, message_id, digest, accepted_at)"  # noqa: S608
            " VALUES (?, ?, ?, ?, ?) ON CONFLICT (consumer, from_zone, message_id) DO NOTHING",
            paramstyle,
        )
        self._select = with_placeholders_of(
            f"SELECT 1 FROM {table}"  # noqa: S608 - as above
            " WHERE consumer = ? AND from_zone = ? AND message_id = ? AND digest = ?",
            paramstyle,
        )
        self._delete = with_placeholders_of(
            f"DELETE FROM {table} WHERE consumer = ? AND accepted_at < ?",  # noqa: S608 - as above
            paramstyle,
        )

    def create_table(self, connection: Connection) -> None:
        """Create the table if it is not there, and commit."""
        with closing(connection.cursor()) as cursor:
            cursor.execute(
                f"CREATE TABLE IF NOT EXISTS {self._table} ("
                " consumer VARCHAR(255) NOT NULL,"
                " from_zone VARCHAR(255) NOT NULL,"
                " message_id VARCHAR(255) NOT NULL,"
                " digest VARCHAR(80) NOT NULL,"
                " accepted_at DOUBLE PRECISION NOT NULL,"
                " PRIMARY KEY (consumer, from_zone, message_id))"
            )
        connection.commit()

    def accept(self, connection: Connection, delivery: Delivery) -> bool:
        """Write down, in the caller's transaction, that this fact is handled; False if it was.

        Other content under the same id raises ``ConflictingDuplicateError``: a producer has
        published two different facts under one id.
        """
        _demand_transaction(connection)
        envelope = delivery.envelope
        key = (self.consumer, envelope.from_zone, envelope.message_id)
        digest = _digest(delivery)
        with closing(connection.cursor()) as cursor:
            # The insert decides, not a look before it: two consumers of one name would both find
            # nothing.
            cursor.execute(self._insert, (*key, digest, self._clock()))
            if cursor.rowcount == 1:
                return True
            cursor.execute(self._select, (*key, digest))
            is_same = cursor.fetchone() is not None  # what a row looks like is the caller's choice
        if not is_same:
            raise ConflictingDuplicateError(
                f"the fact {envelope.message_id!r} from {envelope.from_zone!r} was handled with"
                " other content",
                remedy="ask its producer: a correction is a new fact with an id of its own",
                details={"message_id": envelope.message_id, "offset": delivery.offset},
            )
        return False

    @contextmanager
    def once(self, connection: Connection, delivery: Delivery) -> Iterator[bool]:
        """A whole transaction around one fact: yields whether it is new, commits at the end.

        An error rolls everything back, the note included, so that the fact may come again.
        """
        try:
            _begin(connection)
            yield self.accept(connection, delivery)
            failpoint("boundary.inbox.commit.before")
            connection.commit()
        except BaseException:
            connection.rollback()
            raise
        failpoint("boundary.inbox.commit.after")

    def handler(
        self, connect: Callable[[], C] | C, effect: Callable[[C, Delivery], object]
    ) -> Callable[[Delivery], None]:
        """A consumer's handler: ``effect(connection, delivery)`` and its note commit together.

        ``connect`` opens a connection for each fact; a connection instead is used as it is.
        """

        def handle(delivery: Delivery) -> None:
            with (
                _opened(connect) as connection,
                self.once(connection, delivery) as is_new,
            ):
                if is_new:
                    # Before the note is committed, which would say that it has taken effect.
                    refuse_unrun(effect(connection, delivery), "the effect")

        return handle

    def prune(self, connection: Connection, before: float) -> int:
        """Forget facts that were handled before an instant, in the caller's transaction; how many.

        What is forgotten is not recognised any more: keep them for as long as a fact may come
        again, which after a seek is for ever.
        """
        with closing(connection.cursor()) as cursor:
            cursor.execute(self._delete, (self.consumer, before))
            return int(cursor.rowcount)


def with_placeholders_of(statement: str, paramstyle: str) -> str:
    """The statement with the driver's own placeholders."""
    if paramstyle == "qmark":
        return statement
    if paramstyle in ("format", "pyformat"):
        return statement.replace("?", "%s")
    if paramstyle == "numeric":
        first, *rest = statement.split("?")
        return first + "".join(f":{n}{piece}" for n, piece in enumerate(rest, 1))
    raise ConfigurationError(
        f"{paramstyle!r} is no paramstyle that is known here",
        remedy="use qmark, numeric, format or pyformat, as the driver's module says",
    )


def _opened(connect: Callable[[], C] | C) -> Any:
    # An sqlite3.Connection can be called, too: what has a cursor is a connection.
    if hasattr(connect, "cursor"):
        return nullcontext(connect)
    return closing(connect())


def _begin(connection: Connection) -> None:
    """Begin a transaction, for drivers that do not do so by themselves."""
    if getattr(connection, "autocommit", False) is True:
        raise ConfigurationError(
            "the connection is in autocommit mode, in which commit() does nothing",
            remedy="open it without autocommit",
        )
    if isinstance(connection, sqlite3.Connection) and not connection.in_transaction:
        with closing(connection.cursor()) as cursor:
            # At once, not at the first change: two readers that both want to write would fail
            # instead of waiting.
            cursor.execute("BEGIN IMMEDIATE")


def _demand_transaction(connection: Connection) -> None:
    """Refuse a connection that would commit the note before the effect."""
    begins = getattr(connection, "autocommit", False) is not True
    if isinstance(connection, sqlite3.Connection):
        is_open = connection.in_transaction
        begins = begins and connection.isolation_level is not None
    else:
        status = getattr(getattr(connection, "info", None), "transaction_status", _IDLE)
        is_open = status != _IDLE
    if not is_open and not begins:
        raise ConfigurationError(
            "the connection has no transaction open, and begins none by itself",
            remedy="begin one first, or use once()",
        )


def _digest(delivery: Delivery) -> str:
    if delivery.digest:
        return delivery.digest
    form = canonical(delivery.fact.object_json)
    return digest_text(identity_digest(delivery.envelope, delivery.fact, form))
