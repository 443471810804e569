"""The consuming half: what is read, handed out, settled and confirmed, as scripts for both colours.

One conversation at a time: a confirmation that overtook a page on its way here would also cover
facts of that page.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from ergon_framework.boundary.consuming.calls import Desk
from ergon_framework.boundary.consuming.conversations import (
    CRASH_LOOP,
    HANDLER_FAILED,
    LONGEST_MESSAGE,
)
from ergon_framework.boundary.conversing.script import Now, Script
from ergon_framework.boundary.model import Batch, Loss
from ergon_framework.connector.boundary.faults import FactPassedError
from ergon_framework.connector.boundary.window import Confirm, Entry, SetAside, State, Step, Window
from ergon_framework.errors import BoundaryError, ConsumerHeldError
from ergon_framework.storage.failpoints import declare, failpoint

logger = logging.getLogger(__name__)

declare("connector.boundary.confirming.before", "connector.boundary.confirming.after")


class Reader:
    """One named consumer in the hands of one process."""

    def __init__(
        self, desk: Desk, limit: int, max_deliveries: int, on_gap: Callable[[Loss], Any]
    ) -> None:
        self.desk = desk
        self._asking = replace(desk, rule=replace(desk.rule, attempts=1))  # who fetches is patient
        self._limit = limit
        self._max_deliveries = max_deliveries
        self._on_gap = on_gap
        self._window = Window()
        self._lock = threading.Lock()
        self._is_unsure = False  # the node may have served facts that never came here

    # ---- reading ----

    def fetch(self, most: int, wait: float) -> Script[list[Entry]]:
        """Up to so many facts, in order: those that came back, then new ones."""
        standing = self.desk.standing
        if standing.lost is not None:
            with self._lock:
                self._window.clear()
        else:
            yield from self.advance()
        taken = self._take(most, (yield Now()))
        room = self._limit - len(self._window)
        if taken or room <= 0:
            return taken
        # Confirmations wait for their turn, so nobody may be about to send one while we wait.
        yield from self._read(min(most, room), 0.0 if self._window.in_hand else wait)
        yield from self.advance()
        return self._take(most, (yield Now()))

    def _take(self, most: int, now: float) -> list[Entry]:
        with self._lock:
            return self._window.take(most, now)

    def _read(self, more: int, wait: float) -> Script[None]:
        """Ask for what lies behind what is known; pages begin at the cursor."""
        self._is_unsure = True
        try:
            batch: Batch = yield from self._asking.fetch(len(self._window) + more, wait)
        except ConsumerHeldError as error:
            self.desk.standing.lost = error
            raise
        self._is_unsure = False
        facts = batch.facts
        is_released = bool(facts) and facts[0].released
        earlier = 0 if is_released or not facts or self._window.in_hand else batch.deliveries - 1
        with self._lock:
            found = [each for each in _entries(batch, is_released) if not self._window.knows(each)]
            self._window.extend(found, batch.cursor)
        for loss in batch.gaps:
            if any(each.offset == loss.last_offset and each.delivery is None for each in found):
                self._on_gap(loss)
        if earlier > 0:
            yield from self._be_careful(batch, earlier)

    def _be_careful(self, batch: Batch, earlier: int) -> Script[None]:
        """A process died with these in hand. One that has been the death of many is set aside."""
        with self._lock:
            self._window.careful_until = max(self._window.careful_until, batch.through_offset)
            first = next(each for each in self._window if each.offset == batch.facts[0].offset)
            if earlier >= self._max_deliveries and first.state is State.WAITING:
                text = f"given to {earlier} processes before, none of which came back"
                first.state, first.code, first.reason = State.FAILED, CRASH_LOOP, text
        yield from self.advance()

    # ---- settling ----

    def note(self, entry: Entry, state: State, reason: str = "", not_before: float = 0.0) -> None:
        """Remember what became of a fact; :meth:`advance` tells the node as much as it can."""
        with self._lock:
            if entry.state is State.GONE:
                raise FactPassedError(
                    f"the fact at {entry.offset} is no longer in this process's hands",
                    remedy="nothing to do: whoever has the consumer's name now has its outcome",
                    details={"offset": entry.offset, "consumer_name": self.desk.name},
                )
            entry.state, entry.not_before = state, not_before
            entry.code, entry.reason = HANDLER_FAILED, reason[:LONGEST_MESSAGE]

    def advance(self) -> Script[None]:
        """Move the cursor over every fact that has its outcome, and none that has not."""
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
                self.desk.standing.lost = error
                raise
            failpoint("connector.boundary.confirming.after")
            with self._lock:
                self._window.told(step)

    def _tell(self, step: Step) -> Script[None]:
        match step:
            case Confirm(offset):
                yield from self.desk.confirm(offset)
            case SetAside(entry):
                yield from self.desk.set_aside(entry.offset, entry.code, entry.reason, 1)

    def leave(self) -> Script[None]:
        """Confirm what can be confirmed, and let go of the name."""
        if self.desk.standing.lost is not None:
            return
        try:
            yield from self.advance()
            yield from self.desk.release()
        except BoundaryError as error:
            logger.warning("the consumer %r could not let go: %s", self.desk.name, error)


def _entries(batch: Batch, is_released: bool) -> Iterator[Entry]:
    last = 0
    for delivery in batch.facts:
        last = delivery.offset
        yield Entry(delivery.offset, delivery)
    for loss in batch.gaps:
        last = max(last, loss.last_offset)
        yield Entry(loss.last_offset, state=State.DONE)
    if not is_released and batch.through_offset > max(last, batch.cursor):
        yield Entry(batch.through_offset, state=State.DONE)
