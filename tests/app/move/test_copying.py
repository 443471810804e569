"""Moves that follow a store through its life, each bringing what happened since."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ergon_framework.app.move import preflight, transfer
from ergon_framework.app.move.preflight import refuse_readers
from ergon_framework.app.move.transfer import (
    PAGE_SIZE,
    Transfer,
    TransferProgress,
    digest_of,
    tell_now_and_then,
)
from ergon_framework.boundary.factstore.memory import MemoryFactStore
from ergon_framework.boundary.factstore.sqlite import SqliteFactStore
from ergon_framework.core.job import CancelRequested, InvalidTransition, RunRequested
from ergon_framework.errors import ErgonError, StoreError
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.jobs.stores.sqlite import SqliteJobStore
from ergon_framework.ports.factstore import OUTBOUND
from ergon_framework.ports.jobstore import Search
from ergon_framework.ports.transfer import FACT_KINDS, JOB_KINDS, RecordStore, records_of
from ergon_framework.testing.suites.drivers import HandClock
from ergon_framework.testing.suites.factstore.under_test import INBOX, Ways, new, sent
from ergon_framework.testing.suites.factstore.under_test import FactStoreSubject as FactSubject
from ergon_framework.testing.suites.jobstore.under_test import (
    FAILS_FOR_GOOD,
    FAILS_ONCE,
    SUCCEEDED,
    JobStoreSubject,
)
from tests.app.move.stock import ZONE, fenced

pytestmark = pytest.mark.req("SCALE:move")
SEEDS = range(6)


def brought(part: Transfer) -> None:
    """Move, and see for ourselves that both hold the same."""
    preflight.refuse_other(part)
    transfer.begin(part)
    transfer.end([part], [transfer.move(part, lambda _: None)])
    for kind in part.kinds:
        assert digest_of(part.target, kind) == digest_of(part.source, kind), kind.__name__


def live(s: JobStoreSubject, chance: random.Random) -> None:
    """Let something happen to jobs: keys change hands, ids are used again, jobs come and go."""
    s.clock.forward(chance.choice((0.0, 1.0, 20.0)))
    jobs = list(s.store.search(Search()))
    job = chance.choice(jobs) if jobs else None
    what = chance.randrange(7)
    try:
        if what <= 1:
            key = chance.choice((None, "u", "v"))
            limit = chance.choice((None, "k"))
            s.put(f"j{chance.randrange(12)}", unique_key=key, limit_key=limit)
        elif what == 2 and job is not None:
            s.settle(job, CancelRequested(), keep=chance.choice((None, 5.0)))
        elif what == 3 and job is not None:
            s.settle(job, RunRequested())
        elif what == 4:
            for leased in s.claim(2):
                s.settle(leased, chance.choice((SUCCEEDED, FAILS_ONCE, FAILS_FOR_GOOD)), keep=9.0)
        elif what == 5 and job is not None:
            s.store.purge([job])
        else:
            s.store.set_queue(chance.choice("ab"), is_paused=chance.random() < 0.5)
            s.claim(1)
    except (ErgonError, InvalidTransition):
        pass  # not everything is possible always
    s.store.prune(5)


@pytest.fixture(params=["memory", "sqlite"])
def job_target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RecordStore]:
    """An empty job store."""
    store = MemoryJobStore() if request.param == "memory" else SqliteJobStore(tmp_path / "new.db")
    with closing(store):
        records = records_of(store)
        assert isinstance(records, RecordStore)
        yield records


@pytest.mark.parametrize("seed", SEEDS)
def test_jobs_are_followed(seed: int, job_target: RecordStore) -> None:
    """Whatever happened between two moves, the copy is the same after each."""
    chance, clock = random.Random(seed), HandClock()  # noqa: S311 - a repeatable one
    with closing(MemoryJobStore(clock)) as source:
        s = JobStoreSubject(source, clock, None, 15.0)
        part = Transfer("jobs", *fenced(source, job_target), JOB_KINDS, "one", "another")
        for _ in range(12):
            for _ in range(chance.randrange(15)):
                live(s, chance)
            brought(part)


def happen(s: FactSubject, chance: random.Random, number: int) -> None:
    """Let something happen to facts: appended, received, read, set aside, dropped."""
    s.clock.forward(chance.choice((0.0, 0.5, 40.0)))
    what = chance.randrange(6)
    head = s.head()
    try:
        if what <= 1:
            to_zone = chance.choice(("plant-b", "plant-c"))
            s.put(f"m{number}", to_zone=to_zone)
        elif what == 2:
            s.receive(sent(f"p{number}", number + 1), offset=number + 1)
        elif what == 3:
            s.serve(chance.choice("cd"))
            s.store.confirm(chance.choice("cd"), chance.randrange(head + 1))
        elif what == 4:
            s.set_aside(chance.randrange(head + 1), chance.choice("cd"))
        else:
            log = chance.choice((OUTBOUND, INBOX))
            s.store.truncate(log, chance.randrange(head + 1), loss_reason="disk")
    except ErgonError:
        pass  # not everything is possible always


@pytest.fixture(params=["memory", "sqlite"])
def fact_target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RecordStore]:
    """An empty fact store."""
    path = tmp_path / "facts.db"
    is_memory = request.param == "memory"
    store = MemoryFactStore(ZONE) if is_memory else SqliteFactStore(path, zone=ZONE)
    with closing(store):
        records = records_of(store)
        assert isinstance(records, RecordStore)
        yield records


@pytest.mark.parametrize("seed", SEEDS)
def test_facts_are_followed(seed: int, fact_target: RecordStore) -> None:
    """Whatever happened between two moves, the copy is the same after each."""
    chance, clock = random.Random(seed), HandClock()  # noqa: S311 - a repeatable one
    with closing(MemoryFactStore(ZONE, clock=clock)) as source:
        s = FactSubject(source, clock, Ways(), 15.0)
        s.consumer("c")
        s.consumer("d", to_zone="plant-c", is_required=False)
        part = Transfer("facts", *fenced(source, fact_target), FACT_KINDS, "one", "another")
        for turn in range(10):
            for number in range(chance.randrange(20)):
                happen(s, chance, turn * 100 + number)
            brought(part)


def test_progress_does_not_run_past_its_end() -> None:
    """A store that grows while it is moved has more than were counted at first."""
    heard: list[TransferProgress] = []
    with closing(MemoryJobStore()) as source, closing(MemoryJobStore()) as target:
        totals = {"jobs": PAGE_SIZE}
        part = Transfer("jobs", *fenced(source, target), JOB_KINDS, "one", "another", totals)
        for count in (1, PAGE_SIZE + 1):
            tell_now_and_then(heard.append, part, "copying", "jobs", count)
    assert [(told.done, told.total) for told in heard] == [(1, PAGE_SIZE), (PAGE_SIZE + 1, None)]


def test_a_zone_that_is_read_is_refused() -> None:
    """On a server there is no lock that would tell; the leases of consumers do."""
    clock = HandClock()
    with closing(MemoryFactStore(ZONE, clock=clock)) as store:
        store.create_consumer("c", OUTBOUND)
        store.append(OUTBOUND, [new("a")])
        refuse_readers(store, clock, "the old one")
        store.serve("c", 10, 1000, holder="h1", lease=30.0)
        with pytest.raises(StoreError, match=r"c \(held by h1\)"):
            refuse_readers(store, clock, "the old one")
        clock.forward(31.0)
        refuse_readers(store, clock, "the old one")


def test_facts_of_another_life_are_refused() -> None:
    """A copy that has what the source has not is no earlier copy, whatever its mark says."""
    with closing(MemoryFactStore(ZONE)) as source, closing(MemoryFactStore(ZONE)) as target:
        part = Transfer("facts", *fenced(source, target), FACT_KINDS, "one", "another")
        source.append(OUTBOUND, [new("a")])
        brought(part)
        transfer.begin(part)
        target.append(OUTBOUND, [new("mine")])
        with pytest.raises(StoreError, match="another holds facts that the other store does not"):
            transfer.move(part, lambda _: None)
