"""SQLite files that have lost all that was in them: whoever opens one would begin anew."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from ergon_framework.app.diagnostics.findings import Finding, FindingStatus

_BEGIN = "restore a backup; if nothing was in it, or is to be, delete it, with its -wal and -shm"
_SQL = "SELECT name FROM sqlite_master WHERE type = 'table'"
_VERSIONED = ("ergon_jobs", "ergon_boundary_", "ergon_poll_")
"""Tables whose version stands in ``ergon_schema``."""


def emptied(check: str, path: Path | None, *, store: str = "") -> Finding | None:
    """What is lost of such a file; None for one that can be opened, by who says what is wrong."""
    found = None if path is None else _lost(path)
    if found is None:
        return None
    return Finding(check, FindingStatus.BAD, *found, store=store)


def _lost(path: Path) -> tuple[str, str] | None:
    try:
        wal = Path(f"{path}-wal")
        has_wal = wal.is_file() and wal.stat().st_size > 0
        if path.is_dir():
            return f"{path} is a folder", "name a file in it"
        if not path.exists():
            if not has_wal:
                return None  # it is made at its first use
            return f"{path} is not there, and its -wal is", "bring the file back, or both of them"
        if not path.stat().st_size:
            return None if has_wal else (f"{path} is empty: it has no tables", _BEGIN)
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as opened:
            tables = {name for (name,) in opened.execute(_SQL)}
    except (OSError, sqlite3.Error):
        return None
    if "ergon_schema" not in tables and any(each.startswith(_VERSIONED) for each in tables):
        text = f"{path} has lost the table ergon_schema, which says what its other tables are"
        return text, "stop what uses it, and put a backup of it in its place"
    return None
