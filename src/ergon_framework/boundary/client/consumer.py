"""Consumers of facts: ``Consumer`` for threads, ``AsyncConsumer`` for event loops."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Literal, Self, TypeVar, Unpack

from ergon_framework.boundary.arguments import (
    A_BACKOFF,
    COUNT,
    COUNT_OR_NO_END,
    FLAG,
    FUNCTION,
    NAME,
    SECONDS,
    SECONDS_OR_ZERO,
    TEXT,
    TRANSPORT,
    one_of,
)
from ergon_framework.boundary.client.artifacts import getting, opening, reference_of, saving
from ergon_framework.boundary.client.consume_effects import (
    ConsumeLoop,
    ConsumeReport,
    ConsumerSession,
    renew_lease,
)
from ergon_framework.boundary.client.effects import (
    RETRIED_KINDS,
    ClientEffects,
    Dice,
    Stop,
    TaskRunner,
    ThreadRunner,
    never,
)
from ergon_framework.boundary.client.options import (
    REACHING,
    TIMEOUT,
    TlsOptions,
    bounded,
    check_options,
    client_tls,
)
from ergon_framework.boundary.client.transport import AsyncTransport, Transport
from ergon_framework.boundary.http.async_client import AsyncHttpTransport
from ergon_framework.boundary.http.client import HttpTransport
from ergon_framework.boundary.model import Batch, Delivery, Loss
from ergon_framework.core.failure import Kind
from ergon_framework.core.retry import Backoff, RetryRule
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.engine.clocks import current_clock
from ergon_framework.errors import BoundaryError
from ergon_framework.ports.factstore import Reference

__all__ = ["ConsumeReport", "ConsumerBase", "FactConsumerOptions", "Stop"]


logger = logging.getLogger("ergon_framework.boundary.consuming.options")  # users filter by it

NO_END = 1 << 60
RUN_RETRY_RULE = RetryRule(
    attempts=NO_END,
    backoff=Backoff(base=0.1, factor=2.0, cap=5.0, low=0.5, high=1.0),
    on=RETRIED_KINDS,
    max_retry_after=30.0,
)
"""How a run waits for a node that is away: until it is back, or the run is stopped."""

BACKOFF = Backoff(base=0.5, factor=2.0, cap=30.0)
"""Between two attempts at one fact."""


class FactConsumerOptions(TlsOptions, total=False):
    """``Consumer(node, name, ...)``."""

    log: str | None
    """Create the consumer on this log, when there is none."""
    start: Literal["start", "end"]
    """Where one that is created begins."""
    to_zone: str | None
    """The view of one that is created."""
    required: bool
    """Whether retention waits for one that is created."""
    holder: str | None
    """Under which name the lease is taken; by default one that no other process has."""
    lease: float
    """Seconds after which another process may go on when this one has died."""
    limit: int
    """Facts in one page."""
    max_attempts: float
    """Attempts at one fact before it is quarantined: a whole number, or ``math.inf``."""
    backoff: Backoff
    """Between them."""
    retry: RetryRule
    """The retry rule of calls: by default the producer's; within ``run``, calls are retried without
    end.
    """
    timeout: float
    """Seconds for a whole call with all its attempts, beyond what a fetch waits for facts."""
    expected_zone: str | None
    connections: int
    dice: Dice
    on_gap: Callable[[Loss], Any] | None
    """Called with facts that were given up on purpose; by default they are logged."""


CONSUMER = REACHING | {
    "log": TEXT.or_none,
    "start": one_of("start", "end"),
    "to_zone": TEXT.or_none,
    "required": FLAG,
    "holder": TEXT.or_none,
    "lease": SECONDS,
    "limit": COUNT,
    "max_attempts": COUNT_OR_NO_END,
    "backoff": A_BACKOFF,
    "on_gap": FUNCTION.or_none,
}
"""What each of the options has to be."""


def warn_of_gap(loss: Loss) -> None:
    """Log a loss."""
    first, last, where = loss.first_offset, loss.last_offset, ""
    if loss.source_first_offset is not None and loss.source_last_offset is not None:
        first, last, where = loss.source_first_offset, loss.source_last_offset, " of the peer"
    logger.warning(
        "facts %d to %d%s were given up before they were read: %s", first, last, where, loss.reason
    )


class ConsumerBase:
    """The half of a consumer that does not wait."""

    def __init__(self, name: str, options: FactConsumerOptions) -> None:
        check_options(type(self).__name__, options, CONSUMER)
        NAME.check("consumer_name", name)
        self.name = name
        self.limit = options.get("limit", 100)
        self.rule = bounded(options.get("retry"), options.get("timeout"))
        self.dice = options.get("dice", random.random)
        self.connecting: dict[str, Any] = {
            name: options[name]
            for name in ("expected_zone", "timeout", "connections")
            if name in options
        }
        self._options = options
        self.session = ConsumerSession(
            name=name,
            holder=_holder(options.get("holder")),
            lease=options.get("lease", 30.0),
            rule=self.rule,
            dice=self.dice,
            log=options.get("log"),
            start=options.get("start", "start"),
            to_zone=options.get("to_zone"),
            required=options.get("required", True),
            timeout=options.get("timeout", TIMEOUT),
        )
        self._is_holder = False
        renew_after_fork(self)

    def renew(self) -> None:
        """In a process that was just forked: the lease is the parent's, and stays so."""
        self._is_holder = False

    @property
    def holder(self) -> str | None:
        """Under which name it holds its lease."""
        return self.session.holder

    @property
    def max_attempts(self) -> int:
        """Attempts at one fact before it is quarantined."""
        return int(min(self._options.get("max_attempts", 5), NO_END))

    def new_run(
        self,
        handler: Callable[[Delivery], Any],
        is_stopped: Callable[[], bool],
        *,
        until_empty: bool,
        wait: float,
    ) -> ConsumeLoop:
        """One run, ready to be driven.

        What cannot be called would look like a handler that fails, and have facts set aside.
        """
        FUNCTION.check("handler", handler)
        SECONDS_OR_ZERO.check("wait", wait)
        default = self.rule if until_empty else RUN_RETRY_RULE
        session = replace(self.session, rule=self._options.get("retry", default))
        return ConsumeLoop(
            session=session,
            handler=handler,
            on_gap=self._options.get("on_gap") or warn_of_gap,
            is_stopped=is_stopped,
            item_rule=RetryRule(
                attempts=self.max_attempts,
                backoff=self._options.get("backoff", BACKOFF),
                on=frozenset(Kind) - {Kind.REJECTED},
            ),
            dice=self.dice,
            until_empty=until_empty,
            wait=0.0 if until_empty else min(wait, session.lease / 3),
            limit=self.limit,
        )


def _holder(given: str | None) -> str:
    """A name for this reader alone: two that are called the same must not both run."""
    host = "".join(c for c in socket.gethostname() if (c.isascii() and c.isalnum()) or c in "-.")
    name = given or f"{host[:64] or 'host'}:{os.getpid()}"
    return f"{name}:{secrets.token_hex(6)}"


T = TypeVar("T")


class Consumer(ConsumerBase):
    """Reads a log under a durable name, of which a node keeps the cursor.

    ::

        with Consumer("http://127.0.0.1:9443", "erp", log="inbound:plant-a") as consumer:
            consumer.run(handle)
    """

    def __init__(
        self, node: str | Transport, consumer_name: str, **options: Unpack[FactConsumerOptions]
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
        self._running: ThreadRunner | None = None

    # ---- one step at a time ----

    def fetch(self, limit: int | None = None, wait: float = 0.0) -> Batch:
        """The page after the cursor, the same one until it is confirmed; takes the lease."""
        SECONDS_OR_ZERO.check("wait", wait)
        self._is_holder = True
        return self._run(self.session.fetch(limit or self.limit, wait))

    def confirm(self, offset: int) -> int:
        """Everything at or below ``offset`` is handled; the cursor then."""
        # A consumer that has fetched nothing holds no lease, and must not claim to hold one.
        session = self.session if self._is_holder else replace(self.session, holder=None)
        return self._run(session.confirm(offset))

    def seek(self, offset: int, reason: str) -> None:
        """Set the cursor, also backwards; the node writes down that it was done and why."""
        self._run(self.session.seek(offset, reason))

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
            return self._drive(run, ThreadRunner(self._transport, clock, is_stopped))
        finally:
            clock.leave_time()

    def stop(self) -> None:
        """Stop a run. Facts being handled are finished and confirmed. Any thread may call."""
        self._stopping.set()
        if self._running is not None:
            self._running.wake()

    def _drive(self, run: ConsumeLoop, runner: ThreadRunner) -> ConsumeReport:
        """Run it, with a second thread that keeps the lease meanwhile."""
        over = threading.Event()
        clock = current_clock()
        renewer = ThreadRunner(self._transport, clock, over.is_set)
        thread = clock.spawn(
            f"ergon-lease-{self.name}", lambda: renewer.run(renew_lease(run.session, over.is_set))
        )
        self._running, self._is_holder = runner, True
        try:
            return runner.run(run.script())
        finally:
            self._running = None
            self._stopping.clear()
            # Before the lease is released: a renewal that comes later would take it again.
            over.set()
            renewer.wake()
            thread.join()
            self._release(run.release())
            self._is_holder = False

    # ---- artifacts ----

    def get_object(self, reference: Reference | Mapping[str, Any]) -> bytes:
        """The artifact that a part of ``object_json`` refers to, verified."""
        return self._run(getting(reference_of(reference), self.rule, self.dice))

    def open_object(self, reference: Reference | Mapping[str, Any]) -> IO[bytes]:
        """The object as a verified temporary file. Close it after use."""
        return self._run(opening(reference_of(reference), self.rule, self.dice))

    def save_object(
        self, reference: Reference | Mapping[str, Any], path: str | os.PathLike[str]
    ) -> Path:
        """Save the object to a file, which appears once it is complete and verified."""
        return self._run(saving(reference_of(reference), path, self.rule, self.dice))

    # ---- the end ----

    def close(self) -> None:
        """Release the lease and close the connections. May be called twice."""
        self._release(self.session.release())
        if self._is_owner:
            self._transport.close()

    def _release(self, script: ClientEffects[None]) -> None:
        if self._is_holder:
            self._is_holder = False
            with suppress(BoundaryError):  # then the lease ends by itself
                self._run(script)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _run(self, script: ClientEffects[T]) -> T:
        return ThreadRunner(self._transport, current_clock()).run(script)


class AsyncConsumer(ConsumerBase):
    """Reads a log under a durable name; see :class:`~ergon_framework.boundary.Consumer`.

    It belongs to one event loop. A run that is cancelled confirms what is done and lets go.
    """

    def __init__(
        self, node: str | AsyncTransport, consumer_name: str, **options: Unpack[FactConsumerOptions]
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
        self._running: TaskRunner | None = None

    # ---- one step at a time ----

    async def fetch(self, limit: int | None = None, wait: float = 0.0) -> Batch:
        """The page after the cursor, the same one until it is confirmed; takes the lease."""
        SECONDS_OR_ZERO.check("wait", wait)
        self._is_holder = True
        return await self._run(self.session.fetch(limit or self.limit, wait))

    async def confirm(self, offset: int) -> int:
        """Everything at or below ``offset`` is handled; the cursor then."""
        # A consumer that has fetched nothing holds no lease, and must not claim to hold one.
        session = self.session if self._is_holder else replace(self.session, holder=None)
        return await self._run(session.confirm(offset))

    async def seek(self, offset: int, reason: str) -> None:
        """Set the cursor, also backwards; the node writes down that it was done and why."""
        await self._run(self.session.seek(offset, reason))

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
        return await self._drive(run, TaskRunner(self._transport, is_stopped))

    def stop(self) -> None:
        """Stop a run. Facts being handled are finished and confirmed."""
        self._stopping.set()
        if self._running is not None:
            self._running.wake()

    async def _drive(self, run: ConsumeLoop, runner: TaskRunner) -> ConsumeReport:
        """Run it, with a second task that keeps the lease meanwhile."""
        renewer = asyncio.create_task(
            TaskRunner(self._transport).run(renew_lease(run.session, never)),
            name=f"ergon-lease-{self.name}",
        )
        self._running, self._is_holder = runner, True
        try:
            return await runner.run(run.script())
        finally:
            self._running = None
            self._stopping.clear()
            # Before the lease is released: a renewal that comes later would take it again.
            renewer.cancel()
            await asyncio.wait([renewer])
            await self._release(run.release())
            self._is_holder = False

    # ---- artifacts ----

    async def get_object(self, reference: Reference | Mapping[str, Any]) -> bytes:
        """The artifact that a part of ``object_json`` refers to, verified."""
        return await self._run(getting(reference_of(reference), self.rule, self.dice))

    async def open_object(self, reference: Reference | Mapping[str, Any]) -> IO[bytes]:
        """The object as a verified temporary file. Close it after use."""
        return await self._run(opening(reference_of(reference), self.rule, self.dice))

    async def save_object(
        self, reference: Reference | Mapping[str, Any], path: str | os.PathLike[str]
    ) -> Path:
        """Save the object to a file, which appears once it is complete and verified."""
        return await self._run(saving(reference_of(reference), path, self.rule, self.dice))

    # ---- the end ----

    async def close(self) -> None:
        """Release the lease and close the connections. May be called twice."""
        await self._release(self.session.release())
        if self._is_owner:
            await self._transport.close()

    async def _release(self, script: ClientEffects[None]) -> None:
        if self._is_holder:
            self._is_holder = False
            with suppress(BoundaryError):  # then the lease ends by itself
                await self._run(script)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _run(self, script: ClientEffects[T]) -> T:
        return await TaskRunner(self._transport).run(script)
