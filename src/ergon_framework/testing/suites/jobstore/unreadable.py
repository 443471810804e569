"""Checks of rows that cannot be read: each is set aside, and holds up nobody else."""

from __future__ import annotations

from ergon_framework.errors import DuplicateJobError, UnreadableJobError
from ergon_framework.ports.jobstore import Search
from ergon_framework.testing.suites.framework import Check, expect, fail, register
from ergon_framework.testing.suites.jobstore.under_test import (
    DAY,
    FAILS_ONCE,
    LEASE,
    SUCCEEDED,
    JobStoreSubject,
    ids_of,
    same,
)

CHECKS: list[Check[JobStoreSubject]] = []
check = register(CHECKS)


@check("spoil")
def unreadable_job_is_not_in_the_way(s: JobStoreSubject) -> None:
    """Of the jobs of one queue, all but the unreadable one are claimed; it is set aside, once."""
    s.put("a", "bad", "b")
    s.spoil("bad")
    same(sorted(s.ids(5)), ["a", "b"], "claimed")
    same(s.ids(5), [], "claimed later")
    found = s.store.unreadable()
    same([each.id for each in found], ["bad"], "set aside")
    expect(bool(found[0].problem), "nothing is said about what is wrong")
    same(s.store.unreadable(0), [], "none of them")


@check("spoil")
def unreadable_running_job_stops_no_rescue(s: JobStoreSubject) -> None:
    """A lease that has expired is found although the row before it cannot be read."""
    s.put("bad", "a")
    s.claim(2)
    s.spoil("bad")
    s.clock.forward(LEASE + 1.0)
    same(ids_of(s.store.expired_leases(1)), ["a"], "overdue")
    same([each.id for each in s.store.unreadable()], ["bad"], "set aside")


@check("spoil")
def unreadable_job_is_left_out_of_a_search(s: JobStoreSubject) -> None:
    """A search finds all other jobs, and asking for the unreadable one says what it is."""
    s.put("a", "bad", "b")
    s.spoil("bad")
    same(ids_of(s.store.search(Search())), ["b", "a"], "found")
    same(ids_of(s.store.search(Search(), 1)), ["b"], "the first")
    same(ids_of(s.store.search(Search(), 2)), ["b", "a"], "the first two")
    same(list(s.store.search(Search(code="flaky"))), [], "by code")
    try:
        s.store.find("bad")
    except UnreadableJobError:
        return
    fail("it was found, or is said not to be there")


@check("spoil")
def unreadable_job_that_nobody_set_aside_is_listed(s: JobStoreSubject) -> None:
    """One that has ended, and one that no claim has met: searches leave both out, and only those.

    Setting one aside takes it out of this list and into the other.
    """
    s.put("ended", "fine", "waits")
    s.ended("ended", SUCCEEDED)
    fix = s.spoil("ended")
    s.spoil("waits")
    found = list(s.store.left_out())
    same([each.id for each in found], ["waits", "ended"], "left out")
    expect(all(each.problem for each in found), "nothing is said about what is wrong")
    same(s.ids(5), ["fine"], "claimed")
    same([each.id for each in s.store.left_out()], ["ended"], "left out after a claim")
    same([each.id for each in s.store.unreadable()], ["waits"], "set aside")
    fix()
    same(list(s.store.left_out()), [], "left out once it is right")


@check("spoil")
def unreadable_job_is_never_deleted(s: JobStoreSubject) -> None:
    """Nothing but an operator takes it away, and its id stays taken."""
    s.put("bad", expires_at=s.clock() + 10.0)
    s.spoil("bad")
    s.claim(5)
    s.clock.forward(400 * DAY)
    s.store.prune(100)
    same([each.id for each in s.store.unreadable()], ["bad"], "set aside")
    try:
        s.put("bad")
    except DuplicateJobError:
        pass
    else:
        fail("another job took its id")
    [found] = s.store.unreadable()
    expect(s.store.discard_unreadable(found.key), "it could not be discarded")
    expect(not s.store.discard_unreadable(found.key), "it was discarded twice")
    same(s.store.unreadable(), [], "set aside")
    s.put("bad")


@check("spoil")
def restored_job_does_not_share_a_key(s: JobStoreSubject) -> None:
    """While another job has its unique key it stays set aside; afterwards it comes back."""
    s.put("a", unique_key="k")
    fix = s.spoil("a")
    same(s.ids(5), [], "claimed")
    fix()
    s.put("b", unique_key="k")
    [found] = s.store.unreadable()
    try:
        s.store.restore_unreadable(found.key)
    except DuplicateJobError as error:
        expect("unique key of a" in error.message, "the error does not say which job it is about")
    else:
        fail("two jobs have one key")
    same([each.id for each in s.store.unreadable()], ["a"], "set aside")
    s.ended("b", SUCCEEDED)
    expect(s.store.restore_unreadable(found.key), "it was not taken back")
    same(s.ids(5), ["a"], "claimed afterwards")


@check("spoil")
def restored_job_waits_until_it_is_due(s: JobStoreSubject) -> None:
    """Its time has not come because the clock was set back, or because an operator put it right."""
    s.put("a", delay=10.0)
    s.clock.forward(20.0)
    fix = s.spoil("a")
    same(s.ids(5), [], "claimed")
    [found] = s.store.unreadable()
    s.clock.forward(-15.0)
    fix()
    expect(s.store.restore_unreadable(found.key), "it was not taken back")
    same(s.ids(5), [], "claimed before it is due")
    s.clock.forward(10.0)
    same(s.ids(5), ["a"], "claimed when it is due")


@check("spoil")
def unreadable_job_can_be_read_again(s: JobStoreSubject) -> None:
    """Once its row is put right it comes back as it was; before that it stays where it is."""
    s.put("a")
    s.ended("a", FAILS_ONCE)
    before = s.get("a")
    s.clock.forward(60.0)
    fix = s.spoil("a")
    same(s.ids(5), [], "claimed")
    [found] = s.store.unreadable()
    try:
        s.store.restore_unreadable(found.key)
    except UnreadableJobError:
        pass
    else:
        fail("it was taken back although it cannot be read")
    same([each.id for each in s.store.unreadable()], ["a"], "set aside")
    fix()
    expect(s.store.restore_unreadable(found.key), "it was not taken back")
    expect(not s.store.restore_unreadable(found.key), "it was taken back twice")
    same(s.store.unreadable(), [], "set aside")
    after = s.get("a")
    same((after.status, after.attempts), (before.status, before.attempts), "the job")
    leased = s.take("a")
    same((leased.attempts, leased.deliveries), (1, 2), "its next claim")
    s.must(leased, SUCCEEDED)


@check("spoil")
def unreadable_job_is_counted(s: JobStoreSubject) -> None:
    """Queues tell how many of their rows were set aside; no other count has them."""
    s.put("a", "bad", queue="q")
    s.spoil("bad")
    s.claim(5)
    [queue] = s.store.queues()
    same({name: n for name, n in queue.counts.items() if n}, {"active": 1, "unreadable": 1}, "q")
    same(s.store.count(Search()), 1, "all")


@check("spoil")
def unreadable_job_lets_its_keys_go(s: JobStoreSubject) -> None:
    """Its unique key is free for another, and so is its place at a limit key."""
    s.put("bad", unique_key="u", limit_key="k")
    s.take("bad")
    s.put("b", limit_key="k")
    same(s.ids(5), [], "claimed while it runs")
    s.spoil("bad")
    s.clock.forward(LEASE + 1.0)
    same(s.store.expired_leases(5), [], "overdue")
    s.store.prune(100)
    s.put("c", unique_key="u")
    same(sorted(s.ids(5)), ["b", "c"], "claimed")
