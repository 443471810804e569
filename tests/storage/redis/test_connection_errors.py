"""A Redis server that is left alone for a moment: everybody hears why."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from ergon_framework.errors import ConfigurationError, ErgonError, StoreUnavailableError
from ergon_framework.storage.redis.address import address_of
from ergon_framework.storage.redis.client import RedisClient, RedisTimeouts
from tests.servers.redis import RedisServer
from tests.servers.server import started

pytestmark = pytest.mark.req("SCALE:jobs-redis", "SCALE:url-errors")
RESTING = RedisTimeouts(reconnect_delay=3600.0)
"""A server that was away is not asked again in a test."""


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A server that may be frozen and killed."""
    with started(RedisServer) as server:
        yield server


def refused(link: RedisClient) -> ErgonError:
    """What the next one hears who asks."""
    with pytest.raises(StoreUnavailableError, match=", a moment ago") as caught:
        link.call("PING")
    assert "outcome" not in caught.value.details  # nothing was asked
    return caught.value


def test_why_no_connection_came_about_is_told_to_those_who_ask_next(server: RedisServer) -> None:
    """Who was told first may be the notifier, whose errors nobody reads."""
    with closing(RedisClient(address_of(server.url), timeouts=RESTING)) as link:
        server.kill()
        with pytest.raises(StoreUnavailableError, match=r"cannot be reached: .*refused") as caught:
            link.connect()
        told = refused(link)
    assert told.message == f"{caught.value.message}, a moment ago"
    assert told.remedy == caught.value.remedy


def test_that_no_answer_came_is_told_to_those_who_ask_next(server: RedisServer) -> None:
    """But not that nobody knows whether theirs was carried out."""
    timeouts = replace(RESTING, response=0.2)
    with closing(RedisClient(address_of(server.url), timeouts=timeouts)) as link:
        link.call("PING")
        server.freeze()
        with pytest.raises(StoreUnavailableError, match="is not known"):
            link.call("PING")
        told = refused(link)
        server.thaw()
    assert told.message.startswith(f"{server.url} did not answer: Timeout")
    assert "not known" not in told.message


def test_what_is_wrong_with_the_url_is_told_to_those_who_ask_next(server: RedisServer) -> None:
    """Also when it is not the server that is to blame."""
    address = address_of(server.url.replace("redis://", "rediss://"))
    with closing(RedisClient(address, timeouts=RESTING)) as link:
        with pytest.raises(ConfigurationError) as caught:
            link.connect()
        told = refused(link)
    assert told.message == f"{caught.value.message}, a moment ago"
    assert told.remedy == caught.value.remedy
