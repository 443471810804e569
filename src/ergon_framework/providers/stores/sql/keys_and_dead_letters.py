"""What tasks keep in the SQL store: idempotency keys and dead letters.

A key has one holder at a time, and keeps the result of its call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from ergon_framework.errors import StoreUnavailableError
from ergon_framework.ports.providerstore import (
    ClaimState,
    DeadLetter,
    KeyClaimResult,
    LetterStatus,
    ResultNote,
    StoredLetter,
)
from ergon_framework.providers.delivery.owner_locks import OWNER_LOCKS
from ergon_framework.providers.stores.database import (
    PACKAGE,
    ProviderDatabase,
    Row,
    SqlCursor,
    TableSpec,
    from_db_time,
    from_optional_db_time,
    placeholders,
    prune_rows,
    truncated,
)
from ergon_framework.providers.stores.key_claims import (
    KeyRecord,
    LeaseLeft,
    after_clock_set_back,
    after_clock_set_forward,
    decide_claim,
    from_json,
    holder_of,
    status_after,
    to_json,
)
from ergon_framework.storage.conflicts import ConflictError, retry_conflicts
from ergon_framework.storage.sql_files import load

_KEY_SQL = load(PACKAGE, "keys.sql")
_MAX_MESSAGE = 2000  # characters of an error message that are kept
_MAX_CONFLICTS = 5
_LARGE_RESULT = 1 << 20  # characters of a result that the database needs more time for


class KeyTable:
    """Idempotency keys: which claim holds each, and how its call ended."""

    def __init__(
        self, database: ProviderDatabase, lease_left: LeaseLeft = OWNER_LOCKS.lease_left
    ) -> None:
        self._database = database
        self._lease_left = lease_left

    def claim(
        self, tenant_id: str, key: str, fingerprint: str, owner: str, lease: float, keep: float
    ) -> KeyClaimResult:
        """Claim a key for ``lease`` seconds; it is remembered for ``keep`` seconds."""
        to_db_time, now = self._database.to_db_time, self._database.now()
        values = {
            "tenant_id": tenant_id,
            "key": key,
            "fingerprint": fingerprint,
            "owner": owner,
            "lease_expires_at": to_db_time(now + lease),
            "expires_at": to_db_time(now + max(lease, keep)),
            "now": to_db_time(now),
        }

        def work(cursor: SqlCursor) -> KeyClaimResult:
            taken = self._take(cursor, values, now)
            if isinstance(taken, KeyClaimResult):
                # The lease counts from before the transaction: what it waited for a lock is not
                # added to it.
                return taken
            return KeyClaimResult(ClaimState.MINE, owner, now + lease, taken_from=taken)

        return self._database.write("claim", work)

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
        kept = to_json(result, "result")
        message = error_message if result_note is None else result_note.value
        values = {
            "tenant_id": tenant_id,
            "key": key,
            "owner": owner,
            # Freed, it has no holder: the next delivery takes it without asking whether this one is
            # alive.
            "holder": "" if may_run_again else owner,
            "status": status_after(reason_code, may_run_again=may_run_again).value,
            "result": kept,
            "reason_code": reason_code,
            "error_message": None if message is None else truncated(message, _MAX_MESSAGE),
            "now": self._database.to_db_time(self._database.now()),
        }
        is_large = kept is not None and len(kept) > _LARGE_RESULT
        return bool(
            self._database.write(
                "finish",
                lambda cursor: cursor.execute(_KEY_SQL["finish"], values),
                is_large=is_large,
            )
        )

    def prune(self, before: float, limit: int) -> int:
        """Delete keys that were to be remembered until ``before``."""
        return prune_rows(self._database, _KEY_SQL["prune"], before, limit)

    def _take(self, cursor: SqlCursor, values: dict[str, Any], now: float) -> KeyClaimResult | str:
        """Claim the key; returns the former owner if its call had no outcome yet, or why the key is
        taken.
        """
        fingerprint, owner = values["fingerprint"], values["owner"]

        # Repeated in one transaction: with READ COMMITTED each statement sees what others have
        # committed meanwhile.
        def attempt() -> KeyClaimResult | str:
            found = cursor.fetch(_KEY_SQL["find"], values)
            if not found:
                if cursor.execute(_KEY_SQL["add"], values):
                    return ""
                raise ConflictError  # another process has inserted the key meanwhile
            record = self._healed(cursor, values, _record_of(*found[0]), now)
            no = decide_claim(record, fingerprint, owner, now)
            if no is not None:
                return no
            # The holder and status that were seen are part of the condition, so that only one of
            # two takers succeeds.
            held = {**values, "holder": record.owner, "status": record.status}
            if cursor.execute(_KEY_SQL["take_over"], held):
                return holder_of(record, fingerprint, owner)
            raise ConflictError  # another process has taken the key over meanwhile

        return retry_conflicts(
            attempt,
            max_attempts=_MAX_CONFLICTS,
            give_up=lambda: StoreUnavailableError(
                "an idempotency key changes hands all the time", remedy="try again"
            ),
        )

    def _healed(
        self, cursor: SqlCursor, values: dict[str, Any], record: KeyRecord, now: float
    ) -> KeyRecord:
        """The key with times that count from now on, if the clock was set since it was written."""
        restated = None
        if after_clock_set_back(record, now) is not None:
            # A caller that waited for the database has an old ``now``: then no clock was set.
            restated = after_clock_set_back(record, self._database.now())
        if restated is None:
            restated = after_clock_set_forward(record, values["owner"], now, self._lease_left)
        if restated is None:
            return record
        to_db_time = self._database.to_db_time
        ends = {
            "holder": record.owner,
            "status": record.status,
            "lease_expires_at": to_db_time(restated.lease_expires_at),
            "expires_at": to_db_time(restated.expires_at),
            "now": to_db_time(restated.written_at),
        }
        cursor.execute(_KEY_SQL["restate"], {**values, **ends})
        return restated


def _record_of(fingerprint: str, status: str, owner: str, *rest: Any) -> KeyRecord:
    lease_expires_at, expires_at, written_at = map(from_db_time, rest[:3])
    result, reason_code, error_message = rest[3:]
    return KeyRecord(
        fingerprint,
        status,
        owner,
        lease_expires_at,
        expires_at,
        result,
        reason_code,
        error_message,
        written_at,
    )


_LETTER_SQL = load(PACKAGE, "dead_letters.sql")
_LETTERS = TableSpec(
    "provider_dead_letters",
    (
        ("dead_letter_id", "text"),
        ("tenant_id", "text"),
        ("campaign_id", "text"),
        ("task_name", "text"),
        ("provider_name", "text"),
        ("capability", "text"),
        ("operation", "text"),
        ("idempotency_key", "text"),
        ("correlation_id", "text"),
        ("reason_code", "text"),
        ("error_type", "text"),
        ("error_message", "text"),
        ("attempts", "int"),
        ("occurred_at", "timestamptz"),
        ("http_status", "int"),
        ("retryable", "boolean"),
        ("traceparent", "text"),
        ("redrive_count", "int"),
        ("payload_json", "text"),
        ("has_secrets", "boolean"),
        ("status", "text"),
    ),
)

_FIELDS = tuple(name for name, _ in _LETTERS.columns[:-1])


class DeadLetterTable:
    """Calls that were given up, and what became of them."""

    def __init__(self, database: ProviderDatabase) -> None:
        self._database = database

    def letters(
        self,
        *,
        statuses: Sequence[LetterStatus] = (),
        tenant_id: str | None = None,
        ids: Sequence[str] = (),
        limit: int = 100,
    ) -> list[StoredLetter]:
        """Dead letters, the newest first."""
        conditions, values = ["1 = 1"], {"limit": limit}
        for column, name, items in (
            ("status", "s", [status.value for status in statuses]),
            ("tenant_id", "t", [] if tenant_id is None else [tenant_id]),
            ("dead_letter_id", "i", list(ids)),
        ):
            if items:
                marks, more = placeholders(name, items)
                conditions.append(f"{column} IN ({marks})")
                values.update(more)
        return self._find(" AND ".join(conditions), "DESC", values)

    def due_letters(
        self, status: LetterStatus, limit: int = 100, *, task_names: Collection[str] | None = None
    ) -> list[StoredLetter]:
        """The oldest letters that wait for the relay, of these tasks if they are named."""
        condition = "status = :status"
        values: dict[str, Any] = {"status": status.value, "limit": limit}
        if task_names is not None:
            marks, more = placeholders("n", task_names)
            # An empty list would be no SQL; NULL is equal to nothing.
            condition += f" AND task_name IN ({marks or 'NULL'})"
            values |= more
        return self._find(condition, "ASC", values)

    def move_letter(
        self, dead_letter_id: str, status: LetterStatus, *, when: Sequence[LetterStatus]
    ) -> bool:
        """Change a letter's status if it is one of ``when``; whether it was."""
        now = self._database.to_db_time(self._database.now())
        marks, values = placeholders("s", [each.value for each in when])
        sql = _LETTER_SQL["move"].format(statuses=marks or "NULL")
        values |= {
            "id": dead_letter_id,
            "status": status.value,
            "published_at": now if status is LetterStatus.PUBLISHED else None,
            "redriven_at": now if status is LetterStatus.REDRIVEN else None,
        }
        return bool(self._database.write("letters", lambda cursor: cursor.execute(sql, values)))

    def delete_letters(self, ids: Sequence[str]) -> int:
        """Delete letters for good; how many there were."""
        if not ids:
            return 0
        marks, values = placeholders("i", set(ids))
        sql = _LETTER_SQL["delete"].format(ids=marks)
        return self._database.write("letters", lambda cursor: cursor.execute(sql, values))

    def prune(self, before: float, limit: int) -> int:
        """Delete settled letters older than ``before``."""
        return prune_rows(self._database, _LETTER_SQL["prune"], before, limit)

    def _find(self, condition: str, order: str, values: dict[str, Any]) -> list[StoredLetter]:
        sql = _LETTER_SQL["find"].format(condition=condition, order=order)
        return [
            _letter_of(row) for row in self._database.read(lambda cursor: cursor.fetch(sql, values))
        ]


def add_letters(
    cursor: SqlCursor, database: ProviderDatabase, letters: Iterable[DeadLetter]
) -> None:
    """Insert the dead letters that are not stored yet."""
    rows: dict[str, Row] = {}
    for letter in letters:
        if letter.dead_letter_id not in rows:
            rows[letter.dead_letter_id] = _row_of(letter, database)
    if rows:
        cursor.insert_missing(_LETTERS, list(rows.values()))


def _row_of(letter: DeadLetter, database: ProviderDatabase) -> Row:
    return (
        letter.dead_letter_id,
        letter.tenant_id,
        letter.campaign_id,
        truncated(letter.task_name, 255),
        letter.provider_name,
        letter.capability,
        truncated(letter.operation, 120),
        truncated(letter.idempotency_key, 255),
        truncated(letter.correlation_id, 255),
        letter.reason_code,
        truncated(letter.error_type, 255),
        truncated(letter.error_message, _MAX_MESSAGE),
        letter.attempts,
        database.to_db_time(letter.occurred_at),
        letter.http_status,
        letter.retryable,
        None if letter.traceparent is None else truncated(letter.traceparent, 255),
        letter.redrive_count,
        to_json(letter.payload, "payload of a dead letter"),
        letter.has_secrets,
        LetterStatus.PENDING.value,
    )


def _letter_of(row: Row) -> StoredLetter:
    found = dict(zip(_FIELDS, row, strict=False))
    found["payload"] = from_json(found.pop("payload_json"))
    found["occurred_at"] = from_db_time(found["occurred_at"])
    found["retryable"], found["has_secrets"] = bool(found["retryable"]), bool(found["has_secrets"])
    status, published_at, redriven_at = row[len(_FIELDS) :]
    return StoredLetter(
        DeadLetter(**found),
        LetterStatus(status),
        from_optional_db_time(published_at),
        from_optional_db_time(redriven_at),
    )
