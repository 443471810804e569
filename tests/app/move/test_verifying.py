"""What the comparison at the end notices: damage on the other side, and a source that grows."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from ergon_framework.app.move import transfer
from ergon_framework.app.move.run import Asked, MoveReport, run
from ergon_framework.app.move.transfer import Transfer, TransferProgress
from ergon_framework.app.store_location import StoreLocation
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.boundary.store_urls import open_fact_store
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.errors import DataLossError, StoreError
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.ports.factstore import OUTBOUND
from ergon_framework.ports.transfer import JOB_KINDS, is_incomplete
from ergon_framework.storage.objectstore.filesystem import FilesystemObjectStore
from ergon_framework.testing.suites.factstore.under_test import new as new_fact
from ergon_framework.testing.suites.jobstore.schedules import schedule
from ergon_framework.testing.suites.jobstore.under_test import new as new_job
from tests.app.move.stock import (
    ZONE,
    copied,
    fact_sums,
    fenced,
    job_sums,
    moved,
    with_facts,
    with_jobs,
)

pytestmark = pytest.mark.req("SCALE:move")

SERVERS = pytest.mark.slow
Act = Callable[[], object]


class Once:
    """Does something when a move says for the first time that it does something."""

    def __init__(self, what: str, act: Act) -> None:
        self._what, self._act = what, act
        self.was_done = False

    def __call__(self, told: TransferProgress) -> None:
        """Listen to a move."""
        if told.what == self._what and not self.was_done:
            self.was_done = True
            self._act()


def watched(source: str | Path, target: str | Path, tell: Once, **how: object) -> MoveReport:
    """Move while something happens."""
    asked = Asked(StoreLocation(str(source)), StoreLocation(str(target)), **how)  # type: ignore[arg-type]
    outcome = run(asked, tell)
    assert tell.was_done
    return outcome


def changed(file: Path, statement: str) -> Act:
    """Change a file behind the store's back."""

    def act() -> None:
        with closing(sqlite3.connect(file)) as connection:
            assert connection.execute(statement).rowcount == 1
            connection.commit()

    return act


@pytest.fixture
def jobs(tmp_path: Path) -> str:
    """Some jobs."""
    return with_jobs(f"sqlite:///{tmp_path}/old.db", lambda s: s.put(*"abcde", args=b'["xyz"]'))


@pytest.fixture
def facts(tmp_path: Path) -> str:
    """Some facts."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    return with_facts(f"sqlite:///{tmp_path}/old/facts.db", lambda s: s.put(*"abcde"))


# ---- damage -------------------------------------------------------------------------------------


def test_one_byte_of_a_job_is_noticed(jobs: str, tmp_path: Path) -> None:
    """The job is named; the next move brings it again."""
    target = f"sqlite:///{tmp_path}/new.db"
    statement = """UPDATE ergon_jobs SET args = CAST('["xyy"]' AS BLOB) WHERE id = 'd'"""
    damage = Once("verifying jobs", changed(tmp_path / "new.db", statement))
    with pytest.raises(StoreError, match=r"5 with .* are; the job d is not the same"):
        watched(jobs, target, damage)
    with pytest.raises(StoreError, match="has not ended"):
        open_store(target)
    assert copied(moved(jobs, target)) == {"jobs": 1}
    assert job_sums(target) == job_sums(jobs)


def test_another_job_is_noticed(jobs: str, tmp_path: Path) -> None:
    """Both are named."""
    target = f"sqlite:///{tmp_path}/new.db"
    statement = "UPDATE ergon_jobs SET id = 'z' WHERE id = 'c'"
    damage = Once("verifying jobs", changed(tmp_path / "new.db", statement))
    with pytest.raises(StoreError, match="the job c is missing where the job z is"):
        watched(jobs, target, damage)


@SERVERS
def test_one_byte_of_a_job_on_a_server_is_noticed(jobs: str, postgres_url: str) -> None:
    """As in a file."""

    def act() -> None:
        with psycopg.connect(postgres_url) as connection:
            connection.execute("UPDATE ergon_jobs SET args = '[\"xyy\"]' WHERE id = 'd'")

    with pytest.raises(StoreError, match="the job d is not the same"):
        watched(jobs, postgres_url, Once("verifying jobs", act))


def test_one_byte_of_a_fact_is_noticed(facts: str, tmp_path: Path) -> None:
    """The fact is named, and in which of the two stores it is damaged."""
    statement = "UPDATE ergon_boundary_facts SET fact = fact || x'20' WHERE id & 255 = 3"
    damage = Once("verifying logs", changed(tmp_path / "new" / "facts.db", statement))
    target = f"sqlite:///{tmp_path}/new/facts.db"
    with pytest.raises(DataLossError, match=r"new/facts\.db was damaged .*fact at 3 of outbound"):
        watched(facts, target, damage)
    with pytest.raises(StoreError, match="has not ended"):
        LocalZone.open(ZONE, ZoneSettings(data=str(tmp_path / "new")))


def test_a_cursor_that_differs_is_named(facts: str, tmp_path: Path) -> None:
    """What is no job and no fact goes by its name and its kind."""
    with_facts(facts, lambda s: s.consumer("reader"))
    statement = "UPDATE ergon_boundary_consumers SET cursor = 2"
    damage = Once("verifying consumers", changed(tmp_path / "new" / "facts.db", statement))
    with pytest.raises(StoreError, match="reader of the consumers is not the same"):
        watched(facts, f"sqlite:///{tmp_path}/new/facts.db", damage)


def test_one_byte_of_an_object_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a disk gives back is read; the object is named, and the next move brings it again."""
    with LocalZone.open(ZONE, ZoneSettings(data=str(tmp_path / "old"))) as zone:
        zone.put("files", "one", b"one" * 1000)
        zone.put("files", "two", b"two" * 1000)
    finish = FilesystemObjectStore.partial

    def bad_disk(store: FilesystemObjectStore, digest: bytes):  # type: ignore[no-untyped-def]
        upload = finish(store, digest)
        whole = upload.finish

        def damaged(wanted: bytes):  # type: ignore[no-untyped-def]
            found = whole(wanted)
            [blob] = (tmp_path / "new" / "objects").glob(f"sha256/*/*/*{digest.hex()[-8:]}*")
            blob.chmod(0o600)
            data = blob.read_bytes()
            blob.write_bytes(data[:7] + b"?" + data[8:])
            return found

        monkeypatch.setattr(upload, "finish", damaged, raising=False)
        return upload

    with monkeypatch.context() as patch:
        patch.setattr(FilesystemObjectStore, "partial", bad_disk)
        with pytest.raises(DataLossError, match="the bytes of files/one are not what was written"):
            moved(tmp_path / "old", tmp_path / "new")
    assert copied(moved(tmp_path / "old", tmp_path / "new"))["objects"] == 2
    with LocalZone.open(ZONE, ZoneSettings(data=str(tmp_path / "new"))) as zone:
        for kept in zone.store.objects():
            assert zone.objects.verify(kept.digest, kept.size) is None


# ---- growth -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuts", [False, True])
@pytest.mark.parametrize("server", ["file", pytest.param("postgres_url", marks=SERVERS)])
@pytest.mark.parametrize("when", ["copying epoch", "verifying logs", "verifying epoch"])
def test_facts_that_are_appended_meanwhile_come_along(
    when: str, server: str, shuts: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A producer that only appends holds no lease: where the logs end is looked at once more."""
    (tmp_path / "new").mkdir()
    file = f"sqlite:///{tmp_path}/old.db"
    url = file if server == "file" else request.getfixturevalue(server)
    source = with_facts(url, lambda s: s.put(*"abc"))
    target = f"sqlite:///{tmp_path}/new/facts.db"
    with closing(open_fact_store(source, zone=ZONE)) as producer:

        def append() -> None:
            try:
                producer.append(OUTBOUND, [new_fact("d")])
            except StoreError:
                assert shuts
                assert when != "copying epoch"

        watched(source, target, Once(when, append), zone=ZONE, shuts=shuts, is_forced=True)
    assert fact_sums(target) == fact_sums(source)
    count = fact_sums(target)["FactRecord"].count
    assert count == (3 if shuts and when != "copying epoch" else 4)


@SERVERS
def test_facts_that_are_appended_to_nats_meanwhile_come_along(
    tmp_path: Path, nats_url: str
) -> None:
    """As from a database."""
    (tmp_path / "new").mkdir()
    with_facts(nats_url, lambda s: s.put(*"abc"))
    target = f"sqlite:///{tmp_path}/new/facts.db"
    with closing(open_fact_store(nats_url, zone=ZONE)) as producer:
        act = Once("verifying epoch", lambda: producer.append(OUTBOUND, [new_fact("d")]))
        watched(nats_url, target, act, zone=ZONE)
    assert fact_sums(target) == fact_sums(nats_url)
    assert fact_sums(target)["FactRecord"].count == 4


def test_an_object_that_comes_meanwhile_comes_along(tmp_path: Path) -> None:
    """A name is never moved without its bytes."""
    with LocalZone.open(ZONE, ZoneSettings(data=str(tmp_path / "old"))) as zone:
        zone.put("files", "one", b"one" * 1000)
        act = Once("copying logs", lambda: zone.put("files", "two", b"two" * 1000))
        outcome = watched(tmp_path / "old", tmp_path / "new", act, is_forced=True)
    assert copied(outcome)["objects"] == 2
    with LocalZone.open(ZONE, ZoneSettings(data=str(tmp_path / "new"))) as zone:
        found = [zone.objects.verify(kept.digest, kept.size) for kept in zone.store.objects()]
    assert found == [None, None]


@pytest.mark.parametrize("when", ["copying schedules", "verifying jobs", "verifying schedules"])
def test_jobs_that_are_added_meanwhile_come_along(when: str, jobs: str, tmp_path: Path) -> None:
    """Whoever only enqueues is no worker that would be noticed."""
    with_jobs(jobs, lambda s: s.store.put_schedule(schedule("nightly")))
    target = f"sqlite:///{tmp_path}/new.db"
    with closing(open_store(jobs)) as producer:
        outcome = watched(jobs, target, Once(when, lambda: producer.add([new_job("f")])))
    assert copied(outcome)["jobs"] == 6
    assert job_sums(target) == job_sums(jobs)


def test_a_source_that_grows_without_end_is_not_called_moved() -> None:
    """It is copied a few times, and then it is said what to do."""
    with closing(MemoryJobStore()) as source, closing(MemoryJobStore()) as target:
        part = Transfer("jobs", *fenced(source, target), JOB_KINDS, "one", "another")
        source.add([new_job("first")])

        def grow(told: TransferProgress) -> None:
            if told.what == "verifying jobs":
                source.add([new_job(f"n{source.now()}")])

        transfer.begin(part)
        with pytest.raises(StoreError, match=r"keep coming .*copied 5 times") as caught:
            transfer.move(part, grow)
        assert "--shut" in caught.value.remedy
        assert is_incomplete(target)
        transfer.end([part], [transfer.move(part, lambda _: None)])
        assert not is_incomplete(target)
