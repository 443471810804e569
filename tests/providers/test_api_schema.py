"""The published OpenAPI document, held against what the API does."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI, Request
from hypothesis import given, settings
from schemathesis import GenerationMode

from ergon_framework.core.circuit_breaker import Breaker, CircuitState
from ergon_framework.core.quota import QuotaWindow
from ergon_framework.ports.providerstore import LaneKey, RecordBatch
from ergon_framework.providers.api import create_router
from ergon_framework.providers.stores.memory import MemoryProviderStore
from tests.providers.asgi_client import PATH
from tests.providers.recorder_fakes import row

pytestmark = [
    pytest.mark.req("PROVIDERS:api", "PEF:A-API-1", "PEF:A-API-3", "PEF:A-API-4"),
    # It asks through a client that its own dependency has renamed.
    pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`"),
]

TENANT = "3f2b8c1e-0d4a-4f6b-9c58-a1b2c3d4e5f6"
STRANGER = "00000000-0000-4000-8000-000000000001"
BROKEN = "00000000-0000-4000-8000-000000000002"


class Store(MemoryProviderStore):
    """Knows one tenant, and fails for another."""

    def health(self, tenant_id: str) -> list[Any]:
        if tenant_id == BROKEN:
            self.close()
        return super().health(tenant_id)


def authorize(request: Request, tenant_id: str) -> bool:
    """Everybody but one."""
    return tenant_id != STRANGER


def store() -> Store:
    """A lane with everything and one with next to nothing."""
    now = 1_700_000_000.5
    made = Store(lambda: now)
    lane = LaneKey(TENANT, "rank", "snapshot")
    bad = row("b", tenant=TENANT, outcome="failed", reason="timeout")
    made.record(RecordBatch([row("a", tenant=TENANT), bad]))
    made.reserve(lane, QuotaWindow(now - 1, now + 1), 10, 3)
    made.compare_and_set(lane, 0, Breaker(CircuitState.OPEN, 3, now + 30, generation=1))
    made.extend_cooldown(lane, now + 3)
    made.extend_cooldown(LaneKey(TENANT, "maps", "route"), now - 3)
    return made


@pytest.fixture(scope="module")
def operation() -> Any:
    """The one operation of the document."""
    app = FastAPI()
    app.include_router(create_router(store(), authorize))
    return schemathesis.openapi.from_asgi("/openapi.json", app)[PATH]["GET"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(GenerationMode))
def test_nothing_is_found(operation: Any, mode: GenerationMode) -> None:
    """Whatever fits the document is answered by it, and whatever does not is refused by it."""
    statuses = set()

    @settings(max_examples=150, deadline=None, database=None)
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        statuses.add(int(case.call_and_validate().status_code))

    check()
    # A parameter that nobody knows is no reason to refuse: the next version may know it.
    assert statuses - {200} == (set() if mode is GenerationMode.POSITIVE else {422})


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"tenant_id": TENANT}, 200),
        ({"tenant_id": TENANT, "detail": "full"}, 200),
        ({"tenant_id": TENANT.upper(), "detail": "summary"}, 200),
        ({"tenant_id": STRANGER}, 403),
        ({"tenant_id": "x"}, 422),
    ],
)
def test_each_answer_is_as_published(operation: Any, query: dict[str, str], status: int) -> None:
    """Full, empty and refused: the body fits the schema of its status."""
    answer = operation.Case(query=query).call_and_validate()
    assert int(answer.status_code) == status
    assert status != 200 or len(answer.json()["providers"]) == 2


def test_a_store_that_is_away_is_published_too() -> None:
    """503 has its schema and its header in the document."""
    app = FastAPI()
    app.include_router(create_router(store(), authorize))
    found = schemathesis.openapi.from_asgi("/openapi.json", app)[PATH]["GET"]
    answer = found.Case(query={"tenant_id": BROKEN}).call()
    found.validate_response(answer)
    assert int(answer.status_code) == 503
