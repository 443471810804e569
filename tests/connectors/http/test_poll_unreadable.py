"""Answers of an API that cannot be read: one item, one line, or the whole page."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.connector.http import HttpPollConnector
from tests.connectors.http.paged_api import PagedApi, Reply, serving
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture
def api() -> Iterator[PagedApi]:
    """A server with an empty list."""
    with serving(PagedApi()) as found:
        yield found


def poller(api: PagedApi, folder: Path, **options: Any) -> HttpPollConnector:
    """A connector that asks again at once, and does not wait."""
    given: dict[str, Any] = {"items": "data", "ids": "id", "interval": 0.0, "wait": 0.0, **options}
    return HttpPollConnector(api.url, state=str(folder / "polls.db"), **given)


def drained(connector: HttpPollConnector) -> list[str]:
    """The ids of what there is now; all of it is done."""
    ids: list[str] = []
    while batch := connector.fetch_transactions(100):
        for each in batch:
            ids.append(each.transaction_id)
            connector.ack(each)
    return ids


@pytest.mark.parametrize(
    "bad",
    [b"[" * 5000 + b"]" * 5000, b'{"a":' * 5000 + b"1" + b"}" * 5000, b"9" * 5000, b'"\xff"'],
    ids=["lists", "objects", "digits", "bytes"],
)
def test_a_value_that_cannot_be_read_spoils_its_item_only(
    api: PagedApi, tmp_path: Path, bad: bytes
) -> None:
    """Two items with other such values are two dead letters, and the page is done."""
    items = [b'{"id": 1}', b'{"x": ' + bad + b"}", b'{"y": ' + bad + b"}", b'{"id": 2, "x": "[["}']
    api.answer = lambda _: Reply(raw=b'{"data": [' + b", ".join(items) + b"]}")
    with poller(api, tmp_path) as connector:
        assert fetched_in_time(connector) == ["1", "2"]
        assert (connector.malformed, len(connector.dead_letters())) == (2, 2)
        assert connector.health()
        assert drained(connector) == []


@pytest.mark.parametrize("way", ["cursor", "link"])
@pytest.mark.parametrize(
    "bad",
    [b'"caf\xe9"', rb'"\ud800"', b"9" * 5000],
    ids=["Latin-1", "half of a character", "digits"],
)
def test_a_next_page_whose_name_cannot_be_read_is_an_outage(
    api: PagedApi, tmp_path: Path, bad: bytes, way: str
) -> None:
    """Nothing of the page is delivered, and the page is asked for again until it can be read."""
    api.answer = lambda _: Reply(raw=b'{"data": [{"id": 1}], "next": ' + bad + b"}")
    options = {"cursor": "at", "next_cursor": "next"} if way == "cursor" else {"next_link": "next"}
    with poller(api, tmp_path, **options) as connector:
        assert fetched_in_time(connector) == []
        assert not connector.health()
        api.answer = lambda _: Reply(raw=b'{"data": [{"id": 1}], "next": null}')
        assert drained(connector) == ["1"]
        assert connector.health()


def test_a_line_that_is_no_json_spoils_no_others(api: PagedApi, tmp_path: Path) -> None:
    """It is set aside; where no line is JSON, the answer is something else than lines."""
    api.answer = lambda _: Reply(raw=b'{"id": 1}\n{"id": 2, "x\n{"id": 3}\n')
    with poller(api, tmp_path, format="lines", items="") as connector:
        assert fetched_in_time(connector) == ["1", "3"]
        assert (connector.malformed, len(connector.dead_letters())) == (1, 1)
        assert connector.health()
    api.answer = lambda _: Reply(raw=b"<html>\n</html>\n")
    with poller(api, tmp_path, format="lines", items="", consumer="other") as connector:
        assert fetched_in_time(connector) == []
        assert not connector.health()
        assert connector.malformed == 0


@pytest.mark.parametrize(
    "raw",
    [
        b'{"id": 1}\n{"id": 2}\n{"id": 3, "x',
        b'{"id": 1',
        b"<html>\n<body>\n500\n</body>\n",
    ],
    ids=["cut off", "cut off at the start", "another page"],
)
def test_lines_that_are_no_whole_page_move_nothing(
    api: PagedApi, tmp_path: Path, raw: bytes
) -> None:
    """The page is asked for again, and what was not sent the first time is delivered then."""
    api.answer = lambda _: Reply(raw=raw)
    with poller(api, tmp_path, format="lines", items="", offset="from") as connector:
        assert fetched_in_time(connector) == []
        assert not connector.health()
        assert (connector.malformed, connector.dead_letters()) == (0, [])
        whole = b'{"id": 1}\n{"id": 2}\n{"id": 3, "x": 4}\n{"id": 5}'
        api.answer = lambda request: Reply(raw=b"" if request.query.get("from") else whole)
        assert drained(connector) == ["1", "2", "3", "5"]
        assert connector.health()


def test_an_answer_that_is_no_json_is_an_outage(api: PagedApi, tmp_path: Path) -> None:
    """The health shows it for as long as it lasts, and so does what doctor asks."""
    good, api.answer = api.answer, lambda _: Reply(raw=b"<html>sign in</html>")
    api.items = [{"id": "i1"}]
    with poller(api, tmp_path) as connector:
        assert fetched_in_time(connector) == []
        assert not connector.health()
        assert [each.is_grave for each in connector.observe()] == [True]
        api.answer = good
        assert len(connector.fetch_transactions(1)) == 1
        assert connector.health()


def fetched_in_time(connector: HttpPollConnector) -> list[str]:
    """What is drained; a fetch that waits for an outage to end is stopped when it is known."""
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.extend(drained(connector)))
    thread.start()
    try:
        until(lambda: not thread.is_alive() or not connector.health())
        thread.join(1.0)
    finally:
        connector.stop_waiting()
        thread.join()
    return found
