"""What a request may look like, and what is answered."""

from __future__ import annotations

import asyncio

import pytest

from tests.boundary.http.workbench import run, serving

pytestmark = pytest.mark.req("BOUNDARY:http")


def test_requests_are_answered_on_a_kept_connection() -> None:
    """A client may ask again and again on one connection."""

    async def main() -> None:
        async with serving() as bench:
            wire = await bench.wire()
            for body in (b"one", b"", b"x" * 100_000):
                answer = await wire.call("POST", "/echo?a=b%20c", body)
                assert (answer.status, answer.body) == (200, body)
                assert answer.headers["x-query"] == "a=b%20c"
                assert answer.headers["content-type"] == "text/plain"
                assert answer.headers["date"].endswith("GMT")
                assert "connection" not in answer.headers
            assert bench.server.connections == 1

    run(main())


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_bytes_may_come_in_any_pieces(size: int) -> None:
    """A request that arrives byte by byte is the same request."""

    async def main() -> None:
        async with serving() as bench:
            wire = await bench.wire()
            text = b"POST /echo HTTP/1.1\r\nHost: here\r\nContent-Length: 11\r\n\r\nhello world"
            for at in range(0, len(text), size):
                wire.send(text[at : at + size])
                await wire.writer.drain()
                await asyncio.sleep(0)
            assert (await wire.answer()).body == b"hello world"

    run(main())


@pytest.mark.parametrize(
    "headers",
    [
        "transfer-encoding: gzip, chunked",
        "transfer-encoding: gzip\r\ntransfer-encoding: chunked",
    ],
)
def test_bodies_that_would_have_to_be_unpacked_are_refused(headers: str) -> None:
    """Stored as they came they would not be what the client means."""

    async def main() -> None:
        async with serving() as bench:
            wire = await bench.wire()
            wire.send(f"POST /echo HTTP/1.1\r\nhost: here\r\n{headers}\r\n\r\n")
            wire.send("3\r\nabc\r\n0\r\n\r\n")
            answer = await wire.answer()
            assert (answer.status, b"unknown_coding" in answer.body) == (501, True)

    run(main())


def test_chunked_bodies_are_put_together() -> None:
    """Chunks, their extensions and trailers make one body and no headers."""

    async def main() -> None:
        async with serving() as bench:
            wire = await bench.wire()
            wire.send("POST /echo?q HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n")
            wire.send("3;note=x\r\nabc\r\n4\r\ndefg\r\n0\r\nx-trailer: y\r\n\r\n")
            assert (await wire.answer()).body == b"abcdefg"
            assert (await wire.call("POST", "/echo", b"next")).body == b"next"

    run(main())


def test_pipelined_requests_are_answered_in_their_order() -> None:
    """One exchange runs at a time, and the next begins when it is answered."""

    async def main() -> None:
        async with serving() as bench:
            wire = await bench.wire()
            for number in range(3):
                wire.ask("POST", "/hold", b"%d" % number)
            wire.ask("POST", "/echo", b"last")
            for number in range(3):
                exchange = await bench.app.held.get()
                assert exchange.body == b"%d" % number
                assert bench.app.held.empty()
                exchange.reply(200, exchange.body)
                assert (await wire.answer()).body == b"%d" % number
            assert (await wire.answer()).body == b"last"

    run(main())


def test_many_pipelined_requests_do_not_nest() -> None:
    """Thousands of requests in one write are answered one after the other."""

    async def main() -> None:
        async with serving() as bench:
            wire = await bench.wire()
            one = b"POST /echo HTTP/1.1\r\nhost: here\r\ncontent-length: 2\r\n\r\nab"
            wire.send(one * 3000)
            for _ in range(3000):
                assert (await wire.answer()).body == b"ab"

    run(main())


def test_head_gets_no_body() -> None:
    """HEAD tells the length of what GET would bring, in both ways of answering."""

    async def main() -> None:
        async with serving() as bench:
            wire = await bench.wire()
            wire.ask("HEAD", "/download")
            assert (await wire.answer(is_head=True)).headers["content-length"] == "10"
            wire.ask("HEAD", "/who")
            answer = await wire.answer(is_head=True)
            assert int(answer.headers["content-length"]) > 0
            assert (await wire.call("POST", "/echo", b"x")).body == b"x"

    run(main())


@pytest.mark.parametrize(
    "head",
    [
        "POST /echo HTTP/1.1\r\nhost: here\r\nconnection: close\r\n",
        "POST /echo HTTP/1.0\r\n",
        "POST /echo HTTP/1.0\r\nconnection: keep-alive\r\n",
    ],
)
def test_a_client_may_ask_for_the_end(head: str) -> None:
    """``Connection: close`` and HTTP/1.0 end the connection after the answer."""

    async def main() -> None:
        async with serving() as bench:
            wire = await bench.wire()
            wire.send(head + "content-length: 2\r\n\r\nhi")
            answer = await wire.answer()
            assert (answer.body, answer.headers["connection"]) == (b"hi", "close")
            assert await wire.rest() == b""

    run(main())


def test_a_client_that_ends_its_side_still_gets_its_answers() -> None:
    """A half-closed connection is answered to the end, then closed."""

    async def main() -> None:
        async with serving() as bench:
            wire = await bench.wire()
            wire.ask("POST", "/hold", b"1")
            wire.ask("POST", "/echo", b"2")
            wire.writer.write_eof()
            exchange = await bench.app.held.get()
            await asyncio.sleep(0)
            exchange.reply(200, b"1")
            assert (await wire.answer()).body == b"1"
            assert (await wire.answer()).body == b"2"
            assert await wire.rest() == b""

    run(main())


def test_a_whole_address_is_a_path_too() -> None:
    """The absolute form of a target, which proxies use, is understood."""

    async def main() -> None:
        async with serving() as bench:
            wire = await bench.wire()
            answer = await wire.call("POST", "http://here:1/echo?q=1", b"x")
            assert (answer.status, answer.headers["x-query"]) == (200, "q=1")
            assert (await wire.call("GET", "http://here")).status == 404

    run(main())


def test_a_client_is_told_to_go_on() -> None:
    """``Expect: 100-continue`` is answered before the body, when it is the request's turn."""

    async def main() -> None:
        async with serving() as bench:
            wire = await bench.wire()
            wire.ask("POST", "/hold")
            exchange = await bench.app.held.get()
            wire.send("POST /echo HTTP/1.1\r\nhost: here\r\nexpect: 100-continue\r\n")
            wire.send("content-length: 2\r\n\r\n")
            exchange.reply(200, b"first")
            assert (await wire.answer()).body == b"first"
            assert (await wire.answer(is_head=True)).status == 100
            wire.send("hi")
            assert (await wire.answer()).body == b"hi"

    run(main())


def test_headers_that_come_twice_are_joined() -> None:
    """An application sees every value of a header."""

    async def main() -> None:
        async with serving() as bench:
            wire = await bench.wire()
            wire.ask("POST", "/hold", b"", "X-Tag: a", "x-tag: b")
            exchange = await bench.app.held.get()
            assert exchange.header("x-tag") == "a, b"
            assert exchange.header("x-none") is None
            exchange.reply(204)
            answer = await wire.answer()
            assert (answer.status, answer.body) == (204, b"")

    run(main())


def test_an_answer_for_a_client_that_has_gone_is_no_error() -> None:
    """A reply that nobody waits for any more is dropped."""

    async def main() -> None:
        async with serving() as bench:
            wire = await bench.wire()
            wire.ask("POST", "/hold")
            exchange = await bench.app.held.get()
            wire.reset()
            await bench.until(lambda: bench.server.connections == 0)
            exchange.reply(200, b"too late")
            polite = await bench.wire()
            polite.ask("POST", "/hold")
            exchange = await bench.app.held.get()
            await polite.close()
            exchange.reply(200, b"too late")
            await bench.until(lambda: bench.server.connections == 0)
            assert bench.failures == []

    run(main())
