"""A limit key that others hold keeps nobody from claiming other jobs, and is not forgotten."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import psycopg
import pytest

from ergon_framework.core.job import JobStatus, Released
from ergon_framework.jobs.stores.postgres import PostgresJobStore
from ergon_framework.jobs.stores.postgres.claim import HELD_KEY_DELAY, START_DEPTH
from ergon_framework.jobs.stores.postgres.settle import KEY_LOCKS
from ergon_framework.ports.jobstore import ClaimResult, Search, Topic
from ergon_framework.storage.postgres.pool import Connection, PostgresTimeouts
from ergon_framework.testing.suites.drivers import HandClock
from ergon_framework.testing.suites.jobstore.under_test import (
    SUCCEEDED,
    JobStoreSubject,
    ask,
    ids_of,
)

pytestmark = pytest.mark.req("SCALE:jobs-postgres", "SCALE:fleet-limits")
PATIENCE = 30.0
HOLD = "SELECT pg_advisory_xact_lock(%s, hashtext(%s))"


@pytest.fixture
def clock() -> HandClock:
    """The time of the stores."""
    return HandClock()


@pytest.fixture
def open_subject(jobs_url: str, clock: HandClock) -> Iterator[Callable[[], JobStoreSubject]]:
    """Opens stores that raise an error where others would wait for a lock."""
    timeouts = PostgresTimeouts(lock=0.05)
    opened: list[PostgresJobStore] = []

    def open_one() -> JobStoreSubject:
        opened.append(PostgresJobStore(jobs_url, clock=clock, timeouts=timeouts))
        return JobStoreSubject(opened[-1], clock, None, PATIENCE)

    yield open_one
    for store in opened:
        store.close()


@contextmanager
def holding(url: str, *keys: str) -> Iterator[Connection]:
    """Somebody who has locked limit keys, and does not come to an end."""
    with psycopg.connect(url) as connection:
        for key in keys:
            connection.execute(HOLD, (KEY_LOCKS, key))
        yield connection


def claimed(s: JobStoreSubject, slots: int = 20) -> ClaimResult:
    """What a worker gets."""
    return s.store.settle_and_claim([], ask(slots))[1]


def test_a_late_answer_costs_nobody_his_turn(open_subject: Callable[[], JobStoreSubject]) -> None:
    """Whoever waits for a key is there when the exchange that frees it claims, although an answer
    to an earlier claim of the same job came before.
    """
    s = open_subject()
    s.put("first", limit_key="k", priority=2)
    early = s.take("first")
    assert s.settle(early, Released())
    again = s.take("first")
    s.put("second", limit_key="k", priority=1)
    s.put("plain", "plain-2")
    assert ids_of(claimed(s, 1).jobs) == ["plain"]  # the other one waits for its key from now on
    assert not s.settle(early, SUCCEEDED)
    applied, found = s.store.settle_and_claim([s.told(again, SUCCEEDED, result=b"1")], ask(1))
    assert applied == [True]
    assert ids_of(found.jobs) == ["second"]


def test_a_held_key_is_passed_over(
    jobs_url: str, open_subject: Callable[[], JobStoreSubject]
) -> None:
    """Jobs of other keys and without any are claimed at once; those of the key when it is free."""
    s = open_subject()
    s.put("held-1", "held-2", limit_key="k", limit=2)
    s.put("other", limit_key="l")
    s.put("plain")
    with holding(jobs_url, "k"):
        first = claimed(s)
        assert ids_of(first.jobs) == ["other", "plain"]
        assert first.more
        assert first.next_at == s.clock() + HELD_KEY_DELAY
        assert ids_of(claimed(s).jobs) == []
    last = claimed(s)
    assert ids_of(last.jobs) == ["held-1", "held-2"]
    assert last.next_at is None


def test_a_long_line_of_a_held_key_hides_nobody(
    jobs_url: str, open_subject: Callable[[], JobStoreSubject]
) -> None:
    """Whoever stands behind many of them comes at once, and behind very many after a few claims."""
    s = open_subject()
    s.put(*(f"held-{n}" for n in range(300)), limit_key="k")
    s.put(*(f"also-{n}" for n in range(300)), limit_key="l")
    s.put("mine", limit_key="m")
    s.put("plain")
    s.put(*(f"more-{n}" for n in range(6 * START_DEPTH)), limit_key="k")
    s.put("last", limit_key="n")
    with holding(jobs_url, "k", "l"):
        assert ids_of(claimed(s, 2).jobs) == ["mine", "plain"]
        found = [claimed(s, 2) for _ in range(6)]
        assert [ids_of(each.jobs) for each in found if each.jobs] == [["last"]]
        assert found[-1].next_at == s.clock() + 10 * HELD_KEY_DELAY
    assert ids_of(claimed(s, 2).jobs) == ["held-0", "also-0"]


def test_a_held_key_in_a_queue_with_settings(
    jobs_url: str, open_subject: Callable[[], JobStoreSubject]
) -> None:
    """Who is passed over takes nothing of what the queue allows, expired or not."""
    s = open_subject()
    s.store.set_queue("default", max_active=1)
    s.put("over", limit_key="k", expires_at=s.clock() - 1.0)
    s.put("held", limit_key="k")
    s.put("plain-1", "plain-2")
    with holding(jobs_url, "k"):
        first = claimed(s)
        assert ids_of(first.jobs) == ["plain-1"]
        assert first.outdated == 0
    assert s.settle(first.jobs[0], SUCCEEDED)
    second = claimed(s)
    assert ids_of(second.jobs) == ["held"]
    assert second.outdated == 1


def test_the_limit_holds_when_the_key_is_free_again(
    jobs_url: str, open_subject: Callable[[], JobStoreSubject]
) -> None:
    """What the holder started meanwhile is counted."""
    s, other = open_subject(), open_subject()
    s.put("a", "b", limit_key="k", limit=1)
    with holding(jobs_url, "k") as holder:
        assert ids_of(claimed(s).jobs) == []
        holder.execute("UPDATE ergon_jobs SET stage = 1, status = 'active' WHERE id = 'a'")
    assert ids_of(claimed(s).jobs) == []
    assert ids_of(claimed(other).jobs) == []
    [active] = s.store.search(Search(statuses=(JobStatus.ACTIVE,)))
    assert s.settle(active, SUCCEEDED)
    assert ids_of(claimed(s).jobs) == ["b"]


@pytest.mark.parametrize("is_asking", [True, False])
def test_a_wake_up_is_made_up_for(
    jobs_url: str, open_subject: Callable[[], JobStoreSubject], is_asking: bool
) -> None:
    """A job begins to wait for its key just when the worker ends the one that had it."""
    s = open_subject()
    s.put("first", limit_key="k")
    [first] = claimed(s).jobs
    s.put("next", limit_key="k")
    s.put("plain")
    told = [s.told(first, SUCCEEDED)]
    with holding(jobs_url, "k") as holder:
        holder.execute("UPDATE ergon_jobs SET stage = 4 WHERE id = 'next'")
        applied, got = s.store.settle_and_claim(told, ask(5) if is_asking else None)
        assert applied == [True]
        assert ids_of(got.jobs) == (["plain"] if is_asking else [])
        assert got.next_at == (s.clock() + HELD_KEY_DELAY if is_asking else None)
        holder.commit()
    assert "next" in ids_of(claimed(s).jobs)


def test_a_worker_is_rung_for_what_it_could_not_wake(
    jobs_url: str, open_subject: Callable[[], JobStoreSubject]
) -> None:
    """One that only settles this time asks soon, because it is notified."""
    s, other = open_subject(), open_subject()
    s.put("first", limit_key="k")
    [first] = claimed(s).jobs
    subscription = other.store.subscribe(Topic.WORK)
    while subscription.wait(0.0):
        pass
    with holding(jobs_url, "k"):
        s.store.settle_and_claim([s.told(first, SUCCEEDED)], None)
        assert subscription.wait(PATIENCE)
    subscription.close()


@pytest.mark.parametrize("is_asking", [True, False])
def test_a_worker_that_will_not_come_back_soon_waits_for_the_key(
    jobs_url: str, clock: HandClock, is_asking: bool
) -> None:
    """Because its slots are full now, or because it stops: nobody else would wake the job."""
    with closing(PostgresJobStore(jobs_url, clock=clock)) as other:
        store = PostgresJobStore(jobs_url, clock=clock)
        s = JobStoreSubject(store, clock, None, PATIENCE)
        s.put("first", limit_key="k")
        [first] = claimed(s).jobs
        s.put("next", limit_key="k")
        s.put("plain")
        told = [s.told(first, SUCCEEDED)]
        with ThreadPoolExecutor() as pool, holding(jobs_url, "k") as holder:
            settled = pool.submit(store.settle_and_claim, told, ask(1) if is_asking else None)
            waits = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            while not settled.done() and holder.execute(waits).fetchone() is None:
                pass
            holder.execute("UPDATE ergon_jobs SET stage = 4 WHERE id = 'next'")
            holder.commit()
            assert settled.result(PATIENCE)[0] == [True]
        store.close()
        assert "next" in ids_of(claimed(JobStoreSubject(other, clock, None, PATIENCE)).jobs)


def test_who_only_settles_waits_for_the_key(
    jobs_url: str, open_subject: Callable[[], JobStoreSubject], caplog: pytest.LogCaptureFixture
) -> None:
    """An operator's process may end after this call, and could not make up for anything."""
    s, operator = open_subject(), open_subject()
    s.put("first", limit_key="k")
    [first] = claimed(s).jobs
    with holding(jobs_url, "k"):
        assert operator.store.settle_and_claim([s.told(first, SUCCEEDED)], None)[0] == [True]
    assert "cut short" in caplog.text


def test_a_sweep_waits_for_no_key(
    jobs_url: str, open_subject: Callable[[], JobStoreSubject]
) -> None:
    """It wakes whom it can, whoever holds a key in between."""
    s = open_subject()
    for key in ("k", "l"):
        s.put(f"{key}-1", f"{key}-2", limit_key=key)
    assert len(claimed(s).jobs) == 2
    with psycopg.connect(jobs_url) as connection:
        connection.execute("UPDATE ergon_jobs SET stage = 0, status = 'failed' WHERE stage = 1")
    with holding(jobs_url, "k"):
        s.store.prune(10)
        assert ids_of(claimed(s).jobs) == ["l-2"]
    s.store.prune(10)
    assert "k-2" in ids_of(claimed(s).jobs)
