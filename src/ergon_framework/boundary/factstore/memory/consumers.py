"""Consumers, their cursors and their quarantine, in memory."""

from __future__ import annotations

from dataclasses import replace

from ergon_framework.boundary.factstore import consumers
from ergon_framework.boundary.factstore.consumers import (
    ACTIONS,
    not_next,
    not_there,
    refuse_held,
    refuse_late,
    refuse_other,
    refuse_truncated,
    refuse_unserved,
    refuse_wrong_state,
    said_of,
)
from ergon_framework.boundary.factstore.memory.state import (
    MemoryDatabase,
    MemoryLog,
    ZoneState,
    fitting,
)
from ergon_framework.ports.factstore import ConsumerInfo, Fetched, Gap, LogPage, Quarantined


class MemoryConsumers:
    """The part of the store with the consumers: cursors, leases, quarantine, pages."""

    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database

    def create_consumer(
        self,
        name: str,
        log: str,
        *,
        from_end: bool = False,
        to_zone: str | None = None,
        is_required: bool = True,
    ) -> ConsumerInfo:
        """Create one at the start or the end of its log; the same again answers it."""
        with self._database.step() as state:
            one = state.consumers.get(name)
            if one is None:
                memory_log = state.memory_log(log)
                cursor = memory_log.head if from_end else memory_log.first - 1
                one = ConsumerInfo(name, log, cursor, to_zone, is_required)
                one.created_at = self._database.clock()
                state.consumers[name] = one
            refuse_other(one, log, to_zone)
            return _given(state, one)

    def consumers(self) -> list[ConsumerInfo]:
        """Every consumer, by name."""
        with self._database.step() as state:
            return [_given(state, state.consumers[name]) for name in sorted(state.consumers)]

    def consumer(self, name: str) -> ConsumerInfo:
        """The consumer of this name. ``BoundaryNotFoundError`` if there is none."""
        with self._database.step() as state:
            return _given(state, state.consumer(name))

    def delete_consumer(self, name: str) -> None:
        """Delete a consumer and its quarantine. Retention then no longer waits for it."""
        with self._database.step() as state:
            one = state.consumer(name)
            state.journal.append(
                (self._database.clock(), "delete_consumer", consumers.deleted(one))
            )
            del state.consumers[name]
            state.items = {
                number: item for number, item in state.items.items() if item.consumer != name
            }

    def serve(
        self,
        name: str,
        limit: int,
        max_bytes: int,
        *,
        holder: str | None = None,
        lease: float = 30.0,
    ) -> Fetched:
        """The page after the cursor, or before it one of released facts."""
        with self._database.step() as state:
            now = self._database.clock()
            one = state.consumer(name)
            if one.is_overlong(now):
                one.held_until = now + one.lease
            refuse_held(one, holder, now)
            page = _released(state, one, limit, max_bytes)
            is_released = page is not None
            if page is None:
                page = _next(state, one, limit, max_bytes, now)
                consumers.give(one, page, holder)
            consumers.hold(one, holder, lease, now)
            given = {fact.offset for fact in page.facts}
            state.served.update(item.id for item in state.released_to(name) if item.offset in given)
            return Fetched(_given(state, one), page, is_released)

    def confirm(self, name: str, offset: int, *, holder: str | None = None) -> int:
        """Move the cursor up to ``offset``, never down; the cursor then."""
        with self._database.step() as state:
            one = state.consumer(name)
            refuse_late(one, holder, self._database.clock())
            refuse_unserved(one, offset)
            for item in state.released_to(name):
                # One that was released after the page went out was not in it.
                if item.offset <= offset and item.id in state.served:
                    state.items[item.id] = replace(item, state="settled")
            consumers.move(one, max(one.cursor, offset))
            if holder is not None:
                one.held_until = self._database.clock() + one.lease
            return one.cursor

    def release_lease(self, name: str, holder: str) -> None:
        """The holder lets go of the name; nothing happens when it does not hold it."""
        with self._database.step() as state:
            one = state.consumers.get(name)
            if one is not None and one.holder == holder:
                consumers.let_go(one)

    def seek(self, name: str, offset: int, *, reason: str) -> ConsumerInfo:
        """Set the cursor, also backwards, and write down that it was done and why."""
        with self._database.step() as state:
            one = state.consumer(name)
            memory_log = state.memory_log(one.log)
            text = consumers.sought(one, offset, reason)
            consumers.seek(one, offset, memory_log.first, memory_log.head)
            state.journal.append((self._database.clock(), "seek", text))
            return _given(state, one)

    # ---- quarantine -----------------------------------------------------------------------------

    def set_aside(
        self,
        name: str,
        offset: int,
        *,
        reason: str,
        message: str,
        attempts: int,
        holder: str | None = None,
    ) -> Quarantined:
        """Quarantine the next fact of the view and move the cursor past it, in one step."""
        with self._database.step() as state:
            now = self._database.clock()
            one = state.consumer(name)
            refuse_late(one, holder, now)
            is_released = any(item.offset == offset for item in state.released_to(name))
            ahead = next(state.memory_log(one.log).after(one.cursor, one.to_zone), None)
            following = None if ahead is None else ahead.fact.offset
            is_next = offset == following
            if not is_released and not is_next:
                raise not_next(one, offset, following)
            if is_next:
                consumers.pass_by(one, offset)
            item = Quarantined(0, name, one.log, offset, reason, message, attempts, now)
            return state.set_aside(item)

    def quarantine(
        self, consumer: str | None = None, state: str | None = "quarantined"
    ) -> list[Quarantined]:
        """What was set aside, oldest first; ``state=None`` for all."""
        with self._database.step() as zone_state:
            return [
                zone_state.items[number]
                for number in sorted(zone_state.items)
                if consumer in {None, zone_state.items[number].consumer}
                and state in {None, zone_state.items[number].state}
            ]

    def settle(self, quarantine_id: int, state: str, *, reason: str = "") -> Quarantined:
        """Release, discard or settle an item; ``BoundaryNotFoundError`` when there is none."""
        with self._database.step() as zone_state:
            item = zone_state.items.get(quarantine_id)
            if item is None:
                raise not_there(quarantine_id)
            if item.state == state:
                return item
            refuse_wrong_state(quarantine_id, item.state, state)
            zone_state.journal.append(
                (self._database.clock(), ACTIONS[state], said_of(item, reason))
            )
            zone_state.items[quarantine_id] = replace(item, state=state)
            zone_state.served.discard(quarantine_id)
            return zone_state.items[quarantine_id]


def _given(state: ZoneState, one: ConsumerInfo) -> ConsumerInfo:
    """A copy, with what is worked out."""
    waiting = list(state.memory_log(one.log).after(one.cursor, one.to_zone))
    since = waiting[0].fact.recorded_at if waiting else None
    return replace(one, lag=len(waiting), waiting_since=since)


def _released(state: ZoneState, one: ConsumerInfo, limit: int, max_bytes: int) -> LogPage | None:
    """The page of what an operator released, if anything; all of it lies below the cursor.

    What lies above it, after a seek, comes along with its neighbours: confirmed on its own, it
    would take the cursor past them.
    """
    memory_log = state.memory_log(one.log)
    rows = []
    below = [item for item in state.released_to(one.name) if item.offset <= one.cursor]
    for item in sorted(below, key=lambda item: item.offset):
        row = memory_log.row(item.offset)
        if row is not None and memory_log.is_intact(row):
            rows.append(row)
        else:
            state.items[item.id] = replace(item, state="quarantined", reason="corrupted")
    facts = [row.seen(one.to_zone) for row in fitting(rows, limit, max_bytes)]
    return LogPage(facts, facts[-1].offset, memory_log.head) if facts else None


def _next(state: ZoneState, one: ConsumerInfo, limit: int, max_bytes: int, now: float) -> LogPage:
    """The page after the cursor, which passes corrupted rows on its way."""
    memory_log = state.memory_log(one.log)
    refuse_truncated(one, memory_log.unexplained(one.cursor))
    passed: list[Gap] = []
    for row in memory_log.after(one.cursor, one.to_zone):
        at = row.fact.offset
        if memory_log.is_intact(row) or memory_log.gaps_within(one.cursor, at - 1):
            break  # a gap is reported, and confirmed, before what lies behind it is delivered
        _pass(state, one, memory_log, at, now)
        passed.append(Gap(one.log, at, at, "corrupted", now))
    page = memory_log.page(one.cursor, limit, max_bytes, one.to_zone)
    page.gaps[:0] = passed
    return page


def _pass(
    state: ZoneState, one: ConsumerInfo, memory_log: MemoryLog, offset: int, now: float
) -> None:
    message = f"the fact at {offset} of {memory_log.name} is not what was stored there"
    item = Quarantined(0, one.name, memory_log.name, offset, "corrupted", message, 0, now)
    state.set_aside(item)
    consumers.move(one, offset)
