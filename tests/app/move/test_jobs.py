"""Moving jobs from one file to another."""

from __future__ import annotations

import signal
from contextlib import closing
from pathlib import Path

import pytest

from ergon_framework.app.move import transfer
from ergon_framework.app.move.transfer import Transfer, TransferProgress
from ergon_framework.app.store_location import StoreLocation
from ergon_framework.core.job import CancelRequested, JobStatus, RunRequested
from ergon_framework.errors import ConfigurationError, StoreError
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.jobs.stores.memory.records import MemoryJobRecords
from ergon_framework.jobs.stores.sqlite import SqliteJobStore
from ergon_framework.ports.jobstore import Search, WorkerRecord
from ergon_framework.ports.transfer import JOB_KINDS, is_incomplete
from ergon_framework.testing.suites.jobstore.records import fill
from ergon_framework.testing.suites.jobstore.under_test import JobStoreSubject, new
from tests.app.move.stock import claim, copied, discarded, ergon, fenced, job_sums, moved, with_jobs
from tests.campaign.parameter_sample import sampled

pytestmark = pytest.mark.req("SCALE:move")


@pytest.fixture
def places(tmp_path: Path) -> tuple[str, str]:
    """Where jobs come from, and where they go."""
    return with_jobs(f"sqlite:///{tmp_path}/old.db"), f"sqlite:///{tmp_path}/new.db"


def test_everything_arrives(places: tuple[str, str]) -> None:
    """Both sides hold the same, and the outcome says how much and with which digest."""
    outcome = moved(*places)
    assert job_sums(places[1]) == job_sums(places[0])
    sums = {each.kind: each.sum for each in outcome.moved}
    assert sums["jobs"] == job_sums(places[0])["JobRecord"]
    assert copied(outcome) == {"queue settings": 2, "jobs": 9, "schedules": 2}


def test_the_same_again_copies_nothing(places: tuple[str, str]) -> None:
    """A second move finds all of it there."""
    moved(*places)
    again = moved(*places)
    assert (copied(again), discarded(again)) == ({}, {})
    assert job_sums(places[1]) == job_sums(places[0])


def test_only_what_changed_is_copied_again(places: tuple[str, str]) -> None:
    """What is new, what was moved on and what is gone since, and nothing else."""
    moved(*places)

    def more(s: JobStoreSubject) -> None:
        s.must(s.get("again"), CancelRequested(), keep=60.0)
        s.store.purge([s.get("dead")])
        s.put("fresh", "fresher")
        s.store.set_queue("shut", is_paused=False)
        s.store.drop_schedule("daily")

    with_jobs(places[0], more)
    again = moved(*places)
    assert copied(again) == {"jobs": 3}
    assert discarded(again) == {"queue settings": 1, "jobs": 1, "schedules": 1}
    assert job_sums(places[1]) == job_sums(places[0])


def test_a_unique_key_may_change_hands_in_between(tmp_path: Path) -> None:
    """Also to a job that is older than the one that had it when first moved."""
    source, target = f"sqlite:///{tmp_path}/old.db", f"sqlite:///{tmp_path}/new.db"

    def first(s: JobStoreSubject) -> None:
        s.put("older", unique_key="u")
        s.must(s.get("older"), CancelRequested())
        s.put("younger", unique_key="u")

    def then(s: JobStoreSubject) -> None:
        s.must(s.get("younger"), CancelRequested())
        s.must(s.get("older"), RunRequested())

    with_jobs(source, first)
    moved(source, target)
    with_jobs(source, then)
    assert copied(moved(source, target)) == {"jobs": 2}
    assert job_sums(target) == job_sums(source)


def test_an_id_may_be_used_again_in_between(tmp_path: Path) -> None:
    """The new job of an old id comes last, as it does where it was added."""
    source, target = f"sqlite:///{tmp_path}/old.db", f"sqlite:///{tmp_path}/new.db"

    def first(s: JobStoreSubject) -> None:
        s.put("a", "b", "c")
        s.must(s.get("a"), CancelRequested())

    def then(s: JobStoreSubject) -> None:
        s.clock.forward(5.0)
        s.store.purge([s.get("a")])
        s.put("a")

    with_jobs(source, first)
    moved(source, target)
    with_jobs(source, then)
    again = moved(source, target)
    assert (copied(again), discarded(again)) == ({"jobs": 1}, {"jobs": 1})
    assert job_sums(target) == job_sums(source)


def test_a_store_that_holds_something_else_is_refused(places: tuple[str, str]) -> None:
    """Nothing of it is changed."""
    with_jobs(places[1], lambda s: s.put("mine"))
    before = job_sums(places[1])
    with pytest.raises(StoreError, match="holds jobs already"):
        moved(*places)
    assert job_sums(places[1]) == before


def test_a_copy_of_another_store_is_refused(places: tuple[str, str], tmp_path: Path) -> None:
    """A mark says whose copy it is."""
    other = with_jobs(f"sqlite:///{tmp_path}/other.db", lambda s: s.put("theirs"))
    moved(*places)
    with pytest.raises(StoreError, match="from another store"):
        moved(other, places[1])


def test_a_store_that_was_used_since_is_refused(places: tuple[str, str]) -> None:
    """Moving again would bring back what was done there."""
    moved(*places)
    with_jobs(places[1], lambda s: s.put("mine"))
    with pytest.raises(StoreError, match="has been in use since"):
        moved(*places)
    with closing(open_store(places[1])) as store:
        assert store.find("mine") is not None


def test_workers_are_named_and_refused(places: tuple[str, str]) -> None:
    """Somebody would still change what is being copied, unless that is wanted."""
    record = WorkerRecord(id="w9", host="here", pid=77, version="1", started_at=0.0)
    with closing(open_store(places[0])) as store:
        store.heartbeat(record)
    with pytest.raises(StoreError, match=r"w9 \(process 77 on here\).*--force"):
        moved(*places)
    moved(*places, is_forced=True)
    assert job_sums(places[1]) == job_sums(places[0])
    with closing(open_store(places[1])) as store:
        store.heartbeat(record)
    with pytest.raises(StoreError, match="workers use") as caught:
        moved(*places, is_forced=True)
    assert "--force" not in caught.value.remedy


def test_a_trial_writes_nothing(places: tuple[str, str], tmp_path: Path) -> None:
    """It tells what would be copied, whether the other store is there or not."""
    found = moved(*places, is_trial=True)
    assert copied(found)["jobs"] == 9
    assert not (tmp_path / "new.db").exists()
    moved(*places)
    with_jobs(places[0], lambda s: s.put("more"))
    before = job_sums(places[1])
    assert copied(moved(*places, is_trial=True)) == {"jobs": 1}
    assert job_sums(places[1]) == before


def test_running_jobs_are_rescued_in_the_new_store(places: tuple[str, str]) -> None:
    """Their leases go along, and run out there."""
    moved(*places)
    with closing(open_store(places[1])) as store:
        [job] = store.search(Search(statuses=(JobStatus.ACTIVE,)))
        assert [each.id for each in store.expired_leases(10)] == [job.id] == ["running"]


def test_a_half_moved_store_is_not_worked_with(places: tuple[str, str]) -> None:
    """Neither by workers and clients nor as the source of another move; looking is fine."""

    class Cut(Exception):
        """The move ends here."""

    def stop(_: TransferProgress) -> None:
        raise Cut

    with closing(open_store(places[0])) as source, closing(open_store(places[1])) as target:
        assert isinstance(source, SqliteJobStore)
        assert isinstance(target, SqliteJobStore)
        part = Transfer("jobs", *fenced(source, target), JOB_KINDS, "x", "new.db")
        transfer.begin(part)
        with pytest.raises(Cut):
            transfer.move(part, stop)
        assert is_incomplete(target)
    with pytest.raises(StoreError, match="a move into this store has not ended"):
        open_store(places[1])
    open_store(places[1], read_only=True).close()
    with pytest.raises(StoreError, match="has not ended"):
        moved(places[1], f"{places[0]}.third")


def test_what_does_not_arrive_is_noticed(places: tuple[str, str]) -> None:
    """Both sides are read anew at the end; a store that loses something is found out."""

    class Loses(MemoryJobRecords):
        """Forgets the last job of each page."""

        def load(self, records, fence=None):  # type: ignore[no-untyped-def]
            super().load(records[:-1], fence)

    with closing(open_store(places[0])) as source, closing(MemoryJobStore()) as target:
        assert isinstance(source, SqliteJobStore)
        target.records = Loses(target.step, target)
        part = Transfer("jobs", *fenced(source, target), JOB_KINDS, "x", "the new one")
        transfer.begin(part)
        with pytest.raises(StoreError, match=r"the new one does not hold the same .*: \d+ of them"):
            transfer.move(part, lambda _: None)
        assert is_incomplete(target)


def test_a_store_is_not_moved_into_itself(places: tuple[str, str], tmp_path: Path) -> None:
    """Nor one that is not there, nor a file that keeps no jobs."""
    with pytest.raises(ConfigurationError, match="into itself"):
        moved(places[0], places[0])
    with pytest.raises(ConfigurationError, match=r"no file .*missing\.db"):
        moved(f"sqlite:///{tmp_path}/missing.db", places[1])
    assert not (tmp_path / "missing.db").exists()
    (tmp_path / "other.db").write_bytes(b"")
    with pytest.raises(ConfigurationError, match="neither jobs nor provider calls"):
        moved(f"sqlite:///{tmp_path}/other.db", places[1])


def test_names_hold_no_secrets() -> None:
    """What a store is known by, in the mark and in front of people."""
    place = StoreLocation("postgresql://me:hunter2@db.example:5432/work?sslmode=require&password=x")
    assert place.name == "postgresql://me@db.example:5432/work?sslmode=require"
    place = StoreLocation("postgresql://me@/work?host=/run/postgresql")
    assert place.name == "postgresql://me@/work?host=/run/postgresql"
    assert StoreLocation("redis://:hush@db.example/0").name == "redis://db.example/0"


def many(s: JobStoreSubject) -> None:
    """Enough jobs for several commits."""
    fill(s)
    s.store.add([new(f"n{number}") for number in range(1200)])


@pytest.mark.slow
@pytest.mark.parametrize("point", ["move.jobs.before_commit", "move.jobs.after_commit"])
@pytest.mark.parametrize("nth", sampled([1, 2, 3, 5], {2, 5}))
def test_a_move_that_is_killed_goes_on(point: str, nth: int, tmp_path: Path) -> None:
    """Wherever it was cut off, the same command again ends the same, and then it may be used."""
    source, target = f"sqlite:///{tmp_path}/old.db", f"sqlite:///{tmp_path}/new.db"
    with_jobs(source, many)
    died = ergon("move", source, target, failpoints=f"{point}=kill@{nth}")
    assert died.returncode == -signal.SIGKILL, died.stderr
    moved(source, target)
    assert job_sums(target) == job_sums(source)
    open_store(target).close()


@pytest.mark.parametrize(
    "way", [("sqlite:///{}/old.db", "memory://"), ("memory://", "sqlite:///{}/old.db")]
)
def test_memory_is_no_place_to_move_to_or_from(way: tuple[str, str], tmp_path: Path) -> None:
    """What was moved there would be gone with the command, and the source be shut."""
    source, target = (each.format(tmp_path) for each in way)
    if source != "memory://":
        with_jobs(source, lambda s: s.put("a"))
    with pytest.raises(ConfigurationError, match="a store in memory ends with the command"):
        moved(source, target, shuts=True)
    if source != "memory://":
        with closing(open_store(source)) as store:
            assert claim(store) == ["a"]


@pytest.mark.parametrize("has_others", [False, True], ids=["emptied", "replaced"])
def test_a_source_that_was_emptied_takes_no_copy_with_it(
    places: tuple[str, str], has_others: bool
) -> None:
    """The earlier copy may be all there is of its jobs."""
    moved(*places)
    before = job_sums(places[1])
    old = StoreLocation(places[0]).file
    assert old is not None
    old.unlink()
    with_jobs(places[0], lambda s: s.put("other") if has_others else None)
    with pytest.raises(StoreError, match="emptied or replaced") as caught:
        moved(*places)
    assert "empty store" in caught.value.remedy
    assert job_sums(places[1]) == before


def test_what_was_moved_to_one_place_is_not_copied_to_another(
    places: tuple[str, str], tmp_path: Path
) -> None:
    """There would be two stores to work with, and all would be done twice."""
    moved(*places, shuts=True)
    with pytest.raises(StoreError, match=r"was moved to .*new\.db"):
        moved(places[0], f"sqlite:///{tmp_path}/third.db")


def test_jobs_have_no_objects(tmp_path: Path) -> None:
    """Who names objects meant a zone, and is told that before anything is made."""
    source = with_jobs(f"sqlite:///{tmp_path}/old.db", lambda s: s.put("a"))
    places = (str(tmp_path), str(tmp_path / "objects"))
    with pytest.raises(ConfigurationError, match="only a zone has objects"):
        moved(source, f"sqlite:///{tmp_path}/new.db", objects=places)
    assert not (tmp_path / "new.db").exists()
