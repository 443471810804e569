"""``/api/v1/jobs`` and what belongs to jobs: filters, pages, one job, and what is refused."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fastapi import FastAPI

from ergon_framework.app.settings import load_settings
from ergon_framework.core.claim import ClaimRequest
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.ports.jobstore import NewJob, Search
from ergon_framework.web.application import create_app
from tests.providers.asgi_client import ask
from tests.web.content import fill_jobs, settings_in

pytestmark = pytest.mark.req("ONE:serve")


@pytest.fixture
def app(tmp_path: Path) -> FastAPI:
    """An application over a store with seven jobs."""
    fill_jobs(tmp_path, waiting=5, dead=2)
    return create_app(settings=settings_in(tmp_path))


def get(app: FastAPI, path: str, code: int = 200, /, **query: Any) -> Any:
    """The document at a path."""
    answer = ask(app, path=path, **query)
    assert answer.status_code == code, answer.text
    assert answer.headers["cache-control"] == "no-store"
    return answer.json()


def ids(found: Any) -> list[str]:
    """Of a page."""
    return [item["id"] for item in found["items"]]


def test_jobs_come_the_newest_first(app: FastAPI) -> None:
    """All of them, and there is no next page."""
    found = get(app, "/api/v1/jobs")
    assert ids(found) == ["w4", "w3", "w2", "w1", "w0", "d1", "d0"]
    assert found["next_cursor"] is None


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"status": "failed"}, ["d1", "d0"]),
        ({"status": ["failed", "pending"], "queue": "pics"}, ["w3", "w1"]),
        ({"queue": "mail", "status": "pending"}, ["w4", "w2", "w0"]),
        ({"handler": "handle.pics"}, ["w3", "w1"]),
        ({"queue": "nowhere"}, []),
    ],
)
def test_filters(app: FastAPI, query: dict[str, Any], expected: list[str]) -> None:
    """Every filter that is set must match."""
    assert ids(get(app, "/api/v1/jobs", **query)) == expected


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"tag": "customer:42"}, ["t1", "t0"]),
        ({"tag": ["customer:42", "late"]}, ["t1"]),
        ({"tag": "customer:42", "queue": "pics"}, ["t0"]),
        ({"metadata": "plan=pro"}, ["t1"]),
        ({"metadata": ["plan=pro", "site=a=b"]}, ["t1"]),
        ({"metadata": "plan=free"}, []),
        ({"tag": "customer"}, []),
        ({"error": "expired"}, ["d1", "d0"]),
        ({"since": "2000-01-01T00:00:00Z", "tag": "late"}, ["t1"]),
        ({"until": "2000-01-01T00:00:00Z", "tag": "late"}, []),
    ],
)
def test_filters_of_the_command_line(
    app: FastAPI, tmp_path: Path, query: dict[str, Any], expected: list[str]
) -> None:
    """Tags, metadata, the last error and the time of creation, as ``ergon jobs list`` has them."""
    with closing(open_store(f"sqlite:///{tmp_path}/work.db")) as store:
        store.add(
            [
                NewJob(id="t0", handler="h", queue="pics", tags=("customer:42",)),
                NewJob(
                    id="t1",
                    handler="h",
                    queue="mail",
                    tags=("customer:42", "late"),
                    metadata={"plan": "pro", "site": "a=b"},
                ),
            ]
        )
    assert ids(get(app, "/api/v1/jobs", **query)) == expected


def test_a_running_job_shows_how_far_it_is(app: FastAPI, tmp_path: Path) -> None:
    """As its worker tells, alone and in a list; a job that waits has none."""
    with closing(open_store(f"sqlite:///{tmp_path}/work.db")) as store:
        request = ClaimRequest(worker="w1", lease=600.0, slots={"python": 1}, default="python")
        _, claimed = store.settle_and_claim([], request)
        (job,) = claimed.jobs
        (record,) = store.workers()
        told = {"fence": job.fence, "fraction": 0.25, "message": "page 1 of 4", "at": "now"}
        store.heartbeat(msgspec.structs.replace(record, progress={job.id: told}))
    del told["fence"]
    assert get(app, f"/api/v1/jobs/{job.id}")["progress"] == told
    shown = {each["id"]: each.get("progress") for each in get(app, "/api/v1/jobs")["items"]}
    assert {name: each for name, each in shown.items() if each} == {job.id: told}


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
@pytest.mark.parametrize("query", [{}, {"status": "pending"}])
def test_pages_add_up_to_the_list(app: FastAPI, limit: int, query: dict[str, str]) -> None:
    """Nothing is left out and nothing comes twice, whatever the size of a page."""
    found: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = get(app, "/api/v1/jobs", limit=limit, **query, **cursor)
        assert len(page["items"]) <= limit
        found += ids(page)
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert found == ids(get(app, "/api/v1/jobs", **query))


def test_a_job_and_why(app: FastAPI) -> None:
    """With its history, and in plain sentences."""
    found = get(app, "/api/v1/jobs/d0")
    assert (found["status"], found["why"]) == ("failed", "expired")
    assert found["history"]
    told = get(app, "/api/v1/jobs/d0/why")
    assert told["id"] == "d0"
    assert "dead-lettered" in told["why"][0]


def test_an_id_with_slashes(app: FastAPI, tmp_path: Path) -> None:
    """However its slashes are written, the whole of it is the id."""
    with closing(open_store(f"sqlite:///{tmp_path}/work.db")) as store:
        store.add([NewJob(id="a/b", handler="h", queue="mail", max_attempts=1)])
    for written in ("a%2Fb", "a/b"):
        assert get(app, f"/api/v1/jobs/{written}")["id"] == "a/b"
        assert get(app, f"/api/v1/jobs/{written}/why")["id"] == "a/b"


@pytest.mark.parametrize("path", ["/api/v1/jobs/nope", "/api/v1/jobs/nope/why", "/api/v1/jobs/%00"])
def test_a_job_that_is_not_there(app: FastAPI, path: str) -> None:
    """It is a 404 in the shape of all errors."""
    told = get(app, path, 404)
    assert (told["code"], sorted(told)) == ("not_found", ["code", "details", "message"])


def test_arguments_are_shown_only_where_both_agree(tmp_path: Path) -> None:
    """The settings must allow it, and the caller must ask for it."""
    fill_jobs(tmp_path, 1, 1)
    closed = create_app(settings=settings_in(tmp_path))
    opened = create_app(settings=settings_in(tmp_path, "[server]\npayloads = true\n"))
    paths = ["/api/v1/jobs", "/api/v1/jobs/w0", "/api/v1/dead-letters", "/api/v1/dead-letters/d0"]
    for path in paths:
        for app, asked, is_shown in [
            (closed, "false", False),
            (closed, "true", False),
            (opened, "false", False),
            (opened, "true", True),
        ]:
            text = ask(app, path=path, payloads=asked).text
            assert ("hidden" in text, '"args"' in text) == (is_shown, is_shown), (path, asked)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"limit": 1001}, "limit"),
        ({"limit": 0}, "limit"),
        ({"limit": "many"}, "limit"),
        ({"status": "dead"}, "status"),
        ({"state": "failed"}, "state"),
        ({"cursor": "not a cursor"}, "cursor"),
        ({"cursor": "bnVsbA"}, "cursor"),
        ({"cursor": "LTE"}, "cursor"),  # -1
        ({"cursor": "OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTk"}, "cursor"),
        ({"cursor": "é"}, "cursor"),
        ({"cursor": "x" * 513}, "cursor"),
        ({"payloads": "perhaps"}, "payloads"),
        ({"queue": ["mail", "pics"]}, "queue"),
        ({"tag": "a=b"}, "tag"),
        ({"tag": [f"t{n}" for n in range(17)]}, "tag"),
        ({"metadata": "plan"}, "metadata"),
        ({"metadata": "=pro"}, "metadata"),
        ({"since": "yesterday"}, "since"),
        ({"until": "2026-13-01T00:00:00Z"}, "until"),
        ({"error": "x" * 256}, "error"),
        ({"limit": ["1", "2"]}, "limit"),
    ],
)
def test_wrong_parameters(app: FastAPI, query: dict[str, Any], field: str) -> None:
    """The field is named, and what was sent is not repeated."""
    told = get(app, "/api/v1/jobs", 422, **query)
    assert told["code"] == "invalid_request"
    [error] = told["details"]["errors"]
    assert error["field"].split(".")[1] == field
    assert told["details"]["remedy"]


def test_queues_schedules_and_workers(app: FastAPI) -> None:
    """As the commands of the same names list them; a schedule's arguments stay out."""
    mail, pics = get(app, "/api/v1/queues")["items"]
    assert (mail["name"], mail["counts"]["pending"], mail["counts"]["failed"]) == ("mail", 3, 2)
    assert (pics["counts"]["pending"], pics["paused"]) == (2, False)
    [schedule] = get(app, "/api/v1/schedules")["items"]
    assert (schedule["name"], schedule["handler"], schedule["problem"]) == ("nightly", "tidy", None)
    assert "hidden" not in str(schedule)
    [worker] = get(app, "/api/v1/workers")["items"]
    assert (worker["id"], worker["state"], worker["busy"]) == ("w1", "running", 1)


def test_pages_of_queues(app: FastAPI) -> None:
    """A cursor is the name that came last."""
    first = get(app, "/api/v1/queues", limit=1)
    second = get(app, "/api/v1/queues", limit=1, cursor=first["next_cursor"])
    assert [page["items"][0]["name"] for page in (first, second)] == ["mail", "pics"]
    assert second["next_cursor"] is None
    assert get(app, "/api/v1/queues", 422, cursor="MQ")["code"] == "invalid_request"


def test_queues_are_found_by_their_beginning(app: FastAPI) -> None:
    """Only those; each says which of its counts are not exact."""
    [queue] = get(app, "/api/v1/queues", prefix="pi")["items"]
    assert (queue["name"], queue["counts"]["pending"], queue["more"]) == ("pics", 2, [])
    assert get(app, "/api/v1/queues", prefix="ics")["items"] == []


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    """It is a 503 that names the part and no path, until the file is there."""
    app = create_app(settings=settings_in(tmp_path))
    before = sorted(tmp_path.iterdir())
    for path in ("/api/v1/jobs", "/api/v1/queues", "/api/v1/dead-letters", "/api/v1/jobs/w0"):
        told = get(app, path, 503)
        assert told["code"] == "store_unavailable"
        assert told["details"]["part"] == "jobs"
        assert str(tmp_path) not in str(told)
    assert sorted(tmp_path.iterdir()) == before
    fill_jobs(tmp_path, 1)
    assert ids(get(app, "/api/v1/jobs")) == ["w0"]


def test_a_file_without_jobs_has_none(tmp_path: Path) -> None:
    """Somebody else's tables are no failure, and ours are not made beside them."""
    (tmp_path / "work.db").touch()
    app = create_app(settings=settings_in(tmp_path))
    assert get(app, "/api/v1/jobs")["items"] == get(app, "/api/v1/dead-letters")["items"] == []
    assert (tmp_path / "work.db").stat().st_size == 0


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    """It is away, not empty."""
    (tmp_path / "work.db").write_text("no database at all " * 100)
    app = create_app(settings=settings_in(tmp_path))
    assert get(app, "/api/v1/jobs", 503)["details"]["part"] == "jobs"


def test_a_server_without_a_job_store(tmp_path: Path) -> None:
    """The answer says that there is none, and where one would be named."""
    file = tmp_path / "ergon.toml"
    file.write_text('[providers]\nstore = "sqlite:///calls.db"\n')
    app = create_app(settings=load_settings(file, {}))
    told = get(app, "/api/v1/jobs", 404)
    assert told["code"] == "not_found"
    assert "[jobs]" in told["details"]["remedy"]


@pytest.mark.parametrize("url", ["memory://", "sqlite:///{}/jobs.db"])
def test_every_store_can_go_on_below_a_job(tmp_path: Path, url: str) -> None:
    """The port's promise behind the pages."""
    with closing(open_store(url.format(tmp_path))) as store:
        store.add([NewJob(id=f"j{n}", handler="h") for n in range(5)])
        first = list(store.search(Search(), 2))
        rest = store.search(Search(below=first[-1].key))
        assert [job.id for job in (*first, *rest)] == ["j4", "j3", "j2", "j1", "j0"]
