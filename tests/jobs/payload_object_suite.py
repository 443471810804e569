"""What holds for payloads in an object store, whichever store the jobs are in; see ``CHECKS``."""

from __future__ import annotations

import base64
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ergon_framework.app.inline_worker import InlineWorker
from ergon_framework.app.jobs import JobSetup
from ergon_framework.app.move import payloads
from ergon_framework.app.settings import Settings
from ergon_framework.core.job import JobStatus, Succeeded
from ergon_framework.errors import DuplicateJobError, PayloadObjectError
from ergon_framework.executor import Registry
from ergon_framework.jobs import archiver, object_sweep, payload_codec_store
from ergon_framework.jobs.archive_files import JobArchive
from ergon_framework.jobs.claims import Claim
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.payload_codec import names_object, object_of
from ergon_framework.jobs.payload_objects import ObjectName, PayloadObjects
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.jobs.settlement import Settler
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.jobs.why import explain_job
from ergon_framework.ports.jobstore import FullJobStore, Search
from ergon_framework.ports.transfer import JobRecord, records_of
from tests import waiting
from tests.jobs.manual_worker import Hand
from tests.jobs.real_worker import get, history, quick

PRIVATE = "Alexandria-4711 "
LARGE = PRIVATE * 400
KEY = base64.b64encode(bytes(range(32))).decode()
DAY = 86_400.0


_NOBODY = ObjectName(b"", 0)


class Place:
    """A store of jobs, and a folder for their objects."""

    def __init__(self, store: FullJobStore, folder: Path) -> None:
        self.store = store
        self.folder = folder
        self.now = 0.0  # of sweeps; nobody sets it
        self.wall = time.time()  # of sweeps, too

    def settings(self, **codec: Any) -> JobsSettings:
        """Settings with this folder."""
        given = {"objects": str(self.folder / "objects"), "objects_above": 1024, **codec}
        return quick(codec=given, held_delay=0.01, result_ttl=0.01)

    def client(self, **codec: Any) -> JobClient:
        """A client with these settings."""
        return JobClient(store=self.store, settings=self.settings(**codec))

    def drain(self, settings: JobsSettings | None = None, **handlers: Callable[..., Any]) -> int:
        """Run what is due; how many jobs were completed."""
        registry = Registry()
        for name, call in ({"echo": echo, "length": length} | handlers).items():
            registry.add(call, name=name)
        setup = JobSetup("memory://", settings or self.settings())
        with InlineWorker(self.store, registry, setup=setup) as subject:
            return subject.drain().completed

    def objects(self) -> set[str]:
        """The digests of all objects that are there."""
        return {each.name for each in self.files()}

    def files(self) -> list[Path]:
        """The files of all objects."""
        return list((self.folder / "objects" / "sha256").glob("*/*/*"))

    def named(self) -> set[str]:
        """The digests of all objects that rows name."""
        found = set()
        for job in self.store.search(Search()):
            for payload in (job.args, job.result):
                name = object_of(payload)
                if name is not None:
                    found.add(name.digest.hex())
        return found

    def sweep(self, store: FullJobStore | None = None) -> object_sweep.ObjectSweep:
        """A sweep on clocks that the test sets."""
        wrapped = payload_codec_store.with_codec(store or self.store, self.settings())
        objects = payload_codec_store.codec_of(wrapped, self.settings()).objects
        assert objects is not None
        return object_sweep.ObjectSweep(
            wrapped, objects, interval=600.0, wall=lambda: self.wall, now=lambda: self.now
        )

    def swept(self, store: FullJobStore | None = None) -> int:
        """Look twice, long after everything was written; how many objects were removed."""
        sweep = self.sweep(store)
        self.wall += 2 * DAY
        removed = sweep.look()
        self.now += 600.0
        return removed + sweep.look()


def _until(condition: Callable[[], bool]) -> None:
    waiting.until(condition, "it", 20.0)


def _all(records: payloads.InlinedRecords) -> Iterator[JobRecord]:
    """Every job of a store, as it is copied."""
    after: Any = None
    while page := records.dump(JobRecord, after, 10):
        yield from page
        after = page[-1].sort_key


def echo(*args: Any, **kwargs: Any) -> Any:
    """What it was called with."""
    return [args, kwargs]


def length(value: Any) -> int:
    """How long the text of a value is."""
    return len(str(value))


def fail(*_args: Any) -> Any:
    """A handler that fails."""
    raise ValueError("no such picture")


def large_payloads_leave_the_row(place: Place) -> None:
    """Arguments and the result are objects, and their readers get them back."""
    with place.client() as client:
        job = client.enqueue("echo", [LARGE], {"size": 3})
        small = client.enqueue("echo", ["x"])
        row = get(place.store, job)
        assert names_object(row.args)
        assert len(row.args) + len(row.kwargs) < 400
        assert not names_object(get(place.store, small).args)
        assert client.show(job)["args"] == [LARGE]
        assert place.drain() == 2
        row = get(place.store, job)
        assert row.result is not None
        assert names_object(row.result)
        assert client.result(job, timeout=5) == [[LARGE], {"size": 3}]
        shown = client.show(job)
        assert shown["result"] == [[LARGE], {"size": 3}]
        assert "encoded" not in shown
        assert place.named() == place.objects()
        assert len(place.objects()) == 2


def payloads_are_encoded_before_they_leave(place: Place) -> None:
    """What is in the object store is compressed and encrypted; a payload may be small by then."""
    codec = {"active_key": "k", "keys": {"k": KEY}, "compress_above": 100}
    with place.client(**codec) as client:
        shrunk = client.enqueue("echo", [LARGE])
        assert not names_object(get(place.store, shrunk).args)
        noise = [PRIVATE, [secret * 7919 % 104_729 for secret in range(4000)]]
        job = client.enqueue("echo", noise)
        assert names_object(get(place.store, job).args)
        (file,) = (place.folder / "objects" / "sha256").glob("*/*/*")
        assert PRIVATE.encode() not in file.read_bytes()
        assert client.show(job)["args"] == noise
        assert place.drain(place.settings(**codec)) == 2
        assert client.result(job, timeout=5) == [noise, {}]


def an_object_is_there_before_its_row(place: Place) -> None:
    """Whoever sees the row can read the object."""
    seen: list[bool] = []
    add = place.store.add

    def watched(jobs: Any) -> Any:
        seen.extend(
            (object_of(job.args) or _NOBODY).digest.hex() in place.objects() for job in jobs
        )
        return add(jobs)

    with pytest.MonkeyPatch.context() as patch, place.client() as client:
        patch.setattr(place.store, "add", watched)
        client.enqueue("echo", [LARGE])
    assert seen == [True]


def whoever_lacks_the_setting_holds_the_job(place: Place) -> None:
    """No attempt is charged, ``why`` names the setting, and a worker that has it runs the job."""
    with place.client() as client:
        job = client.enqueue("echo", [LARGE])
        assert place.drain(quick(held_delay=60.0)) == 0
        held = get(place.store, job)
        assert (held.status, held.attempts, held.why) == (JobStatus.PENDING, 0, "payload_object")
        told = "\n".join(explain_job(held, None, [], place.store.now(), quick()))
        assert "set objects in [jobs.codec]" in told
        assert "No attempt was charged" in told
        shown = JobClient(store=place.store).show(job)
        assert shown["args"] is None
        assert "none is set here" in shown["encoded"]["args"]["problem"]
        client.reschedule(job, delay=0)
        assert place.drain() == 1
        assert client.result(job, timeout=5) == [[LARGE], {}]
        with pytest.raises(PayloadObjectError, match="none is set here"):
            JobClient(store=place.store).result(job, timeout=5)


def an_object_may_come_back(place: Place) -> None:
    """A job whose object is missing waits uncharged; it runs when the object is back."""
    with place.client() as client:
        job = client.enqueue("echo", [LARGE])
        (file,) = (place.folder / "objects" / "sha256").glob("*/*/*")
        aside = file.rename(place.folder / "aside")
        assert place.drain(place.settings().model_copy(update={"held_delay": 60.0})) == 0
        held = get(place.store, job)
        assert (held.status, held.attempts, held.why) == (JobStatus.PENDING, 0, "payload_object")
        assert "is not in" in history(held)[-1]["message"]
        assert "is not in" in client.show(job)["encoded"]["args"]["problem"]
        aside.rename(file)
        client.reschedule(job, delay=0)
        assert place.drain() == 1


def damage_is_a_dead_letter(place: Place) -> None:
    """It stays damaged; nothing is called with it, and it can be requeued when it is repaired."""
    with place.client() as client:
        job = client.enqueue("echo", [LARGE])
        (file,) = (place.folder / "objects" / "sha256").glob("*/*/*")
        good = file.read_bytes()
        for damaged in (good[:-1], good[:-9] + b"X" + good[-8:], b""):
            file.write_bytes(damaged)
            assert place.drain() == 0
            found = get(place.store, job)
            assert (found.status, found.attempts) == (JobStatus.FAILED, 0)
            assert found.last_error is not None
            assert found.last_error.code == "unreadable_payload"
            assert "is damaged" in found.last_error.message
            client.requeue(job)
        file.write_bytes(good)
        assert place.drain() == 1


def a_failed_job_keeps_its_object(place: Place) -> None:
    """It is retried and requeued with the same arguments, also after sweeps."""
    with place.client() as client:
        job = client.enqueue("echo", [LARGE], max_attempts=1)
        assert place.drain(echo=fail) == 0
        assert get(place.store, job).status is JobStatus.FAILED
        assert place.swept() == 0
        client.requeue(job)
        assert place.swept() == 0
        assert place.drain() == 1
        assert client.result(job, timeout=5) == [[LARGE], {}]


def duplicates_leave_no_object(place: Place) -> None:
    """Neither one that is dropped nor one that is refused; one that replaces has its own."""
    with place.client() as client:
        first = client.enqueue("echo", [LARGE], unique="k")
        before = place.objects()
        again = client.enqueue("echo", [LARGE, 2], unique="k")
        assert (again == first, again.is_new) == (True, False)
        with pytest.raises(DuplicateJobError):
            client.enqueue("echo", [LARGE, 3], unique="k", on_duplicate="reject")
        assert place.objects() == before
        other = client.enqueue("echo", [LARGE, 4], unique="k", on_duplicate="replace")
        assert place.named() == place.objects()
        assert place.swept() == 0
        assert place.drain() == 1
        assert client.result(other, timeout=5) == [[LARGE, 4], {}]


def an_extended_job_keeps_its_arguments(place: Place) -> None:
    """It has them from a job that never was: so they stay in the row, out of reach of a sweep."""
    with place.client() as client:
        first = client.enqueue("echo", [LARGE], unique="k", delay=60)
        options: dict[str, Any] = {"unique": "k", "on_duplicate": "extend"}
        assert client.enqueue("echo", [LARGE, 2], delay=60, **options) == first
        place.swept()
        assert client.show(first)["args"] == [LARGE, 2]
        client.reschedule(first, delay=0)
        assert place.drain() == 1
        assert client.result(first, timeout=5) == [[LARGE, 2], {}]


def results_are_handed_on(place: Place) -> None:
    """The next step gets a large result, and so does whoever asks the flow."""
    with place.client() as client:
        chain = client.chain(("echo", [LARGE]), ("length", [])).enqueue()
        assert place.drain() == 2
        assert chain.result(timeout=5) == len(str([[LARGE], {}]))
        group = client.group([("echo", [LARGE]), ("echo", [LARGE + "2"])], then=("echo", []))
        flow = group.enqueue()
        assert place.drain() == 3
        assert flow.result(timeout=5) == [[[[[LARGE], {}], [[LARGE + "2"], {}]]], {}]
        assert place.swept() == 0


def complete(place: Place, client: JobClient, value: Any) -> str:
    """Complete the next job with a result as a worker would; the id of the job."""
    codec = payload_codec_store.codec_of(client.store, client.settings)
    claim = Claim(Hand(client.store).claim())
    encoded = msgspec.json.encode(value)
    settler = Settler(client.settings, "w", codec)
    settled = settler.settle_claim(claim, Succeeded(), place.store.now(), 0.1, encoded)
    assert place.store.settle_and_claim([settled], None)[0] == [True]
    return claim.job.id


def a_lost_result_is_named_to_the_next_step(place: Place) -> None:
    """A missing one holds the step uncharged, a damaged one fails it, until it is brought back."""
    with place.client() as client:
        for damage, status in ((False, JobStatus.PENDING), (True, JobStatus.FAILED)):
            chain = client.chain(("echo", [LARGE]), ("length", [])).enqueue()
            first = complete(place, client, LARGE)
            name = object_of(get(place.store, first).result)
            assert name is not None
            (file,) = (place.folder / "objects").rglob(name.digest.hex())
            good = file.read_bytes()
            file.unlink()
            if damage:
                file.write_bytes(good[:-2] + b"zz")
            assert place.drain(place.settings().model_copy(update={"held_delay": 60.0})) == 0
            (step,) = place.store.search(Search(handler="length", statuses=(status,)))
            assert step.attempts == 0
            told = step.last_error.message if step.last_error else history(step)[-1]["message"]
            assert f"the result of the job {first} cannot be had" in told
            assert name.text in told
            file.write_bytes(good)
            if damage:
                chain.retry()
            else:
                client.reschedule(step.id, delay=0)
            assert place.drain() == 1
            assert chain.result(timeout=5) == len(LARGE)


def results_that_are_too_large_are_not_fetched(place: Place) -> None:
    """Their sizes are in the rows: nobody reads gigabytes to find that they are too many."""
    with place.client() as client:
        client.group([("echo", [n]) for n in range(6)], then=("length", [])).enqueue()
        for _ in range(6):
            complete(place, client, "x" * (3 << 20))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PayloadObjects, "get", lambda *_: pytest.fail("it was fetched"))
            assert place.drain() == 0
        (step,) = place.store.search(Search(handler="length"))
        assert step.last_error is not None
        assert step.last_error.code == "results_too_large"


def sweeps_may_meet(place: Place) -> None:
    """Two at once remove what no row names once, and nothing else."""
    with place.client() as client:
        kept = client.enqueue("echo", [LARGE])
        codec = payload_codec_store.codec_of(client.store, client.settings)
        for number in range(20):
            codec.encode_arguments(msgspec.json.encode([LARGE]), b"{}", f"no-row-{number}")
        sweeps = [place.sweep(), place.sweep()]
        place.wall += 2 * DAY
        for sweep in sweeps:
            assert sweep.look() == 0
        place.now += 600.0
        with ThreadPoolExecutor(2) as threads:
            assert sum(threads.map(lambda sweep: sweep.look(), sweeps)) == 20
        assert place.objects() == place.named()
        assert client.show(kept)["args"] == [LARGE]


def a_clock_that_jumps_costs_no_object(place: Place) -> None:
    """Set forward or back by an hour between two looks, whoever wrote an object keeps it."""
    with place.client() as client:
        job = client.enqueue("echo", [LARGE])
        codec = payload_codec_store.codec_of(client.store, client.settings)
        sweep = place.sweep()
        for step in (3600.0, -7200.0, 3600.0, 30 * DAY, -30 * DAY):
            place.wall += step
            codec.encode_arguments(msgspec.json.encode([LARGE]), b"{}", "of-no-row-yet")
            before = place.objects()
            assert sweep.look() == 0
            place.now += 599.0
            assert sweep.look() == 0
            assert place.objects() == before
        assert client.show(job)["args"] == [LARGE]


def a_sweep_removes_what_no_row_names(place: Place) -> None:
    """Objects of deleted jobs, and of results that came too late; never one that a row names."""
    with place.client() as client:
        kept = client.enqueue("echo", [LARGE])
        assert place.drain() == 1
        gone = client.enqueue("echo", [LARGE])
        waits = client.enqueue("echo", [LARGE], delay=60)
        client.cancel(gone)
        client.delete(gone)
        codec = payload_codec_store.codec_of(client.store, client.settings)
        late = codec.encode_result(msgspec.json.encode(LARGE), str(kept))
        assert names_object(late)
        assert len(place.objects() - place.named()) == 2
        assert place.swept() == 2
        assert place.objects() == place.named()
        assert client.result(kept, timeout=5) == [[LARGE], {}]
        assert client.show(waits)["args"] == [LARGE]


def a_fire_needs_no_object_store(place: Place) -> None:
    """It happens where leases are renewed; its answer may be lost, and it is carried out again."""
    with place.client() as client:
        client.schedules.put("report", "echo", [LARGE], cron="* * * * *")
        at = client.schedules.get("report").next_at
        assert at is not None
        jobs = [client.job("echo", [LARGE])]
        assert client.store.fire("report", at, at + 60.0, jobs)
        assert not client.store.fire("report", at, at + 60.0, jobs)
        assert place.objects() == set()
        shutil.rmtree(place.folder / "objects", ignore_errors=True)
        (place.folder / "objects").touch()  # it is away
        assert client.store.fire("report", at + 60.0, None, [client.job("echo", [LARGE])])
        (place.folder / "objects").unlink()
        seen: list[str] = []
        assert place.drain(echo=seen.append) == 2
        assert seen == [LARGE] * 2


def a_sweep_spares_what_is_young(place: Place) -> None:
    """Its row may come yet; and it takes two looks, however the clock was set in between."""
    with place.client() as client:
        client.enqueue("echo", [LARGE])
        codec = payload_codec_store.codec_of(client.store, client.settings)
        codec.encode_arguments(msgspec.json.encode([LARGE]), b"{}", "of-no-row")
        sweep = place.sweep()
        assert sweep.look() == 0
        place.now += 6000.0
        assert sweep.look() == 0  # a few seconds old
        place.wall += 30 * DAY  # by a clock that was set forward
        assert sweep.look() == 0
        place.now += 599.0
        assert sweep.look() == 0
        place.now += 1.0
        assert sweep.look() == 1
        assert place.objects() == place.named()


def a_sweep_spares_other_stores(place: Place) -> None:
    """Two stores may share a place: neither takes the other's objects for its own."""
    with place.client() as client:
        job = client.enqueue("echo", [LARGE])
        assert place.swept(MemoryJobStore()) == 0
        assert client.show(job)["args"] == [LARGE]


def the_archive_has_whole_jobs(place: Place) -> None:
    """What is in an archive needs no object any more."""
    with place.client() as client:
        job = client.enqueue("echo", [LARGE])
        assert place.drain() == 1
        archive = JobArchive(place.folder / "archive")
        subject = archiver.Archiver(client.store, archive)
        _until(lambda: subject.turn() == 1)
        assert place.store.find(job) is None
        assert place.swept() == 2
        line = archive.find(str(job))
        assert line is not None
        found = line.job()
        assert msgspec.json.decode(found.args) == [LARGE]
        assert msgspec.json.decode(found.result or b"") == [[LARGE], {}]


def an_archive_waits_for_the_object_store(place: Place) -> None:
    """Nothing is deleted that is not whole in the archive; a worker without the setting refuses."""
    with place.client() as client:
        job = client.enqueue("echo", [LARGE])
        assert place.drain() == 1
        archive = JobArchive(place.folder / "archive")
        _until(lambda: bool(place.store.prunable(1)))
        with pytest.raises(PayloadObjectError, match="none is set here"):
            archiver.Archiver(place.store, archive).turn()
        assert place.store.find(job) is not None


def an_archive_holds_what_is_lost(place: Place) -> None:
    """A job or a flow without its object stays in the store until that is back; others do not."""
    with place.client() as client:
        lost = client.enqueue("echo", [LARGE])
        flow = client.chain(("echo", [LARGE]), "length").enqueue()
        files = {file: file.read_bytes() for file in place.files()}
        other = client.enqueue("echo", [1])
        assert place.drain() == 4
        for file in files:
            file.unlink()
        archive = JobArchive(place.folder / "archive")
        subject = archiver.Archiver(client.store, archive)
        _until(lambda: subject.turn() == 1)
        _until(lambda: subject.turn() == 0 and len(subject.held) == 2)
        assert set(subject.held) == {str(lost), flow.id}
        assert [line.key for line in archive.lines()] == [str(other)]
        assert place.store.find(lost) is not None
        for file, content in files.items():
            file.write_bytes(content)
        subject.held.clear()  # as it is after a while
        assert [subject.turn(), subject.turn(), subject.turn()] == [1, 2, 0]
        line = archive.find(str(lost))
        assert line is not None
        assert msgspec.json.decode(line.job().args) == [LARGE]


def an_archive_takes_what_is_lost_when_it_may(place: Place) -> None:
    """Its row names the object then, as it did in the store."""
    with place.client() as client:
        lost = client.enqueue("echo", [LARGE])
        assert place.drain() == 1
        for file in place.files():
            file.unlink()
        archive = JobArchive(place.folder / "archive")
        subject = archiver.Archiver(client.store, archive, allows_lost=True)
        _until(lambda: subject.turn() == 1)
        line = archive.find(str(lost))
        assert line is not None
        assert names_object(line.job().args)
        assert place.store.find(lost) is None


def a_copy_has_whole_jobs(place: Place) -> None:
    """What is moved or exported runs in a store that knows of no objects."""
    codec = {"active_key": "k", "keys": {"k": KEY}}
    client = place.client(**codec)
    job = client.enqueue("echo", [LARGE])
    done = client.enqueue("echo", [LARGE])
    client.cancel(done)
    extensions = {"jobs": place.settings()}  # without the key
    records = payloads.InlinedRecords(
        records_of(place.store), lambda: Settings(extensions=extensions)
    )
    target = MemoryJobStore()
    copied = list(_all(records))
    target.records.load(copied)
    for each in place.objects():
        next((place.folder / "objects").rglob(each)).unlink()
    plain = quick(codec=codec)
    other = Place(target, place.folder)
    assert other.drain(plain) == 1
    assert JobClient(store=target, settings=plain).result(job, timeout=5) == [[LARGE], {}]


def a_copy_without_the_setting_is_refused(place: Place) -> None:
    """Half a copy would look like a whole one."""
    job = place.client().enqueue("echo", [LARGE])
    with pytest.raises(PayloadObjectError, match=str(job)) as caught:
        list(_all(payloads.InlinedRecords(records_of(place.store), Settings)))
    assert "[jobs.codec]" in caught.value.remedy


def erasing_lets_a_sweep_remove_the_object(place: Place) -> None:
    """A job that was erased names nothing any more."""
    with place.client() as client:
        job = client.enqueue("echo", [LARGE])
        assert place.drain() == 1
        client.store.erase([get(place.store, job)])
        assert place.named() == set()
        assert place.swept() == 2


def a_late_result_does_not_touch_the_first(place: Place) -> None:
    """Two workers write the result of one job; what the row names stays, the other goes."""
    with place.client() as client:
        job = client.enqueue("h", [])
        claimed = Hand(client.store).claim()
        codec = payload_codec_store.codec_of(client.store, client.settings)
        settler = Settler(client.settings, "w", codec)
        for number in (1, 2):
            result = msgspec.json.encode([number, LARGE])
            now = 60.0 * number  # one that is repeated is answered as it was the first time
            settled = settler.settle_claim(Claim(claimed), Succeeded(), now, 0.1, result)
            applied, _ = place.store.settle_and_claim([settled], None)
            assert applied == [number == 1]
        assert place.swept() == 1
        assert client.result(job, timeout=5) == [1, LARGE]


CHECKS = [
    large_payloads_leave_the_row,
    payloads_are_encoded_before_they_leave,
    an_object_is_there_before_its_row,
    whoever_lacks_the_setting_holds_the_job,
    an_object_may_come_back,
    damage_is_a_dead_letter,
    a_failed_job_keeps_its_object,
    duplicates_leave_no_object,
    an_extended_job_keeps_its_arguments,
    results_are_handed_on,
    a_lost_result_is_named_to_the_next_step,
    results_that_are_too_large_are_not_fetched,
    sweeps_may_meet,
    a_clock_that_jumps_costs_no_object,
    a_sweep_removes_what_no_row_names,
    a_fire_needs_no_object_store,
    a_sweep_spares_what_is_young,
    a_sweep_spares_other_stores,
    the_archive_has_whole_jobs,
    an_archive_waits_for_the_object_store,
    an_archive_holds_what_is_lost,
    an_archive_takes_what_is_lost_when_it_may,
    a_copy_has_whole_jobs,
    a_copy_without_the_setting_is_refused,
    erasing_lets_a_sweep_remove_the_object,
    a_late_result_does_not_touch_the_first,
]
