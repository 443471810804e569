"""Provider tables in a PostgreSQL database, beside whatever else is in it."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any, TypeVar, cast

import msgspec
import psycopg
from sqlalchemy import Connection, Engine, PoolProxiedConnection, create_engine, event, exc

from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.errors import (
    ConfigurationError,
    ErgonError,
    StoreError,
    StoreSchemaError,
    StoreUnavailableError,
)
from ergon_framework.providers.deadlines import at_most
from ergon_framework.providers.migrations import HEAD
from ergon_framework.providers.migrations.commands import current, upgrade
from ergon_framework.providers.migrations.database import Database
from ergon_framework.providers.stores.database import (
    AFTER,
    BEFORE,
    FIND_MARK,
    MARKS,
    LazyOpen,
    Row,
    SqlCursor,
    TableSpec,
    TaskMissingError,
    Values,
    refuse_moved_tables,
    to_datetime,
)
from ergon_framework.storage.connection_errors import as_unavailable
from ergon_framework.storage.deadlines import HasSocket, SocketWatchdog
from ergon_framework.storage.failpoints import failpoint
from ergon_framework.storage.postgres import errors
from ergon_framework.storage.postgres.errors import turns_for
from ergon_framework.storage.postgres.pool import ALWAYS, connect_within, pooling_of, refuse_shared
from ergon_framework.storage.server import ServerClock

_NO_SUCH_TASK = "23503"


def translate(error: BaseException, name: str) -> StoreError:
    """The store's error for it."""
    if getattr(error, "sqlstate", None) == _NO_SUCH_TASK:
        return TaskMissingError(f"{name} refers to a row that is not there")
    return errors.translate(error, name)


_NAME = re.compile(r"(?<!:):([a-z_]\w*)")


class PostgresCursor:
    """A cursor in a transaction."""

    __slots__ = ("_cursor",)

    def __init__(self, cursor: Any) -> None:
        self._cursor: psycopg.Cursor[Row] = cursor

    def fetch(self, sql: str, values: Values) -> list[Row]:
        """Run a statement that answers with rows."""
        return self._cursor.execute(_psycopg_sql(sql), values).fetchall()

    def execute(self, sql: str, values: Values) -> int:
        """Run a statement that changes rows; how many."""
        return self._cursor.execute(_psycopg_sql(sql), values).rowcount

    def fetch_each(self, sql: str, values: Sequence[Values]) -> list[list[Row]]:
        """Run a statement once for each, in this order; the driver sends them all at once."""
        if not values:
            return []
        cursor = self._cursor
        cursor.executemany(_psycopg_sql(sql), values, returning=True)
        found = [cursor.fetchall()]
        while cursor.nextset():
            found.append(cursor.fetchall())
        return found

    def executemany(self, sql: str, values: Sequence[Values]) -> None:
        """Run a statement that answers nothing once for each, in this order."""
        self._cursor.executemany(_psycopg_sql(sql), values)

    def insert_missing(self, into: TableSpec, rows: Sequence[Row]) -> set[str]:
        """Insert rows unless they are there, all with one statement."""
        # In one order for everybody: two who write the same rows must not wait for each other.
        names = [name for name, _ in into.columns]
        ordered = sorted(rows, key=lambda row: str(row[0]))
        values = [dict(zip(names, row, strict=True)) for row in ordered]
        sent = {"rows": msgspec.json.encode(values).decode()}
        return {found for (found,) in self.fetch(_insertion(into), sent)}


_spellings: dict[str, bytes] = {}
_insertions: dict[TableSpec, str] = {}


def _psycopg_sql(sql: str) -> bytes:
    """A statement as psycopg takes it."""
    spelt = _spellings.get(sql)
    if spelt is None:
        spelt = _NAME.sub(r"%(\1)s", sql.replace("%", "%%")).encode()
        if len(_spellings) < 1000:
            _spellings[sql] = spelt
    return spelt


def _insertion(into: TableSpec) -> str:
    found = _insertions.get(into)
    if found is None:
        names = ", ".join(name for name, _ in into.columns)
        kinds = ", ".join(f"{name} {kind}" for name, kind in into.columns)
        first = into.columns[0][0]
        found = _insertions[into] = (
            f"INSERT INTO {into.table} ({names})"  # noqa: S608 - our own names
            f" SELECT {names} FROM json_to_recordset(CAST(:rows AS json)) AS given ({kinds})"
            f" ON CONFLICT ({first}) DO NOTHING RETURNING {first}"
        )
    return found


T = TypeVar("T")

_SHARED, _MORE = 8, 8  # connections that stay, and that may be added for a while
_FREE = 3.0  # seconds for a free connection
_CONNECT = 3  # seconds for the server to answer
_GREETED = 3.0  # seconds for an answer that costs the server nothing
_SHORT, _LONG = 4.0, 12.0  # seconds for a transaction: one that a call waits for, and the others
_REST = 1.0  # seconds for which a server that did not answer is not asked again
_FAIR = 2.0  # seconds that it was given, at least: who has less time says nothing about it
_LASTING = frozenset({"record", "settle", "letters", "prune"})
_TABLES = 90.0  # seconds for making the tables
_NETWORK = {
    "connect_timeout": _CONNECT,
    "tcp_user_timeout": 5000,  # milliseconds
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
}
"""How soon a network that is cut is noticed. What the URL says goes before it."""
# A row that somebody holds for longer than this is not worth waiting for; a provider call waits.
_GREETING = (
    f"{ALWAYS}; SET lock_timeout = '1s'; SET statement_timeout = '10s';"
    " SET idle_in_transaction_session_timeout = '30s'"
)
# … but whoever else makes the tables is waited for.
_TAKE_YOUR_TIME = "SET LOCAL lock_timeout = '30s'; SET LOCAL statement_timeout = '60s'"
_IDLE = 5.0  # seconds after which a connection is asked whether it still lives


class PostgresProviderDatabase:
    """One database, through a pool of connections."""

    def __init__(
        self,
        database: Database,
        clock: Callable[[], float] | None = None,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = database.name
        self.path = None
        self.is_closed = False
        self._ticks = ticks
        self._doubted_at = float("-inf")
        self._silent_until = float("-inf")
        self._patience = SocketWatchdog()
        self._is_own = False
        """Whether nobody else is given our connections in between."""
        self._engine = self._connected(database)
        self._inherited: list[Any] = []
        self._given_clock = clock
        self._lazy = LazyOpen(self._opened, ticks)
        renew_after_fork(self)
        try:
            self._lazy.open_early()
        except BaseException:
            self.close()
            raise

    def now(self) -> float:
        """The server's clock; this machine's until the server was there once."""
        clock = self._lazy.value or self._given_clock or time.time
        return clock()

    def write(
        self,
        call: str,
        work: Callable[[SqlCursor], T],
        *,
        is_synced: bool = True,
        is_large: bool = False,
    ) -> T:
        """Run ``work`` in a transaction, and return what it returns once that is committed."""

        def whole(cursor: SqlCursor) -> T:
            result = work(cursor)
            failpoint(BEFORE[call])
            return result

        self._ready()
        try:
            result = self._transact(whole, _LONG if is_large or call in _LASTING else _SHORT)
            failpoint(AFTER[call])
            return result
        except OSError as error:
            if isinstance(error, StoreError):
                raise
            raise StoreUnavailableError(
                f"a write to {self.name} failed: {error}", remedy="try again"
            ) from error

    def read(self, work: Callable[[SqlCursor], T]) -> T:
        """Run ``work``, which changes nothing."""
        self._ready()
        try:
            return self._transact(work)
        except StoreUnavailableError as error:
            if not error.details.get("is_lost") or at_most(_SHORT) < _SHORT:
                raise
            return self._transact(work)  # the server may be back; nothing can have been done twice

    def to_db_time(self, instant: float | None) -> Any:
        """An instant as the driver takes it."""
        return None if instant is None else to_datetime(instant)

    def close(self) -> None:
        """Close what is idle, and what is in use when it comes back. Closing twice is fine."""
        self.is_closed = True
        self._lazy.wait_opened()
        self._engine.pool.dispose()

    # -- transactions ----------------------------------------------------------------------------

    def _transact(self, work: Callable[[SqlCursor], T], seconds: float = _SHORT) -> T:
        for turn in itertools.count(1):
            connection = self._take()
            given = at_most(seconds)
            wait = self._patience.at_most(given, _line(connection))
            try:
                with wait:
                    result = self._attempt(connection, work)
                if wait.is_over:  # it was answered just when the connection was shut
                    connection.invalidate()
                return result
            except psycopg.Error as error:
                if wait.is_over:
                    raise self._overdue(given) from error
                if turn >= turns_for(error):
                    raise translate(error, self.name) from error
            except (OverflowError, UnicodeError) as error:
                raise StoreError(f"{self.name} cannot keep a value: {error}") from error
            finally:
                connection.close()
                if self.is_closed:  # meanwhile: nobody else will close what just came back
                    self._engine.pool.dispose()
        raise AssertionError  # one turn or another ends it

    def _attempt(self, connection: PoolProxiedConnection, work: Callable[[SqlCursor], T]) -> T:
        try:
            with closing(connection.cursor()) as cursor:
                result = work(PostgresCursor(cursor))
            connection.commit()
            return result
        except BaseException as error:
            self._undo(connection, error)
            raise

    def _overdue(self, seconds: float) -> StoreUnavailableError:
        # One call of a provider asks several times: it waits in vain only once.
        if seconds >= _FAIR:
            self._silent_until = self._ticks() + _REST
        return StoreUnavailableError(
            f"{self.name} did not answer within {seconds:.3g} seconds",
            remedy="see that the server runs and can be reached, and why it is slow",
        )

    def _take(self) -> PoolProxiedConnection:
        if self.is_closed:
            raise StoreUnavailableError(f"{self.name} is closed", remedy="open it again")
        asked_at = self._ticks()
        if asked_at < self._silent_until:
            raise StoreUnavailableError(
                f"{self.name} did not answer a moment ago", remedy="see that the server runs"
            )
        try:
            return self._engine.raw_connection()
        except exc.TimeoutError as error:
            raise StoreUnavailableError(
                f"all {_SHARED + _MORE} connections to {self.name} are in use",
                remedy="make fewer calls at once in one process, or look why the server is slow",
            ) from error
        except (psycopg.Error, exc.DBAPIError) as error:
            if self._ticks() - asked_at >= _CONNECT - 1:
                self._silent_until = self._ticks() + _REST
            told = self._told(error)
            raise as_unavailable(told) from error  # we were let in before

    def _undo(self, connection: PoolProxiedConnection, error: BaseException) -> None:
        """Roll back, or throw away a connection of which nobody knows how it stands."""
        try:
            if isinstance(error, Exception) and not connection.closed:
                connection.rollback()
                return
        except psycopg.Error:
            pass
        self._doubted_at = self._ticks()
        connection.invalidate()

    # -- connections -----------------------------------------------------------------------------

    def _connected(self, database: Database) -> Engine:
        engine = create_engine(
            database.url,
            pool_size=_SHARED,
            max_overflow=_MORE,
            pool_timeout=_FREE,
            pool_use_lifo=True,
            hide_parameters=True,
            connect_args={k: v for k, v in _NETWORK.items() if k not in database.url.query},
        )
        event.listen(engine, "do_connect", self._connect)
        event.listen(engine, "connect", self._greet)
        event.listen(engine, "checkout", self._check)
        event.listen(engine, "checkin", self._note)
        return engine

    def _connect(self, dialect: Any, _: Any, where: Any, how: dict[str, Any]) -> Any:
        connect = partial(dialect.connect, *where, **{**how, "autocommit": True})
        seconds = at_most(_CONNECT)
        if seconds < _CONNECT:
            return connect_within(partial(self._owned, connect), seconds)
        return self._owned(connect)

    def _owned(self, connect: Callable[[], Any]) -> Any:
        """A connection that is ours alone; who stands before the server is looked at once."""
        connection = connect()
        if not self._is_own:
            try:
                refuse_shared(pooling_of(connection, connect, self._patience), self.name)
            except BaseException:
                connection.close()
                raise
            self._is_own = True
        return connection

    def _greet(self, connection: Any, record: Any) -> None:
        with self._patience.at_most(at_most(_GREETED), connection):
            connection.execute(_GREETING)
            connection.autocommit = False
        record.info["at"] = self._ticks()

    def _note(self, connection: Any, record: Any) -> None:
        record.info["at"] = self._ticks()

    def _check(self, connection: Any, record: Any, proxy: Any) -> None:
        """A connection that rested long, or since the server went away, may be a dead one."""
        used_at = record.info["at"]
        if used_at > self._doubted_at and self._ticks() - used_at < _IDLE:
            return
        try:
            with self._patience.at_most(at_most(_GREETED), connection):
                connection.execute("SELECT 1")
                connection.rollback()
        except psycopg.Error as error:
            raise exc.DisconnectionError from error

    def renew(self) -> None:
        """In a process that was just forked: leave the parent's connections alone."""
        self._inherited.append(self._engine.pool)
        self._engine.dispose(close=False)
        self._patience.renew()
        clock = self._lazy.value
        if isinstance(clock, ServerClock):
            clock.renew()

    # -- opening ---------------------------------------------------------------------------------

    def _ready(self) -> None:
        """Open it, where the server was away so far."""
        try:
            self._lazy.get()
        except ConfigurationError as error:  # calls go on as they do without a store
            raise StoreError(error.message, remedy=error.remedy) from error

    def _opened(self) -> Callable[[], float]:
        """Look at the tables, or make them; the clock from then on."""
        if self.is_closed:
            raise StoreUnavailableError(f"{self.name} is closed", remedy="open it again")
        self._adopt()
        return self._given_clock or ServerClock(self._ask_time, self._ticks)

    def _adopt(self) -> None:
        try:
            with (
                self._engine.begin() as connection,
                self._patience.at_most(at_most(_TABLES), _line(connection.connection)),
            ):
                found = current(connection)
                if found is None:
                    connection.exec_driver_sql(_TAKE_YOUR_TIME)
                    upgrade(connection)
                elif found != HEAD:
                    raise StoreSchemaError(
                        f"{self.name} has provider tables of revision {found}; this program works"
                        f" with {HEAD}",
                        remedy="run `ergon db upgrade`, or upgrade ergon-framework if it is older",
                    )
                refuse_moved_tables(_mark_in(connection), self.name)
        except exc.SQLAlchemyError as error:
            raise self._told(error) from error

    def _told(self, error: Exception) -> ErgonError:
        cause = (error.orig if isinstance(error, exc.DBAPIError) else None) or error
        return errors.translate_any(cause, self.name)

    def _ask_time(self) -> float:
        [[found]] = self._transact(
            lambda cursor: cursor.fetch("SELECT extract(epoch FROM clock_timestamp())", {})
        )
        return float(found)


def _mark_in(connection: Connection) -> bytes | None:
    """What a move wrote down, if there ever was one."""
    if connection.exec_driver_sql("SELECT to_regclass(%s)", (MARKS,)).scalar() is None:
        return None
    found = connection.exec_driver_sql(FIND_MARK).scalar()
    return None if found is None else bytes(found)


def _line(connection: PoolProxiedConnection) -> HasSocket:
    found: Any = connection.dbapi_connection
    return cast("HasSocket", found)
