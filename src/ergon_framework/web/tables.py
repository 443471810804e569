"""Which tables an SQLite file has, asked without making the file."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from ergon_framework.errors import StoreSchemaError, StoreUnavailableError
from ergon_framework.storage.faults import translate

SQLITE = "sqlite:///"
_LOOK = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"


def has_table(file: Path, name: str) -> bool:
    """Whether the table is there; ``StoreError`` when the file is not, or is none of SQLite's."""
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
