"""The store in a database, on SQLite and on PostgreSQL alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ergon_framework.providers.stores.database import Ground
from ergon_framework.providers.stores.sql_attempts import Health
from ergon_framework.providers.stores.sql_lanes import Gates, Quotas
from ergon_framework.providers.stores.sql_tasks import Keys, Letters


class SqlProviderStore(Gates, Quotas, Health, Keys, Letters):
    """What the processes that use one database share."""

    durability = "What was recorded, claimed or finished is on the database's disk."

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self.at_close: list[Callable[[], object]] = []
        """Called before it closes: whoever has something for it brings that now."""
        self.name = ground.name
        """What to call it in front of people; without a password."""

    @property
    def ground(self) -> Ground:
        """What it stands on."""
        return self._ground

    @property
    def path(self) -> Path | None:
        """The file that the tables are in; None when they are on a server."""
        return self._ground.path

    @property
    def is_closed(self) -> bool:
        """Whether it takes no more calls."""
        return self._ground.is_closed

    def close(self) -> None:
        """Let go of everything. Closing twice is fine."""
        while self.at_close:
            self.at_close.pop()()
        self._ground.close()
