"""Checks of upkeep: sweeping, closing and surviving."""

from __future__ import annotations

from ergon_framework.core.job import CancelAsked, JobStatus
from ergon_framework.errors import StoreError
from ergon_framework.ports.jobstore import Search
from ergon_framework.testing.suites.drivers import START
from ergon_framework.testing.suites.framework import Check, expect, register
from ergon_framework.testing.suites.jobstore.schedules import schedule
from ergon_framework.testing.suites.jobstore.subject import (
    FAILS_FOR_GOOD,
    FAILS_ONCE,
    RELEASED,
    SUCCEEDED,
    Subject,
    same,
)

CHECKS: list[Check[Subject]] = []
check = register(CHECKS)


# ---- sweeping -----------------------------------------------------------------------------------


@check()
def sweep_purges_what_was_kept_long_enough(s: Subject) -> None:
    """A sweep deletes the final jobs whose time has come, and no others."""
    s.put("short", "long", "ever", "waiting")
    for job_id, keep in (("short", 10.0), ("long", 100.0), ("ever", None)):
        s.ended(job_id, keep=keep)
    same(s.store.sweep(100).purged, 0, "purged at once")
    s.clock.forward(11.0)
    found = s.store.sweep(100)
    same((found.purged, found.more), (1, False), "purged, more")
    same(s.store.find("short"), None, "the one whose time had come")
    same(s.store.count(Search()), 3, "what is left")


@check()
def sweep_purges_every_end(s: Subject) -> None:
    """Completed, dead-lettered and cancelled jobs are all swept."""
    s.put("done", "dead", "off")
    s.ended("done", SUCCEEDED, keep=1.0)
    s.ended("dead", FAILS_FOR_GOOD, keep=1.0)
    s.must(s.get("off"), CancelAsked(), keep=1.0)
    s.clock.forward(2.0)
    same(s.store.sweep(100).purged, 3, "purged")
    same(s.store.count(Search()), 0, "what is left")


@check()
def sweep_ends_what_is_outdated(s: Subject) -> None:
    """A sweep dead-letters jobs that were not started before their expiry, due or not."""
    s.put("due", expires_at=START + 10.0)
    s.put("later", delay=500.0, expires_at=START + 10.0)
    s.put("running", expires_at=START + 10.0, priority=9)
    s.take("running")
    s.put("fine", expires_at=START + 900.0)
    s.clock.forward(11.0)
    same(s.store.sweep(100).outdated, 2, "outdated")
    for job_id in ("due", "later"):
        job = s.get(job_id)
        same(job.status, JobStatus.FAILED, f"status of {job_id}")
        same(job.last_error and job.last_error.code, "expired", f"failure of {job_id}")
    wanted = (JobStatus.ACTIVE, JobStatus.PENDING)
    same((s.status("running"), s.status("fine")), wanted, "the others")
    same(s.ids(9), ["fine"], "delivered")


@check()
def sweep_is_bounded(s: Subject) -> None:
    """A sweep does no more at a time than asked for, says so, and comes to an end."""
    s.put(*(f"job-{n}" for n in range(25)))
    s.store.exchange([s.told(job, SUCCEEDED, keep=1.0) for job in s.claim(25)], None)
    s.clock.forward(2.0)
    first = s.store.sweep(10)
    same((first.purged, first.more), (10, True), "purged, more")
    purged = first.purged
    for _ in range(10):
        found = s.store.sweep(10)
        expect(found.purged <= 10, f"{found.purged} at once")
        purged += found.purged
        if not found.more:
            break
    same((purged, s.store.count(Search())), (25, 0), "purged in all, left")
    same(s.store.sweep(10).more, False, "more, when nothing is left")


@check()
def sweep_of_nothing_is_fine(s: Subject) -> None:
    """A sweep in an empty store finds nothing to do."""
    found = s.store.sweep(10)
    same((found.purged, found.outdated, found.workers, found.more), (0, 0, 0, False), "found")


@check()
def swept_id_is_free(s: Subject) -> None:
    """The id of a job that was swept can be used again."""
    s.put("a", unique_key="k")
    s.ended("a", keep=1.0)
    s.clock.forward(2.0)
    s.store.sweep(10)
    same(s.put("a", unique_key="k")[0].is_new, True, "is_new")
    same(s.take("a").deliveries, 1, "deliveries of the new job")


# ---- closing and surviving ----------------------------------------------------------------------


@check()
def durability_is_a_sentence(s: Subject) -> None:
    """The store says in one sentence what its acknowledgement means."""
    text = s.store.durability
    expect(text.endswith(".") and len(text.split()) >= 5, f"it says {text!r}")


@check()
def closes_twice(s: Subject) -> None:
    """Closing a second time is no error."""
    s.put("a")
    s.store.close()
    s.store.close()


@check()
def closed_store_refuses(s: Subject) -> None:
    """A closed store takes no jobs: it says so instead of losing them."""
    s.put("a")
    s.store.close()
    error = s.refusal(lambda: s.put("b"))
    expect(isinstance(error, StoreError), f"no StoreError, but {error!r}")


@check("reopen")
def jobs_survive(s: Subject) -> None:
    """Jobs, counters, keys, queues and schedules are the same after the store was opened anew."""
    s.put("done", "again", unique_key=None)
    s.put("running", limit_key="l", priority=-1)
    s.ended("done", result=b"1", keep=60.0)
    s.ended("again", FAILS_ONCE)
    leased = s.take("running")
    s.put("waiting", unique_key="k", limit_key="l", trace_context={"t": "1"})
    s.store.set_queue("q", rate=0.25, max_active=2)
    s.store.put_schedule(schedule("a"))
    before = list(s.store.search(Search())), s.store.schedules()
    s.reopen()
    same((list(s.store.search(Search())), s.store.schedules()), before, "jobs and schedules")
    queue = {each.name: each for each in s.store.queues()}["q"]
    same((queue.rate, queue.max_active), (0.25, 2), "the queue")
    same(s.ids(9), [], "a job whose limit key is held")
    expect(s.refusal(lambda: s.put("x", unique_key="k")), "the unique key is free")
    expect(s.settle(leased, SUCCEEDED), "the holder could not finish")
    same(s.ids(9), ["waiting"], "what waited for the key")


@check("reopen")
def fences_survive(s: Subject) -> None:
    """After the store was opened anew, fences go on growing and late reports stay refused."""
    s.put("a")
    old = s.take("a")
    s.must(old, RELEASED)
    s.reopen()
    leased = s.take("a")
    expect(leased.fence > old.fence, f"fence {leased.fence} after {old.fence}")
    same(s.settle(old, SUCCEEDED), False, "a late report was applied")
