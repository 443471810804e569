"""The HTTP application of a zone: routing of requests to operations.

Appends are checked on the event loop, queued for the store's writer, and answered when their group
is on disk. Every other operation that touches a disk runs in a thread pool.

A fetch may wait for facts. A commit signals that some log has grown. One query finds which, and one
more for each view with waiting fetches whether it has new facts: fetches of other logs or views are
not woken, however many wait.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote

from ergon_framework.boundary.facts.validation import ValidatedFact, parse_append, parse_batch
from ergon_framework.boundary.http.codec import ZONE_HEADER
from ergon_framework.boundary.http.exchange import Caller, Exchange
from ergon_framework.boundary.http.responses import HttpRefusal
from ergon_framework.boundary.model import Receipt
from ergon_framework.boundary.node import contract, operations
from ergon_framework.boundary.node.metrics import metrics
from ergon_framework.boundary.node.objects_api import PREFIX, ObjectRoutes
from ergon_framework.boundary.node.operations import (
    ADMIN,
    CORE,
    OPERATIONS,
    Offload,
    Operation,
    at_least,
    check_use,
    consumer_name,
    demand,
    holder_name,
    lease_seconds,
)
from ergon_framework.boundary.node.policy import Permissions, Policy
from ergon_framework.boundary.node.wire import page_json
from ergon_framework.boundary.zone import PEER, LocalZone
from ergon_framework.errors import (
    BoundaryError,
    BoundaryNotFoundError,
    NodeUnavailableError,
    NotPermittedError,
    StoreError,
)
from ergon_framework.ports.factstore import OUTBOUND, AppendOutcome, FactStore, Fetched

NO_TOKEN = "no_token"  # noqa: S105 - a reason
LIVES = ("/healthz", "/livez")
READY = "/readyz"


def answer_liveness(exchange: Exchange, zone: str = "") -> None:
    """The process answers, so it is alive. The zone's name is public: it is also shown where facts
    are served.
    """
    headers = [(ZONE_HEADER, quote(zone, safe=""))] if zone else []
    exchange.reply(200, b'{"status":"ok"}', headers=headers)


async def ready(exchange: Exchange, is_ready: Callable[[], Awaitable[bool]]) -> None:
    """Answer whether the node accepts facts."""
    is_good = await is_ready()
    exchange.reply(200 if is_good else 503, b'{"ready":%b}' % str(is_good).lower().encode())


class HealthApplication:
    """Answers health probes, which have no certificate, and nothing else."""

    def __init__(self, is_ready: Callable[[], Awaitable[bool]]) -> None:
        self._is_ready = is_ready

    def is_streamed(self, method: str, path: str) -> bool:
        """No request is streamed."""
        return False

    def handle(self, exchange: Exchange) -> Coroutine[Any, Any, None] | None:
        """Answer, now or when the store has."""
        is_read = exchange.method in ("GET", "HEAD")
        if is_read and exchange.path in LIVES:
            answer_liveness(exchange)
            return None
        if is_read and exchange.path == READY:
            return ready(exchange, self._is_ready)
        raise BoundaryNotFoundError(
            f"there is nothing at {exchange.path[:200]}",
            code="unimplemented",
            reason="unknown_path",
            remedy="get /healthz or /readyz here; facts are served where the zone listens",
        )


class TokenApplication:
    """Passes requests on that carry a token, for callers of the same user on this machine.

    Plain HTTP on loopback is open to every user of the machine; the token is in a file that only
    the user of the node may read.
    """

    def __init__(self, application: NodeApplication, token: str) -> None:
        self._application = application
        self._expected = f"Bearer {token}".encode()
        self.asked_at = 0.0
        """When the last request came, on the clock of the event loop."""

    def is_streamed(self, method: str, path: str) -> bool:
        """Whether the application streams this request."""
        return self._application.is_streamed(method, path)

    def handle(self, exchange: Exchange) -> Coroutine[Any, Any, None] | None:
        """Refuse a caller without the token; pass on any other."""
        given = (exchange.header("authorization") or "").encode("latin-1", "replace")
        # Takes the same time for every wrong token, so that it cannot be guessed letter by letter.
        if not hmac.compare_digest(given, self._expected):
            raise NotPermittedError(
                f"this node of zone {self._application.zone.name} serves the processes of its own"
                " user",
                code="unauthenticated",
                reason=NO_TOKEN,
                remedy="ask it as that user, or write a table [zones.NAME] with an address and"
                " certificates",
            )
        self.asked_at = asyncio.get_running_loop().time()
        return self._application.handle(exchange)


View = tuple[str, str | None, int]
"""A log, whose facts of it, and up to where nothing was found."""


class WaitingFetch:
    """A fetch that waits, or is about to."""

    __slots__ = ("exchange", "group", "news")

    def __init__(self, exchange: Exchange, news: asyncio.Future[None]) -> None:
        self.exchange = exchange
        self.news = news
        self.group: FetchGroup | None = None
        """Those that wait for the same; None until it says what it waits for."""


class FetchGroup:
    """Fetches that wait for the same: a look at the store answers for all of them."""

    __slots__ = ("fetches", "view")

    def __init__(self, view: View) -> None:
        self.view = view
        self.fetches: set[WaitingFetch] = set()


class WaitingFetches:
    """The waiting fetches of a node. Lives on one event loop.

    A commit costs as much as there are views that are waited for, however many fetches wait for
    each, and a fetch that waits has no timer that looks after its client: one does for all.
    """

    def __init__(self, store: FactStore, in_thread: Offload) -> None:
        self._store = store
        self._in_thread = in_thread
        self._loop = asyncio.get_running_loop()
        self._fetches: set[WaitingFetch] = set()
        self._looking_fetches: set[WaitingFetch] = set()
        """Those that just look, maybe too early to see what comes now."""
        self._groups: dict[View, FetchGroup] = {}
        self._is_due = False
        self._looking: asyncio.Task[None] | None = None
        self._presence: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._fetches)

    @contextmanager
    def fetch(self, exchange: Exchange) -> Iterator[WaitingFetch]:
        """A fetch that is woken for anything until it says what it waits for."""
        fetch = WaitingFetch(exchange, self._loop.create_future())
        self._fetches.add(fetch)
        self._looking_fetches.add(fetch)
        if self._presence is None:
            self._presence = self._loop.call_later(PRESENCE_INTERVAL, self._check_presence)
        try:
            yield fetch
        finally:
            self._fetches.discard(fetch)
            self._looking_fetches.discard(fetch)
            self._leave_group(fetch)

    def has_seen(self, fetch: WaitingFetch, serving: Fetched) -> None:
        """Note up to which offset there was nothing for this fetch."""
        self._looking_fetches.discard(fetch)
        view = (serving.consumer.log, serving.consumer.to_zone, serving.page.through)
        fetch.group = group = self._groups.setdefault(view, FetchGroup(view))
        group.fetches.add(fetch)

    def wake_all(self) -> None:
        """Wake every fetch, so that it looks again."""
        for each in self._fetches:
            _wake(each)

    def look(self) -> None:
        """Wake the fetches that wait for a log that has grown."""
        self._is_due = True
        # One look at a time: what comes meanwhile is looked at by the same task.
        if self._looking is None or self._looking.done():
            self._looking = self._loop.create_task(self._look(), name="wake fetches")

    async def close(self) -> None:
        """Stop looking for new facts, and for clients that have gone."""
        if self._presence is not None:
            self._presence.cancel()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _look(self) -> None:
        while self._is_due and self._fetches:
            # Before the store is asked: a commit during the question sets it again.
            self._is_due = False
            for each in self._looking_fetches:
                _wake(each)
            waiting = set(self._groups)
            if not waiting:
                continue
            try:
                found = await self._in_thread(partial(_grown_views, self._store, waiting))
            except (StoreError, BoundaryError):
                self.wake_all()  # each fetch gets the error itself
                continue
            for view, through in found.items():
                # By what it had seen when the store was asked: it may have moved on since.
                group = self._groups.pop(view, None)
                if group is None:
                    continue
                if through is None:
                    self._wake_group(group)
                else:
                    self._move_on(group, through)

    def _wake_group(self, group: FetchGroup) -> None:
        for each in group.fetches:
            each.group = None
            _wake(each)

    def _move_on(self, group: FetchGroup, through: int) -> None:
        """Note up to which offset there is nothing for the fetches of a group."""
        log, to_zone, _ = group.view
        group.view = (log, to_zone, through)
        there = self._groups.setdefault(group.view, group)
        if there is not group:
            few, many = sorted((group, there), key=lambda each: len(each.fetches))
            many.fetches |= few.fetches
            for each in few.fetches:
                each.group = many
            self._groups[many.view] = many

    def _leave_group(self, fetch: WaitingFetch) -> None:
        group, fetch.group = fetch.group, None
        if group is not None:
            group.fetches.discard(fetch)
            if not group.fetches:
                del self._groups[group.view]

    def _check_presence(self) -> None:
        """Wake the fetches whose clients went away.

        There is no signal of that while there is nothing to write to them.
        """
        for each in self._fetches:
            if each.exchange.is_gone:
                _wake(each)
        self._presence = (
            self._loop.call_later(PRESENCE_INTERVAL, self._check_presence)
            if self._fetches
            else None
        )


def _grown_views(store: FactStore, waiting: set[View]) -> dict[View, int | None]:
    """For each view whose log has grown: the offset up to which it has nothing new, or None if it
    has.
    """
    heads = {each.name: each.head for each in store.logs()}
    found: dict[View, int | None] = {}
    for log, to_zone, seen in waiting:
        if heads.get(log, 0) <= seen:
            continue
        page = None if to_zone is None else store.page(log, seen, 1, 1, to_zone)
        is_empty = page is not None and not page.facts and not page.gaps
        found[log, to_zone, seen] = page.through if page is not None and is_empty else None
    return found


def _wake(fetch: WaitingFetch) -> None:
    if not fetch.news.done():
        fetch.news.set_result(None)


T = TypeVar("T")
PendingAppend: TypeAlias = tuple[Exchange, ValidatedFact, float]
"""An append on its way to disk, and when it came."""


class AppendRoutes:
    """Implements ``AppendFact`` and ``AppendFacts``. Lives on an event loop."""

    def __init__(
        self,
        zone: LocalZone,
        in_thread: Offload,
        permitted: Callable[[Caller, str], Permissions],
        denied: Callable[[Caller, str], None],
    ) -> None:
        self._zone = zone
        self._in_thread = in_thread
        self._permitted = permitted
        self._denied = denied
        self._loop = asyncio.get_running_loop()
        self._gathered: list[PendingAppend] = []

    def append(self, exchange: Exchange) -> Coroutine[Any, Any, None] | None:
        """Append one fact. It is answered when its commit group is on disk."""
        began = perf_counter()
        zone = self._zone
        zone.events.count("appends")
        permit = self._permitted(exchange.caller, "AppendFact")
        try:
            valid = zone.validate(*parse_append(exchange.body, zone.settings.limits))
            if not permit.is_free:
                self._check_zones(permit, exchange.caller, valid)
        except BoundaryError as error:
            zone.answering.refused(error)
            raise
        new = zone.prepared(valid)
        if new.references:
            return self._append_with_artifacts(exchange, valid, began)
        self._gathered.append((exchange, valid, began))
        # The first of a turn submits for all that follow in the same turn.
        if len(self._gathered) == 1:
            self._loop.call_soon(self._submit)
        return None

    def _submit(self) -> None:
        """Submit the appends that arrived in one turn of the loop to the writer together."""
        gathered, self._gathered = self._gathered, []
        facts = [valid.new_fact for _exchange, valid, _began in gathered]
        done = partial(self._appended, gathered)
        try:
            self._zone.store.append_soon(OUTBOUND, facts, done, capacity=self._zone.capacity)
        except StoreError as error:
            self._answer(gathered, error)

    async def _append_with_artifacts(
        self, exchange: Exchange, valid: ValidatedFact, began: float
    ) -> None:
        """An append whose artifacts must be on disk, where they have to be looked for first."""
        zone, loop = self._zone, self._loop
        new = valid.new_fact
        try:
            # Artifacts are looked for on a disk, which may take long; the event loop goes on
            # meanwhile.
            await self._in_thread(lambda: zone.check_bytes(new))
        except BoundaryError as error:
            zone.answering.refused(error, new)
            raise
        committed: asyncio.Future[list[AppendOutcome] | BaseException] = loop.create_future()
        zone.store.append_soon(
            OUTBOUND,
            [new],
            lambda outcomes: _put_from_thread(loop, committed, outcomes),
            capacity=zone.capacity,
        )
        outcomes = await committed
        outcome = outcomes[0] if isinstance(outcomes, list) else outcomes
        seconds = perf_counter() - began
        self._reply(exchange, valid, outcome, seconds)
        zone.events.append_seconds.add(seconds)

    def _appended(
        self, gathered: list[PendingAppend], result: list[AppendOutcome] | BaseException
    ) -> None:
        """Called in the writer's thread, once per commit group."""
        self._loop.call_soon_threadsafe(self._answer, gathered, result)

    def _answer(
        self, gathered: list[PendingAppend], result: list[AppendOutcome] | BaseException
    ) -> None:
        outcomes = result if isinstance(result, list) else [result] * len(gathered)
        now, seen = perf_counter(), self._zone.events.append_seconds
        for (exchange, valid, began), outcome in zip(gathered, outcomes, strict=True):
            self._reply(exchange, valid, outcome, now - began)
            seen.add(now - began)

    def _reply(
        self,
        exchange: Exchange,
        valid: ValidatedFact,
        outcome: AppendOutcome | BaseException,
        seconds: float,
    ) -> None:
        if isinstance(outcome, BaseException):
            error = (
                self._zone.failed(outcome, is_append=True)
                if isinstance(outcome, StoreError)
                else outcome
            )
            exchange.fail(error)
            return
        answer = self._zone.answering.one(valid, outcome, seconds)
        if isinstance(answer, BoundaryError):
            exchange.fail(answer)
            return
        exchange.reply(200, _shown(answer))

    def _check_zones(self, permit: Permissions, caller: Caller, valid: ValidatedFact) -> None:
        fact = valid.new_fact
        is_allowed = permit.may_assert(fact.from_zone)
        if not is_allowed or not permit.may_target(fact.to_zone):
            self._zone.events.count("denied", "zone")
            self._denied(caller, "AppendFact")
        demand(
            is_allowed,
            permit,
            f"speak for zone {fact.from_zone!r}",
            field="envelope.from_zone",
        )
        demand(
            permit.may_target(fact.to_zone),
            permit,
            f"address zone {fact.to_zone!r}",
            field="envelope.to_zone",
        )
        for bucket in {each.bucket for each in fact.references}:
            demand(permit.may_use_bucket(bucket), permit, f"use the bucket {bucket}", bucket=bucket)

    async def append_all(self, exchange: Exchange) -> None:
        """Append facts in order in one commit, each with an outcome of its own."""
        began = perf_counter()
        permit = self._permitted(exchange.caller, "AppendFacts")
        count, answer = await self._in_thread(
            lambda: self._append_batch(permit, exchange.caller, exchange.body)
        )
        exchange.reply(200, answer)
        self._zone.events.append_seconds.add(perf_counter() - began, count)

    def _append_batch(self, permit: Permissions, caller: Caller, body: bytes) -> tuple[int, bytes]:
        """Append a batch; returns the number of its facts, and the answer."""
        zone = self._zone
        items = parse_batch(body, zone.settings.limits)
        zone.events.count("appends", times=len(items))
        validated: list[ValidatedFact | BoundaryError] = []
        for item in items:
            try:
                if isinstance(item, BoundaryError):
                    raise item
                valid = zone.validate(*item)
                self._check_zones(permit, caller, valid)
                zone.check_bytes(zone.prepared(valid))
                validated.append(valid)
            except BoundaryError as error:
                zone.answering.refused(error)
                validated.append(error)
        answers = zone.append_all(validated)
        return len(answers), b'{"results":[%b]}' % b",".join(map(_shown, answers))


def _shown(answer: Receipt | BoundaryError) -> bytes:
    """An answer as JSON."""
    if isinstance(answer, BoundaryError):
        return json.dumps({"error": answer.to_dict()}).encode()
    duplicate = b"true" if answer.duplicate else b"false"
    return b'{"offset":%d,"duplicate":%b,"digest":"%b"}' % (
        answer.offset,
        duplicate,
        answer.digest.encode(),
    )


def _put_from_thread(loop: asyncio.AbstractEventLoop, to: asyncio.Future[T], value: T) -> None:
    """Hand a value over from another thread."""
    # The request may have been cancelled while the writer worked.
    loop.call_soon_threadsafe(lambda: None if to.done() else to.set_result(value))


APPEND, APPENDS, FETCH = f"/{CORE}/AppendFact", f"/{ADMIN}/AppendFacts", f"/{CORE}/FetchFacts"
PRESENCE_INTERVAL = 1.0
"""Seconds between two looks whether a client that waits for facts is still there."""
MIN_RENEW_INTERVAL = 0.1
"""Seconds between two renewals of a lease at least, however short it is."""
MAX_THREADS = 8
"""The most threads for work that waits on a disk, other than appends."""
_PROBE_TIMEOUT = 2.0  # seconds for the store to answer a probe
_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class NodeApplication:
    """Serves one zone. Lives on the event loop it was made on; ``close`` when it is done."""

    def __init__(
        self,
        zone: LocalZone,
        policy: Callable[[], Policy],
        *,
        on_contact: Callable[[str], None] = lambda _peer: None,
        threads: int = MAX_THREADS,
    ) -> None:
        self.zone = zone
        self.is_ready = True
        self._policy = policy
        self._on_contact = on_contact
        self._loop = asyncio.get_running_loop()
        self._threads = (
            ThreadPoolExecutor(threads, thread_name_prefix="ergon-boundary") if threads else None
        )
        self._objects = ObjectRoutes(zone, self.in_thread, self.permitted)
        self._appends = AppendRoutes(zone, self.in_thread, self.permitted, self.denied)
        self._waiting = WaitingFetches(zone.store, self.in_thread)
        # Last: from here on commits of other threads call in.
        zone.store.subscribe(self._grown_views)

    async def close(self) -> None:
        """Stop the threads."""
        self.zone.store.unsubscribe(self._grown_views)
        await self._waiting.close()
        if self._threads is not None:
            # By another pool: a thread of this one cannot wait for its own end.
            await self._loop.run_in_executor(None, self._threads.shutdown)

    @property
    def waiting_fetches(self) -> int:
        """Fetches of clients that wait for facts."""
        return len(self._waiting)

    def release(self) -> None:
        """Answer every waiting fetch at once."""
        self._waiting.wake_all()

    # ---- what the server calls ----

    def is_streamed(self, method: str, path: str) -> bool:
        """Blobs are streamed."""
        return method == "PUT" and path.startswith(PREFIX)

    def handle(self, exchange: Exchange) -> Coroutine[Any, Any, None] | None:
        """Answer, now or later."""
        if exchange.path == APPEND and exchange.method == "POST":
            work = self._appends.append(exchange)
            # Most appends are answered without a task of their own.
            return None if work is None else self._guarded(lambda: work)
        return self._guarded(lambda: self._begun(exchange))

    async def _guarded(self, begin: Callable[[], Coroutine[Any, Any, None] | None]) -> None:
        """Answer errors of a store as errors of the node."""
        try:
            work = begin()  # only now: one that is cancelled before it starts leaves nothing behind
            if work is not None:
                await work
        except BoundaryError:
            raise  # an answer, even if it is about a store
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

    def permitted(self, caller: Caller, operation: str) -> Permissions:
        """What the caller may do, when it includes this operation."""
        permit = self._policy().permit(caller.identity)
        if permit is None:
            code = "permission_denied" if caller.identity else "unauthenticated"
            self.zone.events.count("denied", code)
            self.denied(caller, operation)
            raise NotPermittedError(
                f"the policy of zone {self.zone.name} does not know"
                f" {caller.identity or 'anonymous callers'}",
                code=code,
                reason="unknown_identity",
                remedy="an operator of this zone may add it to the policy file",
            )
        if not permit.allows_operation(operation):
            self.zone.events.count("denied", "operation")
            self.denied(caller, operation)
            demand(False, permit, f"call {operation}", operation=operation)
        return permit

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run something that waits on a disk; without threads, right here."""
        if self._threads is None:
            return work()
        try:
            running = self._loop.run_in_executor(self._threads, work)
        except RuntimeError as error:  # the process ends, and starts no threads any more
            raise NodeUnavailableError(
                f"the node of zone {self.zone.name} stops", reason="stopping", remedy="try again"
            ) from error
        try:
            # Shielded: a client that leaves must not cancel a write half way.
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])  # what it works on may be closed next
            raise

    def denied(self, caller: Caller, operation: str) -> None:
        """Report a client that was refused, and what it asked for."""
        self.zone.events.warn_in_sums(
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
        asked = operations.read(exchange.body, operations.FetchFacts)
        name = consumer_name(asked.consumer_name)
        # A caller that may use every log needs no look at the consumer, which would cost a thread.
        if permit.logs.is_all:
            check_use(self.zone, permit, name)  # which looks nothing up, then
        else:
            await self.in_thread(lambda: check_use(self.zone, permit, name))
        if name.startswith(PEER):
            self._on_contact(name.removeprefix(PEER))
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
        # A fetch without a holder has no lease that could end while it waits.
        renewal = math.inf if holder is None else _renewal(lease or self.zone.settings.lease)
        serving = await self._serve(exchange, serve, wait, renewal)
        epoch = await self.in_thread(lambda: self.zone.store.info().epoch)
        exchange.reply(200, page_json(serving, epoch, self.zone.name))

    async def _serve(
        self, exchange: Exchange, serve: Callable[[], Fetched], wait: float, renewal: float
    ) -> Fetched:
        """A page, waited for if there is none yet.

        Each look renews the lease of the holder that waits: otherwise another consumer could take
        the name, and this one would be answered as if it still held it.
        """
        until = self._loop.time() + wait
        while True:
            # Before looking: what comes meanwhile is noticed.
            with self._waiting.fetch(exchange) as fetch:
                serving = await self.in_thread(serve)
                if serving.page.facts or serving.page.gaps:
                    return serving
                self._waiting.has_seen(fetch, serving)
                await self._wait(exchange, fetch.news, min(until, self._loop.time() + renewal))
                if not (fetch.news.done() or self._loop.time() < until) or self._is_over(exchange):
                    return serving

    async def _wait(self, exchange: Exchange, news: asyncio.Future[None], until: float) -> None:
        """Wait for facts; not for longer than the client does, which is looked after for us."""
        left = until - self._loop.time()
        if left > 0 and not self._is_over(exchange):
            await asyncio.wait([news], timeout=left)

    def _is_over(self, exchange: Exchange) -> bool:
        """Whether the wait has lost its purpose: the node stops, or the client has gone."""
        return not self.is_ready or exchange.is_gone

    def _grown_views(self) -> None:
        """Called in the writer's thread, after a commit that added facts."""
        if self._waiting:
            self._loop.call_soon_threadsafe(self._waiting.look)

    # ---- the rest ----

    async def _operate(self, operation: Operation, exchange: Exchange) -> None:
        permit = self.permitted(exchange.caller, operation.name)
        asked = operations.read(exchange.body, operation.kind)
        view = await self.in_thread(lambda: operation.run(self.zone, permit, asked))
        exchange.reply(200, json.dumps(view).encode())
        # These change what a waiting consumer or link would see: they must look again.
        if operation.name in ("Open", "AcceptEpoch", "ReleaseQuarantine", "Seal", "SeekConsumer"):
            self._on_contact("")
            self._waiting.wake_all()

    def _get(self, exchange: Exchange) -> Coroutine[Any, Any, None] | None:
        if exchange.path in LIVES:
            answer_liveness(exchange, self.zone.name)
        elif exchange.path == READY:
            return ready(exchange, self.takes_facts)
        elif exchange.path == "/metrics":
            return self._metrics(exchange)
        elif exchange.path in contract.DOCUMENTS:
            kind, text = contract.document(exchange.path)
            exchange.reply(200, text, content_type=kind)
        else:
            raise _no_such(exchange)
        return None

    async def takes_facts(self) -> bool:
        """Whether an append would be accepted, as far as that is known without one."""
        if not self.is_ready:
            return False
        try:  # soon enough for a probe
            return await asyncio.wait_for(self.in_thread(self.zone.takes_facts), _PROBE_TIMEOUT)
        except (StoreError, BoundaryError, TimeoutError):
            return False

    async def _metrics(self, exchange: Exchange) -> None:
        self.permitted(exchange.caller, "GetMetrics")
        text = await self.in_thread(lambda: metrics(self.zone))
        exchange.reply(200, text.encode(), content_type=_TEXT)


def _renewal(lease: float) -> float:
    """Seconds after which a lease is renewed while its holder waits for facts."""
    return max(lease / 3, MIN_RENEW_INTERVAL)


def _no_such(exchange: Exchange) -> BoundaryError:
    if exchange.path[1:] in OPERATIONS or exchange.path in (APPEND, APPENDS, FETCH):
        message = f"{exchange.path} is called with POST, not with {exchange.method}"
        return HttpRefusal(405, "unimplemented", "method", message, remedy="use POST")
    return BoundaryNotFoundError(
        f"there is nothing at {exchange.path[:200]}",
        code="unimplemented",
        reason="unknown_path",
        remedy="see /openapi.json for what there is",
    )
