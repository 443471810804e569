"""A provider call as a task of any queue: its documents, and the decision on a failed delivery.

What becomes of a task whose call failed is decided without I/O: what a reason means is read from
the one table in ``decisions.py``, and whether the message is sent again, and when, is asked of
``core/call_redelivery.py``. The runner does it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Protocol, runtime_checkable

import msgspec

from ergon_framework.core.call_redelivery import (
    DeliveryCounts,
    Redelivery,
    RedeliveryRule,
    defer,
    requeue,
)
from ergon_framework.core.failure import Failure
from ergon_framework.core.provider_call import GuardEnd
from ergon_framework.core.retry import Backoff, RetryRule
from ergon_framework.errors import ConfigurationError
from ergon_framework.ports.providerstore import DeadLetter
from ergon_framework.providers.decisions import RETRYABLE_KINDS, Bury, Decision, Requeue
from ergon_framework.providers.errors import ProviderBadRequestError, Reason
from ergon_framework.providers.execution import ProviderExecutionResult, refusing_renamed
from ergon_framework.providers.validation import (
    check_above_zero,
    check_count,
    check_names,
    check_seconds,
    check_word,
    check_words,
)

MAX_RESULT_BYTES = 64 * 1024 * 1024
"""Bytes of a result that is kept, unless the options say otherwise."""

_REQUEST_KEY_TTL = 3_600.0
"""Seconds for which a key that stands for a request is remembered."""

Count = Annotated[int, msgspec.Meta(ge=0)]


class TaskGate(StrEnum):
    """What a call may be put off for."""

    CIRCUIT = "circuit"  # until it lets calls in again
    COOLDOWN = "cooldown"  # until the provider wants to be asked again
    WINDOW = "window"  # until there is quota again
    STORE = "store"  # until the store answers
    DUPLICATE = "duplicate"  # until the other call under the same key has ended


class ComputedKeys(StrEnum):
    """What a computed idempotency key stands for."""

    MESSAGE = "message"  # one message: what is delivered again is not called again
    REQUEST = "request"  # the request: two messages that ask for the same are one call


class KeepResults(StrEnum):
    """Which results are kept for later deliveries."""

    WHOLE = "whole"  # all of them, as they are
    WITHOUT_SECRETS = "without_secrets"  # those in which nothing looks like a secret
    NEVER = "never"


@runtime_checkable
class ResultCipher(Protocol):
    """Encrypts what is kept; ``cryptography.fernet.Fernet`` and ``MultiFernet`` do."""

    def encrypt(self, data: bytes, /) -> bytes:
        """What is kept in the place of ``data``."""

    def decrypt(self, token: bytes, /) -> bytes:
        """What :meth:`encrypt` was given; raises when it was not, or was changed."""


class FinalFailure(msgspec.Struct, frozen=True, omit_defaults=True):
    """The end of a call whose dead letter could not be written anywhere yet."""

    reason_code: str
    error_type: str
    message: str
    attempts: Count
    occurred_at: float
    retryable: bool = False
    http_status: int | None = None


class CallProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one message of a call passes to the next one, so that nothing is counted twice."""

    attempts: Count = 0
    deferrals: Count = 0
    requeues: Count = 0
    redrive_count: Count = 0
    waits_until: float = 0.0
    """The end of the wait under way, in seconds since 1970: a long one takes several messages."""
    correlation_id: str | None = None
    given_up: FinalFailure | None = None
    unbuilt: Count = 0
    """Messages in a row whose worker could not build the provider."""
    is_repeated: bool = False
    """Whether another delivery of the same message may have ended the call."""

    def to_dict(self) -> dict[str, Any]:
        """The progress as a message carries it."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found

    @classmethod
    def from_dict(cls, value: Any) -> CallProgress:
        """The progress of a message. Raises a bad request if the value has another form."""
        try:
            return msgspec.convert(value, cls)
        except msgspec.ValidationError as error:
            raise ProviderBadRequestError(
                f"what the message carries for Ergon is wrong: {error}", never_sent=True
            ) from error


NO_PROGRESS = CallProgress()


@dataclass(frozen=True, slots=True)
class TaskCall:
    """One delivery of a call by a queue."""

    tenant_id: str
    campaign_id: str | None
    operation: str
    payload: dict[str, Any] = field(repr=False)
    idempotency_key: str | None = None
    correlation_id: str | None = None
    call_id: str = ""
    """The id of the call, the same for every delivery of its message."""
    is_redelivered: bool = False
    """Whether the queue has delivered this message before."""
    may_wait: bool = True
    """Whether the queue can hold a call back for a while."""
    traceparent: str | None = None
    carried: CallProgress = NO_PROGRESS

    @property
    def is_repeated(self) -> bool:
        """Whether another delivery of the same message may have ended the call."""
        return self.is_redelivered or self.carried.is_repeated


class TaskEnd(StrEnum):
    """What becomes of the message."""

    DONE = "done"
    REPLAYED = "replayed"
    DEFER = "defer"
    REQUEUE = "requeue"
    FAILED = "failed"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class TaskEnding:
    """How one delivery ended."""

    end: TaskEnd
    result: ProviderExecutionResult
    idempotency_key: str | None = None
    seconds: float = 0.0
    """After which to send the call again."""
    gate: TaskGate | None = None
    """The gate that the call is deferred for."""
    carried: CallProgress = NO_PROGRESS
    """What to send along."""
    letter: DeadLetter | None = None
    undelivered: bool = False
    """The dead letter is recorded nowhere: do not acknowledge the message, but send the call again
    with what it carries, which only has the letter written."""

    @property
    def is_final(self) -> bool:
        """Whether nothing is to be sent again."""
        return self.end not in {TaskEnd.DEFER, TaskEnd.REQUEUE} and not self.undelivered


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """How the calls of one task are run."""

    timeout_budget_seconds: float | None = 60.0
    """Seconds for one delivery, including waits between attempts. None: the provider's budget."""
    idempotent: bool = True
    """Whether a key is made when none is given, and calls under one key are made once."""
    keep_key_seconds: float = 86_400.0
    """How long a given key is remembered."""
    computed_keys: str = ComputedKeys.MESSAGE
    """What a key is made of when none is given: ``message``, or ``request`` for one call per
    request, whichever message asks for it.
    """
    keep_computed_key_seconds: float | None = None
    """How long such a key is remembered. None: as long as a given one for ``message``; an hour for
    ``request``, after which the same request is a new one."""
    lease_grace_seconds: float = 30.0
    """Beyond the budget, until another one may take the call over."""
    max_deferrals: int = 25
    """How often a call may be put off; 0: it fails where it would be."""
    defer_on: Collection[str] = frozenset(TaskGate)
    """The gates that a call may be deferred for."""
    longest_deferral_seconds: float = 900.0
    """The most seconds of deferral in one message. A longer wait takes several, which count as one.
    """
    max_requeues: int = 0
    """How often a call that ran out of time, with attempts left, goes back to the queue."""
    requeue_on: Collection[str] = frozenset()
    """Reasons that go back as well, though they are not retried at once: ``internal_error``."""
    bury_on: Collection[str] = frozenset()
    """Reasons that become dead letters though nothing was exhausted."""
    max_redeliveries: int = 5
    """How often a call may lose its worker."""
    keep_results: str = KeepResults.WHOLE
    """Which results are kept for later deliveries: ``whole``, ``without_secrets`` or ``never``. One
    that is not kept becomes an error at the next delivery."""
    max_result_bytes: int = MAX_RESULT_BYTES
    """The most bytes of a result that is kept."""
    result_cipher: Any = field(default=None, repr=False)
    """Encrypts the results that are kept, and decrypts them: a ``cryptography.fernet.Fernet``, or
    anything with its ``encrypt`` and ``decrypt``."""
    max_payload_bytes: int = 262_144
    secret_names: Collection[str] = frozenset()
    volatile_names: Collection[str] = frozenset()

    def __post_init__(self) -> None:
        if self.timeout_budget_seconds is not None:
            check_above_zero("timeout_budget_seconds", self.timeout_budget_seconds)
        for name in ("keep_key_seconds", "longest_deferral_seconds"):
            check_above_zero(name, getattr(self, name))
        if self.keep_computed_key_seconds is not None:
            check_above_zero("keep_computed_key_seconds", self.keep_computed_key_seconds)
        check_word("computed_keys", self.computed_keys, ComputedKeys)
        check_word("keep_results", self.keep_results, KeepResults)
        if self.result_cipher is not None and not isinstance(self.result_cipher, ResultCipher):
            raise ConfigurationError(
                "result_cipher must have the methods encrypt and decrypt",
                remedy="write for example result_cipher=Fernet(key), from cryptography.fernet",
            )
        check_seconds("lease_grace_seconds", self.lease_grace_seconds)
        for name in ("max_deferrals", "max_requeues", "max_redeliveries"):
            check_count(name, getattr(self, name))
        for name in ("max_result_bytes", "max_payload_bytes"):
            check_count(name, getattr(self, name))
        check_words("defer_on", self.defer_on, TaskGate)
        check_words("requeue_on", self.requeue_on, Reason)
        check_words("bury_on", self.bury_on, Reason)
        for name in ("secret_names", "volatile_names"):
            check_names(name, getattr(self, name))

    @property
    def computed_key_memory(self) -> float:
        """Seconds for which a computed key is remembered."""
        if self.keep_computed_key_seconds is not None:
            return self.keep_computed_key_seconds
        is_of_message = self.computed_keys == ComputedKeys.MESSAGE
        return self.keep_key_seconds if is_of_message else _REQUEST_KEY_TTL


TaskOptions.__init__ = refusing_renamed(TaskOptions.__init__)  # type: ignore[method-assign]


_GATE_OF_STOP = {
    GuardEnd.CIRCUIT_OPEN: TaskGate.CIRCUIT,
    GuardEnd.COOLDOWN: TaskGate.COOLDOWN,
    GuardEnd.QUOTA: TaskGate.WINDOW,
    GuardEnd.STORE: TaskGate.STORE,
}
_GATE_OF_REQUEUE = {
    Requeue.OPEN_UNTIL: TaskGate.CIRCUIT,
    Requeue.COOLDOWN_END: TaskGate.COOLDOWN,
    Requeue.WINDOW_END: TaskGate.WINDOW,
}


@dataclass(frozen=True, slots=True)
class DeliveryDecision:
    """What becomes of the message, and what to send along if it goes back."""

    end: TaskEnd
    seconds: float = 0.0
    gate: TaskGate | None = None
    carried: CallProgress = NO_PROGRESS


@dataclass(frozen=True, slots=True)
class DecisionInputs:
    """What a verdict needs to know beside the result."""

    carried: CallProgress
    """The progress as the message had it."""
    now: float
    """Seconds since 1970."""
    dice: float
    """A random number in [0, 1)."""
    may_wait: bool
    longest_wait: float


def decide_ending(
    result: ProviderExecutionResult,
    decision: Decision,
    backoff: Backoff,
    max_attempts: int,
    options: TaskOptions,
    moment: DecisionInputs,
) -> DeliveryDecision:
    """What becomes of a call that failed.

    Which gate refused it and which reasons go back is read from the tables here. Whether it is
    deferred or requeued, and for how long, ``core/call_redelivery.py`` decides.
    """
    carried, made = moment.carried, moment.carried.attempts + result.attempts
    is_asked_for = _is_opted_in(result, decision, options)
    on = RETRYABLE_KINDS | {decision.kind} if is_asked_for else RETRYABLE_KINDS
    gate = _gate(result, decision)
    may_go_on = made < max_attempts and moment.may_wait
    is_held = gate in options.defer_on and may_go_on and options.max_deferrals > 0
    if gate is not None and is_held:
        deferred = decide_deferral(gate, result.retry_after_seconds or 0.0, made, options, moment)
        if deferred is not None:
            return deferred
    elif moment.may_wait:
        failure = Failure(decision.kind, str(result.reason_code), "", result.retry_after_seconds)
        again = requeue(
            _rule(options, moment),
            RetryRule(max_attempts, backoff, on),
            _counts(carried, made),
            failure,
            now=moment.now,
            dice=moment.dice,
        )
        if again is not None:
            return _redelivered(TaskEnd.REQUEUE, None, again, carried)
    # What went back to the queue was retried, and now that is exhausted, whatever its reason.
    is_exhausted = carried.requeues > 0 and is_asked_for
    # One that is held comes here when it was put off often enough: that is an exhaustion, too.
    is_buried = is_held or is_exhausted or decision.bury is Bury.ON_EXHAUSTION
    is_dead = is_buried or result.reason_code in options.bury_on
    return DeliveryDecision(TaskEnd.DEAD if is_dead else TaskEnd.FAILED)


def decide_deferral(
    gate: TaskGate, seconds: float, attempts: int, options: TaskOptions, moment: DecisionInputs
) -> DeliveryDecision | None:
    """Defer a call until a gate opens; None if it was deferred often enough."""
    if not moment.may_wait:
        return None
    counts = _counts(moment.carried, attempts)
    again = defer(_rule(options, moment), counts, seconds, moment.now, moment.dice)
    return None if again is None else _redelivered(TaskEnd.DEFER, gate, again, moment.carried)


def _rule(options: TaskOptions, moment: DecisionInputs) -> RedeliveryRule:
    return RedeliveryRule(options.max_deferrals, options.max_requeues, moment.longest_wait)


def _counts(carried: CallProgress, attempts: int) -> DeliveryCounts:
    return DeliveryCounts(attempts, carried.deferrals, carried.requeues, carried.waits_until)


def _redelivered(
    end: TaskEnd, gate: TaskGate | None, again: Redelivery, carried: CallProgress
) -> DeliveryDecision:
    counts = again.counts
    sent = CallProgress(
        counts.attempts,
        counts.deferrals,
        counts.requeues,
        carried.redrive_count,
        counts.waits_until,
    )
    return DeliveryDecision(end, again.delay, gate, sent)


def _gate(result: ProviderExecutionResult, decision: Decision) -> TaskGate | None:
    at_gate = _GATE_OF_STOP.get(GuardEnd(result.stop_reason))
    if at_gate is not None:
        return at_gate
    # The provider said itself until when it does not want to be called.
    is_asked = result.retry_after_seconds is not None
    return _GATE_OF_REQUEUE.get(decision.requeue) if is_asked else None


def _is_opted_in(result: ProviderExecutionResult, decision: Decision, options: TaskOptions) -> bool:
    """Whether the task wants a reason to go back that does not do so by itself."""
    return decision.requeue is Requeue.OPT_IN and result.reason_code in options.requeue_on
