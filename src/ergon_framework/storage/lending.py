"""Connections that callers lend: what the driver has under those of SQLAlchemy and of Django.

Programs hold a session more often than a connection. Both are taken, and neither library is
imported for it: whoever has one of its objects has imported it.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from ergon_framework.errors import StoreError


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
            self.alchemy.begin()
        return is_news


def lent(given: Any) -> Lent:
    """What lies under a connection or session of SQLAlchemy, or under one of Django's connections;
    anything else as it is.
    """
    if _is_django(given):
        given.ensure_connection()
        return Lent(given.connection, remedy="work within `with transaction.atomic():`")
    alchemy = sys.modules.get("sqlalchemy")
    if alchemy is None:
        return Lent(given)
    try:
        connection = given.connection() if _is_session(given) else given
        if not isinstance(connection, alchemy.Connection):
            return Lent(given)
        return Lent(connection.connection.driver_connection, connection)
    except alchemy.exc.SQLAlchemyError as error:
        raise StoreError(
            f"the {type(given).__qualname__} of SQLAlchemy cannot be used: {_first_line(error)}",
            remedy="give one that is open and whose last transaction was ended; of a session with"
            " several engines give session.connection(…) for this database",
        ) from error


def _is_session(given: Any) -> bool:
    orm = sys.modules.get("sqlalchemy.orm")
    return orm is not None and isinstance(given, orm.Session | orm.scoped_session)


def _is_django(given: Any) -> bool:
    """``django.db.connection`` stands for another one in each thread, and is of no class."""
    return "django.db" in sys.modules and hasattr(given, "in_atomic_block")


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
