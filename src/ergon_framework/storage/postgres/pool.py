"""A pool of connections to one PostgreSQL server, each borrowed by one caller at a time.

Also here: connecting with a shorter timeout than libpq allows, and detecting a pooler in front of
the server.
"""

from __future__ import annotations

import re
import select
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import closing, suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

import psycopg

from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.errors import ConfigurationError, ErgonError, StoreUnavailableError
from ergon_framework.storage.connection_errors import as_unavailable
from ergon_framework.storage.deadlines import CALL_BUDGET, SocketWatchdog, Watched
from ergon_framework.storage.postgres.address import PostgresAddress
from ergon_framework.storage.postgres.errors import refused, translate


class _Closable(Protocol):
    """The part of a connection that ``connect_within`` uses."""

    def close(self) -> object:
        """Close the connection."""


L = TypeVar("L", bound=_Closable)


def connect_within(connect: Callable[[], L], seconds: float) -> L:
    """Connect within so many seconds. A connection that comes later is closed."""
    arrival: Future[L] = Future()

    def go() -> None:
        try:
            connection = connect()
        except Exception as error:
            # False: the caller has given up and does not read the error.
            if arrival.set_running_or_notify_cancel():
                arrival.set_exception(error)
        else:
            if arrival.set_running_or_notify_cancel():
                arrival.set_result(connection)
            else:
                connection.close()

    SYSTEM_CLOCK.spawn("ergon-connect", go)
    try:
        wait([arrival], seconds)
    except BaseException:
        arrival.cancel()
        raise
    # Cancelling succeeds only as long as nothing has arrived: either this call has the connection,
    # or the thread closes it.
    if arrival.cancel():
        raise psycopg.OperationalError(f"no connection within {seconds:.3g} seconds")
    return arrival.result()


_POOLER_PROBES = 3
_PROBE_TIMEOUT = 2.0  # seconds for a query that costs the server nothing
_BACKEND_PID = b"SELECT pg_backend_pid()"

PooledConnection = psycopg.Connection[tuple[object, ...]]


class Pooling(Enum):
    """What answers on a connection: the server itself, or a pooler."""

    NONE = "the server itself"
    SESSION = "a pooler in session mode"
    TRANSACTION = "a pooler in transaction mode"


def pooling_of(
    connection: PooledConnection, connect: Callable[[], PooledConnection], watchdog: SocketWatchdog
) -> Pooling:
    """Which kind of peer answers on ``connection``.

    A pooler makes up the number of the process that it says serves us. Two connections that are
    open at once never share a process of the server, unless they have it for a transaction each.
    """
    if connection.info.backend_pid == _process(connection, watchdog):
        return Pooling.NONE
    try:
        with closing(connect()) as other:
            is_shared = any(_share(connection, other, watchdog) for _ in range(_POOLER_PROBES))
    except psycopg.Error:
        if connection.closed:
            raise
        return Pooling.SESSION  # there is no second one to be had: who has the first one keeps it
    return Pooling.TRANSACTION if is_shared else Pooling.SESSION


def refuse_shared(found: Pooling, name: str) -> None:
    """Refuse a pooler that gives our connection to others in between."""
    if found is Pooling.TRANSACTION:
        raise ConfigurationError(
            f"{name} is a pooler in transaction mode: settings, prepared statements and LISTEN of a"
            " connection would be somebody else's",
            remedy="write ?pooler=transaction in the URL, and Ergon does without them; or let the"
            " pooler have session mode for this user or database (pool_mode = session in"
            " PgBouncer), or write the address of the server itself",
        )


def _share(one: PooledConnection, other: PooledConnection, watchdog: SocketWatchdog) -> bool:
    """Whether two connections were seen on one process, or one of them on two.

    It is asked twice in a row, for a pooler that takes its connections in turn, and once while
    another connection is inside a transaction.
    """
    seen = {_process(one, watchdog), _process(one, watchdog)}
    with watchdog.at_most(_PROBE_TIMEOUT, other), other.transaction():
        taken = _process(other, watchdog)
        return len(seen) > 1 or taken in seen or _process(one, watchdog) not in seen


def _process(connection: PooledConnection, watchdog: SocketWatchdog) -> object:
    with watchdog.at_most(_PROBE_TIMEOUT, connection):
        found = psycopg.Cursor(connection).execute(_BACKEND_PID, prepare=False).fetchone()
    return None if found is None else found[0]


Connection = psycopg.Connection[tuple[Any, ...]]

_CONNECT_TIMEOUT = 3.0  # seconds that a server has for a connection, unless the URL says otherwise
_MAX_CONNECT_TIMEOUT = 3600.0  # seconds; a caller with more time than that is not bounded here
_SETUP_TIMEOUT = 5.0  # seconds for the settings of a new connection, which cost the server nothing


@dataclass(frozen=True)
class PostgresTimeouts:
    """How long a process waits for its PostgreSQL server, in seconds."""

    transaction: float = 30.0
    """Seconds for one transaction. Then its connection is closed, whatever the server is doing."""
    lock: float = 10.0
    """Seconds to wait for a lock of another transaction. Then the statement fails."""
    acquire: float = 10.0
    """Seconds to wait for a free connection of the pool."""
    reconnect_delay: float = 0.5
    """Between a failed attempt to connect and the next one. Callers in between get the same error
    at once: without it, every thread of a busy process would wait for a server that is away."""
    keepalive_interval: float = 15.0
    """Seconds without a notification after which the listening connection checks that the server
    answers.
    """
    keepalive_response: float = 5.0
    """Seconds for the answer to a keepalive query, and to ``LISTEN``."""


DEFAULT_TIMEOUTS = PostgresTimeouts()

SESSION_SETTINGS = (
    "SET default_transaction_isolation = 'read committed';"
    " SELECT set_config('synchronous_commit', 'on', false)"
    " WHERE current_setting('synchronous_commit') NOT IN ('on', 'remote_apply')"
)
"""What every connection of ours executes first, whatever the server's defaults are: an
acknowledgement stands for a server that syncs before it answers, and a transaction that waited for
a lock has to see what happened meanwhile."""
_SESSION_TIMEOUTS = "SET statement_timeout = '60s'; SET idle_in_transaction_session_timeout = '60s'"


_SETTING = re.compile(r"SET (\w+) = '?([\w ]+?)'?(?:;|$)")
_DEFAULTS = (
    "SELECT current_setting('default_transaction_isolation'), current_setting('synchronous_commit')"
)
_LOCAL_SETTINGS: WeakKeyDictionary[Connection, bytes] = WeakKeyDictionary()


def as_local(settings: str) -> bytes:
    """The statement that makes these settings (``SET a = b; …``) for one transaction."""
    parts = [f"set_config('{name}', '{value}', true)" for name, value in _SETTING.findall(settings)]
    return f"SELECT {', '.join(parts)}".encode()


def local_settings(connection: Connection) -> bytes | None:
    """What each transaction begins with, on a connection that a pooler shares out; None: nothing.

    On such a connection nothing may be prepared.
    """
    return _LOCAL_SETTINGS.get(connection)


def refuse_other_defaults(connection: Connection, name: str) -> None:
    """Refuse a server whose defaults would have to be changed: behind a pooler, a SET may apply to
    another client's transactions.
    """
    [[isolation, synced]] = connection.execute(_DEFAULTS).fetchall()
    wrong = []
    if isolation != "read committed":
        wrong.append("default_transaction_isolation = 'read committed'")
    if synced not in ("on", "remote_apply"):
        wrong.append("synchronous_commit = 'on'")
    if wrong:
        alter = "; ".join(f"ALTER ROLE {connection.info.user} SET {each}" for each in wrong)
        raise ConfigurationError(
            f"{name} has other defaults than Ergon needs, and behind a pooler in transaction mode"
            " they cannot be changed for a connection",
            remedy=f"run this as an administrator, and restart the pooler:  {alter}",
        )


class BorrowedConnection:
    """One connection of a pool inside. Written out, as every transaction comes through here."""

    __slots__ = ("_acquire", "_connection", "_free", "_give_back", "_take")

    def __init__(
        self,
        acquire: Callable[[], threading.BoundedSemaphore],
        take: Callable[[], Connection],
        give_back: Callable[[Connection], None],
    ) -> None:
        self._acquire = acquire
        self._take = take
        self._give_back = give_back

    def __enter__(self) -> Connection:
        # Taken once: a fork replaces the semaphore, and this call has to give back the one that it
        # took.
        self._free = self._acquire()
        try:
            self._connection = self._take()
        except BaseException:
            self._free.release()
            raise
        return self._connection

    def __exit__(self, *_error: object) -> None:
        try:
            self._give_back(self._connection)
        finally:
            self._free.release()


class ConnectionPool:
    """At most ``size`` connections at once; idle ones stay open, and the latest is used first."""

    def __init__(
        self,
        address: PostgresAddress,
        size: int,
        watchdog: SocketWatchdog,
        on_connect: str = "",
        *,
        timeouts: PostgresTimeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        self._address = address
        self._size = size
        self._watchdog = watchdog
        self._timeouts = timeouts
        lock_timeout = f"SET lock_timeout = {round(timeouts.lock * 1000)}"
        settings = (SESSION_SETTINGS, lock_timeout, _SESSION_TIMEOUTS, on_connect)
        self._on_connect = "; ".join(settings).encode()
        self._local_settings = as_local(f"{lock_timeout}; {_SESSION_TIMEOUTS}; {on_connect}")
        self._silent_until = float("-inf")
        self._silence = ("", "")
        """The last error and its remedy, which callers get until the server is tried again."""
        self._inherited: list[Connection] = []
        self.is_closed = False
        self._is_own = False  # known to be ours alone
        self._was_connected = False
        self._begin()
        renew_after_fork(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._free = threading.BoundedSemaphore(self._size)
        self._idle: list[Connection] = []

    def renew(self) -> None:
        """In a process that was just forked: the connections are the parent's."""
        # Kept, so that they are not collected: closing one here would end the parent's session.
        self._inherited += self._idle
        self._begin()

    def borrow(self, before_waiting: Callable[[], None] | None = None) -> BorrowedConnection:
        """One connection, with ``autocommit`` on; it is thrown away unless it comes back idle.

        ``before_waiting`` is called when none is at hand.
        """
        return BorrowedConnection(
            partial(self._acquire, before_waiting),
            partial(self._take, before_waiting),
            self._give_back,
        )

    def _acquire(self, before_waiting: Callable[[], None] | None) -> threading.BoundedSemaphore:
        """Take one of the ``size`` connections; what is to be released afterwards."""
        free = self._free
        is_free = free.acquire(blocking=False)
        if not is_free:
            if before_waiting is not None:
                before_waiting()
            is_free = free.acquire(timeout=CALL_BUDGET.at_most(self._timeouts.acquire))
        if not is_free:
            raise StoreUnavailableError(
                f"all {self._size} connections to {self._address.name} are in use",
                remedy="make fewer calls at once in one process, or look why the server is slow",
            )
        return free

    def connect(self) -> Connection:
        """A connection of the caller's own.

        The first one raises ConfigurationError where the URL has to change; after it, whatever
        stands in the way is taken for something that passes.
        """
        try:
            connection = self._opened()
        except ConfigurationError as error:
            if self._was_connected:
                raise as_unavailable(error) from error
            raise
        self._was_connected = True
        return connection

    def _opened(self) -> Connection:
        self._refuse_when_closed()
        if time.monotonic() < self._silent_until:
            message, remedy = self._silence
            raise StoreUnavailableError(
                f"{message}, a moment ago", remedy=remedy, details={"is_lost": False}
            )
        try:
            connection = self._connect()
        except psycopg.Error as error:
            ours = self._translated(error)
            # A caller with little time says nothing about the server: others may have more.
            if not CALL_BUDGET.is_less_than(_CONNECT_TIMEOUT):
                self._silent_until = time.monotonic() + self._timeouts.reconnect_delay
                self._silence = ours.message, ours.remedy
            raise ours from error
        try:
            self._refuse_other_encoding(connection)
            self._set_up(connection)
        except psycopg.Error as error:
            connection.close()
            raise self._translated(error) from error
        except ConfigurationError:
            connection.close()
            raise
        return connection

    def _set_up(self, connection: Connection) -> None:
        if self._address.is_shared:
            with self.at_most(_SETUP_TIMEOUT, connection):
                refuse_other_defaults(connection, self._address.name)
            _LOCAL_SETTINGS[connection] = self._local_settings
            return
        self._refuse_shared(connection)
        with self.at_most(_SETUP_TIMEOUT, connection):
            connection.execute(self._on_connect)

    def at_most(self, seconds: float, connection: Connection) -> Watched:
        """How long to wait for what is done on a connection."""
        return self._watchdog.at_most(seconds, connection)

    def _connect(self) -> Connection:
        connect = partial(psycopg.connect, **self._address.options, autocommit=True)
        # libpq counts the timeout in whole seconds and for each address: a caller with less time
        # needs a thread.
        return (
            connect_within(connect, CALL_BUDGET.at_most(_MAX_CONNECT_TIMEOUT))
            if CALL_BUDGET.is_less_than(_MAX_CONNECT_TIMEOUT)
            else connect()
        )

    def _refuse_shared(self, connection: Connection) -> None:
        """Refuse a pooler in transaction mode; asked once, at the first connection."""
        if not self._is_own:
            refuse_shared(pooling_of(connection, self._connect, self._watchdog), self._address.name)
            self._is_own = True

    def _refuse_other_encoding(self, connection: Connection) -> None:
        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise ConfigurationError(
                f"{self._address.name} has the encoding {encoding}, in which not every text can be"
                " kept",
                remedy="make the database with the encoding UTF8: createdb -E UTF8 -T template0",
            )

    def close(self) -> None:
        """Close idle connections now, and busy ones when they are returned."""
        with self._lock:
            self.is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _translated(self, error: psycopg.Error) -> ErgonError:
        name = self._address.name
        ours = refused(error, name) or translate(error, name)
        ours.details["is_lost"] = False  # nothing was sent that the server could have done
        return ours

    def _refuse_when_closed(self) -> None:
        if self.is_closed:
            raise StoreUnavailableError(f"{self._address.name} is closed", remedy="open it again")

    def _take(self, before_connecting: Callable[[], None] | None) -> Connection:
        self._refuse_when_closed()
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                if before_connecting is not None:
                    before_connecting()
                return self.connect()
            if _is_alive(connection):
                return connection
            connection.close()

    def _give_back(self, connection: Connection) -> None:
        with suppress(psycopg.Error):
            if connection.pgconn.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                connection.close()  # its last user left a transaction open, with its locks
        with self._lock:
            if not (connection.closed or self.is_closed):
                self._idle.append(connection)
                return
        connection.close()


def _is_alive(connection: Connection) -> bool:
    """Whether there is nothing to read on an idle connection: all it could get is its end.

    The server may have sent why it closes the connection, with the end still on its way. So any
    data counts as dead, unread: to connect again costs less than a caller's failed statement.
    """
    try:
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        return not poll.poll(0)
    except (psycopg.Error, OSError, ValueError):
        return False
