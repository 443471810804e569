"""The store in a database, on SQLite and on PostgreSQL alike: one object that has four parts.

The port is flat, so every method is written out here and passed on to the part that has its tables.
``MemoryProviderStore`` has the same signatures and no code in common: it takes one lock and decides
by itself, as the oracle that this store is compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from ergon_framework.core.circuit_breaker import Breaker
from ergon_framework.core.quota import QuotaWindow
from ergon_framework.ports.providerstore import (
    AttemptRow,
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
from ergon_framework.providers.stores.database import ProviderDatabase
from ergon_framework.providers.stores.sql.attempts import MAX_REMEMBERED_LANES, AttemptTables
from ergon_framework.providers.stores.sql.gates import GateTables
from ergon_framework.providers.stores.sql.keys_and_dead_letters import DeadLetterTable, KeyTable


class SqlProviderStore:
    """What the processes that use one database share."""

    durability = "What was recorded, claimed or finished is on the database's disk."

    def __init__(
        self, database: ProviderDatabase, *, max_remembered_lanes: int = MAX_REMEMBERED_LANES
    ) -> None:
        self.database = database
        self.now = database.now
        """The database's clock, which all processes share."""
        self.gate_tables = GateTables(database)
        self.attempt_tables = AttemptTables(database, max_remembered_lanes=max_remembered_lanes)
        self.key_table = KeyTable(database)
        self.letter_table = DeadLetterTable(database)
        self.at_close: list[Callable[[], object]] = []
        """Called before the store closes, so that a recorder can hand over its last rows."""
        self.name = database.name
        """The name shown to users, without a password."""

    @property
    def path(self) -> Path | None:
        """The file that the tables are in; None when they are on a server."""
        return self.database.path

    @property
    def is_closed(self) -> bool:
        """Whether the store takes no more calls."""
        return self.database.is_closed

    def close(self) -> None:
        """Call the hooks, then close the database. Closing twice is fine."""
        while self.at_close:
            self.at_close.pop()()
        self.database.close()

    # -- lanes ---------------------------------------------------------------------------------

    def lane_state(self, key: LaneKey) -> LaneState:
        """The state of a lane; a fresh one when the lane was never written."""
        return self.gate_tables.lane_state(key)

    def compare_and_set(
        self, key: LaneKey, version: int, breaker: Breaker, *, failed: LaneFailure | None = None
    ) -> bool:
        """Write the circuit if the lane's version is still ``version``; whether it was."""
        return self.gate_tables.compare_and_set(key, version, breaker, failed=failed)

    def extend_cooldown(self, key: LaneKey, until: float) -> float:
        """Let no call pass before ``until``; returns the cooldown's end, which may be later."""
        return self.gate_tables.extend_cooldown(key, until)

    def shorten_cooldown(self, key: LaneKey, known: float, until: float) -> bool:
        """Shorten the cooldown if it still ends at ``known``; returns whether it did."""
        return self.gate_tables.shorten_cooldown(key, known, until)

    def reserve(self, key: LaneKey, window: QuotaWindow, limit: int, units: int) -> QuotaGrant:
        """Reserve ``units`` of a window's budget atomically, all or none."""
        return self.gate_tables.reserve(key, window, limit, units)

    def refund(self, key: LaneKey, window: QuotaWindow, units: int) -> None:
        """Return ``units`` to the window they came from; its use stays at zero or above."""
        self.gate_tables.refund(key, window, units)

    # -- attempts ------------------------------------------------------------------------------

    def record(self, batch: RecordBatch) -> None:
        """Write attempts, their roll-ups, health and dead letters in one transaction."""
        self.attempt_tables.record(batch)

    def settle(self) -> None:
        """Bring the rates in the rows of lanes up to date with what this process recorded."""
        self.attempt_tables.settle()

    def health(self, tenant_id: str) -> list[LaneHealth]:
        """Every lane of a tenant, in order; rates over the last hour as of now."""
        return self.attempt_tables.health(tenant_id)

    def attempts_of(self, correlation_id: str) -> list[AttemptRow]:
        """The attempts under one correlation id, oldest first."""
        return self.attempt_tables.attempts_of(correlation_id)

    def prune(self, before: float, limit: int = 10_000, *, keys_before: float | None = None) -> int:
        """Delete attempts, roll-ups, keys and settled letters older than ``before``; how many.

        Quota windows that ended before it go too, but never the latest of a lane.
        """
        count = self.attempt_tables.prune(before, limit)
        count += self.key_table.prune(before if keys_before is None else keys_before, limit - count)
        count += self.letter_table.prune(before, limit - count)
        return count + self.gate_tables.prune(before, limit - count)

    # -- idempotency keys ----------------------------------------------------------------------

    def claim(
        self, tenant_id: str, key: str, fingerprint: str, owner: str, lease: float, keep: float
    ) -> KeyClaimResult:
        """Claim a key for ``lease`` seconds; it is remembered for ``keep`` seconds."""
        return self.key_table.claim(tenant_id, key, fingerprint, owner, lease, keep)

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
        return self.key_table.finish(
            tenant_id,
            key,
            owner,
            result,
            reason_code,
            error_message,
            may_run_again=may_run_again,
            result_note=result_note,
        )

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
        return self.letter_table.letters(
            statuses=statuses, tenant_id=tenant_id, ids=ids, limit=limit
        )

    def due_letters(
        self, status: LetterStatus, limit: int = 100, *, task_names: Collection[str] | None = None
    ) -> list[StoredLetter]:
        """The oldest letters that wait for the relay, of these tasks if they are named."""
        return self.letter_table.due_letters(status, limit, task_names=task_names)

    def move_letter(
        self, dead_letter_id: str, status: LetterStatus, *, when: Sequence[LetterStatus]
    ) -> bool:
        """Change a letter's status if it is one of ``when``; whether it was."""
        return self.letter_table.move_letter(dead_letter_id, status, when=when)

    def delete_letters(self, ids: Sequence[str]) -> int:
        """Delete letters for good; how many there were."""
        return self.letter_table.delete_letters(ids)
