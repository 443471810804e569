from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ergon_framework.boundary.http.async_client import MAX_UNREAD, AsyncConnection
from ergon_framework.boundary.http.codec import ResponseReader
from ergon_framework.errors import NodeUnavailableError

pytestmark = pytest.mark.req("BOUNDARY:http")
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n"


class FakeTransport(asyncio.Transport):
    """Notes what a connection wants of its socket."""

    def __init__(self, connection: AsyncConnection) -> None:
        super().__init__()
        self.wishes: list[str] = []
        self._connection = connection

    def pause_reading(self) -> None:
        self.wishes.append("pause")

    def resume_reading(self) -> None:
        self.wishes.append("resume")

    def abort(self) -> None:
        self.wishes.append("abort")

    def is_closing(self) -> bool:
        return "abort" in self.wishes

    def write(self, data: Any) -> None:
        """Nothing is sent."""


def connected(reader: ResponseReader | None = None) -> tuple[AsyncConnection, FakeTransport]:
    """A connection over nothing."""
    connection = AsyncConnection(memoryview(bytearray(1 << 16)))
    transport = FakeTransport(connection)
    connection.connection_made(transport)
    connection.begin(reader or ResponseReader(limit=None))
    return connection, transport


def test_reader_that_does_not_keep_up() -> None:
    """A stream is paused when too much of it waits here, and goes on when it was taken."""

    async def main() -> None:
        connection, transport = connected()
        connection.data_received(HEAD + b"x" * MAX_UNREAD)
        assert transport.wishes == []
        connection.data_received(b"x")
        assert transport.wishes == ["pause"]
        assert len(await connection.take()) == MAX_UNREAD + 1
        assert transport.wishes == ["pause", "resume"]

    asyncio.run(main())


def test_node_that_does_not_keep_up() -> None:
    """Whoever sends waits until the other side has taken most of it, or is gone."""

    async def main() -> None:
        connection, _ = connected()
        for end in (connection.resume_writing, lambda: connection.connection_lost(None)):
            connection.pause_writing()
            waiting = asyncio.create_task(connection.wait_drained(60.0))
            await asyncio.sleep(0)
            assert not waiting.done()
            end()
            await waiting
        with pytest.raises(NodeUnavailableError):
            await connection.wait_done()

    asyncio.run(main())


def test_words_that_nobody_asked_for() -> None:
    """A kept connection on which something arrives is not used again."""

    async def main() -> None:
        connection, transport = connected(ResponseReader())
        connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await connection.wait_done()
        assert not connection.is_closing()
        connection.data_received(b"HTTP/1.1 408 Timeout\r\n\r\n")
        assert connection.is_closing()
        assert transport.wishes == ["abort"]

    asyncio.run(main())


def test_two_answers_to_one_request() -> None:
    """The first answer counts, and the connection is not kept."""
    reader = ResponseReader()
    once = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1"
    reader.feed(once + once)
    assert reader.is_done
    assert reader.body() == b"1"
    assert not reader.keeps_alive
    reader = ResponseReader()
    reader.feed(once + b"garbage")
    assert reader.is_done
    assert reader.body() == b"1"
    assert not reader.keeps_alive


class Timers:
    """The timers that are set on the running loop from now on."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._call_at = self._loop.call_at
        self.handles: list[asyncio.TimerHandle] = []
        self.callbacks: list[Any] = []
        self._loop.call_at = self  # type: ignore[assignment, method-assign]

    def __call__(self, when: float, callback: Any, *args: Any, **more: Any) -> asyncio.TimerHandle:
        self.handles.append(self._call_at(when, callback, *args, **more))
        self.callbacks.append(callback)
        return self.handles[-1]


def test_who_waits_at_the_deadline_is_told() -> None:
    """The timer of an earlier call may go off first: it looks again, and no call ends early."""

    async def main() -> None:
        connection, _ = connected()
        timers, loop = Timers(), asyncio.get_running_loop()
        connection.begin(ResponseReader(), loop.time() + 3600)
        connection.end()
        connection.begin(ResponseReader(), loop.time())  # a shorter one moves the timer
        assert [each.cancelled() for each in timers.handles] == [True, False]
        with pytest.raises(TimeoutError):
            await connection.wait_done()

    asyncio.run(main())


def test_one_timer_serves_many_calls() -> None:
    """It is set once, looks again while somebody waits, and rests when nobody does."""

    async def main() -> None:
        connection, _ = connected()
        timers, loop = Timers(), asyncio.get_running_loop()
        connection.begin(ResponseReader(), loop.time() + 3600)
        for _call in range(3):
            connection.end()
            connection.begin(ResponseReader(), loop.time() + 7200)
        assert len(timers.handles) == 1
        timers.callbacks[0]()  # as if its time had come
        first, again = timers.handles
        assert again.when() > first.when()
        connection.end()
        timers.callbacks[1]()
        assert len(timers.handles) == 2
        first.cancel()
        again.cancel()

    asyncio.run(main())


def test_a_lost_connection_has_no_timer() -> None:
    """Nothing of it stays behind in the event loop."""

    async def main() -> None:
        connection, _ = connected()
        timers = Timers()
        connection.begin(ResponseReader(), asyncio.get_running_loop().time() + 3600)
        [timer] = timers.handles
        connection.connection_lost(None)
        assert timer.cancelled()

    asyncio.run(main())


def test_what_comes_in_is_copied_out_of_the_shared_room() -> None:
    """Another connection may receive in the same place before anybody reads the answer."""

    async def main() -> None:
        room = memoryview(bytearray(1 << 16))
        first, second = AsyncConnection(room), AsyncConnection(room)
        for connection, body in ((first, b"one"), (second, b"two")):
            connection.connection_made(FakeTransport(connection))
            connection.begin(ResponseReader())
            answer = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n" + body
            connection.get_buffer(-1)[: len(answer)] = answer
            connection.buffer_updated(len(answer))
        assert (first.reader.body(), second.reader.body()) == (b"one", b"two")

    asyncio.run(main())
