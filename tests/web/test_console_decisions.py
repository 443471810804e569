"""What the console's pages say, decided from plain values: attention, timeline, rates, words."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest
from starlette.responses import StreamingResponse

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.job import JobStatus
from ergon_framework.jobs.totals import BOUNDS
from ergon_framework.ports.jobstore import Job, StatusCounts, WorkerRecord
from ergon_framework.ports.providerstore import CallTotals, LaneCount, ProviderStats, QuotaTotals
from ergon_framework.web.console.attention import JobsSeen, TakenQueues, concerns, queue_chip
from ergon_framework.web.console.events import LONGEST_STREAM, MOST_WATCHERS, ChangeEvents
from ergon_framework.web.console.formatting import (
    Block,
    blocks,
    clock,
    number,
    shortened,
    size,
    span,
)
from ergon_framework.web.console.job_look import families
from ergon_framework.web.console.part_pages import provider_rows
from ergon_framework.web.console.rates import JobRates
from ergon_framework.web.console.sharing import SharedLook
from ergon_framework.web.console.timeline import timeline_of

pytestmark = pytest.mark.req("ONE:serve")


def queue(name: str = "mail", **more: Any) -> dict[str, Any]:
    """A queue as a look shows it."""
    statuses = ("pending", "active", "retrying", "completed", "failed", "cancelled")
    counts = dict.fromkeys(statuses, 0) | more.pop("counts", {})
    plain: dict[str, Any] = {
        "name": name,
        "paused": False,
        "missing_executors": [],
        "missing_handlers": [],
        "missing_version": None,
        "oldest_due": None,
    }
    return {**plain, "counts": counts, **more}


def worker(name: str = "w1", **more: Any) -> dict[str, Any]:
    """A worker as a look shows it."""
    return {"id": name, "state": "running", "queues": None, **more}


def seen(
    *queues: dict[str, Any], workers: Sequence[Any] = (), dead: Sequence[Any] = ()
) -> JobsSeen:
    """A look."""
    return JobsSeen(0.0, queues, workers or [worker()], dead)


def said(found: JobsSeen) -> list[str]:
    """What it leads to."""
    return [f"{each.level}: {each.subject} {each.text}" for each in concerns(found, [])]


def test_nothing_to_say() -> None:
    """Jobs that wait for their time, or run, need nobody."""
    assert said(seen(queue(counts={"pending": 5, "active": 2}), queue("b", oldest_due=3.0))) == []


@pytest.mark.parametrize(
    ("more", "chip", "expected"),
    [
        ({"paused": True}, "paused", "warn: Queue mail is paused"),
        ({"missing_executors": ["node"]}, "no executor", "bad: Queue mail has nobody to run it"),
        ({"missing_handlers": ["a"]}, "no handler", "bad: Queue mail has jobs that no worker"),
        ({"missing_version": "7"}, "no such version", "bad: Queue mail is pinned to version 7"),
        ({"oldest_due": 700.0}, "behind", "warn: Queue mail is behind: the oldest job that is due"),
    ],
)
def test_a_queue_in_trouble(more: dict[str, Any], chip: str, expected: str) -> None:
    """Its state is two words in a table and a sentence on the overview."""
    found = queue(**{"oldest_due": 5.0, "counts": {"pending": 3}, **more})
    assert queue_chip(found, TakenQueues([worker()])).text == chip
    [text] = said(seen(found))
    assert text.startswith(expected)


@pytest.mark.parametrize("workers", [[], [worker(queues=["other"])], [worker(state="silent")]])
def test_a_queue_without_a_worker(workers: list[dict[str, Any]]) -> None:
    """None at all, one for other queues, and one that tells nothing are the same to it."""
    found = JobsSeen(0.0, [queue(oldest_due=5.0)], workers, [])
    assert said(found)[0].startswith(
        "bad: Queue mail has nobody to run it: no worker that is alive"
    )
    assert queue_chip(queue(oldest_due=5.0), TakenQueues(workers)).text == "no worker"


def test_the_worst_comes_first() -> None:
    """And what does not answer before everything else."""
    found = seen(
        queue("a", paused=True, oldest_due=1.0),
        queue("b", missing_executors=["node"], oldest_due=1.0),
    )
    told = concerns(found, [("the job store", "store_unavailable")])
    assert [each.level for each in told] == ["bad", "bad", "warn"]
    assert told[0].subject == "The job store"


def test_what_workers_take_is_read_once() -> None:
    """Thousands of queues and hundreds of workers are no product of both."""
    reads: list[int] = []

    class Names(tuple[str, ...]):
        __slots__ = ()

        def __iter__(self) -> Iterator[str]:
            reads.append(1)
            return super().__iter__()

        def __contains__(self, name: object) -> bool:
            reads.append(1)
            return super().__contains__(name)

    workers = [worker(queues=Names([f"q{n}"])) for n in range(10)]
    queues = [queue(name=f"q{n}", oldest_due=5.0) for n in range(11)]
    found = concerns(JobsSeen(0.0, queues, workers, []), [])
    assert [each.subject for each in found] == ["Queue q10"]
    assert len(reads) == len(workers)


def test_dead_letters_are_told_by_what_they_share() -> None:
    """The commonest error is named, and the link leads to all families."""
    dead: list[dict[str, Any]] = [
        {"handler": "render", "last_error": {"code": "KeyError", "message": f"'vat_{n}'"}}
        for n in range(3)
    ]
    dead.append({"handler": "x", "last_error": None})
    found = seen(queue(counts={"failed": 4}), dead=dead)
    [each] = concerns(found, [])
    assert each.subject == "4 jobs"
    assert "3 of the latest 4 failed in render: KeyError: 'vat_0'." in each.text
    assert each.link == "/dead-letters"


def test_a_count_that_ends_at_a_bound_is_told_as_such() -> None:
    """With a plus behind it; and nothing is said of all where not all were counted."""
    dead = [{"handler": "render", "last_error": None}] * 3
    totals = StatusCounts(counts={"failed": 3}, more=("failed",))
    behind = queue(counts={"pending": 1}, more=["pending"], oldest_due=90.0)
    found = concerns(JobsSeen(0.0, [behind], [worker()], dead, totals=totals), [])
    letters, late = found
    assert letters.subject == "3+ jobs"
    assert "3 of the latest 3 failed in render" in letters.text
    assert late.hint.startswith("1+ jobs wait.")


def test_queues_that_were_not_looked_at_are_told() -> None:
    """Nobody takes silence about them for good news."""
    found = JobsSeen(0.0, [queue()], [worker()], [], is_all=False, are_more_due=True)
    [each] = concerns(found, [])
    assert (each.level, each.subject, each.link) == ("warn", "Many queues", "/queues")


def at(seconds: float) -> str:
    """An instant as a history has it."""
    return f"2026-01-01T00:00:{seconds:06.3f}Z"


START = 1767225600.0


def job(*history: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A job as it is shown."""
    plain = {"created_at": at(0), "finished_at": None, "claimed_at": None, "status": "pending"}
    return {**plain, "worker": None, "attempts": 0, "history": history, **more}


def test_attempts_on_one_axis() -> None:
    """Each begins where the one before ended; what a gate held is told from a plain wait."""
    history = [
        {"at": at(2), "event": "failed", "attempt": 1, "seconds": 1.0, "worker": "w1"},
        {"at": at(4), "event": "held", "attempt": 1, "seconds": 0.0, "worker": "w1"},
        {"at": at(10), "event": "completed", "attempt": 2, "seconds": 2.0, "worker": "w2"},
    ]
    found = timeline_of(job(*history, finished_at=at(10), status="completed"), START + 99)
    assert found is not None
    assert found["seconds"] == 10.0
    rows = found["rows"]
    assert [(row["event"], row["attempt"]) for row in rows] == [
        ("failed", 1),
        ("held", None),
        ("completed", 2),
    ]
    assert rows[0]["stretches"] == [
        {"kind": "wait", "left": 0.0, "width": 10.0},
        {"kind": "bad", "left": 10.0, "width": 10.0},
    ]
    assert rows[2]["stretches"][0] == {"kind": "hold", "left": 40.0, "width": 40.0}
    assert rows[2]["note"] == "w2, 2.0 s"


def test_a_long_wait_leaves_room_for_the_attempts() -> None:
    """Two attempts of a second after a minute: the axis begins shortly before the first."""
    history = [
        {"at": at(51), "event": "failed", "attempt": 1, "seconds": 1.0},
        {"at": at(54), "event": "completed", "attempt": 2, "seconds": 1.0},
    ]
    found = timeline_of(job(*history, finished_at=at(54), status="completed"), START + 60)
    assert found is not None
    assert (found["cut"], found["seconds"]) == (49.0, 5.0)
    assert found["rows"][0]["stretches"] == [
        {"kind": "wait", "left": 0.0, "width": 20.0},
        {"kind": "bad", "left": 20.0, "width": 20.0},
    ]


def dead(name: str, message: str, handler: str = "render") -> Job:
    """A job that gave up."""
    failure = Failure(Kind.DEFECT, "KeyError", message)
    return Job(
        key=1,
        id=name,
        handler=handler,
        executor="",
        queue="mail",
        priority=0,
        status=JobStatus.FAILED,
        attempts=1,
        is_charged=False,
        is_solo=False,
        deliveries=1,
        excused=0,
        fence=1,
        created_at=START,
        run_at=START,
        claimed_at=None,
        lease_expires_at=None,
        finished_at=START,
        expires_at=None,
        purge_at=None,
        timeout=None,
        max_attempts=None,
        max_deliveries=None,
        retry=None,
        unique_key=None,
        limit_key=None,
        limit=1,
        is_limited=False,
        why="",
        worker=None,
        last_error=failure,
        args=b"[]",
        kwargs=b"{}",
        result=None,
        result_ttl=None,
        correlation_id=None,
        trace_context=None,
        history=(),
    )


def test_families_of_errors() -> None:
    """Numbers, ids and quoted texts are what two errors of one cause differ in."""
    found = families(
        [
            dead("a", "order 17 of 'ada' has no 3f2b8c1e-0d4a-4f6b-9c58-a1b2c3d4e5f6"),
            dead("b", "order 4 of 'bob' has no 00000000-0d4a-4f6b-9c58-a1b2c3d4e5f6"),
            dead("c", "order 4 of 'bob' has too much"),
            dead("d", "order 4 of 'bob' has too much", handler="mail"),
        ]
    )
    assert [(each["number"], each["latest_id"]) for each in found] == [(2, "a"), (1, "c"), (1, "d")]
    assert found[0]["message"].startswith("order 17 of 'ada'")


def test_a_family_is_told_from_its_first_to_its_last() -> None:
    """Also where many say the very same, and where the end of none is known."""
    jobs = [dead(name, "no room") for name in "abc"]
    replace = msgspec.structs.replace
    ended = [replace(job, finished_at=at) for job, at in zip(jobs, (7.0, 3600.0, 5.0), strict=True)]
    [found] = families([*ended, replace(jobs[0], queue="other", finished_at=None)])
    assert (found["number"], found["latest_id"]) == (4, "a")
    assert (found["first_at"][11:19], found["last_at"][11:19]) == ("00:00:05", "01:00:00")
    assert found["queues"] == [jobs[0].queue, "other"]
    [unknown] = families([replace(jobs[0], finished_at=None)])
    assert (unknown["first_at"], unknown["last_at"]) == (None, None)


def test_capabilities_in_one_row_each() -> None:
    """Circuits, calls, quotas and failures of a capability, and its state in two words."""
    stats = ProviderStats(
        circuits=[
            LaneCount("maps", "geocode", "open", 1),
            LaneCount("maps", "geocode", "closed", 4),
        ],
        failures=[
            LaneCount("maps", "geocode", "timeout", 3),
            LaneCount("maps", "geocode", "throttled", 1),
        ],
        quotas=[QuotaTotals("rates", "exchange", 10, 10)],
        ended=[CallTotals("maps", "geocode", 7, 2, 1, 12)],
        reasons=[],
        letters=0,
    )
    maps, rates = provider_rows(stats)
    assert (maps["open"], maps["closed"], maps["attempts"], maps["latest_reason"]) == (
        1,
        4,
        12,
        "timeout",
    )
    assert maps["state"] == {"level": "bad", "text": "circuit open"}
    assert rates["state"]["text"] == "quota used up"


def test_open_pages_hear_of_changes() -> None:
    """At once how it stands, then only what is new; the stream ends with the server."""
    marks = iter(["a", "a", "b"])
    stopping = threading.Event()

    async def mark() -> str:
        found = next(marks)
        if found == "b":
            stopping.set()
        return found

    async def go() -> list[bytes]:
        answer = ChangeEvents(mark, stopping).response()
        assert isinstance(answer, StreamingResponse)
        return [bytes(part) async for part in answer.body_iterator if isinstance(part, bytes)]

    told = asyncio.run(go())
    assert [part for part in told if b"changed" in part] == [
        b"event: changed\ndata: a\n\n",
        b"event: changed\ndata: b\n\n",
    ]


@pytest.mark.parametrize(("others", "heard"), [(0, "abcdefghi"), (99, "aei")])
def test_many_open_pages_hear_of_changes_less_often(others: int, heard: str) -> None:
    """Of 100 that all load themselves anew, each does so every two seconds, with what is new."""
    marks, stopping = iter("abcdefghi"), threading.Event()
    instants = iter(range(9))

    async def mark() -> str:
        found = next(marks)
        if found == "i":
            stopping.set()
        return found

    async def go() -> str:
        events = ChangeEvents(mark, stopping, clock=lambda: next(instants) / 2, tick=0)
        events.watchers = others
        answer = events.response()
        assert isinstance(answer, StreamingResponse)
        parts = [bytes(part) async for part in answer.body_iterator if isinstance(part, bytes)]
        return "".join(part.decode().split("data: ")[1][0] for part in parts if b"data" in part)

    assert asyncio.run(go()) == heard


def test_a_stream_ends_so_that_its_page_shows_again_who_it_is() -> None:
    """Whoever was let in once is not told of changes for ever: his token may be revoked by now."""
    instants = iter([0.0, 1.0, LONGEST_STREAM - 1, LONGEST_STREAM])

    async def mark() -> str:
        return "a"

    async def go() -> list[bytes]:
        events = ChangeEvents(mark, threading.Event(), clock=lambda: next(instants), tick=0)
        answer = events.response()
        assert isinstance(answer, StreamingResponse)
        return [bytes(part) async for part in answer.body_iterator if isinstance(part, bytes)]

    assert asyncio.run(go())[-1] == b"retry: 50\n\n"
    assert list(instants) == []


def test_no_more_open_pages_than_there_are_places_for() -> None:
    """Also when all of them come at once; a place that is given up is another one's."""
    stopping = threading.Event()
    codes: list[int] = []
    all_began = asyncio.Event()

    async def mark() -> str:
        return "a"

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            codes.append(message["status"])
            if len(codes) == MOST_WATCHERS + 2:
                all_began.set()
        await asyncio.sleep(0)

    async def go() -> None:
        events = ChangeEvents(mark, stopping, tick=0)
        answers = [events.response() for _ in range(MOST_WATCHERS + 2)]
        running = [asyncio.ensure_future(each({"type": "http"}, receive, send)) for each in answers]
        await all_began.wait()
        stopping.set()
        await asyncio.gather(*running)
        assert events.watchers == 0

    asyncio.run(go())
    assert (codes.count(200), codes.count(503)) == (MOST_WATCHERS, 2)


def test_a_job_that_runs_now() -> None:
    """Its axis ends now."""
    found = timeline_of(job(status="active", claimed_at=at(3), worker="w1"), START + 4)
    assert found is not None
    [row] = found["rows"]
    assert (row["event"], row["attempt"], row["note"]) == ("running", 1, "w1")
    assert [each["kind"] for each in row["stretches"]] == ["wait", "run"]
    assert row["stretches"][1] == {"kind": "run", "left": 75.0, "width": 25.0}


def test_a_history_of_another_version() -> None:
    """What cannot be read is left out, and nothing hangs over the edge."""
    strange = [{"event": "unreadable"}, {"at": "yesterday", "event": "failed"}, {"at": at(1)}]
    odd = {"at": at(1), "event": "failed", "seconds": "many"}
    found = timeline_of(job(*strange, odd, finished_at=at(1), status="failed"), START)
    assert found is not None
    [row] = found["rows"]
    assert all(each["left"] + each["width"] <= 100 for each in row["stretches"])


def record(done: int, name: str = "w1", started_at: float = 0.0) -> WorkerRecord:
    """A worker that has completed so many jobs, each within 5 ms."""
    totals = {
        "outcomes": {"completed": done},
        "buckets": [done, *([0] * len(BOUNDS))],
        "seconds": 0.1,
    }
    return WorkerRecord(
        id=name, host="h", pid=1, version="1", started_at=started_at, totals={"mail": totals}
    )


def test_rates_are_what_happened_between_looks() -> None:
    """None after the first look; later those of the last minute, whoever started anew meanwhile."""
    rates = JobRates()
    rates.note([record(1000)], 100.0)
    assert rates.document()["done"] is None
    rates.note([record(1100)], 110.0)
    found = rates.document()
    assert found["done"] == 10.0
    assert found["queues"] == {"mail": 10.0}
    assert (found["p50"], found["p95"]) == (BOUNDS[0], BOUNDS[0])
    rates.note([record(40, started_at=120.0)], 120.0)
    assert rates.document()["done"] == pytest.approx((100 + 40) / 20)


def test_charts_of_what_was_seen() -> None:
    """Rates and durations of the time between looks; what waited, at each of them."""
    rates = JobRates()
    rates.note([record(1000)], 100.0, backlog=50, oldest_due=4.0)
    assert rates.document()["charts"] == {}
    rates.note([record(1100)], 110.0, backlog=70)
    rates.note([record(1100)], 120.0, backlog=20, oldest_due=9.0)
    found = rates.document()
    assert found["charts_seconds"] == 20.0
    assert found["charts"] == {
        "done": [[0.0, 10.0], [0.5, 10.0], [1.0, 0.0]],
        "failed": [[0.0, 0.0], [0.5, 0.0], [1.0, 0.0]],
        "p95": [[0.5, BOUNDS[0]]],  # nobody knows how long nothing took
        "backlog": [[0.0, 50], [0.5, 70], [1.0, 20]],
        "oldest_due": [[0.0, 4.0], [0.5, 0.0], [1.0, 9.0]],
    }


def test_the_newest_look_is_drawn_however_many_there_are() -> None:
    """Points that lie too close are left out, but never the last one."""
    rates = JobRates()
    for look in range(200):
        rates.note([], 10.0 * look, backlog=look)
    drawn = rates.document()["charts"]["backlog"]
    assert len(drawn) < 130
    assert drawn[-1] == [1.0, 199]


def test_rates_after_the_clock_was_set_back() -> None:
    """They begin anew: no rate is negative."""
    rates = JobRates()
    rates.note([record(10)], 100.0)
    rates.note([record(20)], 50.0)
    assert rates.document()["done"] is None


def test_a_look_is_shared_and_kept_the_longer_the_more_it_took() -> None:
    """Many who ask at once are one question; one that took 1 s is kept for 10."""
    now, looks = 0.0, 0

    async def look() -> int:
        nonlocal now, looks
        now += 1.0
        looks += 1
        await asyncio.sleep(0)
        return looks

    async def go() -> None:
        nonlocal now
        shared = SharedLook(look, lambda: now)
        assert await asyncio.gather(*(shared.get() for _ in range(200))) == [1] * 200
        now = 10.9
        assert await shared.get() == 1
        now = 11.0
        assert await shared.get() == 2

    asyncio.run(go())


def test_a_look_that_failed_is_not_kept() -> None:
    """The next one who asks looks again."""
    answers: list[str | OSError] = [OSError("away"), "there"]

    async def look() -> str:
        found = answers.pop(0)
        if isinstance(found, OSError):
            raise found
        return found

    async def go() -> None:
        shared = SharedLook(look)
        with pytest.raises(OSError, match="away"):
            await shared.get()
        assert await shared.get() == "there"

    asyncio.run(go())


def test_words() -> None:
    """Numbers line up, durations have one unit, and instants are in UTC."""
    assert [number(each) for each in (None, 0.0, 1234567, 0.256, 12.34, 1234.5)] == [
        "\N{EN DASH}",
        "0",
        "1,234,567",
        "0.26",
        "12.3",
        "1,234",
    ]
    assert [span(each) for each in (None, 0.012, 1.5, 42, 700, 8000, 400000)] == [
        "\N{EN DASH}",
        "12 ms",
        "1.5 s",
        "42 s",
        "12 min",
        "2 h",
        "5 d",
    ]
    assert clock("2026-01-31T01:02:03.5+01:00") == "2026-01-31 00:02:03"
    assert clock("soon") == "\N{EN DASH}"
    assert shortened("since 2026-01-31T00:02:03.5Z") == "since 2026-01-31 00:02:03"
    assert size(412) == "412 bytes"
    assert size(41_200) == "41 kB"


def test_explanations_in_blocks() -> None:
    """Commands stand apart from sentences, and quoted lines belong to the one before them."""
    found = blocks(
        ["No worker is alive. This starts one:  ergon worker", "It failed:", "  | a", "  | b"]
    )
    assert found == [
        Block("No worker is alive. This starts one:", "ergon worker"),
        Block("It failed:", lines="a\nb"),
    ]
