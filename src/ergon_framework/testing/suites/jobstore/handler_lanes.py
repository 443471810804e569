"""Checks of jobs that wait for a handler: whoever lacks it leaves them to workers that have it."""

from __future__ import annotations

from typing import Any

import msgspec

from ergon_framework.core.job import ExecutorMissing, HandlerMissing, JobStatus
from ergon_framework.jobs.client import JobClient
from ergon_framework.ports.flow import step_id
from ergon_framework.ports.jobstore import Job
from ergon_framework.testing.suites.framework import Check, expect, register
from ergon_framework.testing.suites.jobstore.claim import named_by, worker_with
from ergon_framework.testing.suites.jobstore.under_test import (
    FAILS_ONCE,
    RELEASED,
    SUCCEEDED,
    WAIT,
    JobStoreSubject,
    ids_of,
    same,
)

CHECKS: list[Check[JobStoreSubject]] = []
check = register(CHECKS)
HAS: dict[str, Any] = {"handlers": {"python": ("resize",)}}
"""What a worker asks with whose executor has the handler."""


@check()
def job_without_its_handler_is_left_to_others(s: JobStoreSubject) -> None:
    """It waits uncharged; no worker without the handler gets it again, and one that has it does."""
    s.put("a", "other", handler="resize")
    left = _left(s, "a")
    same((left.status, left.attempts, left.excused), (JobStatus.PENDING, 0, 1), "given back")
    same(left.handler, "resize", "its handler")
    same(s.ids(9), ["other"], "claimed without the handler")
    same(s.ids(9, handlers={"python": ("crop",)}), [], "claimed with another handler")
    same(s.ids(9, default="node"), [], "claimed by a worker with another executor")
    jobs = s.claim(9, **HAS)
    same(ids_of(jobs), ["a"], "claimed with the handler")
    same((jobs[0].handler, jobs[0].deliveries), ("resize", 2), "handler and deliveries")
    done = s.must(jobs[0], SUCCEEDED, keep=60.0)
    same((done.status, done.attempts), (JobStatus.COMPLETED, 1), "the end")


@check()
def lane_of_a_handler_follows_the_executor_and_the_route(s: JobStoreSubject) -> None:
    """A job that names its executor waits for the handler there; another one goes by the routes."""
    slots = {"python": 9, "node": 9}
    for job_id, executor, queue in (("named", "node", "one"), ("a", "", "one"), ("b", "", "two")):
        prefix = f"{executor}#" if executor else ""
        s.put(job_id, handler=f"{prefix}resize", executor=executor, queue=queue)
    for job in s.claim(slots):
        s.must(job, HandlerMissing(job.executor, "resize"))
    same(s.ids(slots), [], "without the handler")
    same(s.ids(slots, handlers={"node": ("resize",)}), ["named"], "where node has it")
    routes = {"two": "node"}
    both = {"node": ("resize",)}
    same(s.ids(slots, handlers=both, routes=routes), ["b"], "where node has it, by the route")
    same(s.ids({"python": 0}, **HAS), [], "without a slot")
    same(s.ids(slots, **HAS), ["a"], "where python has it")


@check()
def claim_tells_which_handlers_are_waited_for(s: JobStoreSubject) -> None:
    """One that looks at what is left names the lanes of handlers in which jobs are due."""
    s.put("a", "b", handler="resize")
    s.put("c", handler="python#crop", executor="python", queue="two")
    for job in s.claim(9):
        s.must(job, HandlerMissing(job.executor, job.handler.rpartition("#")[2]))

    def told(**changes: Any) -> list[str]:
        own = frozenset({"python"})
        return sorted(s.settle_and_claim((), 9, own=own, **changes)[1].handler_lanes)

    same(told(), ["#resize", "python#crop"], "with both")
    same(told(handlers={"python": ("resize",)}), ["python#crop"], "when one is run")
    same(told(handlers={"python": ("crop",)}), [], "when both are")


@check()
def job_for_a_handler_of_others_is_not_left(s: JobStoreSubject) -> None:
    """More is left only where the worker has the handler: others would keep it from its end."""
    own = frozenset({"python"})
    s.put("a", handler="resize")
    _left(s, "a")
    same(s.settle_and_claim((), 0, own=own)[1].more, False, "without the handler")
    same(s.settle_and_claim((), 0)[1].more, False, "without the handler, of a worker with any")
    same(s.settle_and_claim((), 0, own=own, **HAS)[1].more, True, "with the handler")


@check()
def lane_of_a_handler_is_shared_by_priority_and_age(s: JobStoreSubject) -> None:
    """Jobs that wait for a handler go between the others of their queue, as they would have."""
    s.put("low", handler="resize", priority=-1)
    s.put("high", handler="resize", priority=5)
    for job in s.claim(9):
        s.must(job, HandlerMissing("", "resize"))
    s.clock.forward(1.0)
    s.put("plain")
    same(s.ids(9, **HAS), ["high", "plain", "low"], "order")


@check()
def job_stays_in_the_lane_of_its_handler(s: JobStoreSubject) -> None:
    """A retry, or a worker that gives it back, does not offer it to those without the handler."""
    s.put("a", handler="resize")
    _left(s, "a")
    s.must(s.take("a", **HAS), RELEASED)
    same(s.ids(9), [], "after it was given back")
    s.must(s.take("a", **HAS), FAILS_ONCE)
    s.clock.forward(WAIT)
    same(s.ids(9), [], "when it is tried again")
    same(s.ids(9, **HAS), ["a"], "for a worker with the handler")


@check()
def late_report_moves_no_job_to_a_lane(s: JobStoreSubject) -> None:
    """Whoever has lost the job does not change for whom it waits."""
    s.put("a", handler="resize")
    old = s.take("a")
    s.must(old, RELEASED)
    same(s.settle(old, HandlerMissing("", "resize")), False, "the report of one that gave it back")
    taken = s.take("a")
    same(s.settle(old, HandlerMissing("", "resize")), False, "the report of an earlier claim")
    same(s.get("a").executor, "", "the lane of a job that runs")
    s.must(taken, RELEASED)
    same(s.ids(9), ["a"], "claimed without the handler")


@check()
def handler_that_nobody_has_is_named_and_aged(s: JobStoreSubject) -> None:
    """Who waits for it can be found and dead-lettered, and when it was last seen is known."""
    s.put("a", "b", handler="resize", queue="two")
    for job in s.claim(9):
        s.must(job, HandlerMissing("", "resize"))
    began = s.store.now()
    s.store.heartbeat(worker_with("w1", "python"))
    same(named_by(s), [("#resize", ("two",), began)], "named, never seen")
    s.clock.forward(30.0)
    seen = s.store.now()
    record = msgspec.structs.replace(worker_with("w2", "python"), serves=("#resize",))
    s.store.heartbeat(record)
    s.clock.forward(30.0)
    same(named_by(s), [("#resize", ("two",), seen)], "named, and seen")
    found = s.store.waiting_for("#resize", s.store.now(), 9)
    same(sorted(ids_of(found)), ["a", "b"], "found")
    ended = s.must(found[0], ExecutorMissing("", "resize"))
    same((ended.status, ended.why), (JobStatus.FAILED, "unhandled"), "the end")
    expect(ended.last_error is not None and ended.last_error.code == "handler_not_found", "no code")


@check()
def lane_of_a_handler_keeps_limits(s: JobStoreSubject) -> None:
    """A limit key and the limit of a queue hold for jobs that wait for a handler, too."""
    s.put("a", "b", "c", handler="resize", limit_key="k", limit=1)
    for job_id in ("a", "b", "c"):
        _left(s, job_id)
    first = s.claim(9, **HAS)
    same(ids_of(first), ["a"], "as many as the key allows")
    s.must(first[0], SUCCEEDED, keep=60.0)
    same(s.ids(9), [], "without the handler")
    same(s.ids(9, **HAS), ["b"], "the next one")
    s.store.set_queue("q", max_active=1)
    s.put("x", "y", handler="resize", queue="q")
    for job_id in ("x", "y"):
        _left(s, job_id)
    same(s.ids(9, queues=("q",), **HAS), ["x"], "as many as the queue allows")


@check("flows")
def step_waits_for_its_handler(s: JobStoreSubject) -> None:
    """A step of a flow is left to others as any job, and what follows it starts after it."""
    flow = JobClient(store=s.store).chain("resize", "send").enqueue()
    (job,) = s.claim(9)
    s.must(job, HandlerMissing("", "resize"), is_step=True)
    same(s.ids(9), [], "without the handler")
    (again,) = s.claim(9, **HAS)
    same(again.id, step_id(flow, 1), "with the handler")
    s.must(again, SUCCEEDED, result=b"1", is_step=True)
    same(s.ids(9), [step_id(flow, 2)], "what follows")


def _left(s: JobStoreSubject, job_id: str) -> Job:
    """Claim a job, which must be the next, and give it back for want of its handler."""
    return s.must(s.take(job_id), HandlerMissing("", "resize"))
