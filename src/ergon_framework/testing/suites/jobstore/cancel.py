"""Checks of cancelling a job that runs: the request is kept with its claim, and honoured once."""

from __future__ import annotations

import msgspec

from ergon_framework.core.job import JobStatus, LeaseExpired, RunRequested
from ergon_framework.jobs.client import JobClient
from ergon_framework.ports.flow import step_id
from ergon_framework.ports.jobstore import CancelRequest, Topic
from ergon_framework.testing.suites.framework import Check, expect, register
from ergon_framework.testing.suites.jobstore.under_test import (
    FAILS_FOR_GOOD,
    FAILS_ONCE,
    LEASE,
    RELEASED,
    SUCCEEDED,
    WAIT,
    JobStoreSubject,
    hold,
    same,
)

CHECKS: list[Check[JobStoreSubject]] = []
check = register(CHECKS)

REQUEST = CancelRequest(at="2026-01-01T00:00:00Z", by="ann", reason="the wrong file")


@check()
def cancel_request_reaches_the_holder(s: JobStoreSubject) -> None:
    """The holder of a running job learns who wants it cancelled, and why; nobody else is named."""
    s.put("a", "b", "waits")
    jobs = s.claim(2)
    same(s.store.cancel_requests([hold(job) for job in jobs]), {}, "before")
    expect(s.store.request_cancel(s.get("a"), REQUEST), "the request was refused")
    same(s.store.cancel_requests([hold(job) for job in jobs]), {"a": REQUEST}, "afterwards")
    same(s.get("a").cancel_request, REQUEST, "as the job tells it")
    same((s.get("a").status, s.get("b").cancel_request), (JobStatus.ACTIVE, None), "the rest")
    same(s.store.renew([hold(job) for job in jobs], LEASE), [True, True], "renewed")
    same(s.get("a").cancel_request, REQUEST, "after a renewal")


@check()
def first_cancel_request_stays(s: JobStoreSubject) -> None:
    """A second request changes nothing."""
    s.put("a")
    s.take("a")
    s.store.request_cancel(s.get("a"), REQUEST)
    again = CancelRequest(at="2026-01-01T00:00:01Z", by="bob")
    expect(s.store.request_cancel(s.get("a"), again), "the second request was refused")
    same(s.get("a").cancel_request, REQUEST, "the request")


@check()
def cancel_request_belongs_to_one_claim(s: JobStoreSubject) -> None:
    """It is refused for a job that does not run, or not by this claim any more."""
    s.put("a")
    expect(not s.store.request_cancel(s.get("a"), REQUEST), "a waiting job was marked")
    first = s.take("a")
    seen = s.get("a")
    s.must(first, RELEASED)
    second = s.take("a")
    expect(not s.store.request_cancel(seen, REQUEST), "a later claim was marked")
    same(s.store.cancel_requests([hold(first), hold(second)]), {}, "requests")
    s.store.request_cancel(s.get("a"), REQUEST)
    same(s.store.cancel_requests([hold(first)]), {}, "of the earlier claim")
    s.must(second, SUCCEEDED)
    expect(not s.store.request_cancel(s.get("a"), REQUEST), "an ended job was marked")
    same(s.store.cancel_requests([hold(second)]), {}, "of an ended job")


@check()
def completion_wins_over_a_cancel_request(s: JobStoreSubject) -> None:
    """A job that completes or fails for good although it was to be cancelled has that end."""
    s.put("done", "failed")
    done, failed = s.claim(2)
    for each in (done, failed):
        s.store.request_cancel(s.get(each.id), REQUEST)
    job = s.must(done, SUCCEEDED, result=b"7")
    same((job.status, job.result, job.why), (JobStatus.COMPLETED, b"7", ""), "completed")
    same(s.must(failed, FAILS_FOR_GOOD).status, JobStatus.FAILED, "failed")
    same(s.get("done"), job, "when it is read again")


@check()
def cancelled_job_does_not_wait_again(s: JobStoreSubject) -> None:
    """A holder that has not seen the request gives the job back: it has ended, and keeps no key."""
    s.put("a", unique_key="u", limit_key="k")
    s.put("b", limit_key="k")
    s.put("c")
    jobs = {each.id: each for each in s.claim(3)}
    for name, event in (("a", FAILS_ONCE), ("c", RELEASED)):
        s.store.request_cancel(s.get(name), REQUEST)
        job = s.must(jobs[name], event)
        same((job.status, job.why), (JobStatus.CANCELLED, "cancelled_running"), f"{name}")
        expect(job.finished_at is not None and job.purge_at is not None, f"{name} has not ended")
        last = msgspec.json.decode(job.history[-1])
        told = (last["event"], last["status"], last["by"], last["reason"])
        same(told, ("cancelled", "cancelled", "ann", "the wrong file"), "its history")
    s.put("d", unique_key="u")
    s.clock.forward(WAIT)
    same(sorted(s.ids(5)), ["b", "d"], "what runs next")


@check()
def rescue_cancels_what_was_to_be_cancelled(s: JobStoreSubject) -> None:
    """The job of a worker that died after the request is not run again."""
    s.put("a")
    s.take("a")
    s.store.request_cancel(s.get("a"), REQUEST)
    s.clock.forward(LEASE + 1.0)
    lost = s.store.expired_leases(5)[0]
    same(lost.cancel_request, REQUEST, "as the rescuer sees it")
    job = s.must(lost, LeaseExpired(), if_expired=True)
    same(job.status, JobStatus.CANCELLED, "status")
    same(s.ids(5), [], "what runs next")


@check("flows")
def cancelled_step_ends_as_one(s: JobStoreSubject) -> None:
    """A running step whose cancellation was requested ends, and its flow goes by its policy."""
    flow = JobClient(store=s.store).chain("a", "b").enqueue()
    leased = s.take(step_id(flow, 1))
    s.store.request_cancel(s.get(leased.id), REQUEST)
    same(s.must(leased, FAILS_ONCE).status, JobStatus.CANCELLED, "the step")
    same(s.status(step_id(flow, 2)), JobStatus.CANCELLED, "what waited for it")
    same(s.ids(5), [], "what runs next")


@check("reopen")
def cancel_request_survives_the_process(s: JobStoreSubject) -> None:
    """Whoever asked may leave at once."""
    s.put("a")
    leased = s.take("a")
    s.store.request_cancel(s.get("a"), REQUEST)
    s.reopen()
    same(s.store.cancel_requests([hold(leased)]), {"a": REQUEST}, "requests")


@check()
def retried_job_forgets_its_cancel_request(s: JobStoreSubject) -> None:
    """An operator brings a cancelled job back: it runs as if nobody had asked."""
    s.put("a")
    leased = s.take("a")
    s.store.request_cancel(s.get("a"), REQUEST)
    s.must(s.must(leased, FAILS_ONCE), RunRequested())
    again = s.take("a")
    same((s.get("a").why, s.store.cancel_requests([hold(again)])), ("", {}), "the next claim")
    same(s.must(again, FAILS_ONCE).status, JobStatus.RETRYING, "its failure")


@check()
def cancel_request_rings(s: JobStoreSubject) -> None:
    """Holders are woken, so that nobody has to look now and then."""
    s.put("a")
    s.take("a")
    subscription = s.store.subscribe(Topic.CANCEL)
    try:
        subscription.wait(0.0)
        s.store.request_cancel(s.get("a"), REQUEST)
        expect(subscription.wait(s.patience), "nobody was woken")
    finally:
        subscription.close()
