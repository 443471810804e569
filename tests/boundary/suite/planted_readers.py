"""Fact stores with one realistic bug each: retention, consumers, quarantine, links, the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ergon_framework.errors import BoundaryError, ConsumerHeldError
from ergon_framework.ports.factstore import (
    INBOUND,
    AppendOutcome,
    ConsumerInfo,
    Fetched,
    Gap,
    Link,
    NewFact,
    Quarantined,
)
from tests.boundary.suite.planted import Honest

# ---- retention ----------------------------------------------------------------------------------


class TruncatesTheUnread(Honest):
    """Drops what was asked for, whoever still needs it."""

    def truncate(self, log: str, through: int, *, loss_reason: str | None = None) -> int:
        return self.memory_log(log).drop(through)


class WaitsForTheFastest(Honest):
    """Looks at the highest of the cursors."""

    def truncate(self, log: str, through: int, *, loss_reason: str | None = None) -> int:
        if loss_reason is not None:
            return super().truncate(log, through, loss_reason=loss_reason)
        cursors = [one.cursor for one in self.consumers() if one.log == log and one.is_required]
        return self.memory_log(log).drop(min(through, max(cursors, default=0)))


class WaitsForEverybody(Honest):
    """Lets optional consumers hold retention up."""

    def create_consumer(self, name: str, log: str, **options: Any) -> ConsumerInfo:
        return super().create_consumer(name, log, **options | {"is_required": True})


class NobodyIsPermission(Honest):
    """Takes a log that nobody must read for one that nobody needs."""

    def truncate(self, log: str, through: int, *, loss_reason: str | None = None) -> int:
        required = [one for one in self.consumers() if one.log == log and one.is_required]
        if not required and loss_reason is None:
            return self.memory_log(log).drop(through)
        return super().truncate(log, through, loss_reason=loss_reason)


class DropsTheQuarantined(Honest):
    """Looks at cursors alone: what was set aside goes with the rest."""

    def truncate(self, log: str, through: int, *, loss_reason: str | None = None) -> int:
        items, self.database.state.items = self.database.state.items, {}
        try:
            return super().truncate(log, through, loss_reason=loss_reason)
        finally:
            self.database.state.items = items


class SilentLoss(Honest):
    """Drops with a reason and records nothing."""

    def truncate(self, log: str, through: int, *, loss_reason: str | None = None) -> int:
        dropped = super().truncate(log, through, loss_reason=loss_reason)
        self.memory_log(log).gaps.clear()
        return dropped


class EverythingIsLoss(Honest):
    """Records as lost what everybody had."""

    def truncate(self, log: str, through: int, *, loss_reason: str | None = None) -> int:
        memory_log = self.memory_log(log)
        first = memory_log.first
        dropped = super().truncate(log, through, loss_reason=loss_reason)
        if loss_reason is not None and dropped:
            memory_log.gaps[:] = [
                Gap(log, first, memory_log.first - 1, loss_reason, self.database.clock())
            ]
        return dropped


class GapsAreForOperators(Honest):
    """Records gaps and does not tell consumers."""

    def serve(self, name: str, limit: int, max_bytes: int, **options: Any) -> Fetched:
        serving = super().serve(name, limit, max_bytes, **options)
        serving.page.gaps = []
        return serving


class SkipsWhatIsGone(Honest):
    """Goes on silently behind what a consumer has missed."""

    def serve(self, name: str, limit: int, max_bytes: int, **options: Any) -> Fetched:
        one = self.database.state.consumer(name)
        one.cursor = max(one.cursor, self.memory_log(one.log).first - 1)
        return super().serve(name, limit, max_bytes, **options)


class ForgetsThePrevious(Honest):
    """Begins views anew after a truncation."""

    def truncate(self, log: str, through: int, *, loss_reason: str | None = None) -> int:
        dropped = super().truncate(log, through, loss_reason=loss_reason)
        memory_log = self.memory_log(log)
        for row in memory_log.rows:
            row.previous_alike *= row.previous_alike >= memory_log.first
        memory_log.latest = {
            zone: n for zone, n in memory_log.latest.items() if n >= memory_log.first
        }
        return dropped


class ReusesOffsets(Honest):
    """Begins anew when a log was emptied."""

    def truncate(self, log: str, through: int, *, loss_reason: str | None = None) -> int:
        dropped = super().truncate(log, through, loss_reason=loss_reason)
        if not self.memory_log(log).rows:
            self.memory_log(log).first = 1
        return dropped


class AgeOfTheNewest(Honest):
    """Takes the newest fact that is old enough, whatever precedes it."""

    def aged(self, log: str, before: float) -> int:
        old = [r.fact.offset for r in self.memory_log(log).rows if r.fact.recorded_at < before]
        return max(old, default=0)


# ---- consumers ----------------------------------------------------------------------------------


class ConfirmsOnServing(Honest):
    """Moves the cursor when a page goes out."""

    def serve(self, name: str, limit: int, max_bytes: int, **options: Any) -> Fetched:
        serving = super().serve(name, limit, max_bytes, **options)
        if not serving.is_released:
            self.database.state.consumer(name).cursor = serving.page.through
        return serving


class CursorGoesDown(Honest):
    """Sets the cursor to whatever is confirmed."""

    def confirm(self, name: str, offset: int, *, holder: str | None = None) -> int:
        super().confirm(name, offset, holder=holder)
        self.database.state.consumer(name).cursor = offset
        return offset


class ConfirmsTheUnserved(Honest):
    """Takes any confirmation."""

    def confirm(self, name: str, offset: int, *, holder: str | None = None) -> int:
        one = self.database.state.consumer(name)
        one.served = max(one.served, offset)
        return super().confirm(name, offset, holder=holder)


class ConfirmsTheLastFactAlone(Honest):
    """Counts as served what was a fact, and not the stretch of the page."""

    def serve(self, name: str, limit: int, max_bytes: int, **options: Any) -> Fetched:
        one = self.database.state.consumer(name)
        before = one.served
        serving = super().serve(name, limit, max_bytes, **options)
        one.served = max([before, *(fact.offset for fact in serving.page.facts)])
        return serving


class RecreatesConsumers(Honest):
    """Puts a consumer back to the start when it is created again."""

    def create_consumer(self, name: str, log: str, **options: Any) -> ConsumerInfo:
        found = self.database.state.consumers.get(name)
        if found is not None and (found.log, found.to_zone) == (log, options.get("to_zone")):
            self.delete_consumer(name)
        return super().create_consumer(name, log, **options)


class OtherViewIsFine(Honest):
    """Answers the consumer there is, whatever view was asked for."""

    def create_consumer(self, name: str, log: str, **options: Any) -> ConsumerInfo:
        found = self.database.state.consumers.get(name)
        if found is not None and found.log == log:
            return self.consumer(name)
        return super().create_consumer(name, log, **options)


class StartsAtZero(Honest):
    """Begins new consumers at 0, whatever is kept."""

    def create_consumer(self, name: str, log: str, **options: Any) -> ConsumerInfo:
        is_new = name not in self.database.state.consumers
        made = super().create_consumer(name, log, **options)
        if is_new and not options.get("from_end"):
            self.database.state.consumer(name).cursor = 0
            return self.consumer(name)
        return made


class LagOfTheLog(Honest):
    """Counts the lag in offsets, not in facts of the view."""

    def consumer(self, name: str) -> ConsumerInfo:
        one = super().consumer(name)
        return replace(one, lag=self.memory_log(one.log).head - one.cursor)


class SeeksSilently(Honest):
    """Writes nothing down."""

    def seek(self, name: str, offset: int, *, reason: str) -> ConsumerInfo:
        found = super().seek(name, offset, reason=reason)
        self.database.state.journal.clear()
        return found


class SeekKeepsTheLease(Honest):
    """Moves the cursor under its holder's feet."""

    def seek(self, name: str, offset: int, *, reason: str) -> ConsumerInfo:
        one = self.database.state.consumer(name)
        lease = one.holder, one.held_until
        super().seek(name, offset, reason=reason)
        one.holder, one.held_until = lease
        return self.consumer(name)


class SeeksAnywhere(Honest):
    """Sets the cursor beyond the head when asked to."""

    def seek(self, name: str, offset: int, *, reason: str) -> ConsumerInfo:
        one = self.database.state.consumer(name)
        head = self.memory_log(one.log).head
        super().seek(name, min(offset, head), reason=reason)
        one.cursor = max(offset, one.cursor)
        return self.consumer(name)


# ---- leases -------------------------------------------------------------------------------------


class AnybodyMayServe(Honest):
    """Gives the name to whoever came last."""

    def serve(self, name: str, limit: int, max_bytes: int, **options: Any) -> Fetched:
        self.database.state.consumer(name).held_until = 0.0
        return super().serve(name, limit, max_bytes, **options)


class AnybodyMayConfirm(Honest):
    """Asks nobody who confirms who he is."""

    def confirm(self, name: str, offset: int, *, holder: str | None = None) -> int:
        return super().confirm(name, offset, holder=self.database.state.consumer(name).holder)


class LeasesForEver(Honest):
    """Never lets a lease expire."""

    def serve(self, name: str, limit: int, max_bytes: int, **options: Any) -> Fetched:
        one = self.database.state.consumer(name)
        if one.holder not in {None, options.get("holder")}:
            raise ConsumerHeldError("it is held")
        return super().serve(name, limit, max_bytes, **options)


class LeaseIsNotRenewed(Honest):
    """Counts a lease from the first page on."""

    def serve(self, name: str, limit: int, max_bytes: int, **options: Any) -> Fetched:
        one = self.database.state.consumer(name)
        before = one.holder, one.held_until
        serving = super().serve(name, limit, max_bytes, **options)
        if before[0] is not None and before[0] == one.holder:
            one.held_until = before[1]
        return serving


class AnybodyLetsGo(Honest):
    """Frees a name whoever lets go of it."""

    def release_lease(self, name: str, holder: str) -> None:
        super().release_lease(name, self.database.state.consumer(name).holder or "")


class CountsLookers(Honest):
    """Counts every page as a delivery."""

    def serve(self, name: str, limit: int, max_bytes: int, **options: Any) -> Fetched:
        serving = super().serve(name, limit, max_bytes, **options)
        if options.get("holder") is None:
            self.database.state.consumer(name).deliveries += 1
        return serving


class DeliveriesForEver(Honest):
    """Does not start the count anew for the next fact."""

    def confirm(self, name: str, offset: int, *, holder: str | None = None) -> int:
        one = self.database.state.consumer(name)
        before = one.deliveries
        cursor = super().confirm(name, offset, holder=holder)
        one.deliveries = before
        return cursor


# ---- quarantine ---------------------------------------------------------------------------------


class SetsAnythingAside(Honest):
    """Sets the named fact aside, and with it passes all before it."""

    def set_aside(self, name: str, offset: int, **options: Any) -> Quarantined:
        one = self.database.state.consumer(name)
        if one.cursor < offset <= self.memory_log(one.log).head:
            one.cursor = offset - 1
        return super().set_aside(name, offset, **options)


class SetAsideBlocks(Honest):
    """Writes the item and leaves the cursor where it was."""

    def set_aside(self, name: str, offset: int, **options: Any) -> Quarantined:
        one = self.database.state.consumer(name)
        before = one.cursor
        item = super().set_aside(name, offset, **options)
        one.cursor = before
        return item


class ReleasesAnything(Honest):
    """Lets every item be released, whatever became of it."""

    def settle(self, quarantine_id: int, state: str, *, reason: str = "") -> Quarantined:
        item = self.database.state.items.get(quarantine_id)
        if item is not None and state == "released":
            self.database.state.items[quarantine_id] = replace(item, state="quarantined")
        return super().settle(quarantine_id, state, reason=reason)


class SettlesTheUnserved(Honest):
    """Settles whatever was released below a confirmation."""

    def confirm(self, name: str, offset: int, *, holder: str | None = None) -> int:
        self.database.state.served.update(item.id for item in self.database.state.released_to(name))
        return super().confirm(name, offset, holder=holder)


class ReleasedOnce(Honest):
    """Gives a released fact out once, confirmed or not."""

    def serve(self, name: str, limit: int, max_bytes: int, **options: Any) -> Fetched:
        serving = super().serve(name, limit, max_bytes, **options)
        if serving.is_released:
            for item in self.database.state.released_to(name):
                self.database.state.items[item.id] = replace(item, state="settled")
        return serving


class ReleasedSkips(Honest):
    """Serves a released fact on its own also when it lies above the cursor."""

    def serve(self, name: str, limit: int, max_bytes: int, **options: Any) -> Fetched:
        one = self.database.state.consumer(name)
        before = one.cursor
        released = [item.offset for item in self.database.state.released_to(name)]
        one.cursor = max([before, *released])
        try:
            return super().serve(name, limit, max_bytes, **options)
        finally:
            one.cursor = before


class ReleasedLast(Honest):
    """Serves released facts when there is nothing else to do."""

    def serve(self, name: str, limit: int, max_bytes: int, **options: Any) -> Fetched:
        one = self.database.state.consumer(name)
        items = self.database.state.items
        if one.cursor < self.memory_log(one.log).head:
            self.database.state.items = {}
        try:
            return super().serve(name, limit, max_bytes, **options)
        finally:
            self.database.state.items = items


class QuarantineOutlivesItsConsumer(Honest):
    """Leaves the items of a deleted consumer behind."""

    def delete_consumer(self, name: str) -> None:
        items = self.database.state.items
        super().delete_consumer(name)
        self.database.state.items = items


# ---- links --------------------------------------------------------------------------------------


class ReceivesTwice(Honest):
    """Appends what a peer sends, known or not."""

    def receive(
        self,
        peer: str,
        facts: Sequence[NewFact],
        link: Link,
        refused: Sequence[Quarantined] = (),
        gaps: Sequence[Gap] = (),
    ) -> list[AppendOutcome]:
        self.memory_log(INBOUND + peer).ledger.clear()
        return super().receive(peer, facts, link, refused, gaps)


class LosesConflicts(Honest):
    """Passes conflicting facts of a peer and keeps nothing of them."""

    def receive(
        self,
        peer: str,
        facts: Sequence[NewFact],
        link: Link,
        refused: Sequence[Quarantined] = (),
        gaps: Sequence[Gap] = (),
    ) -> list[AppendOutcome]:
        found = super().receive(peer, facts, link, refused, gaps)
        items = self.database.state.items
        self.database.state.items = {
            n: item for n, item in items.items() if item.reason != "conflicting_duplicate"
        }
        return found


class LosesTheRefused(Honest):
    """Has no room for what the puller refused."""

    def receive(
        self,
        peer: str,
        facts: Sequence[NewFact],
        link: Link,
        refused: Sequence[Quarantined] = (),
        gaps: Sequence[Gap] = (),
    ) -> list[AppendOutcome]:
        return super().receive(peer, facts, link, (), gaps)


class PullBreaksTheSeal(Honest):
    """Writes the whole link as the puller knew it."""

    def receive(
        self,
        peer: str,
        facts: Sequence[NewFact],
        link: Link,
        refused: Sequence[Quarantined] = (),
        gaps: Sequence[Gap] = (),
    ) -> list[AppendOutcome]:
        found = super().receive(peer, facts, link, refused, gaps)
        self.database.state.links[peer] = link
        return found


class LateObjectsAreOrphans(Honest):
    """Marks only objects that are there."""

    def receive(
        self,
        peer: str,
        facts: Sequence[NewFact],
        link: Link,
        refused: Sequence[Quarantined] = (),
        gaps: Sequence[Gap] = (),
    ) -> list[AppendOutcome]:
        found = super().receive(peer, facts, link, refused, gaps)
        self.database.state.referenced &= set(self.database.state.objects)
        return found


class KeepsTheFrontier(Honest):
    """Accepts an epoch and goes on where it was."""

    def accept_epoch(self, peer: str, epoch: str | None) -> Link:
        before = self.link(peer)
        link = super().accept_epoch(peer, epoch)
        self.database.state.links[peer] = replace(link, offset=before.offset)
        return self.database.state.links[peer]


class EpochOpensTheSeal(Honest):
    """Takes an accepted epoch for an opened link."""

    def accept_epoch(self, peer: str, epoch: str | None) -> Link:
        super().accept_epoch(peer, epoch)
        return self.open(peer)


class OldestFirst(Honest):
    """Lists the journal from its beginning."""

    def journal(self, limit: int = 100) -> list[tuple[float, str, str]]:
        return super().journal(1 << 30)[::-1][:limit]


# ---- the rest -----------------------------------------------------------------------------------


class NeverWakes(Honest):
    """Forgets who waits."""

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Take note, elsewhere."""


class WakesForNothing(Honest):
    """Wakes everybody at each append, whether it added something or not."""

    def append(
        self, log: str, facts: Sequence[NewFact], *, capacity: int | None = None
    ) -> list[AppendOutcome]:
        found = super().append(log, facts, capacity=capacity)
        for wake in self.database.wakes:
            wake()
        return found


class WakesTooEarly(Honest):
    """Wakes whoever waits before the facts are there."""

    def append(
        self, log: str, facts: Sequence[NewFact], *, capacity: int | None = None
    ) -> list[AppendOutcome]:
        for wake in self.database.wakes:
            wake()
        return super().append(log, facts, capacity=capacity)


class GivesOutDamage(Honest):
    """Trusts what it reads."""

    def serve(self, name: str, limit: int, max_bytes: int, **options: Any) -> Fetched:
        one = self.database.state.consumer(name)
        serving = super().serve(name, limit, max_bytes, **options)
        rows = self.memory_log(one.log).after(one.cursor, one.to_zone)
        serving.page.facts = [row.seen(one.to_zone) for row in rows][:limit]
        return serving


class StopsAtDamage(Honest):
    """Refuses to go past a damaged fact."""

    def serve(self, name: str, limit: int, max_bytes: int, **options: Any) -> Fetched:
        one = self.database.state.consumer(name)
        memory_log = self.memory_log(one.log)
        for row in memory_log.after(one.cursor, one.to_zone):
            if not memory_log.is_intact(row):
                raise BoundaryError("it is damaged", code="data_loss")
            break
        return super().serve(name, limit, max_bytes, **options)


class TakesFactsWhenClosed(Honest):
    """Takes facts nobody will ever read."""

    def close(self) -> None:
        """Leave everything as it is."""
