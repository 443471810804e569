"""A Redis server that does not let us in any more: who was in waits until it does again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from ergon_framework.errors import StoreUnavailableError
from ergon_framework.jobs.stores.redis import RedisJobStore
from ergon_framework.ports.jobstore import Search
from ergon_framework.storage.redis.client import RedisTimeouts
from ergon_framework.testing.suites.jobstore.under_test import new
from tests.jobs.redis.lost_responses import lose_responses
from tests.servers.redis import RedisServer
from tests.servers.tls import Door, Papers

pytestmark = pytest.mark.req("SCALE:jobs-redis", "SCALE:fleet-outage")
OURS = "right"
AT_ONCE = RedisTimeouts(reconnect_delay=0.0)
"""A server that was away is asked again at once."""


@pytest.fixture
def door(own_server: RedisServer, signed: Papers) -> Iterator[Door]:
    """TLS before the server."""
    with closing(Door(("127.0.0.1", own_server.port), signed)) as door:
        yield door


@pytest.fixture
def store(door: Door, signed: Papers) -> Iterator[RedisJobStore]:
    """A store behind it."""
    url = f"rediss://127.0.0.1:{door.port}/0?ssl_ca_certs={signed.ca}"
    with closing(RedisJobStore(url, timeouts=AT_ONCE)) as found:
        yield found


def hang_up(server: RedisServer) -> None:
    """End all connections but ours."""
    with server.connect() as client:
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


def refusal(store: RedisJobStore, words: str) -> StoreUnavailableError:
    """What is said to who was connected before."""
    with pytest.raises(StoreUnavailableError, match=words) as caught:
        store.count(Search())
    assert caught.value.details["is_lost"] is False
    return caught.value


def test_a_certificate_that_is_wrong_for_a_while(
    own_server: RedisServer, door: Door, store: RedisJobStore
) -> None:
    """It says what is wrong, and the same store is good again when that was fixed."""
    store.add([new("a")])
    door.show("elsewhere")
    hang_up(own_server)
    assert "as the certificate has it" in refusal(store, "another name").remedy
    with pytest.raises(StoreUnavailableError, match="another name"):
        store.transactions.client.connect()  # as a subscriber does
    door.show("server")
    assert store.count(Search()) == 1


@pytest.mark.parametrize("user", ["", f":{OURS}@"])
def test_a_password_that_was_changed(own_server: RedisServer, user: str) -> None:
    """The server wants another one, or one at all, and gives that up again."""
    with own_server.connect() as client:
        client.config_set("requirepass", OURS if user else "")
        url = own_server.url.replace("://", f"://{user}")
        with closing(RedisJobStore(url, timeouts=AT_ONCE)) as store:
            client.config_set("requirepass", "other")
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            assert "password" in refusal(store, "does not let this user in").remedy
            client.config_set("requirepass", OURS if user else "")
            assert store.count(Search()) == 0


def test_an_add_whose_answer_was_lost_stays_unknown(
    own_server: RedisServer, door: Door, store: RedisJobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who cannot look whether the jobs are there does not say that they are not."""

    def refuse() -> None:
        door.show("elsewhere")
        hang_up(own_server)

    lose_responses(monkeypatch, on_lost=refuse)
    with pytest.raises(StoreUnavailableError, match="not known") as caught:
        store.add([new("a")])
    assert caught.value.details["outcome"] == "unknown"
    door.show("server")
    assert store.count(Search()) == 1
