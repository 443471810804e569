"""The summary: the contract's fields and no others, on every store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from ergon_framework.core.circuit_breaker import Breaker, CircuitState
from ergon_framework.core.quota import QuotaWindow
from ergon_framework.errors import StoreUnavailableError
from ergon_framework.ports.providerstore import AttemptRow, LaneKey, ProviderStore, RecordBatch
from ergon_framework.providers import service as module
from ergon_framework.providers.base import ProviderBase
from ergon_framework.providers.delivery.dead_letters import letter_message
from ergon_framework.providers.execution import ProviderExecutionContext
from ergon_framework.providers.quota import QuotaPolicy
from ergon_framework.providers.recorder import recorder_of
from ergon_framework.providers.schemas import (
    DeadLetterMessage,
    ProviderHealthDetail,
    ProviderHealthSummary,
)
from ergon_framework.providers.service import (
    ProviderHealthService,
    canonical_tenant,
    summary_json,
)
from ergon_framework.providers.store_urls import open_store
from ergon_framework.providers.stores.memory import MemoryProviderStore
from tests.providers.recorder_fakes import letter, row, rows

TENANT = "3f2b8c1e-0d4a-4f6b-9c58-a1b2c3d4e5f6"
OTHER = "00000000-0000-4000-8000-000000000001"
NOW = 1_700_000_000.0
ITEM = {
    "provider_name",
    "capability",
    "breaker_state",
    "success_rate_1h",
    "p95_latency_ms_1h",
    "quota",
    "last_error_code",
    "last_error_at",
    "last_success_at",
}
MORE = {"consecutive_failures", "open_until", "cooldown_until", "updated_at"}


class Rank(ProviderBase):
    """Always succeeds."""

    provider_name, capability = "rank", "rank_snapshot"

    def _execute_impl(self, **call: Any) -> dict[str, Any]:
        return {}


def call(provider: ProviderBase, tenant_id: str = TENANT) -> None:
    """Make one call."""
    provider.execute(
        tenant_id=tenant_id,
        campaign_id=None,
        operation="fetch",
        payload={},
        context=ProviderExecutionContext(),
    )


def ended(id: str, capability: str = "snapshot", *, ago: float = 60.0, **values: Any) -> AttemptRow:
    """An attempt of a moment ago."""
    made = row(id, tenant=values.pop("tenant", TENANT), **values)
    return made._replace(capability=capability, created_at=NOW - ago)


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ProviderStore]:
    """Each kind of store, at one instant."""
    if request.param == "memory":
        url = "memory://"
    elif request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/work.db"
    else:
        url = request.getfixturevalue("postgres_url")
    opened = open_store(url, clock=lambda: NOW)
    yield opened
    recorder_of(opened).close()
    opened.close()


@pytest.mark.req("PEF:A-API-2", "PEF:A-API-3", "PROVIDERS:api")
def test_the_summary_is_the_contract(store: ProviderStore) -> None:
    """Every field of it, with its value, and nothing else."""
    key = LaneKey(TENANT, "rank", "snapshot")
    store.reserve(key, QuotaWindow(NOW - 600, NOW + 3000), 10_000, 2_450)
    rows = [ended(f"ok{n}")._replace(duration_ms=210) for n in range(2)]
    store.record(RecordBatch([*rows, ended("bad", ago=30.5, outcome="failed", reason="timeout")]))
    assert ProviderHealthService(store).summary(TENANT) == {
        "tenant_id": TENANT,
        "generated_at": "2023-11-14T22:13:20Z",
        "providers": [
            {
                "provider_name": "rank",
                "capability": "snapshot",
                "breaker_state": "closed",
                "success_rate_1h": 2 / 3,
                "p95_latency_ms_1h": 210,
                "quota": {
                    "limit_count": 10_000,
                    "used_count": 2_450,
                    "remaining_count": 7_550,
                    "window_end": "2023-11-14T23:03:20Z",
                },
                "last_error_code": "timeout",
                "last_error_at": "2023-11-14T22:12:49.500000Z",
                "last_success_at": "2023-11-14T22:12:20Z",
            }
        ],
    }


@pytest.mark.req("PEF:A-27")
def test_detail_adds_and_changes_nothing(store: ProviderStore) -> None:
    """Streak, open circuit, cooldown and the window's start come on top of the contract."""
    key = LaneKey(TENANT, "rank", "snapshot")
    store.reserve(key, QuotaWindow(NOW - 600, NOW + 3000), 10, 1)
    store.record(RecordBatch([ended("bad", outcome="failed", reason="timeout")]))
    version = store.lane_state(key).version
    assert store.compare_and_set(
        key, version, Breaker(CircuitState.OPEN, 5, NOW + 30, generation=1)
    )
    store.extend_cooldown(key, NOW + 7)
    service = ProviderHealthService(store)
    [plain] = service.summary(TENANT)["providers"]
    full = service.summary(TENANT, detail=True)
    [item] = full["providers"]
    assert full["is_current"]
    assert set(plain) == ITEM
    assert set(item) == ITEM | MORE
    assert {name: item[name] for name in MORE} == {
        "consecutive_failures": 5,
        "open_until": "2023-11-14T22:13:50Z",
        "cooldown_until": "2023-11-14T22:13:27Z",
        "updated_at": "2023-11-14T22:13:20Z",
    }
    assert item["quota"] == plain["quota"] | {"window_start": "2023-11-14T22:03:20Z"}
    assert item["breaker_state"] == "open"


@pytest.mark.req("PEF:A-27")
def test_a_cooldown_that_is_over_is_none(store: ProviderStore) -> None:
    """What was once asked for no longer holds anybody up."""
    store.extend_cooldown(LaneKey(TENANT, "rank", "snapshot"), NOW - 1)
    [item] = ProviderHealthService(store).summary(TENANT, detail=True)["providers"]
    assert item["cooldown_until"] is None


@pytest.mark.req("PEF:A-27", "PEF:A-API-3")
def test_items_are_health_and_running_quotas_in_order(store: ProviderStore) -> None:
    """A lane with a quota and no calls is listed, one whose window is over is not."""
    running, over = QuotaWindow(NOW - 600, NOW + 3000), QuotaWindow(NOW - 600, NOW)
    store.reserve(LaneKey(TENANT, "maps", "route"), running, 10, 1)
    store.reserve(LaneKey(TENANT, "mail", "send"), over, 10, 1)
    store.reserve(LaneKey(TENANT, "rank", "live"), over, 10, 1)
    store.record(RecordBatch([ended("a", "snapshot"), ended("b", "live")]))
    items = ProviderHealthService(store).summary(TENANT)["providers"]
    assert [(item["provider_name"], item["capability"]) for item in items] == [
        ("maps", "route"),
        ("rank", "live"),
        ("rank", "snapshot"),
    ]
    assert [item["quota"] is None for item in items] == [False, True, True]
    assert items[0]["success_rate_1h"] is items[0]["p95_latency_ms_1h"] is None
    assert items[0]["last_error_at"] is items[0]["last_success_at"] is None


@pytest.mark.req("PEF:G-3", "PEF:A-API-4")
def test_a_tenant_sees_its_own_lanes_only(store: ProviderStore) -> None:
    """Neither another tenant's calls nor quotas nor circuits show up, and nobody's for nobody."""
    store.record(RecordBatch([ended("mine"), ended("theirs", "secret", tenant=OTHER)]))
    store.reserve(LaneKey(OTHER, "secret", "plan"), QuotaWindow(NOW - 1, NOW + 9), 10, 1)
    store.extend_cooldown(LaneKey("*", "rank", "shared"), NOW + 9)
    service = ProviderHealthService(store)
    seen = {
        tenant: [item["capability"] for item in service.summary(tenant)["providers"]]
        for tenant in (TENANT, OTHER, "nobody", "%", "")
    }
    assert seen == {
        TENANT: ["snapshot"],
        OTHER: ["secret", "plan"],
        "nobody": [],
        "%": [],
        "": [],
    }


@pytest.mark.req("PEF:A-API-4")
def test_a_uuid_is_found_however_it_is_written(store: ProviderStore) -> None:
    """As it was given first, then in lower case with hyphens; others are taken literally."""
    store.record(RecordBatch([ended("lower", "low"), ended("odd", "odd", tenant="acme")]))
    store.record(RecordBatch([ended("upper", "up", tenant=OTHER.replace("8", "A"))]))
    service = ProviderHealthService(store)

    def found(tenant: str | UUID) -> list[str]:
        return [item["capability"] for item in service.summary(tenant)["providers"]]

    spellings = (TENANT, TENANT.upper(), TENANT.replace("-", ""), UUID(TENANT))
    assert [found(each) for each in spellings] == [["low"]] * 4
    assert {service.summary(each)["tenant_id"] for each in spellings} == {TENANT}
    assert found(OTHER.replace("8", "A")) == ["up"]
    assert found(OTHER.replace("8", "a")) == []
    assert (found("acme"), found("ACME")) == (["odd"], [])


def test_rows_on_their_way_are_in_it(tmp_path: Path) -> None:
    """Whoever calls and then looks sees the call, whatever the store."""
    for url in (f"sqlite:///{tmp_path}/work.db", MemoryProviderStore()):
        with Rank(store=url, quota=QuotaPolicy(limit=10, window_seconds=3600)) as provider:
            for count in (1, 2, 3):
                call(provider)
                told = ProviderHealthService(url).summary(TENANT, detail=True)
                [item] = told["providers"]
                assert (item["success_rate_1h"], told["is_current"]) == (1.0, True)
                assert item["quota"]["used_count"] == count
            provider.store.close()


def test_a_recorder_that_fails_does_not_fail_the_read(
    store: ProviderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the store has is told, and that it may not be all."""

    class Failing:
        def flush(self, timeout: float) -> bool:
            raise RuntimeError

    store.record(RecordBatch([ended("a")]))
    with monkeypatch.context() as patch:
        patch.setattr(module, "known_recorder", lambda _: Failing())
        told = ProviderHealthService(store).summary(TENANT, detail=True)
    assert (len(told["providers"]), told["is_current"]) == (1, False)


def test_a_store_that_takes_no_rows_can_still_be_read() -> None:
    """The wait for rows is bounded, and what came before is told."""

    class Stuck(MemoryProviderStore):
        def record(self, batch: RecordBatch) -> None:
            raise StoreUnavailableError("away")

    store = Stuck()
    store.extend_cooldown(LaneKey(TENANT, "rank", "snapshot"), store.now() + 9)
    recorder = recorder_of(store)
    recorder.add([ended("a")])
    told = ProviderHealthService(store).summary(TENANT, detail=True)
    assert (len(told["providers"]), told["is_current"]) == (1, False)


def test_a_process_without_calls_need_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a timeout of 0 no recorder is asked."""
    monkeypatch.setattr(module, "known_recorder", lambda _: pytest.fail("it was asked"))
    told = ProviderHealthService(MemoryProviderStore(), flush_timeout=0).summary(
        TENANT, detail=True
    )
    assert (told["providers"], told["is_current"]) == ([], True)


def test_a_store_that_is_away_is_an_error() -> None:
    """The caller learns it: an empty summary would say that all is well."""
    store = MemoryProviderStore()
    store.close()
    with pytest.raises(StoreUnavailableError):
        ProviderHealthService(store).summary(TENANT)


def test_instants_without_a_calendar_still_have_a_text() -> None:
    """A pause or a window without end is told as the last instant there is."""
    store = MemoryProviderStore()
    key = LaneKey(TENANT, "rank", "snapshot")
    store.extend_cooldown(key, float("inf"))
    store.reserve(key, QuotaWindow(-1e300, 1e300), 10, 1)
    [item] = ProviderHealthService(store).summary(TENANT, detail=True)["providers"]
    assert item["cooldown_until"] == item["quota"]["window_end"] == "9999-12-31T23:59:59Z"
    assert item["quota"]["window_start"] == "1970-01-01T00:00:00Z"


@pytest.mark.req("PEF:A-API-2", "PEF:A-API-3", "PROVIDERS:api")
@pytest.mark.parametrize("detail", [False, True])
def test_the_body_without_fastapi_fits_the_schema(store: ProviderStore, detail: bool) -> None:
    """What another server sends is the same document, with and without values."""
    key = LaneKey(TENANT, "rank", "snapshot")
    store.reserve(key, QuotaWindow(NOW - 600, NOW + 3000), 10, 1)
    store.record(RecordBatch([ended("a"), ended("b", "other", outcome="failed", reason="timeout")]))
    store.extend_cooldown(LaneKey(TENANT, "ünïcode", "☃"), NOW + 5)
    body = summary_json(store, TENANT, detail=detail)
    checked = (ProviderHealthDetail if detail else ProviderHealthSummary).model_validate_json(body)
    assert [item.provider_name for item in checked.providers] == ["rank", "rank", "ünïcode"]
    assert json.loads(body) == ProviderHealthService(store).summary(TENANT, detail)


@pytest.mark.req("PEF:D-1", "PEF:D-2")
def test_a_dead_letter_fits_its_schema() -> None:
    """The message that the relay publishes has the fields of the document and no others."""
    message = letter_message(letter("d1", {"q": 1}))
    checked = DeadLetterMessage.model_validate_json(json.dumps(message))
    assert checked.occurred_at.utcoffset() is not None
    assert set(DeadLetterMessage.model_fields) == set(message)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TENANT, TENANT),
        (TENANT.upper(), TENANT),
        (TENANT.replace("-", ""), TENANT),
        ("acme", None),
        ("", None),
        (TENANT[:-1], None),
        (TENANT + "0", None),
    ],
)
def test_canonical_spelling(text: str, expected: str | None) -> None:
    """A uuid has one; anything else has none."""
    assert canonical_tenant(text) == expected


def test_items_are_sorted_whatever_the_store_does() -> None:
    """The order is the summary's promise, not the store's."""

    class Backwards(MemoryProviderStore):
        def health(self, tenant_id: str) -> list[Any]:
            return super().health(tenant_id)[::-1]

    store = Backwards(lambda: NOW)
    store.record(RecordBatch([ended("a", "a"), ended("b", "b")]))
    items = ProviderHealthService(store).summary(TENANT)["providers"]
    assert [item["capability"] for item in items] == ["a", "b"]


def test_a_url_is_opened_when_it_is_asked(tmp_path: Path) -> None:
    """A service may be made before its store can be reached."""
    service = ProviderHealthService(f"sqlite:///{tmp_path}/later/work.db")
    with pytest.raises(StoreUnavailableError):
        service.summary(TENANT)
    (tmp_path / "later").mkdir()
    assert service.summary(TENANT)["providers"] == []
    open_store(f"sqlite:///{tmp_path}/later/work.db").close()


@pytest.mark.req("PEF:H-4")
def test_a_rate_is_not_rounded() -> None:
    """All that failed was one call of very many, but not none."""
    store = MemoryProviderStore(clock=lambda: NOW)
    good = rows(29_999, tenant=TENANT)
    store.record(
        RecordBatch([*good, row("bad", tenant=TENANT, outcome="failed", reason="timeout")])
    )
    [item] = ProviderHealthService(store).summary(TENANT)["providers"]
    assert item["success_rate_1h"] == 29_999 / 30_000
