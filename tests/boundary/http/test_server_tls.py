"""A refused TLS handshake on the server's side: the alert goes out, and nothing stays long."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path

import pytest

from ergon_framework.boundary.certs import issue, make_ca
from ergon_framework.boundary.http.connection import LINGER_TIME
from ergon_framework.boundary.http.tls import Certificates, client_context, observed_handshake
from tests.boundary.http.workbench import run, serving

pytestmark = pytest.mark.req("BOUNDARY:security", "BOUNDARY:badinput")
HELLO = b"GET /who HTTP/1.1\r\nhost: here\r\n\r\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority and a node; a stranger of another authority in the folder beside."""
    made = tmp_path_factory.mktemp("pki")
    for name in ("good", "other"):
        make_ca(made / name)
        issue(made / name, "node")
    return made / "good"


def _server(folder: Path) -> Certificates:
    return Certificates(folder / "node.pem", folder / "node.key", folder / "ca.pem")


def _stranger(folder: Path) -> ssl.SSLContext:
    other = folder.parent / "other"
    return client_context(other / "node.pem", other / "node.key", folder / "ca.pem")


def _refused(folder: Path, address: tuple[str, int]) -> socket.socket:
    """The open socket of a stranger that has read why it is refused."""
    plain = socket.create_connection(address, 30)
    with _stranger(folder).wrap_socket(plain, server_hostname="localhost") as secure:
        secure.sendall(HELLO)
        with pytest.raises(ssl.SSLError) as caught:
            secure.recv(1)
        assert caught.value.reason == "TLSV1_ALERT_UNKNOWN_CA"
        kept = socket.socket(fileno=secure.detach())
    kept.settimeout(30)
    return kept


def test_a_refused_client_that_stays_is_sent_away(folder: Path) -> None:
    """It has a moment to read why, counts as a connection for so long, and is told of once."""

    async def main() -> None:
        async with serving(_server(folder), connections=1) as bench:
            with await asyncio.to_thread(_refused, folder, bench.server.address) as stays:
                assert await asyncio.to_thread(stays.recv, 1) == b""
                bench.later(LINGER_TIME - 1)
                assert bench.server.connections == 1
                bench.later(2)
                await bench.until(lambda: bench.server.connections == 0)
                assert len(bench.denied) == 1

    run(main())


def test_a_refused_client_that_goes_is_forgotten(folder: Path) -> None:
    """Nobody waits for it."""

    async def main() -> None:
        async with serving(_server(folder)) as bench:
            (await asyncio.to_thread(_refused, folder, bench.server.address)).close()
            await bench.until(lambda: bench.server.connections == 0)
            assert len(bench.denied) == 1

    run(main())


def test_a_refused_client_may_go_on_sending(folder: Path) -> None:
    """What it sends is taken and thrown away, so that the end of the connection is no reset."""

    async def main() -> None:
        async with serving(_server(folder)) as bench:
            with await asyncio.to_thread(_refused, folder, bench.server.address) as sender:
                await asyncio.to_thread(sender.sendall, b"x" * 30_000_000)
                sender.shutdown(socket.SHUT_WR)
                assert await asyncio.to_thread(sender.recv, 1) == b""
                await bench.until(lambda: bench.server.connections == 0)

    run(main())


def test_a_server_that_stops_does_not_wait_for_a_refused_client(folder: Path) -> None:
    """It is cut off."""

    async def main() -> None:
        async with serving(_server(folder)) as bench:
            with await asyncio.to_thread(_refused, folder, bench.server.address):
                await bench.server.stop(30)
                assert bench.server.connections == 0

    run(main())


@pytest.mark.parametrize(
    ("said", "is_reset", "told"),
    [(b"", False, 0), (b"", True, 0), (HELLO[:1], False, 1)],
    ids=["looks", "looks and resets", "speaks"],
)
def test_who_only_looks_in_is_not_told_of(
    said: bytes, is_reset: bool, told: int, folder: Path
) -> None:
    """A probe that only connects comes every few seconds; one that begins to speak is told of."""

    def looked(address: tuple[str, int]) -> None:
        with socket.create_connection(address, 30) as probe:
            probe.sendall(said)
            if is_reset:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    async def main() -> None:
        async with serving(_server(folder)) as bench:
            await asyncio.to_thread(looked, bench.server.address)
            # Who comes later is served later.
            (await asyncio.to_thread(_refused, folder, bench.server.address)).close()
            await bench.until(lambda: bench.server.connections == 0)
            assert len(bench.denied) == told + 1

    run(main())


def _to_and_fro(folder: Path) -> tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]:
    """A server's side whose next step sees a stranger's certificate, and its two ends."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = _stranger(folder).wrap_bio(to_client, to_server, server_hostname="localhost")
    server = _server(folder).server().wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server):
        with pytest.raises(ssl.SSLWantReadError):
            side.do_handshake()
    client.do_handshake()
    return server, to_server, to_client


def test_a_refused_handshake_keeps_nothing_and_never_succeeds(folder: Path) -> None:
    """It waits for ever, without memory of what comes in; the alert is there to be sent."""
    told: list[ssl.SSLError] = []
    with observed_handshake(told.append):
        server, incoming, outgoing = _to_and_fro(folder)
    for _ in range(3):
        with pytest.raises(ssl.SSLWantReadError):
            server.do_handshake()
        assert incoming.pending == 0
        incoming.write(b"x" * 100_000)
    assert len(told) == 1
    assert outgoing.pending > 0
    with pytest.raises(ssl.SSLError):
        server.read(1)


def test_a_context_elsewhere_is_as_any_other(folder: Path) -> None:
    """Whoever does a handshake without us gets the error itself."""
    server, _, _ = _to_and_fro(folder)
    with pytest.raises(ssl.SSLCertVerificationError):
        server.do_handshake()
