"""Checks of when a job may be claimed, and what is recorded of a claim."""

from __future__ import annotations

from typing import Any

from ergon_framework.core.job import JobStatus
from ergon_framework.testing.suites.drivers import START
from ergon_framework.testing.suites.framework import Check, expect, register
from ergon_framework.testing.suites.jobstore.subject import (
    FAILS_ONCE,
    FLAKY,
    LEASE,
    RELEASED,
    SUCCEEDED,
    WAIT,
    Subject,
    ask,
    ids_of,
    new,
    same,
)

CHECKS: list[Check[Subject]] = []
check = register(CHECKS)

BOTH = frozenset({"python", "node"})


@check()
def next_at_is_exact(s: Subject) -> None:
    """A worker that got nothing learns the instant at which the next job is due."""
    s.put("later", delay=90.0)
    s.put("sooner", delay=40.25)
    claimed = s.exchange()[1]
    same(claimed.next_at, START + 40.25, "next_at")
    s.clock.to(START + 40.25)
    same(s.ids(), ["sooner"], "then")
    same(s.exchange()[1].next_at, START + 90.0, "next_at after that")


@check()
def next_at_counts_retries(s: Subject) -> None:
    """A worker learns when the retry is due that it has just asked for."""
    s.put("a")
    leased = s.take("a")
    _, claimed = s.exchange([s.told(leased, FAILS_ONCE)])
    same((claimed.jobs, claimed.next_at), ([], START + WAIT), "claimed, next_at")


@check()
def next_at_is_none_when_nothing_waits(s: Subject) -> None:
    """There is no next instant when nothing waits for time to pass."""
    same(s.exchange()[1].next_at, None, "in an empty store")
    s.put("a", "b")
    s.take("a")
    s.put("c", delay=5.0, queue="other")
    claimed = s.exchange((), 5, queues=("default",))[1]
    same((ids_of(claimed.jobs), claimed.next_at), (["b"], None), "when others' jobs wait")
    same(s.exchange((), 5, queues=("default",))[1].next_at, None, "while jobs run")


@check()
def more_says_that_something_due_is_left(s: Subject) -> None:
    """A worker learns whether it left something due for want of a slot."""
    s.put("a", "b")
    s.put("later", delay=60.0)
    first = s.exchange()[1]
    same((ids_of(first.jobs), first.more), (["a"], True), "with one slot for two")
    second = s.exchange((), 5)[1]
    same((ids_of(second.jobs), second.more), (["b"], False), "with slots enough")


@check()
def more_counts_other_executors(s: Subject) -> None:
    """What is due for an executor without a free slot counts as left."""
    s.put("a", handler="node#work", executor="node")
    same(s.exchange((), 5)[1].more, True, "more")


@check()
def more_is_about_own_executors(s: Subject) -> None:
    """What no executor of the worker could ever run does not count as left."""
    own = frozenset({"python"})
    s.put("a", handler="node#work", executor="node")
    s.put("b", queue="web")
    s.put("c", "d", queue="web", limit_key="k")
    asked: dict[str, Any] = {"routes": {"web": "node"}}
    same(len(s.claim({"node": 1}, queues=("web",), **asked)), 1, "claimed by the other worker")
    same(s.exchange((), 5, own=own, **asked)[1].more, False, "more, for others alone")
    same(s.exchange((), 5, own=BOTH, **asked)[1].more, True, "more, for its own")
    s.put("mine", handler="python#work", executor="python", queue="web")
    same(s.exchange((), 0, own=own, **asked)[1].more, True, "more, with one of its own")


@check()
def more_counts_what_a_limit_holds_up(s: Subject) -> None:
    """A due job that waits for its queue's rate or limit, or for its limit key, is left."""
    own = frozenset({"python"})
    for queue, limits in (("rate", {"rate": 0.1, "burst": 1}), ("active", {"max_active": 1})):
        s.store.set_queue(queue, **limits)
        s.put(f"{queue}-1", f"{queue}-2", queue=queue)
    s.put("key-1", "key-2", queue="key", limit_key="k")
    for queue in ("rate", "active", "key"):
        claimed = s.exchange((), 5, queues=(queue,), own=own)[1]
        same((len(claimed.jobs), claimed.more), (1, True), f"claimed and more, of {queue!r}")
        again = s.exchange((), 5, queues=(queue,), own=own)[1]
        same((again.jobs, again.more), ([], True), f"claimed and more again, of {queue!r}")


@check()
def more_leaves_out_paused_queues(s: Subject) -> None:
    """What cannot be claimed because its queue is paused or not asked for is not left."""
    s.put("a", limit_key="k")
    s.put(*(f"b{n}" for n in range(100)), queue="paused", limit_key="k")
    s.put("c", queue="theirs", limit_key="k")
    s.take("a", queues=("default",))
    same(s.ids(5), [], "while the key is held")
    s.store.set_queue("paused", is_paused=True)
    same(s.exchange((), 5, queues=("paused", "default"))[1].more, False, "more")
    same(s.exchange((), 5)[1].more, True, "more, of all queues")


@check()
def outdated_job_is_dead_lettered(s: Subject) -> None:
    """A job that was not started before its expiry is not delivered but dead-lettered."""
    s.put("a", expires_at=START + 10.0)
    s.put("b")
    s.clock.forward(11.0)
    claimed = s.exchange((), 5)[1]
    same((ids_of(claimed.jobs), claimed.outdated), (["b"], 1), "claimed, outdated")
    job = s.get("a")
    same((job.status, job.deliveries), (JobStatus.FAILED, 0), "status, deliveries")
    same(job.last_error and job.last_error.code, "expired", "code of the last failure")
    expect(job.finished_at is not None, "it has no finished_at")
    expect(job.history, "its history does not tell")
    same(s.exchange((), 5)[1].outdated, 0, "outdated the second time")


@check()
def outdated_job_keeps_its_last_failure(s: Subject) -> None:
    """A job whose expiry passes after a failed attempt is dead-lettered with that failure."""
    s.put("claimed", "swept", expires_at=START + WAIT / 2)
    for job_id in ("claimed", "swept"):
        s.ended(job_id, FAILS_ONCE)
    s.clock.forward(WAIT / 2)
    s.store.sweep(1)
    s.clock.forward(WAIT)
    s.claim(5)
    s.store.sweep(100)
    for job_id in ("claimed", "swept"):
        job = s.get(job_id)
        same((job.status, job.attempts), (JobStatus.FAILED, 1), job_id)
        same(job.last_error, FLAKY, f"the last failure of {job_id}")


@check()
def unexpired_job_is_delivered(s: Subject) -> None:
    """A job whose expiry is still ahead is delivered, and may end after its expiry."""
    s.put("a", expires_at=START + 10.0)
    s.clock.forward(9.0)
    leased = s.take("a")
    s.clock.forward(5.0)
    expect(s.settle(leased, SUCCEEDED), "it could not end")


# ---- what is recorded ---------------------------------------------------------------------------


@check()
def claim_is_recorded(s: Subject) -> None:
    """A claimed job shows who holds it, since when and until when."""
    s.put("a")
    s.clock.forward(3.0)
    leased = s.take("a", worker="wörker", lease=7.5)
    job = s.get("a")
    same(job.status, JobStatus.ACTIVE, "status")
    same((job.worker, job.claimed_at), ("wörker", START + 3.0), "worker, claimed_at")
    same(job.lease_expires_at, START + 10.5, "lease_expires_at")
    same((leased.fence, leased.claimed_at), (job.fence, START + 3.0), "fence, claimed_at")


@check()
def every_claim_counts_as_a_delivery(s: Subject) -> None:
    """A delivery is counted on every claim, whatever became of those before."""
    s.put("a")
    for delivery in (1, 2, 3):
        leased = s.take("a")
        same((leased.deliveries, s.get("a").deliveries), (delivery, delivery), "deliveries")
        s.must(leased, RELEASED)


@check()
def claiming_charges_nothing(s: Subject) -> None:
    """A claim alone is no attempt."""
    s.put("a")
    same((s.take("a").attempts, s.get("a").attempts), (0, 0), "attempts")


@check()
def fence_grows(s: Subject) -> None:
    """Every claim of a job has a higher fence than those before."""
    s.put("a")
    fences = []
    for _ in range(3):
        leased = s.take("a")
        fences.append(leased.fence)
        s.must(leased, RELEASED)
    expect(fences[0] < fences[1] < fences[2], f"fences {fences}")


@check()
def lease_is_per_claim(s: Subject) -> None:
    """Jobs of one claim share an instant; a later claim has a lease of its own."""
    s.store.add([new("a"), new("b")])
    _, claimed = s.store.exchange([], ask(1))
    s.clock.forward(4.0)
    s.claim(1, lease=30.0)
    same(ids_of(claimed.jobs), ["a"], "first claim")
    same(s.get("a").lease_expires_at, START + LEASE, "the first lease")
    same(s.get("b").lease_expires_at, START + 34.0, "the second lease")
