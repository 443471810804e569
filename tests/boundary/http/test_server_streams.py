"""Bodies that are never whole in memory, in both directions."""

from __future__ import annotations

import pytest

from ergon_framework.boundary.http.exchange import HIGH_WATER, HttpRequest
from tests.boundary.http.workbench import run, serving

pytestmark = pytest.mark.req("BOUNDARY:http")


def test_an_upload_arrives_in_pieces() -> None:
    """The application reads the body while it comes, and the connection goes on."""

    async def main() -> None:
        async with serving() as bench:
            wire = await bench.wire()
            body = bytes(range(256)) * 20_000
            assert (await wire.call("PUT", "/upload", body)).body == b"5120000"
            assert b"".join(bench.app.pieces) == body
            assert len(bench.app.pieces) > 1
            bench.app.pieces.clear()
            wire.send("PUT /upload HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
            wire.send("3\r\nabc\r\n0\r\n\r\n")
            assert (await wire.answer()).body == b"3"
            assert (await wire.call("POST", "/echo", b"x")).body == b"x"

    run(main())


def test_a_body_that_was_not_streamed_can_be_read_as_a_stream() -> None:
    """An application need not know how the body came."""

    async def main() -> None:
        async with serving() as bench:
            wire = await bench.wire()
            assert (await wire.call("POST", "/upload", b"abc")).body == b"3"
            assert (await wire.call("POST", "/upload")).body == b"3"

    run(main())


def test_an_upload_waits_for_a_slow_application() -> None:
    """Little more than the high mark is held, however much the client sends."""

    async def main() -> None:
        async with serving() as bench:
            wire = await bench.wire()
            wire.ask("PUT", "/slow-upload", b"x" * 30_000_000)
            exchange = await bench.app.held.get()
            connection = bench.connection
            await bench.until(lambda: not connection.is_reading)
            assert isinstance(exchange, HttpRequest)
            assert exchange.upload is not None
            assert exchange.upload.size < HIGH_WATER + (1 << 19)
            bench.later(1000)  # the client is not to blame
            bench.app.gate.set()
            assert (await wire.answer()).body == b"30000000"

    run(main())


def test_an_upload_is_invited_when_the_application_reads() -> None:
    """``100 Continue`` goes out with the first read, so that a refusal comes without the body."""

    async def main() -> None:
        async with serving() as bench:
            wire = await bench.wire()
            head = "HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n"
            wire.send(f"PUT /upload {head}")
            assert (await wire.answer(is_head=True)).status == 100
            wire.send("abc")
            assert (await wire.answer()).body == b"3"
            wire.send(f"PUT /unwanted-upload {head}")
            answer = await wire.answer()
            assert (answer.status, answer.headers["connection"]) == (409, "close")
            assert await wire.rest() == b""

    run(main())


def test_an_upload_may_be_refused_before_its_end() -> None:
    """A client that is still sending gets to read the refusal."""

    async def main() -> None:
        async with serving() as bench:
            wire = await bench.wire()
            wire.ask("PUT", "/unwanted-upload", b"x" * 5_000_000)
            answer = await wire.answer()
            assert (answer.status, answer.body) == (409, b"no")
            assert await wire.rest() == b""

    run(main())


@pytest.mark.req("BOUNDARY:badinput")
def test_a_client_that_goes_during_its_upload_ends_it() -> None:
    """The application's read raises, so that it can clean up."""

    async def main() -> None:
        async with serving() as bench:
            wire = await bench.wire()
            wire.send("PUT /upload HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nabc")
            await bench.until(lambda: bench.app.pieces == [b"abc"])
            wire.reset()
            await bench.until(lambda: bool(bench.app.errors))
            assert isinstance(bench.app.errors[0], ConnectionError)
            await bench.until(lambda: bench.server.connections == 0)
            assert bench.failures == []

    run(main())


@pytest.mark.req("BOUNDARY:badinput")
def test_an_upload_that_stops_is_given_up() -> None:
    """An upload takes as long as bytes flow, and no longer."""

    async def main() -> None:
        async with serving(body_seconds=30, request_seconds=60) as bench:
            wire = await bench.wire()
            wire.send("PUT /upload HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n")
            for number in range(5):
                wire.send("x")
                await bench.until(lambda wanted=number: len(bench.app.pieces) > wanted)  # type: ignore[misc]
                bench.later(29)
            bench.later(29)
            answer = await wire.answer()
            assert (answer.status, answer.reason) == (408, "request_timeout")

    run(main())


def test_a_download_arrives_whole() -> None:
    """A streamed answer has its announced length, and the connection goes on."""

    async def main() -> None:
        async with serving() as bench:
            bench.app.body = bytes(range(256)) * 20_000
            wire = await bench.wire()
            answer = await wire.call("GET", "/download")
            assert answer.body == bench.app.body
            bench.app.body = b""
            assert (await wire.call("GET", "/download")).body == b""
            assert (await wire.call("POST", "/echo", b"x")).body == b"x"
            assert bench.app.closed == 2

    run(main())


def test_a_download_waits_for_a_slow_client() -> None:
    """What is not read is not produced; a client that goes away ends the stream."""

    async def main() -> None:
        async with serving() as bench:
            wire = await bench.wire()
            wire.ask("GET", "/endless")
            await wire.reader.readexactly(1000)
            await bench.until(lambda: bool(bench.connection.is_writing_paused))
            wire.reset()
            await bench.app.gate.wait()
            assert isinstance(bench.app.errors[0], ConnectionError)
            assert bench.app.closed == 1
            assert bench.failures == []

    run(main())


@pytest.mark.req("BOUNDARY:badinput")
def test_a_client_that_stops_reading_its_download_is_cut_off() -> None:
    """The stream ends with a ``ConnectionError`` when nothing is taken for too long."""

    async def main() -> None:
        async with serving(body_seconds=30) as bench:
            wire = await bench.wire()
            wire.ask("GET", "/endless")
            await bench.until(lambda: bench.server.connections == 1)
            await bench.until(lambda: bool(bench.connection.is_writing_paused))
            wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
            for _ in range(50):
                bench.later(0)
                bench.later(31)
                if bench.denied:
                    break
            await bench.app.gate.wait()
            assert isinstance(bench.app.errors[0], ConnectionError)
            assert bench.app.closed == 1

    run(main())


def test_an_error_before_the_first_piece_is_answered() -> None:
    """A stream that fails at once is an ordinary error."""

    async def main() -> None:
        async with serving() as bench:
            wire = await bench.wire()
            answer = await wire.call("GET", "/missing")
            assert (answer.status, answer.reason) == (429, "buffer_full")
            assert (await wire.call("POST", "/echo", b"x")).body == b"x"

    run(main())


@pytest.mark.parametrize("path", ["/short", "/long"])
def test_a_stream_of_another_length_is_cut(path: str) -> None:
    """A client never takes half an answer for a whole one."""

    async def main() -> None:
        async with serving() as bench:
            bench.app.body = b"x" * 5000
            wire = await bench.wire()
            wire.ask("GET", path)
            head, _, body = (await wire.rest()).partition(b"\r\n\r\n")
            announced = 5001 if path == "/short" else 4999
            assert f"content-length: {announced}".encode() in head or not head
            assert len(body) < announced
            assert "should have had" in str(bench.failures[0])
            await bench.until(lambda: bench.server.connections == 0)

    run(main())
