"""The zone behind HTTP: which request is which operation.

Appends take the short way: they are checked on the event loop, queued for the store's writer, and
answered when the group they went into is on disk. What else touches a disk runs in a few threads.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from ergon_framework.boundary.http.exchange import Caller, Exchange
from ergon_framework.boundary.http.responses import Refusal
from ergon_framework.boundary.serving import contract, health, requests
from ergon_framework.boundary.serving.append_routes import AppendRoutes
from ergon_framework.boundary.serving.metrics import metrics
from ergon_framework.boundary.serving.object_names import PREFIX
from ergon_framework.boundary.serving.object_routes import ObjectRoutes
from ergon_framework.boundary.serving.operations import (
    ADMIN,
    CORE,
    OPERATIONS,
    Operation,
    check_use,
    demand,
)
from ergon_framework.boundary.serving.pages import page_json
from ergon_framework.boundary.serving.policy import Permit, Policy
from ergon_framework.boundary.serving.requests import (
    at_least,
    consumer_name,
    holder_name,
    lease_seconds,
)
from ergon_framework.boundary.serving.waiting import WaitingFetches
from ergon_framework.boundary.zone import PEER, Zone
from ergon_framework.errors import (
    BoundaryError,
    BoundaryNotFoundError,
    NotPermittedError,
    StoreError,
)
from ergon_framework.ports.factstore import Serving

T = TypeVar("T")

APPEND, APPENDS, FETCH = f"/{CORE}/AppendFact", f"/{ADMIN}/AppendFacts", f"/{CORE}/FetchFacts"
LOOKING = 1.0
"""Seconds between two looks whether a client that waits for facts is still there."""
SOONEST = 0.1
"""Seconds between two renewals of a lease at least, however short it is."""
THREADS = 8
"""For what waits on a disk, appends aside."""
_PROBED = 2.0  # seconds for the store to answer a probe
_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class NodeApplication:
    """Serves one zone. Lives on the event loop it was made on; ``close`` when it is done."""

    def __init__(
        self,
        zone: Zone,
        policy: Callable[[], Policy],
        *,
        heard: Callable[[str], None] = lambda _peer: None,
        threads: int = THREADS,
    ) -> None:
        self.zone = zone
        self.is_ready = True
        self._policy = policy
        self._heard = heard
        self._loop = asyncio.get_running_loop()
        self._threads = (
            ThreadPoolExecutor(threads, thread_name_prefix="ergon-boundary") if threads else None
        )
        self._objects = ObjectRoutes(zone, self.in_thread, self.permitted)
        self._appends = AppendRoutes(zone, self.in_thread, self.permitted, self.denied)
        self._waiting = WaitingFetches(zone.store, self.in_thread)
        zone.store.subscribe(self._news)

    async def close(self) -> None:
        """Let the threads end."""
        self.zone.store.unsubscribe(self._news)
        await self._waiting.close()
        if self._threads is not None:
            await self._loop.run_in_executor(None, self._threads.shutdown)

    def release(self) -> None:
        """Let every fetch that waits for facts answer at once."""
        self._waiting.wake_all()

    # ---- what the server calls ----

    def is_streamed(self, method: str, path: str) -> bool:
        """Blobs are streamed."""
        return method == "PUT" and path.startswith(PREFIX)

    def handle(self, exchange: Exchange) -> Coroutine[Any, Any, None] | None:
        """Answer, now or later."""
        if exchange.path == APPEND and exchange.method == "POST":
            work = self._appends.append(exchange)
            return None if work is None else self._guarded(lambda: work)
        return self._guarded(lambda: self._begun(exchange))

    async def _guarded(self, begin: Callable[[], Coroutine[Any, Any, None] | None]) -> None:
        """Trouble of a store is answered as such."""
        try:
            work = begin()  # only now: one that is cancelled before it starts leaves nothing behind
            if work is not None:
                await work
        except StoreError as error:
            raise self.zone.failed(error) from error

    def _begun(self, exchange: Exchange) -> Coroutine[Any, Any, None] | None:
        path = exchange.path
        if path.startswith(PREFIX):
            return self._objects.handle(exchange)
        if exchange.method in ("GET", "HEAD"):
            return self._get(exchange)
        if exchange.method != "POST":
            raise _no_such(exchange)
        if path == FETCH:
            return self._fetch(exchange)
        if path == APPENDS:
            return self._appends.append_all(exchange)
        operation = OPERATIONS.get(path[1:])
        if operation is None:
            raise _no_such(exchange)
        return self._operate(operation, exchange)

    def permitted(self, caller: Caller, operation: str) -> Permit:
        """What the caller may do, when it includes this operation."""
        permit = self._policy().permit(caller.identity)
        if permit is None:
            code = "permission_denied" if caller.identity else "unauthenticated"
            self.zone.telling.count("denied", code)
            self.denied(caller, operation)
            raise NotPermittedError(
                f"the policy of zone {self.zone.name} does not know"
                f" {caller.identity or 'anonymous callers'}",
                code=code,
                reason="unknown_identity",
                remedy="an operator of this zone may add it to the policy file",
            )
        if not permit.allows_operation(operation):
            self.zone.telling.count("denied", "operation")
            self.denied(caller, operation)
            demand(False, permit, f"call {operation}", operation=operation)
        return permit

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run something that waits on a disk; without threads, right here."""
        if self._threads is None:
            return work()
        running = self._loop.run_in_executor(self._threads, work)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])  # what it works on may be closed next
            raise

    def denied(self, caller: Caller, operation: str) -> None:
        """Tell who was refused what."""
        self.zone.telling.warn_in_sums(
            f"{caller.identity} {operation}",
            "call.denied",
            f"{caller.identity or 'an anonymous caller'} at {caller.address} may not {operation}",
            identity=caller.identity,
            operation=operation,
            address=caller.address,
        )

    # ---- fetches ----

    async def _fetch(self, exchange: Exchange) -> None:
        permit = self.permitted(exchange.caller, "FetchFacts")
        asked = requests.read(exchange.body, requests.FetchFacts)
        name = consumer_name(asked.consumer_name)
        if permit.logs.is_all:
            check_use(self.zone, permit, name)  # which looks nothing up, then
        else:
            await self.in_thread(lambda: check_use(self.zone, permit, name))
        if name.startswith(PEER):
            self._heard(name.removeprefix(PEER))
        limits = self.zone.settings.limits
        wait = min(at_least("wait_ms", asked.wait_ms, 0) / 1000, limits.wait_seconds)
        holder = holder_name(asked.holder)
        lease = None if asked.lease_ms is None else lease_seconds(asked.lease_ms)
        serve = partial(
            self.zone.serve,
            name,
            at_least("limit", asked.limit, 1),
            None if asked.max_bytes is None else at_least("max_bytes", asked.max_bytes, 1),
            holder,
            lease,
        )
        renewal = math.inf if holder is None else _renewal(lease or self.zone.settings.lease)
        serving = await self._serve(exchange, serve, wait, renewal)
        epoch = await self.in_thread(lambda: self.zone.store.info().epoch)
        exchange.reply(200, page_json(serving, epoch, self.zone.name))

    async def _serve(
        self, exchange: Exchange, serve: Callable[[], Serving], wait: float, renewal: float
    ) -> Serving:
        """A page, waited for if there is none yet.

        Each look renews the lease of the holder that waits: it would lose its name otherwise to
        whoever asks, and be answered as if it still held it.
        """
        until = self._loop.time() + wait
        while True:
            with self._waiting.fetch() as fetch:  # before looking: what comes meanwhile is noticed
                serving = await self.in_thread(serve)
                if serving.page.facts or serving.page.gaps:
                    return serving
                fetch.has_seen(serving)
                await self._wait(exchange, fetch.news, min(until, self._loop.time() + renewal))
                if not (fetch.news.done() or self._loop.time() < until) or self._is_over(exchange):
                    return serving

    async def _wait(self, exchange: Exchange, news: asyncio.Future[None], until: float) -> None:
        """Wait for facts; not for longer than the client does."""
        while not news.done() and not self._is_over(exchange):
            left = until - self._loop.time()
            if left <= 0:
                return
            await asyncio.wait([news], timeout=min(left, LOOKING))

    def _is_over(self, exchange: Exchange) -> bool:
        """Whether nobody waits any more: the node stops, or the client has gone."""
        return not self.is_ready or exchange.is_gone

    def _news(self) -> None:
        """In the writer's thread, after a commit that added facts."""
        if self._waiting:
            self._loop.call_soon_threadsafe(self._waiting.look)

    # ---- the rest ----

    async def _operate(self, operation: Operation, exchange: Exchange) -> None:
        permit = self.permitted(exchange.caller, operation.name)
        asked = requests.read(exchange.body, operation.shape)
        shape = await self.in_thread(lambda: operation.run(self.zone, permit, asked))
        exchange.reply(200, json.dumps(shape).encode())
        if operation.name in ("Open", "AcceptEpoch", "ReleaseQuarantine", "Seal", "SeekConsumer"):
            self._heard("")
            self._waiting.wake_all()

    def _get(self, exchange: Exchange) -> Coroutine[Any, Any, None] | None:
        if exchange.path in health.LIVES:
            health.lives(exchange)
        elif exchange.path == health.READY:
            return health.ready(exchange, self.takes_facts)
        elif exchange.path == "/metrics":
            return self._metrics(exchange)
        elif exchange.path in contract.DOCUMENTS:
            kind, text = contract.document(exchange.path)
            exchange.reply(200, text, content_type=kind)
        else:
            raise _no_such(exchange)
        return None

    async def takes_facts(self) -> bool:
        """Whether an append would be taken, as far as can be told without one."""
        if not self.is_ready:
            return False
        try:  # soon enough for a probe
            return await asyncio.wait_for(self.in_thread(self.zone.takes_facts), _PROBED)
        except (StoreError, BoundaryError, TimeoutError):
            return False

    async def _metrics(self, exchange: Exchange) -> None:
        self.permitted(exchange.caller, "GetMetrics")
        text = await self.in_thread(lambda: metrics(self.zone))
        exchange.reply(200, text.encode(), content_type=_TEXT)


def _renewal(lease: float) -> float:
    """Seconds after which a lease is renewed while its holder waits for facts."""
    return max(lease / 3, SOONEST)


def _no_such(exchange: Exchange) -> BoundaryError:
    if exchange.path[1:] in OPERATIONS or exchange.path in (APPEND, APPENDS, FETCH):
        told = f"{exchange.path} is called with POST, not with {exchange.method}"
        return Refusal(405, "unimplemented", "method", told, remedy="use POST")
    return BoundaryNotFoundError(
        f"there is nothing at {exchange.path[:200]}",
        code="unimplemented",
        reason="unknown_path",
        remedy="see /openapi.json for what there is",
    )
