"""``ergon export`` and ``ergon import``: stores through a file, and files that are refused."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import stat
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from ergon_framework.app.move import export_file, record_file
from ergon_framework.app.move.record_file import RecordFile
from ergon_framework.app.move.transfer import TransferProgress
from ergon_framework.app.store_location import StoreLocation
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.boundary.store_urls import open_fact_store
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.errors import ConfigurationError, DataLossError, StoreError
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.ports.factstore import OUTBOUND
from ergon_framework.ports.transfer import JobRecord, move_state_of, records_of
from ergon_framework.testing.suites.factstore import records as fact_checks
from ergon_framework.testing.suites.factstore.under_test import FactStoreSubject as FactSubject
from ergon_framework.testing.suites.factstore.under_test import new as new_fact
from ergon_framework.testing.suites.jobstore import records as job_checks
from ergon_framework.testing.suites.jobstore.under_test import JobStoreSubject as JobSubject
from ergon_framework.testing.suites.jobstore.under_test import new as new_job
from tests.app.move.record_files import exported, imported, lines_of, rewritten
from tests.app.move.stock import ZONE, ergon, fact_sums, job_sums, moved, with_facts, with_jobs
from tests.app.move.test_providers import with_calls
from tests.app.move.test_record_format import RECORDS
from tests.campaign.parameter_sample import sampled

pytestmark = pytest.mark.req("SCALE:export")


def jobs(s: JobSubject) -> None:
    """Something of everything, and enough for several pages."""
    job_checks.fill(s)
    s.store.add([new_job(f"n{number}", priority=number % 3) for number in range(1200)])


def facts(s: FactSubject) -> None:
    """Something of everything, and enough for several pages."""
    fact_checks.fill(s)
    s.store.append(OUTBOUND, [new_fact(f"n{number}") for number in range(1200)])


@pytest.fixture
def old(tmp_path: Path) -> str:
    """A store of jobs on SQLite."""
    return with_jobs(f"sqlite:///{tmp_path}/old.db", jobs)


@pytest.fixture
def file(old: str, tmp_path: Path) -> Path:
    """What that store holds."""
    exported(old, tmp_path / "jobs.jsonl")
    return tmp_path / "jobs.jsonl"


@pytest.fixture
def new(tmp_path: Path) -> str:
    """Where a store is to be."""
    return f"sqlite:///{tmp_path}/new.db"


# ---- the lines ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_is_the_same_after_its_line(name: str) -> None:
    """Every kind, with every field set: what is read back has the same canonical bytes."""
    record = RECORDS[name]
    line = json.loads(record_file.line_of(record))
    again = type(record).from_document(line["record"])
    assert again.content == record.content
    assert record_file.line_of(again) == record_file.line_of(record)


def test_a_line_that_is_written_out() -> None:
    """The format is for others, too: this line does not change without a new schema."""
    assert record_file.line_of(RECORDS["schedule"]) == (
        b'{"kind":"schedule","key":"nightly","record":{"schedule":{"name":"nightly",'
        b'"cron":"0 3 * * *","zone":"Europe/Berlin","misfire":"once",'
        b'"job":"{\\"handler\\":\\"greet\\"}","next_at":1700000100.0,"last_at":null,'
        b'"is_paused":true,"source":"settings"}}}\n'
    )


def test_bytes_that_are_no_text_are_base64() -> None:
    """A result may be anything; its arguments are text."""
    job = json.loads(record_file.line_of(RECORDS["job"]))["record"]["job"]
    assert job["result"] == {"base64": "/wA="}
    assert json.loads(job["args"]) == ["Ada"]
    assert "key" not in job
    assert "is_limited" not in job


def test_tags_are_written_where_there_are_any() -> None:
    """A job without tags has the line that earlier versions write and read."""
    record = RECORDS["job"]
    assert isinstance(record, JobRecord)
    plain = JobRecord(msgspec.structs.replace(record.job, tags=(), metadata=None), 2.0)
    line = json.loads(record_file.line_of(plain))
    assert not {"tags", "metadata"} & line["record"]["job"].keys()
    assert JobRecord.from_document(line["record"]).content == plain.content
    labels = {"tags": ("a", "b"), "metadata": {"k": "v"}}
    tagged = JobRecord(msgspec.structs.replace(plain.job, **labels), 2.0)
    line = json.loads(record_file.line_of(tagged))
    assert (line["record"]["job"]["tags"], line["record"]["job"]["metadata"]) == (
        ["a", "b"],
        {"k": "v"},
    )
    assert JobRecord.from_document(line["record"]).content == tagged.content


def test_header_and_trailer(file: Path) -> None:
    """They say what is in the file; the digest can be worked out without Ergon."""
    lines = file.read_bytes().splitlines(keepends=True)
    header, trailer = json.loads(lines[0]), json.loads(lines[-1])
    assert (header["format"], header["version"]) == ("ergon-records", 1)
    assert (header["parts"], header["zone"], header["schema"]) == (["jobs"], None, {"jobs": 1})
    assert trailer["records"] == len(lines) - 2
    assert trailer["digest"] == "sha256:" + hashlib.sha256(b"".join(lines[1:-1])).hexdigest()
    assert {kind: each["count"] for kind, each in trailer["kinds"].items()} == {
        "queue": 2,
        "job": 1209,
        "schedule": 2,
    }


# ---- there and back -----------------------------------------------------------------------------


def test_jobs_come_back_the_same(old: str, file: Path, new: str, tmp_path: Path) -> None:
    """The same digests as those of a move, and an export of the new store is the same file."""
    found = imported(file, new)
    assert job_sums(new) == job_sums(old)
    moved(old, f"sqlite:///{tmp_path}/moved.db")
    assert job_sums(f"sqlite:///{tmp_path}/moved.db") == job_sums(new)
    exported(new, tmp_path / "again.jsonl")
    assert lines_of(tmp_path / "again.jsonl") == lines_of(file)
    assert {each.kind: each.copied for each in found.moved}["jobs"] == 1209
    open_store(new).close()


@pytest.mark.slow
def test_jobs_go_round_the_engines(
    file: Path, tmp_path: Path, postgres_url: str, redis_url: str
) -> None:
    """From a file of SQLite to PostgreSQL, to Redis, and back: the same bytes each time."""
    way, before = [postgres_url, redis_url, f"sqlite:///{tmp_path}/last.db"], file
    for number, url in enumerate(way):
        imported(before, url)
        after = tmp_path / f"{number}.jsonl"
        exported(url, after)
        assert lines_of(after) == lines_of(file), url
        before = after


@pytest.mark.slow
def test_facts_go_round_the_engines(tmp_path: Path, postgres_url: str, nats_url: str) -> None:
    """All of a zone, its epoch and its hash chain included."""
    source = with_facts(f"sqlite:///{tmp_path}/facts.db", facts)
    first = tmp_path / "facts.jsonl"
    exported(source, first, zone=ZONE)
    (tmp_path / "last").mkdir()
    before = first
    for number, url in enumerate((postgres_url, nats_url, f"sqlite:///{tmp_path}/last/facts.db")):
        imported(before, url)
        after = tmp_path / f"{number}.jsonl"
        exported(url, after, zone=ZONE)
        assert lines_of(after) == lines_of(first), url
        before = after
    assert fact_sums(f"sqlite:///{tmp_path}/last/facts.db") == fact_sums(source)


def test_a_zone_comes_back_with_its_objects(zone: Path, tmp_path: Path) -> None:
    """Bytes that two names stand for are in the file once; each is what it was."""
    file = tmp_path / "zone.jsonl"
    found = exported(zone, file)
    assert (found.header.zone, found.trailer.objects) == (ZONE, 2)
    imported(file, tmp_path / "restored")
    with LocalZone.open(ZONE, ZoneSettings(data=str(tmp_path / "restored"))) as there:
        kept = {each.key: each for each in there.store.objects(after=("", ""), limit=9)}
        assert sorted(kept) == ["also-one", "one", "two"]
        for key, data in (("one", b"one" * 1000), ("two", b"two" * 500_000)):
            download = there.objects.open(kept[key].digest)
            assert download is not None
            with closing(download):
                assert download.read(1 << 22) == data
    exported(tmp_path / "restored", tmp_path / "again.jsonl")
    assert lines_of(tmp_path / "again.jsonl") == lines_of(file)


def test_a_zone_without_the_bytes_of_its_objects(zone: Path, tmp_path: Path) -> None:
    """They can be left out of the file, and of what is imported."""
    file = tmp_path / "zone.jsonl"
    assert exported(zone, file, has_objects=False).notes == [
        "the bytes of objects are not in the file"
    ]
    assert imported(file, tmp_path / "one").notes == ["the bytes of objects were not imported"]
    exported(zone, tmp_path / "whole.jsonl")
    url = f"sqlite:///{tmp_path}/two/facts.db"
    with pytest.raises(ConfigurationError, match="nothing says where they go"):
        imported(tmp_path / "whole.jsonl", url)
    assert not (tmp_path / "two").exists()
    imported(tmp_path / "whole.jsonl", url, objects=str(tmp_path / "blobs"))
    assert any((tmp_path / "blobs").rglob("*"))


def test_provider_calls_come_back_the_same(tmp_path: Path, new: str) -> None:
    """Beside the jobs of the same database, all tables of them."""
    source = with_calls(with_jobs(f"sqlite:///{tmp_path}/old.db"))
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    assert exported(source, first).header.parts == ("provider calls", "jobs")
    imported(first, new)
    exported(new, second)
    assert lines_of(second) == lines_of(first)
    assert json.loads(lines_of(first)[-1])["kinds"]["provider_row"]["count"] > 0


@pytest.mark.slow
def test_provider_calls_go_to_postgresql(tmp_path: Path, postgres_url: str) -> None:
    """Instants, numbers and bytes are the same in both engines."""
    source = with_calls(with_jobs(f"sqlite:///{tmp_path}/old.db"))
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    exported(source, first)
    imported(first, postgres_url)
    exported(postgres_url, second)
    assert lines_of(second) == lines_of(first)


# ---- files that are refused ---------------------------------------------------------------------

Change = Callable[[list[bytes]], list[bytes]]


def _edited(lines: list[bytes]) -> list[bytes]:
    return [line.replace(b'"priority":1', b'"priority":9') for line in lines]


CHANGES: dict[str, tuple[Change, str]] = {
    "no trailer": (lambda lines: lines[:-1], "is cut off"),
    "within a line": (lambda lines: [*lines[:-3], lines[-3][:40]], "is cut off"),
    "header alone": (lambda lines: lines[:0], "is cut off"),
    "edited": (_edited, "was changed since it was written"),
    "a line taken out": (lambda lines: [*lines[:5], *lines[6:]], "was changed since"),
    "two jobs exchanged": (
        lambda lines: [*lines[:5], lines[6], lines[5], *lines[7:]],
        "was changed since",
    ),
    "kinds exchanged": (lambda lines: [lines[2], lines[0], *lines[3:]], "cannot follow a"),
    "a line twice": (lambda lines: [lines[0], *lines], "is twice there"),
    "a line too many": (lambda lines: [*lines, lines[4]], "something follows the trailer"),
    "unknown kind": (
        lambda lines: [lines[0].replace(b'"queue"', b'"cue"', 1), *lines[1:]],
        "have no records of kind 'cue'",
    ),
    "unknown field": (
        lambda lines: [lines[0].replace(b'"burst"', b'"bust"'), *lines[1:]],
        "burst is missing, 'bust' is unknown",
    ),
    "another key": (
        lambda lines: [lines[0].replace(b'"key":"', b'"key":"x'), *lines[1:]],
        "is not that of its record",
    ),
    "a wrong value": (
        lambda lines: [lines[0].replace(b'"burst":', b'"burst":"x",'[:8] + b'"x",'), *lines[1:]],
        "line 2 of",
    ),
    "binary": (lambda lines: [bytes(range(256)) + b"\n", *lines], "line 2 of"),
    "deep": (lambda lines: [b"[" * 200_000 + b"\n", *lines], "line 2 of"),
    "not UTF-8": (lambda lines: [lines[0].replace(b"queue", b"qu\xffue", 1), *lines], "line 2 of"),
    "a blank line": (lambda lines: [lines[0], b"\n", *lines[1:]], "line 3 of"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_damaged_file_is_refused(change: str, file: Path, new: str, tmp_path: Path) -> None:
    """Before anything is written: there is no new store, not even an empty one."""
    edit, told = CHANGES[change]
    with pytest.raises(StoreError, match=told):
        imported(rewritten(file, edit(lines_of(file))), new)
    assert not (tmp_path / "new.db").exists()


def test_a_line_without_an_end_is_refused(file: Path) -> None:
    """Memory is bounded by the longest line that an export makes."""
    other = rewritten(file, [b"x" * 5000 + b"\n", *lines_of(file)])
    with other.open("rb") as opened:
        records = RecordFile(opened, "F", max_line=4096)
        with pytest.raises(StoreError, match="line 2 of F is damaged: it is longer than 4096"):
            records.check(lambda _: None, may_be_cut_off=True)


HEADERS = {
    "empty": (b"", "is empty"),
    "binary": (bytes(range(256)) * 1000, "is no file of records"),
    "gzip": (b"\x1f\x8b\x08\x00" + bytes(100), "gunzip -c FILE.gz"),
    "other JSON": (b'{"format":"else"}\n', "is no file of records"),
    "a list": (b"[]\n", "is no file of records"),
    "newer": (b'{"format":"ergon-records","version":2}\n', "has version 2 of the format"),
    "no version": (b'{"format":"ergon-records"}\n', "has version 'none' of the format"),
    "nothing more": (b'{"format":"ergon-records","version":1}\n', "line 1 of .* is damaged"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_another_file_is_refused(name: str, tmp_path: Path, new: str) -> None:
    """By its first line."""
    data, told = HEADERS[name]
    (tmp_path / "odd").write_bytes(data)
    with pytest.raises((ConfigurationError, StoreError), match=told):
        imported(tmp_path / "odd", new)
    assert not (tmp_path / "new.db").exists()


def test_records_of_another_schema_are_refused(file: Path, tmp_path: Path, new: str) -> None:
    """The header says what the fields mean."""
    text = file.read_bytes().replace(b'"schema":{"jobs":1}', b'"schema":{"jobs":2}', 1)
    (tmp_path / "newer").write_bytes(text)
    with pytest.raises(ConfigurationError, match="have the schema 2, and this program reads 1"):
        imported(tmp_path / "newer", new)


def test_a_store_of_another_kind_is_refused(file: Path, tmp_path: Path) -> None:
    """Jobs do not go into a zone's folder, nor facts into Redis."""
    with pytest.raises(ConfigurationError, match="is a store of facts"):
        imported(file, tmp_path / "zone")
    assert not (tmp_path / "zone").exists()
    source = with_facts(f"sqlite:///{tmp_path}/facts.db")
    exported(source, tmp_path / "facts.jsonl", zone=ZONE)
    with pytest.raises(ConfigurationError, match="is a store of jobs"):
        imported(tmp_path / "facts.jsonl", "redis://localhost:1/0")


def test_provider_calls_are_not_left_behind_unnoticed(tmp_path: Path) -> None:
    """Redis has no tables for them."""
    source = with_calls(with_jobs(f"sqlite:///{tmp_path}/old.db"))
    exported(source, tmp_path / "a.jsonl")
    with pytest.raises(ConfigurationError, match="holds provider calls, and redis"):
        imported(tmp_path / "a.jsonl", "redis://localhost:1/0")


def test_a_file_that_was_cut_off_may_be_taken(file: Path, tmp_path: Path, new: str) -> None:
    """Whoever says so gets the records before the cut, and is told."""
    other = rewritten(file, [*lines_of(file)[:502], b'{"kind":"job","key'])
    found = imported(other, new, may_be_cut_off=True)
    assert job_sums(new)["JobRecord"].count == 500
    assert found.notes == [f"{other} is cut off: what followed is not in TO"]
    open_store(new).close()


def test_facts_that_were_cut_off_may_be_taken(tmp_path: Path) -> None:
    """The store keeps an epoch of its own: it is not the zone that it was."""
    source = with_facts(f"sqlite:///{tmp_path}/facts.db", facts)
    exported(source, tmp_path / "facts.jsonl", zone=ZONE)
    lines = lines_of(tmp_path / "facts.jsonl")
    other = rewritten(tmp_path / "facts.jsonl", lines[:600])
    imported(other, tmp_path / "new", may_be_cut_off=True)
    found = fact_sums(f"sqlite:///{tmp_path}/new/facts.db")
    assert found["FactRecord"].count == 600 - found["LogRecord"].count
    assert found["ZoneEpochRecord"] != fact_sums(source)["ZoneEpochRecord"]


def test_facts_may_be_cut_off_after_any_record(tmp_path: Path) -> None:
    """Also among the ids: those of the facts before are made with the facts, and nothing is odd."""
    source = with_facts(f"sqlite:///{tmp_path}/facts.db")
    exported(source, tmp_path / "facts.jsonl", zone=ZONE)
    lines = lines_of(tmp_path / "facts.jsonl")
    kinds = [json.loads(line)["kind"] for line in lines[:-1]]
    whole, ids = fact_sums(source), kinds.index("fact_id")
    for count in range(ids, len(kinds) + 1):
        new = tmp_path / f"new-{count}"
        for _ in range(2):  # and the same again has nothing to do
            imported(rewritten(tmp_path / "facts.jsonl", lines[:count]), new, may_be_cut_off=True)
        found = fact_sums(f"sqlite:///{new}/facts.db")
        assert found["FactRecord"] == whole["FactRecord"]
        if count >= ids + kinds.count("fact_id"):
            assert found["FactIdRecord"] == whole["FactIdRecord"]


# ---- stores that are refused --------------------------------------------------------------------


def test_a_store_that_is_not_empty_is_refused(file: Path, new: str) -> None:
    """Nothing of it is touched."""
    with_jobs(new, lambda s: s.put("mine"))
    before = job_sums(new)
    with pytest.raises(StoreError, match="holds jobs already, and they are not of this import"):
        imported(file, new)
    with pytest.raises(StoreError, match="holds jobs already"):
        imported(rewritten(file, lines_of(file)[:-1]), new, may_be_cut_off=True)
    assert job_sums(new) == before
    open_store(new).close()


def test_the_same_import_again_finds_nothing_to_do(file: Path, new: str) -> None:
    """Unless somebody has worked there since."""
    imported(file, new)
    assert sum(each.copied for each in imported(file, new).moved) == 0
    with_jobs(new, lambda s: s.put("mine"))
    with pytest.raises(StoreError, match="has been in use since jobs were imported there"):
        imported(file, new)


def test_another_import_is_refused(file: Path, new: str, tmp_path: Path) -> None:
    """A store holds what one file said."""
    imported(file, new)
    exported(with_jobs(f"sqlite:///{tmp_path}/b.db"), tmp_path / "b.jsonl")
    with pytest.raises(StoreError, match="holds jobs of another source than this file: records"):
        imported(tmp_path / "b.jsonl", new)


def test_a_conflict_is_refused_with_its_key(file: Path, new: str, tmp_path: Path) -> None:
    """Somebody who got past the mark is not overwritten: the import says which job differs."""
    died = ergon("import", str(file), new, failpoints="move.jobs.after_commit=kill@3")
    assert died.returncode == -signal.SIGKILL, died.stderr
    with closing(open_store(new, half_moved=True)) as store:
        job = store.find("n7")
        assert job is not None
        changed = JobRecord(msgspec.structs.replace(job, priority=77), job.created_at)
        records_of(store).load([changed])
    with pytest.raises(StoreError, match=r"the job n7 in .* differs from that in the file"):
        imported(file, new)
    with closing(open_store(new, half_moved=True)) as store:
        found = store.find("n7")
        assert found is not None
        assert found.priority == 77


def test_a_trial_writes_nothing(file: Path, new: str, tmp_path: Path) -> None:
    """The file is read through, and what would be written is told."""
    found = imported(file, new, is_trial=True)
    assert {each.kind: each.copied for each in found.moved}["jobs"] == 1209
    assert not (tmp_path / "new.db").exists()
    with pytest.raises(StoreError, match="is cut off"):
        imported(rewritten(file, lines_of(file)[:-1]), new, is_trial=True)


VALUES = {
    "a number that is too large": ({"priority": 1 << 70}, "priority: a whole number of 64 bits"),
    "an instant that is none": ({"run_at": 1e300}, "run_at: not a point in time"),
    "a state that is none": ({"status": "odd"}, "status: one of pending, active"),
    "true for a number": ({"attempts": True}, "attempts: a whole number of 64 bits is wanted"),
    "half a character": ({"why": "\ud800"}, "it is no record: JSON is malformed"),
    "odd Base64": ({"result": {"base64": "%"}}, "result: a text or Base64 is wanted"),
    "what a store adds": ({"is_limited": True}, "key is missing"),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_that_no_store_has(name: str, file: Path, new: str, tmp_path: Path) -> None:
    """The line and the field are told, and nothing of what stands there; nothing is written."""
    changes, told = VALUES[name]
    lines = lines_of(file)
    line = json.loads(lines[2])
    line["record"]["job"].update(changes)
    other = rewritten(file, [*lines[:2], json.dumps(line).encode() + b"\n"])
    with pytest.raises(StoreError, match="line 4 of") as caught:
        imported(other, new, may_be_cut_off=True)
    assert told in caught.value.message
    assert not (tmp_path / "new.db").exists()


def test_a_job_that_is_twice_there(file: Path, new: str) -> None:
    """It is never called whole: both sides are compared."""
    lines = lines_of(file)
    other = rewritten(file, [*lines[2:6], lines[2]])
    with pytest.raises(StoreError, match="does not hold the same jobs: 5 of them"):
        imported(other, new, may_be_cut_off=True)
    with pytest.raises(StoreError, match="an import into this store has not ended"):
        open_store(new)


def test_errors_name_the_store_and_not_its_copy(old: str, tmp_path: Path) -> None:
    """A store on SQLite is read from a copy, which nobody knows."""
    with pytest.raises(ConfigurationError, match=f"{tmp_path}/old.db has no zone 'x'"):
        exported(old, tmp_path / "x.jsonl", zone="x")
    with pytest.raises(ConfigurationError, match=f"is written sqlite:///{tmp_path}/old.db"):
        exported(tmp_path / "old.db", tmp_path / "x.jsonl")


def test_a_link_to_a_store_is_followed(old: str, file: Path, tmp_path: Path) -> None:
    """As it is by whoever works with the store."""
    (tmp_path / "link.db").symlink_to(tmp_path / "old.db")
    exported(f"sqlite:///{tmp_path}/link.db", tmp_path / "again.jsonl")
    assert lines_of(tmp_path / "again.jsonl") == lines_of(file)


def test_memory_is_refused(file: Path, tmp_path: Path) -> None:
    """What is there is gone when the command ends."""
    with pytest.raises(ConfigurationError, match="a store in memory"):
        imported(file, "memory://")
    with pytest.raises(ConfigurationError, match="a store in memory"):
        exported("memory://", tmp_path / "x.jsonl")


# ---- cut off ------------------------------------------------------------------------------------

STEPS = (
    "move.part.begun=kill",
    "move.jobs.before_commit=kill@2",
    "move.jobs.after_commit=kill@3",
    "move.part.copied=kill",
    "move.part.verified=kill",
    "move.part.ended=kill",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "step"),
    sampled(
        [(place, step) for place in ("file", "postgres_url", "redis_url") for step in STEPS],
        [
            *(("file", step) for step in STEPS[::2]),
            ("postgres_url", STEPS[2]),
            ("redis_url", STEPS[1]),
        ],
    ),
)
def test_an_import_that_was_killed_goes_on(
    place: str, step: str, old: str, file: Path, new: str, request: pytest.FixtureRequest
) -> None:
    """Until it has ended nobody works there; run again, everything is there once."""
    url = new if place == "file" else request.getfixturevalue(place)
    died = ergon("import", str(file), url, failpoints=step)
    assert died.returncode == -signal.SIGKILL, died.stderr
    if "ended" not in step:
        with pytest.raises(StoreError, match="an import into this store has not ended"):
            open_store(url)
    imported(file, url)
    assert job_sums(url) == job_sums(old)
    open_store(url).close()


@pytest.mark.slow
@pytest.mark.parametrize("step", ["boundary.move.after=kill@3", "move.object.after=kill"])
def test_an_import_of_a_zone_that_was_killed_goes_on(step: str, zone: Path, tmp_path: Path) -> None:
    """Its objects included."""
    with LocalZone.open(ZONE, ZoneSettings(data=str(zone))) as there:
        there.store.append(OUTBOUND, [new_fact(f"n{number}") for number in range(1200)])
    file, target = tmp_path / "zone.jsonl", tmp_path / "new"
    exported(zone, file)
    died = ergon("import", str(file), str(target), failpoints=step)
    assert died.returncode == -signal.SIGKILL, died.stderr
    with pytest.raises(StoreError, match="an import into this store has not ended"):
        LocalZone.open(ZONE, ZoneSettings(data=str(target)))
    imported(file, target)
    exported(target, tmp_path / "again.jsonl")
    assert lines_of(tmp_path / "again.jsonl") == lines_of(file)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["export.page.written=kill@2", "export.file.synced=kill"])
def test_an_export_that_was_killed_leaves_no_file(step: str, old: str, tmp_path: Path) -> None:
    """Under its name there is a whole file or none; the next export does not mind the rest."""
    file = tmp_path / "x.jsonl"
    died = ergon("export", old, str(file), failpoints=step)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert not file.exists()
    exported(old, file)
    assert json.loads(lines_of(file)[-1])["records"] == 1213


def test_a_full_disk_is_told(old: str, tmp_path: Path) -> None:
    """Nothing is left behind."""
    told = ergon("export", old, str(tmp_path / "x.jsonl"), failpoints="export.file.synced=error")
    assert told.returncode == 1
    assert f"{tmp_path}/x.jsonl cannot be written" in told.stderr
    assert sorted(each.name for each in tmp_path.iterdir() if "x.jsonl" in each.name) == []
    assert not list(tmp_path.glob(".ergon-export-*"))


def test_two_imports_of_one_file_at_once(old: str, file: Path, new: str) -> None:
    """Both write the same; in the end everything is there once."""
    told: list[BaseException] = []

    def work() -> None:
        try:
            imported(file, new)
        except BaseException as error:
            told.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    imported(file, new)
    assert job_sums(new) == job_sums(old), told


def test_two_imports_of_two_files_at_once(file: Path, new: str, tmp_path: Path) -> None:
    """One wins or neither does; never is a store called whole that holds some of both."""
    other = with_jobs(
        f"sqlite:///{tmp_path}/b.db", lambda s: s.store.add([new_job(f"o{n}") for n in range(900)])
    )
    exported(other, tmp_path / "b.jsonl")
    told: list[BaseException] = []

    def work(which: Path) -> None:
        try:
            imported(which, new)
        except StoreError as error:
            told.append(error)

    threads = [threading.Thread(target=work, args=(f,)) for f in (file, tmp_path / "b.jsonl")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with closing(open_store(new, half_moved=True)) as store:
        mark = move_state_of(store)
    assert told
    if mark.sums is not None:
        assert job_sums(new)["JobRecord"].count in (900, 1209)


# ---- while it is in use -------------------------------------------------------------------------


def test_a_file_of_sqlite_is_exported_while_it_is_written_to(old: str, tmp_path: Path) -> None:
    """Every file is the state of one instant: jobs are added ten at once, and all ten are there."""
    ended = threading.Event()

    def work() -> None:
        with closing(open_store(old)) as store:
            number = 0
            while not ended.is_set():
                store.add([new_job(f"w{number}-{each}") for each in range(10)])
                number += 1

    writer = threading.Thread(target=work)
    writer.start()
    try:
        for number in range(3):
            file = tmp_path / f"{number}.jsonl"
            exported(old, file)
            count = json.loads(lines_of(file)[-1])["kinds"]["job"]["count"]
            assert (count - 1209) % 10 == 0
            imported(file, f"sqlite:///{tmp_path}/{number}.db")
    finally:
        ended.set()
        writer.join()


@pytest.mark.slow
@pytest.mark.parametrize("late", [2, 99])
def test_a_server_is_read_until_it_is_twice_the_same(
    late: int, redis_url: str, file: Path, tmp_path: Path
) -> None:
    """What came while it was read is in the file as well; a store that never rests is told."""
    imported(file, redis_url)
    added = 0

    def tell(told: TransferProgress) -> None:
        nonlocal added
        if told.what == "comparing jobs" and added < late:
            added += 1
            with closing(open_store(redis_url)) as store:
                store.add([new_job(f"late{added}")])

    def export() -> export_file.Exported:
        with closing(export_file.FileOutput(tmp_path / "x.jsonl")) as output:
            found = export_file.run(export_file.Exporting(StoreLocation(redis_url)), output, tell)
            output.commit()
            return found

    if late == 2:
        assert export().trailer.kinds["job"].count == 1209 + late
    else:
        with pytest.raises(StoreError, match="goes on changing: it was read 5 times"):
            export()
    assert (tmp_path / "x.jsonl").exists() == (late == 2)


def test_an_object_that_is_missing_is_told(zone: Path, tmp_path: Path) -> None:
    """A backup that lacks something is none."""
    [found] = [
        each
        for each in (zone / "objects").rglob("*")
        if each.is_file() and each.stat().st_size == 1_500_000
    ]
    data = found.read_bytes()
    found.chmod(0o600)
    found.write_bytes(b"x" + data[1:])
    with pytest.raises(DataLossError, match="the bytes of files/two are damaged"):
        exported(zone, tmp_path / "a.jsonl")
    found.unlink()
    with pytest.raises(DataLossError, match="the bytes of files/two are not in"):
        exported(zone, tmp_path / "a.jsonl")
    assert not list(tmp_path.glob("*a.jsonl*"))


# ---- files beside other users -------------------------------------------------------------------


def test_a_file_is_for_its_owner(file: Path) -> None:
    """Whatever the umask."""
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_file_that_is_there_is_not_replaced(old: str, file: Path, tmp_path: Path) -> None:
    """Unless it is said; a link never is."""
    with pytest.raises(ConfigurationError, match="is there already"):
        exported(old, file)
    (tmp_path / "link").symlink_to(file)
    for name, how in (("link", []), ("link", ["--overwrite"])):
        told = ergon("export", old, str(tmp_path / name), *how)
        assert told.returncode == 2, told.stderr
    assert (tmp_path / "link").is_symlink()
    told = ergon("export", old, str(tmp_path / "old.db"), "--overwrite")
    assert (told.returncode, "nothing else is replaced" in told.stderr) == (2, True)
    assert ergon("export", old, str(file), "--overwrite").returncode == 0


def test_a_link_is_not_read(file: Path, tmp_path: Path, new: str) -> None:
    """Somebody else may have made it; the shell opens it for whoever insists."""
    (tmp_path / "link").symlink_to(file)
    with pytest.raises(ConfigurationError, match="it is a symbolic link"):
        imported(tmp_path / "link", new)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        imported(tmp_path / "pipe", new)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        imported(tmp_path / "nothing", new)


def test_facts_that_are_there_already(tmp_path: Path) -> None:
    """A zone that has appended anything is not empty."""
    source = with_facts(f"sqlite:///{tmp_path}/facts.db")
    exported(source, tmp_path / "facts.jsonl", zone=ZONE)
    (tmp_path / "other").mkdir()
    url = f"sqlite:///{tmp_path}/other/facts.db"
    with_facts(url, lambda s: s.put("mine"))
    with pytest.raises(StoreError, match="holds facts already"):
        imported(tmp_path / "facts.jsonl", url)
    with closing(open_fact_store(url, zone=ZONE)) as store:
        assert move_state_of(store).source == ""
