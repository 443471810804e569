"""Checks of attempts on record: each once, whole, in order, and together with its batch."""

from __future__ import annotations

from ergon_framework.ports.providerstore import AttemptRow
from ergon_framework.testing.suites.framework import Check, register
from ergon_framework.testing.suites.providerstore.under_test import (
    DEAD,
    FAILED,
    LANE,
    OTHER_TENANT,
    RETRY,
    SUCCESS,
    ProviderStoreSubject,
    same,
)

CHECKS: list[Check[ProviderStoreSubject]] = []
check = register(CHECKS)


@check()
def attempt_comes_back_whole(s: ProviderStoreSubject) -> None:
    """Every field of an attempt comes back as it was written, those that are unset as unset."""
    full = AttemptRow(
        id="0b0f7d9e-1111-4c3c-8a55-6f6c5d4e3b2a",
        tenant_id=LANE.tenant_id,
        task_execution_id="5f1e2d3c-2222-4b4b-9c9c-0a1b2c3d4e5f",
        provider_name=LANE.provider_name,
        capability=LANE.capability,
        operation="fetch “all” of it: naïve, 漢字, 🍵",
        idempotency_key="key-1",
        correlation_id="whole",
        attempt_number=2,
        max_attempts=5,
        duration_ms=123_456,
        timeout_budget_ms=30_000,
        outcome=DEAD.value,
        reason_code="dependency_unavailable",
        retryable=True,
        http_status=503,
        created_at=s.start + 0.25,
        campaign_id="campaign-9",
    )
    bare = s.attempt(correlation_id="bare")
    s.record(full, bare)
    same(s.store.attempts_of("whole"), [full], "the one with all fields")
    same(s.store.attempts_of("bare"), [bare], "the one with few")


@check()
def attempts_come_in_order(s: ProviderStoreSubject) -> None:
    """The oldest attempt comes first, in whatever order they were written."""
    rows = [
        s.attempt(RETRY, correlation_id="c", attempt_number=n, created_at=s.start + n)
        for n in range(1, 7)
    ]
    s.record(rows[3], rows[0])
    s.record(rows[5], rows[1], rows[4])
    s.record(rows[2])
    same(s.store.attempts_of("c"), rows, "the attempts")


@check()
def attempts_of_one_instant(s: ProviderStoreSubject) -> None:
    """Attempts of the same instant come in the order of their numbers."""
    rows = [s.attempt(RETRY, correlation_id="c", attempt_number=n) for n in (11, 3, 2, 10, 1)]
    s.record(*rows)
    found = [row.attempt_number for row in s.store.attempts_of("c")]
    same(found, [1, 2, 3, 10, 11], "the numbers")


@check()
def attempts_by_correlation(s: ProviderStoreSubject) -> None:
    """The attempts under one correlation id are those, of whatever lane, and no others."""
    here = s.attempt(correlation_id="c")
    there = s.attempt(
        correlation_id="c",
        created_at=s.start + 1.0,
        key=LANE._replace(tenant_id=OTHER_TENANT, provider_name="search"),
    )
    s.record(here, s.attempt(correlation_id="C"), s.attempt(correlation_id="c "), there)
    same(s.store.attempts_of("c"), [here, there], "the attempts")
    same(s.store.attempts_of("unheard of"), [], "those under an unknown id")


@check()
def batch_may_be_written_again(s: ProviderStoreSubject) -> None:
    """A batch that is written twice is there once, and counts once in the rates."""
    rows = [s.attempt(correlation_id="c"), s.attempt(FAILED, correlation_id="c", duration_ms=900)]
    s.record(*rows)
    once = s.lane()
    for _ in range(3):
        s.record(*rows)
    same(s.store.attempts_of("c"), rows, "the attempts")
    s.ran(SUCCESS)
    same(s.rates(), (2 / 3, 900), "the rates after one more")
    same((once.success_rate_1h, once.p95_latency_ms_1h), (0.5, 900), "the rates after one writing")


@check()
def batch_that_is_partly_there(s: ProviderStoreSubject) -> None:
    """Of a batch that is partly there, the rest is written and counted."""
    rows = [s.attempt(outcome, correlation_id="c") for outcome in (SUCCESS, SUCCESS, FAILED)]
    s.record(rows[0], rows[2])
    s.record(*rows, s.attempt(FAILED, correlation_id="d"))
    same(s.store.attempts_of("c"), rows, "the attempts")
    same(s.rates()[0], 0.5, "the success rate")


@check()
def row_twice_in_a_batch(s: ProviderStoreSubject) -> None:
    """A row that is in its batch twice is there once, and counts once."""
    row = s.attempt(FAILED, correlation_id="c")
    s.record(row, s.attempt(), row, row)
    same(s.store.attempts_of("c"), [row], "the attempts")
    same(s.rates()[0], 0.5, "the success rate")


@check()
def row_is_never_changed(s: ProviderStoreSubject) -> None:
    """Another row of an id that is there changes neither the first row nor the rates."""
    row = s.attempt(correlation_id="c")
    s.record(row)
    s.record(row._replace(outcome=FAILED.value, reason_code="timeout", duration_ms=5000))
    same(s.store.attempts_of("c"), [row], "the attempts")
    same(s.rates(), (1.0, 20), "the rates")
    same(s.lane().last_error_at, None, "last_error_at")


@check()
def empty_batch_is_fine(s: ProviderStoreSubject) -> None:
    """A batch of nothing writes nothing."""
    s.record()
    same((s.store.health(LANE.tenant_id), s.store.letters()), ([], []), "summary and letters")


@check()
def large_batch(s: ProviderStoreSubject) -> None:
    """Thousands of attempts and many letters go into one batch, for several lanes."""
    lanes = [LANE._replace(capability=f"lane-{n}") for n in range(5)]
    rows = [
        s.attempt(FAILED if n % 4 else SUCCESS, key=lanes[n % 5], correlation_id=f"c-{n % 5}")
        for n in range(3000)
    ]
    s.record(*rows, letters=[s.letter(n) for n in range(60)])
    same([len(s.store.attempts_of(f"c-{n}")) for n in range(5)], [600] * 5, "attempts by lane")
    same([s.rates(lane)[0] for lane in lanes], [0.25] * 5, "success rates")
    same(len(s.store.letters(limit=1000)), 60, "letters")


@check()
def letters_and_attempts_together(s: ProviderStoreSubject) -> None:
    """The letters of a batch are there when its attempts are."""
    row = s.attempt(DEAD, correlation_id="c")
    s.record(row, letters=[s.letter(1), s.letter(2)])
    same(s.store.attempts_of("c"), [row], "the attempts")
    same(s.stored(1).letter, s.letter(1), "the first letter")
    same(s.stored(2).letter, s.letter(2), "the second letter")


@check()
def bad_batch_leaves_nothing(s: ProviderStoreSubject) -> None:
    """Of a batch that cannot be kept as a whole, nothing is: no attempt, no rate, no letter."""
    bad = s.letter(2, payload={"what": object()})
    row = s.attempt(DEAD, correlation_id="c")
    s.must_fail(lambda: s.record(row, letters=[s.letter(1), bad]), "a payload that is no JSON")
    same(s.store.letters(), [], "the letters")
    same(s.store.attempts_of("c"), [], "the attempts")
    same(s.store.health(LANE.tenant_id), [], "the summary")
    s.record(row, letters=[s.letter(1)])
    same(s.store.attempts_of("c"), [row], "the attempts, written again without it")


@check()
def odd_texts_hold_up_nobody(s: ProviderStoreSubject) -> None:
    """A text that is too long, or has a NUL in it, does not keep its batch from being written."""
    odd = s.attempt(
        correlation_id="odd", operation="o" * 500, campaign_id="null\0", created_at=s.start
    )
    s.record(odd, s.attempt(correlation_id="c"), letters=[s.letter(1, error_message="no\0" * 3000)])
    same(len(s.store.attempts_of("c")), 1, "attempts beside the odd one")
    same(s.stored(1).letter.error_message[:2], "no", "how the message of the letter begins")
    found = s.store.attempts_of("odd")
    same([row.operation[:99] for row in found], ["o" * 99], "how the operation begins")
