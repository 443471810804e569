"""Provider stores with one realistic bug each in their gates and budgets."""

from __future__ import annotations

import threading
from typing import Any

from msgspec.structs import replace

from ergon_framework.core.circuit_breaker import Breaker
from ergon_framework.core.quota import QuotaUsage, QuotaWindow
from ergon_framework.errors import StoreError
from ergon_framework.ports.providerstore import (
    LaneHealth,
    LaneKey,
    LaneState,
    ProviderStore,
    QuotaGrant,
    RecordBatch,
)
from ergon_framework.providers.stores.memory import MemoryProviderStore
from ergon_framework.testing.suites.providerstore.under_test import Clock


class Honest(MemoryProviderStore):
    """The memory store, which can be opened a second time, as if by another process."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.meeting = threading.Barrier(2)

    def meet(self) -> None:
        """Let another thread come as far as this one, if there is another."""
        try:
            self.meeting.wait(2)
        except threading.BrokenBarrierError:
            self.meeting = threading.Barrier(2)

    @classmethod
    def beside(cls, store: ProviderStore, clock: Clock) -> Honest:
        """What another process would have."""
        assert isinstance(store, Honest)
        other = cls(clock)
        other.share_tables_of(store)
        return other


# ---- circuits -----------------------------------------------------------------------------------


class ForgetsProbes(Honest):
    """Has no column for the places that are taken."""

    def compare_and_set(self, key: LaneKey, version: int, breaker: Breaker, **failed: Any) -> bool:
        return super().compare_and_set(key, version, replace(breaker, probes=()), **failed)


class WholeSeconds(Honest):
    """Keeps the end of a cooldown in whole seconds."""

    def compare_and_set(self, key: LaneKey, version: int, breaker: Breaker, **failed: Any) -> bool:
        until = breaker.open_until
        rounded = None if until is None else float(int(until))
        return super().compare_and_set(key, version, replace(breaker, open_until=rounded), **failed)


class LastWriterWins(Honest):
    """Writes a circuit whatever it has become meanwhile."""

    def compare_and_set(self, key: LaneKey, version: int, breaker: Breaker, **failed: Any) -> bool:
        return super().compare_and_set(key, self.lane_state(key).version, breaker, **failed)


class SwapsWithoutALock(Honest):
    """Compares, and then sets."""

    def compare_and_set(self, key: LaneKey, version: int, breaker: Breaker, **failed: Any) -> bool:
        if self.lane_state(key).version != version:
            return False
        self.meet()
        return super().compare_and_set(key, self.lane_state(key).version, breaker, **failed)


class SavesAWriting(Honest):
    """Leaves a circuit alone that is the same already."""

    def compare_and_set(self, key: LaneKey, version: int, breaker: Breaker, **failed: Any) -> bool:
        found = self.lane_state(key)
        if (found.version, found.breaker) == (version, breaker):
            return True
        return super().compare_and_set(key, version, breaker, **failed)


class InsertsAtAnyVersion(Honest):
    """Does not ask for the version where there is no row."""

    def compare_and_set(self, key: LaneKey, version: int, breaker: Breaker, **failed: Any) -> bool:
        return super().compare_and_set(
            key, 0 if key not in self._lanes else version, breaker, **failed
        )


class SwapForgetsTheFailure(Honest):
    """Leaves it to the rows of attempts to say what went wrong."""

    def compare_and_set(self, key: LaneKey, version: int, breaker: Breaker, **failed: Any) -> bool:
        return super().compare_and_set(key, version, breaker)


class LastFailureWrittenHolds(Honest):
    """Does not compare when failures were."""

    def compare_and_set(self, key: LaneKey, version: int, breaker: Breaker, **failed: Any) -> bool:
        self._lane(key).last_error_at = None
        return super().compare_and_set(key, version, breaker, **failed)


class SwapEndsTheCooldown(Honest):
    """Writes a whole row, without the part it was not told of."""

    def compare_and_set(self, key: LaneKey, version: int, breaker: Breaker, **failed: Any) -> bool:
        done = super().compare_and_set(key, version, breaker, **failed)
        if done:
            lane = self._lanes[key]
            lane.state = replace(lane.state, cooldown_until=0.0)
        return done


class CountsEveryWriting(Honest):
    """Gives a cooldown a version, too."""

    def extend_cooldown(self, key: LaneKey, until: float) -> float:
        held = super().extend_cooldown(key, until)
        lane = self._lanes[key]
        lane.state = replace(lane.state, version=lane.state.version + 1)
        return held


class NewLaneIsVersionOne(Honest):
    """Counts the row that an attempt made as a circuit that somebody wrote."""

    def lane_state(self, key: LaneKey) -> LaneState:
        found = super().lane_state(key)
        return replace(found, version=1) if key in self._lanes and not found.version else found


class JoinsNames(Honest):
    """Takes a lane's names together for one."""

    def lane_state(self, key: LaneKey) -> LaneState:
        return super().lane_state(self._joined(key))

    def compare_and_set(self, key: LaneKey, version: int, breaker: Breaker, **failed: Any) -> bool:
        return super().compare_and_set(self._joined(key), version, breaker, **failed)

    def _joined(self, key: LaneKey) -> LaneKey:
        return LaneKey("".join(key), "", "")


class CircuitForAllTenants(Honest):
    """Lets one tenant's failures shut out the others."""

    def lane_state(self, key: LaneKey) -> LaneState:
        return super().lane_state(key._replace(tenant_id=""))

    def compare_and_set(self, key: LaneKey, version: int, breaker: Breaker, **failed: Any) -> bool:
        return super().compare_and_set(key._replace(tenant_id=""), version, breaker, **failed)


class KeepsItsOwnView(Honest):
    """Each process believes what it read first."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._seen: dict[LaneKey, LaneState] = {}

    def lane_state(self, key: LaneKey) -> LaneState:
        return self._seen.setdefault(key, super().lane_state(key))

    def compare_and_set(self, key: LaneKey, version: int, breaker: Breaker, **failed: Any) -> bool:
        self._seen.pop(key, None)
        return super().compare_and_set(key, version, breaker, **failed)

    def extend_cooldown(self, key: LaneKey, until: float) -> float:
        self._seen.pop(key, None)
        return super().extend_cooldown(key, until)


# ---- cooldowns ----------------------------------------------------------------------------------


class LastCooldownHolds(Honest):
    """Lets a short cooldown take the place of a long one."""

    def extend_cooldown(self, key: LaneKey, until: float) -> float:
        super().extend_cooldown(key, until)
        lane = self._lanes[key]
        lane.state = replace(lane.state, cooldown_until=until)
        return until


class FirstCooldownHolds(Honest):
    """Lets nobody prolong a cooldown."""

    def extend_cooldown(self, key: LaneKey, until: float) -> float:
        return self.lane_state(key).cooldown_until or super().extend_cooldown(key, until)


class EchoesTheCooldown(Honest):
    """Answers with what was asked, not with what holds."""

    def extend_cooldown(self, key: LaneKey, until: float) -> float:
        super().extend_cooldown(key, until)
        return until


class SuccessEndsTheCooldown(Honest):
    """Takes a late success for the end of a rate limit."""

    def record(self, batch: RecordBatch) -> None:
        super().record(batch)
        for row in batch.attempts:
            lane = self._lanes[LaneKey(row.tenant_id, row.provider_name, row.capability)]
            lane.state = replace(lane.state, cooldown_until=0.0)


# ---- budgets ------------------------------------------------------------------------------------


class ChecksThenTakes(Honest):
    """Looks whether there is something left, and takes it later."""

    def reserve(self, key: LaneKey, window: QuotaWindow, limit: int, units: int) -> QuotaGrant:
        found = super().reserve(key, window, limit, 0)
        if found.account.reserve(units) is None:
            return found._replace(is_granted=False)
        self.meet()
        lane = self._lanes[key]
        lane.account = found.account._replace(used=found.account.used + units)
        return QuotaGrant(lane.account, is_granted=True)


class FirstUseResets(Honest):
    """Finds no account, and makes one, as all others do at that moment."""

    def reserve(self, key: LaneKey, window: QuotaWindow, limit: int, units: int) -> QuotaGrant:
        lane = self._lane(key)
        if lane.account is None or lane.account.window != window:
            self.meet()
            lane.account = None
        return super().reserve(key, window, limit, units)


class OneOpener(Honest):
    """Takes a window that somebody else opened just now for one that is used up."""

    def reserve(self, key: LaneKey, window: QuotaWindow, limit: int, units: int) -> QuotaGrant:
        if self._lane(key).account is None:
            self.meet()
            opened = self._lane(key).account
            if opened is not None:
                return QuotaGrant(opened, is_granted=False)
        return super().reserve(key, window, limit, units)


class OpensOlderWindows(Honest):
    """Gives every window a budget, whenever it was."""

    def reserve(self, key: LaneKey, window: QuotaWindow, limit: int, units: int) -> QuotaGrant:
        lane = self._lane(key)
        if lane.account is not None and lane.account.window != window:
            lane.account = None
        return super().reserve(key, window, limit, units)


class NewestWindowHolds(Honest):
    """Asks the newest window, however far ahead the clock was that opened it."""

    def reserve(self, key: LaneKey, window: QuotaWindow, limit: int, units: int) -> QuotaGrant:
        account = self._lane(key).account
        if account is not None and account.window.start > window.start:
            window = account.window
        return super().reserve(key, window, limit, units)


class TakesWhatIsLeft(Honest):
    """Grants a part of what was asked for."""

    def reserve(self, key: LaneKey, window: QuotaWindow, limit: int, units: int) -> QuotaGrant:
        found = super().reserve(key, window, limit, units)
        if not found.is_granted and found.account.remaining:
            return super().reserve(key, window, limit, found.account.remaining)
        return found


class FirstCallerIsNotCounted(Honest):
    """Opens an account with whatever the first caller asked for."""

    def reserve(self, key: LaneKey, window: QuotaWindow, limit: int, units: int) -> QuotaGrant:
        lane = self._lane(key)
        if lane.account is None:
            lane.account = QuotaUsage(window, limit, units)
            return QuotaGrant(lane.account, is_granted=True)
        return super().reserve(key, window, limit, units)


class FirstLimitHolds(Honest):
    """Keeps the limit a window began with."""

    def reserve(self, key: LaneKey, window: QuotaWindow, limit: int, units: int) -> QuotaGrant:
        account = self._lane(key).account
        held = limit if account is None or account.window != window else account.limit
        return super().reserve(key, window, held, units)


class ForgivesTheExcess(Honest):
    """Lets a lowered limit wipe out what was used beyond it."""

    def reserve(self, key: LaneKey, window: QuotaWindow, limit: int, units: int) -> QuotaGrant:
        lane = self._lane(key)
        if lane.account is not None and lane.account.used > limit:
            lane.account = lane.account._replace(used=limit)
        return super().reserve(key, window, limit, units)


class RefundsWithoutEnd(Honest):
    """Lets a refund that is made twice count twice."""

    def refund(self, key: LaneKey, window: QuotaWindow, units: int) -> None:
        lane = self._lane(key)
        if lane.account is not None and lane.account.window == window:
            lane.account = lane.account._replace(used=lane.account.used - units)


class RefundNeedsAnAccount(Honest):
    """Takes a refund for which it finds no account amiss."""

    def refund(self, key: LaneKey, window: QuotaWindow, units: int) -> None:
        if key not in self._lanes:
            raise StoreError("there is no such account")
        super().refund(key, window, units)


class RefundsTheNewest(Honest):
    """Gives units back to whatever window is running by now."""

    def refund(self, key: LaneKey, window: QuotaWindow, units: int) -> None:
        lane = self._lanes.get(key)
        newest = lane.account if lane else None
        super().refund(key, newest.window if newest else window, units)


class RefundsNothing(Honest):
    """Forgets to give back."""

    def refund(self, key: LaneKey, window: QuotaWindow, units: int) -> None:
        super().refund(key, window, 0)


class BudgetForAllTenants(Honest):
    """Lets tenants share a budget."""

    def reserve(self, key: LaneKey, window: QuotaWindow, limit: int, units: int) -> QuotaGrant:
        return super().reserve(key._replace(tenant_id=""), window, limit, units)


class LastInstantIsIncluded(Honest):
    """Shows a window at the instant at which the next one begins."""

    def health(self, tenant_id: str) -> list[LaneHealth]:
        found = {lane.key: lane for lane in super().health(tenant_id)}
        now, clock = self.now(), self._clock
        self._clock = lambda: now - 1e-3
        try:
            return [found.get(lane.key, lane) for lane in super().health(tenant_id)]
        finally:
            self._clock = clock


class BudgetPerProcess(Honest):
    """Counts what this process took, and nobody else."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._own = MemoryProviderStore(clock)

    def reserve(self, key: LaneKey, window: QuotaWindow, limit: int, units: int) -> QuotaGrant:
        return self._own.reserve(key, window, limit, units)
