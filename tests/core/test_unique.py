"""Who holds a unique key, and what becomes of a job that meets a holder: the whole tables."""

from __future__ import annotations

from itertools import product

import pytest

from ergon_framework.core.job import JobStatus
from ergon_framework.core.unique import OnDuplicate, UniqueRule, decide, extended, is_held

PENDING, ACTIVE, RETRYING, COMPLETED, FAILED, CANCELLED = JobStatus
EXISTING, REJECT = OnDuplicate.EXISTING, OnDuplicate.REJECT
REPLACE, EXTEND = OnDuplicate.REPLACE, OnDuplicate.EXTEND

HELD = {
    # status: only while it waits, within a period that counts completed jobs, after that period
    PENDING: (True, True, True),
    RETRYING: (True, True, True),
    ACTIVE: (False, True, True),
    COMPLETED: (False, True, False),
    FAILED: (False, False, False),
    CANCELLED: (False, False, False),
}


@pytest.mark.parametrize("status", JobStatus)
def test_who_holds_a_key(status: JobStatus) -> None:
    """By the state of the job that took it last; the end of a period is not part of it."""
    found = (
        is_held(status, (), None, 50.0),
        is_held(status, ("completed",), 60.0, 59.9),
        is_held(status, ("completed",), 60.0, 60.0),
    )
    assert found == HELD[status]


@pytest.mark.parametrize(("wanted", "holder"), list(product(OnDuplicate, JobStatus)))
def test_what_becomes_of_a_job_that_meets_a_holder(wanted: OnDuplicate, holder: JobStatus) -> None:
    """Only a job that waits is changed; whoever wants to change another one is refused."""
    is_waiting = holder in (PENDING, RETRYING)
    is_change = wanted in (REPLACE, EXTEND)
    assert decide(wanted, holder) is (REJECT if is_change and not is_waiting else wanted)


def test_an_extended_job_is_never_due_sooner() -> None:
    """Whichever of the two is later."""
    assert (extended(10.0, 5.0), extended(5.0, 10.0)) == (10.0, 10.0)


def test_a_rule_knows_its_period_and_its_ends() -> None:
    """The period is counted from when the job was added."""
    throttled = UniqueRule(("pending", "active", "completed", "failed"), 60.0)
    assert throttled.until(100.0) == 160.0
    assert throttled.ended_states == ("completed", "failed")
    assert not throttled.is_waiting_only
    assert UniqueRule().is_waiting_only
    assert UniqueRule().until(100.0) is None
