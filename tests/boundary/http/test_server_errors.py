"""Every refusal is clear JSON, and none tells what it should not."""

from __future__ import annotations

import asyncio

import pytest

from ergon_framework.boundary.http.exchange import Exchange
from ergon_framework.boundary.http.server import Server
from ergon_framework.errors import BoundaryError, FactInvalidError
from tests.boundary.http.workbench import Sample, Wire, run, serving

pytestmark = pytest.mark.req("BOUNDARY:http", "BOUNDARY:badinput")
HOST = "host: here\r\n"


@pytest.mark.parametrize(
    ("text", "status", "reason"),
    [
        ("rubbish\r\n\r\n", 501, "unknown_method"),
        ("FROB / HTTP/1.1\r\nhost: here\r\n\r\n", 501, "unknown_method"),
        ("POST /echo HTTP/9.9\r\nhost: here\r\n\r\n", 400, "malformed_request"),
        ("POST /echo HTTP/1.1\r\nhost here\r\n\r\n", 400, "malformed_request"),
        ("POST /echo HTTP/1.1\r\n\r\n", 400, "malformed_request"),
        ("POST /echo HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400, "malformed_request"),
        (f"POST /echo HTTP/1.1\r\n{HOST}content-length: x\r\n\r\n", 400, "malformed_request"),
        (f"POST /echo HTTP/1.1\r\n{HOST}content-length: -1\r\n\r\n", 400, "malformed_request"),
        (
            f"POST /echo HTTP/1.1\r\n{HOST}content-length: 1\r\ncontent-length: 2\r\n\r\nab",
            400,
            "malformed_request",
        ),
        (
            f"POST / HTTP/1.1\r\n{HOST}content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n",
            400,
            "malformed_request",
        ),
        (
            f"POST /echo HTTP/1.1\r\n{HOST}transfer-encoding: chunked, gzip\r\n\r\nabc",
            400,
            "malformed_request",
        ),
        (
            f"POST /echo HTTP/1.1\r\n{HOST}transfer-encoding: chunked\r\n\r\nzz\r\nab",
            400,
            "malformed_request",
        ),
        (f"GET /echo#part HTTP/1.1\r\n{HOST}\r\n", 400, "malformed_request"),
        (f"OPTIONS * HTTP/1.1\r\n{HOST}\r\n", 400, "malformed_request"),
        (f"CONNECT here:1 HTTP/1.1\r\n{HOST}\r\n", 501, "no_upgrade"),
        (
            f"POST /echo HTTP/1.1\r\n{HOST}connection: upgrade\r\nupgrade: h2c\r\n\r\n",
            501,
            "no_upgrade",
        ),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "malformed_request"),
        (f"POST /echo HTTP/1.1\r\n{HOST}expect: gold\r\n\r\n", 417, "unmet_expectation"),
        ("\x16\x03\x01\x02", 400, "malformed_request"),
    ],
)
def test_what_is_no_request_is_refused(text: str, status: int, reason: str) -> None:
    """A malformed request is answered with its problem, and its connection is closed."""

    async def main() -> None:
        async with serving() as bench:
            wire = await bench.wire()
            wire.send(text)
            answer = await wire.answer()
            assert (answer.status, answer.reason) == (status, reason)
            assert answer.headers["content-type"] == "application/json"
            assert answer.headers["connection"] == "close"
            assert await wire.rest() == b""
            other = await bench.wire()
            assert (await other.call("POST", "/echo", b"still here")).status == 200

    run(main())


def test_a_bad_request_behind_a_good_one_waits_for_its_turn() -> None:
    """Answers keep their order, also when one of them is a refusal."""

    async def main() -> None:
        async with serving() as bench:
            wire = await bench.wire()
            wire.ask("POST", "/hold", b"good")
            wire.send("rubbish\r\n\r\n")
            exchange = await bench.app.held.get()
            exchange.reply(200, b"good")
            assert (await wire.answer()).body == b"good"
            assert (await wire.answer()).reason == "unknown_method"
            assert await wire.rest() == b""

    run(main())


def test_a_request_that_ends_too_early_is_refused() -> None:
    """A client that ends its side within a request learns that nothing was done."""

    async def main() -> None:
        async with serving() as bench:
            for text in (
                "POST /ec",
                "POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nx",
            ):
                wire = await bench.wire()
                wire.send(text)
                wire.writer.write_eof()
                assert (await wire.answer()).reason == "malformed_request"
                assert await wire.rest() == b""
            assert bench.app.held.empty()

    run(main())


def test_a_boundary_error_becomes_its_answer() -> None:
    """Code, reason, status and when to come back are what the error says."""

    async def main() -> None:
        async with serving() as bench:
            wire = await bench.wire()
            answer = await wire.call("POST", "/full")
            assert answer.status == 429
            assert answer.headers["retry-after"] == "2"
            assert answer.error == {
                "code": "resource_exhausted",
                "message": "the log is full",
                "details": {"reason": "buffer_full", "retry_after_ms": 1500},
            }
            assert (await wire.call("POST", "/echo", b"x")).status == 200
            assert bench.failures == []

    run(main())


@pytest.mark.req("BOUNDARY:security")
def test_web_pages_are_not_answered_without_certificates() -> None:
    """A page in the operator's browser cannot append to the insecure node beside it."""

    async def main() -> None:
        async with serving() as bench:
            wire = await bench.wire()
            answer = await wire.call("POST", "/echo", b"{}", "Origin: https://elsewhere.example")
            assert (answer.status, answer.reason) == (403, "cross_origin")

    run(main())


@pytest.mark.req("BOUNDARY:security")
def test_an_unknown_error_is_not_told_to_the_client() -> None:
    """The client learns that something failed; the node learns what."""

    async def main() -> None:
        async with serving() as bench:
            wire = await bench.wire()
            for path in ("/boom", "/silent", "/bad-header"):
                answer = await wire.call("POST", path)
                assert (answer.status, answer.error["code"]) == (500, "internal")
                assert b"secret" not in answer.body
            names = [type(error).__name__ for error in bench.failures]
            assert names == ["RuntimeError", "RuntimeError", "ValueError"]
            assert (await wire.call("POST", "/echo", b"x")).status == 200

    run(main())


def test_an_exchange_may_fail_later() -> None:
    """``fail`` answers as if ``handle`` had raised."""

    async def main() -> None:
        async with serving() as bench:
            wire = await bench.wire()
            wire.ask("POST", "/hold")
            (await bench.app.held.get()).fail(FactInvalidError("no subject", reason="missing"))
            answer = await wire.answer()
            assert (answer.status, answer.reason) == (400, "missing")

    run(main())


def test_details_that_no_json_can_hold_are_still_answered() -> None:
    """Whatever an error carries, the client gets an answer."""

    async def main() -> None:
        async with serving() as bench:
            wire = await bench.wire()
            for details in ({"what": object}, {"what": "\ud800"}):
                wire.ask("POST", "/hold")
                (await bench.app.held.get()).fail(BoundaryError("odd", details=details))
                assert (await wire.answer()).status == 500

    run(main())


def test_a_second_answer_is_an_error_of_the_application() -> None:
    """The client gets the first answer; the connection is not trusted any further."""

    async def main() -> None:
        async with serving() as bench:
            wire = await bench.wire()
            wire.ask("POST", "/twice")
            assert (await wire.rest()).endswith(b"once")
            assert [str(error) for error in bench.failures] == [
                "POST /twice has been answered already"
            ]

    run(main())


def test_hooks_that_fail_do_no_harm() -> None:
    """An error in a hook neither reaches the client nor stops the server."""

    def broken(exchange: Exchange, error: BaseException) -> None:
        raise OSError("no log today")

    async def main() -> None:
        for hook in (broken, None):
            server = Server(Sample(), host="127.0.0.1", port=0, on_error=hook)
            await server.start()
            wire = Wire(*await asyncio.open_connection(*server.address))
            try:
                for _ in range(2):
                    assert (await wire.call("POST", "/boom")).status == 500
            finally:
                await server.stop(0)
                await wire.close()

    run(main())


@pytest.mark.req("BOUNDARY:security")
def test_a_foreign_name_is_refused_without_certificates() -> None:
    """A page that had its name lead to this machine reads nothing, by GET neither; our names do."""
    foreign = ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::1", "1.2.3.4")
    ours = ("localhost", "LOCALHOST:9443", "127.0.0.1:9443", "[::1]:1", "plant.local.:80")

    async def status(server: Server, host: str, method: str = "GET") -> int:
        reader, writer = await asyncio.open_connection(*server.address)
        head = f"{method} /who HTTP/1.1\r\nhost: {host}\r\ncontent-length: 0\r\n\r\n"
        writer.write(head.encode())
        line = await reader.readline()
        writer.close()
        return int(line.split()[1])

    async def main() -> None:
        server = Server(Sample(), host="127.0.0.1", port=0, names=("Plant.Local",))
        await server.start()
        try:
            for method in ("GET", "HEAD", "POST", "GET"):
                for host in foreign:
                    assert await status(server, host, method) == 403, host
            for host in ours:
                assert await status(server, host) == 200, host
        finally:
            await server.stop(0.0)

    run(main())
