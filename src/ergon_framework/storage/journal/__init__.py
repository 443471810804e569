"""The journal: one SQLite file with the notices and spans of many processes.

Promises: a write is one commit and whole; numbers grow and are never given twice; old rows go by
themselves. Not promised: that the last second survives a power cut, since no commit waits for the
disk: a journal explains, and the stores of the parts say what is true.
"""

from __future__ import annotations

from ergon_framework.storage.journal.sqlite import KEEP, MAX_ENTRIES, SqliteJournal

__all__ = ["KEEP", "MAX_ENTRIES", "SqliteJournal"]
