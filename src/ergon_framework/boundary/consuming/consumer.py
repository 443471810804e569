"""The consumer for threads: the facts of one log, in order, each handled before it is confirmed.

A fact may be delivered again, after a crash for one, so a handler must tolerate that; an ``Inbox``
in its own database makes its effect happen once. To confirm is to say "handled here", and not
"accepted": what a business thinks of a fact is another fact.
"""

from __future__ import annotations

import os
import threading
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
from ergon_framework.boundary.conversing.in_threads import ThreadHands
from ergon_framework.boundary.conversing.script import Script
from ergon_framework.boundary.conversing.transport import Transport
from ergon_framework.boundary.http.client import HttpTransport
from ergon_framework.boundary.model import Batch, Delivery
from ergon_framework.boundary.producing.options import client_tls
from ergon_framework.engine.clocks import current_clock
from ergon_framework.errors import BoundaryError
from ergon_framework.ports.factstore import Reference

T = TypeVar("T")


class Consumer(Reading):
    """Reads a log under a durable name, of which a node keeps the cursor.

    ::

        with Consumer("http://127.0.0.1:9443", "erp", log="inbound:plant-a") as consumer:
            consumer.run(handle)
    """

    def __init__(
        self, node: str | Transport, consumer_name: str, **options: Unpack[ConsumerOptions]
    ) -> None:
        TRANSPORT.check("node", node)
        super().__init__(consumer_name, options)
        self._is_owner = isinstance(node, str)
        self._transport: Transport
        if isinstance(node, str):
            self._transport = HttpTransport(node, tls=client_tls(options), **self.connecting)
        else:
            self._transport = node
        self._stopping = threading.Event()
        self._running: ThreadHands | None = None

    # ---- one step at a time ----

    def fetch(self, limit: int | None = None, wait: float = 0.0) -> Batch:
        """The page after the cursor, the same one until it is confirmed; takes the lease."""
        SECONDS_OR_ZERO.check("wait", wait)
        self._is_holder = True
        return self._run(self.desk.fetch(limit or self.limit, wait))

    def confirm(self, offset: int) -> int:
        """Everything at or below ``offset`` is handled; the cursor then."""
        # Who has fetched nothing holds nothing, and must not say that he does.
        desk = self.desk if self._is_holder else replace(self.desk, holder=None)
        return self._run(desk.confirm(offset))

    def seek(self, offset: int, reason: str) -> None:
        """Set the cursor, also backwards; the node writes down that it was done and why."""
        self._run(self.desk.seek(offset, reason))

    # ---- all of it ----

    def run(
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
        clock = current_clock()
        clock.join_time()
        try:
            return self._drive(run, ThreadHands(self._transport, clock, is_stopped))
        finally:
            clock.leave_time()

    def stop(self) -> None:
        """End a run: what is being handled is finished and confirmed. Any thread may call."""
        self._stopping.set()
        if self._running is not None:
            self._running.wake()

    def _drive(self, run: Run, hands: ThreadHands) -> ConsumeReport:
        """Run it, with a second thread that keeps the lease meanwhile."""
        over = threading.Event()
        clock = current_clock()
        keeper = ThreadHands(self._transport, clock, over.is_set)
        thread = clock.spawn(
            f"ergon-keeper-{self.name}", lambda: keeper.run(keeping(run.desk, over.is_set))
        )
        self._running, self._is_holder = hands, True
        try:
            return hands.run(run.script())
        finally:
            self._running = None
            self._stopping.clear()
            over.set()
            keeper.wake()
            thread.join()
            if run.desk.standing.lost is None:
                self._release()
            self._is_holder = False

    # ---- artifacts ----

    def get_object(self, reference: Reference | Mapping[str, Any]) -> bytes:
        """The artifact that a part of ``object_json`` refers to, verified."""
        return self._run(getting(reference_of(reference), self.rule, self.dice))

    def open_object(self, reference: Reference | Mapping[str, Any]) -> IO[bytes]:
        """The same as a temporary file, verified; close it after use."""
        return self._run(opening(reference_of(reference), self.rule, self.dice))

    def save_object(
        self, reference: Reference | Mapping[str, Any], path: str | os.PathLike[str]
    ) -> Path:
        """The same into a file, which is there when it is whole and verified."""
        return self._run(saving(reference_of(reference), path, self.rule, self.dice))

    # ---- the end ----

    def close(self) -> None:
        """Let go of the name and of the connections. Closing twice is fine."""
        self._release()
        if self._is_owner:
            self._transport.close()

    def _release(self) -> None:
        if self._is_holder:
            self._is_holder = False
            with suppress(BoundaryError):  # then the lease ends by itself
                self._run(self.desk.release())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self, script: Script[T]) -> T:
        return ThreadHands(self._transport, current_clock()).run(script)
