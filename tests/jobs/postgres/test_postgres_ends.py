"""The statement that most jobs end with: it does what the one for all moves does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import msgspec
import pytest

from ergon_framework.core.job import JobStatus
from ergon_framework.jobs.stores.postgres import PostgresJobStore
from ergon_framework.jobs.stores.transitions import is_plain_completion
from ergon_framework.ports.jobstore import Job, Topic
from ergon_framework.testing.suites.drivers import HandClock
from ergon_framework.testing.suites.jobstore.under_test import (
    FAILS_ONCE,
    SUCCEEDED,
    JobStoreSubject,
    hold,
    ids_of,
)

pytestmark = pytest.mark.req("SCALE:jobs-postgres")
ENDS = pytest.mark.parametrize("keep", [None, 9.0], ids=["any move", "the usual end"])


@pytest.fixture
def subject(jobs_url: str) -> Iterator[JobStoreSubject]:
    """A store by itself."""
    clock = HandClock()
    with closing(PostgresJobStore(jobs_url, clock=clock)) as store:
        yield JobStoreSubject(store, clock, None, 20.0)


def test_both_ways_to_end_leave_the_same(subject: JobStoreSubject) -> None:
    """Also of a job that has been through something: only how long it is kept differs."""
    ended: list[Job] = []
    for keep in (None, 9.0):
        subject.put(f"{keep}", limit_key=f"k{keep}")
        before = subject.take(f"{keep}")
        subject.must(before, FAILS_ONCE, entry=b'{"n":1}')
        subject.clock.forward(3600.0)
        leased = subject.take(f"{keep}")
        subject.store.renew([hold(leased, is_charged=True)], 9.0)
        assert not subject.settle(before, SUCCEEDED, keep=keep)  # by whoever had it before
        told = subject.told(leased, SUCCEEDED, keep=keep, result=b"7", entry=b'{"n":2}')
        assert is_plain_completion(told) is (keep is not None)
        now = subject.clock()
        assert [subject.store.settle_and_claim([told], None)[0] for _ in "ab"] == [[True], [False]]
        ended.append(subject.get(f"{keep}"))
        assert (ended[-1].finished_at, ended[-1].result) == (now, b"7")
        assert ended[-1].purge_at == (None if keep is None else now + keep)
        assert ended[-1].history == (b'{"n":1}', b'{"n":2}')
    own = ("key", "id", "fence", "limit_key", "created_at", "run_at", "finished_at", "purge_at")
    one, other = [{**msgspec.structs.asdict(job), **dict.fromkeys(own)} for job in ended]
    assert one == other
    assert one["status"] is JobStatus.COMPLETED


@ENDS
def test_an_end_makes_room_in_a_full_queue(subject: JobStoreSubject, keep: float | None) -> None:
    """Whoever waits for work hears of it."""
    subject.store.set_queue("q", max_active=1)
    subject.put("a", "b", queue="q")
    (leased,) = subject.claim(9)
    with closing(subject.store.subscribe(Topic.WORK)) as subscription:
        subscription.wait(0.2)  # for what was added
        subject.must(leased, SUCCEEDED, keep=keep)
        assert subscription.wait(subject.patience)
    assert subject.ids(9) == ["b"]


@ENDS
def test_an_end_frees_its_limit_key(subject: JobStoreSubject, keep: float | None) -> None:
    """The next job of the key is claimed with the end of the one before, ahead of later jobs."""
    subject.put("a", "b", limit_key="k")
    (leased,) = subject.claim(9)
    subject.put("c")
    applied, claimed = subject.settle_and_claim([subject.told(leased, SUCCEEDED, keep=keep)], 1)
    assert (applied, ids_of(claimed.jobs)) == ([True], ["b"])


def test_slots_are_counted_for_jobs_that_name_their_executor_and_for_others(
    subject: JobStoreSubject,
) -> None:
    """They stand in one line, and get no more than the slots of their executor together."""
    for n in range(12):
        subject.put(f"j{n}", executor=("", "python")[n % 2], queue="ab"[n // 6])
    assert [len(subject.claim(slots)) for slots in (4, 3, 9)] == [4, 3, 5]


def test_claimed_jobs_come_queue_by_queue(subject: JobStoreSubject) -> None:
    """In each of them by their place."""
    for n, queue in enumerate("abab"):
        subject.put(f"{queue}{n}", queue=queue, priority=n)
    found = subject.ids(9)
    assert found in (["a2", "a0", "b3", "b1"], ["b3", "b1", "a2", "a0"])
