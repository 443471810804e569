"""Polling an API: its ways to the next page, what is remembered, and what it may not do to us."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ergon_framework import App
from ergon_framework.app.diagnostics.check import check
from ergon_framework.app.factories import connector_factory
from ergon_framework.app.settings import load_settings
from ergon_framework.connector import from_url
from ergon_framework.connector.http import HttpPollConnector
from ergon_framework.errors import ConfigurationError, WiringError
from ergon_framework.ports.notice import Notice
from ergon_framework.redaction import redacted_text
from ergon_framework.telemetry.notices import add_listener, remove_listener
from tests.connectors.http.paged_api import PagedApi, Reply, Request, serving
from tests.waiting import until

pytestmark = pytest.mark.slow
TOKEN = "t0ken"  # noqa: S105 - of nobody
WAYS: dict[str, dict[str, Any]] = {
    "by_link": {"link_header": True},
    "by_body": {"next_link": "links.next"},
    "by_cursor": {"cursor": "cursor", "next_cursor": "next"},
    "by_page": {"page": "page", "page_size": 3},
    "by_offset": {"offset": "offset"},
    "by_since": {"link_header": True, "since": "since", "since_field": "at"},
}


@pytest.fixture
def api() -> Iterator[PagedApi]:
    """A server with an empty list."""
    with serving(PagedApi()) as found:
        yield found


def poller(api: PagedApi, folder: Path, **options: Any) -> HttpPollConnector:
    """A connector that asks again at once, and does not wait."""
    given: dict[str, Any] = {"items": "data", "ids": "id", "interval": 0.0, "wait": 0.0, **options}
    return HttpPollConnector(api.url, state=str(folder / "polls.db"), **given)


def numbered(*numbers: int) -> list[dict[str, Any]]:
    """Items with these ids, in the order of time."""
    return [{"id": f"i{n}", "at": f"2026-01-01T00:00:{n:02}Z"} for n in numbers]


def drained(connector: HttpPollConnector, batch_size: int = 100) -> list[str]:
    """The ids of what there is now; all of it is done."""
    ids: list[str] = []
    while batch := connector.fetch_transactions(batch_size):
        for each in batch:
            ids.append(each.transaction_id)
            connector.ack(each)
    return ids


def refused(connector: HttpPollConnector) -> list[str]:
    """Why nothing comes: a fetch waits for the API, and is asked to stop."""
    told: list[str] = []

    def hear(notice: Notice) -> None:
        if notice.name == "broker.away":
            told.append(notice.fields["reason"])
            connector.stop_waiting()

    add_listener(hear)
    try:
        assert connector.fetch_transactions(1) == []
    finally:
        remove_listener(hear)
    assert not connector.health()
    return told


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_the_next_page(api: PagedApi, tmp_path: Path, way: str) -> None:
    """Each item comes once, also what is added later, and nothing again after a restart."""
    api.answer = getattr(api, way)
    api.items = numbered(*range(8))
    with poller(api, tmp_path, **WAYS[way]) as connector:
        assert drained(connector) == [f"i{n}" for n in range(8)]
        api.items += numbered(8)
        assert drained(connector) == ["i8"]
        api.items += numbered(*range(9, 15))
        assert drained(connector) == [f"i{n}" for n in range(9, 15)]
    with poller(api, tmp_path, **WAYS[way]) as connector:
        assert drained(connector) == []
        api.items += numbered(15)
        assert drained(connector) == ["i15"]


@pytest.mark.parametrize("way", [way for way in WAYS if way != "by_since"])
def test_reading_goes_on_where_it_stopped(api: PagedApi, tmp_path: Path, way: str) -> None:
    """Pages that are settled are not asked for again after a restart."""
    api.answer = getattr(api, way)
    api.items = numbered(*range(20))
    with poller(api, tmp_path, **WAYS[way]) as connector:
        for each in connector.fetch_transactions(100):
            connector.ack(each)
        drained(connector)
    before = len(api.requests)
    with poller(api, tmp_path, **WAYS[way]) as connector:
        assert drained(connector) == []
    assert len(api.requests) - before <= 2
    assert api.requests[-1].query


def test_the_cursor_waits_for_what_is_in_hand(api: PagedApi, tmp_path: Path) -> None:
    """An item of the first page without an outcome comes again, and later ones do not."""
    api.items = numbered(*range(9))
    with poller(api, tmp_path, offset="offset") as connector:
        first, *others = connector.fetch_transactions(3)
        for each in others:
            connector.ack(each)
        drained(connector)
        assert first.transaction_id == "i0"
    with poller(api, tmp_path, offset="offset") as connector:
        assert drained(connector) == ["i0"]


def test_since_asks_from_the_highest_value(api: PagedApi, tmp_path: Path) -> None:
    """Less the seconds by which an item may be late, so that such a one is found."""
    api.answer = api.by_since
    api.items = numbered(10, 40)
    with poller(api, tmp_path, late=20.0, **WAYS["by_since"]) as connector:
        assert drained(connector) == ["i10", "i40"]
        api.items.insert(0, numbered(25)[0])
        assert drained(connector) == ["i25"]
    assert "since" not in api.requests[0].query
    assert api.requests[-1].query["since"] == "2026-01-01T00:00:20Z"


def test_since_may_start_somewhere(api: PagedApi, tmp_path: Path) -> None:
    """Exactly there, for as long as nothing was seen."""
    api.answer = api.by_since
    start = "2026-01-01T00:00:30Z"
    with poller(api, tmp_path, since_start=start, **WAYS["by_since"]) as connector:
        assert drained(connector) == []
        assert drained(connector) == []
        assert {request.query["since"] for request in api.requests} == {start}
        api.items = numbered(10, 40)
        assert drained(connector) == ["i40"]


def test_since_may_be_a_number(api: PagedApi, tmp_path: Path) -> None:
    """As a number, so that 10 is above 9."""
    api.items = [{"id": n} for n in (8, 9, 10)]
    api.answer = lambda request: Reply(
        {"data": [each for each in api.items if each["id"] > int(request.query.get("after", 0))]}
    )
    with poller(api, tmp_path, since="after", since_field="id") as connector:
        assert drained(connector) == ["8", "9", "10"]
        assert drained(connector) == []
        assert api.requests[-1].query["after"] == "10"


def test_a_look_may_begin_at_the_first_page(api: PagedApi, tmp_path: Path) -> None:
    """For lists that have what is new at their beginning."""
    api.answer = api.by_link
    api.items = numbered(*range(5))
    with poller(api, tmp_path, link_header=True, again="first") as connector:
        assert len(drained(connector)) == 5
        api.items.insert(0, {"id": "new"})
        assert drained(connector) == ["new"]
        del api.items[3:]
        assert drained(connector) == []


def test_an_id_on_two_pages_is_one_transaction(api: PagedApi, tmp_path: Path) -> None:
    """While it is in hand, and when it is done."""
    api.items = [{"id": each} for each in "abcab"] + [{"id": "c", "more": "ü\u0000💥"}, {"id": "d"}]
    with poller(api, tmp_path, offset="offset") as connector:
        held = connector.fetch_transactions(1) + connector.fetch_transactions(10)
        held += connector.fetch_transactions(10)
        assert sorted(each.transaction_id for each in held) == ["a", "b", "c", "d"]


def test_an_id_may_be_made_of_several_fields(api: PagedApi, tmp_path: Path) -> None:
    """So that an item which was changed is work again; without ids, any change makes another."""
    api.items = [{"id": 1, "version": 1}]
    with (
        poller(api, tmp_path, ids="id, version") as connector,
        poller(api, tmp_path, ids=None, consumer="other", name="shop") as other,
    ):
        assert drained(connector) == ["1:1"]
        (digest,) = drained(other)
        assert digest.startswith("shop:sha256:")
        api.items[0]["version"] = 2
        assert drained(connector) == ["1:2"]
        assert len(drained(other)) == 1


def test_parts_of_an_id_are_kept_apart(api: PagedApi, tmp_path: Path) -> None:
    """Two items do not become one by how their fields are joined."""
    api.items = [{"a": "x:y", "b": "z"}, {"a": "x", "b": "y:z"}, {"a": "x%3Ay", "b": "z"}]
    with poller(api, tmp_path, ids="a,b") as connector:
        assert len(drained(connector)) == 3
        assert connector.malformed == 0


def test_one_item_of_the_future_hides_no_others(api: PagedApi, tmp_path: Path) -> None:
    """What is asked for next is never later than now."""
    api.answer = api.by_since
    api.items = [*numbered(1), {"id": "odd", "at": "9999-12-31T23:59:59Z"}]
    with poller(api, tmp_path, **WAYS["by_since"]) as connector:
        assert drained(connector) == ["i1", "odd"]
        soon = datetime.fromtimestamp(time.time() + 60, UTC).isoformat()
        api.items.append({"id": "new", "at": soon.replace("+00:00", "Z")})
        assert drained(connector) == ["new"]


def test_a_mistyped_path_of_the_id_sets_nothing_aside(api: PagedApi, tmp_path: Path) -> None:
    """A whole feed would be with the dead letters; one item without an id is."""
    api.items = numbered(1, 2)
    with poller(api, tmp_path, ids="di") as connector:
        (why,) = refused(connector)
        assert "no item of the page has anything at di" in why
        assert connector.dead_letters() == []


def test_what_is_no_envelope_is_set_aside(api: PagedApi, tmp_path: Path) -> None:
    """A correlation id may be anything in an API."""
    api.items = [{"id": "a", "flow": "x" * 100_000 + "\u0000"}, {"id": "b", "flow": 7}]
    with poller(api, tmp_path, correlation="flow") as connector:
        found = drained(connector)
        assert found[-1] == "b"
        assert len(found) + connector.malformed == 2
        assert drained(connector) == []


def test_a_page_larger_than_the_memory_is_known_again(api: PagedApi, tmp_path: Path) -> None:
    """``remember`` counts what is behind the cursor; what is on the page is known in any case."""

    def answer(_: Request) -> Reply:
        return Reply({"data": api.items}, headers={"ETag": f'"{len(api.requests)}"'})

    api.answer = answer
    api.items = numbered(*range(20))
    with poller(api, tmp_path, remember=3) as connector:
        assert len(drained(connector)) == 20
        assert drained(connector) == []
    with poller(api, tmp_path, remember=3) as connector:
        assert drained(connector) == []
        assert drained(connector) == []


def test_little_is_remembered_behind_the_cursor(api: PagedApi, tmp_path: Path) -> None:
    """The file of a feed that goes on for years does not grow with it."""
    api.items = numbered(*range(50))
    with poller(api, tmp_path, offset="offset", remember=5) as connector:
        assert len(drained(connector)) == 50
        api.items += numbered(50)
        drained(connector)
    with closing(sqlite3.connect(tmp_path / "polls.db")) as file:
        (count,) = file.execute("SELECT count(*) FROM ergon_poll_marks").fetchone()
    assert count < 20


def test_another_way_to_the_next_page_needs_another_name(api: PagedApi, tmp_path: Path) -> None:
    """A number of a page is no cursor."""
    api.items = numbered(*range(5))
    with poller(api, tmp_path, offset="offset") as connector:
        assert len(drained(connector)) == 5
    with (
        poller(api, tmp_path, **WAYS["by_cursor"]) as connector,
        pytest.raises(ConfigurationError, match="kept with offset="),
    ):
        connector.fetch_transactions(1)
    with poller(api, tmp_path, consumer="other", **WAYS["by_cursor"]) as connector:
        assert connector.fetch_transactions(1)


def test_an_unchanged_page_is_not_sent_again(api: PagedApi, tmp_path: Path) -> None:
    """Its ETag is sent when all of it is settled, also after a restart, and never before."""
    api.items = numbered(1, 2)

    def answer(request: Request) -> Reply:
        tag = f'"{len(api.items)}"'
        if request.headers.get("if-none-match") == tag:
            return Reply(status=304, headers={"ETag": tag})
        return Reply({"data": api.items}, headers={"ETag": tag})

    api.answer = answer
    with poller(api, tmp_path) as connector:
        one, _ = connector.fetch_transactions(5)
        connector.ack(one)
    with poller(api, tmp_path) as connector:
        assert drained(connector) == ["i2"]
        assert "if-none-match" not in api.requests[1].headers
    with poller(api, tmp_path) as connector:
        assert drained(connector) == []
        assert api.requests[-1].headers["if-none-match"] == '"2"'
        api.items += numbered(3)
        assert drained(connector) == ["i3"]


def test_one_bad_item_does_not_hold_up_its_page(api: PagedApi, tmp_path: Path) -> None:
    """Without an id, with half of a character, or too large: it is set aside with the reason."""
    raw = (
        b'{"data": [{"id": 1}, {"no": 2}, {"id": "\\ud800"}, {"id": 4, "x": NaN}, {"id": 5, "b": "'
    )
    api.answer = lambda _: Reply(raw=raw + b"x" * 200 + b'"}, 7, {"id": true}, {"id": 8}]}')
    with poller(api, tmp_path, max_message_bytes=100) as connector:
        assert drained(connector) == ["1", "8"]
        assert connector.malformed == 6
        assert drained(connector) == []
        reasons = [reason for _, _, reason, _ in connector.dead_letters()]
        assert len(reasons) == 6
        assert any("bytes" in reason for reason in reasons)


def test_what_failed_for_good_is_kept(api: PagedApi, tmp_path: Path) -> None:
    """With its reason and its content, and is not delivered again."""
    api.items = numbered(1)
    with poller(api, tmp_path) as connector:
        (only,) = connector.fetch_transactions(1)
        connector.nack(only, ValueError("no such customer"))
        assert drained(connector) == []
        ((identity, _, reason, item),) = connector.dead_letters()
        assert (identity, json.loads(item or "")) == ("i1", api.items[0])
        assert "no such customer" in reason


def test_credentials_are_sent_and_not_shown(api: PagedApi, tmp_path: Path) -> None:
    """A token, other headers, and the user of the URL; the trace of whoever fetches goes along."""
    secret = "hunter2"  # noqa: S105 - of nobody
    with poller(api, tmp_path, token=secret, headers={"X-Api-Key": f"k-{secret}"}) as connector:
        drained(connector)
        sent = api.requests[-1].headers
        assert (sent["authorization"], sent["x-api-key"]) == (f"Bearer {secret}", f"k-{secret}")
        assert secret not in repr(connector) + repr(vars(connector))
    url = f"poll+http://app:{secret}@127.0.0.1:{api.port}/items?items=data&interval=0&wait=0"
    with from_url(url, state=str(tmp_path / "polls.db")) as connector:
        drained(connector)
        assert api.requests[-1].headers["authorization"].startswith("Basic ")
        assert secret not in connector.name
    api.answer = lambda _: Reply(status=401)
    with (
        poller(api, tmp_path, token=secret) as connector,
        pytest.raises(ConfigurationError, match="does not let us in") as caught,
    ):
        connector.fetch_transactions(1)
    assert secret not in str(caught.value)
    assert redacted_text(str(caught.value)) == str(caught.value)  # the log says the same


def test_neither_links_nor_redirects_lead_elsewhere(api: PagedApi, tmp_path: Path) -> None:
    """The other host is not asked at all, so that it gets no token."""
    with serving(PagedApi()) as other:
        api.answer = lambda _: Reply(status=302, headers={"Location": other.url})
        with (
            poller(api, tmp_path, token=TOKEN) as connector,
            pytest.raises(ConfigurationError, match="redirects to another host"),
        ):
            connector.fetch_transactions(1)
        api.answer = lambda _: Reply({"data": numbered(1), "next": other.url})
        with poller(api, tmp_path, token=TOKEN, next_link="next", timeout=1.0) as connector:
            (seen,) = refused(connector)
            assert "another host" in seen
        assert other.requests == []
        api.answer = lambda request: (
            Reply({"data": numbered(2)})
            if request.path == "/moved"
            else Reply(status=308, headers={"Location": "/moved"})
        )
        with poller(api, tmp_path, token=TOKEN) as connector:
            assert drained(connector) == ["i2"]


def test_the_doctor_asks_for_a_page(api: PagedApi, tmp_path: Path) -> None:
    """And takes nothing, and not the cursor either."""
    api.items = numbered(1, 2)
    with poller(api, tmp_path) as connector:
        connector.open()
        with poller(api, tmp_path) as other:
            (seen,) = other.observe()
            assert "with 2 items" in seen.found
        assert len(drained(connector)) == 2
    with poller(api, tmp_path, items="dta") as other:
        (seen,) = other.observe()
        assert seen.is_grave
        assert "no list of items: 'dta' is not there" in seen.found


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"link_header": True, "page": "p", "page_size": 1}, "two ways"),
        ({"cursor": "c"}, "needs next_cursor="),
        ({"page": "p"}, "needs page_size="),
        ({"page_size": 3}, "belongs to page="),
        ({"since": "s"}, "belong together"),
        ({"since_start": "s"}, "belongs to since="),
        ({"token": "a\nb"}, "token is empty, or no text"),
        ({"token": ""}, "token is empty"),
        ({"headers": {"Host": "x"}}, "headers has a name"),
        ({"headers": {"authorization": "x"}, "token": "y"}, "two answers"),
        ({"format": "xml"}, "json or lines"),
        ({"again": "never"}, "last or first"),
        ({"interval": -1}, "interval must be"),
        ({"timeout": float("nan")}, "timeout must be"),
        ({"max_page_bytes": 0}, "max_page_bytes must be"),
        ({"consumer": ""}, "consumer is empty"),
        ({"ids": "id,"}, "an empty path"),
        ({"query": "?a=b"}, "query is the text"),
        ({"query": "a=b c"}, "percent-encode"),
        ({"ca": "/of-nobody.pem"}, "ca is for https"),
        ({"state": "postgresql://host/db"}, "kept in an SQLite file"),
        ({"state": "sqlite:///"}, "needs a file"),
        ({"state": ""}, "state is empty"),
    ],
)
def test_mistakes_are_told_before_anything_is_asked(options: dict[str, Any], message: str) -> None:
    """What is wrong, and what to write."""
    with pytest.raises(ConfigurationError, match=message):
        HttpPollConnector("http://127.0.0.1:1/items", **{"state": "polls.db", **options})


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("https://Host/a%20b?x=1&y=2", "https://host/a%20b?x=1&y=2"),
        ("poll+https://host", "https://host/"),
        ("poll+http://[::1]:80/x", "http://[::1]/x"),
        ("POLL+HTTP://u:p@host:81/x", "http://host:81/x"),
    ],
)
def test_the_address_that_is_asked(url: str, asked: str) -> None:
    """Without a user and a default port."""
    from ergon_framework.connector.http.options import address_of

    assert address_of(url, "").url.lower() == asked


def test_in_an_app_the_cursor_is_in_its_store(tmp_path: Path) -> None:
    """Unless the settings name another file; both are beside the settings."""
    file = tmp_path / "ergon.toml"
    url = 'url = "poll+http://127.0.0.1:1/items"\n'
    file.write_text(
        f'[store]\nurl = "sqlite:///work.db"\n[connectors.a]\n{url}'
        f'[connectors.b]\n{url}state = "b.db"\n[connectors.c]\ntype = "http-poll"\n'
        'url = "http://127.0.0.1:1/items?state=open"\ntoken = "env:TOKEN"\n'
    )
    settings = load_settings(file, {"TOKEN": TOKEN})
    check(file, {"TOKEN": TOKEN})
    made = {}
    for name, table in settings.connectors.items():
        factory = connector_factory(name, table, settings)
        factory.check()
        assert TOKEN not in repr(factory)
        assert str(tmp_path) not in repr(factory)
        made[name] = factory.make()
    assert isinstance(made["a"], HttpPollConnector)
    for name, place in (("a", "work.db"), ("b", "b.db"), ("c", "work.db")):
        assert not (tmp_path / place).exists() or name == "c"
        made[name].open()
        assert (tmp_path / place).exists()
        made[name].close()


def test_a_consumer_of_an_app_polls(
    api: PagedApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its URL alone."""
    monkeypatch.chdir(tmp_path)
    api.items = numbered(1, 2)
    app = App()
    came: list[str] = []
    address = api.url.replace("http", "poll+http")

    @app.consumer(f"{address}?items=data&ids=id&wait=0&interval=60")
    def book(order: dict[str, Any]) -> None:
        came.append(order["id"])

    app.run(burst=True)
    app.run(burst=True)
    assert came == ["i1", "i2"]
    with pytest.raises(WiringError, match="did you mean 'interval'"):
        app.consumer(f"{address}?intervall=3")
    app.close()


def test_a_closed_poller_leaves_no_thread(api: PagedApi, tmp_path: Path) -> None:
    """The thread that makes its requests ends at once, not after ten idle seconds."""
    api.items = numbered(1)
    before = set(threading.enumerate())
    with poller(api, tmp_path) as connector:
        assert drained(connector) == ["i1"]
    mine = [each for each in threading.enumerate() if each.name == "ergon-poll"]
    until(lambda: not {*mine} & {*threading.enumerate()} - before, "its end", 5)
