"""Checks of unique keys: held by one job from its adding to its end, and by nobody afterwards."""

from __future__ import annotations

from functools import partial

from ergon_framework.core.job import CancelAsked, JobStatus, RequeueAsked
from ergon_framework.errors import DuplicateJobError
from ergon_framework.ports.jobstore import Added, Job, OnDuplicate, Search
from ergon_framework.testing.suites.framework import Check, expect, register
from ergon_framework.testing.suites.jobstore.subject import (
    FAILS_FOR_GOOD,
    FAILS_ONCE,
    RELEASED,
    SUCCEEDED,
    WAIT,
    Subject,
    new,
    same,
)

CHECKS: list[Check[Subject]] = []
check = register(CHECKS)

EXISTING, REPLACE = OnDuplicate.EXISTING, OnDuplicate.REPLACE


def _is_free(s: Subject, key: str = "k") -> bool:
    added = s.put("probe", unique_key=key, on_duplicate=EXISTING)[0]
    return added.is_new


def _live(s: Subject, key: str = "k") -> list[Job]:
    jobs = list(s.store.search(Search()))
    return [job for job in jobs if job.unique_key == key and not job.status.is_final]


@check()
def held_key_rejects(s: Subject) -> None:
    """A job whose unique key is held is refused when it asks for that."""
    s.put("a", unique_key="k")
    error = s.refusal(lambda: s.put("b", unique_key="k"))
    expect(isinstance(error, DuplicateJobError), f"no DuplicateJobError, but {error!r}")
    same(s.store.find("b"), None, "the refused job")
    same(s.ids(5), ["a"], "delivered")


@check()
def held_key_answers_with_the_holder(s: Subject) -> None:
    """A job whose unique key is held gets the id of the holder when it asks for that."""
    s.put("a", unique_key="k")
    before = s.get("a")
    same(s.put("b", unique_key="k", on_duplicate=EXISTING), [Added("a", False)], "answer")
    same(s.store.find("b"), None, "the second job")
    same(s.get("a"), before, "the holder")


@check()
def held_key_replaces_the_holder(s: Subject) -> None:
    """A job that asks to replace the holder is added, and the holder is cancelled."""
    s.put("a", unique_key="k")
    same(s.put("b", unique_key="k", on_duplicate=REPLACE), [Added("b", True, "a")], "answer")
    old = s.get("a")
    same(old.status, JobStatus.CANCELLED, "the replaced job")
    expect(old.finished_at is not None, "the replaced job has no finished_at")
    same(s.ids(5), ["b"], "delivered")


@check()
def replaced_retry_does_not_run(s: Subject) -> None:
    """A job that waits for another attempt can be replaced too, and does not come back."""
    s.put("a", unique_key="k")
    s.ended("a", FAILS_ONCE)
    s.put("b", unique_key="k", on_duplicate=REPLACE)
    same(s.status("a"), JobStatus.CANCELLED, "the replaced job")
    s.clock.forward(WAIT)
    same(s.ids(5), ["b"], "delivered")


@check()
def running_job_is_not_replaced(s: Subject) -> None:
    """A running job is not replaced: the new one is refused, and the running one goes on."""
    s.put("a", unique_key="k")
    leased = s.take("a")
    error = s.refusal(lambda: s.put("b", unique_key="k", on_duplicate=REPLACE))
    expect(isinstance(error, DuplicateJobError), f"no DuplicateJobError, but {error!r}")
    same(s.store.find("b"), None, "the new job")
    same(s.status("a"), JobStatus.ACTIVE, "the running job")
    expect(s.settle(leased, SUCCEEDED), "the running job could not end")


@check()
def replaced_job_is_not_kept_for_ever(s: Subject) -> None:
    """A replaced job is swept one day, though nobody said how long it is to be kept."""
    s.put("a", unique_key="k")
    s.put("b", unique_key="k", on_duplicate=REPLACE)
    expect(s.get("a").purge_at is not None, "it has no purge_at")


@check()
def replacing_a_free_key_replaces_nobody(s: Subject) -> None:
    """A job that would replace is simply added when nobody holds its key."""
    same(s.put("a", unique_key="k", on_duplicate=REPLACE), [Added("a", True)], "answer")


@check()
def batch_meets_its_own_keys(s: Subject) -> None:
    """A job meets those before it in its batch like any others."""
    jobs = [
        new("a", unique_key="k"),
        new("b", unique_key="k", on_duplicate=EXISTING),
        new("c", unique_key="other"),
    ]
    found = s.store.add(jobs)
    same(found, [Added("a", True), Added("a", False), Added("c", True)], "answers")
    same(s.ids(5), ["a", "c"], "delivered")


@check()
def batch_that_meets_itself_is_refused(s: Subject) -> None:
    """Two jobs of one key in one batch are refused together when the second asks for that."""
    error = s.refusal(lambda: s.put("a", "b", unique_key="k"))
    expect(isinstance(error, DuplicateJobError), f"no DuplicateJobError, but {error!r}")
    same(s.store.count(Search()), 0, "jobs stored")
    expect(_is_free(s), "the refused batch holds the key")


@check()
def key_is_held_across_queues(s: Subject) -> None:
    """A unique key is unique in the whole store."""
    s.put("a", unique_key="k", queue="one")
    expect(s.refusal(lambda: s.put("b", unique_key="k", queue="two")), "it was accepted")


@check()
def keys_are_told_apart(s: Subject) -> None:
    """Keys that only look alike are different keys."""
    for n, key in enumerate(("k", "K", " k", "k ", "ḱ", "k%", "k_")):
        same(s.put(f"job-{n}", unique_key=key)[0].is_new, True, f"key {key!r}")


@check()
def key_is_held_while_running(s: Subject) -> None:
    """A running job holds its unique key."""
    s.put("a", unique_key="k")
    s.take("a")
    expect(not _is_free(s), "it is free")


@check()
def key_is_held_while_retrying(s: Subject) -> None:
    """A job that waits for another attempt holds its unique key."""
    s.put("a", unique_key="k")
    s.ended("a", FAILS_ONCE)
    expect(not _is_free(s), "it is free")


@check()
def key_is_held_after_a_release(s: Subject) -> None:
    """A job that was given back holds its unique key."""
    s.put("a", unique_key="k")
    s.ended("a", RELEASED)
    expect(not _is_free(s), "it is free")


@check()
def key_is_freed_by_success(s: Subject) -> None:
    """A completed job holds its unique key no more."""
    s.put("a", unique_key="k")
    s.ended("a", SUCCEEDED)
    expect(_is_free(s), "it is still held")


@check()
def key_is_freed_by_failure(s: Subject) -> None:
    """A dead-lettered job holds its unique key no more."""
    s.put("a", unique_key="k")
    s.ended("a", FAILS_FOR_GOOD)
    expect(_is_free(s), "it is still held")


@check()
def key_is_freed_by_cancelling(s: Subject) -> None:
    """A cancelled job holds its unique key no more."""
    s.put("a", unique_key="k")
    s.must(s.get("a"), CancelAsked())
    expect(_is_free(s), "it is still held")


@check()
def key_is_freed_by_expiry(s: Subject) -> None:
    """A job that was not started in time holds its unique key no more."""
    s.put("a", unique_key="k", expires_at=s.store.now() + 5.0)
    s.clock.forward(6.0)
    same(s.ids(), [], "delivered")
    same(s.status("a"), JobStatus.FAILED, "status")
    expect(_is_free(s), "it is still held")


@check()
def late_report_does_not_free_the_next_holder(s: Subject) -> None:
    """A report of a job that has ended leaves its key with the job that holds it now."""
    s.put("a", unique_key="k")
    leased = s.take("a")
    s.must(leased, FAILS_FOR_GOOD)
    s.put("b", unique_key="k")
    expect(not s.settle(leased, SUCCEEDED), "the late report was applied")
    expect(not _is_free(s), "the key of the second job is free")


@check()
def requeued_job_holds_its_key_again(s: Subject) -> None:
    """A job sent back from the dead letters holds its unique key again."""
    s.put("a", unique_key="k")
    failed = s.ended("a", FAILS_FOR_GOOD)
    s.must(failed, RequeueAsked())
    expect(not _is_free(s), "it is free")


@check()
def requeue_does_not_share_a_key(s: Subject) -> None:
    """A job sent back while another holds its key does not make it a key of two."""
    s.put("a", unique_key="k")
    failed = s.ended("a", FAILS_FOR_GOOD)
    s.put("b", unique_key="k")
    s.settle(failed, RequeueAsked())
    same([job.id for job in _live(s)], ["b"], "jobs that hold the key")


@check()
def concurrent_keys_have_one_holder(s: Subject) -> None:
    """Of several threads that add jobs of one key at once, one adds and all get its id."""

    def one(n: int) -> Added:
        return s.put(f"job-{n}", unique_key="k", on_duplicate=EXISTING)[0]

    found = s.together([partial(one, n) for n in range(8)])
    same(sum(added.is_new for added in found), 1, "how many were new")
    same(len({added.id for added in found}), 1, "different ids")
    same(s.store.count(Search()), 1, "jobs")
