"""How often a healthy provider is cut off: by a fleet no more often than by one process."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field

import pytest

from ergon_framework.core.circuit_breaker import BreakerRule, CircuitState, Permit, Vote
from ergon_framework.ports.providerstore import LaneKey
from ergon_framework.providers.shared_circuit import Circuit
from ergon_framework.providers.stores.memory import MemoryProviderStore

pytestmark = pytest.mark.req("PEF:C-3", "PEF:A-14", "PROVIDERS:breaker")
LANE = LaneKey("t", "p", "c")
RULE = BreakerRule()


@dataclass
class SimulatedProcesses:
    """Processes with several callers each, which call without a pause, in simulated time."""

    processes: int
    callers: int
    seed: int
    failing: float = 0.1
    latency: float = 0.02
    openings: int = 0
    opened_at: float | None = None
    now: float = 1000.0
    circuits: list[Circuit] = field(default_factory=list)

    def __post_init__(self) -> None:
        store = MemoryProviderStore(lambda: self.now)
        self.circuits = [Circuit(store, LANE, RULE, self.tell) for _ in range(self.processes)]
        self.dice = random.Random(self.seed)  # noqa: S311 - a simulation
        self.agenda: list[tuple[float, int, int, Permit | None]] = []
        for number in range(self.processes * self.callers):
            at = self.now + self.dice.random() * self.latency
            heapq.heappush(self.agenda, (at, number, number % self.processes, None))

    def tell(self, name: str, /, **fields: object) -> None:
        """A notice of one of the circuits."""
        if name == "circuit.opened":
            self.openings += 1
            self.opened_at = self.opened_at or self.now

    def run(self, calls: int) -> int:
        """Make so many calls; how often the circuit opened."""
        while calls:
            self.now, number, process, permit = heapq.heappop(self.agenda)
            circuit = self.circuits[process]
            if permit is not None:
                is_bad = self.dice.random() < self.failing
                circuit.report(permit, Vote.FAILURE if is_bad else Vote.SUCCESS)
                calls -= 1
            circuit.refresh()
            answer = circuit.admit()
            is_in = isinstance(answer, Permit)
            wait = self.latency * (0.5 + self.dice.random()) if is_in else 1.0
            item = (
                self.now + wait,
                number,
                process,
                answer if isinstance(answer, Permit) else None,
            )
            heapq.heappush(self.agenda, item)
        return self.openings


def test_a_fleet_opens_no_more_often_than_one_process() -> None:
    """Four processes of eight callers, a tenth of whose calls fail, beside one of as many callers.

    Five failures in a row are one in a hundred thousand; a process that saw none of the successes
    of the others would take five failures of the fleet for that.
    """
    simulated = sum(SimulatedProcesses(4, 8, seed).run(9_050) for seed in range(4))
    alone = sum(SimulatedProcesses(1, 32, seed).run(9_050) for seed in range(4))
    assert simulated <= alone <= 2


@pytest.mark.parametrize("processes", [1, 4])
def test_a_provider_that_is_down_is_cut_off_soon(processes: int) -> None:
    """At the fifth failure by one process, and by a fleet within a second and a half."""
    simulated = SimulatedProcesses(processes, 8, seed=1)
    simulated.run(1000)
    assert simulated.openings == 0
    down_at, simulated.failing = simulated.now, 1.0
    for _ in range(40):  # not one of them more: behind an open circuit they take long
        if simulated.opened_at is None:
            simulated.run(100)
    assert simulated.opened_at is not None
    assert simulated.opened_at - down_at < (0.1 if processes == 1 else 1.5)


def test_a_burst_of_failures_is_cleared_by_a_process_that_saw_a_success() -> None:
    """It learns of them within a second, and takes away those before its own success."""
    now = [1000.0]
    store = MemoryProviderStore(lambda: now[0])
    here, there = (Circuit(store, LANE, RULE) for _ in range(2))
    for circuit in (here, there):  # both are known to use it
        circuit.refresh()
        circuit.report(Permit(0), Vote.FAILURE)
        circuit.report(Permit(0), Vote.SUCCESS)
    for _ in range(9):
        now[0] += 0.01
        here.report(Permit(0), Vote.FAILURE)
    now[0] += 0.01
    there.report(Permit(0), Vote.SUCCESS)  # it knows of no failure, and writes nothing
    here.report(Permit(0), Vote.FAILURE)
    assert store.lane_state(LANE).breaker.state is CircuitState.CLOSED
    assert store.lane_state(LANE).breaker.failures == 10
    now[0] += 1.0
    there.refresh()
    assert store.lane_state(LANE).breaker.failures == 1
