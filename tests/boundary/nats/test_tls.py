"""NATS behind TLS, by the URL alone."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from ergon_framework.boundary.store_urls import is_server, open_fact_store
from ergon_framework.errors import ErgonError, StoreUnavailableError
from ergon_framework.ports.factstore import OUTBOUND
from ergon_framework.storage.nats import NatsClient, NatsTimeouts, address_of
from ergon_framework.storage.nats.connect import PatchedClient
from ergon_framework.testing.suites.factstore.under_test import new
from tests.servers.by_url import doctor, refused
from tests.servers.nats import NatsServer
from tests.servers.server import started
from tests.servers.tls import Papers

pytestmark = [pytest.mark.slow, pytest.mark.req("SCALE:url-errors", "SCALE:boundary-nats")]
Started = Callable[..., NatsServer]


@pytest.fixture
def served(signed: Papers) -> Iterator[Started]:
    """Starts servers with TLS."""
    with ExitStack() as stack:

        def start(name: str = "server", more: str = "", beside: str = "") -> NatsServer:
            files = f'cert_file: "{signed.certificate(name)}", key_file: "{signed.key(name)}"'
            block = f"tls {{ {files} {more} }}\n{beside}"
            return stack.enter_context(started(lambda: NatsServer(more=block)))

        yield start


def url(server: NatsServer, user: str = "", **options: object) -> str:
    """Of a store there."""
    given = "&".join(f"{name}={value}" for name, value in options.items())
    return server.url(user=user, options=f"?{given}").replace("nats://", "tls://")


def version(place: str, timeouts: NatsTimeouts | None = None) -> str:
    """Of the server at a URL."""
    with closing(NatsClient(address_of(place), timeouts or NatsTimeouts())) as line:
        return line.version()


def own(papers: Papers) -> dict[str, Any]:
    """The options that name a client's certificate."""
    return {"tls_cert": papers.certificate("client"), "tls_key": papers.key("client")}


def test_facts_over_tls(
    served: Started, signed: Papers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A zone takes the URL as it is, with either scheme, and so does the doctor."""
    server = served()
    place = url(server, tls_ca=signed.ca)
    assert is_server(place)
    with closing(open_fact_store(place, zone="plant-a")) as store:
        store.append(OUTBOUND, [new("a")])
    again = place.replace("tls://", "nats://")
    with closing(open_fact_store(again, zone="plant-a", read_only=True)) as store:
        assert store.logs()[0].head == 1
    text = f'[zones.plant-a]\nstore = "{place}"\nlisten = "127.0.0.1:0"\n'
    assert doctor(text, tmp_path, capsys)["nats (zone plant-a) version"]["status"] == "ok"


def test_a_certificate_of_ours(served: Started, signed: Papers, strange: Papers) -> None:
    """A server that wants one gets the one of the URL; without, or with another, it says so."""
    server = served(more=f', ca_file: "{signed.ca}", verify: true')
    assert version(url(server, tls_ca=signed.ca, **own(signed)))
    for wrong in ({}, own(strange)):
        with refused("wants a certificate of ours", "tls_cert"):
            version(url(server, tls_ca=signed.ca, **wrong))


@pytest.mark.parametrize("first", ["no", "yes"])
def test_a_server_that_hung_up_before_we_listened(
    served: Started, signed: Papers, strange: Papers, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """What it said about our certificate is lost with the connection: it is asked once more."""
    shake = f", handshake_first: {'true' if first == 'yes' else 'false'}"
    server = served(more=f', ca_file: "{signed.ca}", verify: true{shake}')

    async def cut(*_: object, **__: object) -> None:
        raise ConnectionResetError(104, "Connection reset by peer")

    monkeypatch.setattr(PatchedClient, "connect", cut)
    for wrong in ({}, own(strange)):
        with refused("wants a certificate of ours", "tls_cert"):
            version(url(server, tls_ca=signed.ca, tls_first=first, **wrong))
    brief = NatsTimeouts(probe=0.1)  # it is content, and waits for us to speak
    with pytest.raises(StoreUnavailableError, match="reset"):
        version(url(server, tls_ca=signed.ca, tls_first=first, **own(signed)), brief)


def test_an_authority_that_nobody_knows(served: Started, strange: Papers) -> None:
    """Whom this machine does not trust is not talked to, also where the URL says nothing of TLS."""
    server = served()
    for place in (url(server, tls_ca=strange.ca), url(server), server.url()):
        with refused("nobody who is trusted", "tls_ca"):
            version(place)


def test_a_certificate_of_another_host(served: Started, signed: Papers) -> None:
    """The name is checked."""
    with refused("another name"):
        version(url(served("elsewhere"), tls_ca=signed.ca))


@pytest.mark.parametrize("options", ["tls=yes", "tls_first=yes"])
def test_a_server_without_tls(own_nats: NatsServer, options: str) -> None:
    """Whether there is TLS is not up to the server: it is refused."""
    own_nats.start()
    assert version(own_nats.url())
    with refused("does not speak it there", "nats://"):
        version(own_nats.url(options=f"?{options}"))


def test_nobody_hears_the_password_without_tls() -> None:
    """Who stands in for the server and says that there is no TLS learns nothing."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        eavesdropper = _Eavesdropper(listening)
        place = f"tls://me:hunter2@127.0.0.1:{listening.getsockname()[1]}"
        with refused("does not speak it there"):
            version(place)
        assert eavesdropper.heard() == b""


class _Eavesdropper:
    """Greets one client as a server without TLS would, and listens until it hangs up."""

    def __init__(self, listening: socket.socket, more: str = "") -> None:
        self._listening = listening
        self._more = more.encode()
        self._heard = b""
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        client, _ = self._listening.accept()
        with client:
            info = b'INFO {"version": "2.12.0", "auth_required": true%s}\r\n'
            client.sendall(info % self._more)
            while data := client.recv(4096):
                self._heard += data

    def heard(self) -> bytes:
        """All that was said."""
        self._thread.join()
        return self._heard


def test_a_library_that_asks_nobody(
    served: Started, signed: Papers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should a later version not ask before it talks, TLS is refused rather than hoped for."""
    monkeypatch.delattr(PatchedClient, "_connect_command")
    server = served()
    with refused("does not speak it there"):
        version(url(server, tls_ca=signed.ca))


def test_a_server_that_begins_with_tls(served: Started, signed: Papers) -> None:
    """It says nothing before: the URL has to tell, and the error says how."""
    # It hangs up after two seconds, and that has to come before we give up.
    patient = NatsTimeouts(connect=30.0)
    server = served(more=", handshake_first: true")
    assert version(url(server, tls_ca=signed.ca, tls_first="yes"), patient)
    with pytest.raises(StoreUnavailableError) as caught:
        version(url(server, tls_ca=signed.ca), patient)
    assert "tls_first=yes" in (caught.value.remedy or "")


def test_a_server_that_also_takes_those_without_tls(served: Started, signed: Papers) -> None:
    """It offers TLS and does not ask for it: the URL does, and so the line is encrypted."""
    server = served(beside="allow_non_tls: true")
    with closing(NatsClient(address_of(url(server, tls_ca=signed.ca)))) as line:
        assert line.version()
        with urlopen(f"{server.monitor_url}/connz") as answer:  # noqa: S310 - our own server
            connections = json.load(answer)["connections"]
        # Whoever looked whether the server answers may not be gone yet.
        [found] = [each for each in connections if each.get("name") == "ergon"]
        assert found["tls_version"]
    with refused("nobody who is trusted"):
        version(url(server))
    assert version(server.url())


def test_a_server_that_only_says_that_it_has_tls() -> None:
    """Who stands in for the server hears the beginning of TLS, and no word of who we are."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        eavesdropper = _Eavesdropper(listening, ', "tls_available": true')
        place = f"tls://me:hunter2@127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(ErgonError):
            version(place)
        heard = eavesdropper.heard()
    assert heard
    assert b"CONNECT" not in heard
    assert b"hunter2" not in heard


def test_certificates_are_read_anew(served: Started, signed: Papers, tmp_path: Path) -> None:
    """A file that is renewed counts from the next connection on."""
    ca = tmp_path / "ca.pem"
    place = url(served(), tls_ca=ca)
    with closing(NatsClient(address_of(place))) as line:
        with refused("tls_ca"):
            line.version()
        ca.write_bytes(signed.ca.read_bytes())
        assert line.version()
