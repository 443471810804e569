"""Checks of leases: who renews keeps the job, and who does not is found."""

from __future__ import annotations

from functools import partial

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.job import HeldBack, JobStatus, LeaseExpired
from ergon_framework.ports.jobstore import LeaseRenewal
from ergon_framework.testing.suites.drivers import START
from ergon_framework.testing.suites.framework import Check, expect, register
from ergon_framework.testing.suites.jobstore.under_test import (
    FAILS_ONCE,
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


@check()
def lease_heals_after_the_clock_was_set_back(s: JobStoreSubject) -> None:
    """The lease of a dead holder lasts no longer than a lease, and that of a living one as long."""
    s.put("a", "b", "c")
    s.take("a", worker="dead")
    s.take("b", worker="slow", lease=100.0)
    s.take("c", worker="unknown", lease=20.0)
    leases = {"dead": LEASE, "slow": 100.0}
    same(s.store.shorten(leases, 20.0), 0, "cut while the clock is right")
    s.clock.forward(-3600.0)
    same(s.store.shorten(leases, 20.0), 3, "cut")
    same(s.store.shorten(leases, 20.0), 0, "cut again")
    ends = [s.get(job_id).lease_expires_at for job_id in ("a", "b", "c")]
    same(ends, [s.clock() + each for each in (LEASE, 100.0, 20.0)], "the ends of the leases")
    s.clock.forward(LEASE + 1.0)
    same(ids_of(s.store.expired_leases(10)), ["a"], "overdue")


@check()
def waits_heal_after_the_clock_was_set_back(s: JobStoreSubject) -> None:
    """A job that failed or was put off waits as long as was decided; a planned one until then."""
    s.put("failed", "held")
    s.must(s.take("failed"), FAILS_ONCE)
    s.must(s.take("held"), HeldBack(Failure(Kind.HELD, "busy", retry_after=60.0)))
    s.put("planned", delay=500.0)
    same(s.store.shorten_waits(), 0, "healed while the clock is right")
    planned_at = s.get("planned").run_at
    s.clock.forward(-3600.0)
    same(s.store.shorten_waits(), 2, "healed")
    same(s.store.shorten_waits(), 0, "healed again")
    near = [round(s.get(job_id).run_at - s.clock(), 3) for job_id in ("failed", "held")]
    same(near, [WAIT, 60.0], "seconds to wait")
    same(s.get("planned").run_at, planned_at, "the instant of a job that was not claimed yet")
    s.clock.forward(max(WAIT, 60.0))
    same(sorted(s.ids(5)), ["failed", "held"], "claimed")


@check()
def renewal_prolongs(s: JobStoreSubject) -> None:
    """A renewed lease ends that much after the renewal, and moves nothing else."""
    s.put("a")
    leased = s.take("a")
    s.clock.forward(10.0)
    same(s.store.renew([hold(leased)], 20.0), [True], "answer")
    job = s.get("a")
    same(job.lease_expires_at, START + 30.0, "lease_expires_at")
    same((job.fence, job.deliveries, job.attempts), (leased.fence, 1, 0), "fence and counters")
    expect(s.settle(leased, SUCCEEDED), "the holder could not finish")


@check()
def renewed_job_is_not_overdue(s: JobStoreSubject) -> None:
    """A job whose lease was renewed in time does not turn up among the lost ones."""
    s.put("a", "b")
    jobs = s.claim(2)
    s.clock.forward(10.0)
    s.store.renew([hold(jobs[0])], LEASE)
    s.clock.forward(10.0)
    same(ids_of(s.store.expired_leases(10)), ["b"], "overdue")


@check()
def renewal_after_expiry_counts(s: JobStoreSubject) -> None:
    """A holder that renews late keeps the job as long as nobody has taken it away."""
    s.put("a")
    leased = s.take("a")
    s.clock.forward(LEASE + 5.0)
    same(s.store.renew([hold(leased)], LEASE), [True], "answer")
    same(s.store.expired_leases(10), [], "overdue")


@check()
def renewal_charges_the_attempt(s: JobStoreSubject) -> None:
    """An attempt is charged when its holder says that a request was written."""
    s.put("a")
    leased = s.take("a")
    s.store.renew([hold(leased)], LEASE)
    same((s.get("a").attempts, s.get("a").is_charged), (0, False), "before")
    s.store.renew([hold(leased, is_charged=True)], LEASE)
    same((s.get("a").attempts, s.get("a").is_charged), (1, True), "after")


@check()
def renewal_charges_once(s: JobStoreSubject) -> None:
    """However often a charge is repeated, and whether or not it is, one attempt is charged."""
    s.put("a")
    leased = s.take("a")
    for is_charged in (True, True, False, True):
        s.store.renew([hold(leased, is_charged=is_charged)], LEASE)
        same((s.get("a").attempts, s.get("a").is_charged), (1, True), "attempts, is_charged")


@check()
def outcome_counts_the_charged_attempt_once(s: JobStoreSubject) -> None:
    """An attempt that was charged early is not counted again by its outcome."""
    s.put("a", "b")
    for job_id, seen in (("a", SUCCEEDED), ("b", FAILS_ONCE)):
        leased = s.take(job_id)
        s.store.renew([hold(leased, is_charged=True)], LEASE)
        job = s.must(leased, seen)
        same((job.attempts, job.is_charged), (1, False), f"attempts, is_charged of {job_id}")


@check()
def charge_belongs_to_one_delivery(s: JobStoreSubject) -> None:
    """A charge does not reach the next delivery of the job."""
    s.put("a")
    leased = s.take("a")
    s.store.renew([hold(leased, is_charged=True)], LEASE)
    s.must(leased, FAILS_ONCE)
    s.clock.forward(WAIT)
    leased = s.take("a")
    same((leased.attempts, s.get("a").attempts, s.get("a").is_charged), (1, 1, False), "then")


@check()
def rescued_charge_counts(s: JobStoreSubject) -> None:
    """A job that was lost after its request was written has used up an attempt."""
    s.put("a")
    leased = s.take("a")
    s.store.renew([hold(leased, is_charged=True)], LEASE)
    s.clock.forward(LEASE + 1.0)
    lost = s.store.expired_leases(5)[0]
    same((lost.attempts, lost.is_charged), (1, True), "as the rescuer sees it")
    job = s.must(lost, LeaseExpired(), if_expired=True)
    same((job.status, job.attempts), (JobStatus.RETRYING, 1), "status, attempts")


@check()
def stale_holder_is_told(s: JobStoreSubject) -> None:
    """A holder that has lost the job is told so, and neither prolongs nor charges anything."""
    s.put("a")
    lost = s.take("a")
    s.clock.forward(LEASE + 1.0)
    s.must(s.get("a"), LeaseExpired(), if_expired=True)
    same(s.store.renew([hold(lost, is_charged=True)], 99.0), [False], "while it waits")
    same(s.get("a").attempts, 0, "attempts")
    s.take("a", worker="w2")
    before = s.get("a")
    same(s.store.renew([hold(lost, is_charged=True)], 99.0), [False], "while another runs it")
    same(s.get("a"), before, "the job")


@check()
def ended_job_cannot_be_renewed(s: JobStoreSubject) -> None:
    """A job that has ended, was given back or is gone is lost for its former holder."""
    s.put("a", "b", "c")
    jobs = s.claim(3)
    s.must(jobs[0], SUCCEEDED)
    s.must(jobs[1], RELEASED)
    s.store.purge([s.must(jobs[2], SUCCEEDED)])
    same(s.store.renew([hold(job) for job in jobs], LEASE), [False] * 3, "answers")
    same(s.get("b").lease_expires_at, None, "the lease of a waiting job")


@check()
def renewals_are_answered_in_order(s: JobStoreSubject) -> None:
    """Each hold of a call has its own answer, in order."""
    s.put("a", "b", "c")
    jobs = s.claim(3)
    s.must(jobs[1], SUCCEEDED)
    unknown = LeaseRenewal(jobs[0].key, "somebody else", jobs[0].fence, False)
    holds = [hold(jobs[0]), hold(jobs[1]), unknown, hold(jobs[2])]
    same(s.store.renew(holds, LEASE), [True, False, False, True], "answers")
    same(s.store.renew([], LEASE), [], "no holds")


@check()
def renewals_of_many_are_told_apart(s: JobStoreSubject) -> None:
    """Many in one call: each is answered, prolonged and charged by itself."""
    s.put(*(f"job-{number:02}" for number in range(12)))
    jobs = s.claim(12)
    s.must(jobs[1], SUCCEEDED)
    s.must(jobs[2], RELEASED)
    s.clock.forward(10.0)
    stranger = LeaseRenewal(jobs[3].key, "somebody else", jobs[3].fence, True)
    stale = LeaseRenewal(jobs[4].key, jobs[4].id, jobs[4].fence - 1, True)
    others = [hold(job, is_charged=number < 9) for number, job in enumerate(jobs[5:], 5)]
    holds = [hold(jobs[0]), hold(jobs[1]), hold(jobs[2]), stranger, stale, *others]
    same(s.store.renew(holds, 2 * LEASE), [True, *[False] * 4, *[True] * 7], "answers")
    found = [s.get(job.id) for job in jobs]
    old, new = START + LEASE, START + 10.0 + 2 * LEASE
    ends = [job.lease_expires_at for job in found]
    same(ends, [new, None, None, old, old, *[new] * 7], "the ends of the leases")
    charged = [number for number, job in enumerate(found) if job.is_charged]
    same(charged, [5, 6, 7, 8], "charged")


@check()
def overdue_are_the_expired_ones(s: JobStoreSubject) -> None:
    """Only running jobs whose lease has expired are overdue."""
    s.put("gone", "alive", "done", "back")
    jobs = {job.id: job for job in s.claim(4)}
    s.put("waiting")
    same(s.store.expired_leases(10), [], "at once")
    s.must(jobs["done"], SUCCEEDED)
    s.must(jobs["back"], RELEASED)
    s.clock.forward(LEASE - 1.0)
    same(s.store.expired_leases(10), [], "before the end of the lease")
    s.store.renew([hold(jobs["alive"])], LEASE)
    s.clock.forward(2.0)
    overdue = s.store.expired_leases(10)
    same(ids_of(overdue), ["gone"], "afterwards")
    same((overdue[0].status, overdue[0].worker), (JobStatus.ACTIVE, "w1"), "as found")


@check()
def oldest_lease_comes_first(s: JobStoreSubject) -> None:
    """Those whose lease ended first come first, and no more of them than asked for."""
    s.put("a", "b", "c", "d")
    for lease in (40.0, 10.0, 30.0, 20.0):
        s.claim(1, lease=lease)
    s.clock.forward(60.0)
    same(ids_of(s.store.expired_leases(10)), ["b", "d", "c", "a"], "order")
    same(ids_of(s.store.expired_leases(2)), ["b", "d"], "the first two")


@check()
def rescued_job_is_no_longer_overdue(s: JobStoreSubject) -> None:
    """What was rescued leaves the list at once."""
    s.put("a", "b")
    s.claim(2)
    s.clock.forward(LEASE + 1.0)
    for job in s.store.expired_leases(1):
        s.must(job, LeaseExpired(), if_expired=True)
    same(len(s.store.expired_leases(10)), 1, "still overdue")


@check()
def renewals_among_threads(s: JobStoreSubject) -> None:
    """Renewals and reports at the same time never both lose."""
    s.put(*(f"job-{n}" for n in range(20)))
    jobs = s.claim(20)
    holds = [hold(job, is_charged=True) for job in jobs]
    renewals = [partial(s.store.renew, holds, LEASE)] * 3
    answers = s.together([*renewals, *(partial(s.settle, job, SUCCEEDED) for job in jobs)])
    expect(all(answers[3:]), "a report was refused")
    same({s.get(job.id).attempts for job in jobs}, {1}, "attempts")
