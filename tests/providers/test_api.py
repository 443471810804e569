"""The health API: the contract over HTTP, who may read it, and what is refused how."""

from __future__ import annotations

import asyncio
import functools
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse

from ergon_framework.core.quota import QuotaWindow
from ergon_framework.errors import ConfigurationError, StoreUnavailableError
from ergon_framework.ports.providerstore import LaneHealth, LaneKey, RecordBatch
from ergon_framework.providers.api import create_router
from ergon_framework.providers.recorder import recorder_of
from ergon_framework.providers.schemas import (
    ProviderHealthDetail,
    ProviderHealthError,
    ProviderHealthSummary,
)
from ergon_framework.providers.store_urls import open_store
from ergon_framework.providers.stores.memory import MemoryProviderStore
from tests.providers.asgi_client import HERE, PATH, ask
from tests.providers.recorder_fakes import row

pytestmark = pytest.mark.req("PROVIDERS:api")

TENANT = "3f2b8c1e-0d4a-4f6b-9c58-a1b2c3d4e5f6"
OTHER = "00000000-0000-4000-8000-000000000001"
AWAY = ("203.0.113.9", 40_000)


@pytest.fixture
def store() -> Iterator[MemoryProviderStore]:
    """A store in which two tenants have made a call each."""
    opened = MemoryProviderStore(lambda: 1_700_000_000.5)
    opened.record(RecordBatch([row("mine", tenant=TENANT), row("theirs", tenant=OTHER)]))
    opened.reserve(LaneKey(TENANT, "maps", "route"), QuotaWindow(0, 2_000_000_000), 10, 3)
    yield opened
    opened.close()


def serving(store: Any, authorize: Any = None) -> FastAPI:
    """An application with nothing but the router."""
    app = FastAPI()
    app.include_router(create_router(store=store, authorize=authorize))
    return app


def yes(request: Request, tenant_id: str) -> bool:
    """Let everybody in."""
    return True


# -- the contract ----------------------------------------------------------------------------------


@pytest.mark.req("PEF:A-API-1", "PEF:A-API-2", "PEF:A-API-3")
def test_the_contract(store: MemoryProviderStore) -> None:
    """The body is the summary itself, in no envelope, and is not to be cached."""
    answer = ask(serving(store, yes), TENANT)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.json() == {
        "tenant_id": TENANT,
        "generated_at": "2023-11-14T22:13:20.500000Z",
        "providers": [
            {
                "provider_name": "maps",
                "capability": "route",
                "breaker_state": "closed",
                "success_rate_1h": None,
                "p95_latency_ms_1h": None,
                "quota": {
                    "limit_count": 10,
                    "used_count": 3,
                    "remaining_count": 7,
                    "window_end": "2033-05-18T03:33:20Z",
                },
                "last_error_code": None,
                "last_error_at": None,
                "last_success_at": None,
            },
            {
                "provider_name": "rank",
                "capability": "snapshot",
                "breaker_state": "closed",
                "success_rate_1h": 1.0,
                "p95_latency_ms_1h": 12,
                "quota": None,
                "last_error_code": None,
                "last_error_at": None,
                "last_success_at": "2023-11-14T22:13:20.250000Z",
            },
        ],
    }
    ProviderHealthSummary.model_validate_json(answer.content)


@pytest.mark.req("PEF:A-27")
def test_more_on_request(store: MemoryProviderStore) -> None:
    """``detail=full`` adds fields; ``detail=summary`` is what comes without it."""
    app = serving(store, yes)
    full = ProviderHealthDetail.model_validate_json(ask(app, TENANT, detail="full").content)
    assert [item.consecutive_failures for item in full.providers] == [0, 0]
    assert ask(app, TENANT, detail="summary").json() == ask(app, TENANT).json()


@pytest.mark.req("PEF:A-API-4")
def test_an_unknown_tenant_has_no_providers(store: MemoryProviderStore) -> None:
    """It is no error: it has only not called anybody yet."""
    unknown = "11111111-2222-4333-8444-555555555555"
    answer = ask(serving(store, yes), unknown)
    assert (answer.status_code, answer.json()["providers"]) == (200, [])
    assert answer.json()["tenant_id"] == unknown


@pytest.mark.req("PEF:A-API-4")
def test_one_tenant_however_it_is_written(store: MemoryProviderStore) -> None:
    """Upper case, no hyphens: the same uuid, the same answer, the same question to authorize."""
    asked = []

    def authorize(request: Request, tenant_id: str) -> bool:
        asked.append(tenant_id)
        return True

    app = serving(store, authorize)
    for text in (TENANT, TENANT.upper(), TENANT.replace("-", ""), f"urn:uuid:{TENANT}"):
        body = ask(app, text).json()
        assert (body["tenant_id"], len(body["providers"])) == (TENANT, 2)
    assert asked == [TENANT] * 4


@pytest.mark.req("PEF:A-API-4")
@pytest.mark.parametrize(
    "query",
    [
        {},
        {"tenant_id": ""},
        {"tenant_id": "not-a-uuid"},
        {"tenant_id": TENANT[:-1]},
        {"tenant_id": f"{TENANT}0"},
        {"tenant_id": "*"},
        {"tenant_id": f"{TENANT}\x00"},
        {"tenant_id": [TENANT, TENANT]},
        {"tenant_id": TENANT, "detail": "everything"},
        {"tenant_id": TENANT, "detail": ""},
        {"TENANT_ID": TENANT},
    ],
)
def test_wrong_input_is_refused_in_our_shape(
    store: MemoryProviderStore, query: dict[str, Any]
) -> None:
    """422 says which field is wrong, and repeats nothing of what was sent."""
    never: Callable[..., bool] = lambda request, tenant_id: pytest.fail("it was asked")  # noqa: E731
    answer = ask(serving(store, never), **query)
    assert answer.status_code == 422
    error = ProviderHealthError.model_validate_json(answer.content)
    assert error.code == "invalid_request"
    [problem] = error.details["errors"]
    assert problem["field"] == ("query.detail" if "detail" in query else "query.tenant_id")
    for value in query.values():
        assert not value or str(value) not in answer.text


@pytest.mark.req("PEF:A-API-1")
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"])
def test_nothing_can_be_written(store: MemoryProviderStore, method: str) -> None:
    """Whatever is not a reading request is not allowed."""
    answer = ask(serving(store, yes), TENANT, method=method)
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET")


# -- who may read ----------------------------------------------------------------------------------


@pytest.mark.req("PEF:A-26")
@pytest.mark.parametrize(
    ("peer", "headers"),
    [
        (HERE, {}),
        (("127.8.9.10", 1), {}),
        (("::1", 1), {}),
        (("::ffff:127.0.0.1", 1), {}),
        (HERE, {"Host": "127.0.0.1:8000"}),
        (HERE, {"Host": "[::1]:8000"}),
        (HERE, {"Host": "app.localhost"}),
        (HERE, {"Host": "worker-3"}),
    ],
)
def test_without_an_authorizer_this_machine_may_read(
    store: MemoryProviderStore, peer: tuple[str, int], headers: dict[str, str]
) -> None:
    """So that it can be looked at without setting anything up."""
    assert ask(serving(store), TENANT, peer=peer, headers=headers).status_code == 200


@pytest.mark.req("PEF:A-26")
@pytest.mark.parametrize(
    ("peer", "headers"),
    [
        (AWAY, {}),
        (("10.0.0.5", 1), {}),
        (("fe80::1%eth0", 1), {}),
        (("::ffff:203.0.113.9", 1), {}),
        (("testclient", 1), {}),
        (None, {}),
        (HERE, {"X-Forwarded-For": "127.0.0.1"}),
        (HERE, {"x-forwarded-proto": "https"}),
        (HERE, {"Forwarded": "for=127.0.0.1"}),
        (HERE, {"X-Real-IP": "127.0.0.1"}),
        (HERE, {"Via": "1.1 proxy"}),
        (HERE, {"Host": "rebound.example.com"}),
        (HERE, {"Host": "203.0.113.9:80"}),
        (HERE, {"Host": "localhost.example.com"}),
        (HERE, {"Host": "[2001:db8::1]"}),
        (HERE, {"Host": "[2001:db8::1"}),
    ],
)
def test_without_an_authorizer_nobody_else_may(
    store: MemoryProviderStore, peer: tuple[str, int] | None, headers: dict[str, str]
) -> None:
    """Not from elsewhere, not through a proxy, not by a name that others gave this machine."""
    answer = ask(serving(store), TENANT, peer=peer, headers=headers)
    assert answer.status_code == 403
    error = ProviderHealthError.model_validate_json(answer.content)
    assert error.code == "not_permitted"
    assert "this machine" in error.message
    assert "authorize" in error.details["remedy"]


@pytest.mark.req("PEF:A-26", "PEF:G-3")
def test_a_caller_cannot_read_another_tenant(store: MemoryProviderStore) -> None:
    """The tenant in the query is asked for, not trusted."""

    def authorize(request: Request, tenant_id: str) -> bool:
        return request.headers.get("x-tenant") == tenant_id

    app = serving(store, authorize)
    mine = {"x-tenant": TENANT}
    assert ask(app, TENANT, peer=AWAY, headers=mine).status_code == 200
    for theirs in (OTHER, OTHER.upper()):
        answer = ask(app, theirs, headers=mine)
        assert answer.status_code == 403
        assert "rank" not in answer.text
    both = ask(app, path=f"{PATH}?tenant_id={TENANT}&tenant_id={OTHER}", headers=mine)
    assert both.status_code == 422


async def says_yes(request: Request, tenant_id: str) -> bool:
    """An asynchronous yes."""
    await asyncio.sleep(0)
    return True


async def says_no(request: Request, tenant_id: str) -> bool:
    """An asynchronous no."""
    return False


async def says_later(request: Request, tenant_id: str) -> Any:
    """Forgets to await."""
    return asyncio.sleep(0, result=True)


class Guard:
    """An authorizer with a state."""

    async def __call__(self, request: Request, tenant_id: str) -> bool:
        return tenant_id == TENANT


def raises(error: BaseException) -> Callable[..., bool]:
    """An authorizer that fails."""

    def authorize(request: Request, tenant_id: str) -> bool:
        raise error

    return authorize


@pytest.mark.req("PEF:A-26")
@pytest.mark.parametrize(
    ("authorize", "status"),
    [
        (yes, 200),
        (says_yes, 200),
        (Guard(), 200),
        (lambda request, tenant_id: says_yes(request, tenant_id=tenant_id), 200),
        (functools.partial(says_yes), 200),
        (lambda request, tenant_id: False, 403),
        (says_no, 403),
        (lambda request, tenant_id: None, 403),
        (lambda request, tenant_id: "yes", 403),
        (lambda request, tenant_id: 1, 403),
        (raises(PermissionError("secret")), 403),
        (raises(RuntimeError("secret")), 403),
        (raises(StoreUnavailableError("secret")), 403),
        (raises(HTTPException(401, "who are you?")), 401),
        (raises(HTTPException(302, "elsewhere")), 403),
    ],
)
def test_only_true_is_a_yes(store: MemoryProviderStore, authorize: Any, status: int) -> None:
    """Whatever else an authorizer does is a no; its own refusal is passed on."""
    answer = ask(serving(store, authorize), TENANT)
    assert answer.status_code == status
    assert "secret" not in answer.text
    if status == 403:
        assert ProviderHealthError.model_validate_json(answer.content).code == "not_permitted"


@pytest.mark.req("PEF:A-26")
def test_an_authorizer_with_one_argument_gets_what_it_names(store: MemoryProviderStore) -> None:
    """The tenant by name, and otherwise the request."""
    other = TENANT.replace("1", "2")
    by_tenant = serving(store, lambda tenant_id: tenant_id == TENANT)
    assert [ask(by_tenant, each).status_code for each in (TENANT, other)] == [200, 403]
    by_request = serving(store, lambda request: "x-key" in request.headers)
    assert ask(by_request, TENANT).status_code == 403


@pytest.mark.req("PEF:A-26")
@pytest.mark.filterwarnings("ignore:coroutine 'sleep' was never awaited:RuntimeWarning")
def test_an_authorizer_that_forgets_to_await_lets_nobody_in(
    store: MemoryProviderStore, caplog: pytest.LogCaptureFixture
) -> None:
    """A promise of an answer is no answer, and the log says so."""
    with caplog.at_level(logging.WARNING):
        assert ask(serving(store, says_later), TENANT).status_code == 403
    assert "returned no bool" in caplog.text


@pytest.mark.parametrize("authorize", ["yes", 1, lambda: True, lambda a, b, c: True, object()])
def test_an_authorizer_that_cannot_be_called_is_refused_at_once(authorize: Any) -> None:
    """Not at the first request."""
    with pytest.raises(ConfigurationError, match="authorize"):
        create_router(store="memory://", authorize=authorize)


# -- stores ----------------------------------------------------------------------------------------


def test_a_url_that_names_no_store_is_refused_at_once() -> None:
    """Not at the first request."""
    with pytest.raises(ConfigurationError):
        create_router(store="mysql://host/name")


@pytest.mark.parametrize("error", [StoreUnavailableError("/var/secret.db is locked")])
def test_a_store_that_is_away(error: StoreUnavailableError) -> None:
    """503 and when to come back; nothing of where the store is."""

    class Away(MemoryProviderStore):
        def health(self, tenant_id: str) -> list[LaneHealth]:
            raise error

    answer = ask(serving(Away()), TENANT)
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
    body = ProviderHealthError.model_validate_json(answer.content)
    assert body.code == "store_unavailable"
    assert "secret" not in answer.text


def test_a_store_that_comes_later(tmp_path: Path) -> None:
    """A host starts without its store, answers 503, and reads it once it is there."""
    url = f"sqlite:///{tmp_path}/later/work.db"
    app = serving(url)
    assert ask(app, TENANT).status_code == 503
    (tmp_path / "later").mkdir()
    opened = open_store(url)
    opened.record(RecordBatch([row("a", tenant=TENANT)]))
    assert len(ask(app, TENANT).json()["providers"]) == 1
    recorder_of(opened).close()
    opened.close()


def test_the_loop_is_not_held_up() -> None:
    """While a store takes its time, the host's event loop answers others."""
    is_asked, may_answer = threading.Event(), threading.Event()

    class Slow(MemoryProviderStore):
        def health(self, tenant_id: str) -> list[LaneHealth]:
            is_asked.set()
            assert may_answer.wait(30)
            return super().health(tenant_id)

    def authorize(request: Request, tenant_id: str) -> bool:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()  # a thread of its own, which may block
        return True

    app = serving(Slow(), authorize)

    @app.get("/release")
    async def release() -> bool:
        may_answer.set()
        return is_asked.is_set()

    import httpx

    async def both() -> tuple[httpx.Response, httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            slow = asyncio.ensure_future(client.get(PATH, params={"tenant_id": TENANT}))
            while not is_asked.is_set():  # noqa: ASYNC110 - a thread sets it
                await asyncio.sleep(0)
            return await client.get("/release"), await slow

    quick, slow = asyncio.run(both())
    assert (quick.json(), slow.status_code) == (True, 200)


# -- in a host -------------------------------------------------------------------------------------


def test_in_a_host_of_its_own_kind(store: MemoryProviderStore) -> None:
    """Under a prefix, twice with different stores, beside routes and handlers of the host."""
    host = FastAPI()
    seen = []

    @host.exception_handler(HTTPException)
    async def handle(request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"host": error.detail}, error.status_code)

    @host.get("/campaigns/{number}")
    def campaign(number: int) -> int:
        return number

    async def note() -> None:
        seen.append("noted")

    empty = MemoryProviderStore()
    host.include_router(create_router(store, yes), prefix="/eu", dependencies=[Depends(note)])
    host.include_router(create_router(empty, yes), prefix="/us")
    mounted = FastAPI()
    mounted.include_router(create_router(store, yes))
    host.mount("/inside", mounted)

    counts = {
        prefix: len(ask(host, TENANT, path=prefix + PATH).json()["providers"])
        for prefix in ("/eu", "/us", "/inside")
    }
    assert counts == {"/eu": 2, "/us": 0, "/inside": 2}
    assert seen == ["noted"]
    assert ask(host, path="/campaigns/7").json() == 7
    assert "detail" in ask(host, path="/campaigns/x").json()  # the host's own shape stays
    assert ask(host, "x", path=f"/us{PATH}").json()["code"] == "invalid_request"
    assert ask(host, TENANT).status_code == 404


def test_two_routers_are_two_operations(store: MemoryProviderStore) -> None:
    """The published document has an id for each, and keeps the host's own names."""
    host = FastAPI()
    for prefix in ("/eu", "/us"):
        host.include_router(create_router(store, yes), prefix=prefix)
    document = host.openapi()
    operations = [path["get"] for path in document["paths"].values()]
    assert len({operation["operationId"] for operation in operations}) == 2
    assert set(operations[0]["responses"]) == {"200", "403", "422", "503"}
    assert all(name.startswith("ProviderHealth") for name in document["components"]["schemas"])


@pytest.mark.slow
def test_without_fastapi_the_extra_is_named() -> None:
    """Importing the module works; making a router says what to install."""
    program = (
        "import sys; sys.modules['fastapi'] = None\n"
        "from ergon_framework.errors import MissingExtraError\n"
        "from ergon_framework.providers.api import create_router\n"
        "import ergon_framework.providers.service, ergon_framework.providers.schemas\n"
        "try: create_router(store='memory://')\n"
        "except MissingExtraError as error: print(error)\n"
    )
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "ergon-framework[api]" in done.stdout
