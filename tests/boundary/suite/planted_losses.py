"""Fact stores with one realistic bug each, about what a peer lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ergon_framework.boundary.factstore.hashchain import key_of
from ergon_framework.errors import BoundaryError
from ergon_framework.ports.factstore import (
    INBOUND,
    Appended,
    AppendOutcome,
    ConsumerInfo,
    Corruption,
    Fetched,
    Gap,
    Link,
    NewFact,
    Quarantined,
)
from tests.boundary.suite.planted import Honest


def of_peers(gaps: Sequence[Gap]) -> list[Gap]:
    """Those that a peer had."""
    return [gap for gap in gaps if gap.source_first is not None]


class NoPlaceForLosses(Honest):
    """Takes the facts, moves the link, and says nothing more about it."""

    def receive(
        self,
        peer: str,
        facts: Sequence[NewFact],
        link: Link,
        refused: Sequence[Quarantined] = (),
        gaps: Sequence[Gap] = (),
    ) -> list[AppendOutcome]:
        return super().receive(peer, facts, link, refused)


class LossesBehindTheFacts(Honest):
    """Writes the losses of a page down when its facts are in."""

    def receive(
        self,
        peer: str,
        facts: Sequence[NewFact],
        link: Link,
        refused: Sequence[Quarantined] = (),
        gaps: Sequence[Gap] = (),
    ) -> list[AppendOutcome]:
        found = super().receive(peer, facts, link, refused)
        super().receive(peer, [], link, (), gaps)
        return found


class OutcomesOfLosses(Honest):
    """Answers with everything that it put into the log."""

    def receive(
        self,
        peer: str,
        facts: Sequence[NewFact],
        link: Link,
        refused: Sequence[Quarantined] = (),
        gaps: Sequence[Gap] = (),
    ) -> list[AppendOutcome]:
        found = super().receive(peer, facts, link, refused, gaps)
        return [*(Appended(gap.first) for gap in gaps), *found]


class LossesDoNotMoveTheLink(Honest):
    """Leaves the link alone when no facts came."""

    def receive(
        self,
        peer: str,
        facts: Sequence[NewFact],
        link: Link,
        refused: Sequence[Quarantined] = (),
        gaps: Sequence[Gap] = (),
    ) -> list[AppendOutcome]:
        kept = link if facts else self.link(peer)
        return super().receive(peer, facts, kept, refused, gaps)


class LossesAreForOperators(Honest):
    """Lists what peers lost, and tells no consumer."""

    def serve(self, name: str, limit: int, max_bytes: int, **options: Any) -> Fetched:
        serving = super().serve(name, limit, max_bytes, **options)
        serving.page.gaps = [gap for gap in serving.page.gaps if gap.source_first is None]
        return serving


class TellsAheadOfTime(Honest):
    """Tells of everything that lies above the cursor with each page."""

    def serve(self, name: str, limit: int, max_bytes: int, **options: Any) -> Fetched:
        serving = super().serve(name, limit, max_bytes, **options)
        above = self.gaps(serving.consumer.log)
        serving.page.gaps = [gap for gap in above if gap.first > serving.consumer.cursor]
        return serving


class TellsWithTheNextFact(Honest):
    """Has something to say only when there is a fact to give."""

    def serve(self, name: str, limit: int, max_bytes: int, **options: Any) -> Fetched:
        serving = super().serve(name, limit, max_bytes, **options)
        if not serving.page.facts:
            serving.page.gaps = []
        return serving


class LossesAreInNoView(Honest):
    """Takes what no fact is for something that no view has."""

    def serve(self, name: str, limit: int, max_bytes: int, **options: Any) -> Fetched:
        serving = super().serve(name, limit, max_bytes, **options)
        if serving.consumer.to_zone is not None:
            serving.page.gaps = []
        return serving


class CountsLossesAsFacts(Honest):
    """Takes the way to the head for the number of facts that wait."""

    def consumer(self, name: str) -> ConsumerInfo:
        one = super().consumer(name)
        return replace(one, lag=self.memory_log(one.log).head - one.cursor)


class LossIsNext(Honest):
    """Sets nothing aside but what lies right behind the cursor."""

    def set_aside(self, name: str, offset: int, **options: Any) -> Quarantined:
        if offset != self.consumer(name).cursor + 1:
            raise BoundaryError("no", code="failed_precondition", reason="not_next")
        return super().set_aside(name, offset, **options)


class TellsTwice(Honest):
    """Knows facts by their ids, and losses not at all."""

    def receive(
        self,
        peer: str,
        facts: Sequence[NewFact],
        link: Link,
        refused: Sequence[Quarantined] = (),
        gaps: Sequence[Gap] = (),
    ) -> list[AppendOutcome]:
        memory_log = self.memory_log(INBOUND + peer)
        for row in memory_log.rows:
            if row.is_marker:
                memory_log.ledger.pop(key_of(memory_log.name, "", row.fact.message_id), None)
        return super().receive(peer, facts, link, refused, gaps)


class OneLossForAll(Honest):
    """Knows a loss by what was lost, and not by who lost it."""

    def receive(
        self,
        peer: str,
        facts: Sequence[NewFact],
        link: Link,
        refused: Sequence[Quarantined] = (),
        gaps: Sequence[Gap] = (),
    ) -> list[AppendOutcome]:
        known = {(gap.source_first, gap.source_last, gap.at) for gap in self.gaps()}
        new = [gap for gap in gaps if (gap.first, gap.last, gap.at) not in known]
        return super().receive(peer, facts, link, refused, new)


class WidensWhatAPeerLost(Honest):
    """Takes a loss of its own for more of the peer's, when it follows it."""

    def truncate(self, log: str, through: int, *, loss_reason: str | None = None) -> int:
        dropped = super().truncate(log, through, loss_reason=loss_reason)
        gaps = self.memory_log(log).gaps
        for before, after in zip(of_peers(gaps), gaps[1:], strict=False):
            if (before.last + 1, before.reason) == (after.first, after.reason):
                gaps[:] = [replace(before, last=after.last)]
        return dropped


class LossesGoWithThePayload(Honest):
    """Keeps what peers lost beside the facts, and drops them together."""

    def truncate(self, log: str, through: int, *, loss_reason: str | None = None) -> int:
        dropped = super().truncate(log, through, loss_reason=loss_reason)
        memory_log = self.memory_log(log)
        memory_log.gaps = [
            gap for gap in memory_log.gaps if not of_peers([gap]) or gap.first >= memory_log.first
        ]
        return dropped


class KeepsLossesForEver(Honest):
    """Drops facts up to the first loss of a peer."""

    def truncate(self, log: str, through: int, *, loss_reason: str | None = None) -> int:
        first = min((gap.first for gap in of_peers(self.gaps(log))), default=through + 1)
        return super().truncate(log, min(through, first - 1), loss_reason=loss_reason)


class LossesWakeNobody(Honest):
    """Wakes whoever waits when facts came."""

    def receive(
        self,
        peer: str,
        facts: Sequence[NewFact],
        link: Link,
        refused: Sequence[Quarantined] = (),
        gaps: Sequence[Gap] = (),
    ) -> list[AppendOutcome]:
        wakes, self.database.wakes = self.database.wakes, self.database.wakes if facts else []
        try:
            return super().receive(peer, facts, link, refused, gaps)
        finally:
            self.database.wakes = wakes


class LossesAreFlaws(Honest):
    """Misses a fact where the log has none."""

    def verify(self, log: str, after: int = 0) -> Iterator[Corruption | int]:
        for gap in of_peers(self.gaps(log)):
            yield Corruption(log, gap.first, "it is missing")
        yield from super().verify(log, after)


class DamageHidesLosses(Honest):
    """Passes a damaged fact, and with it what lies before it."""

    def serve(self, name: str, limit: int, max_bytes: int, **options: Any) -> Fetched:
        memory_log, one = (
            self.memory_log(self.consumer(name).log),
            self.database.state.consumer(name),
        )
        for row in memory_log.after(one.cursor, one.to_zone):
            if memory_log.is_intact(row):
                break
            one.cursor = max(one.cursor, row.fact.offset - 1)
        return super().serve(name, limit, max_bytes, **options)
