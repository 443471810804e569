"""Provider stores with one realistic bug each in their keys and dead letters."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from ergon_framework.ports.providerstore import (
    ClaimState,
    KeyClaimResult,
    LetterStatus,
    RecordBatch,
    ResultNote,
    StoredLetter,
)
from ergon_framework.providers.stores.key_claims import KeyRecord, KeyStatus
from ergon_framework.testing.suites.providerstore.under_test import Clock
from tests.providers.suite.planted_circuits import Honest

# ---- keys ---------------------------------------------------------------------------------------


class Claims(Honest):
    """The record of a key within reach."""

    def found(self, tenant_id: str, key: str) -> KeyRecord | None:
        """The record of a key."""
        return self._keys.records.get((tenant_id, key))


class KeysForAllTenants(Claims):
    """Lets one tenant see another's results."""

    def claim(
        self, tenant_id: str, key: str, fingerprint: str, owner: str, lease: float, keep: float
    ) -> KeyClaimResult:
        return super().claim("", key, fingerprint, owner, lease, keep)

    def finish(self, tenant_id: str, *rest: Any, **options: Any) -> bool:
        return super().finish("", *rest, **options)


class KeysWithoutCase(Claims):
    """Takes keys that look alike for the same."""

    def claim(
        self, tenant_id: str, key: str, fingerprint: str, owner: str, lease: float, keep: float
    ) -> KeyClaimResult:
        return super().claim(tenant_id, key.lower(), fingerprint, owner, lease, keep)


class NoFingerprint(Claims):
    """Does not look at what a key was used for."""

    def claim(
        self, tenant_id: str, key: str, fingerprint: str, owner: str, lease: float, keep: float
    ) -> KeyClaimResult:
        return super().claim(tenant_id, key, "", owner, lease, keep)


class LeasesForEver(Claims):
    """Never gives up a holder that died."""

    def claim(
        self, tenant_id: str, key: str, fingerprint: str, owner: str, lease: float, keep: float
    ) -> KeyClaimResult:
        return super().claim(tenant_id, key, fingerprint, owner, 1e6 * lease, keep)


class LeasesByTheClockAlone(Claims):
    """Holds a lease that is from after now, however long that takes."""

    def claim(
        self, tenant_id: str, key: str, fingerprint: str, owner: str, lease: float, keep: float
    ) -> KeyClaimResult:
        record = self.found(tenant_id, key)
        if record is not None:
            record.written_at = 0.0
        return super().claim(tenant_id, key, fingerprint, owner, lease, keep)


class FreedByTheClockAlone(LeasesByTheClockAlone):
    """Frees a key by ending its lease now, which is not over once the clock was set back."""

    def finish(self, tenant_id: str, key: str, *rest: Any, **options: Any) -> bool:
        is_done = super().finish(tenant_id, key, *rest, **options)
        record = self.found(tenant_id, key)
        if record is not None:
            record.owner = record.owner or "nobody"
        return is_done


class LeaseStands(Claims):
    """Does not prolong the lease of a holder that asks again."""

    def claim(
        self, tenant_id: str, key: str, fingerprint: str, owner: str, lease: float, keep: float
    ) -> KeyClaimResult:
        record = self.found(tenant_id, key)
        if record is not None and record.owner == owner and record.lease_expires_at > self.now():
            return KeyClaimResult(ClaimState.MINE, owner, record.lease_expires_at)
        return super().claim(tenant_id, key, fingerprint, owner, lease, keep)


class OwnKeyIsRunning(Claims):
    """Lets the holder wait for itself."""

    def claim(
        self, tenant_id: str, key: str, fingerprint: str, owner: str, lease: float, keep: float
    ) -> KeyClaimResult:
        record = self.found(tenant_id, key)
        if record is not None and record.lease_expires_at > self.now() and record.owner == owner:
            return KeyClaimResult(ClaimState.RUNNING, lease_expires_at=record.lease_expires_at)
        return super().claim(tenant_id, key, fingerprint, owner, lease, keep)


class ClaimsWithoutALock(Claims):
    """Looks whether a key is free, and takes it later."""

    def claim(
        self, tenant_id: str, key: str, fingerprint: str, owner: str, lease: float, keep: float
    ) -> KeyClaimResult:
        record = self.found(tenant_id, key)
        if record is None:
            self.meet()
            self._keys.records.pop((tenant_id, key), None)
        return super().claim(tenant_id, key, fingerprint, owner, lease, keep)


class TakesOverWithoutALock(Claims):
    """Looks whether a lease is over, and takes the key later."""

    def claim(
        self, tenant_id: str, key: str, fingerprint: str, owner: str, lease: float, keep: float
    ) -> KeyClaimResult:
        record = self.found(tenant_id, key)
        if record is not None and record.lease_expires_at <= self.now():
            self.meet()
            self._keys.records.pop((tenant_id, key), None)
        return super().claim(tenant_id, key, fingerprint, owner, lease, keep)


class NeverForgets(Claims):
    """Keeps keys for ever."""

    def claim(
        self, tenant_id: str, key: str, fingerprint: str, owner: str, lease: float, keep: float
    ) -> KeyClaimResult:
        return super().claim(tenant_id, key, fingerprint, owner, lease, 1e9)


class ForgetsTheRunning(Claims):
    """Forgets a key though its call is under way."""

    def claim(
        self, tenant_id: str, key: str, fingerprint: str, owner: str, lease: float, keep: float
    ) -> KeyClaimResult:
        found = super().claim(tenant_id, key, fingerprint, owner, lease, keep)
        record = self.found(tenant_id, key)
        if found.state is ClaimState.MINE and record is not None:
            record.expires_at = self.now() + keep
        return found


class AnybodyFinishes(Claims):
    """Does not ask who says that a call has ended."""

    def finish(self, tenant_id: str, key: str, owner: str, *rest: Any, **options: Any) -> bool:
        record = self.found(tenant_id, key)
        holder = owner if record is None else record.owner
        return super().finish(tenant_id, key, holder, *rest, **options)


class LateIsLost(Claims):
    """Throws a success away because it was late, though nobody else came."""

    def finish(self, tenant_id: str, key: str, owner: str, *rest: Any, **options: Any) -> bool:
        record = self.found(tenant_id, key)
        if record is not None and record.lease_expires_at <= self.now():
            return False
        return super().finish(tenant_id, key, owner, *rest, **options)


class EndsAgain(Claims):
    """Lets a second end take the place of the first."""

    def finish(self, tenant_id: str, key: str, owner: str, *rest: Any, **options: Any) -> bool:
        record = self.found(tenant_id, key)
        if record is not None:
            record.status = KeyStatus.IN_PROGRESS
        return super().finish(tenant_id, key, owner, *rest, **options)


class FailureIsForgotten(Claims):
    """Runs a call again that failed for good."""

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
        again = may_run_again or reason_code is not None
        end = result, reason_code, error_message
        return super().finish(
            tenant_id, key, owner, *end, may_run_again=again, result_note=result_note
        )


class FailureIsForGood(Claims):
    """Never frees a key."""

    def finish(self, *end: Any, may_run_again: bool = False, **options: Any) -> bool:
        return super().finish(*end, **options)


class ForgetsTheNote(Claims):
    """Does not say why a result is missing."""

    def finish(self, *end: Any, result_note: ResultNote | None = None, **options: Any) -> bool:
        return super().finish(*end, **options)


class MarksLargeResults(Claims):
    """Keeps a word in the place of a large result."""

    def finish(
        self,
        tenant_id: str,
        key: str,
        owner: str,
        result: dict[str, Any] | None,
        *rest: Any,
        **options: Any,
    ) -> bool:
        kept = {"omitted": "too_large"} if len(str(result)) > 65_536 else result
        return super().finish(tenant_id, key, owner, kept, *rest, **options)


class FreedKeyIsStillOwned(Claims):
    """Frees a key, and lets its former owner end the call all the same."""

    def finish(
        self,
        tenant_id: str,
        key: str,
        owner: str,
        *rest: Any,
        may_run_again: bool = False,
        **options: Any,
    ) -> bool:
        done = super().finish(tenant_id, key, owner, *rest, may_run_again=may_run_again, **options)
        record = self.found(tenant_id, key)
        if may_run_again and record is not None:
            record.owner = owner
        return done


class KeepsReferences(Claims):
    """Hands out the very result it was given."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._results: dict[tuple[str, str], Any] = {}

    def finish(
        self, tenant_id: str, key: str, owner: str, result: Any, *rest: Any, **options: Any
    ) -> bool:
        done = super().finish(tenant_id, key, owner, result, *rest, **options)
        self._results[tenant_id, key] = result
        return done

    def claim(self, tenant_id: str, key: str, *rest: Any, **options: Any) -> KeyClaimResult:
        found = super().claim(tenant_id, key, *rest, **options)
        is_replay = found.state is ClaimState.REPLAY
        return replace(found, result=self._results[tenant_id, key]) if is_replay else found


class EmptyIsNone(Claims):
    """Has no word for an empty result."""

    def finish(
        self, tenant_id: str, key: str, owner: str, result: Any, *rest: Any, **options: Any
    ) -> bool:
        return super().finish(tenant_id, key, owner, result or None, *rest, **options)


# ---- letters ------------------------------------------------------------------------------------


class OldestFirst(Honest):
    """Lists letters the other way."""

    def letters(self, *, limit: int = 100, **wanted: Any) -> list[StoredLetter]:
        return super().letters(limit=10_000, **wanted)[::-1][:limit]


class NewestIsDueFirst(Honest):
    """Lets old letters wait for ever while there are new ones."""

    def due_letters(
        self, status: LetterStatus, limit: int = 100, *, task_names: Collection[str] | None = None
    ) -> list[StoredLetter]:
        return super().due_letters(status, 10_000, task_names=task_names)[::-1][:limit]


class IgnoresTheTask(Honest):
    """Gives one app's relay the letters of another."""

    def due_letters(
        self, status: LetterStatus, limit: int = 100, *, task_names: Collection[str] | None = None
    ) -> list[StoredLetter]:
        return super().due_letters(status, limit)


class IgnoresTheTenant(Honest):
    """Lists everybody's letters."""

    def letters(self, *, tenant_id: str | None = None, **wanted: Any) -> list[StoredLetter]:
        return super().letters(**wanted)


class AnyOfTheFilters(Honest):
    """Lists what meets one of the wishes."""

    def letters(
        self,
        *,
        statuses: Sequence[LetterStatus] = (),
        tenant_id: str | None = None,
        ids: Sequence[str] = (),
        limit: int = 100,
    ) -> list[StoredLetter]:
        if ids:
            return super().letters(ids=ids, limit=limit)
        return super().letters(statuses=statuses, tenant_id=tenant_id, limit=limit)


class LimitsBeforeItFilters(Honest):
    """Cuts the list, and then looks who is on it."""

    def due_letters(
        self, status: LetterStatus, limit: int = 100, *, task_names: Collection[str] | None = None
    ) -> list[StoredLetter]:
        first = sorted(self.letters(limit=10_000), key=lambda one: one.letter.occurred_at)[:limit]
        return [one for one in first if one.status is status]


class PendingAgain(Honest):
    """Lets a letter that is written again wait once more."""

    def record(self, batch: RecordBatch) -> None:
        for letter in batch.letters:
            self._letters.letters.pop(letter.dead_letter_id, None)
        super().record(batch)


class NullPayloadIsEmpty(Honest):
    """Has no word for a payload that is not there."""

    def record(self, batch: RecordBatch) -> None:
        letters = [replace(each, payload=each.payload or {}) for each in batch.letters]
        super().record(RecordBatch(batch.attempts, letters))


class ForgetsTheTrace(Honest):
    """Has no column for the trace."""

    def record(self, batch: RecordBatch) -> None:
        letters = [replace(each, traceparent=None) for each in batch.letters]
        super().record(RecordBatch(batch.attempts, letters))


class GivesAwayItsOwn(Honest):
    """Lets readers write into what is kept."""

    def letters(self, **wanted: Any) -> list[StoredLetter]:
        found = super().letters(**wanted)
        return [self._letters.letters[one.letter.dead_letter_id] for one in found]


class MovesFromAnywhere(Honest):
    """Does not ask where a letter is."""

    def move_letter(
        self, dead_letter_id: str, status: LetterStatus, *, when: Sequence[LetterStatus]
    ) -> bool:
        return super().move_letter(dead_letter_id, status, when=list(LetterStatus))


class MovesWithoutALock(Honest):
    """Looks where a letter is, and moves it later."""

    def move_letter(
        self, dead_letter_id: str, status: LetterStatus, *, when: Sequence[LetterStatus]
    ) -> bool:
        found = self.letters(ids=[dead_letter_id])
        if not found or found[0].status not in when:
            return False
        self.meet()
        return super().move_letter(dead_letter_id, status, when=list(LetterStatus))


class ForgetsThePublishing(Honest):
    """Dates the last move alone."""

    def move_letter(
        self, dead_letter_id: str, status: LetterStatus, *, when: Sequence[LetterStatus]
    ) -> bool:
        done = super().move_letter(dead_letter_id, status, when=when)
        stored = self._letters.letters.get(dead_letter_id)
        if stored is not None and status is LetterStatus.REDRIVEN:
            self._letters.letters[dead_letter_id] = replace(stored, published_at=None)
        return done


class CountsWhatWasAsked(Honest):
    """Says how many were to be deleted."""

    def delete_letters(self, ids: Sequence[str]) -> int:
        super().delete_letters(ids)
        return len(ids)


class DeletesOnPaper(Honest):
    """Hides a letter from the list, and publishes it all the same."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._hidden: set[str] = set()

    def letters(self, **wanted: Any) -> list[StoredLetter]:
        found = super().letters(**wanted)
        return [one for one in found if one.letter.dead_letter_id not in self._hidden]

    def delete_letters(self, ids: Sequence[str]) -> int:
        gone = {one.letter.dead_letter_id for one in self.letters(ids=ids)} if ids else set()
        self._hidden |= gone
        return len(gone)
