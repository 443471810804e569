"""A store that only records, and fails as a test tells it to; rows and letters to record."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, cast

from ergon_framework.errors import StoreUnavailableError
from ergon_framework.ports.providerstore import AttemptRow, DeadLetter, ProviderStore, RecordBatch

WAIT = 30.0
_numbers = itertools.count(1)


def row(
    id: str | None = None,
    *,
    number: int = 1,
    outcome: str = "success",
    reason: str | None = None,
    tenant: str = "t1",
) -> AttemptRow:
    """One attempt."""
    return AttemptRow(
        id=id or f"row-{next(_numbers)}",
        tenant_id=tenant,
        task_execution_id=None,
        provider_name="rank",
        capability="snapshot",
        operation="fetch",
        idempotency_key=None,
        correlation_id="c1",
        attempt_number=number,
        max_attempts=3,
        duration_ms=12,
        timeout_budget_ms=None,
        outcome=outcome,
        reason_code=reason,
        retryable=False,
        http_status=None,
        created_at=1_700_000_000.25,
    )


def rows(count: int, prefix: str = "r", **values: Any) -> list[AttemptRow]:
    """Final attempts with ids that can be told apart."""
    return [row(f"{prefix}{n}", **values) for n in range(count)]


def letter(id: str = "d1", payload: dict[str, Any] | None = None) -> DeadLetter:
    """One dead letter."""
    return DeadLetter(
        dead_letter_id=id,
        tenant_id="t1",
        campaign_id=None,
        task_name="rank.snapshot",
        provider_name="rank",
        capability="snapshot",
        operation="fetch",
        idempotency_key="k1",
        correlation_id="c1",
        reason_code="timeout",
        error_type="ProviderTimeoutError",
        error_message="no answer",
        attempts=3,
        occurred_at=1_700_000_000.5,
        payload=payload,
    )


def away() -> None:
    """A fault: the store cannot be reached."""
    raise StoreUnavailableError("the store is away", remedy="wait")


class ScriptedStore:
    """Records batches; ``faults`` are called first, one for each call, and ``fault`` always."""

    def __init__(self, faults: Iterable[Callable[[], None]] = ()) -> None:
        self.rows: dict[str, AttemptRow] = {}
        self.letters: dict[str, DeadLetter] = {}
        self.sizes: list[int] = []
        self.sent: Counter[str] = Counter()
        """How often each row was sent, whether it was known or not."""
        self.calls = 0
        self.faults = list(faults)
        self.fault: Callable[[], None] | None = None
        self.refuses: set[str] = set()
        """Ids that can never be written."""
        self.fault_after: Callable[[], None] | None = None
        self._lock = threading.Lock()

    def now(self) -> float:
        return time.time()

    def record(self, batch: RecordBatch) -> None:
        self.calls += 1
        if self.faults:
            self.faults.pop(0)()
        if self.fault is not None:
            self.fault()
        bad = self.refuses.intersection(each.id for each in batch.attempts)
        bad |= self.refuses.intersection(each.dead_letter_id for each in batch.letters)
        if bad:
            raise ValueError("a value is too long: secret payload")
        with self._lock:
            self.sizes.append(len(batch.attempts))
            for each in batch.attempts:
                self.sent[each.id] += 1
                self.rows.setdefault(each.id, each)
            for one in batch.letters:
                self.letters.setdefault(one.dead_letter_id, one)
        if self.fault_after is not None:
            self.fault_after()

    @property
    def as_store(self) -> ProviderStore:
        """Typed as what it stands in for."""
        return cast("ProviderStore", self)


class FakeClock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Ear:
    """Hears what is told."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, dict[str, object]]] = []

    def __call__(self, name: str, /, **fields: object) -> None:
        self.heard.append((name, fields))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.heard]
