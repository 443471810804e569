"""Nothing is taken without end: sizes, times, numbers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ergon_framework.boundary.http.server import Server
from ergon_framework.boundary.http.server_state import ServerState
from ergon_framework.boundary.settings import LimitSettings
from tests.boundary.http.workbench import Clock, Sample, run, serving

pytestmark = pytest.mark.req("BOUNDARY:http", "BOUNDARY:badinput")


def test_a_body_that_announces_too_much_is_refused_unread() -> None:
    """A client that sends it all the same still gets to read why."""

    async def main() -> None:
        async with serving(body_bytes=1000) as bench:
            wire = await bench.wire()
            wire.ask("POST", "/echo", b"x" * 3_000_000)
            answer = await wire.answer()
            assert (answer.status, answer.reason) == (413, "body_too_large")
            assert answer.error["code"] == "invalid_argument"
            assert answer.error["details"]["limit"] == 1000
            assert await wire.rest() == b""

    run(main())


def test_a_chunked_body_is_counted() -> None:
    """A length that is not announced is limited as well."""

    async def main() -> None:
        async with serving(body_bytes=1000) as bench:
            wire = await bench.wire()
            wire.send("POST /echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
            wire.send("190\r\n" + "x" * 400 + "\r\n")
            wire.send("190\r\n" + "x" * 400 + "\r\n")
            wire.send("190\r\n" + "x" * 400 + "\r\n")
            assert (await wire.answer()).reason == "body_too_large"

    run(main())


def test_an_object_has_a_limit_of_its_own() -> None:
    """A streamed body may be larger than others, but not endless."""

    async def main() -> None:
        async with serving(body_bytes=10, object_bytes=1000) as bench:
            wire = await bench.wire()
            assert (await wire.call("PUT", "/upload", b"x" * 1000)).body == b"1000"
            assert (await wire.call("PUT", "/upload", b"x" * 1001)).status == 413
            other = await bench.wire()
            other.send("PUT /upload HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
            other.send("3e9\r\n" + "x" * 1001 + "\r\n0\r\n\r\n")
            assert (await other.answer()).status == 413

    run(main())


@pytest.mark.parametrize("is_split", [True, False])
def test_headers_are_limited(is_split: bool) -> None:
    """Headers beyond the limit are refused, whether they end or not."""

    async def main() -> None:
        async with serving(header_bytes=2000) as bench:
            wire = await bench.wire()
            wire.send("POST /echo HTTP/1.1\r\nhost: a\r\nx-long: ")
            if is_split:
                await bench.until(lambda: bench.server.connections == 1)
                for _ in range(10):
                    wire.send("y" * 400)
                    await wire.writer.drain()
                    await asyncio.sleep(0)
            else:
                wire.send("y" * 2000 + "\r\n\r\n")
            answer = await wire.answer()
            assert (answer.status, answer.reason) == (431, "headers_too_large")

    run(main())


def test_a_long_body_does_not_count_as_headers() -> None:
    """The start of the next request may come with the end of a large one."""

    async def main() -> None:
        async with serving(header_bytes=200) as bench:
            wire = await bench.wire()
            wire.ask("POST", "/echo", b"x" * 5000)
            wire.send("POST /echo HTTP/1.1\r\nhost: a\r\n")
            assert (await wire.answer()).status == 200
            wire.send("content-length: 0\r\n\r\n")
            assert (await wire.answer()).status == 200

    run(main())


@pytest.mark.parametrize("part", ["1;" + "x" * 500, "0\r\nx-trailer: " + "y" * 500])
def test_chunks_that_carry_nothing_are_refused(part: str) -> None:
    """Extensions and trailers cannot be used to send without end."""

    async def main() -> None:
        async with serving(header_bytes=2000) as bench:
            wire = await bench.wire()
            wire.send("POST /echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
            wire.send(part)
            for _ in range(20):
                wire.send("z" * 500)
                await wire.writer.drain()
                await asyncio.sleep(0)
            assert (await wire.answer()).reason == "malformed_request"

    run(main())


def test_too_many_connections_are_turned_away() -> None:
    """The one too many learns why, and the others go on."""

    async def main() -> None:
        async with serving(connections=2) as bench:
            first, second = await bench.wire(), await bench.wire()
            await first.call("POST", "/echo")
            await second.call("POST", "/echo")
            third = await bench.wire()
            answer = await third.answer()
            assert (answer.status, answer.reason) == (503, "too_many_connections")
            assert answer.headers["retry-after"] == "1"
            assert await third.rest() == b""
            assert bench.denied == ["2 connections are open already"]
            await second.close()
            await bench.until(lambda: bench.server.connections == 1)
            fourth = await bench.wire()
            assert (await fourth.call("POST", "/echo", b"x")).status == 200

    run(main())


def test_an_idle_connection_is_closed() -> None:
    """One that asks nothing for too long, or sends empty lines only, goes."""

    async def main() -> None:
        async with serving(idle_seconds=75) as bench:
            wire, other = await bench.wire(), await bench.wire()
            await wire.call("POST", "/echo")
            await other.call("POST", "/echo")
            bench.later(70)
            other.send("\r\n")
            await bench.until(lambda: bench.server.connections == 2)
            bench.later(6)
            assert await wire.rest() == b""
            assert await other.rest() == b""
            assert bench.server.connections == 0

    run(main())


def test_a_client_that_waits_for_its_answer_is_not_idle() -> None:
    """A long poll may take longer than an idle connection."""

    async def main() -> None:
        async with serving(idle_seconds=75) as bench:
            wire = await bench.wire()
            wire.ask("POST", "/hold")
            exchange = await bench.app.held.get()
            bench.later(1000)
            exchange.reply(200, b"at last")
            assert (await wire.answer()).body == b"at last"

    run(main())


@pytest.mark.parametrize(
    "text", ["POST", "POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nx"]
)
def test_a_request_that_stops_halfway_is_given_up(text: str) -> None:
    """Silence within a request is answered with 408."""

    async def main() -> None:
        async with serving(body_seconds=30) as bench:
            wire = await bench.wire()
            await wire.call("POST", "/echo")
            wire.send(text)
            await bench.until(lambda: bool(bench.connection.is_receiving))
            bench.later(29)
            bench.later(2)
            answer = await wire.answer()
            assert (answer.status, answer.reason) == (408, "request_timeout")
            assert await wire.rest() == b""

    run(main())


@pytest.mark.parametrize(
    "text", ["POST /echo", "POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 99999\r\n\r\nx"]
)
def test_a_request_that_trickles_is_given_up(text: str) -> None:
    """A byte now and then does not hold a connection for ever."""

    async def main() -> None:
        async with serving(body_seconds=30, request_seconds=60) as bench:
            wire = await bench.wire()
            await wire.call("POST", "/echo")
            wire.send(text)
            connection = bench.connection
            await bench.until(lambda: bool(connection.is_receiving))
            for _ in range(3):
                bench.later(20)
                wire.send("x")
                await bench.until(lambda: bool(connection.last_received_at == bench.clock.now))
            bench.later(20)
            assert (await wire.answer()).reason == "request_timeout"

    run(main())


def test_a_refused_client_does_not_hold_its_connection() -> None:
    """Bytes after a refusal are thrown away for a moment only."""

    async def main() -> None:
        async with serving(body_bytes=10) as bench:
            wire = await bench.wire()
            wire.send("POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 99\r\n\r\n")
            assert (await wire.answer()).status == 413
            wire.send("x" * 50)
            bench.later(4)
            assert bench.server.connections == 1
            bench.later(2)
            await bench.until(lambda: bench.server.connections == 0)

    run(main())


def test_a_client_that_does_not_read_is_cut_off() -> None:
    """Answers wait for a slow reader, no further request is begun, and then it is given up."""

    async def main() -> None:
        async with serving(body_seconds=30) as bench:
            wire = await bench.wire()
            wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
            for _ in range(40):
                wire.ask("POST", "/echo", b"x" * 1_000_000)
            await bench.until(lambda: bench.server.connections == 1)
            await bench.until(lambda: bool(bench.connection.is_writing_paused))
            bench.later(0)
            bench.later(31)
            await bench.until(lambda: bench.server.connections == 0)
            assert bench.denied == ["it did not read its answer"]

    run(main())


def test_all_bodies_share_one_budget() -> None:
    """Half-sent requests cannot fill the memory: the largest is refused, and small ones go on."""

    async def main() -> None:
        async with serving(body_bytes=1000, bodies_bytes=2500) as bench:
            halves = [await bench.wire() for _ in range(3)]
            for number, wire in enumerate(halves):
                wire.send("POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\n")
                wire.send(b"x" * (800 + 100 * number))
            answer = await halves[2].answer()
            assert (answer.status, answer.reason) == (503, "no_room")
            other = await bench.wire()
            assert (await other.call("POST", "/echo", b"y" * 700)).body == b"y" * 700
            halves[0].send(b"x" * 200)
            assert (await halves[0].answer()).body == b"x" * 1000
            halves[1].reset()
            await bench.until(lambda: bench.server.held_bytes == 0)

    run(main())


def test_one_address_has_a_share() -> None:
    """A single machine cannot take every place; this machine's own processes may."""

    class Somebody:
        is_busy, body_bytes, idle_since = False, 0, 0.0

        def __init__(self, ip: str) -> None:
            self.ip = ip

    async def main() -> None:
        limits = LimitSettings(connections=10, address_connections=2)
        service: Any = ServerState(Sample(), limits, Clock(), Clock(), None, None)
        members = [Somebody("192.0.2.1") for _ in range(2)] + [Somebody("::1") for _ in range(3)]
        for each in members:
            service.add(each)
        assert "of this address" in service.why_full("192.0.2.1")
        assert service.why_full("192.0.2.2") == service.why_full("::1") == ""
        service.forget(members[0])
        service.forget(members[0])
        assert service.why_full("192.0.2.1") == ""

    run(main())


def test_silent_connections_make_room_for_a_probe() -> None:
    """Where clients ask at once, those who say nothing keep nobody out, half a head or none."""

    async def main() -> None:
        limits = LimitSettings(connections=4)
        server = Server(Sample(), host="127.0.0.1", port=0, limits=limits, crowds_out=True)
        await server.start()
        try:
            writers = []
            for number in range(12):
                _, writer = await asyncio.open_connection(*server.address)
                writer.write(b"GET /who HTTP/1.1\r\nhos" if number % 2 else b"")
                writers.append(writer)
            reader, writer = await asyncio.open_connection(*server.address)
            writer.write(b"GET /who HTTP/1.1\r\nhost: a\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            assert server.connections <= 4
            for each in (*writers, writer):
                each.close()
        finally:
            await server.stop(0.0)

    run(main())
