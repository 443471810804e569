"""The SQLite store and the memory store are told the same, and must answer the same."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ergon_framework.core.job import (
    CancelAsked,
    Died,
    Held,
    JobStatus,
    LeaseExpired,
    Refused,
    RequeueAsked,
    RunAsked,
)
from ergon_framework.errors import DuplicateJobError
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.jobs.stores.sqlite import SqliteJobStore
from ergon_framework.ports.jobstore import Job, Leased, NewJob, OnDuplicate, Search
from ergon_framework.testing.suites.hand_clock import HandClock
from ergon_framework.testing.suites.jobstore.subject import (
    FAILS_FOR_GOOD,
    FAILS_ONCE,
    FLAKY,
    LEASE,
    RELEASED,
    SUCCEEDED,
    Subject,
    ask,
    hold,
    new,
)

STEPS = 80
OUTCOMES = (SUCCEEDED, FAILS_ONCE, FAILS_FOR_GOOD, RELEASED, Held(FLAKY), Died(is_alone=False))
CHANGES: tuple[dict[str, Any], ...] = (
    {"is_paused": True},
    {"is_paused": False},
    {"max_active": 2},
    {"max_active": None},
    {"rate": 1.0, "burst": 2},
    {"rate": None, "burst": 1},
)


class Twins:
    """Two stores with one clock, and a random life for both."""

    def __init__(self, path: Path, seed: int) -> None:
        self.dice = random.Random(seed)  # noqa: S311 - not for secrets
        self.clock = HandClock()
        stores = (SqliteJobStore(path, clock=self.clock), MemoryJobStore(self.clock))
        self.subjects = [Subject(store, self.clock, None, 15.0) for store in stores]
        self.held: list[tuple[Leased, ...]] = []
        self.made = 0

    def both(self, call: Callable[[Subject], Any]) -> Any:
        """What both answered, which must be the same."""
        answers = [_answer(call, subject) for subject in self.subjects]
        assert answers[0] == answers[1]
        return answers[0]

    def step(self) -> None:
        """Something happens, and both must look the same afterwards."""
        acts = (self.add, self.claim, self.settle, self.settle, self.wait, self.rescue)
        rare = (self.operate, self.change, self.sweep, self.renew, self.purge)
        self.dice.choice(acts * 2 + rare)()
        self.both(lambda s: {job.id: _seen(job) for job in s.store.search(Search())})
        self.both(lambda s: s.store.queues())

    def add(self) -> None:
        jobs = [self._new() for _ in range(self.dice.randint(1, 4))]
        self.both(lambda s: s.store.add(jobs))

    def _new(self) -> NewJob:
        dice = self.dice
        fields: dict[str, Any] = {}
        self.made += 1
        if dice.random() < 0.3:
            fields["delay"] = float(dice.randint(1, 20))
        if dice.random() < 0.25:
            fields["unique_key"] = f"u{dice.randint(0, 2)}"
            fields["on_duplicate"] = dice.choice(list(OnDuplicate))
        # The stores notice at different times that a job expired while it waited for its key.
        if dice.random() < 0.3:
            fields |= {"limit_key": f"l{dice.randint(0, 1)}", "limit": 2}
        elif dice.random() < 0.2:
            fields["expires_at"] = self.clock() + dice.randint(1, 30)
        if dice.random() < 0.2:
            fields |= {"trace_context": {"a": "b"}, "timeout": 2.5, "retry": b'{"x": 1}'}
        if dice.random() < 0.1:
            fields["args"] = b'"%s"' % (b"x" * 3000)
        number = self.made if dice.random() < 0.95 else dice.randint(1, self.made)
        return new(f"j{number}", priority=dice.randint(0, 2), **fields)

    def claim(self) -> None:
        slots = self.dice.randint(1, 5)
        claims = [s.store.exchange([], ask(slots))[1] for s in self.subjects]
        assert claims[0].more == claims[1].more
        assert [_seen(job) for job in claims[0].jobs] == [_seen(job) for job in claims[1].jobs]
        self.held += zip(*(claim.jobs for claim in claims), strict=True)

    def settle(self) -> None:
        if self.held:
            jobs, seen = iter(self.dice.choice(self.held)), self.dice.choice(OUTCOMES)
            keep = self.dice.choice((None, 0.0, 5.0))
            result = b"1" if seen is SUCCEEDED else None
            self.both(lambda s: s.settle(next(jobs), seen, keep=keep, result=result))

    def renew(self) -> None:
        if self.held:
            jobs, is_charged = iter(self.dice.choice(self.held)), self.dice.random() < 0.5
            self.both(lambda s: s.store.renew([hold(next(jobs), is_charged=is_charged)], LEASE))

    def wait(self) -> None:
        self.clock.forward(self.dice.choice((0.0, 1.0, 3.0, 10.0, 20.0)))

    def rescue(self) -> None:
        def work(s: Subject) -> list[tuple[str, bool]]:
            jobs = s.store.overdue(10)
            told = [s.told(job, LeaseExpired(), if_expired=True, keep=5.0) for job in jobs]
            return list(zip((job.id for job in jobs), s.store.exchange(told, None)[0], strict=True))

        self.both(work)

    def operate(self) -> None:
        seen = self.dice.choice((CancelAsked(), RunAsked(), RequeueAsked()))
        job_id = f"j{self.dice.randint(0, self.made)}"
        self.both(lambda s: (job := s.store.find(job_id)) and s.settle(job, seen, keep=7.0))

    def change(self) -> None:
        changes = self.dice.choice(CHANGES)
        self.both(lambda s: s.store.set_queue("default", **changes).name)

    def sweep(self) -> None:
        self.both(lambda s: s.store.sweep(1000))

    def purge(self) -> None:
        job_id = f"j{self.dice.randint(0, self.made)}"
        self.both(lambda s: (job := s.store.find(job_id)) and s.store.purge([job]))


def _answer(call: Callable[[Subject], Any], subject: Subject) -> Any:
    try:
        return call(subject)
    except (DuplicateJobError, Refused) as error:
        return type(error)


def _seen(job: Job | Leased) -> dict[str, Any]:
    """Everything but the handles, which belong to each store, and how it words its history."""
    fields = msgspec.structs.asdict(job)
    for handle in ("key", "fence", "is_limited"):
        fields.pop(handle, None)
    history = [json.loads(entry) for entry in fields.pop("history", ())]
    return fields | {"history": history}


@pytest.fixture
def twins(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Twins]:
    """Fresh stores and the dice of a seed."""
    twins = Twins(tmp_path / "jobs.db", request.param)
    yield twins
    for subject in twins.subjects:
        subject.store.close()


@pytest.mark.req("JOBS:store")
@pytest.mark.parametrize("twins", range(20), indirect=True)
def test_two_stores_one_life(twins: Twins) -> None:
    """Whatever happens, both stores claim, refuse, count and remember alike."""
    for _ in range(STEPS):
        twins.step()
    assert twins.made > 0
    assert {JobStatus(each) for each in twins.both(lambda s: s.store.queues())[0].counts}
