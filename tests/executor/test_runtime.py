from __future__ import annotations

import asyncio
import contextvars
import json
import os
import threading
from typing import Any

import msgspec
import pytest

from ergon_framework.errors import HookError
from ergon_framework.executor import JobContext, Registry, current_job
from tests.executor.link import PATIENCE, Link, request
from tests.executor.registries import COLOURS, LIMITS, aecho, echo, registry_of

pytestmark = pytest.mark.req("JOBS:executor")


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.req("EXEC:Transport", "EXEC:job_id", "X6")
def test_every_line_is_answered_once(colour: str, limit: int) -> None:
    """Requests, unknown handlers, junk and blank lines in one piece; a last one without newline."""
    with Link(registry_of(colour), limit) as link:
        lines = [request("echo", each, job_id=f"j{each}", k=each) for each in range(50)]
        lines += [b"\n", b"  \r\n", b"{junk\n", b'{"job_id": "known"}\n']
        lines += [request("nobody", job_id="n")]
        if colour == "mixed":
            lines += [request("aecho", each, job_id=f"a{each}") for each in range(50)]
        link.send(*lines, request("echo", job_id="last").rstrip(b"\n"))
        link.end_input()
        link.wait()
        answers = [link.outcome() for _ in range(len(lines) - 2 + 1)]
    told = {each["job_id"]: each for each in answers}
    assert len(told) == len(answers)
    assert told["j7"]["result"] == {"args": [7], "kwargs": {"k": 7}}
    assert told["n"]["error_type"] == "handler_not_found"
    assert told["known"]["error_type"] == told["unknown"]["error_type"] == "invalid_request"
    assert told["last"]["status"] == "success"


@pytest.mark.parametrize("colour", COLOURS)
def test_one_at_a_time_is_answered_in_order(colour: str) -> None:
    """Also what is no request has its turn."""
    with Link(registry_of(colour)) as link:
        link.send(*(request("echo", job_id=f"{each}") for each in range(20)), b"junk\n")
        assert [link.outcome()["job_id"] for _ in range(20)] == [str(each) for each in range(20)]
        assert link.outcome()["job_id"] == "unknown"


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("limit", [1, 3])
def test_never_more_in_flight_than_asked_for(limit: int, is_async: bool) -> None:
    """Strictly one unless the operator says otherwise; and as many as he says."""
    registry, running, gate = Registry(), threading.Semaphore(0), threading.Event()
    now, most, lock = 0, 0, threading.Lock()

    def enter(change: int) -> None:
        nonlocal now, most
        with lock:
            now += change
            most = max(most, now)

    def work() -> None:
        enter(1)
        running.release()
        gate.wait(PATIENCE)
        enter(-1)

    async def awork() -> None:
        enter(1)
        running.release()
        await asyncio.to_thread(gate.wait, PATIENCE)
        enter(-1)

    registry.add(awork if is_async else work, "work")
    with Link(registry, limit) as link:
        link.send(*(request("work", job_id=str(each)) for each in range(2 * limit + 1)))
        for _ in range(limit):
            assert running.acquire(timeout=PATIENCE)
        gate.set()
        answers = [link.outcome() for _ in range(2 * limit + 1)]
    assert {each["status"] for each in answers} == {"success"}
    assert most == limit


def test_a_quick_request_overtakes_a_slow_one() -> None:
    """With several in flight, outcomes leave as they come."""
    registry, gate = Registry(), threading.Event()
    registry.add(lambda: gate.wait(PATIENCE) and None, "slow")
    registry.add(echo, "echo")
    with Link(registry, 2) as link:
        link.send(request("slow", job_id="slow"), request("echo", job_id="quick"))
        assert link.outcome()["job_id"] == "quick"
        assert link.ask("echo", job_id="later")["job_id"] == "later"
        gate.set()
        assert link.outcome()["job_id"] == "slow"


def test_room_is_used_although_the_only_worker_is_busy() -> None:
    """An async handler that ends makes room; somebody must be there to read."""
    registry, gates, first = registry_of("sync"), [threading.Event(), threading.Event()], []

    @registry.handler
    async def soon() -> None:
        await asyncio.to_thread(gates[0].wait, PATIENCE)

    @registry.handler
    def later() -> None:
        gates[1].wait(PATIENCE)

    with Link(registry, 2) as link:
        link.send(request("soon", job_id="soon"), request("later", job_id="later"))
        gates[0].set()
        first.append(link.outcome()["job_id"])
        first.append(link.ask("echo", job_id="echo")["job_id"])
        gates[1].set()
        assert link.outcome()["job_id"] == "later"
    assert first == ["soon", "echo"]


def test_with_one_in_flight_hooks_and_handlers_share_a_thread() -> None:
    """What a hook opens, a connection bound to its thread for example, the handlers can use."""
    registry, seen = Registry(), []

    def note() -> None:
        seen.append(threading.get_ident())

    registry.on_startup(note)
    registry.on_shutdown(note)
    registry.add(note)
    with Link(registry) as link:
        link.send(request("note"), request("note"))
        assert link.outcome()["status"] == link.outcome()["status"] == "success"
    assert len(seen) == 4
    assert len(set(seen)) == 1


def test_hooks_of_both_colours_run_in_order() -> None:
    """Start-up in the order of their writing, shut-down in the reverse, after the last request."""
    registry, seen = Registry(), []
    registry.on_startup(lambda: seen.append("up 1"))

    @registry.on_startup
    async def second() -> None:
        seen.append("up 2")

    registry.on_shutdown(lambda: seen.append("down 2"))

    @registry.on_shutdown
    async def first() -> None:
        seen.append("down 1")

    registry.add(lambda: seen.append("request"), "note")
    with Link(registry) as link:
        link.send(request("note"))
        link.end_input()
        link.wait()
        assert link.outcome()["status"] == "success"
    assert seen == ["up 1", "up 2", "request", "down 1", "down 2"]


def test_a_failed_start_up_hook_ends_it_before_any_request() -> None:
    """The error names the hook, keeps its cause, and says where the hook is."""
    registry = registry_of("sync")

    @registry.on_startup
    def connect() -> None:
        raise OSError("refused")

    with Link(registry) as link:
        link.wait()
    assert isinstance(link.failure, HookError)
    assert link.failure.message == "the start-up hook 'connect' failed: OSError: refused"
    line = connect.__code__.co_firstlineno
    assert link.failure.remedy == f"it is declared in {__file__}:{line}"


def test_a_failed_shut_down_hook_does_not_keep_the_others() -> None:
    """All run, the first failure is told at the end, and the answers are out."""
    registry, seen = registry_of("sync"), []
    registry.on_shutdown(lambda: seen.append("ran"))

    @registry.on_shutdown
    async def close() -> None:
        raise SystemExit(3)

    with Link(registry) as link:
        assert link.ask("echo")["status"] == "success"
    assert seen == ["ran"]
    assert isinstance(link.failure, HookError)


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_stop_finishes_what_was_taken_and_reads_no_more(colour: str) -> None:
    """As SIGTERM does it."""
    registry, begun, gate = Registry(), threading.Event(), threading.Event()

    def work() -> str:
        begun.set()
        gate.wait(PATIENCE)
        return "done"

    async def awork() -> str:
        begun.set()
        await asyncio.to_thread(gate.wait, PATIENCE)
        return "done"

    registry.add(work if colour == "sync" else awork, "work")
    with Link(registry) as link:
        link.send(request("work"))
        assert begun.wait(PATIENCE)
        link.runtime.stop()
        gate.set()
        link.wait()
        assert link.outcome()["result"] == "done"


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("colour", COLOURS)
def test_stop_ends_an_idle_runtime(colour: str, limit: int) -> None:
    """Whoever waits for input is woken."""
    with Link(registry_of(colour), limit) as link:
        assert link.ask("echo")["status"] == "success"
        link.runtime.stop()
        link.wait()
    assert link.failure is None


@pytest.mark.parametrize("limit", LIMITS)
def test_a_reader_that_is_gone_ends_it_quietly(limit: int) -> None:
    """What can no longer be told is dropped."""
    registry = registry_of("sync")
    link = Link(registry, limit)
    os.close(link.output_fd)
    link.send(request("echo"))
    link.wait()
    link.end_input()
    assert link.failure is None


@pytest.mark.parametrize("limit", LIMITS)
def test_a_slow_reader_loses_nothing(limit: int) -> None:
    """More than the pipe holds waits until it is read."""
    registry = Registry()
    registry.add(lambda: "x" * 300_000, "much")
    with Link(registry, limit) as link:
        link.send(*(request("much", job_id=str(each)) for each in range(20)))
        link.end_input()
        sizes = [len(link.outcome()["result"]) for _ in range(20)]
    assert sizes == [300_000] * 20


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_nothing_a_handler_raises_ends_the_process(
    colour: str, raised: type[BaseException]
) -> None:
    """Exits are errors like any other."""
    registry = registry_of(colour)

    def work() -> None:
        raise raised("bye")

    async def awork() -> None:
        raise raised("bye")

    registry.add(work if colour == "sync" else awork, "work")
    with Link(registry) as link:
        told = link.ask("work")
        assert (told["status"], told["error_type"]) == ("error", raised.__name__)
        assert link.ask("echo")["status"] == "success"


def test_endless_recursion_is_an_error() -> None:
    """The process lives."""
    registry = registry_of("sync")

    @registry.handler
    def deeper() -> Any:
        return deeper()

    with Link(registry) as link:
        assert link.ask("deeper")["error_type"] == "RecursionError"
        assert link.ask("echo")["status"] == "success"


def test_a_task_in_the_background_cannot_end_the_loop() -> None:
    """A SystemExit nobody awaits is told on the standard error."""
    registry = registry_of("async")

    async def leave() -> None:
        raise SystemExit(1)

    @registry.handler
    async def begin() -> None:
        task = asyncio.create_task(leave())
        task.add_done_callback(lambda done: done.exception())

    with Link(registry) as link:
        assert link.ask("begin")["status"] == "success"
        assert link.ask("echo")["status"] == "success"


def test_wrong_arguments_are_an_error_of_their_own() -> None:
    """The handler is not called."""
    registry = Registry()

    @registry.handler
    def resize(path: str, *, width: int = 100) -> str:
        return f"{path} {width}"

    with Link(registry) as link:
        assert link.ask("resize", "a.png", width=3)["result"] == "a.png 3"
        told = link.ask("resize", "a.png", width="wide")
        assert (told["status"], told["error_type"]) == ("error", "invalid_arguments")
        assert told["error_message"] == "the argument 'width': Expected `int`, got `str`"


class Picky(msgspec.Struct):
    """Refuses to be made, in a way of its own."""

    width: int

    def __post_init__(self) -> None:
        raise LookupError("not today")


def test_a_type_that_breaks_is_an_error_of_the_job() -> None:
    """Code of the user's runs before the handler does."""
    registry = Registry()

    @registry.handler
    def resize(box: Picky) -> None: ...

    with Link(registry) as link:
        told = link.ask("resize", {"width": 1})
        assert (told["error_type"], told["error_message"]) == ("LookupError", "not today")


def test_a_plain_function_may_return_a_coroutine() -> None:
    """It is awaited on the loop."""
    registry = Registry()
    registry.add(lambda number: aecho(number), "lazy")  # noqa: PLW0108 - it must be plain
    registry.add(lambda: _broken(), "broken")  # noqa: PLW0108
    with Link(registry) as link:
        assert link.ask("lazy", 1)["result"] == {"args": [1], "kwargs": {}}
        assert link.ask("broken")["error_type"] == "LookupError"


async def _broken() -> None:
    raise LookupError("x")


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.req("EXEC:Request")
def test_the_context_is_there_injected_or_asked_for(colour: str) -> None:
    """And nothing of it is left for the next request, nor what a handler put beside it."""
    registry, mine = Registry(), contextvars.ContextVar("mine", default="clean")

    def tell(job: JobContext) -> Any:
        before = mine.get()
        mine.set("dirty")
        assert current_job() is job
        left = job.remaining()
        return {
            "id": job.job_id,
            "handler": job.handler,
            "attempt": job.attempt,
            "queue": job.queue_name,
            "enqueued": job.enqueued_at,
            "deadline": job.deadline,
            "is_ahead": left is not None and left > 0,
            "worker": job.worker_id,
            "correlation": job.correlation,
            "before": before,
        }

    async def atell(job: JobContext) -> Any:
        return tell(job)

    registry.add(tell if colour == "sync" else atell, "tell")
    with Link(registry) as link:
        told = link.ask(
            "tell",
            job_id="j",
            _attempt=3,
            _queue_name="q",
            _deadline="2999-01-01T00:00:00+02:00",
            _worker_id="w",
            _trace_context={"correlation_id": "c"},
        )["result"]
        assert told == {
            "id": "j",
            "handler": "tell",
            "attempt": 3,
            "queue": "q",
            "enqueued": "2025-01-01T12:00:00Z",
            "deadline": "2998-12-31T22:00:00Z",
            "is_ahead": True,
            "worker": "w",
            "correlation": "c",
            "before": "clean",
        }
        assert link.ask("tell")["result"]["before"] == "clean"
    assert current_job() is None


def test_a_context_of_ones_own_serves_in_tests() -> None:
    """Everything but the id has a default."""
    job = JobContext(job_id="1")
    assert (job.attempt, job.enqueued_at, job.deadline, job.remaining()) == (1, None, None, None)


def test_a_line_over_the_limit_is_refused_and_the_next_one_served() -> None:
    """The answer carries the job's id when it can be read."""
    with Link(registry_of("sync")) as link:
        line = request("echo", "x" * (17 << 20), job_id="huge")
        writer = threading.Thread(target=_write_all, args=(link, line + request("echo")))
        writer.start()
        told = link.outcome()
        assert (told["job_id"], told["error_type"]) == ("huge", "invalid_request")
        assert link.outcome()["status"] == "success"
        writer.join(PATIENCE)


def _write_all(link: Link, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(link.input_fd, rest) :]


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_pipes_that_do_not_block_serve_as_well(colour: str, limit: int) -> None:
    """Whoever made them may have wanted them so."""
    registry = registry_of(colour)
    with Link(registry, limit) as link:
        for each in link.runtime_fds:
            os.set_blocking(each, False)
        link.send(*(request("echo", "x" * 900, job_id=str(each)) for each in range(50)))
        link.end_input()
        assert {link.outcome()["job_id"] for _ in range(50)} == {str(each) for each in range(50)}


def test_pieces_of_a_line_are_put_together() -> None:
    """However they were cut."""
    line = request("echo", "🎉\u2028")
    with Link(registry_of("sync")) as link:
        for each in line:
            link.send(bytes([each]))
        assert json.loads(json.dumps(link.outcome()["result"]["args"])) == ["🎉\u2028"]
