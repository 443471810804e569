"""Every kind of store, with a clock that is set by cursor, closed after the test."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ergon_framework.ports.providerstore import ProviderStore
from ergon_framework.providers.store_urls import open_store
from tests.providers.stores.store_factory import HandClock, waiting_for_rows
from tests.servers.postgres import PostgresServer, name_of

POSTGRES = pytest.param("postgresql", marks=pytest.mark.slow)
Opener = Callable[[], ProviderStore]


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with tables and nothing in them: making them takes longer than most tests."""
    path = tmp_path_factory.mktemp("template") / "work.db"
    open_store(f"sqlite:///{path}").close()
    return path


@pytest.fixture(scope="session")
def postgres_template(postgres_server: PostgresServer) -> str:
    """The name of a database with tables and nothing in them."""
    url = postgres_server.new_database()
    open_store(url).close()
    return name_of(url)


@pytest.fixture
def clock() -> HandClock:
    """The store's clock."""
    return HandClock()


@pytest.fixture(params=["sqlite", POSTGRES])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of the test's own, without tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/work.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture(params=["sqlite", POSTGRES])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of the test's own, with tables."""
    return _url_of(request.param, request, tmp_path)


@pytest.fixture(params=["memory", "sqlite", POSTGRES])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: HandClock
) -> Iterator[ProviderStore]:
    """An empty store of each kind."""
    opened = open_store(_url_of(request.param, request, tmp_path), clock=clock)
    yield opened
    opened.close()


def _url_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> str:
    if kind == "memory":
        return "memory://"
    if kind == "sqlite":
        shutil.copy(request.getfixturevalue("sqlite_template"), folder / "work.db")
        return f"sqlite:///{folder}/work.db"
    server: PostgresServer = request.getfixturevalue("postgres_server")
    found = server.new_database(request.getfixturevalue("postgres_template"))
    request.addfinalizer(lambda: server.drop_database(found))
    return waiting_for_rows(found)


@pytest.fixture
def opened(url: str, clock: HandClock) -> Iterator[Opener]:
    """Opens the database, each time as another process would."""
    with ExitStack() as stack:

        def one() -> ProviderStore:
            found = open_store(url, clock=clock)
            stack.callback(found.close)
            return found

        yield one
