"""The App of a Django project, made from its settings.

``ERGON`` in the settings may have these keys, all of them optional:

- ``URL``: the store of jobs; a relative file is in ``BASE_DIR``. Without it, the store that the
  file ``CONFIG`` names, else Django's own database, so that a job and the rows it is about can be
  one commit.
- ``DATABASE``: which of ``DATABASES`` that is, ``default`` unless said otherwise.
- ``CONFIG``: the path of an ``ergon.toml``.
- ``NAME``: what the jobs of this project are called in a store that others use, too.
- ``MODULES``: the modules with handlers, ``("jobs",)`` unless said otherwise.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import close_old_connections, connections, reset_queries
from django.db.backends.base.base import NO_DB_ALIAS

from ergon_framework.app.application import App
from ergon_framework.errors import SettingsError, WiringError
from ergon_framework.ports.unit_of_work import UnitOfWork

if TYPE_CHECKING:
    from ergon_framework.jobs.client import JobClient

EXECUTOR = "ergon_framework.integrations.django.executor:app"
"""The module that executors load. It sets Django up before it imports handlers."""

DJANGOS_OPTIONS = frozenset(
    {"isolation_level", "server_side_binding", "pool", "client_encoding", "autocommit"}
    | {"prepare_threshold", "context", "row_factory", "cursor_factory"}
)
"""Keys in the ``OPTIONS`` of a PostgreSQL database that are for Django and its driver only."""
TEST_IN_MEMORY = "file:memorydb_"
"""The beginning of the names that Django's test runner gives to SQLite databases in memory."""

_lock = threading.Lock()
_apps: list[DjangoApp] = []


@dataclass(frozen=True, slots=True)
class ProjectSettings:
    """The content of ``ERGON`` in the settings."""

    url: str | None = None
    database: str = "default"
    config: str | None = None
    name: str = "django"
    modules: tuple[str, ...] = ("jobs",)


def settings_of_project() -> ProjectSettings:
    """The dictionary ``ERGON``. A wrong key is refused by name."""
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
    if not isinstance(values.get("url"), str | None):
        raise SettingsError(
            "URL of ERGON in the settings of Django is no text",
            remedy='write the URL of a store: "URL": f"sqlite:///{BASE_DIR}/jobs.db"',
        )
    return ProjectSettings(**values)


def project_app() -> DjangoApp:
    """The one App of this process, made at the first use."""
    with _lock:
        if not _apps:
            _apps.append(make_app(settings_of_project()))
        return _apps[0]


class DjangoApp(App):
    """An App on Django's database, whose executors set Django up before they import handlers."""

    def __init__(self, given: ProjectSettings) -> None:
        super().__init__(config=given.config, name=given.name)
        # ``manage.py check`` reports a wrong URL, like all wrong settings of a project. An error
        # here would be a traceback out of the import of its handlers.
        self._url = given.url
        self._given = given
        self._followed: dict[str, Any] | None = None

    def _reference(self) -> str:
        return EXECUTOR

    def _find_home(self) -> Path:
        return project_folder()

    @property
    def client(self) -> JobClient:
        """The client of the store. It fails at once when a transaction of Django locks
        the store.
        """
        with self._lock:
            client = super().client
            if client.before_storing is None and hasattr(client.store, "is_locked_by"):
                client.before_storing = partial(refuse_to_wait_for_oneself, client)
            return client

    def _default_url(self, named: str) -> str:
        """Django's own database as it is now, because handlers are imported before a test names its
        own.
        """
        if named and self._given.config is not None:
            return ""
        self._followed = place_of(self._given.database)
        return url_of(self._given.database)

    def follow(self, alias: str) -> None:
        """Close the store when Django connects, if its database has another name by now.

        The test runner of Django renames its databases after handlers were imported. Before it
        drops one, it connects to the server and to no database, because no connection to that one
        may be open.
        """
        with self._lock:
            if self._followed is None:
                return
            is_dropping = alias == NO_DB_ALIAS
            if is_dropping or self._followed != place_of(self._given.database):
                self.close()

    def close(self) -> None:
        """Close the stores. The next use opens them again, where Django's database is then."""
        with self._lock:
            super().close()
            # Computed again from Django's settings, in which a test runner may have put other names
            # by then.
            self._settings = self._setup = self._followed = None


def refuse_to_wait_for_oneself(client: JobClient) -> None:
    """Refuse to enqueue in a transaction of Django that has written to the file of the jobs.

    SQLite has one writer: the job could be stored only after that transaction, and the transaction
    continues only after the job is stored.
    """
    is_locked_by: Any = getattr(client.store, "is_locked_by", None)
    for connection in connections.all(initialized_only=True):
        if (
            connection.vendor == "sqlite"
            and connection.in_atomic_block
            and is_locked_by(connection)
        ):
            raise WiringError(
                f"this transaction of Django has written to {connection.settings_dict['NAME']},"
                " where the jobs are kept as well, and SQLite has one writer at a time",
                remedy="write on_commit(handler).enqueue(…) to enqueue after the commit, or"
                " in_transaction(handler).enqueue(…) to enqueue as part of the transaction; both"
                " are in ergon_framework.integrations.django",
                details={"database": connection.alias},
            )


def make_app(given: ProjectSettings) -> DjangoApp:
    """An App for a project with these settings."""
    app = DjangoApp(given)
    # Django renews connections at the signals of a request, and a job has no request.
    app.middleware("job", "consumer", only="sync")(fresh_connections)
    app.middleware("job", "consumer", only="async")(fresh_connections_async)
    return app


def project_folder() -> Path:
    """The folder that relative URLs are in: ``BASE_DIR``.

    A project without it has the folder that its settings are imported from; one without a module
    of settings, the working directory.
    """
    base = getattr(settings, "BASE_DIR", None)
    if base:
        return Path(base).absolute()
    module = getattr(settings, "SETTINGS_MODULE", None) or ""
    file = getattr(sys.modules.get(module), "__file__", None)
    return Path(file).absolute().parents[module.count(".")] if file else Path.cwd()


def url_of(database: str) -> str:
    """The URL of one of Django's databases, under the name that it has now."""
    given = place_of(database)
    engine = str(given.get("ENGINE", "")).rpartition(".")[2]
    name = str(given.get("NAME") or "")
    if engine == "sqlite3" and is_in_memory_of_test(given):
        return "memory://"  # In memory, like what the test writes: nothing outlives the process.
    if engine == "sqlite3" and name and not _is_in_memory(name):
        return f"sqlite:///{Path(name).absolute()}"
    if engine in ("postgresql", "postgis"):
        return _postgresql(given)
    raise SettingsError(
        f"jobs cannot be kept in the database {database!r} of Django, which is {engine or 'unset'}"
        + (" in memory" if engine == "sqlite3" else ""),
        remedy='name a store: ERGON = {"URL": "sqlite:////var/lib/shop/ergon.db"}',
    )


def place_of(database: str) -> dict[str, Any]:
    """The settings with which Django connects to a database. A test has put its own
    name into them.
    """
    try:
        return {**connections.settings[database]}
    except KeyError:
        raise SettingsError(
            f"there is no database {database!r} in DATABASES",
            remedy="correct DATABASE in ERGON, in the settings of Django",
        ) from None


def is_in_memory_of_test(given: Mapping[str, Any]) -> bool:
    """Whether it is a database in memory that Django's test runner has made."""
    return str(given.get("NAME") or "").startswith(TEST_IN_MEMORY)


def _is_in_memory(name: str) -> bool:
    return ":memory:" in name or "mode=memory" in name


def _postgresql(given: Mapping[str, Any]) -> str:
    user = quote(str(given.get("USER") or ""), safe="")
    if given.get("PASSWORD"):
        user += ":" + quote(str(given["PASSWORD"]), safe="")
    host = str(given.get("HOST") or "")
    is_folder = host.startswith("/")  # the directory of a Unix socket
    place = "" if is_folder else host
    if given.get("PORT"):
        place += f":{given['PORT']}"
    query = ({"host": host} if is_folder else {}) | _connection_options(given)
    at = f"{user}@" if user else ""
    name = quote(str(given.get("NAME") or ""), safe="")  # none if a service file names it
    options = urlencode(query, quote_via=quote)  # libpq does not read a plus as a space.
    return f"postgresql://{at}{place}/{name}{'?' + options if options else ''}"


def _connection_options(given: Mapping[str, Any]) -> dict[str, str]:
    """The ``OPTIONS`` of a database that are libpq's; libpq itself refuses unknown ones.

    So jobs go where Django's connections go: over TLS, through a service, into a search_path.
    """
    options = dict(given.get("OPTIONS") or {})
    role = options.pop("assume_role", None)
    if role:
        word = str(role).replace("\\", r"\\").replace(" ", r"\ ")  # in the form that libpq expects
        options["options"] = f"{options.get('options', '')} -c role={word}".strip()
    return {name: str(value) for name, value in options.items() if name not in DJANGOS_OPTIONS}


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
