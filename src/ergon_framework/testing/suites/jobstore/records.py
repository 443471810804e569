"""Checks of moving: what a store holds can be copied out of it and into it, from any other.

The other store of each check is the one in memory, which is the plainest there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial
from typing import TypeVar

import msgspec

from ergon_framework.core.flow import CancelFlow, FlowStatus, RetryFlow
from ergon_framework.core.job import CancelRequested, JobStatus
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.flow_client import flows_of
from ergon_framework.jobs.flows import Draft, FlowPlanner
from ergon_framework.jobs.newjob import new_job
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.ports.flow import step_id
from ergon_framework.ports.jobstore import Search
from ergon_framework.ports.transfer import (
    JOB_KINDS,
    PAGE_BYTES,
    Fence,
    FlowRecord,
    Freezable,
    JobRecord,
    OvertakenMoveError,
    QueueRecord,
    RecordStore,
    ScheduleRecord,
    TransferRecord,
    records_of,
)
from ergon_framework.testing.suites.drivers import START
from ergon_framework.testing.suites.framework import Check, expect, register
from ergon_framework.testing.suites.jobstore.schedules import schedule
from ergon_framework.testing.suites.jobstore.under_test import (
    FAILS_FOR_GOOD,
    FAILS_ONCE,
    LEASE,
    RELEASED,
    SUCCEEDED,
    JobStoreSubject,
    hold,
    same,
)

CHECKS: list[Check[JobStoreSubject]] = []
check = register(CHECKS)

C = TypeVar("C", bound=TransferRecord)
NEEDS = "moving"
MANY = 601
"""Steps that take more than one slice."""


@check(NEEDS)
def everything_can_be_copied_out(s: JobStoreSubject) -> None:
    """What another store was given in records is all that this one holds, in the same order."""
    fill(s)
    with closing(MemoryJobStore(s.clock)) as other:
        _copy(_own(s), records_of(other))
        _compare(records_of(other), _own(s))
        same(
            _ids(records_of(other)),
            [job.id for job in s.store.search(Search())][::-1],
            "order of adding",
        )


@check(NEEDS)
def everything_can_be_copied_in(s: JobStoreSubject) -> None:
    """What came in records is all that the other store holds, also for who opens this one anew."""
    with closing(MemoryJobStore(s.clock)) as other:
        fill(JobStoreSubject(other, s.clock, None, s.patience))
        _copy(records_of(other), _own(s))
        _compare(_own(s), records_of(other))
        s.reopen()
        _compare(_own(s), records_of(other))


@check(NEEDS)
def copies_come_in_pages(s: JobStoreSubject) -> None:
    """A page has no more records than asked for, and the next one goes on behind it."""
    s.put(*"abcde")
    store = _own(s)
    first = store.dump(JobRecord, None, 2)
    second = store.dump(JobRecord, first[-1].sort_key, 2)
    last = store.dump(JobRecord, second[-1].sort_key, 2)
    names = [[copy.identity for copy in page] for page in (first, second, last)]
    same(names, [["a", "b"], ["c", "d"], ["e"]], "pages")
    same(store.dump(JobRecord, last[-1].sort_key, 2), [], "after the end")


@check(NEEDS)
def pages_of_large_jobs_are_short(s: JobStoreSubject) -> None:
    """Few large jobs make a page, and one that is larger than a page is a page."""
    half = b'["' + b"x" * (PAGE_BYTES // 2) + b'"]'
    s.put("whole", args=b'["' + b"x" * PAGE_BYTES + b'"]')
    s.put("one", "two", args=half)
    records = list(_all(_own(s), JobRecord, 100))
    same([copy.identity for copy in records], ["whole", "one", "two"], "copies")
    same(len(_own(s).dump(JobRecord, None, 100)), 1, "jobs of the first page")


@check(NEEDS)
def loading_again_changes_nothing(s: JobStoreSubject) -> None:
    """A move that begins anew meets what it has done."""
    with closing(MemoryJobStore(s.clock)) as other:
        fill(JobStoreSubject(other, s.clock, None, s.patience))
        _copy(records_of(other), _own(s))
        _copy(records_of(other), _own(s))
        _compare(_own(s), records_of(other))


@check(NEEDS)
def changed_jobs_stay_where_they_stand(s: JobStoreSubject) -> None:
    """A job that is loaded in another state becomes that, and keeps its place in the order."""
    s.put("a", "b", "c")
    store = _own(s)
    before = {copy.identity: copy for copy in _all(store, JobRecord)}
    done = s.ended("a", keep=5.0)
    store.load([before["a"]])
    same((_ids(store), s.status("a")), (["a", "b", "c"], JobStatus.PENDING), "order, and status")
    store.load([JobRecord(done, s.clock())])
    same(s.status("a"), JobStatus.COMPLETED, "status")
    s.clock.forward(6.0)
    same(s.store.prune(10).purged, 1, "purged in its time")


@check(NEEDS)
def a_new_job_of_an_old_id_comes_last(s: JobStoreSubject) -> None:
    """A job that was made at another instant is another job."""
    s.put("a", "b", unique_key=None)
    [first, _] = _all(_own(s), JobRecord)
    job = msgspec.structs.replace(first.job, created_at=START + 50.0)
    _own(s).load([JobRecord(job, START + 50.0)])
    same(_ids(_own(s)), ["b", "a"], "order of adding")
    same(s.get("a").created_at, START + 50.0, "made at")


@check(NEEDS)
def discarded_jobs_are_gone(s: JobStoreSubject) -> None:
    """Whatever state a job is in, it can be taken out, and nothing of it stays behind."""
    s.put("running", unique_key="u", limit_key="k", priority=9)
    s.take("running")
    s.put("waiting", limit_key="k")
    same(s.ids(9), [], "claimed beside the running one")
    s.put("done", queue="other", priority=8)
    s.ended("done")
    store = _own(s)
    store.discard([copy for copy in _all(store, JobRecord) if copy.identity != "waiting"])
    same((_ids(store), s.store.expired_leases(9)), (["waiting"], []), "what is left")
    s.put("again", unique_key="u", delay=900.0)
    s.store.prune(100)
    same(s.ids(9), ["waiting"], "claimed when the key is free")
    same([queue.name for queue in s.store.queues()], ["default"], "queues")
    store.discard([copy for copy in _all(store, JobRecord) if copy.identity == "again"])
    store.discard([JobRecord(s.get("waiting"), 0.0)])
    store.discard([])
    same(_ids(store), [], "what is left in the end")


@check(NEEDS)
def loaded_jobs_run_in_order(s: JobStoreSubject) -> None:
    """Waiting jobs are claimed by priority, then in the order of adding, and not before time."""
    with closing(MemoryJobStore(s.clock)) as other:
        old = JobStoreSubject(other, s.clock, None, s.patience)
        old.put("plain", "next")
        old.put("high", priority=5)
        old.put("late", delay=100.0)
        _copy(records_of(other), _own(s))
    same(s.ids(9), ["high", "plain", "next"], "claimed")
    s.clock.forward(101.0)
    same(s.ids(9), ["late"], "claimed later")


@check(NEEDS)
def a_loaded_lease_is_kept_and_runs_out(s: JobStoreSubject) -> None:
    """A running job stays its worker's, holds its keys, and is rescued when nobody renews it."""
    with closing(MemoryJobStore(s.clock)) as other:
        old = JobStoreSubject(other, s.clock, None, s.patience)
        old.put("running", limit_key="k", unique_key="u", priority=9)
        leased = old.take("running")
        other.renew([hold(leased, is_charged=True)], LEASE)
        old.put("behind", limit_key="k")
        same(old.ids(9), [], "claimed beside it")
        _copy(records_of(other), _own(s))
    job = s.get("running")
    same((job.worker, job.attempts, job.is_charged), ("w1", 1, True), "worker and attempt")
    same(s.ids(9), [], "claimed while the key is taken")
    same(s.store.expired_leases(9), [], "overdue at once")
    s.clock.forward(LEASE + 1.0)
    same([each.id for each in s.store.expired_leases(9)], ["running"], "overdue")
    s.must(s.get("running"), RELEASED, if_expired=True)
    expect(s.take("running").fence > job.fence, "the next claim has a fence of its own")


@check(NEEDS)
def loaded_jobs_hold_their_unique_keys(s: JobStoreSubject) -> None:
    """A key of a job that has not ended is taken, and that of one that has ended is free."""
    with closing(MemoryJobStore(s.clock)) as other:
        old = JobStoreSubject(other, s.clock, None, s.patience)
        old.put("held", unique_key="u", delay=10.0)
        old.put("over", unique_key="v")
        old.ended("over")
        _copy(records_of(other), _own(s))
    expect(s.refusal(lambda: s.put("other", unique_key="u")), "a key that is held was given away")
    s.put("another", unique_key="v")


@check(NEEDS)
def loaded_jobs_are_found_by_their_tags(s: JobStoreSubject) -> None:
    """A job that was loaded, also in the place of another of its id, has the tags of its record."""
    s.put("a", tags=("old",))
    s.put("b", "c", tags=("x",), metadata={"k": "v"})
    kept = [each for each in _all(_own(s), JobRecord) if each.identity != "a"]
    s.clock.forward(1.0)
    with closing(MemoryJobStore(s.clock)) as other:
        JobStoreSubject(other, s.clock, None, s.patience).put("a", tags=("new",))
        [moved] = _all(records_of(other), JobRecord)
    _own(s).load([*kept, moved])
    found = {tag: _tagged(s, tag) for tag in ("old", "new", "x")}
    same(found, {"old": [], "new": ["a"], "x": ["c", "b"]}, "by tag")
    _own(s).discard([each for each in kept if each.identity == "b"])
    same(_tagged(s, "x"), ["c"], "after one was discarded")


def _tagged(s: JobStoreSubject, tag: str) -> list[str]:
    return [job.id for job in s.store.search(Search(tags=(tag,)))]


@check(NEEDS)
def loaded_jobs_are_as_old_as_they_were(s: JobStoreSubject) -> None:
    """Filters by age and the time of purging go by the instants that were copied."""
    with closing(MemoryJobStore(s.clock)) as other:
        old = JobStoreSubject(other, s.clock, None, s.patience)
        old.put("old")
        s.clock.forward(100.0)
        old.put("new", priority=1)
        old.ended("new", FAILS_FOR_GOOD, keep=50.0)
        _copy(records_of(other), _own(s))
    found = s.store.search(Search(before=START + 50.0))
    same([job.id for job in found], ["old"], "last changed before")
    same(s.store.prune(10).purged, 0, "purged at once")
    s.clock.forward(51.0)
    same(s.store.prune(10).purged, 1, "purged in its time")


@check(NEEDS)
def tokens_that_were_taken_stay_taken(s: JobStoreSubject) -> None:
    """A queue that has used up its rate has used it up in the new store, and gets the next token
    when it would have got it in the old one.
    """
    with closing(MemoryJobStore(s.clock)) as other:
        old = JobStoreSubject(other, s.clock, None, s.patience)
        other.set_queue("default", rate=0.1, burst=2)
        old.put(*"abcd")
        same(old.ids(9), ["a", "b"], "claimed with all tokens")
        s.clock.forward(4.0)
        _copy(records_of(other), _own(s))
        _compare(_own(s), records_of(other))
    same(s.ids(9), [], "claimed without a token")
    s.clock.forward(6.5)
    same(s.ids(9), ["c"], "claimed with the next token")
    with closing(MemoryJobStore(s.clock)) as other:
        _copy(_own(s), records_of(other))
        same(
            JobStoreSubject(other, s.clock, None, s.patience).ids(9),
            [],
            "claimed after a move back",
        )


@check(NEEDS)
def tokens_of_keys_stay_taken(s: JobStoreSubject) -> None:
    """A limit key that has used up its rate has used it up in the new store."""
    with closing(MemoryJobStore(s.clock)) as other:
        old = JobStoreSubject(other, s.clock, None, s.patience)
        other.set_queue("default", key_rate=0.1, key_burst=2, key_max_active=7)
        old.put(*"abcd", limit_key="k")
        same(old.ids(9), ["a", "b"], "claimed with all tokens")
        _copy(records_of(other), _own(s))
        _compare(_own(s), records_of(other))
    same(s.ids(9), [], "claimed without a token")
    s.clock.forward(10.5)
    same(s.ids(9), ["c"], "claimed with the next token")


@check(NEEDS)
def settings_can_be_taken_away(s: JobStoreSubject) -> None:
    """Settings of queues and schedules that are gone on the other side can go here."""
    store = _own(s)
    s.store.set_queue("slow", max_active=1, rate=2.0, burst=3)
    s.store.set_queue("shut", is_paused=True)
    s.store.put_schedule(schedule("nightly"))
    same(store.dump(QueueRecord, "shut", 9), [QueueRecord("slow", False, 1, 2.0, 3)], "settings")
    store.discard([QueueRecord("shut", True, None, None, 1)])
    store.discard(store.dump(ScheduleRecord, None, 9))
    same([copy.queue for copy in _all(store, QueueRecord)], ["slow"], "queues")
    same(s.store.schedules(), [], "schedules")


@check(NEEDS, "flows")
def flows_can_be_copied_out_and_in(s: JobStoreSubject) -> None:
    """With their joins, and whatever is left to be done in them: from any store into any other."""
    fill_flows(s)
    with closing(MemoryJobStore(s.clock)) as other, closing(MemoryJobStore(s.clock)) as last:
        _copy(_own(s), records_of(other), 200)
        _compare(records_of(other), _own(s), 200)
        _empty(_own(s))
        same(flows_of(s.store).search((), 9), [], "flows that were discarded")
        for _ in range(2):
            _copy(records_of(other), _own(s), 200)
        s.reopen()
        _copy(_own(s), records_of(last), 200)
        _compare(records_of(last), records_of(other), 200)


@check(NEEDS, "flows")
def loaded_flows_go_on(s: JobStoreSubject) -> None:
    """Each step starts in its turn and none before; a sweep that was under way is ended."""
    with closing(MemoryJobStore(s.clock)) as other:
        fill_flows(JobStoreSubject(other, s.clock, None, s.patience))
        _copy(records_of(other), _own(s), 200)
    same(s.ids(9), ["group.2", "group.3"], "claimed, beside what a worker of the old store runs")
    for number in (1, 2, 3):
        s.must(s.get(step_id("group", number)), SUCCEEDED, result=b"1")
    same(s.ids(9), ["group.4"], "claimed when the last of the group has ended")
    s.must(s.get("group.4"), SUCCEEDED)
    flows = flows_of(s.store)
    expect(flows.signal("signals", "asked", b"6"), "nobody waits for the signal")
    same(s.get("signals.2").result, b"5", "the signal that came early")
    same(s.ids(9), ["signals.3"], "claimed when both signals are there")
    for _ in range(3):
        s.store.prune(1_000)
    found = {each.id: (each.status.value, each.state.unfinished) for each in flows.search((), 9)}
    wanted = {"group": ("completed", 0), "signals": ("running", 1), "stopped": ("failed", 0)}
    same(found, wanted | {"swept": ("cancelled", 0)}, "flows")


@check(NEEDS, "flows")
def loaded_flow_can_be_retried(s: JobStoreSubject) -> None:
    """Steps come back that were cancelled, and those start whose join opened while it stopped."""
    with closing(MemoryJobStore(s.clock)) as other:
        old = JobStoreSubject(other, s.clock, None, s.patience)
        client = JobClient(store=other)
        _add_flow(old, "many", client.chain("first", client.group(["work"] * MANY)))
        first = old.take("many.1")
        flows_of(other).apply("many", CancelFlow())  # as far as one commit goes
        old.must(first, SUCCEEDED)
        _copy(records_of(other), _own(s), 200)
    flows = flows_of(s.store)
    flows.apply("many", RetryFlow())
    while flows.sweep("many"):
        pass
    found = 0
    while jobs := s.claim(200):
        found += len(jobs)
    same(found, MANY, "steps that were claimed after the retry")


@check(NEEDS, "flows")
def loaded_step_has_the_signal_that_came_early(s: JobStoreSubject) -> None:
    """Also one that was cancelled with its flow, and comes back in the new store."""
    with closing(MemoryJobStore(s.clock)) as other, closing(MemoryJobStore(s.clock)) as last:
        old = JobStoreSubject(other, s.clock, None, s.patience)
        client = JobClient(store=other)
        _add_flow(old, "asked", client.chain("first", client.wait_for_signal("ok"), "last"))
        flows_of(other).signal("asked", "ok", b"7")
        flows_of(other).apply("asked", CancelFlow())
        _copy(records_of(other), _own(s))
        _copy(_own(s), records_of(last))
        _compare(records_of(last), records_of(other))
    flows_of(s.store).apply("asked", RetryFlow())
    s.ended("asked.1")
    same(s.get("asked.2").result, b"7", "the signal that came early")
    same(s.ids(9), ["asked.3"], "what follows")


@check(NEEDS, "flows")
def changed_flows_stay_where_they_stand(s: JobStoreSubject) -> None:
    """A flow that is loaded in another state becomes that, and keeps its place among the others."""
    client = JobClient(store=s.store)
    for flow_id in "abc":
        _add_flow(s, flow_id, client.chain("one", "two"))
    store = _own(s)
    [before] = store.dump(FlowRecord, None, 1)
    for number in (1, 2):
        s.must(s.take(step_id("a", number)), SUCCEEDED)
    store.load([before])
    flows = flows_of(s.store)
    same([each.id for each in flows.search((), 9)], ["c", "b", "a"], "the newest first")
    same(store.dump(FlowRecord, None, 1), [before], "the flow that was loaded")
    same([each.identity for each in store.dump(FlowRecord, "a", 1)], ["b"], "the next page")
    store.discard(store.dump(FlowRecord, "a", 9))
    same([each.id for each in flows.search((), 9)], ["a"], "what is left")
    same(s.status(step_id("b", 2)), JobStatus.PENDING, "a step whose flow was discarded")


@check(NEEDS)
def a_mark_is_kept(s: JobStoreSubject) -> None:
    """What a move wrote down is there until it is taken away, also for who opens it anew."""
    same(_own(s).move_state(), None, "the mark of a fresh store")
    _own(s).set_move_state(b"\x00one")
    _own(s).set_move_state(b"\x00two")
    s.reopen()
    same(_own(s).move_state(), b"\x00two", "the mark")
    _own(s).set_move_state(None)
    same(_own(s).move_state(), None, "the mark when it was taken away")


@check(NEEDS)
def an_overtaken_move_writes_nothing(s: JobStoreSubject) -> None:
    """A run that was stopped writes on after another took over: the store itself refuses it."""
    s.put("kept")
    if "flows" in s.capabilities:
        _add_flow(s, "flow", JobClient(store=s.store).chain("one", "two"))
    s.store.set_queue("slow", max_active=1, rate=2.0, burst=3)
    s.store.put_schedule(schedule("nightly"))
    store = _own(s)
    kinds = [kind for kind in JOB_KINDS if store.dump(kind, None, 1)]
    pages = {kind: store.dump(kind, None, 9) for kind in kinds}
    store.set_move_state(b"the first run", Fence(None))
    first, second = Fence(b"the first run"), Fence(b"the second run")
    for kind in kinds:
        store.load(pages[kind], first)
    store.set_move_state(b"the second run", first)
    store.set_move_state(b"the second run", first)  # an answer that was lost is asked for again
    s.put("done since", priority=9)
    s.take("done since")
    before = [list(_all(store, kind)) for kind in kinds]
    for stale in (first, Fence(None)):
        for kind in kinds:
            _refused(s, partial(store.load, pages[kind], stale), f"loading {kind.title}")
            _refused(s, partial(store.discard, pages[kind], stale), f"discarding {kind.title}")
        _refused(s, partial(store.set_move_state, b"the first run", stale), "the state")
        _refused(s, partial(store.set_move_state, None, stale), "no state")
        if isinstance(store, Freezable):
            _refused(s, partial(store.freeze, "elsewhere", stale), "freezing")
    same([list(_all(store, kind)) for kind in kinds], before, "what is there")
    same(store.move_state(), b"the second run", "the move state")
    s.put("more")
    if isinstance(store, Freezable):
        store.freeze("elsewhere", second)
        _refused(s, partial(store.freeze, None, first), "thawing")
        expect(s.refusal(lambda: s.put("shut out")), "a store that was frozen takes jobs")
        store.freeze(None, second)
    store.discard(pages[JobRecord], second)
    same(_ids(store), ["done since", "more"], "what the run that has the store has left")
    store.set_move_state(None, second)


def _refused(s: JobStoreSubject, write: Callable[[], None], what: str) -> None:
    error = s.refusal(write)
    expect(isinstance(error, OvertakenMoveError), f"{what} by an overtaken run got {error!r:.200}")


def _own(s: JobStoreSubject) -> RecordStore:
    return records_of(s.store)


def _all(store: RecordStore, kind: type[C], limit: int = 3) -> Iterable[C]:
    """Every copy of a kind, read in small pages."""
    after = None
    while page := store.dump(kind, after, limit):
        yield from page
        after = page[-1].sort_key


def _copy(store: RecordStore, other: RecordStore, limit: int = 4) -> None:
    for kind in JOB_KINDS:
        after = None
        while page := store.dump(kind, after, limit):
            other.load(page)
            after = page[-1].sort_key


def _empty(store: RecordStore) -> None:
    for kind in JOB_KINDS:
        store.discard(list(_all(store, kind, 500)))


def _compare(found: RecordStore, wanted: RecordStore, limit: int = 3) -> None:
    for kind in JOB_KINDS:
        here, there = list(_all(found, kind, limit)), list(_all(wanted, kind, limit))
        names = [copy.identity for copy in here], [copy.identity for copy in there]
        same(*names, f"{kind.__name__} in order")
        for mine, other in zip(here, there, strict=True):
            if mine.content != other.content:
                same(mine, other, f"{kind.__name__} {mine.identity}")


def _ids(store: RecordStore) -> list[str]:
    return [copy.identity for copy in _all(store, JobRecord)]


def fill(s: JobStoreSubject) -> None:
    """Put something of everything into a store."""
    s.store.set_queue("shut", is_paused=True)
    s.store.set_queue("slow", max_active=2, rate=0.5, burst=4)
    s.store.put_schedule(schedule("nightly"))
    s.store.put_schedule(schedule("daily", next_at=None, is_paused=True, source="settings"))
    s.put("done", args=b'[1,"\xc3\xa9"]', kwargs=b'{"a": null}', result_ttl=9.0)
    s.ended("done", result=b'{"x":1}', keep=60.0)
    s.clock.forward(1.5)
    s.put("dead", correlation_id="c1", trace_context={"b": "2", "a": "1"})
    s.ended("dead", FAILS_FOR_GOOD)
    s.put("off", args=b'["' + b"x" * 9000 + b'"]')
    s.must(s.get("off"), CancelRequested(), keep=7.0)
    s.put("again", max_attempts=7, max_deliveries=9, timeout=2.5, retry=b'{"attempts":7}')
    s.ended("again", FAILS_ONCE)
    s.put("running", unique_key="u", limit_key="k", limit=1, priority=3)
    s.store.renew([hold(s.take("running"), is_charged=True)], LEASE)
    s.put("blocked", limit_key="k", limit=1, priority=2)
    same(s.ids(1), [], "claimed of a key that is taken")
    s.put("back", priority=2, tags=("z", "a"), metadata={"plan": "pro", "b": "c"})
    s.must(s.take("back"), RELEASED)
    s.put("paused", queue="shut", unique_key="w", expires_at=START + 900.0)
    s.put("later", delay=50.0, queue="slow", handler="x#work", executor="x")


def fill_flows(s: JobStoreSubject) -> None:
    """Put flows of several kinds into a store, of which one is half swept."""
    client = JobClient(store=s.store)
    flows = flows_of(s.store)
    _add_flow(s, "stopped", client.chain("a", "b"))
    s.ended("stopped.1", FAILS_FOR_GOOD, keep=60.0)
    signals = ("early", "asked")
    waiting = [client.wait_for_signal(each, timeout=600.0) for each in signals]
    _add_flow(s, "signals", client.chain(waiting[1], waiting[0], "c", on_failure="hold"))
    expect(flows.signal("signals", "early", b"5"), "nobody waits for the signal")
    _add_flow(s, "group", client.group(["a", "b", {"handler": "c"}], then="last"))
    s.take("group.1")
    _add_flow(s, "swept", client.chain("first", client.group(["work"] * MANY), name="many"))
    flows.apply("swept", CancelFlow())
    expect(any(each.work for each in _all(_own(s), FlowRecord)), "nothing is left to be swept")


def _add_flow(s: JobStoreSubject, flow_id: str, draft: Draft) -> None:
    flow, steps = FlowPlanner(draft, flow_id).plan(
        lambda handler, args, kwargs, options: new_job(
            handler, args, kwargs, now=s.clock, **options
        )
    )
    flows_of(s.store).add(flow, steps)


@check(NEEDS, "flows")
def flows_are_read_in_pages(s: JobStoreSubject) -> None:
    """Each flow is on one page, the newest first, also where one goes between two pages."""
    client = JobClient(store=s.store)
    for flow_id in "abcdef":
        _add_flow(s, flow_id, client.chain("one", "two"))
    flows = flows_of(s.store)
    for flow_id in "ace":
        flows.apply(flow_id, CancelFlow())
        while flows.sweep(flow_id):
            pass
    for statuses in ((), (FlowStatus.RUNNING, FlowStatus.CANCELLED)):
        first, place = flows.page(statuses, 4)
        same([each.id for each in first], list("fedc"), "the newest")
        last, end = flows.page(statuses, 4, place)
        same(([each.id for each in last], end), (list("ba"), None), "the last page")
    some, place = flows.page([FlowStatus.CANCELLED], 2)
    same([each.id for each in some], ["e", "c"], "those of one state")
    flows.purge("c")
    s.store.prune(100)
    same(flows.find("c"), None, "a flow that was purged")
    some, place = flows.page([FlowStatus.CANCELLED], 2, place)
    same(([each.id for each in some], place), (["a"], None), "behind one that is gone")
    same(flows.page((), 6)[1], None, "a page that ends with the list")
