"""The job store under test, as the checks see it: a clock set by hand, and short words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from ergon_framework.core.claim import ClaimRequest
from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.job import (
    JOB_RETRIES,
    Failed,
    JobEvent,
    JobRule,
    JobSnapshot,
    JobStatus,
    LeaseExpired,
    Released,
    Succeeded,
    next_transition,
)
from ergon_framework.core.retry import Backoff, RetryRule
from ergon_framework.ports.jobstore import (
    ClaimedJob,
    ClaimResult,
    EnqueueResult,
    FullJobStore,
    Job,
    LeaseRenewal,
    NewJob,
    Settlement,
)
from ergon_framework.ports.transfer import find_records
from ergon_framework.testing.suites.drivers import HandClock
from ergon_framework.testing.suites.framework import expect, fail
from ergon_framework.testing.suites.stores import StoreSubject

LEASE = 15.0
DAY = 86_400.0
WAIT = 10.0  # the first backoff of RULE
RULE = JobRule(RetryRule(3, Backoff(WAIT), JOB_RETRIES, asked_replaces=True), 6, 30.0)
FLAKY = Failure(Kind.TRANSIENT, "flaky", "it did not answer")
BAD = Failure(Kind.REJECTED, "bad_input", "it cannot be done")

SUCCEEDED = Succeeded()
FAILS_ONCE = Failed(FLAKY)  # and is tried again
FAILS_FOR_GOOD = Failed(BAD)
RELEASED = Released()


Clock = Callable[[], float]
MakeStore = Callable[[Clock], FullJobStore]
Reopen = Callable[[FullJobStore], FullJobStore]
Spoil = Callable[[FullJobStore, str], Callable[[], None]]
Slots = int | Mapping[str, int]  # of the one executor, or of several


class JobStoreSubject(StoreSubject[FullJobStore]):
    """One fresh, empty store and its clock."""

    def __init__(
        self,
        store: FullJobStore,
        clock: HandClock,
        reopen: Reopen | None,
        patience: float,
        spoil: Spoil | None = None,
    ) -> None:
        super().__init__(store, patience)
        self.clock = clock
        self._reopen = reopen
        self._spoil = spoil
        self._settled = 0

    @property
    def capabilities(self) -> frozenset[str]:
        """What the checks may use beside the ports."""
        found = {
            "reopen": self._reopen is not None,
            "moving": find_records(self.store) is not None,
            "spoil": self._spoil is not None,
            "flows": hasattr(self.store, "flows"),
        }
        return frozenset(name for name, is_there in found.items() if is_there)

    def reopen(self) -> None:
        """Go on with what a new process would find."""
        if self._reopen is not None:
            self.store = self._reopen(self.store)

    def spoil(self, job_id: str) -> Callable[[], None]:
        """Make the row of a job unreadable; answers how to put it right."""
        return (
            fail("rows cannot be spoilt")
            if self._spoil is None
            else self._spoil(self.store, job_id)
        )

    # ---- putting in -----------------------------------------------------------------------------

    def put(self, *ids: str, **fields: Any) -> list[EnqueueResult]:
        """Add a job of each id, all with these fields, in one call."""
        return self.store.add([new(each, **fields) for each in ids])

    def get(self, job_id: str) -> Job:
        """A job that must be there."""
        job = self.store.find(job_id)
        return fail(f"job {job_id!r} is gone") if job is None else job

    def status(self, job_id: str) -> JobStatus:
        """The status of a job that must be there."""
        return self.get(job_id).status

    # ---- taking out -----------------------------------------------------------------------------

    def settle_and_claim(
        self, settlements: Sequence[Settlement] = (), slots: Slots = 1, **changes: Any
    ) -> tuple[list[bool], ClaimResult]:
        """Settle, and claim for one executor unless told otherwise."""
        return self.store.settle_and_claim(settlements, ask(slots, **changes))

    def claim(self, slots: Slots = 1, **changes: Any) -> list[ClaimedJob]:
        """What a worker with so many slots gets."""
        return self.settle_and_claim((), slots, **changes)[1].jobs

    def ids(self, slots: Slots = 1, **changes: Any) -> list[str]:
        """The ids of what a worker with so many slots gets, in order."""
        return ids_of(self.claim(slots, **changes))

    def take(self, job_id: str, **changes: Any) -> ClaimedJob:
        """Claim one job, which must be this one."""
        jobs = self.claim(1, **changes)
        expect(ids_of(jobs) == [job_id], f"{job_id!r} was to be claimed, and {ids_of(jobs)} came")
        return jobs[0]

    # ---- moving ---------------------------------------------------------------------------------

    def told(self, job: ClaimedJob | Job, seen: JobEvent, **changes: Any) -> Settlement:
        """What a worker, a rescuer or an operator makes of what it saw."""
        self._settled += 1
        entry = b'{"event":"seen","n":%d}' % self._settled
        tally = tally_of(job)
        fields: dict[str, Any] = {
            "expected": tally.status,
            "transition": next_transition(tally, seen, RULE),
            "entry": entry,
            # What the claim said of a step, as a worker hands it on.
            "feeds": job.feeds if isinstance(job, ClaimedJob) else None,
        }
        return Settlement(key=job.key, id=job.id, fence=job.fence, **(fields | changes))

    def settle(self, job: ClaimedJob | Job, seen: JobEvent, **changes: Any) -> bool:
        """Tell the store what was seen of one job; whether it was applied."""
        applied, _ = self.store.settle_and_claim([self.told(job, seen, **changes)], None)
        expect(len(applied) == 1, f"one settlement got {len(applied)} answers")
        return applied[0]

    def must(self, job: ClaimedJob | Job, seen: JobEvent, **changes: Any) -> Job:
        """The same, where it has to be applied; the job afterwards."""
        expect(self.settle(job, seen, **changes), f"{type(seen).__name__} was not applied")
        return self.get(job.id)

    def ended(self, job_id: str, seen: JobEvent = SUCCEEDED, **changes: Any) -> Job:
        """Claim this job, which must be the next, and bring it to that end."""
        return self.must(self.take(job_id), seen, **changes)

    def rescue_one(self) -> Job:
        """Let the leases of all claims expire, and rescue one of their jobs."""
        self.clock.forward(LEASE + 1.0)
        lost = self.store.expired_leases(5)[0]
        return self.must(lost, LeaseExpired(), if_expired=True)


def new(job_id: str, **fields: Any) -> NewJob:
    """A job as a client would hand it in."""
    return NewJob(**({"id": job_id, "handler": "work"} | fields))


def ask(slots: Slots = 1, **changes: Any) -> ClaimRequest:
    """What a worker with one executor, ``python``, asks for."""
    fields: dict[str, Any] = {
        "worker": "w1",
        "lease": LEASE,
        "slots": {"python": slots} if isinstance(slots, int) else slots,
        "default": "python",
    }
    return ClaimRequest(**(fields | changes))


def hold(job: ClaimedJob, *, is_charged: bool = False) -> LeaseRenewal:
    """The claim, as its holder names it."""
    return LeaseRenewal(job.key, job.id, job.fence, is_charged)


def tally_of(job: ClaimedJob | Job) -> JobSnapshot:
    """What the machine needs to know of a job."""
    if isinstance(job, ClaimedJob):
        return JobSnapshot(JobStatus.ACTIVE, job.attempts, job.deliveries, job.excused)
    attempts = job.attempts - job.is_charged
    is_cancelling = job.cancel_request is not None
    numbers = attempts, job.deliveries, job.excused
    return JobSnapshot(job.status, *numbers, job.is_charged, is_cancelling=is_cancelling)


def ids_of(jobs: Iterable[ClaimedJob | Job]) -> list[str]:
    """Their ids, in order."""
    return [job.id for job in jobs]


def same(found: object, wanted: object, what: str) -> None:
    """Fail the check unless both are equal."""
    if found != wanted:
        fail(f"{what}: {_difference(found, wanted)}")


def _difference(found: object, wanted: object) -> str:
    if isinstance(found, Job) and isinstance(wanted, Job):
        was, now = msgspec.structs.asdict(wanted), msgspec.structs.asdict(found)
        fields = [name for name in was if was[name] != now[name]]
        return "; ".join(f"{name} was {was[name]!r:.100}, is {now[name]!r:.100}" for name in fields)
    return f"expected {wanted!r:.200}, found {found!r:.200}"
