"""The App of a Django project, made from its settings.

``ERGON`` in the settings may have these keys, all of them optional:

- ``URL``: the store of jobs. Without it, Django's own database, so that a job and the rows it is
  about can be one commit.
- ``DATABASE``: which of ``DATABASES`` that is, ``default`` unless said otherwise.
- ``CONFIG``: the path of an ``ergon.toml``.
- ``NAME``: what the jobs of this project are called in a store that others use, too.
- ``MODULES``: the modules with handlers, ``("jobs",)`` unless said otherwise.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import close_old_connections, reset_queries

from ergon_framework.app.application import App
from ergon_framework.errors import SettingsError
from ergon_framework.ports.unit_of_work import UnitOfWork

EXECUTOR = "ergon_framework.integrations.django.executor:app"
"""What executors load: it sets Django up before it looks for handlers."""

_lock = threading.Lock()
_apps: list[App] = []


@dataclass(frozen=True, slots=True)
class ProjectSettings:
    """What ``ERGON`` in the settings says."""

    url: str | None = None
    database: str = "default"
    config: str | None = None
    name: str = "django"
    modules: tuple[str, ...] = ("jobs",)


def settings_of_project() -> ProjectSettings:
    """The dictionary ``ERGON``, refused with the key that is wrong."""
    given = getattr(settings, "ERGON", {})
    if not isinstance(given, Mapping):
        raise SettingsError("ERGON in the settings of Django is no dictionary", remedy="ERGON = {}")
    known = {name.upper(): name for name in ProjectSettings.__slots__}
    for key in given:
        if key not in known:
            raise SettingsError(
                f"ERGON in the settings of Django has no key {key!r}",
                remedy=f"known are {', '.join(known)}",
            )
    values: dict[str, Any] = {known[key]: value for key, value in given.items()}
    if isinstance(values.get("modules"), str):
        values["modules"] = (values["modules"],)
    if "modules" in values:
        values["modules"] = tuple(values["modules"])
    if values.get("config") is not None:
        values["config"] = str(values["config"])
    return ProjectSettings(**values)


def project_app() -> App:
    """The one App of this process, made at the first use."""
    with _lock:
        if not _apps:
            _apps.append(_made(settings_of_project()))
        return _apps[0]


class DjangoApp(App):
    """An App whose executors set Django up before they import handlers."""

    def __init__(self, store: str | None, *, config: str | None, name: str) -> None:
        super().__init__(config=config, name=name)
        # A wrong URL is told by ``manage.py check``, as all wrong settings of a project are: an
        # error here would be a traceback out of the import of its handlers.
        self._url = store

    def _reference(self) -> str:
        return EXECUTOR


def _made(given: ProjectSettings) -> App:
    url = given.url
    if url is None and given.config is None:
        url = url_of(given.database)
    app = DjangoApp(url, config=given.config, name=given.name)
    app.middleware("job", "consumer", only="sync")(fresh_connections)
    app.middleware("job", "consumer", only="async")(fresh_connections_async)
    return app


def url_of(database: str) -> str:
    """The URL of one of Django's databases."""
    given = settings.DATABASES.get(database)
    if given is None:
        raise SettingsError(
            f"there is no database {database!r} in DATABASES",
            remedy="correct DATABASE in ERGON, in the settings of Django",
        )
    engine = str(given.get("ENGINE", "")).rpartition(".")[2]
    if engine == "sqlite3" and not _is_in_memory(given):
        return f"sqlite:///{Path(given['NAME']).absolute()}"
    if engine in ("postgresql", "postgis"):
        return _postgresql(given)
    raise SettingsError(
        f"jobs cannot be kept in the database {database!r} of Django, which is {engine or 'unset'}"
        + (" in memory" if engine == "sqlite3" else ""),
        remedy='name a store: ERGON = {"URL": "sqlite:////var/lib/shop/ergon.db"}',
    )


def _is_in_memory(given: Mapping[str, Any]) -> bool:
    return ":memory:" in str(given["NAME"]) or "mode=memory" in str(given["NAME"])


def _postgresql(given: Mapping[str, Any]) -> str:
    user = quote(str(given.get("USER") or ""), safe="")
    if given.get("PASSWORD"):
        user += ":" + quote(str(given["PASSWORD"]), safe="")
    host = str(given.get("HOST") or "")
    is_folder = host.startswith("/")  # of a Unix socket
    place = "" if is_folder else host
    if given.get("PORT"):
        place += f":{given['PORT']}"
    query = urlencode({"host": host}) if is_folder else ""
    at = f"{user}@" if user else ""
    name = quote(str(given["NAME"]), safe="")
    return f"postgresql://{at}{place}/{name}{'?' + query if query else ''}"


# ---- around each job ----


def fresh_connections(_unit: UnitOfWork) -> Iterator[None]:
    """Close connections to databases that are broken or too old, as Django does for requests."""
    _refresh()
    try:
        yield
    finally:
        _refresh()


async def fresh_connections_async(_unit: UnitOfWork) -> AsyncIterator[None]:
    """The same for async handlers, in the thread that their queries run in."""
    refresh = sync_to_async(_refresh)
    await refresh()
    try:
        yield
    finally:
        await refresh()


def _refresh() -> None:
    reset_queries()
    close_old_connections()
