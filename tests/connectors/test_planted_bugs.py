"""Connectors with one realistic bug each: the suite must reject every one, for the right reason."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterable
from typing import Any

import pytest

from ergon_framework.errors import PayloadError
from ergon_framework.ports.transaction import Transaction, new_id
from ergon_framework.testing.suites import (
    CONNECTOR_CHECKS,
    ConnectorSuiteError,
    exercise_connector,
)

Entry = tuple[int, Any]


class Honest:
    """A small, correct connector whose methods the bugs below replace one at a time."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.waiting: list[Entry] = []
        self.flying: dict[int, tuple[Transaction, Entry]] = {}
        self.settled: dict[int, tuple[Transaction, str]] = {}
        self.dead: list[tuple[Transaction, str]] = []
        self.places = 0
        self.closed = False

    def encode(self, transaction: Transaction) -> Any:
        try:
            return json.dumps(transaction.to_dict())
        except TypeError as error:
            raise PayloadError(f"transaction {transaction.transaction_id}: {error}") from error

    def decode(self, stored: Any) -> Any:
        return Transaction.from_dict(json.loads(stored))

    def pick(self, count: int) -> list[Entry]:
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        return taken

    def deliver(self, entry: Entry) -> Any:
        transaction = self.decode(entry[1])
        self.flying[id(transaction)] = (transaction, entry)
        return transaction

    def fetch_transactions(self, batch_size: int) -> Any:
        if batch_size < 1:
            raise ValueError("batch_size must be at least 1")
        if self.closed:
            raise RuntimeError("closed")
        with self.lock:
            return [self.deliver(entry) for entry in self.pick(batch_size)]

    def add(self, stored: Any) -> None:
        self.waiting.append((self.places, stored))
        self.places += 1

    def dispatch_transactions(self, transactions: Iterable[Transaction]) -> None:
        encoded = [self.encode(transaction) for transaction in transactions]
        with self.lock:
            for stored in encoded:
                self.add(stored)

    def settle(self, transaction: Transaction, verb: str) -> Entry | None:
        if id(transaction) in self.flying:
            self.settled[id(transaction)] = (transaction, verb)
            return self.flying.pop(id(transaction))[1]
        if self.settled.get(id(transaction), (None, ""))[1] != verb:
            raise LookupError("not delivered, or settled otherwise")
        return None

    def ack(self, transaction: Transaction) -> None:
        with self.lock:
            self.settle(transaction, "ack")

    def nack(self, transaction: Transaction, exc: Exception) -> None:
        with self.lock:
            if self.settle(transaction, "nack") is not None:
                self.dead.append((transaction, str(exc)))

    def release(self, transaction: Transaction) -> None:
        with self.lock:
            entry = self.settle(transaction, "release")
            if entry is not None:
                self.put_back(entry)

    def put_back(self, entry: Entry) -> None:
        self.waiting = sorted([*self.waiting, entry])

    def get_transactions_count(self) -> int:
        return len(self.waiting)

    def fetch_transaction_by_id(self, transaction_id: str) -> Any:
        found = (self.decode(stored) for _, stored in self.waiting)
        return next((each for each in found if each.transaction_id == transaction_id), None)

    def health(self) -> bool:
        return not self.closed

    def close(self) -> None:
        self.closed = True


class OverDelivers(Honest):
    """Treats batch_size as a hint."""

    def pick(self, count: int) -> list[Entry]:
        return super().pick(count + 1)


class LastInFirstOut(Honest):
    """Pops from the wrong end."""

    def pick(self, count: int) -> list[Entry]:
        return [self.waiting.pop() for _ in range(min(count, len(self.waiting)))]


class LosesTheRest(Honest):
    """Reads ahead and forgets what did not fit."""

    def pick(self, count: int) -> list[Entry]:
        return super().pick(count * 2)[:count]


class DeliversTwice(Honest):
    """Does not hide what is in flight."""

    def pick(self, count: int) -> list[Entry]:
        return self.waiting[:count]

    def settle(self, transaction: Transaction, verb: str) -> Entry | None:
        entry = super().settle(transaction, verb)
        if entry in self.waiting:
            self.waiting.remove(entry)
        return entry


class NeverRunsDry(Honest):
    """Starts over when it reaches the end."""

    def pick(self, count: int) -> list[Entry]:
        taken = self.waiting[:count]
        self.waiting = self.waiting[count:] + taken
        return taken


class DropsRepeatedIds(Honest):
    """Deduplicates by id for ever."""

    def add(self, stored: Any) -> None:
        known = {self.decode(each).transaction_id for _, each in self.waiting}
        if self.decode(stored).transaction_id not in known:
            super().add(stored)


class RawDicts(Honest):
    """Hands out what the wire gave it."""

    def decode(self, stored: Any) -> Any:
        return json.loads(stored)


class EmptyIds(Honest):
    """Fills a missing id with nothing."""

    def decode(self, stored: Any) -> Any:
        transaction = super().decode(stored)
        object.__setattr__(transaction, "transaction_id", "")
        return transaction


class OneInsteadOfMany(Honest):
    """Returns the transactions keyed by id."""

    def fetch_transactions(self, batch_size: int) -> Any:
        return {each.transaction_id: each for each in super().fetch_transactions(batch_size)}


class ReusesItsList(Honest):
    """Returns its own list of waiting transactions when the whole of it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.batch: list[Any] = []

    def fetch_transactions(self, batch_size: int) -> Any:
        for late in self.batch[2:]:
            self.put_back(self.flying.pop(id(late))[1])
        del self.batch[2:]
        fresh = super().fetch_transactions(batch_size)
        self.batch += fresh
        return self.batch if len(self.batch) <= batch_size else fresh


class BlocksOnEmpty(Honest):
    """Waits for work inside the fetch."""

    woken = threading.Event()

    def fetch_transactions(self, batch_size: int) -> Any:
        if not self.waiting:
            self.woken.wait()
        return super().fetch_transactions(batch_size)


class ChokesOnSettings(Honest):
    """Takes the batch before it looks at its settings."""

    def fetch_transactions(self, batch_size: int, **extra: Any) -> Any:
        batch = super().fetch_transactions(batch_size)
        if extra:
            raise ValueError(f"unknown setting {min(extra)}")
        return batch


class OneThreadOnly(Honest):
    """Remembers the first thread that fetched and refuses all others."""

    owner: threading.Thread | None = None

    def fetch_transactions(self, batch_size: int) -> Any:
        self.owner = self.owner or threading.current_thread()
        if self.owner is not threading.current_thread():
            raise RuntimeError("used from another thread")
        return super().fetch_transactions(batch_size)


class AnyBatchSize(Honest):
    """Gives an empty batch for a size that makes no sense."""

    def fetch_transactions(self, batch_size: int) -> Any:
        return super().fetch_transactions(batch_size) if batch_size > 0 else []


class Forgetful(Honest):
    """Leaves a field of the envelope behind; the subclasses say which."""

    field = ""

    def encode(self, transaction: Transaction) -> Any:
        shape = json.loads(super().encode(transaction))
        shape.pop(self.field, None)
        return json.dumps(shape)


class DropsMetadata(Forgetful):
    field = "metadata"


class DropsCorrelation(Forgetful):
    field = "correlation_id"


class DropsTrace(Forgetful):
    field = "trace_id"


class DropsSource(Forgetful):
    field = "source"


class DropsParent(Forgetful):
    field = "parent_id"


class StampsItsOwnTime(Forgetful):
    field = "created_at"


class SplitsOnLineSeparators(Honest):
    """Keeps its store as text and reads it with splitlines."""

    def encode(self, transaction: Transaction) -> Any:
        super().encode(transaction)
        return json.dumps(transaction.to_dict(), ensure_ascii=False)

    def decode(self, stored: Any) -> Any:
        return super().decode("".join(stored.splitlines()))


class NumbersAreFloats(Honest):
    """Parses every number as a float."""

    def decode(self, stored: Any) -> Any:
        return Transaction.from_dict(json.loads(stored, parse_int=float))


class EmptyMeansMissing(Honest):
    """Confuses an empty payload with none."""

    def encode(self, transaction: Transaction) -> Any:
        shape = json.loads(super().encode(transaction))
        shape["payload"] = shape["payload"] or None
        return json.dumps(shape)


class ShortTexts(Honest):
    """Cuts what is too long for its column."""

    def decode(self, stored: Any) -> Any:
        shape = json.loads(stored)
        shape["transaction_id"] = shape["transaction_id"][:64]
        return Transaction.from_dict(shape)


class Mutable(Transaction):
    """A transaction somebody made writable."""

    __slots__ = ("__dict__",)
    __setattr__ = object.__setattr__  # type: ignore[assignment]


class DeliversMutable(Honest):
    """Uses a writable class of its own."""

    def decode(self, stored: Any) -> Any:
        return Mutable.from_dict(json.loads(stored))


class SharesPayloads(Honest):
    """Keeps the caller's objects."""

    def encode(self, transaction: Transaction) -> Any:
        super().encode(transaction)
        return transaction

    def decode(self, stored: Any) -> Any:
        return Transaction.from_dict(json.loads(json.dumps(stored.to_dict())))


class RedeliversTheSameObject(Honest):
    """Puts back the object the handler worked on."""

    def release(self, transaction: Transaction) -> None:
        entry = self.settle(transaction, "release")
        if entry is not None:
            self.put_back((entry[0], json.dumps(transaction.to_dict())))


class PartialDispatch(Honest):
    """Encodes and stores one after the other."""

    def dispatch_transactions(self, transactions: Iterable[Transaction]) -> None:
        for transaction in transactions:
            super().dispatch_transactions([transaction])


class WritesSomething(Honest):
    """Turns what it cannot serialise into text."""

    def encode(self, transaction: Transaction) -> Any:
        return json.dumps(transaction.to_dict(), default=str)


class SwallowsTheUnserialisable(Honest):
    """Logs and goes on."""

    def dispatch_transactions(self, transactions: Iterable[Transaction]) -> None:
        for transaction in transactions:
            try:
                super().dispatch_transactions([transaction])
            except PayloadError:
                continue


class ComplainsWithoutAName(Honest):
    """Lets the serialiser's own error out."""

    def encode(self, transaction: Transaction) -> Any:
        return json.dumps(transaction.to_dict())


class ClearsOnError(Honest):
    """Throws its buffer away when a dispatch fails."""

    def dispatch_transactions(self, transactions: Iterable[Transaction]) -> None:
        try:
            super().dispatch_transactions(transactions)
        except PayloadError:
            self.waiting.clear()
            raise


class TakesAnything(Honest):
    """Wraps whatever it is given."""

    def encode(self, transaction: Any) -> Any:
        if not isinstance(transaction, Transaction):
            transaction = Transaction(new_id(), transaction)
        return super().encode(transaction)


class NeedsAList(Honest):
    """Walks through its input twice."""

    def dispatch_transactions(self, transactions: Iterable[Transaction]) -> None:
        for transaction in transactions:
            self.encode(transaction)
        super().dispatch_transactions(transactions)


class ChokesOnNothing(Honest):
    """Looks at the first one of an empty batch."""

    def dispatch_transactions(self, transactions: Iterable[Transaction]) -> None:
        batch = list(transactions)
        assert batch[0] is not None
        super().dispatch_transactions(batch)


class LosesOnRelease(Honest):
    """Takes release for ack."""

    def put_back(self, entry: Entry) -> None:
        pass


class RedeliversAfterAck(Honest):
    """Takes ack for release."""

    def ack(self, transaction: Transaction) -> None:
        entry = self.settle(transaction, "ack")
        if entry is not None and entry[0] < self.places:
            self.put_back((self.places, entry[1]))


class NackForgets(Honest):
    """Drops what failed, without a word."""

    def nack(self, transaction: Transaction, exc: Exception) -> None:
        self.ack(transaction)


class NackRequeues(Honest):
    """Sends what failed for good round again."""

    def nack(self, transaction: Transaction, exc: Exception) -> None:
        self.dead.append((transaction, str(exc)))
        self.release(transaction)


class NewIdOnRedelivery(Honest):
    """Treats a redelivery as new work."""

    def put_back(self, entry: Entry) -> None:
        shape = json.loads(entry[1]) | {"transaction_id": new_id()}
        super().put_back((entry[0], json.dumps(shape)))


class ReleasesEverything(Honest):
    """Rolls the whole session back."""

    def put_back(self, entry: Entry) -> None:
        for _, other in self.flying.values():
            super().put_back(other)
        super().put_back(entry)


class ReleasesOnce(Honest):
    """Gives up on what was released before."""

    released: set[int]

    def put_back(self, entry: Entry) -> None:
        self.released = getattr(self, "released", set())
        if entry[0] not in self.released:
            super().put_back(entry)
        self.released.add(entry[0])


class ReleasesToTheEnd(Honest):
    """Puts back at the end of the queue."""

    def put_back(self, entry: Entry) -> None:
        self.waiting.append(entry)


class ReleasesTwice(Honest):
    """Puts back again when told again."""

    def release(self, transaction: Transaction) -> None:
        entry = self.settle(transaction, "release")
        self.put_back(entry or (self.places, self.encode(transaction)))


class ComplainsAboutTheSecondAck(Honest):
    """Knows a delivery only until it is settled."""

    def settle(self, transaction: Transaction, verb: str) -> Entry | None:
        return self.flying.pop(id(transaction))[1]


class ReleaseAfterAck(Honest):
    """Believes the last word, not the first."""

    def release(self, transaction: Transaction) -> None:
        if id(transaction) in self.settled:
            self.put_back((0, self.encode(transaction)))
        else:
            super().release(transaction)


class AcksTheUnknown(Honest):
    """Says yes to everything."""

    def settle(self, transaction: Transaction, verb: str) -> Entry | None:
        try:
            return super().settle(transaction, verb)
        except LookupError:
            return None


class SettlesById(Honest):
    """Knows deliveries by the transaction's id alone."""

    def settle(self, transaction: Transaction, verb: str) -> Entry | None:
        for key, (flying, entry) in list(self.flying.items()):
            if flying.transaction_id == transaction.transaction_id:
                del self.flying[key]
                found = entry
        return found


class RacesOnRelease(Honest):
    """Reads, lets another thread do the same, then writes: one of the two is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.meeting = threading.Barrier(2)

    def release(self, transaction: Transaction) -> None:
        entry = self.settle(transaction, "release")
        before = list(self.waiting)
        if len(self.flying) > 2 and threading.active_count() > 2:
            try:
                self.meeting.wait(0.05)
            except threading.BrokenBarrierError:
                pass
        if entry is not None:
            self.waiting = sorted([*before, entry])


class CountsEverything(Honest):
    """Counts what was ever put in."""

    def get_transactions_count(self) -> int:
        return self.places


class LookingTakes(Honest):
    """Finds by id and keeps it."""

    def fetch_transaction_by_id(self, transaction_id: str) -> Any:
        found = super().fetch_transaction_by_id(transaction_id)
        if found is not None:
            self.waiting.pop()
        return found


class FindsAnything(Honest):
    """Takes the first one when there is no other."""

    def fetch_transaction_by_id(self, transaction_id: str) -> Any:
        return super().fetch_transaction_by_id(transaction_id) or self.decode(self.waiting[0][1])


class AlwaysIll(Honest):
    """Says what it would say without a connection."""

    def health(self) -> bool:
        return False


class AlwaysWell(Honest):
    """Never looks at its connection."""

    def health(self) -> bool:
        return True


class ClosesOnce(Honest):
    """Closes what is closed."""

    def close(self) -> None:
        if self.closed:
            raise RuntimeError("already closed")
        self.closed = True


class EmptyWhenClosed(Honest):
    """Looks like an empty queue when it is closed."""

    def fetch_transactions(self, batch_size: int) -> Any:
        return [] if self.closed else super().fetch_transactions(batch_size)


PLANTED: list[tuple[type[Honest], str]] = [
    (OverDelivers, "batch_size_is_respected"),
    (LastInFirstOut, "first_in_first_out"),
    (LosesTheRest, "delivers_everything"),
    (DeliversTwice, "no_double_delivery"),
    (NeverRunsDry, "runs_dry"),
    (DropsRepeatedIds, "same_id_twice_is_delivered_twice"),
    (RawDicts, "delivers_transactions_only"),
    (EmptyIds, "ids_are_never_empty"),
    (OneInsteadOfMany, "batch_is_iterable_or_none"),
    (ReusesItsList, "batches_are_independent"),
    (ChokesOnSettings, "unknown_settings_lose_nothing"),
    (OneThreadOnly, "fetches_from_any_thread"),
    (DropsMetadata, "keeps_metadata"),
    (DropsCorrelation, "keeps_correlation_id"),
    (DropsTrace, "keeps_trace_id"),
    (DropsSource, "keeps_source"),
    (DropsParent, "keeps_parent_id"),
    (StampsItsOwnTime, "keeps_created_at"),
    (SplitsOnLineSeparators, "keeps_unicode"),
    (NumbersAreFloats, "keeps_numbers_exactly"),
    (EmptyMeansMissing, "keeps_empty_payloads"),
    (ShortTexts, "keeps_the_id"),
    (DeliversMutable, "delivered_transactions_are_immutable"),
    (SharesPayloads, "dispatch_takes_a_snapshot"),
    (RedeliversTheSameObject, "redelivery_is_pristine"),
    (PartialDispatch, "dispatch_is_all_or_nothing"),
    (WritesSomething, "unserialisable_payload_is_refused"),
    (SwallowsTheUnserialisable, "unserialisable_payload_is_refused"),
    (ComplainsWithoutAName, "unserialisable_payload_is_refused"),
    (ClearsOnError, "refused_payload_loses_nothing"),
    (NeedsAList, "dispatch_accepts_any_iterable"),
    (ChokesOnNothing, "dispatching_nothing_is_fine"),
    (LosesOnRelease, "release_redelivers"),
    (RedeliversAfterAck, "ack_forgets"),
    (NackForgets, "nack_keeps_the_reason"),
    (NackRequeues, "nack_does_not_redeliver"),
    (NewIdOnRedelivery, "release_keeps_the_envelope"),
    (ReleasesEverything, "release_leaves_the_others_alone"),
    (ReleasesOnce, "releases_again_and_again"),
    (ReleasesToTheEnd, "release_restores_order"),
    (ReleasesTwice, "second_settlement_does_no_harm"),
    (ReleaseAfterAck, "contradicting_settlement_changes_nothing"),
    (AcksTheUnknown, "settling_the_unknown_is_refused"),
    (SettlesById, "same_ids_settle_separately"),
    (RacesOnRelease, "settles_concurrently"),
    (CountsEverything, "counts_what_waits"),
    (LookingTakes, "finds_by_id"),
    (FindsAnything, "does_not_find_the_unknown"),
    (AlwaysIll, "is_healthy_when_fresh"),
    (ClosesOnce, "closes_twice"),
    (EmptyWhenClosed, "fetch_after_close_is_refused"),
]
LESSER: list[tuple[type[Honest], str]] = [
    (AnyBatchSize, "batch_size_below_one_is_refused"),
    (TakesAnything, "refuses_what_is_no_transaction"),
    (ComplainsAboutTheSecondAck, "settlement_is_idempotent"),
    (AlwaysWell, "is_unhealthy_when_closed"),
]


def test_an_honest_connector_passes() -> None:
    """The connector all bugs are planted in is itself without fault."""
    report = exercise_connector(Honest, order="strict")
    report.raise_for_failures(recommended=True)
    assert report.skipped == ()


@pytest.mark.req("R0-N", "R1-S1", "R1-ID2")
@pytest.mark.parametrize(("bug", "check"), PLANTED, ids=lambda each: getattr(each, "__name__", ""))
def test_a_planted_bug_is_rejected(bug: type[Honest], check: str) -> None:
    """Each bug is rejected, by the check that is about it."""
    with pytest.raises(ConnectorSuiteError) as caught:
        exercise_connector(bug, order="strict", patience=2)
    assert check in caught.value.report.failed


@pytest.mark.parametrize(("bug", "check"), LESSER, ids=lambda each: getattr(each, "__name__", ""))
def test_a_lesser_bug_is_named(bug: type[Honest], check: str) -> None:
    """A broken recommendation is in the report, and rejected on request."""
    report = exercise_connector(bug, order="strict")
    assert check in report.failed
    with pytest.raises(ConnectorSuiteError, match=check):
        report.raise_for_failures(recommended=True)


def test_a_fetch_that_hangs_is_rejected() -> None:
    """A connector that waits for work inside the fetch fails; the suite does not hang with it."""
    try:
        report = exercise_connector(
            BlocksOnEmpty,
            skip=[each.name for each in CONNECTOR_CHECKS if each.name != "empty_fetch_is_prompt"],
            patience=0.02,
            raises=False,
        )
    finally:
        BlocksOnEmpty.woken.set()
    assert report.failed == ("empty_fetch_is_prompt",)
    assert "did not return within 0.02 s" in report.failures()[0].reason


class HonestAsync:
    """The asyncio twin of the honest connector, as far as the bugs below need it."""

    def __init__(self) -> None:
        self.inner = Honest()

    async def fetch_transactions_async(self, batch_size: int) -> Any:
        return self.inner.fetch_transactions(batch_size)

    async def dispatch_transactions_async(self, transactions: Iterable[Transaction]) -> None:
        self.inner.dispatch_transactions(transactions)


class WrongColour(HonestAsync):
    """Forgot a word."""

    def fetch_transactions_async(self, batch_size: int) -> Any:  # type: ignore[override]
        return self.inner.fetch_transactions(batch_size)


class LosesOnCancel(HonestAsync):
    """Takes, then waits, then hands over."""

    async def fetch_transactions_async(self, batch_size: int) -> Any:
        batch = self.inner.fetch_transactions(batch_size)
        await asyncio.sleep(0)
        return batch


class BlocksTheLoop(HonestAsync):
    """Waits for work without letting the loop go on."""

    woken = threading.Event()

    async def fetch_transactions_async(self, batch_size: int) -> Any:
        self.woken.wait()
        return await super().fetch_transactions_async(batch_size)


def test_an_honest_async_connector_passes() -> None:
    """The asyncio twin is without fault too."""
    exercise_connector(HonestAsync, colour="async").raise_for_failures(recommended=True)


@pytest.mark.parametrize(
    ("bug", "check"),
    [
        (WrongColour, "fetch_has_the_right_colour"),
        (LosesOnCancel, "cancelled_fetch_loses_nothing"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_planted_async_bug_is_rejected(bug: type[HonestAsync], check: str) -> None:
    """Bugs that only asyncio can have are found."""
    report = exercise_connector(bug, raises=False)
    assert check in report.failed


def test_a_fetch_that_blocks_the_loop_is_named() -> None:
    """A coroutine that blocks is told from one that waits."""
    try:
        report = exercise_connector(
            BlocksTheLoop,
            skip=[each.name for each in CONNECTOR_CHECKS if each.name != "loop_stays_responsive"],
            patience=0.02,
            raises=False,
        )
    finally:
        BlocksTheLoop.woken.set()
    assert report.failed == ("loop_stays_responsive",)
