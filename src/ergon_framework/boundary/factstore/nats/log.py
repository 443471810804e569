"""Logs and their ledger, in a stream: appending, receiving, pages, retention, verification.

To drop payloads, one commit raises the first offset of the log; then the messages are deleted. Ids
stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from time import perf_counter
from typing import TypeAlias

from ergon_framework.boundary.factstore import hashchain, page_plan
from ergon_framework.boundary.factstore.append_plan import Append, AppendPlanner
from ergon_framework.boundary.factstore.append_queue import (
    AppendQueue,
    GuardedCallback,
    nothing,
    tell_head,
)
from ergon_framework.boundary.factstore.consumers import conflicting
from ergon_framework.boundary.factstore.hashchain import PreparedFact, key_of, prepare
from ergon_framework.boundary.factstore.nats.append import (
    MAX_REFERENCES_PER_COMMIT,
    StreamPlacement,
    refer,
)
from ergon_framework.boundary.factstore.nats.consumers import keep_whole, open_items
from ergon_framework.boundary.factstore.nats.database import NatsDatabase
from ergon_framework.boundary.factstore.nats.pages import (
    ENTRIES_PER_READ,
    all_after,
    empty_page,
    gaps_of,
    place_of,
    read_page,
    search_entries,
)
from ergon_framework.boundary.factstore.nats.schema import (
    ConsumerRecord,
    EntryPosition,
    LogState,
    QuarantineMessage,
)
from ergon_framework.boundary.factstore.nats.session import StreamTransaction
from ergon_framework.boundary.factstore.page_plan import Hole
from ergon_framework.boundary.factstore.records import corrupted
from ergon_framework.core.zone_link import leads_to
from ergon_framework.errors import StoreError
from ergon_framework.ports.factstore import (
    INBOUND,
    Appended,
    AppendOutcome,
    BeforeWait,
    CapacityExceeded,
    Conflict,
    Corruption,
    Gap,
    LedgerEntry,
    Link,
    LogInfo,
    LogPage,
    NewFact,
    Quarantined,
)
from ergon_framework.storage.nats.errors import too_large

MAX_MESSAGES = 600
"""The most messages in one commit for its entries: each may bring a gap, an item and object names.
"""
MAX_ITEMS = 150
"""The most quarantined items in one commit."""


@dataclass(slots=True)
class _Arrival:
    """An entry of a peer's page."""

    entry: hashchain.ChainEntry
    fact: PreparedFact


DropBound: TypeAlias = Callable[[StreamTransaction], int]
"""Returns the offset up to which a log may be dropped, as of the transaction."""


MAX_FACTS = 300
"""Facts of one commit: each has an id and may have an object's name, and a batch has an end."""
MAX_BYTES = 8 << 20
MESSAGE_OVERHEAD = 4096
"""Bytes that a message has beside the fact, at most."""


class NatsLog:
    """The part of the store that keeps facts."""

    def __init__(self, database: NatsDatabase) -> None:
        self._database = database
        self._watch: Callable[[int, float], None] | None = None
        self._heads_seen: Callable[[str, int], None] | None = None
        self._before_waiting: BeforeWait = nothing
        self._appends: AppendQueue[Append, list[AppendOutcome]] = AppendQueue(
            self.append_all, weigh=lambda asked: len(asked.facts), name="ergon-append"
        )

    @property
    def largest(self) -> int | None:
        """Bytes that envelope and fact may take together, as the server says."""
        return self._database.stream.client.max_payload - MESSAGE_OVERHEAD

    def append(
        self, log: str, facts: Sequence[NewFact], *, capacity: int | None = None
    ) -> list[AppendOutcome]:
        """Append in order, each with an outcome of its own; many in several commits."""
        if not facts:
            return []
        asked = self.prepared(log, facts, capacity)
        self._before_waiting()
        return self._appends.call(asked)

    def append_soon(
        self,
        log: str,
        facts: Sequence[NewFact],
        done: Callable[[list[AppendOutcome] | BaseException], None],
        *,
        capacity: int | None = None,
        group_done: Callable[[], None] | None = None,
    ) -> None:
        """Append without waiting. ``done`` is called by another thread after the commit."""
        try:
            asked = self.prepared(log, facts, capacity)
        except StoreError as error:
            done(error)
        else:
            self._appends.call_soon(asked, done, group_done)

    def prepared(self, log: str, facts: Sequence[NewFact], capacity: int | None) -> Append:
        """Work out what can be, and refuse what would make all fail that share its commit."""
        prepared = [prepare(log, each) for each in facts]
        if any(each.size > (self.largest or 0) for each in prepared):
            raise too_large(self._database.url)
        return Append(log, prepared, capacity)

    def watch_waits(self, seen: BeforeWait) -> None:
        """Call ``seen`` when an append is about to wait."""
        self._before_waiting = GuardedCallback(seen, "waits")

    def watch_heads(self, seen: Callable[[str, int], None]) -> None:
        """Call ``seen`` with the new head of a log."""
        self._heads_seen = GuardedCallback(seen, "heads")

    def watch_commits(self, seen: Callable[[int, float], None]) -> None:
        """Call ``seen`` for each group of appends, with its number of facts and its seconds."""
        self._watch = GuardedCallback(seen, "commits")

    def close(self) -> None:
        """Wait for the appends that were left to be done, and take no more."""
        self._appends.close()

    def append_all(self, asked: Sequence[Append]) -> list[list[AppendOutcome]]:
        """Append for several callers, in as few commits as can hold it."""
        began, outcomes = perf_counter(), [list[AppendOutcome]() for _ in asked]
        for each in asked:
            refer_ahead(self._database, each.facts, "append", is_awaited=False)
        for part in _parts(asked):
            for index, found in zip(part, self._enter(list(part.values())), strict=True):
                outcomes[index] += found
                if any(isinstance(each, CapacityExceeded) for each in found):
                    asked[index].capacity = 0  # nothing enters behind it in a later commit either
        if self._heads_seen is not None:
            for each, found in zip(asked, outcomes, strict=True):
                tell_head(self._heads_seen, each.log, found)
        if self._watch is not None:
            self._watch(sum(len(each.facts) for each in asked), perf_counter() - began)
        return outcomes

    def _enter(self, asked: Sequence[Append]) -> list[list[AppendOutcome]]:
        keys = [fact.key for each in asked for fact in each.facts]

        def work(transaction: StreamTransaction) -> list[list[AppendOutcome]]:
            known = transaction.known(keys, {each.log for each in asked})
            planner = AppendPlanner(StreamPlacement(transaction, self._database.clock(), known))
            return [planner.append(each.log, each.facts, each.capacity) for each in asked]

        return self._database.transaction(work, "append")

    # ---- reading --------------------------------------------------------------------------------

    def find(self, from_zone: str, message_id: str, log: str | None = None) -> LedgerEntry | None:
        """Find a fact by its id in one log, or in all logs, ``outbound`` first."""

        def work(transaction: StreamTransaction) -> LedgerEntry | None:
            found = [each for each in transaction.log_states() if log in {None, each.name}]
            keys = {each.name: key_of(each.name, from_zone, message_id) for each in found}
            known = transaction.known(keys.values(), keys)
            for log_state in found:
                one = known.get(keys[log_state.name])
                if one is not None:
                    is_kept = one.offset >= log_state.first
                    return LedgerEntry(log_state.name, one.offset, one.digest, is_retained=is_kept)
            return None

        return self._database.read(work)

    def page(
        self, log: str, after: int, limit: int, max_bytes: int, to_zone: str | None = None
    ) -> LogPage:
        """Read what is kept, without a consumer; a log that is not there is empty."""

        def work(transaction: StreamTransaction) -> LogPage:
            log_state = transaction.log_state(log)
            if log_state is None:
                return empty_page(after)
            stretch = read_page(transaction, log_state, after, limit, max_bytes, to_zone)
            if stretch.corrupted is not None and not stretch.page.facts:
                raise corrupted(log, stretch.corrupted, self._database.url)
            return stretch.page

        return self._database.read(work)

    def logs(self) -> list[LogInfo]:
        """Every log, ``outbound`` first and always."""
        return self._database.read(
            lambda transaction: [each.info() for each in transaction.log_states()]
        )

    def gaps(self, log: str | None = None) -> list[Gap]:
        """Every recorded loss."""

        def work(transaction: StreamTransaction) -> list[Gap]:
            found = [each for each in transaction.log_states() if log in {None, each.name}]
            return [gap for log_state in found for gap in gaps_of(transaction, log_state)]

        return self._database.read(work)

    def aged(self, log: str, before: float) -> int:
        """The highest offset such that it and all below it were recorded before an instant."""

        def work(transaction: StreamTransaction) -> int:
            log_state = transaction.log_state(log)
            if log_state is None:
                return 0
            # A search relies on instants that rise; it may stop too early where the clock went
            # back.
            if log_state.cut_risen_at >= before:  # the clock has gone back since: look at each
                return _aged_one_by_one(transaction, log_state, before)
            last = search_entries(transaction, log_state, lambda entry: entry.risen_at < before)
            return log_state.first - 1 if last is None else last.offset

        return self._database.read(work)

    def verify(self, log: str, after: int = 0) -> Iterator[Corruption | int]:
        """Walk the hash chain as it was when the walk began."""
        log_state = self._database.read(lambda transaction: transaction.log_state(log))
        at = after if log_state is None else max(after, log_state.first - 1)
        while log_state is not None and at < log_state.head:
            found, at = self._database.read(_verify_step(log_state, at))
            yield from found

    # ---- what peers have ------------------------------------------------------------------------

    def receive(
        self,
        peer: str,
        facts: Sequence[NewFact],
        link: Link,
        refused: Sequence[Quarantined] = (),
        gaps: Sequence[Gap] = (),
    ) -> list[AppendOutcome]:
        """Insert what a peer sent and lost where it is absent, and move the link.

        A page that is too large for one commit is taken in by several, in order; the link moves
        with the last one, so that all of the page comes again if that is never made.
        """
        log, arrived = INBOUND + peer, list[_Arrival]()
        for each in hashchain.in_order(facts, gaps):
            new = hashchain.marker(each) if isinstance(each, Gap) else each
            arrived.append(_Arrival(each, prepare(log, new)))
        refer_ahead(self._database, (each.fact for each in arrived), "receive", is_awaited=True)
        outcomes: list[AppendOutcome] = []
        *parts, last = _arriving_parts(arrived)
        for part in parts:
            outcomes += self._take_in(peer, part, None, ())
        while len(refused) > MAX_ITEMS:
            self._take_in(peer, (), None, refused[:MAX_ITEMS])
            refused = refused[MAX_ITEMS:]
        outcomes += self._take_in(peer, last, link, refused)
        if self._heads_seen is not None:
            tell_head(self._heads_seen, log, outcomes)
        return outcomes

    def _take_in(
        self,
        peer: str,
        arrived: Sequence[_Arrival],
        link: Link | None,
        refused: Sequence[Quarantined],
    ) -> list[AppendOutcome]:
        def work(transaction: StreamTransaction) -> list[AppendOutcome]:
            now, log = self._database.clock(), INBOUND + peer
            known = transaction.known([each.fact.key for each in arrived], [log])
            planner = AppendPlanner(StreamPlacement(transaction, now, known))
            found = planner.receive(log, [each.fact for each in arrived])
            outcomes: list[AppendOutcome] = []
            for each, outcome in zip(arrived, found, strict=True):
                if isinstance(each.entry, Gap):
                    _record(transaction, log, each.entry, outcome)
                    continue
                outcomes.append(outcome)
                if isinstance(outcome, Conflict):
                    _keep(transaction, peer, conflicting(peer, log, each.entry, now))
            for item in refused:
                _keep(transaction, peer, item)
            if link is not None:
                _move(transaction, peer, link)
            return outcomes

        return self._database.transaction(work, "receive")

    # ---- retention ------------------------------------------------------------------------------

    def truncate(self, log: str, through: int, *, loss_reason: str | None = None) -> int:
        """Drop payloads up to ``through``; how many were dropped. The ledger keeps their ids."""
        if loss_reason is None:
            return self.drop(
                log, lambda transaction: min(through, _settled_by_all(transaction, log))
            )
        return self.drop(log, lambda _: through, loss_reason)

    def drop(self, log: str, bound: DropBound, loss_reason: str | None = None) -> int:
        """Drop payloads up to where something says; how many were dropped."""
        end = partial(_dropped, log, bound, loss_reason, self._database.clock())
        dropped, below = self._database.transaction(end, "truncate")
        # After the commit: until then the messages are still part of the log.
        if dropped:
            self._database.clear(below, self._database.subjects.entries(log))
            self._clear_repairs(below, log)
        return dropped

    def _clear_repairs(self, below: int, log: str) -> None:
        """Remove what stood in the place of damaged entries that are gone."""
        with suppress(StoreError):  # what was committed counts, whether they go or not
            for each in self._database.stream.latest([self._database.subjects.repairs(log)]):
                if int(each.subject.rpartition(".")[2]) < below:
                    self._database.stream.delete(each.seq)


def refer_ahead(
    database: NatsDatabase, facts: Iterable[PreparedFact], call: str, *, is_awaited: bool
) -> None:
    """Mark what facts with very many references refer to, before they are entered.

    Their names would not fit into the commit of the fact; a name that is marked for a fact that
    never comes is merely kept.
    """
    for fact in facts:
        names = fact.new.references
        for start in range(
            0,
            len(names) if len(names) > MAX_REFERENCES_PER_COMMIT else 0,
            MAX_REFERENCES_PER_COMMIT,
        ):
            part = names[start : start + MAX_REFERENCES_PER_COMMIT]
            is_kept = is_awaited or not fact.new.needs_artifacts
            names_of = [(each.bucket, each.key) for each in part]
            database.transaction(partial(refer, names_of, is_awaited=is_kept), call)


def _arriving_parts(arrived: Sequence[_Arrival]) -> list[list[_Arrival]]:
    """Entries in order, in parts that fit into one commit."""
    parts, size = [list[_Arrival]()], 0
    for each in arrived:
        weight = 5 + min(len(each.fact.new.references), MAX_REFERENCES_PER_COMMIT)
        if parts[-1] and size + weight > MAX_MESSAGES:
            parts.append([])
            size = 0
        parts[-1].append(each)
        size += weight
    return parts


def _record(transaction: StreamTransaction, log: str, gap: Gap, outcome: AppendOutcome) -> None:
    """A loss of the peer that is new becomes a gap of the inbound log."""
    # A duplicate: the gap is recorded since the page came first.
    if not isinstance(outcome, Appended) or outcome.is_duplicate:
        return
    transaction.log_state_or_new(log).gaps += 1
    subject = transaction.subjects.gap(log, outcome.offset, is_ours=False)
    transaction.put(subject, hashchain.recorded(gap, log, outcome.offset))


def _keep(transaction: StreamTransaction, peer: str, item: Quarantined) -> None:
    values = {each.name: getattr(item, each.name) for each in fields(Quarantined)}
    keep_whole(transaction, QuarantineMessage(**{**values, "id": 0, "consumer": f"pull:{peer}"}))


def _move(transaction: StreamTransaction, peer: str, link: Link) -> None:
    subject = transaction.subjects.link(peer)
    kept = transaction.get(Link, subject) or Link(peer)
    moved = replace(link, peer=peer, is_sealed=kept.is_sealed, reason=kept.reason)
    # Nothing is written for a link that stays where it is.
    if leads_to(kept, link) and moved != transaction.get(Link, subject):
        transaction.put(subject, moved)


def _dropped(
    log: str, bound: DropBound, reason: str | None, now: float, transaction: StreamTransaction
) -> tuple[int, int]:
    """Move the start of a log; returns how many facts were dropped, and the sequence they lie
    below.
    """
    log_state = transaction.log_state(log)
    last = 0 if log_state is None else min(bound(transaction), log_state.head)
    if log_state is None or last < log_state.first:
        return 0, 0
    first, place = log_state.first, EntryPosition(max(0, log_state.first_seq - 1), b"")
    # Looked for, and not remembered: what lies below this place will be gone.
    edge = search_entries(transaction, log_state, lambda entry: entry.offset <= last)
    if edge is not None:
        log_state.cut_total, log_state.cut_at = edge.total, edge.recorded_at
        log_state.cut_risen_at = edge.risen_at
        place = EntryPosition(edge.seq, edge.chain if edge.offset == last else b"")
    log_state.cut_latest = _latest_below(transaction, log_state, last, place)
    log_state.first, log_state.first_seq, log_state.cut_chain = last + 1, place.seq + 1, place.chain
    log_state.head_seq = 0 if log_state.head == last else log_state.head_seq
    if reason is not None:
        lost = page_plan.lost_from(first, last, _slowest_cursor(transaction, log))
        if lost is not None:
            _lose(transaction, log_state, lost, reason, now)
            transaction.note(now, "truncate", page_plan.loss_note(log, lost, last, reason))
    return last - first + 1, log_state.first_seq


def _latest_below(
    transaction: StreamTransaction, log_state: LogState, last: int, place: EntryPosition
) -> dict[str, int]:
    """For each zone, the offset of the last fact to it, up to a given offset."""
    found: dict[str, int] = {}
    for zone, offset in log_state.latest.items():
        if offset > last:
            subject = transaction.subjects.facts(log_state.name, zone)
            following = transaction.stream.next(subject, place.seq + 1)
            entry = None if following is None else transaction.entry(log_state, following)
            offset = log_state.cut_latest.get(zone, 0) if entry is None else entry.alike  # noqa: PLW2901
        if offset:
            found[zone] = offset
    return found


def _lose(
    transaction: StreamTransaction, log_state: LogState, first: int, reason: str, now: float
) -> None:
    """Record that what was dropped from an offset on is lost; a loss that goes on is one."""
    before = page_plan.continued_gap(gaps_of(transaction, log_state), first, reason)
    first = first if before is None else before.first
    log_state.gaps += 1
    gap = Gap(log_state.name, first, log_state.first - 1, reason, now)
    transaction.put(transaction.subjects.gap(log_state.name, first, is_ours=True), gap)


def _settled_by_all(transaction: StreamTransaction, log: str) -> int:
    """The offset up to which all required consumers have confirmed and nothing is in quarantine."""
    required = [each for each in _readers(transaction, log) if each.is_required]
    aside: list[QuarantineMessage] = [
        item for one in required for item in open_items(transaction, one.name)
    ]
    return page_plan.settled_through(
        min((one.cursor for one in required), default=None),
        min((item.offset for item in aside), default=None),
    )


def _slowest_cursor(transaction: StreamTransaction, log: str) -> int | None:
    """The offset up to which every consumer has confirmed; None without consumers."""
    return min((one.cursor for one in _readers(transaction, log)), default=None)


def _readers(transaction: StreamTransaction, log: str) -> list[ConsumerRecord]:
    found = transaction.all(ConsumerRecord, transaction.subjects.consumers).values()
    return [each for each in found if each.log == log and not each.is_gone]


def _verify_step(
    log_state: LogState, at: int
) -> Callable[[StreamTransaction], tuple[list[Corruption | int], int]]:
    """Some steps of the walk along a log, and where they ended."""

    def work(transaction: StreamTransaction) -> tuple[list[Corruption | int], int]:
        found: list[Corruption | int] = []
        chain, seen = place_of(transaction, log_state, at).chain, at
        for each in all_after(transaction, log_state, at):
            if isinstance(each, Hole):
                found.append(
                    Corruption(log_state.name, each.offset, "it is not what was stored there")
                )
                # What follows a hole cannot be checked against it: the chain begins anew there.
                chain = b""
            elif chain and not each.follows(chain):
                found.append(
                    Corruption(log_state.name, each.offset, "it does not follow the one before it")
                )
                chain = each.chain
            else:
                chain = each.chain
            seen = each.offset
            found.append(seen)
            if len(found) >= ENTRIES_PER_READ:
                break
        return found, seen if found else log_state.head

    return work


def _aged_one_by_one(transaction: StreamTransaction, log_state: LogState, before: float) -> int:
    last = log_state.first - 1
    for each in all_after(transaction, log_state, last):
        if isinstance(each, Hole) or each.recorded_at >= before:
            break
        last = each.offset
    return last


def _parts(asked: Sequence[Append]) -> Iterator[dict[int, Append]]:
    """What callers want appended, in order, in parts that fit into one commit."""
    part: dict[int, Append] = {}
    count = size = 0
    for index, each in enumerate(asked):
        for fact in each.facts:
            weight = 1 + len(fact.new.references)
            if part and (count + weight > MAX_FACTS or size + fact.size > MAX_BYTES):
                yield part
                part, count, size = {}, 0, 0
            mine = part.setdefault(index, Append(each.log, [], each.capacity))
            mine.facts.append(fact)
            count, size = count + weight, size + fact.size
    if part:
        yield part
