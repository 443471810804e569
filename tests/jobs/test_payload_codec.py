"""Payloads that are compressed or encrypted: what is on the disk, who can read it, lost keys."""

from __future__ import annotations

import base64
import sqlite3
import sys
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergon_framework.app.inline_worker import InlineWorker
from ergon_framework.app.jobs import JobSetup
from ergon_framework.connector.jobs.connector import JobsConnector
from ergon_framework.core.job import JobStatus
from ergon_framework.errors import ConfigurationError, JobError, PayloadKeyError, UnreadableJobError
from ergon_framework.executor import Registry
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.payload_codec import MARK, PLAIN, PayloadCodec, encoding_of
from ergon_framework.jobs.scheduler import ScheduleSettings
from ergon_framework.jobs.settings import ExecutorSettings, JobsSettings
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.jobs.stores.sqlite import SqliteJobStore
from ergon_framework.jobs.why import explain_job
from ergon_framework.ports.jobstore import Job, Search
from ergon_framework.storage.urls import placeholder
from tests.jobs.real_worker import at_work, get, history, job, quick, wait_until, worker

pytestmark = pytest.mark.req("JOBS:store")

PRIVATE = "Alexandria-4711"
LONG = PRIVATE + "x" * 5000
OLD = base64.b64encode(bytes(range(32))).decode()
NEW = base64.urlsafe_b64encode(bytes(range(200, 232))).decode()

APP = """
from ergon_framework.executor import Registry

registry = Registry()

@registry.handler
def echo(*args, **kwargs):
    return [args, kwargs]

@registry.handler
def length(value):
    return len(str(value))
"""


def settings(**codec: Any) -> JobsSettings:
    """Quick settings with this codec."""
    return quick(codec=codec, held_delay=0.2)


def python(folder: Path) -> ExecutorSettings:
    """Ergon's own executor with the handlers above."""
    (folder / "app.py").write_text(APP)
    command = sys.executable, "-m", "ergon_framework.executor", "--app", f"{folder}/app.py:registry"
    return ExecutorSettings(command=command, pool_size=1, startup_grace=60.0)


def on_disk(folder: Path) -> bytes:
    """All that the files of a store hold, the write-ahead log included."""
    return b"".join(each.read_bytes() for each in sorted(folder.glob("work.db*")) if each.is_file())


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=10,
)


@given(
    args=st.lists(_JSON, max_size=4),
    kwargs=st.dictionaries(st.text(max_size=8), _JSON, max_size=4),
    above=st.none() | st.integers(0, 40),
    key=st.sampled_from(["", "old", "new"]),
)
def test_what_is_encoded_comes_back(
    args: list[Any], kwargs: dict[str, Any], above: int | None, key: str
) -> None:
    """Whatever the settings are; and it stays JSON of one line, an array and an object."""
    keys = {"old": OLD, "new": NEW}
    codec = PayloadCodec(compress_above=above, active_key=key, keys=keys)
    plain = msgspec.json.encode(args), msgspec.json.encode(kwargs)
    kept = codec.encode_arguments(*plain)
    assert isinstance(msgspec.json.decode(kept[0]), list)
    assert isinstance(msgspec.json.decode(kept[1]), dict)
    assert b"\n" not in b"".join(kept)
    assert PayloadCodec(keys=keys).decode_arguments(*kept) == plain
    result = codec.encode_result(plain[0])
    assert PayloadCodec(keys=keys).decode_result(result) == plain[0]


def test_compression_that_saves_nothing_is_not_kept() -> None:
    """Readers would pay for it."""
    noise = msgspec.json.encode([base64.b64encode(bytes(range(256))).decode()])
    assert PayloadCodec(compress_above=0).encode_arguments(noise, b"{}") == (noise, b"{}")
    text = msgspec.json.encode([LONG])
    kept, _ = PayloadCodec(compress_above=0).encode_arguments(text, b"{}")
    assert len(kept) < len(text) / 10
    assert PayloadCodec(compress_above=len(text) + 10).encode_arguments(text, b"{}")[0] == text


def test_two_equal_payloads_look_different() -> None:
    """Whoever reads the disk does not even learn that two jobs have the same arguments."""
    codec = PayloadCodec(active_key="old", keys={"old": OLD})
    assert codec.encode_result(b'"x"') != codec.encode_result(b'"x"')


@pytest.mark.parametrize("change", ["data", "key", "purpose"])
def test_a_payload_that_was_changed_is_not_opened(change: str) -> None:
    """AES-GCM notices; neither is a result opened as arguments."""
    codec = PayloadCodec(active_key="old", keys={"old": OLD, "new": NEW})
    kept = msgspec.json.decode(codec.encode_result(b'"x"'))
    if change == "data":
        raw = bytearray(base64.b64decode(kept["data"]))
        raw[-1] ^= 1
        kept["data"] = base64.b64encode(raw).decode()
    elif change == "key":
        kept["key"] = "new"
    else:
        with pytest.raises(PayloadKeyError):
            codec.decode_arguments(msgspec.json.encode([kept]), b"{}")
        return
    with pytest.raises(PayloadKeyError, match="does not open with the key"):
        codec.decode_result(msgspec.json.encode(kept))


@pytest.mark.parametrize(
    "damage", [{"data": "?"}, {"data": "AAAA"}, {"steps": ["rot13"]}, {MARK: 2}, {"steps": 3}]
)
def test_damage_is_told_from_a_missing_key(damage: dict[str, Any]) -> None:
    """Nothing but an error of one kind comes out of any damage."""
    codec = PayloadCodec(compress_above=0)
    kept = msgspec.json.decode(codec.encode_result(msgspec.json.encode(LONG)))
    with pytest.raises(UnreadableJobError) as caught:
        codec.decode_result(msgspec.json.encode({**kept, **damage}))
    assert not isinstance(caught.value, PayloadKeyError)


def test_a_small_payload_cannot_fill_the_memory() -> None:
    """A megabyte of zeros is a kilobyte when compressed, and a gigabyte is a megabyte."""
    bomb = zlib.compress(b" " * (65 * 1024 * 1024))
    kept = {MARK: 1, "steps": ["deflate"], "data": base64.b64encode(bomb).decode()}
    with pytest.raises(UnreadableJobError, match="more than"):
        PLAIN.decode_result(msgspec.json.encode(kept))


# ---- settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("codec", "told"),
    [
        ({"active_key": "new", "keys": {"old": OLD}}, "keys has no key of that name"),
        ({"active_key": "old", "keys": {"old": "c2hvcnQ="}}, "is not 32 bytes in base64"),
        ({"active_key": "old", "keys": {"old": "{not base64}"}}, "is not 32 bytes in base64"),
        ({"compress_above": -1}, "compress_above"),
        ({"cipher": "none"}, "cipher"),
    ],
)
def test_a_codec_that_cannot_work_is_refused(codec: dict[str, Any], told: str) -> None:
    """When the settings are read, and without a word of the key."""
    with pytest.raises(ValueError, match=told) as caught:
        JobsSettings.model_validate({"codec": codec})
    assert "c2hvcnQ" not in str(caught.value)
    assert "{not base64}" not in str(caught.value)


def test_an_executor_without_the_key_writes_nothing_plain() -> None:
    """Workers keep secrets back. Its settings are read, and what needs the key is refused."""
    made = settings(active_key="old", keys={"old": placeholder("JOBS_KEY")})
    store = MemoryJobStore()
    with pytest.raises(ConfigurationError, match="JOBS_KEY") as caught:
        JobClient(store=store, settings=made).enqueue("echo", [PRIVATE])
    assert "pass_secrets" in caught.value.remedy
    assert [*store.search(Search())] == []


def test_settings_do_not_show_keys() -> None:
    """Neither their text nor their dump."""
    made = settings(active_key="old", keys={"old": OLD})
    assert OLD not in repr(made)
    assert OLD not in str(made.model_dump())


def test_arguments_that_look_encoded_are_refused() -> None:
    """They would be taken for a payload of ours, and could never be run."""
    client = JobClient(store=MemoryJobStore())
    with pytest.raises(JobError, match=MARK):
        client.enqueue("echo", [{MARK: 1, "data": ""}])
    client.enqueue("echo", [1, {MARK: 1}])  # only the first one would be


# ---- clients and workers ------------------------------------------------------------------------


@pytest.mark.slow
def test_nothing_plain_reaches_the_disk(tmp_path: Path) -> None:
    """Neither arguments nor the result, from the first write to the end; the caller sees both."""
    made = settings(active_key="old", keys={"old": OLD})
    with (
        closing(SqliteJobStore(tmp_path / "work.db")) as store,
        JobClient(store=store, settings=made) as client,
    ):
        handled = client.enqueue("echo", [PRIVATE], {"card": PRIVATE})
        assert PRIVATE.encode() not in on_disk(tmp_path)
        with at_work(worker(store, executor=python(tmp_path), settings=made)):
            assert handled.result(timeout=60) == [[PRIVATE], {"card": PRIVATE}]
        assert PRIVATE.encode() not in on_disk(tmp_path)
        shown = client.show(handled)
        assert (shown["args"], shown["kwargs"]) == ([PRIVATE], {"card": PRIVATE})
        assert shown["result"] == [[PRIVATE], {"card": PRIVATE}]


@pytest.mark.slow
def test_a_key_can_be_rotated(tmp_path: Path) -> None:
    """Jobs of the old key run as long as it is there; new ones have the new key."""
    before = settings(active_key="old", keys={"old": OLD})
    after = settings(active_key="new", keys={"old": OLD, "new": NEW})
    store = MemoryJobStore()
    first = JobClient(store=store, settings=before).enqueue("echo", [1])
    client = JobClient(store=store, settings=after)
    second = client.enqueue("echo", [2])
    assert [(encoding_of(get(store, each).args) or {})["key"] for each in (first, second)] == [
        "old",
        "new",
    ]
    with at_work(worker(store, executor=python(tmp_path), settings=after)):
        assert client.result(first, timeout=60) == [[1], {}]
        assert client.result(second, timeout=60) == [[2], {}]
    assert (encoding_of(get(store, first).result or b"") or {})["key"] == "new"


@pytest.mark.slow
@pytest.mark.parametrize("keys", [{}, {"old": NEW}], ids=["missing", "another"])
def test_a_job_waits_for_its_key(tmp_path: Path, keys: dict[str, str]) -> None:
    """A worker without the key never calls the handler, and charges nothing; with it, it runs."""
    made = settings(active_key="old", keys={"old": OLD})
    store = MemoryJobStore()
    client = JobClient(store=store, settings=made)
    job_id = client.enqueue("echo", [PRIVATE])
    with at_work(worker(store, executor=python(tmp_path), settings=settings(keys=keys))):
        wait_until(lambda: get(store, job_id).deliveries > 1, "a second look")
    held = get(store, job_id)
    assert (held.status, held.attempts, held.why) == (JobStatus.PENDING, 0, "payload_key")
    assert "'old'" in history(held)[-1]["message"]
    told = explain_job(held, None, [], store.now(), made)
    assert "key 'old'" in "\n".join(told)
    with at_work(worker(store, executor=python(tmp_path), settings=made)):
        assert client.result(job_id, timeout=60) == [[PRIVATE], {}]


@pytest.mark.slow
def test_what_is_only_compressed_needs_no_setting_to_be_read(tmp_path: Path) -> None:
    """A worker and a client that know of no codec run and show such a job."""
    store = MemoryJobStore()
    job_id = JobClient(store=store, settings=settings(compress_above=100)).enqueue("echo", [LONG])
    assert len(get(store, job_id).args) < 1000
    client = JobClient(store=store, settings=quick())
    with at_work(worker(store, executor=python(tmp_path))):
        assert client.result(job_id, timeout=60) == [[LONG], {}]
    assert client.show(job_id)["args"] == [LONG]


@pytest.mark.slow
def test_a_damaged_payload_is_a_dead_letter(tmp_path: Path) -> None:
    """It stays damaged, however often one looks."""
    store = MemoryJobStore()
    kept = [{MARK: 1, "steps": ["deflate"], "data": "AAAA"}]
    store.add([job("echo", *kept)])
    with at_work(worker(store, executor=python(tmp_path))):
        wait_until(lambda: get(store, "echo").status.is_final)
    found = get(store, "echo")
    assert (found.status, found.attempts) == (JobStatus.FAILED, 0)
    assert found.last_error is not None
    assert found.last_error.code == "unreadable_payload"


@pytest.mark.slow
def test_results_of_steps_are_handed_on(tmp_path: Path) -> None:
    """Encrypted in the store, and plain for the step that uses them."""
    made = settings(active_key="old", keys={"old": OLD}, compress_above=50)
    with (
        closing(SqliteJobStore(tmp_path / "work.db")) as store,
        JobClient(store=store, settings=made) as client,
    ):
        flow = client.chain(("echo", [PRIVATE]), ("length", [])).enqueue()
        with at_work(worker(store, executor=python(tmp_path), settings=made)):
            assert flow.result(timeout=60) == len(str([[PRIVATE], {}]))
        assert PRIVATE.encode() not in on_disk(tmp_path)


def test_jobs_of_the_callers_transaction_are_encoded(tmp_path: Path) -> None:
    """The same as those of a commit of their own."""
    made = settings(active_key="old", keys={"old": OLD})
    with (
        closing(SqliteJobStore(tmp_path / "work.db")) as store,
        JobClient(store=store, settings=made) as client,
        closing(sqlite3.connect(tmp_path / "work.db")) as mine,
    ):
        job_id = client.enqueue("echo", [PRIVATE], connection=mine)
        mine.commit()
        assert PRIVATE.encode() not in on_disk(tmp_path)
        assert client.show(job_id)["args"] == [PRIVATE]


def test_whoever_has_no_key_sees_that_there_is_something(tmp_path: Path) -> None:
    """The state of a job is no secret; its arguments are, and so is its result."""
    store = MemoryJobStore()
    made = settings(active_key="old", keys={"old": OLD})
    job_id = JobClient(store=store, settings=made).enqueue("echo", [PRIVATE])
    client = JobClient(store=store)
    shown = client.show(job_id)
    assert (shown["status"], shown["args"], shown["kwargs"]) == ("pending", None, {})
    assert shown["encoded"] == {"args": {"steps": ["aes-gcm"], "key": "old"}}
    assert client.cancel(job_id)


def test_a_result_without_its_key_is_an_error() -> None:
    """It names the key, and the setting that has to have it."""
    codec = PayloadCodec(active_key="old", keys={"old": OLD})
    with pytest.raises(PayloadKeyError, match="'old'") as caught:
        PLAIN.decode_result(codec.encode_result(b'"x"'))
    assert "[jobs.codec]" in caught.value.remedy


def test_a_connector_gets_plain_payloads_and_holds_back_what_it_cannot_read() -> None:
    """Jobs that are consumed as transactions are decoded as well; one without its key waits."""
    made = settings(active_key="old", keys={"old": OLD})
    store = MemoryJobStore()
    client = JobClient(store=store, settings=made)
    first = client.enqueue("charge", [], {"order": 1}, queue="orders")

    def fetched(settings_: JobsSettings) -> list[Any]:
        with JobsConnector(store, queue="orders", settings=settings_) as connector:
            return [each.payload for each in connector.fetch_transactions(5)]

    assert fetched(quick(held_delay=60.0)) == []
    held: Job = get(store, first)
    assert (held.attempts, held.why) == (0, "payload_key")
    client.reschedule(first, delay=0)
    assert fetched(made) == [{"order": 1}]


def test_an_inline_worker_reads_and_writes_what_is_encoded() -> None:
    """``app.drain()`` runs jobs, fires schedules and hands results on like any worker."""
    made = settings(active_key="old", keys={"old": OLD})
    store = MemoryJobStore()
    client = JobClient(store=store, settings=made)
    registry = Registry()
    registry.add(lambda value: [value], name="wrap")
    schedules = {"daily": ScheduleSettings(cron="* * * * *", handler="wrap", args=[PRIVATE])}
    flow = client.chain(("wrap", [PRIVATE]), ("wrap", [])).enqueue()
    setup = JobSetup("memory://", made, schedules=schedules)
    with InlineWorker(store, registry, setup=setup) as subject:
        assert subject.drain().completed == 2
    assert flow.result(timeout=5) == [[PRIVATE]]
    fired = client.schedules.run("daily")
    for each in (*store.search(Search()),):
        assert PRIVATE.encode() not in each.args + (each.result or b"")
    assert client.show(fired)["args"] == [PRIVATE]


def drained(store: MemoryJobStore, made: JobsSettings, **handlers: Any) -> int:
    """Run what is due with these settings and handlers; how many were completed."""
    registry = Registry()
    for name, call in handlers.items():
        registry.add(call, name=name)
    with InlineWorker(store, registry, setup=JobSetup("memory://", made)) as subject:
        return subject.drain().completed


@pytest.mark.parametrize("codec", [{}, {"compress_above": 1}], ids=["plain", "compressed"])
def test_a_result_that_looks_encoded_is_refused(codec: dict[str, Any]) -> None:
    """Otherwise its readers would take it for what it looks like, and get another value."""
    store = MemoryJobStore()
    client = JobClient(store=store, settings=settings(**codec))
    job_id = client.enqueue("look", [])
    marked = {MARK: 1, "steps": ["deflate"], "data": base64.b64encode(b"x").decode()}
    assert drained(store, settings(**codec), look=lambda: marked) == 0
    found = get(store, job_id)
    assert found.status is JobStatus.FAILED
    assert found.last_error is not None
    assert found.last_error.code == "reserved_field"
    assert repr(MARK) in found.last_error.message


def test_a_signal_that_looks_encoded_is_refused() -> None:
    """Its value is the result of a step: the next one could never read it."""
    store = MemoryJobStore()
    client = JobClient(store=store, settings=settings(compress_above=1))
    flow = client.chain(client.wait_for_signal("ok"), ("wrap", [])).enqueue()
    with pytest.raises(JobError, match=MARK):
        flow.signal("ok", {MARK: 2, "steps": [], "data": ""})
    flow.signal("ok", {"x": 1})
    assert drained(store, settings(compress_above=1), wrap=lambda value: [value]) == 1
    assert flow.result(timeout=5) == [{"x": 1}]


def test_a_damaged_result_ends_the_step_that_uses_it() -> None:
    """It stays damaged: the step is a dead letter, and nobody claims it again and again."""
    store = MemoryJobStore()
    client = JobClient(store=store, settings=settings(compress_above=1))
    flow = client.chain(client.wait_for_signal("ok"), ("wrap", [])).enqueue()
    damaged = b'{"%b":1,"steps":["deflate"],"data":"AAAA"}' % MARK.encode()
    store.flows.signal(flow.id, "ok", damaged)  # as an older version took it
    assert drained(store, settings(compress_above=1), wrap=lambda value: [value]) == 0
    (last,) = (each for each in flow.steps() if each.handler == "wrap")
    assert (last.status, last.attempts) == (JobStatus.FAILED, 0)
    assert last.last_error is not None
    assert last.last_error.code == "unreadable_payload"


def next_step(codec: dict[str, Any], made: JobsSettings) -> tuple[JobClient, MemoryJobStore, str]:
    """A chain whose first step has run with this codec, and whose second is due."""
    store = MemoryJobStore()
    client = JobClient(store=store, settings=settings(**codec))
    late = {"handler": "wrap", "args": [], "delay": 3600}
    flow = client.chain(("wrap", [LONG]), late).enqueue()
    assert drained(store, settings(**codec), wrap=lambda value: [value]) == 1
    (second,) = (each.id for each in flow.steps() if not each.status.is_final)
    client.reschedule(second, delay=0)
    assert drained(store, made, wrap=lambda value: [value]) == ("key" not in str(codec))
    return client, store, second


def test_a_step_gets_a_plain_result_without_any_setting() -> None:
    """What is only compressed can be read by everybody."""
    client, _, second = next_step({"compress_above": 1}, quick())
    assert client.result(second, timeout=5) == [[LONG]]


def test_a_step_waits_for_the_key_of_the_result_that_it_uses() -> None:
    """Its handler is not called with what is encrypted, also where no codec is set at all."""
    codec = {"active_key": "old", "keys": {"old": OLD}}
    _, store, second = next_step(codec, quick(held_delay=60.0))
    held = get(store, second)
    assert (held.status, held.attempts, held.why) == (JobStatus.PENDING, 0, "payload_key")
