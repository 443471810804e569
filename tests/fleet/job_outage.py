"""Workers and a producer of jobs whose store is away for a while."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from ergon_framework.core.job import JobStatus
from ergon_framework.errors import DuplicateJobError, StoreError
from tests.campaign.outage_retry import pause
from tests.differential.engines import ServerEngine
from tests.differential.places import open_jobs
from tests.fleet.fleet import Fleet, completions, hold, note, wait_until
from tests.fleet.outages import Doer, away

BUSY, QUIET = ("busy-1", "busy-2"), ("quiet-1", "quiet-2")
"""Workers that are in the middle of something, and workers that only hold a job each."""
BACKLOG = 200
"""Jobs that wait when the store goes away, so that it goes in the middle of something."""
MORE = 20
"""Jobs that are added after it is back."""


def job_outage(
    engine: ServerEngine, folder: Path, seconds: float, how: str, lease: float | None = None
) -> dict[str, Any]:
    """Let it happen to a fleet; what became of its jobs. Without a lease, with the defaults."""
    fleet = Fleet(engine.place(), folder, lease=lease)
    try:
        with closing(open_jobs(fleet.place)) as store:

            def add(number: int) -> bool:
                try:
                    store.add([note(f"added-{number}", 0.01)])
                except DuplicateJobError:
                    return True  # it was added, although nobody told us
                except StoreError:
                    return False
                return True

            held = _manned(fleet)
            with Doer(add) as producer:
                _through(fleet, engine, producer, seconds, how)
                producer.stop()
        fleet.finish()
        ended = sum(not member.is_alive for member in fleet.members)
        told = _judged(fleet, producer, held)
        fleet.leave()
    finally:
        fleet.close()
    return {"away": seconds} | told | {"refused": producer.failed, "restarted": ended}


def _manned(fleet: Fleet) -> list[str]:
    """Start everybody; the jobs that are held."""
    command = [sys.executable, "-m", "ergon_framework.cli", "worker", "--queue", "quiet", "--name"]
    fleet.run({name: [*command, name] for name in QUIET})
    held = [
        *(hold(f"ends-meanwhile-{n}", fleet.folder / "meanwhile", queue="quiet") for n in range(2)),
        *(hold(f"ends-later-{n}", fleet.folder / "later", queue="quiet") for n in range(2)),
    ]
    fleet.add(*held)
    for each in held:
        fleet.holder(each.id)
    fleet.start(*BUSY)
    return [each.id for each in held]


def _through(fleet: Fleet, engine: ServerEngine, producer: Doer, seconds: float, how: str) -> None:
    """Before, without and after the store."""
    fleet.add(*(note(f"short-{n}", 0.05) for n in range(BACKLOG)))
    wait_until(lambda: len(fleet.told("end")) > BACKLOG // 10, "the middle of the work")
    with away(engine, how):
        (fleet.folder / "meanwhile").touch()  # they end while nobody can be told
        pause(seconds)
    before = len(producer.done)
    wait_until(lambda: len(producer.done) >= before + MORE, "jobs after its return")
    (fleet.folder / "later").touch()


def _judged(fleet: Fleet, producer: Doer, held: list[str]) -> dict[str, Any]:
    jobs = {job.id: job for job in fleet.jobs()}
    wanted = {*held, *(f"short-{n}" for n in range(BACKLOG))}
    wanted |= {f"added-{number}" for number in producer.done}
    completed = {job.id for job in jobs.values() if job.status is JobStatus.COMPLETED}
    runs = Counter(words[0] for words in fleet.told("begin"))
    return {
        "units": len(wanted),
        "lost": len(wanted - completed),
        "completed_twice": sum(completions(job) > 1 for job in jobs.values()),
        "strangers": len(jobs.keys() - wanted),
        "held_and_rescued": sum(jobs[each].deliveries > 1 for each in held if each in jobs),
        "ran_again": sum(n - 1 for n in runs.values()),
    }
