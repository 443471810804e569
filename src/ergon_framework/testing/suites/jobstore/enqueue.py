"""Checks of adding jobs: all or nothing, everything comes back as handed in, unique keys hold."""

from __future__ import annotations

from functools import partial

import msgspec

from ergon_framework.core.job import CancelRequested, JobStatus, RequeueRequested
from ergon_framework.core.unique import OnDuplicate
from ergon_framework.errors import DuplicateJobError
from ergon_framework.ports.jobstore import (
    EnqueueResult,
    Job,
    NewJob,
    Search,
    Settlement,
)
from ergon_framework.testing.suites.drivers import START
from ergon_framework.testing.suites.framework import Check, expect, register
from ergon_framework.testing.suites.jobstore.under_test import (
    FAILS_FOR_GOOD,
    FAILS_ONCE,
    RELEASED,
    SUCCEEDED,
    WAIT,
    JobStoreSubject,
    new,
    same,
)

CHECKS: list[Check[JobStoreSubject]] = []
check = register(CHECKS)

ODD = "Ω\u2028é\U0001f980 'quo\"ted' %s \\n"  # line separators, emoji and quotes are only text
FULL = NewJob(
    id="full",
    handler="python#resize",
    executor="python",
    queue="images",
    args=b'[1, "two"]',
    kwargs=b'{"width":3}',
    priority=7,
    expires_at=START + 900.5,
    timeout=12.25,
    max_attempts=4,
    max_deliveries=9,
    retry=b'{"on_timeout":"retry"}',
    unique_key="u",
    limit_key="l",
    limit=2,
    result_ttl=60.5,
    correlation_id="flow",
    trace_context={"traceparent": "00-1-2-01"},
    tags=("customer:42", "import"),
    metadata={"plan": "pro", "region": "eu"},
)


@check()
def added_job_is_found(s: JobStoreSubject) -> None:
    """An added job is found by its id, waiting, with all its counters at zero."""
    s.put("a")
    job = s.get("a")
    same(job.status, JobStatus.PENDING, "status")
    counters = (job.attempts, job.deliveries, job.excused, job.is_charged, job.is_limited)
    same(counters, (0, 0, 0, False, False), "counters")
    same((job.worker, job.result, job.last_error), (None, None, None), "worker, result, error")
    same((job.finished_at, job.purge_at), (None, None), "finished_at, purge_at")


@check()
def keeps_every_field(s: JobStoreSubject) -> None:
    """Every field of a job is found as it was handed in."""
    s.store.add([FULL])
    job = s.get("full")
    for field in set(msgspec.structs.asdict(FULL)) - {"delay", "run_at", "on_duplicate"}:
        same(getattr(job, field), getattr(FULL, field), field)


@check()
def delivers_every_field(s: JobStoreSubject) -> None:
    """A worker gets everything that running the job needs, as it was handed in."""
    s.store.add([FULL])
    leased = s.take("full")
    shared = set(leased.__struct_fields__) & set(FULL.__struct_fields__)
    for field in shared:
        same(getattr(leased, field), getattr(FULL, field), field)
    same(leased.created_at, START, "created_at")


@check()
def unset_fields_stay_unset(s: JobStoreSubject) -> None:
    """What the client left to the worker's settings is None, not a default of the store."""
    s.put("a")
    job = s.get("a")
    unset = ("expires_at", "timeout", "max_attempts", "max_deliveries", "retry", "unique_key")
    for field in (*unset, "limit_key", "result_ttl", "correlation_id", "trace_context"):
        same(getattr(job, field), None, field)
    same((job.tags, job.metadata), ((), None), "tags and metadata")


@check()
def unknown_job_is_not_found(s: JobStoreSubject) -> None:
    """There is no job of an id that nobody added."""
    s.put("a")
    for job_id in ("b", "A", "a ", ""):
        same(s.store.find(job_id), None, f"find({job_id!r})")


@check()
def answers_in_order(s: JobStoreSubject) -> None:
    """Each job of a batch gets its own answer, in the order of the batch."""
    found = s.put("c", "a", "b")
    same(
        found,
        [EnqueueResult("c", True), EnqueueResult("a", True), EnqueueResult("b", True)],
        "answers",
    )


@check()
def adding_nothing_is_fine(s: JobStoreSubject) -> None:
    """An empty batch is no error."""
    same(s.store.add([]), [], "answer")
    same(s.store.count(Search()), 0, "jobs")


@check()
def created_at_is_the_stores_time(s: JobStoreSubject) -> None:
    """A job is created when the store's clock says so."""
    s.clock.forward(12.5)
    s.put("a")
    same(s.get("a").created_at, START + 12.5, "created_at")
    same(s.store.now(), START + 12.5, "now()")


@check()
def duplicate_id_is_refused(s: JobStoreSubject) -> None:
    """A second job of the same id is refused, and the first is untouched."""
    s.put("a", priority=1)
    before = s.get("a")
    error = s.refusal(lambda: s.put("a", priority=2))
    expect(isinstance(error, DuplicateJobError), f"no DuplicateJobError, but {error!r}")
    same(s.get("a"), before, "the first job")


@check()
def duplicate_id_of_an_ended_job_is_refused(s: JobStoreSubject) -> None:
    """An id stays taken as long as its job is in the store, ended or not."""
    s.put("a")
    s.ended("a", result=b"1")
    error = s.refusal(lambda: s.put("a"))
    expect(isinstance(error, DuplicateJobError), f"no DuplicateJobError, but {error!r}")
    same(s.get("a").result, b"1", "the first job's result")


@check()
def duplicate_id_in_a_batch_is_refused(s: JobStoreSubject) -> None:
    """Two jobs of one id in one batch are refused together."""
    error = s.refusal(lambda: s.put("a", "b", "a"))
    expect(isinstance(error, DuplicateJobError), f"no DuplicateJobError, but {error!r}")
    same(s.store.count(Search()), 0, "jobs stored")


@check()
def duplicate_id_in_a_large_batch_is_named(s: JobStoreSubject) -> None:
    """The refusal of a large batch names the job whose id is taken, wherever it stands."""
    ids = [f"job-{n:03}" for n in range(120)]
    for place in (0, 49, 50, 77, 119):
        taken = f"taken-{place}"
        s.put(taken)
        batch = [*ids[:place], taken, *ids[place + 1 :]]
        error = s.refusal(lambda batch=batch: s.put(*batch))  # type: ignore[misc]
        expect(isinstance(error, DuplicateJobError), f"no DuplicateJobError, but {error!r}")
        expect(taken in str(error), f"the error does not name {taken}: {error}")
    same(s.store.count(Search()), 5, "jobs stored")
    s.put(*ids)
    same(s.store.count(Search()), 125, "jobs stored in the end")


@check()
def add_is_all_or_nothing(s: JobStoreSubject) -> None:
    """When one job of a batch is refused, none of them is stored or delivered."""
    s.put("there")
    expect(s.refusal(lambda: s.put("x", "y", "there")), "the duplicate was accepted")
    same([s.store.find("x"), s.store.find("y")], [None, None], "of the refused batch")
    same(s.ids(5), ["there"], "delivered")


@check()
def refused_batch_leaves_no_trace(s: JobStoreSubject) -> None:
    """A refused batch neither holds a unique key nor replaces a job."""
    s.put("there", unique_key="k")
    jobs = [
        new("x", unique_key="fresh"),
        new("y", unique_key="k", on_duplicate=OnDuplicate.REPLACE),
        new("there"),
    ]
    expect(s.refusal(lambda: s.store.add(jobs)), "the duplicate was accepted")
    same(s.status("there"), JobStatus.PENDING, "the job that was nearly replaced")
    same(s.put("z", unique_key="fresh")[0].is_new, True, "a job of the same key")


@check()
def refused_id_can_be_used_later(s: JobStoreSubject) -> None:
    """The ids of a refused batch are free afterwards."""
    s.put("there")
    s.refusal(lambda: s.put("x", "there"))
    same(s.put("x"), [EnqueueResult("x", True)], "the next try")


@check()
def delay_is_counted_from_now(s: JobStoreSubject) -> None:
    """A delayed job is due when its delay has passed, and not before."""
    s.put("a", delay=30.0)
    same(s.get("a").run_at, START + 30.0, "run_at")
    s.clock.forward(29.5)
    same(s.ids(), [], "too early")
    s.clock.forward(0.5)
    same(s.ids(), ["a"], "in time")


@check()
def run_at_is_an_instant(s: JobStoreSubject) -> None:
    """A job with an instant of its own is due then, whatever its delay says."""
    s.put("a", run_at=START + 60.0)
    same(s.get("a").run_at, START + 60.0, "run_at")
    s.clock.forward(59.5)
    same(s.ids(), [], "too early")
    s.clock.forward(0.5)
    same(s.ids(), ["a"], "in time")


@check()
def due_in_the_past_is_due_now(s: JobStoreSubject) -> None:
    """A job whose instant has passed is due at once, before those that became due later."""
    s.put("now")
    s.put("past", run_at=START - 60.0)
    same(s.ids(2), ["past", "now"], "order")


@check()
def payload_is_untouched(s: JobStoreSubject) -> None:
    """Arguments come back byte for byte, however large and however they are laid out."""
    args = b'[ 1.0,\t"\\u00e9",  1e400 , ' + b'"' + b"x" * 500_000 + b'"]'
    kwargs = '{"\U0001f980": "\u2028"}'.encode()
    s.put("a", args=args, kwargs=kwargs)
    leased = s.take("a")
    expect(leased.args == args and s.get("a").args == args, "args differ")
    expect(leased.kwargs == kwargs and s.get("a").kwargs == kwargs, "kwargs differ")


@check()
def texts_are_only_text(s: JobStoreSubject) -> None:
    """Ids, names and keys may hold any printable text, and are told apart exactly."""
    texts = {"handler": ODD, "queue": ODD, "unique_key": ODD, "limit_key": ODD}
    s.put(ODD, correlation_id=ODD, trace_context={"k": ODD}, **texts)
    job = s.get(ODD)
    for field, value in texts.items():
        same(getattr(job, field), value, field)
    same((job.correlation_id, job.trace_context), (ODD, {"k": ODD}), "correlation and trace")
    s.must(s.take(ODD), SUCCEEDED, result=ODD.encode())
    same(s.get(ODD).result, ODD.encode(), "result")
    same([queue.name for queue in s.store.queues()], [ODD], "queues")


@check()
def concurrent_adds_all_count(s: JobStoreSubject) -> None:
    """Batches added from several threads at once are all there."""
    ids = [[f"{thread}-{n}" for n in range(25)] for thread in range(6)]
    s.together([partial(s.put, *batch) for batch in ids])
    same(s.store.count(Search()), 150, "jobs")
    same(sorted(s.ids(200)), sorted(each for batch in ids for each in batch), "delivered")


@check()
def concurrent_duplicates_add_one(s: JobStoreSubject) -> None:
    """Of several threads that add the same id at once, exactly one succeeds."""

    def one(n: int) -> bool:
        return s.refusal(lambda: s.put("a", priority=n)) is None

    won = s.together([partial(one, n) for n in range(8)])
    same(won.count(True), 1, "how many succeeded")
    same(s.get("a").priority, won.index(True), "the job that is there")


@check()
def thousands_of_jobs(s: JobStoreSubject) -> None:
    """Thousands of jobs are added and run in order, each exactly once."""
    ids = [f"job-{n}" for n in range(3000)]
    for start in range(0, 3000, 500):
        s.put(*ids[start : start + 500])
    came: list[str] = []
    told: list[Settlement] = []
    while True:
        applied, claimed = s.settle_and_claim(told, 200)
        expect(all(applied), "a settlement was not applied")
        if not claimed.jobs:
            break
        came += [job.id for job in claimed.jobs]
        told = [s.told(job, SUCCEEDED) for job in claimed.jobs]
    expect(came == ids, f"{len(came)} came, {len(set(came))} different ones, or out of order")
    same(s.store.count(Search(statuses=(JobStatus.COMPLETED,))), 3000, "completed")


EXISTING, REPLACE = OnDuplicate.EXISTING, OnDuplicate.REPLACE


def _is_free(s: JobStoreSubject, key: str = "k") -> bool:
    added = s.put("probe", unique_key=key, on_duplicate=EXISTING)[0]
    return added.is_new


def _live(s: JobStoreSubject, key: str = "k") -> list[Job]:
    jobs = list(s.store.search(Search()))
    return [job for job in jobs if job.unique_key == key and not job.status.is_final]


@check()
def held_key_rejects(s: JobStoreSubject) -> None:
    """A job whose unique key is held is refused when it asks for that."""
    s.put("a", unique_key="k")
    error = s.refusal(lambda: s.put("b", unique_key="k"))
    expect(isinstance(error, DuplicateJobError), f"no DuplicateJobError, but {error!r}")
    same(s.store.find("b"), None, "the refused job")
    same(s.ids(5), ["a"], "delivered")


@check()
def held_key_answers_with_the_holder(s: JobStoreSubject) -> None:
    """A job whose unique key is held gets the id of the holder when it asks for that."""
    s.put("a", unique_key="k")
    before = s.get("a")
    same(s.put("b", unique_key="k", on_duplicate=EXISTING), [EnqueueResult("a", False)], "answer")
    same(s.store.find("b"), None, "the second job")
    same(s.get("a"), before, "the holder")


@check()
def held_key_replaces_the_holder(s: JobStoreSubject) -> None:
    """A job that asks to replace the holder is added, and the holder is cancelled."""
    s.put("a", unique_key="k")
    same(
        s.put("b", unique_key="k", on_duplicate=REPLACE), [EnqueueResult("b", True, "a")], "answer"
    )
    old = s.get("a")
    same(old.status, JobStatus.CANCELLED, "the replaced job")
    expect(old.finished_at is not None, "the replaced job has no finished_at")
    same(s.ids(5), ["b"], "delivered")


@check()
def replaced_retry_does_not_run(s: JobStoreSubject) -> None:
    """A job that waits for another attempt can be replaced too, and does not come back."""
    s.put("a", unique_key="k")
    s.ended("a", FAILS_ONCE)
    s.put("b", unique_key="k", on_duplicate=REPLACE)
    same(s.status("a"), JobStatus.CANCELLED, "the replaced job")
    s.clock.forward(WAIT)
    same(s.ids(5), ["b"], "delivered")


@check()
def running_job_is_not_replaced(s: JobStoreSubject) -> None:
    """A running job is not replaced: the new one is refused, and the running one goes on."""
    s.put("a", unique_key="k")
    leased = s.take("a")
    error = s.refusal(lambda: s.put("b", unique_key="k", on_duplicate=REPLACE))
    expect(isinstance(error, DuplicateJobError), f"no DuplicateJobError, but {error!r}")
    same(s.store.find("b"), None, "the new job")
    same(s.status("a"), JobStatus.ACTIVE, "the running job")
    expect(s.settle(leased, SUCCEEDED), "the running job could not end")


@check()
def replaced_job_is_not_kept_for_ever(s: JobStoreSubject) -> None:
    """A replaced job is swept one day, though nobody said how long it is to be kept."""
    s.put("a", unique_key="k")
    s.put("b", unique_key="k", on_duplicate=REPLACE)
    expect(s.get("a").purge_at is not None, "it has no purge_at")


@check()
def replacing_a_free_key_replaces_nobody(s: JobStoreSubject) -> None:
    """A job that would replace is simply added when nobody holds its key."""
    same(s.put("a", unique_key="k", on_duplicate=REPLACE), [EnqueueResult("a", True)], "answer")


@check()
def batch_meets_its_own_keys(s: JobStoreSubject) -> None:
    """A job meets those before it in its batch like any others."""
    jobs = [
        new("a", unique_key="k"),
        new("b", unique_key="k", on_duplicate=EXISTING),
        new("c", unique_key="other"),
    ]
    found = s.store.add(jobs)
    same(
        found,
        [EnqueueResult("a", True), EnqueueResult("a", False), EnqueueResult("c", True)],
        "answers",
    )
    same(s.ids(5), ["a", "c"], "delivered")


@check()
def batch_that_meets_itself_is_refused(s: JobStoreSubject) -> None:
    """Two jobs of one key in one batch are refused together when the second asks for that."""
    error = s.refusal(lambda: s.put("a", "b", unique_key="k"))
    expect(isinstance(error, DuplicateJobError), f"no DuplicateJobError, but {error!r}")
    same(s.store.count(Search()), 0, "jobs stored")
    expect(_is_free(s), "the refused batch holds the key")


@check()
def key_is_held_across_queues(s: JobStoreSubject) -> None:
    """A unique key is unique in the whole store."""
    s.put("a", unique_key="k", queue="one")
    expect(s.refusal(lambda: s.put("b", unique_key="k", queue="two")), "it was accepted")


@check()
def keys_are_told_apart(s: JobStoreSubject) -> None:
    """Keys that only look alike are different keys."""
    for n, key in enumerate(("k", "K", " k", "k ", "ḱ", "k%", "k_")):
        same(s.put(f"job-{n}", unique_key=key)[0].is_new, True, f"key {key!r}")


@check()
def key_is_held_while_running(s: JobStoreSubject) -> None:
    """A running job holds its unique key."""
    s.put("a", unique_key="k")
    s.take("a")
    expect(not _is_free(s), "it is free")


@check()
def key_is_held_while_retrying(s: JobStoreSubject) -> None:
    """A job that waits for another attempt holds its unique key."""
    s.put("a", unique_key="k")
    s.ended("a", FAILS_ONCE)
    expect(not _is_free(s), "it is free")


@check()
def key_is_held_after_a_release(s: JobStoreSubject) -> None:
    """A job that was given back holds its unique key."""
    s.put("a", unique_key="k")
    s.ended("a", RELEASED)
    expect(not _is_free(s), "it is free")


@check()
def key_is_freed_by_success(s: JobStoreSubject) -> None:
    """A completed job holds its unique key no more."""
    s.put("a", unique_key="k")
    s.ended("a", SUCCEEDED)
    expect(_is_free(s), "it is still held")


@check()
def key_is_freed_by_failure(s: JobStoreSubject) -> None:
    """A dead-lettered job holds its unique key no more."""
    s.put("a", unique_key="k")
    s.ended("a", FAILS_FOR_GOOD)
    expect(_is_free(s), "it is still held")


@check()
def key_is_freed_by_cancelling(s: JobStoreSubject) -> None:
    """A cancelled job holds its unique key no more."""
    s.put("a", unique_key="k")
    s.must(s.get("a"), CancelRequested())
    expect(_is_free(s), "it is still held")


@check()
def key_is_freed_by_expiry(s: JobStoreSubject) -> None:
    """A job that was not started in time holds its unique key no more."""
    s.put("a", unique_key="k", expires_at=s.store.now() + 5.0)
    s.clock.forward(6.0)
    same(s.ids(), [], "delivered")
    same(s.status("a"), JobStatus.FAILED, "status")
    expect(_is_free(s), "it is still held")


@check()
def late_report_does_not_free_the_next_holder(s: JobStoreSubject) -> None:
    """A report of a job that has ended leaves its key with the job that holds it now."""
    s.put("a", unique_key="k")
    leased = s.take("a")
    s.must(leased, FAILS_FOR_GOOD)
    s.put("b", unique_key="k")
    expect(not s.settle(leased, SUCCEEDED), "the late report was applied")
    expect(not _is_free(s), "the key of the second job is free")


@check()
def requeued_job_holds_its_key_again(s: JobStoreSubject) -> None:
    """A job sent back from the dead letters holds its unique key again."""
    s.put("a", unique_key="k")
    failed = s.ended("a", FAILS_FOR_GOOD)
    s.must(failed, RequeueRequested())
    expect(not _is_free(s), "it is free")


@check()
def requeue_does_not_share_a_key(s: JobStoreSubject) -> None:
    """A job sent back while another holds its key does not make it a key of two."""
    s.put("a", unique_key="k")
    failed = s.ended("a", FAILS_FOR_GOOD)
    s.put("b", unique_key="k")
    s.settle(failed, RequeueRequested())
    same([job.id for job in _live(s)], ["b"], "jobs that hold the key")


@check()
def concurrent_keys_have_one_holder(s: JobStoreSubject) -> None:
    """Of several threads that add jobs of one key at once, one adds and all get its id."""

    def one(n: int) -> EnqueueResult:
        return s.put(f"job-{n}", unique_key="k", on_duplicate=EXISTING)[0]

    found = s.together([partial(one, n) for n in range(8)])
    same(sum(added.is_new for added in found), 1, "how many were new")
    same(len({added.id for added in found}), 1, "different ids")
    same(s.store.count(Search()), 1, "jobs")
