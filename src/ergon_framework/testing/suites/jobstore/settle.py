"""Checks of settling: each transition is applied once, whole, by the holder or by an operator."""

from __future__ import annotations

from functools import partial

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.job import (
    CancelRequested,
    Discarded,
    Failed,
    HeldBack,
    JobEvent,
    JobStatus,
    LeaseExpired,
    ProcessDied,
    RequeueRequested,
    RescheduleRequested,
    RunRequested,
)
from ergon_framework.ports.jobstore import Search
from ergon_framework.testing.suites.drivers import START
from ergon_framework.testing.suites.framework import Check, expect, register
from ergon_framework.testing.suites.jobstore.under_test import (
    BAD,
    FAILS_FOR_GOOD,
    FAILS_ONCE,
    FLAKY,
    LEASE,
    RELEASED,
    SUCCEEDED,
    WAIT,
    JobStoreSubject,
    hold,
    ids_of,
    same,
)

CHECKS: list[Check[JobStoreSubject]] = []
check = register(CHECKS)


def _refused(*reports: tuple[str, bool]) -> None:
    for what, applied in reports:
        expect(not applied, f"{what} was applied")


# ---- what a move does ---------------------------------------------------------------------------


@check()
def success_completes(s: JobStoreSubject) -> None:
    """A completed job has its result, its end and its attempt, and is not delivered again."""
    s.put("a")
    leased = s.take("a")
    s.clock.forward(2.0)
    job = s.must(leased, SUCCEEDED, result=b'{"ok":1}')
    same((job.status, job.result), (JobStatus.COMPLETED, b'{"ok":1}'), "status, result")
    same((job.attempts, job.is_charged, job.deliveries), (1, False, 1), "counters")
    same((job.finished_at, job.lease_expires_at), (START + 2.0, None), "finished_at, lease")
    s.clock.forward(1000.0)
    same(s.ids(5), [], "delivered again")


@check()
def null_is_a_result(s: JobStoreSubject) -> None:
    """A result of JSON null is kept, and is not the same as none."""
    s.put("a", "b")
    same(s.ended("a", result=b"null").result, b"null", "a null result")
    same(s.ended("b", FAILS_FOR_GOOD).result, None, "the result of a failed job")


@check()
def discarded_job_is_over(s: JobStoreSubject) -> None:
    """A job that its handler discarded is completed, says so, and frees its unique key."""
    s.put("a", unique_key="k")
    job = s.ended("a", Discarded("pointless"), result=b"null")
    same((job.status, job.why), (JobStatus.COMPLETED, "discarded"), "status, why")
    same((job.attempts, job.last_error, job.result), (1, None, b"null"), "what is kept")
    same([each.is_new for each in s.put("b", unique_key="k")], [True], "the key is free")


@check()
def large_result_is_untouched(s: JobStoreSubject) -> None:
    """A result comes back byte for byte."""
    result = '["\u2028\U0001f980 '.encode() + b"y" * 300_000 + b'" ]'
    s.put("a")
    expect(s.ended("a", result=result).result == result, "the result differs")


@check()
def failure_is_tried_again_later(s: JobStoreSubject) -> None:
    """A failed attempt is charged, and the job is due again when its delay has passed."""
    s.put("a")
    s.clock.forward(3.0)
    job = s.ended("a", FAILS_ONCE)
    same((job.status, job.attempts), (JobStatus.RETRYING, 1), "status, attempts")
    same((job.run_at, job.finished_at), (START + 3.0 + WAIT, None), "run_at, finished_at")
    same((job.worker, job.lease_expires_at), (None, None), "worker, lease")
    s.clock.forward(WAIT - 0.5)
    same(s.ids(), [], "too early")
    s.clock.forward(0.5)
    leased = s.take("a")
    same((leased.attempts, leased.deliveries), (1, 2), "attempts, deliveries")


@check()
def last_failure_is_kept(s: JobStoreSubject) -> None:
    """The last failure is found as it was, and a release does not wipe it out."""
    failure = Failure(Kind.THROTTLED, "slow_down", "später \u2028", retry_after=2.5)
    s.put("a")
    same(s.ended("a", Failed(failure)).last_error, failure, "last_error")
    s.clock.forward(2.5)
    same(s.ended("a", RELEASED).last_error, failure, "last_error after a release")
    same(s.ended("a", FAILS_FOR_GOOD).last_error, BAD, "last_error after the next failure")


@check()
def dead_letter_says_why(s: JobStoreSubject) -> None:
    """A job that failed for good says why, and is not delivered again."""
    s.put("a")
    job = s.ended("a", FAILS_FOR_GOOD)
    same((job.status, job.why), (JobStatus.FAILED, "not_retryable"), "status, why")
    expect(job.finished_at is not None, "it has no finished_at")
    s.clock.forward(10_000.0)
    same(s.ids(5), [], "delivered again")


@check()
def release_charges_nothing(s: JobStoreSubject) -> None:
    """A job that was given back is due at once, with a delivery counted and excused."""
    s.put("a")
    job = s.ended("a", RELEASED)
    same((job.status, job.attempts, job.excused), (JobStatus.PENDING, 0, 1), "after a release")
    leased = s.take("a")
    same((leased.deliveries, leased.excused, leased.attempts), (2, 1, 0), "counters")


@check()
def held_job_is_parked(s: JobStoreSubject) -> None:
    """A job that a gate held waits as long as the gate said, with the reason, uncharged."""
    s.put("a")
    job = s.ended("a", HeldBack(Failure(Kind.HELD, "quota", "", retry_after=120.0)))
    same((job.status, job.attempts, job.why), (JobStatus.PENDING, 0, "quota"), "parked")
    same(job.run_at, START + 120.0, "run_at")
    s.clock.forward(119.5)
    same(s.ids(), [], "too early")
    s.clock.forward(0.5)
    same(s.ids(), ["a"], "in time")


@check()
def solo_is_carried(s: JobStoreSubject) -> None:
    """A job that must run alone is marked for its next delivery, and for that one only."""
    s.put("a")
    leased = s.take("a")
    same(leased.is_solo, False, "before")
    s.must(leased, ProcessDied(was_alone=False))
    leased = s.take("a")
    same((leased.is_solo, s.get("a").is_solo), (True, True), "after")
    s.must(leased, RELEASED)
    same(s.take("a").is_solo, False, "after the next move")


@check()
def history_is_in_order(s: JobStoreSubject) -> None:
    """Each move adds its entry at the end of the job's history, as it was given."""
    s.put("a")
    entries = [b'{"n":1,"text":"\xe2\x80\xa8"}', b'{ "n" : 2 }', b'{"n":3}']
    ends: tuple[JobEvent, ...] = (RELEASED, FAILS_ONCE, SUCCEEDED)
    for entry, seen in zip(entries, ends, strict=True):
        s.must(s.take("a"), seen, entry=entry)
        s.clock.forward(WAIT)
    found = [each for each in s.get("a").history if each in entries]
    same(found, entries, "the entries that were given")


@check()
def history_is_bounded(s: JobStoreSubject) -> None:
    """A job that is moved without end keeps the latest part of its history, not all of it."""
    s.put("a")
    entries = [b'{"n":%d}' % n for n in range(600)]
    for entry in entries:
        job = s.take("a")
        s.must(job, RELEASED, entry=entry)
    history = list(s.get("a").history)
    expect(len(history) < 600, f"all {len(history)} entries are there")
    same(history[-20:], entries[-20:], "the last twenty")


@check()
def keep_sets_the_time_of_purging(s: JobStoreSubject) -> None:
    """A final job is purged as long after its end as it was to be kept."""
    s.put("a", "b")
    s.clock.forward(5.0)
    same(s.ended("a", keep=60.5).purge_at, START + 65.5, "purge_at")
    same(s.ended("b", keep=None).purge_at, None, "purge_at of a job kept for ever")


@check()
def settle_and_claim_are_one_step(s: JobStoreSubject) -> None:
    """A settled job's successor comes in the same call."""
    s.put("a", "b")
    leased = s.take("a")
    applied, claimed = s.settle_and_claim([s.told(leased, SUCCEEDED, result=b"1")])
    same((applied, ids_of(claimed.jobs)), ([True], ["b"]), "applied, claimed")
    same(s.status("a"), JobStatus.COMPLETED, "status")


@check()
def released_job_can_be_claimed_in_the_same_call(s: JobStoreSubject) -> None:
    """What a call gives back is there for its own claim."""
    s.put("a")
    leased = s.take("a")
    applied, claimed = s.settle_and_claim([s.told(leased, RELEASED)])
    same((applied, ids_of(claimed.jobs)), ([True], ["a"]), "applied, claimed")
    expect(claimed.jobs[0].fence > leased.fence, "the new claim has the old fence")


@check()
def each_settlement_has_its_answer(s: JobStoreSubject) -> None:
    """Settlements of one call are answered in order, and a late one spoils no other."""
    s.put("a", "b", "c")
    jobs = s.claim(3)
    s.must(jobs[1], FAILS_FOR_GOOD)
    applied, _ = s.store.settle_and_claim([s.told(job, SUCCEEDED) for job in jobs], None)
    same(applied, [True, False, True], "answers")
    wanted = [JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.COMPLETED]
    same([s.status(job.id) for job in jobs], wanted, "states")


# ---- who may move -------------------------------------------------------------------------------


@check()
def settled_once(s: JobStoreSubject) -> None:
    """A second report of the same claim changes nothing."""
    s.put("a")
    leased = s.take("a")
    before = s.must(leased, SUCCEEDED, result=b"1", keep=60.0)
    s.clock.forward(5.0)
    _refused(
        ("the same success", s.settle(leased, SUCCEEDED, result=b"2", keep=600.0)),
        ("a failure", s.settle(leased, FAILS_FOR_GOOD)),
        ("a retry", s.settle(leased, FAILS_ONCE)),
        ("a release", s.settle(leased, RELEASED)),
    )
    same(s.get("a"), before, "the job")


@check()
def same_report_twice_in_one_call(s: JobStoreSubject) -> None:
    """Of two reports of one claim in one call, the first is applied."""
    s.put("a")
    leased = s.take("a")
    told = [s.told(leased, SUCCEEDED, result=b"1"), s.told(leased, SUCCEEDED, result=b"2")]
    same(s.store.settle_and_claim(told, None)[0], [True, False], "answers")
    same(s.get("a").result, b"1", "result")


@check()
def late_report_changes_nothing(s: JobStoreSubject) -> None:
    """A report by a worker that has lost the job changes nothing of it."""
    s.put("a")
    lost = s.take("a")
    s.clock.forward(LEASE + 1.0)
    s.must(s.get("a"), LeaseExpired(), if_expired=True)
    s.take("a", worker="w2")
    before = s.get("a")
    _refused(
        ("a success", s.settle(lost, SUCCEEDED, result=b"1", keep=1.0)),
        ("a failure", s.settle(lost, FAILS_FOR_GOOD, keep=1.0)),
        ("a retry", s.settle(lost, FAILS_ONCE)),
        ("a release", s.settle(lost, RELEASED)),
    )
    same(s.get("a"), before, "the job")


@check()
def late_report_of_a_waiting_job_changes_nothing(s: JobStoreSubject) -> None:
    """A report of a claim that was taken back is refused though nobody has claimed it since."""
    s.put("a")
    lost = s.take("a")
    s.clock.forward(LEASE + 1.0)
    before = s.must(s.get("a"), LeaseExpired(), if_expired=True)
    expect(not s.settle(lost, SUCCEEDED, result=b"1"), "the late success was applied")
    same(s.get("a"), before, "the job")


@check()
def report_of_the_unknown_is_refused(s: JobStoreSubject) -> None:
    """A report of a job that is no longer there is refused, and is no error."""
    s.put("a")
    leased = s.take("a")
    s.store.purge([s.must(leased, SUCCEEDED)])
    same(s.settle(leased, SUCCEEDED), False, "applied")
    same(s.store.find("a"), None, "the job")


@check()
def report_of_an_earlier_life_is_refused(s: JobStoreSubject) -> None:
    """A report of a purged job does not reach a new job of the same id."""
    s.put("a")
    old = s.take("a")
    s.store.purge([s.must(old, SUCCEEDED, result=b'"old"')])
    s.put("a")
    s.take("a")
    expect(not s.settle(old, SUCCEEDED, result=b'"old"'), "the late report was applied")
    same(s.status("a"), JobStatus.ACTIVE, "the new job")


@check()
def state_must_be_the_one_decided_in(s: JobStoreSubject) -> None:
    """A move that was decided in another state is refused, though the fence is the same."""
    s.put("a")
    waiting = s.get("a")
    cancelled = s.must(waiting, CancelRequested())
    same(s.settle(waiting, RunRequested()), False, "applied")
    same(s.get("a"), cancelled, "the job")


@check()
def any_words_of_a_failure_are_taken(s: JobStoreSubject) -> None:
    """A failure is settled whatever characters are in its words, and so is what comes with it."""
    s.put("a", "b")
    odd, other = s.claim(2)
    words = "nul \0, bell \a, quote ', \\u0000, % and {}, \u2028 \U0001f40d"
    told = [s.told(odd, Failed(Failure(Kind.TRANSIENT, words, words))), s.told(other, SUCCEEDED)]
    same(s.store.settle_and_claim(told, None)[0], [True, True], "applied")
    same(s.status("a"), JobStatus.RETRYING, "the job that failed")
    same(s.status("b"), JobStatus.COMPLETED, "the other one")


@check()
def one_of_many_reports_wins(s: JobStoreSubject) -> None:
    """Of several threads that report the same claim at once, one is believed."""
    s.put("a")
    leased = s.take("a")
    told = [s.told(leased, SUCCEEDED, result=b"%d" % n) for n in range(8)]
    answers = s.together([partial(s.store.settle_and_claim, [one], None) for one in told])
    won = [n for n, (applied, _) in enumerate(answers) if applied == [True]]
    same(len(won), 1, "how many were applied")
    same(s.get("a").result, b"%d" % won[0], "the result")


@check()
def cancelled_job_does_not_run(s: JobStoreSubject) -> None:
    """A waiting job that was cancelled is never delivered."""
    s.put("now")
    s.put("later", delay=10.0)
    for job_id in ("now", "later"):
        job = s.must(s.get(job_id), CancelRequested(), keep=60.0)
        same((job.status, job.purge_at), (JobStatus.CANCELLED, START + 60.0), job_id)
        same((job.finished_at, job.deliveries), (START, 0), job_id)
    s.clock.forward(20.0)
    same(s.ids(5), [], "delivered")


@check()
def cancelling_comes_too_late(s: JobStoreSubject) -> None:
    """A cancellation decided before the job was claimed is refused, and the job runs on."""
    s.put("a")
    waiting = s.get("a")
    leased = s.take("a")
    same(s.settle(waiting, CancelRequested()), False, "applied")
    same(s.status("a"), JobStatus.ACTIVE, "status")
    expect(s.settle(leased, SUCCEEDED), "the outcome was not applied")


@check()
def hurried_job_is_due_at_once(s: JobStoreSubject) -> None:
    """A job that somebody wants now is due now, and keeps its counters."""
    s.put("a", delay=500.0)
    s.put("b")
    s.ended("b", FAILS_ONCE)
    for job_id in ("a", "b"):
        s.must(s.get(job_id), RunRequested())
    same((s.status("b"), s.get("b").attempts), (JobStatus.RETRYING, 1), "the retried one")
    same(sorted(s.ids(5)), ["a", "b"], "delivered")


@check()
def rescheduled_job_is_due_when_it_was_said(s: JobStoreSubject) -> None:
    """Sooner or later than before, with its counters; one that was claimed meanwhile is left."""
    s.put("a", delay=500.0)
    s.put("b")
    s.ended("b", FAILS_ONCE)
    s.put("c")
    for job_id, delay in (("a", 20.0), ("b", 30.0), ("c", 40.0)):
        s.must(s.get(job_id), RescheduleRequested(delay))
    found = [s.get(each).run_at - s.clock() for each in ("a", "b", "c")]
    same(found, [20.0, 30.0, 40.0], "when they are due")
    same((s.status("b"), s.get("b").attempts), (JobStatus.RETRYING, 1), "the retried one")
    same(s.ids(5), [], "delivered too early")
    s.clock.forward(30.0)
    late = s.get("a")
    same(s.ids(5), ["a", "b"], "delivered")
    expect(not s.settle(late, RescheduleRequested(1.0)), "one that runs was rescheduled")


@check()
def requeue_begins_anew(s: JobStoreSubject) -> None:
    """A job sent back from the dead letters waits with fresh counters, and is not purged."""
    s.put("a")
    s.ended("a", RELEASED)
    failed = s.ended("a", FAILS_FOR_GOOD, keep=60.0)
    s.clock.forward(5.0)
    job = s.must(failed, RequeueRequested())
    same(job.status, JobStatus.PENDING, "status")
    same((job.attempts, job.deliveries, job.excused), (0, 0, 0), "counters")
    same((job.finished_at, job.purge_at, job.result), (None, None, None), "end")
    s.clock.forward(600.0)
    s.store.prune(100)
    leased = s.take("a")
    same((leased.attempts, leased.deliveries, leased.excused), (0, 1, 0), "its next claim")


@check()
def requeue_keeps_the_fence(s: JobStoreSubject) -> None:
    """After a requeue the fence goes on growing, so that reports from before stay refused."""
    s.put("a")
    old = s.take("a")
    failed = s.must(old, FAILS_FOR_GOOD)
    s.must(failed, RequeueRequested())
    leased = s.take("a")
    expect(leased.fence > old.fence, f"fence {leased.fence} after {old.fence}")
    expect(not s.settle(old, SUCCEEDED), "a report from before the requeue was applied")
    expect(s.settle(leased, SUCCEEDED), "the new claim's report was refused")


@check()
def requeued_expired_job_can_run(s: JobStoreSubject) -> None:
    """A job that was dead-lettered for its expiry runs when somebody sends it back."""
    s.put("a", expires_at=START + 5.0)
    s.clock.forward(6.0)
    s.claim()
    s.must(s.get("a"), RequeueRequested())
    same(s.ids(), ["a"], "delivered")


@check()
def history_survives_a_requeue(s: JobStoreSubject) -> None:
    """What happened before a requeue is still told."""
    s.put("a")
    failed = s.ended("a", FAILS_FOR_GOOD, entry=b'{"n":1}')
    job = s.must(failed, RequeueRequested(), entry=b'{"n":2}')
    same(job.history[-2:], (b'{"n":1}', b'{"n":2}'), "history")


@check()
def rescue_takes_only_what_is_expired(s: JobStoreSubject) -> None:
    """A rescue decided on an expired lease is refused once the lease was renewed."""
    s.put("a")
    leased = s.take("a")
    s.clock.forward(LEASE + 1.0)
    seen = s.store.expired_leases(10)[0]
    same(s.store.renew([hold(leased)], LEASE), [True], "renewed")
    same(s.settle(seen, LeaseExpired(), if_expired=True), False, "the rescue was applied")
    same((s.status("a"), s.get("a").fence), (JobStatus.ACTIVE, leased.fence), "the job")
    expect(s.settle(leased, SUCCEEDED), "the holder could not finish")


@check()
def rescue_gives_the_job_to_another(s: JobStoreSubject) -> None:
    """A rescued job is due at once, and its next delivery counts."""
    s.put("a")
    lost = s.take("a")
    s.clock.forward(LEASE + 1.0)
    seen = s.store.expired_leases(10)[0]
    expect(s.settle(seen, LeaseExpired(), if_expired=True), "the rescue was refused")
    leased = s.take("a", worker="w2")
    same(leased.deliveries, 2, "deliveries")
    expect(leased.fence > lost.fence, "the fence did not grow")


@check()
def one_of_many_rescuers_wins(s: JobStoreSubject) -> None:
    """Of several threads that rescue the same job at once, one does."""
    s.put("a")
    s.take("a")
    s.clock.forward(LEASE + 1.0)
    seen = s.store.expired_leases(10)[0]
    told = [s.told(seen, LeaseExpired(), if_expired=True) for _ in range(6)]
    answers = s.together([partial(s.store.settle_and_claim, [one], None) for one in told])
    same(sorted(applied for applied, _ in answers), [[False]] * 5 + [[True]], "answers")
    same(s.store.count(Search(statuses=(JobStatus.PENDING,))), 1, "waiting jobs")


@check()
def reports_of_different_jobs_do_not_mix(s: JobStoreSubject) -> None:
    """Many reports in one call each reach their own job."""
    s.put(*(f"job-{n}" for n in range(60)))
    jobs = s.claim(60)
    told = [
        s.told(job, SUCCEEDED if n % 2 else FAILS_ONCE, result=b"%d" % n if n % 2 else None)
        for n, job in enumerate(jobs)
    ]
    same(all(s.store.settle_and_claim(told, None)[0]), True, "all applied")
    for n, job in enumerate(jobs):
        found = s.get(job.id)
        wanted = (b"%d" % n, None) if n % 2 else (None, FLAKY)
        same((found.result, found.last_error), wanted, f"result, error of job {n}")
