"""Idempotency keys and dead letters of a memory store."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

from ergon_framework.ports.providerstore import (
    Claim,
    ClaimState,
    DeadLetter,
    LetterStatus,
    ResultNote,
    StoredLetter,
)
from ergon_framework.providers.stores.claims import (
    KeyRecord,
    KeyStatus,
    from_json,
    healed,
    refused,
    to_json,
)

SETTLED = frozenset({LetterStatus.PUBLISHED, LetterStatus.REDRIVEN, LetterStatus.DISCARDED})
"""Letters that wait for nothing."""


class Keys:
    """Who holds which key, and what came of the calls under them."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0
        """Of all results that are kept."""
        self._records: OrderedDict[tuple[str, str], KeyRecord] = OrderedDict()

    def claim(
        self, name: tuple[str, str], fingerprint: str, owner: str, now: float, ends: Ends
    ) -> Claim:
        """Take a key, unless it is taken."""
        restated = healed(self._records.get(name), now)
        if restated is not None:
            self._put(name, restated)
        no = refused(self._records.get(name), fingerprint, owner, now)
        if no is not None:
            return no
        status, times = KeyStatus.IN_PROGRESS, (ends.lease, ends.memory)
        self._put(name, KeyRecord(fingerprint, status, owner, *times, written_at=now))
        self._records.move_to_end(name)
        if len(self._records) > self._most:
            self._drop(next(iter(self._records)))
        return Claim(ClaimState.MINE, owner, ends.lease)

    def finish(self, name: tuple[str, str], owner: str, end: KeyRecord) -> bool:
        """Record the end under a key that is still the owner's."""
        found = self._records.get(name)
        if found is None or found.owner != owner or found.status != KeyStatus.IN_PROGRESS:
            return False
        end.fingerprint, end.expires_at = found.fingerprint, found.expires_at
        self._put(name, end)
        if self._bytes > self._most_bytes:
            self._make_room()
        return True

    def prune(self, before: float, limit: int) -> int:
        """Drop so many of those that were to be remembered until then."""
        old = [name for name, record in self._records.items() if record.expires_at < before]
        for name in old[:limit]:
            self._drop(name)
        return len(old[:limit])

    def _put(self, name: tuple[str, str], record: KeyRecord) -> None:
        self._bytes += _size(record) - _size(self._records.get(name))
        self._records[name] = record

    def _drop(self, name: tuple[str, str]) -> None:
        self._bytes -= _size(self._records.pop(name))

    def _make_room(self) -> None:
        """Drop the oldest results. Their keys stay: no call is to be made again."""
        for record in self._records.values():
            if record.result is not None:
                self._bytes -= _size(record)
                record.result, record.error_message = None, ResultNote.CROWDED.value
            if self._bytes <= self._most_bytes:
                return


def _size(record: KeyRecord | None) -> int:
    return 0 if record is None or record.result is None else len(record.result)


@dataclass(frozen=True, slots=True)
class Ends:
    """Until when a claim holds, and until when it is remembered."""

    lease: float
    memory: float


class Letters:
    """Dead letters in the order of their writing."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._letters: OrderedDict[str, StoredLetter] = OrderedDict()

    def add(self, letters: Iterable[DeadLetter]) -> None:
        """Keep those that are new; none when one of them cannot be kept."""
        fresh: dict[str, StoredLetter] = {}
        for letter in letters:
            name = letter.dead_letter_id
            if name not in self._letters and name not in fresh:
                # A copy, as from any other store: what the caller does with its own is its affair.
                payload = from_json(to_json(letter.payload, "payload of a dead letter"))
                fresh[name] = StoredLetter(replace(letter, payload=payload), LetterStatus.PENDING)
        self._letters.update(fresh)
        while len(self._letters) > self._most:
            self._letters.popitem(last=False)

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
            for stored in self._letters.values()
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
            for stored in self._letters.values()
            if stored.status is status
            and (task_names is None or stored.letter.task_name in task_names)
        ]
        return [_copied(each) for each in sorted(found, key=_age)[:limit]]

    def move(
        self, dead_letter_id: str, status: LetterStatus, when: Sequence[LetterStatus], now: float
    ) -> bool:
        """Change a letter's status if it is one of ``when``."""
        found = self._letters.get(dead_letter_id)
        if found is None or found.status not in when:
            return False
        moved = replace(found, status=status)
        if status is LetterStatus.PUBLISHED:
            moved = replace(moved, published_at=now)
        elif status is LetterStatus.REDRIVEN:
            moved = replace(moved, redriven_at=now)
        self._letters[dead_letter_id] = moved
        return True

    def delete(self, ids: Iterable[str]) -> int:
        """How many there were."""
        return sum(self._letters.pop(each, None) is not None for each in set(ids))

    def prune(self, before: float, limit: int) -> int:
        """Drop so many of those that are older and wait for nothing."""
        old = [
            name
            for name, stored in self._letters.items()
            if stored.status in SETTLED and stored.letter.occurred_at < before
        ]
        return self.delete(old[:limit])


def _copied(stored: StoredLetter) -> StoredLetter:
    """What a reader may change without changing what is kept."""
    letter = stored.letter
    return replace(stored, letter=replace(letter, payload=deepcopy(letter.payload)))


def _age(stored: StoredLetter) -> tuple[float, str]:
    return stored.letter.occurred_at, stored.letter.dead_letter_id
