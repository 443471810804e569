"""Checks of what may go, deleting just that, and erasing what jobs tell of their subject."""

from __future__ import annotations

import msgspec

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.flow import FlowStatus, RetryFlow
from ergon_framework.core.job import CancelRequested, Failed, JobStatus, RequeueRequested
from ergon_framework.core.retention import JobRetention, KeptFor
from ergon_framework.core.unique import OnDuplicate
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.flow_client import EnqueuedFlow, flows_of
from ergon_framework.ports.flow import Flow, step_id
from ergon_framework.ports.jobstore import CancelRequest, Job, Search
from ergon_framework.testing.suites.drivers import START
from ergon_framework.testing.suites.framework import Check, expect, fail, register
from ergon_framework.testing.suites.jobstore.under_test import (
    DAY,
    FAILS_FOR_GOOD,
    RELEASED,
    SUCCEEDED,
    JobStoreSubject,
    ids_of,
    same,
)

CHECKS: list[Check[JobStoreSubject]] = []
check = register(CHECKS)


def _ended_chain(s: JobStoreSubject, *parts: str, keep: float) -> EnqueuedFlow:
    flow = JobClient(store=s.store).chain(*parts).enqueue()
    for number in range(1, len(parts) + 1):
        s.ended(step_id(flow, number), keep=keep, result=b"1")
    return flow


def _prunable_flow(s: JobStoreSubject, flow_id: str) -> Flow:
    found = {flow.id: flow for flow in flows_of(s.store).prunable(100)}
    return found[flow_id] if flow_id in found else fail(f"the flow {flow_id!r} may not go")


@check()
def prunable_jobs_are_those_kept_long_enough(s: JobStoreSubject) -> None:
    """Of every queue and every end, as they are; nothing else is among them, and they stay."""
    s.put("done", "long", "ever", result_ttl=5.0, tags=("a",), args=b"[1]")
    s.ended("done", keep=10.0, result=b"1")
    s.ended("long", keep=100.0)
    s.ended("ever", keep=None)
    s.put("dead", queue="q")
    s.ended("dead", FAILS_FOR_GOOD, keep=10.0)
    s.put("off", "waits")
    s.must(s.get("off"), CancelRequested(), keep=10.0)
    same(ids_of(s.store.prunable(100)), [], "before their time")
    s.clock.forward(11.0)
    found = {job.id: job for job in s.store.prunable(100)}
    same(sorted(found), ["dead", "done", "off"], "those that may go")
    same(found["done"], s.get("done"), "one of them")
    same(s.store.count(Search()), 6, "jobs in the store")
    same(sorted(ids_of(s.store.prunable(100))), ["dead", "done", "off"], "the second time")


@check()
def prunable_jobs_come_in_slices(s: JobStoreSubject) -> None:
    """No more at a time than asked for, and those that go first, first."""
    s.put(*(f"job-{n}" for n in range(5)))
    for n in range(5):
        s.ended(f"job-{n}", keep=50.0 - n)
    s.clock.forward(60.0)
    found = s.store.prunable(2)
    same(ids_of(found), ["job-4", "job-3"], "the first two")
    same(s.store.purge(found), 2, "purged")
    same(ids_of(s.store.prunable(9)), ["job-2", "job-1", "job-0"], "the rest")


@check()
def prunable_job_that_came_back_is_not_purged(s: JobStoreSubject) -> None:
    """Somebody sent it back after it was read to be archived; also when it has failed once more."""
    s.put("a", "b", "c")
    for job_id in ("a", "b", "c"):
        s.ended(job_id, FAILS_FOR_GOOD, keep=1.0)
    s.clock.forward(2.0)
    read = s.store.prunable(9)
    for job_id in ("a", "b"):
        s.must(s.get(job_id), RequeueRequested())
    s.ended("a", FAILS_FOR_GOOD, keep=100.0)
    same(s.store.purge(read), 1, "purged")
    left = (JobStatus.FAILED, JobStatus.PENDING, None)
    same((s.status("a"), s.status("b"), s.store.find("c")), left, "what is left")
    same(ids_of(s.store.prunable(9)), [], "what may go")


@check()
def prune_may_leave_what_is_to_be_archived(s: JobStoreSubject) -> None:
    """It ends what is outdated and deletes no job and no flow."""
    s.put("done")
    s.ended("done", keep=1.0)
    s.put("late", expires_at=START + 5.0)
    s.clock.forward(10.0)
    found = s.store.prune(100, purges=False)
    same((found.purged, found.outdated, found.more), (0, 1, False), "purged, outdated, more")
    same(s.store.count(Search()), 2, "jobs in the store")
    same(s.store.prune(100).purged, 1, "purged without that")


@check("flows")
def prune_may_leave_flows_that_are_to_be_archived(s: JobStoreSubject) -> None:
    """With all their steps."""
    flow = _ended_chain(s, "a", "b", keep=10.0)
    s.clock.forward(11.0)
    same(s.store.prune(100, purges=False).purged, 0, "purged")
    same(s.store.count(Search(flow=flow)), 2, "steps")
    same(ids_of(s.store.prunable(100)), [], "steps among the jobs that may go")


@check("flows")
def prunable_flows_are_those_kept_long_enough(s: JobStoreSubject) -> None:
    """Those that have ended, as they are, the first to go first."""
    late, soon = _ended_chain(s, "a", keep=20.0), _ended_chain(s, "b", keep=10.0)
    _ended_chain(s, "c", keep=500.0)
    JobClient(store=s.store).chain("d").enqueue()
    same(flows_of(s.store).prunable(100), [], "before their time")
    s.clock.forward(21.0)
    found = flows_of(s.store).prunable(100)
    same([flow.id for flow in found], [soon, late], "those that may go")
    same(found[0], flows_of(s.store).find(soon), "one of them")
    same([flow.id for flow in flows_of(s.store).prunable(1)], [soon], "one at a time")


@check("flows")
def flow_is_deleted_in_slices(s: JobStoreSubject) -> None:
    """At most so many steps at a time, then the flow; others stay."""
    flow, other = _ended_chain(s, "a", "b", "c", keep=10.0), _ended_chain(s, "d", keep=10.0)
    s.clock.forward(11.0)
    read, flows = _prunable_flow(s, flow), flows_of(s.store)
    expect(flows.delete(read, 2), "nothing is left after two of three steps")
    same(s.store.count(Search(flow=flow)), 1, "steps after the first slice")
    expect(flows.find(flow), "the flow went before its last step")
    left = 5  # joins may take slices of their own
    while flows.delete(read, 2) and left:
        left -= 1
    expect(left, "something is left after many slices")
    same((flows.find(flow), s.store.count(Search())), (None, 1), "what is left")
    expect(not flows.delete(read, 2), "a flow that is gone was deleted again")
    expect(flows.find(other), "another flow went with it")


@check("flows")
def flow_that_was_retried_is_not_deleted(s: JobStoreSubject) -> None:
    """Somebody retried it after it was read to be archived."""
    flow = JobClient(store=s.store).chain("a", "b").enqueue()
    s.ended(step_id(flow, 1), FAILS_FOR_GOOD, keep=10.0)
    flows = flows_of(s.store)
    s.clock.forward(DAY + 1.0)  # for so long a step is kept that its flow cancels
    read = _prunable_flow(s, flow)
    flows.apply(flow, RetryFlow())
    expect(not flows.delete(read, 10), "more is left of it")
    same(s.store.count(Search(flow=flow)), 2, "steps")
    for number in (1, 2):
        s.must(s.take(step_id(flow, number)), SUCCEEDED, keep=0.0)
    s.clock.forward(DAY + 1.0)
    expect(not flows.delete(read, 10), "more is left of it")
    found = flows.find(flow)
    same(found and found.status, FlowStatus.COMPLETED, "the flow")
    expect(not flows.delete(_prunable_flow(s, flow), 10), "more is left of it")
    same(flows.find(flow), None, "the flow, when it was read again")


# ---- what a store ends by itself ----------------------------------------------------------------

OWN = JobRetention(KeptFor(1.0, 70.0, 8.0), {"q": KeptFor(1.0, 7.0, 0.5)})


def _kept(s: JobStoreSubject, job_id: str) -> tuple[JobStatus, float | None]:
    """How a job ended, and for how long it is kept."""
    job = s.get(job_id)
    if job.finished_at is None or job.purge_at is None:
        return job.status, None
    return job.status, round(job.purge_at - job.finished_at, 3)


@check()
def expired_jobs_are_kept_as_settings_say(s: JobStoreSubject) -> None:
    """Whether a claim meets them or a sweep; of their queue, or of all."""
    s.store.retention = OWN
    s.put("met", "swept", expires_at=START + 5.0)
    s.put("met in q", "swept in q", queue="q", expires_at=START + 5.0)
    s.put("met of a key", expires_at=START + 5.0, limit_key="k")
    s.clock.forward(6.0)
    same(s.claim(5, queues=("default",)), [], "claimed")
    s.store.prune(100)
    for name in ("met", "swept", "met of a key"):
        same(_kept(s, name), (JobStatus.FAILED, 70.0), name)
    for name in ("met in q", "swept in q"):
        same(_kept(s, name), (JobStatus.FAILED, 7.0), name)


@check()
def replaced_jobs_are_kept_as_settings_say(s: JobStoreSubject) -> None:
    """They are cancelled for another job with their unique key."""
    s.store.retention = OWN
    s.put("old", unique_key="k")
    s.put("old in q", queue="q", unique_key="l")
    s.put("new", unique_key="k", on_duplicate=OnDuplicate.REPLACE)
    s.put("newer", unique_key="l", on_duplicate=OnDuplicate.REPLACE)
    same(_kept(s, "old"), (JobStatus.CANCELLED, 8.0), "the first")
    same(_kept(s, "old in q"), (JobStatus.CANCELLED, 0.5), "the one of a queue")


@check()
def jobs_cancelled_while_they_run_are_kept_as_settings_say(s: JobStoreSubject) -> None:
    """Their holder gives them back, and has not seen the request."""
    s.store.retention = OWN
    s.put("a", queue="q")
    s.put("b")
    for _ in range(2):
        [job] = s.claim(1)
        s.store.request_cancel(s.get(job.id), CancelRequest(at="2026-01-01T00:00:00Z"))
        expect(s.settle(job, RELEASED, queue=job.queue), f"{job.id} was not given back")
    same(_kept(s, "a"), (JobStatus.CANCELLED, 0.5), "the one of a queue")
    same(_kept(s, "b"), (JobStatus.CANCELLED, 8.0), "the other")


@check("flows")
def flows_that_stop_are_kept_as_settings_say(s: JobStoreSubject) -> None:
    """As long as the step that is kept longest, of those that the store cancelled."""
    s.store.retention = OWN
    client, flows = JobClient(store=s.store), flows_of(s.store)
    stopped = {
        client.chain("a", {"handler": "b", "queue": queue}).enqueue(): keep
        for queue, keep in (("default", 8.0), ("q", 2.0))
    }
    for flow, keep in stopped.items():
        s.ended(step_id(flow, 1), FAILS_FOR_GOOD, keep=2.0)
        s.store.prune(100)
        found = flows.find(flow)
        expect(found is not None and found.purge_at is not None, "it does not go")
        if found is not None and found.purge_at is not None:
            same(round(found.purge_at - found.changed_at, 3), keep, "how long it is kept")


# ---- erasing ------------------------------------------------------------------------------------

ABOUT = b"ann@example.org"
_PRIVATE = {
    "args": b'["ann@example.org"]',
    "kwargs": b'{"to":"ann@example.org"}',
    "unique_key": "mail:ann@example.org",
    "limit_key": "ann@example.org",
    "correlation_id": "of ann@example.org",
    "trace_context": {"baggage": "user=ann@example.org"},
    "tags": ("ann@example.org", "mails"),
    "metadata": {"to": "ann@example.org"},
}
_REFUSED = Failed(Failure(Kind.REJECTED, "bounced", "no mailbox ann@example.org"))


def _tells(job: Job) -> bool:
    """Whether anything of a job names its subject."""
    return ABOUT.decode() in str(msgspec.structs.asdict(job))


def _entry(text: str) -> bytes:
    told = {"at": "2030-01-31T12:00:00Z", "event": "failed", "attempt": 1, "code": "bounced"}
    return msgspec.json.encode(told | {"message": text, "traceback": text, "reason": text})


@check()
def erased_job_tells_nothing_of_its_subject(s: JobStoreSubject) -> None:
    """Neither itself nor by what it is found; that it was there, and how it ended, stays."""
    s.put("a", **_PRIVATE)
    before = s.ended("a", _REFUSED, keep=DAY, entry=_entry("no mailbox ann@example.org"))
    expect(_tells(before), "the check finds what it looks for")
    same(s.store.erase([before]), 1, "erased")
    found = s.get("a")
    expect(not _tells(found), f"it still tells of its subject: {found}")
    kept = ("status", "handler", "queue", "attempts", "deliveries", "created_at", "finished_at")
    for name in (*kept, "purge_at", "fence", "priority", "limit"):
        same(getattr(found, name), getattr(before, name), name)
    same((found.args, found.kwargs, found.result), (b"[]", b"{}", None), "arguments and result")
    error = found.last_error
    same(error and (error.kind, error.code), (Kind.REJECTED, "bounced"), "the last failure")
    events = [msgspec.json.decode(each)["event"] for each in found.history]
    same(events[-2:], ["failed", "erased"], "its history")
    for wanted in (Search(tags=("mails",)), Search(metadata={"to": "ann@example.org"})):
        same((ids_of(s.store.search(wanted)), s.store.count(wanted)), ([], 0), f"by {wanted}")
    same(s.store.erase([before]), 1, "erased again")


@check()
def result_and_large_arguments_are_erased(s: JobStoreSubject) -> None:
    """Also where a store keeps what is large in a place of its own."""
    s.put("a", args=b'["%b"]' % (ABOUT * 5_000), tags=("mails",))
    s.ended("a", result=b'"%b"' % (ABOUT * 5_000), keep=1.0)
    same(s.store.erase([s.get("a")]), 1, "erased")
    expect(not _tells(s.get("a")), "it still tells of its subject")
    s.clock.forward(2.0)
    same((s.store.prune(10).purged, s.store.find("a")), (1, None), "purged in its time")


@check()
def only_what_has_ended_is_erased(s: JobStoreSubject) -> None:
    """Not what waits or runs, and not what was moved since it was read."""
    s.put("runs", "moved", "waits", args=b"[1]", tags=("mails",))
    s.take("runs")
    s.ended("moved", FAILS_FOR_GOOD)
    read = [s.get(each) for each in ("runs", "moved", "waits")]
    s.must(s.get("moved"), RequeueRequested())
    s.ended("moved", FAILS_FOR_GOOD)
    before = [s.get(each) for each in ("runs", "moved", "waits")]
    same(s.store.erase(read), 0, "erased")
    same([s.get(each) for each in ("runs", "moved", "waits")], before, "the jobs")
    same(s.store.count(Search(tags=("mails",))), 3, "found by their tag")


@check("reopen")
def erased_job_stays_erased(s: JobStoreSubject) -> None:
    """For whoever opens the store next."""
    s.put("a", **_PRIVATE)
    s.ended("a", result=b'"ann@example.org"')
    s.store.erase([s.get("a")])
    s.reopen()
    expect(not _tells(s.get("a")), "it tells of its subject")
    same(s.store.count(Search(tags=("mails",))), 0, "found by its tag")


@check("flows")
def step_can_be_erased(s: JobStoreSubject) -> None:
    """It stays where it is in its flow, and goes with it."""
    flow = _ended_chain(s, "a", "b", keep=10.0)
    first = s.get(step_id(flow, 1))
    same(s.store.erase([first]), 1, "erased")
    found = s.get(step_id(flow, 1))
    same((found.step, found.result), (first.step, None), "the step")
    same(s.store.count(Search(flow=flow)), 2, "steps")
    s.clock.forward(11.0)
    s.store.prune(10)
    same(s.store.count(Search()), 0, "what is left")


@check("flows")
def early_signal_is_erased_with_its_step(s: JobStoreSubject) -> None:
    """A value that was kept for a step which the flow cancelled: the step waits for it anew."""
    client = JobClient(store=s.store)
    flow, flows = client.chain("a", client.wait_for_signal("ok")).enqueue(), flows_of(s.store)
    flows.signal(flow, "ok", b'"%b"' % ABOUT)
    s.ended(step_id(flow, 1), FAILS_FOR_GOOD)
    cancelled = s.get(step_id(flow, 2))
    expect(_tells(cancelled), "the check finds what it looks for")
    same(s.store.erase([cancelled]), 1, "erased")
    expect(not _tells(s.get(step_id(flow, 2))), "it still tells of its subject")
    flows.apply(flow, RetryFlow())
    s.ended(step_id(flow, 1))
    same(s.status(step_id(flow, 2)), JobStatus.PENDING, "the step after a retry")
