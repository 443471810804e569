"""What is in the database: nothing without an owner, and the quick ways write what the slow do."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ergon_framework.core.job import CancelRequested, JobStatus, RequeueRequested
from ergon_framework.core.quota import TokenBucket
from ergon_framework.core.retention import JobRetention
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.flows import FlowPlanner
from ergon_framework.jobs.newjob import new_job
from ergon_framework.jobs.stores.redis import RedisJobStore, scripts
from ergon_framework.jobs.stores.redis.transitions import ADD, EXCHANGE
from ergon_framework.jobs.stores.transitions import JobPosition, cancel_replaced
from ergon_framework.ports.jobstore import OnDuplicate, Search, Settlement, WorkerRecord
from ergon_framework.storage.redis.client import RedisScript
from ergon_framework.testing.suites.drivers import START, HandClock
from ergon_framework.testing.suites.jobstore.schedules import schedule
from ergon_framework.testing.suites.jobstore.under_test import (
    FAILS_FOR_GOOD,
    FAILS_ONCE,
    RELEASED,
    SUCCEEDED,
    WAIT,
    JobStoreSubject,
    ask,
    new,
)
from tests.jobs.redis.conftest import Open

pytestmark = pytest.mark.req("SCALE:jobs-redis")
PIECES = (*scripts.JOBS, "limits", "claim", "exchange")
COUNTERS = {
    *(b"{ergon}:schema", b"{ergon}:birth", b"{ergon}:seq", b"{ergon}:fence"),
    b"{ergon}:executors",  # when each was last seen outlives the worker that had it
}


def everything(store: RedisJobStore, tag: str = "{ergon}") -> dict[bytes, Any]:
    """All keys of a store, and what they hold."""
    call = store.transactions.client.call
    read = {b"hash": "HGETALL", b"string": "GET"}
    ranges = {b"list": ("LRANGE", (0, -1)), b"set": ("SMEMBERS", ())}
    found = {}
    for key in call("KEYS", f"{tag}:*"):
        kind = call("TYPE", key)
        if kind == b"zset":
            found[key] = call("ZRANGE", key, 0, -1, "WITHSCORES")
        elif kind in ranges:
            found[key] = call(ranges[kind][0], key, *ranges[kind][1])
        else:
            held = call(read[kind], key)
            found[key] = dict(zip(held[::2], held[1::2], strict=True)) if kind == b"hash" else held
    shorter = {key.removeprefix(tag.encode()): held for key, held in found.items()}
    return {key: b"random" if key == b":birth" else held for key, held in shorter.items()}


def test_a_life_of_jobs_leaves_nothing_behind(open_store: Open) -> None:
    """When all jobs, settings, schedules and workers are gone, only the counters are left."""
    clock = HandClock()
    store = open_store(clock=clock)
    s = JobStoreSubject(store, clock, None, 15.0)
    s.put("old", unique_key="u", tags=("x",))
    s.put("young", unique_key="u", on_duplicate=OnDuplicate.REPLACE)
    s.put("l1", "l2", "l3", limit_key="l", queue="limits", tags=("x", "y"), metadata={"k": "v"})
    s.put("later", delay=50.0, expires_at=START + 500.0)
    s.put("outdated", expires_at=START + 1.0, priority=3)
    s.put("named", executor="node", handler="node#work")
    s.put("dead", queue="odd")
    store.set_queue("odd", rate=5.0, burst=9)
    store.put_schedule(schedule("cron"))
    store.fire("cron", START + 60.0, None, [new("fired")])
    store.heartbeat(WorkerRecord(id="w", host="h", pid=1, version="1", started_at=0.0))
    clock.forward(2.0)
    s.must(s.take("dead", queues=("odd",)), FAILS_FOR_GOOD)
    s.must(s.get("dead"), RequeueRequested())
    for _ in range(20):
        jobs = s.claim({"python": 9, "node": 9})
        for n, leased in enumerate(jobs):
            s.must(leased, (SUCCEEDED, FAILS_ONCE, RELEASED)[n % 3], keep=5.0)
        clock.forward(WAIT)
    for job in list(store.search(Search())):
        if not job.status.is_final:
            s.must(job, CancelRequested(), keep=5.0)
    assert store.count(Search()) == 10
    assert all(key.startswith(b"{ergon}:") for key in store.transactions.client.call("KEYS", "*"))
    store.set_queue("odd", rate=None, burst=1)
    store.drop_schedule("cron")
    clock.forward(40 * 86_400.0)
    swept = store.prune(100)
    assert (swept.purged, swept.workers) == (10, 1)
    assert {b"{ergon}" + key for key in everything(store)} == COUNTERS


def test_the_list_of_workers_ends_by_itself(open_store: Open) -> None:
    """When no worker is left to sweep it, the server forgets it."""
    store = open_store()
    store.heartbeat(WorkerRecord(id="w", host="h", pid=1, version="1", started_at=0.0))
    assert 86_400 < store.transactions.client.call("TTL", "{ergon}:workers") <= 2 * 86_400


def test_fences_are_never_given_twice(open_store: Open) -> None:
    """Not even when the server lost everything, its counter included."""
    store = open_store()
    store.add([new("a")])
    [before] = store.settle_and_claim([], ask(1))[1].jobs
    store.transactions.client.call("FLUSHDB")
    store.add([new("a")])
    [after] = store.settle_and_claim([], ask(1))[1].jobs
    assert after.fence > before.fence
    assert store.settle_and_claim(
        [JobStoreSubject(store, HandClock(), None, 1.0).told(before, SUCCEEDED)], None
    )[0] == [False]


def test_adding_quickly_writes_what_adding_slowly_does(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs without unique keys have a script of their own, with the same effects."""
    clock = HandClock()
    jobs = [
        new("plain"),
        new("first", priority=-3, run_at=START - 5.0),
        new("ancient", run_at=-7.5, executor="node"),
        new("later", delay=5.0, expires_at=START + 9.0),
        new("limited", limit_key="k", limit=3, queue="q"),
        new("expiring", expires_at=START + 9.5, priority=1000),
        *(new(f"n{n}", queue=f"q{n % 7}", priority=n % 3) for n in range(1100)),
    ]
    quick, slow = open_store(clock=clock, prefix="quick"), open_store(clock=clock, prefix="slow")
    quick.add(jobs)
    monkeypatch.setattr(
        slow.transitions,
        "add_plain",
        lambda _, wire, blobs: slow.transactions.write(ADD, "add", wire, {}, None, blobs=blobs),
    )
    slow.add(jobs)
    assert everything(quick, "{quick}") == everything(slow, "{slow}")
    slots = {"python": 9, "node": 9}
    for store in (quick, slow):
        claimed = store.settle_and_claim([], ask(slots))[1]
        assert len(claimed.jobs) == 10


def test_quick_claims_and_settlements_write_what_slow_ones_do(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most jobs are claimed and completed on their rows as they are, with the same effects."""
    quick_script = scripts.script(*PIECES)
    source = scripts.joined(PIECES)
    for name in ("lease_plain", "complete"):
        at = source.index("\n", source.index(f"local function {name}("))
        source = f"{source[:at]}\n  if true then return false end{source[at:]}"
    slow_script = scripts.script_of(source)
    assert quick_script.call(b"", []) != slow_script.call(b"", [])
    lives = [
        _life(open_store, prefix, script, monkeypatch)
        for prefix, script in (("quick", quick_script), ("slow", slow_script))
    ]
    assert lives[0] == lives[1]


def _life(
    open_store: Open, prefix: str, script: RedisScript, monkeypatch: pytest.MonkeyPatch
) -> list[Any]:
    """A random life, the same for every store, and what it left in the database."""
    clock, dice = HandClock(), random.Random(7)  # noqa: S311
    store = open_store(clock=clock, prefix=prefix)
    write = store.transactions.write

    def exchanging(what: RedisScript, *args: Any, **options: Any) -> Any:
        return write(script if what is EXCHANGE else what, *args, **options)

    monkeypatch.setattr(store.transactions, "write", exchanging)
    s = JobStoreSubject(store, clock, None, 15.0)
    seen = []
    for turn in range(40):
        if turn % 4 == 0:
            _add_group(store, f"f{turn}")
        s.put(*(f"{turn}-{n}" for n in range(8)), queue=dice.choice(("a", "b")))
        s.put(f"{turn}-u", unique_key=f"u{turn % 5}", on_duplicate=OnDuplicate.EXISTING)
        s.put(f"{turn}-l", limit_key=f"l{turn % 3}", expires_at=clock() + 30.0)
        jobs = s.claim(dice.randint(1, 12))
        seen.append([(job.id, job.fence, job.deliveries, job.queue) for job in jobs])
        told = [
            s.told(
                job,
                dice.choice((SUCCEEDED, SUCCEEDED, SUCCEEDED, FAILS_ONCE, RELEASED)),
                result=dice.choice((None, b"1", b"")),
                keep=dice.choice((None, 5.0, 50.0)),
            )
            for job in jobs
        ]
        told += told[:1]  # once more in the same call: it was made, and is answered so
        applied, _ = store.settle_and_claim(told, None)
        assert all(applied)
        clock.forward(dice.choice((0.0, 1.0, WAIT)))
        store.prune(dice.randint(1, 5))
    return [seen, everything(store, f"{{{prefix}}}"), list(store.search(Search()))]


def _add_group(store: RedisJobStore, flow_id: str) -> None:
    """A flow of three steps, and one that waits for them."""
    draft = JobClient(store=store).group(["a", "b", "c"], then="d", on_failure="continue")
    made, steps = FlowPlanner(draft, flow_id).plan(
        lambda handler, args, kwargs, _: new_job(handler, args, kwargs)
    )
    store.flows.add(made, steps)


def test_a_job_is_replaced_though_it_was_moved_meanwhile(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The move is made of what the job is when it is replaced, not of what it was before."""
    store = open_store()
    s = JobStoreSubject(store, HandClock(), None, 15.0)
    s.put("old", unique_key="u")
    turns = []

    def meanwhile(row: JobPosition, now: float, retention: JobRetention) -> Settlement:
        turns.append(row)
        if len(turns) == 1:
            s.must(s.take("old"), FAILS_ONCE)
        return cancel_replaced(row, now, retention)

    monkeypatch.setattr("ergon_framework.jobs.stores.redis.transitions.cancel_replaced", meanwhile)
    [added] = s.put("new", unique_key="u", on_duplicate=OnDuplicate.REPLACE)
    assert (added.id, added.replaced, len(turns)) == ("new", "old", 2)
    old = s.get("old")
    assert (old.status, old.attempts, old.why) == (JobStatus.CANCELLED, 1, "replaced")


def test_rates_follow_the_one_formula(open_store: Open) -> None:
    """The scripts take tokens as the core's bucket does, whatever the rate, the burst and time."""
    dice = random.Random(3)  # noqa: S311
    for n in range(25):
        clock = HandClock()
        store = open_store(clock=clock, prefix=f"rate{n}")
        s = JobStoreSubject(store, clock, None, 15.0)
        rate, burst = round(dice.uniform(0.05, 20.0), 3), dice.randint(1, 6)
        store.set_queue("default", rate=rate, burst=burst)
        s.put(*(f"job-{n}" for n in range(60)))
        bucket, left = TokenBucket(rate, burst), 60
        for _ in range(12):
            slots = dice.randint(1, 8)
            claimed = s.settle_and_claim((), slots)[1]
            taken = 0
            while room := min(slots - taken, bucket.free(clock()), left):
                bucket, taken, left = bucket.take(room, clock()), taken + room, left - room
            assert len(claimed.jobs) == taken
            if left and not bucket.free(clock()):
                assert claimed.next_at == bucket.next_at(clock())
            clock.forward(dice.choice((0.0, 0.01, 0.3, 2.0, 1.0 / rate)))
            if dice.random() < 0.2:
                clock.to(bucket.next_at(clock()))
        store.close()


def test_a_search_finds_what_is_there_without_reading_all(open_store: Open) -> None:
    """Dead letters and running jobs are found by their own indexes among thousands of others."""
    store = open_store()
    s = JobStoreSubject(store, HandClock(), None, 15.0)
    s.put("dead", priority=9)
    s.ended("dead", FAILS_FOR_GOOD)
    s.put("again", priority=9)
    s.ended("again", FAILS_ONCE)
    s.put("running", priority=9)
    s.take("running")
    for start in range(0, 3000, 500):
        s.put(*(f"job-{n}" for n in range(start, start + 500)))
    store.transactions.client.call("CONFIG", "RESETSTAT")
    for status, job_id in (
        (JobStatus.FAILED, "dead"),
        (JobStatus.RETRYING, "again"),
        (JobStatus.ACTIVE, "running"),
    ):
        assert [job.id for job in store.search(Search(statuses=(status,)))] == [job_id]
    assert store.count(Search(queue="default", statuses=(JobStatus.PENDING,))) == 3000
    stats = store.transactions.client.info("commandstats")
    assert stats["cmdstat_evalsha"].startswith("calls=3,")


def test_a_large_batch_is_added_whole(open_store: Open) -> None:
    """Thousands of jobs in one call, more than one command may have, with one refused: none."""
    store = open_store()
    jobs = [new(f"job-{n}", unique_key=f"u{n}") for n in range(5000)]
    store.add(jobs)
    assert store.count(Search()) == 5000
    with pytest.raises(ValueError, match="there is a job with the id 'job-4999'"):
        store.add([new(f"new-{n}") for n in range(5000)] + [new("job-4999")])
    assert store.count(Search()) == 5000
    s = JobStoreSubject(store, HandClock(), None, 15.0)
    claimed = store.settle_and_claim([], ask(5000))[1]
    assert len(claimed.jobs) == 1000
    assert claimed.next_at is not None
    assert claimed.next_at <= store.now()
    told = [s.told(job, SUCCEEDED, keep=60.0) for job in claimed.jobs]
    assert store.settle_and_claim(told, None)[0] == [True] * 1000


def test_large_results_are_settled_in_several_steps(open_store: Open) -> None:
    """No script keeps the server busy with more than a few megabytes, and every answer comes."""
    store = open_store()
    s = JobStoreSubject(store, HandClock(), None, 15.0)
    s.put(*"abcdef")
    large = b'"' + b"x" * 5_000_000 + b'"'
    told = [s.told(job, SUCCEEDED, result=large, keep=60.0) for job in s.claim(5)]
    store.transactions.client.call("CONFIG", "RESETSTAT")
    applied, claimed = store.settle_and_claim([*told, told[0]], ask(5))
    assert applied == [True] * 6
    assert [job.id for job in claimed.jobs] == ["f"]
    assert store.transactions.client.info("commandstats")["cmdstat_evalsha"].startswith("calls=6,")
    assert s.get("e").result == large


def test_running_jobs_are_read_in_pages(open_store: Open) -> None:
    """Who looks at the newest of them does not keep the server busy with all the others."""
    store = open_store()
    s = JobStoreSubject(store, HandClock(), None, 15.0)
    s.put(*(f"job-{number:03}" for number in range(450)), args=b'["' + b"x" * 20_000 + b'"]')
    while s.claim(100):
        pass
    wanted = Search(statuses=(JobStatus.ACTIVE,))
    before = int(store.transactions.client.info("stats")["total_net_output_bytes"])
    assert [job.id for job in store.search(wanted, 1)] == ["job-449"]
    assert (
        int(store.transactions.client.info("stats")["total_net_output_bytes"]) - before < 5_000_000
    )
    found = [job.id for job in store.search(wanted)]
    assert found == [f"job-{number:03}" for number in reversed(range(450))]
    middle = next(job.key for job in store.search(wanted) if job.id == "job-300")
    older = Search(statuses=(JobStatus.ACTIVE,), below=middle)
    assert next(store.search(older)).id == "job-299"
    assert store.count(older) == 300
