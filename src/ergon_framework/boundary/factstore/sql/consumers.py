"""Consumers: cursors, leases, quarantine, and delivering pages.

A page is read while appends go on. A small second transaction notes that it is delivered, and finds
out whether the consumer has moved in between. Then the page is read again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ergon_framework.boundary.factstore.consumers import (
    ACTIONS,
    deleted,
    give,
    hold,
    not_next,
    not_there,
    refuse_held,
    refuse_late,
    refuse_other,
    refuse_outside,
    refuse_truncated,
    refuse_unserved,
    refuse_wrong_state,
    said_of,
    sought,
)
from ergon_framework.boundary.factstore.page_plan import fill_page
from ergon_framework.boundary.factstore.sql import pages
from ergon_framework.boundary.factstore.sql.rows import (
    LogRow,
    Zones,
    fact_of,
    log_or_new,
    next_after,
    reader_named,
    reader_of,
    run_at,
    with_lag,
)
from ergon_framework.boundary.factstore.sql.session import (
    BatchLimits,
    Row,
    SqlDatabase,
    SqlSession,
    note,
)
from ergon_framework.ports.factstore import (
    ConsumerInfo,
    Fetched,
    Gap,
    LogPage,
    Quarantined,
    StoredFact,
)
from ergon_framework.storage.conflicts import ConflictError, retry_conflicts


@dataclass(slots=True)
class _Offer:
    """A page that was read for a consumer."""

    info: ConsumerInfo
    page: LogPage
    corrupted: int | None = None
    """The fact that ended it."""
    released: Sequence[int] = ()
    """Items out of quarantine that are in the page."""
    is_released: bool = False
    """The page consists of nothing else."""
    undeliverable: Sequence[int] = ()
    """Items that were released and can no longer be delivered."""

    @property
    def is_stuck(self) -> bool:
        """Whether something must be set aside before the consumer can go on."""
        has_more = self.page.facts or self.page.gaps  # which comes before what is corrupted
        return bool(self.undeliverable) or (self.corrupted is not None and not has_more)


class SqlConsumers:
    """The part of the store with the consumers: cursors, leases, quarantine, pages."""

    def __init__(self, database: SqlDatabase, limits: BatchLimits) -> None:
        self._database = database
        self._limits = limits

    def create_consumer(
        self,
        name: str,
        log: str,
        *,
        from_end: bool = False,
        to_zone: str | None = None,
        is_required: bool = True,
    ) -> ConsumerInfo:
        """Create one at the start (the first kept fact) or the end of its log."""

        def work(session: SqlSession) -> ConsumerInfo:
            row = session.one("consumers.consumer", name)
            if row is None:
                found = log_or_new(session, log)
                start = found.head if from_end else found.first - 1
                values = (name, found.id, start, to_zone, is_required, self._database.clock())
                session.run("consumers.create", *values)
                row = session.only("consumers.consumer", name)
            info = with_lag(session, *reader_of(session, row))
            refuse_other(info, log, to_zone)
            return info

        return self._database.write(work, "desk")

    def consumers(self) -> list[ConsumerInfo]:
        """Every consumer, by name."""

        def work(session: SqlSession) -> list[ConsumerInfo]:
            rows = session.all("consumers.consumers")
            return [with_lag(session, *reader_of(session, row)) for row in rows]

        return self._database.read(work)

    def consumer(self, name: str) -> ConsumerInfo:
        """The consumer of this name. ``BoundaryNotFoundError`` if there is none."""
        return self._database.read(lambda session: with_lag(session, *reader_named(session, name)))

    def delete_consumer(self, name: str) -> None:
        """Delete a consumer and its quarantine. Retention then no longer waits for it."""

        def work(session: SqlSession) -> None:
            info, _ = reader_named(session, name)
            session.run("consumers.delete", name)
            session.run("quarantine.forget", name)
            note(session, self._database.clock(), "delete_consumer", deleted(info))

        self._database.write(work, "desk")

    def confirm(self, name: str, offset: int, *, holder: str | None = None) -> int:
        """Move the cursor up to ``offset``, never down; the cursor then."""

        def work(session: SqlSession) -> int:
            info, _ = reader_named(session, name)
            now = self._database.clock()
            refuse_late(info, holder, now)
            refuse_unserved(info, offset)
            # Whether the cursor moves or not: facts released from quarantine lie below it.
            session.run("quarantine.delivered", name, offset)
            if offset > info.cursor:
                session.run("consumers.move", name, offset)
            if holder is not None:
                session.run("consumers.renew", now, name, holder)
            return max(offset, info.cursor)

        return self._database.write(work, "confirm")

    def release_lease(self, name: str, holder: str) -> None:
        """The holder lets go of the name; nothing happens when it does not hold it."""

        def work(session: SqlSession) -> None:
            # Not synced: if a power cut undoes it, the lease ends by itself.
            session.run("consumers.drop_lease", name, holder)

        self._database.write(work, "desk", is_synced=False)

    def seek(self, name: str, offset: int, *, reason: str) -> ConsumerInfo:
        """Set the cursor, also backwards, and write down that it was done and why."""

        def work(session: SqlSession) -> ConsumerInfo:
            info, log = reader_named(session, name)
            refuse_outside(info, offset, log.first, log.head)
            session.run("consumers.seek", offset, name)
            note(session, self._database.clock(), "seek", sought(info, offset, reason))
            return with_lag(session, *reader_named(session, name))

        return self._database.write(work, "desk")

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

        def work(session: SqlSession) -> Quarantined:
            info, log = reader_named(session, name)
            now = self._database.clock()
            refuse_late(info, holder, now)
            ahead = next_after(session, log, info.cursor, info.to_zone)
            if ahead is not None and ahead.offset == offset:
                session.run("consumers.move", name, offset)
            elif state_at(session, name, offset) != "released":
                raise not_next(info, offset, None if ahead is None else ahead.offset)
            item = Quarantined(0, name, log.name, offset, reason, message, attempts, now)
            return set_aside(session, item)

        return self._database.write(work, "quarantine")

    # ---- quarantine ----------------------------------------------------------------------------

    def quarantine(
        self, consumer: str | None = None, state: str | None = "quarantined"
    ) -> list[Quarantined]:
        """What was set aside, oldest first; ``state=None`` for all."""
        rows = self._database.read(lambda session: session.all("quarantine.items", consumer, state))
        return [_item(row) for row in rows]

    def settle(self, quarantine_id: int, state: str, *, reason: str = "") -> Quarantined:
        """Release, discard or settle an item; ``BoundaryNotFoundError`` when there is none."""

        def work(session: SqlSession) -> Quarantined:
            item = _numbered(session, quarantine_id)
            if item.state == state:
                return item
            refuse_wrong_state(item.id, item.state, state)
            session.run("quarantine.settle", state, item.id)
            note(session, self._database.clock(), ACTIONS[state], said_of(item, reason))
            return _numbered(session, item.id)

        return self._database.write(work, "quarantine")

    # ---- giving facts out ----------------------------------------------------------------------

    def serve(
        self,
        name: str,
        limit: int,
        max_bytes: int,
        *,
        holder: str | None = None,
        lease: float = 30.0,
    ) -> Fetched:
        """The page after the cursor; the same one until it is confirmed."""
        passed: list[int] = []

        def attempt() -> Fetched:
            offer = self._offer(name, limit, max_bytes, holder)
            if offer.is_stuck:
                self._pass(offer, holder)
                passed.extend(
                    [offer.corrupted] if offer.corrupted and not offer.undeliverable else []
                )
                raise ConflictError  # the page behind it has to be read
            # The page was read while others went on; noting it finds out whether they moved the
            # cursor. Noted first, it could not be known how much is given out.
            if not self._note(offer, holder, lease):
                raise ConflictError
            offer.page.gaps[:0] = self._gaps_of(offer, passed)
            return Fetched(offer.info, offer.page, offer.is_released)

        try:
            return retry_conflicts(attempt, max_attempts=self._limits.serve_attempts)
        except ConflictError:  # the rest is for the next call
            offer = self._offer(name, limit, max_bytes, holder)
            at, head, gaps = offer.info.cursor, offer.page.head, self._gaps_of(offer, passed)
            return Fetched(offer.info, LogPage([], at, head, gaps=gaps))

    def _gaps_of(self, offer: _Offer, passed: Sequence[int]) -> list[Gap]:
        """The gaps that report to a consumer the corrupted facts that were passed."""
        now = self._database.clock()
        return [Gap(offer.info.log, at, at, "corrupted", now) for at in passed]

    def _offer(self, name: str, limit: int, max_bytes: int, holder: str | None) -> _Offer:
        now = self._database.clock()

        def work(session: SqlSession) -> _Offer | ConsumerInfo:
            info, log = reader_named(session, name)
            if info.is_held(now) and info.holder != holder:
                return info  # refused before anything else can be wrong
            return _offer(session, info, log, limit, max_bytes)

        found = self._database.read(work)
        info = found.info if isinstance(found, _Offer) else found
        # A lease longer than it may be was made by a clock that went back since. Or this process
        # has slept, and its own idea of the time is behind: the server is asked before it is ended.
        if info.is_overlong(now):
            now = self._database.asked_now()
        if info.is_overlong(now):
            info.held_until = now + info.lease
            self._shorten(name, info.held_until)
        refuse_held(info, holder, now)
        # The lease that kept this caller from reading has turned out to be over.
        return found if isinstance(found, _Offer) else self._offer(name, limit, max_bytes, holder)

    def _shorten(self, name: str, until: float) -> None:
        """End a lease that the clock made too long."""

        def work(session: SqlSession) -> None:
            session.run("consumers.shorten", until, name, until)

        self._database.write(work, "desk", is_synced=False)

    def _pass(self, offer: _Offer, holder: str | None) -> None:
        """Set the corrupted fact after the cursor aside, unless another process has done so."""

        def work(session: SqlSession) -> None:
            now, at = self._database.clock(), offer.corrupted
            info, _ = reader_named(session, offer.info.name)
            refuse_held(info, holder, now)
            if offer.undeliverable:
                session.run_all(
                    "quarantine.undeliverable", [(item,) for item in offer.undeliverable]
                )
            elif at is not None and info.cursor == offer.info.cursor:
                message = f"the fact at {at} of {info.log} is not what was stored there"
                item = Quarantined(0, info.name, info.log, at, "corrupted", message, 0, now)
                set_aside(session, item)
                session.run("consumers.move", info.name, at)

        self._database.write(work, "quarantine")

    def _note(self, offer: _Offer, holder: str | None, lease: float) -> bool:
        """Note what is delivered and to which holder; False when the consumer has moved."""
        through = 0 if offer.is_released else offer.page.through
        # Nothing is new: a page that is read again without a lease costs no transaction.
        if holder is None and not offer.released and through <= offer.info.served:
            return True

        def work(session: SqlSession) -> ConsumerInfo | None:
            info, _ = reader_named(session, offer.info.name)
            now = self._database.clock()
            # Asked again: since the page was read, another process may have taken the lease.
            refuse_held(info, holder, now)
            if info.cursor != offer.info.cursor:
                return None
            session.run_all("quarantine.mark_served", [(item,) for item in offer.released])
            if not offer.is_released:
                give(info, offer.page, holder)
            hold(info, holder, lease, now)
            held = (info.holder, info.held_until, info.lease)
            session.run("consumers.served", info.served, info.deliveries, *held, info.name)
            return info

        # Not synced: if a power cut undoes it, the same page is given out again, which is allowed.
        noted = self._database.write(work, "desk", is_synced=False)
        if noted is None:
            return False
        noted.lag, noted.waiting_since = offer.info.lag, offer.info.waiting_since
        offer.info = noted
        return True


def _offer(
    session: SqlSession, info: ConsumerInfo, log: LogRow, limit: int, max_bytes: int
) -> _Offer:
    with_lag(session, info, log)
    released = _released(session, info, log, limit, max_bytes)
    if released is not None:
        return released
    refuse_truncated(info, pages.unexplained(session, log, info.cursor))
    stretch = pages.read(session, log, info.cursor, limit, max_bytes, info.to_zone)
    # What was released and lies above the cursor, after a seek, comes along with its neighbours:
    # confirmed on its own, it would take the cursor past them.
    page = stretch.page
    bounds = (info.name, info.cursor, page.through, max(0, page.through - info.cursor))
    given = {fact.offset for fact in page.facts}
    items = [item for item, at in session.all("quarantine.released", *bounds) if at in given]
    return _Offer(info, page, stretch.corrupted, items)


def _before(session: SqlSession, info: ConsumerInfo, view: int, offset: int) -> int:
    """The fact before one of the consumer's view."""
    run = None if info.to_zone is None else run_at(session, view, offset)
    return offset - 1 if run is None else run.before(offset)


def _released(
    session: SqlSession, info: ConsumerInfo, log: LogRow, limit: int, max_bytes: int
) -> _Offer | None:
    """A page of facts out of quarantine, if there are any below the cursor."""
    bounds = (info.name, 0, info.cursor, limit)
    items: dict[int, int] = {}
    undeliverable: list[int] = []

    def facts() -> Iterator[StoredFact]:
        zones = Zones(session)
        for item, offset in session.all("quarantine.released", *bounds):
            row = session.one("logs.fact", log.base + offset)
            fact = None
            if row is not None:
                fact = fact_of(row, zones[row[1]], _before(session, info, row[1], offset))
            if fact is None:
                undeliverable.append(item)
                continue
            items[offset] = item
            yield fact

    given = fill_page(facts(), log.head, limit, max_bytes).given
    if not given and not undeliverable:
        return None
    page = LogPage(given, given[-1].offset if given else 0, log.head)
    released = [items[fact.offset] for fact in given]
    return _Offer(info, page, released=released, is_released=True, undeliverable=undeliverable)


# ---- quarantine -------------------------------------------------------------------------------


def keep(session: SqlSession, item: Quarantined, consumer: str = "") -> Quarantined:
    """Set something aside. A fact that could not enter a log is kept once, however often it is."""
    owner = consumer or item.consumer
    place = (owner, item.log, item.offset)
    if item.fact and session.one("quarantine.same", *place, item.envelope, item.fact):
        return item
    values = (*place, item.reason, item.message, item.attempts, item.at, item.envelope, item.fact)
    return _numbered(session, session.add("quarantine.add", *values))


def set_aside(session: SqlSession, item: Quarantined) -> Quarantined:
    """Set a fact of a log aside; one that is, or was released, is the same item still."""
    found = session.one("quarantine.open_at", item.consumer, item.offset)
    if found is None:
        return keep(session, item)
    session.run("quarantine.again", item.reason, item.message, item.attempts, found[0])
    return _numbered(session, found[0])


def state_at(session: SqlSession, consumer: str, offset: int) -> str | None:
    """Whether a fact is set aside for a consumer, or released to it."""
    found = session.one("quarantine.open_at", consumer, offset)
    return None if found is None else str(found[1])


def _numbered(session: SqlSession, number: int) -> Quarantined:
    row = session.one("quarantine.item", number)
    if row is None:
        raise not_there(number)
    return _item(row)


def _item(row: Row) -> Quarantined:
    return Quarantined(*row)
