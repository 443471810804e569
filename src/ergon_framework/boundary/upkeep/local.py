"""A zone's folder looked at without its node, which may run meanwhile. Nothing is changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from ergon_framework.boundary.folder import FILE, OBJECTS
from ergon_framework.boundary.logs.sqlite import SqliteFactStore
from ergon_framework.boundary.logs.sqlite.ground import SCHEMA, SQL
from ergon_framework.boundary.objects.filesystem import FilesystemObjectStore
from ergon_framework.boundary.zone import Zone
from ergon_framework.errors import ConfigurationError
from ergon_framework.storage.statements import load
from ergon_framework.storage.writer import Database

_SQL = load(SQL, "store.sql")


@contextmanager
def looked_into(data: str | Path, *, clock: Callable[[], float] = time.time) -> Iterator[Zone]:
    """The zone that lives in a folder, for reading only."""
    folder = Path(data).absolute()
    file = folder / FILE
    if not file.is_file():
        raise ConfigurationError(
            f"no zone lives in {folder}: there is no {FILE}",
            remedy="name the folder that `ergon boundary serve --data` was given, or a backup",
        )
    zone = _owner(file)
    with (
        closing(FilesystemObjectStore(folder / OBJECTS, clock=clock)) as objects,
        closing(SqliteFactStore(file, zone=zone, clock=clock, read_only=True)) as store,
    ):
        yield Zone(zone, store, objects, clock=clock)


def _owner(file: Path) -> str:
    """Whose store it is: a folder says it itself, so that nobody has to."""
    with Database(file, schema=SCHEMA, read_only=True) as database:
        found = database.read(lambda connection: connection.execute(_SQL["store"]).fetchone())
    if found is None:
        raise ConfigurationError(
            f"{file} has no zone yet", remedy="start the node once, or name another folder"
        )
    return str(found[0])
