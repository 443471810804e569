"""Ended jobs go into the archive before they are deleted: at least once, whatever dies or fails."""

from __future__ import annotations

import base64
import os
import resource
import signal
import stat
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ergon_framework.core.flow import RetryFlow
from ergon_framework.core.job import RequeueRequested
from ergon_framework.errors import StoreUnavailableError
from ergon_framework.jobs.archive_files import ArchiveBusyError, JobArchive
from ergon_framework.jobs.archiver import HELD_FOR, Archiver, ArchiveThread
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.flow_client import flows_of, purge_flow
from ergon_framework.jobs.payload_codec_store import decoded_job
from ergon_framework.jobs.settings import ArchiveSettings, JobsSettings
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.jobs.stores.sqlite import SqliteJobStore
from ergon_framework.ports.flow import step_id
from ergon_framework.ports.jobstore import FullJobStore, Job, Search, WorkerRecord
from ergon_framework.storage.failpoints import armed
from ergon_framework.testing.suites.drivers import HandClock
from ergon_framework.testing.suites.jobstore.under_test import (
    DAY,
    FAILS_FOR_GOOD,
    SUCCEEDED,
    JobStoreSubject,
    ids_of,
)
from tests import fork_server
from tests.jobs.real_worker import at_work, job, quick, unruly, wait_until, worker

PROGRAM = Path(__file__).parent / "programs" / "archive_user.py"
NOON = 1_899_979_200.0  # 2030-03-17T12:00:00Z


@pytest.fixture(params=["memory", "sqlite"])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JobStoreSubject]:
    """A store on a clock that tests set."""
    clock = HandClock()
    store: FullJobStore = (
        MemoryJobStore(clock)
        if request.param == "memory"
        else SqliteJobStore(tmp_path / "jobs.db", clock=clock)
    )
    yield JobStoreSubject(store, clock, None, 5.0)
    store.close()


@pytest.fixture
def archive(tmp_path: Path) -> JobArchive:
    """An archive in a folder that nobody has made yet."""
    return JobArchive(tmp_path / "old" / "archive", now=lambda: NOON, version="1.2")


def ended(s: JobStoreSubject, *ids: str, keep: float = 10.0, **fields: Any) -> list[Job]:
    """Jobs that have completed, and may go after so long."""
    s.put(*ids, **fields)
    return [s.ended(each, keep=keep, result=b'{"n":1}') for each in ids]


def archived(archive: JobArchive) -> list[str]:
    """The ids of all lines of jobs."""
    return [line.key for line in archive.lines() if line.kind == "job"]


def drain(archiver: Archiver) -> int:
    """Archive all that may go; how many jobs."""
    total = 0
    while number := archiver.turn():
        total += number
    return total


def test_a_job_is_archived_as_it_was_and_deleted(
    subject: JobStoreSubject, archive: JobArchive
) -> None:
    """Only what may go; each line has all that the job had, in a file that is private."""
    before = ended(subject, "a", "b", args=b"[1]", tags=("customer:42",), metadata={"plan": "pro"})
    ended(subject, "later", keep=1_000.0)
    subject.put("waits")
    subject.clock.forward(11.0)
    assert drain(Archiver(subject.store, archive)) == 2
    assert sorted(ids_of(subject.store.search(Search()))) == ["later", "waits"]
    found = {line.key: line.job() for line in archive.records()}
    assert found == {
        each.id: msgspec.structs.replace(each, key=None, is_limited=False) for each in before
    }
    (file,) = archive.files()
    assert (file.name, file.day) == ("jobs-20300317-000001.jsonl", "2030-03-17")
    mode = stat.S_IMODE((archive.path / file.name).stat().st_mode)
    assert (mode, stat.S_IMODE(archive.path.stat().st_mode)) == (0o600, 0o700)
    header = msgspec.json.decode((archive.path / file.name).read_bytes().splitlines()[0])
    assert (header["format"], header["version"], header["ergon"]) == ("ergon-archive", 1, "1.2")


@pytest.mark.parametrize("place", ["archive.append.written", "archive.slice.appended"])
def test_nothing_is_deleted_after_a_failure(
    subject: JobStoreSubject, archive: JobArchive, place: str
) -> None:
    """Before the sync or after it: the jobs stay, and the next turn archives them."""
    ended(subject, "a", "b")
    subject.clock.forward(11.0)
    archiver = Archiver(subject.store, archive)
    with armed(f"{place}=error"), pytest.raises(StoreUnavailableError, match="cannot be written"):
        archiver.turn()
    assert subject.store.count(Search()) == 2
    assert drain(archiver) == 2
    assert (subject.store.count(Search()), sorted(set(archived(archive)))) == (0, ["a", "b"])
    assert sorted(line.key for line in archive.records()) == ["a", "b"]


def test_a_full_disk_deletes_nothing_and_leaves_no_torn_line(
    subject: JobStoreSubject, archive: JobArchive
) -> None:
    """The file is as it was before the slice that did not fit, and goes on when there is room."""
    ended(subject, "first")
    subject.clock.forward(11.0)
    archiver = Archiver(subject.store, archive)
    drain(archiver)
    ended(subject, "large", args=b'["%b"]' % (b"x" * 100_000))
    subject.clock.forward(11.0)
    (file,) = archive.files()
    with no_file_larger_than(file.size + 50_000), pytest.raises(StoreUnavailableError) as told:
        archiver.turn()
    assert "has room" in str(told.value.remedy)
    assert subject.store.find("large") is not None
    assert archive.files() == [file]
    drain(archiver)
    assert (archived(archive), len(archive.files())) == (["first", "large"], 1)


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """A write beyond that size fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_link_in_place_of_a_file_is_not_followed(
    subject: JobStoreSubject, archive: JobArchive, tmp_path: Path
) -> None:
    """Jobs are written to no place that somebody else chose."""
    ended(subject, "a")
    subject.clock.forward(11.0)
    archive.path.mkdir(parents=True, mode=0o700)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("x\n")
    (archive.path / "jobs-20300317-000001.jsonl").symlink_to(elsewhere)
    with pytest.raises(StoreUnavailableError):
        Archiver(subject.store, archive).turn()
    assert (subject.store.count(Search()), elsewhere.read_text()) == (1, "x\n")


def test_a_line_that_was_cut_off_spoils_no_other(
    subject: JobStoreSubject, archive: JobArchive
) -> None:
    """What a crash left behind is skipped, and the next line begins another file."""
    archiver = Archiver(subject.store, archive)
    ended(subject, "a")
    subject.clock.forward(11.0)
    drain(archiver)
    with (archive.path / archive.files()[0].name).open("ab") as file:
        file.write(b'{"kind":"job","key":"b","rec')
    ended(subject, "b")
    subject.clock.forward(11.0)
    drain(archiver)
    assert (archived(archive), len(archive.files())) == (["a", "b"], 2)


def test_files_are_rotated_by_size_and_by_day(subject: JobStoreSubject, tmp_path: Path) -> None:
    """In the order of archiving."""
    day = [NOON]
    archive = JobArchive(tmp_path / "archive", max_file_size=1_500, now=lambda: day[0])
    archiver = Archiver(subject.store, archive)
    for number, later in enumerate((0.0, 0.0, DAY)):
        day[0] += later
        ended(subject, f"job-{number}", args=b'["%b"]' % (b"x" * 2_000))
        subject.clock.forward(11.0)
        drain(archiver)
    assert [(each.day, each.name[-13:]) for each in archive.files()] == [
        ("2030-03-17", "-000001.jsonl"),
        ("2030-03-17", "-000002.jsonl"),
        ("2030-03-18", "-000001.jsonl"),
    ]
    assert archived(archive) == ["job-0", "job-1", "job-2"]


def test_a_job_that_came_back_meanwhile_is_not_deleted(
    subject: JobStoreSubject, archive: JobArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was read to be archived, and an operator sent it back: both ends of it are archived."""
    subject.put("a")
    subject.ended("a", FAILS_FOR_GOOD, keep=10.0)
    subject.clock.forward(11.0)
    prunable = subject.store.prunable

    def read_and_sent_back(limit: int) -> list[Job]:
        found = prunable(limit)
        if found and subject.get("a").last_error is not None:
            subject.must(subject.get("a"), RequeueRequested())
        return found

    monkeypatch.setattr(subject.store, "prunable", read_and_sent_back)
    archiver = Archiver(subject.store, archive)
    assert archiver.turn() == 1
    assert subject.ids(1) == ["a"]
    subject.must(subject.get("a"), SUCCEEDED, keep=0.0, result=b"2")
    subject.clock.forward(1.0)
    assert drain(archiver) == 1
    assert archived(archive) == ["a", "a"]
    found = archive.find("a")
    assert found is not None
    assert found.job().result == b"2"
    assert [line.job().result for line in archive.records()] == [b"2"]


def test_a_flow_is_archived_with_its_steps_and_not_before_it_ended(
    subject: JobStoreSubject, archive: JobArchive
) -> None:
    """Its steps come first: whoever finds the flow finds all of them."""
    flow = JobClient(store=subject.store).chain("a", "b").enqueue()
    subject.ended(step_id(flow, 1), keep=10.0)
    subject.clock.forward(DAY)
    archiver = Archiver(subject.store, archive)
    assert archiver.turn() == 0
    subject.ended(step_id(flow, 2), keep=10.0)
    subject.clock.forward(11.0)
    assert drain(archiver) == 2
    assert [(line.kind, line.key) for line in archive.lines()] == [
        ("job", step_id(flow, 2)),
        ("job", step_id(flow, 1)),
        ("flow", flow),
    ]
    assert (flows_of(subject.store).find(flow), subject.store.count(Search())) == (None, 0)


def test_a_flow_that_is_retried_while_it_is_archived_stays(
    subject: JobStoreSubject, archive: JobArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all its steps; it is archived again when it has ended again."""
    flow = JobClient(store=subject.store).chain("a", "b").enqueue()
    subject.ended(step_id(flow, 1), FAILS_FOR_GOOD, keep=10.0)
    subject.clock.forward(DAY + 1.0)
    count = Counter[str]()
    search = subject.store.search

    def and_retry(wanted: Search, limit: int | None = None) -> Iterator[Job]:
        yield from search(wanted, limit)
        if not count["retried"]:
            count["retried"] += 1
            flows_of(subject.store).apply(flow, RetryFlow())

    monkeypatch.setattr(subject.store, "search", and_retry)
    archiver = Archiver(subject.store, archive)
    archiver.turn()
    assert subject.store.count(Search(flow=flow)) == 2
    for number in (1, 2):
        subject.ended(step_id(flow, number), keep=10.0)
    subject.clock.forward(DAY + 1.0)
    assert drain(archiver) == 2
    assert {line.job().status for line in archive.records() if line.kind == "job"} == {"completed"}


def test_purging_one_flow_leaves_what_is_to_be_archived(
    subject: JobStoreSubject, archive: JobArchive
) -> None:
    """An operator's purge of one flow is no prune of the store."""
    ended(subject, "a")
    flow = JobClient(store=subject.store).chain("b").enqueue()
    subject.ended(step_id(flow, 1), keep=DAY)
    subject.clock.forward(11.0)
    purge_flow(subject.store, flow)
    assert ids_of(subject.store.search(Search())) == ["a"]


def test_what_is_encrypted_in_the_store_is_encrypted_in_the_archive(archive: JobArchive) -> None:
    """Jobs and steps of flows; whoever has the key reads them."""
    pytest.importorskip("cryptography")
    key = base64.b64encode(b"k" * 32).decode()
    settings = JobsSettings.model_validate({"codec": {"active_key": "a", "keys": {"a": key}}})
    clock = HandClock()
    subject = JobStoreSubject(MemoryJobStore(clock), clock, None, 5.0)
    client = JobClient(settings=settings, store=subject.store)
    client.enqueue("send", ["ann@example.org"], id="a")
    subject.ended("a", keep=1.0)
    flow = client.chain({"handler": "send", "args": ["ann@example.org"]}).enqueue()
    subject.ended(step_id(flow, 1), keep=1.0)
    clock.forward(2.0)
    assert drain(Archiver(client.store, archive)) == 2
    (file,) = archive.files()
    assert b"ann@example.org" not in (archive.path / file.name).read_bytes()
    jobs = [line.job() for line in archive.lines() if line.kind == "job"]
    codec = settings.codec.compiled()
    assert [decoded_job(each, codec).args for each in jobs] == [b'["ann@example.org"]'] * 2


def test_slices_are_small_where_jobs_are_large(
    archive: JobArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slice is read into memory whole, and holds the store up while it is deleted."""
    subject = JobStoreSubject(MemoryJobStore(HandClock()), HandClock(), None, 5.0)
    asked: list[int] = []
    size = [1_000]

    def prunable(limit: int) -> list[Job]:
        asked.append(limit)
        subject.put(f"job-{len(asked)}", args=b'["%b"]' % (b"x" * size[0]))
        made = subject.ended(f"job-{len(asked)}", keep=0.0)
        return [made] * limit

    monkeypatch.setattr(subject.store, "prunable", prunable)
    archiver = Archiver(subject.store, archive)
    for _ in range(8):
        archiver.turn()
    assert asked == [10, 20, 40, 80, 160, 320, 500, 500]
    size[0] = 20_000
    archiver.turn()
    archiver.turn()
    assert 100 <= asked[-1] <= 4 * 1024 * 1024 // 20_000


def test_one_process_writes_to_an_archive_at_a_time(
    subject: JobStoreSubject, archive: JobArchive
) -> None:
    """The other one waits for its next turn, and has deleted nothing."""
    ended(subject, "a")
    subject.clock.forward(11.0)
    with archive.locked(), pytest.raises(ArchiveBusyError):
        Archiver(subject.store, archive).turn()
    assert subject.store.count(Search()) == 1
    assert drain(Archiver(subject.store, archive)) == 1


@pytest.mark.parametrize(
    ("others", "is_mine"),
    [
        ({}, True),
        ({"a": True}, False),
        ({"a": False}, True),
        ({"z": True}, True),
        ({"m": True}, True),
    ],
)
def test_the_first_of_the_living_archives(
    archive: JobArchive, others: dict[str, bool], is_mine: bool
) -> None:
    """By id, among the workers that have an archive."""
    thread = ArchiveThread(Archiver(MemoryJobStore(), archive), lambda _name, _told: None, "there")

    def record(name: str, has_archive: bool) -> WorkerRecord:
        return WorkerRecord(
            id=name, host="h", pid=1, version="1", started_at=0.0, has_archive=has_archive
        )

    alive = [record(name, has_archive) for name, has_archive in others.items()]
    assert thread.is_turn_of(record("m", True), alive) is is_mine


def test_a_failing_archive_is_told_once_until_it_works(
    subject: JobStoreSubject, archive: JobArchive
) -> None:
    """One notice for a day of full disk, and another for the next."""
    told: list[str] = []
    thread = ArchiveThread(
        Archiver(subject.store, archive), lambda name, _fields: told.append(name), "there"
    )

    def one_more() -> None:
        ended(subject, f"job-{subject.store.count(Search())}-{len(told)}")
        subject.clock.forward(11.0)

    for _ in range(2):
        one_more()
        for _ in range(3):
            with armed("archive.append.written=error"):
                thread.run()
        thread.run()
    assert told == ["archive.failed", "jobs.archived"] * 2


def test_jobs_with_lost_payloads_are_told_of_once(tmp_path: Path, archive: JobArchive) -> None:
    """One notice for each, however often they are passed over; too many stop the archive."""
    codec = {"objects": str(tmp_path / "objects"), "objects_above": 1024}
    clock = HandClock()
    subject = JobStoreSubject(MemoryJobStore(clock), clock, None, 5.0)
    client = JobClient(settings=JobsSettings.model_validate({"codec": codec}), store=subject.store)
    told: list[tuple[str, Any]] = []
    thread = ArchiveThread(
        Archiver(client.store, archive, max_held=3),
        lambda name, fields: told.append((name, fields.get("jobs", fields.get("count")))),
        "there",
    )

    def lose(*ids: str) -> None:
        for each in ids:
            client.enqueue("send", ["x" * 2000], id=each)
            subject.ended(each, keep=1.0)
        for file in (tmp_path / "objects" / "sha256").glob("*/*/*"):
            file.unlink()
        ended(subject, f"kept-{ids[0]}", keep=1.0)
        clock.forward(2.0)
        thread.run()
        thread.run()

    lose("a", "b")
    assert told == [("jobs.archived", 1), ("archive.held", ["a", "b"])]
    told.clear()
    clock.forward(HELD_FOR)  # looked at again, and still lost
    lose("c")
    assert told == [("jobs.archived", 1), ("archive.held", ["c"])]
    told.clear()
    lose("d")
    assert [name for name, _ in told] == ["archive.failed"]
    assert sorted(ids_of(subject.store.search(Search()))) == ["a", "b", "c", "d", "kept-d"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "point",
    [
        "archive.append.written=kill@2",
        "archive.append.synced=kill@2",
        "archive.slice.appended=kill@2",
        "archive.slice.deleted=kill@2",
        "jobs.desk.before_commit=kill@2",
        "jobs.desk.after_commit=kill@2",
    ],
)
def test_a_killed_archiver_loses_no_job(tmp_path: Path, point: str) -> None:
    """Wherever it dies: each job is in the archive at least once, and read once."""
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    store = open_store(url)
    s = JobStoreSubject(store, HandClock(), None, 5.0)
    ids = [f"job-{n}" for n in range(60)]
    s.put(*ids)
    store.settle_and_claim([s.told(each, SUCCEEDED, keep=0.0) for each in s.claim(60)], None)
    flow = JobClient(store=store).chain("a").enqueue()
    s.ended(step_id(flow, 1), keep=0.0)
    store.close()
    words = [sys.executable, str(PROGRAM), url, str(tmp_path / "archive")]
    died = fork_server.run(words, env=os.environ | {"ERGON_FAILPOINTS": point})
    assert died.returncode == -signal.SIGKILL
    assert fork_server.run(words).returncode == 0
    archive = JobArchive(tmp_path / "archive")
    found = [line.key for line in archive.records()]
    assert sorted(found) == sorted([*ids, step_id(flow, 1), str(flow)])
    store = open_store(url)
    assert store.count(Search()) == 0
    store.close()


@pytest.mark.slow
def test_a_worker_archives_what_it_would_have_deleted(tmp_path: Path) -> None:
    """Beside its work; and one that cannot write there deletes nothing."""
    store = MemoryJobStore()
    store.add([job("echo", n, id=f"job-{n}", result_ttl=0.0) for n in range(30)])
    settings = quick(archive=ArchiveSettings(folder=str(tmp_path / "archive")))
    with at_work(worker(store, settings=settings, executor=unruly(pool_size=1))) as running:
        wait_until(lambda: not store.count(Search(statuses=("pending", "active"))))  # type: ignore[arg-type]
        assert running.record().has_archive
    # The next one looks as soon as it starts, and a burst ends with what may go archived.
    worker(store, settings=settings, burst=True).run()
    assert store.count(Search()) == 0
    found = {line.key for line in JobArchive(tmp_path / "archive").records()}
    assert found == {f"job-{n}" for n in range(30)}
