"""A store in the memory of one process: gone with it, and otherwise like any other."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import islice, repeat
from operator import attrgetter
from typing import Any

from msgspec import structs

from ergon_framework.core.circuit_breaker import Breaker, CircuitState
from ergon_framework.core.quota import QuotaUsage, QuotaWindow
from ergon_framework.core.rollup import SlidingHour
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.errors import StoreUnavailableError
from ergon_framework.ports.providerstore import (
    AttemptRow,
    ClaimState,
    DeadLetter,
    KeyClaimResult,
    LaneFailure,
    LaneHealth,
    LaneKey,
    LaneState,
    LetterStatus,
    QuotaGrant,
    RecordBatch,
    ResultNote,
    StoredLetter,
)
from ergon_framework.providers.delivery.owner_locks import OWNER_LOCKS
from ergon_framework.providers.stores.key_claims import (
    KeyRecord,
    KeyStatus,
    LeaseLeft,
    after_clock_set_back,
    after_clock_set_forward,
    decide_claim,
    from_json,
    holder_of,
    status_after,
    to_json,
)
from ergon_framework.providers.stores.roll_ups import LaneChanges, first_minute, roll_up

_FRESH = LaneState()


MAX_AHEAD = 32
"""Units of one lane that are granted ahead at most."""

_new = tuple.__new__  # a NamedTuple's own constructor takes twice the time


@dataclass(slots=True, eq=False)
class MemoryLane:
    """Gates, quota and health of one lane."""

    state: LaneState = _FRESH
    account: QuotaUsage | None = None
    """The budget, in which units ahead are used: :meth:`usage` has it without them."""
    ahead: list[QuotaUsage] = field(default_factory=list)
    """Units granted ahead: for each the budget once it is used. The next is at the end."""
    ahead_count: int = 0
    """How many they were when they were granted."""
    counted_at: float = 0.0
    updated_at: float | None = None
    """None while only its quota was written."""
    hour: SlidingHour = field(default_factory=SlidingHour)
    last_success_at: float | None = None
    last_error_at: float | None = None
    last_error_code: str | None = None

    def usage(self) -> QuotaUsage | None:
        """The budget as of now."""
        account, left = self.account, len(self.ahead)
        return account if account is None or not left else _with_fewer_used(account, left)

    def take_back(self) -> QuotaUsage | None:
        """End what was granted ahead, under the lock; the budget, which no pop changes any more."""
        grants, left = self.ahead, 0
        if grants:
            self.ahead = []
            try:
                # One by one: a call that found the list before may pop from it meanwhile.
                with suppress(IndexError):
                    while True:
                        grants.pop()
                        left += 1
            finally:  # also when a time limit interrupts this thread: the units would be lost
                if left and self.account is not None:
                    self.account = _with_fewer_used(self.account, left)
        return self.account

    def grant_ahead(self, account: QuotaUsage) -> list[QuotaUsage]:
        """Grant single units of this lane's budget ahead, under the lock.

        Twice as many as the last time, as only a lane with many calls has any use of them.
        """
        window, limit, used = account
        self.ahead_count = count = min(2 * self.ahead_count + 1, MAX_AHEAD, limit - used)
        numbers = range(used + count, used, -1)
        fields = zip(repeat(window), repeat(limit), numbers, strict=False)
        grants = list(map(_new, repeat(QuotaUsage), fields))
        # Counted first, so that a thread that is interrupted between the two grants none twice.
        self.account = QuotaUsage(window, limit, used + count)
        self.ahead = grants
        return grants

    def is_known(self, now: float) -> bool:
        """Whether a summary shows it."""
        return self.updated_at is not None or self._running(now) is not None

    def is_idle(self, now: float) -> bool:
        """Whether calls would be let in just so if it were forgotten: only its past would be."""
        state = self.state
        breaker = state.breaker
        is_closed = breaker.state is CircuitState.CLOSED and not breaker.failures
        return is_closed and state.cooldown_until <= now and self._running(now) is None

    def note(self, note: LaneChanges, now: float) -> None:
        """Apply the changes of a batch. A success does not erase the last error."""
        self.updated_at = now
        for minute, rollup in note.minutes.items():
            self.hour.add(minute, rollup)
        self.hour.forget(first_minute(now))
        # A batch may come late: it must not make the last success older.
        if note.last_success_at is not None:
            known = self.last_success_at
            self.last_success_at = max(note.last_success_at, known or note.last_success_at)
        if note.last_error_at is not None:
            self.note_error(note.last_error_code, note.last_error_at)

    def note_error(self, reason_code: str | None, at: float) -> None:
        """Note a failure, unless a later one is known."""
        if self.last_error_at is None or at >= self.last_error_at:
            self.last_error_at, self.last_error_code = at, reason_code

    def health(self, key: LaneKey, now: float) -> LaneHealth:
        """The lane as a summary shows it."""
        hour = self.hour
        hour.forget(first_minute(now))
        breaker = self.state.breaker
        return LaneHealth(
            key=key,
            breaker_state=breaker.state.value,
            consecutive_failures=breaker.failures,
            open_until=breaker.open_until,
            cooldown_until=self.state.cooldown_until or None,
            success_rate_1h=hour.success_rate,
            p95_latency_ms_1h=hour.p95,
            last_error_code=self.last_error_code,
            last_error_at=self.last_error_at,
            last_success_at=self.last_success_at,
            updated_at=self.counted_at if self.updated_at is None else self.updated_at,
            account=self._running(now),
        )

    def _running(self, now: float) -> QuotaUsage | None:
        account = self.usage()
        return account if account is not None and now < account.window.end else None


def _with_fewer_used(account: QuotaUsage, units: int) -> QuotaUsage:
    return account._replace(used=account.used - units)


_id_of = attrgetter("id")


class MemoryAttempts:
    """The latest attempts; the oldest makes room for the newest."""

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self.rows: deque[AttemptRow] = deque()
        self.ids: set[str] = set()

    def add(
        self, rows: Iterable[AttemptRow], lanes: MutableMapping[LaneKey, MemoryLane], now: float
    ) -> None:
        """Keep those that are new, and let their lanes know."""
        fresh = self._unknown(list(rows))
        self.rows.extend(fresh)
        # The ids go with their rows: a set that only grows would outlive every bound.
        old = [self.rows.popleft() for _ in range(len(self.rows) - self._max_rows)]
        self.ids.difference_update(map(_id_of, old))
        for key, note in roll_up(fresh).items():
            lanes.setdefault(key, MemoryLane()).note(note, now)

    def _unknown(self, rows: list[AttemptRow]) -> list[AttemptRow]:
        """The rows that are new, each once; they are known from now on."""
        ids = set(map(_id_of, rows))
        if len(ids) == len(rows) and self.ids.isdisjoint(ids):
            self.ids |= ids
            return rows
        fresh = []  # a batch that is written again, or one that brings a row twice
        for row in rows:
            if row.id not in self.ids:
                self.ids.add(row.id)
                fresh.append(row)
        return fresh

    def of(self, correlation_id: str) -> list[AttemptRow]:
        """The attempts under one correlation id, oldest first."""
        found = [row for row in self.rows if row.correlation_id == correlation_id]
        return sorted(found, key=lambda row: (row.created_at, row.attempt_number, row.id))

    def prune(self, before: float, limit: int) -> int:
        """Drop up to ``limit`` rows older than ``before``."""
        kept: deque[AttemptRow] = deque()
        count = 0
        for row in self.rows:
            if count < limit and row.created_at < before:
                self.ids.discard(row.id)
                count += 1
            else:
                kept.append(row)
        self.rows = kept
        return count


def prune_rollups(lanes: Iterable[MemoryLane], before: float, limit: int) -> int:
    """Drop up to ``limit`` minutes older than ``before``."""
    count = 0
    for lane in lanes:
        count += lane.hour.forget(before, limit - count)
    return count


SETTLED = frozenset({LetterStatus.PUBLISHED, LetterStatus.REDRIVEN, LetterStatus.DISCARDED})
"""The states of settled letters."""


class MemoryKeys:
    """Idempotency keys: which claim holds each, and how its call ended."""

    def __init__(
        self, max_keys: int, max_bytes: int, lease_left: LeaseLeft = OWNER_LOCKS.lease_left
    ) -> None:
        self._lease_left = lease_left
        self._max_keys = max_keys
        self._max_bytes = max_bytes
        self._bytes = 0
        """Bytes of all results that are kept."""
        self.records: OrderedDict[tuple[str, str], KeyRecord] = OrderedDict()

    def claim(
        self, name: tuple[str, str], fingerprint: str, owner: str, now: float, ends: KeyExpiries
    ) -> KeyClaimResult:
        """Claim a key, unless it is claimed."""
        found = self.records.get(name)
        # Clocks are put right before anything is decided by them.
        restated = after_clock_set_back(found, now) or after_clock_set_forward(
            found, owner, now, self._lease_left
        )
        if restated is not None:
            found = restated
            self._put(name, restated)
        no = decide_claim(found, fingerprint, owner, now)
        if no is not None:
            return no
        taken_from = holder_of(found, fingerprint, owner)
        status, times = KeyStatus.IN_PROGRESS, (ends.lease, ends.memory)
        self._put(name, KeyRecord(fingerprint, status, owner, *times, written_at=now))
        self.records.move_to_end(name)
        # The oldest claim, not the oldest ending: each claim moves its key to the end.
        if len(self.records) > self._max_keys:
            self._drop(next(iter(self.records)))
        return KeyClaimResult(ClaimState.MINE, owner, ends.lease, taken_from=taken_from)

    def finish(self, name: tuple[str, str], owner: str, end: KeyRecord) -> bool:
        """Record the end under a key that is still the owner's."""
        found = self.records.get(name)
        # No longer ours: the end of an overtaken delivery must not replace what the new holder
        # writes.
        if found is None or found.owner != owner or found.status != KeyStatus.IN_PROGRESS:
            return False
        end.fingerprint, end.expires_at = found.fingerprint, found.expires_at
        self._put(name, end)
        if self._bytes > self._max_bytes:
            self._make_room()
        return True

    def prune(self, before: float, limit: int) -> int:
        """Drop up to ``limit`` keys that were to be remembered until before ``before``."""
        old = [name for name, record in self.records.items() if record.expires_at < before]
        for name in old[:limit]:
            self._drop(name)
        return len(old[:limit])

    def _put(self, name: tuple[str, str], record: KeyRecord) -> None:
        self._bytes += _size(record) - _size(self.records.get(name))
        self.records[name] = record

    def _drop(self, name: tuple[str, str]) -> None:
        self._bytes -= _size(self.records.pop(name))

    def _make_room(self) -> None:
        """Drop the oldest results. Their keys stay: no call is to be made again."""
        for record in self.records.values():
            if record.result is not None:
                self._bytes -= _size(record)
                record.result, record.error_message = None, ResultNote.CROWDED.value
            if self._bytes <= self._max_bytes:
                return


def _size(record: KeyRecord | None) -> int:
    return 0 if record is None or record.result is None else len(record.result)


@dataclass(frozen=True, slots=True)
class KeyExpiries:
    """Until when a claim holds, and until when it is remembered."""

    lease: float
    memory: float


class MemoryDeadLetters:
    """Dead letters in the order of their writing."""

    def __init__(self, max_letters: int) -> None:
        self._max_letters = max_letters
        self.letters: OrderedDict[str, StoredLetter] = OrderedDict()

    def add(self, letters: Iterable[DeadLetter]) -> None:
        """Add the new letters, or none if one of them cannot be stored."""
        fresh: dict[str, StoredLetter] = {}
        for letter in letters:
            name = letter.dead_letter_id
            if name not in self.letters and name not in fresh:
                # A copy, as from any other store: what the caller does with its own is its affair.
                payload = from_json(to_json(letter.payload, "payload of a dead letter"))
                fresh[name] = StoredLetter(replace(letter, payload=payload), LetterStatus.PENDING)
        self.letters.update(fresh)
        while len(self.letters) > self._max_letters:
            self.letters.popitem(last=False)

    def find(
        self,
        statuses: Sequence[LetterStatus],
        tenant_id: str | None,
        ids: Sequence[str],
        limit: int,
    ) -> list[StoredLetter]:
        """The newest first."""
        found = [
            stored
            for stored in self.letters.values()
            if (not statuses or stored.status in statuses)
            and (tenant_id is None or stored.letter.tenant_id == tenant_id)
            and (not ids or stored.letter.dead_letter_id in ids)
        ]
        return [_copied(each) for each in sorted(found, key=_age, reverse=True)[:limit]]

    def due(
        self, status: LetterStatus, limit: int, task_names: Collection[str] | None
    ) -> list[StoredLetter]:
        """The oldest first."""
        found = [
            stored
            for stored in self.letters.values()
            if stored.status is status
            and (task_names is None or stored.letter.task_name in task_names)
        ]
        return [_copied(each) for each in sorted(found, key=_age)[:limit]]

    def move(
        self, dead_letter_id: str, status: LetterStatus, when: Sequence[LetterStatus], now: float
    ) -> bool:
        """Change a letter's status if it is one of ``when``."""
        found = self.letters.get(dead_letter_id)
        if found is None or found.status not in when:
            return False
        moved = replace(found, status=status)
        if status is LetterStatus.PUBLISHED:
            moved = replace(moved, published_at=now)
        elif status is LetterStatus.REDRIVEN:
            moved = replace(moved, redriven_at=now)
        self.letters[dead_letter_id] = moved
        return True

    def delete(self, ids: Iterable[str]) -> int:
        """How many there were."""
        return sum(self.letters.pop(each, None) is not None for each in set(ids))

    def prune(self, before: float, limit: int) -> int:
        """Drop up to ``limit`` settled letters older than ``before``."""
        old = [
            name
            for name, stored in self.letters.items()
            if stored.status in SETTLED and stored.letter.occurred_at < before
        ]
        return self.delete(old[:limit])


def _copied(stored: StoredLetter) -> StoredLetter:
    """What a reader may change without changing what is kept."""
    letter = stored.letter
    return replace(stored, letter=replace(letter, payload=deepcopy(letter.payload)))


def _age(stored: StoredLetter) -> tuple[float, str]:
    return stored.letter.occurred_at, stored.letter.dead_letter_id


MAX_ROWS = 100_000
"""Attempts, dead letters and keys that are kept: of each the latest."""

MAX_RESULT_BYTES = 256 * 1024 * 1024
"""The most bytes of kept results. Beyond them the oldest are dropped, and their keys say so."""

MAX_LANES = 10_000
"""Lanes that are kept; beyond them, the oldest of those that hold no call back are forgotten."""


class MemoryProviderStore:
    """A store for the threads of one process. Every call is one step under one lock."""

    durability = "What was written is in this process's memory, and is lost when it ends."
    grants_ahead = True
    """Whether callers may use :meth:`units_ahead`."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        # One that reserves in its own way, or in that of a mixin, is asked for every unit.
        if cls.reserve is not MemoryProviderStore.reserve:
            cls.grants_ahead = False

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        *,
        rows: int = MAX_ROWS,
        lanes: int = MAX_LANES,
        result_bytes: int = MAX_RESULT_BYTES,
    ) -> None:
        self._clock = clock
        self.now = clock
        """The store's clock."""
        self._lock = threading.Lock()
        self._lanes: dict[LaneKey, MemoryLane] = {}
        self._max_lanes = self._crowded_at = lanes
        self._attempts = MemoryAttempts(rows)
        self._keys = MemoryKeys(rows, result_bytes)
        self._letters = MemoryDeadLetters(rows)
        self.is_closed = False
        renew_after_fork(self)

    @property
    def lane_count(self) -> int:
        """Lanes that are remembered."""
        return len(self._lanes)

    def share_tables_of(self, other: MemoryProviderStore) -> None:
        """Use the tables of another store, as two processes that open one database do."""
        self._lock, self._lanes = other._lock, other._lanes
        self._attempts, self._keys = other._attempts, other._keys
        self._letters = other._letters

    # -- gates ---------------------------------------------------------------------------------

    def lane_state(self, key: LaneKey) -> LaneState:
        """The state of a lane; a fresh one when the lane was never written."""
        lane = self._lanes.get(key)  # one look at one object: no lock is needed
        if self.is_closed:
            raise _closed()
        return _FRESH if lane is None else lane.state

    def compare_and_set(
        self, key: LaneKey, version: int, breaker: Breaker, *, failed: LaneFailure | None = None
    ) -> bool:
        """Write the circuit if the lane's version is still ``version``; whether it was."""
        with self._lock:  # without _step: this is on the way of every failure
            if self.is_closed:
                raise _closed()
            lane = self._lanes.get(key) or self._lane(key)
            if lane.state.version != version:
                return False
            lane.state = LaneState(breaker, lane.state.cooldown_until, version + 1)
            lane.updated_at = self._clock()
            if failed is not None:
                lane.note_error(*failed)
            return True

    def extend_cooldown(self, key: LaneKey, until: float) -> float:
        """Let no call pass before ``until``; returns the cooldown's end, which may be later."""
        with self._step():
            lane = self._lane(key)
            now = lane.updated_at = self._clock()
            if until > lane.state.cooldown_until:
                lane.state = structs.replace(lane.state, cooldown_until=until, written_at=now)
            return lane.state.cooldown_until

    def shorten_cooldown(self, key: LaneKey, known: float, until: float) -> bool:
        """Shorten the cooldown if it still ends at ``known``; returns whether it did."""
        with self._step():
            lane = self._lane(key)
            if lane.state.cooldown_until != known:
                return False
            now = lane.updated_at = self._clock()
            lane.state = structs.replace(lane.state, cooldown_until=until, written_at=now)
            return True

    def reserve(self, key: LaneKey, window: QuotaWindow, limit: int, units: int) -> QuotaGrant:
        """Reserve ``units`` of a window's budget, all or none."""
        with self._lock:
            if self.is_closed:
                raise _closed()
            lane = self._lanes.get(key) or self._lane(key)
            account = lane.take_back()
            if account is None:
                account = QuotaUsage(window, limit)
            elif account.window != window or account.limit != limit:
                account = account.at(window, limit, self._clock())
            after = account.reserve(units)
            if lane.updated_at is None:  # or else nobody asks when it was counted
                lane.counted_at = self._clock()
            if after is not None:
                lane.account = after
                return _new(QuotaGrant, (after, True))
            # The window is noted even if nothing was granted: a summary shows the one that refuses.
            lane.account = account
        return QuotaGrant(account, is_granted=False)

    def units_ahead(self, key: LaneKey, window: QuotaWindow, limit: int) -> list[QuotaUsage]:
        """Grant single units ahead: each call pops one from the list, without the lock.

        Whoever reserves, refunds or closes afterwards takes back what is left. To pop is atomic:
        no unit is had twice, and none is lost.
        """
        with self._lock:
            lane = self._lanes.get(key)
            account = None if lane is None else lane.take_back()
            is_same = account is not None and account.window == window and account.limit == limit
            if lane is None or account is None or not is_same or self.is_closed:
                return []
            return lane.grant_ahead(account) if account.remaining else []

    def refund(self, key: LaneKey, window: QuotaWindow, units: int) -> None:
        """Return ``units`` to the window they came from; its use stays at zero or above."""
        with self._step():
            lane = self._lanes.get(key)
            account = None if lane is None else lane.take_back()
            if lane is not None and account is not None:
                lane.account = account.refund(window, units)
                lane.counted_at = self._clock()

    # -- records -------------------------------------------------------------------------------

    def record(self, batch: RecordBatch) -> None:
        """Write attempts, their roll-ups, health and dead letters in one step."""
        with self._step():
            # Letters first: they may be refused, and then nothing of the batch is written.
            self._letters.add(batch.letters)
            now = self._clock()
            self._attempts.add(batch.attempts, self._lanes, now)
            self._forget(now)

    def health(self, tenant_id: str) -> list[LaneHealth]:
        """Every lane of a tenant, in order; rates over the last hour as of now."""
        with self._step():
            now = self._clock()
            keys = sorted(key for key in self._lanes if key.tenant_id == tenant_id)
            lanes = [(key, self._lanes[key]) for key in keys]
            return [lane.health(key, now) for key, lane in lanes if lane.is_known(now)]

    def attempts_of(self, correlation_id: str) -> list[AttemptRow]:
        """The attempts under one correlation id, oldest first."""
        with self._step():
            return self._attempts.of(correlation_id)

    def prune(self, before: float, limit: int = 10_000, *, keys_before: float | None = None) -> int:
        """Delete attempts, roll-ups, keys and settled letters older than ``before``; how many."""
        with self._step():
            count = self._attempts.prune(before, limit)
            count += prune_rollups(self._lanes.values(), before, limit - count)
            count += self._keys.prune(before if keys_before is None else keys_before, limit - count)
            return count + self._letters.prune(before, limit - count)

    # -- idempotency ---------------------------------------------------------------------------

    def claim(
        self, tenant_id: str, key: str, fingerprint: str, owner: str, lease: float, keep: float
    ) -> KeyClaimResult:
        """Claim a key for ``lease`` seconds; it is remembered for ``keep`` seconds."""
        with self._step():
            now = self._clock()
            ends = KeyExpiries(now + lease, now + max(lease, keep))
            return self._keys.claim((tenant_id, key), fingerprint, owner, now, ends)

    def finish(
        self,
        tenant_id: str,
        key: str,
        owner: str,
        result: dict[str, Any] | None,
        reason_code: str | None,
        error_message: str | None = None,
        *,
        may_run_again: bool = False,
        result_note: ResultNote | None = None,
    ) -> bool:
        """Record the end under a key that is still ours; whether it was."""
        status = status_after(reason_code, may_run_again=may_run_again)
        kept = to_json(result, "result")
        with self._step():
            now = self._clock()
            holder = "" if may_run_again else owner
            message = error_message if result_note is None else result_note.value
            end = KeyRecord("", status, holder, now, now, kept, reason_code, message, now)
            return self._keys.finish((tenant_id, key), owner, end)

    # -- dead letters --------------------------------------------------------------------------

    def letters(
        self,
        *,
        statuses: Sequence[LetterStatus] = (),
        tenant_id: str | None = None,
        ids: Sequence[str] = (),
        limit: int = 100,
    ) -> list[StoredLetter]:
        """Dead letters, the newest first."""
        with self._step():
            return self._letters.find(statuses, tenant_id, ids, limit)

    def due_letters(
        self, status: LetterStatus, limit: int = 100, *, task_names: Collection[str] | None = None
    ) -> list[StoredLetter]:
        """The oldest letters that wait for the relay, of these tasks if they are named."""
        with self._step():
            return self._letters.due(status, limit, task_names)

    def move_letter(
        self, dead_letter_id: str, status: LetterStatus, *, when: Sequence[LetterStatus]
    ) -> bool:
        """Change a letter's status if it is one of ``when``; whether it was."""
        with self._step():
            return self._letters.move(dead_letter_id, status, when, self._clock())

    def delete_letters(self, ids: Sequence[str]) -> int:
        """Delete letters for good; how many there were."""
        with self._step():
            return self._letters.delete(ids)

    def close(self) -> None:
        """Close the store. May be called twice."""
        with self._lock:
            self.is_closed = True
            for lane in self._lanes.values():
                lane.take_back()

    def renew(self) -> None:
        """Called in a forked child: the thread that held the lock does not exist there."""
        self._lock = threading.Lock()

    @contextmanager
    def _step(self) -> Iterator[None]:
        with self._lock:
            if self.is_closed:
                raise _closed()
            yield

    def _lane(self, key: LaneKey) -> MemoryLane:
        lane = self._lanes.get(key)
        if lane is None:
            self._forget(self._clock())
            lane = self._lanes[key] = MemoryLane()
        return lane

    def _forget(self, now: float) -> None:
        """Drop the oldest lanes that nothing hangs on, several at once so that it is seldom."""
        if len(self._lanes) < self._crowded_at:
            return
        spare = len(self._lanes) - self._max_lanes * 9 // 10
        idle = (key for key, lane in self._lanes.items() if lane.is_idle(now))
        for key in list(islice(idle, spare)):
            del self._lanes[key]
        # When most lanes hold calls back, the next search would find as little: it comes later.
        self._crowded_at = max(self._max_lanes, len(self._lanes) * 11 // 10)


def _closed() -> StoreUnavailableError:
    return StoreUnavailableError(
        "the memory store is closed", remedy="open a new one; what it held is gone"
    )
