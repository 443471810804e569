"""A link that one thread closes while another one uses it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
import redis

from ergon_framework.errors import StoreUnavailableError
from ergon_framework.storage.redis.address import address_of
from ergon_framework.storage.redis.client import PlainConnection, RedisClient, RedisScript
from tests.jobs.real_worker import wait_until

pytestmark = pytest.mark.req("SCALE:jobs-redis", "SCALE:url-errors")
WAIT = 30.0


@pytest.fixture
def link(redis_url: str) -> Iterator[RedisClient]:
    """A link with an idle connection, to a server that knows our script."""
    with closing(RedisClient(address_of(redis_url))) as opened:
        opened.run(PING, b"", [], is_repeatable=True)
        yield opened


@pytest.fixture
def server(redis_url: str) -> Iterator[Any]:
    """The same server, seen by somebody else."""
    with redis.Redis.from_url(redis_url) as client:
        yield client


def close_elsewhere(link: RedisClient) -> None:
    """Close it in another thread, and wait for that."""
    thread = threading.Thread(target=link.close, daemon=True)
    thread.start()
    thread.join(WAIT)
    assert not thread.is_alive()


PING = RedisScript('return "PONG"', keys=0, names={})


def asked(link: RedisClient, before: Callable[[Any], None], after: Callable[[Any], None]) -> Any:
    """Ask the server, once; things happen before and after the question is on its way."""
    with pytest.MonkeyPatch.context() as patch:
        send: Any = PlainConnection.send_packed_command

        def between(connection: Any, command: Any) -> None:
            patch.undo()  # what comes next may send something of its own
            before(connection)
            send(connection, command)
            after(connection)

        patch.setattr(PlainConnection, "send_packed_command", between)
        return link.run(PING, b"", [], is_repeatable=False)


def nothing(_connection: Any) -> None:
    """Nothing happens."""


def test_who_waits_for_an_answer_hears_that_it_is_closed(link: RedisClient, server: Any) -> None:
    """A question that may be repeated is not, for it can never be answered."""
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(link.call, "BLPOP", "nobody-pushes-here", 0)
        wait_until(lambda: server.info("clients")["blocked_clients"], "the question")
        link.close()
        with pytest.raises(StoreUnavailableError, match=r"is closed \(open it again\)"):
            waiting.result(WAIT)


def test_what_was_asked_may_have_been_done(link: RedisClient) -> None:
    """It was closed after the question and before the answer; whatever the driver says then."""
    with pytest.raises(StoreUnavailableError, match="is closed, and whether") as told:
        asked(link, nothing, lambda _connection: close_elsewhere(link))
    assert str(told.value.remedy).startswith("open it again; ")
    assert told.value.details["outcome"] == "unknown"


def test_closed_while_a_connection_is_looked_for(
    link: RedisClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was asked, so nothing is in doubt."""

    def stumble(*_args: Any) -> Any:
        close_elsewhere(link)
        raise ValueError("file descriptor cannot be a negative integer (-1)")

    monkeypatch.setattr(PlainConnection, "can_read", stumble)
    with pytest.raises(StoreUnavailableError, match=r"is closed \(open it again\)") as told:
        link.call("PING")
    assert "outcome" not in told.value.details


def test_nothing_is_left_open(link: RedisClient, server: Any) -> None:
    """The driver connects anew for what it is to send, and that connection goes as well."""
    name = "closed-before-it-was-sent"

    def close(_connection: Any) -> None:
        close_elsewhere(link)

    def mark(connection: Any) -> None:
        assert connection.read_response() == b"PONG"
        connection.send_command("CLIENT", "SETNAME", name)

    assert asked(link, close, mark) == b"OK"
    wait_until(lambda: all(each["name"] != name for each in server.client_list()), "the end")
    with pytest.raises(StoreUnavailableError, match="is closed"):
        link.call("PING")


def test_a_mistake_of_ours_stays_one(link: RedisClient) -> None:
    """Only the errors of a closed link are told as that; and the link is of use afterwards."""

    def err(_connection: Any) -> None:
        raise ValueError("a mistake")

    with pytest.raises(ValueError, match="a mistake"):
        asked(link, err, nothing)
    assert link.call("PING") == b"PONG"
