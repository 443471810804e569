"""A store in the memory of one process: gone with it, and otherwise like any other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any

from ergon_framework.core.breaker import Breaker
from ergon_framework.core.quota import Account, Window
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.errors import StoreUnavailableError
from ergon_framework.ports.providerstore import (
    AttemptRow,
    Batch,
    Claim,
    Failed,
    LaneHealth,
    LaneKey,
    LetterStatus,
    Quota,
    ResultNote,
    Standing,
    StoredLetter,
)
from ergon_framework.providers.stores.claims import KeyRecord, status_after, to_json
from ergon_framework.providers.stores.memory_desk import Ends, Keys, Letters
from ergon_framework.providers.stores.memory_lane import Attempts, MemoryLane, prune_rollups

ROWS = 100_000
"""Attempts, dead letters and keys that are kept: of each the latest."""

RESULT_BYTES = 256 * 1024 * 1024
"""Of results under keys; beyond them, the oldest are dropped, and their keys say so."""

LANES = 10_000
"""Lanes that are kept; beyond them, the oldest of those that hold nobody back are forgotten."""

_FRESH = Standing()
_new = tuple.__new__  # a NamedTuple's own constructor takes twice the time


class MemoryProviderStore:
    """What the threads of one process share. Every call is one step under one lock."""

    durability = "What was written is in this process's memory, and is lost when it ends."

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        *,
        rows: int = ROWS,
        lanes: int = LANES,
        result_bytes: int = RESULT_BYTES,
    ) -> None:
        self._clock = clock
        self.now = clock
        """The store's clock."""
        self._lock = threading.Lock()
        self._lanes: dict[LaneKey, MemoryLane] = {}
        self._most_lanes = self._crowded_at = lanes
        self._attempts = Attempts(rows)
        self._keys = Keys(rows, result_bytes)
        self._letters = Letters(rows)
        self.is_closed = False
        renew_after_fork(self)

    # -- gates ---------------------------------------------------------------------------------

    def standing(self, key: LaneKey) -> Standing:
        """How a lane stands; a fresh one when nobody has written it."""
        lane = self._lanes.get(key)  # one look at one object: no lock is needed
        if self.is_closed:
            raise _closed()
        return _FRESH if lane is None else lane.standing

    def swap(
        self, key: LaneKey, version: int, breaker: Breaker, *, failed: Failed | None = None
    ) -> bool:
        """Write the circuit if the lane's version is still ``version``; whether it was."""
        with self._lock:  # without _step: this is on the way of every failure
            if self.is_closed:
                raise _closed()
            lane = self._lanes.get(key) or self._lane(key)
            if lane.standing.version != version:
                return False
            lane.standing = Standing(breaker, lane.standing.cooldown_until, version + 1)
            lane.updated_at = self._clock()
            if failed is not None:
                lane.note_error(*failed)
            return True

    def cool(self, key: LaneKey, until: float) -> float:
        """Nobody calls before ``until``; never shortened. The instant that holds now."""
        with self._step():
            lane = self._lane(key)
            if until > lane.standing.cooldown_until:
                lane.standing = replace(lane.standing, cooldown_until=until)
            lane.updated_at = self._clock()
            return lane.standing.cooldown_until

    def reserve(self, key: LaneKey, window: Window, limit: int, units: int) -> Quota:
        """Take ``units`` of a window's budget, or none."""
        with self._lock:
            if self.is_closed:
                raise _closed()
            lane = self._lanes.get(key) or self._lane(key)
            account = lane.account
            if account is None:
                account = Account(window, limit)
            elif account.window is not window or account.limit != limit:
                account = account.at(window, limit, self._clock())
            after = account.reserve(units)
            lane.counted_at = self._clock()
            if after is not None:
                lane.account = after
                return _new(Quota, (after, True))
            lane.account = account
        return Quota(account, is_granted=False)

    def refund(self, key: LaneKey, window: Window, units: int) -> None:
        """Give ``units`` back to the window they were taken from; never below nothing used."""
        with self._step():
            lane = self._lanes.get(key)
            if lane is not None and lane.account is not None:
                lane.account = lane.account.refund(window, units)
                lane.counted_at = self._clock()

    # -- records -------------------------------------------------------------------------------

    def record(self, batch: Batch) -> None:
        """Write attempts, their roll-ups, health and dead letters in one step."""
        with self._step():
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
    ) -> Claim:
        """Take a key for ``lease`` seconds; remember it for ``keep``."""
        with self._step():
            now = self._clock()
            ends = Ends(now + lease, now + max(lease, keep))
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
        """Let go of everything. Closing twice is fine."""
        with self._lock:
            self.is_closed = True

    def renew(self) -> None:
        """In a process that was just forked: whoever held the lock is not there any more."""
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
        spare = len(self._lanes) - self._most_lanes * 9 // 10
        idle = (key for key, lane in self._lanes.items() if lane.is_idle(now))
        for key in list(islice(idle, spare)):
            del self._lanes[key]
        # Where most of them hold somebody back, looking again at once would find no more.
        self._crowded_at = max(self._most_lanes, len(self._lanes) * 11 // 10)


def _closed() -> StoreUnavailableError:
    return StoreUnavailableError(
        "the memory store is closed", remedy="open a new one; what it held is gone"
    )
