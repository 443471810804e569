"""Circuit breakers as a provider is given them: the settings, and one circuit per tenant.

``CircuitBreaker`` can also be used around any code. The circuits themselves are in
``shared_circuit``, and how a circuit changes is decided in ``core.circuit_breaker``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ergon_framework.core.circuit_breaker import (
    Breaker,
    BreakerRule,
    CircuitState,
    Permit,
    Vote,
)
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.engine.clocks import current_clock
from ergon_framework.ports.clock import Clock
from ergon_framework.ports.notice import Emit
from ergon_framework.ports.providerstore import LaneKey, ProviderStore
from ergon_framework.providers.decisions import DECISIONS
from ergon_framework.providers.errors import (
    ProviderCircuitOpenError,
    ProviderError,
    Reason,
    refused_by_gate,
)
from ergon_framework.providers.mapping.rules import canonical_or_rebuilt
from ergon_framework.providers.shared_circuit import (
    MAX_PROBE,
    PROBE_LEASE,
    PROBE_RENEWER,
    STORE_TIMEOUT,
    Circuit,
    ProbeRenewer,
)
from ergon_framework.providers.stores.memory import MemoryProviderStore
from ergon_framework.providers.validation import check_count, check_seconds


def steady(
    clock: Clock | None = None, wall: Callable[[], float] = time.time
) -> Callable[[], float]:
    """Seconds since 1970 by the clock on the wall as it is now, going on evenly from here.

    For state of this process alone, which need not follow a clock that is set back or forth.
    """
    now = (clock or current_clock()).now
    ahead = wall() - now()
    return lambda: now() + ahead


_ALONE = LaneKey("-", "-", "-")
_WORST = {CircuitState.OPEN: 2, CircuitState.HALF_OPEN: 1, CircuitState.CLOSED: 0}


class _LentPermit(Permit):
    """A permit in the hands of user code, which may report it twice: its call counts once."""

    __slots__ = ("is_reported",)
    is_reported: bool

    def __init__(self, permit: Permit) -> None:
        super().__init__(permit.generation, permit.token)
        object.__setattr__(self, "is_reported", False)


class CircuitBreaker:
    """Stops calling what does not answer, and tries again with a few probes.

    Given to a provider it holds one circuit per tenant; :attr:`state` is then the worst of them.
    Used alone it is one circuit: :meth:`before_call`, the call, :meth:`after_call`.
    """

    def __init__(
        self,
        failure_threshold: int = 5,
        open_cooldown_seconds: float = 30,
        half_open_max_calls: int = 1,
        half_open_success_threshold: int | None = None,
        probe_lease_seconds: float | None = None,
        store_timeout_seconds: float = STORE_TIMEOUT,
    ) -> None:
        """``half_open_success_threshold`` is as many as there may be probes, unless given;
        ``probe_lease_seconds`` is 5 seconds in a store that processes share, and renewed while the
        probe is under way; in memory it is the cooldown, or a call's time if that is longer. A call
        that waits for the store for ``store_timeout_seconds`` goes on with what its process knows.
        """
        check_count("failure_threshold", failure_threshold, least=1)
        check_seconds("open_cooldown_seconds", open_cooldown_seconds)
        check_count("half_open_max_calls", half_open_max_calls, least=1)
        if half_open_success_threshold is None:
            half_open_success_threshold = half_open_max_calls
        check_count("half_open_success_threshold", half_open_success_threshold, least=1)
        if probe_lease_seconds is not None:
            check_seconds("probe_lease_seconds", probe_lease_seconds, least=0.001)
        check_seconds("store_timeout_seconds", store_timeout_seconds, least=STORE_TIMEOUT)
        self.failure_threshold = failure_threshold
        self.open_cooldown_seconds = open_cooldown_seconds
        self.half_open_max_calls = half_open_max_calls
        self.half_open_success_threshold = half_open_success_threshold
        self.probe_lease_seconds = probe_lease_seconds
        self.store_timeout_seconds = store_timeout_seconds
        self.probe_renewer: ProbeRenewer = PROBE_RENEWER
        """Renews the leases of probes; by default all breakers of a process share one."""
        self._circuits: dict[LaneKey, Circuit] = {}
        self._lock = threading.Lock()
        renew_after_fork(self)

    def renew(self) -> None:
        """After a fork, in the child."""
        self._lock = threading.Lock()
        for circuit in list(self._circuits.values()):
            circuit.renew()

    def rule(self, budget: float | None = None, *, is_shared: bool = False) -> BreakerRule:
        """These options as a rule of ``core``. A probe may take as long as a call."""
        lease = self.probe_lease_seconds
        if lease is None:
            lease = (
                PROBE_LEASE if is_shared else max(budget or 0.0, self.open_cooldown_seconds, 1.0)
            )
        return BreakerRule(
            self.failure_threshold,
            float(self.open_cooldown_seconds),
            self.half_open_max_calls,
            self.half_open_success_threshold,
            lease,
        )

    def longest_probe(self, budget: float | None) -> float:
        """Seconds after which a probe that did not report is given up in any case."""
        longest = MAX_PROBE if budget is None else budget
        return max(longest, self.open_cooldown_seconds, self.probe_lease_seconds or 1.0)

    # -- what it looks like --------------------------------------------------------------------

    @property
    def state(self) -> CircuitState:
        """``closed``, ``open`` or ``half_open``."""
        return self._worst().state

    @property
    def consecutive_failures(self) -> int:
        """Failures in a row."""
        return self._worst().failures

    @property
    def open_until(self) -> float | None:
        """Seconds since 1970, while it is open."""
        return self._worst().open_until

    def _worst(self) -> Breaker:
        found = [circuit.observed for circuit in list(self._circuits.values())]
        return max(found, key=lambda each: (_WORST[each.state], each.failures), default=Breaker())

    # -- used by a provider --------------------------------------------------------------------

    def circuit(
        self,
        store: ProviderStore,
        key: LaneKey,
        budget: float | None = None,
        emit: Emit | None = None,
    ) -> Circuit:
        """A circuit of its own for ``key``."""
        is_shared = not isinstance(store, MemoryProviderStore)
        longest = self.longest_probe(budget) if is_shared else None
        circuit = Circuit(
            store,
            key,
            self.rule(budget, is_shared=is_shared),
            emit,
            store_timeout=self.store_timeout_seconds,
            longest_probe=longest,
            probe_renewer=self.probe_renewer,
            may_wait=type(store) is not MemoryProviderStore,
        )
        with self._lock:
            self._circuits[key] = circuit
        return circuit

    def forget(self, key: LaneKey) -> None:
        """A lane was dropped; the store still knows its circuit."""
        with self._lock:
            self._circuits.pop(key, None)

    # -- used alone ----------------------------------------------------------------------------

    def before_call(self) -> Permit:
        """Let a call in, or raise :class:`ProviderCircuitOpenError`."""
        circuit = self._own()
        answer = circuit.admit()
        if isinstance(answer, Permit):
            return _LentPermit(answer)
        raise circuit_open(answer)

    def after_call(self, permit: Permit, error: BaseException | None = None) -> None:
        """Report a call that was let in: ``None`` for a success.

        A canonical error votes as the decision table says; of any other, an ``Exception`` is a
        failure, and what is not (a cancellation, an exit) says nothing. A permit is reported once;
        what comes after changes nothing.
        """
        if isinstance(permit, _LentPermit):
            if permit.is_reported:
                return
            object.__setattr__(permit, "is_reported", True)
        self._own().report(permit, _vote(error))

    def _own(self) -> Circuit:
        circuit = self._circuits.get(_ALONE)
        if circuit is None:
            with self._lock:
                circuit = self._circuits.get(_ALONE)
                if circuit is None:
                    circuit = Circuit(MemoryProviderStore(clock=steady()), _ALONE, self.rule())
                    self._circuits[_ALONE] = circuit
        return circuit

    def __repr__(self) -> str:
        return (
            f"CircuitBreaker(failure_threshold={self.failure_threshold},"
            f" open_cooldown_seconds={self.open_cooldown_seconds},"
            f" half_open_max_calls={self.half_open_max_calls}, state={self.state.value!r})"
        )


def circuit_open(seconds: float) -> ProviderCircuitOpenError:
    """The error of a refused call, which says when to try again."""
    message = f"the circuit is open for another {seconds:.1f} seconds; the provider was not called"
    return refused_by_gate(ProviderCircuitOpenError, message, seconds)


def _vote(error: BaseException | None) -> Vote:
    if error is None:
        return Vote.SUCCESS
    if isinstance(error, ProviderError):
        known = canonical_or_rebuilt(error)  # one with a reason of its own is an internal error
        return DECISIONS[Reason(known.reason_code)].vote or Vote.NEUTRAL
    return Vote.FAILURE if isinstance(error, Exception) else Vote.NEUTRAL
