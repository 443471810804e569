"""One connection of the client for event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

from ergon_framework.boundary.http.client_connection import news_of
from ergon_framework.boundary.http.codec import AnswerReader
from ergon_framework.errors import BoundaryError

HELD = 1 << 20
"""Bytes of a streamed answer that may wait here for their reader."""


class AsyncConnection(asyncio.BufferedProtocol):
    """One request at a time. Whoever waits is woken by everything that happens.

    Connections of one event loop may share the ``room`` in which they receive.
    """

    def __init__(self, room: memoryview) -> None:
        self._room = room
        self.reader = AnswerReader()
        self._transport: asyncio.Transport
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._is_reading = True
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._gone: asyncio.Future[None] = self._loop.create_future()

    # ---- what the client does ----

    def begin(self, reader: AnswerReader, deadline: float | None = None) -> None:
        """Expect an answer; whoever still waits at the deadline gets a ``TimeoutError``."""
        self.reader = reader
        self._deadline = deadline
        if deadline is not None and (self._timer is None or deadline < self._timer.when()):
            self._look_at(deadline)

    def end(self) -> None:
        """The answer is there, or as much of it as has a deadline."""
        self._deadline = None

    def write(self, data: bytes) -> None:
        """Send, or keep to be sent."""
        self._transport.write(data)

    @property
    def is_answered(self) -> bool:
        """Whether there is no point in sending more."""
        return self.reader.is_headed or self._error is not None

    async def wait_headed(self) -> None:
        """Until status and headers are there."""
        while not self.reader.is_headed:
            await self._wait()

    async def wait_done(self) -> None:
        """Until the whole answer is there."""
        while not self.reader.is_done:
            await self._wait()

    async def wait_drained(self, seconds: float) -> None:
        """Until the other side has taken most of what was sent."""
        if self._drained is not None and self._error is None:
            async with asyncio.timeout(seconds):
                await asyncio.shield(self._drained)

    async def take(self) -> bytes:
        """The bytes of the body that have come since, at least one unless it has ended."""
        while not self.reader.held and not self.reader.is_done:
            await self._wait()
        data = self.reader.take()
        if not self._is_reading:
            self._is_reading = True
            self._transport.resume_reading()
        return data

    def certificate(self) -> Mapping[str, Any] | None:
        """Of the other side."""
        found: Mapping[str, Any] | None = self._transport.get_extra_info("peercert")
        return found

    def is_closing(self) -> bool:
        """Whether it can no longer be used."""
        return self._gone.done() or self._transport.is_closing()

    def is_quiet(self) -> bool:
        """Whether it can be used, and nothing came since the last answer: the loop may not have
        seen yet that it has ended.
        """
        if self.is_closing():
            return False
        return not news_of(self._transport.get_extra_info("socket").fileno()).poll(0)

    def close(self) -> None:
        """Let go of it at once: whatever is still to be sent would be of no use."""
        self._transport.abort()

    async def wait_closed(self) -> None:
        """Until it is gone."""
        await asyncio.shield(self._gone)

    async def _wait(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    # One timer that looks again serves many calls; one for each would be set in vain each time.

    def _look_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._deadline is None:
            return
        if self._loop.time() < self._deadline:
            self._look_at(self._deadline)
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(TimeoutError())

    # ---- what the loop tells ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is there."""
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to put what comes in: ``buffer_updated`` follows before anybody else asks."""
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes are there."""
        self.data_received(bytes(self._room[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Something came in."""
        reader = self.reader
        if reader.is_done:  # nobody asked for anything
            self.close()
            return
        try:
            reader.feed(data)
        except BoundaryError as error:
            self._fail(error)
            self.close()
        if reader.is_streamed and reader.held > HELD:
            self._is_reading = False
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        """The other side has ended."""
        self._ended(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._ended(exc)
        self.resume_writing()
        if self._timer is not None:
            self._timer.cancel()
        if not self._gone.done():
            self._gone.set_result(None)

    def pause_writing(self) -> None:
        """The other side does not keep up."""
        self._drained = self._loop.create_future()

    def resume_writing(self) -> None:
        """It does again."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None

    def _ended(self, error: Exception | None) -> None:
        if not self.reader.is_done and self._error is None:
            if error is not None:
                self._fail(error)
            else:
                try:
                    self.reader.end()
                except BoundaryError as trouble:
                    self._fail(trouble)
        self._wake()

    def _fail(self, error: Exception) -> None:
        if self._error is None:
            self._error = error

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
