"""Starting, stopping, and where a server may listen."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable

import pytest

from ergon_framework.boundary.http.addresses import check_plaintext, split_address
from ergon_framework.boundary.http.server import Server
from ergon_framework.errors import ConfigurationError
from tests.boundary.http.workbench import Sample, run, serving

pytestmark = pytest.mark.req("BOUNDARY:http")


def test_a_stop_lets_what_runs_end() -> None:
    """Running exchanges are answered, new requests and connections are not taken."""

    async def main() -> None:
        async with serving() as bench:
            busy, kept = await bench.wire(), await bench.wire()
            await kept.call("POST", "/echo")
            busy.ask("POST", "/hold")
            exchange = await bench.app.held.get()
            address = bench.server.address
            stop = asyncio.create_task(bench.server.stop(20))
            await bench.until(lambda: bench.server.state.is_stopping)
            answer = await kept.call("POST", "/echo", b"new")
            assert (answer.status, answer.reason) == (503, "stopping")
            assert answer.headers["connection"] == "close"
            assert answer.headers["retry-after"] == "1"
            with pytest.raises(OSError):  # noqa: PT011
                await asyncio.open_connection(*address)
            assert not stop.done()
            exchange.reply(200, b"done")
            assert (await busy.answer()).body == b"done"
            await stop
            assert await busy.rest() == b""
            assert bench.server.connections == 0

    run(main())


def test_an_idle_server_stops_at_once() -> None:
    """Kept connections, silent ones and half requests do not hold a stop."""

    async def main() -> None:
        async with serving() as bench:
            kept, silent, half = await bench.wire(), await bench.wire(), await bench.wire()
            await kept.call("POST", "/echo")
            half.send("POST /ec")
            await bench.until(lambda: bench.server.connections == 3)
            await bench.server.stop(10_000)
            assert [await wire.rest() for wire in (kept, silent, half)] == [b"", b"", b""]

    run(main())


def test_a_stop_does_not_wait_for_ever() -> None:
    """What has not ended within the grace is cut off, coroutines and connections alike."""

    async def main() -> None:
        async with serving() as bench:
            held, streamed = await bench.wire(), await bench.wire()
            held.ask("POST", "/hold")
            await bench.app.held.get()
            streamed.ask("PUT", "/slow-upload", b"x")
            await bench.app.held.get()
            await bench.server.stop(0)
            assert await held.rest() == b""
            assert await streamed.rest() == b""
            assert bench.server.connections == 0

    run(main())


def test_a_server_may_be_stopped_twice_and_started_again() -> None:
    """Stopping what does not run does nothing."""

    async def main() -> None:
        server = Server(Sample(), host="127.0.0.1", port=0)
        await server.stop(0)
        with pytest.raises(ConfigurationError, match="does not listen"):
            _ = server.address
        for _ in range(2):
            await server.start()
            reader, writer = await asyncio.open_connection(*server.address)
            writer.write(b"POST /echo HTTP/1.0\r\n\r\n")
            assert b"200 OK" in await reader.read()
            writer.close()
            await writer.wait_closed()
            await server.stop(1)
            await server.stop(1)

    run(main())


@pytest.mark.parametrize("host", ["::1", "localhost"])
def test_other_addresses_work_too(host: str) -> None:
    """IPv6, and names with several addresses, which then share one port."""
    if host == "::1" and not socket.has_ipv6:  # pragma: no cover
        pytest.skip("no IPv6 here")

    async def main() -> None:
        try:
            async with serving(host=host) as bench:
                wire = await bench.wire()
                assert (await wire.call("POST", "/echo", b"x")).body == b"x"
                assert len({port for _, port in bench.server.addresses}) == 1
        except ConfigurationError as error:  # pragma: no cover - a machine without IPv6
            pytest.skip(str(error))

    run(main())


@pytest.mark.req("BOUNDARY:badinput")
def test_a_port_in_use_is_a_clear_error() -> None:
    """The second server names the address and what to do."""

    async def main() -> None:
        async with serving() as bench:
            host, port = bench.server.address
            with pytest.raises(ConfigurationError, match="another process listens") as caught:
                await Server(Sample(), host=host, port=port).start()
            assert f"{host}:{port}" in str(caught.value)
            assert "another port" in caught.value.remedy

    run(main())


@pytest.mark.req("BOUNDARY:badinput")
@pytest.mark.parametrize("host", ["no-such-host.invalid", "203.0.113.7", "a" * 300])
def test_a_foreign_address_is_a_clear_error(host: str) -> None:
    """Neither unknown names nor other machines' addresses can be listened on."""
    with pytest.raises(ConfigurationError):
        run(Server(Sample(), host=host, port=0).start())


@pytest.mark.req("BOUNDARY:badinput")
def test_a_privileged_port_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operating system's refusal is put in words."""

    def refuse(*args: object) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(ConfigurationError, match="may not use that port"):
        run(Server(Sample(), host="::1", port=443).start())


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("127.0.0.1:9443", ("127.0.0.1", 9443)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:80", ("::1", 80)),
    ],
)
def test_addresses_are_split(text: str, parts: tuple[str, int]) -> None:
    """Host and port, with brackets around IPv6."""
    assert split_address(text) == parts


@pytest.mark.req("BOUNDARY:badinput")
@pytest.mark.parametrize(
    "text", ["", "9443", ":9443", "here", "here:", "here:x", "here:65536", "::1:80", "[a]:1", "h:²"]
)
def test_addresses_that_are_none_are_refused(text: str) -> None:
    """An address without host or port says how one is written."""
    with pytest.raises(ConfigurationError, match="HOST:PORT"):
        split_address(text)


@pytest.mark.req("BOUNDARY:security")
def test_plain_http_is_for_loopback_and_on_request_only() -> None:
    """Without certificates a node neither starts by accident nor in public."""
    refused: list[Callable[[], None]] = [
        lambda: check_plaintext("127.0.0.1", insecure=False),
        lambda: check_plaintext("0.0.0.0", insecure=True),  # noqa: S104 - that is the point
        lambda: check_plaintext("::", insecure=True),
        lambda: check_plaintext("203.0.113.7", insecure=True),
        lambda: check_plaintext("no-such-host.invalid", insecure=True),
        lambda: check_plaintext("", insecure=True),
    ]
    for step in refused:
        with pytest.raises(ConfigurationError):
            step()
    for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"):
        check_plaintext(host, insecure=True)
