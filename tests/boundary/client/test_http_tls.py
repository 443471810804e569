from __future__ import annotations

import datetime as dt
import ssl
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.boundary.certs import issue, make_ca
from ergon_framework.boundary.client.producer import Producer
from ergon_framework.boundary.http.client import HttpTransport
from ergon_framework.boundary.http.endpoint import Endpoint
from ergon_framework.boundary.http.tls import Certificates, server_context
from ergon_framework.errors import BoundaryError, ConfigurationError, NotPermittedError
from tests.boundary.client.raw_server import Colour, Peer, echo, once_gone, reach, serving
from tests.boundary.client.scripted import ENVELOPE, FACT

BOTH = pytest.mark.parametrize("colour", ["threads", "tasks"])
pytestmark = pytest.mark.req("BOUNDARY:security")
METHOD = "bsfg.v1.Boundary/AppendFact"


class Pki:
    """An authority, a node's certificate and a client's."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.ca = make_ca(folder)[0]

    def issued(self, zone: str, **options: Any) -> tuple[Path, Path]:
        return issue(self.folder, zone, force=True, **options)

    def server(self, zone: str = "plant-a", **options: Any) -> Any:
        return server_context(*self.issued(zone, **options), self.ca)

    def client(self, zone: str = "enterprise", **options: Any) -> Any:
        return Certificates(*self.issued(zone, **options), self.ca).client


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    """One authority for all tests: keys take a moment to make."""
    return Pki(tmp_path_factory.mktemp("pki"))


def call(transport: Any) -> Any:
    """One call."""
    return transport.call(METHOD, b"{}")


def refused(colour: Colour, server: Any, **options: Any) -> BoundaryError:
    """The error of a call that cannot be trusted."""
    with pytest.raises(NotPermittedError) as caught:
        reach(colour, server, call, **options)
    assert caught.value.code == "unauthenticated"
    assert not caught.value.is_retryable
    return caught.value


@BOTH
def test_both_sides_trusted(colour: Colour, pki: Pki) -> None:
    """A node is reached by its host's name, or as the zone that is expected."""
    with serving(echo, tls=pki.server()) as server:
        assert reach(colour, server, call, call, tls=pki.client()) == [b"{}"] * 2
        assert len(server.peers) == 1
        assert reach(colour, server, call, tls=pki.client(), expected_zone="plant-a") == [b"{}"]
    elsewhere = pki.server(hosts=["elsewhere.example"])
    with serving(echo, tls=elsewhere) as server:
        assert reach(colour, server, call, tls=pki.client(), expected_zone="plant-a") == [b"{}"]


@BOTH
def test_stale_connection(colour: Colour, pki: Pki) -> None:
    """A kept connection that the node has closed is noticed, and nothing is sent over it."""

    def dying(peer: Peer) -> None:
        peer.take()
        peer.answer(b"1")

    with serving(dying, echo, tls=pki.server()) as server:
        acts = (call, once_gone(server, call), call)
        assert reach(colour, server, *acts, tls=pki.client()) == [b"1", b"{}", b"{}"]
        assert [len(peer.requests) for peer in server.peers] == [1, 2]


@BOTH
def test_wrong_zone(colour: Colour, pki: Pki) -> None:
    """A node of another zone is not spoken to, though its certificate is good."""
    with serving(echo, tls=pki.server("plant-b")) as server:
        error = refused(colour, server, tls=pki.client(), expected_zone="plant-a")
        assert server.requests == []
    assert error.reason == "zone_mismatch"


@BOTH
@pytest.mark.parametrize("flaw", ["host", "expired", "future", "authority"])
def test_node_that_is_not_trusted(colour: Colour, flaw: str, pki: Pki, tmp_path: Path) -> None:
    """A wrong host, a wrong time or a foreign authority ends before anything is sent."""
    now = dt.datetime.now(dt.UTC)
    day = dt.timedelta(days=1)
    flaws: dict[str, dict[str, Any]] = {
        "host": {"hosts": ["elsewhere.example"]},
        "expired": {"not_before": now - 2 * day, "not_after": now - day},
        "future": {"not_before": now + day, "not_after": now + 2 * day},
        "authority": {},
    }
    tls = Pki(tmp_path / "other").server() if flaw == "authority" else pki.server(**flaws[flaw])
    with serving(echo, tls=tls) as server:
        error = refused(colour, server, tls=pki.client())
        assert server.requests == []
    assert error.reason == "tls"


@BOTH
def test_client_that_is_not_trusted(colour: Colour, pki: Pki, tmp_path: Path) -> None:
    """A node that does not know our authority turns us away, and that is no network trouble."""
    stranger = Pki(tmp_path / "other")
    cert, key = stranger.issued("enterprise")

    def client() -> Any:
        return Certificates(cert, key, pki.ca).client()

    with serving(echo, tls=pki.server()) as server:
        error = refused(colour, server, tls=client)
    assert error.reason == "tls"
    assert "does not know the authority of this client's certificate" in error.message
    assert "certificate" in error.remedy


def alert(name: str) -> ssl.SSLError:
    """What reading from a socket raises after an alert of the node."""
    error = ssl.SSLError(1, f"[SSL: {name}]")
    error.reason = name
    return error


def test_what_an_alert_in_use_means() -> None:
    """A refusal is final, also when it was read after the request broke off; damage is not."""
    endpoint = Endpoint("https://127.0.0.1:1", None, None)
    broken = BrokenPipeError("it broke off")
    broken.__context__ = alert("SSLV3_ALERT_CERTIFICATE_EXPIRED")
    for error in (broken, broken.__context__):
        told = endpoint.lost(error)
        assert (told.code, told.reason, told.is_retryable) == ("unauthenticated", "tls", False)
        assert "has expired" in told.message
    damage = alert("SSLV3_ALERT_BAD_RECORD_MAC"), alert("WRONG_VERSION_NUMBER"), OSError()
    for trouble in damage:
        told = endpoint.lost(trouble)
        assert (told.reason, told.is_retryable) == ("connection_lost", True)


@BOTH
def test_plain_http_at_a_tls_port(colour: Colour, pki: Pki) -> None:
    """A client with certificates is not fooled by a server without."""

    def plain(peer: Peer) -> None:
        peer.say(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        peer.sock.recv(1)

    with serving(plain) as server:
        url = server.url.replace("http", "https")
        refused(colour, url, tls=pki.client())


def test_certificates_are_renewed(pki: Pki, tmp_path: Path) -> None:
    """New connections use the files as they are now."""
    own = Pki(tmp_path / "own")
    old = own.issued("enterprise")
    tls = Certificates(*old, own.ca)
    before = tls.client()
    with serving(echo, tls=own.server()) as server:
        with HttpTransport(server.url, tls=tls.client) as transport:
            call(transport)
        own.issued("enterprise")
        with HttpTransport(server.url, tls=tls.client) as transport:
            call(transport)
    assert tls.client() is not before


def test_producer_with_files(pki: Pki) -> None:
    """A producer takes the paths of its certificates; without them it trusts nobody here."""
    cert, key = pki.issued("enterprise")
    receipt = b'{"offset":1}'

    def node(peer: Peer) -> None:
        peer.take()
        peer.answer(receipt)

    files: Any = {"cert": str(cert), "key": str(key), "ca": str(pki.ca)}
    with serving(node, tls=pki.server()) as server:
        with Producer(server.url, expected_zone="plant-a", **files) as producer:
            assert producer.append_fact(ENVELOPE, FACT).offset == 1
        with Producer(server.url) as producer, pytest.raises(NotPermittedError):
            producer.append_fact(ENVELOPE, FACT)
    with pytest.raises(ConfigurationError):
        Producer("https://127.0.0.1:1", **{**files, "cert": "missing.pem"})


@pytest.mark.parametrize(
    "url",
    [
        "http://me:hunter2@127.0.0.1:9443",
        "https://hunter2@node.example:9443",
        "https://node.example:9443/?token=hunter2",
        "https://node.example:9443/#hunter2",
        "ftp://me:hunter2@node.example",
        "http://me:hunter2@127.0.0.1:99999",
        "http://me:hunter2@[::1",
    ],
)
def test_a_url_with_a_secret_is_refused_and_not_repeated(url: str) -> None:
    """Nobody would read it there: a node knows callers by their certificates."""
    with pytest.raises(ConfigurationError, match="URL of a node") as caught:
        Endpoint(url, None, None)
    assert "hunter2" not in str(caught.value)
