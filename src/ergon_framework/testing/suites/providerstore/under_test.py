"""The provider store under test, as the checks see it: a clock set by hand, and short words."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from ergon_framework.core.circuit_breaker import Breaker, CircuitState, ProbeLease
from ergon_framework.core.quota import QuotaWindow
from ergon_framework.errors import StoreError
from ergon_framework.ports.providerstore import (
    AttemptOutcome,
    AttemptRow,
    ClaimState,
    DeadLetter,
    KeyClaimResult,
    LaneHealth,
    LaneKey,
    LetterStatus,
    ProviderStore,
    QuotaGrant,
    RecordBatch,
    StoredLetter,
)
from ergon_framework.testing.suites.drivers import HandClock
from ergon_framework.testing.suites.framework import expect, fail
from ergon_framework.testing.suites.stores import StoreSubject

CLOCK = "a clock that can be set"
BESIDE = "a second store on the same data"

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
LEASE, KEEP = 30.0, DAY
TENANT = "2d0f6f5c-7f0e-4f39-9a1c-5b8c0b6b1a01"
OTHER_TENANT = "9b2f7c1e-0c55-4d5e-8f6d-3a4f5e6d7c02"
LANE = LaneKey(TENANT, "rank", "snapshot")
NEIGHBOURS = (
    LANE._replace(tenant_id=OTHER_TENANT),
    LANE._replace(provider_name="search"),
    LANE._replace(capability="history"),
    LaneKey(TENANT, "ranks", "napshot"),
)
"""Lanes that are easily taken for it."""

SUCCESS, RETRY = AttemptOutcome.SUCCESS, AttemptOutcome.RETRY
FAILED, DEAD = AttemptOutcome.FAILED, AttemptOutcome.DEAD_LETTER

Clock = Callable[[], float]
OpenStore = Callable[[Clock], ProviderStore]
OpenBeside = Callable[[ProviderStore, Clock], ProviderStore]


class ProviderStoreSubject(StoreSubject[ProviderStore]):
    """One fresh, empty store and its clock."""

    def __init__(
        self,
        store: ProviderStore,
        clock: HandClock | None,
        open_beside: OpenBeside | None,
        patience: float,
    ) -> None:
        super().__init__(store, patience)
        self.start = float(math.floor(store.now()))
        self._clock = clock
        self._open_beside = open_beside
        self._others: list[ProviderStore] = []
        self._numbers = itertools.count(1)

    @property
    def capabilities(self) -> frozenset[str]:
        """What the checks may use beside the port."""
        offers = {CLOCK: self._clock, BESIDE: self._open_beside}
        return frozenset(name for name, offer in offers.items() if offer is not None)

    @property
    def clock(self) -> HandClock:
        """The store's clock, where it can be set."""
        return self._clock or fail("this store's clock cannot be set")

    def beside(self) -> ProviderStore:
        """What another process would have on the same data."""
        if self._open_beside is None:
            return fail("there is no second store")
        self._others.append(self._open_beside(self.store, self._clock or self.store.now))
        return self._others[-1]

    def close(self) -> None:
        """The check is over."""
        for store in (*self._others, self.store):
            self.hurry(store.close, "close")

    # ---- gates ----------------------------------------------------------------------------------

    def opened(self, failures: int = 5) -> Breaker:
        """A circuit that opened after so many failures."""
        return Breaker(CircuitState.OPEN, failures, self.start + 30.25, generation=1)

    def probing(self) -> Breaker:
        """A half-open circuit, of which two places are taken."""
        probes = (ProbeLease("one", self.start + 12.5), ProbeLease("two", self.start + 13.75))
        return Breaker(CircuitState.HALF_OPEN, 7, None, 1, probes, 9)

    def must_swap(self, version: int, breaker: Breaker, key: LaneKey = LANE) -> int:
        """Write a circuit, which has to work; the version from then on."""
        expect(
            self.store.compare_and_set(key, version, breaker),
            f"a swap at version {version} was refused",
        )
        return self.store.lane_state(key).version

    def window(self, number: int = 0) -> QuotaWindow:
        """The hour that is running, or one before or after it."""
        start = self.start - 10 * MINUTE + number * HOUR
        return QuotaWindow(start, start + HOUR)

    def reserve(
        self, units: int = 1, *, window: int = 0, limit: int = 10, key: LaneKey = LANE
    ) -> QuotaGrant:
        """Ask for units of a window."""
        return self.store.reserve(key, self.window(window), limit, units)

    def take(self, units: int = 1, **options: Any) -> int:
        """Take units, which have to be granted; how many are used then."""
        answer = self.reserve(units, **options)
        expect(answer.is_granted, f"{units} units were refused: {answer.account}")
        return answer.account.used

    def must_refuse(self, units: int = 1, **options: Any) -> QuotaGrant:
        """Ask for units that must not be had."""
        answer = self.reserve(units, **options)
        expect(not answer.is_granted, f"{units} units were granted: {answer.account}")
        return answer

    # ---- records --------------------------------------------------------------------------------

    def attempt(
        self, outcome: AttemptOutcome = SUCCESS, *, key: LaneKey = LANE, **fields: Any
    ) -> AttemptRow:
        """One attempt at the start of the check, unless told otherwise."""
        number = next(self._numbers)
        given: dict[str, Any] = {
            "id": f"row-{number}",
            "task_execution_id": None,
            "operation": "fetch",
            "idempotency_key": None,
            "correlation_id": f"call-{number}",
            "attempt_number": 1,
            "max_attempts": 3,
            "duration_ms": 20,
            "timeout_budget_ms": None,
            "outcome": outcome.value,
            "reason_code": None if outcome is SUCCESS else "timeout",
            "retryable": outcome is not SUCCESS,
            "http_status": None,
            "created_at": self.start,
        }
        return AttemptRow(**key._asdict(), **(given | fields))

    def record(self, *rows: AttemptRow, letters: Iterable[DeadLetter] = ()) -> None:
        """Write them in one batch."""
        self.store.record(RecordBatch(list(rows), list(letters)))

    def ran(self, *outcomes: AttemptOutcome, **fields: Any) -> list[AttemptRow]:
        """Write an attempt of each outcome in one batch."""
        rows = [self.attempt(outcome, **fields) for outcome in outcomes]
        self.record(*rows)
        return rows

    def refused(self, reason_code: str = "circuit_open", **fields: Any) -> AttemptRow:
        """What is on record of a call that a gate refused."""
        given: dict[str, Any] = {"attempt_number": 0, "duration_ms": 0, "reason_code": reason_code}
        return self.attempt(FAILED, **(given | fields))

    def lane(self, key: LaneKey = LANE, store: ProviderStore | None = None) -> LaneHealth:
        """A lane that its tenant's summary must have, once."""
        found = [one for one in (store or self.store).health(key.tenant_id) if one.key == key]
        return found[0] if len(found) == 1 else fail(f"{key} is {len(found)} times in the summary")

    def rates(self, key: LaneKey = LANE) -> tuple[float | None, int | None]:
        """The last hour of a lane."""
        lane = self.lane(key)
        return lane.success_rate_1h, lane.p95_latency_ms_1h

    # ---- keys -----------------------------------------------------------------------------------

    def claim(self, owner: str = "me", fingerprint: str = "same", **options: Any) -> KeyClaimResult:
        """Ask for the key ``k``."""
        given: dict[str, Any] = {"tenant_id": TENANT, "key": "k", "lease": LEASE, "keep": KEEP}
        return self.store.claim(fingerprint=fingerprint, owner=owner, **(given | options))

    def must_claim(
        self, owner: str = "me", fingerprint: str = "same", **options: Any
    ) -> KeyClaimResult:
        """Claim the key ``k``, which has to be free."""
        found = self.claim(owner, fingerprint, **options)
        same(found.state, ClaimState.MINE, f"the claim of {owner}")
        return found

    def finish(
        self,
        owner: str = "me",
        result: dict[str, Any] | None = None,
        reason_code: str | None = None,
        error_message: str | None = None,
        **options: Any,
    ) -> bool:
        """Say what came of the call under the key ``k``."""
        name = options.pop("tenant_id", TENANT), options.pop("key", "k")
        return self.store.finish(*name, owner, result, reason_code, error_message, **options)

    # ---- letters --------------------------------------------------------------------------------

    def letter(self, number: int, **fields: Any) -> DeadLetter:
        """A call that was given up; one with a larger number is newer."""
        letter = DeadLetter(
            dead_letter_id=f"letter-{number}",
            tenant_id=TENANT,
            campaign_id=None,
            task_name="rank.snapshot",
            provider_name="rank",
            capability="snapshot",
            operation="fetch",
            idempotency_key="key",
            correlation_id="call",
            reason_code="timeout",
            error_type="ReadTimeout",
            error_message="no answer",
            attempts=3,
            occurred_at=self.start + number,
            payload={"keyword": "tea"},
        )
        return replace(letter, **fields)

    def bury(self, *numbers: int, **fields: Any) -> None:
        """Write letters of these numbers in one batch."""
        self.record(letters=[self.letter(number, **fields) for number in numbers])

    def stored(self, number: int) -> StoredLetter:
        """A letter that must be there, once."""
        found = self.store.letters(ids=[f"letter-{number}"])
        return found[0] if len(found) == 1 else fail(f"letter {number} is {len(found)} times there")

    def move(self, number: int, status: LetterStatus, *when: LetterStatus) -> bool:
        """Change a letter's status if it is one of ``when``."""
        return self.store.move_letter(f"letter-{number}", status, when=when)

    def bury_as(self, number: int, status: LetterStatus, **fields: Any) -> None:
        """Write a letter and bring it to that status."""
        self.bury(number, **fields)
        if status is not LetterStatus.PENDING:
            expect(self.move(number, status, LetterStatus.PENDING), f"letter {number} did not move")

    # ---- errors ---------------------------------------------------------------------------------

    def must_fail(self, call: Callable[[], Any], what: str) -> None:
        """The call is refused with an error of stores."""
        error = self.refusal(call)
        expect(isinstance(error, StoreError), f"{what}: no StoreError, but {error!r:.200}")


def numbers_of(letters: Sequence[StoredLetter]) -> list[int]:
    """The numbers of letters, in order."""
    return [int(one.letter.dead_letter_id.removeprefix("letter-")) for one in letters]


def same(found: object, wanted: object, what: str) -> None:
    """Fail the check unless both are equal."""
    if found != wanted:
        fail(f"{what}: expected {wanted!r:.300}, found {found!r:.300}")


def near(found: float | None, wanted: float, what: str, within: float = 1e-9) -> None:
    """Fail the check unless both are about the same."""
    if found is None or abs(found - wanted) > within:
        fail(f"{what}: expected {wanted!r}, found {found!r}")
