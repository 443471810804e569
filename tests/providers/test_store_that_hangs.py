"""A store that hangs holds up no call whose guarantee does not need it, nor an event loop."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.core.circuit_breaker import BreakerRule, CircuitState, Permit, Vote
from ergon_framework.errors import StoreUnavailableError
from ergon_framework.ports.providerstore import LaneKey, LaneState
from ergon_framework.providers.shared_circuit import FRESH_FOR, STORE_TIMEOUT, Circuit
from ergon_framework.providers.store_urls import open_store
from ergon_framework.providers.stores.memory import MemoryProviderStore
from tests.providers.scripted import Scripted, acall, call
from tests.servers.postgres import PostgresServer

pytestmark = pytest.mark.req("PEF:B-11", "PEF:trap-store-down")
LANE = LaneKey("t", "p", "c")


class Hanging(MemoryProviderStore):
    """Takes its time, and then does not answer."""

    def __init__(self) -> None:
        super().__init__(lambda: self.instant)
        self.instant = 1000.0
        self.hangs = True
        self.asked_by: list[str] = []
        self.answered = threading.Event()

    def lane_state(self, key: LaneKey) -> LaneState:
        self.asked_by.append(threading.current_thread().name)
        if self.hangs:
            threading.Event().wait(STORE_TIMEOUT * 0.6)
            raise StoreUnavailableError("no answer")
        self.answered.set()
        return super().lane_state(key)


def test_one_caller_waits_for_a_store_that_hangs_and_once() -> None:
    """From then on a thread of our own looks whether it is back."""
    store = Hanging()
    circuit = Circuit(store, LANE, BreakerRule())
    me = threading.current_thread().name
    circuit.refresh()
    for _ in range(3):
        store.instant += FRESH_FOR + 0.1
        circuit.refresh()
    assert store.asked_by[0] == me
    assert me not in store.asked_by[1:]
    store.hangs = False
    while not store.answered.wait(0.01):
        store.instant += FRESH_FOR + 0.1
        circuit.refresh()
    assert me not in store.asked_by[1:]


def test_a_circuit_that_opens_while_the_store_is_away_is_told() -> None:
    """Once: not again when the store is back and learns of it."""

    class Away(MemoryProviderStore):
        is_away = True

        def compare_and_set(self, *given: Any, **failed: Any) -> bool:
            if self.is_away:
                raise StoreUnavailableError("no answer")
            return super().compare_and_set(*given, **failed)

    instant = [1000.0]
    store = Away(lambda: instant[0])
    told: list[str] = []

    def tell(name: str, /, **_: object) -> None:
        told.append(name)

    circuit = Circuit(store, LANE, BreakerRule(failure_threshold=2), tell)
    circuit.refresh()
    for _ in range(2):
        circuit.report(Permit(0), Vote.FAILURE)
    assert told == ["circuit.opened"]
    store.is_away = False
    instant[0] += FRESH_FOR + 0.1
    circuit.refresh()
    assert store.lane_state(LANE).breaker.state is CircuitState.OPEN
    assert told == ["circuit.opened"]


def test_a_circuit_that_cannot_be_written_stays_open_meanwhile() -> None:
    """A file that others hold locked can be read: what is read must not hide what is known here."""

    class Locked(MemoryProviderStore):
        is_locked = True

        def compare_and_set(self, *given: Any, **failed: Any) -> bool:
            seen.append(circuit.refused_for() is not None)  # as other threads see it meanwhile
            if self.is_locked:
                raise StoreUnavailableError("locked")
            return super().compare_and_set(*given, **failed)

    instant, seen = [1000.0], list[bool]()
    store = Locked(lambda: instant[0])
    circuit = Circuit(store, LANE, BreakerRule(failure_threshold=1, open_cooldown=60.0))
    circuit.refresh()
    circuit.report(Permit(0), Vote.FAILURE)
    seen.clear()
    for _ in range(3):
        instant[0] += FRESH_FOR + 0.1
        circuit.refresh()
    store.is_locked = False
    instant[0] += FRESH_FOR + 0.1
    circuit.refresh()
    assert seen == [True] * 4
    assert store.lane_state(LANE).breaker.state is CircuitState.OPEN


@pytest.mark.parametrize("is_async", [False, True])
def test_the_pool_of_the_event_loop_is_left_alone(is_async: bool, tmp_path: Path) -> None:
    """Neither a store nor a provider that is not async takes a thread of it."""

    class Forbidden(ThreadPoolExecutor):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            raise AssertionError("the loop's own pool was used")

    class Async(Scripted):
        async def _execute_impl(self, **given: Any) -> dict[str, Any]:
            return {}

    async def main() -> bool:
        asyncio.get_running_loop().set_default_executor(Forbidden())
        kind = Async if is_async else Scripted
        return (await acall(kind(store=f"sqlite:///{tmp_path}/work.db", durable=True))).success

    assert asyncio.run(main())


@pytest.mark.slow
def test_calls_go_on_while_postgresql_is_frozen(postgres_server: PostgresServer) -> None:
    """All its processes are stopped: the calls together wait less than the store would for one."""
    store = open_store(postgres_server.new_database())
    provider = Scripted(store=store)
    assert call(provider).success
    with provider:
        assert provider.flush()
        database = store.database  # type: ignore[attr-defined]
        sql = "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
        pids = [pid for (pid,) in database.read(lambda cursor: cursor.fetch(sql, {}))]
        postgres_server.freeze()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            ends_at = time.monotonic() + 4.0
            took = [_seconds(provider) for _ in iter(lambda: time.monotonic() < ends_at, False)]
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
            postgres_server.thaw()
        slow = [seconds for seconds in took if seconds > 0.4]
        assert len(took) > 100
        assert len(slow) <= 2
        assert max(took) < 3.0


def _seconds(provider: Scripted) -> float:
    began_at = time.monotonic()
    assert call(provider).success
    return time.monotonic() - began_at
