"""A store that hangs and then answers: the renewals of others hung as well, and come first."""

from __future__ import annotations

from typing import Any

import pytest

from ergon_framework.connector.jobs.claims import HeldClaims
from ergon_framework.core.claim import ClaimRequest
from ergon_framework.core.job import JobStatus
from ergon_framework.errors import (
    StoreBrokenError,
    StoreError,
    StoreReadOnlyError,
    StoreUnavailableError,
)
from ergon_framework.jobs.maintenance import PRUNE_INTERVAL, Maintenance
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.jobs.settlement import Settler
from ergon_framework.jobs.store_thread import StoreThread
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.ports.jobstore import LeaseRenewal, WorkerRecord
from tests.jobs.real_worker import get, job

pytestmark = pytest.mark.req("X13", "SCALE:fleet-outage")

LEASE = 15.0
HANGS = 60.0


class Clock:
    """The time, for the store and for those who ask it."""

    def __init__(self) -> None:
        self.seconds = 1_000_000.0

    def now(self) -> float:
        """What it says."""
        return self.seconds


class Hanging(MemoryJobStore):
    """Takes a minute for one call, when told to."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock.now)
        self.time = clock
        self.hangs_in = ""
        self.refused: dict[str, StoreError] = {}

    def _hang(self, call: str) -> None:
        if call == self.hangs_in:
            self.hangs_in = ""
            self.time.seconds += HANGS

    def settle_and_claim(self, settlements: Any, ask: Any) -> Any:
        self._hang("settle_and_claim")
        self._refuse("settle_and_claim")
        return super().settle_and_claim(settlements, ask)

    def renew(self, holds: Any, lease: float) -> Any:
        self._hang("renew")
        return super().renew(holds, lease)

    def heartbeat(self, record: Any) -> None:
        self._hang("heartbeat")
        self._refuse("heartbeat")
        super().heartbeat(record)

    def prune(self, limit: int, *, purges: bool = True) -> Any:
        self._refuse("prune")
        return super().prune(limit, purges=purges)

    def _refuse(self, call: str) -> None:
        if call in self.refused:
            raise self.refused[call]

    def expired_leases(self, limit: int) -> Any:
        self._hang("expired_leases")
        return super().expired_leases(limit)


class RescueCase:
    """A job that another worker holds, and a worker that may rescue it."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.store = Hanging(clock)
        self.settings = JobsSettings(lease=LEASE)
        self.told: list[str] = []
        self.store.add([job("echo")])
        ask = ClaimRequest(worker="other", lease=LEASE, slots={"python": 1}, default="python")
        _, claimed = self.store.settle_and_claim([], ask)
        held = claimed.jobs[0]
        self.hold = LeaseRenewal(held.key, held.id, held.fence, is_charged=False)
        self.maintenance = Maintenance(
            self.store,
            self.settings,
            Settler(self.settings, "me"),
            self._record,
            lambda _id, _fence: False,
            lambda _name, _fields: None,
            now=clock.now,
        )
        self.maintenance.run(clock.now())

    def _record(self) -> WorkerRecord:
        now = self.clock.now()
        return WorkerRecord(id="me", host="here", pid=1, version="1", started_at=now, seen_at=now)

    def store_thread(self) -> StoreThread:
        """The thread's work of the worker that may rescue it, with room for one job."""
        ask = ClaimRequest(worker="me", lease=LEASE, slots={"python": 1}, default="python")
        store_thread = StoreThread(
            self.store,
            self.settings,
            lambda _slots, is_thorough: ask,
            lambda _claims: None,
            lambda _settlements: None,
            lambda name, _fields: self.told.append(name),
            now=self.clock.now,
        )
        store_thread.maintenance = self.maintenance
        return store_thread

    def pass_time(self, seconds: float) -> None:
        """Let the worker do its chores after a while."""
        self.clock.seconds += seconds
        self.maintenance.run(self.clock.now())

    def renew(self) -> list[bool]:
        """The other worker is heard."""
        return list(self.store.renew([self.hold], LEASE))

    def is_rescued(self) -> bool:
        """Whether the job was taken from the other worker."""
        return get(self.store, "echo").status is not JobStatus.ACTIVE


@pytest.fixture
def case() -> RescueCase:
    """With a clock that only the test moves."""
    return RescueCase(Clock())


@pytest.mark.parametrize("call", ["expired_leases", "heartbeat"])
def test_who_hung_with_the_others_takes_nothing_from_them(case: RescueCase, call: str) -> None:
    """The lease ended while the store hung; its holder, who lives, is heard first."""
    case.store.hangs_in = call
    case.pass_time(LEASE / 3 + 0.1)
    assert not case.store.hangs_in
    case.pass_time(LEASE / 5)
    assert not case.is_rescued()
    assert case.renew() == [True]
    case.pass_time(LEASE / 2)
    assert not case.is_rescued()


def test_who_died_meanwhile_is_made_up_for(case: RescueCase) -> None:
    """Half a lease later, when everybody who lives has renewed."""
    case.store.hangs_in = "expired_leases"
    case.pass_time(LEASE / 3 + 0.1)
    case.pass_time(LEASE / 2 + 0.1)
    assert case.is_rescued()


@pytest.mark.parametrize("call", ["settle_and_claim", "renew"])
def test_a_hang_in_another_call_counts_as_well(case: RescueCase, call: str) -> None:
    """Whatever the store thread asked when the store hung, what comes next is no rescue."""
    store, clock = case.store, case.clock
    store_thread = case.store_thread()
    store_thread.offer("python", 1)
    store.add([job("echo", id="mine")])
    if call == "renew":
        store_thread.run_once()  # claims it
        store_thread.run_once()
    clock.seconds += LEASE / 3 + 0.1
    store.hangs_in = call
    store_thread.run_once()
    assert not store.hangs_in
    store_thread.run_once()
    assert not case.is_rescued()
    assert case.renew() == [True]


def test_a_connector_rescues_nothing_right_after_an_outage(case: RescueCase) -> None:
    """The others could not renew either while the store was away."""
    serves = ("default", "python")
    settler = Settler(case.settings, "me")
    now = case.clock.now
    holding = HeldClaims(case.store, case.settings, settler, "me", serves, lambda *_: None, now=now)
    case.clock.seconds += HANGS
    case.store.refused = {"heartbeat": StoreUnavailableError("away")}
    holding.run_once()
    case.store.refused = {}
    holding.run_once()
    assert not case.is_rescued()
    case.clock.seconds += LEASE + 0.1
    case.store.refused = {"heartbeat": StoreError("no room")}  # one that answers is not away
    holding.run_once()
    case.store.refused = {}
    holding.run_once()
    assert case.is_rescued()


def test_a_chore_that_the_store_refuses_is_told_in_a_line(
    case: RescueCase, caplog: pytest.LogCaptureFixture
) -> None:
    """What the store says is enough; only what nobody expects comes with a traceback."""
    case.store.refused = {"prune": StoreUnavailableError("prune takes too long")}
    case.maintenance.run_soon()
    case.maintenance.run(case.clock.now())
    [record] = [each for each in caplog.records if "a chore failed" in each.getMessage()]
    assert record.getMessage().endswith("prune: prune takes too long")
    assert record.exc_info is None


@pytest.mark.parametrize(
    ("refused", "rescues"), [(("prune",), True), (("prune", "heartbeat"), False)]
)
def test_one_chore_that_always_fails_is_no_outage(
    case: RescueCase, refused: tuple[str, ...], rescues: bool
) -> None:
    """Others are rescued while it is in trouble; when the store takes nothing, they are not."""
    store_thread = case.store_thread()
    case.store.refused = dict.fromkeys(refused, StoreUnavailableError("it takes too long"))
    case.maintenance.restart_all()
    for _ in range(20):
        case.clock.seconds += LEASE / 10
        store_thread.run_once()
    assert case.is_rescued() is rescues


def test_a_chore_that_fails_slowly_leaves_time_for_a_rescue(
    case: RescueCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its failures looks like a hang, after which nothing is rescued for a while."""

    def prune(_limit: int) -> Any:
        case.clock.seconds += LEASE * 2 / 3
        raise StoreUnavailableError("canceled: it waited for a lock")

    monkeypatch.setattr(case.store, "prune", prune)
    case.maintenance.restart_all()
    store_thread = case.store_thread()
    until = case.clock.seconds + 10 * LEASE
    while not case.is_rescued() and case.clock.seconds < until:
        case.clock.seconds += 0.5
        store_thread.run_once()
    assert case.is_rescued()


def test_a_rescue_that_failed_waits_for_those_who_live(
    case: RescueCase, caplog: pytest.LogCaptureFixture
) -> None:
    """Jobs cannot be written, though other things can: their holders could not renew either."""
    store_thread = case.store_thread()
    case.clock.seconds += 2 * LEASE
    case.store.refused = {"settle_and_claim": StoreUnavailableError("no room")}
    store_thread.run_once()
    assert caplog.messages[-1] == "the store does not answer, and is asked again: no room"
    case.store.refused = {}
    case.clock.seconds += LEASE / 2
    store_thread.run_once()
    assert not case.is_rescued()
    assert case.renew() == [True]


@pytest.mark.parametrize(
    ("kind", "told", "goes_on"),
    [(StoreBrokenError, "store.broken", False), (StoreReadOnlyError, "store.lost", True)],
)
def test_what_concerns_everybody_is_told_at_once(
    case: RescueCase, kind: type[StoreError], told: str, *, goes_on: bool
) -> None:
    """Whatever chore finds out that the disk failed, or that all was moved to another store."""
    case.store.refused = {"prune": kind("nobody writes here any more")}
    case.clock.seconds += PRUNE_INTERVAL + 1.0
    assert case.store_thread().run_once() is goes_on
    assert case.told == [told]


def test_a_worker_that_gets_jobs_all_the_time_renews_its_leases(case: RescueCase) -> None:
    """However busy it is, what it holds for long must not look lost."""
    store, clock = case.store, case.clock
    store_thread = case.store_thread()
    for n in range(60):
        store.add([job("echo", id=f"mine-{n}")])
        store_thread.offer("python", 1)
        clock.seconds += LEASE / 20
        store_thread.run_once()
        assert get(store, f"mine-{n}").status is JobStatus.ACTIVE
        case.renew()
        assert not store.expired_leases(1)


def test_an_outage_tells_each_reason_once(
    case: RescueCase, caplog: pytest.LogCaptureFixture
) -> None:
    """The first is often a symptom; that the password is wrong comes with the next attempt."""
    store_thread = case.store_thread()
    store_thread.probe()
    for reason in ("hung up", "wrong password", "wrong password", "hung up"):
        case.store.refused = {"settle_and_claim": StoreUnavailableError(reason)}
        store_thread.run_once()
    told = [record.getMessage().rpartition(": ")[2] for record in caplog.records]
    assert told == ["hung up", "wrong password"]
    assert store_thread.counters["outages"] == 1


def test_connections_that_drop_now_and_then_put_off_no_rescue(case: RescueCase) -> None:
    """Each is replaced at once: nobody's lease has ended by that."""
    store_thread = case.store_thread()
    until = case.clock.seconds + LEASE + 4.0
    while not case.is_rescued() and case.clock.seconds < until:
        case.clock.seconds += 1.0
        store_thread.probe()
        case.store.refused = {"settle_and_claim": StoreUnavailableError("connection lost")}
        store_thread.run_once()
        case.store.refused = {}
        case.clock.seconds += 0.1
        store_thread.run_once()
    assert case.is_rescued()
    assert store_thread.counters["outages"] > LEASE / 2


def test_an_outage_of_many_short_failures_puts_off_a_rescue(case: RescueCase) -> None:
    """It is as long as all of them together, and others could not renew either."""
    store_thread = case.store_thread()
    store_thread.probe()
    case.store.refused = {"settle_and_claim": StoreUnavailableError("away")}
    while case.clock.seconds < 1_000_000.0 + LEASE + 4.0:
        store_thread.run_once()
        case.clock.seconds += 1.0
    case.store.refused = {}
    store_thread.run_once()
    assert not case.is_rescued()
