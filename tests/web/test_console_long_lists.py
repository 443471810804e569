"""Lists of the console that are long: a page has a part of each, small and with a link to more."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ergon_framework.jobs.store_urls import open_store
from ergon_framework.ports.jobstore import NewJob, Schedule, WorkerRecord
from ergon_framework.web.application import create_app
from tests.web.console_client import ConsoleClient
from tests.web.content import settings_in

pytestmark = pytest.mark.req("ONE:serve")

NUMBER = 120


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> ConsoleClient:
    """A server over as many schedules, workers and families of dead letters as that."""
    place: Path = tmp_path_factory.mktemp("long")
    with closing(open_store(f"sqlite:///{place}/work.db")) as store:
        now = store.now()
        for n in range(NUMBER):
            job = b'{"handler":"build","queue":"reports","args":[]}'
            is_paused = n % 40 == 0
            store.put_schedule(
                Schedule(
                    name=f"s{n:03}",
                    cron="0 3 * * *",
                    zone="UTC",
                    misfire="once",
                    job=job,
                    next_at=now + 600 - n,
                    is_paused=is_paused,
                )
            )
            store.heartbeat(
                WorkerRecord(
                    id=f"w{n:03}",
                    host="here",
                    pid=n,
                    version="1",
                    started_at=now,
                    queues=tuple(f"{'q' * 90}-{k}" for k in range(20)),
                    executors={"python": {"in_flight": 1}},
                )
            )
        store.add(
            [
                NewJob(id=f"d{n}", handler=f"{'h' * 90}{n:03}", expires_at=now - 1)
                for n in range(NUMBER)
            ]
        )
        store.prune(1000)
    return ConsoleClient(create_app(settings=settings_in(place)))


def pages(client: ConsoleClient, path: str) -> Iterator[str]:
    """One after the other, by their links; each is small."""
    following: str | None = path
    while following is not None:
        answer = client.get(following)
        assert answer.status_code == 200
        assert len(answer.content) < 100_000
        yield answer.text
        found = re.search(r'rel="next" href="([^"]+)"', answer.text)
        following = None if found is None else found[1].replace("&amp;", "&")


@pytest.mark.parametrize(
    ("path", "row", "number"),
    [
        ("schedules", r'<th scope="row">(s\d+)<', 3),
        ("workers", r'<th scope="row">(w\d+)<', 3),
        ("dead-letters", r"<b>h+(\d+)<", 4),
    ],
)
def test_a_list_comes_in_parts(client: ConsoleClient, path: str, row: str, number: int) -> None:
    """All of it, nothing twice; as JSON and CSV, up to a thousand rows at once."""
    texts = list(pages(client, f"/console/{path}"))
    assert len(texts) == number
    found = [name for text in texts for name in re.findall(row, text)]
    assert len(found) == len(set(found)) == NUMBER
    assert all(f"There are {NUMBER}" in text for text in texts)
    assert [">First<" in text for text in texts] == [False, *[True] * (number - 1)]
    told = client.get(f"/console/{path}?format=json").json()
    assert (len(told["items"]), told["next_cursor"]) == (NUMBER, None)
    assert client.get(f"/console/{path}?format=csv").text.count("\r\n") == NUMBER + 1


def test_schedules_by_what_fires_next(client: ConsoleClient) -> None:
    """Those that are paused, and have no next fire, come last."""
    names = [each["name"] for each in client.get("/console/schedules?format=json").json()["items"]]
    assert names[:2] == ["s119", "s118"]
    assert names[-3:] == ["s000", "s040", "s080"]


@pytest.mark.parametrize("path", ["schedules", "workers", "dead-letters"])
def test_a_cursor_that_is_none_of_ours(client: ConsoleClient, path: str) -> None:
    """It is named, with what to send."""
    answer = client.get(f"/console/{path}?cursor=nonsense")
    assert answer.status_code == 422
    assert "next_cursor" in answer.text
