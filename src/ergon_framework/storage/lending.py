"""Connections that callers lend: what the driver has under those of SQLAlchemy and of Django.

Programs hold a session more often than a connection. Both are taken, and neither library is
imported for it: whoever has one of its objects has imported it. What they raise is told in words
of our own, so that who tries again when a store is away need not know what it was reached through.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from ergon_framework.errors import StoreError, StoreUnavailableError

_AWAY = frozenset({"InterfaceError", "OperationalError", "TimeoutError"})
"""Both libraries name their errors as drivers do; the last is that of a pool with none left."""

IN_ALCHEMY = "give a connection or session whose isolation_level is not AUTOCOMMIT"
"""How a transaction is begun on a server with SQLAlchemy."""


class Lent(NamedTuple):
    """What a caller gave."""

    driver: Any
    """The driver's own connection."""
    alchemy: Any = None
    """That of SQLAlchemy above it, if there is one."""
    remedy: str = ""
    """How a transaction is begun, where that has a way of its own."""

    def begin(self) -> bool:
        """Let SQLAlchemy know of the transaction: it commits only what it has begun itself.

        Whether that was news to it.
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


def lent(given: Any) -> Lent:
    """What lies under a connection or session of SQLAlchemy, or under one of Django's connections;
    anything else as it is.
    """
    with in_our_words(given):
        return _of_django(given) or _of_alchemy(given) or Lent(given)


def _of_django(given: Any) -> Lent | None:
    """``django.db.connection`` stands for another one in each thread, and is of no class."""
    if "django.db" not in sys.modules or not hasattr(given, "in_atomic_block"):
        return None
    given.ensure_connection()
    return Lent(given.connection, remedy="work within `with transaction.atomic():`")


def _of_alchemy(given: Any) -> Lent | None:
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
    return Lent(connection.connection.driver_connection, connection)


def kind_of(driver: Any) -> str:
    """What somebody gave, in words: most drivers call theirs simply a connection."""
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
    """Tell what the library of a connection raises as what it means here."""
    try:
        yield
    except _faults("sqlalchemy.exc", "SQLAlchemyError") as error:
        raise _told(
            f"the {type(given).__qualname__} of SQLAlchemy",
            error,
            "give one that is open and whose last transaction was ended; of a session with"
            " several engines give session.connection(…) for this database",
        ) from error
    except (
        *_faults("django.db.utils", "Error"),
        *_faults("django.core.exceptions", "ImproperlyConfigured", "SynchronousOnlyOperation"),
    ) as error:
        raise _told(
            "the connection of Django",
            error,
            "give one that is set up and open, and from code that is not asynchronous",
        ) from error


def _faults(module: str, *names: str) -> tuple[type[Exception], ...]:
    """Classes of errors, none as long as nobody has imported their module."""
    loaded = sys.modules.get(module)
    return () if loaded is None else tuple(getattr(loaded, name) for name in names)


def _told(what: str, error: Exception, remedy: str) -> StoreError:
    why = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
    message = f"{what} cannot be used: {why}"
    if _AWAY.isdisjoint(each.__name__ for each in type(error).__mro__):
        return StoreError(message, remedy=remedy)
    return StoreUnavailableError(
        message,
        remedy="see that the database can be reached, lets this user in and has a connection left;"
        " then begin the transaction again",
    )
