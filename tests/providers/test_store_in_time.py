"""A call waits for its store no longer than its budget, however patient the store is."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from ergon_framework.errors import StoreUnavailableError
from ergon_framework.ports.providerstore import KeyClaimResult, QuotaGrant, RecordBatch
from ergon_framework.providers.base import ProviderBase
from ergon_framework.providers.errors import ProviderBadRequestError
from ergon_framework.providers.execution import ProviderExecutionResult
from ergon_framework.providers.quota import QuotaPolicy
from ergon_framework.providers.retry import RetryPolicy
from ergon_framework.providers.runner import ProviderTaskRunner
from ergon_framework.providers.stores.memory import MemoryProviderStore
from ergon_framework.providers.stores.sql.store import SqlProviderStore
from ergon_framework.providers.stores.sqlite import SqliteProviderDatabase
from ergon_framework.providers.tasks import TaskCall, TaskEnd, TaskEnding, TaskGate, TaskOptions
from ergon_framework.storage.deadlines import MIN_TIMEOUT, PROVIDER_BUDGET
from ergon_framework.testing import VirtualClock
from tests.providers.scripted import Scripted, WatchedStore, acall, call, rows, used

pytestmark = pytest.mark.req("PEF:R-5", "PEF:T-2", "PEF:trap-store-down")

T = TypeVar("T")
BUDGET = 0.05
WAIT_TIMEOUT = 20.0
PATIENT = 3600.0
"""Seconds that the store would wait for its lock."""


class Locked:
    """A store in a file that somebody else can lock."""

    def __init__(self, path: Path, patience: float = PATIENT) -> None:
        self.path = path
        self.store = SqlProviderStore(SqliteProviderDatabase(path, busy_timeout=patience))

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Let nobody write meanwhile."""
        with closing(sqlite3.connect(self.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield
            other.execute("ROLLBACK")


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Locked]:
    """A file of this test's own."""
    found = Locked(tmp_path / "work.db")
    yield found
    found.store.close()


def in_time(work: Callable[[], T]) -> T:
    """What ``work`` returns, if it returns at all while the store is locked."""
    found: list[T] = []
    thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()
    thread.join(WAIT_TIMEOUT)
    assert found, "it waits for the store"
    return found[0]


def asynchronously(provider: ProviderBase) -> ProviderExecutionResult:
    """Call it on an event loop."""
    return asyncio.run(acall(provider))


COLOURS = pytest.mark.parametrize("colour", [call, asynchronously])
Colour = Callable[[ProviderBase], ProviderExecutionResult]


@COLOURS
def test_quota_is_not_waited_for_beyond_the_budget(locked: Locked, colour: Colour) -> None:
    """Nothing is called or taken, and the row of the refusal comes later."""
    provider = Scripted(
        store=locked.store, quota=QuotaPolicy(limit=5), timeout_budget_seconds=BUDGET
    )
    assert call(provider).success
    assert provider.flush(WAIT_TIMEOUT)
    with locked.lock():
        result = in_time(lambda: colour(provider))
    assert (result.reason_code, result.stop_reason) == (
        "dependency_unavailable",
        "store_unavailable",
    )
    assert provider.calls == 1
    assert used(provider) == 1
    assert len(rows(provider, result.correlation_id)) == 1


@COLOURS
@pytest.mark.parametrize("has_disk", [True, False])
def test_a_success_that_cannot_be_recorded_in_time_is_one(
    locked: Locked, colour: Colour, tmp_path: Path, has_disk: bool
) -> None:
    """It is kept on disk, or else in memory, and written when the store is free."""
    spill = tmp_path / "spill"
    if not has_disk:
        spill.write_text("in the way")
    provider = Scripted(
        store=locked.store, durable=True, timeout_budget_seconds=BUDGET, spill=spill
    )
    with locked.lock():
        result = in_time(lambda: colour(provider))
    assert (result.success, result.data) == (True, {"ok": True})
    assert [row.outcome for row in rows(provider, result.correlation_id)] == ["success"]


def test_the_circuit_is_not_waited_for_either(locked: Locked) -> None:
    """What it teaches of the circuit is known here, and to the others when the store is free."""
    provider = Scripted(ConnectionError("down"), store=locked.store, timeout_budget_seconds=BUDGET)
    with locked.lock():
        result = in_time(lambda: call(provider))
    assert (result.reason_code, result.stop_reason) == ("connection_error", "budget_spent")


@pytest.mark.parametrize("is_async", [False, True])
def test_a_key_is_not_waited_for_beyond_the_budget(locked: Locked, is_async: bool) -> None:
    """The task is put off, and made when the store is free."""
    provider = Scripted(store=locked.store)
    options = TaskOptions(timeout_budget_seconds=BUDGET)
    runner = ProviderTaskRunner(provider, task_name="t", options=options)
    task = TaskCall("t", None, "fetch", {}, call_id="m1")

    def run() -> TaskEnding:
        return asyncio.run(runner.arun(task)) if is_async else runner.run(task)

    with locked.lock():
        ending = in_time(run)
    assert (ending.end, ending.gate) == (TaskEnd.DEFER, TaskGate.STORE)
    assert ending.result.duration_ms >= 1000 * BUDGET
    assert provider.calls == 0
    assert run().end is TaskEnd.DONE


def test_a_task_that_succeeded_is_done_though_its_key_cannot_be_finished(tmp_path: Path) -> None:
    """The provider did its work: nobody is told otherwise."""
    locked = Locked(tmp_path / "work.db", patience=BUDGET)
    other = sqlite3.connect(locked.path, isolation_level=None, check_same_thread=False)

    def lock(_: object) -> dict[str, object]:
        other.execute("BEGIN IMMEDIATE")
        return {"n": 1}

    provider = Scripted(lock, store=locked.store)
    options = TaskOptions(timeout_budget_seconds=BUDGET)
    runner = ProviderTaskRunner(provider, task_name="t", options=options)
    with closing(other):
        ending = in_time(lambda: runner.run(TaskCall("t", None, "fetch", {}, call_id="m1")))
        other.execute("ROLLBACK")
    assert (ending.end, ending.result.data) == (TaskEnd.DONE, {"n": 1})
    locked.store.close()


class Asked(MemoryProviderStore):
    """Notes how long each question about a key may wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[tuple[str, float]] = []

    def claim(self, *given: Any) -> KeyClaimResult:
        self.waits.append(("claim", PROVIDER_BUDGET.at_most(PATIENT)))
        return super().claim(*given)

    def reserve(self, *given: Any) -> QuotaGrant:
        raise StoreUnavailableError("no answer")

    def finish(self, *given: Any, **options: Any) -> bool:
        self.waits.append(("finish", PROVIDER_BUDGET.at_most(PATIENT)))
        return super().finish(*given, **options)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("step", "quota", "end", "is_patient"),
    [
        ({"n": 1}, None, TaskEnd.DONE, True),
        (ProviderBadRequestError("no"), None, TaskEnd.FAILED, True),
        (ConnectionError("down"), None, TaskEnd.DEAD, True),
        ({"n": 1}, QuotaPolicy(limit=5), TaskEnd.DEFER, False),
    ],
)
def test_what_came_of_a_call_that_was_made_is_not_hurried(
    step: object, quota: QuotaPolicy | None, end: TaskEnd, is_patient: bool, is_async: bool
) -> None:
    """Nobody writes it later, and without it the call would be made again."""
    store = Asked()
    provider = Scripted(step, store=store, quota=quota, retry_policy=RetryPolicy(max_attempts=1))
    options = TaskOptions(timeout_budget_seconds=10.0)
    runner = ProviderTaskRunner(provider, task_name="t", options=options)
    task = TaskCall("t", None, "fetch", {}, call_id="m1")
    ending = asyncio.run(runner.arun(task)) if is_async else runner.run(task)
    assert (ending.end, provider.calls) == (end, int(is_patient))
    (first, claimed), (last, finished) = store.waits
    assert (first, last) == ("claim", "finish")
    assert claimed < PATIENT
    assert (finished == PATIENT) is is_patient


# -- how long it took ------------------------------------------------------------------------------


class SlowStore(WatchedStore):
    """A store that takes its time, and then does not answer or does."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.sleep = clock.sleep

    def record(self, batch: RecordBatch) -> None:
        self.sleep(3.0)
        super().record(batch)


def test_the_duration_is_that_of_the_whole_call() -> None:
    """A store that did not answer is asked once, and its time counts."""
    with VirtualClock() as clock:
        store = SlowStore(clock)
        provider = Scripted(store=store, quota=QuotaPolicy(limit=5))
        assert call(provider).success

        def fail(name: str) -> None:
            if name == "reserve":
                clock.sleep(5.0)
                raise StoreUnavailableError("no answer")

        store.before = fail
        asked = len(store.asked)
        result = call(provider)
        assert (result.stop_reason, result.duration_ms) == ("store_unavailable", 5000.0)
        assert store.asked[asked:].count("reserve") == 1


@COLOURS
def test_what_is_durable_takes_as_long_as_its_store(colour: Colour) -> None:
    """Writing is part of the call then."""
    with VirtualClock() as clock:
        provider = Scripted(store=SlowStore(clock), durable=True, clock=clock)
        assert colour(provider).duration_ms == 3000.0


@COLOURS
def test_a_look_at_the_circuit_leaves_time_for_the_call(colour: Colour) -> None:
    """The store is given half of it, and the call is made by what is known without it."""
    with VirtualClock() as clock:
        store, given = WatchedStore(clock), []

        def no_answer(name: str) -> None:
            if name == "lane_state":
                given.append(PROVIDER_BUDGET.at_most(PATIENT))
                raise StoreUnavailableError("no answer")

        store.before = no_answer
        assert colour(Scripted(store=store, timeout_budget_seconds=100.0, clock=clock)).success
    assert len(given) == 1
    assert given[0] <= 50.0


# -- the hurry itself ------------------------------------------------------------------------------


def test_patience_is_what_is_left() -> None:
    """Never more than the store's own, never less than it takes to say how it ended."""
    assert PROVIDER_BUDGET.at_most(5.0) == 5.0
    assert PROVIDER_BUDGET.run_within(None, lambda: PROVIDER_BUDGET.at_most(5.0)) == 5.0
    assert PROVIDER_BUDGET.run_within(-1.0, lambda: PROVIDER_BUDGET.at_most(5.0)) == MIN_TIMEOUT
    assert PROVIDER_BUDGET.run_within(1000.0, lambda: PROVIDER_BUDGET.at_most(5.0)) == 5.0
    assert (
        5.0 < PROVIDER_BUDGET.run_within(1000.0, lambda: PROVIDER_BUDGET.at_most(5000.0)) <= 1000.0
    )
    assert (
        PROVIDER_BUDGET.run_within(
            0.0, lambda: PROVIDER_BUDGET.run_within(1000.0, lambda: PROVIDER_BUDGET.at_most(5.0))
        )
        == MIN_TIMEOUT
    )
    assert (
        PROVIDER_BUDGET.run_within(
            0.0, lambda: PROVIDER_BUDGET.run_unlimited(lambda: PROVIDER_BUDGET.at_most(5.0))
        )
        == 5.0
    )
    assert PROVIDER_BUDGET.at_most(5.0) == 5.0
