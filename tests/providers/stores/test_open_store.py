from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from ergon_framework.errors import ConfigurationError, MissingExtraError, StoreUnavailableError
from ergon_framework.ports.providerstore import ProviderStore, RecordBatch
from ergon_framework.providers.store_urls import check_url, open_store
from ergon_framework.providers.stores.memory import MemoryProviderStore
from tests.providers.stores.store_factory import LANE, HandClock, attempt

pytestmark = pytest.mark.req("PROVIDERS:storage")


def test_a_process_has_one_store_per_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However the file is written, and until somebody closes the store."""
    monkeypatch.chdir(tmp_path)
    store = open_store("sqlite:///work.db")
    assert open_store(f"sqlite:///{tmp_path}/work.db") is store
    assert open_store("SQLite:///work.db") is store
    store.close()
    again = open_store("sqlite:///work.db")
    assert again is not store
    again.close()


def test_a_memory_store_is_shared_too() -> None:
    """Two providers of one process that name it keep each other's circuits."""
    store = open_store("memory://")
    assert open_store("memory://") is store
    store.close()
    assert open_store("memory://") is not store


def test_a_store_is_taken_as_it_is() -> None:
    """Who has one already may give it instead of a URL."""
    store = MemoryProviderStore()
    assert open_store(store) is store


def test_a_store_with_its_own_clock_is_not_shared() -> None:
    """Others would be told a time that they do not expect."""
    clock = HandClock(5.0)
    store = open_store("memory://", clock=clock)
    assert open_store("memory://") is not store
    assert store.now() == 5.0


@pytest.mark.parametrize(
    ("url", "match"),
    [
        ("work.db", "of which kind"),
        ("sqlite:work.db", "lacks ://"),
        ("sqlite://work.db", "three slashes"),
        ("sqlite://", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
        ("sqlite:///work.db?mode=ro", "no options"),
        ("sqlite+aiosqlite:///work.db", "no other driver"),
        ("postgresql+asyncpg://h/d", "no other driver"),
        ("sqllite:///work.db", "did you mean sqlite"),
        ("mysql://host", "no store of the kind"),
        ("redis://host", "Redis does not keep provider calls"),
        ("memory://name", "no name"),
        ("postgresql://u:hush@h:port/d", "cannot be read"),
        ("postgresql://u:12@hush@h/d", "cannot be read"),
        ("postgresql://u:12/hush@h/d", "cannot be read"),
        ("postgresql://u:12?hush@h/d", "cannot be read"),
        ("postgresql://u:12#hush@h/d", "cannot be read"),
    ],
)
@pytest.mark.req("PROVIDERS:badinput")
def test_a_wrong_url_is_refused(url: str, match: str) -> None:
    """By whoever checks the settings and by whoever opens it; no password is shown."""
    for refuse in (check_url, open_store):
        with pytest.raises(ConfigurationError, match=match) as caught:
            refuse(url)
        assert caught.value.remedy
        assert "hush" not in str(caught.value)


def test_several_hosts_need_no_ports() -> None:
    """One of them may take over from the other."""
    check_url("postgresql://u:hush@first,second/d")


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL needs an extra; the error says which."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtraError, match=r"ergon-framework\[postgres\]"):
        open_store("postgresql://nobody@localhost/none")


@pytest.mark.slow
def test_an_unreachable_server_is_told_without_its_password() -> None:
    """Where it was looked for is shown, the password is not; until then, this machine's time."""
    with closing(open_store("postgresql://user:hush@127.0.0.1:1/base")) as store:
        with pytest.raises(StoreUnavailableError, match=r"127\.0\.0\.1:1") as caught:
            store.lane_state(LANE)
        assert abs(store.now() - time.time()) < 60.0
    assert "hush" not in str(caught.value)


@pytest.mark.slow
def test_opening_imports_only_what_it_needs() -> None:
    """A program without a database does not pay for SQLAlchemy, nor for a driver."""
    code = (
        "import sys; from ergon_framework.providers.store_urls import open_store;"
        "open_store('memory://');"
        "print([name for name in ('sqlalchemy', 'alembic', 'psycopg') if name in sys.modules])"
    )
    done = subprocess.run(  # noqa: S603 - this interpreter
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ),
    )
    assert done.stdout.strip() == "[]"


def test_a_closed_store_says_so(store: ProviderStore) -> None:
    """Closing twice is fine; using it afterwards is not."""
    store.close()
    store.close()
    with pytest.raises(StoreUnavailableError, match="closed"):
        store.lane_state(LANE)
    with pytest.raises(StoreUnavailableError, match="closed"):
        store.record(RecordBatch([attempt()]))


def test_tables_are_made_once_and_found_again(empty_url: str) -> None:
    """An empty database just works, and what is in it is there the next time."""
    store = open_store(empty_url)
    store.extend_cooldown(LANE, store.now() + 100)
    store.close()
    again = open_store(empty_url)
    assert again.lane_state(LANE).cooldown_until > again.now()
    again.close()


def test_the_clock_is_the_machines_or_the_servers(url: str) -> None:
    """Without a clock of its own, a store tells the time as everybody does."""
    store = open_store(url)
    before = time.time()
    found = store.now()
    assert before - 5 < found < time.time() + 5
    store.close()
