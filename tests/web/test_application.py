"""What ``ergon serve`` answers, asked inside this process."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from fastapi import FastAPI

from ergon_framework.errors import MissingExtraError, StoreUnavailableError
from ergon_framework.ports.providerstore import RecordBatch
from ergon_framework.providers.schemas import ProviderHealthError, ProviderHealthSummary
from ergon_framework.providers.stores.memory import MemoryProviderStore
from ergon_framework.web.application import create_app
from ergon_framework.web.backends import JobBackend
from tests.providers.asgi_client import ask
from tests.providers.recorder_fakes import row
from tests.web.content import fill_jobs, fill_zone, settings_in

pytestmark = pytest.mark.req("PROVIDERS:api", "ONE:serve")

TENANT = "3f2b8c1e-0d4a-4f6b-9c58-a1b2c3d4e5f6"
TOKEN = "correct-horse-battery"  # noqa: S105 - of no server
AWAY = ("203.0.113.9", 40_000)
PATHS = [
    "/api/v1/provider-health/summary",
    "/health/live",
    "/health/ready",
    "/live",
    "/metrics",
    "/ready",
    "/api/v1/boundary",
    "/api/v1/boundary/{zone}/consumers",
    "/api/v1/boundary/{zone}/gaps",
    "/api/v1/boundary/{zone}/quarantine",
    "/api/v1/dead-letters",
    "/api/v1/dead-letters/{letter_id}",
    "/api/v1/flows",
    "/api/v1/flows/{flow_id}",
    "/api/v1/jobs",
    "/api/v1/jobs/{job_id}",
    "/api/v1/jobs/{job_id}/why",
    "/api/v1/queues",
    "/api/v1/schedules",
    "/api/v1/workers",
]
ACTIONS = [
    "/api/v1/boundary/{zone}/quarantine/{item}/discard",
    "/api/v1/boundary/{zone}/quarantine/{item}/release",
    "/api/v1/queues/{queue}/pause",
    "/api/v1/queues/{queue}/resume",
    *(f"/api/v1/schedules/{{schedule}}/{name}" for name in ("delete", "fire", "pause", "resume")),
    *(
        f"/api/v1/flows/{{flow_id}}/{name}"
        for name in ("cancel", "purge", "retry", "signal", "skip")
    ),
    "/api/v1/jobs/bulk",
    "/api/v1/jobs/{job_id}/cancel",
    "/api/v1/jobs/{job_id}/delete",
    "/api/v1/jobs/{job_id}/edit-and-requeue",
    "/api/v1/jobs/{job_id}/requeue",
    "/api/v1/jobs/{job_id}/retry",
]


@pytest.fixture
def store() -> Iterator[MemoryProviderStore]:
    """A store in which one call was made."""
    opened = MemoryProviderStore(lambda: 1_700_000_000.5)
    opened.record(RecordBatch([row("mine", tenant=TENANT)]))
    yield opened
    opened.close()


@pytest.fixture
def app(store: MemoryProviderStore) -> FastAPI:
    """An application without a token."""
    return create_app(store)


def bearer(token: str, scheme: str = "Bearer") -> dict[str, str]:
    """The header with a token."""
    return {"Authorization": f"{scheme} {token}"}


def test_the_summary_is_there(app: FastAPI) -> None:
    """It is the router's, for callers on this machine."""
    answer = ask(app, TENANT)
    found = ProviderHealthSummary.model_validate_json(answer.content)
    assert [each.provider_name for each in found.providers] == ["rank"]
    assert ask(app, TENANT, peer=AWAY).status_code == 403
    assert ask(app, "acme").json()["code"] == "invalid_request"


def test_the_probes(app: FastAPI) -> None:
    """Both say yes, and are not to be cached."""
    for name in ("live", "ready"):
        for path in (f"/{name}", f"/health/{name}"):
            answer = ask(app, path=path)
            assert (answer.status_code, answer.json()) == (200, {"status": name})
            assert answer.headers["cache-control"] == "no-store"


def test_a_store_that_does_not_answer(
    app: FastAPI, store: MemoryProviderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is live and not ready, and the answer names neither host nor file."""

    def away(*_: object) -> None:
        raise StoreUnavailableError("no answer from db.internal")

    monkeypatch.setattr(store, "lane_state", away)
    answer = ask(app, path="/health/ready")
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
    told = ProviderHealthError.model_validate_json(answer.content)
    assert told.code == StoreUnavailableError("").code
    assert told.message == "the store of provider calls does not answer"
    assert told.details["away"] == {"providers": told.code}
    assert "internal" not in answer.text
    stranger = ask(app, path="/ready", peer=AWAY)
    assert stranger.status_code == 503
    assert "away" not in stranger.json()["details"]
    assert ask(app, path="/health/live").status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", "/docs", 404, "not_found"),
        ("GET", "/health", 404, "not_found"),
        ("POST", "/health/live", 405, "method_not_allowed"),
        ("DELETE", "/api/v1/provider-health/summary", 405, "method_not_allowed"),
    ],
)
def test_what_is_not_there(app: FastAPI, method: str, path: str, status: int, code: str) -> None:
    """Refusals have the one shape of errors, and a method's names those that are allowed."""
    answer = ask(app, method=method, path=path)
    told = ProviderHealthError.model_validate_json(answer.content)
    assert (answer.status_code, told.code) == (status, code)
    assert "remedy" in told.details
    assert answer.headers.get("allow") == ("GET, HEAD" if status == 405 else None)


def test_a_failure_of_ours_is_told_without_its_text(
    app: FastAPI, store: MemoryProviderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is answered in the same shape, and raised again for the server's log."""

    def broken(*_: object) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr(store, "lane_state", broken)
    answer = ask(_quiet(app), path="/health/ready")
    told = ProviderHealthError.model_validate_json(answer.content)
    assert (answer.status_code, told.code) == (500, "internal")
    assert "secret" not in answer.text


def _quiet(app: FastAPI) -> FastAPI:
    """As a server runs it: what is raised after the answer goes to its log."""

    async def served(scope: object, receive: object, send: object) -> None:
        with pytest.raises(RuntimeError, match="a secret"):
            await app(scope, receive, send)  # type: ignore[arg-type]

    return served  # type: ignore[return-value]


def test_openapi(store: MemoryProviderStore) -> None:
    """All paths are published, each for reading or for acting, and where a token is needed."""
    open_to_all = ask(create_app(store), path="/openapi.json").json()["paths"]
    assert sorted(open_to_all) == sorted([*PATHS, *ACTIONS])
    assert {method for path in PATHS for method in open_to_all[path]} == {"get"}
    assert {method for path in ACTIONS for method in open_to_all[path]} == {"post"}
    # Acting takes a token in any case.
    assert [path for path in PATHS if "security" in open_to_all[path]["get"]] == []
    assert [path for path in ACTIONS if "security" not in open_to_all[path]["post"]] == []
    closed = ask(create_app(store, token=TOKEN), path="/openapi.json", headers=bearer(TOKEN)).json()
    assert closed["components"]["securitySchemes"]["HTTPBearer"]["scheme"] == "bearer"
    for name in PATHS:
        path, is_open = closed["paths"][name], name.endswith(("/live", "/ready"))
        assert path["get"].get("security") == (None if is_open else [{"HTTPBearer": []}])
        assert ("401" in path["get"]["responses"]) is not is_open


@pytest.mark.parametrize("path", ["/metrics", "/api/v1/jobs", "/openapi.json", "/nowhere"])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer("wrong"),
        bearer(TOKEN[:-1]),
        bearer(TOKEN + "x"),
        bearer(""),
        bearer(TOKEN, "Basic"),
        {"Authorization": TOKEN},
        {"X-Token": TOKEN},
    ],
)
def test_without_the_token_nothing_is_told(
    store: MemoryProviderStore, path: str, headers: dict[str, str]
) -> None:
    """Not even on this machine, and not even whether a path is there."""
    answer = ask(create_app(store, token=TOKEN), path=path, headers=headers)
    told = ProviderHealthError.model_validate_json(answer.content)
    assert (answer.status_code, told.code) == (401, "unauthenticated")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert TOKEN not in answer.text


def test_with_the_token_everybody_reads_everything(store: MemoryProviderStore) -> None:
    """Also from elsewhere; the scheme may be in any case."""
    app = create_app(store, token=TOKEN)
    for scheme in ("Bearer", "bearer"):
        answer = ask(app, TENANT, peer=AWAY, headers=bearer(TOKEN, scheme))
        assert answer.status_code == 200
        assert len(answer.json()["providers"]) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`")
@pytest.mark.parametrize("path", ["/health/live", "/health/ready"])
@pytest.mark.parametrize("status", [200, 503])
def test_answers_are_as_published(store: MemoryProviderStore, path: str, status: int) -> None:
    """What the document says of each probe is what is answered."""
    app = create_app(store, token=TOKEN)
    # The document needs the token.
    schema = schemathesis.openapi.from_dict(app.openapi())
    schema.app = app
    if status == 503:
        store.close()
    found = schema[path]["GET"]
    answer = found.Case().call()
    found.validate_response(answer)
    assert answer.status_code == (200 if (path, status) == ("/health/live", 503) else status)


def test_without_fastapi_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever lacks it reads what to install."""
    monkeypatch.setitem(sys.modules, "fastapi", None)
    with pytest.raises(MissingExtraError, match=r"ergon-framework\[api\]"):
        create_app("memory://")


def test_a_store_that_hangs_holds_up_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks for it is told so in time, and the zone answers meanwhile."""
    fill_jobs(tmp_path, 1)
    fill_zone(tmp_path)
    app = create_app(settings=settings_in(tmp_path, "[server]\ntimeout = 2\n"))
    let_go = threading.Event()
    monkeypatch.setattr(JobBackend, "opened", lambda _: let_go.wait(60))
    try:
        slow = ask(app, path="/api/v1/jobs")
        assert (slow.status_code, slow.json()["details"]["part"]) == (503, "jobs")
        assert ask(app, path="/ready").json()["details"]["away"] == {"jobs": slow.json()["code"]}
        scraped = ask(app, path="/metrics").text
        assert 'ergon_part_up{part="jobs"} 0' in scraped
        assert 'ergon_part_up{part="zone:plant-a"} 1' in scraped
        assert ask(app, path="/api/v1/boundary").json()["items"][0]["up"] is True
    finally:
        let_go.set()
