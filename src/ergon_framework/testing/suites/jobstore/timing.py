"""Checks of when a job may be claimed, and what is recorded of a claim."""

from __future__ import annotations

from ergon_framework.core.job import JobStatus
from ergon_framework.testing.suites.check import Check, expect, register
from ergon_framework.testing.suites.jobstore.subject import (
    FAILS_ONCE,
    LEASE,
    RELEASED,
    START,
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
    same(s.exchange((), 5, known=BOTH)[1].more, True, "more")


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
