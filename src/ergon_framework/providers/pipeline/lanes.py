"""Lanes: what the calls of one tenant to one capability of one provider share."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ergon_framework.core.circuit_breaker import CircuitState, Permit, Vote
from ergon_framework.ports.providerstore import LaneFailure, LaneKey
from ergon_framework.providers.quota import QuotaLimiter
from ergon_framework.providers.shared_circuit import Circuit

Permits = tuple[Permit, ...]


class ProviderLane:
    """The circuits that a call passes, its own and perhaps the provider's, and its quota."""

    __slots__ = ("circuits", "key", "may_wait", "only_circuit", "operations", "quota")

    def __init__(
        self, key: LaneKey, circuits: tuple[Circuit, ...], quota: QuotaLimiter | None
    ) -> None:
        self.key = key
        self.circuits = circuits
        self.quota = quota
        self.operations: set[str] = set()
        """Names that were checked: nearly every call has one of a few."""
        self.only_circuit = circuits[0] if len(circuits) == 1 else None
        """The circuit of the lane if a call has to pass only this one; otherwise None."""
        self.may_wait = any(circuit.may_wait for circuit in circuits)
        """Whether to read or write the circuits may take time."""

    @property
    def is_fresh(self) -> bool:
        """Whether :meth:`refresh` needs no store."""
        if self.only_circuit is not None:
            return self.only_circuit.is_fresh
        return all(circuit.is_fresh for circuit in self.circuits)

    def renew(self) -> None:
        """After a fork, in the child."""
        for circuit in self.circuits:
            circuit.renew()
        if self.quota is not None:
            self.quota.renew()

    def refresh(self) -> None:
        """Bring the view of the circuits up to date."""
        for circuit in self.circuits:
            circuit.refresh()

    def refused_for(self) -> float | None:
        """Seconds for which a call would be refused; None when it would not be."""
        if self.only_circuit is not None:
            return self.only_circuit.refused_for()
        waits = [wait for each in self.circuits if (wait := each.refused_for()) is not None]
        return max(waits, default=None)

    def cooldown(self, longest: float) -> float:
        """Seconds for which the provider asked for a pause, at most ``longest``."""
        if self.only_circuit is not None:
            return self.only_circuit.cooldown(longest)
        return max((circuit.cooldown(longest) for circuit in self.circuits), default=0.0)

    def extend_cooldown(self, seconds: float) -> None:
        """The provider asks for a pause."""
        # Its own circuit alone: the provider asked this tenant to pause, and the parent stands for
        # all.
        for circuit in self.circuits[:1]:
            circuit.extend_cooldown(seconds)

    def admit_cached(self) -> Permits | None:
        """Permits, if all circuits are closed."""
        if self.only_circuit is not None:
            permit = self.only_circuit.admit_cached()
            return None if permit is None else (permit,)
        found = tuple(circuit.admit_cached() for circuit in self.circuits)
        return tuple(p for p in found if p is not None) if None not in found else None

    def admit(self) -> Permits | float:
        """Permits of all circuits, or the seconds for which one of them refuses."""
        passed: list[Permit] = []
        for circuit in self.circuits:
            answer = circuit.admit()
            if not isinstance(answer, Permit):
                self.report(tuple(passed), Vote.NEUTRAL)  # places that were taken are given back
                return answer
            passed.append(answer)
        return tuple(passed)

    def keep(self, permits: Permits) -> None:
        """Hold the places of probes while their call is under way; its end will be reported."""
        for circuit, permit in zip(self.circuits, permits, strict=False):
            circuit.keep(permit)

    def needs_report(self, permits: Permits, vote: Vote) -> bool:
        """Whether reporting has to be written."""
        if self.only_circuit is not None:
            return self.only_circuit.needs_report(permits[0], vote)
        pairs = zip(self.circuits, permits, strict=False)
        return any(circuit.needs_report(permit, vote) for circuit, permit in pairs)

    def report(self, permits: Permits, vote: Vote, failed: LaneFailure | None = None) -> None:
        """Report the end of a call that was admitted; ``failed`` is what health shows of a
        failure.
        """
        if self.only_circuit is not None and permits:
            self.only_circuit.report(permits[0], vote, failed)
            return
        # There may be fewer permits than circuits: those before the one that refused.
        for circuit, permit in zip(self.circuits, permits, strict=False):
            circuit.report(permit, vote, failed)

    @property
    def state(self) -> CircuitState:
        """How the lane's own circuit stands."""
        return self.circuits[0].observed.state if self.circuits else CircuitState.CLOSED


class LaneCache:
    """The lanes of one provider: made on first use, and dropped when there are too many.

    A lane that is dropped loses nothing: the store has its circuit, cooldown and quota.
    """

    def __init__(
        self,
        make: Callable[[LaneKey], ProviderLane],
        forget: Callable[[LaneKey], None],
        limit: int = 10_000,
    ) -> None:
        self._make = make
        self._forget = forget
        self._limit = limit
        self._lock = threading.Lock()
        self._lanes: dict[str, ProviderLane] = {}
        self.get = self._lanes.get
        """The lane of a tenant, if it is there: the quick way."""

    def renew(self) -> None:
        """After a fork, in the child."""
        self._lock = threading.Lock()
        for lane in list(self._lanes.values()):
            lane.renew()

    def of(self, key: LaneKey) -> ProviderLane:
        """The lane of ``key``."""
        lane = self._lanes.get(key.tenant_id)
        return lane if lane is not None else self._add(key)

    def all(self) -> list[ProviderLane]:
        """Every lane that is held now."""
        with self._lock:
            return list(self._lanes.values())

    def _add(self, key: LaneKey) -> ProviderLane:
        dropped: list[ProviderLane] = []
        with self._lock:
            lane = self._lanes.get(key.tenant_id)
            if lane is not None:
                return lane
            if len(self._lanes) >= self._limit:
                dropped = self._drop(len(self._lanes) // 10 + 1)
            lane = self._lanes[key.tenant_id] = self._make(key)
        # Without the lock: giving units back asks the store.
        for each in dropped:
            if each.quota is not None:
                each.quota.give_back_block()
        return lane

    def _drop(self, count: int) -> list[ProviderLane]:
        # The oldest, in batches: bookkeeping on each use would cost every call.
        dropped = [self._lanes.pop(tenant_id) for tenant_id in list(self._lanes)[:count]]
        for lane in dropped:
            self._forget(lane.key)
        return dropped
