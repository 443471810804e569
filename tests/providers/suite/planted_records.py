"""Provider stores with one realistic bug each in what they record and sum up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import floor

from ergon_framework.core.rollup import Rollup, SlidingHour, merged
from ergon_framework.ports.providerstore import (
    AttemptOutcome,
    AttemptRow,
    LaneHealth,
    LaneKey,
    LetterStatus,
    RecordBatch,
)
from ergon_framework.providers.stores.roll_ups import roll_up
from ergon_framework.testing.suites.providerstore.under_test import Clock
from tests.providers.suite.planted_circuits import Honest


def lane_of(row: AttemptRow) -> LaneKey:
    """Whose attempt it was."""
    return LaneKey(row.tenant_id, row.provider_name, row.capability)


class Changed(Honest):
    """Writes each row as something else, or not at all; its roll-ups, too."""

    def change(self, row: AttemptRow) -> AttemptRow | None:
        """What is written instead."""
        raise NotImplementedError

    def record(self, batch: RecordBatch) -> None:
        rows = [changed for row in batch.attempts if (changed := self.change(row)) is not None]
        super().record(RecordBatch(rows, batch.letters))


# ---- rows ---------------------------------------------------------------------------------------


class ForgetsTheCampaign(Changed):
    """Has no column for the campaign."""

    def change(self, row: AttemptRow) -> AttemptRow:
        return row._replace(campaign_id=None)


class RoundsInstants(Changed):
    """Keeps instants in whole seconds."""

    def change(self, row: AttemptRow) -> AttemptRow:
        return row._replace(created_at=floor(row.created_at))


class NewestAttemptFirst(Honest):
    """Sorts the other way."""

    def attempts_of(self, correlation_id: str) -> list[AttemptRow]:
        return super().attempts_of(correlation_id)[::-1]


class OrderOfWriting(Honest):
    """Does not sort at all."""

    def attempts_of(self, correlation_id: str) -> list[AttemptRow]:
        return [row for row in self._attempts.rows if row.correlation_id == correlation_id]


class CountsAgain(Honest):
    """Leaves out rows that are there, but not from the roll-ups."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._counted: set[str] = set()

    def record(self, batch: RecordBatch) -> None:
        super().record(batch)
        for key, note in roll_up(row for row in batch.attempts if row.id in self._counted).items():
            self._lanes[key].note(note, self.now())
        self._counted |= {row.id for row in batch.attempts}


class LeavesOutTheBatch(Honest):
    """Takes a batch of which something is there for one that was written."""

    def record(self, batch: RecordBatch) -> None:
        if not any(row.id in self._attempts.ids for row in batch.attempts):
            super().record(batch)


class ReplacesRows(Honest):
    """Lets the latest row of an id stand."""

    def record(self, batch: RecordBatch) -> None:
        super().record(batch)
        latest = {row.id: row for row in batch.attempts}
        rows = self._attempts.rows
        self._attempts.rows = type(rows)(latest.get(row.id, row) for row in rows)


class TwoTransactions(Honest):
    """Writes attempts, and then letters."""

    def record(self, batch: RecordBatch) -> None:
        super().record(RecordBatch(batch.attempts))
        super().record(RecordBatch([], batch.letters))


class LetterByLetter(Honest):
    """Writes letters one by one, before the attempts."""

    def record(self, batch: RecordBatch) -> None:
        for letter in batch.letters:
            super().record(RecordBatch([], [letter]))
        super().record(RecordBatch(batch.attempts))


class AddsWithoutALock(Honest):
    """Reads a minute, adds to it, and writes it back, while others do the same."""

    def record(self, batch: RecordBatch) -> None:
        before = {key: merged(lane.hour.minutes.values()) for key, lane in self._lanes.items()}
        self.meet()
        super().record(batch)
        for key, note in roll_up(batch.attempts).items():
            hour = SlidingHour()
            hour.add(floor(self.now() / 60) * 60, before.get(key, Rollup()))
            for minute, rollup in note.minutes.items():
                hour.add(minute, rollup)
            self._lanes[key].hour = hour


# ---- what was last heard ------------------------------------------------------------------------


class FailureErasesTheSuccess(Honest):
    """Writes a whole row, without the part it has nothing to say about."""

    def record(self, batch: RecordBatch) -> None:
        super().record(batch)
        for row in batch.attempts:
            if row.outcome != AttemptOutcome.SUCCESS:
                self._lanes[lane_of(row)].last_success_at = None


class SuccessErasesTheError(Honest):
    """Takes a success for a cure."""

    def record(self, batch: RecordBatch) -> None:
        super().record(batch)
        for row in batch.attempts:
            if row.outcome == AttemptOutcome.SUCCESS:
                lane = self._lanes[lane_of(row)]
                lane.last_error_at = lane.last_error_code = None


class LatestIsTheLastWritten(Honest):
    """Takes what came in last for what was last."""

    def record(self, batch: RecordBatch) -> None:
        super().record(batch)
        for row in batch.attempts:
            lane = self._lanes[lane_of(row)]
            if row.outcome == AttemptOutcome.SUCCESS:
                lane.last_success_at = row.created_at
            else:
                lane.last_error_at, lane.last_error_code = row.created_at, row.reason_code


class RefusalIsAnError(Honest):
    """Hides the provider's last error behind our own refusal."""

    def record(self, batch: RecordBatch) -> None:
        super().record(batch)
        for row in batch.attempts:
            if row.attempt_number == 0:
                lane = self._lanes[lane_of(row)]
                lane.last_error_at, lane.last_error_code = row.created_at, row.reason_code


# ---- rates --------------------------------------------------------------------------------------


class Counted(Honest):
    """Counts each row as if it were something else; the rows are as they were."""

    def counted(self, row: AttemptRow) -> AttemptRow:
        """What is counted."""
        raise NotImplementedError

    def record(self, batch: RecordBatch) -> None:
        before = self._attempts.rows.copy()
        super().record(RecordBatch([self.counted(row) for row in batch.attempts], batch.letters))
        known = {row.id for row in before}
        before.extend(row for row in batch.attempts if row.id not in known)
        self._attempts.rows = before


class RetriesAreFailures(Counted):
    """Takes an attempt for a call."""

    def counted(self, row: AttemptRow) -> AttemptRow:
        is_retry = row.outcome == AttemptOutcome.RETRY
        return row._replace(outcome=AttemptOutcome.FAILED.value) if is_retry else row


class DeadLettersAreNothing(Counted):
    """Counts failures by one word alone."""

    def counted(self, row: AttemptRow) -> AttemptRow:
        is_dead = row.outcome == AttemptOutcome.DEAD_LETTER
        return row._replace(outcome=AttemptOutcome.RETRY.value) if is_dead else row


class RefusalsAreAttempts(Counted):
    """Takes a call that nobody answered for a fast answer."""

    def counted(self, row: AttemptRow) -> AttemptRow:
        return row._replace(attempt_number=max(1, row.attempt_number))


class CountedOnArrival(Counted):
    """Counts an attempt in the minute in which it is written."""

    def counted(self, row: AttemptRow) -> AttemptRow:
        return row._replace(created_at=self.now())


class FailuresTakeNoTime(Counted):
    """Has durations of successes alone."""

    def counted(self, row: AttemptRow) -> AttemptRow:
        return row if row.outcome == AttemptOutcome.SUCCESS else row._replace(duration_ms=0)


class CoarseBuckets(Counted):
    """Counts durations by powers of two."""

    def counted(self, row: AttemptRow) -> AttemptRow:
        return row._replace(duration_ms=1 << row.duration_ms.bit_length())


class Seen(Honest):
    """Shows each lane as something else."""

    def seen(self, lane: LaneHealth) -> LaneHealth:
        """What is shown."""
        raise NotImplementedError

    def health(self, tenant_id: str) -> list[LaneHealth]:
        return [self.seen(lane) for lane in super().health(tenant_id)]


class UnknownIsZero(Seen):
    """Has no word for a rate of nothing."""

    def seen(self, lane: LaneHealth) -> LaneHealth:
        return replace(lane, success_rate_1h=lane.success_rate_1h or 0.0)


class ZeroIsUnknown(Seen):
    """Has no word for nothing but failures."""

    def seen(self, lane: LaneHealth) -> LaneHealth:
        return replace(lane, success_rate_1h=lane.success_rate_1h or None)


class FrozenRates(Seen):
    """Shows the rates that the last attempt left behind, for ever."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._last: dict[LaneKey, LaneHealth] = {}

    def record(self, batch: RecordBatch) -> None:
        super().record(batch)
        for tenant_id in {row.tenant_id for row in batch.attempts}:
            for lane in super(Seen, self).health(tenant_id):
                self._last[lane.key] = lane

    def seen(self, lane: LaneHealth) -> LaneHealth:
        last = self._last.get(lane.key, lane)
        rates = last.success_rate_1h, last.p95_latency_ms_1h
        return replace(lane, success_rate_1h=rates[0], p95_latency_ms_1h=rates[1])


class OwnRatesOnly(FrozenRates):
    """Keeps rates in the process, and forgets that there are others."""


class RatesOfTheLastMinute(Seen):
    """Reads the newest roll-up alone."""

    def seen(self, lane: LaneHealth) -> LaneHealth:
        minutes = self._lanes[lane.key].hour.minutes
        if not minutes:
            return lane
        newest = minutes[max(minutes)]
        return replace(lane, success_rate_1h=newest.success_rate, p95_latency_ms_1h=newest.p95)


# ---- lanes --------------------------------------------------------------------------------------


class ShowsEverybody(Honest):
    """Forgets to ask whose lanes."""

    def health(self, tenant_id: str) -> list[LaneHealth]:
        tenants = sorted({key.tenant_id for key in self._lanes})
        return [lane for each in tenants for lane in super(ShowsEverybody, self).health(each)]


class AnyOrder(Honest):
    """Shows lanes in the order in which they became known."""

    def health(self, tenant_id: str) -> list[LaneHealth]:
        order = list(self._lanes)
        return sorted(super().health(tenant_id), key=lambda lane: order.index(lane.key))


class HealthRowsOnly(Honest):
    """Shows a budget only of lanes that were called."""

    def health(self, tenant_id: str) -> list[LaneHealth]:
        known = {key for key, lane in self._lanes.items() if lane.updated_at is not None}
        return [lane for lane in super().health(tenant_id) if lane.key in known]


class DatesWhatIsRead(Seen):
    """Takes a look for a writing."""

    def seen(self, lane: LaneHealth) -> LaneHealth:
        return replace(lane, updated_at=self.now())


# ---- pruning ------------------------------------------------------------------------------------


class PrunesThroughTheInstant(Honest):
    """Deletes what is of that very instant, too."""

    def prune(self, before: float, limit: int = 10_000, **options: float | None) -> int:
        return super().prune(before + 1e-3, limit, **options)


class PrunesAtOnce(Honest):
    """Does not care how long others wait."""

    def prune(self, before: float, limit: int = 10_000, **options: float | None) -> int:
        return super().prune(before, 10_000, **options)


class PrunesWhatWaits(Honest):
    """Deletes letters that nobody has published."""

    def prune(self, before: float, limit: int = 10_000, **options: float | None) -> int:
        old = [
            stored.letter.dead_letter_id
            for stored in self._letters.letters.values()
            if stored.letter.occurred_at < before and stored.status is LetterStatus.PENDING
        ]
        return super().prune(before, limit, **options) + self.delete_letters(old)


class PrunesKeysByAge(Honest):
    """Deletes keys by when they were taken."""

    def prune(self, before: float, limit: int = 10_000, **options: float | None) -> int:
        for record in self._keys.records.values():
            record.expires_at = min(record.expires_at, record.lease_expires_at)
        return super().prune(before, limit, **options)


class PrunesKeysWithTheRecords(Honest):
    """Keeps keys that have expired for as long as the records."""

    def prune(self, before: float, limit: int = 10_000, **options: float | None) -> int:
        return super().prune(before, limit)


class PrunesRecordsWithTheKeys(Honest):
    """Takes the instant of the keys for that of everything."""

    def prune(self, before: float, limit: int = 10_000, **options: float | None) -> int:
        return super().prune(options.get("keys_before") or before, limit, **options)


class PrunesBudgets(Honest):
    """Deletes windows that are over, and forgets which was the newest."""

    def prune(self, before: float, limit: int = 10_000, **options: float | None) -> int:
        for lane in self._lanes.values():
            if lane.account is not None and lane.account.window.end < before:
                lane.account = None
        return super().prune(before, limit, **options)


class PrunesLanes(Honest):
    """Deletes the circuit with the last attempt."""

    def prune(self, before: float, limit: int = 10_000, **options: float | None) -> int:
        count = super().prune(before, limit, **options)
        if count:
            self._lanes.clear()
        return count


# ---- closing ------------------------------------------------------------------------------------


class AnswersWhenClosed(Honest):
    """Goes on answering some calls."""

    def attempts_of(self, correlation_id: str) -> list[AttemptRow]:
        return [] if self.is_closed else super().attempts_of(correlation_id)


class ClosesOnce(Honest):
    """Takes a second closing amiss."""

    def close(self) -> None:
        if self.is_closed:
            message = "closed already"
            raise RuntimeError(message)
        super().close()


class RaisesItsOwn(Honest):
    """Lets the driver's error through."""

    def health(self, tenant_id: str) -> list[LaneHealth]:
        if self.is_closed:
            raise ConnectionError
        return super().health(tenant_id)


class OwnTime(Honest):
    """Reads the clock once, when it is opened."""

    def __init__(self, clock: Callable[[], float]) -> None:
        opened_at = clock()
        super().__init__(lambda: opened_at)
