"""A random life of two job stores: clients, workers, rescuers, operators and cron."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

import msgspec

from ergon_framework.app.move.transfer import all_records
from ergon_framework.core.flow import InvalidFlowChange
from ergon_framework.core.job import (
    CancelRequested,
    HeldBack,
    InvalidTransition,
    JobEvent,
    JobStatus,
    LeaseExpired,
    ProcessDied,
    RequeueRequested,
    RunRequested,
)
from ergon_framework.core.unique import OnDuplicate, UniqueRule
from ergon_framework.errors import DuplicateJobError, JobNotFoundError, JobStateError
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.ports.jobstore import (
    ClaimedJob,
    ClaimResult,
    FullJobStore,
    Job,
    NewJob,
    Schedule,
    Search,
    WorkerRecord,
)
from ergon_framework.ports.transfer import JOB_KINDS, RecordStore, records_of
from ergon_framework.testing.suites.jobstore.under_test import (
    FAILS_FOR_GOOD,
    FAILS_ONCE,
    FLAKY,
    LEASE,
    RELEASED,
    SUCCEEDED,
    Clock,
    JobStoreSubject,
    ask,
    hold,
    new,
)
from tests.differential.flow_acts import FlowActs
from tests.differential.twins import Twins, same

OUTCOMES: tuple[JobEvent, ...] = (
    SUCCEEDED,
    SUCCEEDED,
    FAILS_ONCE,
    FAILS_FOR_GOOD,
    RELEASED,
    HeldBack(FLAKY),
    ProcessDied(was_alone=False),
)
QUEUES = ("default", "default", "default", "mail")
CHANGES: tuple[dict[str, Any], ...] = (
    {"is_paused": True},
    {"is_paused": False},
    {"is_paused": False},
    {"max_active": 2},
    {"max_active": None},
    {"rate": 1.0, "burst": 2},
    {"rate": None, "burst": 1},
)
SEARCHES = (
    Search(statuses=(JobStatus.FAILED,)),
    Search(queue="mail"),
    Search(handler="work", statuses=(JobStatus.PENDING, JobStatus.ACTIVE)),
    Search(code="flaky"),
    Search(error="transient"),
)
RULES = (
    None,
    UniqueRule(),
    UniqueRule(("pending", "active", "completed"), 12.0),
    UniqueRule(("pending", "active", "completed", "failed", "cancelled"), 30.0),
)
PATIENCE = 15.0
MOST_HELD = 40
"""Claims that may be told of later; the oldest are forgotten, as by workers that died."""

Open = Callable[[Clock], FullJobStore]
Told = tuple[tuple[ClaimedJob, ...], JobEvent, dict[str, Any]]
"""A claim, as each of the two gave it, what became of it, and what else a settlement says."""
REFUSALS = (InvalidTransition, InvalidFlowChange, JobNotFoundError, JobStateError)


class JobTwins(Twins):
    """The memory store and another one.

    One that ``forgets_keys`` lets those who waited for the limit key of a job that another process
    claimed queue up behind what the same exchange claims; it is then told and asked in two calls.
    """

    def __init__(self, name: str, seed: int, store: Open, *, forgets_keys: bool = False) -> None:
        super().__init__(seed)
        self.store = name
        self._open = store
        self._forgets_keys = forgets_keys
        self._wakes_at_once = True
        stores = (MemoryJobStore(self.clock), store(self.clock))
        self.subjects = [JobStoreSubject(each, self.clock, None, PATIENCE) for each in stores]
        self.held: list[tuple[ClaimedJob, ...]] = []
        self.made = 0
        has_flows = all(hasattr(each, "flows") for each in stores)
        self.flow_acts = FlowActs(self) if has_flows else None

    def acts(self) -> Sequence[Callable[[], None]]:
        """Mostly what clients and workers do."""
        usual = (self.add, self.claim, self.settle, self.exchange, self.wait)
        often = (self.settle, self.rescue, self.renew)
        rare = (self.operate, self.change, self.sweep, self.purge, self.find, self.cron, self.tell)
        flows = () if self.flow_acts is None else tuple(self.flow_acts.acts())
        again = (self.reopen, self.move) * (self.seed % 2)
        return usual * 6 + often * 3 + rare + flows + again

    def look(self) -> None:
        """Every job, queue, schedule and worker."""
        self.both(lambda s: {job.id: _seen(job) for job in s.store.search(Search())})
        self.both(lambda s: s.store.queues())
        names = self.both(lambda s: s.store.queue_names())
        self.both(lambda s: s.store.queue_names(is_due=True, limit=1))
        self.both(lambda s: s.store.look_at_queues([*names, "none"]))
        self.both(lambda s: s.store.count_by_status().counts)
        self.both(lambda s: s.store.schedules())
        self.both(lambda s: s.store.workers())
        if self.flow_acts is not None:
            self.flow_acts.look()

    def close(self) -> None:
        """Close both."""
        for subject in self.subjects:
            subject.store.close()

    def both(self, call: Callable[[JobStoreSubject], Any]) -> Any:
        """What both answered, which must be the same."""
        return same(*(_answer(call, subject) for subject in self.subjects))

    # ---- clients --------------------------------------------------------------------------------

    def add(self) -> None:
        """Some new jobs, now and then one that cannot be taken."""
        jobs = [self._new() for _ in range(self.dice.randint(1, 4))]
        self.both(lambda s: s.store.add(jobs))

    def _new(self) -> NewJob:
        dice = self.dice
        fields: dict[str, Any] = {"queue": dice.choice(QUEUES)}
        self.made += 1
        if dice.random() < 0.3:
            fields["delay"] = float(dice.randint(1, 20))
        elif dice.random() < 0.1:
            fields["run_at"] = self.clock() + dice.randint(-5, 20)
        if dice.random() < 0.25:
            fields["unique_key"] = f"u{dice.randint(0, 4)}"
            fields["on_duplicate"] = dice.choice(list(OnDuplicate))
            fields["unique"] = dice.choice(RULES)
        # The stores notice at different times that a job expired while it waited for its key.
        if dice.random() < 0.3:
            fields |= {"limit_key": f"l{dice.randint(0, 1)}", "limit": 2}
        elif dice.random() < 0.2:
            fields["expires_at"] = self.clock() + dice.randint(1, 30)
        if dice.random() < 0.2:
            fields |= {"trace_context": {"a": "b"}, "timeout": 2.5, "retry": b'{"x": 1}'}
        if dice.random() < 0.05:
            fields["args"] = b'["%s"]' % (b"x" * 3000)
        number = self.made if dice.random() < 0.95 else dice.randint(1, self.made)
        return new(f"j{number}", priority=dice.randint(0, 2), **fields)

    def find(self) -> None:
        """Look at one job, and count some."""
        job_id, search = self.some_id(), self.dice.choice(SEARCHES)
        self.both(lambda s: (job := s.store.find(job_id)) and _seen(job))
        self.both(lambda s: s.store.count(search))
        self.both(lambda s: [job.id for job in s.store.search(search, 5)])

    # ---- workers --------------------------------------------------------------------------------

    def claim(self) -> None:
        """A worker asks."""
        self._exchange(())

    def exchange(self) -> None:
        """A worker tells and asks in one call."""
        told = [self._told() for _ in range(min(len(self.held), self.dice.randint(1, 4)))]
        if not self._wakes_at_once and any(self._has_key(pair[0]) for pair, _, _ in told):
            self._settle_all(told)
            told = []
        self._exchange(told)

    def _has_key(self, job: ClaimedJob) -> bool:
        found = self.subjects[0].store.find(job.id)
        return found is not None and found.limit_key is not None

    def _settle_all(self, told: Sequence[Told]) -> None:
        def call(s: JobStoreSubject) -> list[bool]:
            which = self.subjects.index(s)
            settlements = [s.told(pair[which], seen, **more) for pair, seen, more in told]
            return s.store.settle_and_claim(settlements, None)[0]

        self.both(call)

    def settle(self) -> None:
        """A worker, or one that came too late, tells what became of a job."""
        if self.held:
            pair, seen, fields = self._told()
            jobs = iter(pair)
            self.both(lambda s: s.settle(next(jobs), seen, **fields))

    def _told(self) -> Told:
        seen = self.dice.choice(OUTCOMES)
        result = b"1" if seen is SUCCEEDED else None
        keep = self.dice.choice((None, 0.0, 5.0))
        return self.dice.choice(self.held), seen, {"keep": keep, "result": result}

    def _exchange(self, told: Sequence[Told]) -> None:
        slots = self.dice.randint(1, 5)
        # Of one queue at a time: whose turn it is among several is not agreed upon.
        queue = self.dice.choice(QUEUES)
        options = {"worker": self.dice.choice(("w1", "w2")), "queues": (queue,)}
        claims: list[ClaimResult] = []
        answers: list[list[bool]] = []
        for which, subject in enumerate(self.subjects):
            settlements = [subject.told(pair[which], seen, **more) for pair, seen, more in told]
            applied, claimed = subject.store.settle_and_claim(settlements, ask(slots, **options))
            answers.append(applied)
            claims.append(claimed)
        same(*answers)
        same(*([_seen(job) for job in claimed.jobs] for claimed in claims))
        same(*((claimed.more, claimed.outdated) for claimed in claims))
        self.held += zip(*(claimed.jobs for claimed in claims), strict=True)
        del self.held[:-MOST_HELD]

    def renew(self) -> None:
        """A worker still needs some jobs."""
        if self.held:
            pairs = self.dice.sample(self.held, min(len(self.held), 2))
            is_charged = self.dice.random() < 0.5

            def call(s: JobStoreSubject) -> list[bool]:
                which = self.subjects.index(s)
                holds = [hold(pair[which], is_charged=is_charged) for pair in pairs]
                return s.store.renew(holds, LEASE)

            self.both(call)

    def rescue(self) -> None:
        """Somebody looks for workers that died."""

        def call(s: JobStoreSubject) -> list[tuple[str, bool]]:
            found = s.store.expired_leases(1000)
            jobs = sorted(found, key=lambda job: (job.lease_expires_at, job.id))
            same([job.lease_expires_at for job in jobs], [job.lease_expires_at for job in found])
            told = [s.told(job, LeaseExpired(), if_expired=True, keep=5.0) for job in jobs[:10]]
            applied = s.store.settle_and_claim(told, None)[0]
            return list(zip((job.id for job in jobs[:10]), applied, strict=True))

        self.both(call)

    def tell(self) -> None:
        """A worker tells that it lives, or leaves."""
        state = self.dice.choice(("running", "running", "gone"))
        record = WorkerRecord(
            id=self.dice.choice(("w1", "w2")),
            host="here",
            pid=1,
            version="1",
            started_at=1.0,
            state=state,
            executors={"python": {"idle": 1}},
            counters={"done": self.made},
        )
        self.both(lambda s: s.store.heartbeat(record))

    # ---- operators, cron and time ---------------------------------------------------------------

    def operate(self) -> None:
        """Cancel, run or requeue a job."""
        seen = self.dice.choice((CancelRequested(), RunRequested(), RequeueRequested()))
        job_id = self.some_id()
        self.both(lambda s: (job := s.store.find(job_id)) and s.settle(job, seen, keep=7.0))

    def change(self) -> None:
        """Pause a queue, limit it, or let it go."""
        changes, name = self.dice.choice(CHANGES), self.dice.choice(QUEUES)
        self.both(lambda s: s.store.set_queue(name, **changes).name)

    def sweep(self) -> None:
        """What a worker does now and then."""
        self.both(lambda s: s.store.prune(1000))

    def purge(self) -> None:
        """Delete a job, if it has ended."""
        job_id = self.some_id()
        self.both(lambda s: (job := s.store.find(job_id)) and s.store.purge([job]))

    def cron(self) -> None:
        """Define, drop or fire a schedule."""
        name, what = self.dice.choice("ab"), self.dice.random()
        at = self.clock() + self.dice.randint(0, 2)
        if what < 0.4:
            schedule = Schedule(
                name=name, cron="* * * * *", zone="UTC", misfire="skip", job=b"{}", next_at=at
            )
            self.both(lambda s: s.store.put_schedule(schedule))
        elif what < 0.5:
            self.both(lambda s: s.store.drop_schedule(name))
        else:
            job = self._new()
            is_late = self.dice.random() < 0.2
            kept = {each.name: each.next_at for each in self.subjects[0].store.schedules()}
            expected = (kept.get(name) or at) + is_late
            self.both(lambda s: s.store.fire(name, expected, at + 1, [job]))

    def wait(self) -> None:
        """Time passes."""
        self.clock.forward(self.dice.choice((0.0, 1.0, 3.0, 10.0, 20.0)))

    def reopen(self) -> None:
        """The other store goes on with what a new process would find."""
        self.subjects[1].store.close()
        self.subjects[1].store = self._open(self.clock)
        self._wakes_at_once = not self._forgets_keys

    def move(self) -> None:
        """Everything is copied into a memory store and back; a worker that held a job is gone."""
        for subject in self.subjects:
            records = records_of(subject.store)
            with closing(MemoryJobStore(self.clock)) as between:
                _copy(records, records_of(between))
                for kind in reversed(JOB_KINDS):
                    records.discard(list(all_records(records, kind)))
                _copy(records_of(between), records)
        self.held.clear()

    def some_id(self) -> str:
        """The id of a job that may be there; now and then of a step."""
        if self.flow_acts is not None and self.flow_acts.steps and self.dice.random() < 0.3:
            return self.dice.choice(self.flow_acts.steps[-40:])
        return f"j{self.dice.randint(0, self.made)}"


def _copy(store: RecordStore, other: RecordStore) -> None:
    for kind in JOB_KINDS:
        other.load(list(all_records(store, kind)))


def _answer(call: Callable[[JobStoreSubject], Any], subject: JobStoreSubject) -> Any:
    try:
        return call(subject)
    except (DuplicateJobError, *REFUSALS) as error:
        return type(error)


def _seen(job: Job | ClaimedJob) -> Mapping[str, Any]:
    """Everything but the handles, which belong to each store, and how it words its history."""
    fields = msgspec.structs.asdict(job)
    for handle in ("key", "fence", "is_limited", "flow_id", "feeds"):  # the last two are hints
        fields.pop(handle, None)
    fields["uses"] = json.loads(json.dumps(fields["uses"]))  # lists or tuples
    step = fields.get("step")
    if step is not None:
        fields["step"] = msgspec.structs.replace(step, wait=step.wait or None)

    history = [json.loads(entry) for entry in fields.pop("history", ())]
    return fields | {"history": history}
