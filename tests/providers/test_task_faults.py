"""Tasks whose surroundings misbehave: providers, cancellations, limits, and files left behind."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.ports.providerstore import KeyClaimResult, LetterStatus
from ergon_framework.providers.delivery.owner_locks import OWNER_LOCKS, OwnerLocks
from ergon_framework.providers.errors import ProviderTimeoutError
from ergon_framework.providers.retry import RetryPolicy
from ergon_framework.providers.stores.memory import MemoryProviderStore
from ergon_framework.providers.synthetic import SyntheticProvider
from ergon_framework.providers.tasks import TaskEnd
from tests.providers.scripted_tasks import call, lock_as_another_process, provider, runner

pytestmark = pytest.mark.req("PROVIDERS:celery")

ONCE = RetryPolicy(max_attempts=1)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where calls are held, without those of other tests."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return OWNER_LOCKS.folder()


def open_holds() -> int:
    """Files of calls that this process holds."""
    found = 0
    for each in Path("/proc/self/fd").iterdir():
        try:
            found += "ergon-held" in str(each.readlink())
        except OSError:  # the listing itself
            continue
    return found


# -- what a provider does to its payload ----------------------------------------------------------


@pytest.mark.req("PEF:A-18")
@pytest.mark.parametrize("left", [{"session": object()}, {"page": 2}])
def test_a_provider_may_do_what_it_likes_with_its_payload(left: dict[str, Any]) -> None:
    """The letter has what came, so that it can be sent again under its key; so has the message."""

    class Changing(SyntheticProvider):
        def _execute_impl(self, *, payload: dict[str, Any], **given: Any) -> dict[str, Any]:
            assert payload.pop("inner") == {"a": 1}
            payload.update(left)
            raise ProviderTimeoutError("slow")

    run = runner(Changing(retry_policy=ONCE))
    message = call({"inner": {"a": 1}}, idempotency_key="k", correlation_id="c")
    assert run.run(message).end is TaskEnd.DEAD
    assert message.payload == {"inner": {"a": 1}}
    (stored,) = run.provider.store.letters()
    assert (stored.letter.payload, stored.status) == (message.payload, LetterStatus.PENDING)
    assert run.provider.flush()
    assert [row.outcome for row in run.provider.store.attempts_of("c")] == ["dead_letter"]
    again = run.run(call(stored.letter.payload, idempotency_key="k", call_id="redriven"))
    assert again.result.reason_code == "timeout"


def test_a_result_that_is_nested_deeply_is_kept() -> None:
    """Deeper than a payload may be: the call has succeeded, and the replay has all of it."""

    class Deep(SyntheticProvider):
        def _execute_impl(self, **given: Any) -> dict[str, Any]:
            inner: list[Any] = []
            for _ in range(300):
                inner = [inner]
            return {"x": inner}

    run = runner(Deep())
    first = run.run(call(idempotency_key="k"))
    again = run.run(call(idempotency_key="k"))
    assert (again.end, again.result.data) == (TaskEnd.REPLAYED, first.result.data)


# -- cancellations --------------------------------------------------------------------------------


@pytest.mark.req("PEF:E-15")
@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs a list of open files")
def test_a_task_that_is_cancelled_while_it_claims_frees_its_key(place: Path) -> None:
    """The claim is heard out, and given back."""
    inside, go_on = threading.Event(), threading.Event()

    class Slow(MemoryProviderStore):
        def claim(self, *arguments: Any) -> KeyClaimResult:
            inside.set()
            assert go_on.wait(30)
            return super().claim(*arguments)

    store = Slow()
    run = runner(provider("ok", store=store))

    async def cancelled() -> None:
        task = asyncio.create_task(run.arun(call(idempotency_key="k")))
        await asyncio.to_thread(inside.wait, 30)
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert open_holds() == 0
    assert run.run(call(idempotency_key="k", call_id="another")).end is TaskEnd.DONE


@pytest.mark.req("PEF:E-15", "PEF:T-3")
@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs a list of open files")
def test_a_task_that_is_cancelled_at_its_end_has_ended(place: Path) -> None:
    """Its success is under its key, although no thread was free to write it when it was asked."""
    go_on, calls = threading.Event(), []

    async def deliver() -> None:
        loop, called = asyncio.get_running_loop(), asyncio.Event()
        loop.set_default_executor(ThreadPoolExecutor(1))

        class Busy(type(provider())):  # type: ignore[misc]
            async def _execute_impl(self, **given: Any) -> dict[str, Any]:
                calls.append(1)
                loop.run_in_executor(None, go_on.wait, 30)  # the one thread is somebody else's
                called.set()
                return {}

        run = runner(Busy())
        task = asyncio.create_task(run.arun(call(idempotency_key="k")))
        await called.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert open_holds() == 0
        assert (await run.arun(call(idempotency_key="k"))).end is TaskEnd.REPLAYED

    asyncio.run(deliver())
    assert len(calls) == 1


# -- holds ----------------------------------------------------------------------------------------


def test_a_hold_always_has_a_name(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one before may end between the opening of its file and the lock on it."""
    first = OWNER_LOCKS.acquire("call", "a")
    assert first is not None

    lock = fcntl.flock

    def between(file: int, how: int) -> None:
        patch.undo()
        first.release()
        lock(file, how)

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", between)
        second = OWNER_LOCKS.acquire("call", "b")
    assert second is not None
    assert OWNER_LOCKS.acquire("call", "c") is None
    second.release()
    assert list(place.iterdir()) == []


def test_only_ones_own_hold_is_removed(place: Path) -> None:
    """Somebody cleaned up, and another one holds the call since."""
    first = OWNER_LOCKS.acquire("call", "a")
    assert first is not None
    next(place.iterdir()).unlink()
    second = OWNER_LOCKS.acquire("call", "b")
    first.release()
    assert second is not None
    assert len(list(place.iterdir())) == 1
    assert OWNER_LOCKS.acquire("call", "c") is None
    second.release()


def test_what_the_dead_left_behind_is_swept(place: Path) -> None:
    """A day later, and only what nobody holds."""
    locks = OwnerLocks(sweep_interval=0.0)
    files: dict[str, Path] = {}
    for name in ("dead", "young"):
        os.close(lock_as_another_process(name, "o"))
        (files[name],) = set(place.iterdir()) - set(files.values())
    alive = locks.acquire("alive", "o")
    assert alive is not None
    (files["alive"],) = set(place.iterdir()) - set(files.values())
    for name in ("dead", "alive"):
        os.utime(files[name], (time.time() - 100_000,) * 2)
    another = locks.acquire("another", "o")
    assert another is not None
    another.release()
    assert set(place.iterdir()) == {files["alive"], files["young"]}
    assert locks.dead_owner("young") == "o"
    alive.release()


def test_files_are_swept_now_and_then(place: Path) -> None:
    """Not at every call: a folder may hold many files."""
    now = 1000.0
    locks = OwnerLocks(sweep_interval=3600.0, ticks=lambda: now)
    for elapsed, left in ((0.0, 0), (3599.0, 1), (1.0, 0)):
        os.close(lock_as_another_process("dead", "o"))
        for file in place.iterdir():
            os.utime(file, (time.time() - 100_000,) * 2)
        now += elapsed
        another = locks.acquire("another", "o")
        assert another is not None
        another.release()
        assert len(list(place.iterdir())) == left


@pytest.mark.req("PEF:T-4", "PROVIDERS:badinput")
def test_a_filter_of_the_host_that_raises_does_not_undo_a_call() -> None:
    """The call was made, and its end is recorded, whatever becomes of the log record."""

    def broken(_: logging.LogRecord) -> bool:
        raise RuntimeError("a filter of the host")

    log = logging.getLogger("ergon_framework.providers.task")
    before = log.level
    log.setLevel(logging.INFO)
    log.addFilter(broken)
    try:
        ending = runner().run(call())
    finally:
        log.removeFilter(broken)
        log.setLevel(before)
    assert ending.result.success
