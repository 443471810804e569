"""Which store a part of the settings uses, and what is known about it without opening it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from pydantic import SecretStr

from ergon_framework.app.discovery import STORE_FILE, nowhere
from ergon_framework.app.settings.secrets import revealed
from ergon_framework.app.settings.sections import Settings
from ergon_framework.errors import ErgonError, StoreError, StoreSchemaError, StoreUnavailableError
from ergon_framework.ports.settings_model import FrozenDict
from ergon_framework.storage.urls import SQLITE, file_of, given_options, store_option

SCRIPT_FILE = STORE_FILE
"""The store that a script with ``App()`` makes beside itself."""


def store_url(settings: Settings, *own: SecretStr | None) -> str:
    """The first of these that is given, else the URL of ``[store]``; empty when there is none.

    A file named in the settings is relative to them. Where nothing is named, ``ergon.db`` beside
    the settings, or in the working directory, is the store if it is there: ``App()`` makes it.
    """
    base, url = base_of(settings), url_as_written(settings, *own)
    if not url and (base / SCRIPT_FILE).exists():  # a folder was meant, too: who opens it says so
        url = f"{SQLITE}{SCRIPT_FILE}"
    return resolve_url(url, base)


def with_store(settings: Settings, url: str) -> Settings:
    """The settings with this store for all parts, also for jobs that have one of their own."""
    extensions = dict(settings.extensions)
    jobs = extensions.get("jobs")
    if jobs is not None:
        extensions["jobs"] = jobs.model_copy(update={"store": None})
    store = settings.store.model_copy(update={"url": SecretStr(url)})
    return settings.model_copy(update={"store": store, "extensions": FrozenDict(extensions)})


def call_stores(settings: Settings) -> dict[str, str]:
    """Every store of provider calls that the settings name, each URL once.

    The one of all has the name ""; one that only some use has the name of the first of them. A
    store of all parts that keeps no provider calls is left out where there is no provider.
    """
    section = settings.extensions.get("providers")
    common = getattr(section, "store", None)
    named = {} if section is None else section.named
    shared = store_url(settings, common)
    found = {"": shared} if section is not None or keeps_calls(shared) else {}
    for name, entry in named.items():
        url = store_url(settings, entry.store, common)
        if url not in found.values():
            found[name] = url
    return {name: url for name, url in found.items() if url}


def keeps_jobs(url: str) -> bool:
    """Whether the store is of a kind that keeps jobs."""
    return bool(url) and not url.lower().startswith(("nats:", "tls:"))


def keeps_calls(url: str) -> bool:
    """Whether the store is of a kind that keeps provider calls."""
    return bool(url) and not url.lower().startswith(("nats:", "tls:", "redis:", "rediss:"))


def is_in_memory(url: str) -> bool:
    """Whether only the process that has the store can see what is in it."""
    return url.lower().startswith("memory:")


def url_as_written(settings: Settings, *own: SecretStr | None) -> str:
    """The URL as it was written in the settings."""
    named = next((url for url in (*own, settings.store.url) if url is not None), None)
    return revealed(named) or ""


def base_of(settings: Settings) -> Path:
    """The folder that paths in the settings are relative to."""
    if settings.file is not None:
        return settings.file.parent
    return settings.home or Path()


def script_store(settings: Settings) -> Path | None:
    """``ergon.db`` where it is the store without a settings file: a script has made it, or will."""
    if settings.file is not None:
        return None
    named = url_as_written(settings)
    if named:
        file = file_of(resolve_url(named, base_of(settings)))
        return file if file is not None and file.name == SCRIPT_FILE else None
    beside = base_of(settings) / SCRIPT_FILE
    return beside if beside.is_file() else None


def without(settings: Settings, lacks: str) -> str:
    """Why something is not named: there are no settings, or their file ``lacks`` it."""
    if settings.file is not None:
        return f"{settings.file} {lacks}"
    if settings.home is not None:
        here = Path.cwd()
        if settings.home.absolute() in here.parents:  # found from here, upwards
            return f"there is no settings file in {here} or above, up to {settings.home}"
        return f"there is no settings file in {settings.home}"
    return nowhere()


def options_again(settings: Settings, config: Path | None, store: str | None, url: str) -> str:
    """By which options the next command finds the store with this URL, from whatever folder.

    ``config`` and ``store`` are the options by which this command was told.
    """
    if store is None and settings.file is None:
        return store_option(url)  # nothing says where it is but the folder that we are in
    return given_options(config, store)


def resolve_url(url: str, base: Path) -> str:
    """The same URL with the path of an SQLite file made absolute."""
    if not url.lower().startswith(SQLITE):
        return url
    path = url[len(SQLITE) :]
    if not path or path.startswith(("/", ":")):
        return url
    return f"{SQLITE}{(base / path).absolute()}"


_LOOK = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
_PART = "SELECT 1 FROM ergon_schema WHERE part = ?"


def place_of(url: str) -> str:
    """The store in words; of a server only what kind it is, for its URL may hold a password."""
    file = file_of(url)
    return str(file) if file is not None else f"the {url.partition(':')[0]} store"


def has_calls(url: str, table: str) -> bool:
    """Whether a store has a table of provider calls.

    One that does not answer or cannot be read is believed to: whoever opens it says what is wrong.
    """
    file = file_of(url)
    if file is not None:
        return _is_believed(file, lambda file: file_has_table(file, table))
    if not _is_postgres(url):
        return False
    try:
        from ergon_framework.storage.postgres.address import address_of

        address_of(url)  # names the extra that is missing
        from ergon_framework.storage.postgres.migrations import has_table

        return has_table(url, table)
    except ErgonError:
        return True


def has_jobs(url: str) -> bool:
    """Whether anybody has stored jobs there, as far as that can be seen without making anything.

    One that does not answer or cannot be read is believed to: whoever opens it says what is wrong.
    """
    file = file_of(url)
    if file is not None:
        return _is_believed(file, file_has_jobs)
    if not _is_postgres(url):
        return True  # Redis has no tables that could be missing
    try:
        from ergon_framework.storage.postgres.address import address_of

        address_of(url)
        from ergon_framework.jobs.stores.postgres.transactions import SCHEMA
        from ergon_framework.storage.postgres.migrations import version_of

        return version_of(url, SCHEMA) is not None
    except ErgonError:
        return True


def _is_postgres(url: str) -> bool:
    return url.lower().startswith("postgres")


def _is_believed(file: Path, look: Callable[[Path], bool]) -> bool:
    try:
        return look(file)
    except StoreError:
        return not _is_missing(file)


def _is_missing(file: Path) -> bool:
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False  # there is something, and it is not for us
    return False


def file_has_table(file: Path, name: str) -> bool:
    """Whether an SQLite file has a table; ``StoreError`` when it is not there, or is none."""
    return _has_row(file, _LOOK, name)


def file_has_jobs(file: Path) -> bool:
    """Whether an SQLite file has, or had, the tables of jobs; errors as of ``file_has_table``.

    One that has lost them is no empty one: whoever opens it says what is missing.
    """
    if file_has_table(file, "ergon_jobs"):
        return True
    return file_has_table(file, "ergon_schema") and _has_row(file, _PART, "jobs")


def _has_row(file: Path, statement: str, value: str) -> bool:
    if _is_missing(file) or file.is_dir():
        made = store_option(f"{SQLITE}{file}")
        raise StoreUnavailableError(
            f"there is no file {file}",
            remedy="a worker or a provider makes it; or name another store; this makes it, too:"
            f"  ergon db upgrade{made}",
        )
    import sqlite3  # late: the parts that only want to know a URL do without it

    from ergon_framework.storage.sqlite.errors import translate

    try:
        # mode=ro: opened for writing, a file that is not there would be made.
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as looking:
            return looking.execute(statement, (value,)).fetchone() is not None
    except sqlite3.Error as error:
        problem = translate(error, file) or StoreSchemaError(f"{file} cannot be read: {error}")
        raise problem from error


def check_folder(file: Path | None) -> None:
    """Refuse a file that cannot be created: no such folder, or its path is no file."""
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
