"""The consumer for event loops: the same calls as coroutines, the same scripts underneath."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, TypeVar, Unpack

from ergon_framework.boundary.arguments import SECONDS_OR_ZERO, TRANSPORT
from ergon_framework.boundary.consuming.conversations import Run, keeping
from ergon_framework.boundary.consuming.objects import getting, opening, reference_of, saving
from ergon_framework.boundary.consuming.options import (
    ConsumeReport,
    ConsumerOptions,
    Reading,
    Stop,
)
from ergon_framework.boundary.conversing.in_tasks import TaskHands
from ergon_framework.boundary.conversing.in_threads import never
from ergon_framework.boundary.conversing.script import Script
from ergon_framework.boundary.conversing.transport import AsyncTransport
from ergon_framework.boundary.http.async_client import AsyncHttpTransport
from ergon_framework.boundary.model import Batch, Delivery
from ergon_framework.boundary.producing.options import client_tls
from ergon_framework.errors import BoundaryError
from ergon_framework.ports.factstore import Reference

T = TypeVar("T")


class AsyncConsumer(Reading):
    """Reads a log under a durable name; see :class:`~ergon_framework.boundary.Consumer`.

    It belongs to one event loop. A run that is cancelled confirms what is done and lets go.
    """

    def __init__(
        self, node: str | AsyncTransport, consumer_name: str, **options: Unpack[ConsumerOptions]
    ) -> None:
        TRANSPORT.check("node", node)
        super().__init__(consumer_name, options)
        self._is_owner = isinstance(node, str)
        self._transport: AsyncTransport
        if isinstance(node, str):
            self._transport = AsyncHttpTransport(node, tls=client_tls(options), **self.connecting)
        else:
            self._transport = node
        self._stopping = asyncio.Event()
        self._running: TaskHands | None = None

    # ---- one step at a time ----

    async def fetch(self, limit: int | None = None, wait: float = 0.0) -> Batch:
        """The page after the cursor, the same one until it is confirmed; takes the lease."""
        SECONDS_OR_ZERO.check("wait", wait)
        self._is_holder = True
        return await self._run(self.desk.fetch(limit or self.limit, wait))

    async def confirm(self, offset: int) -> int:
        """Everything at or below ``offset`` is handled; the cursor then."""
        # Who has fetched nothing holds nothing, and must not say that he does.
        desk = self.desk if self._is_holder else replace(self.desk, holder=None)
        return await self._run(desk.confirm(offset))

    async def seek(self, offset: int, reason: str) -> None:
        """Set the cursor, also backwards; the node writes down that it was done and why."""
        await self._run(self.desk.seek(offset, reason))

    # ---- all of it ----

    async def run(
        self,
        handler: Callable[[Delivery], Any],
        *,
        stop: Stop | None = None,
        until_empty: bool = False,
        wait: float = 1.0,
    ) -> ConsumeReport:
        """Handle facts until ``stop`` is set, or :meth:`stop` called, or the log is read.

        ``handler(delivery)`` must have made its effect durable when it returns. One that raises is
        called again after a while; after ``max_attempts`` the fact is set aside with the reason. A
        ``NonRetryableException`` sets it aside at once. The node waits up to ``wait`` seconds for
        facts, so a stop may take that long when there are none. Raises ``ConsumerHeldError`` when
        another process has taken over; nothing is confirmed after that.
        """

        def is_stopped() -> bool:
            return self._stopping.is_set() or (stop is not None and stop.is_set())

        run = self.new_run(handler, is_stopped, until_empty=until_empty, wait=wait)
        return await self._drive(run, TaskHands(self._transport, is_stopped))

    def stop(self) -> None:
        """End a run: what is being handled is finished and confirmed."""
        self._stopping.set()
        if self._running is not None:
            self._running.wake()

    async def _drive(self, run: Run, hands: TaskHands) -> ConsumeReport:
        """Run it, with a second task that keeps the lease meanwhile."""
        keeper = asyncio.create_task(
            TaskHands(self._transport).run(keeping(run.desk, never)),
            name=f"ergon-keeper-{self.name}",
        )
        self._running, self._is_holder = hands, True
        try:
            return await hands.run(run.script())
        finally:
            self._running = None
            self._stopping.clear()
            keeper.cancel()
            await asyncio.wait([keeper])
            if run.desk.standing.lost is None:
                await self._release()
            self._is_holder = False

    # ---- artifacts ----

    async def get_object(self, reference: Reference | Mapping[str, Any]) -> bytes:
        """The artifact that a part of ``object_json`` refers to, verified."""
        return await self._run(getting(reference_of(reference), self.rule, self.dice))

    async def open_object(self, reference: Reference | Mapping[str, Any]) -> IO[bytes]:
        """The same as a temporary file, verified; close it after use."""
        return await self._run(opening(reference_of(reference), self.rule, self.dice))

    async def save_object(
        self, reference: Reference | Mapping[str, Any], path: str | os.PathLike[str]
    ) -> Path:
        """The same into a file, which is there when it is whole and verified."""
        return await self._run(saving(reference_of(reference), path, self.rule, self.dice))

    # ---- the end ----

    async def close(self) -> None:
        """Let go of the name and of the connections. Closing twice is fine."""
        await self._release()
        if self._is_owner:
            await self._transport.close()

    async def _release(self) -> None:
        if self._is_holder:
            self._is_holder = False
            with suppress(BoundaryError):  # then the lease ends by itself
                await self._run(self.desk.release())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _run(self, script: Script[T]) -> T:
        return await TaskHands(self._transport).run(script)
