"""What people see who look at the tables of provider calls, on every database."""

from __future__ import annotations

import pytest

from ergon_framework.core.circuit_breaker import Breaker, CircuitState
from ergon_framework.core.quota import QuotaWindow
from ergon_framework.ports.providerstore import (
    CallTotals,
    LaneCount,
    LaneKey,
    LetterStatus,
    QuotaTotals,
    RecordBatch,
)
from ergon_framework.providers.migrations.database import database_of
from ergon_framework.providers.stores.inspector import SqlProviderInspector
from tests.providers.stores.conftest import Opener
from tests.providers.stores.store_factory import LANE, START, HandClock, attempt, letter

pytestmark = pytest.mark.req("PROVIDERS:storage")
WAITING = (LetterStatus.PENDING, LetterStatus.REDRIVE)
OTHER = LaneKey("another", *LANE[1:])


@pytest.fixture
def looking(url: str) -> SqlProviderInspector:
    """The tables of the test's own database."""
    return SqlProviderInspector(database_of(url))


def test_tenants_have_called_or_have_a_quota(looking: SqlProviderInspector, opened: Opener) -> None:
    """Each once, in order, and so many."""
    store = opened()
    store.record(RecordBatch([attempt(), attempt()]))
    store.reserve(LANE, QuotaWindow(START, START + 60), 5, 1)
    store.reserve(OTHER, QuotaWindow(START, START + 60), 5, 1)
    assert looking.tenants(9) == ["another", "tenant"]
    assert looking.tenants(1) == ["another"]


def test_attempts_are_found_by_any_of_their_names(
    looking: SqlProviderInspector, opened: Opener
) -> None:
    """As they were recorded, the oldest of the latest first; a key has others below it."""
    rows = [
        attempt(correlation_id="unit", created_at=START),
        attempt(idempotency_key="unit", created_at=START + 1),
        attempt(idempotency_key="unit/2", created_at=START + 2.000001),
        attempt(idempotency_key="units", created_at=START + 3),
        attempt(idempotency_key="u%/4", created_at=START + 4),
    ]
    opened().record(RecordBatch(rows))
    assert looking.attempts_named(["unit"], 9) == rows[:3]
    assert looking.attempts_named(["unit"], 2) == rows[1:3]
    assert looking.attempts_named(["u%", "units"], 9) == rows[3:]
    assert looking.attempts_named(["nobody"], 9) == []


def test_letters_are_found_page_by_page(looking: SqlProviderInspector, opened: Opener) -> None:
    """The newest first; of one instant none is left out and none comes twice."""
    store = opened()
    store.record(RecordBatch(letters=[letter(n, occurred_at=START + n // 2) for n in range(6)]))
    ids = [each.letter.dead_letter_id for each in store.letters(limit=9)]
    store.move_letter(ids[2], LetterStatus.DISCARDED, when=WAITING)
    found, after = [], None
    while page := looking.letter_places(WAITING, None, after, 2):
        found += [place.id for place in page]
        after = page[-1]
    assert found == [*ids[:2], *ids[3:]]
    assert looking.letter_places(WAITING, "no such reason", None, 9) == []
    reason = store.letters(ids=ids[:1])[0].letter.reason_code
    assert len(looking.letter_places(WAITING, reason, None, 9)) == 5


def test_figures_are_of_all_tenants(
    looking: SqlProviderInspector, opened: Opener, clock: HandClock
) -> None:
    """What is old is left out, and so are quota windows that ended."""
    store = opened()
    failed = {"outcome": "failed", "reason_code": "timeout"}
    store.record(
        RecordBatch(
            [attempt(), attempt(OTHER, **failed), attempt(created_at=START - 600)],
            [letter(1)],
        )
    )
    store.reserve(LANE, QuotaWindow(START - 60, START), 5, 3)
    store.reserve(LANE, QuotaWindow(START, START + 60), 5, 1)
    store.reserve(OTHER, QuotaWindow(START, START + 60), 7, 2)
    found = looking.figures(clock(), WAITING)
    lane = LANE[1:]
    assert found.circuits == [LaneCount(*lane, "closed", 2)]
    assert found.failures == [LaneCount(*lane, "timeout", 1)]
    assert found.quotas == [QuotaTotals(*lane, 3, 12)]
    assert found.ended == [CallTotals(*lane, 2, 1, 0, 3)]
    assert sorted(found.reasons, key=str) == [
        LaneCount(*lane, "timeout", 1),
        LaneCount(*lane, None, 1),
    ]
    assert found.letters == 1
    assert looking.figures(clock() + 4000, WAITING).failures == []


@pytest.mark.req("PEF:C-4")
def test_a_circuit_whose_cooldown_is_over_counts_as_half_open(
    looking: SqlProviderInspector, opened: Opener
) -> None:
    """Its row changes with the next call, which may be long in coming."""
    store, lane = opened(), LANE[1:]
    assert store.compare_and_set(LANE, 0, Breaker(CircuitState.OPEN, 5, START + 30))
    assert store.compare_and_set(OTHER, 0, Breaker(CircuitState.OPEN, 5, START + 60))
    assert looking.figures(START, WAITING).circuits == [LaneCount(*lane, "open", 2)]
    found = sorted(looking.figures(START + 30, WAITING).circuits)
    assert found == [LaneCount(*lane, "half_open", 1), LaneCount(*lane, "open", 1)]
