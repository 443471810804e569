"""What provider calls ask of a store, and the records that go in and out.

Instants are seconds since 1970 by the store's own clock. A *lane* is what the calls of one tenant
to one capability of one provider share: a circuit, a cooldown, a quota, a health record.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import msgspec

from ergon_framework.core.circuit_breaker import Breaker, CircuitState
from ergon_framework.core.quota import QuotaUsage, QuotaWindow
from ergon_framework.core.rollup import Rollup


class LaneKey(NamedTuple):
    """Whose calls to what."""

    tenant_id: str
    provider_name: str
    capability: str


CLOSED = Breaker()

ALL_TENANTS = "*"
"""The tenant of a lane that all tenants share: a provider's own circuit."""


class LaneFailure(NamedTuple):
    """An attempt that failed, as the health of its lane shows it."""

    reason_code: str
    at: float


class LaneState(msgspec.Struct, frozen=True, eq=False):
    """What all processes know of a lane's gates."""

    breaker: Breaker = CLOSED
    cooldown_until: float = 0.0
    version: int = 0
    """Grows with every swap; 0 when the lane was never written."""
    written_at: float = 0.0
    """When anything of the lane was last written; 0 when that is not known. Two states that differ
    in nothing else are equal.
    """

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LaneState):
            return NotImplemented
        return self._compared == other._compared

    # The base class answers ``!=`` by itself, and does not ask ``__eq__``.
    def __ne__(self, other: object) -> bool:
        is_equal = self.__eq__(other)
        return is_equal if is_equal is NotImplemented else not is_equal

    def __hash__(self) -> int:
        return hash(self._compared)

    @property
    def _compared(self) -> tuple[Breaker, float, int]:
        return self.breaker, self.cooldown_until, self.version


class QuotaGrant(NamedTuple):
    """The answer to a reservation: the account as it is now, and whether the units were taken."""

    account: QuotaUsage
    is_granted: bool


class AttemptOutcome(StrEnum):
    """How an attempt ended, as its row says."""

    SUCCESS = "success"
    RETRY = "retry"
    FAILED = "failed"
    DEAD_LETTER = "dead_letter"


ABANDONED = "abandoned"
"""The reason in the row of a stream whose reader left before its end: a success of the provider,
and no whole result."""


class AttemptRow(NamedTuple):
    """The stored row of an attempt. ``attempt_number`` 0 is a call that a gate refused."""

    id: str
    tenant_id: str
    task_execution_id: str | None
    provider_name: str
    capability: str
    operation: str
    idempotency_key: str | None
    correlation_id: str
    attempt_number: int
    max_attempts: int
    duration_ms: int
    timeout_budget_ms: int | None
    outcome: str
    reason_code: str | None
    retryable: bool
    http_status: int | None
    created_at: float
    campaign_id: str | None = None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A call that was given up, with everything needed to explain it and to try again."""

    dead_letter_id: str
    tenant_id: str
    campaign_id: str | None
    task_name: str
    provider_name: str
    capability: str
    operation: str
    idempotency_key: str
    correlation_id: str
    reason_code: str
    error_type: str
    error_message: str
    attempts: int
    occurred_at: float
    http_status: int | None = None
    retryable: bool = False
    traceparent: str | None = None
    redrive_count: int = 0
    payload: dict[str, Any] | None = field(default=None, repr=False)
    """What to call again with; None when it was too large."""
    has_secrets: bool = False
    """Whether values were left out of the payload, so that it cannot be sent again as it is."""


class LetterStatus(StrEnum):
    """Where a dead letter stands."""

    PENDING = "pending"  # recorded; not yet published to the dead-letter queue
    PUBLISHED = "published"
    REDRIVE = "redrive"  # an operator wants the call made again; not yet sent
    REDRIVEN = "redriven"
    DISCARDED = "discarded"


@dataclass(frozen=True, slots=True)
class StoredLetter:
    """A dead letter and what has become of it."""

    letter: DeadLetter
    status: LetterStatus
    published_at: float | None = None
    redriven_at: float | None = None


@dataclass(slots=True)
class RecordBatch:
    """What is written in one transaction."""

    attempts: list[AttemptRow] = field(default_factory=list)
    letters: list[DeadLetter] = field(default_factory=list)
    keys: list[KeyEnding] = field(default_factory=list)
    """The endings of keys that were spilled to disk. ``finish`` writes all others, after
    ``record``.
    """


class ClaimState(StrEnum):
    """What the holder of an idempotency key finds."""

    MINE = "mine"  # the key is free: make the call, then finish
    RUNNING = "running"  # another process holds the key, and its lease is live
    REPLAY = "replay"  # it has succeeded: here is the result
    FAILED = "failed"  # it failed for good: here is the reason
    CONFLICT = "conflict"  # the key was used for another request


class ResultNote(StrEnum):
    """For a call that succeeded: how its result was changed to be kept, or why it is not kept."""

    ENCRYPTED = "encrypted"  # kept so that only the task can read it
    TOO_LARGE = "too_large"
    HAS_SECRETS = "has_secrets"
    NOT_JSON = "not_json"
    NOT_WANTED = "not_wanted"  # the task keeps none
    REFUSED = "refused"  # by the store
    CROWDED = "crowded"  # it was kept, and made room for others
    EARLIER = "earlier"  # an earlier version did not keep it
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class KeyClaimResult:
    """The answer to a claim."""

    state: ClaimState
    owner: str = ""
    """The owner of the claim if it is ours; every later write names it."""
    lease_expires_at: float = 0.0
    result: dict[str, Any] | None = None
    reason_code: str | None = None
    error_message: str | None = None
    result_note: ResultNote | None = None
    """After a success; ``result`` is the result as it was if there is none."""
    taken_from: str = field(default="", compare=False)
    """The owner whose lease ended before it reported the end of its call: it may have made the
    call. Empty if there was none.
    """


@dataclass(frozen=True, slots=True)
class KeyEnding:
    """What ``finish`` is to write under an idempotency key."""

    tenant_id: str
    key: str
    owner: str
    result: dict[str, Any] | None = field(default=None, repr=False)
    reason_code: str | None = None
    error_message: str | None = None
    may_run_again: bool = False
    result_note: ResultNote | None = None

    @property
    def is_success(self) -> bool:
        """Whether the call succeeded, so that it is not made again."""
        return self.reason_code is None and not self.may_run_again

    def write_to(self, store: ProviderStore) -> bool:
        """Write it; whether the key was still its owner's. Written twice, it changes nothing."""
        return store.finish(
            self.tenant_id,
            self.key,
            self.owner,
            self.result,
            self.reason_code,
            self.error_message,
            may_run_again=self.may_run_again,
            result_note=self.result_note,
        )


@dataclass(frozen=True, slots=True)
class LaneHealth:
    """A lane as the summary shows it; rates are computed when it is read."""

    key: LaneKey
    breaker_state: str
    consecutive_failures: int
    open_until: float | None
    cooldown_until: float | None
    success_rate_1h: float | None
    p95_latency_ms_1h: int | None
    last_error_code: str | None
    last_error_at: float | None
    last_success_at: float | None
    updated_at: float
    account: QuotaUsage | None
    """The quota window that is running; None when there is none."""

    def observed(self, now: float) -> LaneHealth:
        """The circuit as it is shown to people: one whose cooldown is over would let a probe in.

        The store has it as it was written last, and only a call changes it.
        """
        is_over = self.open_until is not None and now >= self.open_until
        if self.breaker_state != CircuitState.OPEN or not is_over:
            return self
        return replace(self, breaker_state=CircuitState.HALF_OPEN.value, open_until=None)


class ProviderStore(Protocol):
    """Any thread and any process may call any method. ``StoreError`` when it cannot answer."""

    def now(self) -> float:
        """The store's clock, which all its users share."""

    # -- gates ---------------------------------------------------------------------------------

    def lane_state(self, key: LaneKey) -> LaneState:
        """The state of a lane; a fresh one when the lane was never written."""

    def compare_and_set(
        self, key: LaneKey, version: int, breaker: Breaker, *, failed: LaneFailure | None = None
    ) -> bool:
        """Write the circuit if the lane's version is still ``version``; whether it was.

        ``failed`` is the failure that changed it, which health shows from then on, unless a later
        one is known. A store whose ``swap`` does not take it shows the failures of attempt rows
        instead.
        """

    def extend_cooldown(self, key: LaneKey, until: float) -> float:
        """Let no call pass before ``until``; returns the cooldown's end, which may be later."""

    def reserve(self, key: LaneKey, window: QuotaWindow, limit: int, units: int) -> QuotaGrant:
        """Take ``units`` of a window's budget, atomically, or none.

        A window that starts before the newest known one is not opened: that one is asked instead.
        A changed limit holds from now on. A window that has nothing left is marked when it refuses.
        """

    def refund(self, key: LaneKey, window: QuotaWindow, units: int) -> None:
        """Return ``units`` to the window they came from; its use stays at zero or above."""

    # -- records -------------------------------------------------------------------------------

    def record(self, batch: RecordBatch) -> None:
        """Write attempts, their roll-ups, health and dead letters in one transaction.

        A row or letter whose id is there already is left out, roll-ups included, so that a batch
        may be written again when it is not known whether it was.
        """

    def health(self, tenant_id: str) -> list[LaneHealth]:
        """Every lane of a tenant, in order; rates over the last hour as of now."""

    def attempts_of(self, correlation_id: str) -> list[AttemptRow]:
        """The attempts under one correlation id, oldest first."""

    def prune(self, before: float, limit: int = 10_000, *, keys_before: float | None = None) -> int:
        """Delete attempts, roll-ups, keys and settled letters older than ``before``; how many.

        Keys go that were to be remembered until ``keys_before``, if that is given.
        """

    # -- idempotency ---------------------------------------------------------------------------

    def claim(
        self, tenant_id: str, key: str, fingerprint: str, owner: str, lease: float, keep: float
    ) -> KeyClaimResult:
        """Claim a key for ``lease`` seconds; it is remembered for ``keep`` seconds."""

    def finish(
        self,
        tenant_id: str,
        key: str,
        owner: str,
        result: dict[str, Any] | None,
        reason_code: str | None,
        error_message: str | None = None,
        *,
        may_run_again: bool = False,
        result_note: ResultNote | None = None,
    ) -> bool:
        """Record the end under a key that is still ours; whether it was. ``may_run_again`` frees
        the key for another try. A result comes back whole, however large it is; ``result_note``
        comes back with it.
        """

    # -- dead letters --------------------------------------------------------------------------

    def letters(
        self,
        *,
        statuses: Sequence[LetterStatus] = (),
        tenant_id: str | None = None,
        ids: Sequence[str] = (),
        limit: int = 100,
    ) -> list[StoredLetter]:
        """Dead letters, the newest first."""

    def due_letters(
        self, status: LetterStatus, limit: int = 100, *, task_names: Collection[str] | None = None
    ) -> list[StoredLetter]:
        """The oldest letters that wait for the relay, of these tasks if they are named."""

    def move_letter(
        self, dead_letter_id: str, status: LetterStatus, *, when: Sequence[LetterStatus]
    ) -> bool:
        """Change a letter's status if it is one of ``when``; whether it was."""

    def delete_letters(self, ids: Sequence[str]) -> int:
        """Delete letters for good; how many there were."""

    def close(self) -> None:
        """Close the store. May be called twice."""


# -- what a store may have beside the port ---------------------------------------------------------


@runtime_checkable
class ShortensCooldowns(Protocol):
    """A store in which a pause can be ended before its time: by an operator, or since its clock was
    set back.
    """

    def shorten_cooldown(self, key: LaneKey, known: float, until: float) -> bool:
        """Shorten the cooldown if it still ends at ``known``; returns whether it did."""


@runtime_checkable
class GrantsAhead(Protocol):
    """A store of this process alone, which grants units ahead, so that a call need not ask it."""

    grants_ahead: bool
    """Whether callers may use :meth:`units_ahead`."""

    def units_ahead(self, key: LaneKey, window: QuotaWindow, limit: int) -> list[QuotaUsage]:
        """Single units of a budget that was just taken from: for each the budget once it is used.

        Each call pops one. The store takes back what is left as soon as it is asked for more, or
        given units back; the list is empty then.
        """


@runtime_checkable
class HasFile(Protocol):
    """A store in a file. While it cannot be written, its recorder spills rows beside that file."""

    @property
    def path(self) -> Path | None:
        """The file; None when the store is on a server."""


@runtime_checkable
class HasUrl(Protocol):
    """A store that knows its URL, from which its recorder derives the folder of its spill."""

    @property
    def url(self) -> str:
        """The URL that opens the store."""


@runtime_checkable
class HasName(Protocol):
    """A store that has a name for logs and errors; it stands in for a URL, without the password."""

    @property
    def name(self) -> str:
        """The name shown to users."""


@runtime_checkable
class HasDurability(Protocol):
    """A store that can say what of its data outlives a crash."""

    durability: str
    """One sentence about durability, as ``ergon doctor`` prints it."""


@runtime_checkable
class DefersWrites(Protocol):
    """A store that puts off some writes: its recorder has them done when there is time."""

    def settle(self) -> None:
        """Do the deferred writes."""


@runtime_checkable
class HasCloseHooks(Protocol):
    """A store that calls others before it closes: its recorder hands over the last rows then."""

    at_close: list[Callable[[], object]]


class LetterPosition(NamedTuple):
    """Where a dead letter stands among the others, to the last digit that the database keeps."""

    at: datetime
    id: str


class LaneCount(NamedTuple):
    """How many there are of something at a capability, all tenants together."""

    provider_name: str
    capability: str
    what: str | None
    number: int


class QuotaTotals(NamedTuple):
    """What is used of the quota windows that are running, all tenants together."""

    provider_name: str
    capability: str
    used: int
    limit: int


class CallTotals(NamedTuple):
    """The calls to a capability that ended, and the attempts they took."""

    provider_name: str
    capability: str
    succeeded: int
    failed: int
    dead_lettered: int
    attempts: int


class MinuteOfLane(NamedTuple):
    """The roll-up of one minute of one lane so far."""

    key: LaneKey
    minute: float
    """When the minute began, in seconds since 1970."""
    rollup: Rollup


class LaneNow(NamedTuple):
    """A lane as it stands: its circuit, its last outcomes, and the quota window that is running."""

    tenant_id: str
    breaker_state: str
    consecutive_failures: int
    open_until: float | None
    cooldown_until: float | None
    last_error_code: str | None
    last_error_at: float | None
    last_success_at: float | None
    quota_used: int | None
    quota_limit: int | None
    window_start: float | None
    window_end: float | None


@dataclass(frozen=True, slots=True)
class ProviderStats:
    """The state of all lanes at one instant, without the names of tenants."""

    circuits: list[LaneCount]
    """Lanes by the state of their circuit."""
    failures: list[LaneCount]
    """Lanes that failed in the last hour by their latest reason; the most frequent first."""
    quotas: list[QuotaTotals]
    ended: list[CallTotals]
    """The totals of calls that ended in the last hour."""
    reasons: list[LaneCount]
    """Attempts of the last five minutes by reason; None for those that succeeded."""
    letters: int


class ProviderInspector(Protocol):
    """Any thread may call any method. ``StoreError`` when it cannot answer."""

    def tenants(self, limit: int) -> list[str]:
        """The tenants that have called a provider or have a quota, in order."""

    def attempts_named(self, units: Sequence[str], limit: int) -> list[AttemptRow]:
        """The latest attempts under these ids or keys, or keys below them; the oldest first."""

    def letter_places(
        self,
        statuses: Sequence[LetterStatus],
        reason: str | None,
        after: LetterPosition | None,
        limit: int,
    ) -> list[LetterPosition]:
        """Where dead letters stand, the newest first."""

    def minutes(self, since: float, changed_since: float) -> list[MinuteOfLane]:
        """The minutes of all lanes that began after one instant and have changed since another."""

    def lanes_of(
        self, provider_name: str, capability: str, now: float, limit: int
    ) -> list[LaneNow]:
        """The lanes of a capability. Those whose circuit is not closed come first."""

    def latest_attempts(
        self, provider_name: str, capability: str, since: float, limit: int
    ) -> list[AttemptRow]:
        """The latest attempts of all tenants at a capability, the newest first."""

    def figures(self, now: float, statuses: Sequence[LetterStatus]) -> ProviderStats:
        """How all lanes are, and how many dead letters have one of these statuses."""
