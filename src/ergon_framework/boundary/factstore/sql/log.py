"""The logs: pages, retention, and the walk along the hash chain, wherever their tables are.

Payloads are dropped a bounded number per commit; the ledger keeps the ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol, TypeAlias

from ergon_framework.boundary.factstore import page_plan
from ergon_framework.boundary.factstore.append_plan import Append
from ergon_framework.boundary.factstore.append_queue import (
    AppendQueue,
    GuardedCallback,
    nothing,
    tell_head,
)
from ergon_framework.boundary.factstore.hashchain import (
    key_of,
    next_chain,
    prepare,
    read_proof,
)
from ergon_framework.boundary.factstore.page_plan import PageRead
from ergon_framework.boundary.factstore.records import corrupted
from ergon_framework.boundary.factstore.sql import pages
from ergon_framework.boundary.factstore.sql.append import Arrival, arrival
from ergon_framework.boundary.factstore.sql.pages import chain_at
from ergon_framework.boundary.factstore.sql.rows import (
    LAST,
    LogRow,
    ViewSegment,
    Zones,
    all_logs,
    gaps_of,
    log_named,
    run_at,
    seal_in,
)
from ergon_framework.boundary.factstore.sql.session import (
    BatchLimits,
    Row,
    SqlDatabase,
    SqlSession,
    Subscribers,
    note,
)
from ergon_framework.ports.factstore import (
    AppendOutcome,
    BeforeWait,
    Corruption,
    Gap,
    LedgerEntry,
    Link,
    LogInfo,
    LogPage,
    NewFact,
    Quarantined,
)


@dataclass(frozen=True, slots=True)
class Cut:
    """What one commit dropped."""

    dropped: int
    is_last: bool


def last_to_drop(session: SqlSession, log: LogRow, through: int, loss_reason: str | None) -> int:
    """The last offset whose payload may be dropped."""
    last = min(through, log.head)
    return last if loss_reason is not None else min(last, _settled_by_all(session, log))


def cut(
    session: SqlSession, log: LogRow, last: int, loss_reason: str | None, now: float, max_facts: int
) -> Cut:
    """Drop the oldest payloads, up to an offset and no more than ``max_facts``."""
    end = min(last, log.first - 1 + max_facts)
    if end < log.first:
        return Cut(0, True)
    chain, total, at, view = session.one("logs.chain", log.base + end) or (
        *(log.base_chain, log.base_total, log.last_at, log.view),
    )
    stretch = (log.base + log.first, log.base + end)
    dropped = session.run("logs.drop", *stretch)
    session.run("logs.shortened", end + 1, chain, total, at, view, log.id)
    session.run("logs.drop_runs", log.id, end + 1)
    if loss_reason is not None:
        _write_down(session, log, end, loss_reason, now)
    return Cut(dropped, end == last)


def aged(
    session: SqlSession, log: LogRow, start: int, before: float, max_facts: int
) -> tuple[int, bool]:
    """Up to where all after ``start`` were recorded before an instant, and whether that is all.

    Clocks go back: an older fact may bear a later instant, so each one is looked at.
    """
    start = max(start, log.first - 1)
    # In stretches: the scan of a log with millions of facts must not be one transaction.
    end = min(log.head, start + max_facts)
    bounds = (log.base + start, log.base + end, before)
    row = session.one("logs.younger", *bounds)
    return (end, end == log.head) if row is None else ((row[0] & LAST) - 1, True)


def _settled_by_all(session: SqlSession, log: LogRow) -> int:
    return page_plan.settled_through(*session.only("logs.needed", log.id))


def _write_down(session: SqlSession, log: LogRow, end: int, reason: str, now: float) -> None:
    """Record a gap for what some consumer had not confirmed."""
    first = page_plan.lost_from(log.first, end, *session.only("logs.slowest", log.id))
    if first is None:
        return
    # The statement does what ``page_plan.continued_gap`` says: a loss that goes on is one gap.
    # Widened only if a gap of the same reason ends right before it.
    if not session.run("logs.widen_gap", end, now, log.id, first - 1, reason):
        session.run("logs.add_gap", log.id, first, end, reason, now)
    note(session, now, "truncate", page_plan.loss_note(log.name, first, end, reason))


VERIFIED_PER_READ = 200
"""Facts that one read verifies; then the offset reached is reported."""


KnownId: TypeAlias = tuple[bytes, int]
"""The first 16 bytes of the identity digest, and the offset."""
Knows = Callable[[LogRow, Sequence[bytes]], Mapping[bytes, KnownId]]
"""What the ledger of a log says about keys."""
Look = Callable[[Callable[[SqlSession, Knows], "VerificationStep"]], "VerificationStep"]
"""Runs something on what was committed last, and on the ledger."""


@dataclass(slots=True)
class VerificationStep:
    """One step of a verification: the flaws that it found, and the offset it has reached."""

    reached: int
    chain: bytes
    problems: list[Corruption] = field(default_factory=list)
    is_end: bool = False


def walk(look: Look, log: str, after: int) -> Iterator[Corruption | int]:
    """Yield flaws as they are found, and the offset reached. No lock is held between two steps."""
    state = VerificationStep(after, b"")
    while not state.is_end:
        start, chain = state.reached, state.chain

        def work(
            session: SqlSession, knows: Knows, start: int = start, chain: bytes = chain
        ) -> VerificationStep:
            return _verify_batch(session, knows, log, start, chain)

        state = look(work)
        yield from state.problems
        if state.reached > start:
            yield state.reached


def _verify_batch(
    session: SqlSession, knows: Knows, name: str, start: int, chain: bytes
) -> VerificationStep:
    log = log_named(session, name)
    if log is None:
        return VerificationStep(start, chain, is_end=True)
    # Retention may pass a verification that takes long. What was dropped cannot be checked, and is
    # no flaw.
    if not chain or start < log.first:  # the first stride, or payloads were dropped meanwhile
        start = max(start, log.first - 1)
        chain = chain_at(session, log, start)
    state = VerificationStep(start, chain)
    bounds = (log.base + start, log.base + log.head, VERIFIED_PER_READ)
    rows = session.all("logs.facts", *bounds)
    zones = Zones(session)
    for row in rows:
        _check(log, row, zones[row[1]], state)
    _check_ledger(knows, log, rows, state.problems)
    _check_views(session, log, rows, state.problems)
    # A short page is the last one; only then is it known that the end is missing.
    if len(rows) < VERIFIED_PER_READ:
        _check_end(log, state)
        state.is_end = True
    return state


def _check(log: LogRow, row: Row, to_zone: str | None, state: VerificationStep) -> None:
    offset = row[0] & LAST
    # Offsets are dense, so a hole is a loss. The chain cannot be continued across it.
    if offset != state.reached + 1:
        state.problems.append(_missing(log, state.reached + 1, offset - 1))
        state.chain = b""
    seal = None if to_zone is None else seal_in(row, to_zone)
    proof = read_proof(row[4])
    chain = b"" if proof is None else proof.chain
    if seal is None:
        state.problems.append(Corruption(log.name, offset, "it is not what was stored there"))
    # Compared with the chain stored beside the fact: a fact that was changed together with its own
    # proof still breaks the next link.
    elif state.chain and next_chain(state.chain, seal) != chain:
        state.problems.append(Corruption(log.name, offset, "it does not fit the hash chain"))
    # Continue with the stored chain: one flaw must not make all facts after it look wrong.
    state.reached, state.chain = offset, chain


def _check_ledger(
    knows: Knows, log: LogRow, rows: Sequence[Row], problems: list[Corruption]
) -> None:
    """A fact must be known by its id, or it could be appended twice."""
    wanted: dict[bytes, KnownId] = {}
    for row in rows:
        proof = read_proof(row[4])
        if proof is not None:  # otherwise the row itself is reported
            key = key_of(log.name, proof.from_zone, proof.message_id)
            wanted[key] = proof.digest[:16], row[0] & LAST
    known = knows(log, list(wanted))
    for key, fact in wanted.items():
        if known.get(key) != fact:
            problems.append(Corruption(log.name, fact[1], "the ledger does not know it as it is"))


def _check_views(
    session: SqlSession, log: LogRow, rows: Sequence[Row], problems: list[Corruption]
) -> None:
    """A fact must be found in its view."""
    runs: dict[int, ViewSegment] = {}
    for row in rows:
        offset, view = row[0] & LAST, row[1]
        if read_proof(row[4]) is None or _reaches(runs.get(view), offset, log):
            continue
        run = run_at(session, view, offset)
        if run is not None and _reaches(run, offset, log):
            runs[view] = run
        else:
            problems.append(Corruption(log.name, offset, "its zone cannot see it"))


def _reaches(run: ViewSegment | None, offset: int, log: LogRow) -> bool:
    return run is not None and run.first <= offset <= (run.last or log.head)


def _check_end(log: LogRow, state: VerificationStep) -> None:
    if state.reached < log.head:
        state.problems.append(_missing(log, state.reached + 1, log.head))
        state.reached = log.head


def _missing(log: LogRow, first: int, last: int) -> Corruption:
    what = "it is missing" if first == last else f"it and all up to {last} are missing"
    return Corruption(log.name, first, what)


LastOf: TypeAlias = Callable[[Any, LogRow], int]
"""Returns the last offset whose payload may be dropped, within the transaction that drops it."""


class Appender(Protocol):
    """What an engine does its own way: it writes facts, and keeps the ledger of their ids."""

    def append(
        self, asked: Sequence[Append], before_wait: BeforeWait
    ) -> tuple[list[list[AppendOutcome]], int]:
        """Append for several callers in one commit; the outcomes, and how many facts are new."""

    def receive(
        self, peer: str, arrived: Arrival, before_wait: BeforeWait
    ) -> tuple[list[AppendOutcome], int]:
        """Append a peer's page in one commit; returns the outcomes, and how many rows are new."""

    def find(self, from_zone: str, message_id: str, log: str | None) -> LedgerEntry | None:
        """Find a fact by its id in one log, or in all logs, ``outbound`` first."""

    def drop(self, log: str, last_of: LastOf, loss_reason: str | None, max_facts: int) -> Cut:
        """Drop up to ``max_facts`` payloads, up to where ``last_of`` says, in one commit."""

    def look(self, work: Callable[[SqlSession, Knows], VerificationStep]) -> VerificationStep:
        """Run something on what was committed last, and on the ledger."""


class SqlLog:
    """The part of the store that keeps facts."""

    def __init__(
        self,
        database: SqlDatabase,
        appender: Appender,
        subscribers: Subscribers,
        limits: BatchLimits,
    ) -> None:
        self._database = database
        self._appender = appender
        self._subscribers = subscribers
        self._limits = limits
        self._watch: Callable[[int, float], None] | None = None
        self._heads_seen: Callable[[str, int], None] | None = None
        self._before_waiting: BeforeWait = nothing
        self._aged: dict[str, tuple[float, int]] = {}
        self._appends: AppendQueue[Append, list[AppendOutcome]] = AppendQueue(
            self._append_all, weigh=lambda asked: len(asked.facts), name="ergon-append"
        )

    def close(self) -> None:
        """Wait for the appends that were left to be done, and take no more."""
        self._appends.close()

    def append(
        self, log: str, facts: Sequence[NewFact], *, capacity: int | None = None
    ) -> list[AppendOutcome]:
        """Append facts in order in one commit, each with its own outcome."""
        if not facts:
            return []
        # Digests and rows are made in the caller's thread: the one that commits for all has no time
        # for them.
        asked = Append(log, [prepare(log, each) for each in facts], capacity)
        return self._appends.call(asked, self._before_waiting)

    def append_soon(
        self,
        log: str,
        facts: Sequence[NewFact],
        done: Callable[[list[AppendOutcome] | BaseException], None],
        *,
        capacity: int | None = None,
        group_done: Callable[[], None] | None = None,
    ) -> None:
        """Append without waiting: ``done`` is called, by another thread, after the commit.

        It is given the outcomes or the error. The callbacks of a shared commit are called one after
        the other, and then each distinct ``group_done`` once.
        """
        asked = Append(log, [prepare(log, each) for each in facts], capacity)
        self._appends.call_soon(asked, done, group_done)

    def find(self, from_zone: str, message_id: str, log: str | None = None) -> LedgerEntry | None:
        """Find a fact by its id in one log, or in all logs, ``outbound`` first."""
        return self._appender.find(from_zone, message_id, log)

    def page(
        self, log: str, after: int, limit: int, max_bytes: int, to_zone: str | None = None
    ) -> LogPage:
        """Read what is kept, without a consumer; a log that is not there is empty."""

        def work(session: SqlSession) -> PageRead:
            found = log_named(session, log)
            if found is None:
                return PageRead(LogPage([], 0, 0))
            return pages.read(session, found, after, limit, max_bytes, to_zone)

        stretch = self._database.read(work)
        # A page ends before a damaged fact. Only a page that would begin with one is an error, or
        # readers would never hear of it.
        if stretch.corrupted is not None and not stretch.page.facts:
            raise corrupted(log, stretch.corrupted, self._database.place)
        return stretch.page

    def logs(self) -> list[LogInfo]:
        """Every log, ``outbound`` first and always."""
        return [log.info() for log in self._database.read(all_logs)]

    def truncate(self, log: str, through: int, *, loss_reason: str | None = None) -> int:
        """Drop payloads up to ``through``; how many were dropped. The ledger keeps their ids.

        Many are dropped in several commits, so that appends pass in between.
        """

        def last(session: SqlSession, found: LogRow) -> int:
            return last_to_drop(session, found, through, loss_reason)

        return self._drop(log, last, loss_reason)

    def cut(self, log: str, through: int) -> None:
        """Drop payloads up to an offset, although consumers may want them; without a gap."""
        self._drop(log, lambda _, found: min(through, found.head), None)

    def _drop(self, log: str, last_of: LastOf, loss_reason: str | None) -> int:
        dropped, limits = 0, self._limits
        while True:
            done = self._appender.drop(log, last_of, loss_reason, limits.dropped_facts)
            dropped += done.dropped
            if done.is_last:
                return dropped

    def aged(self, log: str, before: float) -> int:
        """The highest offset such that it and all below it were recorded before an instant."""
        since, reached = self._aged.get(log, (before, 0))
        # A call with an earlier instant than the last one cannot go on from there: facts in between
        # may be younger.
        reached, is_all = reached if since <= before else 0, False
        while not is_all:

            def work(session: SqlSession, start: int = reached) -> tuple[int, bool]:
                found = log_named(session, log)
                if found is None:
                    return 0, True
                return aged(session, found, start, before, self._limits.aged_facts)

            reached, is_all = self._database.read(work)
        # An old fact stays old: the next call with a later instant begins where this one ended.
        self._aged[log] = before, reached
        return reached

    def gaps(self, log: str | None = None) -> list[Gap]:
        """Every recorded loss."""

        def work(session: SqlSession) -> list[Gap]:
            wanted = [each for each in all_logs(session) if log in {None, each.name}]
            return [gap for each in wanted for gap in gaps_of(session, each)]

        return self._database.read(work)

    def verify(self, log: str, after: int = 0) -> Iterator[Corruption | int]:
        """Walk the hash chain: flaws as they are found, and now and then the offset reached."""
        return walk(self._appender.look, log, after)

    def receive(
        self,
        peer: str,
        facts: Sequence[NewFact],
        link: Link,
        refused: Sequence[Quarantined] = (),
        gaps: Sequence[Gap] = (),
    ) -> list[AppendOutcome]:
        """Insert what a peer sent and lost where it is absent, and move the link: one commit."""
        arrived = arrival(peer, facts, link, refused, gaps)
        outcomes, added = self._appender.receive(peer, arrived, self._before_waiting)
        # Duplicates wake nobody: the readers have them.
        if added:
            if self._heads_seen is not None:
                tell_head(self._heads_seen, arrived.log, outcomes)
            self._subscribers.wake()
        return outcomes

    def watch_waits(self, seen: BeforeWait) -> None:
        """Call ``seen`` when an append is about to wait."""
        self._before_waiting = GuardedCallback(seen, "waits")

    def watch_heads(self, seen: Callable[[str, int], None]) -> None:
        """Call ``seen`` with the new head of a log."""
        self._heads_seen = GuardedCallback(seen, "heads")

    def watch_commits(self, seen: Callable[[int, float], None]) -> None:
        """Call ``seen`` for each group of appends, with its number of facts and its seconds."""
        self._watch = GuardedCallback(seen, "commits")

    def _append_all(self, asked: Sequence[Append]) -> list[list[AppendOutcome]]:
        began = perf_counter()
        outcomes, added = self._appender.append(asked, self._before_waiting)
        if added:
            if self._heads_seen is not None:
                for each, found in zip(asked, outcomes, strict=True):
                    tell_head(self._heads_seen, each.log, found)
            self._subscribers.wake()
            if self._watch is not None:
                self._watch(added, perf_counter() - began)
        return outcomes
