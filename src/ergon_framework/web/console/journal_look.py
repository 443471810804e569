"""The journal of this machine's processes, as pages look at it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ergon_framework.app.journal import journal_path
from ergon_framework.app.settings.sections import Settings
from ergon_framework.errors import SettingsError, StoreError
from ergon_framework.storage.journal import SqliteJournal
from ergon_framework.web.backend_pool import Bulkhead
from ergon_framework.web.responses import BackendUnavailableError

T = TypeVar("T")

SECONDS = 8.0
"""For an answer of the journal."""
NOBODY_WRITES = "nobody_writes"
NOTHING_YET = "nothing_yet"


class JournalLook:
    """Opens the file for each question: it may come and go, and is made by the first to write."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._threads = Bulkhead("journal", SECONDS)

    @property
    def path(self) -> Path | None:
        """Where it is, or will be; None when the settings want none."""
        try:
            return journal_path(self.settings)
        except SettingsError:  # whoever would write it has been told
            return None

    @property
    def problem(self) -> str | None:
        """Why there is nothing to look at."""
        path = self.path
        if path is None:
            return NOBODY_WRITES
        return None if path.is_file() else NOTHING_YET

    async def ask(self, question: Callable[[SqliteJournal], T], otherwise: T) -> T:
        """What the journal answers; ``otherwise`` where there is none."""
        path = self.path
        if path is None or not path.is_file():
            return otherwise

        def look() -> T:
            with SqliteJournal(path, read_only=True) as journal:
                return question(journal)

        try:
            return await self._threads.call(look)
        except StoreError as error:
            raise BackendUnavailableError("journal", "the journal", error.code) from error

    async def mark(self) -> str:
        """Changes with what was written; open pages ask for it once a second."""
        try:
            return str(await self.ask(lambda journal: journal.last(), 0))
        except BackendUnavailableError:
            return "away"
