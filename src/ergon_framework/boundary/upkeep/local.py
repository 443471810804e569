"""A zone looked at without its node, which may run meanwhile. Nothing is changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from ergon_framework.boundary.folder import FILE
from ergon_framework.boundary.logs.sqlite.ground import SCHEMA, SQL
from ergon_framework.boundary.opening import clock_of, fact_file, open_stores
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.boundary.zone import Zone
from ergon_framework.errors import ConfigurationError
from ergon_framework.storage.sql_files import load
from ergon_framework.storage.sqlite.database import Database

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
    with looked_at(_owner(file), ZoneSettings(data=str(folder)), clock=clock) as zone:
        yield zone


@contextmanager
def looked_at(
    name: str, settings: ZoneSettings, *, clock: Callable[[], float] | None = None
) -> Iterator[Zone]:
    """The zone that settings describe, wherever its stores are, for reading only."""
    file = fact_file(settings)
    if file is not None and not file.is_file():
        raise ConfigurationError(
            f"zone {name!r} has no facts yet: there is no {file}",
            remedy="start its node once, or name the folder of another zone with --data",
        )
    store, objects = open_stores(name, settings, clock=clock, read_only=True)
    with closing(objects), closing(store):
        yield Zone(name, store, objects, settings, clock=clock or clock_of(store))


def _owner(file: Path) -> str:
    """Whose store it is: a folder says it itself, so that nobody has to."""
    with Database(file, schema=SCHEMA, read_only=True) as database:
        found = database.read(lambda connection: connection.execute(_SQL["store"]).fetchone())
    if found is None:
        raise ConfigurationError(
            f"{file} has no zone yet", remedy="start the node once, or name another folder"
        )
    return str(found[0])
