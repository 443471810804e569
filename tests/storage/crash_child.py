"""Writes items until it dies at a failpoint, and says on standard output what was acknowledged.

    ERGON_FAILPOINTS=storage.commit.before=kill@7 python crash_child.py FILE THREADS [PREFIX]

Every item is two rows, one in each of two tables, so that half of one can be told.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
from pathlib import Path

from ergon_framework.storage.sqlite.database import Database
from ergon_framework.storage.sqlite.migrations import SqliteSchema

ITEMS = 30


def pair(name: str) -> list[tuple[str, tuple[object, ...]]]:
    """The two halves of an item."""
    return [
        ("INSERT INTO ergon_item (name) VALUES (?)", (name,)),
        ("INSERT INTO ergon_half (side, name) VALUES ('right', ?)", (name,)),
    ]


def run(database: Database, thread: str) -> None:
    """Write and acknowledge; each line is one write to the pipe, which is atomic."""
    for n in range(ITEMS):
        name = f"{thread}-{n}"

        def work(connection: sqlite3.Connection, name: str = name) -> None:
            for statement, values in pair(name):
                connection.execute(statement, values)

        os.write(1, f"began {name}\n".encode())
        database.write(work)
        os.write(1, f"acked {name}\n".encode())


def main(path: str, threads: int, prefix: str = "") -> None:
    """As many writers as wanted, then a clean end."""
    with Database(path, schema=SqliteSchema("sample", "tests.storage.sample")) as database:
        names = [f"{prefix}{n}" for n in range(threads)]
        crew = [threading.Thread(target=run, args=(database, name)) for name in names]
        for each in crew:
            each.start()
        for each in crew:
            each.join()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for the sample schema
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
