"""The life of a job: which event may happen when, and what each makes of it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.job import (
    ALLOWED,
    DELIVERIES_SPENT,
    EXPIRED_RETRYING,
    JOB_RETRIES,
    WHY_ENDED,
    CancelRequested,
    Discarded,
    EditRequested,
    ExecutorMissing,
    Expired,
    Failed,
    HandlerMissing,
    HeldBack,
    InvalidTransition,
    JobEvent,
    JobRule,
    JobSnapshot,
    JobStatus,
    LeaseExpired,
    ProcessDied,
    Released,
    RequeueRequested,
    RescheduleRequested,
    RunRequested,
    Signalled,
    Succeeded,
    Unread,
    next_transition,
    route,
)
from ergon_framework.core.retry import Backoff, RetryRule

ACTIVE, PENDING, RETRYING = JobStatus.ACTIVE, JobStatus.PENDING, JobStatus.RETRYING
COMPLETED, FAILED, CANCELLED = JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED
RULE = JobRule(RetryRule(3, Backoff(10.0), JOB_RETRIES), max_deliveries=5, held_delay=30.0)
RUNNING = JobSnapshot(ACTIVE, attempts=0, deliveries=1)
FLAKY = Failure(Kind.TRANSIENT, "flaky", "it did not answer")

EVENTS: list[JobEvent] = [
    Succeeded(),
    Signalled(),
    Discarded("pointless"),
    *(Failed(Failure(kind, "x"), written) for kind in Kind for written in (True, False)),
    *(HeldBack(Failure(Kind.HELD, "gate", retry_after=after)) for after in (None, -1.0, 5.0)),
    *(ProcessDied(taken, alone) for taken in (True, False) for alone in (True, False)),
    Unread(3.0),
    Released(),
    HandlerMissing("x", "resize"),
    LeaseExpired(),
    Expired(),
    ExecutorMissing("x"),
    ExecutorMissing("x", "resize"),
    CancelRequested(),
    RunRequested(),
    RescheduleRequested(7.5),
    RequeueRequested(),
    EditRequested("new"),
]


# ---- the table ----------------------------------------------------------------------------------


@pytest.mark.req("JOBS:store")
def test_the_table_knows_every_event() -> None:
    """An event that is not in the table could not be refused."""
    assert set(ALLOWED) == set(get_args(JobEvent)) == {type(seen) for seen in EVENTS}


def test_the_table_by_hand() -> None:
    """A second writing of the table, so that no edit of the first one is an accident."""
    by_hand = {
        PENDING: {
            *(Signalled, Expired, ExecutorMissing, CancelRequested, RunRequested),
            RescheduleRequested,
        },
        RETRYING: {
            *(Signalled, Expired, ExecutorMissing, CancelRequested, RunRequested),
            RescheduleRequested,
        },
        ACTIVE: {
            Succeeded,
            Discarded,
            Failed,
            HeldBack,
            ProcessDied,
            Unread,
            Released,
            HandlerMissing,
            LeaseExpired,
        },
        COMPLETED: set(),
        FAILED: {RunRequested, RequeueRequested, EditRequested},
        CANCELLED: {RunRequested},
    }
    found = {status: {seen for seen, at in ALLOWED.items() if status in at} for status in JobStatus}
    assert found == by_hand


def test_a_discarded_job_has_completed_and_says_why() -> None:
    """It counts as an attempt like any other end, and no failure is told."""
    moved = next_transition(JobSnapshot(ACTIVE, attempts=1), Discarded("pointless"), RULE)
    assert (moved.status, moved.event, moved.why) == (COMPLETED, "discarded", "discarded")
    assert (moved.attempts, moved.failure) == (2, None)


@pytest.mark.parametrize("status", JobStatus)
@pytest.mark.parametrize("seen", EVENTS, ids=lambda seen: type(seen).__name__)
def test_every_event_in_every_state(seen: JobEvent, status: JobStatus) -> None:
    """Whatever happens in whatever state is either applied or refused by name."""
    for attempts, deliveries, is_charged in itertools.product((0, 1, 2), (1, 5), (False, True)):
        tally = JobSnapshot(status, attempts, deliveries, 0, is_charged)
        if status in ALLOWED[type(seen)]:
            assert next_transition(tally, seen, RULE).status is not ACTIVE
        else:
            with pytest.raises(InvalidTransition, match=rf"{type(seen).__name__} .* {status}"):
                next_transition(tally, seen, RULE)


@pytest.mark.req("JOBS:operator")
@pytest.mark.parametrize("status", [COMPLETED, FAILED, CANCELLED])
def test_only_an_operator_brings_a_job_back(status: JobStatus) -> None:
    """No worker, rescuer or clock moves a job that has ended; a completed one nobody does."""
    leaving = {seen for seen, states in ALLOWED.items() if status in states}
    assert leaving <= {RunRequested, RequeueRequested, EditRequested}
    assert status.is_final


@pytest.mark.parametrize("status", [PENDING, ACTIVE, RETRYING])
def test_what_has_not_ended_is_not_final(status: JobStatus) -> None:
    """The other three states are not final."""
    assert not status.is_final


@pytest.mark.req("JOBS:operator")
def test_running_jobs_cannot_be_cancelled() -> None:
    """Once execution has started, its outcome is what counts."""
    assert ACTIVE not in ALLOWED[CancelRequested]


# ---- what each event makes of a job -------------------------------------------------------------


def test_success() -> None:
    """A success ends the job and counts as an attempt, also one that was charged before."""
    for is_charged in (False, True):
        move = next_transition(JobSnapshot(ACTIVE, 1, 2, 0, is_charged), Succeeded(), RULE)
        assert (move.status, move.event, move.attempts) == (COMPLETED, "completed", 2)


def test_a_failure_that_may_pass() -> None:
    """It is charged, and tried again after the backoff of its attempt."""
    first = next_transition(RUNNING, Failed(FLAKY), RULE)
    assert (first.status, first.event, first.attempts, first.delay) == (RETRYING, "failed", 1, 10.0)
    assert (first.failure, first.why) == (FLAKY, "flaky")
    second = next_transition(JobSnapshot(ACTIVE, 1, 2), Failed(FLAKY), RULE)
    assert (second.attempts, second.delay) == (2, 20.0)


def test_the_last_attempt() -> None:
    """A failure of the last attempt ends the job, with that attempt charged."""
    move = next_transition(JobSnapshot(ACTIVE, 2, 3), Failed(FLAKY), RULE)
    assert (move.status, move.attempts, move.why) == (FAILED, 3, "attempts_spent")
    assert (move.failure, move.delay) == (FLAKY, 0.0)


@pytest.mark.parametrize("kind", [Kind.REJECTED, Kind.CANCELLED, Kind.HELD])
def test_a_failure_that_cannot_pass(kind: Kind) -> None:
    """A refusal is dead-lettered at the first attempt."""
    move = next_transition(RUNNING, Failed(Failure(kind, "no")), RULE)
    assert (move.status, move.attempts, move.why) == (FAILED, 1, "not_retryable")


def test_a_failure_before_the_request_was_written() -> None:
    """What never reached an executor is tried again and not charged."""
    move = next_transition(RUNNING, Failed(FLAKY, is_written=False), RULE)
    assert (move.status, move.attempts, move.excused) == (RETRYING, 0, 0)


@pytest.mark.req("JOBS:orchestrator")
def test_held() -> None:
    """A held job is parked, as long as the gate said or the rule has it, and not charged."""
    for after, delay in ((90.0, 90.0), (None, 30.0), (-5.0, 0.1)):
        move = next_transition(
            RUNNING, HeldBack(Failure(Kind.HELD, "quota", retry_after=after)), RULE
        )
        assert (move.status, move.event, move.delay, move.why) == (PENDING, "held", delay, "quota")
        assert (move.attempts, move.excused) == (0, 1)


def test_a_gate_cannot_park_a_job_for_ever() -> None:
    """What a gate asks for is capped like any other retry_after."""
    rule = JobRule(RetryRule(3, max_retry_after=60.0), held_delay=600.0)
    for after in (1e12, None):
        assert (
            next_transition(
                RUNNING, HeldBack(Failure(Kind.HELD, "g", retry_after=after)), rule
            ).delay
            == 60.0
        )


@pytest.mark.parametrize(("attempts", "status"), [(0, PENDING), (2, RETRYING)])
def test_released(attempts: int, status: JobStatus) -> None:
    """A job that was given back stands where it stood, with its delivery excused."""
    move = next_transition(JobSnapshot(ACTIVE, attempts, 3, 1), Released(), RULE)
    assert (move.status, move.event, move.attempts, move.excused) == (
        status,
        "released",
        attempts,
        2,
    )
    assert (move.delay, move.failure) == (0.0, None)


@pytest.mark.parametrize(("executor", "lane"), [("", "#resize"), ("node", "node#resize")])
def test_a_missing_handler(executor: str, lane: str) -> None:
    """The job is given back without a charge, and waits in the lane of its handler."""
    snapshot = JobSnapshot(ACTIVE, 1, 5, 1)
    move = next_transition(snapshot, HandlerMissing(executor, "resize"), RULE)
    assert (move.status, move.event, move.attempts, move.excused) == (RETRYING, "released", 1, 2)
    assert (move.delay, move.failure, move.why) == (0.0, None, "handler_missing")
    assert move.lane == lane
    assert route(move.lane) == (executor, "resize")
    cancelling = replace(snapshot, is_cancelling=True)
    stopped = next_transition(cancelling, HandlerMissing(executor, "resize"), RULE)
    assert (stopped.status, stopped.lane) == (CANCELLED, "")


@pytest.mark.req("X7")
def test_a_process_that_died_before_it_read_the_request() -> None:
    """An executor that dies at its start costs the job nothing."""
    move = next_transition(RUNNING, ProcessDied(was_read=False), RULE)
    assert (move.status, move.attempts, move.excused) == (PENDING, 0, 1)
    assert (move.event, move.why) == ("released", "executor_not_up")


@pytest.mark.req("X7")
@pytest.mark.parametrize(("attempts", "status"), [(0, PENDING), (1, RETRYING), (2, RETRYING)])
def test_a_request_that_was_not_read_in_its_time(attempts: int, status: JobStatus) -> None:
    """Whatever the process was busy with, the job had no attempt: it keeps those it has."""
    for rule in (RULE, replace(RULE, retry=RetryRule(3, on=frozenset()))):
        move = next_transition(JobSnapshot(ACTIVE, attempts, 3), Unread(3.0), rule)
        assert (move.status, move.attempts, move.excused) == (status, attempts, 0)
        assert (move.event, move.why, move.delay) == ("released", "request_unread", 0.0)
        assert move.failure is not None
        assert (move.failure.kind, move.failure.code) == (Kind.TIMEOUT, "request_unread")


@pytest.mark.req("X9")
def test_a_process_that_died_with_one_job() -> None:
    """With one request in flight, a crash charges the job that was running."""
    move = next_transition(RUNNING, ProcessDied(detail="killed by signal 11"), RULE)
    assert (move.status, move.event, move.attempts, move.delay) == (RETRYING, "lost", 1, 10.0)
    assert move.failure == Failure(Kind.LOST, "executor_died", "killed by signal 11")


@pytest.mark.req("X9")
def test_a_process_that_died_with_several_jobs() -> None:
    """With several in flight none is charged, and each is tried again alone."""
    move = next_transition(RUNNING, ProcessDied(was_alone=False), RULE)
    assert (move.status, move.attempts, move.excused, move.is_solo) == (PENDING, 0, 0, True)
    assert move.delay == 0.0


@pytest.mark.req("X13")
def test_an_expired_lease() -> None:
    """A rescued job is due at once, and pays for an attempt only if a request was written."""
    written = next_transition(JobSnapshot(ACTIVE, 0, 1, 0, is_charged=True), LeaseExpired(), RULE)
    assert (written.status, written.attempts, written.delay) == (RETRYING, 1, 0.0)
    unwritten = next_transition(RUNNING, LeaseExpired(), RULE)
    assert (unwritten.status, unwritten.attempts, unwritten.excused) == (PENDING, 0, 0)
    for move in (written, unwritten):
        assert (move.event, move.why) == ("lost", "lease_expired")


@pytest.mark.parametrize(
    ("seen", "is_charged"),
    [
        (LeaseExpired(), True),
        (LeaseExpired(), False),
        (ProcessDied(), True),
        (ProcessDied(was_alone=False), False),
    ],
)
def test_a_job_that_must_not_run_twice_ends_when_it_is_lost(
    seen: JobEvent, is_charged: bool
) -> None:
    """Nobody knows whether a delivery without an outcome ran the job: it is left to an operator."""
    rule = replace(RULE, retry=replace(RULE.retry, on=JOB_RETRIES - {Kind.LOST}))
    move = next_transition(JobSnapshot(ACTIVE, 0, 1, 0, is_charged=is_charged), seen, rule)
    assert (move.status, move.event, move.why) == (FAILED, "lost", "not_retryable")
    assert move.attempts == is_charged


def test_a_job_that_must_not_run_twice_goes_back_when_it_was_not_begun() -> None:
    """A request that no process read, and a job given back, cannot have run."""
    rule = replace(RULE, retry=replace(RULE.retry, on=JOB_RETRIES - {Kind.LOST}))
    for seen in (ProcessDied(was_read=False), Released(), Unread(3.0)):
        assert next_transition(RUNNING, seen, rule).status is PENDING


@pytest.mark.req("X11")
@pytest.mark.parametrize(
    "seen",
    [LeaseExpired(), ProcessDied(was_alone=False), Failed(FLAKY, is_written=False), Unread(3.0)],
    ids=["rescued", "shared a process", "never written", "never read"],
)
def test_a_poison_job_ends(seen: JobEvent) -> None:
    """A job that is delivered again and again without an outcome is dead-lettered."""
    assert next_transition(JobSnapshot(ACTIVE, 0, 4), seen, RULE).status is not FAILED
    move = next_transition(JobSnapshot(ACTIVE, 0, 5), seen, RULE)
    assert (move.status, move.why, move.attempts) == (FAILED, DELIVERIES_SPENT, 0)
    assert next_transition(JobSnapshot(ACTIVE, 0, 5, excused=1), seen, RULE).status is not FAILED


def test_outdated() -> None:
    """A job that was not started in time is dead-lettered with that reason."""
    move = next_transition(JobSnapshot(PENDING), Expired(), RULE)
    assert (move.status, move.event, move.why, move.attempts) == (FAILED, "expired", "expired", 0)
    assert move.failure is not None
    assert (move.failure.kind, move.failure.code) == (Kind.REJECTED, "expired")


def test_outdated_after_a_failure() -> None:
    """A job that was started and failed says so, and its last failure stays."""
    move = next_transition(JobSnapshot(RETRYING, 2, 2), Expired(), RULE)
    assert (move.status, move.event, move.attempts) == (FAILED, "expired", 2)
    assert (move.why, move.failure) == (EXPIRED_RETRYING, None)
    assert "tried again" in WHY_ENDED[move.why]


def test_unserved() -> None:
    """A job whose executor nobody had for too long is dead-lettered, and charged nothing for it."""
    move = next_transition(JobSnapshot(PENDING), ExecutorMissing("node"), RULE)
    ended = (move.status, move.event, move.why, move.attempts)
    assert ended == (FAILED, "unserved", "unserved", 0)
    assert move.failure is not None
    assert (move.failure.kind, move.failure.code) == (Kind.REJECTED, "unknown_executor")
    assert "'node'" in move.failure.message


def test_cancelled() -> None:
    """A cancelled job keeps its counters."""
    move = next_transition(JobSnapshot(RETRYING, 2, 3, 1), CancelRequested(), RULE)
    assert (move.status, move.event, move.attempts, move.excused) == (CANCELLED, "cancelled", 2, 1)


@pytest.mark.parametrize("status", [PENDING, RETRYING])
def test_hurried(status: JobStatus) -> None:
    """A waiting job that is wanted now is due at once and otherwise as it was."""
    move = next_transition(JobSnapshot(status, 2, 3, 1), RunRequested(), RULE)
    assert (move.status, move.event, move.delay) == (status, "hurried", 0.0)
    assert (move.attempts, move.excused, move.is_reset) == (2, 1, False)


@pytest.mark.req("X17")
@pytest.mark.parametrize(
    ("status", "seen"),
    [(FAILED, RequeueRequested()), (FAILED, RunRequested()), (CANCELLED, RunRequested())],
)
def test_requeued(status: JobStatus, seen: JobEvent) -> None:
    """A job that is sent back begins anew."""
    move = next_transition(JobSnapshot(status, 3, 8, 2), seen, RULE)
    assert (move.status, move.event, move.is_reset) == (PENDING, "requeued", True)
    assert (move.attempts, move.excused, move.delay) == (0, 0, 0.0)


def test_every_end_is_explained() -> None:
    """Each reason for which a job may be dead-lettered has a sentence."""
    for seen, deliveries, attempts in itertools.product(EVENTS, (1, 5), (0, 2)):
        for status in ALLOWED[type(seen)]:
            move = next_transition(JobSnapshot(status, attempts, deliveries), seen, RULE)
            if move.status is FAILED:
                assert move.why in WHY_ENDED
                # one that had failed before keeps that failure in the store
                assert (move.failure is None) == (move.why == EXPIRED_RETRYING)


# ---- routes -------------------------------------------------------------------------------------


@pytest.mark.req("EXEC:Selection")
@pytest.mark.parametrize(
    ("handler", "parts"),
    [
        ("work", ("", "work")),
        ("node#work", ("node", "work")),
        ("a#b#c", ("a", "b#c")),
        ("#work", ("", "work")),
        ("x#", ("x", "")),
        ("#", ("", "")),
        ("", ("", "")),
    ],
)
def test_routes_by_hand(handler: str, parts: tuple[str, str]) -> None:
    """The first mark divides; without one there is no executor."""
    assert route(handler) == parts


@pytest.mark.req("EXEC:Selection")
@given(executor=st.text().filter(lambda text: "#" not in text), handler=st.text())
def test_routes_divide_at_the_first_mark(executor: str, handler: str) -> None:
    """Whatever stands behind the first mark is the handler's, further marks included."""
    assert route(f"{executor}#{handler}") == (executor, handler)
    assert route(executor) == ("", executor)


@pytest.mark.req("X9")
def test_a_job_that_is_to_be_alone_stays_so_until_it_ends() -> None:
    """Given back, held, hurried or tried again: the next process still gets nothing beside it."""
    running = JobSnapshot(JobStatus.ACTIVE, deliveries=2, is_solo=True)
    waiting = JobSnapshot(JobStatus.RETRYING, 1, 2, is_solo=True)
    rule = JobRule()
    failure = Failure(Kind.DEFECT, "error")
    for seen in (Released(), HeldBack(failure), Failed(failure), LeaseExpired()):
        assert next_transition(running, seen, rule).is_solo
    assert next_transition(waiting, RunRequested(), rule).is_solo
    assert not next_transition(running, Succeeded(), rule).is_solo


@pytest.mark.req("ONE:parked")
@pytest.mark.parametrize("seconds", [0.0, -3.0, 0.01])
def test_a_gate_that_says_now_is_not_asked_without_end(seconds: float) -> None:
    """What is not charged is not bounded, so there is a pause at least."""
    held = HeldBack(Failure(Kind.HELD, "held", "", seconds))
    assert next_transition(JobSnapshot(JobStatus.ACTIVE, 0, 1), held, JobRule()).delay == 0.1


@pytest.mark.req("JOBS:operator")
def test_an_edited_job_ends_as_it_failed() -> None:
    """It counts what it had spent, and says that another one has taken its place."""
    moved = next_transition(JobSnapshot(FAILED, 3, 5, 1), EditRequested("new"), RULE)
    assert (moved.status, moved.event, moved.why) == (CANCELLED, "edited", "edited")
    assert (moved.attempts, moved.excused, moved.is_reset) == (3, 1, False)
