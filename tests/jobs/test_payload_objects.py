"""Payloads in an object store: the suite on stores without a server, kills, faults and sizes."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ergon_framework.app.jobs import job_settings
from ergon_framework.core.job import JobStatus
from ergon_framework.errors import ErgonError, StoreFullError, StoreUnavailableError
from ergon_framework.jobs import object_sweep
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.payload_codec import names_object
from ergon_framework.jobs.payload_codec_store import codec_of, with_codec
from ergon_framework.jobs.payload_objects import ObjectName, PayloadObjects
from ergon_framework.jobs.settings import ExecutorSettings, JobsSettings
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.jobs.stores.sqlite import SqliteJobStore
from ergon_framework.jobs.worker import WorkerTiming
from ergon_framework.ports.jobstore import FullJobStore, Job, Search, WorkerRecord
from ergon_framework.storage.failpoints import armed
from ergon_framework.storage.objectstore.urls import open_object_store
from tests import fork_server, waiting
from tests.jobs.payload_object_suite import CHECKS, LARGE, Place
from tests.jobs.real_worker import at_work, get, quick, wait_until, worker
from tests.jobs.test_archive import no_file_larger_than
from tests.jobs.test_payload_codec import APP

pytestmark = pytest.mark.req("JOBS:store")


@pytest.fixture(params=["memory", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A store and a folder for objects."""
    is_file = request.param == "sqlite"
    store: FullJobStore = SqliteJobStore(tmp_path / "work.db") if is_file else MemoryJobStore()
    yield Place(store, tmp_path)
    store.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda each: each.__name__)
def test_payloads_in_an_object_store(check: Callable[[Place], None], place: Place) -> None:
    """Each check of the suite holds."""
    check(place)


# ---- faults -------------------------------------------------------------------------------------

PROGRAM = Path(__file__).parent / "programs" / "payload_user.py"


def settings(folder: Path, **options: Any) -> JobsSettings:
    """Settings with a folder for objects."""
    codec = {"objects": str(folder / "objects"), "objects_above": 1024}
    return quick(codec=codec, **{"held_delay": 0.2, "max_payload": 1 << 30, **options})


def python(folder: Path) -> ExecutorSettings:
    """Ergon's own executor with handlers that echo their arguments."""
    (folder / "app.py").write_text(APP)
    command = sys.executable, "-m", "ergon_framework.executor", "--app", f"{folder}/app.py:registry"
    return ExecutorSettings(command=command, pool_size=1, startup_grace=60.0)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["jobs.object.stored", "jobs.object.named"])
def test_a_client_that_is_killed_leaves_no_row_without_its_object(
    tmp_path: Path, point: str
) -> None:
    """Before the row there is an object that a sweep removes; after it, the job runs."""
    words = [sys.executable, str(PROGRAM), "enqueue", str(tmp_path), "1"]
    died = fork_server.run(words, env=os.environ | {"ERGON_FAILPOINTS": f"{point}=kill"})
    assert died.returncode == -signal.SIGKILL
    with closing(SqliteJobStore(tmp_path / "work.db")) as store:
        place = Place(store, tmp_path)
        is_stored = point == "jobs.object.named"
        assert len(place.objects()) == 1
        assert place.named() == (place.objects() if is_stored else set())
        assert place.swept() == (0 if is_stored else 1)
        assert place.drain() == is_stored


@pytest.mark.slow
def test_a_worker_that_is_killed_after_a_result_runs_the_job_again(tmp_path: Path) -> None:
    """The object of the first result has no row; that of the second stays."""
    assert (
        fork_server.run([sys.executable, str(PROGRAM), "enqueue", str(tmp_path), "1"]).returncode
        == 0
    )
    words = [sys.executable, str(PROGRAM), "work", str(tmp_path), "0"]
    env = os.environ | {"ERGON_FAILPOINTS": "worker.result_stored=kill"}
    assert fork_server.run(words, env=env).returncode == -signal.SIGKILL
    with closing(SqliteJobStore(tmp_path / "work.db")) as store:
        place = Place(store, tmp_path)
        assert len(place.objects()) == 2
        waiting.until(lambda: bool(store.expired_leases(1)), "the lease to expire", 30.0)
        assert fork_server.run(words).returncode == 0
        (job,) = store.search(Search())
        assert (job.status, job.deliveries) == (JobStatus.COMPLETED, 2)
        assert len(place.objects()) == 3
        assert place.swept() == 1
        client = JobClient(store=store, settings=settings(tmp_path))
        assert client.result(job.id, timeout=5) == [[LARGE, 0], {}]


def test_a_sweep_that_is_cut_off_is_repeated(place: Place) -> None:
    """What it has removed is gone, and nothing else."""
    client = place.client()
    kept = client.enqueue("echo", [LARGE])
    codec = codec_of(client.store, client.settings)
    for number in range(3):
        codec.encode_arguments(msgspec.json.encode([LARGE]), b"{}", f"no-row-{number}")
    for point in ("objects.sweep.unnamed", "objects.sweep.removed"):
        with armed(f"{point}=error"), pytest.raises(OSError, match=point):
            place.swept()
    assert place.swept() == 2
    assert place.named() == place.objects()
    assert client.show(kept)["args"] == [LARGE]


def test_a_full_disk_refuses_the_job(place: Place) -> None:
    """Nothing is stored, and the next one is when there is room again."""
    client = place.client()
    client.enqueue("echo", [LARGE])
    with no_file_larger_than(2048), pytest.raises(StoreFullError, match="a large payload"):
        client.enqueue("echo", [LARGE])
    assert client.count() == 1
    assert place.named() == place.objects()
    client.enqueue("echo", [LARGE])
    assert client.count() == 2


def test_one_refused_payload_leaves_nothing_of_its_batch(place: Place) -> None:
    """All jobs or none, and no object of those before it."""
    client = place.client()
    client.enqueue("echo", ["x"])
    (place.folder / "objects").write_text("a file in place of the folder")
    with pytest.raises(ErgonError):
        client.enqueue("echo", [LARGE])
    (place.folder / "objects").unlink()
    client.enqueue("echo", [LARGE])
    before = place.objects()
    with no_file_larger_than(20_000), pytest.raises(StoreFullError):
        client.enqueue_many([("echo", [LARGE]), ("echo", [LARGE]), ("echo", [LARGE * 10])])
    assert (client.count(), place.objects()) == (2, before)


def test_an_object_store_that_is_away_refuses_new_jobs_and_holds_the_others(place: Place) -> None:
    """A clear error for the client, no charge for the job, and both go on afterwards."""
    client = place.client()
    job = client.enqueue("echo", [LARGE])
    folder = place.folder / "objects"
    aside = folder.rename(place.folder / "aside")
    with pytest.raises(StoreUnavailableError, match="a large payload cannot be kept in"):
        client.enqueue("echo", [LARGE])
    assert place.drain(settings(place.folder, held_delay=60.0)) == 0
    found = place.store.find(job)
    assert found is not None
    assert (found.attempts, found.why) == (0, "payload_object")
    assert "bring the folder back" in found.history[-1].decode()
    with pytest.raises(StoreUnavailableError):
        place.swept()
    aside.rename(folder)
    client.reschedule(job, delay=0)
    assert place.drain() == 1


def test_a_result_stays_in_its_row_when_the_object_store_is_away(place: Place) -> None:
    """The work is done, and must not be done again."""
    client = place.client()
    job = client.enqueue("grow", [])
    folder = place.folder / "objects"
    client.enqueue("echo", [LARGE])  # makes the folder

    def grow() -> str:
        folder.rename(place.folder / "aside")
        return LARGE

    assert place.drain(grow=grow, echo=lambda _text: None) >= 1
    assert client.result(job, timeout=5) == LARGE
    found = place.store.find(job)
    assert found is not None
    assert not names_object(found.result or b"")


def test_a_result_stays_in_its_row_whatever_is_raised(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the error is none that is known: nobody would settle the job."""

    def put(*_: Any) -> ObjectName:
        raise OSError("no such device")

    client = place.client()
    job = client.enqueue("grow", [])
    monkeypatch.setattr(PayloadObjects, "put", put)
    assert place.drain(grow=lambda: LARGE) == 1
    assert client.result(job, timeout=5) == LARGE


def test_a_zones_folder_is_refused(tmp_path: Path) -> None:
    """It would take payloads for orphans; and a zone refuses the folder of payloads."""
    open_object_store(tmp_path / "objects", zone="munich").close()
    with (
        JobClient(store=MemoryJobStore(), settings=settings(tmp_path)) as client,
        pytest.raises(ErgonError, match="holds the objects of zone 'munich'"),
    ):
        client.enqueue("echo", [LARGE])


@pytest.mark.parametrize(
    ("codec", "told"),
    [
        ({"objects": "ftp://host/x"}, "objects"),
        ({"objects": "file:///var/objects"}, "write a folder"),
        ({"objects": "s3://key:secret@bucket"}, "credentials"),
        ({"objects": "x", "objects_above": 10}, "objects_above"),
    ],
)
def test_a_place_that_can_be_none_is_refused(codec: dict[str, Any], told: str) -> None:
    """When the settings are read; nothing is opened."""
    with pytest.raises(ValueError, match=told):
        JobsSettings.model_validate({"codec": codec})


def test_a_folder_is_relative_to_the_settings_file(tmp_path: Path) -> None:
    """So that a client and a worker that were started elsewhere mean the same one."""
    file = tmp_path / "ergon.toml"
    file.write_text('[store]\nurl = "sqlite:///w.db"\n[jobs.codec]\nobjects = "payloads"\n')
    assert job_settings(file).jobs.codec.objects == str(tmp_path / "payloads")


def test_a_row_that_cannot_be_read_keeps_its_object(tmp_path: Path) -> None:
    """A search leaves it out; the row may name any object of its job."""
    with closing(SqliteJobStore(tmp_path / "work.db")) as store:
        place = Place(store, tmp_path)
        place.client().enqueue("echo", [LARGE], id="bad")
        with closing(sqlite3.connect(tmp_path / "work.db")) as connection:
            connection.execute("UPDATE ergon_jobs SET args = '{' WHERE id = 'bad'")
            connection.commit()
        assert place.swept() == 0
        assert place.drain() == 0  # sets the row aside
        assert place.swept() == 0
        (row,) = store.unreadable()
        store.discard_unreadable(row.key)
        assert place.swept() == 1


@pytest.mark.parametrize("size", [1020, 1021, 1022, 1023, 1024, 1025, 65_536])
def test_payloads_around_the_bound(place: Place, size: int) -> None:
    """Exactly what is larger than the bound goes out, brackets and quotes included."""
    client = place.client()
    job = client.enqueue("echo", ["x" * (size - len('[[""],{}]'))])
    row = place.store.find(job)
    assert row is not None
    assert names_object(row.args) == (size > 1024)
    assert place.drain() == 1


@pytest.mark.slow
@pytest.mark.parametrize("above", [None, 1000], ids=["plain", "compressed"])
def test_a_payload_of_a_hundred_megabytes(tmp_path: Path, above: int | None) -> None:
    """It comes back whole; what is beyond the bound of readers is not compressed."""
    place = Place(MemoryJobStore(), tmp_path)
    made = place.settings(compress_above=above).model_copy(update={"max_payload": 1 << 30})
    client = JobClient(store=place.store, settings=made)
    job = client.enqueue("length", ["x" * 100_000_000])
    assert len(client.find(job).args) < 400
    args = client.show(job)["args"]
    assert len(args[0]) == 100_000_000


# ---- real workers -------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_worker_fetches_and_writes_payloads(tmp_path: Path) -> None:
    """Arguments, results and results of steps, beside small ones; beyond a line it says so."""
    made = settings(tmp_path)
    store = MemoryJobStore()
    client = JobClient(store=store, settings=made)
    jobs = client.enqueue_many([("echo", [LARGE, n]) for n in range(20)])
    small = client.enqueue_many([("echo", [n]) for n in range(20)])
    flow = client.chain(("echo", [LARGE]), ("length", [])).enqueue()
    huge = client.enqueue("length", ["x" * (17 << 20)])
    large = client.enqueue("length", ["x" * (15 << 20)])
    with at_work(worker(store, executor=python(tmp_path), settings=made)):
        assert [client.result(each, timeout=60) for each in jobs] == [
            [[LARGE, n], {}] for n in range(20)
        ]
        assert [client.result(each, timeout=60) for each in small] == [[[n], {}] for n in range(20)]
        assert flow.result(timeout=60) == len(str([[LARGE], {}]))
        assert client.result(large, timeout=60) == 15 << 20
        wait_until(lambda: get(store, huge).status.is_final)
    found = get(store, huge)
    assert found.last_error is not None
    assert found.last_error.code == "invalid_request"
    assert "16777216 bytes" in found.last_error.message
    assert all(names_object(get(store, each).result or b"") for each in jobs)


@pytest.mark.slow
def test_a_slow_object_store_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other jobs run meanwhile, and the lease of the one that waits is renewed."""
    made = settings(tmp_path, lease=1.0)
    store = MemoryJobStore()
    client = JobClient(store=store, settings=made)
    slow = client.enqueue("echo", [LARGE])
    gate, read = threading.Event(), PayloadObjects.get

    def get_slowly(self: PayloadObjects, name: ObjectName) -> bytes:
        gate.wait(60.0)
        return read(self, name)

    monkeypatch.setattr(PayloadObjects, "get", get_slowly)
    with at_work(worker(store, executor=python(tmp_path), settings=made)):
        wait_until(lambda: get(store, slow).status is JobStatus.ACTIVE)
        first = get(store, slow).lease_expires_at or 0.0
        client.enqueue("echo", [1])
        wait_until(lambda: (get(store, slow).lease_expires_at or 0.0) > first + 2.0)
        gate.set()
        assert client.result(slow, timeout=60) == [[LARGE], {}]
    assert get(store, slow).deliveries == 1


@pytest.mark.slow
def test_results_that_wait_for_the_object_store_do_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker takes no more jobs while many bytes wait, and goes on when they are written."""
    made = settings(tmp_path, lease=1.0)
    store = MemoryJobStore()
    client = JobClient(store=store, settings=made)
    jobs = client.enqueue_many([("echo", [LARGE, n]) for n in range(30)])
    gate, write = threading.Event(), PayloadObjects.put

    def put_slowly(self: PayloadObjects, *given: Any) -> ObjectName:
        gate.wait(60.0)
        return write(self, *given)

    def active() -> list[Job]:
        return list(store.search(Search(statuses=(JobStatus.ACTIVE,))))

    def renewed_until() -> float:
        return min((each.lease_expires_at or 0.0 for each in active()), default=0.0)

    monkeypatch.setattr(PayloadObjects, "put", put_slowly)
    timing = WorkerTiming(max_to_write=3 * len(LARGE))
    with at_work(worker(store, executor=python(tmp_path), settings=made, timing=timing)):
        wait_until(lambda: len(active()) >= 3)
        first = renewed_until()
        wait_until(lambda: renewed_until() > first + 1.0)  # there was time for all of the others
        waiting_for_it = len(active())
        gate.set()
        assert [client.result(each, timeout=60)[0][1] for each in jobs] == list(range(30))
    assert waiting_for_it <= 6
    assert all(each.deliveries == 1 for each in store.search(Search()))


@pytest.mark.slow
def test_a_worker_that_stops_gives_back_what_it_has_not_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uncharged, and at once: nobody waits for the end of a lease."""
    made = settings(tmp_path, lease=60.0)
    store = MemoryJobStore()
    client = JobClient(store=store, settings=made)
    jobs = client.enqueue_many([("echo", [LARGE, n]) for n in range(3)])
    gate, read = threading.Event(), PayloadObjects.get

    def get_slowly(self: PayloadObjects, name: ObjectName) -> bytes:
        gate.wait(60.0)
        return read(self, name)

    monkeypatch.setattr(PayloadObjects, "get", get_slowly)
    subject = worker(store, executor=python(tmp_path), settings=made)
    with at_work(subject):
        wait_until(lambda: any(get(store, each).status is JobStatus.ACTIVE for each in jobs))
        subject.stop()
        threading.Timer(0.5, gate.set).start()
    found = [get(store, each) for each in jobs]
    assert {each.status for each in found} <= {JobStatus.PENDING, JobStatus.COMPLETED}
    assert all(each.attempts == 0 for each in found if each.status is JobStatus.PENDING)


@pytest.mark.slow
def test_one_worker_sweeps(tmp_path: Path) -> None:
    """Of those that have the setting the first by id, beside its work."""
    made = settings(tmp_path)
    store = MemoryJobStore()
    with at_work(worker(store, executor=python(tmp_path), settings=made)):
        wait_until(lambda: [each.has_objects for each in store.workers()] == [True])
    names = ["a", "b", "c"]
    records = [_record(name, has_objects=name != "a") for name in names]
    thread = object_sweep.SweepThread(Place(store, tmp_path).sweep(), lambda _name, _fields: None)
    assert [each.id for each in records[1:] if thread.is_turn_of(each, records)] == ["b"]


@pytest.mark.slow
def test_a_sweep_beside_clients_takes_nothing_from_them(tmp_path: Path) -> None:
    """Two processes enqueue while a third sweeps, without any age to protect what is new."""
    words = [sys.executable, str(PROGRAM)]
    users = [fork_server.start([*words, "enqueue", str(tmp_path), "150"]) for _ in range(2)]
    with closing(SqliteJobStore(tmp_path / "work.db")) as store:
        place = Place(store, tmp_path)
        wrapped = with_codec(store, place.settings())
        objects = codec_of(wrapped, place.settings()).objects
        assert objects is not None
        codec_of(wrapped, place.settings()).encode_result(msgspec.json.encode(LARGE), "of-no-row")
        # A client may stand still for seconds between its object and its row.
        ahead = 0.0
        sweep = object_sweep.ObjectSweep(
            wrapped, objects, min_age=-60.0, interval=60.0, now=lambda: time.monotonic() + ahead
        )
        while any(each.poll() is None for each in users):
            assert sweep.look() == 0
        assert [each.returncode for each in users] == [0, 0]
        sweep.look()
        ahead = 61.0
        assert sweep.look() == 1
        assert place.named() == place.objects()
        assert store.count(Search()) == len(place.objects()) == 300


def _record(name: str, *, has_objects: bool) -> WorkerRecord:
    return WorkerRecord(
        id=name, host="h", pid=1, version="1", started_at=0.0, has_objects=has_objects
    )
