"""Fact stores with one realistic bug each, planted in the memory store: logs and objects."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from msgspec.structs import replace as altered

from ergon_framework.boundary.factstore.hashchain import key_of
from ergon_framework.boundary.factstore.memory import MemoryFactStore
from ergon_framework.boundary.factstore.memory.records import MemoryFactRecords
from ergon_framework.boundary.factstore.memory.state import MemoryLog
from ergon_framework.errors import ObjectConflictError
from ergon_framework.ports.factstore import (
    Appended,
    AppendOutcome,
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
    StoredObject,
)
from ergon_framework.ports.transfer import Fence, TransferRecord
from tests.boundary.suite.stores import ZONE


class Honest(MemoryFactStore):
    """The memory store, made from a clock alone."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(ZONE, clock=clock)

    def memory_log(self, log: str) -> MemoryLog:
        return self.database.state.memory_log(log)


# ---- moving -------------------------------------------------------------------------------------


class DiscardsForAnyRun(Honest):
    """Takes records out whatever the fence says."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        honest = self.records

        class Records(MemoryFactRecords):
            def __init__(self) -> None:
                self.dump, self.load = honest.dump, honest.load  # type: ignore[method-assign]
                self.move_state = honest.move_state  # type: ignore[method-assign]
                self.set_move_state = honest.set_move_state  # type: ignore[method-assign]

            def discard(
                self, records: Sequence[TransferRecord], fence: Fence | None = None
            ) -> None:
                honest.discard(records)

        self.records = Records()


# ---- appending ----------------------------------------------------------------------------------


class CountsFromZero(Honest):
    """Answers offsets as an array would have them."""

    def append(
        self, log: str, facts: Sequence[NewFact], *, capacity: int | None = None
    ) -> list[AppendOutcome]:
        found = super().append(log, facts, capacity=capacity)
        return [
            altered(each, offset=each.offset - 1) if isinstance(each, Appended) else each
            for each in found
        ]


class UsesOffsetsUp(Honest):
    """Takes an offset before it knows whether the fact may enter, as a sequence does."""

    def append(
        self, log: str, facts: Sequence[NewFact], *, capacity: int | None = None
    ) -> list[AppendOutcome]:
        found = []
        for fact in facts:
            answer = super().append(log, [fact], capacity=capacity)[0]
            if not isinstance(answer, Appended):
                hole = altered(
                    fact, message_id=f"hole-{len(self.memory_log(log).rows)}", references=()
                )
                super().append(log, [hole])
            found.append(answer)
        return found


class OneCounter(Honest):
    """Counts the offsets of all logs together."""

    def append(
        self, log: str, facts: Sequence[NewFact], *, capacity: int | None = None
    ) -> list[AppendOutcome]:
        memory_log = self.memory_log(log)
        if not memory_log.rows:
            memory_log.first = max(each.head for each in self.database.state.logs.values()) + 1
        return super().append(log, facts, capacity=capacity)


class SortsTheBatch(Honest):
    """Lets the database decide about the order within a batch."""

    def append(
        self, log: str, facts: Sequence[NewFact], *, capacity: int | None = None
    ) -> list[AppendOutcome]:
        order = sorted(range(len(facts)), key=lambda n: facts[n].message_id)
        found = super().append(log, [facts[n] for n in order], capacity=capacity)
        back = dict(zip(order, found, strict=True))
        return [back[n] for n in range(len(facts))]


class AllOrNothing(Honest):
    """Refuses a whole batch for the sake of one fact."""

    def append(
        self, log: str, facts: Sequence[NewFact], *, capacity: int | None = None
    ) -> list[AppendOutcome]:
        for fact in facts:
            known = self.memory_log(log).find(fact.from_zone, fact.message_id)
            if known is not None and known.digest != fact.digest:
                return [Conflict(known.offset, known.digest)] * len(facts)
        return super().append(log, facts, capacity=capacity)


class Reformats(Honest):
    """Writes JSON as it would have written it."""

    def append(
        self, log: str, facts: Sequence[NewFact], *, capacity: int | None = None
    ) -> list[AppendOutcome]:
        tidy = [altered(fact, fact=fact.fact.strip()) for fact in facts]
        return super().append(log, tidy, capacity=capacity)


class WholeSeconds(Honest):
    """Keeps instants as whole seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(lambda: float(int(clock())))


class ForgetsTheSource(Honest):
    """Has no column for the source offset."""

    def receive(
        self,
        peer: str,
        facts: Sequence[NewFact],
        link: Link,
        refused: Sequence[Quarantined] = (),
        gaps: Sequence[Gap] = (),
    ) -> list[AppendOutcome]:
        blind = [altered(fact, source_offset=None) for fact in facts]
        return super().receive(peer, blind, link, refused, gaps)


class AppendsWithoutALock(Honest):
    """Looks the ledger up before it takes the lock."""

    def append(
        self, log: str, facts: Sequence[NewFact], *, capacity: int | None = None
    ) -> list[AppendOutcome]:
        known = [self.memory_log(log).find(fact.from_zone, fact.message_id) for fact in facts]
        hashlib.sha256(b"x" * 10_000_000)  # other threads have their turn meanwhile
        for fact, found in zip(facts, known, strict=True):
            if found is None:
                key = key_of(log, fact.from_zone, fact.message_id)
                self.memory_log(log).ledger.pop(key, None)
        return super().append(log, facts, capacity=capacity)


# ---- the ledger ---------------------------------------------------------------------------------


class StoresDuplicates(Honest):
    """Has a deduplication window that has passed."""

    def append(
        self, log: str, facts: Sequence[NewFact], *, capacity: int | None = None
    ) -> list[AppendOutcome]:
        self.memory_log(log).ledger.clear()
        return super().append(log, facts, capacity=capacity)


class SwallowsConflicts(Honest):
    """Takes every repeated id for the same content."""

    def append(
        self, log: str, facts: Sequence[NewFact], *, capacity: int | None = None
    ) -> list[AppendOutcome]:
        found = super().append(log, facts, capacity=capacity)
        return [
            Appended(each.offset, True) if isinstance(each, Conflict) else each for each in found
        ]


class OverwritesOnConflict(Honest):
    """Refuses other content, and stores it all the same."""

    def append(
        self, log: str, facts: Sequence[NewFact], *, capacity: int | None = None
    ) -> list[AppendOutcome]:
        found = super().append(log, facts, capacity=capacity)
        for fact, answer in zip(facts, found, strict=True):
            if isinstance(answer, Conflict):
                row = self.memory_log(log).row(answer.offset)
                if row is not None:
                    row.fact.fact = fact.fact
        return found


class LastEnvelopeWins(Honest):
    """Answers a duplicate with the envelope that was just sent."""

    def append(
        self, log: str, facts: Sequence[NewFact], *, capacity: int | None = None
    ) -> list[AppendOutcome]:
        found = super().append(log, facts, capacity=capacity)
        return [
            altered(each, envelope=fact.envelope)
            if isinstance(each, Appended) and each.is_duplicate
            else each
            for fact, each in zip(facts, found, strict=True)
        ]


class LeavesDamage(Honest):
    """Answers a duplicate without a look at what is stored."""

    def append(
        self, log: str, facts: Sequence[NewFact], *, capacity: int | None = None
    ) -> list[AppendOutcome]:
        kept = {row.fact.offset: row.fact.fact for row in self.memory_log(log).rows}
        found = super().append(log, facts, capacity=capacity)
        for row in self.memory_log(log).rows:
            row.fact.fact = kept.get(row.fact.offset, row.fact.fact)
        return found


class RepairsWithAnyEnvelope(Honest):
    """Writes what it is told over what is damaged."""

    def append(
        self, log: str, facts: Sequence[NewFact], *, capacity: int | None = None
    ) -> list[AppendOutcome]:
        found = super().append(log, facts, capacity=capacity)
        for fact, answer in zip(facts, found, strict=True):
            row = self.memory_log(log).row(answer.offset) if isinstance(answer, Appended) else None
            if row is not None and isinstance(answer, Appended) and answer.is_repaired:
                row.fact.envelope = fact.envelope
        return found


class RepairsByConflicts(Honest):
    """Takes what it is told for the truth where the stored fact is damaged."""

    def append(
        self, log: str, facts: Sequence[NewFact], *, capacity: int | None = None
    ) -> list[AppendOutcome]:
        memory_log = self.memory_log(log)
        for fact in facts:
            known = memory_log.find(fact.from_zone, fact.message_id)
            row = None if known is None else memory_log.row(known.offset)
            if row is not None and not memory_log.is_intact(row):
                row.fact.fact = fact.fact
                key = key_of(log, fact.from_zone, fact.message_id)
                memory_log.ledger[key] = row.fact.offset, fact.digest
        return super().append(log, facts, capacity=capacity)


class ReceivesWithoutRepair(Honest):
    """Repairs what producers tell again, and not what a peer sends again."""

    def receive(
        self,
        peer: str,
        facts: Sequence[NewFact],
        link: Link,
        refused: Sequence[Quarantined] = (),
        gaps: Sequence[Gap] = (),
    ) -> list[AppendOutcome]:
        rows = self.memory_log(f"inbound:{peer}").rows
        kept = {row.fact.offset: row.fact.fact for row in rows}
        found = super().receive(peer, facts, link, refused, gaps)
        for row in rows:
            row.fact.fact = kept.get(row.fact.offset, row.fact.fact)
        return found


class KeyIsAString(Honest):
    """Joins zone and id to one key."""

    def append(
        self, log: str, facts: Sequence[NewFact], *, capacity: int | None = None
    ) -> list[AppendOutcome]:
        joined = [
            altered(fact, from_zone="", message_id=f"{fact.from_zone}:{fact.message_id}")
            for fact in facts
        ]
        return super().append(log, joined, capacity=capacity)


class IgnoresCase(Honest):
    """Compares ids as some databases compare text."""

    def append(
        self, log: str, facts: Sequence[NewFact], *, capacity: int | None = None
    ) -> list[AppendOutcome]:
        lower = [altered(fact, message_id=fact.message_id.casefold()) for fact in facts]
        return super().append(log, lower, capacity=capacity)


class IdsOfAllZones(Honest):
    """Takes an id to be unique whoever asserts it."""

    def append(
        self, log: str, facts: Sequence[NewFact], *, capacity: int | None = None
    ) -> list[AppendOutcome]:
        return super().append(
            log, [altered(fact, from_zone=ZONE) for fact in facts], capacity=capacity
        )


class OneLedger(Honest):
    """Has one ledger for all logs."""

    def append(
        self, log: str, facts: Sequence[NewFact], *, capacity: int | None = None
    ) -> list[AppendOutcome]:
        for fact in facts:
            for memory_log in self.database.state.logs.values():
                known = memory_log.find(fact.from_zone, fact.message_id)
                if known is not None:
                    key = key_of(log, fact.from_zone, fact.message_id)
                    memory_log.ledger.setdefault(key, (known.offset, known.digest))
        return super().append(log, facts, capacity=capacity)


class ShortDigests(Honest):
    """Compares eight bytes of a digest."""

    def append(
        self, log: str, facts: Sequence[NewFact], *, capacity: int | None = None
    ) -> list[AppendOutcome]:
        short = [altered(fact, digest=fact.digest[:8] + bytes(24)) for fact in facts]
        return super().append(log, short, capacity=capacity)


class LedgerGoesWithThePayload(Honest):
    """Keeps ids in the row they belong to."""

    def truncate(self, log: str, through: int, *, loss_reason: str | None = None) -> int:
        dropped = super().truncate(log, through, loss_reason=loss_reason)
        memory_log = self.memory_log(log)
        memory_log.ledger = {
            key: e for key, e in memory_log.ledger.items() if e[0] >= memory_log.first
        }
        return dropped


class SearchesByName(Honest):
    """Searches the logs in the order of their names."""

    def find(self, from_zone: str, message_id: str, log: str | None = None) -> LedgerEntry | None:
        names = sorted(self.database.state.logs) if log is None else [log]
        found = [super(SearchesByName, self).find(from_zone, message_id, each) for each in names]
        return next((each for each in found if each is not None), None)


# ---- capacity and references --------------------------------------------------------------------


class FullBeforeTheLedger(Honest):
    """Looks at the capacity first."""

    def append(
        self, log: str, facts: Sequence[NewFact], *, capacity: int | None = None
    ) -> list[AppendOutcome]:
        memory_log = self.memory_log(log)
        if capacity is not None and memory_log.size >= capacity:
            return [CapacityExceeded(memory_log.size)] * len(facts)
        return super().append(log, facts, capacity=capacity)


class CapacityOnceABatch(Honest):
    """Looks at the capacity once for a whole batch."""

    def append(
        self, log: str, facts: Sequence[NewFact], *, capacity: int | None = None
    ) -> list[AppendOutcome]:
        first = super().append(log, facts[:1], capacity=capacity)
        return first + super().append(log, facts[1:])


class TrustsTheFirstReference(Honest):
    """Looks at the first reference of a fact alone."""

    def append(
        self, log: str, facts: Sequence[NewFact], *, capacity: int | None = None
    ) -> list[AppendOutcome]:
        return super().append(
            log, [altered(fact, references=fact.references[:1]) for fact in facts]
        )


class IgnoresTheSize(Honest):
    """Compares digests, and not sizes."""

    def append(
        self, log: str, facts: Sequence[NewFact], *, capacity: int | None = None
    ) -> list[AppendOutcome]:
        kept = self.database.state.objects
        seen = [
            altered(
                fact,
                references=tuple(
                    replace(e, size=kept[e.bucket, e.key].size) if (e.bucket, e.key) in kept else e
                    for e in fact.references
                ),
            )
            for fact in facts
        ]
        return super().append(log, seen, capacity=capacity)


class MarksTheRefused(Honest):
    """Marks objects as it checks them, whatever becomes of the fact."""

    def append(
        self, log: str, facts: Sequence[NewFact], *, capacity: int | None = None
    ) -> list[AppendOutcome]:
        found = super().append(log, facts, capacity=capacity)
        for fact in facts:
            self.database.state.referenced.update(
                (each.bucket, each.key) for each in fact.references
            )
        return found


class NeverMarks(Honest):
    """Checks references and forgets them."""

    def append(
        self, log: str, facts: Sequence[NewFact], *, capacity: int | None = None
    ) -> list[AppendOutcome]:
        found = super().append(log, facts, capacity=capacity)
        self.database.state.referenced.clear()
        return found


class MarksOnlyTheNeeded(Honest):
    """Takes a fact that needs no artifact for one that refers to none."""

    def append(
        self, log: str, facts: Sequence[NewFact], *, capacity: int | None = None
    ) -> list[AppendOutcome]:
        bare = [each if each.needs_artifacts else altered(each, references=()) for each in facts]
        return super().append(log, bare, capacity=capacity)


class MarksOnlyWhatIsThere(Honest):
    """Forgets that a name may be given to bytes after it was referred to."""

    def refer(self, names: Sequence[tuple[str, str]]) -> None:
        super().refer([name for name in names if name in self.database.state.objects])


class HidesWhatIsThere(Honest):
    """Says that an object is missing when it is another one."""

    def append(
        self, log: str, facts: Sequence[NewFact], *, capacity: int | None = None
    ) -> list[AppendOutcome]:
        found = super().append(log, facts, capacity=capacity)
        return [replace(e, found=None) if isinstance(e, MissingReference) else e for e in found]


class OverwritesObjects(Honest):
    """Lets the last bytes under a name win."""

    def bind(self, bucket: str, key: str, digest: bytes, size: int) -> StoredObject:
        try:
            return super().bind(bucket, key, digest, size)
        except ObjectConflictError:
            self.database.state.objects.pop((bucket, key))
            return super().bind(bucket, key, digest, size)


class BindForgetsTheMark(Honest):
    """Writes a fresh row when a name is given again."""

    def bind(self, bucket: str, key: str, digest: bytes, size: int) -> StoredObject:
        self.database.state.referenced.discard((bucket, key))
        return super().bind(bucket, key, digest, size)


class UnbindsTheReferenced(Honest):
    """Takes any name away."""

    def unbind(self, bucket: str, key: str, *, before: float | None = None) -> StoredObject | None:
        self.database.state.referenced.discard((bucket, key))
        return super().unbind(bucket, key, before=before)


class GivesSharedBytesAway(Honest):
    """Forgets that bytes may have two names."""

    def unbind(self, bucket: str, key: str, *, before: float | None = None) -> StoredObject | None:
        kept = self.object(bucket, key)
        return super().unbind(bucket, key, before=before) or kept


class YoungOrphans(Honest):
    """Takes every unreferenced name for an orphan."""

    def orphans(self, before: float, limit: int = 1000) -> list[StoredObject]:
        return super().orphans(float("inf"), limit)


class BucketsOverlap(Honest):
    """Lists the names of all buckets."""

    def objects(
        self, bucket: str | None = None, *, after: tuple[str, str] = ("", ""), limit: int = 1000
    ) -> list[StoredObject]:
        return super().objects(None, after=after, limit=limit)


# ---- pages --------------------------------------------------------------------------------------


class DropsLargeFacts(Honest):
    """Gives nothing when the next fact is larger than a page."""

    def page(
        self, log: str, after: int, limit: int, max_bytes: int, to_zone: str | None = None
    ) -> LogPage:
        page = super().page(log, after, limit, max_bytes, to_zone)
        page.facts = [f for f in page.facts if len(f.envelope) + len(f.fact) <= max_bytes]
        return page


class PreviousOfTheLog(Honest):
    """Counts ``previous`` in the whole log, also in a view."""

    def page(
        self, log: str, after: int, limit: int, max_bytes: int, to_zone: str | None = None
    ) -> LogPage:
        page = super().page(log, after, limit, max_bytes, to_zone)
        page.facts = [replace(fact, previous=fact.offset - 1) for fact in page.facts]
        return page


class PreviousOfThePage(Honest):
    """Knows of no fact before the page."""

    def page(
        self, log: str, after: int, limit: int, max_bytes: int, to_zone: str | None = None
    ) -> LogPage:
        page = super().page(log, after, limit, max_bytes, to_zone)
        if page.facts:
            page.facts[0] = replace(page.facts[0], previous=0)
        return page


class AlwaysThroughTheHead(Honest):
    """Says that a page reaches the head, also when its limit cut it."""

    def page(
        self, log: str, after: int, limit: int, max_bytes: int, to_zone: str | None = None
    ) -> LogPage:
        page = super().page(log, after, limit, max_bytes, to_zone)
        page.through = page.head
        return page


class ThroughTheLastFact(Honest):
    """Never says that the rest of the log holds nothing of the view."""

    def page(
        self, log: str, after: int, limit: int, max_bytes: int, to_zone: str | None = None
    ) -> LogPage:
        page = super().page(log, after, limit, max_bytes, to_zone)
        page.through = page.facts[-1].offset if page.facts else after
        return page


class ViewsIgnoreCase(Honest):
    """Compares zones as some databases compare text."""

    def append(
        self, log: str, facts: Sequence[NewFact], *, capacity: int | None = None
    ) -> list[AppendOutcome]:
        return super().append(
            log, [altered(fact, to_zone=fact.to_zone.lower()) for fact in facts], capacity=capacity
        )


class NoChain(Honest):
    """Chains nothing to nothing: each link knows its own fact alone."""

    def page(
        self, log: str, after: int, limit: int, max_bytes: int, to_zone: str | None = None
    ) -> LogPage:
        page = super().page(log, after, limit, max_bytes, to_zone)
        row = self.memory_log(log).row(after)
        page.chain = b"" if row is None else hashlib.sha256(row.fact.fact).digest()
        return page


class CountsWhatIsGone(Honest):
    """Does not take dropped payloads off the size of the log."""

    def logs(self) -> list[LogInfo]:
        return [
            replace(each, size=each.size * each.head // max(1, each.head + 1 - each.first))
            for each in super().logs()
        ]


class NeverFlawed(Honest):
    """Verifies nothing."""

    def verify(self, log: str, after: int = 0) -> Iterator[Corruption | int]:
        return (each for each in super().verify(log, after) if isinstance(each, int))


class AllFlawed(Honest):
    """Begins its walk with an empty chain, whatever was truncated."""

    def verify(self, log: str, after: int = 0) -> Iterator[Corruption | int]:
        first = self.memory_log(log).first
        if first > 1:
            yield Corruption(log, first, "the chain is broken")
        yield from super().verify(log, after)


class AnswersTooSoon(Honest):
    """Answers an append that nobody waits for before it is done."""

    def append_soon(
        self, log: str, facts: Sequence[NewFact], done: Callable[[Any], None], **options: Any
    ) -> None:
        done([Appended(self.memory_log(log).head + n) for n in range(1, len(facts) + 1)])
        super().append_soon(log, facts, lambda answer: None, **options)


class ForgetsToAnswer(Honest):
    """Answers an append that nobody waits for only when it went well."""

    def append_soon(
        self, log: str, facts: Sequence[NewFact], done: Callable[[Any], None], **options: Any
    ) -> None:
        super().append_soon(
            log, facts, lambda answer: done(answer) if isinstance(answer, list) else None, **options
        )
