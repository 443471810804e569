"""Checks of claiming: in which order, for whom, how many, and what is recorded of it."""

from __future__ import annotations

from functools import partial

from ergon_framework.core.job import ExecutorMissing, JobStatus
from ergon_framework.ports.jobstore import Search, WorkerRecord
from ergon_framework.testing.suites.framework import Check, expect, register
from ergon_framework.testing.suites.jobstore.subject import (
    RELEASED,
    SUCCEEDED,
    Subject,
    ids_of,
    same,
)

CHECKS: list[Check[Subject]] = []
check = register(CHECKS)


# ---- order --------------------------------------------------------------------------------------


@check()
def first_in_first_out(s: Subject) -> None:
    """Jobs of one queue and priority come in the order in which they became due."""
    for job_id in ("c", "a", "b"):
        s.put(job_id)
        s.clock.forward(1.0)
    same([s.ids(), s.ids(), s.ids()], [["c"], ["a"], ["b"]], "order")


@check()
def ties_go_by_order_of_adding(s: Subject) -> None:
    """Jobs that became due at the same instant come in the order of their adding, not of ids."""
    ids = [f"job-{n}" for n in (7, 3, 9, 1, 8, 2, 10)]
    s.put(*ids[:4])
    s.put(*ids[4:])
    same(s.ids(10), ids, "order")


@check()
def due_time_comes_before_order_of_adding(s: Subject) -> None:
    """Of two jobs that wait, the one that was due first comes first, though added later."""
    s.put("slow", delay=30.0)
    s.put("quick", delay=10.0)
    s.clock.forward(60.0)
    s.put("last")
    same(s.ids(5), ["quick", "slow", "last"], "order")


@check()
def higher_priority_comes_first(s: Subject) -> None:
    """In one queue, a job of higher priority comes before all of lower priority."""
    s.put("low", priority=-5)
    s.put("usual")
    s.put("high-1", "high-2", priority=5)
    same(s.ids(5), ["high-1", "high-2", "usual", "low"], "order")


@check()
def released_job_keeps_its_place(s: Subject) -> None:
    """A job that was given back comes before those that were added after it."""
    s.put("a", "b", "c")
    s.ended("a", RELEASED)
    same(s.ids(5), ["a", "b", "c"], "order")


@check()
def no_queue_starves(s: Subject) -> None:
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
def large_claim_is_fair(s: Subject) -> None:
    """One claim of several jobs has some of each queue that has any."""
    s.put(*(f"busy-{n}" for n in range(50)), queue="busy")
    s.clock.forward(1.0)
    s.put("quiet-1", "quiet-2", queue="quiet")
    came = s.ids(12)
    same(len(came), 12, "how many came")
    expect({"quiet-1", "quiet-2"} <= set(came), f"all of the busy queue: {came}")


# ---- for whom, and how many ---------------------------------------------------------------------


@check()
def never_more_than_slots(s: Subject) -> None:
    """A worker never gets more jobs than it has slots."""
    s.put(*(f"job-{n}" for n in range(9)))
    same([len(s.claim(n)) for n in (4, 1, 3, 5, 2)], [4, 1, 3, 1, 0], "how many came")


@check()
def nothing_without_a_slot(s: Subject) -> None:
    """A worker whose executors are all busy gets nothing, and what waits goes on waiting."""
    s.put("a")
    same(s.ids(0), [], "with no free slot")
    same(s.ids(slots={}), [], "with no executor that can run")
    same(s.get("a").deliveries, 0, "deliveries")


@check()
def nothing_without_an_ask(s: Subject) -> None:
    """A call that only settles claims nothing."""
    s.put("a")
    _, claimed = s.store.exchange([], None)
    same((claimed.jobs, s.status("a")), ([], JobStatus.PENDING), "claimed")


@check()
def slots_are_per_executor(s: Subject) -> None:
    """Each executor gets as many as it has slots, also behind jobs of one that has none."""
    s.put("p1", "p2", "p3")
    s.put("n1", "n2", handler="node#work", executor="node")
    came = s.ids(slots={"python": 1, "node": 2})
    same(sorted(came), ["n1", "n2", "p1"], "claimed")
    same(s.ids(slots={"node": 2}), [], "for an executor without jobs")
    same(s.ids(slots={"python": 9}), ["p2", "p3"], "the rest")


@check()
def handler_names_its_executor(s: Subject) -> None:
    """A job that names an executor goes to that one and to no other."""
    s.put("a", handler="node#work", executor="node")
    same(s.ids(), [], "for another executor")
    same(s.ids(slots={"node": 1}), ["a"], "for its own")


@check()
def queue_has_a_route(s: Subject) -> None:
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
def job_waits_for_an_executor_that_nobody_has(s: Subject) -> None:
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
def executors_of_due_jobs_are_named(s: Subject) -> None:
    """Which executors due jobs name, in which queues, and when a worker last had each."""
    same(s.store.named(), [], "with no job")
    s.put("a", "b", handler="cobol#work", executor="cobol", queue="two")
    s.put("c", handler="cobol#work", executor="cobol", queue="one")
    s.put("d", handler="node#work", executor="node")
    s.put("later", handler="ada#work", executor="ada", delay=900.0)
    s.put("plain")
    same(named_by(s), [("cobol", ("one", "two"), None), ("node", ("default",), None)], "first")
    began = s.store.now()
    s.store.tell(worker_with("w1", "python", "node"))
    s.clock.forward(30.0)
    seen = s.store.now()
    s.store.tell(worker_with("w1", "python"))
    s.store.tell(worker_with("w2", "cobol"))
    s.store.tell(worker_with("w2", state="gone"))
    s.clock.forward(30.0)
    same(named_by(s), [("cobol", ("one", "two"), seen), ("node", ("default",), began)], "later")
    s.put("e", handler="rust#work", executor="rust")
    same(named_by(s)[-1], ("rust", ("default",), began), "an executor that was never seen")
    same(s.ids(slots={"node": 9, "rust": 9}), ["d", "e"], "claimed")
    same(named_by(s), [("cobol", ("one", "two"), seen)], "when the others run")


@check("reopen")
def last_sight_of_an_executor_survives(s: Subject) -> None:
    """A new process knows when a worker last had an executor, though that worker has left."""
    s.put("a", handler="cobol#work", executor="cobol")
    seen = s.store.now()
    s.store.tell(worker_with("w1", "cobol"))
    s.clock.forward(30.0)
    s.store.tell(worker_with("w1", state="gone"))
    s.reopen()
    same(named_by(s), [("cobol", ("default",), seen)], "after a restart")


@check()
def jobs_that_wait_for_an_executor_are_found(s: Subject) -> None:
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
def job_whose_executor_stays_away_is_dead_lettered(s: Subject) -> None:
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
def only_queues_asked_for(s: Subject) -> None:
    """A worker that serves some queues gets jobs of those alone."""
    s.put("a", queue="one")
    s.put("b", queue="two")
    s.put("c", queue="three")
    same(sorted(s.ids(5, queues=("one", "three"))), ["a", "c"], "claimed")
    same(s.ids(5, queues=("none",)), [], "of a queue without jobs")
    same(s.status("b"), JobStatus.PENDING, "the other job")


@check()
def paused_queue_waits(s: Subject) -> None:
    """Nothing of a paused queue is claimed until it is resumed; others go on."""
    s.put("a", queue="one")
    s.put("b", queue="two")
    s.store.set_queue("one", is_paused=True)
    same(s.ids(5), ["b"], "while paused")
    s.store.set_queue("one", is_paused=False)
    same(s.ids(5), ["a"], "when resumed")


@check()
def claimers_never_share(s: Subject) -> None:
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


def named_by(s: Subject) -> list[tuple[str, tuple[str, ...], float | None]]:
    """The executors that due jobs name, as plain values."""
    return [(each.executor, each.queues, each.seen_at) for each in s.store.named()]
