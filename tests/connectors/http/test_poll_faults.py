"""What goes wrong around a poller: kills, servers that are away or hostile, and a second poller."""

from __future__ import annotations

import asyncio
import gzip
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.connector.http import HttpPollConnector
from ergon_framework.errors import (
    ChannelLostError,
    ConfigurationError,
    ConnectorError,
    StoreSchemaError,
    StoreUnavailableError,
)
from ergon_framework.ports.notice import Notice
from ergon_framework.telemetry.notices import add_listener, remove_listener
from ergon_framework.testing.clock import VirtualClock
from tests import fork_server
from tests.connectors.http import poller_child
from tests.connectors.http.paged_api import PagedApi, Reply, serving
from tests.waiting import until

pytestmark = pytest.mark.slow
PACKED = {"Content-Encoding": "gzip"}


@pytest.fixture
def api() -> Iterator[PagedApi]:
    """A server with an empty list."""
    with serving(PagedApi()) as found:
        yield found


def poller(url: str, folder: Path, **options: Any) -> HttpPollConnector:
    """A connector that asks again at once, and does not wait."""
    given: dict[str, Any] = {
        "items": "data",
        "ids": "id",
        "offset": "offset",
        "interval": 0.0,
        "wait": 0.0,
        **options,
    }
    return HttpPollConnector(url, state=str(folder / "polls.db"), **given)


def drained(connector: HttpPollConnector) -> list[str]:
    """The ids of what there is now; all of it is done."""
    ids: list[str] = []
    while batch := connector.fetch_transactions(100):
        for each in batch:
            ids.append(each.transaction_id)
            connector.ack(each)
    return ids


@contextmanager
def told(name: str) -> Iterator[list[Notice]]:
    """The notices of a name that come within the block."""
    found: list[Notice] = []

    def hear(notice: Notice) -> None:
        if notice.name == name:
            found.append(notice)

    add_listener(hear)
    try:
        yield found
    finally:
        remove_listener(hear)


def fetching(connector: HttpPollConnector) -> tuple[threading.Thread, list[Any]]:
    """A fetch in a thread, and what it brings."""
    brought: list[Any] = []

    def fetch() -> None:
        try:
            brought.extend(connector.fetch_transactions(100))
        except Exception as error:
            brought.append(error)

    thread = threading.Thread(target=fetch, daemon=True)
    thread.start()
    return thread, brought


def test_kills_lose_nothing(api: PagedApi, tmp_path: Path) -> None:
    """Killed at other places, between fetch, outcome and cursor, and then left to end.

    Each kill may repeat the one item that was at work, and no other.
    """
    api.items = [{"id": f"i{n}"} for n in range(50)]
    diary = tmp_path / "diary"
    command = [sys.executable, poller_child.__file__, api.url, str(tmp_path / "s.db"), str(diary)]
    for lines in (1, 3, 7, 12):
        with fork_server.start(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            for _ in range(lines):
                assert child.stdout.readline() == "x\n"
            child.send_signal(signal.SIGKILL)
    with fork_server.start(command, stdout=subprocess.DEVNULL) as child:
        wanted = {each["id"] for each in api.items}
        until(lambda: set(diary.read_text().split()) == wanted, "all of the work")
        api.items += [{"id": "last"}]
        until(lambda: diary.read_text().split()[-1] == "last", "what came later")
        child.kill()
    counts = Counter(diary.read_text().split())
    assert sum(count - 1 for count in counts.values()) <= 4


def test_a_server_that_is_away_at_the_start_is_waited_for(tmp_path: Path) -> None:
    """And seen in the health; what comes then is fetched."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    with (
        told("broker.away") as away,
        poller(f"http://127.0.0.1:{port}/items", tmp_path) as connector,
        ExitStack() as servers,
    ):
        thread, brought = fetching(connector)
        until(lambda: len(away) >= 2, "two attempts")
        assert not connector.health()
        api = PagedApi()
        api.items = [{"id": "a"}]
        servers.enter_context(serving(api, port))
        thread.join(60)
        assert [each.transaction_id for each in brought] == ["a"]
        assert connector.health()


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_says_when_to_come_again(api: PagedApi, tmp_path: Path, status: int) -> None:
    """Its Retry-After is kept to, at most for an hour."""
    api.answer = lambda _: Reply(status=status, headers={"Retry-After": "1"})
    with told("broker.away") as away, poller(api.url, tmp_path) as connector:
        thread, brought = fetching(connector)
        until(lambda: len(away) == 2, "a second attempt")
        api.answer = lambda _: Reply({"data": [{"id": "a"}]})
        thread.join(60)
        assert [each.transaction_id for each in brought] == ["a"]
    assert away[1].at - away[0].at >= 1.0
    assert away[0]["delay"] >= 0.9
    api.answer = lambda _: Reply(status=status, headers={"Retry-After": "1000000"})
    with told("broker.away") as away, poller(api.url, tmp_path, consumer="c") as connector:
        thread, _ = fetching(connector)
        until(lambda: away, "an attempt")
        connector.stop_waiting()
        thread.join(60)
        assert away[0]["delay"] == pytest.approx(3600, abs=60)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(raw=b"<html>not found</html>"),
        Reply(raw=b""),
        Reply(raw=b"[" * 100_000),
        Reply({"data": "text"}),
        Reply({"error": "later"}),
        Reply(raw=b'{"data": [' + b'"x",' * 300_000 + b'"x"]}'),
        Reply(status=500),
        Reply(status=304),
        Reply(raw=b"cut", headers={"Content-Length": "10"}),
        Reply(raw=gzip.compress(b"[" + b" " * 5_000_000 + b"]"), headers=PACKED),
        Reply(raw=gzip.compress(b'{"data": []}')[:-5], headers=PACKED),
        Reply(raw=b"plain", headers=PACKED),
        Reply({"data": []}, headers={"Content-Encoding": "br"}),
    ],
    ids=[
        *("html", "empty", "deep", "text", "error", "huge", "500", "304", "short"),
        *("bomb", "half a gzip", "no gzip", "other encoding"),
    ],
)
def test_an_answer_that_is_no_page_moves_nothing(
    api: PagedApi, tmp_path: Path, reply: Reply
) -> None:
    """The page is asked for again, later, and health says so meanwhile."""
    api.items = [{"id": "a"}, {"id": "b"}, {"id": "c"}, {"id": "d"}]
    options: dict[str, Any] = {"max_page_bytes": 100_000, "timeout": 2.0}
    with told("broker.away") as away, poller(api.url, tmp_path, **options) as connector:
        first = connector.fetch_transactions(3)
        api.answer = lambda _: reply
        thread, brought = fetching(connector)
        until(lambda: away, "a refusal")
        assert not connector.health()
        for each in first:
            connector.ack(each)
        api.answer = api.by_offset
        thread.join(60)
        assert [each.transaction_id for each in brought] == ["d"]


def test_a_slow_server_is_given_up(tmp_path: Path) -> None:
    """One that sends a byte now and then holds no request longer than its time."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        halted = threading.Event()

        def dribble() -> None:
            connection, _ = door.accept()
            with connection:
                connection.recv(1000)
                for byte in b"HTTP/1.1 200 OK\r\nx: " + b"y" * 10_000:
                    if halted.wait(0.02):
                        return
                    try:
                        connection.send(bytes([byte]))
                    except OSError:
                        return

        server = threading.Thread(target=dribble, daemon=True)
        server.start()
        url = f"http://127.0.0.1:{door.getsockname()[1]}/items"
        with told("broker.away") as away, poller(url, tmp_path, timeout=0.5) as connector:
            thread, _ = fetching(connector)
            until(lambda: away, "the end of its time")
            assert "within 0.5 s" in away[0]["reason"]
            connector.stop_waiting()
            thread.join(60)
        halted.set()
        server.join(60)


def test_links_without_an_end(api: PagedApi, tmp_path: Path) -> None:
    """Pages that lead in a circle, or on and on with nothing new, do not keep a fetch for ever."""
    pages = {"a": "b", "b": "c", "c": "a"}
    api.answer = lambda request: Reply(
        {
            "data": [{"id": request.query.get("at", "a")}],
            "next": pages[request.query.get("at", "a")],
        }
    )
    way: dict[str, Any] = {"cursor": "at", "next_cursor": "next", "offset": None}
    with poller(api.url, tmp_path, **way) as connector:
        assert drained(connector) == ["a", "b", "c"]
        assert drained(connector) == []
        assert len(api.requests) < 20
    api.answer = lambda request: Reply({"data": [], "next": len(api.requests)})
    with poller(api.url, tmp_path, consumer="other", interval=3600.0, **way) as connector:
        before = len(api.requests)
        assert connector.fetch_transactions(1) == []
        assert connector.fetch_transactions(1) == []
        assert len(api.requests) - before == 1000


def test_a_compressed_page_is_read(api: PagedApi, tmp_path: Path) -> None:
    """It is asked for, since pages compress well."""
    api.answer = lambda _: Reply(raw=gzip.compress(b'{"data": [{"id": "a"}]}'), headers=PACKED)
    with poller(api.url, tmp_path, offset=None) as connector:
        assert drained(connector) == ["a"]
        assert api.requests[0].headers["accept-encoding"] == "gzip"


def test_a_cut_connection_repeats_nothing(api: PagedApi, tmp_path: Path) -> None:
    """What is in hand stays in hand: the API keeps no deliveries."""
    api.items = [{"id": "a"}]
    with poller(api.url, tmp_path) as connector:
        (held,) = connector.fetch_transactions(5)
        api.items += [{"id": "b"}]
        assert drained(connector) == ["b"]
        connector.ack(held)
    with poller(api.url, tmp_path) as connector:
        assert drained(connector) == []


def test_a_poller_that_is_frozen_keeps_its_cursor(api: PagedApi, tmp_path: Path) -> None:
    """Nobody takes over from a process that may go on; when it is killed, somebody does."""
    api.items = [{"id": f"i{n}"} for n in range(9)]
    diary, state = tmp_path / "diary", tmp_path / "polls.db"
    command = [sys.executable, poller_child.__file__, api.url, str(state), str(diary)]
    with (
        fork_server.start(command, stdout=subprocess.PIPE, text=True) as child,
        poller(api.url, tmp_path) as connector,
    ):
        assert child.stdout is not None
        assert child.stdout.readline() == "x\n"
        child.send_signal(signal.SIGSTOP)
        with told("broker.away") as away:
            thread, brought = fetching(connector)
            until(lambda: len(away) >= 2, "two attempts")
        assert thread.is_alive()
        child.send_signal(signal.SIGKILL)
        child.wait()
        thread.join(60)
        for each in brought:
            connector.ack(each)
        came = {each.transaction_id for each in brought} | set(drained(connector))
    assert came | set(diary.read_text().split()) == {each["id"] for each in api.items}


def test_a_forked_child_settles_nothing_of_its_parent(api: PagedApi, tmp_path: Path) -> None:
    """And takes no part in what its parent goes on with."""
    api.items = [{"id": "a"}, {"id": "b"}]
    with poller(api.url, tmp_path) as connector:
        held = connector.fetch_transactions(1)
        child = os.fork()
        if child == 0:
            try:
                connector.ack(held[0])
            except ChannelLostError:
                os._exit(7)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        connector.ack(held[0])
        assert drained(connector) == ["b"]


def test_a_parked_item_comes_again_from_memory(api: PagedApi, tmp_path: Path) -> None:
    """While everything is parked, nothing more is read than the bound allows."""
    api.items = [{"id": f"i{n}"} for n in range(9)]
    with poller(api.url, tmp_path, max_in_flight=2) as connector:
        for each in connector.fetch_transactions(5):
            connector.release_after(each, 0.2)
        again = connector.fetch_transactions(5)
        assert [each.transaction_id for each in again] == ["i0", "i1"]
        assert len(api.requests) == 1
        for each in again:
            connector.ack(each)
        assert drained(connector) == [f"i{n}" for n in range(2, 9)]


def test_a_fetch_that_waits_for_room_hears_of_an_item_that_is_parked(
    api: PagedApi, tmp_path: Path
) -> None:
    """Nothing else may ever be settled: its time is what the fetch waits for from then on."""
    api.items = [{"id": "a"}]
    with poller(api.url, tmp_path, max_in_flight=1) as connector:
        (first,) = connector.fetch_transactions(1)
        with VirtualClock(time.monotonic()) as clock:

            def park() -> None:
                clock.sleep(1)
                connector.release_after(first, 5)

            clock.spawn("park", park)
            (again,) = connector.fetch_transactions(1)
        assert again.transaction_id == "a"


def test_a_second_poller_stands_by(api: PagedApi, tmp_path: Path) -> None:
    """It reads when the first has ended, and is unhealthy until then."""
    api.items = [{"id": "a"}, {"id": "b"}]
    with poller(api.url, tmp_path) as first, poller(api.url, tmp_path) as second:
        one, _ = first.fetch_transactions(5)
        with told("broker.away") as away:
            thread, brought = fetching(second)
            until(lambda: away, "an attempt")
            assert "polls as ergon@" in away[0]["reason"]
        assert not second.health()
        first.ack(one)
        first.close()
        thread.join(60)
        assert [each.transaction_id for each in brought] == ["b"]


def test_a_poller_whose_lock_was_deleted_settles_nothing(api: PagedApi, tmp_path: Path) -> None:
    """Somebody else has its items by then."""
    api.items = [{"id": "a"}]
    with poller(api.url, tmp_path) as first:
        (held,) = first.fetch_transactions(1)
        for file in tmp_path.glob("*.lock"):
            file.unlink()
        with poller(api.url, tmp_path) as second:
            (again,) = second.fetch_transactions(1)
            with pytest.raises(ChannelLostError, match="another process"):
                first.ack(held)
            second.ack(again)


@pytest.mark.parametrize("verb", ["ack", "nack"])
def test_lost_tables_are_named(api: PagedApi, tmp_path: Path, verb: str) -> None:
    """Neither a settlement nor a fetch raises an error of SQLite, and the health says so."""
    api.items = [{"id": "a"}, {"id": "b"}]
    with poller(api.url, tmp_path) as connector:
        first, second = connector.fetch_transactions(2)
        connector.ack(first)
        with closing(sqlite3.connect(tmp_path / "polls.db")) as other:
            other.execute("DROP TABLE ergon_poll_marks")
        given = (second,) if verb == "ack" else (second, ValueError("x"))
        with pytest.raises(StoreSchemaError, match="lost the table ergon_poll_marks") as caught:
            getattr(connector, verb)(*given)
        assert "backup" in caught.value.remedy
        assert not connector.health()


@pytest.mark.req("X19")
@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_a_lost_cursor_begins_anew(api: PagedApi, tmp_path: Path, how: str) -> None:
    """By itself, and each item is delivered once to whoever reads on, also those in hand."""
    api.items = [{"id": f"i{n}"} for n in range(5)]
    file = tmp_path / "polls.db"
    with poller(api.url, tmp_path, max_in_flight=3) as connector:
        first, parked, later = connector.fetch_transactions(3)
        connector.ack(first)
        connector.release_after(parked, 3600)
        if how == "deleted":
            with closing(sqlite3.connect(file)) as other:
                other.execute("DELETE FROM ergon_poll_cursors")
                other.commit()
        else:
            for each in (file, *(tmp_path.glob("polls.db-[sw]*"))):
                each.unlink()
            (tmp_path / "new").mkdir()
            with poller(api.url, tmp_path / "new", consumer="b") as new:
                new.open()
            (tmp_path / "new" / "polls.db").rename(file)
            with pytest.raises(StoreUnavailableError, match="replaced while it was open"):
                connector.ack(later)
        with pytest.raises(ChannelLostError, match=r"is not in .*polls.db any more"):
            connector.ack(later)
        assert not connector.health()
        again = drained(connector)
        connector.release(later)
        assert again + drained(connector) == [f"i{n}" for n in range(how == "deleted", 5)]
        assert connector.health()


def test_a_page_that_is_gone(api: PagedApi, tmp_path: Path) -> None:
    """With since, reading begins at the first page; otherwise nobody can know where to go on."""
    api.items = [{"id": f"i{n}", "at": f"2026-01-01T00:00:{n:02}Z"} for n in range(5)]
    api.answer = api.by_since
    options: dict[str, Any] = {"since": "since", "since_field": "at", "offset": None}
    with poller(api.url, tmp_path, link_header=True, **options) as connector:
        first = connector.fetch_transactions(3)
        api.answer = lambda request: (
            Reply(status=410) if "from" in request.query else api.by_since(request)
        )
        assert connector.fetch_transactions(3) == []
        for each in first:
            connector.ack(each)
        api.answer = api.by_since
        came: list[str] = []

        def is_there() -> bool:
            came.extend(drained(connector))
            return len(came) >= 2

        until(is_there, "the others")
        assert came == ["i3", "i4"]
    with poller(api.url, tmp_path, consumer="other") as connector:
        api.answer = api.by_offset
        for each in connector.fetch_transactions(3):
            connector.ack(each)
        api.answer = lambda _: Reply(status=410)
        with pytest.raises(ConfigurationError, match="does not know the page any more"):
            connector.fetch_transactions(3)


def test_closing_cuts_a_request_off(tmp_path: Path) -> None:
    """However long its server would take."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        connector = poller(f"http://127.0.0.1:{door.getsockname()[1]}/items", tmp_path)
        thread, brought = fetching(connector)
        connection, _ = door.accept()
        began = time.monotonic()
        with connection:
            connector.close()
            thread.join(60)
        assert time.monotonic() - began < 20
        assert isinstance(brought[0], ConnectorError)
        assert "closed" in str(brought[0])


def test_a_stop_does_not_wait_for_an_answer(api: PagedApi, tmp_path: Path) -> None:
    """And what the request brings is for the next fetch."""
    api.items = [{"id": "a"}]
    with poller(api.url, tmp_path) as connector:
        with api.lock:
            thread, brought = fetching(connector)
            until(lambda: connector.health() and thread.is_alive())
            threading.Event().wait(0.2)  # the request is on its way, most likely
            connector.stop_waiting()
            thread.join(60)
            assert brought == []
        assert drained(connector) == ["a"]
        assert len(api.requests) <= 3


def test_a_bound_in_bytes_holds_a_fetch_up(api: PagedApi, tmp_path: Path) -> None:
    """Until something is settled."""
    api.items = [{"id": f"i{n}", "text": "x" * 1000} for n in range(9)]
    with poller(api.url, tmp_path, max_in_flight_bytes=2000) as connector:
        held = connector.fetch_transactions(100)
        while len(held) < 2:
            held += connector.fetch_transactions(100)
        thread, brought = fetching(connector)
        thread.join(0.3)
        assert thread.is_alive()
        for each in held:
            connector.ack(each)
        thread.join(60)
        assert brought


def test_an_event_loop_goes_on(api: PagedApi, tmp_path: Path) -> None:
    """A fetch that is cancelled gives its items back."""
    api.items = [{"id": "a"}]

    async def run() -> list[str]:
        connector = poller(api.url, tmp_path)
        with api.lock:
            task = asyncio.ensure_future(connector.fetch_transactions_async(1))
            await asyncio.to_thread(api.asked.wait, 60)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        came = await connector.fetch_transactions_async(1)
        while not came:
            came = await connector.fetch_transactions_async(1)
        await connector.ack_async(came[0])
        await connector.aclose()
        return [each.transaction_id for each in came]

    assert asyncio.run(run()) == ["a"]
