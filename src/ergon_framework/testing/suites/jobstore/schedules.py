"""Checks of schedules: kept whole, and fired once."""

from __future__ import annotations

from functools import partial

from ergon_framework.core.job import JobStatus
from ergon_framework.core.unique import OnDuplicate
from ergon_framework.ports.jobstore import Schedule, Search
from ergon_framework.testing.suites.drivers import START
from ergon_framework.testing.suites.framework import Check, expect, register
from ergon_framework.testing.suites.jobstore.under_test import JobStoreSubject, new, same

CHECKS: list[Check[JobStoreSubject]] = []
check = register(CHECKS)


def schedule(name: str, **fields: object) -> Schedule:
    """A schedule that is due a minute after the start."""
    wanted: dict[str, object] = {
        "name": name,
        "cron": "*/5 * * * *",
        "zone": "Europe/Berlin",
        "misfire": "once",
        "job": b'{"handler":"w\xc3\xb6rk"}',
        "next_at": START + 60.0,
    }
    return Schedule(**(wanted | fields))  # type: ignore[arg-type]


@check()
def schedules_are_kept(s: JobStoreSubject) -> None:
    """Schedules are listed by name, as they were put."""
    second = schedule(
        "b", is_paused=True, source="file", last_at=START, next_at=None, jitter=2.5, ends_at=START
    )
    s.store.put_schedule(second)
    s.store.put_schedule(schedule("a"))
    same(s.store.schedules(), [schedule("a"), second], "schedules")


@check()
def next_schedules_are_the_earliest(s: JobStoreSubject) -> None:
    """Those that fire next come first; what is paused or has no further fire does not come."""
    for n, name in enumerate(("d", "b", "c", "a")):
        s.store.put_schedule(schedule(name, next_at=START + 60.0 * (n + 1)))
    s.store.put_schedule(schedule("paused", is_paused=True, next_at=START))
    s.store.put_schedule(schedule("over", next_at=None))
    same([each.name for each in s.store.next_schedules(9)], ["d", "b", "c", "a"], "all of them")
    same([each.name for each in s.store.next_schedules(2)], ["d", "b"], "two of them")
    s.store.fire("d", START + 60.0, START + 200.0, [])
    same([each.name for each in s.store.next_schedules(9)], ["b", "c", "d", "a"], "after a fire")
    same(
        s.store.next_schedules(9)[2],
        schedule("d", next_at=START + 200.0, last_at=START + 60.0),
        "it",
    )


@check()
def schedule_is_replaced_whole(s: JobStoreSubject) -> None:
    """A schedule that is put again keeps nothing of the old definition."""
    old = schedule("a", is_paused=True, source="file", last_at=START, jitter=1.0, ends_at=START)
    s.store.put_schedule(old)
    s.store.put_schedule(schedule("a", cron="0 1 * * *"))
    same(s.store.schedules(), [schedule("a", cron="0 1 * * *")], "schedules")


@check()
def dropped_schedule_is_gone(s: JobStoreSubject) -> None:
    """A schedule can be dropped once, and does not fire afterwards."""
    s.store.put_schedule(schedule("a"))
    same([s.store.drop_schedule("a"), s.store.drop_schedule("a")], [True, False], "dropped")
    same(s.store.schedules(), [], "schedules")
    same(s.store.fire("a", START + 60.0, None, [new("x")]), False, "fired")
    same(s.store.find("x"), None, "its job")


@check()
def schedule_fires_once(s: JobStoreSubject) -> None:
    """A fire adds its jobs and moves the schedule on; the same fire again does nothing."""
    s.store.put_schedule(schedule("a", jitter=1.5, ends_at=START + 999.0))
    same(s.store.fire("a", START + 60.0, START + 360.0, [new("x"), new("y")]), True, "first")
    same(s.store.fire("a", START + 60.0, START + 360.0, [new("z")]), False, "second")
    (found,) = s.store.schedules()
    same(found.next_at, START + 360.0, "next_at")
    expect(found.last_at is not None, "it does not know when it last fired")
    same((found.cron, found.job), (schedule("a").cron, schedule("a").job), "the rest")
    same((found.jitter, found.ends_at), (1.5, START + 999.0), "jitter and end")
    same(s.ids(9), ["x", "y"], "delivered")


@check()
def schedule_skips_jobs_that_are_there(s: JobStoreSubject) -> None:
    """A job whose id is there already is skipped, and the others are added."""
    s.put("x", priority=3)
    s.store.put_schedule(schedule("a"))
    same(s.store.fire("a", START + 60.0, None, [new("x"), new("y")]), True, "fired")
    same((s.get("x").priority, s.status("y")), (3, JobStatus.PENDING), "the jobs")
    same(s.store.schedules()[0].next_at, None, "next_at")


@check()
def schedule_goes_on_when_its_key_is_held(s: JobStoreSubject) -> None:
    """A job whose unique key is held does not keep its schedule from moving on."""
    s.put("x", unique_key="k")
    s.store.put_schedule(schedule("a"))
    jobs = [new("y", unique_key="k", on_duplicate=OnDuplicate.REJECT)]
    same(s.store.fire("a", START + 60.0, START + 360.0, jobs), True, "fired")
    same(s.store.schedules()[0].next_at, START + 360.0, "next_at")
    same(s.store.find("y"), None, "the job")


@check()
def schedule_fires_once_among_threads(s: JobStoreSubject) -> None:
    """Of several workers that fire at once, one does."""
    s.store.put_schedule(schedule("a"))

    def fire(n: int) -> bool:
        return s.store.fire("a", START + 60.0, START + 360.0, [new(f"job-{n}")])

    fired = s.together([partial(fire, n) for n in range(6)])
    same(fired.count(True), 1, "how many fired")
    same(s.store.count(Search()), 1, "jobs")
