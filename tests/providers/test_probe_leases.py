"""Probes hold their places by short leases that are renewed while their calls are under way."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.core.circuit_breaker import Permit, Vote
from ergon_framework.ports.providerstore import LaneKey
from ergon_framework.providers.circuit_breaker import CircuitBreaker
from ergon_framework.providers.errors import ProviderDependencyError
from ergon_framework.providers.pipeline.lanes import ProviderLane
from ergon_framework.providers.shared_circuit import PROBE_LEASE, Circuit, ProbeRenewer
from ergon_framework.providers.store_urls import open_store
from tests.providers.scripted import ONCE, Scripted, call

pytestmark = pytest.mark.req("PEF:C-11", "PEF:A-3", "PEF:trap-lost-probe")
LANE = LaneKey("t", "p", "c")
CALL = 60.0
DOWN = ProviderDependencyError("down", http_status=503)


class Time:
    """A clock set by hand."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    """For one test."""
    return Time()


@pytest.fixture
def circuits(tmp_path: Path, time: Time) -> Iterator[list[Circuit]]:
    """As two processes have it, with calls of a minute; it lets a probe in."""
    with ExitStack() as stack:
        found = []
        for _ in range(2):
            store = open_store(f"sqlite:///{tmp_path}/work.db", clock=time)
            stack.callback(store.close)
            found.append(
                CircuitBreaker(1, 10, store_timeout_seconds=CALL).circuit(store, LANE, CALL)
            )
        found[0].report(Permit(0), Vote.FAILURE)
        time.now += 10.0
        for circuit in found:
            circuit.refresh()
        yield found


def test_a_killed_prober_keeps_nobody_out_for_long(circuits: list[Circuit], time: Time) -> None:
    """Nobody renews its lease: another probe gets in after seconds, not after a call's time."""
    dead, alive = circuits
    assert isinstance(dead.admit(), Permit)
    assert not isinstance(alive.admit(), Permit)
    time.now += PROBE_LEASE + 0.1
    assert isinstance(alive.admit(), Permit)


def test_a_probe_under_way_keeps_its_place(circuits: list[Circuit], time: Time) -> None:
    """Its lease is renewed for as long as a call may take, and then given up."""
    here, there = circuits
    permit = here.admit()
    assert isinstance(permit, Permit)
    renewer = ProbeRenewer(time, has_thread=False)
    renewer.keep(here, permit, PROBE_LEASE, CALL)
    for _ in range(11):
        time.now += PROBE_LEASE
        # The thread of this process looks at its own clock; this is what it does.
        time.now -= PROBE_LEASE / 2
        assert renewer.renew_due() is not None
        assert not isinstance(there.admit(), Permit)
        time.now += PROBE_LEASE / 2
        renewer.renew_due()
    time.now = 1010.0 + CALL + PROBE_LEASE + 0.1
    assert renewer.renew_due() is None
    assert isinstance(there.admit(), Permit)


def test_a_probe_without_a_budget_keeps_its_place(tmp_path: Path, time: Time) -> None:
    """A call that may take as long as it likes is under way for longer than the cooldown."""
    renewer = ProbeRenewer(time, has_thread=False)
    store = open_store(f"sqlite:///{tmp_path}/work.db", clock=time)
    breaker = CircuitBreaker(1, 1, store_timeout_seconds=CALL)
    breaker.probe_renewer = renewer
    here, there = (breaker.circuit(store, LANE, None) for _ in range(2))
    here.report(Permit(0), Vote.FAILURE)
    time.now += 1.0
    there.refresh()
    permit = here.admit()
    assert isinstance(permit, Permit)
    here.keep(permit)
    for _ in range(20):
        time.now += PROBE_LEASE / 2
        renewer.renew_due()
        assert not isinstance(there.admit(), Permit)
    here.report(permit, Vote.SUCCESS)
    store.close()


def test_a_place_that_nobody_knows_of_is_not_renewed(
    tmp_path: Path, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A time limit strikes just when it was taken: the place is free when its lease is over."""
    renewer = ProbeRenewer(time, has_thread=False)
    store = open_store(f"sqlite:///{tmp_path}/work.db", clock=time)
    breaker = CircuitBreaker(1, 1, store_timeout_seconds=CALL)
    breaker.probe_renewer = renewer
    provider = Scripted(DOWN, retry_policy=ONCE, circuit_breaker=breaker, store=store)
    call(provider)
    time.now += 1.0
    with monkeypatch.context() as patch:
        patch.setattr(ProviderLane, "admit", interrupted(ProviderLane.admit))
        with pytest.raises(KeyboardInterrupt):
            call(provider)
    for _ in range(3):
        renewer.renew_due()
        assert call(provider).reason_code == "circuit_open"
        time.now += PROBE_LEASE / 3 + 0.1
    assert call(provider).success
    store.close()


def interrupted(method: Callable[..., Any]) -> Callable[..., Any]:
    """Do it, and be struck before anybody hears what came of it."""

    def struck(*given: Any) -> None:
        method(*given)
        raise KeyboardInterrupt

    return struck


def test_a_process_without_threads_to_spare_renews_probes_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next probe tries to begin the thread again, and it renews the first one, too."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    class Renewed:
        tokens: queue.Queue[str] = queue.Queue()

        def renew_probe(self, permit: Permit) -> bool:
            self.tokens.put(permit.token)
            return False

    renewer, circuit = ProbeRenewer(), Renewed()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        renewer.keep(circuit, Permit(1, "first"), 0.003, CALL)
    renewer.keep(circuit, Permit(1, "second"), 0.003, CALL)
    assert {circuit.tokens.get(timeout=CALL) for _ in range(2)} == {"first", "second"}


def test_a_probe_that_has_ended_is_not_renewed(circuits: list[Circuit], time: Time) -> None:
    """The circuit is closed, and nothing is written any more."""
    here, _ = circuits
    permit = here.admit()
    assert isinstance(permit, Permit)
    here.report(permit, Vote.SUCCESS)
    assert not here.renew_probe(permit)
