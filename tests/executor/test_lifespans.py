"""What an executor opens before its first job, gives to handlers by type, and closes at its end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from ergon_framework.core.job import JobStatus
from ergon_framework.errors import ErgonError, ExecutorError, HookError, WiringError
from ergon_framework.executor import InvalidArgumentsError, JobContext, Registry
from ergon_framework.executor.hooks import HookRunner, HookStep
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.settings import ExecutorSettings
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.ports.lifespan import (
    INJECTED,
    SHUTDOWN_TIMEOUT,
    STARTUP_TIMEOUT,
    Dependencies,
)
from tests.executor.link import Link, request, runtime_command
from tests.jobs.real_worker import get, history, job, worker

pytestmark = pytest.mark.req("JOBS:executor")


class Resource:
    """What both kinds of pool are."""


class Pool(Resource):
    """Something that is opened and closed."""

    def __init__(self, notes: list[str]) -> None:
        self.notes = notes


class BetterPool(Pool):
    """A second kind of pool."""


class Session:
    """Something else."""


def refuse() -> None:
    """A server that is away."""
    raise OSError("refused")


def registry_of(colour: str, notes: list[str]) -> Registry:
    """A lifespan of one colour, and handlers of both that are given what it yields."""
    registry = Registry()

    def plain() -> Iterator[Pool]:
        notes.append(f"open {threading.current_thread().name}")
        yield Pool(notes)
        notes.append("close")

    async def asynchronous() -> AsyncIterator[Pool]:
        async with asyncio.TaskGroup():  # refuses to be left by another task than its own
            notes.append("open")
            yield Pool(notes)
            notes.append("close")

    registry.lifespan(plain if colour == "sync" else asynchronous)

    @registry.handler
    def save(pool: Pool, what: str, job: JobContext) -> str:
        pool.notes.append(f"save {what} {job.attempt}")
        return what

    @registry.handler
    async def save_async(what: str, *, pool: Pool) -> str:
        pool.notes.append(f"save {what}")
        return what

    return registry


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_what_a_lifespan_yields_is_given_to_handlers_of_both_colours(colour: str) -> None:
    """It is open before the first job and closed after the last."""
    notes: list[str] = []
    with Link(registry_of(colour, notes)) as link:
        assert link.ask("save", "a")["result"] == "a"
        assert link.ask("save_async", what="b")["result"] == "b"
        assert notes[0].startswith("open")
        assert notes[1:] == ["save a 1", "save b"]
    assert notes[1:] == ["save a 1", "save b", "close"]
    assert link.failure is None


def test_an_injected_value_cannot_be_sent() -> None:
    """It is no argument: neither for a request nor for a client, where nothing is open."""
    registry = registry_of("sync", [])
    with Link(registry) as link:
        told = link.ask("save", what="a", pool={})
        assert (told["status"], told["error_type"]) == ("error", "invalid_arguments")
    client = JobClient(store=MemoryJobStore(), registry=registry)
    assert client.job("save", ["a"]).args == b'["a"]'
    with pytest.raises(InvalidArgumentsError, match=r"no argument 'pool'.*save\(what: str\)"):
        client.job("save", ["a"], {"pool": 1})


def test_lifespans_and_hooks_nest() -> None:
    """The first that is opened is the last to be closed, and hooks run while all are open."""
    registry, notes = Registry(), list[str]()

    @registry.lifespan
    def outer() -> Iterator[Pool]:
        notes.append("outer")
        yield Pool(notes)
        notes.append("outer closed")

    @registry.lifespan
    async def inner() -> AsyncIterator[Session]:
        notes.append("inner")
        yield Session()
        notes.append("inner closed")

    registry.on_startup(lambda: notes.append("up"))
    registry.on_shutdown(lambda: notes.append("down"))

    @registry.handler
    def both(pool: Pool, session: Session) -> None:
        notes.append(type(session).__name__)

    with Link(registry) as link:
        assert link.ask("both")["status"] == "success"
    assert notes == ["outer", "inner", "up", "Session", "down", "inner closed", "outer closed"]


@pytest.mark.parametrize("colour", ["sync", "async", "hook"])
def test_a_lifespan_that_cannot_be_opened_ends_it_before_any_request(colour: str) -> None:
    """The error names it; what was opened before it is closed."""
    registry, notes = registry_of("sync", []), list[str]()

    @registry.lifespan
    def first() -> Iterator[Session]:
        yield Session()
        notes.append("closed")

    def plain() -> Iterator[None]:
        refuse()
        yield

    async def asynchronous() -> AsyncIterator[None]:
        refuse()
        yield

    if colour == "hook":
        registry.on_startup(refuse)
    else:
        registry.lifespan(plain if colour == "sync" else asynchronous)
    with Link(registry) as link:
        link.wait()
    assert isinstance(link.failure, HookError)
    assert "OSError: refused" in str(link.failure)
    assert notes == ["closed"]


def test_a_lifespan_that_fails_at_the_end_does_not_keep_the_others() -> None:
    """All are closed, the failure is told, and the answers are out."""
    registry, notes = Registry(), list[str]()

    @registry.lifespan
    def first() -> Iterator[Pool]:
        yield Pool(notes)
        notes.append("closed")

    @registry.lifespan
    async def second() -> AsyncIterator[None]:
        yield
        raise LookupError("gone")

    registry.on_shutdown(lambda: 1 // 0)
    registry.add(lambda: 1, "one")
    with Link(registry) as link:
        assert link.ask("one")["result"] == 1
    assert notes == ["closed"]
    assert isinstance(link.failure, HookError)
    assert "shut-down hook" in str(link.failure)


def test_a_process_that_cannot_open_its_lifespan_says_why(tmp_path: Path) -> None:
    """It ends with a code of its own, and answers nothing."""
    (tmp_path / "broken.py").write_text(
        "from collections.abc import Iterator\n"
        "from ergon_framework.executor import Registry\n"
        "registry = Registry()\n"
        "@registry.lifespan\n"
        "def database() -> Iterator[None]:\n"
        "    raise OSError('no route to the database')\n"
        "    yield\n"
        "registry.add(print, 'show')\n",
        encoding="utf-8",
    )
    done = subprocess.run(  # noqa: S603 - our own program
        runtime_command(f"{tmp_path / 'broken.py'}:registry"),
        input=request("show"),
        capture_output=True,
        check=False,
        timeout=30,
    )
    assert (done.returncode, done.stdout) == (1, b"")
    expected = b"the lifespan 'database' failed before its yield: OSError: no route to the database"
    assert expected in done.stderr
    assert f"(it is declared in {tmp_path / 'broken.py'}:4)".encode() in done.stderr


PROCESS = "the executor's process"
STUCK = """
import threading
from collections.abc import Iterator
from ergon_framework.executor import Registry

registry, event = Registry(), threading.Event()

@registry.lifespan(startup_timeout=0.05, shutdown_timeout={limit})
def database() -> Iterator[None]:
    {before}
    yield
    {after}

registry.add(len, "size")
"""


def stuck(half: str, limit: float | None = 0.05) -> str:
    """A script whose lifespan hangs before its yield or after it."""
    before, after = ("event.wait()", "") if half == "startup" else ("", "event.wait()")
    return STUCK.format(before=before, after=after, limit=limit)


@pytest.mark.parametrize("half", ["startup", "shutdown"])
def test_a_process_whose_lifespan_hangs_ends_in_time(half: str, tmp_path: Path) -> None:
    """Plain code cannot be interrupted: the process ends without it, and names it."""
    (tmp_path / "stuck.py").write_text(stuck(half), encoding="utf-8")
    done = subprocess.run(  # noqa: S603 - our own program
        runtime_command(f"{tmp_path / 'stuck.py'}:registry"),
        input=request("size", "four"),
        capture_output=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 1
    assert done.stdout.count(b"\n") == (0 if half == "startup" else 1)
    which = b"come to its yield" if half == "startup" else b"end"
    assert b"the lifespan 'database' did not %b within 0.05 s" % which in done.stderr
    assert f", in {tmp_path / 'stuck.py'}:8".encode() in done.stderr, "where it is declared"


def test_a_process_without_async_code_does_not_load_asyncio() -> None:
    """Lifespans of both colours are known to the registry, and cost nothing until one is there."""
    code = "import sys, ergon_framework.executor.runtime; sys.exit('asyncio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=30)  # noqa: S603
    assert done.returncode == 0


def test_two_values_that_fit_are_refused_at_the_start() -> None:
    """Nobody has to guess which one a handler was given; a type that is yielded itself is clear."""
    registry = registry_of("sync", [])

    @registry.lifespan
    def better() -> Iterator[BetterPool]:
        yield BetterPool([])

    registry.prepare()

    @registry.handler
    def odd(pool: Resource) -> None: ...

    with pytest.raises(WiringError, match="Resource may be injected from BetterPool and Pool"):
        registry.prepare()


def test_two_lifespans_of_one_type_are_refused_at_the_start() -> None:
    """The last one won silently, and a handler wrote into the wrong database."""
    registry = registry_of("sync", [])

    @registry.lifespan
    def archive() -> Iterator[Pool]:
        yield Pool([])

    with pytest.raises(WiringError, match="a Pool may be injected from the lifespans 'plain' and"):
        registry.prepare()
    registry.dependencies.overrides[Pool] = Pool([])
    registry.prepare()


def test_a_parameter_without_its_lifespan_is_refused_before_a_job_is() -> None:
    """Its jobs would fail for good, one by one."""
    registry = Registry()

    @registry.handler
    def save(what: str, pool: Pool = INJECTED) -> None: ...

    text = "the parameter 'pool' of the handler 'save' is INJECTED, and no lifespan yields Pool"
    with pytest.raises(WiringError, match=text):
        registry.prepare()
    with pytest.raises(WiringError, match=text):
        registry.check("save", ["x"])

    @registry.lifespan
    def opened() -> Iterator[Pool]:
        yield Pool([])

    registry.prepare()
    assert registry.check("save", ["x"]) == (["x"], {})


def test_an_application_shares_its_dependencies() -> None:
    """A registry that is given them knows what others declared."""
    dependencies = Dependencies()

    @dependencies.add
    def pool() -> Iterator[Pool]:
        yield Pool(["shared"])

    registry = Registry(dependencies=dependencies)

    @registry.handler
    def notes(pool: Pool) -> list[str]:
        return pool.notes

    with Link(registry) as link:
        assert link.ask("notes")["result"] == ["shared"]


@pytest.mark.slow
def test_a_burst_names_the_lifespan_that_keeps_its_executor_from_starting(tmp_path: Path) -> None:
    """The job waits as it was: it was charged neither an attempt nor a delivery."""
    (tmp_path / "stuck.py").write_text(stuck("startup"), encoding="utf-8")
    command = runtime_command(f"{tmp_path / 'stuck.py'}:registry")
    executor = ExecutorSettings(command=tuple(command), pool_size=1)
    store = MemoryJobStore()
    store.add([job("size", "four")])
    with pytest.raises(ErgonError, match=r"does not start.*the lifespan 'database' did not come"):
        worker(store, executor=executor, burst=True).run()
    waiting = get(store, "size")
    assert (waiting.status, waiting.attempts, waiting.excused) == (
        JobStatus.PENDING,
        0,
        waiting.deliveries,
    )
    unread = [each for each in history(waiting) if each["why"] == "executor_not_up"]
    late = "the lifespan 'database' did not come to its yield"
    assert all(late in each["message"] for each in unread)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "how"),
    [
        (0.05, "exited with status 1: ergon executor: the lifespan 'database' did not end within"),
        (
            None,
            "was ended by SIGKILL: ergon executor: asked to end, and the lifespan 'database' is",
        ),
    ],
)
def test_a_worker_ends_with_an_error_when_a_lifespan_does_not_end(
    limit: float | None, how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether its own limit ends it or that of the worker; the jobs have their outcomes."""
    (tmp_path / "stuck.py").write_text(stuck("shutdown", limit), encoding="utf-8")
    command = runtime_command(f"{tmp_path / 'stuck.py'}:registry")
    executor = ExecutorSettings(
        command=tuple(command),
        pool_size=1,
        shutdown_grace=0.3 if limit is None else 20,
        kill_grace=0.3,
    )
    store = MemoryJobStore()
    store.add([job("size", "four")])
    with pytest.raises(ExecutorError, match=f"did not end well: {PROCESS} {how}"):
        worker(store, executor=executor, burst=True).run()
    assert get(store, "size").status is JobStatus.COMPLETED
    assert (
        f"executor 'python' was asked to leave, and did not end well: {PROCESS} {how}"
        in caplog.text
    )


def test_hooks_have_the_limits_of_a_lifespan_that_says_nothing() -> None:
    """60 seconds before the first job and 10 after the last; the error says where the hook is."""
    registry, steps = Registry(), list[HookStep]()
    registry.on_startup(refuse)
    registry.on_shutdown(refuse)
    runner = HookRunner(registry, lambda _awaitable, _step: None, steps.append)
    runner.open()
    assert runner.close() is None
    assert [each.timeout for each in steps] == [STARTUP_TIMEOUT, SHUTDOWN_TIMEOUT]
    late = str(steps[0].overdue())
    assert late.startswith("the start-up hook 'refuse' did not return within 60 s (see what it")
    assert f"{__file__}:{refuse.__code__.co_firstlineno}" in late
