"""A lock that a process holds on a PostgreSQL server as long as it lives."""

from __future__ import annotations

import psycopg

from ergon_framework.errors import StoreUnavailableError
from ergon_framework.storage.postgres.address import address_of
from ergon_framework.storage.postgres.errors import first_line, translate_any

_SETUP = "SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'idle_session_timeout'"
"""The lock is to outlast the connection's idling, which newer servers may limit."""
_ACQUIRE = "SELECT pg_try_advisory_lock(hashtext('ergon'), hashtext(current_schema() || %s))"


class SessionLock:
    """An advisory lock on a connection of its own: the server frees it when that connection ends.

    So it is free at once when its process is killed, and stays taken while its process is stopped.
    """

    def __init__(self, url: str, name: str) -> None:
        self._address = address_of(url)
        self._name = name
        try:
            self._connection = psycopg.connect(
                **self._address.options, autocommit=True, prepare_threshold=None
            )
        except psycopg.Error as error:
            raise translate_any(error, self._address.name) from error

    def acquire(self) -> bool:
        """Take the lock; False when another connection has it."""
        try:
            self._connection.execute(_SETUP)
            found = self._connection.execute(_ACQUIRE, (f" {self._name}",)).fetchone()
        except psycopg.Error as error:
            raise translate_any(error, self._address.name) from error
        return bool(found and found[0])

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
        """Free the lock."""
        self._connection.close()
