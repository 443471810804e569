"""Any job, under any rule, through any sequence of events: what always holds."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.job import (
    ALLOWED,
    JOB_RETRIES,
    WHY_ENDED,
    CancelRequested,
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
    Succeeded,
    Transition,
    Unread,
    next_transition,
)
from ergon_framework.core.retry import MAX_DELAY, Backoff, GiveUp, RetryAfter, RetryRule, judge

ACTIVE = JobStatus.ACTIVE
WAITING = (JobStatus.PENDING, JobStatus.RETRYING)
JOB_EVENTS: list[JobEvent] = [
    Expired(),
    ExecutorMissing("x"),
    CancelRequested(),
    RunRequested(),
    RescheduleRequested(7.5),
    RequeueRequested(),
]

repeatable = settings(derandomize=True, deadline=None)
waits = st.none() | st.floats(-10.0, 1e12)
failures = st.builds(Failure, st.sampled_from(Kind), st.just("code"), retry_after=waits)
retried = st.builds(
    Failure, st.sampled_from(sorted(JOB_RETRIES)), st.just("code"), retry_after=waits
)
retry_rules = st.builds(
    RetryRule,
    attempts=st.integers(1, 6),
    backoff=st.builds(
        Backoff,
        base=st.floats(0.0, 100.0),
        factor=st.floats(1.0, 4.0),
        cap=st.floats(0.0, 1000.0),
        low=st.just(0.8),
        high=st.just(1.2),
    ),
    on=st.just(JOB_RETRIES),
    max_retry_after=st.none() | st.floats(0.0, 1000.0),
    asked_replaces=st.booleans(),
)
job_rules = st.builds(JobRule, retry_rules, st.integers(1, 9), st.floats(0.0, 100.0))
dice = st.floats(0.0, 1.0, exclude_max=True)
excusing = st.one_of(
    st.builds(HeldBack, failures),
    st.just(Released()),
    st.just(HandlerMissing("", "resize")),
    st.builds(ProcessDied, was_read=st.just(False), was_alone=st.booleans()),
)
failing = st.one_of(
    st.builds(Failed, retried, st.booleans()),
    st.builds(ProcessDied, was_read=st.just(True), was_alone=st.booleans()),
    st.just(LeaseExpired()),
    st.just(Unread(3.0)),
)
reports = st.one_of(excusing, failing, st.builds(Failed, failures, st.booleans()))


class Model:
    """A job as a store keeps it: claims and charges are the store's part."""

    def __init__(self) -> None:
        self.status = JobStatus.PENDING
        self.attempts = 0
        self.deliveries = 0
        self.excused = 0
        self.is_charged = False

    def claim(self) -> None:
        """A worker takes it."""
        self.status, self.is_charged = ACTIVE, False
        self.deliveries += 1

    def snapshot(self) -> JobSnapshot:
        """What the machine is told."""
        return JobSnapshot(
            self.status, self.attempts, self.deliveries, self.excused, self.is_charged
        )

    def apply(self, move: Transition) -> None:
        """What a store does with a move."""
        self.status, self.is_charged = move.status, False
        self.attempts, self.excused = move.attempts, move.excused
        if move.is_reset:
            self.deliveries = 0


# ---- one step -----------------------------------------------------------------------------------


@repeatable
@given(job_rules, reports | st.just(Succeeded()), st.integers(0, 5), st.booleans(), dice)
def test_whatever_happens_to_a_job_that_is_to_be_cancelled_ends_it(
    job_rule: JobRule, seen: JobEvent, attempts: int, is_charged: bool, roll: float
) -> None:
    """It completes, or it is cancelled; its counters are what they would have been."""
    tally = JobSnapshot(ACTIVE, attempts, attempts + 1, 0, is_charged)
    cancelling = dataclasses.replace(tally, is_cancelling=True)
    usual = next_transition(tally, seen, job_rule, roll)
    move = next_transition(cancelling, seen, job_rule, roll)
    assert (move.attempts, move.excused) == (usual.attempts, usual.excused)
    if isinstance(seen, Succeeded):
        assert move == usual
    else:
        told = (move.status, move.event, move.why, move.failure, move.delay)
        assert told == (JobStatus.CANCELLED, "cancelled", "cancelled_running", None, 0.0)


@repeatable
@given(job_rules, reports, st.integers(0, 5), st.integers(0, 9), st.booleans(), dice)
def test_a_report_moves_little(
    job_rule: JobRule, seen: JobEvent, attempts: int, deliveries: int, is_charged: bool, roll: float
) -> None:
    """A report adds at most one attempt and at most one excuse, and never both."""
    tally = JobSnapshot(ACTIVE, attempts, deliveries + 1, 1, is_charged)
    move = next_transition(tally, seen, job_rule, roll)
    charged, excused = move.attempts - attempts, move.excused - 1
    assert (charged, excused) in {(0, 0), (1, 0), (0, 1)}
    assert math.isfinite(move.delay)
    assert 0.0 <= move.delay <= 1e12
    assert not move.is_reset
    if move.status.is_final:
        assert (move.status, move.delay) == (JobStatus.FAILED, 0.0)
        assert move.why in WHY_ENDED
    elif move.attempts:
        assert move.status is JobStatus.RETRYING


@pytest.mark.req("JOBS:orchestrator")
@repeatable
@given(job_rules, excusing, st.integers(0, 5), st.integers(0, 99), st.booleans(), dice)
def test_what_was_nobodys_fault_costs_nothing(
    job_rule: JobRule, seen: JobEvent, attempts: int, deliveries: int, is_charged: bool, roll: float
) -> None:
    """Held, given back, or sent to a process that was not up: no charge, and never the end."""
    move = next_transition(
        JobSnapshot(ACTIVE, attempts, deliveries, 0, is_charged), seen, job_rule, roll
    )
    assert (move.attempts, move.excused) == (attempts, 1)
    assert move.status in WAITING


@repeatable
@given(job_rules, failures, dice)
def test_a_failed_attempt_is_judged_by_the_one_judge(
    job_rule: JobRule, failure: Failure, roll: float
) -> None:
    """Whether and when a job is tried again is what the judge says, to the digit."""
    move = next_transition(JobSnapshot(ACTIVE, 0, 1), Failed(failure), job_rule, roll)
    verdict = judge(job_rule.retry, 0, 0.0, failure, 0.0, roll)
    if isinstance(verdict, GiveUp):
        assert (move.status, move.why) == (JobStatus.FAILED, verdict.why.value)
    elif job_rule.max_deliveries > 1:
        assert (move.status, move.delay) == (JobStatus.RETRYING, verdict.delay)


# ---- whole lives --------------------------------------------------------------------------------


@pytest.mark.req("X11")
@repeatable
@given(job_rules, st.lists(st.tuples(failing, st.booleans(), dice), min_size=9, max_size=9))
def test_failing_deliveries_come_to_an_end(
    job_rule: JobRule, lives: list[tuple[JobEvent, bool, float]]
) -> None:
    """However its deliveries fail, a job has no more of them than it may have."""
    job = Model()
    for seen, is_charged, roll in lives:
        job.claim()
        job.is_charged = is_charged
        assert job.deliveries <= job_rule.max_deliveries
        job.apply(next_transition(job.snapshot(), seen, job_rule, roll))
        if job.status is JobStatus.FAILED:
            break
    assert job.status is JobStatus.FAILED


@repeatable
@given(job_rules, st.lists(st.tuples(reports, st.booleans(), dice), max_size=40))
def test_excused_deliveries_do_not_count(
    job_rule: JobRule, lives: list[tuple[JobEvent, bool, float]]
) -> None:
    """Of the deliveries that were not excused there are never more than allowed."""
    job = Model()
    for seen, is_charged, roll in lives:
        job.claim()
        job.is_charged = is_charged
        job.apply(next_transition(job.snapshot(), seen, job_rule, roll))
        assert job.deliveries - job.excused <= job_rule.max_deliveries
        assert job.attempts <= job_rule.retry.attempts
        if job.status.is_final:
            break


class JobMachine(RuleBasedStateMachine):
    """A job among workers that succeed, fail and vanish, and an operator who meddles."""

    @initialize(job_rule=job_rules)
    def begin(self, job_rule: JobRule) -> None:
        """A job under some rule."""
        self.rule = job_rule
        self.job = Model()
        self.charges = 0  # since it last began

    def see(self, seen: JobEvent, roll: float = 0.5) -> Transition:
        """What the machine makes of an event that may happen."""
        before = self.job.snapshot()
        move = next_transition(before, seen, self.rule, roll)
        assert before.status in ALLOWED[type(seen)]
        assert next_transition(before, seen, self.rule, roll) == move
        self.charges = 0 if move.is_reset else self.charges + move.attempts - before.attempts
        self.job.apply(move)
        return move

    @precondition(lambda self: self.job.status in WAITING)
    @rule()
    def claim(self) -> None:
        """A worker takes it."""
        self.job.claim()

    @precondition(lambda self: self.job.status is ACTIVE)
    @rule()
    def write(self) -> None:
        """The worker writes a request, and the store charges the attempt."""
        self.job.is_charged = True

    @precondition(lambda self: self.job.status is ACTIVE)
    @rule(seen=reports, roll=dice)
    def report(self, seen: JobEvent, roll: float) -> None:
        """Something other than a success."""
        move = self.see(seen, roll)
        assert move.status in {*WAITING, JobStatus.FAILED}

    @precondition(lambda self: self.job.status is ACTIVE)
    @rule()
    def succeed(self) -> None:
        """A success."""
        assert self.see(Succeeded()).status is JobStatus.COMPLETED

    @rule(seen=st.sampled_from(JOB_EVENTS))
    def meddle(self, seen: JobEvent) -> None:
        """An operator or a clock, whether or not the state allows it."""
        before = dataclasses.replace(self.job.snapshot())
        was_final = self.job.status.is_final
        try:
            move = self.see(seen)
        except InvalidTransition:
            assert self.job.snapshot() == before
            return
        if was_final:
            assert isinstance(seen, RunRequested | RequeueRequested)
            assert (move.is_reset, move.status) == (True, JobStatus.PENDING)

    @rule(seen=reports)
    def report_late(self, seen: JobEvent) -> None:
        """A report of a job that does not run is refused."""
        if self.job.status is not ACTIVE:
            with pytest.raises(InvalidTransition):
                next_transition(self.job.snapshot(), seen, self.rule)

    @invariant()
    def counters_hold(self) -> None:
        """Attempts and deliveries stay within their limits, and nothing is counted twice."""
        job = self.job
        assert 0 <= job.attempts == self.charges <= self.rule.retry.attempts
        assert 0 <= job.excused <= job.deliveries
        assert job.deliveries - job.excused <= self.rule.max_deliveries
        if job.status in WAITING:
            assert job.attempts < self.rule.retry.attempts
        if job.status is JobStatus.COMPLETED:
            assert job.attempts >= 1


def test_any_life_of_a_job() -> None:
    """The machine and its model agree, whatever happens."""
    run_state_machine_as_test(
        JobMachine,
        settings=settings(
            max_examples=50,
            stateful_step_count=25,
            deadline=None,
            derandomize=True,
        ),
    )


# ---- retry_after --------------------------------------------------------------------------------


def asked(after: float, *, replaces: bool, cap: float | None = None) -> float:
    """The wait when the backoff says ten seconds and the peer ``after``."""
    retry = RetryRule(3, Backoff(10.0), max_retry_after=cap, asked_replaces=replaces)
    verdict = judge(retry, 0, 0.0, Failure(Kind.TRANSIENT, "x", retry_after=after), 0.0, 0.5)
    assert isinstance(verdict, RetryAfter)
    return verdict.delay


@pytest.mark.req("EXEC:retry_after")
def test_what_was_asked_for_replaces_the_backoff() -> None:
    """An executor that says when is taken at its word, sooner or later than the backoff."""
    assert [asked(after, replaces=True) for after in (2.0, 10.0, 90.0)] == [2.0, 10.0, 90.0]


def test_what_was_asked_for_lengthens_the_backoff() -> None:
    """A step that says when is not retried earlier than its own backoff."""
    assert [asked(after, replaces=False) for after in (2.0, 10.0, 90.0)] == [10.0, 10.0, 90.0]


@pytest.mark.req("EXEC:retry_after", "X14")
def test_what_was_asked_for_is_capped() -> None:
    """Nobody can make a job wait longer than the rule allows, nor less than nothing."""
    assert asked(1e9, replaces=True, cap=60.0) == 60.0
    assert asked(1e30, replaces=True) == MAX_DELAY
    assert asked(-7.0, replaces=True) == 0.0
    assert asked(-7.0, replaces=False) == 10.0


@pytest.mark.req("EXEC:retry_after")
def test_asking_does_not_buy_attempts() -> None:
    """A retry_after changes when, not whether."""
    retry = RetryRule(2, asked_replaces=True)
    failure = Failure(Kind.TRANSIENT, "x", retry_after=1.0)
    assert isinstance(judge(retry, 1, 0.0, failure, 0.0, 0.5), GiveUp)
