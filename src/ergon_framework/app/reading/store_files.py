"""What can be known of a store without opening it: which tables its file has."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from ergon_framework.errors import ErgonError, StoreError, StoreSchemaError, StoreUnavailableError
from ergon_framework.storage.postgres.address import address_of
from ergon_framework.storage.sqlite.errors import translate
from ergon_framework.storage.urls import file_of

_LOOK = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"


def place_of(url: str) -> str:
    """The store in words; of a server only what kind it is, for its URL may hold a password."""
    file = file_of(url)
    return str(file) if file is not None else f"the {url.partition(':')[0]} store"


def has_calls(url: str, table: str) -> bool:
    """Whether a store has a table of provider calls.

    A server that does not answer is believed to have it: whoever opens it says what is wrong.
    """
    file = file_of(url)
    if file is not None:
        return _has_table(file, table)
    if not _is_postgres(url):
        return False
    try:
        address_of(url)  # names the extra that is missing
        from ergon_framework.storage.postgres.migrations import has_table

        return has_table(url, table)
    except ErgonError:
        return True


def has_jobs(url: str) -> bool:
    """Whether anybody has stored jobs there, as far as that can be seen without making anything.

    A server that does not answer is believed to have them: whoever opens it says what is wrong.
    """
    file = file_of(url)
    if file is not None:
        return _has_table(file, "ergon_jobs")
    if not _is_postgres(url):
        return True  # Redis has no tables that could be missing
    try:
        address_of(url)
        from ergon_framework.jobs.stores.postgres.ground import SCHEMA
        from ergon_framework.storage.postgres.migrations import version_of

        return version_of(url, SCHEMA) is not None
    except ErgonError:
        return True


def _is_postgres(url: str) -> bool:
    return url.lower().startswith("postgres")


def _has_table(file: Path, name: str) -> bool:
    try:
        return file_has_table(file, name)
    except StoreError:
        return False  # whoever opens it in earnest says what is wrong with it


def file_has_table(file: Path, name: str) -> bool:
    """Whether an SQLite file has a table; ``StoreError`` when it is not there, or is none."""
    if not file.is_file():
        raise StoreUnavailableError(
            f"there is no file {file}",
            remedy="a worker, a provider or ergon db upgrade makes it; or name another store",
        )
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as looking:
            return looking.execute(_LOOK, (name,)).fetchone() is not None
    except sqlite3.Error as error:
        told = translate(error, file) or StoreSchemaError(f"{file} cannot be read: {error}")
        raise told from error


def check_folder(file: Path | None) -> None:
    """Refuse a file that nobody can make: its folder is not there, or it cannot be a file."""
    if file is None:
        return
    try:
        folder = file.absolute().parent
        if not folder.is_dir():
            raise StoreUnavailableError(
                f"there is no folder {folder} for {file.name}",
                remedy="make it, or name another file",
            )
        if file.is_dir():
            raise StoreUnavailableError(f"{file} is a folder", remedy="name a file in it")
    except OSError as error:
        raise StoreUnavailableError(
            f"{file.name[:40]!r} cannot be a file: {error.strerror}", remedy="name another one"
        ) from error
