"""Checks of unique keys that are held by a rule: for a period, only while waiting, and extended."""

from __future__ import annotations

from functools import partial

from ergon_framework.core.job import CancelRequested, JobStatus, RequeueRequested
from ergon_framework.core.unique import OnDuplicate, UniqueRule
from ergon_framework.errors import DuplicateJobError
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.ports.jobstore import EnqueueResult, NewJob, Search
from ergon_framework.ports.transfer import JobRecord, records_of
from ergon_framework.testing.suites.framework import Check, expect, fail, register
from ergon_framework.testing.suites.jobstore.under_test import (
    FAILS_FOR_GOOD,
    FAILS_ONCE,
    SUCCEEDED,
    WAIT,
    JobStoreSubject,
    ids_of,
    new,
    same,
)

CHECKS: list[Check[JobStoreSubject]] = []
check = register(CHECKS)

EXISTING, REPLACE, EXTEND = OnDuplicate.EXISTING, OnDuplicate.REPLACE, OnDuplicate.EXTEND
PERIOD = 60.0
THROTTLED = UniqueRule(("pending", "active", "completed"), PERIOD)
EVERY_END = UniqueRule(("pending", "active", "completed", "failed", "cancelled"), PERIOD)
WAITING = UniqueRule()


def _is_free(s: JobStoreSubject, key: str = "k") -> bool:
    """Whether a job without a rule gets the key; if so, it takes it."""
    return s.put("probe", unique_key=key, on_duplicate=EXISTING, delay=9000.0)[0].is_new


# ---- for a period -------------------------------------------------------------------------------


@check()
def rule_is_kept(s: JobStoreSubject) -> None:
    """What was said about a unique key is found with the job, and so is the key."""
    for n, rule in enumerate((THROTTLED, EVERY_END, WAITING, None)):
        s.put(f"j{n}", unique_key=f"k{n}", unique=rule)
        job = s.get(f"j{n}")
        same((job.unique_key, job.unique), (f"k{n}", rule), "key and rule")


@check()
def completed_job_holds_its_key_for_its_period(s: JobStoreSubject) -> None:
    """The period is counted from when the job was added, and its end is exact."""
    s.put("a", unique_key="k", unique=THROTTLED)
    s.clock.forward(20.0)
    s.ended("a", keep=9000.0)
    s.clock.forward(PERIOD - 20.0 - 0.5)
    answer = s.put("b", unique_key="k", unique=THROTTLED, on_duplicate=EXISTING)
    same(answer, [EnqueueResult("a", False)], "within the period")
    expect(not _is_free(s), "a job without a rule got the key within the period")
    s.clock.forward(0.5)
    answer = s.put("c", unique_key="k", unique=THROTTLED, on_duplicate=EXISTING)
    same(answer, [EnqueueResult("c", True)], "at the end of the period")


@check()
def ended_holder_refuses_and_says_so(s: JobStoreSubject) -> None:
    """Nothing replaces or extends a job that has ended: whoever asks for that is told."""
    s.put("a", unique_key="k", unique=THROTTLED)
    s.ended("a", keep=9000.0)
    before = s.get("a")
    for wanted in (OnDuplicate.REJECT, REPLACE, EXTEND):
        call = partial(s.put, "b", unique_key="k", unique=THROTTLED, on_duplicate=wanted)
        error = s.refusal(call)
        expect(isinstance(error, DuplicateJobError), f"{wanted}: no refusal, but {error!r}")
        same(getattr(error, "details", {}).get("unique_key"), "k", "the key that the error names")
    same(s.get("a"), before, "the job that has ended")
    same(s.store.count(Search()), 1, "jobs")


@check()
def period_does_not_end_while_the_job_waits_or_runs(s: JobStoreSubject) -> None:
    """A queue that is behind does not make two jobs of one key."""
    s.put("a", unique_key="k", unique=THROTTLED)
    s.clock.forward(2 * PERIOD)
    expect(not _is_free(s), "a job that waits holds its key no more")
    leased = s.take("a")
    expect(not _is_free(s), "a job that runs holds its key no more")
    s.must(leased, SUCCEEDED)
    expect(_is_free(s), "the period was over when the job ended")


@check()
def end_that_does_not_count_frees_the_key(s: JobStoreSubject) -> None:
    """A job that failed or was cancelled can be tried again at once, unless its rule counts it."""
    s.put("failed", unique_key="f", unique=THROTTLED)
    s.ended("failed", FAILS_FOR_GOOD, keep=9000.0)
    expect(_is_free(s, "f"), "a failed job holds its key")
    s.put("cancelled", unique_key="c", unique=THROTTLED)
    s.must(s.get("cancelled"), CancelRequested(), keep=9000.0)
    same(s.put("x", unique_key="c")[0].is_new, True, "after a cancellation")
    s.put("every", unique_key="e", unique=EVERY_END, priority=9)
    s.ended("every", FAILS_FOR_GOOD, keep=9000.0)
    same(s.put("y", unique_key="e", on_duplicate=EXISTING)[0].id, "every", "counted as well")


@check()
def holder_outlives_its_retention(s: JobStoreSubject) -> None:
    """A job that holds its key is not purged before it lets go, and then it is."""
    s.put("a", "b", "c", unique_key=None)
    s.put("held", unique_key="k", unique=THROTTLED, priority=9)
    s.ended("held", keep=1.0)
    for each in ("a", "b", "c"):
        s.ended(each, keep=1.0)
    s.clock.forward(10.0)
    same(s.store.prune(100).purged, 3, "purged within the period")
    same(s.put("x", unique_key="k", on_duplicate=EXISTING)[0].id, "held", "who holds the key")
    s.clock.forward(PERIOD)
    same(s.store.prune(100).purged, 1, "purged after the period")
    expect(_is_free(s), "a purged job holds its key")


@check()
def holder_is_not_prunable(s: JobStoreSubject) -> None:
    """A job that holds its key goes to no archive before it lets go; it hides none behind it."""
    held = [f"held-{n}" for n in range(3)]
    for job_id in held:
        s.put(job_id, unique_key=job_id, unique=THROTTLED)
        s.ended(job_id, keep=1.0)
    s.put("free", unique_key=None)
    s.ended("free", keep=2.0)
    s.clock.forward(10.0)
    same(ids_of(s.store.prunable(2)), ["free"], "what may go within the period")
    s.clock.forward(PERIOD)
    same(sorted(ids_of(s.store.prunable(9))), ["free", *held], "what may go after the period")


@check()
def erased_holder_lets_go_of_its_key(s: JobStoreSubject) -> None:
    """The key is one of the things that are erased: nobody could say any more who holds it."""
    s.put("a", unique_key="k", unique=THROTTLED)
    s.ended("a", keep=9000.0)
    same(s.store.erase([s.get("a")]), 1, "erased")
    same((s.get("a").unique_key, s.get("a").unique), (None, None), "key and rule")
    expect(_is_free(s), "an erased job holds its key")


@check()
def erasing_leaves_the_key_of_the_next_holder(s: JobStoreSubject) -> None:
    """Another job has the key by now, with or without a rule, and keeps it."""
    for key, rule in (("k", THROTTLED), ("l", None)):
        s.put(f"{key}-1", unique_key=key, unique=rule)
        s.ended(f"{key}-1", keep=9000.0)
    s.clock.forward(PERIOD)
    for key, rule in (("k", THROTTLED), ("l", None)):
        s.put(f"{key}-2", unique_key=key, unique=rule, delay=9000.0)
        same(s.store.erase([s.get(f"{key}-1")]), 1, "erased")
        expect(not _is_free(s, key), "the key of a job that waits went with the one before it")
        same(s.get(f"{key}-2").unique_key, key, "the key of the one that waits")


@check()
def erased_job_comes_back_without_its_key(s: JobStoreSubject) -> None:
    """Another one that waits with the key is not in its way, and keeps it."""
    s.put("a", unique_key="k")
    s.ended("a", FAILS_FOR_GOOD, keep=9000.0)
    same(s.store.erase([s.get("a")]), 1, "erased")
    s.put("b", unique_key="k", delay=9000.0)
    s.must(s.get("a"), RequeueRequested())
    same((s.status("a"), s.get("a").unique_key), (JobStatus.PENDING, None), "it is back")
    s.ended("a")
    expect(not _is_free(s), "the key of the one that waits went with the one that came back")


@check()
def purging_by_hand_frees_the_key(s: JobStoreSubject) -> None:
    """An operator who deletes a job deletes what it holds."""
    s.put("a", unique_key="k", unique=THROTTLED)
    done = s.ended("a", keep=9000.0)
    same(s.store.purge([done]), 1, "purged")
    expect(_is_free(s), "the key of a job that is gone is held")


@check()
def next_holder_counts_from_its_own_beginning(s: JobStoreSubject) -> None:
    """A job that takes a key after a period holds it for a period of its own."""
    s.put("a", unique_key="k", unique=THROTTLED)
    s.ended("a", keep=9000.0)
    s.clock.forward(PERIOD + 1.0)
    s.put("b", unique_key="k", unique=THROTTLED)
    s.ended("b", keep=9000.0)
    s.clock.forward(PERIOD - 1.0)
    answer = s.put("c", unique_key="k", unique=THROTTLED, on_duplicate=EXISTING)
    same(answer, [EnqueueResult("b", False)], "within the second period")
    same(s.store.purge([s.get("a")]), 1, "purged")
    expect(not _is_free(s), "the first holder took the key of the second with it")


@check()
def requeued_job_is_only_stopped_by_one_that_has_not_ended(s: JobStoreSubject) -> None:
    """An operator's requeue is no enqueue: a job that completed does not stand in its way."""
    s.put("a", unique_key="k", unique=THROTTLED)
    failed = s.ended("a", FAILS_FOR_GOOD, keep=9000.0)
    s.put("b", unique_key="k", unique=THROTTLED)
    expect(not s.settle(failed, RequeueRequested()), "it came back beside one that waits")
    s.ended("b", keep=9000.0)
    s.must(failed, RequeueRequested())
    expect(not _is_free(s), "a job that came back does not hold its key")


# ---- only while it waits ------------------------------------------------------------------------


@check()
def waiting_only_frees_the_key_when_it_runs(s: JobStoreSubject) -> None:
    """At most one job waits: one that came while another ran sees what that one missed."""
    s.put("a", unique_key="k", unique=WAITING)
    answer = s.put("b", unique_key="k", unique=WAITING, on_duplicate=EXISTING)
    same(answer, [EnqueueResult("a", False)], "while it waits")
    leased = s.take("a")
    answer = s.put("c", unique_key="k", unique=WAITING, on_duplicate=EXISTING)
    same(answer, [EnqueueResult("c", True)], "while it runs")
    answer = s.put("d", unique_key="k", unique=WAITING, on_duplicate=EXISTING)
    same(answer, [EnqueueResult("c", False)], "while the second waits")
    s.must(leased, SUCCEEDED)
    same(s.ids(5), ["c"], "delivered")


@check()
def waiting_only_goes_back_to_its_queue(s: JobStoreSubject) -> None:
    """A failed attempt is repeated although another job of its key waits by now."""
    s.put("a", unique_key="k", unique=WAITING)
    leased = s.take("a")
    s.put("b", unique_key="k", unique=WAITING, delay=5000.0)
    s.must(leased, FAILS_ONCE)
    same(s.status("a"), JobStatus.RETRYING, "the first job")
    answer = s.put("c", unique_key="k", unique=WAITING, on_duplicate=EXISTING)
    same(answer, [EnqueueResult("b", False)], "the holder")
    s.clock.forward(WAIT)
    same(s.ids(5), ["a"], "delivered")


@check()
def retrying_job_holds_what_it_held_while_waiting(s: JobStoreSubject) -> None:
    """A job that waits for another attempt waits, as far as its key is concerned."""
    s.put("a", unique_key="k", unique=WAITING)
    s.ended("a", FAILS_ONCE)
    expect(not _is_free(s), "it is free")


@check()
def waiting_only_does_not_come_back_beside_another(s: JobStoreSubject) -> None:
    """A requeue is refused while another job waits with its key, and holds the key otherwise."""
    s.put("a", unique_key="k", unique=WAITING)
    failed = s.ended("a", FAILS_FOR_GOOD, keep=9000.0)
    s.put("b", unique_key="k", unique=WAITING)
    expect(not s.settle(failed, RequeueRequested()), "it came back beside one that waits")
    s.take("b")
    s.must(failed, RequeueRequested())
    answer = s.put("c", unique_key="k", unique=WAITING, on_duplicate=EXISTING)
    same(answer, [EnqueueResult("a", False)], "the holder")


@check()
def keys_of_both_kinds_are_one_key(s: JobStoreSubject) -> None:
    """A job without a rule meets one with a rule, and the other way round."""
    s.put("a", unique_key="k", unique=WAITING)
    expect(s.refusal(lambda: s.put("b", unique_key="k")), "without a rule beside one with one")
    s.put("c", unique_key="l")
    call = partial(s.put, "d", unique_key="l", unique=WAITING)
    expect(s.refusal(call), "with a rule beside one without")
    s.take("a")
    s.put("e", unique_key="k", priority=9)
    call = partial(s.put, "f", unique_key="k", unique=WAITING)
    expect(s.refusal(call), "with a rule beside one that took the key over")


@check()
def waiting_only_is_replaced(s: JobStoreSubject) -> None:
    """A job that waits makes room, and one that runs holds nothing."""
    s.put("a", unique_key="k", unique=WAITING)
    answer = s.put("b", unique_key="k", unique=WAITING, on_duplicate=REPLACE)
    same(answer, [EnqueueResult("b", True, "a")], "answer")
    same(s.status("a"), JobStatus.CANCELLED, "the first job")
    expect(not _is_free(s), "the second job does not hold the key")


# ---- extending ----------------------------------------------------------------------------------


@check()
def extended_job_waits_for_the_new_time(s: JobStoreSubject) -> None:
    """A burst of calls makes one job, due after the last of them, with the last arguments."""
    s.put("a", unique_key="k", unique=WAITING, delay=5.0, args=b"[0]", priority=3)
    before = s.get("a")
    for n in range(1, 4):
        s.clock.forward(4.0)
        text = b"[%d]" % n
        answer = s.put(
            "x", unique_key="k", unique=WAITING, on_duplicate=EXTEND, delay=5.0, args=text
        )
        same(answer, [EnqueueResult("a", False)], "answer")
        same(s.ids(5), [], "delivered too early")
    after = s.get("a")
    same((after.run_at, after.args), (s.store.now() + 5.0, b"[3]"), "due time and arguments")
    same((after.priority, after.created_at), (3, before.created_at), "what it keeps")
    same(s.store.count(Search()), 1, "jobs")
    s.clock.forward(5.0)
    [claimed] = s.claim(5)
    same((claimed.id, claimed.args), ("a", b"[3]"), "delivered")


@check()
def extended_job_is_never_due_sooner(s: JobStoreSubject) -> None:
    """A call without a delay does not hurry a job that was planned for later."""
    s.put("a", unique_key="k", delay=100.0)
    due = s.get("a").run_at
    s.put("b", unique_key="k", on_duplicate=EXTEND, kwargs=b'{"n":1}')
    after = s.get("a")
    same((after.run_at, after.kwargs), (due, b'{"n":1}'), "due time and named arguments")


@check()
def job_of_another_handler_is_not_extended(s: JobStoreSubject) -> None:
    """It would be called with arguments that are not its own, and the other work would be lost."""
    s.put("a", unique_key="k", delay=100.0, args=b"[1]")
    other = NewJob(id="b", handler="refund", unique_key="k", on_duplicate=EXTEND, args=b"[2]")
    try:
        s.store.add([NewJob(id="c", handler="refund"), other])
    except DuplicateJobError as error:
        expect("another handler" in error.message, "the error does not say why")
    else:
        fail("the arguments of another handler were taken")
    same((s.get("a").args, s.store.find("c")), (b"[1]", None), "the job, and others of the call")


@check()
def extended_job_does_not_expire_before_it_is_due(s: JobStoreSubject) -> None:
    """It would be a dead letter that nobody has tried."""
    s.put("a", unique_key="k", delay=100.0)
    try:
        s.put("b", unique_key="k", on_duplicate=EXTEND, expires_at=s.clock() + 50.0)
    except DuplicateJobError as error:
        expect("expires" in error.message, "the error does not say why")
    else:
        fail("it expires before it is due")
    same(s.get("a").expires_at, None, "the expiry of the job")
    s.put("b", unique_key="k", on_duplicate=EXTEND, expires_at=s.clock() + 101.0)
    same(s.get("a").expires_at, s.clock() + 101.0, "the expiry of the job")


@check()
def extended_due_job_waits_again(s: JobStoreSubject) -> None:
    """A job that was due, and one that waits for its limit key, are put off as well."""
    s.put("running", limit_key="l", priority=9)
    s.take("running")
    s.put("a", unique_key="k", limit_key="l")
    s.put("b", limit_key="l", queue="other")
    same(s.ids(5), [], "beside the running one")
    s.put("x", unique_key="k", on_duplicate=EXTEND, delay=50.0)
    s.must(s.get("running"), SUCCEEDED)
    same(s.ids(5), ["b"], "delivered while the first waits")
    s.must(s.get("b"), SUCCEEDED)
    s.clock.forward(50.0)
    same(s.ids(5), ["a"], "delivered in the end")


@check()
def extended_retry_keeps_its_attempts(s: JobStoreSubject) -> None:
    """A job that waits for another attempt is extended, and what happened to it stays."""
    s.put("a", unique_key="k")
    s.ended("a", FAILS_ONCE)
    before = s.get("a")
    s.put("x", unique_key="k", on_duplicate=EXTEND, delay=WAIT + 30.0, args=b"[1]")
    after = s.get("a")
    same((after.status, after.attempts), (JobStatus.RETRYING, before.attempts), "how it stands")
    same((after.history, after.last_error), (before.history, before.last_error), "its history")
    s.clock.forward(WAIT)
    same(s.ids(5), [], "delivered too early")
    s.clock.forward(30.0)
    same(s.ids(5), ["a"], "delivered")


@check()
def running_job_is_not_extended(s: JobStoreSubject) -> None:
    """What a running job has read cannot be changed: the caller is told."""
    s.put("a", unique_key="k")
    leased = s.take("a")
    error = s.refusal(lambda: s.put("b", unique_key="k", on_duplicate=EXTEND, args=b"[1]"))
    expect(isinstance(error, DuplicateJobError), f"no DuplicateJobError, but {error!r}")
    same(s.get("a").args, b"[]", "arguments of the running job")
    expect(s.settle(leased, SUCCEEDED), "the running job could not end")


@check()
def extending_a_free_key_adds(s: JobStoreSubject) -> None:
    """The first call of a burst is simply added."""
    answer = s.put("a", unique_key="k", unique=WAITING, on_duplicate=EXTEND, delay=5.0)
    same(answer, [EnqueueResult("a", True)], "answer")


@check()
def extended_job_takes_the_new_expiry(s: JobStoreSubject) -> None:
    """It would otherwise be given up before it is due."""
    now = s.store.now()
    s.put("a", unique_key="k", delay=5.0, expires_at=now + 20.0)
    s.put("x", unique_key="k", on_duplicate=EXTEND, delay=30.0, expires_at=now + 60.0)
    s.clock.forward(30.0)
    same(s.store.prune(10).outdated, 0, "given up")
    s.put("y", unique_key="k", on_duplicate=EXTEND, delay=40.0)
    s.clock.forward(40.0)
    same((s.store.prune(10).outdated, s.ids(5)), (0, ["a"]), "given up, and delivered")


@check()
def large_and_small_arguments_take_each_others_place(s: JobStoreSubject) -> None:
    """However long they are, the job has those of the last call."""
    large = b'["%s"]' % (b"x" * 70_000)
    for n, text in enumerate((b"[0]", large, b"[1]", b'["%s"]' % (b"y" * 300), large, b"[2]")):
        s.put(f"j{n}", unique_key="k", on_duplicate=EXTEND, args=text, kwargs=b'{"n":1}')
        same(s.get("j0").args, text, "arguments")
    [claimed] = s.claim(5)
    same((claimed.args, claimed.kwargs, claimed.handler), (b"[2]", b'{"n":1}', "work"), "claimed")


# ---- batches and rivals -------------------------------------------------------------------------


@check()
def batch_meets_its_own_rules(s: JobStoreSubject) -> None:
    """Calls of one batch are taken in their order, as if each came alone."""
    common = {"unique_key": "k", "unique": WAITING}
    jobs = [
        new("a", delay=5.0, args=b"[0]", **common),
        new("b", delay=9.0, args=b"[1]", on_duplicate=EXTEND, **common),
        new("c", on_duplicate=EXISTING, **common),
        new("d", delay=7.0, args=b"[2]", on_duplicate=EXTEND, **common),
        new("e", delay=1.0, args=b"[3]", on_duplicate=REPLACE, **common),
        new("f", delay=2.0, args=b"[4]", on_duplicate=EXTEND, **common),
    ]
    found = s.store.add(jobs)
    wanted = [("a", True), ("a", False), ("a", False), ("a", False), ("e", True), ("e", False)]
    same([(each.id, each.is_new) for each in found], wanted, "answers")
    same((s.status("a"), s.get("e").args), (JobStatus.CANCELLED, b"[4]"), "what is left")
    same(s.get("e").run_at, s.store.now() + 2.0, "due")


@check()
def refused_batch_leaves_rules_alone(s: JobStoreSubject) -> None:
    """A batch that is refused neither extends a job nor takes a key."""
    s.put("a", unique_key="k", unique=WAITING, delay=5.0)
    s.put("b", unique_key="l")
    before = s.get("a")
    jobs = [
        new("x", unique_key="k", unique=WAITING, delay=50.0, args=b"[1]", on_duplicate=EXTEND),
        new("y", unique_key="m", unique=THROTTLED),
        new("z", unique_key="l"),
    ]
    expect(s.refusal(lambda: s.store.add(jobs)), "it was accepted")
    same(s.get("a"), before, "the job that was to be extended")
    expect(_is_free(s, "m"), "the key of a refused job is held")


@check()
def rivals_for_a_rule_have_one_holder(s: JobStoreSubject) -> None:
    """Of several threads that add jobs of one key at once, one adds and all get its id."""
    for rule in (WAITING, THROTTLED):
        key = f"k-{rule.period}"

        def one(n: int, rule: UniqueRule = rule, key: str = key) -> EnqueueResult:
            fields = {"unique_key": key, "unique": rule, "on_duplicate": EXISTING}
            return s.put(f"{key}-{n}", **fields)[0]

        found = s.together([partial(one, n) for n in range(8)])
        same(sum(added.is_new for added in found), 1, f"how many were new, {rule}")
        same(len({added.id for added in found}), 1, f"different ids, {rule}")
    same(s.store.count(Search()), 2, "jobs")


@check()
def rivals_take_over_a_key_that_was_let_go(s: JobStoreSubject) -> None:
    """The same where another job had the key before."""
    for n in range(4):
        s.put(f"old-{n}", unique_key=f"k{n}", unique=WAITING, priority=9)
        s.take(f"old-{n}")

        def one(m: int, n: int = n) -> EnqueueResult:
            fields = {"unique_key": f"k{n}", "unique": WAITING, "on_duplicate": EXTEND}
            return s.put(f"job-{n}-{m}", **fields)[0]

        found = s.together([partial(one, m) for m in range(6)])
        same(sum(added.is_new for added in found), 1, "how many were new")
        same(len({added.id for added in found}), 1, "different ids")


# ---- moving -------------------------------------------------------------------------------------


@check("moving")
def loaded_jobs_hold_their_keys_by_their_rules(s: JobStoreSubject) -> None:
    """A store that jobs were moved to answers as the one they came from would."""
    other = MemoryJobStore(s.clock)
    old = JobStoreSubject(other, s.clock, None, s.patience)
    old.put("done", unique_key="d", unique=THROTTLED, priority=3)
    old.ended("done", keep=9000.0)
    old.put("failed", unique_key="f", unique=THROTTLED, priority=2)
    old.ended("failed", FAILS_FOR_GOOD, keep=9000.0)
    old.put("running", unique_key="r", unique=WAITING, priority=1)
    old.take("running")
    old.put("waiting", unique_key="w", unique=WAITING)
    target = records_of(s.store)
    target.load(records_of(other).dump(JobRecord, None, 100))
    other.close()
    same((s.get("waiting").unique_key, s.get("waiting").unique), ("w", WAITING), "key and rule")
    holders = {
        key: s.put(f"new-{key}", unique_key=key, unique=WAITING, on_duplicate=EXISTING)[0].id
        for key in "dfrw"
    }
    wanted = {"d": "done", "f": "new-f", "r": "new-r", "w": "waiting"}
    same(holders, wanted, "who holds each key")
    target.discard([JobRecord(s.get("waiting"), 0.0)])
    same(s.put("x", unique_key="w", unique=WAITING)[0].is_new, True, "the key of a discarded job")


@check("reopen")
def rules_survive_a_restart(s: JobStoreSubject) -> None:
    """Who holds a key is found by a new process."""
    s.put("a", unique_key="k", unique=THROTTLED, priority=1)
    s.ended("a", keep=9000.0)
    s.put("b", unique_key="l", unique=WAITING)
    s.reopen()
    same(s.put("x", unique_key="k", on_duplicate=EXISTING)[0].id, "a", "who holds the first key")
    same(s.put("y", unique_key="l", on_duplicate=EXISTING)[0].id, "b", "who holds the second")
