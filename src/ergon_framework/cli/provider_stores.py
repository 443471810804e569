"""Which store the commands for provider calls mean, and how they open it."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ergon_framework.cli.output import printable
from ergon_framework.errors import ConfigurationError, SettingsError, StoreSchemaError

if TYPE_CHECKING:
    from ergon_framework.ports.providerstore import ProviderInspector, ProviderStore
    from ergon_framework.providers.migrations.database import MigrationDatabase


@dataclass(frozen=True, slots=True)
class OpenProviderStore:
    """An open store, and the inspector of its tables."""

    store: ProviderStore
    inspector: ProviderInspector


@contextmanager
def opened(config: Path | None, url: str | None) -> Iterator[OpenProviderStore]:
    """The store that the options or the settings name; neither a file nor tables are made."""
    from ergon_framework.providers.migrations.database import database_of
    from ergon_framework.providers.store_urls import open_store
    from ergon_framework.providers.stores.inspector import SqlProviderInspector

    named = named_store(config, url)
    database = database_of(named)
    # Opening a store makes its tables, which a command that only looks must not do.
    check_tables(database)
    with closing(open_store(named)) as store:
        yield OpenProviderStore(store, SqlProviderInspector(database))


def opened_each(config: Path | None, url: str | None) -> Generator[OpenProviderStore, None, None]:
    """The same for every store that the settings name: a provider may have one of its own.

    Of several, those without tables are left out; each is open while it is looked at. The store of
    a script that has made no calls is none.
    """
    from ergon_framework.app.settings import load_settings
    from ergon_framework.app.settings.stores import call_stores, has_calls, script_store

    settings = load_settings(config)
    named = [] if url else call_stores(settings).values()
    there = [each for each in named if has_calls(each, "provider_health_states")]
    if not there and url is None and (script := script_store(settings)) is not None:
        print(printable(f"note: {script} has no provider calls yet"), file=sys.stderr, flush=True)
        return
    for each in there or [named_store(config, url)]:
        with opened(config, each) as store:
            yield store


def named_store(config: Path | None, url: str | None) -> str:
    """The URL that the options or the settings name, of a store that other processes can see."""
    named = url or store_in_settings(config)
    if named.lower().startswith("memory:"):
        raise ConfigurationError(
            "what a store in memory holds, only its own process can see",
            remedy="name a store in a database, such as sqlite:///work.db",
        )
    return named


def check_tables(database: MigrationDatabase) -> None:
    """Refuse a database without our tables; ``StoreUnavailableError`` when it cannot be asked."""
    from ergon_framework.providers.migrations import commands

    with database.connect() as connection:
        revision = commands.current(connection)
    if revision is None:
        raise StoreSchemaError(
            f"{database.name} has no tables of provider calls",
            remedy=f"{database.upgrade_command} makes them; or name another store",
        )


def store_in_settings(config: Path | None) -> str:
    """The URL of the store that provider calls use by the settings."""
    from ergon_framework.app.settings import load_settings
    from ergon_framework.app.settings.stores import store_url, without

    settings = load_settings(config)
    named = store_url(settings, getattr(settings.extensions.get("providers"), "store", None))
    if not named:
        raise SettingsError(
            f"no store: {without(settings, 'has none')}",
            remedy='write url = "sqlite:///work.db" under [store] in ergon.toml, or store = … under'
            " [providers], or give --store",
        )
    return named
