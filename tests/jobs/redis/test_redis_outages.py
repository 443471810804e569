"""A Redis server that dies, restarts or hangs up: nothing is lost, and nothing is done twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest

from ergon_framework.core.job import JobStatus
from ergon_framework.errors import DuplicateJobError, StoreReadOnlyError, StoreUnavailableError
from ergon_framework.jobs.stores.redis import RedisJobStore
from ergon_framework.ports.jobstore import OnDuplicate, Search, Topic
from ergon_framework.storage.redis.client import RedisTimeouts
from ergon_framework.testing.link import CuttableLink
from ergon_framework.testing.suites.drivers import HandClock
from ergon_framework.testing.suites.jobstore.schedules import schedule
from ergon_framework.testing.suites.jobstore.under_test import (
    FAILS_ONCE,
    RELEASED,
    SUCCEEDED,
    JobStoreSubject,
    ask,
    hold,
    new,
)
from tests.jobs.redis.conftest import Open, serving
from tests.jobs.redis.lost_responses import lose_responses
from tests.servers.redis import RedisServer
from tests.waiting import until

pytestmark = pytest.mark.req("SCALE:jobs-redis", "SCALE:fleet-outage")
WAIT = 50.0
AT_ONCE = RedisTimeouts(reconnect_delay=0.0)
"""A server that was away is asked again at once."""


@pytest.fixture
def store(own_server: RedisServer) -> Iterator[RedisJobStore]:
    """A store on a server that may be killed."""
    with closing(RedisJobStore(own_server.url, timeouts=AT_ONCE)) as found:
        yield found


def subject(store: RedisJobStore) -> JobStoreSubject:
    """Short words for a store."""
    return JobStoreSubject(store, HandClock(), None, WAIT)


@pytest.mark.slow
def test_what_was_acknowledged_survives_the_servers_death(
    own_server: RedisServer, store: RedisJobStore
) -> None:
    """Killed right after the answers and started again, it has everything, for the same store."""
    s = subject(store)
    store.add([new(f"job-{n}") for n in range(50)])
    store.put_schedule(schedule("a", next_at=5.0))
    jobs = store.settle_and_claim([], ask(10))[1].jobs
    told = [s.told(job, SUCCEEDED, result=b"7", keep=600.0) for job in jobs[:5]]
    store.settle_and_claim(told, None)
    store.renew([hold(jobs[9], is_charged=True)], 60.0)
    before = list(store.search(Search())), store.schedules(), store.queues()
    own_server.kill()
    with pytest.raises(StoreUnavailableError, match=r"lost|reached"):
        store.find("job-1")
    with pytest.raises(StoreUnavailableError, match="cannot be reached"):
        store.add([new("while-away")])
    own_server.start()
    assert (list(store.search(Search())), store.schedules(), store.queues()) == before
    assert store.settle_and_claim([s.told(jobs[9], SUCCEEDED)], None)[0] == [True]
    assert store.find("while-away") is None


@pytest.mark.slow
def test_bells_are_heard_again_after_a_restart(
    own_server: RedisServer, store: RedisJobStore
) -> None:
    """Whoever listened rings once when the server is back, and then for what happens."""
    subscription = store.subscribe(Topic.WORK)
    own_server.kill()
    own_server.start()
    assert subscription.wait(WAIT)
    while subscription.wait(0.5):
        pass
    store.add([new("a")])
    assert subscription.wait(WAIT)


def test_scripts_that_were_forgotten_are_sent_again(open_store: Open) -> None:
    """A server that lost its scripts gets them anew, without anybody noticing."""
    store = open_store()
    store.add([new("a")])
    store.transactions.client.call("SCRIPT", "FLUSH")
    store.add([new("b")])
    assert [job.id for job in store.settle_and_claim([], ask(5))[1].jobs] == ["a", "b"]


def test_a_cut_link_is_an_error_and_heals(durable_redis: RedisServer, open_store: Open) -> None:
    """While the network is away calls say so; afterwards the same store goes on."""
    with CuttableLink(durable_redis.port) as link:
        store = open_store(f"redis://127.0.0.1:{link.port}/0", timeouts=AT_ONCE)
        store.add([new("a")])
        link.cut()
        with pytest.raises(StoreUnavailableError) as caught:
            store.add([new("b")])
        assert "redis-cli" in caught.value.remedy or "look" in caught.value.remedy
        link.heal()
        assert store.find("a") is not None
        store.add([new("b")])


@pytest.mark.slow
def test_a_failover_behind_a_name(own_server: RedisServer) -> None:
    """The old primary keeps its connections; store and subscriptions go over to the new one."""
    with (
        serving() as other,
        CuttableLink(own_server.port) as link,
        other.connect() as client,
        closing(RedisJobStore(f"redis://127.0.0.1:{link.port}/0", timeouts=AT_ONCE)) as store,
    ):
        subscription = store.subscribe(Topic.WORK)
        store.add([new("before")])
        assert subscription.wait(WAIT)
        follow(client, own_server)
        client.replicaof("NO", "ONE")
        with own_server.connect() as old:
            old.replicaof("127.0.0.1", other.port)
        with pytest.raises(StoreReadOnlyError):  # the name still leads to the old one
            store.add([new("early")])
        link.redirect(other.port)
        with suppress(StoreReadOnlyError):
            store.add([new("lost")])
        store.add([new("after")])
        assert store.find("before") is not None
        until(lambda: bool(client.pubsub_channels()))
        while subscription.wait(0.5):
            pass
        store.add([new("rings")])
        assert subscription.wait(WAIT)


def follow(client: Any, primary: RedisServer) -> None:
    """Copy another server, and wait until that is done."""
    client.replicaof("127.0.0.1", primary.port)
    until(lambda: client.info("replication")["master_link_status"] == "up")


@pytest.mark.slow
def test_a_server_that_is_frozen_is_not_waited_for_long(own_server: RedisServer) -> None:
    """A call gives up once, says that nobody knows, and the store goes on when the server does."""
    timeouts = RedisTimeouts(response=0.5, reconnect_delay=0.0)
    with closing(RedisJobStore(own_server.url, timeouts=timeouts)) as store:
        store.add([new("a")])
        own_server.freeze()
        try:
            with pytest.raises(StoreUnavailableError, match="not known"):
                store.add([new("b")])
            with pytest.raises(StoreUnavailableError):
                store.find("a")
        finally:
            own_server.thaw()
        assert store.find("a") is not None
        assert store.find("b") is not None


# ---- answers that were lost ---------------------------------------------------------------------


def test_a_settlement_whose_answer_was_lost_is_answered_again(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker sends the same report once more, and hears that it was applied: once."""
    store = open_store()
    s = subject(store)
    store.add([new("done"), new("back"), new("other")])
    jobs = store.settle_and_claim([], ask(3))[1].jobs
    told = [
        s.told(jobs[0], SUCCEEDED, result=b"1", keep=60.0),
        s.told(jobs[1], FAILS_ONCE),
        s.told(jobs[2], RELEASED),
    ]
    lose_responses(monkeypatch)
    with pytest.raises(StoreUnavailableError, match="not known"):
        store.settle_and_claim(told, ask(1))
    # The claim of that call was made: the released job runs, and nobody knows.
    running = s.get("other")
    assert (running.status, running.deliveries) == (JobStatus.ACTIVE, 2)
    before = [s.get(each) for each in ("done", "back", "other")]
    assert store.settle_and_claim(told, None)[0] == [True, True, True]
    assert [s.get(each) for each in ("done", "back", "other")] == before
    late = s.told(jobs[0], SUCCEEDED, result=b"2")
    assert store.settle_and_claim([late], None)[0] == [False]


def test_reports_alone_are_repeated_by_the_store(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What can be repeated without harm is, and the caller hears nothing of the lost answer."""
    store = open_store()
    s = subject(store)
    store.add([new("a"), new("b")])
    jobs = store.settle_and_claim([], ask(2))[1].jobs
    lose_responses(monkeypatch)
    assert store.renew([hold(jobs[1], is_charged=True)], 60.0) == [True]
    assert s.get("b").attempts == 1
    lose_responses(monkeypatch)
    assert store.settle_and_claim([s.told(jobs[0], SUCCEEDED, keep=5.0)], None)[0] == [True]
    assert len(s.get("a").history) == 1


def test_an_add_whose_answer_was_lost_is_found_by_its_ids(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store looks whether the jobs are there, and adds none of them twice."""
    store = open_store()
    store.add([new("held", unique_key="k")])
    lose_responses(monkeypatch)
    assert [added.is_new for added in store.add([new("a"), new("b")])] == [True, True]
    lose_responses(monkeypatch)
    mixed = [
        new("c", unique_key="other"),
        new("d", unique_key="k", on_duplicate=OnDuplicate.EXISTING),
    ]
    assert [(added.id, added.is_new) for added in store.add(mixed)] == [
        ("c", True),
        ("held", False),
    ]
    lose_responses(monkeypatch)
    again = [new("e", unique_key="k", on_duplicate=OnDuplicate.EXISTING)]
    assert store.add(again)[0].id == "held"
    assert store.count(Search()) == 4
    with pytest.raises(DuplicateJobError):
        store.add([new("a")])


def test_a_lost_answer_does_not_hide_that_an_id_is_taken(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job of the same id that does something else is not taken for the new one."""
    store = open_store()
    store.add([new("a", args=b"[1]")])
    lose_responses(monkeypatch)
    with pytest.raises(DuplicateJobError):
        store.add([new("a", args=b"[2]")])


def test_an_add_nobody_can_ask_about_says_that_it_is_not_known(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the server does not answer the second question either, the first error stands."""
    store = open_store()
    lose_responses(monkeypatch, 3)
    with pytest.raises(
        StoreUnavailableError, match="whether the call was carried out is not known"
    ):
        store.add([new("a")])
    monkeypatch.undo()
    assert store.find("a") is not None


def test_a_fire_whose_answer_was_lost_adds_its_jobs_once(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repeated call meets a schedule that has fired."""
    store = open_store()
    store.put_schedule(schedule("a", next_at=60.0))
    lose_responses(monkeypatch)
    store.fire("a", 60.0, 120.0, [new("x")])
    assert store.schedules()[0].next_at == 120.0
    assert store.count(Search()) == 1


def test_an_outdated_job_that_could_not_be_ended_is_swept(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim sets it aside; if its end cannot be written, the claimed jobs are not lost for it."""
    clock = HandClock()
    store = open_store(clock=clock)
    s = JobStoreSubject(store, clock, None, WAIT)
    s.put("late", expires_at=clock() + 5.0, priority=9)
    s.put("fine")
    clock.forward(6.0)
    with monkeypatch.context() as patch:
        end = StoreUnavailableError("away")
        patch.setattr(store.transitions, "end_outdated", lambda *_: (_ for _ in ()).throw(end))
        claimed = store.settle_and_claim([], ask(5))[1]
    assert ([job.id for job in claimed.jobs], claimed.outdated) == (["fine"], 0)
    assert s.status("late") is JobStatus.PENDING
    assert s.ids(5) == []
    assert store.prune(10).outdated == 1
    assert s.status("late") is JobStatus.FAILED
