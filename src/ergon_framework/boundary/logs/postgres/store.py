"""The whole fact store in one database."""

from __future__ import annotations

from ergon_framework.boundary.logs.postgres.moving import PostgresMoving
from ergon_framework.boundary.logs.tables.links import TableLinks
from ergon_framework.boundary.logs.tables.objects import TableObjects
from ergon_framework.boundary.logs.tables.serving import TableServing
from ergon_framework.errors import StoreError

_ACKNOWLEDGED = (
    "An acknowledged fact is synced to the disk of the PostgreSQL server (synchronous_commit is"
    " on): it survives the end of every process and power cuts, and the loss of that disk only"
    " where the server waits for a standby."
)


class PostgresFactStore(PostgresMoving, TableServing, TableObjects, TableLinks):
    """A zone's facts in a PostgreSQL database. Any thread and any process may call any method."""

    @property
    def acknowledgement(self) -> str:
        """What an acknowledged append survives."""
        return self._database.acknowledged("fact", _ACKNOWLEDGED)

    @property
    def is_synced(self) -> bool:
        """Whether the server's own settings keep what it acknowledges."""
        return self._database.is_safe

    largest: int | None = None
    """Nobody but the settings limits a fact."""

    def backup(self, folder: str) -> None:
        """Refuse: the server's own programs copy a database, and do it well."""
        raise StoreError(
            f"{self._place} is not backed up by a node",
            remedy=f"run pg_dump with --schema={self.namespace}, or back up the whole server; what"
            " pg_restore puts into another database begins a new epoch when it is opened, a server"
            " that was set back does not: copy the database there (createdb -T OLD NEW)",
        )
