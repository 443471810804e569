"""Tells open pages that something has changed, so that they reload.

All of them wait for the same reads of the stores. They learn only that there is something new; what
it is, each page requests like any other request.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from time import monotonic

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ergon_framework.errors import ErgonError
from ergon_framework.web.responses import NO_STORE, unavailable

TICK = 1.0
"""Seconds between two checks, and the longest time that open pages hold up a stop of the server."""
PACE = 0.02
"""Seconds, for each open page, between two notices to one of them. Every notice makes a page
reload, so at most 50 pages do in a second, however many are open.
"""
MOST_WATCHERS = 300
"""How many pages may be open at the same time. Each has a connection, and other requests need some,
too.
"""
LONGEST_STREAM = 600.0
"""Seconds after which a stream ends and its page requests another: its user may have
lost access.
"""
_RETRY, _AT_ONCE = b"retry: 3000\n\n", b"retry: 50\n\n"
_NOTHING = b":\n\n"
"""Sent when nothing has changed; it shows when a page is gone."""


class ChangeEvents:
    """Streams of server-sent events."""

    def __init__(
        self,
        mark: Callable[[], Awaitable[str]],
        stopping: threading.Event,
        clock: Callable[[], float] = monotonic,
        tick: float = TICK,
    ) -> None:
        """``mark`` returns a text that changes when pages have something new to show."""
        self._tick = tick
        self._clock = clock
        self._mark = mark
        self._stopping = stopping
        self.watchers = 0

    def response(self) -> Response:
        """A stream that ends when the page is closed, or with the server."""
        return _WatchedStream(self)

    async def stream(self) -> AsyncIterator[bytes]:
        """The events for one page, until the server stops."""
        yield _RETRY
        last, told_at, began_at = None, 0.0, None
        while not self._stopping.is_set():
            mark, now = await self._look(), self._clock()
            began_at = now if began_at is None else began_at
            if now - began_at >= LONGEST_STREAM:
                yield _AT_ONCE
                return
            is_early = last is not None and now - told_at < PACE * self.watchers
            if mark == last or is_early:
                yield _NOTHING
            else:
                yield f"event: changed\ndata: {mark}\n\n".encode()
                last, told_at = mark, now
            # With a timeout, because another thread may ask for the stop, which wakes no event
            # loop.
            await asyncio.wait({asyncio.get_running_loop().create_future()}, timeout=self._tick)

    async def _look(self) -> str:
        try:
            return await self._mark()
        except ErgonError:
            return "away"


class _WatchedStream(StreamingResponse):
    """A stream that counts as open from the start of its response until its page is closed."""

    def __init__(self, events: ChangeEvents) -> None:
        super().__init__(events.stream(), 200, NO_STORE, "text/event-stream")
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream, or refuse it when too many are open. They are counted here, because
        hundreds may come at once.
        """
        events = self._events
        if events.watchers >= MOST_WATCHERS:
            refusal = unavailable("too_busy", f"{events.watchers} pages are watched already")
            await refusal(scope, receive, send)
            return
        events.watchers += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            events.watchers -= 1
