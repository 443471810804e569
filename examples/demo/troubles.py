"""What goes wrong. Each trouble says what it does, and goes on when its effect was really seen."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from ergon_framework.jobs import JobStatus

from .gauges import events
from .story import Story

PARKED = 3
"""Jobs that are to be seen waiting for the carrier, before it is back."""
BEHIND = 3
"""Facts that are to be seen waiting in the plant, before the link heals."""


def kill_an_executor(story: Story) -> None:
    """SIGKILL for a process in the middle of a job: the job is tried again in another one."""
    job_id, pid, told = "", 0, ["completed"]
    while told[0] != "lost":  # it may be done in that very moment: then another has to suffer
        job_id, pid, told = _struck(story)
    story.tell(f"SIGKILL for executor process {pid}, which had {job_id} in hand")
    story.tell(f"the worker noticed, and gives {job_id} to another process")


def _struck(story: Story) -> tuple[str, int, list[str]]:
    """A job, the process that had it in hand and was killed, and what became of the attempt."""
    job_id, pid = story.until("an executor has a job in hand", lambda: _busy(story))
    before = _told(story, job_id)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    told = story.until(f"{job_id} has an outcome", lambda: _since(story, job_id, before))
    return job_id, pid, told


def kill_the_worker(story: Story) -> None:
    """SIGKILL for the worker: another one is started, and takes over its jobs."""
    story.until("a job is running", lambda: _busy(story) and story.gauges.jobs(JobStatus.ACTIVE))
    before = story.site.pids("worker")
    os.kill(before[-1], signal.SIGKILL)
    # Nobody can settle them now: what was running at this moment is orphaned.
    orphans = {job.id: events(job) for job in story.gauges.jobs(JobStatus.ACTIVE)}
    in_hand = ", ".join(orphans) or "nothing"
    story.tell(f"SIGKILL for the worker, process {before[-1]}, which had {in_hand} in hand")
    after = story.until("another worker is ready", lambda: story.site.pids("worker")[len(before) :])
    story.until(
        "the orphans are taken over",
        lambda: all(_since(story, job_id, told) for job_id, told in orphans.items()),
    )
    story.tell(f"ergon run --all has started worker process {after[-1]}, which took over")


def cut_the_link(story: Story) -> None:
    """No byte passes between the zones; the plant goes on telling facts."""
    story.link.cut()
    at = story.gauges.read().enterprise
    story.tell(f"the link between the zones is cut; the enterprise has {at} facts")


def heal_the_link(story: Story) -> None:
    """Facts that were told meanwhile come over, in order, each once."""
    story.until("the enterprise notices it", lambda: story.gauges.read().link != "normal")
    story.until("the plant tells facts all the same", lambda: _behind(story) >= BEHIND)
    behind = _behind(story)
    goal = story.gauges.read().plant
    story.link.heal()
    story.tell(f"the link heals; {behind} facts wait on the other side")
    story.until("they came over", lambda: story.gauges.read().enterprise >= goal)
    story.tell("the enterprise has caught up")


def close_the_carrier(story: Story) -> None:
    """Every call fails: the circuit opens, and jobs are parked instead of spending attempts."""
    (story.site.folder / "carrier.down").touch()
    story.tell("the carrier fails every call from now on")
    story.floor.work_until(story.floor.count)
    story.until("its circuit opens", lambda: story.gauges.circuit() != "closed")
    story.tell("its circuit is open: nobody calls it, and jobs that need it are parked")


def open_the_carrier(story: Story) -> None:
    """A probe gets through, the circuit closes, and parked jobs run."""
    story.until("jobs are parked", lambda: story.gauges.read().parked >= PARKED)
    (story.site.folder / "carrier.down").unlink()
    story.tell("the carrier answers again")
    story.until("the circuit closes", lambda: story.gauges.circuit() == "closed")
    story.tell("a probe got through, and the circuit is closed")


def _busy(story: Story) -> tuple[str, int] | None:
    """A job and the process that has it in hand. When all are done, more has to be packed."""
    reading = story.gauges.read()
    if reading.ended == reading.packed:
        story.floor.work_until(reading.packed + 1)
    return story.books.busy()


def _told(story: Story, job_id: str) -> list[str]:
    job = story.gauges.job(job_id)
    return [] if job is None else events(job)


def _since(story: Story, job_id: str, before: list[str]) -> list[str]:
    """What its history tells beyond that."""
    return _told(story, job_id)[len(before) :]


def _behind(story: Story) -> int:
    reading = story.gauges.read()
    return reading.plant - reading.enterprise
