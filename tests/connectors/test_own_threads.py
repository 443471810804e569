"""Connectors have threads of their own: what hooks do to those of the event loop is no matter."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.connector.base import OwnThreads
from ergon_framework.connector.jobs import JobsConnector
from ergon_framework.connector.jsonl import JsonlConnector
from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.ports.transaction import Transaction
from ergon_framework.task.ready import AsyncConsumerTask
from tests.waiting import until


def a_queue(folder: Path) -> JsonlConnector:
    """Files, in and out of one folder."""
    return JsonlConnector(folder, folder, fsync=False)


def some_jobs(folder: Path) -> JobsConnector:
    """A queue of jobs."""
    return JobsConnector(f"sqlite:///{folder}/work.db", handler="h", options={"max_attempts": 1})


@pytest.mark.parametrize("make", [a_queue, some_jobs])
def test_hooks_that_hang_in_threads_keep_nobody_from_settling(
    tmp_path: Path, make: Callable[[Path], Any]
) -> None:
    """Calls of ``asyncio.to_thread`` that were given up hold the event loop's few threads."""
    go_on = threading.Event()

    class Hanging(AsyncConsumerTask):
        async def process_transaction(self, transaction: Any) -> None:
            await asyncio.to_thread(go_on.wait, 60)

    async def scenario() -> Any:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        with make(tmp_path) as connector:
            connector.dispatch_transactions([Transaction(f"t{n}", {}) for n in range(6)])
            policy = {
                "loop": {"batch": {"size": 3}, "concurrency": {"value": 3}},
                "steps": {"process": {"retry": {"timeout": 0.01}}},
            }
            try:
                report = await Hanging({"in": connector}).consume_transactions(policy)
                return report, connector.get_transactions_count()
            finally:
                go_on.set()

    report, left = asyncio.run(scenario())
    assert (report.timed_out, report.settlement_failures, left) == (6, 0, 0)


def test_no_more_threads_than_allowed_and_none_without_need() -> None:
    """Calls wait for a thread; one that is idle is used again."""
    threads = OwnThreads(most=2)
    go_on, running = threading.Event(), threading.Semaphore(0)

    def work(number: int) -> tuple[int, threading.Thread]:
        running.release()
        assert go_on.wait(60)
        return number, threading.current_thread()

    calls = [threads.submit(work, number) for number in range(5)]
    assert running.acquire(timeout=60)
    assert running.acquire(timeout=60)
    assert not running.acquire(blocking=False)
    go_on.set()
    done = [each.result(60) for each in calls]
    assert [number for number, _ in done] == [0, 1, 2, 3, 4]
    assert len({thread for _, thread in done}) == 2
    assert all(thread.daemon for _, thread in done)


def test_idle_threads_end_and_none_is_missed() -> None:
    """A call that comes while the last thread is about to end is made all the same."""
    threads = OwnThreads(most=3, idle_timeout=0.0)
    calls = [threads.submit(int, number) for number in range(500)]
    assert not wait(calls, 60).not_done
    assert [each.result() for each in calls] == list(range(500))


def test_an_error_and_a_cancelled_call() -> None:
    """What a call raises is raised to whoever waits; one that had not begun never does."""
    threads = OwnThreads(most=1)
    go_on = threading.Event()
    first = threads.submit(go_on.wait, 60)
    second = threads.submit(int, "nine")
    third = threads.submit(int, 3)
    assert third.cancel()
    go_on.set()
    assert first.result(60)
    assert isinstance(second.exception(60), ValueError)


def test_a_forked_child_has_threads_of_its_own() -> None:
    """The parent's are not there, and are not waited for."""
    threads = OwnThreads(most=1)
    go_on = threading.Event()
    busy = threads.submit(go_on.wait, 60)
    child = os.fork()
    if child == 0:
        answer = 1
        try:
            answer = threads.submit(int, "0").result(30)
        finally:
            os._exit(answer)
    go_on.set()
    assert busy.result(60)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_without_a_thread_the_caller_hears_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """When none can be started, and none is there, nothing waits for ever."""
    threads = OwnThreads(most=2)

    def refuse(*_given: Any) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(SYSTEM_CLOCK, "spawn", refuse, raising=False)
        with pytest.raises(RuntimeError, match="new thread"):
            threads.submit(int)
    assert threads.submit(int).result(60) == 0


def test_a_call_that_was_given_up_before_a_thread_had_it_is_not_made() -> None:
    """What a thread returns for a loop that waits no longer, or has ended, is for nobody."""
    threads = OwnThreads(most=1)
    go_on = threading.Event()
    called: list[str] = []

    async def scenario() -> str:
        first = asyncio.ensure_future(threads.run(go_on.wait, 60))
        second = asyncio.ensure_future(threads.run(called.append, "second"))
        third = asyncio.ensure_future(threads.run(str, "third"))
        await asyncio.sleep(0)
        for each in (first, second):
            each.cancel()
        await asyncio.wait([first, second])
        go_on.set()
        asyncio.ensure_future(threads.run(called.append, "late")).cancel()
        return await third

    assert asyncio.run(scenario()) == "third"
    assert called == []


def test_what_a_call_raises_is_raised_in_the_loop() -> None:
    """As it was raised, in the context that the caller had."""
    threads = OwnThreads(most=1)

    async def scenario() -> None:
        await threads.run(int, "none")

    with pytest.raises(ValueError, match="none"):
        asyncio.run(scenario())


def test_a_connector_that_is_closed_leaves_no_thread(tmp_path: Path) -> None:
    """Not even one that waits for more to do: it would end only after its idle time."""

    async def scenario(make: Callable[[Path], Any]) -> None:
        connector = make(tmp_path)
        await connector.dispatch_transactions_async([Transaction("a", {})])
        assert len(await connector.fetch_transactions_async(1)) == 1
        await connector.aclose()

    before = set(threading.enumerate())
    for make in (a_queue, some_jobs):
        asyncio.run(scenario(make))
    until(lambda: not set(threading.enumerate()) - before, "the end of the threads", 5)


def test_a_call_after_the_end_of_idle_threads_has_another_one() -> None:
    """What is settled late, while a connector is closed, is settled all the same."""
    threads = OwnThreads("ergon-late", most=2)
    assert threads.submit(int, "1").result(60) == 1
    for _ in range(3):
        threads.end_idle()
        assert threads.submit(int, "2").result(60) == 2
    threads.end_idle()
    until(lambda: not [each for each in threading.enumerate() if each.name == "ergon-late"])
