"""Redis behind TLS, by the URL alone.

The server that the tests compile has no TLS: a door that has it stands before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.errors import ConfigurationError, StoreUnavailableError
from ergon_framework.jobs.stores.redis import RedisJobStore
from ergon_framework.ports.jobstore import Topic
from ergon_framework.storage.redis.address import address_of
from ergon_framework.storage.redis.client import RedisClient, RedisTimeouts
from tests.servers.by_url import jobs_by_commands, refused
from tests.servers.redis import RedisServer
from tests.servers.server import free_port
from tests.servers.tls import Opened, Papers, doors, locked

pytestmark = pytest.mark.req("SCALE:url-errors", "SCALE:jobs-redis")
PATIENCE = 30.0


@pytest.fixture
def door(durable_redis: RedisServer, signed: Papers) -> Iterator[Opened]:
    """Opens doors to the server; nothing is left there afterwards."""
    with doors(("127.0.0.1", durable_redis.port), signed) as opened:
        yield opened
        with durable_redis.connect() as client:
            client.flushdb()


def url(port: int, **options: object) -> str:
    """Of a store there."""
    given = "&".join(f"{name}={value}" for name, value in options.items())
    return f"rediss://127.0.0.1:{port}/0?{given}"


def ping(place: str, timeouts: RedisTimeouts | None = None) -> object:
    """The answer of the server at a URL."""
    with closing(RedisClient(address_of(place), timeouts=timeouts or RedisTimeouts())) as link:
        return link.call("PING")


def own(papers: Papers) -> dict[str, Any]:
    """The options that name a client's certificate."""
    return {"ssl_certfile": papers.certificate("client"), "ssl_keyfile": papers.key("client")}


def test_jobs_over_tls(
    door: Opened, signed: Papers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands take the URL as it is: jobs are enqueued and listed, the doctor looks at it."""
    place = url(door().port, ssl_ca_certs=signed.ca)
    jobs_by_commands(place, "redis", tmp_path, capsys)


def test_bells_ring_over_tls(door: Opened, signed: Papers) -> None:
    """What one process announces, another hears."""
    place = url(door().port, ssl_ca_certs=signed.ca)
    with closing(RedisJobStore(place)) as one, closing(RedisJobStore(place)) as two:
        subscription = two.subscribe(Topic.WORK)
        one.announce()
        assert subscription.wait(PATIENCE)


def test_a_certificate_of_ours(door: Opened, signed: Papers, strange: Papers) -> None:
    """A server that wants one gets the one of the URL; without, or with another, it says so."""
    port = door(wants_client=True).port
    assert ping(url(port, ssl_ca_certs=signed.ca, **own(signed))) == b"PONG"
    for wrong in ({}, own(strange)):
        with refused("wants a certificate of ours", "ssl_certfile"):
            ping(url(port, ssl_ca_certs=signed.ca, **wrong))


def test_an_authority_that_nobody_knows(door: Opened, strange: Papers) -> None:
    """Whom this machine does not trust is not talked to; who wants to can say so."""
    port = door().port
    for options in ({}, {"ssl_ca_certs": strange.ca}):
        with refused("nobody who is trusted", "ssl_ca_certs"):
            ping(url(port, **options))
    assert ping(url(port, ssl_cert_reqs="none")) == b"PONG"


def test_a_certificate_of_another_host(door: Opened, signed: Papers) -> None:
    """The name is checked, unless the URL says that it need not be."""
    port = door(name="elsewhere").port
    with refused("another name"):
        ping(url(port, ssl_ca_certs=signed.ca))
    assert ping(url(port, ssl_ca_certs=signed.ca, ssl_check_hostname="false")) == b"PONG"


def test_a_server_without_tls(durable_redis: RedisServer, signed: Papers) -> None:
    """It is told apart from one that is away, and it need not say anything to the handshake."""
    timeouts = RedisTimeouts(response=10_000.0, handshake=0.5)
    with refused("does not speak it there", "redis://"):
        ping(url(durable_redis.port, ssl_ca_certs=signed.ca), timeouts)
    with pytest.raises(StoreUnavailableError, match="cannot be reached"):
        ping(url(free_port(), ssl_ca_certs=signed.ca), timeouts)


def test_tls_where_the_url_has_none(door: Opened) -> None:
    """The other way round it is told, too."""
    with refused("speaks TLS there", "rediss://"):
        ping(url(door().port).replace("rediss", "redis").rstrip("?"))


def test_a_file_that_is_not_there(door: Opened, tmp_path: Path) -> None:
    """The option that names it is told."""
    with refused("ssl_ca_certs"):
        ping(url(door().port, ssl_ca_certs=tmp_path / "missing"))


def test_a_key_with_a_passphrase(door: Opened, signed: Papers, tmp_path: Path) -> None:
    """The driver reads the key by itself; nobody is asked on the terminal then, either."""
    files = {"ssl_certfile": signed.certificate("client"), "ssl_keyfile": locked(signed, tmp_path)}
    with pytest.raises(ConfigurationError, match=r"ssl_keyfile.*has a passphrase") as caught:
        ping(url(door(wants_client=True).port, ssl_ca_certs=signed.ca, **files))
    assert "passphrase" in str(caught.value.__cause__)  # which is what the driver said
    assert "openssl pkey" in (caught.value.remedy or "")


@pytest.mark.parametrize(
    "options", ["ssl_certfile=a", "ssl_keyfile=a", "ssl_cert_reqs=maybe", "ssl_check_hostname=2"]
)
def test_options_that_make_no_sense(options: str) -> None:
    """They are refused before anything is opened."""
    with pytest.raises(ConfigurationError) as caught:
        address_of(f"rediss://host?{options}")
    assert caught.value.remedy


def test_everything_is_checked_unless_the_url_says_otherwise() -> None:
    """Older drivers would not look at the name."""
    assert address_of("rediss://host").options["ssl_check_hostname"] is True
    assert address_of("rediss://host").options["ssl_cert_reqs"] == "required"
    assert address_of("rediss://host?ssl_cert_reqs=none").options["ssl_check_hostname"] is False
    assert "ssl_check_hostname" not in address_of("redis://host").options


def test_an_answer_is_waited_for_as_without_tls(door: Opened, signed: Papers) -> None:
    """A handshake has less time than an answer; a line that came about has the usual."""
    address = address_of(url(door().port, ssl_ca_certs=signed.ca))
    with closing(RedisClient(address, timeouts=RedisTimeouts(handshake=1.0))) as link:
        connection = link.connect()
        connection.send_command("BLPOP", "nobody-pushes-here", "1.2")
        assert connection.read_response() is None
        connection.disconnect()
