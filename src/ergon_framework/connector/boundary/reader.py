"""The consuming half of the connector: what is read, handed out, settled and confirmed.

One exchange with the node at a time: a confirmation that overtook a page on its way here would also
cover facts of that page.

A node counts the processes to which it gave the fact after the cursor and which never came back.
The count says that processes died, but not of which fact. So the facts of such a page are handed
out one by one, and when the first one is settled by a process that lives, whatever its outcome, its
count begins anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from ergon_framework.boundary.client.consume_effects import (
    CRASH_LOOP,
    HANDLER_FAILED,
    MAX_MESSAGE,
    ConsumerSession,
    renew_lease,
)
from ergon_framework.boundary.client.effects import (
    ClientEffects,
    Now,
    Pause,
    TaskRunner,
    ThreadRunner,
)
from ergon_framework.boundary.model import Batch, Loss
from ergon_framework.connector.base import DroppedDeliveries
from ergon_framework.connector.boundary.link import FactPassedError, NodeLink
from ergon_framework.connector.boundary.window import (
    Confirm,
    EntryState,
    SetAside,
    Window,
    WindowEntry,
    WindowStep,
)
from ergon_framework.core.retry import Backoff
from ergon_framework.engine.clocks import current_clock
from ergon_framework.errors import (
    BoundaryError,
    ConfigurationError,
    ConsumerHeldError,
    WiringError,
)
from ergon_framework.storage.failpoints import declare, failpoint

logger = logging.getLogger("ergon_framework.connector.boundary.reading")

declare("connector.boundary.confirming.before", "connector.boundary.confirming.after")

EMPTY_BACKOFF = Backoff(base=0.25, cap=2.0)
"""Seconds between two reads of a node that only has facts which were read already."""
MAX_WAIT = 1.0
"""Seconds within which a waiting fetch, here or at the node, notices that it was stopped."""
MIN_DEATHS = 2
"""How many processes must die before a fact is blamed: the first may have died of another fact."""


class FactReader:
    """Reads facts under one consumer's name and confirms them, as scripts that do no I/O.

    ``Driver`` runs the scripts, one at a time: a fetch and a confirmation never overlap.
    """

    def __init__(
        self,
        session: ConsumerSession,
        limit: int,
        max_deliveries: int,
        on_gap: Callable[[Loss], Any],
    ) -> None:
        self.session = session
        # One attempt per fetch, because the task's own policy retries a failed fetch.
        self._asking = replace(session, rule=replace(session.rule, attempts=1))
        self._limit = limit
        self._max_deliveries = max_deliveries
        self._on_gap = on_gap
        self._window = Window()
        self._lock = threading.Lock()
        # A fetch failed after it was sent: the node may have sent facts that never arrived. They
        # are requested again before anything is confirmed, because pages begin at the cursor.
        self._is_unsure = False
        # The lease was released for a moment, in which another process may have taken the name.
        self._is_adrift = False
        # A fact with which processes had died, and that was settled by a live one this time.
        self._survivor: WindowEntry | None = None
        self.dropped: DroppedDeliveries[WindowEntry] = DroppedDeliveries()

    # ---- reading ----

    def fetch(
        self, most: int, wait: float, is_called_off: Callable[[], bool]
    ) -> ClientEffects[list[WindowEntry]]:
        """Up to so many facts, in order: first those that came back, then new ones.

        A fetch that is stopped ends as soon as it notices.
        """
        yield from self._catch_up()
        until = (yield Now()) + wait
        pauses = 0
        while True:
            taken = self._take(most, (yield Now()))
            room = self._limit - len(self._window)
            if taken:
                return taken
            found, asked_at = 0, (yield Now())
            # Confirmations wait for this turn, so with facts in hand the node must not be waited
            # for.
            node_wait = 0.0 if self._window.in_hand or is_called_off() else until - asked_at
            node_wait = min(max(0.0, node_wait), MAX_WAIT)
            if room > 0:
                found = yield from self._read(min(most, room), node_wait)
                yield from self.advance()
                taken = self._take(most, (yield Now()))
            now = yield Now()
            is_over = now >= until or is_called_off()
            if taken or self._window.in_hand or (is_over and not found):
                return taken
            # The node must not wait while parked facts lie after the cursor.
            if not found and now - asked_at < node_wait / 2:
                due = min(until - now, EMPTY_BACKOFF.delay(pauses), self._window.next_due(now))
                yield from _waiting(now + due, is_called_off)
                pauses += 1

    def _catch_up(self) -> ClientEffects[None]:
        """Confirm what can be confirmed, before new facts are handed out."""
        if self.session.standing.lost is not None:
            with self._lock:
                self._window.clear()
            return
        if self._is_adrift:
            yield from self._read(0 if len(self._window) else 1, 0.0)
        yield from self.advance()
        yield from self._reset_delivery_count()

    def _take(self, most: int, now: float) -> list[WindowEntry]:
        with self._lock:
            # Dropped without being settled: delivered again after the time of a lease.
            for entry in self.dropped.take():
                if entry.state is EntryState.IN_HAND:
                    entry.state, entry.not_before = EntryState.WAITING, now + self.session.lease
                    logger.warning(
                        "nobody has the fact at %d any more; it comes again", entry.offset
                    )
            return self._window.take(most, now)

    def _read(self, more: int, wait: float) -> ClientEffects[int]:
        """Read what comes after the known facts. Returns how many facts that were. Pages begin at
        the cursor.
        """
        self._is_unsure = True
        try:
            batch: Batch = yield from self._asking.fetch(len(self._window) + more, wait)
        except ConsumerHeldError as error:
            self.session.standing.lost = error
            raise
        self._is_unsure = self._is_adrift = False
        facts = batch.facts
        is_released = bool(facts) and facts[0].released
        with self._lock:
            found = [each for each in _entries(batch, is_released) if not self._window.knows(each)]
            self._window.extend(found, batch.cursor)
            first = next((each for each in found if facts and each.delivery is facts[0]), None)
            # Only a fact that is new and alone in hand can be what earlier processes died of.
            if first is not None and not is_released and not self._window.in_hand:
                self._hand_out_singly(first, batch.deliveries - 1, batch.through_offset)
        for loss in batch.gaps:
            if any(each.offset == loss.last_offset and each.delivery is None for each in found):
                self._on_gap(loss)
        return len(found)

    def _hand_out_singly(self, first: WindowEntry, deaths: int, through: int) -> None:
        """Hand the facts of a page out one by one, because earlier processes died with it.

        A fact with which too many processes died is set aside instead of being tried again.
        """
        if deaths <= 0:
            return
        first.deaths = deaths
        self._window.one_at_a_time_until = max(self._window.one_at_a_time_until, through)
        if deaths >= max(self._max_deliveries, MIN_DEATHS):
            text = f"given to {deaths} processes before, none of which came back"
            first.state, first.code, first.reason = EntryState.FAILED, CRASH_LOOP, text

    def _reset_delivery_count(self) -> ClientEffects[None]:
        """Release the lease and take it again, so that the node's count of deliveries starts over.

        Only while nothing is in hand, because another process may take the name in between.
        """
        entry = self._survivor
        if entry is None or self._window.in_hand:
            return
        self._survivor = None
        if entry.state is not EntryState.WAITING:  # It was settled since: the cursor has moved.
            return
        self._is_unsure = self._is_adrift = True
        try:
            yield from self.session.release()
        except BoundaryError as error:
            logger.warning("the consumer %r could not let go: %s", self.session.name, error)
        yield from self._read(0, 0.0)

    # ---- settling ----

    def note(
        self, entry: WindowEntry, state: EntryState, reason: str = "", not_before: float = 0.0
    ) -> None:
        """Record the outcome of a fact; :meth:`advance` tells the node as much as it can."""
        self.dropped.forget(entry)
        with self._lock:
            if entry.told_as is state:  # It was confirmed with another fact since this was tried.
                return
            if entry.state is EntryState.GONE:
                raise FactPassedError(
                    f"the fact at {entry.offset} is no longer in this process's hands",
                    remedy="nothing to do: whoever has the consumer's name now has its outcome",
                    details={"offset": entry.offset, "consumer_name": self.session.name},
                )
            if entry.deaths:
                entry.deaths, self._survivor = 0, entry
            entry.state, entry.not_before = state, not_before
            entry.code, entry.reason = HANDLER_FAILED, reason[:MAX_MESSAGE]

    def advance(self) -> ClientEffects[None]:
        """Move the cursor over all facts that have their outcome, up to the first that has none."""
        while True:
            with self._lock:
                step = self._window.next_step()
            if step is None:
                return
            if self._is_unsure:
                yield from self._read(1, 0.0)
                continue
            failpoint("connector.boundary.confirming.before")
            try:
                yield from self._tell(step)
            except ConsumerHeldError as error:
                self.session.standing.lost = error
                raise
            failpoint("connector.boundary.confirming.after")
            with self._lock:
                self._window.told(step)

    def _tell(self, step: WindowStep) -> ClientEffects[None]:
        match step:
            case Confirm(offset):
                yield from self.session.confirm(offset)
            case SetAside(entry):
                yield from self.session.set_aside(entry.offset, entry.code, entry.reason, 1)

    def leave(self) -> ClientEffects[None]:
        """Confirm what can be confirmed, and release the consumer's name."""
        if self.session.standing.lost is not None:
            return
        try:
            yield from self.advance()
            yield from self.session.release()
        except (BoundaryError, ConfigurationError) as error:  # The fetch has raised that error.
            logger.warning("the consumer %r could not let go: %s", self.session.name, error)


def _waiting(until: float, is_called_off: Callable[[], bool]) -> ClientEffects[None]:
    while not is_called_off() and (left := until - (yield Now())) > 0:
        yield Pause(min(left, MAX_WAIT))


def _entries(batch: Batch, is_released: bool) -> Iterator[WindowEntry]:
    last = 0
    for delivery in batch.facts:
        last = delivery.offset
        yield WindowEntry(delivery.offset, delivery)
    for loss in batch.gaps:
        last = max(last, loss.last_offset)
        yield WindowEntry(loss.last_offset, state=EntryState.DONE)
    if not is_released and batch.through_offset > max(last, batch.cursor):
        yield WindowEntry(batch.through_offset, state=EntryState.DONE)


T = TypeVar("T")
SHUTDOWN_GRACE = 5.0
"""Seconds that the thread which renews the lease has to end."""


class Driver:
    """Runs a reader's scripts, in threads or in tasks of one event loop, never in both.

    ``_turn`` (``_turn_async``) lets one script at a time use the node. ``_switch`` guards the start
    of the thread that renews the lease.
    """

    def __init__(self, link: NodeLink, reader: FactReader) -> None:
        self.reader = reader
        self._link = link
        self._ended = threading.Event()
        self._stop_waiting = threading.Event()
        self._switch = threading.Lock()
        self._turn = threading.Lock()
        self._runner: ThreadRunner | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turn_async: asyncio.Lock | None = None
        self._lease_task: asyncio.Task[None] | None = None

    # ---- both ----

    def stop_waiting(self) -> None:
        """Make the fetch under way, or the next one, stop waiting."""
        self._stop_waiting.set()

    def _fetching(
        self, most: int, wait: float, gave_up: threading.Event
    ) -> ClientEffects[list[WindowEntry]]:
        def is_called_off() -> bool:
            return gave_up.is_set() or self._stop_waiting.is_set()

        try:
            return (yield from self.reader.fetch(most, wait, is_called_off))
        finally:
            # Only now: a stop may be requested just before the fetch that the engine has decided
            # on.
            self._stop_waiting.clear()

    # ---- threads ----

    def now(self) -> float:
        """The time as scripts see it."""
        return current_clock().now()

    def fetch(self, most: int, wait: float, gave_up: threading.Event) -> list[WindowEntry]:
        """Up to so many facts to hand out. A caller that gives up sets the event."""
        self._keep()
        return self._run(self._fetching(most, wait, gave_up))

    def advance(self) -> None:
        """Confirm what can be confirmed. It is confirmed when this returns."""
        self._run(self.reader.advance())

    def leave(self) -> None:
        """Release the name, and end the thread that renewed its lease."""
        if self._thread is None:
            return
        self._ended.set()
        if self._runner is not None:
            self._runner.wake()
        self._thread.join(SHUTDOWN_GRACE)
        self._run(self.reader.leave())

    def _run(self, script: ClientEffects[T]) -> T:
        with self._turn:
            return self._link.run(script)

    def _keep(self) -> None:
        with self._switch:
            if self._thread is not None and self._thread.is_alive():
                return
            clock, session = current_clock(), self.reader.session
            runner = ThreadRunner(self._link.threads(), clock, self._ended.is_set)
            self._runner = runner
            self._thread = clock.spawn(
                f"ergon-lease-{session.name}",
                lambda: runner.run(renew_lease(session, self._ended.is_set)),
            )

    # ---- tasks ----

    async def fetch_async(
        self, most: int, wait: float, gave_up: threading.Event
    ) -> list[WindowEntry]:
        """The async version of :meth:`fetch`."""
        self._keep_async()
        return await self._run_async(self._fetching(most, wait, gave_up))

    async def advance_async(self) -> None:
        """The async version of :meth:`advance`."""
        await self._run_async(self.reader.advance())

    async def leave_async(self) -> None:
        """The async version of :meth:`leave`."""
        if self._lease_task is None:
            return
        self._ended.set()
        self._lease_task.cancel()
        await asyncio.wait([self._lease_task])
        await self._run_async(self.reader.leave())

    def drop_the_name(self) -> None:
        """Stop renewing, from any thread, without telling the node; the lease then ends."""
        self._ended.set()
        task = self._lease_task
        if task is not None and not task.done():
            # Its event loop is closed, and the task with it.
            with contextlib.suppress(RuntimeError):
                task.get_loop().call_soon_threadsafe(task.cancel)

    async def _run_async(self, script: ClientEffects[T]) -> T:
        async with self._own_turn():
            return await self._link.run_async(script)

    def _own_turn(self) -> asyncio.Lock:
        loop = asyncio.get_running_loop()
        if self._turn_async is None:
            self._loop, self._turn_async = loop, asyncio.Lock()
        if self._loop is not loop:
            raise WiringError(
                "this BoundaryConnector belongs to another event loop",
                remedy="make one for each loop, or give it the node's URL",
            )
        return self._turn_async

    def _keep_async(self) -> None:
        if self._lease_task is None and self._link.tasks is not None:
            session, runner = self.reader.session, TaskRunner(self._link.tasks, self._ended.is_set)
            self._lease_task = asyncio.create_task(
                runner.run(renew_lease(session, self._ended.is_set)),
                name=f"ergon-lease-{session.name}",
            )
