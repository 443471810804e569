"""The canonical bytes of one record of every kind, as literals.

Digests over these bytes are written down in stores that were filled by a move, so they outlive the
program: a renamed field or class must not change one of them.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ergon_framework.app.move.transfer import RunningDigest, all_records, digest_of
from ergon_framework.boundary.store_urls import open_fact_store
from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.flow import FlowState, FlowStatus, OnFailure
from ergon_framework.core.job import JobStatus
from ergon_framework.core.unique import UniqueRule
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.ports.factstore import (
    ConsumerInfo,
    Gap,
    Link,
    Quarantined,
    StoredFact,
    StoredObject,
    StoreInfo,
)
from ergon_framework.ports.flow import Flow, Join
from ergon_framework.ports.jobstore import Job, Schedule
from ergon_framework.ports.transfer import (
    FACT_KINDS,
    JOB_KINDS,
    AwaitedObjectRecord,
    ConsumerCursorRecord,
    FactIdRecord,
    FactRecord,
    FlowRecord,
    GapRecord,
    JobRecord,
    JournalRecord,
    LinkRecord,
    LogRecord,
    MoveState,
    ObjectNameRecord,
    QuarantineRecord,
    QueueRecord,
    ScheduleRecord,
    TransferRecord,
    ZoneEpochRecord,
    encode_move_state,
    read_move_state,
    records_of,
)
from ergon_framework.providers.stores.records import ProviderRowRecord
from tests.app.move.stock import ZONE, with_facts, with_jobs

pytestmark = pytest.mark.req("SCALE:move")

HASH, OTHER = bytes(range(32)), bytes(range(32, 64))


def _job(**changes: Any) -> Job:
    plain: dict[str, Any] = {
        "key": 7,
        "id": "j-1",
        "status": JobStatus.FAILED,
        "handler": "py#greet",
        "executor": "py",
        "queue": "mail",
        "args": b'["Ada"]',
        "kwargs": b'{"x":"\xc3\xa9"}',
        "priority": -3,
        "created_at": 1_700_000_000.125,
        "run_at": 1_700_000_001.0,
        "expires_at": 1_700_009_000.5,
        "timeout": 30.0,
        "max_attempts": 5,
        "max_deliveries": 9,
        "retry": b'{"max_attempts":5}',
        "unique_key": "u",
        "limit_key": "k",
        "limit": 2,
        "is_limited": True,
        "attempts": 1,
        "is_charged": True,
        "deliveries": 2,
        "excused": 1,
        "is_solo": False,
        "fence": 12,
        "why": "failed",
        "worker": "w-1",
        "claimed_at": 1_700_000_002.0,
        "lease_expires_at": 1_700_000_032.0,
        "finished_at": 1_700_000_040.0,
        "purge_at": 1_700_086_440.0,
        "result": b"\xff\x00",
        "result_ttl": 60.0,
        "last_error": Failure(Kind.TRANSIENT, "E1", "no \u2028 luck", 1.5),
        "correlation_id": "c-1",
        "trace_context": {"traceparent": "00-1-2-01", "a": "b"},
        "history": (b'{"to":"active"}', b'{"to":"failed"}'),
    }
    return Job(**{**plain, **changes})


FACT = StoredFact(
    offset=8,
    previous=7,
    from_zone="plant-a",
    message_id="m-8",
    to_zone="plant-b",
    digest=HASH,
    envelope=b'{"e":1}',
    fact=b'{"\xc3\xa9":1}',
    recorded_at=1_700_000_000.25,
    source_offset=None,
)
ITEM = Quarantined(
    id=4,
    consumer="c",
    log="outbound",
    offset=8,
    reason="failed",
    message="bad\0word",
    attempts=3,
    at=1_700_000_003.0,
    envelope=b'{"e":1}',
    fact=b'{"f":1}',
)
CONSUMER = ConsumerInfo(
    name="c",
    log="outbound",
    cursor=6,
    to_zone="plant-b",
    is_required=False,
    served=8,
    deliveries=2,
    holder="h",
    held_until=1_700_000_060.0,
    lease=60.0,
    created_at=1_699_999_999.0,
)
LETTER = {
    "tenant_id": "t",
    "minute": datetime(2026, 11, 17, 15, 4, tzinfo=UTC),
    "provider_name": "p",
    "capability": "c",
    "succeeded": 3,
    "failed": 0,
    "dead_lettered": 1,
    "attempts": 4,
    "histogram": b"\x01\xff",
    "updated_at": datetime(2026, 11, 17, 15, 5, 0, 250_000, tzinfo=UTC),
}
RECORDS: dict[str, TransferRecord] = {
    "job": JobRecord(_job(), 1_700_000_040.5),
    "flow": FlowRecord(
        Flow(
            id="f1",
            name="nightly",
            state=FlowState(OnFailure.HOLD, FlowStatus.HELD, 5, 4, 3, 2, 1),
            created_at=1_700_000_000.25,
            changed_at=1_700_000_001.5,
            purge_at=1_700_000_009.5,
            keep=60.0,
            plan=b'{"tree":{"chain":[]}}',
        ),
        (Join(id="f1:1", flow_id="f1", remaining=2, members=b"[1,2]"),),
        {"f1:1": "release", "f1": "skip"},
    ),
    "queue": QueueRecord("mail", True, 3, 2.5, 4, 1_700_000_000.75),
    "queue without a rate": QueueRecord("mail", True, 3, None, 1),
    "queue that limits its keys": QueueRecord(
        "mail", False, None, None, 1, 0.0, 2, 5.5, 10, {"t:2": 1_700_000_000.5, "t:1": 0.25}
    ),
    "queue that is pinned": QueueRecord("mail", False, None, None, 1, pinned_version="2.4.1"),
    "schedule": ScheduleRecord(
        Schedule(
            name="nightly",
            cron="0 3 * * *",
            zone="Europe/Berlin",
            misfire="once",
            job=b'{"handler":"greet"}',
            next_at=1_700_000_100.0,
            last_at=None,
            is_paused=True,
            source="settings",
        )
    ),
    "schedule with an end": ScheduleRecord(
        Schedule(
            name="nightly",
            cron="0 3 * * *",
            zone="Europe/Berlin",
            misfire="once",
            job=b'{"handler":"greet"}',
            next_at=1_700_000_100.0,
            jitter=2.5,
            ends_at=1_800_000_000.0,
        )
    ),
    "log": LogRecord(1, "outbound", 5, HASH, 4096, None, {"plant-c": 4, "plant-b": 3}),
    "fact": FactRecord(1, "outbound", FACT, OTHER),
    "id of a fact": FactIdRecord(HASH[:16], OTHER[:16], 8),
    "gap": GapRecord(Gap("outbound", 1, 4, "disk", 1_700_000_004.0, None, None)),
    "consumer": ConsumerCursorRecord(CONSUMER),
    "quarantined fact": QuarantineRecord(ITEM, is_served=True),
    "name of an object": ObjectNameRecord(
        StoredObject("files", "one", HASH, 3, 1_700_000_005.0, True)
    ),
    "awaited name": AwaitedObjectRecord("files", "late"),
    "link": LinkRecord(Link("plant-b", "e-1", 9, HASH, True, "why\0not", 1_700_000_006.0)),
    "note": JournalRecord(2, 1_700_000_007.0, "seal", "plant-b\0"),
    "zone": ZoneEpochRecord(StoreInfo("plant-a", "epoch-1", 1_699_999_000.0)),
    "row": ProviderRowRecord("provider_metric_rollups", LETTER),
}
CANONICAL = {
    "job": ("8bbefdbb66246eb6d6329cfc22062a98c520fe82133eb070da3642b4798b860b", 671),
    "flow": ("927140a5b2e3d044f2c9400adbc731ba3fcbc99a8d493ed11536588a8391fb5e", 294),
    "queue": ("ea2d68c59f01391c87107b95e1a6021bba23aa3513d8d03e695d7d0a8c7af4a3", 73),
    "queue without a rate": (
        "7bc993cac74dc4c76e9cd7cb6b74f9b5f89f1b1a400e1cf6dbac6c2bcaf589cb",
        65,
    ),
    "queue that limits its keys": (
        "80dbcbdc05694a6ecf4d06a7eed180a61f1a8c870a456b5cd60315b06007d4c3",
        149,
    ),
    "queue that is pinned": (
        "a74d1dfd8f631e1e3ee9960e9ee79a354ec19247f489ada787d18d54c017a9d5",
        136,
    ),
    "schedule": ("7f4e50bf098b9996a6b171b921baeba1dc29905825239f1b6454b10ce28079f2", 149),
    "schedule with an end": (
        "a44b1a6b708a2a6018986c3a772d60b00526837a095027f92ed9fe3d7ab84aa1",
        174,
    ),
    "log": ("589ec873b3d2447088c6542db3c0a948585c31b988c92295cc2edee3361c76f0", 113),
    "fact": ("e22d5afb346af45842ce18aa7ebca844ba873bd808fa980f52a00ab29019dcb7", 245),
    "id of a fact": ("c876ed81cd296dcc181141884a0e54ce1c41c270b4d30bcea1d0411f5a7bf86c", 56),
    "gap": ("e7acf76f7966c09070b02ae1ec66d0c0db57a1b2142f7b0fa7dd393ad17ccc01", 83),
    "consumer": ("c80b51bba30dd62c99364c507bbf1dad7ce011e834a9df22c6575c6c18a2b3dd", 172),
    "quarantined fact": ("15f218a317d183b4389bfe9f9ee6c01710bcff7d01703ef0bb84b3427c07336d", 144),
    "name of an object": ("e569364637b595a3961e13bb15883765e36b79c8ce2105b06c4c31dcd4fba5c6", 104),
    "awaited name": ("dc02a61a984f5cc695b2e531564849bb71fef7d1c28d0c70a4117f2b6fa0f31e", 23),
    "link": ("adf7a62e011d4eb291dad34da35fb928869f89b8cebd3667ee2738fa75042494", 112),
    "note": ("c6859846ca2cce83ed63ddbd15a9a243488c5aa916e316a9ba32c103a89ccef9", 26),
    "zone": ("ebdff71f03a55020e3ab40dc3ecda25d0c16a1bf2774f8766e3aa156242a2939", 54),
    "row": ("572ace81c974774e8b22607221cb5afcf39cd09eed216bebc747f6bb10daa5b0", 172),
}
TITLES = {
    "job": "jobs",
    "flow": "flows",
    "queue": "queue settings",
    "queue without a rate": "queue settings",
    "queue that limits its keys": "queue settings",
    "queue that is pinned": "queue settings",
    "schedule": "schedules",
    "schedule with an end": "schedules",
    "log": "logs",
    "fact": "facts",
    "id of a fact": "ids of facts",
    "gap": "gaps",
    "consumer": "consumers",
    "quarantined fact": "quarantined facts",
    "name of an object": "names of objects",
    "awaited name": "awaited names",
    "link": "links",
    "note": "notes of operators",
    "zone": "epoch",
    "row": "provider rows",
}


@pytest.mark.parametrize("name", RECORDS)
def test_the_canonical_bytes_of_a_record(name: str) -> None:
    """Of each kind, with every field set to something that is not its default."""
    record = RECORDS[name]
    assert (hashlib.sha256(record.content).hexdigest(), len(record.content)) == CANONICAL[name]


def test_a_record_that_is_written_out() -> None:
    """One of them byte by byte: MessagePack, with the names of fields."""
    assert RECORDS["queue"].content == (
        b"\x86\xa5queue\xa4mail\xa9is_paused\xc3\xaamax_active\x03"
        b"\xa4rate\xcb@\x04\x00\x00\x00\x00\x00\x00\xa5burst\x04\xa7full_at\xcbA\xd9T\xfc@0\x00\x00"
    )


def test_the_rule_of_a_unique_key_is_written_out() -> None:
    """A job without one is written as it always was, and a record of before is read."""
    plain = JobRecord(_job(), 5.0)
    ruled = JobRecord(_job(unique=UniqueRule(("pending", "active", "failed"), 60.0)), 5.0)
    waiting = JobRecord(_job(unique=UniqueRule()), 5.0)
    assert "unique" not in plain.document()["job"]
    told = {"states": ["pending", "active", "failed"], "period": 60.0}
    assert ruled.document()["job"]["unique"] == told
    assert waiting.document()["job"]["unique"] == {"states": ["pending"], "period": None}
    for record in (plain, ruled, waiting):
        read = JobRecord.from_document(json.loads(json.dumps(record.document())))
        assert read.document() == record.document()
        assert (read.job.unique, read.job.unique_key) == (record.job.unique, "u")


def test_the_pin_of_a_queue_is_written_out() -> None:
    """A queue without one is written as it always was, and a record of before is read."""
    bare, pinned = RECORDS["queue that limits its keys"], RECORDS["queue that is pinned"]
    assert "pinned_version" not in bare.document()
    assert pinned.document()["pinned_version"] == "2.4.1"
    assert "key_rate" not in pinned.document()
    for record in (RECORDS["queue"], bare, pinned):
        assert QueueRecord.from_document(json.loads(json.dumps(record.document()))) == record


def test_every_kind_is_pinned() -> None:
    """A new kind of record needs a line here."""
    kinds = {type(record) for record in RECORDS.values()}
    assert kinds == {*JOB_KINDS, *FACT_KINDS, ProviderRowRecord}


def test_the_titles_of_kinds() -> None:
    """A finished move writes sums down by these words."""
    assert {name: type(record).title for name, record in RECORDS.items()} == TITLES


def test_what_a_move_writes_down() -> None:
    """JSON, the same in every store."""
    mark = MoveState("jobs of a", {"jobs": (2, "ab")}, "b", "7 8")
    text = b'{"source":"jobs of a","sums":{"jobs":[2,"ab"]},"moved_to":"b","birth":"7 8"}'
    assert encode_move_state(mark) == text
    assert read_move_state(text) == mark
    assert read_move_state(b'{"source":"x"}').is_incomplete


# ---- whole stores -------------------------------------------------------------------------------

JOB_SUMS = {
    "queue settings": (2, "fe06c72eda29743c9dd72f3707814b36892610e12982bd4a6c7388b7a9220327"),
    "flows": (0, hashlib.sha256().hexdigest()),
    "jobs": (9, "de501859da65757ce26ec45f7d3ebfcbe2ed9a754f366a25948c4a1301a7e15e"),
    "schedules": (2, "f80137492ea97a426210a26e078d3c16888e50f853acd8d13488ee8fd8b47f54"),
}
FACT_SUMS = {
    "logs": (4, "844fb7b39da888af5cec8f6b2857552913391de9fc2ec0a98e5f3534b552e866"),
    "facts": (7, "69e8199994f957412e604c43a6d57bb2f71600b0d91edc68c651e038400a3f1c"),
    "ids of facts": (12, "f574f89a6275755fab332c58e0fc7db3cb74cff65a07f5a1864242d704659b72"),
    "gaps": (3, "dcb92c6b0207f1aba6a96659c0544f1eb97e17fa9a6ae182ac7b847a06889258"),
    "consumers": (4, "a8c91b5d381829aa42d640b243106a269a91f7bb91ef39f0139c9507913db8fa"),
    "quarantined facts": (3, "86d498d2b3766be6c98d61fe8a41ecedf8e59da0cdfa772a478a5bc91fb916a3"),
    "names of objects": (4, "aaab18bc075639b96dcb458c2124200b84e95e1d1b365e0c1e49ef1071f0d90f"),
    "awaited names": (1, "4619c9fe4918459ffdc61bdbcc76b422fdae72c64c602fcbf44594dee858534c"),
    "links": (3, "a7cb9cadbe3bd3216b0941e1be4db16c4d55637c4c074e4a77685f6910f8950f"),
    "notes of operators": (5, "dbdd37a68a39132c94df5ad8e7cd8338af160c39464c98461af06685d04f3fda"),
}


@pytest.mark.parametrize(
    "place",
    [
        "sqlite",
        pytest.param("postgres_url", marks=pytest.mark.slow),
        pytest.param("redis_url", marks=pytest.mark.slow),
    ],
)
def test_the_sums_of_a_store_of_jobs(
    place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The same work comes to the same digests in every engine, today and in later versions.

    All but the fences, which begin where the clock of the machine says.
    """
    file = f"sqlite:///{tmp_path}/jobs.db"
    url = with_jobs(file if place == "sqlite" else request.getfixturevalue(place))
    assert _job_sums(url) == JOB_SUMS
    before_tags = "32543cfa6287b11255754ec82c3ba0230e7f9cfb1393004172b464fb845b324d"
    assert _job_sums(url, tags=(), metadata=None)["jobs"] == (9, before_tags)


def _job_sums(url: str, **changed: Any) -> dict[str, tuple[int, str]]:
    found = {}
    with closing(open_store(url, read_only=True)) as store:
        records = records_of(store)
        for kind in JOB_KINDS:
            adding = RunningDigest()
            for copy in all_records(records, kind):
                adding.add(_without_fence(copy, **changed))
            total = adding.sum()
            found[kind.title] = (total.count, total.digest)
    return found


def _without_fence(copy: TransferRecord, **changed: Any) -> TransferRecord:
    if not isinstance(copy, JobRecord):
        return copy
    return JobRecord(replace(copy.job, fence=0, **changed), copy.changed_at)


@pytest.mark.parametrize(
    "place",
    [
        "sqlite",
        pytest.param("postgres_url", marks=pytest.mark.slow),
    ],
)
def test_the_sums_of_a_store_of_facts(
    place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """All but the epoch, which is different every time; NATS counts logs and offsets of its own."""
    file = f"sqlite:///{tmp_path}/facts.db"
    url = with_facts(file if place == "sqlite" else request.getfixturevalue(place))
    with closing(open_fact_store(url, zone=ZONE, read_only=True)) as store:
        records = records_of(store)
        sums = {
            kind.title: digest_of(records, kind)
            for kind in FACT_KINDS
            if kind is not ZoneEpochRecord
        }
    assert {kind: (each.count, each.digest) for kind, each in sums.items()} == FACT_SUMS
