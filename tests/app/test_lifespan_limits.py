"""Lifespans that never return: each is cut off in time and named, and no unit is charged for it."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from ergon_framework import App, MemoryConnector, Transaction
from ergon_framework.errors import LifespanTimeoutError, WiringError
from tests.waiting import until

pytestmark = pytest.mark.req("ONE:run")

LATE_START = r"the lifespan 'database' did not come to its yield within 0\.05 s \(.*startup_timeout"
LATE_END = r"the lifespan 'database' did not end within 0\.05 s after its yield \(.*shutdown_time"
Function = Callable[[], Any]


def hanging(half: str, colour: str) -> Function:
    """A lifespan that waits for ever, before its yield or after it."""

    def plain() -> Iterator[None]:
        if half == "startup":
            threading.Event().wait()
        yield
        while True:  # as code does that tries again whatever the error was
            try:
                threading.Event().wait()
            except Exception:  # noqa: S112
                continue

    async def asynchronous() -> AsyncIterator[None]:
        if half == "startup":
            await asyncio.Event().wait()
        yield
        await asyncio.Event().wait()

    made: Function = plain if colour == "sync" else asynchronous
    made.__name__ = "database"
    return made


def declared(half: str, colour: str) -> App:
    """An App with such a lifespan, whose limit is short."""
    app = App("memory://")
    limit: Any = {f"{half}_timeout": 0.05}
    app.lifespan(**limit)(hanging(half, colour))
    return app


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_drain_gives_the_job_back_when_a_lifespan_does_not_open(colour: str) -> None:
    """It was charged nothing, and the next drain may have it."""
    app = declared("startup", colour)

    @app.job(attempts=1)
    def pay() -> None: ...

    with app:
        job = pay.enqueue()
        with pytest.raises(LifespanTimeoutError, match=LATE_START):
            app.drain()
        shown = app.client.show(job)
        assert (shown["status"], shown["attempts"]) == ("pending", 0)


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_drain_ends_although_a_lifespan_does_not_close(colour: str) -> None:
    """What was done before is recorded."""
    app = declared("shutdown", colour)
    pay = app.job(attempts=1)(lambda: None)
    with app:
        job = pay.enqueue()
        with pytest.raises(LifespanTimeoutError, match=LATE_END):
            app.drain()
        assert job.status() == "completed"


@pytest.mark.parametrize("half", ["startup", "shutdown"])
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_run_of_consumers_ends_with_an_error(half: str, colour: str) -> None:
    """Before the yield no unit is taken; after it, those that were taken have their outcome."""
    app = declared(half, colour)
    source = MemoryConnector([Transaction("o1", 1)])

    @app.consumer(source)
    async def charge(amount: int) -> None: ...

    with app, pytest.raises(LifespanTimeoutError, match=LATE_START + "|" + LATE_END):
        app.run(burst=True)
    assert source.get_transactions_count() == (1 if half == "startup" else 0)


def test_a_stop_by_a_signal_ends_with_an_error_too() -> None:
    """An operator who stops the program has to learn that it did not close what it had opened."""
    app = declared("shutdown", "async")

    @app.consumer(MemoryConnector([Transaction("o1", 1)]))
    async def charge(amount: int) -> None:
        signal.raise_signal(signal.SIGTERM)

    with app, pytest.raises(LifespanTimeoutError, match=LATE_END):
        app.run()


def test_a_consumer_that_is_stuck_in_its_own_thread_is_given_up() -> None:
    """Nothing can interrupt that thread; the others are stopped, and the run ends without it."""
    app, stuck = App("memory://"), threading.Event()

    @app.lifespan(startup_timeout=0.05)
    async def ledger() -> AsyncIterator[None]:
        stuck.wait()  # blocks its event loop
        yield

    source = MemoryConnector([Transaction("o1", 1)])

    @app.consumer(source)
    async def charge(amount: int) -> None: ...

    try:
        with app, pytest.raises(LifespanTimeoutError, match="'ledger' did not come to its yield"):
            app.run(burst=True)
    finally:
        stuck.set()
    assert source.get_transactions_count() == 1


def test_a_drain_that_is_stuck_off_the_main_thread_lets_its_job_go(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing can interrupt that thread, so somebody else may have the job; it ends when it can."""
    app, stuck, told = App("memory://"), threading.Event(), list[BaseException]()

    @app.lifespan(startup_timeout=0.05)
    def ledger() -> Iterator[None]:
        stuck.wait()
        yield

    @app.job(attempts=1)
    def pay() -> None: ...

    def drain() -> None:
        try:
            app.drain()
        except BaseException as error:
            told.append(error)

    with app:
        job = pay.enqueue()
        thread = threading.Thread(target=drain)
        thread.start()
        try:
            until(lambda: "1 job(s) go back" in caplog.text, "the job to be given back")
            shown = app.client.show(job)
            assert (shown["status"], shown["attempts"]) == ("pending", 0)
            assert thread.is_alive()
        finally:
            stuck.set()
            thread.join(20)
        assert [type(each) for each in told] == [LifespanTimeoutError]
        assert "the lifespan 'ledger' did not come to its yield" in caplog.text
        assert (app.client.show(job)["status"], job.cancel()) == ("pending", True)


def test_what_a_lifespan_opens_belongs_to_the_thread_of_the_drain() -> None:
    """The limit moves nothing to another thread: sqlite3 refuses connections of others."""
    app, threads = App("memory://"), []

    @app.lifespan(startup_timeout=30, shutdown_timeout=None)
    def database() -> Iterator[None]:
        threads.append(threading.current_thread())
        yield
        threads.append(threading.current_thread())

    before = signal.getsignal(signal.SIGURG)
    pay = app.job(lambda: threads.append(threading.current_thread()))
    with app:
        pay.enqueue()
        assert app.drain().completed == 1
    assert threads == [threading.current_thread()] * 3
    assert signal.getsignal(signal.SIGURG) is before


@pytest.mark.parametrize("limit", [0, -1, True, "60", float("nan"), float("inf")])
def test_a_limit_that_is_none_is_refused(limit: Any) -> None:
    """Where it stands."""
    app = App("memory://")
    with pytest.raises(WiringError, match="startup_timeout of the lifespan 'database' is"):
        app.lifespan(startup_timeout=limit)(hanging("startup", "sync"))
    with pytest.raises(WiringError, match="has no option 'timeout'"):
        app.lifespan(timeout=3)(hanging("startup", "sync"))  # type: ignore[call-overload]
