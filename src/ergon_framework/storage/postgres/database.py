"""One PostgreSQL database: transactions on it, its clock, its notifications and a lock on it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeVar

import psycopg

from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.errors import (
    ConfigurationError,
    ErgonError,
    StoreError,
    StoreUnavailableError,
)
from ergon_framework.storage.deadlines import CALL_BUDGET, SocketWatchdog
from ergon_framework.storage.notifier import LocalSubscription
from ergon_framework.storage.postgres.address import address_of
from ergon_framework.storage.postgres.errors import (
    first_line,
    translate,
    translate_any,
    turns_for,
)
from ergon_framework.storage.postgres.notifier import ListenNotifier, PollingNotifier
from ergon_framework.storage.postgres.pool import (
    DEFAULT_TIMEOUTS,
    Connection,
    ConnectionPool,
    PostgresTimeouts,
)
from ergon_framework.storage.server import ServerClock

T = TypeVar("T")

_READ_ONLY = "25006"
_TIME = "SELECT extract(epoch FROM clock_timestamp())::float8"
_UNSAFE_SETTINGS = (
    "SELECT string_agg(name, ' and ' ORDER BY name) FROM pg_settings"
    " WHERE name IN ('fsync', 'full_page_writes') AND setting = 'off'"
)
_NO_IDLE_TIMEOUT = (
    "SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'idle_session_timeout'"
)
"""A lock must outlast a connection that idles; servers since 14 can limit that. Asked of the
catalogue, because older servers refuse a setting that they do not know."""
_TRY_LOCK = "SELECT pg_try_advisory_lock(hashtext('ergon'), hashtext(current_schema() || %s))"


def are_off(names: str) -> str:
    """That one setting of the server, or several with "and" between them, are off."""
    return f"{names} {'are' if ' and ' in names else 'is'} off"


class Schema(Protocol):
    """The tables that a database is opened for."""

    def settle(self, connection: Connection, name: str, namespace: str | None) -> None:
        """Create or migrate the tables. Tables that do not fit are refused."""

    def check(self, connection: Connection, name: str, namespace: str | None) -> None:
        """Refuse tables that do not fit."""


class PostgresDatabase:
    """A database on a server. Any thread may call any method."""

    unsafe_settings: str | None
    """The settings of the server that are off and without which it may lose what it acknowledged,
    with "and" between them; None when all are on."""

    def __init__(
        self,
        url: str,
        *,
        schema: Schema,
        namespace: str | None = None,
        size: int = 8,
        clock: Callable[[], float] | None = None,
        read_only: bool = False,
        timeouts: PostgresTimeouts = DEFAULT_TIMEOUTS,
        on_connect: str = "",
    ) -> None:
        """Connect, and look at the tables; they are made when there are none.

        ``namespace`` is the PostgreSQL schema they live in; by default that is where the search
        path of the URL points. ``size`` is how many connections may be in use at once, and
        ``on_connect`` the SQL that each of them executes first.
        """
        self._address = address_of(url)
        self._timeouts = timeouts
        self._watchdog = SocketWatchdog()
        # In a forked child the lock may be held, and the thread that watches is not there.
        renew_after_fork(self._watchdog)
        self._pool = ConnectionPool(
            self._address, size, self._watchdog, on_connect, timeouts=timeouts
        )
        self._notifier: ListenNotifier | PollingNotifier = (
            PollingNotifier()
            if self._address.is_shared
            else ListenNotifier(self._pool, self._address.name, timeouts=timeouts)
        )
        try:
            with self._pool.borrow() as connection:
                if read_only:
                    schema.check(connection, self.name, namespace)
                else:
                    schema.settle(connection, self.name, namespace)
                # Asked once: the durability that is shown to users must be true of this server.
                [[self.unsafe_settings]] = connection.execute(_UNSAFE_SETTINGS).fetchall()
            self._clock = clock or self._server_clock()
        except psycopg.Error as error:
            self.close()
            raise translate(error, self.name) from error
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        """The name shown to users."""
        return self._address.name

    @property
    def is_safe(self) -> bool:
        """Whether the server syncs what it commits."""
        return self.unsafe_settings is None

    def acknowledged(self, what: str, sentence: str) -> str:
        """``sentence``, which is what an acknowledgement means, or the truth where it is not so."""
        if self.unsafe_settings is None:
            return sentence
        trouble = are_off(self.unsafe_settings)
        return (
            f"An acknowledged {what} is with the PostgreSQL server, where {trouble}:"
            " after a power cut the whole database may be lost."
        )

    def now(self) -> float:
        """The server's clock, or the one that was given."""
        return self._clock()

    def server_now(self) -> float:
        """Like ``now``, but asks the server: a machine that slept counts too few seconds."""
        if isinstance(self._clock, ServerClock):
            self._clock.set()
        return self._clock()

    def run(
        self,
        work: Callable[[Connection], T],
        *,
        seconds: float | None = None,
        before_waiting: Callable[[], None] | None = None,
    ) -> T:
        """Run ``work`` on a connection with ``autocommit`` on, which it leaves outside of any
        transaction; what it leaves undone is rolled back. ``before_waiting`` is called when no
        connection is at hand.

        When the connection is lost, it is not known whether what was being committed is there: the
        error has ``is_lost`` in its details.
        """
        # A transaction that the server undid because of another one has done nothing: it may begin
        # anew. What was lost on its way is never repeated here.
        for turn in itertools.count(1):
            with self._pool.borrow(before_waiting) as connection:
                try:
                    return self._attempt(connection, work, seconds or self._timeouts.transaction)
                except psycopg.Error as error:
                    if turn >= turns_for(error):
                        raise translate(error, self.name) from error
                except (OverflowError, UnicodeError) as error:
                    raise StoreError(f"{self.name} cannot keep a value: {error}") from error
        raise AssertionError  # one turn or another ends it

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run ``work``, which changes nothing, a second time if the connection was lost."""
        try:
            return self.run(work)
        except StoreUnavailableError as error:
            # Changing nothing, it may be repeated even though the first one may have run.
            if not error.details.get("is_lost") or CALL_BUDGET.is_over:
                raise
            return self.run(work)

    @property
    def own_payload(self) -> str:
        """The payload of a NOTIFY that the subscribers of this object ignore."""
        return self._notifier.own_payload

    def subscribe(self, channel: str) -> LocalSubscription:
        """Subscribe to every NOTIFY on a channel; also woken when some may have been missed."""
        return self._notifier.subscribe(channel)

    def changed(self) -> None:
        """Note that this process has notified others: behind a pooler, its waiters look sooner."""
        if isinstance(self._notifier, PollingNotifier):
            self._notifier.changed()

    def close(self) -> None:
        """Close the database. May be called twice."""
        self._notifier.close()
        self._pool.close()

    def _attempt(
        self, connection: Connection, work: Callable[[Connection], T], seconds: float
    ) -> T:
        watched = self._watchdog.at_most(seconds, connection)
        try:
            with watched:
                return work(connection)
        except psycopg.Error as error:
            _undo(connection)
            if error.sqlstate == _READ_ONLY:
                connection.close()  # a new one may write, when the server lets them again
            if watched.is_over:
                raise StoreUnavailableError(
                    f"{self.name} did not answer within {watched.seconds:.3g} seconds",
                    remedy="see that the server runs and can be reached, and why it is slow",
                    details={"is_lost": True},
                ) from error
            raise
        except ErgonError:
            _undo(connection)
            raise
        except BaseException:
            # An interrupt, say: the connection may be in the middle of a result or a transaction.
            connection.close()
            raise
        finally:
            # Also when the answer came in the last moment: the socket is shut already.
            if watched.is_over:
                connection.close()

    def _server_clock(self) -> ServerClock:
        clock = ServerClock(self._ask_time, time.monotonic)
        renew_after_fork(clock)
        return clock

    def _ask_time(self) -> float:
        def ask(connection: Connection) -> float:
            [found] = connection.execute(_TIME).fetchall()
            return float(found[0])

        return self.read(ask)


def _undo(connection: Connection) -> None:
    try:
        if not connection.closed:
            connection.rollback()
    except psycopg.Error:
        connection.close()


class SessionLock:
    """An advisory lock on a connection of its own: the server frees it when that connection ends.

    So it is free at once when its process is killed, and stays taken while its process is stopped.
    """

    def __init__(self, url: str, name: str) -> None:
        self._address = address_of(url)
        self._name = name
        if self._address.is_shared:
            raise ConfigurationError(
                f"a lock on {self._address.name} needs a connection of its own, which a pooler in"
                " transaction mode does not give",
                remedy="write the address of the server itself, without ?pooler=transaction",
            )
        try:
            self._connection = psycopg.connect(
                **self._address.options, autocommit=True, prepare_threshold=None
            )
        except psycopg.Error as error:
            raise translate_any(error, self._address.name) from error

    def acquire(self) -> bool:
        """Take the lock; False when another connection has it."""
        try:
            self._connection.execute(_NO_IDLE_TIMEOUT)
            found = self._connection.execute(_TRY_LOCK, (f" {self._name}",)).fetchone()
        except psycopg.Error as error:
            raise translate_any(error, self._address.name) from error
        return bool(found and found[0])

    def run(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` on the connection that has the lock."""
        try:
            return work(self._connection)
        except psycopg.Error as error:
            raise translate_any(error, self._address.name) from error

    def refuse_lost(self) -> None:
        """Raise if the connection was lost, and the lock with it: another may have it since."""
        try:
            self._connection.execute("SELECT 1")
        except psycopg.Error as error:
            raise StoreUnavailableError(
                f"the connection that locked {self._address.name} was lost: {first_line(error)}",
                remedy="see that no other process does the same there",
            ) from error

    def close(self) -> None:
        """Free the lock; when this returns, another connection can take it.

        A closed connection is not enough: its server process frees the lock as it ends, which may
        be after our next process has asked for it.
        """
        with suppress(psycopg.Error):  # the connection is lost, and the lock with it
            self._connection.execute("SELECT pg_advisory_unlock_all()")
        self._connection.close()
