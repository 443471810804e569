"""Batch handlers: many jobs in one call, an outcome each, in threads and on the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from ergon_framework.errors import Business, Discard, HookError, Retry, WiringError
from ergon_framework.executor import InvalidArgumentsError, JobContext, Registry, current_job
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.ports.unit_of_work import UnitOfWork
from tests.executor.link import Json, Link, in_seconds, request

pytestmark = pytest.mark.req("JOBS:executor")
COLOURS = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
LONG = 0.9
"""Seconds of a linger that no test waits for: batches are complete before."""


@dataclass
class Mail:
    to: str


class Pool:
    """What a lifespan yields."""


def registry_of(
    body: Callable[[list[Mail], list[JobContext]], Any], *, is_async: bool, **options: Any
) -> Registry:
    """A batch handler of one colour."""
    registry = Registry()

    def send(mails: list[Mail], jobs: list[JobContext]) -> Any:
        return body(mails, jobs)

    async def send_async(mails: list[Mail], jobs: list[JobContext]) -> Any:
        found = body(mails, jobs)
        return await found if hasattr(found, "__await__") else found

    settings = {"batch": 3, "linger": LONG, **options}
    registry.add(send_async if is_async else send, "send", **settings)
    return registry


def ask(link: Link, *units: Any, **context: Any) -> dict[str, Json]:
    """Send a request for each unit in one piece; the outcomes by job id."""
    link.send(*(request("send", unit, job_id=f"{n}", **context) for n, unit in enumerate(units)))
    found = [link.outcome() for _ in units]
    return {each["job_id"]: each for each in found}


def mails(count: int) -> list[Any]:
    """Units as they travel."""
    return [{"to": f"m{n}"} for n in range(count)]


@COLOURS
def test_jobs_in_flight_together_become_one_call(is_async: bool) -> None:
    """Each has its own result, its own context, and the order is kept."""
    calls: list[list[str]] = []

    def body(units: list[Mail], jobs: list[JobContext]) -> list[str]:
        calls.append([f"{unit.to} {job.job_id}" for unit, job in zip(units, jobs, strict=True)])
        return [unit.to.upper() for unit in units]

    with Link(registry_of(body, is_async=is_async), 3) as link:
        told = ask(link, *mails(3))
    assert {key: each["result"] for key, each in told.items()} == {"0": "M0", "1": "M1", "2": "M2"}
    assert sorted(calls[0]) == ["m0 0", "m1 1", "m2 2"]
    assert len(calls) == 1


@COLOURS
def test_many_jobs_become_few_calls_and_each_is_answered_once(is_async: bool) -> None:
    """No batch is larger than asked for."""
    sizes: list[int] = []

    def body(units: list[Mail], jobs: list[JobContext]) -> None:
        sizes.append(len(units))

    registry = registry_of(body, is_async=is_async, batch=20, linger=0.02)
    with Link(registry, 40) as link:
        link.send(*(request("send", {"to": ""}, job_id=str(n)) for n in range(200)))
        told = [link.outcome() for _ in range(200)]
    assert sorted(int(each["job_id"]) for each in told) == list(range(200))
    assert {(each["status"], each["result"]) for each in told} == {("success", None)}
    assert sum(sizes) == 200
    assert max(sizes) == 20
    assert len(sizes) <= 20


@COLOURS
@pytest.mark.parametrize("limit", [1, 3])
def test_a_batch_that_is_not_full_does_not_wait_for_long(is_async: bool, limit: int) -> None:
    """With one in flight not at all: nothing else can come."""
    linger = LONG if limit == 1 else 0.01

    def body(units: list[Mail], jobs: list[JobContext]) -> list[Any]:
        job = current_job()
        return [[unit.to, job and job.job_id] for unit in units]

    with Link(registry_of(body, is_async=is_async, linger=linger), limit) as link:
        assert ask(link, {"to": "m"})["0"]["result"] == ["m", "0"]


@COLOURS
def test_what_is_raised_is_the_outcome_of_each(is_async: bool) -> None:
    """With the same meaning as for a single job."""
    raised: list[BaseException] = [Business("no"), Retry("busy", after=2), SystemExit(3)]

    def body(units: list[Mail], jobs: list[JobContext]) -> None:
        raise raised.pop(0)

    with Link(registry_of(body, is_async=is_async), 3) as link:
        for kind, status in (("Business", "error"), ("Retry", "retry"), ("SystemExit", "error")):
            told = ask(link, *mails(3))
            found = {(each["status"], each["error_type"]) for each in told.values()}
            assert found == {(status, kind)}


@COLOURS
def test_an_exception_among_the_results_is_the_outcome_of_one(is_async: bool) -> None:
    """The others are not touched by it; nor are they by a result that JSON cannot hold."""
    answers: dict[str, Any] = {
        "m0": ValueError("bad"),
        "m1": Discard("old"),
        "m2": 2,
        "m3": object(),
    }

    def body(units: list[Mail], jobs: list[JobContext]) -> tuple[Any, ...]:
        return tuple(answers[unit.to] for unit in units)

    with Link(registry_of(body, is_async=is_async, batch=4), 4) as link:
        told = ask(link, *mails(4))
    found = {key: (each["status"], each["error_type"]) for key, each in told.items()}
    assert found == {
        "0": ("error", "ValueError"),
        "1": ("success", "discarded"),
        "2": ("success", None),
        "3": ("error", "unserialisable_result"),
    }


@COLOURS
@pytest.mark.parametrize("answer", [[1], "abc", {"a": 1}, 3], ids=["few", "text", "dict", "one"])
def test_an_answer_that_is_not_one_for_each_fails_all(is_async: bool, answer: Any) -> None:
    """The words say what was expected; also for a batch of one."""
    with Link(registry_of(lambda *_: answer, is_async=is_async, linger=0.05), 3) as link:
        told = ask(link, *mails(3))
        assert {each["error_type"] for each in told.values()} == {"BatchResultError"}
        assert "'send' returned" in told["0"]["error_message"]
        if answer != [1]:
            assert ask(link, {"to": ""})["0"]["error_type"] == "BatchResultError"


@COLOURS
def test_a_job_that_does_not_fit_fails_alone(is_async: bool) -> None:
    """It is told which argument is wrong; the others are called without it."""

    def body(units: list[Mail], jobs: list[JobContext]) -> list[str]:
        return [f"{unit.to} of {len(units)}" for unit in units]

    with Link(registry_of(body, is_async=is_async), 3) as link:
        told = ask(link, {"to": "a"}, {"to": 1}, {"to": "c"})
    assert told["0"]["result"] == "a of 2"
    assert told["1"]["error_type"] == "invalid_arguments"
    assert "mails" in told["1"]["error_message"]
    assert told["2"]["result"] == "c of 2"


def test_lifespans_and_middleware_serve_batches() -> None:
    """Middleware is called once for the call, which it knows by its first job."""
    registry, units = Registry(), list[UnitOfWork]()

    @registry.lifespan
    def pool() -> Iterator[Pool]:
        yield Pool()

    @registry.middleware
    def noted(unit: UnitOfWork) -> Iterator[None]:
        units.append(unit)
        yield

    @registry.handler("send", batch=3, linger=LONG)
    def send(mails: list[Mail], *, pool: Pool) -> list[str]:
        return [type(pool).__name__ for _ in mails]

    with Link(registry, 3) as link:
        told = ask(link, *mails(3), _attempt=2, _deadline=in_seconds(60))
        assert {each["result"] for each in told.values()} == {"Pool"}
    (unit,) = units
    assert (unit.kind, unit.name, unit.attempt) == ("job", "send", 2)
    assert unit.id.endswith("+2")
    assert unit.deadline is not None


# ---- deadlines ----------------------------------------------------------------------------------


def test_gathering_takes_a_small_part_of_the_time_to_the_first_deadline() -> None:
    """Whatever the linger says: the jobs are begun in time, although their batch is not full."""
    with Link(registry_of(lambda *_: None, is_async=False, batch=10), 10) as link:
        told = ask(link, *mails(2), _deadline=in_seconds(0.5))
    assert {each["status"] for each in told.values()} == {"success"}


def test_a_plain_batch_is_given_up_at_its_deadline(capfd: pytest.CaptureFixture[str]) -> None:
    """All whose time is over are answered; the one with time left has its own outcome."""
    release = threading.Event()

    def body(units: list[Mail], jobs: list[JobContext]) -> list[str]:
        release.wait(30)
        return [unit.to for unit in units]

    with Link(registry_of(body, is_async=False), 3) as link:
        link.send(
            request("send", {"to": "a"}, job_id="a", _deadline=in_seconds(0.2)),
            request("send", {"to": "b"}, job_id="b", _deadline=in_seconds(60)),
            request("send", {"to": "c"}, job_id="c", _deadline=in_seconds(0.2)),
        )
        late = [link.outcome(), link.outcome()]
        assert sorted(each["job_id"] for each in late) == ["a", "c"]
        assert {each["status"] for each in late} == {"timeout"}
        release.set()
        assert link.outcome()["result"] == "b"
        link.wait()
    assert "does not stop at its deadline" in capfd.readouterr().err


def test_an_async_batch_is_cancelled_at_its_first_deadline() -> None:
    """Those whose time is over have timed out; the others go back without a charge."""
    notes = list[str]()

    async def wait(count: int) -> None:
        try:
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(0.02)  # a second cancellation would cut this short
            notes.append(f"cleaned {count}")

    with Link(registry_of(lambda units, _: wait(len(units)), is_async=True), 3) as link:
        link.send(
            request("send", {"to": "a"}, job_id="a", _deadline=in_seconds(0.2)),
            request("send", {"to": "b"}, job_id="b", _deadline=in_seconds(60)),
            request("send", {"to": "c"}, job_id="c", _deadline=in_seconds(0.2)),
        )
        told = {each["job_id"]: each for each in (link.outcome() for _ in range(3))}
    assert [told[each]["status"] for each in "abc"] == ["timeout", "retry", "timeout"]
    assert told["b"]["error_type"] == "held"
    assert notes == ["cleaned 3"]
    assert link.failure is None


# ---- what is refused ----------------------------------------------------------------------------


def test_a_client_gives_one_unit() -> None:
    """Each job has the element of the list as its one argument, by position or by name."""
    registry = registry_of(lambda *_: None, is_async=False)
    client = JobClient(store=MemoryJobStore(), registry=registry)
    assert client.job("send", [Mail("a")]).args == b'[{"to":"a"}]'
    assert client.job("send", [], {"mails": Mail("a")}).kwargs == b'{"mails":{"to":"a"}}'
    with pytest.raises(InvalidArgumentsError, match=r"'mails'.*send\(mails: .*Mail\)"):
        client.job("send", [[Mail("a"), Mail("b")]])


@pytest.mark.parametrize(
    ("function", "options", "told"),
    [
        (lambda: None, {"batch": 2}, "does not take one list of units"),
        (lambda a, b: None, {"batch": 2}, "does not take one list of units"),
        (lambda *a: None, {"batch": 2}, "does not take one list of units"),
        (print, {"batch": 0}, "batch of the handler 'f' is 0"),
        (print, {"batch": 2000}, "from 1 to 1024"),
        (print, {"batch": 2, "linger": 60}, "linger of the handler 'f' is 60"),
        (print, {"linger": 0.1}, "without a batch"),
    ],
)
def test_what_makes_no_sense_is_told_at_the_start(
    function: Any, options: dict[str, Any], told: str
) -> None:
    """Where the handler is declared, or when its signature is read."""

    def declare() -> None:
        registry = Registry()
        registry.add(function, "f", **options)
        registry.prepare()

    with pytest.raises((HookError, WiringError), match=told):
        declare()


def test_a_batch_handler_of_something_else_than_lists_is_refused() -> None:
    """The annotation says what each job brings."""
    registry = Registry()

    @registry.handler(batch=2)
    def send(mails: dict[str, Mail]) -> None: ...

    with pytest.raises(HookError, match="takes 'mails', which is no list"):
        registry.prepare()
