"""The journal in the settings: where it is, who reads it, and which processes write it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ergon_framework.app.jobs import resolve_url
from ergon_framework.app.settings.sections import Settings
from ergon_framework.errors import SettingsError, StoreUnavailableError
from ergon_framework.storage.journal import SqliteJournal
from ergon_framework.storage.urls import SQLITE
from ergon_framework.telemetry.following import VARIABLE

if TYPE_CHECKING:
    from ergon_framework.telemetry.journalling import JournalWriter

FILE = "ergon-journal.db"
"""Its name beside a settings file that names none."""
_REMEDY = 'under [telemetry] write journal = "sqlite:///ergon-journal.db", or "none"'


def journal_path(settings: Settings) -> Path | None:
    """The journal's file, whether it is there or not; None when there is to be none.

    A path in a settings file is relative to that file. Without a settings file there is none,
    unless the parent process said so.
    """
    named = settings.telemetry.journal
    if named is None:
        if settings.file is not None:
            return settings.file.absolute().with_name(FILE)
        named = os.environ.get(VARIABLE) or "none"
    if named == "none":
        return None
    base = Path() if settings.file is None else settings.file.parent
    url = resolve_url(named, base)
    path = url.removeprefix(SQLITE)
    if path in (url, "", ":memory:") or "\0" in path:
        raise SettingsError("telemetry.journal does not name an SQLite file", remedy=_REMEDY)
    return Path(path)


def journal_of(settings: Settings) -> SqliteJournal | None:
    """The journal, for reading; None when there is none, or nothing has written it yet."""
    path = journal_path(settings)
    if path is None or not path.exists():
        return None
    return SqliteJournal(path, read_only=True)


def writer_of(settings: Settings) -> JournalWriter | None:
    """Writes the journal in the background; None when there is to be none."""
    from ergon_framework.telemetry.journalling import JournalWriter

    path = journal_path(settings)
    if path is None:
        return None
    telemetry = settings.telemetry

    def opening() -> SqliteJournal:
        if not path.parent.is_dir():  # a folder is the user's to make
            raise StoreUnavailableError(
                f"there is no folder {path.parent} for the journal", remedy=_REMEDY
            )
        return SqliteJournal(path, keep=telemetry.journal_keep, most=telemetry.journal_most)

    return JournalWriter(opening)


@contextmanager
def journalling(settings: Settings, source: str) -> Iterator[JournalWriter | None]:
    """Keep what this process tells; every process of ours runs inside of it.

    ``source`` says who it is, for example "worker w1" or "zone plant".
    """
    from ergon_framework.telemetry import add_listener, remove_listener
    from ergon_framework.telemetry.following import following
    from ergon_framework.telemetry.journalling import JournalListener

    path, writer = journal_path(settings), writer_of(settings)
    if path is None or writer is None:
        yield None
        return
    listener = JournalListener(writer, source, keeps_all=settings.telemetry.journal_all)
    add_listener(listener)
    try:
        with following(writer.keep, source, path):
            yield writer
    finally:
        remove_listener(listener)
        writer.close()
