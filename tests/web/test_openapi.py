"""The published OpenAPI document, held against what the server does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import given, settings
from schemathesis import GenerationMode

from ergon_framework.web.application import create_app
from tests.web.content import fill_calls, fill_flow, fill_jobs, fill_zone, settings_in

pytestmark = [
    pytest.mark.slow,
    pytest.mark.req("ONE:serve"),
    # It asks through a client that its own dependency has renamed.
    pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`"),
]

LISTS = [
    "/api/v1/jobs",
    "/api/v1/flows",
    "/api/v1/queues",
    "/api/v1/schedules",
    "/api/v1/workers",
    "/api/v1/dead-letters",
    "/api/v1/boundary",
]
ITEMS = ["/api/v1/jobs/{job_id}", "/api/v1/jobs/{job_id}/why", "/api/v1/dead-letters/{letter_id}"]
FLOW = "/api/v1/flows/{flow_id}"
SET_ASIDE = "/api/v1/boundary/{zone}/quarantine/{item}"
ACTIONS = [
    "/api/v1/jobs/bulk",
    *(
        f"/api/v1/jobs/{{job_id}}/{name}"
        for name in ("requeue", "retry", "cancel", "delete", "edit-and-requeue")
    ),
    "/api/v1/queues/{queue}/pause",
    "/api/v1/queues/{queue}/resume",
    *(f"/api/v1/schedules/{{schedule}}/{name}" for name in ("fire", "pause", "resume", "delete")),
    *(f"{FLOW}/{name}" for name in ("retry", "skip", "cancel", "purge", "signal")),
    *(f"{SET_ASIDE}/{name}" for name in ("release", "discard")),
]
PROBES = ["/live", "/ready", "/health/live", "/health/ready", "/metrics"]
SUMMARY = "/api/v1/provider-health/summary"
ZONES = [f"/api/v1/boundary/{{zone}}/{name}" for name in ("consumers", "quarantine", "gaps")]


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The document of a server with something in every store."""
    place = tmp_path_factory.mktemp("place")
    fill_jobs(place, waiting=5, dead=2)
    fill_flow(place)
    fill_calls(f"sqlite:///{place}/work.db", ["c0", "c1"])
    fill_zone(place)
    return published(place)


@pytest.fixture(scope="module")
def changing(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """That of a server of its own, whose jobs may be changed."""
    place = tmp_path_factory.mktemp("changing")
    fill_jobs(place, waiting=3, dead=6)
    fill_zone(place)
    return published(place)


@pytest.fixture(scope="module")
def at_random(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """That of a server whose jobs may all be gone at any time."""
    place = tmp_path_factory.mktemp("at-random")
    fill_jobs(place, waiting=3, dead=6)
    return published(place)


def published(place: Path) -> Any:
    """The document of a server over a place."""
    # The client that asks has no address, so a token must do.
    more = '[server]\npayloads = true\ntoken = "ada: sixteen-characters"\noperators = ["ada"]\n'
    app = create_app(settings=settings_in(place, more))
    found = schemathesis.openapi.from_dict(app.openapi())
    found.app = app
    return found


# A cursor is text to the document, and only some text is a cursor. What is wrong only with a header
# that we replace by the token is right.
EXCLUDED = [
    schemathesis.checks.positive_data_acceptance,
    schemathesis.checks.negative_data_rejection,
]


def whole(case: Any) -> Any:
    """The answer to a request with the token, checked against the document."""
    answer = case.call(headers={"Authorization": "Bearer sixteen-characters"})
    case.validate_response(answer, excluded_checks=EXCLUDED)
    return answer


@pytest.mark.parametrize(
    ("path", "mode"),
    [
        *((path, mode) for path in [*LISTS, SUMMARY] for mode in GenerationMode),
        *((path, GenerationMode.POSITIVE) for path in [*PROBES, *ITEMS, FLOW, *ZONES]),
        *(
            pytest.param(path, GenerationMode.NEGATIVE, marks=pytest.mark.campaign)
            for path in [*ITEMS, FLOW, *ZONES]
        ),
    ],
)
def test_nothing_is_found(schema: Any, path: str, mode: GenerationMode) -> None:
    """Whatever fits the document is answered by it, and whatever does not is refused by it."""
    operation = schema[path]["GET"]
    statuses = set()

    @settings(max_examples=25, deadline=None, database=None)
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        statuses.add(int(whole(case).status_code))

    check()
    # A wrong token, or a cursor that no page ever gave out; a name that nothing has.
    assert statuses <= {200, 401, 422, *([404] if "{" in path else [])}


def test_every_operation_is_asked(schema: Any) -> None:
    """A route that is added is added here as well, or nobody would ask it at random."""
    found = {
        (path, method.upper())
        for path, item in schema.raw_schema["paths"].items()
        for method in item
    }
    asked = {(path, "GET") for path in [*PROBES, *LISTS, *ITEMS, FLOW, *ZONES, SUMMARY]}
    assert found == asked | {(path, "POST") for path in ACTIONS}


@pytest.mark.parametrize(
    ("path", "name", "status"),
    [
        *((path, "d0", 200) for path in ITEMS),
        *((path, "nope", 404) for path in [*ITEMS, FLOW]),
        (FLOW, "album", 200),
        ("/api/v1/dead-letters/{letter_id}", "c0", 200),
        *((path, "plant-a", 200) for path in ZONES),
        *((path, "nowhere", 404) for path in ZONES),
    ],
)
def test_each_answer_is_as_published(schema: Any, path: str, name: str, status: int) -> None:
    """Found and not found: the body fits the schema of its status."""
    parameter = path[path.index("{") + 1 : path.index("}")]
    case = schema[path]["GET"].Case(path_parameters={parameter: name})
    assert int(whole(case).status_code) == status


@pytest.mark.parametrize("path", [*LISTS, "/metrics"])
def test_a_missing_token_is_published_too(schema: Any, path: str) -> None:
    """401 has its schema in the document."""
    operation = schema[path]["GET"]
    answer = operation.Case().call()
    operation.validate_response(answer)
    assert int(answer.status_code) == 401


@pytest.mark.parametrize(
    ("path", "mode", "examples"),
    [
        *((path, GenerationMode.POSITIVE, 8) for path in ACTIONS),
        *(
            pytest.param(path, mode, 200, marks=pytest.mark.campaign)
            for path in ACTIONS
            for mode in GenerationMode
        ),
    ],
)
def test_nothing_is_found_where_jobs_are_changed(
    at_random: Any, path: str, mode: GenerationMode, examples: int
) -> None:
    """Whatever is sent is done or refused as the document says, and never a failure of ours."""
    statuses = set()

    @settings(max_examples=examples, deadline=None, database=None)
    @given(case=at_random[path]["POST"].as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        statuses.add(int(whole(case).status_code))

    check()
    assert statuses <= {200, 401, 404, 405, 409, 413, 422}


@pytest.mark.parametrize(
    ("name", "job", "body", "status"),
    [
        ("requeue", "d0", {}, 200),
        ("requeue", "w0", {}, 409),
        ("cancel", "w0", {"reason": "old"}, 200),
        ("retry", "w0", {}, 200),
        ("delete", "d1", {}, 200),
        ("delete", "nope", {}, 404),
        ("edit-and-requeue", "d2", {"args": [1], "new_id": "n"}, 200),
        ("edit-and-requeue", "d3", {"args": {}}, 422),
    ],
)
def test_each_change_is_as_published(
    changing: Any, name: str, job: str, body: Any, status: int
) -> None:
    """Done and refused: the body fits the schema of its status."""
    operation = changing[f"/api/v1/jobs/{{job_id}}/{name}"]["POST"]
    case = operation.Case(path_parameters={"job_id": job}, body=body, media_type="application/json")
    assert int(whole(case).status_code) == status


@pytest.mark.parametrize(
    ("name", "item", "status"),
    [("release", 1, 200), ("discard", 1, 200), ("release", 1, 409), ("release", 9, 404)],
)
def test_each_change_of_a_fact_is_as_published(
    changing: Any, name: str, item: int, status: int
) -> None:
    """Done and refused: the body fits the schema of its status."""
    operation = changing[f"{SET_ASIDE}/{name}"]["POST"]
    place = {"zone": "plant-a", "item": item}
    case = operation.Case(path_parameters=place, body={}, media_type="application/json")
    assert int(whole(case).status_code) == status
