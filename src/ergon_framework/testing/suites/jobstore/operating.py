"""Checks of what operators and rescuers do: cancel, hurry, requeue, take from a lost worker."""

from __future__ import annotations

from functools import partial

from ergon_framework.core.job import (
    CancelAsked,
    JobStatus,
    LeaseExpired,
    RequeueAsked,
    RunAsked,
)
from ergon_framework.ports.jobstore import Search
from ergon_framework.testing.suites.drivers import START
from ergon_framework.testing.suites.framework import Check, expect, register
from ergon_framework.testing.suites.jobstore.subject import (
    FAILS_FOR_GOOD,
    FAILS_ONCE,
    FLAKY,
    LEASE,
    RELEASED,
    SUCCEEDED,
    Subject,
    hold,
    same,
)

CHECKS: list[Check[Subject]] = []
check = register(CHECKS)


@check()
def cancelled_job_does_not_run(s: Subject) -> None:
    """A waiting job that was cancelled is never delivered."""
    s.put("now")
    s.put("later", delay=10.0)
    for job_id in ("now", "later"):
        job = s.must(s.get(job_id), CancelAsked(), keep=60.0)
        same((job.status, job.purge_at), (JobStatus.CANCELLED, START + 60.0), job_id)
        same((job.finished_at, job.deliveries), (START, 0), job_id)
    s.clock.forward(20.0)
    same(s.ids(5), [], "delivered")


@check()
def cancelling_comes_too_late(s: Subject) -> None:
    """A cancellation decided before the job was claimed is refused, and the job runs on."""
    s.put("a")
    waiting = s.get("a")
    leased = s.take("a")
    same(s.settle(waiting, CancelAsked()), False, "applied")
    same(s.status("a"), JobStatus.ACTIVE, "status")
    expect(s.settle(leased, SUCCEEDED), "the outcome was not applied")


@check()
def hurried_job_is_due_at_once(s: Subject) -> None:
    """A job that somebody wants now is due now, and keeps its counters."""
    s.put("a", delay=500.0)
    s.put("b")
    s.ended("b", FAILS_ONCE)
    for job_id in ("a", "b"):
        s.must(s.get(job_id), RunAsked())
    same((s.status("b"), s.get("b").attempts), (JobStatus.RETRYING, 1), "the retried one")
    same(sorted(s.ids(5)), ["a", "b"], "delivered")


@check()
def requeue_begins_anew(s: Subject) -> None:
    """A job sent back from the dead letters waits with fresh counters, and is not purged."""
    s.put("a")
    s.ended("a", RELEASED)
    failed = s.ended("a", FAILS_FOR_GOOD, keep=60.0)
    s.clock.forward(5.0)
    job = s.must(failed, RequeueAsked())
    same(job.status, JobStatus.PENDING, "status")
    same((job.attempts, job.deliveries, job.excused), (0, 0, 0), "counters")
    same((job.finished_at, job.purge_at, job.result), (None, None, None), "end")
    s.clock.forward(600.0)
    s.store.sweep(100)
    leased = s.take("a")
    same((leased.attempts, leased.deliveries, leased.excused), (0, 1, 0), "its next claim")


@check()
def requeue_keeps_the_fence(s: Subject) -> None:
    """After a requeue the fence goes on growing, so that reports from before stay refused."""
    s.put("a")
    old = s.take("a")
    failed = s.must(old, FAILS_FOR_GOOD)
    s.must(failed, RequeueAsked())
    leased = s.take("a")
    expect(leased.fence > old.fence, f"fence {leased.fence} after {old.fence}")
    expect(not s.settle(old, SUCCEEDED), "a report from before the requeue was applied")
    expect(s.settle(leased, SUCCEEDED), "the new claim's report was refused")


@check()
def requeued_expired_job_can_run(s: Subject) -> None:
    """A job that was dead-lettered for its expiry runs when somebody sends it back."""
    s.put("a", expires_at=START + 5.0)
    s.clock.forward(6.0)
    s.claim()
    s.must(s.get("a"), RequeueAsked())
    same(s.ids(), ["a"], "delivered")


@check()
def history_survives_a_requeue(s: Subject) -> None:
    """What happened before a requeue is still told."""
    s.put("a")
    failed = s.ended("a", FAILS_FOR_GOOD, entry=b'{"n":1}')
    job = s.must(failed, RequeueAsked(), entry=b'{"n":2}')
    same(job.history[-2:], (b'{"n":1}', b'{"n":2}'), "history")


@check()
def rescue_takes_only_what_is_expired(s: Subject) -> None:
    """A rescue decided on an expired lease is refused once the lease was renewed."""
    s.put("a")
    leased = s.take("a")
    s.clock.forward(LEASE + 1.0)
    seen = s.store.overdue(10)[0]
    same(s.store.renew([hold(leased)], LEASE), [True], "renewed")
    same(s.settle(seen, LeaseExpired(), if_expired=True), False, "the rescue was applied")
    same((s.status("a"), s.get("a").fence), (JobStatus.ACTIVE, leased.fence), "the job")
    expect(s.settle(leased, SUCCEEDED), "the holder could not finish")


@check()
def rescue_gives_the_job_to_another(s: Subject) -> None:
    """A rescued job is due at once, and its next delivery counts."""
    s.put("a")
    lost = s.take("a")
    s.clock.forward(LEASE + 1.0)
    seen = s.store.overdue(10)[0]
    expect(s.settle(seen, LeaseExpired(), if_expired=True), "the rescue was refused")
    leased = s.take("a", worker="w2")
    same(leased.deliveries, 2, "deliveries")
    expect(leased.fence > lost.fence, "the fence did not grow")


@check()
def one_of_many_rescuers_wins(s: Subject) -> None:
    """Of several threads that rescue the same job at once, one does."""
    s.put("a")
    s.take("a")
    s.clock.forward(LEASE + 1.0)
    seen = s.store.overdue(10)[0]
    told = [s.told(seen, LeaseExpired(), if_expired=True) for _ in range(6)]
    answers = s.together([partial(s.store.exchange, [one], None) for one in told])
    same(sorted(applied for applied, _ in answers), [[False]] * 5 + [[True]], "answers")
    same(s.store.count(Search(statuses=(JobStatus.PENDING,))), 1, "waiting jobs")


@check()
def reports_of_different_jobs_do_not_mix(s: Subject) -> None:
    """Many reports in one call each reach their own job."""
    s.put(*(f"job-{n}" for n in range(60)))
    jobs = s.claim(60)
    told = [
        s.told(job, SUCCEEDED if n % 2 else FAILS_ONCE, result=b"%d" % n if n % 2 else None)
        for n, job in enumerate(jobs)
    ]
    same(all(s.store.exchange(told, None)[0]), True, "all applied")
    for n, job in enumerate(jobs):
        found = s.get(job.id)
        wanted = (b"%d" % n, None) if n % 2 else (None, FLAKY)
        same((found.result, found.last_error), wanted, f"result, error of job {n}")
