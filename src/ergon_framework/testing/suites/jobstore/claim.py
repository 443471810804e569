"""Checks of claiming: in which order, for whom, how many, when, and what is recorded of it."""

from __future__ import annotations

from functools import partial
from typing import Any

from ergon_framework.core.job import ExecutorMissing, JobStatus
from ergon_framework.ports.jobstore import Search, WorkerRecord
from ergon_framework.testing.suites.drivers import START
from ergon_framework.testing.suites.framework import Check, expect, register
from ergon_framework.testing.suites.jobstore.under_test import (
    FAILS_ONCE,
    FLAKY,
    LEASE,
    RELEASED,
    SUCCEEDED,
    WAIT,
    JobStoreSubject,
    ask,
    ids_of,
    new,
    same,
)

CHECKS: list[Check[JobStoreSubject]] = []
check = register(CHECKS)


# ---- order --------------------------------------------------------------------------------------


@check()
def first_in_first_out(s: JobStoreSubject) -> None:
    """Jobs of one queue and priority come in the order in which they became due."""
    for job_id in ("c", "a", "b"):
        s.put(job_id)
        s.clock.forward(1.0)
    same([s.ids(), s.ids(), s.ids()], [["c"], ["a"], ["b"]], "order")


@check()
def ties_go_by_order_of_adding(s: JobStoreSubject) -> None:
    """Jobs that became due at the same instant come in the order of their adding, not of ids."""
    ids = [f"job-{n}" for n in (7, 3, 9, 1, 8, 2, 10)]
    s.put(*ids[:4])
    s.put(*ids[4:])
    same(s.ids(10), ids, "order")


@check()
def due_time_comes_before_order_of_adding(s: JobStoreSubject) -> None:
    """Of two jobs that wait, the one that was due first comes first, though added later."""
    s.put("slow", delay=30.0)
    s.put("quick", delay=10.0)
    s.clock.forward(60.0)
    s.put("last")
    same(s.ids(5), ["quick", "slow", "last"], "order")


@check()
def higher_priority_comes_first(s: JobStoreSubject) -> None:
    """In one queue, a job of higher priority comes before all of lower priority."""
    s.put("low", priority=-5)
    s.put("usual")
    s.put("high-1", "high-2", priority=5)
    same(s.ids(5), ["high-1", "high-2", "usual", "low"], "order")


@check()
def released_job_keeps_its_place(s: JobStoreSubject) -> None:
    """A job that was given back comes before those that were added after it."""
    s.put("a", "b", "c")
    s.ended("a", RELEASED)
    same(s.ids(5), ["a", "b", "c"], "order")


@check()
def no_queue_starves(s: JobStoreSubject) -> None:
    """A job in a quiet queue does not wait until a busy queue is empty."""
    s.put(*(f"busy-{n}" for n in range(50)), queue="busy")
    s.clock.forward(1.0)
    s.put("quiet", queue="quiet")
    came = []
    for _ in range(10):
        job = s.claim(1)[0]
        came.append(job.id)
        s.settle(job, SUCCEEDED)
    expect("quiet" in came, f"ten came, all of the busy queue: {came}")


@check()
def large_claim_is_fair(s: JobStoreSubject) -> None:
    """One claim of several jobs has some of each queue that has any."""
    s.put(*(f"busy-{n}" for n in range(50)), queue="busy")
    s.clock.forward(1.0)
    s.put("quiet-1", "quiet-2", queue="quiet")
    came = s.ids(12)
    same(len(came), 12, "how many came")
    expect({"quiet-1", "quiet-2"} <= set(came), f"all of the busy queue: {came}")


# ---- for whom, and how many ---------------------------------------------------------------------


@check()
def never_more_than_slots(s: JobStoreSubject) -> None:
    """A worker never gets more jobs than it has slots."""
    s.put(*(f"job-{n}" for n in range(9)))
    same([len(s.claim(n)) for n in (4, 1, 3, 5, 2)], [4, 1, 3, 1, 0], "how many came")


@check()
def nothing_without_a_slot(s: JobStoreSubject) -> None:
    """A worker whose executors are all busy gets nothing, and what waits goes on waiting."""
    s.put("a")
    same(s.ids(0), [], "with no free slot")
    same(s.ids(slots={}), [], "with no executor that can run")
    same(s.get("a").deliveries, 0, "deliveries")


@check()
def nothing_without_an_ask(s: JobStoreSubject) -> None:
    """A call that only settles claims nothing."""
    s.put("a")
    _, claimed = s.store.settle_and_claim([], None)
    same((claimed.jobs, s.status("a")), ([], JobStatus.PENDING), "claimed")


@check()
def slots_are_per_executor(s: JobStoreSubject) -> None:
    """Each executor gets as many as it has slots, also behind jobs of one that has none."""
    s.put("p1", "p2", "p3")
    s.put("n1", "n2", handler="node#work", executor="node")
    came = s.ids(slots={"python": 1, "node": 2})
    same(sorted(came), ["n1", "n2", "p1"], "claimed")
    same(s.ids(slots={"node": 2}), [], "for an executor without jobs")
    same(s.ids(slots={"python": 9}), ["p2", "p3"], "the rest")


@check()
def handler_names_its_executor(s: JobStoreSubject) -> None:
    """A job that names an executor goes to that one and to no other."""
    s.put("a", handler="node#work", executor="node")
    same(s.ids(), [], "for another executor")
    same(s.ids(slots={"node": 1}), ["a"], "for its own")


@check()
def queue_has_a_route(s: JobStoreSubject) -> None:
    """A queue's route comes before the default executor, and after what the handler names."""
    s.put("routed", queue="web")
    s.put("named", queue="web", handler="python#work", executor="python")
    s.put("plain")
    routes = {"web": "node"}
    node = s.ids(slots={"node": 9}, routes=routes)
    same(node, ["routed"], "for the route's executor")
    python = s.ids(slots={"python": 9}, routes=routes)
    same(sorted(python), ["named", "plain"], "for the default one")


@check()
def job_waits_for_an_executor_that_nobody_has(s: JobStoreSubject) -> None:
    """Jobs for an executor that no worker has are claimed by nobody, and stay as they are."""
    s.put("a", "b", handler="cobol#work", executor="cobol")
    s.put("c")
    same(s.ids(slots={}), [], "claimed without a slot")
    same(s.ids(9), ["c"], "claimed for another executor")
    for job_id in ("a", "b"):
        job = s.get(job_id)
        same((job.status, job.deliveries), (JobStatus.PENDING, 0), f"state of {job_id!r}")
    same(s.ids(slots={"cobol": 9}), ["a", "b"], "claimed when somebody has it")


@check()
def executors_of_due_jobs_are_named(s: JobStoreSubject) -> None:
    """Which executors due jobs name, in which queues, and when a worker last had each."""
    same(s.store.named(), [], "with no job")
    s.put("a", "b", handler="cobol#work", executor="cobol", queue="two")
    s.put("c", handler="cobol#work", executor="cobol", queue="one")
    s.put("d", handler="node#work", executor="node")
    s.put("later", handler="ada#work", executor="ada", delay=900.0)
    s.put("plain")
    same(named_by(s), [("cobol", ("one", "two"), None), ("node", ("default",), None)], "first")
    began = s.store.now()
    s.store.heartbeat(worker_with("w1", "python", "node"))
    s.clock.forward(30.0)
    seen = s.store.now()
    s.store.heartbeat(worker_with("w1", "python"))
    s.store.heartbeat(worker_with("w2", "cobol"))
    s.store.heartbeat(worker_with("w2", state="gone"))
    s.clock.forward(30.0)
    same(named_by(s), [("cobol", ("one", "two"), seen), ("node", ("default",), began)], "later")
    s.put("e", handler="rust#work", executor="rust")
    same(named_by(s)[-1], ("rust", ("default",), began), "an executor that was never seen")
    same(s.ids(slots={"node": 9, "rust": 9}), ["d", "e"], "claimed")
    same(named_by(s), [("cobol", ("one", "two"), seen)], "when the others run")


@check("reopen")
def last_sight_of_an_executor_survives(s: JobStoreSubject) -> None:
    """A new process knows when a worker last had an executor, though that worker has left."""
    s.put("a", handler="cobol#work", executor="cobol")
    seen = s.store.now()
    s.store.heartbeat(worker_with("w1", "cobol"))
    s.clock.forward(30.0)
    s.store.heartbeat(worker_with("w1", state="gone"))
    s.reopen()
    same(named_by(s), [("cobol", ("default",), seen)], "after a restart")


@check()
def jobs_that_wait_for_an_executor_are_found(s: JobStoreSubject) -> None:
    """Those of one executor that became due before an instant, whatever their priority."""
    odd = {"handler": "cobol#work", "executor": "cobol"}
    began = s.store.now()
    s.put("old", **odd)
    s.put("low", priority=-5, queue="two", **odd)
    s.put("plain")
    s.put("node", handler="node#work", executor="node")
    s.clock.forward(60.0)
    s.put("young", priority=5, **odd)
    s.put("later", delay=60.0, **odd)

    def found(before: float, limit: int = 9) -> list[str]:
        return sorted(ids_of(s.store.waiting_for("cobol", before, limit)))

    same(found(began), [], "before any was due")
    same(found(began + 1.0), ["low", "old"], "of those that were due first")
    same(found(s.store.now() + 1.0), ["low", "old", "young"], "of all")
    same(len(found(s.store.now() + 1.0, 2)), 2, "at most two")
    same(s.store.waiting_for("python", s.store.now() + 1.0, 9), [], "of one that nobody names")


@check()
def job_whose_executor_stays_away_is_dead_lettered(s: JobStoreSubject) -> None:
    """What was found so can be ended, unless somebody has claimed it since."""
    s.put("a", "b", handler="cobol#work", executor="cobol")
    s.clock.forward(60.0)
    found = {job.id: job for job in s.store.waiting_for("cobol", s.store.now(), 9)}
    same(sorted(found), ["a", "b"], "found")
    taken = s.claim({"cobol": 1})
    same(ids_of(taken), ["a"], "claimed meanwhile")
    same(s.settle(found["a"], ExecutorMissing("cobol")), False, "ending a job that runs")
    ended = s.must(found["b"], ExecutorMissing("cobol"))
    same((ended.status, ended.why, ended.attempts), (JobStatus.FAILED, "unserved", 0), "end")
    expect(ended.last_error is not None and ended.last_error.code == "unknown_executor", "no code")
    same(s.store.named(), [], "executors that due jobs name")


@check()
def only_queues_asked_for(s: JobStoreSubject) -> None:
    """A worker that serves some queues gets jobs of those alone."""
    s.put("a", queue="one")
    s.put("b", queue="two")
    s.put("c", queue="three")
    same(sorted(s.ids(5, queues=("one", "three"))), ["a", "c"], "claimed")
    same(s.ids(5, queues=("none",)), [], "of a queue without jobs")
    same(s.status("b"), JobStatus.PENDING, "the other job")


@check()
def paused_queue_waits(s: JobStoreSubject) -> None:
    """Nothing of a paused queue is claimed until it is resumed; others go on."""
    s.put("a", queue="one")
    s.put("b", queue="two")
    s.store.set_queue("one", is_paused=True)
    same(s.ids(5), ["b"], "while paused")
    s.store.set_queue("one", is_paused=False)
    same(s.ids(5), ["a"], "when resumed")


@check()
def claimers_never_share(s: JobStoreSubject) -> None:
    """Of several workers that claim at once, each job goes to one."""
    s.put(*(f"job-{n}" for n in range(120)))

    def drain(worker: str) -> list[str]:
        came = []
        while jobs := s.claim(4, worker=worker):
            came += ids_of(jobs)
        return came

    parts = s.together([partial(drain, f"w{n}") for n in range(6)])
    came = [job_id for part in parts for job_id in part]
    same((len(came), len(set(came))), (120, 120), "claimed, and different ones")
    same({job.deliveries for job in s.store.search(Search())}, {1}, "deliveries")


# ---- tools --------------------------------------------------------------------------------------


def worker_with(worker: str, *executors: str, state: str = "running") -> WorkerRecord:
    """What a worker with these executors tells of itself."""
    return WorkerRecord(
        id=worker,
        host="here",
        pid=1,
        version="1",
        started_at=0.0,
        state=state,
        executors={name: {} for name in executors},
    )


def named_by(s: JobStoreSubject) -> list[tuple[str, tuple[str, ...], float | None]]:
    """The executors that due jobs name, as plain values."""
    return [(each.executor, each.queues, each.seen_at) for each in s.store.named()]


BOTH = frozenset({"python", "node"})


@check()
def next_at_is_exact(s: JobStoreSubject) -> None:
    """A worker that got nothing learns the instant at which the next job is due."""
    s.put("later", delay=90.0)
    s.put("sooner", delay=40.25)
    claimed = s.settle_and_claim()[1]
    same(claimed.next_at, START + 40.25, "next_at")
    s.clock.to(START + 40.25)
    same(s.ids(), ["sooner"], "then")
    same(s.settle_and_claim()[1].next_at, START + 90.0, "next_at after that")


@check()
def next_at_counts_retries(s: JobStoreSubject) -> None:
    """A worker learns when the retry is due that it has just asked for."""
    s.put("a")
    leased = s.take("a")
    _, claimed = s.settle_and_claim([s.told(leased, FAILS_ONCE)])
    same((claimed.jobs, claimed.next_at), ([], START + WAIT), "claimed, next_at")


@check()
def next_at_is_none_when_nothing_waits(s: JobStoreSubject) -> None:
    """There is no next instant when nothing waits for time to pass."""
    same(s.settle_and_claim()[1].next_at, None, "in an empty store")
    s.put("a", "b")
    s.take("a")
    s.put("c", delay=5.0, queue="other")
    claimed = s.settle_and_claim((), 5, queues=("default",))[1]
    same((ids_of(claimed.jobs), claimed.next_at), (["b"], None), "when others' jobs wait")
    same(s.settle_and_claim((), 5, queues=("default",))[1].next_at, None, "while jobs run")


@check()
def more_says_that_something_due_is_left(s: JobStoreSubject) -> None:
    """A worker learns whether it left something due for want of a slot."""
    s.put("a", "b")
    s.put("later", delay=60.0)
    first = s.settle_and_claim()[1]
    same((ids_of(first.jobs), first.more), (["a"], True), "with one slot for two")
    second = s.settle_and_claim((), 5)[1]
    same((ids_of(second.jobs), second.more), (["b"], False), "with slots enough")


@check()
def more_counts_other_executors(s: JobStoreSubject) -> None:
    """What is due for an executor without a free slot counts as left."""
    s.put("a", handler="node#work", executor="node")
    same(s.settle_and_claim((), 5)[1].more, True, "more")


@check()
def more_is_about_own_executors(s: JobStoreSubject) -> None:
    """What no executor of the worker could ever run does not count as left."""
    own = frozenset({"python"})
    s.put("a", handler="node#work", executor="node")
    s.put("b", queue="web")
    s.put("c", "d", queue="web", limit_key="k")
    asked: dict[str, Any] = {"routes": {"web": "node"}}
    same(len(s.claim({"node": 1}, queues=("web",), **asked)), 1, "claimed by the other worker")
    same(s.settle_and_claim((), 5, own=own, **asked)[1].more, False, "more, for others alone")
    same(s.settle_and_claim((), 5, own=BOTH, **asked)[1].more, True, "more, for its own")
    s.put("mine", handler="python#work", executor="python", queue="web")
    same(s.settle_and_claim((), 0, own=own, **asked)[1].more, True, "more, with one of its own")


@check()
def more_counts_what_a_limit_holds_up(s: JobStoreSubject) -> None:
    """A due job that waits for its queue's rate or limit, or for its limit key, is left."""
    own = frozenset({"python"})
    for queue, limits in (("rate", {"rate": 0.1, "burst": 1}), ("active", {"max_active": 1})):
        s.store.set_queue(queue, **limits)
        s.put(f"{queue}-1", f"{queue}-2", queue=queue)
    s.put("key-1", "key-2", queue="key", limit_key="k")
    for queue in ("rate", "active", "key"):
        claimed = s.settle_and_claim((), 5, queues=(queue,), own=own)[1]
        same((len(claimed.jobs), claimed.more), (1, True), f"claimed and more, of {queue!r}")
        again = s.settle_and_claim((), 5, queues=(queue,), own=own)[1]
        same((again.jobs, again.more), ([], True), f"claimed and more again, of {queue!r}")


@check()
def more_leaves_out_paused_queues(s: JobStoreSubject) -> None:
    """What cannot be claimed because its queue is paused or not asked for is not left."""
    s.put("a", limit_key="k")
    s.put(*(f"b{n}" for n in range(100)), queue="paused", limit_key="k")
    s.put("c", queue="theirs", limit_key="k")
    s.take("a", queues=("default",))
    same(s.ids(5), [], "while the key is held")
    s.store.set_queue("paused", is_paused=True)
    same(s.settle_and_claim((), 5, queues=("paused", "default"))[1].more, False, "more")
    same(s.settle_and_claim((), 5)[1].more, True, "more, of all queues")


@check()
def outdated_job_is_dead_lettered(s: JobStoreSubject) -> None:
    """A job that was not started before its expiry is not delivered but dead-lettered."""
    s.put("a", expires_at=START + 10.0)
    s.put("b")
    s.clock.forward(11.0)
    claimed = s.settle_and_claim((), 5)[1]
    same((ids_of(claimed.jobs), claimed.outdated), (["b"], 1), "claimed, outdated")
    job = s.get("a")
    same((job.status, job.deliveries), (JobStatus.FAILED, 0), "status, deliveries")
    same(job.last_error and job.last_error.code, "expired", "code of the last failure")
    expect(job.finished_at is not None, "it has no finished_at")
    expect(job.history, "its history does not tell")
    same(s.settle_and_claim((), 5)[1].outdated, 0, "outdated the second time")


@check()
def outdated_job_keeps_its_last_failure(s: JobStoreSubject) -> None:
    """A job whose expiry passes after a failed attempt is dead-lettered with that failure."""
    s.put("claimed", "swept", expires_at=START + WAIT / 2)
    for job_id in ("claimed", "swept"):
        s.ended(job_id, FAILS_ONCE)
    s.clock.forward(WAIT / 2)
    s.store.prune(1)
    s.clock.forward(WAIT)
    s.claim(5)
    s.store.prune(100)
    for job_id in ("claimed", "swept"):
        job = s.get(job_id)
        same((job.status, job.attempts), (JobStatus.FAILED, 1), job_id)
        same(job.last_error, FLAKY, f"the last failure of {job_id}")


@check()
def unexpired_job_is_delivered(s: JobStoreSubject) -> None:
    """A job whose expiry is still ahead is delivered, and may end after its expiry."""
    s.put("a", expires_at=START + 10.0)
    s.clock.forward(9.0)
    leased = s.take("a")
    s.clock.forward(5.0)
    expect(s.settle(leased, SUCCEEDED), "it could not end")


# ---- what is recorded ---------------------------------------------------------------------------


@check()
def claim_is_recorded(s: JobStoreSubject) -> None:
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
def every_claim_counts_as_a_delivery(s: JobStoreSubject) -> None:
    """A delivery is counted on every claim, whatever became of those before."""
    s.put("a")
    for delivery in (1, 2, 3):
        leased = s.take("a")
        same((leased.deliveries, s.get("a").deliveries), (delivery, delivery), "deliveries")
        s.must(leased, RELEASED)


@check()
def claiming_charges_nothing(s: JobStoreSubject) -> None:
    """A claim alone is no attempt."""
    s.put("a")
    same((s.take("a").attempts, s.get("a").attempts), (0, 0), "attempts")


@check()
def fence_grows(s: JobStoreSubject) -> None:
    """Every claim of a job has a higher fence than those before."""
    s.put("a")
    fences = []
    for _ in range(3):
        leased = s.take("a")
        fences.append(leased.fence)
        s.must(leased, RELEASED)
    expect(fences[0] < fences[1] < fences[2], f"fences {fences}")


@check()
def lease_is_per_claim(s: JobStoreSubject) -> None:
    """Jobs of one claim share an instant; a later claim has a lease of its own."""
    s.store.add([new("a"), new("b")])
    _, claimed = s.store.settle_and_claim([], ask(1))
    s.clock.forward(4.0)
    s.claim(1, lease=30.0)
    same(ids_of(claimed.jobs), ["a"], "first claim")
    same(s.get("a").lease_expires_at, START + LEASE, "the first lease")
    same(s.get("b").lease_expires_at, START + 34.0, "the second lease")
