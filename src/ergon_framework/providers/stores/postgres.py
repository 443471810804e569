"""Provider tables in a PostgreSQL database, beside whatever else is in it."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any, TypeVar, cast

import msgspec
import psycopg
from sqlalchemy import (
    URL,
    Connection,
    Engine,
    PoolProxiedConnection,
    QueuePool,
    create_engine,
    event,
    exc,
)

from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.errors import (
    ConfigurationError,
    ErgonError,
    StoreError,
    StoreSchemaError,
    StoreUnavailableError,
)
from ergon_framework.providers.migrations import HEAD, upgrade_remedy
from ergon_framework.providers.migrations.commands import current, upgrade
from ergon_framework.providers.migrations.database import MigrationDatabase
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
from ergon_framework.storage.deadlines import PROVIDER_BUDGET, HasSocket, SocketWatchdog
from ergon_framework.storage.failpoints import failpoint
from ergon_framework.storage.postgres import errors
from ergon_framework.storage.postgres.errors import turns_for
from ergon_framework.storage.postgres.pool import (
    SESSION_SETTINGS,
    as_local,
    connect_within,
    pooling_of,
    refuse_other_defaults,
    refuse_shared,
)
from ergon_framework.storage.server import ServerClock

_NO_SUCH_TASK = "23503"


def translate(error: BaseException, name: str) -> StoreError:
    """The store's error for it."""
    if getattr(error, "sqlstate", None) == _NO_SUCH_TASK:
        return TaskMissingError(f"{name} refers to a row that is not there")
    return errors.translate(error, name)


_PARAMETER = re.compile(r"(?<!:):([a-z_]\w*)")


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
        """Insert the rows that are missing, with one statement."""
        # Every process inserts in the same order, or two that write the same rows could deadlock.
        names = [name for name, _ in into.columns]
        ordered = sorted(rows, key=lambda row: str(row[0]))
        values = [dict(zip(names, row, strict=True)) for row in ordered]
        # One JSON text for all rows: a parameter per value would reach the protocol's limit of
        # 65,535.
        sent = {"rows": msgspec.json.encode(values).decode()}
        return {found for (found,) in self.fetch(_insertion(into), sent)}


# Statements with lists of values differ by their length: without a bound each would stay for ever.
@lru_cache(maxsize=1000)
def _psycopg_sql(sql: str) -> bytes:
    """A statement as psycopg takes it."""
    # ``%`` is the driver's own mark: doubled, a LIKE pattern stays what it is.
    return _PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%")).encode()


@cache
def _insertion(into: TableSpec) -> str:
    names = ", ".join(name for name, _ in into.columns)
    kinds = ", ".join(f"{name} {kind}" for name, kind in into.columns)
    first = into.columns[0][0]
    return (
        f"INSERT INTO {into.table} ({names})"  # noqa: S608 - our own names
        f" SELECT {names} FROM json_to_recordset(CAST(:rows AS json)) AS given ({kinds})"
        f" ON CONFLICT ({first}) DO NOTHING RETURNING {first}"
    )


T = TypeVar("T")

_CONNECT_TIMEOUT = 3  # seconds for the server to accept a connection
_PING_TIMEOUT = 3.0  # seconds for an answer that costs the server nothing
_OUTAGE_PAUSE = 1.0  # seconds for which a server that did not answer is not asked again
# A caller that had fewer seconds than this cannot distinguish a server that is down from a slow
# one.
_SHORTEST_PROOF = 2.0
_BATCH_CALLS = frozenset({"record", "settle", "letters", "prune"})
_SETUP_TIMEOUT = 90.0  # seconds for making the tables
_NETWORK_OPTIONS = {
    "connect_timeout": _CONNECT_TIMEOUT,
    "tcp_user_timeout": 5000,  # milliseconds
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
}
"""How soon a network that is cut is noticed. What the URL says goes before it."""
_SESSION_TIMEOUTS = {
    # A provider call waits for each of these writes: a row that another process holds for longer
    # than a second is not worth waiting for.
    "lock_timeout": "1s",
    "statement_timeout": "10s",
    "idle_in_transaction_session_timeout": "30s",
}
"""Timeouts of the server for every session. What ``options`` in the URL says goes before it."""
# Another process that makes the tables at the same moment is waited for.
_SETUP_TIMEOUTS = "SET LOCAL lock_timeout = '30s'; SET LOCAL statement_timeout = '60s'"
_PING_AFTER = 5.0  # seconds of rest after which a connection is asked whether it still lives


@dataclass(frozen=True)
class PostgresLimits:
    """How many connections one process may have, and how long its callers wait, in seconds."""

    pool_size: int = 8
    """Connections that stay open."""
    pool_overflow: int = 8
    """Connections that are added while all others are in use, and closed afterwards."""
    checkout_timeout: float = 3.0
    """Seconds to wait for a free connection."""
    call_timeout: float = 4.0
    """Seconds for a transaction that a provider call waits for."""
    batch_timeout: float = 12.0
    """Seconds for a transaction with many rows, which no provider call waits for."""

    @property
    def max_connections(self) -> int:
        """Connections that may be in use at the same time."""
        return self.pool_size + self.pool_overflow


_DEFAULT_LIMITS = PostgresLimits()


def _session_setup(url: URL) -> str:
    """What a new connection executes first; a timeout that the URL's ``options`` set stays."""
    given = str(url.query.get("options", ""))
    timeouts = [
        f"SET {name} = '{value}'" for name, value in _SESSION_TIMEOUTS.items() if name not in given
    ]
    return "; ".join([SESSION_SETTINGS, *timeouts])


class PostgresProviderDatabase:
    """A PostgreSQL database, through a pool of connections."""

    def __init__(
        self,
        database: MigrationDatabase,
        clock: Callable[[], float] | None = None,
        ticks: Callable[[], float] = time.monotonic,
        *,
        limits: PostgresLimits = _DEFAULT_LIMITS,
        watchdog: SocketWatchdog | None = None,
    ) -> None:
        self.name = database.name
        self.path = None
        self.is_closed = False
        self._ticks = ticks
        self._limits = limits
        self._session_setup = _session_setup(database.url)
        self._local_settings = as_local(self._session_setup) if database.is_shared else None
        self._doubted_at = float("-inf")
        """When a connection last broke: connections that were idle since then may be dead too."""
        self._silent_until = float("-inf")
        self._watchdog = watchdog or SocketWatchdog()
        self._is_own = False
        """Whether no pooler in transaction mode stands between us and the server."""
        self._engine = self._connected(database)
        self._inherited: list[Any] = []
        """Pools of the parent process, kept so that no finalizer closes their connections."""
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
            # Before the commit: a test that dies here shows that nothing was written.
            failpoint(BEFORE[call])
            return result

        self._ready()
        try:
            is_batch = is_large or call in _BATCH_CALLS
            result = self._transact(
                whole, self._limits.batch_timeout if is_batch else self._limits.call_timeout
            )
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
        timeout = self._limits.call_timeout
        self._ready()
        try:
            return self._transact(work, timeout)
        except StoreUnavailableError as error:
            # A caller with little time left gets the error at once: a second try would only be cut
            # off as well.
            if not error.details.get("is_lost") or PROVIDER_BUDGET.at_most(timeout) < timeout:
                raise
            # Only reads are retried: it is unknown whether a write was committed.
            return self._transact(work, timeout)

    def to_db_time(self, instant: float | None) -> Any:
        """An instant as the driver takes it."""
        return None if instant is None else to_datetime(instant)

    @property
    def open_connections(self) -> int:
        """Connections of this process to the server, in use or idle."""
        pool = cast("QueuePool", self._engine.pool)  # which create_engine makes by default
        return pool.checkedin() + pool.checkedout()

    def close(self) -> None:
        """Close idle connections now and the others when they come back. May be called twice."""
        self.is_closed = True
        # A thread may be making the tables: closed under it, its connections would come back to
        # nobody.
        self._lazy.wait_opened()
        self._engine.pool.dispose()

    # -- transactions ----------------------------------------------------------------------------

    def _transact(self, work: Callable[[SqlCursor], T], timeout: float) -> T:
        for turn in itertools.count(1):
            connection = self._take()
            given = PROVIDER_BUDGET.at_most(timeout)
            wait = self._watchdog.at_most(given, _socket_of(connection))
            try:
                with wait:
                    result = self._attempt(connection, work)
                if wait.is_over:  # the answer came at the moment at which the socket was shut
                    connection.invalidate()
                return result
            except psycopg.Error as error:
                if wait.is_over:
                    raise self._timed_out(given) from error
                if turn >= turns_for(error):
                    raise translate(error, self.name) from error
            except (OverflowError, UnicodeError) as error:
                raise StoreError(f"{self.name} cannot keep a value: {error}") from error
            finally:
                connection.close()
                # In the meantime: nothing else closes a connection that comes back now.
                if self.is_closed:
                    self._engine.pool.dispose()
        raise AssertionError  # one turn or another ends it

    def _attempt(self, connection: PoolProxiedConnection, work: Callable[[SqlCursor], T]) -> T:
        try:
            with closing(connection.cursor()) as cursor:
                if self._local_settings is not None:
                    cursor.execute(self._local_settings)
                result = work(PostgresCursor(cursor))
            connection.commit()
            return result
        except BaseException as error:
            self._roll_back(connection, error)
            raise

    def _timed_out(self, seconds: float) -> StoreUnavailableError:
        # One provider call asks its store several times: only the first of them waits in vain.
        if seconds >= _SHORTEST_PROOF:
            self._silent_until = self._ticks() + _OUTAGE_PAUSE
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
                f"all {self._limits.max_connections} connections to {self.name} are in use",
                remedy="make fewer calls at once in one process, or look why the server is slow",
            ) from error
        except (psycopg.Error, exc.DBAPIError) as error:
            # It took nearly the whole timeout: the server is silent, and the next callers need not
            # find out, too.
            if self._ticks() - asked_at >= _CONNECT_TIMEOUT - 1:
                self._silent_until = self._ticks() + _OUTAGE_PAUSE
            ours = self._translated(error)
            raise as_unavailable(ours) from error  # we were let in before

    def _roll_back(self, connection: PoolProxiedConnection, error: BaseException) -> None:
        """Roll back; throw the connection away when its state is not certain."""
        try:
            if isinstance(error, Exception) and not connection.closed:
                connection.rollback()
                return
        except psycopg.Error:  # then its state is unknown, and it is thrown away below
            pass
        # A server that was restarted breaks all connections at once; those that were idle are asked
        # before their next use.
        self._doubted_at = self._ticks()
        connection.invalidate()

    # -- connections -----------------------------------------------------------------------------

    def _connected(self, database: MigrationDatabase) -> Engine:
        engine = create_engine(
            database.url,
            pool_size=self._limits.pool_size,
            max_overflow=self._limits.pool_overflow,
            pool_timeout=self._limits.checkout_timeout,
            # The latest one first: idle connections grow old and are closed, instead of all being
            # kept warm in turn.
            pool_use_lifo=True,
            hide_parameters=True,
            connect_args={k: v for k, v in _NETWORK_OPTIONS.items() if k not in database.url.query}
            | ({"prepare_threshold": None} if database.is_shared else {}),
        )
        event.listen(engine, "do_connect", self._connect)
        event.listen(engine, "connect", self._set_up_session)
        event.listen(engine, "checkout", self._check)
        event.listen(engine, "checkin", self._note_return)
        return engine

    def _connect(self, dialect: Any, _: Any, where: Any, how: dict[str, Any]) -> Any:
        # While it is set up: a transaction that begins by itself would be left open by each
        # setting.
        connect = partial(dialect.connect, *where, **{**how, "autocommit": True})
        seconds = PROVIDER_BUDGET.at_most(_CONNECT_TIMEOUT)
        if seconds < _CONNECT_TIMEOUT:
            return connect_within(partial(self._owned, connect), seconds)
        return self._owned(connect)

    def _owned(self, connect: Callable[[], Any]) -> Any:
        """A new connection. The first one also shows whether a pooler shares connections out."""
        connection = connect()
        if not self._is_own:
            try:
                if self._local_settings is None:
                    refuse_shared(pooling_of(connection, connect, self._watchdog), self.name)
                else:
                    refuse_other_defaults(connection, self.name)
            except BaseException:
                connection.close()
                raise
            self._is_own = True
        return connection

    def _set_up_session(self, connection: Any, record: Any) -> None:
        with self._watchdog.at_most(PROVIDER_BUDGET.at_most(_PING_TIMEOUT), connection):
            if self._local_settings is None:
                connection.execute(self._session_setup)
            connection.autocommit = False
        record.info["at"] = self._ticks()

    def _note_return(self, connection: Any, record: Any) -> None:
        record.info["at"] = self._ticks()

    def _check(self, connection: Any, record: Any, proxy: Any) -> None:
        """Ping a connection that was idle for long, or while another one broke."""
        used_at = record.info["at"]
        if used_at > self._doubted_at and self._ticks() - used_at < _PING_AFTER:
            return
        try:
            with self._watchdog.at_most(PROVIDER_BUDGET.at_most(_PING_TIMEOUT), connection):
                connection.execute("SELECT 1")
                connection.rollback()
        except psycopg.Error as error:
            raise exc.DisconnectionError from error

    def renew(self) -> None:
        """Called in a forked child: leave the parent's connections to the parent."""
        self._inherited.append(self._engine.pool)
        # Not closed: the sockets are shared with the parent, and a goodbye would end its sessions.
        self._engine.dispose(close=False)
        self._watchdog.renew()
        clock = self._lazy.value
        if isinstance(clock, ServerClock):
            clock.renew()

    # -- opening ---------------------------------------------------------------------------------

    def _ready(self) -> None:
        """Open the database, if the server was not reached so far."""
        try:
            self._lazy.get()
        # A provider call goes on without its store when a StoreError says that it is away.
        except ConfigurationError as error:
            raise StoreError(error.message, remedy=error.remedy) from error

    def _opened(self) -> Callable[[], float]:
        """Check or create the tables; returns the clock to use from then on."""
        if self.is_closed:
            raise StoreUnavailableError(f"{self.name} is closed", remedy="open it again")
        self._adopt()
        return self._given_clock or ServerClock(self._ask_time, self._ticks)

    def _adopt(self) -> None:
        try:
            with (
                self._engine.begin() as connection,
                self._watchdog.at_most(
                    PROVIDER_BUDGET.at_most(_SETUP_TIMEOUT), _socket_of(connection.connection)
                ),
            ):
                found = current(connection)
                if found is None:
                    connection.exec_driver_sql(_SETUP_TIMEOUTS)
                    upgrade(connection)
                elif found != HEAD:
                    # A store never upgrades tables that are there: other programs work with them.
                    raise StoreSchemaError(
                        f"{self.name} has provider tables of revision {found}; this program works"
                        f" with {HEAD}",
                        remedy=upgrade_remedy(found, self.name),
                    )
                refuse_moved_tables(_move_state_in(connection), self.name, self.name)
        except exc.SQLAlchemyError as error:
            raise self._translated(error) from error

    def _translated(self, error: Exception) -> ErgonError:
        cause = (error.orig if isinstance(error, exc.DBAPIError) else None) or error
        return errors.translate_any(cause, self.name)

    def _ask_time(self) -> float:
        [[found]] = self._transact(
            lambda cursor: cursor.fetch("SELECT extract(epoch FROM clock_timestamp())", {}),
            self._limits.call_timeout,
        )
        return float(found)


def _move_state_in(connection: Connection) -> bytes | None:
    """What a move wrote into this database, if there was one."""
    if connection.exec_driver_sql("SELECT to_regclass(%s)", (MARKS,)).scalar() is None:
        return None
    found = connection.exec_driver_sql(FIND_MARK).scalar()
    return None if found is None else bytes(found)


def _socket_of(connection: PoolProxiedConnection) -> HasSocket:
    found: Any = connection.dbapi_connection
    return cast("HasSocket", found)
