"""One circuit for everybody who uses the store: provider objects, threads and processes."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.core.circuit_breaker import CircuitState
from ergon_framework.ports.providerstore import ProviderStore
from ergon_framework.providers.circuit_breaker import CircuitBreaker
from ergon_framework.providers.errors import ProviderDependencyError
from ergon_framework.providers.shared_circuit import STORE_TIMEOUT
from ergon_framework.providers.stores.memory import MemoryProviderStore
from ergon_framework.storage.failpoints import armed
from ergon_framework.testing import VirtualClock
from tests import fork_server
from tests.providers.scripted import (
    LANE,
    ONCE,
    Scripted,
    WatchedStore,
    call,
    lane_state,
    new_store,
    wall_of,
)

pytestmark = pytest.mark.req("PEF:A-14", "PROVIDERS:breaker")
DOWN = ProviderDependencyError("down")
CHILD = Path(__file__).with_name("shared_child.py")


@pytest.fixture(params=["memory", "sqlite"])
def stores(
    request: pytest.FixtureRequest, clock: VirtualClock, tmp_path: Path
) -> Iterator[list[ProviderStore]]:
    """Two ways to one store: one object in memory, two connections to one file."""
    if request.param == "memory":
        store = MemoryProviderStore(clock=wall_of(clock))
        yield [store, store]
        return
    with ExitStack() as stack:
        yield [stack.enter_context(new_store("sqlite", clock, tmp_path)) for _ in range(2)]


def pair(stores: list[ProviderStore], **options: Any) -> list[Scripted]:
    """Two providers as two processes have them."""
    options.setdefault("retry_policy", ONCE)
    return [
        Scripted(store=store, circuit_breaker=CircuitBreaker(2, 10), **options) for store in stores
    ]


# -- two objects ---------------------------------------------------------------------------------


@pytest.mark.req("PEF:C-8")
def test_what_opens_here_is_seen_there_within_a_second(
    clock: VirtualClock, stores: list[ProviderStore]
) -> None:
    """And what closes too."""
    here, there = pair(stores)
    assert call(here).success
    assert call(there).success
    here.steps.extend([DOWN, DOWN])
    call(here)
    call(here)
    clock.advance(1.0)
    assert call(there).reason_code == "circuit_open"
    clock.advance(9.0)
    assert call(there).success
    clock.advance(1.0)
    assert call(here).success
    assert lane_state(here).state is CircuitState.CLOSED


def test_failures_of_both_make_one_streak(clock: VirtualClock, stores: list[ProviderStore]) -> None:
    """One each, and it is open for both."""
    here, there = pair(stores)
    here.steps.append(DOWN)
    there.steps.append(DOWN)
    call(here)
    clock.advance(1.25)
    call(there)
    assert lane_state(here).state is CircuitState.OPEN
    assert call(there).reason_code == "circuit_open"


@pytest.mark.req("PEF:C-10")
def test_a_report_from_before_the_others_change_is_void(
    clock: VirtualClock, stores: list[ProviderStore]
) -> None:
    """Let in here while closed; it opened there meanwhile."""
    here, there = pair(stores)

    def slow(_: object) -> dict[str, Any]:
        there.steps.extend([DOWN, DOWN])
        call(there)
        call(there)
        return {}

    here.steps.append(slow)
    assert call(here).success
    assert lane_state(here).state is CircuitState.OPEN


@pytest.mark.req("PEF:A-9")
def test_a_pause_asked_for_here_is_kept_there(
    clock: VirtualClock, stores: list[ProviderStore]
) -> None:
    """Within a second."""
    from ergon_framework.providers.errors import ProviderRateLimitError

    here, there = pair(stores)
    call(there)
    here.steps.append(ProviderRateLimitError("wait", retry_after_seconds=30))
    call(here)
    clock.advance(1.0)
    result = call(there, timeout_budget_seconds=5)
    assert (result.stop_reason, there.calls) == ("cooldown", 1)


def test_tenants_and_names_stay_apart_in_one_file(
    clock: VirtualClock, stores: list[ProviderStore]
) -> None:
    """One file, many lanes."""
    here, there = pair(stores)
    here.steps.extend([DOWN, DOWN])
    call(here, "a")
    call(here, "a")
    clock.advance(1.0)
    assert call(there, "b").success
    assert call(there, "a").reason_code == "circuit_open"


# -- a store that is away ------------------------------------------------------------------------


@pytest.mark.req("PEF:B-11", "PEF:trap-store-down")
def test_cut_off_each_goes_by_its_own_view(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """And what was learned is brought back, once, and told to the other."""
    store = WatchedStore(clock)
    here, there = pair([store, store])
    call(here)
    call(there)
    store.is_away = True
    clock.advance(2.0)
    here.steps.extend([DOWN, DOWN])
    call(here)
    call(here)
    assert call(here).reason_code == "circuit_open"
    assert call(there).success
    store.is_away = False
    assert call(there).success  # it has not looked again yet
    clock.advance(1.0)
    assert call(here).reason_code == "circuit_open"
    clock.advance(1.0)
    assert call(there).reason_code == "circuit_open"
    found = store.lane_state(LANE).breaker
    assert (found.state, found.failures) == (CircuitState.OPEN, 2)
    told = [record.getMessage().split()[0] for record in caplog.records]
    assert told == ["circuit.opened"]
    clock.advance(10.0)
    assert call(there).success
    assert store.lane_state(LANE).breaker.state is CircuitState.CLOSED


def test_what_the_others_know_better_is_not_overwritten(clock: VirtualClock) -> None:
    """It opened there and was closed by a probe while we were away; ours is older news."""
    store = WatchedStore(clock)
    here, there = pair([store, store])
    call(here)
    there.steps.extend([DOWN, DOWN])
    call(there)
    call(there)
    store.is_away = True
    clock.advance(2.0)
    assert call(here).success  # its own view: closed
    store.is_away = False
    clock.advance(1.0)
    assert call(here).reason_code == "circuit_open"


def test_a_file_that_cannot_be_written_cuts_off_too(clock: VirtualClock, tmp_path: Path) -> None:
    """The failing write is the one that would have opened the circuit for all."""
    with new_store("sqlite", clock, tmp_path) as store:
        provider = Scripted(
            DOWN, DOWN, store=store, retry_policy=ONCE, circuit_breaker=CircuitBreaker(2, 10)
        )
        call(provider)
        with armed("providers.swap.before=error"):
            call(provider)
        assert lane_state(provider).state is CircuitState.CLOSED
        assert call(provider).reason_code == "circuit_open"
        clock.advance(1.0)
        assert call(provider).reason_code == "circuit_open"
        assert lane_state(provider).state is CircuitState.OPEN


@contextmanager
def locked(path: Path, seconds: float) -> Iterator[None]:
    """A file to which nobody else can write for so long: a disk that stalls looks the same."""
    is_locked = threading.Event()

    def hold() -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            is_locked.set()
            time.sleep(seconds)
            connection.execute("ROLLBACK")

    holder = threading.Thread(target=hold)
    holder.start()
    is_locked.wait()
    try:
        yield
    finally:
        holder.join()


@pytest.mark.parametrize(
    ("timeout", "said"), [(STORE_TIMEOUT, None), (30.0, "circuit_open")], ids=["short", "long"]
)
def test_a_slow_store_is_waited_for_as_long_as_the_breaker_says(
    clock: VirtualClock, tmp_path: Path, timeout: float, said: str | None
) -> None:
    """The write that opens the circuit for all takes longer than the default timeout."""
    with (
        new_store("sqlite", clock, tmp_path) as mine,
        new_store("sqlite", clock, tmp_path) as other,
    ):
        here, there = (
            Scripted(
                store=store,
                retry_policy=ONCE,
                circuit_breaker=CircuitBreaker(1, 10, store_timeout_seconds=timeout),
            )
            for store in (mine, other)
        )
        assert call(there).success
        here.steps.append(DOWN)
        [path] = tmp_path.glob("*.db")
        with locked(path, STORE_TIMEOUT * 2):
            call(here)
        assert call(here).reason_code == "circuit_open"
        clock.advance(1.0)
        assert call(there).reason_code == said


@pytest.mark.req("PEF:C-10")
def test_a_circuit_that_is_brought_back_is_of_a_new_generation(clock: VirtualClock) -> None:
    """A report from before it must not count after it."""
    store = WatchedStore(clock)
    here, there = pair([store, store])

    def slow(_: object) -> dict[str, Any]:
        store.is_away = True
        clock.advance(2.0)
        here.steps.extend([DOWN, DOWN])
        call(here)
        call(here)
        store.is_away = False
        clock.advance(1.0)
        assert call(here).reason_code == "circuit_open"
        return {}

    call(there)
    there.steps.append(slow)
    assert call(there).success
    assert store.lane_state(LANE).breaker.state is CircuitState.OPEN


# -- processes -----------------------------------------------------------------------------------


class Process:
    """A child, and what it says."""

    def __init__(self, url: str, cap: int) -> None:
        self._child = fork_server.start(
            [sys.executable, str(CHILD), url, str(cap)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        assert self.heard() == "ready"

    def tell(self, line: str) -> None:
        """Give an order."""
        assert self._child.stdin is not None
        self._child.stdin.write(f"{line}\n")
        self._child.stdin.flush()

    def heard(self) -> str:
        """The next thing it says."""
        assert self._child.stdout is not None
        return self._child.stdout.readline().strip()

    def ask(self, line: str) -> str:
        """Give an order and hear the answer."""
        self.tell(line)
        return self.heard()

    def kill(self) -> None:
        """End it as a machine does that loses its power."""
        self._child.kill()
        self.leave()

    def leave(self) -> int:
        """Let it end."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.close()
        code = self._child.wait()
        self._child.stdout.close()
        return code


@contextmanager
def processes(folder: Path, number: int, cap: int = 1) -> Iterator[list[Process]]:
    """So many of them on one file."""
    found: list[Process] = []
    try:
        url = f"sqlite:///{folder / 'work.db'}"
        found.extend(Process(url, cap) for _ in range(number))
        yield found
    finally:
        for process in found:
            process.kill()


@pytest.mark.slow
@pytest.mark.req("PEF:C-8")
def test_another_process_sees_it_within_a_second(tmp_path: Path) -> None:
    """By the clock that both are given."""
    with processes(tmp_path, 2) as (here, there):
        for process in (here, there):
            process.ask("at 1000")
            assert process.ask("call ok") == "None"
        for _ in range(2):
            assert here.ask("call fail") == "dependency_unavailable"
        there.ask("at 1001")
        assert there.ask("call ok") == "circuit_open"
        there.ask("at 1010")
        assert there.ask("call ok") == "None"


@pytest.mark.slow
@pytest.mark.req("PEF:C-8", "PEF:A-13")
def test_a_process_that_starts_finds_it_as_it_was(tmp_path: Path) -> None:
    """Open, and half-open with a probe that died with its process."""
    with processes(tmp_path, 1) as [first]:
        first.ask("at 1000")
        for _ in range(2):
            first.ask("call fail")
        assert first.leave() == 0
    with processes(tmp_path, 1) as [second]:
        second.ask("at 1005")
        assert second.ask("call ok") == "circuit_open"
        second.ask("at 1010")
        assert second.ask("race 1") == "inside"
        second.kill()
    with processes(tmp_path, 1) as [third]:
        third.ask("at 1012")
        assert third.ask("call ok") == "circuit_open"
        third.ask("at 1069")
        assert third.ask("call ok") == "circuit_open"
        third.ask("at 1071")
        assert third.ask("call ok") == "None"


@pytest.mark.slow
@pytest.mark.req("PEF:C-5", "PEF:trap-half-open-stampede")
@pytest.mark.parametrize("cap", [1, 3])
def test_twenty_probes_of_four_processes_race(tmp_path: Path, cap: int) -> None:
    """Five threads each, at the instant the cooldown ends; never more than the cap get in."""
    with processes(tmp_path, 4, cap) as found:
        start = 1000
        for process in found:
            process.ask(f"at {start}")
            process.ask("call ok")
        for _ in range(2):
            found[0].ask("call fail")
        for turn in range(3):
            for process in found:
                process.ask(f"at {start + 10 + turn * 2}")
            for process in found:
                process.tell("race 5")
            said = Counter(process.heard() for process in found for _ in range(5))
            assert said == {"inside": cap, "refused": 20 - cap}
            for process in found:
                assert process.ask("go") == "done"
        for process in found:
            assert process.leave() == 0
