"""Settling from an event loop, on a connection which that loop has for nothing else.

The connector's other connection lives in a thread. A settlement through it wakes that thread and is
woken by it, which costs more than the settlement itself. A delivery belongs to the consumer and not
to a connection, so any connection can say how it ended.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING

from ergon_framework.core.broker_reconnect import Outage
from ergon_framework.core.failure import Failure, Kind
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.errors import describe
from ergon_framework.ports.dice import roll
from ergon_framework.storage.nats.address import NatsAddress, NatsTimeouts
from ergon_framework.storage.nats.client import STATUS_HEADER

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from ergon_framework.storage.nats.connect import PatchedClient


class _Link:
    """One connection, and the settlements on it that the server has not confirmed yet."""

    def __init__(self, client: PatchedClient) -> None:
        self.client = client
        self.inbox = client.new_inbox()
        self._numbers = count(1)
        self._waiting: dict[str, asyncio.Future[bool]] = {}
        self._over = asyncio.get_running_loop().create_future()
        self._keeping = asyncio.create_task(self._keep(), name="ergon-nats-settlement")

    @property
    def is_over(self) -> bool:
        """Whether the connection is gone."""
        return self._over.done() or self.client.is_closed

    async def settle(self, reply: str, how: bytes, seconds: float) -> bool:
        """Whether the server took the settlement, as soon as it confirms that."""
        number = str(next(self._numbers))
        heard: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[number] = heard
        try:
            await self.client.publish(reply, how, f"{self.inbox}.{number}")
            async with asyncio.timeout(seconds):
                return await heard
        finally:
            del self._waiting[number]

    async def on_message(self, message: Msg) -> None:
        """The server confirms a settlement, or says that nobody is there to take it."""
        heard = self._waiting.get(message.subject.rpartition(".")[2])
        if heard is not None and not heard.done():
            heard.set_result(STATUS_HEADER not in (message.headers or {}))

    def over(self) -> None:
        """Handle the end of the connection: it is unknown which settlements the server has
        received.
        """
        if not self._over.done():
            self._over.set_result(None)
        for heard in self._waiting.values():
            if not heard.done():
                heard.set_exception(ConnectionResetError("the connection was lost"))

    async def _keep(self) -> None:
        """A loop that ends cancels its tasks, and this one ends the connection then."""
        try:
            await self._over
        finally:
            self.client.hang_up()


class LoopSettlement:
    """Settles for the event loop that asks first, for as long as that loop runs."""

    def __init__(self, address: NatsAddress, timeouts: NatsTimeouts) -> None:
        self._address = address
        self._timeouts = timeouts
        self._is_closed = False
        self._of_parents: list[_Link] = []
        self._link: _Link | None = None
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget the event loop and its connection in a forked child, because they are the
        parent's.
        """
        if self._link is not None:
            self._of_parents.append(self._link)  # freeing it here could end the parent's
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._link = None
        self._connecting = asyncio.Lock()
        self._outage = Outage()

    async def settle(self, reply: str, how: bytes) -> bool:
        """Settle a delivery. False when the server did not confirm it, and another connection is
        needed.
        """
        loop = asyncio.get_running_loop()
        if self._is_closed or not self._serves(loop):
            return False
        link: _Link | None = None
        try:
            link = self._link
            if link is None or link.is_over:
                link = await self._connected(loop)
            if link is None:
                return False
            return await link.settle(reply, how, self._timeouts.response)
        except Exception as error:
            await self._failed(link, error, loop.time())
            return False

    async def aclose(self) -> None:
        """End the connection; called in the loop that it belongs to, or too late for that."""
        self._is_closed = True
        link, self._link = self._link, None
        if link is not None and self._loop is asyncio.get_running_loop():
            await self._end(link)

    def abandon(self) -> None:
        """End the connection, where nothing can be awaited."""
        self._is_closed = True
        (link, self._link), loop = (self._link, None), self._loop
        if link is not None and loop is not None:
            with suppress(RuntimeError):  # the loop has ended, and the connection with it
                loop.call_soon_threadsafe(link.over)

    def _serves(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether this is the loop that is served; one that has ended makes place for another."""
        if self._loop is loop:
            return True
        with self._lock:
            if self._loop is not None and self._loop.is_running():
                return False
            self._loop, self._link, self._connecting = loop, None, asyncio.Lock()
            return True

    async def _connected(self, loop: asyncio.AbstractEventLoop) -> _Link | None:
        async with self._connecting:
            link = self._link
            if link is not None and not link.is_over:
                return link
            if not self._outage.may_try(loop.time()):
                return None
            self._link = await self._open()
            self._outage.connected(loop.time())
            return self._link

    async def _open(self) -> _Link:
        from ergon_framework.storage.nats.connect import connect

        made: list[_Link] = []

        def over() -> None:
            for link in made:
                link.over()

        client = await connect(self._address, over, self._timeouts)
        link = _Link(client)
        made.append(link)
        try:
            await client.subscribe(f"{link.inbox}.*", cb=link.on_message)
        except BaseException:
            await self._end(link)
            raise
        return link

    async def _failed(self, link: _Link | None, error: Exception, now: float) -> None:
        """The next settlement connects anew, and not before it makes sense to."""
        if link is not None and self._link is not link:
            return
        self._link = None
        self._outage.failed(Failure(Kind.LOST, "broker_unavailable", describe(error)), now, roll())
        if link is not None:
            await self._end(link)

    async def _end(self, link: _Link) -> None:
        from ergon_framework.storage.nats.connect import quietly

        link.over()
        await quietly(link.client, self._timeouts.connect)
