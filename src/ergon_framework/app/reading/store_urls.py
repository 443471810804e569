"""Which store a part of the settings uses: its own, or that of ``[store]``."""

from __future__ import annotations

from pathlib import Path

from pydantic import SecretStr

from ergon_framework.app.reading.secret_values import revealed
from ergon_framework.app.reading.sections import Settings
from ergon_framework.storage.urls import SQLITE, taken_apart

SCRIPT_FILE = "ergon.db"
"""The store that a script with ``App()`` makes beside itself."""
_KINDS = ("sqlite", "memory", "postgresql", "redis", "rediss", "nats")
_FORMS = "write sqlite:///work.db, postgresql://host/name, redis://host:6379/0 or nats://host:4222"


def check_kind(url: str) -> None:
    """Refuse the URL of a store that no part could use; nothing is opened."""
    taken_apart(url, _KINDS, _FORMS)


def store_url(settings: Settings, *own: SecretStr | None) -> str:
    """The first of these that is given, else the URL of ``[store]``; empty when there is none.

    A file named in the settings is relative to them. Where nothing is named, ``ergon.db`` beside
    the settings, or in the working directory, is the store if it is there: ``App()`` makes it.
    """
    base, url = base_of(settings), url_as_written(settings, *own)
    if not url and (base / SCRIPT_FILE).is_file():
        url = f"{SQLITE}{SCRIPT_FILE}"
    return resolve_url(url, base)


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
    """The same as somebody wrote it."""
    named = next((url for url in (*own, settings.store.url) if url is not None), None)
    return revealed(named) or ""


def base_of(settings: Settings) -> Path:
    """The folder that paths in the settings are relative to."""
    return Path() if settings.file is None else settings.file.parent


def resolve_url(url: str, base: Path) -> str:
    """The same URL with the path of an SQLite file made absolute."""
    if not url.lower().startswith(SQLITE):
        return url
    path = url[len(SQLITE) :]
    if not path or path.startswith(("/", ":")):
        return url
    return f"{SQLITE}{(base / path).absolute()}"
