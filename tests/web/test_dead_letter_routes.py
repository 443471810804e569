"""``/api/v1/dead-letters``: jobs and provider calls in one list, page by page."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi import FastAPI

from ergon_framework.web.application import create_app
from tests.web.content import TENANT, fill_calls, fill_jobs, settings_in
from tests.web.test_job_routes import get, ids
from tests.web.test_metric_routes import scraped

pytestmark = pytest.mark.req("ONE:serve")

CALLS = ["c0", "c1", "c2", "c3"]


@pytest.fixture
def app(tmp_path: Path) -> FastAPI:
    """An application over three dead jobs, which are newer, and four calls that were given up."""
    fill_jobs(tmp_path, waiting=1, dead=3)
    fill_calls(f"sqlite:///{tmp_path}/work.db", CALLS)
    return create_app(settings=settings_in(tmp_path))


def everything(app: FastAPI, limit: int, **query: str) -> list[str]:
    """The ids of all pages."""
    found: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = get(app, "/api/v1/dead-letters", limit=limit, **query, **cursor)
        found += ids(page)
        if page["next_cursor"] is None:
            return found
        cursor = {"cursor": page["next_cursor"]}


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 7, 100])
def test_both_kinds_in_one_list(app: FastAPI, limit: int) -> None:
    """The newest first, whatever the size of a page."""
    assert everything(app, limit) == ["d2", "d1", "d0", "c3", "c2", "c1", "c0"]


OWN_STORE = '[providers.crm]\nprovider = "shop:Crm"\nstore = "sqlite:///crm.db"\n'


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_a_provider_with_a_store_of_its_own(tmp_path: Path, limit: int) -> None:
    """Its letters, lanes and metrics are told with those of all the others."""
    fill_calls(f"sqlite:///{tmp_path}/work.db", ["c0", "c1"])
    fill_calls(f"sqlite:///{tmp_path}/crm.db", ["o0", "o1", "o2"])
    app = create_app(settings=settings_in(tmp_path, OWN_STORE))
    found = everything(app, limit, kind="provider")
    assert sorted(found) == ["c0", "c1", "o0", "o1", "o2"]
    assert get(app, "/api/v1/dead-letters/o1")["id"] == "o1"
    assert scraped(app)['ergon_dead_letters{kind="provider"}'] == 5
    health = get(app, "/api/v1/provider-health/summary", tenant_id=TENANT)
    assert len(health["providers"]) == 2


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"kind": "job"}, ["d2", "d1", "d0"]),
        ({"kind": "provider"}, ["c3", "c2", "c1", "c0"]),
        ({"reason": "timeout"}, ["c3", "c2", "c1", "c0"]),
        ({"reason": "timeout", "kind": "job"}, []),
        ({"reason": "nothing\0such"}, []),
    ],
)
def test_filters(app: FastAPI, query: dict[str, str], expected: list[str]) -> None:
    """By what was given up, and by why."""
    assert everything(app, 2, **query) == expected


def test_one_of_each_kind(app: FastAPI) -> None:
    """By its id alone; a job that is not dead is none of them."""
    assert get(app, "/api/v1/dead-letters/d0")["kind"] == "job"
    found = get(app, "/api/v1/dead-letters/c0")
    assert (found["kind"], found["reason_code"], "payload" in found) == (
        "provider",
        "timeout",
        False,
    )
    for name in ("w0", "nope", "%00"):
        assert get(app, f"/api/v1/dead-letters/{name}", 404)["code"] == "not_found"


@pytest.mark.parametrize("cursor", ["e30x", "WzFd", "eyJqb2IiOiJ4In0", "eyJjYWxsIjpbMSwyXX0"])
def test_a_cursor_of_another_list(app: FastAPI, cursor: str) -> None:
    """It is refused."""
    assert get(app, "/api/v1/dead-letters", 422, cursor=cursor)["code"] == "invalid_request"


@pytest.mark.slow
def test_on_postgresql(postgres_url: str) -> None:
    """The same list and the same pages; a database without tables is empty, and stays so."""
    app = create_app(postgres_url)
    assert everything(app, 2) == []
    assert get(app, "/ready") == {"status": "ready"}
    fill_calls(postgres_url, CALLS)
    for limit in (1, 3, 4):
        assert everything(app, limit) == ["c3", "c2", "c1", "c0"]
    assert everything(app, 4, reason="nothing\0such") == []
    assert get(app, "/api/v1/dead-letters/%00", 404)["code"] == "not_found"
    assert get(app, "/api/v1/dead-letters/c1")["task_name"] == "rank.snapshot"
