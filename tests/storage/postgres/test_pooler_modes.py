"""A pooler before the server: in session mode it will do, in transaction mode it is refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ergon_framework.app.diagnostics.findings import FindingStatus
from ergon_framework.app.diagnostics.servers import examine_engines
from ergon_framework.app.settings import load_settings
from ergon_framework.errors import ConfigurationError, StoreError
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.jobs.stores.postgres import PostgresJobStore
from ergon_framework.ports.jobstore import Topic
from ergon_framework.providers.migrations.database import database_of
from ergon_framework.providers.store_urls import open_store as open_provider_store
from ergon_framework.providers.stores import postgres as provider_tables
from ergon_framework.storage.deadlines import SocketWatchdog
from ergon_framework.storage.postgres.pool import PooledConnection, Pooling, pooling_of
from tests.servers.pooler import Pooler
from tests.servers.postgres import PostgresServer, name_of

pytestmark = pytest.mark.req("SCALE:url-errors", "SCALE:jobs-postgres", "SCALE:doctor")
PATIENCE = 30.0

Pooled = Callable[..., str]


@pytest.fixture
def pooled(postgres_server: PostgresServer, postgres_url: str) -> Iterator[Pooled]:
    """The URL of an empty database behind a pooler."""
    with ExitStack() as stack:

        def opened(**how: Any) -> str:
            pooler = stack.enter_context(closing(Pooler(postgres_server.folder, **how)))
            return address(pooler, postgres_url)

        yield opened


def address(pooler: Pooler, url: str) -> str:
    """The URL of the same database behind a pooler."""
    return f"postgresql://ergon@127.0.0.1:{pooler.port}/{name_of(url)}"


def looked_at(url: str) -> Pooling:
    """What stands there."""

    def connect() -> PooledConnection:
        return psycopg.connect(url, autocommit=True)

    with closing(connect()) as line:
        return pooling_of(line, connect, SocketWatchdog())


def test_the_server_itself(postgres_url: str) -> None:
    """No second connection is needed to know it."""
    with closing(psycopg.connect(postgres_url, autocommit=True)) as line:
        assert pooling_of(line, _nobody, SocketWatchdog()) is Pooling.NONE


def _nobody() -> PooledConnection:
    raise AssertionError


def test_a_pooler_is_told_apart_by_what_it_does(pooled: Pooled) -> None:
    """In whichever order it lends its connections."""
    assert looked_at(pooled(is_session=True)) is Pooling.SESSION
    for is_fair in (False, True):
        assert looked_at(pooled(is_session=False, is_fair=is_fair)) is Pooling.TRANSACTION


def test_a_pooler_with_one_connection(pooled: Pooled) -> None:
    """Where no second one is to be had, the first one is ours."""

    def refuse() -> PooledConnection:
        raise psycopg.OperationalError("no more connections allowed")

    with closing(psycopg.connect(pooled(is_session=True), autocommit=True)) as line:
        assert pooling_of(line, refuse, SocketWatchdog()) is Pooling.SESSION


def test_a_store_behind_session_mode_works(pooled: Pooled) -> None:
    """As if there were no pooler, notifications included."""
    url = pooled(is_session=True)
    with closing(PostgresJobStore(url)) as one, closing(PostgresJobStore(url)) as two:
        subscription = two.subscribe(Topic.WORK)
        one.announce()
        assert subscription.wait(PATIENCE)


@pytest.mark.parametrize("is_fair", [False, True])
def test_a_store_behind_transaction_mode_is_refused(
    pooled: Pooled, tmp_path: Path, is_fair: bool
) -> None:
    """When it is opened, and by the doctor, before anything was changed there."""
    url = pooled(is_session=False, is_fair=is_fair)
    with pytest.raises(ConfigurationError, match="pooler in transaction mode") as caught:
        open_store(url)
    assert "pool_mode = session" in (caught.value.remedy or "")
    settings = tmp_path / "ergon.toml"
    settings.write_text(f'[store]\nurl = "{url}"\n[executors.python]\ncommand = ["true"]\n')
    findings = list(examine_engines(load_settings(settings, {})))
    [finding] = [each for each in findings if "encryption" not in each.check]
    assert finding.status is FindingStatus.BAD
    assert "pooler in transaction mode" in finding.found
    assert "pool_mode = session" in finding.remedy


@pytest.mark.req("PROVIDERS:storage")
def test_provider_calls_are_kept_behind_session_mode(pooled: Pooled) -> None:
    """Tables and all."""
    with closing(open_provider_store(pooled(is_session=True))) as store:
        assert store.now() > 0
        assert store.health("default") == []


@pytest.mark.req("PROVIDERS:storage")
@pytest.mark.parametrize("is_fair", [False, True])
def test_provider_calls_behind_transaction_mode_are_refused(
    pooled: Pooled, postgres_url: str, is_fair: bool
) -> None:
    """When the store is opened, and before the tables are made."""
    with pytest.raises(ConfigurationError, match="pooler in transaction mode") as caught:
        open_provider_store(pooled(is_session=False, is_fair=is_fair))
    assert "pool_mode = session" in (caught.value.remedy or "")
    with closing(psycopg.connect(postgres_url)) as line:
        assert line.execute(
            "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
        ).fetchone() == (0,)


@pytest.mark.req("PROVIDERS:storage")
def test_a_pooler_that_comes_late_is_a_store_that_refuses(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    """Calls that were made without a store go on without one, and are told why."""
    with (
        closing(Pooler(postgres_server.folder, is_session=False, is_away=True)) as pooler,
        closing(open_provider_store(address(pooler, postgres_url))) as store,
    ):
        pooler.open()
        with pytest.raises(StoreError, match="pooler in transaction mode") as caught:
            store.health("default")
        assert "pool_mode = session" in (caught.value.remedy or "")


@pytest.mark.req("PROVIDERS:storage")
def test_callers_who_wait_look_at_a_pooler_once(
    postgres_server: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look takes two connections; what one caller found out, those who waited are told."""
    looks, waiting, looking = [], threading.Semaphore(0), threading.Event()

    def looked(*asked: Any) -> Pooling:
        looks.append(looking.wait(PATIENCE))
        return pooling_of(*asked)

    def ticks() -> float:
        now = time.monotonic()
        waiting.release()
        return now

    monkeypatch.setattr(provider_tables, "pooling_of", looked)
    with closing(Pooler(postgres_server.folder, is_session=False, is_away=True)) as pooler:
        database = database_of(address(pooler, postgres_url))
        ground = provider_tables.PostgresProviderDatabase(database, None, ticks)
        pooler.open()
        with closing(ground), ThreadPoolExecutor() as threads:
            while waiting.acquire(blocking=False):
                pass
            asked = [threads.submit(ground.read, lambda hand: None) for _ in range(4)]
            for _ in asked:
                assert waiting.acquire(timeout=PATIENCE)
            looking.set()
            for each in asked:
                with pytest.raises(StoreError, match="pooler in transaction mode"):
                    each.result(PATIENCE)
    assert len(looks) == 1


@pytest.mark.req("PROVIDERS:storage")
def test_a_url_that_speaks_of_autocommit(postgres_url: str) -> None:
    """Transactions are ours, whatever it says."""
    mark = "&" if "?" in postgres_url else "?"
    with closing(open_provider_store(f"{postgres_url}{mark}autocommit=true")) as store:
        assert store.health("default") == []
