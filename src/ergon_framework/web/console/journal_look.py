"""Reads the journal of this machine's processes for pages."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ergon_framework.app.journal import journal_path
from ergon_framework.app.settings.sections import Settings
from ergon_framework.errors import ErgonError, SettingsError, StoreError, StoreSchemaError
from ergon_framework.storage.journal import SqliteJournal
from ergon_framework.web.backend_pool import Bulkhead
from ergon_framework.web.responses import BackendUnavailableError

logger = logging.getLogger("ergon.web")
T = TypeVar("T")

SECONDS = 8.0
"""Seconds that the journal has for an answer."""
NOBODY_WRITES = "nobody_writes"
NOTHING_YET = "nothing_yet"


_SCHEMA_REMEDY = (
    "the log of the server says why: a file of a newer version wants a newer server, one that is"
    " damaged is made anew when it was moved away"
)


class JournalUnavailableError(BackendUnavailableError):
    """The error for a journal that cannot be read. No command upgrades a journal: its writer makes
    a new one.
    """

    def __init__(self, code: str) -> None:
        remedy = _SCHEMA_REMEDY if code == StoreSchemaError.code else ""
        details = {"part": "journal"}
        ErgonError.__init__(self, "the journal does not answer", remedy=remedy, details=details)
        self.code = code


class JournalLook:
    """Reads the journal. The file is opened for each query, because it may come and go, and its
    first writer makes it.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._threads = Bulkhead("journal", SECONDS)
        self._is_away = False

    @property
    def path(self) -> Path | None:
        """The path of the file, which need not exist. None when the settings want no journal."""
        try:
            return journal_path(self.settings)
        except SettingsError:  # The program that would write it has been told.
            return None

    @property
    def problem(self) -> str | None:
        """Why there is nothing to read."""
        path = self.path
        if path is None:
            return NOBODY_WRITES
        return None if path.is_file() else NOTHING_YET

    async def ask(self, question: Callable[[SqliteJournal], T], otherwise: T) -> T:
        """Query the journal. Returns ``otherwise`` where there is none."""
        path = self.path
        if path is None or not path.is_file():
            return otherwise

        def look() -> T:
            with SqliteJournal(path, read_only=True) as journal:
                return question(journal)

        try:
            found = await self._threads.call(look)
        except StoreError as error:
            if not self._is_away:  # Logged once per outage, because open pages ask each second.
                logger.warning("the journal does not answer: %s", error)
            self._is_away = True
            raise JournalUnavailableError(error.code) from error
        self._is_away = False
        return found

    async def mark(self) -> str:
        """A value that changes when the journal is written. Open pages ask for it once a second."""
        try:
            return str(await self.ask(lambda journal: journal.last(), 0))
        except BackendUnavailableError:
            return "away"
