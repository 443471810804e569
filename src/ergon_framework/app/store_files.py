"""What can be known of a store without opening it: where its file is, and what tables it has."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

_SQLITE = "sqlite:///"
_LOOK = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"


def file_of(url: str) -> Path | None:
    """The file of a store on SQLite."""
    return Path(url[len(_SQLITE) :]) if url.lower().startswith(_SQLITE) else None


def place_of(url: str) -> str:
    """The store in words; of a server only what kind it is, for its URL may hold a password."""
    file = file_of(url)
    return str(file) if file is not None else f"the {url.partition(':')[0]} store"


def has_table(url: str, name: str) -> bool:
    """Whether a store has a table; a server is believed to have what it is asked for."""
    file = file_of(url)
    if file is None:
        return url.lower().startswith("postgres") and name.startswith("provider_")
    if not file.exists():
        return False
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as looking:
            return looking.execute(_LOOK, (name,)).fetchone() is not None
    except sqlite3.Error:
        return False  # whoever opens it in earnest says what is wrong with it
