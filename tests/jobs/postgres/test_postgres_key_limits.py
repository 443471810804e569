"""What a claim reads in a queue that limits each of its keys, by the number of keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import psycopg
import pytest

from ergon_framework.jobs.stores.postgres import PostgresJobStore
from ergon_framework.jobs.stores.postgres.claim import FIRST_BLOCKED
from ergon_framework.ports.jobstore import ClaimedJob
from ergon_framework.storage.postgres.pool import Connection
from ergon_framework.testing.suites.drivers import HandClock
from ergon_framework.testing.suites.jobstore.under_test import SUCCEEDED, JobStoreSubject, ask, new
from tests.servers.postgres import empty_tables

pytestmark = pytest.mark.req("SCALE:jobs-postgres")

FEW, MANY = 10, 5_000
SLOTS, ROUNDS = 10, 5
PATIENCE = 30.0
# Entries of indexes and rows that were read to answer statements. Those that were found dead before
# do not count: how many there are depends on the last vacuum, and not on the keys.
_READ = (
    "SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname LIKE 'ergon_%'"
    " UNION ALL SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE relname LIKE 'ergon_%'"
)


@pytest.fixture
def other(jobs_url: str) -> Iterator[psycopg.Connection]:
    """A connection of nobody's."""
    with psycopg.connect(jobs_url, autocommit=True) as connection:
        yield connection


class Reads:
    """Counts what the connection of a store reads."""

    def __init__(self, store: PostgresJobStore, other: psycopg.Connection) -> None:
        self._store = store
        self._other = other
        self._before = 0

    def count(self) -> int:
        """What was read since it was counted last."""
        self._store.transactions.database.run(self._flush)
        found = sum(int(number or 0) for (number,) in self._other.execute(_READ))
        self._before, before = found, self._before
        return found - before

    def _flush(self, connection: Connection) -> None:
        connection.execute("SELECT pg_stat_force_next_flush()")


def reads_of_ten(s: JobStoreSubject, reads: Reads, running: list[ClaimedJob]) -> float:
    """What it takes to settle ten jobs and to claim ten, on average."""
    reads.count()
    for _ in range(ROUNDS):
        told = [s.told(job, SUCCEEDED) for job in running[:SLOTS]]
        del running[:SLOTS]
        found = s.settle_and_claim(told, SLOTS)[1].jobs
        assert len(found) == SLOTS
        running += found
    return reads.count() / ROUNDS


def used_up(s: JobStoreSubject, reads: Reads, keys: int) -> float:
    """One job of each key runs, which is all that may, and another ten wait."""
    s.store.set_queue("q", key_max_active=1)
    # Of the keys that are to be claimed from there are several jobs, of all others one more.
    names = [f"t{n:05}" for n in range(keys)]
    jobs = [(name, n) for name in names for n in range(2)]
    jobs += [(name, n) for name in names[: SLOTS * ROUNDS] for n in range(2, 2 + ROUNDS)]
    s.store.add([new(f"{name}-{n}", queue="q", limit_key=name) for name, n in jobs])
    running = list[ClaimedJob]()
    while len(running) < keys:
        running += s.claim(1000)
    while s.store.settle_and_claim([], ask(SLOTS))[1].next_at is not None:
        pass  # until all others wait apart
    running.sort(key=lambda job: job.id)
    return reads_of_ten(s, reads, running)


def in_turn(s: JobStoreSubject, reads: Reads, keys: int) -> float:
    """Jobs of all keys are due, and each may start."""
    s.store.set_queue("q", key_max_active=1_000_000)
    count = 2 * max(keys, SLOTS * ROUNDS)
    s.store.add([new(f"j{n}", queue="q", limit_key=f"t{n % keys:05}") for n in range(count)])
    return reads_of_ten(s, reads, s.claim(SLOTS))


@pytest.mark.parametrize("case", [used_up, in_turn])
def test_a_claim_reads_the_same_however_many_keys_there_are(
    jobs_url: str,
    other: psycopg.Connection,
    case: Callable[[JobStoreSubject, Reads, int], float],
) -> None:
    """With ten keys and with 5,000, by plans of a server that has not analyzed the table."""
    found = {}
    for keys in (FEW, MANY):
        empty_tables(jobs_url)
        clock = HandClock()
        with closing(PostgresJobStore(jobs_url, clock=clock)) as store:
            s = JobStoreSubject(store, clock, None, PATIENCE)
            found[keys] = case(s, Reads(store, other), keys)
    assert found[MANY] < 1.5 * found[FEW], found


def test_jobs_that_wait_for_keys_are_left_behind_those_of_other_workers(jobs_url: str) -> None:
    """A worker hears of its own, also where many wait before them that others run."""
    clock, mine = HandClock(), frozenset({"python"})
    with closing(PostgresJobStore(jobs_url, clock=clock)) as store:
        s = JobStoreSubject(store, clock, None, PATIENCE)
        keys = [f"a{n:02}" for n in range(2 * FIRST_BLOCKED + 4)]
        for key in keys:
            s.put(f"{key}-1", f"{key}-2", executor="other", limit_key=key)
        assert len(s.claim({"other": 100}, own=frozenset({"other"}))) == len(keys)
        assert not s.settle_and_claim((), 1, own=mine)[1].more
        s.put("z-1", "z-2", limit_key="z")
        s.take("z-1", own=mine)
        assert s.settle_and_claim((), 1, own=mine)[1].more
