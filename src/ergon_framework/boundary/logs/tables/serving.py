"""Giving pages to consumers.

The page is read while appends go on; what is noted about it is a small transaction of its own,
which finds out whether the consumer has moved meanwhile. Then the page is read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ergon_framework.boundary.logs.refusing import refuse_held, refuse_truncated
from ergon_framework.boundary.logs.tables import pages, quarantine
from ergon_framework.boundary.logs.tables.desk import TableDesk
from ergon_framework.boundary.logs.tables.ground import Books
from ergon_framework.boundary.logs.tables.readers import reader_named, with_lag
from ergon_framework.boundary.logs.tables.rows import LogRow, Zones, fact_of
from ergon_framework.boundary.logs.tables.runs import run_at
from ergon_framework.ports.factstore import ConsumerInfo, Gap, Page, Quarantined, Serving

ROUNDS = 100
"""Corrupted facts that one call passes at most."""


@dataclass(slots=True)
class _Offer:
    """A page that was read for a consumer."""

    info: ConsumerInfo
    page: Page
    corrupted: int | None = None
    """The fact that ended it."""
    released: Sequence[int] = ()
    """Items out of quarantine that are in the page."""
    is_released: bool = False
    """The page consists of nothing else."""
    spoilt: Sequence[int] = ()
    """Items that were released and can no longer be delivered."""

    @property
    def is_stuck(self) -> bool:
        """Whether something must be set aside before the consumer can go on."""
        has_more = self.page.facts or self.page.gaps  # which comes before what is corrupted
        return bool(self.spoilt) or (self.corrupted is not None and not has_more)


class TableServing(TableDesk):
    """The part of the store that gives facts out."""

    def serve(
        self,
        name: str,
        limit: int,
        max_bytes: int,
        *,
        holder: str | None = None,
        lease: float = 30.0,
    ) -> Serving:
        """The page after the cursor; the same one until it is confirmed."""
        offer = self._offer(name, limit, max_bytes, holder)
        passed: list[int] = []
        for _ in range(ROUNDS):
            if offer.is_stuck:
                self._pass(offer, holder)
                passed += [offer.corrupted] if offer.corrupted and not offer.spoilt else []
            elif self._note(offer, holder, lease):
                offer.page.gaps[:0] = self._told(offer, passed)
                return Serving(offer.info, offer.page, offer.is_released)
            offer = self._offer(name, limit, max_bytes, holder)
        at, head = offer.info.cursor, offer.page.head
        gaps = self._told(offer, passed)
        return Serving(offer.info, Page([], at, head, gaps=gaps))  # the rest is for the next call

    def _told(self, offer: _Offer, passed: Sequence[int]) -> list[Gap]:
        """What a consumer hears of the corrupted facts that were passed."""
        now = self._clock()
        return [Gap(offer.info.log, at, at, "corrupted", now) for at in passed]

    def _offer(self, name: str, limit: int, max_bytes: int, holder: str | None) -> _Offer:
        now = self._clock()

        def work(books: Books) -> _Offer | ConsumerInfo:
            info, log = reader_named(books, name)
            if info.is_held(now) and info.holder != holder:
                return info  # refused before anything else can be wrong
            return _offer(books, info, log, limit, max_bytes)

        found = self._read(work)
        info = found.info if isinstance(found, _Offer) else found
        if info.is_overlong(now):  # or it is our idea of the time that has fallen behind
            now = self._asked_now()
        if info.is_overlong(now):
            info.held_until = now + info.lease
            self._shorten(name, info.held_until)
        refuse_held(info, holder, now)
        return found if isinstance(found, _Offer) else self._offer(name, limit, max_bytes, holder)

    def _shorten(self, name: str, until: float) -> None:
        """End a lease that the clock made too long."""

        def work(books: Books) -> None:
            books.run("consumers.shorten", until, name, until)

        self._write(work, "desk", is_synced=False)

    def _pass(self, offer: _Offer, holder: str | None) -> None:
        """Set the corrupted fact after the cursor aside, unless somebody was faster."""

        def work(books: Books) -> None:
            now, at = self._clock(), offer.corrupted
            info, _ = reader_named(books, offer.info.name)
            refuse_held(info, holder, now)
            if offer.spoilt:
                books.run_all("quarantine.spoilt", [(item,) for item in offer.spoilt])
            elif at is not None and info.cursor == offer.info.cursor:
                message = f"the fact at {at} of {info.log} is not what was stored there"
                item = Quarantined(0, info.name, info.log, at, "corrupted", message, 0, now)
                quarantine.set_aside(books, item)
                books.run("consumers.move", info.name, at)

        self._write(work, "quarantine")

    def _note(self, offer: _Offer, holder: str | None, lease: float) -> bool:
        """Write down what is given out and to whom; False when the consumer has moved."""
        through = 0 if offer.is_released else offer.page.through
        if holder is None and not offer.released and through <= offer.info.served:
            return True

        def work(books: Books) -> ConsumerInfo | None:
            info, _ = reader_named(books, offer.info.name)
            now = self._clock()
            refuse_held(info, holder, now)
            if info.cursor != offer.info.cursor:
                return None
            books.run_all("quarantine.mark_served", [(item,) for item in offer.released])
            info.served = max(info.served, through)
            if holder is not None:
                is_next = holder != info.holder or not info.deliveries
                info.deliveries += bool(offer.page.facts) and not offer.is_released and is_next
                info.holder, info.lease, info.held_until = holder, lease, now + lease
            held = (info.holder, info.held_until, info.lease)
            books.run("consumers.served", info.served, info.deliveries, *held, info.name)
            return info

        # A promise to nobody: after a power cut the same page is given out again.
        noted = self._write(work, "desk", is_synced=False)
        if noted is None:
            return False
        noted.lag, noted.waiting_since = offer.info.lag, offer.info.waiting_since
        offer.info = noted
        return True


def _offer(books: Books, info: ConsumerInfo, log: LogRow, limit: int, max_bytes: int) -> _Offer:
    with_lag(books, info, log)
    released = _released(books, info, log, limit, max_bytes)
    if released is not None:
        return released
    refuse_truncated(info, pages.unexplained(books, log, info.cursor))
    stretch = pages.read(books, log, info.cursor, limit, max_bytes, info.to_zone)
    # What was released and lies above the cursor, after a seek, comes along with its neighbours:
    # confirmed on its own, it would take the cursor past them.
    page = stretch.page
    bounds = (info.name, info.cursor, page.through, max(0, page.through - info.cursor))
    given = {fact.offset for fact in page.facts}
    items = [item for item, at in books.all("quarantine.released", *bounds) if at in given]
    return _Offer(info, page, stretch.corrupted, items)


def _before(books: Books, info: ConsumerInfo, view: int, offset: int) -> int:
    """The fact before one of the consumer's view."""
    run = None if info.to_zone is None else run_at(books, view, offset)
    return offset - 1 if run is None else run.before(offset)


def _released(
    books: Books, info: ConsumerInfo, log: LogRow, limit: int, max_bytes: int
) -> _Offer | None:
    """A page of facts out of quarantine, if there are any below the cursor."""
    bounds = (info.name, 0, info.cursor, limit)
    offer = _Offer(info, Page([], 0, log.head), is_released=True)
    given: list[int] = []
    spoilt: list[int] = []
    size, zones = 0, Zones(books)
    for item, offset in books.all("quarantine.released", *bounds):
        row = books.one("logs.fact", log.base + offset)
        fact = None
        if row is not None:
            fact = fact_of(row, zones[row[1]], _before(books, info, row[1], offset))
        if fact is None:
            spoilt.append(item)
            continue
        size += len(fact.envelope) + len(fact.fact)
        if given and size > max_bytes:
            break
        given.append(item)
        offer.page.facts.append(fact)
        offer.page.through = offset
    offer.released, offer.spoilt = given, spoilt
    return offer if given or spoilt else None
