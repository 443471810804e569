"""The logs: what is the same wherever their tables are."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from ergon_framework.boundary.logs.grouping import Grouping, nothing
from ergon_framework.boundary.logs.moving import corrupted
from ergon_framework.boundary.logs.records import Prepared, prepare
from ergon_framework.boundary.logs.tables import pages, receiving, retention
from ergon_framework.boundary.logs.tables.ground import Books, Ground
from ergon_framework.boundary.logs.tables.rows import all_logs, gaps_of, log_named
from ergon_framework.boundary.logs.watching import Watching, tell_head
from ergon_framework.ports.factstore import (
    Gap,
    Link,
    LogInfo,
    Meanwhile,
    NewFact,
    Outcome,
    Page,
    Quarantined,
)


@dataclass(slots=True)
class Append:
    """One caller's facts on their way in."""

    log: str
    facts: Sequence[Prepared]
    capacity: int | None


class TableLogs(Ground):
    """The part of the store that keeps facts."""

    def __init__(self, *place: Any, **settings: Any) -> None:
        super().__init__(*place, **settings)
        self._watch: Callable[[int, float], None] | None = None
        self._heads_seen: Callable[[str, int], None] | None = None
        self._before_waiting: Meanwhile = nothing
        self._aged: dict[str, tuple[float, int]] = {}
        self._appends: Grouping[Append, list[Outcome]] = Grouping(
            self._append_all, weigh=lambda asked: len(asked.facts), name="ergon-append"
        )

    @abstractmethod
    def _enter(self, asked: Sequence[Append]) -> tuple[list[list[Outcome]], int]:
        """Append for several callers in one commit; the outcomes, and how many facts are new."""

    @abstractmethod
    def _take_in(self, peer: str, arrived: receiving.Arrival) -> tuple[list[Outcome], int]:
        """Take in a page of a peer in one commit; the outcomes, and how many rows are new."""

    def append(
        self, log: str, facts: Sequence[NewFact], *, capacity: int | None = None
    ) -> list[Outcome]:
        """Append in order in one commit, each with an outcome of its own."""
        if not facts:
            return []
        asked = Append(log, [prepare(log, each) for each in facts], capacity)
        return self._appends.call(asked, self._before_waiting)

    def append_soon(
        self,
        log: str,
        facts: Sequence[NewFact],
        done: Callable[[list[Outcome] | BaseException], None],
        capacity: int | None = None,
        group_done: Callable[[], None] | None = None,
    ) -> None:
        """Append without waiting: ``done`` is called, by another thread, after the commit.

        It is given the outcomes or the error. Callers that share a commit are told one after the
        other, and then each ``group_done`` among theirs is called once.
        """
        asked = Append(log, [prepare(log, each) for each in facts], capacity)
        self._appends.call_soon(asked, done, group_done)

    def page(
        self, log: str, after: int, limit: int, max_bytes: int, to_zone: str | None = None
    ) -> Page:
        """Read what is kept, without a consumer; a log that is not there is empty."""

        def work(books: Books) -> pages.Stretch:
            found = log_named(books, log)
            if found is None:
                return pages.Stretch(Page([], 0, 0))
            return pages.read(books, found, after, limit, max_bytes, to_zone)

        stretch = self._read(work)
        if stretch.corrupted is not None and not stretch.page.facts:
            raise corrupted(log, stretch.corrupted, self._place)
        return stretch.page

    def logs(self) -> list[LogInfo]:
        """Every log, ``outbound`` first and always."""
        return [log.info() for log in self._read(all_logs)]

    def aged(self, log: str, before: float) -> int:
        """The highest offset such that it and all below it were recorded before an instant."""
        since, reached = self._aged.get(log, (before, 0))
        reached, is_all = reached if since <= before else 0, False
        while not is_all:

            def work(books: Books, start: int = reached) -> tuple[int, bool]:
                found = log_named(books, log)
                return (0, True) if found is None else retention.aged(books, found, start, before)

            reached, is_all = self._read(work)
        self._aged[log] = before, reached  # what is old stays old: no fact is looked at twice
        return reached

    def gaps(self, log: str | None = None) -> list[Gap]:
        """Every recorded loss."""

        def work(books: Books) -> list[Gap]:
            wanted = [each for each in all_logs(books) if log in {None, each.name}]
            return [gap for each in wanted for gap in gaps_of(books, each)]

        return self._read(work)

    def receive(
        self,
        peer: str,
        facts: Sequence[NewFact],
        link: Link,
        refused: Sequence[Quarantined] = (),
        gaps: Sequence[Gap] = (),
    ) -> list[Outcome]:
        """Insert what a peer sent and lost where it is absent, and move the link: one commit."""
        arrived = receiving.arrival(peer, facts, link, refused, gaps)
        outcomes, added = self._take_in(peer, arrived)
        if added:
            if self._heads_seen is not None:
                tell_head(self._heads_seen, arrived.log, outcomes)
            self._wake()
        return outcomes

    def watch_waits(self, seen: Meanwhile) -> None:
        """Tell when an append is about to wait."""
        self._before_waiting = Watching(seen, "waits")

    def watch_heads(self, seen: Callable[[str, int], None]) -> None:
        """Tell up to which offset a log has grown."""
        self._heads_seen = Watching(seen, "heads")

    def watch_commits(self, seen: Callable[[int, float], None]) -> None:
        """Tell of each group of appends: how many facts, and the seconds it took."""
        self._watch = Watching(seen, "commits")

    def _append_all(self, asked: Sequence[Append]) -> list[list[Outcome]]:
        began = perf_counter()
        outcomes, added = self._enter(asked)
        if added:
            if self._heads_seen is not None:
                for each, found in zip(asked, outcomes, strict=True):
                    tell_head(self._heads_seen, each.log, found)
            self._wake()
            if self._watch is not None:
                self._watch(added, perf_counter() - began)
        return outcomes
