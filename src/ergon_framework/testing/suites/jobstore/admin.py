"""Checks of admin operations: search, counts, purge, queues, workers, retention and closing."""

from __future__ import annotations

from contextlib import suppress

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.job import (
    CancelRequested,
    EditRequested,
    Failed,
    JobStatus,
    RequeueRequested,
)
from ergon_framework.errors import DuplicateJobError, StoreError
from ergon_framework.jobs.client import JobClient
from ergon_framework.ports.flow import step_id
from ergon_framework.ports.jobstore import Search, WorkerRecord
from ergon_framework.testing.suites.drivers import START
from ergon_framework.testing.suites.framework import Check, expect, register
from ergon_framework.testing.suites.jobstore.schedules import schedule
from ergon_framework.testing.suites.jobstore.under_test import (
    DAY,
    FAILS_FOR_GOOD,
    FAILS_ONCE,
    RELEASED,
    SUCCEEDED,
    JobStoreSubject,
    ids_of,
    new,
    same,
)

CHECKS: list[Check[JobStoreSubject]] = []
check = register(CHECKS)


def _found(s: JobStoreSubject, limit: int | None = None, **filters: object) -> list[str]:
    search = Search(**filters)  # type: ignore[arg-type]
    found = ids_of(s.store.search(search, limit))
    if limit is None:
        same(s.store.count(search), len(found), "count")
    return found


# ---- searching ----------------------------------------------------------------------------------


@check()
def newest_come_first(s: JobStoreSubject) -> None:
    """A search without filters finds every job, the newest first."""
    s.put("b", "a")
    s.clock.forward(1.0)
    s.put("c")
    s.ended("b")
    same(_found(s), ["c", "a", "b"], "order")
    same(list(s.store.search(Search()))[2], s.get("b"), "what is found")


@check()
def search_by_status(s: JobStoreSubject) -> None:
    """A search finds the jobs of each state that it names."""
    s.put("done", "dead", "again", "running", "waiting", "off")
    s.ended("done")
    s.ended("dead", FAILS_FOR_GOOD)
    s.ended("again", FAILS_ONCE)
    s.take("running")
    s.must(s.get("off"), CancelRequested())
    wanted = {
        JobStatus.COMPLETED: "done",
        JobStatus.FAILED: "dead",
        JobStatus.RETRYING: "again",
        JobStatus.ACTIVE: "running",
        JobStatus.PENDING: "waiting",
        JobStatus.CANCELLED: "off",
    }
    for status, job_id in wanted.items():
        same(_found(s, statuses=(status,)), [job_id], status)
    both = (JobStatus.FAILED, JobStatus.COMPLETED)
    same(_found(s, statuses=both), ["dead", "done"], "two states")


@check()
def search_by_queue_and_handler(s: JobStoreSubject) -> None:
    """A search finds the jobs of a queue or a handler, named exactly as enqueued."""
    s.put("a", queue="one", handler="work")
    s.put("b", queue="two", handler="python#work", executor="python")
    same(_found(s, queue="one"), ["a"], "by queue")
    same(_found(s, handler="python#work"), ["b"], "by handler")
    same(_found(s, handler="work"), ["a"], "by a handler that another's ends with")
    same(_found(s, queue="One"), [], "by a queue that is not there")
    same(_found(s, queue="one", handler="python#work"), [], "by two that do not meet")


@check()
def search_by_code(s: JobStoreSubject) -> None:
    """A search finds the jobs whose last failure has a code."""
    s.put("flaky", "bad", "fine")
    s.ended("flaky", FAILS_ONCE)
    s.ended("bad", FAILS_FOR_GOOD)
    s.ended("fine")
    same(_found(s, code="flaky"), ["flaky"], "by the code of a retry")
    same(_found(s, code="bad_input"), ["bad"], "by the code of a dead letter")


@check()
def search_by_code_among_any_words(s: JobStoreSubject) -> None:
    """A search by code works whatever characters are in the words of other failures."""
    s.put("nul", "text", "bad")
    for words in ("nul \0 byte", "a path\\u0000x"):
        s.must(s.claim(1)[0], Failed(Failure(Kind.REJECTED, "odd", words)))
    s.ended("bad", FAILS_FOR_GOOD)
    same(_found(s, code="bad_input"), ["bad"], "by the code of another")
    same(_found(s, code="odd"), ["text", "nul"], "by their own code")


@check()
def search_by_family_of_errors(s: JobStoreSubject) -> None:
    """A search finds jobs whose last failure has a code, or is of a kind."""
    s.put("flaky")
    s.ended("flaky", FAILS_ONCE)
    s.put("bad", "fine", tags=("a",))
    s.ended("bad", FAILS_FOR_GOOD)
    s.ended("fine")
    same(_found(s, error="flaky"), ["flaky"], "by code")
    same(_found(s, error="rejected"), ["bad"], "by kind")
    same(_found(s, error="transient", statuses=(JobStatus.RETRYING,)), ["flaky"], "with a status")
    same(_found(s, error="rejected", tags=("a",)), ["bad"], "with a tag")
    same(_found(s, error="bad_inpu"), [], "a part of a code")


@check()
def search_by_time_of_creation(s: JobStoreSubject) -> None:
    """A search finds jobs that were created from one instant on, and before another."""
    s.put("a", tags=("t",))
    s.clock.forward(10.0)
    s.put("b", tags=("t",))
    s.clock.forward(10.0)
    s.put("c")
    s.ended("a")
    same(_found(s, since=START + 10.0), ["c", "b"], "since")
    same(_found(s, until=START + 10.0), ["a"], "until")
    same(_found(s, since=START + 5.0, until=START + 20.0), ["b"], "both")
    same(_found(s, since=START + 5.0, tags=("t",)), ["b"], "with a tag")
    same(_found(s, until=START + 20.0, statuses=(JobStatus.PENDING,)), ["b"], "with a status")


@check()
def search_by_tags(s: JobStoreSubject) -> None:
    """A search finds the jobs that have every tag it names, the newest first, in any state."""
    s.put("a", tags=("x", "y"))
    s.put("b", "c", tags=("x",))
    s.ended("a")
    s.take("b")
    s.put("d", tags=("xx", "x:1"), queue="mail")
    s.put("plain")
    same(_found(s, tags=("x",)), ["c", "b", "a"], "one tag")
    same(_found(s, tags=("x", "y")), ["a"], "two tags")
    same(_found(s, tags=("y", "x")), ["a"], "two tags the other way round")
    same(_found(s, tags=("x", "z")), [], "one that nobody has")
    same(_found(s, tags=("X",)), [], "another letter")
    same(_found(s, tags=("xx",), queue="mail"), ["d"], "with a queue")
    same(_found(s, tags=("x",), statuses=(JobStatus.ACTIVE,)), ["b"], "with a status")
    same(_found(s, tags=("x",), ids=("a", "plain")), ["a"], "with ids")
    same(_found(s, 2, tags=("x",)), ["c", "b"], "limited")
    below = s.get("c").key
    same(_found(s, tags=("x",), below=below), ["b", "a"], "older than another")
    same(s.store.count(Search(tags=("x",))), 3, "count")


@check()
def search_by_metadata(s: JobStoreSubject) -> None:
    """A search finds jobs by values in their metadata, which are no tags."""
    s.put("a", metadata={"plan": "pro", "region": "eu"})
    s.put("b", metadata={"plan": "free"}, tags=("pro",))
    s.put("c", metadata={"pro": "plan", "note": "x=y"})
    same(_found(s, metadata={"plan": "pro"}), ["a"], "one value")
    same(_found(s, metadata={"region": "eu", "plan": "pro"}), ["a"], "two values")
    same(_found(s, metadata={"region": "eu", "plan": "free"}), [], "of two jobs")
    same(_found(s, tags=("pro",)), ["b"], "a tag")
    same(_found(s, tags=("pro",), metadata={"plan": "free"}), ["b"], "a tag and a value")
    same(_found(s, metadata={"note": "x=y"}), ["c"], "a value with an equals sign")
    same(_found(s, tags=("plan",)), [], "a key is no tag")


@check()
def tags_are_read_in_pages(s: JobStoreSubject) -> None:
    """A search by tag finds each job once, however many there are, whatever leaves meanwhile."""
    names = [f"j{n:03}" for n in range(450)]
    s.put(*names, tags=("many",))
    s.put("other")
    found = []
    for job in s.store.search(Search(tags=("many",))):
        found.append(job.id)
        if len(found) % 100 == 0:
            s.must(job, CancelRequested())
    same(found, names[::-1], "found")
    same(s.store.count(Search(tags=("many",))), 450, "count")


@check()
def tags_leave_with_their_job(s: JobStoreSubject) -> None:
    """A job that was purged or swept is found by no tag, nor is another job of its id."""
    s.put("purged", "swept", "stays", tags=("x",), metadata={"k": "v"})
    for name in ("purged", "swept"):
        s.ended(name, keep=DAY)
    same(s.store.purge([s.get("purged")]), 1, "purged")
    s.clock.forward(2 * DAY)
    same(s.store.prune(100).purged, 1, "swept")
    s.put("purged", "swept")
    same(_found(s, tags=("x",)), ["stays"], "by tag")
    same(_found(s, metadata={"k": "v"}), ["stays"], "by metadata")
    s.put("again", tags=("x",))
    same(_found(s, tags=("x",)), ["again", "stays"], "a later one")


@check()
def search_by_age(s: JobStoreSubject) -> None:
    """A search finds the jobs that were last changed before an instant."""
    s.put("old", "moved")
    s.clock.forward(100.0)
    s.put("young")
    s.must(s.get("moved"), CancelRequested())
    same(_found(s, before=START + 50.0), ["old"], "changed before")
    same(_found(s, before=START + 150.0), ["young", "moved", "old"], "changed before later")


@check()
def search_by_ids(s: JobStoreSubject) -> None:
    """A search finds the jobs of the ids it names, where they are there."""
    s.put("a", "b", "c")
    same(_found(s, ids=("c", "a", "nobody")), ["c", "a"], "by ids")
    same(_found(s, ids=("a",), statuses=(JobStatus.FAILED,)), [], "by id and another state")


@check()
def search_is_limited(s: JobStoreSubject) -> None:
    """A search gives no more than asked for: the newest."""
    s.put(*"abcde")
    same(_found(s, limit=2), ["e", "d"], "the first two")
    same(_found(s, limit=9), ["e", "d", "c", "b", "a"], "all of them")


@check()
def search_reads_in_pages(s: JobStoreSubject) -> None:
    """A long search finds every job once, also when jobs are added and moved meanwhile."""
    ids = [f"job-{n}" for n in range(1500)]
    s.put(*ids)
    came = []
    for n, job in enumerate(s.store.search(Search(queue="default"))):
        came.append(job.id)
        if n % 300 == 0:
            s.put(f"new-{n}")
            s.must(s.claim(1)[0], SUCCEEDED)
    there = [each for each in came if not each.startswith("new-")]
    same((len(there), len(set(there))), (1500, 1500), "found, and different ones")
    expect(there == ids[::-1], "they came out of order")


@check()
def filter_holds_while_jobs_move(s: JobStoreSubject) -> None:
    """Jobs that are moved out of a search's filter while it is read do not hide others."""
    s.put(*(f"job-{n}" for n in range(700)))
    came = []
    for job in s.store.search(Search(statuses=(JobStatus.PENDING,))):
        came.append(job.id)
        s.must(job, CancelRequested())
    same((len(came), len(set(came))), (700, 700), "found, and different ones")


# ---- purging ------------------------------------------------------------------------------------


@check()
def purged_job_is_gone(s: JobStoreSubject) -> None:
    """A purged job is found no more, and its id is free."""
    s.put("a", "b")
    done = s.ended("a")
    same(s.store.purge([done]), 1, "purged")
    same(s.store.find("a"), None, "the job")
    same(_found(s), ["b"], "what is left")
    same(s.put("a")[0].is_new, True, "its id")


@check()
def only_final_jobs_are_purged(s: JobStoreSubject) -> None:
    """Jobs that wait or run are never purged."""
    s.put("running", "again", "waiting")
    running = s.take("running")
    s.ended("again", FAILS_ONCE)
    jobs = list(s.store.search(Search()))
    same(s.store.purge(jobs), 0, "purged")
    same(len(_found(s)), 3, "what is left")
    expect(s.settle(running, SUCCEEDED), "the running job could not end")


@check()
def moved_jobs_are_not_purged(s: JobStoreSubject) -> None:
    """A job that was moved since it was read is not purged."""
    s.put("back", "round", "dead")
    jobs = [s.ended(each, FAILS_FOR_GOOD) for each in ("back", "round", "dead")]
    s.must(jobs[1], RequeueRequested())
    s.ended("round", FAILS_FOR_GOOD)
    s.must(jobs[0], RequeueRequested())
    same(s.store.purge(jobs), 1, "purged")
    same(_found(s), ["round", "back"], "what is left")


@check()
def replaced_job_ends_with_the_one_in_its_place(s: JobStoreSubject) -> None:
    """A job is ended and another one added in one call; the same call again does neither."""
    s.put("dead", queue="one")
    dead = s.ended("dead", FAILS_FOR_GOOD)
    told = s.told(dead, EditRequested("new"))
    expect(s.store.replace(told, new("new", queue="one", args=b"[1]")), "it was refused")
    old = s.get("dead")
    same((old.status, old.why, old.history[-1]), (JobStatus.CANCELLED, "edited", told.entry), "old")
    same((old.attempts, old.last_error), (dead.attempts, dead.last_error), "what it keeps")
    expect(not s.store.replace(told, new("other")), "it was replaced twice")
    same(s.store.find("other"), None, "a second job")
    same(_found(s, statuses=(JobStatus.FAILED,)), [], "dead letters")
    same([job.args for job in s.claim(5)], [b"[1]"], "what is claimed")


@check()
def refused_replacement_changes_nothing(s: JobStoreSubject) -> None:
    """Where the id of the new job is taken, the old one stays where it was."""
    s.put("dead")
    dead = s.ended("dead", FAILS_FOR_GOOD)
    s.put("taken")
    told = s.told(dead, EditRequested("taken"))
    error = s.refusal(lambda: s.store.replace(told, new("taken")))
    expect(isinstance(error, DuplicateJobError), f"no DuplicateJobError, but {error!r}")
    same(s.get("dead"), dead, "the old job")
    expect(s.settle(dead, RequeueRequested()), "it could not go back")


@check()
def replacement_takes_the_unique_key(s: JobStoreSubject) -> None:
    """The new job holds the key of the old one; while a third one does, nothing is changed."""
    s.put("dead", unique_key="k")
    dead = s.ended("dead", FAILS_FOR_GOOD)
    s.put("third", unique_key="k")
    told = s.told(dead, EditRequested("new"))
    with suppress(DuplicateJobError):
        expect(not s.store.replace(told, new("new", unique_key="k")), "two hold one key")
    same((s.status("dead"), s.store.find("new")), (JobStatus.FAILED, None), "old and new")
    s.must(s.get("third"), CancelRequested())
    expect(s.store.replace(told, new("new", unique_key="k")), "it was refused")
    error = s.refusal(lambda: s.put("fourth", unique_key="k"))
    expect(isinstance(error, DuplicateJobError), f"no DuplicateJobError, but {error!r}")


@check("flows")
def step_is_not_replaced(s: JobStoreSubject) -> None:
    """The other steps of a flow count on it: nothing is added for one that failed."""
    flow = JobClient(store=s.store).chain("a", "b").enqueue()
    dead = s.ended(step_id(flow, 1), FAILS_FOR_GOOD)
    told = s.told(dead, EditRequested("new"))
    expect(not s.store.replace(told, new("new")), "a step was replaced")
    same((s.status(dead.id), s.store.find("new")), (JobStatus.FAILED, None), "old and new")


@check()
def purging_twice_counts_once(s: JobStoreSubject) -> None:
    """A job that is gone already is not counted again."""
    s.put("a")
    done = s.ended("a")
    same([s.store.purge([done]), s.store.purge([done]), s.store.purge([])], [1, 0, 0], "purged")


# ---- queues -------------------------------------------------------------------------------------


@check()
def queues_are_counted(s: JobStoreSubject) -> None:
    """Every queue that has jobs is listed by name, with its jobs by status."""
    s.put("b1", "b2", "b3", queue="b")
    s.put("a1", queue="a")
    s.must(s.claim(1, queues=("b",))[0], SUCCEEDED)
    s.must(s.claim(1, queues=("b",))[0], FAILS_ONCE)
    a, b = s.store.queues()
    same((a.name, b.name), ("a", "b"), "names")
    counts = {status.value: count for status, count in _counts(b.counts).items() if count}
    same(counts, {"completed": 1, "retrying": 1, "pending": 1}, "counts of b")
    same(_counts(a.counts)[JobStatus.PENDING], 1, "pending of a")
    same((a.is_paused, a.max_active, a.rate), (False, None, None), "settings of a")


def _counts(counts: object) -> dict[JobStatus, int]:
    found: dict[str, int] = dict(counts)  # type: ignore[call-overload]
    return {status: found.get(status.value, 0) for status in JobStatus}


@check()
def queues_show_what_has_waited_longest(s: JobStoreSubject) -> None:
    """A queue shows since when its oldest due job has been due."""
    s.put("a")
    s.clock.forward(10.0)
    s.put("b")
    s.clock.forward(10.0)
    same(s.store.queues()[0].oldest_due_at, START, "with two that are due")
    s.ended("a")
    same(s.store.queues()[0].oldest_due_at, START + 10.0, "with one that is due")
    s.ended("b")
    same(s.store.queues()[0].oldest_due_at, None, "with none")


@check()
def queue_settings_are_kept(s: JobStoreSubject) -> None:
    """A change of a queue's settings leaves the others as they were."""
    s.store.set_queue("q", max_active=3, rate=2.5, burst=4)
    queue = s.store.set_queue("q", is_paused=True)
    settings = (queue.name, queue.is_paused, queue.max_active, queue.rate, queue.burst)
    same(settings, ("q", True, 3, 2.5, 4), "settings")
    found = s.store.queues()
    same([each.name for each in found], ["q"], "a queue with settings and no jobs")
    same((found[0].is_paused, found[0].max_active, found[0].rate), (True, 3, 2.5), "as listed")
    same(s.store.set_queue("q", max_active=None).max_active, None, "after lifting the limit")


@check()
def unknown_queue_setting_is_refused(s: JobStoreSubject) -> None:
    """A setting that a queue does not have is an error and changes nothing."""
    s.store.set_queue("q", max_active=3)
    expect(s.refusal(lambda: s.store.set_queue("q", max_active=5, colour="red")), "accepted")
    same(s.store.queues()[0].max_active, 3, "max_active")


@check()
def emptied_queue_disappears(s: JobStoreSubject) -> None:
    """A queue without settings is not listed once its last job is gone."""
    s.put("a", queue="q")
    s.store.purge([s.ended("a")])
    same(s.store.queues(), [], "queues")


# ---- workers ------------------------------------------------------------------------------------


def _worker(name: str, **fields: object) -> WorkerRecord:
    wanted = {"id": name, "host": "host", "pid": 7, "version": "1", "started_at": START} | fields
    return WorkerRecord(**wanted)  # type: ignore[arg-type]


@check()
def workers_are_listed(s: JobStoreSubject) -> None:
    """Workers are listed by id, as they last told of themselves, with the store's time."""
    fields = {"queues": ("q",), "executors": {"python": {"busy": 1}}, "counters": {"done": 3}}
    s.store.heartbeat(_worker("w2"))
    s.clock.forward(5.0)
    s.store.heartbeat(_worker("w1", state="stopping", **fields))
    first, second = s.store.workers()
    same((first.id, second.id), ("w1", "w2"), "ids")
    same((first.seen_at, second.seen_at), (START + 5.0, START), "seen_at")
    same((first.state, first.host, first.pid, first.version), ("stopping", "host", 7, "1"), "told")
    found = (first.queues, dict(first.executors), dict(first.counters))
    same(found, tuple(fields.values()), "queues, executors, counters")
    same(second.queues, None, "queues of a worker that serves all")


@check()
def worker_tells_again(s: JobStoreSubject) -> None:
    """A worker's later word takes the place of its earlier one."""
    s.store.heartbeat(_worker("w", counters={"done": 1}))
    s.clock.forward(9.0)
    progress = {"a": {"fence": 3, "fraction": 0.4, "message": "page 4", "at": "now"}}
    s.store.heartbeat(_worker("w", counters={"done": 2}, progress=progress))
    (worker,) = s.store.workers()
    same((dict(worker.counters), worker.seen_at), ({"done": 2}, START + 9.0), "the worker")
    same(dict(worker.progress), progress, "how far its jobs are")
    s.store.heartbeat(_worker("w", counters={"done": 3}))
    (worker,) = s.store.workers()
    same(dict(worker.progress), {}, "how far its jobs are, when they have ended")


@check()
def worker_that_is_gone_is_not_listed(s: JobStoreSubject) -> None:
    """A worker that says good-bye is taken off the list; others stay."""
    s.store.heartbeat(_worker("w1"))
    s.store.heartbeat(_worker("w2"))
    s.store.heartbeat(_worker("w1", state="gone"))
    s.store.heartbeat(_worker("never", state="gone"))
    same([worker.id for worker in s.store.workers()], ["w2"], "workers")


@check()
def what_a_worker_leaves_behind_is_kept_apart(s: JobStoreSubject) -> None:
    """The totals of a worker that has ended are kept, and it is no worker any more."""
    totals = {"q": {"outcomes": {"completed": 3}}}
    s.store.heartbeat(_worker("w1"))
    s.store.heartbeat(_worker("w1 ended", state="ended", totals=totals))
    same([worker.id for worker in s.store.workers()], ["w1"], "workers")
    (left,) = s.store.ended_workers()
    same((left.id, dict(left.totals)), ("w1 ended", totals), "left behind")
    s.store.heartbeat(_worker("w1 ended", state="gone"))
    same(s.store.ended_workers(), [], "left behind")


@check()
def dead_worker_is_forgotten(s: JobStoreSubject) -> None:
    """A worker that was not heard of for a month is forgotten by a sweep; one that was is not."""
    s.store.heartbeat(_worker("dead"))
    s.clock.forward(30 * DAY)
    s.store.heartbeat(_worker("alive"))
    same(s.store.prune(100).workers, 1, "forgotten")
    same([worker.id for worker in s.store.workers()], ["alive"], "workers")


@check()
def reading_changes_nothing(s: JobStoreSubject) -> None:
    """Looking at jobs, queues and workers moves none of them."""
    s.put("a", "b")
    s.ended("a", RELEASED)
    before = [s.get("a"), s.get("b")]
    list(s.store.search(Search()))
    s.store.queues()
    s.store.expired_leases(5)
    s.store.workers()
    same([s.get("a"), s.get("b")], before, "the jobs")


# ---- sweeping -----------------------------------------------------------------------------------


@check()
def sweep_purges_what_was_kept_long_enough(s: JobStoreSubject) -> None:
    """A sweep deletes the final jobs whose time has come, and no others."""
    s.put("short", "long", "ever", "waiting")
    for job_id, keep in (("short", 10.0), ("long", 100.0), ("ever", None)):
        s.ended(job_id, keep=keep)
    same(s.store.prune(100).purged, 0, "purged at once")
    s.clock.forward(11.0)
    found = s.store.prune(100)
    same((found.purged, found.more), (1, False), "purged, more")
    same(s.store.find("short"), None, "the one whose time had come")
    same(s.store.count(Search()), 3, "what is left")


@check()
def sweep_purges_every_end(s: JobStoreSubject) -> None:
    """Completed, dead-lettered and cancelled jobs are all swept."""
    s.put("done", "dead", "off")
    s.ended("done", SUCCEEDED, keep=1.0)
    s.ended("dead", FAILS_FOR_GOOD, keep=1.0)
    s.must(s.get("off"), CancelRequested(), keep=1.0)
    s.clock.forward(2.0)
    same(s.store.prune(100).purged, 3, "purged")
    same(s.store.count(Search()), 0, "what is left")


@check()
def sweep_ends_what_is_outdated(s: JobStoreSubject) -> None:
    """A sweep dead-letters jobs that were not started before their expiry, due or not."""
    s.put("due", expires_at=START + 10.0)
    s.put("later", delay=500.0, expires_at=START + 10.0)
    s.put("running", expires_at=START + 10.0, priority=9)
    s.take("running")
    s.put("fine", expires_at=START + 900.0)
    s.clock.forward(11.0)
    same(s.store.prune(100).outdated, 2, "outdated")
    for job_id in ("due", "later"):
        job = s.get(job_id)
        same(job.status, JobStatus.FAILED, f"status of {job_id}")
        same(job.last_error and job.last_error.code, "expired", f"failure of {job_id}")
    wanted = (JobStatus.ACTIVE, JobStatus.PENDING)
    same((s.status("running"), s.status("fine")), wanted, "the others")
    same(s.ids(9), ["fine"], "delivered")


@check()
def sweep_is_bounded(s: JobStoreSubject) -> None:
    """A sweep does no more at a time than asked for, says so, and comes to an end."""
    s.put(*(f"job-{n}" for n in range(25)))
    s.store.settle_and_claim([s.told(job, SUCCEEDED, keep=1.0) for job in s.claim(25)], None)
    s.clock.forward(2.0)
    first = s.store.prune(10)
    same((first.purged, first.more), (10, True), "purged, more")
    purged = first.purged
    for _ in range(10):
        found = s.store.prune(10)
        expect(found.purged <= 10, f"{found.purged} at once")
        purged += found.purged
        if not found.more:
            break
    same((purged, s.store.count(Search())), (25, 0), "purged in all, left")
    same(s.store.prune(10).more, False, "more, when nothing is left")


@check()
def sweep_of_nothing_is_fine(s: JobStoreSubject) -> None:
    """A sweep in an empty store finds nothing to do."""
    found = s.store.prune(10)
    same((found.purged, found.outdated, found.workers, found.more), (0, 0, 0, False), "found")


@check()
def swept_id_is_free(s: JobStoreSubject) -> None:
    """The id of a job that was swept can be used again."""
    s.put("a", unique_key="k")
    s.ended("a", keep=1.0)
    s.clock.forward(2.0)
    s.store.prune(10)
    same(s.put("a", unique_key="k")[0].is_new, True, "is_new")
    same(s.take("a").deliveries, 1, "deliveries of the new job")


# ---- closing and surviving ----------------------------------------------------------------------


@check()
def durability_is_a_sentence(s: JobStoreSubject) -> None:
    """The store says in one sentence what its acknowledgement means."""
    text = s.store.durability
    expect(text.endswith(".") and len(text.split()) >= 5, f"it says {text!r}")


@check()
def closes_twice(s: JobStoreSubject) -> None:
    """Closing a second time is no error."""
    s.put("a")
    s.store.close()
    s.store.close()


@check()
def closed_store_refuses(s: JobStoreSubject) -> None:
    """A closed store takes no jobs: it says so instead of losing them."""
    s.put("a")
    s.store.close()
    error = s.refusal(lambda: s.put("b"))
    expect(isinstance(error, StoreError), f"no StoreError, but {error!r}")


@check("reopen")
def jobs_survive(s: JobStoreSubject) -> None:
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
def fences_survive(s: JobStoreSubject) -> None:
    """After the store was opened anew, fences go on growing and late reports stay refused."""
    s.put("a")
    old = s.take("a")
    s.must(old, RELEASED)
    s.reopen()
    leased = s.take("a")
    expect(leased.fence > old.fence, f"fence {leased.fence} after {old.fence}")
    same(s.settle(old, SUCCEEDED), False, "a late report was applied")
