"""Moves that are killed at each of their steps, from every sort of store into every other.

Each is repeated: everything is there once, with the same digests, and then it may be worked with.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from ergon_framework.boundary.store_urls import open_fact_store
from ergon_framework.errors import StoreError, StoreReadOnlyError
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.ports.factstore import OUTBOUND
from ergon_framework.ports.transfer import is_incomplete
from ergon_framework.testing.suites.factstore import records as fact_checks
from ergon_framework.testing.suites.factstore.subject import FactStoreSubject as FactSubject
from ergon_framework.testing.suites.factstore.subject import new as new_fact
from ergon_framework.testing.suites.jobstore import records as job_checks
from ergon_framework.testing.suites.jobstore.subject import JobStoreSubject as JobSubject
from ergon_framework.testing.suites.jobstore.subject import new as new_job
from tests.app.move.stock import ZONE, ergon, fact_sums, job_sums, moved, with_facts, with_jobs
from tests.campaign.parameter_sample import campaign, sampled

pytestmark = [pytest.mark.slow, pytest.mark.req("SCALE:move")]

STEPS = (
    "move.part.begun=kill",  # TO is marked as not whole, and empty
    "move.{room}.before=kill@2",  # some of it is there
    "move.{room}.after=kill@3",
    "move.part.copied=kill",  # all of it is there
    "move.part.shut=kill",  # … and FROM is shut
    "move.part.verified=kill",  # compared, and TO still marked as not whole
    "move.part.ended=kill",  # nothing is left to do
)
JOBS = [step.replace("{room}.before", "jobs.before_commit") for step in STEPS]
JOBS = [step.replace("{room}.after", "jobs.after_commit") for step in JOBS]
FACTS = [step.replace("move.{room}", "boundary.move") for step in STEPS]
KEPT = (1, 3, 4, 5)
"""The steps at which what is left differs most; ``make campaign`` has all."""


def jobs(s: JobSubject) -> None:
    """Something of everything, and enough for several commits."""
    job_checks.fill(s)
    s.store.add([new_job(f"n{number}", priority=number % 3) for number in range(1600)])


def facts(s: FactSubject) -> None:
    """Something of everything, and enough for several commits."""
    fact_checks.fill(s)
    s.store.append(OUTBOUND, [new_fact(f"n{number}") for number in range(1600)])


@pytest.mark.parametrize("step", sampled(JOBS, [JOBS[n] for n in KEPT]))
@pytest.mark.parametrize(
    ("source", "target"), [("file", "postgres_url"), campaign("postgres_url", "redis_url")]
)
def test_jobs_are_moved_though_the_move_was_killed(
    source: str, target: str, step: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Until it has ended nobody works with TO, nor with FROM from when it was shut."""
    is_file = source == "file"
    old = f"sqlite:///{tmp_path}/old.db" if is_file else request.getfixturevalue(source)
    new = request.getfixturevalue(target)
    with_jobs(old, jobs)
    died = ergon("move", old, new, "--shut", failpoints=step)
    assert died.returncode == -signal.SIGKILL, died.stderr
    if "ended" not in step:
        with pytest.raises(StoreError, match="has not ended"):
            open_store(new)
    is_shut = any(word in step for word in ("shut", "verified", "ended"))
    with closing(open_store(old, half_moved=True)) as store:
        assert _refuses(lambda: store.add([new_job("late")])) == is_shut
    moved(old, new, shuts=True)
    assert job_sums(new) == job_sums(old)
    assert job_sums(new)["JobRecord"].count == 1609 + (not is_shut)
    open_store(new).close()


@pytest.mark.parametrize("step", sampled(FACTS, [FACTS[n] for n in KEPT]))
@pytest.mark.parametrize("target", [campaign("nats_url"), "postgres_url"])
def test_facts_are_moved_though_the_move_was_killed(
    target: str, step: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Until it has ended nobody works with TO, nor with FROM from when it was shut."""
    old, new = f"sqlite:///{tmp_path}/facts.db", request.getfixturevalue(target)
    with_facts(old, facts)
    before = fact_sums(old)["FactRecord"].count
    died = ergon("move", old, new, "--zone", ZONE, "--shut", failpoints=step)
    assert died.returncode == -signal.SIGKILL, died.stderr
    with closing(open_fact_store(new, zone=ZONE, read_only=True)) as store:
        assert is_incomplete(store) == ("ended" not in step)
    is_shut = any(word in step for word in ("shut", "verified", "ended"))
    with closing(open_fact_store(old, zone=ZONE)) as source:
        assert _refuses(lambda: source.append(OUTBOUND, [new_fact("late")])) == is_shut
    moved(old, new, zone=ZONE, shuts=True)
    assert fact_sums(new) == fact_sums(old)
    assert fact_sums(new)["FactRecord"].count == before + (not is_shut)


def _refuses(act: Callable[[], object]) -> bool:
    try:
        act()
    except StoreReadOnlyError:
        return True
    return False
