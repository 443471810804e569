"""Consumers, their cursors and their quarantine, in a stream; giving out pages."""

from __future__ import annotations

from copy import copy
from dataclasses import fields

from ergon_framework.boundary.factstore import consumers
from ergon_framework.boundary.factstore.consumers import (
    ACTIONS,
    OPEN,
    not_next,
    not_there,
    refuse_held,
    refuse_late,
    refuse_other,
    refuse_truncated,
    refuse_unserved,
    refuse_wrong_state,
    said_of,
    unknown,
)
from ergon_framework.boundary.factstore.nats.database import NatsDatabase
from ergon_framework.boundary.factstore.nats.pages import (
    count_waiting,
    entries_after,
    entry_at,
    read_page,
    unexplained_offsets,
)
from ergon_framework.boundary.factstore.nats.schema import ConsumerRecord, QuarantineMessage
from ergon_framework.boundary.factstore.nats.session import StreamTransaction
from ergon_framework.boundary.factstore.page_plan import fill_page
from ergon_framework.errors import ConsumerHeldError
from ergon_framework.ports.factstore import ConsumerInfo, Fetched, Gap, LogPage, Quarantined

_SHARED = {each.name for each in fields(ConsumerInfo)} & {
    each.name for each in fields(ConsumerRecord)
}


MAX_SETTLED = 300
"""Items of one commit."""
MAX_CORRUPTED = 100
"""Corrupted facts that one call passes at most."""


class NatsConsumers:
    """The part of the store with the consumers: cursors, leases, quarantine, pages."""

    def __init__(self, database: NatsDatabase) -> None:
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

        def work(transaction: StreamTransaction) -> ConsumerInfo:
            subject = transaction.subjects.consumer(name)
            one = transaction.get(ConsumerRecord, subject)
            if one is None or one.is_gone:
                log_state = transaction.log_state_or_new(log)
                cursor = log_state.head if from_end else log_state.first - 1
                # Numbers of items of a consumer that was deleted under this name are not its own.
                above = 0 if one is None else one.items_above
                one = ConsumerRecord(name, log, cursor, to_zone, is_required)
                one.created_at, one.items_above = self._database.clock(), above
                transaction.put(subject, one)
            refuse_other(one, log, to_zone)
            return described(transaction, one)

        return self._database.transaction(work, "desk")

    def consumers(self) -> list[ConsumerInfo]:
        """Every consumer, by name."""

        def work(transaction: StreamTransaction) -> list[ConsumerInfo]:
            found = transaction.all(ConsumerRecord, transaction.subjects.consumers).values()
            kept = sorted((each for each in found if not each.is_gone), key=lambda one: one.name)
            return [described(transaction, each) for each in kept]

        return self._database.read(work)

    def consumer(self, name: str) -> ConsumerInfo:
        """The consumer of this name. ``BoundaryNotFoundError`` if there is none."""
        return self._database.read(
            lambda transaction: described(transaction, reader_named(transaction, name))
        )

    def delete_consumer(self, name: str) -> None:
        """Delete a consumer and its quarantine. Retention then no longer waits for it."""

        def work(transaction: StreamTransaction) -> None:
            one = reader_named(transaction, name)
            transaction.note(self._database.clock(), "delete_consumer", consumers.deleted(one))
            # Items below stay in the stream until they are purged: the number keeps them from a new
            # consumer of the name.
            one.is_gone, one.items_above = True, transaction.tally.items
            one.holder = None
            transaction.put(transaction.subjects.consumer(name), one)

        _, below = self._database.transaction_and_end(work, "desk")
        # After the commit: a process that dies in between leaves messages that are never read.
        self._database.clear(
            below, self._database.subjects.items_of(name), self._database.subjects.wholes_of(name)
        )
        self._database.forget()

    def confirm(self, name: str, offset: int, *, holder: str | None = None) -> int:
        """Move the cursor up to ``offset``, never down; the cursor then."""

        def work(transaction: StreamTransaction) -> int | None:
            now, one = self._database.clock(), reader_named(transaction, name)
            # Compared at the end: a confirmation that changes nothing writes nothing.
            before = copy(one)
            refuse_late(info_of(one), holder, now)
            refuse_unserved(one, offset)
            settled = _delivered(transaction, one, offset)
            for item in settled[:MAX_SETTLED]:
                item.state = "settled"
                put(transaction, item)
            # A commit has an end; the call goes on in another one until all are settled.
            if len(settled) > MAX_SETTLED:
                return None  # the cursor moves when all of them are
            consumers.move(one, max(one.cursor, offset))
            if holder is not None:
                one.held_until = now + one.lease
            if one != before:
                transaction.put(transaction.subjects.consumer(name), one)
            return one.cursor

        cursor = None
        while cursor is None:
            cursor = self._database.compare_and_set(
                work, "confirm", self._database.subjects.consumer(name)
            )
        return cursor

    def release_lease(self, name: str, holder: str) -> None:
        """The holder lets go of the name; nothing happens when it does not hold it."""

        def work(transaction: StreamTransaction) -> None:
            one = transaction.get(ConsumerRecord, transaction.subjects.consumer(name))
            if one is not None and not one.is_gone and one.holder == holder:
                consumers.let_go(one)
                transaction.put(transaction.subjects.consumer(name), one)

        self._database.transaction(work, "desk")

    def seek(self, name: str, offset: int, *, reason: str) -> ConsumerInfo:
        """Set the cursor, also backwards, and write down that it was done and why."""

        def work(transaction: StreamTransaction) -> ConsumerInfo:
            one = reader_named(transaction, name)
            log_state = transaction.log_state_or_new(one.log)
            text = consumers.sought(one, offset, reason)
            consumers.seek(one, offset, log_state.first, log_state.head)
            transaction.note(self._database.clock(), "seek", text)
            transaction.put(transaction.subjects.consumer(name), one)
            return described(transaction, one)

        return self._database.transaction(work, "desk")

    # ---- giving facts out -----------------------------------------------------------------------

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

        def work(transaction: StreamTransaction) -> Fetched | ConsumerHeldError | None:
            now, one = self._database.clock(), reader_named(transaction, name)
            before = copy(one)
            if info_of(one).is_overlong(now):
                # Written by a clock that ran ahead: cut to one lease from now, or no consumer could
                # take the name for years.
                one.held_until = now + one.lease
            try:
                refuse_held(info_of(one), holder, now)
            except ConsumerHeldError as error:
                if one.held_until != before.held_until:  # that is written, though it is refused
                    transaction.put(transaction.subjects.consumer(name), one)
                return error
            if _set_aside_undeliverable(transaction, one):
                if one != before:
                    transaction.put(transaction.subjects.consumer(name), one)
                return None  # that is written, whatever is wrong with what comes next
            page = _released(transaction, one, limit, max_bytes)
            is_released = page is not None
            if page is None:
                page = _next(transaction, one, limit, max_bytes, now)
                consumers.give(one, page, holder)
            consumers.hold(one, holder, lease, now)
            _note_released(transaction, one, page)
            if one != before:
                transaction.put(transaction.subjects.consumer(name), one)
            return Fetched(described(transaction, one), page, is_released)

        served = None
        while served is None:
            served = self._database.compare_and_set(
                work, "desk", self._database.subjects.consumer(name)
            )
        if isinstance(served, ConsumerHeldError):
            raise served
        return served

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
        """Quarantine the next fact of the view and move the cursor past it, in one commit."""

        def work(transaction: StreamTransaction) -> Quarantined:
            now, one = self._database.clock(), reader_named(transaction, name)
            refuse_late(info_of(one), holder, now)
            # Released ones lie below the cursor, so they are not the next fact and may be set aside
            # again all the same.
            is_released = any(item.offset == offset for item in released_to(transaction, one))
            following = next_of(transaction, one)
            is_next = offset == following
            if not is_released and not is_next:
                raise not_next(one, offset, following)
            item = QuarantineMessage(0, name, one.log, offset, reason, message, attempts, now)
            kept = keep(transaction, one, item)
            if is_next:
                consumers.pass_by(one, offset)
            transaction.put(transaction.subjects.consumer(name), one)
            return quarantined(kept)

        return self._database.transaction(work, "quarantine")

    def quarantine(
        self, consumer: str | None = None, state: str | None = "quarantined"
    ) -> list[Quarantined]:
        """What was set aside, oldest first; ``state=None`` for all."""

        def work(transaction: StreamTransaction) -> list[Quarantined]:
            return [
                quarantined(item)
                for item in items_of(transaction, consumer)
                if state in {None, item.state}
            ]

        return self._database.read(work)

    def settle(self, quarantine_id: int, state: str, *, reason: str = "") -> Quarantined:
        """Release, discard or settle an item; ``BoundaryNotFoundError`` when there is none."""

        def work(transaction: StreamTransaction) -> Quarantined:
            item = _numbered(transaction, quarantine_id)
            if item.state == state:
                return quarantined(item)
            refuse_wrong_state(quarantine_id, item.state, state)
            transaction.note(self._database.clock(), ACTIONS[state], said_of(item, reason))
            item.state, item.is_served = state, False
            put(transaction, item)
            return quarantined(item)

        return self._database.transaction(work, "quarantine")


def reader_named(transaction: StreamTransaction, name: str) -> ConsumerRecord:
    """A consumer that must be there."""
    found = transaction.get(ConsumerRecord, transaction.subjects.consumer(name))
    if found is None or found.is_gone:
        raise unknown(name)
    return found


def info_of(one: ConsumerRecord) -> ConsumerInfo:
    """A consumer without what is worked out."""
    return ConsumerInfo(**{name: getattr(one, name) for name in _SHARED})


def described(transaction: StreamTransaction, one: ConsumerRecord) -> ConsumerInfo:
    """A consumer with what is worked out."""
    info, log_state = info_of(one), transaction.log_state(one.log)
    if log_state is not None:
        info.lag, info.waiting_since = count_waiting(
            transaction, log_state, one.cursor, one.to_zone
        )
    return info


def _delivered(
    transaction: StreamTransaction, one: ConsumerRecord, offset: int
) -> list[QuarantineMessage]:
    """Released items that went out and are confirmed."""
    released = released_to(transaction, one)
    return [item for item in released if item.offset <= offset and item.is_served]


def _note_released(transaction: StreamTransaction, one: ConsumerRecord, page: LogPage) -> None:
    offsets = {fact.offset for fact in page.facts}
    for item in released_to(transaction, one):
        if item.offset in offsets and not item.is_served:
            item.is_served = True
            put(transaction, item)


def _below(transaction: StreamTransaction, one: ConsumerRecord) -> list[QuarantineMessage]:
    """What an operator released and lies below the cursor.

    What lies above it, after a seek, comes along with its neighbours: confirmed on its own, it
    would take the cursor past them.
    """
    below = [item for item in released_to(transaction, one) if item.offset <= one.cursor]
    return sorted(below, key=lambda item: item.offset)


def _set_aside_undeliverable(transaction: StreamTransaction, one: ConsumerRecord) -> bool:
    """Set aside again what was released and can no longer be delivered; whether there was any."""
    log_state, is_any = transaction.log_state(one.log), False
    if log_state is None:
        return False
    for item in _below(transaction, one):
        entry = entry_at(transaction, log_state, item.offset)
        if entry is None or entry.is_marker:
            item.state, item.reason = "quarantined", "corrupted"
            put(transaction, item)
            is_any = True
    return is_any


def _released(
    transaction: StreamTransaction, one: ConsumerRecord, limit: int, max_bytes: int
) -> LogPage | None:
    """The page of what an operator released, if anything."""
    below, log_state = _below(transaction, one), transaction.log_state(one.log)
    if not below or log_state is None:
        return None
    entries = (entry_at(transaction, log_state, item.offset) for item in below)
    kept = (entry for entry in entries if entry is not None)
    max_items = min(limit, MAX_SETTLED)  # each is marked
    given = fill_page(kept, log_state.head, max_items, max_bytes).given
    if not given:
        return None
    return LogPage([each.seen(one.to_zone) for each in given], given[-1].offset, log_state.head)


def _next(
    transaction: StreamTransaction, one: ConsumerRecord, limit: int, max_bytes: int, now: float
) -> LogPage:
    """The page after the cursor, which passes corrupted facts on its way."""
    log_state = transaction.log_state_or_new(one.log)
    passed: list[Gap] = []
    for _ in range(MAX_CORRUPTED):
        lost = unexplained_offsets(transaction, log_state, one.cursor)
        refuse_truncated(one, lost)
        stretch = read_page(transaction, log_state, one.cursor, limit, max_bytes, one.to_zone)
        page, at = stretch.page, stretch.corrupted
        if at is None or page.facts or page.gaps:
            # A gap is reported, and confirmed, before what lies behind it is delivered.
            page.gaps[:0] = passed
            return page
        message = f"the fact at {at} of {log_state.name} is not what was stored there"
        keep(
            transaction,
            one,
            QuarantineMessage(0, one.name, log_state.name, at, "corrupted", message, 0, now),
        )
        consumers.move(one, at)
        passed.append(Gap(one.log, at, at, "corrupted", now))
    return LogPage([], one.cursor, log_state.head, gaps=passed)  # the rest is for the next call


# ---- quarantine ---------------------------------------------------------------------------------


def quarantined(item: QuarantineMessage) -> Quarantined:
    """An item as everybody sees it."""
    return Quarantined(**{each.name: getattr(item, each.name) for each in fields(Quarantined)})


def put(transaction: StreamTransaction, item: QuarantineMessage) -> None:
    """Write an item."""
    transaction.put(transaction.subjects.item(item.consumer, item.id), item)


def keep(
    transaction: StreamTransaction, one: ConsumerRecord, item: QuarantineMessage
) -> QuarantineMessage:
    """Keep an item of a consumer; when its fact lies in quarantine already, it is the same item.

    The consumer changes with it, and is written by the caller: without what it knows, everything
    that was ever set aside would be read for each of its facts.
    """
    known = items_of(transaction, one.name) if item.offset <= one.aside_through else []
    # Remembered with the consumer, so that most items need no look at those before.
    one.aside_through = max(item.offset, *(each.offset for each in known), 0)
    for each in known:
        if each.state in OPEN and (each.log, each.offset) == (item.log, item.offset):
            item.id, item.at = each.id, each.at
            put(transaction, item)
            return item
    return _new(transaction, item)


def keep_whole(transaction: StreamTransaction, item: QuarantineMessage) -> None:
    """Keep an item with its payload, unless it is there, whatever became of it."""
    mark = whole_mark(transaction, item)
    if transaction.get(QuarantineMessage, mark) is None:
        new = _new(transaction, item)
        transaction.put(mark, QuarantineMessage(new.id, "", "", item.offset, "", "", 0, item.at))


def whole_mark(transaction: StreamTransaction, item: QuarantineMessage) -> str:
    """Under what is written down that something was set aside with its payload."""
    # Each with its length: two different contents must not become one text.
    parts = (item.log.encode(), str(item.offset).encode(), item.envelope, item.fact)
    content = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    return transaction.subjects.whole(item.consumer, content)


def _new(transaction: StreamTransaction, item: QuarantineMessage) -> QuarantineMessage:
    tally = transaction.tally
    tally.items += 1
    transaction.put(transaction.subjects.tally, tally)
    item.id = tally.items
    put(transaction, item)
    return item


def items_of(transaction: StreamTransaction, consumer: str | None) -> list[QuarantineMessage]:
    """What was set aside for a consumer, or for all; by number."""
    # Most stores have no items: one record says so, and nothing is searched.
    if not transaction.tally.items:
        return []
    if consumer is not None:
        found = transaction.all(QuarantineMessage, transaction.subjects.items_of(consumer))
        one = transaction.get(ConsumerRecord, transaction.subjects.consumer(consumer))
        above = {consumer: one.items_above} if one is not None else {}
    else:
        found = transaction.all(QuarantineMessage, transaction.subjects.items)
        readers = transaction.all(ConsumerRecord, transaction.subjects.consumers).values()
        above = {each.name: each.items_above for each in readers}
    kept = (item for item in found.values() if item.id > above.get(item.consumer, 0))
    return sorted(kept, key=lambda item: item.id)


def open_items(transaction: StreamTransaction, consumer: str) -> list[QuarantineMessage]:
    """What was set aside for a consumer and not dealt with."""
    return [item for item in items_of(transaction, consumer) if item.state in OPEN]


def released_to(transaction: StreamTransaction, one: ConsumerRecord) -> list[QuarantineMessage]:
    """What is to be delivered to a consumer again, which remembers it when there is nothing."""
    notes = transaction.tally.notes
    # The count of an operator's notes: only a note can have released anything since.
    if one.nothing_released == notes:
        return []
    found = [item for item in open_items(transaction, one.name) if item.state == "released"]
    one.nothing_released = -1 if found else notes
    return found


def _numbered(transaction: StreamTransaction, number: int) -> QuarantineMessage:
    found = transaction.all(QuarantineMessage, transaction.subjects.item_numbered(number)).values()
    for item in found:
        one = transaction.get(ConsumerRecord, transaction.subjects.consumer(item.consumer))
        if one is None or item.id > one.items_above:
            return item
    raise not_there(number)


def next_of(transaction: StreamTransaction, one: ConsumerRecord) -> int | None:
    """The next fact of a consumer's view."""
    log_state = transaction.log_state(one.log)
    if log_state is None:
        return None
    first = next(entries_after(transaction, log_state, one.cursor, one.to_zone, chunk=1), None)
    return None if first is None else first.offset
