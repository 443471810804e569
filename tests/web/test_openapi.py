"""The published OpenAPI document, held against what the server does."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import given, settings
from schemathesis import GenerationMode

from ergon_framework.web.application import create_app
from tests.web.content import fill_calls, fill_jobs, fill_zone, settings_in

pytestmark = [
    pytest.mark.slow,
    pytest.mark.req("ONE:serve"),
    # It asks through a client that its own dependency has renamed.
    pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`"),
]

LISTS = [
    "/api/v1/jobs",
    "/api/v1/queues",
    "/api/v1/schedules",
    "/api/v1/workers",
    "/api/v1/dead-letters",
    "/api/v1/boundary",
]
ITEMS = ["/api/v1/jobs/{job_id}", "/api/v1/jobs/{job_id}/why", "/api/v1/dead-letters/{letter_id}"]
ZONES = [f"/api/v1/boundary/{{zone}}/{name}" for name in ("consumers", "quarantine", "gaps")]


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The document of a server with something in every store."""
    place = tmp_path_factory.mktemp("place")
    fill_jobs(place, waiting=5, dead=2)
    fill_calls(f"sqlite:///{place}/work.db", ["c0", "c1"])
    fill_zone(place)
    # The client that asks has no address, so a token must do.
    settings = settings_in(place, '[server]\npayloads = true\ntoken = "sixteen-characters"\n')
    app = create_app(settings=settings)
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
        *((path, mode) for path in LISTS for mode in GenerationMode),
        *((path, GenerationMode.POSITIVE) for path in ("/live", "/ready", "/metrics")),
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
    # A wrong token, or a cursor that no page ever gave out.
    assert statuses <= {200, 401, 422}


@pytest.mark.parametrize(
    ("path", "name", "status"),
    [
        *((path, "d0", 200) for path in ITEMS),
        *((path, "nope", 404) for path in ITEMS),
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
