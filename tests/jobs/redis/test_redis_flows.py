"""Flows in Redis: handed in by parts and added at once, and nothing of them is left behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress

import pytest
import redis

from ergon_framework.core.flow import CancelFlow, FlowStatus, RetryFlow
from ergon_framework.core.job import JobStatus
from ergon_framework.errors import DuplicateJobError, StoreError
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.flow_client import EnqueuedFlow, flows_of
from ergon_framework.jobs.flows import FlowPlanner
from ergon_framework.jobs.newjob import new_job
from ergon_framework.jobs.stores.redis import RedisJobStore
from ergon_framework.ports.flow import step_id
from ergon_framework.ports.jobstore import Search, Settlement
from ergon_framework.storage.failpoints import armed
from ergon_framework.testing.suites.drivers import HandClock
from ergon_framework.testing.suites.jobstore.under_test import (
    DAY,
    FAILS_FOR_GOOD,
    SUCCEEDED,
    JobStoreSubject,
    ids_of,
)
from tests.jobs.redis.lost_responses import lose_responses
from tests.jobs.redis.test_redis_keys import COUNTERS, everything

pytestmark = pytest.mark.req("SCALE:jobs-redis")
MANY = 1_203
"""Steps that one script does not take."""


@pytest.fixture
def s(redis_url: str) -> Iterator[JobStoreSubject]:
    """A store with a clock set by hand."""
    clock = HandClock()
    with closing(RedisJobStore(redis_url, clock=clock)) as store:
        yield JobStoreSubject(store, clock, None, 15.0)


def group(s: JobStoreSubject, number: int = MANY) -> EnqueuedFlow:
    """So many steps, and one that waits for them."""
    return JobClient(store=s.store).group(["work"] * number, then="last").enqueue()


def run_all(s: JobStoreSubject) -> int:
    """Run everything that can be claimed; how many it were."""
    done, told = 0, list[Settlement]()
    while True:
        applied, found = s.settle_and_claim(told, 400)
        assert all(applied)
        told = [s.told(job, SUCCEEDED, result=b"1", keep=DAY) for job in found.jobs]
        done += len(told)
        if not told and (found.next_at is None or found.next_at > s.clock()):
            return done


def test_a_client_that_dies_before_the_end_leaves_nothing(
    s: JobStoreSubject, redis_url: str
) -> None:
    """Parts that were handed in are seen by nobody, and the server forgets them."""
    with armed("jobs.add.before_commit=error@3"), suppress(OSError):
        group(s)
    assert (s.ids(5), s.store.count(Search()), list(s.store.search(Search()))) == ([], 0, [])
    with redis.Redis.from_url(redis_url) as link:
        [staged] = link.scan_iter("*:staged:*")
        assert 0 < link.ttl(staged) <= 3600
        left = {key for key in link.scan_iter("*") if key != staged}
    assert left <= COUNTERS


def test_a_client_that_dies_after_the_commit_is_not_missed(s: JobStoreSubject) -> None:
    """Claims add the steps that were handed in, before they take what is there."""
    with armed("jobs.add.before_commit=error@6"), suppress(OSError):
        group(s)
    assert s.store.count(Search()) == 0
    assert run_all(s) == MANY + 1


def test_a_flow_whose_answer_was_lost_is_there_once(
    s: JobStoreSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts that are handed in again are known, and so is the flow itself."""
    for number in (3, MANY):
        lose_responses(monkeypatch)
        assert group(s, number).status() == FlowStatus.RUNNING
    assert run_all(s) == MANY + 5


def test_a_flow_that_is_cancelled_while_it_is_added(s: JobStoreSubject) -> None:
    """Steps that come later are cancelled, too, and a retry runs all of them."""
    with armed("jobs.add.before_commit=error@8"), suppress(OSError):
        group(s)
    flows = flows_of(s.store)
    [flow] = flows.search((), 5)
    flows.apply(flow.id, CancelFlow())
    assert s.ids(5) == []
    for _ in range(8):
        s.store.prune(100)
    [flow] = flows.search((), 5)
    assert (flow.status, flow.state.cancelled) == (FlowStatus.CANCELLED, MANY + 1)
    flows.apply(flow.id, RetryFlow())
    assert run_all(s) == MANY + 1


def test_a_step_whose_id_is_taken_refuses_the_whole(s: JobStoreSubject) -> None:
    """Also if it is one of the last of very many."""
    store, client = s.store, JobClient(store=s.store)
    made, steps = FlowPlanner(client.group(["work"] * MANY)).plan(lambda name, *_: new_job(name))
    s.put(steps[-1].id)
    with pytest.raises(DuplicateJobError, match=steps[-1].id):
        flows_of(store).add(made, steps)
    assert store.count(Search()) == 1
    assert flows_of(store).find(made.id) is None


def test_due_steps_of_a_cancelled_flow_are_not_claimed(s: JobStoreSubject) -> None:
    """The sweep has not come to them yet: they are cancelled where they are met."""
    flow = group(s)
    s.put("other")
    flow.cancel()
    assert s.ids(5) == ["other"]


def test_flows_leave_nothing_behind(s: JobStoreSubject) -> None:
    """When all of them were kept long enough, only the counters are left."""
    assert isinstance(s.store, RedisJobStore)
    client = JobClient(store=s.store)
    group(s, 600)
    assert run_all(s) == 601
    s.put("there")
    client.enqueue("b", after=["there"])
    waits = client.chain("a", client.wait_for_signal("go", timeout=60.0), "b").enqueue()
    waits.signal("go", 1)
    run_all(s)
    held = client.group(["a", "b"], then="c", on_failure="hold").enqueue()
    s.must(s.take(step_id(held, 1)), FAILS_FOR_GOOD, keep=DAY)
    run_all(s)
    held.skip()
    run_all(s)
    stopped = client.chain("a", client.wait_for_signal("go"), "b").enqueue()
    stopped.cancel()
    assert {flow.status for flow in flows_of(s.store).search((), 10)} == {
        FlowStatus.COMPLETED,
        FlowStatus.CANCELLED,
    }
    s.clock.forward(40 * DAY)
    while s.store.prune(1000).more:
        pass
    assert {b"{ergon}" + key for key in everything(s.store)} == COUNTERS - {b"{ergon}:executors"}


def test_a_step_whose_place_is_lost_is_set_aside(s: JobStoreSubject, redis_url: str) -> None:
    """Its flow cannot be told: the row waits for an operator, and all others go on."""
    flow = JobClient(store=s.store).group(["a", "b"], then="c").enqueue()
    s.put("other")
    jobs = s.claim(5)
    with redis.Redis.from_url(redis_url) as link:
        key = next(iter(link.scan_iter("*:step")))
        place = link.hget(key, step_id(flow, 1))
        link.hdel(key, step_id(flow, 1))
        assert s.store.settle_and_claim([s.told(each, SUCCEEDED) for each in jobs], None)[0] == [
            False,
            True,
            True,
        ]
        [aside] = s.store.unreadable()
        assert (aside.id, aside.problem) == (step_id(flow, 1), "its place in a flow cannot be read")
        with pytest.raises(StoreError):
            s.store.restore_unreadable(aside.key)
        link.hset(key, step_id(flow, 1), place)
    assert s.store.restore_unreadable(aside.key)
    s.clock.forward(60.0)
    assert ids_of(s.store.expired_leases(5)) == [step_id(flow, 1)]


def test_a_discarded_row_is_a_cancelled_step(s: JobStoreSubject, redis_url: str) -> None:
    """Its flow stops by its policy, and what stood in the sets of flows is gone with it."""
    flow = JobClient(store=s.store).chain("a", "b", "c").enqueue()
    with redis.Redis.from_url(redis_url) as link:
        key = next(iter(link.scan_iter("*:body")))
        link.hset(key, step_id(flow, 1), b"\xc1")
    assert s.ids(5) == []
    assert s.store.discard_unreadable(step_id(flow, 1))
    assert flow.status() == FlowStatus.FAILED
    assert {s.status(step_id(flow, n)) for n in (2, 3)} == {JobStatus.CANCELLED}
