"""Answers of an API that cannot be read: one item, one line, or the whole page."""

from __future__ import annotations

import json
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


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        (b'{"id": 2, "name": "x', '{"id": 2, "name": "x'),
        (b'{"id": 2, "name": "caf\xe9', '{"id": 2, "name": "caf\\xe9'),
        ('{"id": 2, "name": "\N{SNOWMAN}'.encode(), '{"id": 2, "name": "\N{SNOWMAN}'),
        (b'{"id": 2, "name": "' + b"x" * 1000, '{"id": 2, "name": "' + "x" * 181),
    ],
    ids=["text", "Latin-1", "UTF-8", "long"],
)
def test_a_dead_letter_has_the_line_that_was_received(
    api: PagedApi, tmp_path: Path, line: bytes, kept: str
) -> None:
    """As a JSON text, with escapes for what is not UTF-8, cut to the size of a message."""
    api.answer = lambda _: Reply(raw=b'{"id": 1}\n' + line + b"\n")
    with poller(api, tmp_path, format="lines", items="", max_message_bytes=200) as connector:
        assert fetched_in_time(connector) == ["1"]
        ((_, _, _, item),) = connector.dead_letters()
        assert json.loads(item or "") == kept


@pytest.mark.parametrize(
    ("bad", "kept"),
    [(b"[" * 5000 + b"]" * 5000, "[" * 4000), (b"9" * 5000, "9" * 5000), (b'"a\xff"', "a\udcff")],
    ids=["lists", "digits", "bytes"],
)
def test_a_dead_letter_has_the_value_that_was_received(
    api: PagedApi, tmp_path: Path, bad: bytes, kept: str
) -> None:
    """Beside the rest of its item; an item that is larger than a message is cut."""
    api.answer = lambda _: Reply(raw=b'{"data": [{"id": 7, "x": ' + bad + b'}, {"id": 1}]}')
    with poller(api, tmp_path) as connector:
        assert fetched_in_time(connector) == ["1"]
        ((_, _, _, item),) = connector.dead_letters()
        assert json.loads(item or "")["id"] == 7
        assert kept in deepest(json.loads(item or "")["x"])
    with poller(api, tmp_path, consumer="other", max_message_bytes=12) as connector:
        assert fetched_in_time(connector) == ["1"]
        ((_, _, _, item),) = connector.dead_letters()
        assert json.loads(item or "") == '{"id": 7, "x'


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


def deepest(value: Any) -> str:
    """The text within lists of one element."""
    while isinstance(value, list):
        (value,) = value
    return str(value)


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
