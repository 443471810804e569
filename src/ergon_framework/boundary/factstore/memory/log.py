"""Logs and their ledger, in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ergon_framework.boundary.factstore.consumers import conflicting
from ergon_framework.boundary.factstore.hashchain import in_order
from ergon_framework.boundary.factstore.memory.state import MemoryDatabase, MemoryLog, ZoneState
from ergon_framework.boundary.factstore.records import corrupted
from ergon_framework.core.zone_link import leads_to
from ergon_framework.ports.factstore import (
    INBOUND,
    OUTBOUND,
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
    MissingReference,
    NewFact,
    Quarantined,
    Reference,
)


class MemoryFactLog:
    """The part of the store that keeps facts."""

    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database

    def append(
        self, log: str, facts: Sequence[NewFact], *, capacity: int | None = None
    ) -> list[AppendOutcome]:
        """Append facts in order in one step, each with its own outcome."""
        with self._database.step() as state:
            now = self._database.clock()
            outcomes: list[AppendOutcome] = []
            for fact in facts:
                outcomes.append(_append(state, log, fact, capacity, now))
                if isinstance(outcomes[-1], CapacityExceeded):
                    capacity = 0  # a smaller one behind it would change the order
            return outcomes

    def append_soon(
        self,
        log: str,
        facts: Sequence[NewFact],
        done: Callable[[list[AppendOutcome] | BaseException], None],
        *,
        capacity: int | None = None,
    ) -> None:
        """Like ``append``. ``done`` is called at once, as nothing waits here."""
        answer: list[AppendOutcome] | BaseException
        try:
            answer = self.append(log, facts, capacity=capacity)
        except Exception as error:
            answer = error
        done(answer)

    def find(self, from_zone: str, message_id: str, log: str | None = None) -> LedgerEntry | None:
        """Find a fact by its id in one log, or in all logs, ``outbound`` first."""
        with self._database.step() as state:
            for memory_log in _in_order(state):
                found = memory_log.find(from_zone, message_id)
                if found is not None and log in {None, memory_log.name}:
                    return found
        return None

    def page(
        self, log: str, after: int, limit: int, max_bytes: int, to_zone: str | None = None
    ) -> LogPage:
        """Read what is kept, without a consumer; a log that is not there is empty."""
        with self._database.step() as state:
            memory_log = state.logs.get(log) or MemoryLog(log)
            page = memory_log.page(after, limit, max_bytes, to_zone)
            if not page.facts and page.through < page.head:
                raise corrupted(log, page.through + 1, "memory")
            return page

    def logs(self) -> list[LogInfo]:
        """Every log, ``outbound`` first and always."""
        with self._database.step() as state:
            return [memory_log.info() for memory_log in _in_order(state)]

    def truncate(self, log: str, through: int, *, loss_reason: str | None = None) -> int:
        """Drop payloads up to ``through``; how many were dropped. The ledger keeps their ids."""
        with self._database.step() as state:
            memory_log = state.logs.get(log)
            if memory_log is None:
                return 0
            if loss_reason is None:
                return memory_log.drop(min(through, _settled_by_all(state, log)))
            first = memory_log.first
            dropped = memory_log.drop(through)
            lost = max(first, _confirmed_by_all(state, log) + 1)
            if lost < memory_log.first:
                now = self._database.clock()
                memory_log.lose(lost, loss_reason, now)
                text = f"{log} lost {lost} to {memory_log.first - 1}: {loss_reason}"
                state.journal.append((now, "truncate", text))
            return dropped

    def aged(self, log: str, before: float) -> int:
        """The highest offset such that it and all below it were recorded before an instant."""
        with self._database.step() as state:
            return (state.logs.get(log) or MemoryLog(log)).aged(before)

    def gaps(self, log: str | None = None) -> list[Gap]:
        """Every recorded loss."""
        with self._database.step() as state:
            memory_logs = [each for each in _in_order(state) if log in {None, each.name}]
            return [gap for memory_log in memory_logs for gap in memory_log.gaps]

    def verify(self, log: str, after: int = 0) -> Iterator[Corruption | int]:
        """Walk the hash chain as it was when the walk began."""
        with self._database.step() as state:
            memory_log = state.logs.get(log) or MemoryLog(log)
            rows = memory_log.rows[max(0, after + 1 - memory_log.first) :]
            problems = {row.fact.offset for row in rows if not memory_log.is_intact(row)}
        for row in rows:
            if row.fact.offset in problems:
                yield Corruption(log, row.fact.offset, "it is not what was stored there")
            yield row.fact.offset

    def receive(
        self,
        peer: str,
        facts: Sequence[NewFact],
        link: Link,
        refused: Sequence[Quarantined] = (),
        gaps: Sequence[Gap] = (),
    ) -> list[AppendOutcome]:
        """Insert what a peer sent and lost where it is absent, and move the link: one step."""
        with self._database.step() as state:
            now = self._database.clock()
            log = INBOUND + peer
            outcomes: list[AppendOutcome] = []
            for entry in in_order(facts, gaps):
                if isinstance(entry, NewFact):
                    outcomes.append(_receive(state, log, entry, now))
                elif state.memory_log(log).lose_at_peer(entry, now):
                    state.is_longer = True
            conflicts = [
                conflicting(peer, log, fact, now)
                for fact, outcome in zip(facts, outcomes, strict=True)
                if isinstance(outcome, Conflict)
            ]
            for item in (*conflicts, *refused):
                state.set_aside_whole(replace(item, consumer=f"pull:{peer}"))
            kept = state.links.get(peer, Link(peer))
            if leads_to(kept, link):
                state.links[peer] = replace(
                    # The seal is the operator's. One that was set while the page was on its way
                    # must hold.
                    link,
                    peer=peer,
                    is_sealed=kept.is_sealed,
                    reason=kept.reason,
                )
            return outcomes

    def watch_waits(self, seen: BeforeWait) -> None:
        """Does nothing: appends in memory never wait."""

    def watch_heads(self, seen: Callable[[str, int], None]) -> None:
        """What is in memory cannot go back in time."""

    def watch_commits(self, seen: Callable[[int, float], None]) -> None:
        """Does nothing: in memory there is no commit to wait for."""


def _in_order(state: ZoneState) -> list[MemoryLog]:
    return sorted(
        state.logs.values(), key=lambda memory_log: (memory_log.name != OUTBOUND, memory_log.name)
    )


def _append(
    state: ZoneState, log: str, new: NewFact, capacity: int | None, now: float
) -> AppendOutcome:
    memory_log = state.logs.get(log) or MemoryLog(log)
    known = _known(memory_log, new)
    if known is not None:
        return known
    for reference in new.references if new.needs_artifacts else ():
        there = _bound(state, reference)
        if there != reference:
            return MissingReference(reference, there)
    if capacity is not None and memory_log.size + len(new.envelope) + len(new.fact) > capacity:
        return CapacityExceeded(memory_log.size)
    return _add(state, log, new, now)


def _receive(state: ZoneState, log: str, new: NewFact, now: float) -> AppendOutcome:
    return _known(state.memory_log(log), new) or _add(state, log, new, now)


def _add(state: ZoneState, log: str, new: NewFact, now: float) -> Appended:
    state.referenced.update((each.bucket, each.key) for each in new.references)
    state.is_longer = True
    return Appended(state.memory_log(log).add(new, now))


def _known(memory_log: MemoryLog, new: NewFact) -> Appended | Conflict | None:
    found = memory_log.find(new.from_zone, new.message_id)
    if found is None:
        return None
    if found.digest != new.digest[: len(found.digest)]:
        return Conflict(found.offset, found.digest)
    row = memory_log.row(found.offset)
    if row is None:
        return Appended(found.offset, True)
    if memory_log.is_intact(row):
        return Appended(found.offset, True, row.fact.envelope)
    if memory_log.is_repaired(row, new):
        return Appended(found.offset, True, row.fact.envelope, is_repaired=True)
    return Appended(found.offset, True, is_damaged=True)


def _bound(state: ZoneState, reference: Reference) -> Reference | None:
    """What the name that a fact mentions stands for."""
    kept = state.objects.get((reference.bucket, reference.key))
    return None if kept is None else Reference(kept.bucket, kept.key, kept.digest, kept.size)


def _settled_by_all(state: ZoneState, log: str) -> int:
    """The offset up to which all required consumers have confirmed and nothing is in quarantine."""
    required = [one for one in state.consumers.values() if one.log == log and one.is_required]
    aside = [item.offset - 1 for one in required for item in state.open_items(one.name)]
    return min([*(one.cursor for one in required), *aside], default=0)


def _confirmed_by_all(state: ZoneState, log: str) -> int:
    """The offset up to which every consumer has confirmed; 0 without consumers."""
    return min((one.cursor for one in state.consumers.values() if one.log == log), default=0)
