"""The same connector by a URL: ``rows+sqlite:///shop.db?table=orders``."""

from __future__ import annotations

from urllib.parse import urlencode

import sqlalchemy as sa

from ergon_framework.connector.broker.url import import_client
from ergon_framework.connector.database.connector import LATE, DatabaseConnector
from ergon_framework.connector.database.status import STATUSES
from ergon_framework.errors import ConfigurationError
from ergon_framework.storage.urls import refuse_withheld

PREFIX = "rows+"
FORMS = "write rows+sqlite:///shop.db, or rows+postgresql://user@host/shop"


class RowsConnector(DatabaseConnector):
    """Consumes the rows of a table: :class:`DatabaseConnector` with a URL.

    ``host`` is the folder of the socket of a PostgreSQL server, and ``sslmode`` how it is reached,
    such as ``verify-full``.
    """

    def __init__(
        self,
        url: str,
        *,
        table: str,
        key: str = "id",
        position: str | None = None,
        where: str | None = None,
        consumer: str = "ergon",
        payload: str | None = None,
        ids: str | None = None,
        name: str | None = None,
        late: float = LATE,
        status: str | None = None,
        statuses: str = STATUSES,
        error: str | None = None,
        host: str | None = None,
        sslmode: str | None = None,
    ) -> None:
        refuse_withheld(url)
        if not url.startswith(PREFIX) or "?" in url or "#" in url:
            raise ConfigurationError("the URL of the rows cannot be read", remedy=FORMS)
        place = url.removeprefix(PREFIX)
        given = {"host": host, "sslmode": sslmode}
        query = urlencode({name: value for name, value in given.items() if value is not None})
        if place.startswith("postgresql"):
            import_client("psycopg", extra="postgres", connector="database")
        elif query:
            raise ConfigurationError("host and sslmode are for PostgreSQL", remedy=FORMS)
        place += f"?{query}" if query else ""
        try:
            database = sa.make_url(place).database
        except (sa.exc.ArgumentError, ValueError):  # its text may hold the password
            raise ConfigurationError("the URL of the rows cannot be read", remedy=FORMS) from None
        if not database:
            raise ConfigurationError("the URL of the rows names no database", remedy=FORMS)
        super().__init__(
            place,
            table=table,
            key=key,
            position=position,
            where=where,
            consumer=consumer,
            payload=payload,
            ids=ids,
            name=name,
            late=late,
            status=status,
            statuses=statuses,
            error=error,
        )
