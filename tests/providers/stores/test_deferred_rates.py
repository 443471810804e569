"""The rates in the rows of lanes, for those who read the table: what is put off is written."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from sqlalchemy import select

from ergon_framework.errors import StoreUnavailableError
from ergon_framework.ports.providerstore import LaneKey, RecordBatch
from ergon_framework.providers.migrations.database import database_of
from ergon_framework.providers.models import ProviderHealthState
from ergon_framework.providers.recorder import Recorder
from ergon_framework.providers.store_urls import open_store
from ergon_framework.providers.stores.sql.store import SqlProviderStore
from tests import fork_server
from tests.providers.stores.store_factory import LANE, START, HandClock, attempt

pytestmark = pytest.mark.req("PEF:H-4", "PEF:A-22", "PROVIDERS:storage")

WAIT = 30.0
OTHER = LaneKey("t1", "other", "fetch")
LEAVES = """
import sys
from ergon_framework.providers.execution import ProviderExecutionContext
from ergon_framework.providers.synthetic import SyntheticProvider

provider = SyntheticProvider(["ok", "bad_request", "bad_request", "ok"], store=sys.argv[1])
for number in range(4):
    provider.execute(tenant_id="t1", campaign_id=None, operation="fetch", payload={},
        context=ProviderExecutionContext())
    if sys.argv[2] == "slowly" and number == 0:
        provider.flush()
"""


@pytest.fixture
def store(url: str, clock: HandClock) -> Iterator[SqlProviderStore]:
    """A database with a clock that stands still."""
    opened = open_store(url, clock=clock)
    assert isinstance(opened, SqlProviderStore)
    yield opened
    opened.close()


def columns(url: str) -> dict[str, tuple[float | None, int | None]]:
    """What the table says of each provider."""
    wanted = select(
        ProviderHealthState.provider_name,
        ProviderHealthState.success_rate_1h,
        ProviderHealthState.p95_latency_ms_1h,
    )
    with database_of(url).connect() as connection:
        return {name: (rate, p95) for name, rate, p95 in connection.execute(wanted)}


def told(store: SqlProviderStore, tenant_id: str = LANE.tenant_id) -> dict[str, object]:
    """What the store says of each."""
    return {
        lane.key.provider_name: (lane.success_rate_1h, lane.p95_latency_ms_1h)
        for lane in store.health(tenant_id)
    }


def failed(key: LaneKey = LANE) -> RecordBatch:
    """One more that failed, and took long."""
    return RecordBatch([attempt(key, outcome="failed", reason_code="timeout", duration_ms=900)])


def test_what_is_put_off_is_settled(store: SqlProviderStore, url: str) -> None:
    """The second batch within seconds leaves the columns alone, until somebody settles."""
    store.record(RecordBatch([attempt(duration_ms=10)]))
    store.record(failed())
    assert columns(url) == {LANE.provider_name: (1.0, 10)}
    store.settle()
    assert columns(url) == told(store)
    assert told(store)[LANE.provider_name] == (0.5, 900)


def test_settling_twice_writes_once(
    store: SqlProviderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nothing put off, no transaction is begun."""
    store.record(RecordBatch([attempt()]))
    store.record(failed())
    store.settle()

    def never(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(store.database, "write", never)
    store.settle()


def test_what_could_not_be_settled_is_settled_later(
    store: SqlProviderStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database that is away loses nothing."""
    store.record(RecordBatch([attempt()]))
    store.record(failed())

    def away(*_: object, **__: object) -> None:
        raise StoreUnavailableError("away")

    with monkeypatch.context() as patched:
        patched.setattr(store.database, "write", away)
        with pytest.raises(StoreUnavailableError):
            store.settle()
    store.settle()
    assert columns(url) == told(store)


def test_lanes_that_wait_are_not_kept_for_ever(store: SqlProviderStore, url: str) -> None:
    """When there are too many, recording settles them."""
    store = SqlProviderStore(store.database, max_remembered_lanes=1)
    store.record(RecordBatch([attempt(), attempt(LANE._replace(provider_name="third"))]))
    store.record(RecordBatch([*failed().attempts, *failed(OTHER).attempts]))
    store.record(RecordBatch([*failed().attempts, *failed(OTHER).attempts]))
    assert columns(url)[LANE.provider_name] == told(store)[LANE.provider_name]


@pytest.mark.parametrize("way", ["flush", "close", "store"])
def test_whoever_waits_for_rows_finds_the_columns_right(
    store: SqlProviderStore, url: str, way: str
) -> None:
    """After a flush, and after the recorder or the store was closed."""
    recorder = Recorder(store, spill=None)
    store.at_close.append(recorder.close)
    recorder.add([attempt(duration_ms=10)])
    assert recorder.flush(WAIT)
    recorder.add(failed().attempts)
    expected = {LANE.provider_name: (0.5, 900)}
    if way == "flush":
        assert recorder.flush(WAIT)
    elif way == "close":
        recorder.close(WAIT)
    else:
        store.close()
    assert columns(url) == expected
    recorder.close(WAIT)


def test_a_flush_succeeds_although_settling_fails(
    store: SqlProviderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are in the store, which is what was asked."""

    def away() -> None:
        raise StoreUnavailableError("away")

    monkeypatch.setattr(store, "settle", away)
    recorder = Recorder(store, spill=None)
    recorder.add([attempt()])
    assert recorder.flush(WAIT)
    assert "away" in (recorder.stats().last_error or "")
    recorder.close(WAIT)


@pytest.mark.slow
@pytest.mark.parametrize("pace", ["slowly", "at once"])
def test_the_end_of_a_process_settles(url: str, pace: str) -> None:
    """Whoever looks into the table afterwards sees what the store would say."""
    fork_server.run([sys.executable, "-c", LEAVES, url, pace], check=True, timeout=60)
    with_clock = open_store(url)
    assert isinstance(with_clock, SqlProviderStore)
    found = told(with_clock, "t1")
    with_clock.close()
    assert columns(url) == found
    assert found["synthetic"][0] == 0.5  # type: ignore[index]


def test_the_clock_of_the_store_counts(store: SqlProviderStore, url: str, clock: HandClock) -> None:
    """What is settled an hour later is what the last hour was then."""
    store.record(RecordBatch([attempt(duration_ms=10)]))
    store.record(failed())
    clock.at = START + 7200
    store.settle()
    assert columns(url) == told(store) == {LANE.provider_name: (None, None)}
