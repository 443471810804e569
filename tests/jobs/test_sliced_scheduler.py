"""Schedules by the thousand: writing and firing them leaves time for everything else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

from ergon_framework.app.jobs import JobSetup
from ergon_framework.core.claim import ClaimRequest
from ergon_framework.core.job import JobStatus
from ergon_framework.errors import StoreUnavailableError
from ergon_framework.jobs.maintenance import Maintenance
from ergon_framework.jobs.scheduler import Scheduler, ScheduleSettings, Slice, schedule_of
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.jobs.settlement import Settler
from ergon_framework.jobs.store_thread import StoreThread
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.jobs.worker import BurstEnd, WorkerTiming
from ergon_framework.ports.jobstore import Queue, Schedule, Search, WorkerRecord
from tests.jobs.real_worker import get, job, wait_until, worker

pytestmark = pytest.mark.req("X13", "JOBS:cron")

LEASE = 15.0
STEP = LEASE / 20
"""Seconds that one write of a schedule takes: all of them take several leases."""
COUNT = 60
HOURLY = ScheduleSettings(every=3600, handler="echo")
MANY = {f"s{n:02}": HOURLY for n in range(COUNT)}
NO_QUEUES: dict[str, Any] = {}
QUEUES = {f"q{n:02}": {"max_active": 3} for n in range(COUNT)}


class Clock:
    """The time, for the store and for those who ask it."""

    def __init__(self) -> None:
        self.seconds = 1_000_000.0

    def now(self) -> float:
        """What it says."""
        return self.seconds


class Slow(MemoryJobStore):
    """Takes a while for each schedule; ``between`` happens then."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock.now)
        self.time = clock
        self.between: Callable[[], object] = lambda: None
        self.fired: list[str] = []
        self.is_away = False

    def settle_and_claim(self, settlements: Any, ask: Any) -> Any:
        if self.is_away:
            raise StoreUnavailableError("the connection was lost")
        return super().settle_and_claim(settlements, ask)

    def _pass_time(self) -> None:
        self.time.seconds += STEP
        self.between()

    def put_schedule(self, schedule: Schedule) -> None:
        self._pass_time()
        super().put_schedule(schedule)

    def set_queue(self, name: str, **changes: Any) -> Queue:
        self._pass_time()
        return super().set_queue(name, **changes)

    def drop_schedule(self, name: str) -> bool:
        self._pass_time()
        return super().drop_schedule(name)

    def fire(self, name: str, *rest: Any) -> bool:
        self._pass_time()
        is_ours = super().fire(name, *rest)
        self.fired.append(name)
        return is_ours

    def names(self) -> list[str]:
        """Of the schedules that it holds."""
        return [schedule.name for schedule in self.schedules()]

    def limited(self) -> list[str]:
        """The queues that it knows a limit of."""
        return [queue.name for queue in self.queues() if queue.max_active]

    def lose_everything(self) -> None:
        """As a server without a disk does when it restarts."""
        self.lose_schedules()
        self.lose_workers()

    def lose_schedules(self) -> None:
        """All of them, in no time."""
        for name in self.names():
            super().drop_schedule(name)

    def lose_workers(self) -> None:
        """The records of all of them."""
        for record in self.workers():
            self.heartbeat(msgspec.structs.replace(record, state="gone"))


class ManualStoreThread:
    """What a worker's thread does, by hand, with a job in its hands."""

    def __init__(
        self, clock: Clock, schedules: Mapping[str, ScheduleSettings], queues: Mapping[str, Any]
    ) -> None:
        self.clock = clock
        self.began = clock.now()
        self.store = Slow(clock)
        self.told: list[str] = []
        settings = JobsSettings.model_validate({"lease": LEASE, "queues": queues})
        self.setup = JobSetup("", settings)
        ask = ClaimRequest(
            worker="me", lease=settings.claimed_for, slots={"python": 1}, default="python"
        )
        self.store_thread = StoreThread(
            self.store,
            settings,
            lambda _slots, is_thorough: ask,
            lambda _claims: None,
            lambda _settlements: None,
            lambda name, _fields: self.told.append(name),
            now=clock.now,
        )
        self.store_thread.offset = self.store.now() - clock.now()
        self.maintenance = self.store_thread.maintenance = Maintenance(
            self.store,
            settings,
            Settler(settings, "me"),
            self._record,
            self.store_thread.leases.holds,
            lambda name, _fields: self.told.append(name),
            Scheduler(self.store, schedules),
            lambda: self.setup.limit_again(self.store),
            now=clock.now,
        )
        self.store.add([job("echo")])
        self.store_thread.offer("python", 1)

    def _record(self) -> WorkerRecord:
        now = self.clock.now()
        since = self.began
        return WorkerRecord(id="me", host="here", pid=1, version="1", started_at=since, seen_at=now)

    def turn(self) -> bool:
        """One turn of the thread; whether it is to go on at once."""
        self.store_thread.run_once()
        return self.maintenance.is_under_way

    def pass_outage(self, seconds: float = 0.0) -> None:
        """Let the store be away for so long, which the thread notices twice."""
        self.store.is_away = True
        self.store_thread.probe()  # so that there is something to ask
        self.turn()
        self.clock.seconds += seconds
        self.turn()
        self.store.is_away = False

    def finish(self) -> int:
        """Turns until nothing is under way."""
        turns = 1
        while self.turn():
            turns += 1
        return turns

    def is_lost(self) -> bool:
        """Whether another worker may take the job that is held."""
        assert get(self.store, "echo").status is JobStatus.ACTIVE
        return bool(self.store.expired_leases(1))


Make = Callable[..., ManualStoreThread]


@pytest.fixture
def case() -> Make:
    """Makes one with a clock that only the store and the test move."""
    clock = Clock()
    return lambda schedules=MANY, queues=NO_QUEUES: ManualStoreThread(clock, schedules, queues)


def test_leases_are_renewed_while_schedules_are_written(case: Make) -> None:
    """However many there are, no running job looks lost, and nothing counts as a hang."""
    subject = case()
    store, losses = subject.store, []
    store.between = lambda: losses.append(subject.is_lost())
    began = subject.clock.seconds
    assert subject.finish() > 5
    assert subject.clock.seconds - began > 2 * LEASE
    assert store.names() == [*MANY]
    assert len(losses) == COUNT
    assert not any(losses)


def test_leases_are_renewed_while_schedules_fire(case: Make) -> None:
    """All of them at the same instant; each fires once, and the worker comes back in time."""
    subject = case()
    store, losses = subject.store, []
    subject.finish()
    subject.clock.seconds += 3600.0
    subject.store_thread.leases.renew_soon()
    subject.store_thread.leases.renew_due(subject.clock.seconds)
    store.between = lambda: losses.append(subject.is_lost())
    assert subject.finish() > 5
    assert store.fired == [*MANY]
    assert not any(losses)
    jobs = [each.id for each in store.search(Search()) if "@" in each.id]
    assert len(jobs) == COUNT


def test_leases_are_renewed_while_schedules_are_dropped(case: Make) -> None:
    """An application that had thousands, and has none any more."""
    subject = case({})
    store, losses = subject.store, []
    Scheduler(store, MANY).sync()
    store.between = lambda: losses.append(subject.is_lost())
    assert subject.finish() > 5
    assert store.names() == []
    assert len(losses) == COUNT
    assert not any(losses)


def test_a_stop_between_two_pieces_is_heard(case: Make) -> None:
    """Nothing more is written; the next worker does the rest."""
    subject = case()
    assert subject.turn()
    written = len(subject.store.names())
    assert 0 < written < COUNT
    subject.maintenance.stop()
    subject.turn()
    assert len(subject.store.names()) == written
    assert len(Scheduler(subject.store, MANY).sync().added) == COUNT - written


def test_nothing_fires_before_all_is_written(case: Make) -> None:
    """What the store holds may be of earlier settings, or gone from these."""
    subject = case()
    states: list[tuple[bool, bool]] = []
    Scheduler(subject.store, {"gone": HOURLY, "s59": HOURLY}).sync()
    subject.clock.seconds += 3600.0
    subject.store.between = lambda: states.append(
        (subject.store.names() == [*MANY], bool(subject.store.fired))
    )
    subject.finish()
    assert subject.store.fired == ["s59"]
    assert (False, True) not in states


def test_what_waits_longest_fires_first(case: Make) -> None:
    """Else those that fire all the time would keep the others from firing at all."""
    often = {f"a{n}": ScheduleSettings(every=1, handler="echo") for n in range(9)}
    subject = case({**often, "z": ScheduleSettings(every=60, handler="echo")})
    while "z" not in subject.store.names():
        subject.turn()
    subject.clock.seconds += 60.0
    for _ in range(30):
        subject.turn()
    assert "z" in subject.store.fired


def test_what_others_do_meanwhile_stays(case: Make) -> None:
    """An operator pauses one, and another worker fires one, between two pieces."""
    subject = case({name: changed(HOURLY, priority=1) for name in MANY})
    store = subject.store
    Scheduler(store, MANY).sync()
    at = next(each.next_at for each in store.schedules() if each.name == "s59")
    assert at is not None
    assert subject.turn()
    paused = next(each for each in store.schedules() if each.name == "s58")
    MemoryJobStore.put_schedule(store, msgspec.structs.replace(paused, is_paused=True))
    assert MemoryJobStore.fire(store, "s59", at, at + 3600.0, [])
    subject.finish()
    found = {each.name: each for each in store.schedules()}
    assert found["s58"].is_paused
    assert found["s59"].next_at == at + 3600.0
    assert found["s59"].job == found["s00"].job  # and the rest of it is as the settings say


def test_two_with_other_settings_come_to_an_end(case: Make) -> None:
    """They write the same names piece by piece, in turns; the last has its way."""
    store = case().store

    def scheduler(priority: int) -> Scheduler:
        return Scheduler(store, {name: changed(HOURLY, priority=priority) for name in MANY})

    def is_whole(subject: Scheduler) -> bool:
        piece = Slice(store.now, 0.0)
        subject.sync(goes_on=piece)
        return not piece.is_cut

    writing = [scheduler(1), scheduler(2)]
    for _ in range(COUNT):
        writing = [each for each in writing if not is_whole(each)]
    assert writing == []
    wanted = schedule_of("s00", changed(HOURLY, priority=2)).job
    assert {each.job for each in store.schedules()} == {wanted}


def test_an_emptied_store_is_told_of_once_and_wholly(
    case: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """When everything is written again, however many pieces that took."""
    subject = case()
    subject.finish()
    subject.store.lose_everything()
    subject.clock.seconds += LEASE / 3
    assert subject.turn()
    assert "store.emptied" not in subject.told
    subject.finish()
    assert subject.told == ["store.emptied"]
    assert f"were written again: {', '.join(MANY)}" in caplog.text
    subject.clock.seconds += LEASE
    subject.finish()
    assert subject.told == ["store.emptied"]


@pytest.mark.parametrize("is_emptied", [False, True])
def test_only_what_was_written_is_lost(
    case: Make, caplog: pytest.LogCaptureFixture, is_emptied: bool
) -> None:
    """The worker's record is gone while it writes for the first time: by a namesake, or not."""
    subject = case()
    subject.turn()
    written = subject.store.names()
    if is_emptied:
        subject.store.lose_everything()
    else:
        subject.store.lose_workers()
    subject.clock.seconds += LEASE / 3
    subject.finish()
    assert subject.store.names() == [*MANY]
    assert subject.told == (["store.emptied"] if is_emptied else [])
    assert (f"were written again: {', '.join(written)}" in caplog.text) is is_emptied


def test_what_fails_is_tried_again_and_waited_for_by_nobody(
    case: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A burst may leave; a worker that stays goes on where it failed."""
    subject = case()
    assert subject.turn()

    def put(_schedule: Schedule) -> None:
        raise StoreUnavailableError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(subject.store, "put_schedule", put)
        assert not subject.turn()
    subject.clock.seconds += 1.0
    assert subject.turn()
    subject.finish()
    assert subject.store.names() == [*MANY]


@pytest.mark.slow
def test_a_burst_waits_until_all_have_fired(monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes the schedules and runs what is due by them, however many pieces that takes."""
    looks = 0
    is_over = BurstEnd.is_over

    def look(burst: BurstEnd, now: float) -> bool:
        nonlocal looks
        looks += 1
        return is_over(burst, now)

    class Looked(MemoryJobStore):
        """Lets the burst ask a few times whether it is over before each schedule is written."""

        def put_schedule(self, schedule: Schedule) -> None:
            until = looks + 3
            wait_until(lambda: looks >= until)
            super().put_schedule(schedule)

    monkeypatch.setattr(BurstEnd, "is_over", look)
    store = Looked()
    some = {name: MANY[name] for name in [*MANY][:20]}
    due = {name: MANY[name] for name in ("s05", "s10", "s11")}
    with monkeypatch.context() as patch:
        patch.setattr(Looked, "put_schedule", MemoryJobStore.put_schedule)
        Scheduler(store, due).sync(now=store.now() - 7200.0)
    timing = WorkerTiming(scheduler_slice=0.0)
    subject = worker(store, schedules=Scheduler(store, some), burst=True, timing=timing)
    report = subject.run()
    assert report.completed == len(due)
    assert [schedule.name for schedule in store.schedules()] == [*some]


def changed(settings: ScheduleSettings, **changes: Any) -> ScheduleSettings:
    """The same schedule with something else in it."""
    return settings.model_copy(update=changes)


@pytest.mark.req("SCALE:fleet-outage", "SCALE:fleet-versions")
def test_after_an_outage_the_schedules_of_whoever_started_last_stay(case: Make) -> None:
    """An older worker that lost its connection does not bring its own back."""
    old = case({"report": HOURLY, "removed": HOURLY})
    old.finish()
    half_hourly = ScheduleSettings(every=1800, handler="echo")
    newer = Scheduler(old.store, {"report": half_hourly, "added": HOURLY})
    newer.sync()
    now = old.store.now()
    record = WorkerRecord(id="newer", host="there", pid=2, version="2", started_at=now, seen_at=now)
    old.store.heartbeat(record)
    before = list(old.store.schedules())
    old.pass_outage(LEASE)
    old.finish()
    assert list(old.store.schedules()) == before
    assert [each.name for each in before] == ["added", "report"]


@pytest.mark.req("SCALE:fleet-outage")
def test_after_an_outage_the_last_to_start_writes_what_was_lost(case: Make) -> None:
    """A store that does not sync may have kept the worker's record, and lost its schedules."""
    subject = case({"report": HOURLY})
    subject.finish()
    subject.store.lose_schedules()
    subject.pass_outage()
    subject.finish()
    assert subject.store.names() == ["report"]


def newcomer(store: Slow, started_at: float, name: str = "newer") -> None:
    """Another worker tells of itself."""
    store.heartbeat(WorkerRecord(id=name, host="there", pid=2, version="2", started_at=started_at))


def newcomer_left(store: Slow, name: str) -> None:
    """The worker of that name, or one of the same name, tells that it is gone."""
    [record] = [each for each in store.workers() if each.id == name]
    store.heartbeat(msgspec.structs.replace(record, state="gone"))


@pytest.mark.req("SCALE:fleet-versions")
@pytest.mark.parametrize("name", ["newer", "me"])
def test_a_namesake_that_leaves_brings_no_schedule_back(case: Make, name: str) -> None:
    """What a newer worker has changed meanwhile stays as it is, also if that was the namesake."""
    old = case({"report": HOURLY, "removed": HOURLY})
    old.finish()
    half_hourly = ScheduleSettings(every=1800, handler="echo")
    Scheduler(old.store, {"report": half_hourly, "added": HOURLY}).sync()
    newcomer(old.store, old.store.now(), name)
    old.clock.seconds += LEASE / 3
    old.finish()
    before = list(old.store.schedules())
    newcomer_left(old.store, "me")
    old.clock.seconds += LEASE / 3
    old.finish()
    assert "me" in [each.id for each in old.store.workers()]
    assert list(old.store.schedules()) == before
    assert [each.name for each in before] == ["added", "report"]


@pytest.mark.req("SCALE:fleet-versions")
def test_a_namesake_that_leaves_finds_the_last_to_start_on_guard(case: Make) -> None:
    """Whoever started last looks whether everything is as its settings say."""
    subject = case({"report": HOURLY})
    subject.finish()
    newcomer(subject.store, subject.began - 60.0)  # it started earlier
    subject.store.lose_schedules()
    newcomer_left(subject.store, "me")
    subject.clock.seconds += LEASE / 3
    subject.finish()
    assert subject.store.names() == ["report"]


def test_an_emptied_store_gets_the_schedules_of_every_application(case: Make) -> None:
    """Those of another, whose worker is newer and was faster, are not ours."""
    subject = case({"report": HOURLY})
    subject.finish()
    subject.store.lose_everything()
    newcomer(subject.store, subject.store.now())
    Scheduler(subject.store, {"other": HOURLY}, source="another application").sync()
    subject.clock.seconds += LEASE / 3
    subject.finish()
    assert subject.store.names() == ["other", "report"]
    assert subject.told == ["store.emptied"]


# ---- limits -------------------------------------------------------------------------------------


def test_leases_are_renewed_while_limits_are_written(
    case: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """By a worker that finds its store emptied; then come schedules, and all is told of once."""
    subject = case({"report": HOURLY}, QUEUES)
    subject.finish()
    store, losses = subject.store, []
    store.lose_everything()
    subject.clock.seconds += LEASE / 3
    subject.store_thread.leases.renew_soon()
    subject.store_thread.leases.renew_due(subject.clock.seconds)
    store.between = lambda: losses.append(subject.is_lost())
    began = subject.clock.seconds
    assert subject.finish() > 5
    assert subject.clock.seconds - began > 2 * LEASE
    assert store.limited() == [*QUEUES]
    assert store.names() == ["report"]
    assert len(losses) == COUNT + 1
    assert not any(losses)
    assert subject.told == ["store.emptied"]
    assert f"were written again: {', '.join([*QUEUES, 'report'])}" in caplog.text


def test_limits_that_could_not_be_written_are_written_later(
    case: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody waits for them meanwhile; those that were written are not lost a second time."""
    subject = case({}, QUEUES)
    subject.finish()
    subject.store.lose_everything()
    subject.clock.seconds += LEASE / 3
    assert subject.turn()
    written = subject.store.limited()
    assert 0 < len(written) < COUNT

    def set_queue(_name: str, **_changes: Any) -> Queue:
        raise StoreUnavailableError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(subject.store, "set_queue", set_queue)
        assert not subject.turn()
    assert subject.store.limited() == written
    subject.clock.seconds += 1.0
    assert subject.turn()
    subject.finish()
    assert subject.store.limited() == [*QUEUES]
    assert subject.told == ["store.emptied"]
    assert f"were written again: {', '.join(QUEUES)}" in caplog.text


def test_a_stop_between_two_limits_is_heard(case: Make) -> None:
    """The next worker writes the rest when it starts."""
    subject = case({}, QUEUES)
    subject.finish()
    subject.store.lose_everything()
    subject.clock.seconds += LEASE / 3
    assert subject.turn()
    written = subject.store.limited()
    subject.maintenance.stop()
    subject.turn()
    assert subject.store.limited() == written
