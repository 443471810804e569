"""Work in a transaction of the caller: the driver's connection under SQLAlchemy and Django.

``borrow`` finds the connection, and ``run_on`` does the same for asynchronous ones, whose work is
done in a thread.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ergon_framework.errors import StoreError, StoreUnavailableError

if TYPE_CHECKING:
    # Where one of them is awaited, asyncio is loaded; a plain program starts without it.
    import asyncio

_AWAY = frozenset({"InterfaceError", "OperationalError", "TimeoutError"})
"""Both libraries name their errors as drivers do; the last is that of a pool with none left."""

IN_ALCHEMY = "give a connection or session whose isolation_level is not AUTOCOMMIT"
"""How a transaction is begun on a server with SQLAlchemy."""


class Borrowed(NamedTuple):
    """A connection that belongs to the caller."""

    driver: Any
    """The driver's own connection."""
    alchemy: Any = None
    """The connection of SQLAlchemy around it, if there is one."""
    remedy: str = ""
    """How to begin a transaction, if this driver needs a call of its own."""

    def begin(self) -> bool:
        """Let SQLAlchemy begin the transaction, as it commits only what it has begun itself.

        Returns whether it had not begun one before.
        """
        is_news = self.alchemy is not None and not self.alchemy.in_transaction()
        if is_news:
            with in_our_words(self.alchemy):
                self.alchemy.begin()
        return is_news

    def give_up(self, error: Exception) -> None:
        """Let SQLAlchemy know that the connection is lost: it would meet that when it rolls back,
        and raise it in place of our error.
        """
        if self.alchemy is not None:
            self.alchemy.invalidate(error)


def borrow(given: Any) -> Borrowed:
    """What lies under a connection or session of SQLAlchemy, or under one of Django's connections;
    anything else as it is.
    """
    # By ``sys.modules``: a caller that passes a connection of a library has imported it, and no
    # other program has to pay for that import.
    with in_our_words(given):
        return _of_django(given) or _of_alchemy(given) or Borrowed(given)


def _of_django(given: Any) -> Borrowed | None:
    """Borrow from ``django.db.connection``, a proxy for each thread's connection, which no class
    check finds.
    """
    if "django.db" not in sys.modules or not hasattr(given, "in_atomic_block"):
        return None
    given.ensure_connection()
    return Borrowed(given.connection, remedy="work within `with transaction.atomic():`")


def _of_alchemy(given: Any) -> Borrowed | None:
    alchemy, orm = sys.modules.get("sqlalchemy"), sys.modules.get("sqlalchemy.orm")
    if alchemy is None:
        return None
    connection = given
    if orm is not None and isinstance(given, orm.Session | orm.scoped_session):
        session = given() if isinstance(given, orm.scoped_session) else given
        if session.twophase:  # before it begins one, which not every driver can
            raise two_phases()
        connection = session.connection()
    if not isinstance(connection, alchemy.Connection):
        return None
    if isinstance(connection.get_transaction(), alchemy.TwoPhaseTransaction):
        raise two_phases()
    return Borrowed(connection.connection.driver_connection, connection)


def kind_of(driver: Any) -> str:
    """The object that the caller passed, in words: most drivers call theirs a connection."""
    kind = type(driver)
    is_plain = kind.__module__ == "builtins"
    return kind.__qualname__ if is_plain else f"{kind.__module__}.{kind.__qualname__}"


def no_transaction(remedy: str) -> StoreError:
    """What is stored on a connection like that would be there at once, whatever follows."""
    return StoreError(
        "the connection has no transaction open, and begins none by itself", remedy=remedy
    )


def two_phases() -> StoreError:
    """PostgreSQL prepares no transaction that wakes others, and SQLite prepares none at all."""
    return StoreError(
        "a transaction that is committed in two phases cannot be joined",
        remedy="give a session without twophase=True, or a connection without begin_twophase()"
        " or tpc_begin()",
    )


@contextmanager
def in_our_words(given: Any) -> Iterator[None]:
    """Translate what the library of a connection raises into Ergon's errors."""
    try:
        yield
    except _faults("sqlalchemy.exc", "SQLAlchemyError") as error:
        raise _unusable(
            f"the {type(given).__qualname__} of SQLAlchemy",
            error,
            "give one that is open and whose last transaction was ended; of a session with"
            " several engines give session.connection(…) for this database",
        ) from error
    except (
        *_faults("django.db.utils", "Error"),
        *_faults("django.core.exceptions", "ImproperlyConfigured", "SynchronousOnlyOperation"),
    ) as error:
        raise _unusable(
            "the connection of Django",
            error,
            "give one that is set up and open, and from code that is not asynchronous",
        ) from error


def _faults(module: str, *names: str) -> tuple[type[Exception], ...]:
    """Classes of errors; none while their module is not imported in this process."""
    loaded = sys.modules.get(module)
    return () if loaded is None else tuple(getattr(loaded, name) for name in names)


def _unusable(what: str, error: Exception, remedy: str) -> StoreError:
    why = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
    message = f"{what} cannot be used: {why}"
    if _AWAY.isdisjoint(each.__name__ for each in type(error).__mro__):
        return StoreError(message, remedy=remedy)
    return StoreUnavailableError(
        message,
        remedy="see that the database can be reached, lets this user in and has a connection left;"
        " then begin the transaction again",
    )


T = TypeVar("T")

CANCEL_TIMEOUT = 5.0
"""Seconds for asking a server to cancel what it is doing."""
CANCEL_RETRY_DELAY = 0.5
"""Seconds until it is asked once more."""


class _AsyncBorrowed(NamedTuple):
    """The driver's own connection, and that of SQLAlchemy above it, if there is one."""

    driver: Any
    alchemy: Any = None


async def run_on(
    given: Any, work: Callable[[Any], T], in_thread: Callable[[Callable[[], T]], asyncio.Future[T]]
) -> T:
    """Let ``work`` be done on what a thread can use in place of an asynchronous connection or
    session; on anything else it is done here and now, as whatever else the caller does with it.

    ``in_thread`` must not wait for a thread that others may hold: they may wait for this work.
    """
    with in_our_words(given):
        borrowed = await _borrow_async(given)
    driver = borrowed.driver
    psycopg = sys.modules.get("psycopg")
    if psycopg is None or not isinstance(driver, psycopg.AsyncConnection):
        return work(driver)
    # Before the thread is used: this has to be awaited, which a thread cannot.
    await _begin(borrowed)
    try:
        return await _run_in_thread(driver, work, in_thread)
    except StoreError as error:
        if driver.closed and borrowed.alchemy is not None:
            await borrowed.alchemy.invalidate(error)  # it would meet that when it rolls back
        raise


async def _run_in_thread(
    driver: Any, work: Callable[[Any], T], in_thread: Callable[[Callable[[], T]], asyncio.Future[T]]
) -> T:
    # The connection's own lock: other tasks of the caller may use it, and two at once would mix up
    # their answers.
    async with driver.lock:
        if getattr(driver, "_tpc", None) is not None:  # nothing public tells of tpc_begin()
            raise two_phases()
        sync_connection, leave = _sync_connection(driver)
        try:
            return await _to_the_end(in_thread(lambda: work(sync_connection)), sync_connection)
        finally:
            leave()


async def _borrow_async(given: Any) -> _AsyncBorrowed:
    """What lies under a connection of SQLAlchemy, or under a session; or what was given."""
    alchemy = sys.modules.get("sqlalchemy.ext.asyncio")
    if alchemy is None:
        return _AsyncBorrowed(given)
    if isinstance(given, alchemy.async_scoped_session):
        given = given()
    if isinstance(given, alchemy.AsyncSession):
        if given.sync_session.twophase:
            raise two_phases()
        given = await given.connection()
    if not isinstance(given, alchemy.AsyncConnection):
        return _AsyncBorrowed(given)
    return _AsyncBorrowed((await given.get_raw_connection()).driver_connection, given)


async def _begin(borrowed: _AsyncBorrowed) -> None:
    """Let SQLAlchemy begin the transaction, as it commits only what it has begun itself."""
    import psycopg

    if borrowed.alchemy is None:
        return
    is_idle = borrowed.driver.info.transaction_status is psycopg.pq.TransactionStatus.IDLE
    if borrowed.driver.autocommit and is_idle:
        raise no_transaction(IN_ALCHEMY)
    if not borrowed.alchemy.in_transaction():
        with in_our_words(borrowed.alchemy):
            await borrowed.alchemy.begin()


class _Notice:
    """A copy of a notice of libpq, whose result is freed when its receiver returns."""

    def __init__(self, result: Any) -> None:
        from psycopg.pq import DiagnosticField

        self._fields: dict[int, bytes | None] = {
            field: result.error_field(field) for field in DiagnosticField
        }

    def error_field(self, field: int) -> bytes | None:
        """The error field as the server sent it."""
        return self._fields[field]


def _sync_connection(driver: Any) -> tuple[Any, Callable[[], None]]:
    """A connection for a thread, and what takes it away again.

    Notices of the server belong to the owner of the connection, which gets them afterwards in its
    own thread.
    """
    import psycopg

    line = driver.pgconn
    handlers = line.notice_handler, line.notify_handler
    notices: list[Any] = []
    notifies: list[Any] = []
    sync_connection = psycopg.Connection(line)
    # The names of prepared statements are for the owner to give.
    sync_connection.prepare_threshold = None
    if sync_connection.info.transaction_status is psycopg.pq.TransactionStatus.IDLE:
        _begin_alike(sync_connection, driver)
    # Collected, not delivered: handlers of the caller must run in the caller's thread.
    line.notice_handler = lambda result: notices.append(_Notice(result))
    line.notify_handler = notifies.append

    def leave() -> None:
        line.notice_handler, line.notify_handler = handlers
        del sync_connection.pgconn  # it is the owner's to close
        for handler, told in zip(handlers, (notices, notifies), strict=True):
            for each in told if handler is not None else ():
                handler(each)

    return sync_connection, leave


def _begin_alike(sync_connection: Any, driver: Any) -> None:
    """Copy the owner's transaction settings, so that a transaction begins as it would for the
    owner.
    """
    sync_connection.isolation_level = driver.isolation_level
    sync_connection.read_only = driver.read_only
    sync_connection.deferrable = driver.deferrable
    sync_connection.autocommit = driver.autocommit  # which the store refuses to join


async def _to_the_end(work: asyncio.Future[T], sync_connection: Any) -> T:
    """Wait until the thread has ended, even if the caller was cancelled: the thread uses the
    caller's connection. After a cancellation, the server is asked to cancel the statement.

    No task waits in between: cancelling all tasks of a loop would cancel that one, too.
    """
    import asyncio

    try:
        await asyncio.wait({work})
    except asyncio.CancelledError:
        if not work.done():
            await _cancelled_work(work, sync_connection)
        work.exception()  # read here, so that asyncio does not log it as never retrieved
        raise
    return work.result()


async def _cancelled_work(work: asyncio.Future[Any], sync_connection: Any) -> None:
    """Wait for the thread and for the one that sends the cancel request: a request that came late
    would cancel the caller's next statement.
    """
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    ended = threading.Event()
    work.add_done_callback(lambda _: ended.set())
    own = ThreadPoolExecutor(1, "ergon-cancel")  # those of the loop may wait for this very work
    asked = asyncio.get_running_loop().run_in_executor(
        own, _cancel_on_server, sync_connection, ended
    )
    # Ends its thread when the work is done, without waiting here: the event loop goes on.
    own.shutdown(wait=False)
    while not (work.done() and asked.done()):
        with suppress(asyncio.CancelledError):  # once more, and no reason to let go
            await asyncio.wait({work, asked})


def _cancel_on_server(sync_connection: Any, ended: threading.Event) -> None:
    """Ask the server to cancel, again and again: between two statements there is none to cancel."""
    import psycopg

    while not ended.is_set():
        with suppress(psycopg.Error):
            sync_connection.cancel_safe(timeout=CANCEL_TIMEOUT)
        ended.wait(CANCEL_RETRY_DELAY)
