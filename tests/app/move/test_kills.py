"""Moves that are killed at each of their steps, from every sort of store into every other.

Each is repeated: everything is there once, with the same digests, and then it may be worked with.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.boundary.store_urls import open_fact_store, open_facts
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.cli import invoke
from ergon_framework.errors import StoreError, StoreReadOnlyError
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.ports.factstore import OUTBOUND
from ergon_framework.ports.jobstore import Search
from ergon_framework.ports.transfer import is_incomplete
from ergon_framework.testing.suites.factstore import records as fact_checks
from ergon_framework.testing.suites.factstore.under_test import FactStoreSubject as FactSubject
from ergon_framework.testing.suites.factstore.under_test import new as new_fact
from ergon_framework.testing.suites.jobstore import records as job_checks
from ergon_framework.testing.suites.jobstore.under_test import JobStoreSubject as JobSubject
from ergon_framework.testing.suites.jobstore.under_test import new as new_job
from tests.app.move.stock import ZONE, ergon, fact_sums, job_sums, moved, with_facts, with_jobs
from tests.campaign.parameter_sample import campaign, sampled

pytestmark = [pytest.mark.slow, pytest.mark.req("SCALE:move")]

STEPS = (
    "move.part.begun=kill",  # TO is marked as not whole, and empty
    "move.{room}.before=kill@3",  # after FROM was claimed and TO was marked
    "move.{room}.after=kill@4",  # some of it is there
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


# ---- a whole program ----------------------------------------------------------------------------


class Program:
    """A program with jobs and a zone in one place, and the place that it is moved to."""

    def __init__(self, folder: Path) -> None:
        self.old, self.new = folder / "old", folder / "new"
        self.old.mkdir()
        self.new.mkdir()
        settings = self.old / "ergon.toml"
        settings.write_text('[store]\nurl = "sqlite:///work.db"\n')
        self.move = ("move", str(settings), "--to", f"sqlite:///{self.new}/work.db")
        with closing(open_store(self._jobs(self.old))) as store:
            store.add([new_job("first")])
        LocalZone.open(ZONE, self._zone(self.old)).close()
        self.kept: list[str] = ["first"]
        """The jobs that were acknowledged, wherever that was."""
        self.facts = 0
        self.was_used_there = False
        """Whether anything was taken in the new place, so that there is no way back."""
        self._turn = 0

    def _jobs(self, side: Path) -> str:
        return f"sqlite:///{side}/work.db"

    def _zone(self, side: Path) -> ZoneSettings:
        return ZoneSettings(data=str(side / "ergon.zones" / ZONE))

    def sides_with_jobs(self) -> list[Path]:
        """Where a job is taken now."""
        self._turn += 1
        return [side for side in (self.old, self.new) if self._takes_job(side)]

    def sides_with_facts(self) -> list[Path]:
        """Where a fact is taken now."""
        self._turn += 1
        return [side for side in (self.old, self.new) if self._takes_fact(side)]

    def _takes_job(self, side: Path) -> bool:
        name = f"{side.name}-{self._turn}"
        try:
            with closing(open_store(self._jobs(side))) as store:
                store.add([new_job(name)])
        except StoreError:
            return False
        self.kept.append(name)
        self.was_used_there |= side == self.new
        return True

    def _takes_fact(self, side: Path) -> bool:
        try:
            with closing(open_facts(ZONE, self._zone(side))) as store:
                store.append(OUTBOUND, [new_fact(f"{side.name}-{self._turn}")])
        except StoreError:
            return False
        self.facts += 1
        self.was_used_there |= side == self.new
        return True

    def refuse_two_sides(self) -> None:
        """Nothing is taken in two places."""
        assert len(self.sides_with_jobs()) <= 1
        assert len(self.sides_with_facts()) <= 1

    def check_all_on(self, side: Path) -> None:
        """Everything that was ever acknowledged is here, and nowhere else is anything taken."""
        assert self.sides_with_jobs() == [side]
        assert self.sides_with_facts() == [side]
        with closing(open_store(self._jobs(side))) as store:
            assert sorted(job.id for job in store.search(Search())) == sorted(self.kept)
        with closing(open_facts(ZONE, self._zone(side))) as facts:
            assert {log.name: log.head for log in facts.logs()} == {OUTBOUND: self.facts}


EACH = ("named", "frozen", "copied", "shut", "verified", "ended")
THERE = [
    *("move.target.made=kill@1", "move.target.made=kill@2"),
    *("move.incoming.marked=kill@1", "move.part.begun=kill@1", "move.part.begun=kill@2"),
    *(f"move.part.{step}=kill@{n}" for n in (1, 2) for step in EACH),
]
BACK = [
    *("move.part.frozen=kill@1", "move.part.frozen=kill@2", "move.back.shut=kill@1"),
    *("move.back.shut=kill@2", "move.part.thawed=kill@1", "move.part.thawed=kill@2"),
]


@pytest.mark.parametrize(
    ("there", "back"),
    [
        (
            [
                *("move.incoming.marked=kill@1", "move.target.made=kill@1"),
                *("move.target.made=kill@2", "move.part.begun=kill@1"),
                *("move.part.frozen=kill@1", "move.part.frozen=kill@2"),
            ],
            ["move.back.shut=kill@2", "move.part.thawed=kill@2"],
        ),
        *(campaign([step], []) for step in THERE),
        *(campaign([], [step]) for step in BACK),
    ],
)
def test_a_program_works_in_one_place_wherever_its_move_or_the_way_back_is_killed(
    there: list[str], back: list[str], tmp_path: Path
) -> None:
    """The same command goes on, and everything that was acknowledged on the way is there."""
    program = Program(tmp_path)

    def killed(step: str, *options: str) -> None:
        died = ergon(*program.move, *options, failpoints=step)
        assert died.returncode == -signal.SIGKILL, f"{step}: {died.stderr}"
        program.refuse_two_sides()

    for step in there:
        killed(step)
    assert invoke([*program.move]) == 0 or program.was_used_there
    for step in back:
        killed(step, "--reopen")
    if not program.was_used_there:
        assert invoke([*program.move, "--reopen"]) == 0
        program.check_all_on(program.old)
    # What is complete and in use is left alone, and the command says so.
    assert invoke([*program.move]) == 0 or (program.was_used_there and not back)
    program.check_all_on(program.new)
