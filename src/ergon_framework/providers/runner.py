"""Runs a provider call for a task queue, whichever it is.

One delivery of a message is one :meth:`ProviderTaskRunner.run`: the key is claimed, the provider
called once with all its guards, and the ending says what becomes of the message. A call that is
given up has its dead letter in the store, in the transaction of its last row, before this returns.
A store that does not answer ends no task: what belongs under the key waits on disk then.
"""

from __future__ import annotations

import math
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import msgspec

from ergon_framework.core.provider_call import GuardEnd
from ergon_framework.engine.clocks import current_clock
from ergon_framework.errors import StoreError
from ergon_framework.ports.clock import Clock
from ergon_framework.ports.providerstore import (
    AttemptOutcome,
    ClaimState,
    DeadLetter,
    KeyClaimResult,
    KeyEnding,
    LaneKey,
    RecordBatch,
)
from ergon_framework.providers.base import ProviderBase
from ergon_framework.providers.decisions import Decision, decisions
from ergon_framework.providers.delivery.dead_letters import (
    LetterIdentity,
    dead_letter_id,
    kept_payload,
    new_letter,
)
from ergon_framework.providers.delivery.idempotency import (
    KeyClaim,
    ResultStorage,
    check_key,
    conflict,
    earlier_failure,
    may_run_again,
    message_key,
    new_claim,
)
from ergon_framework.providers.delivery.owner_locks import (
    OWNER_LOCKS,
    OwnerLock,
    seconds_since_boot,
)
from ergon_framework.providers.errors import (
    ERROR_OF,
    ProviderBadRequestError,
    ProviderDependencyError,
    ProviderError,
    ProviderInternalError,
)
from ergon_framework.providers.execution import (
    OnFailure,
    ProviderExecutionContext,
    ProviderExecutionResult,
)
from ergon_framework.providers.pipeline.request import fingerprint
from ergon_framework.providers.recorder import Recorder
from ergon_framework.providers.redaction import normalised_names, plain_json, safe_message
from ergon_framework.providers.tasks import (
    ComputedKeys,
    DecisionInputs,
    DeliveryDecision,
    FinalFailure,
    KeepResults,
    TaskCall,
    TaskEnd,
    TaskEnding,
    TaskGate,
    TaskOptions,
    decide_deferral,
    decide_ending,
)
from ergon_framework.providers.telemetry import (
    emit,
    log_ending,
    traced_aexecute,
    traced_execute,
)
from ergon_framework.providers.threads import offload
from ergon_framework.providers.validation import validate_call
from ergon_framework.storage.deadlines import PROVIDER_BUDGET

DONE = DeliveryDecision(TaskEnd.DONE)

_UNKNOWN_BEFORE = (
    " (unknown outcome: an earlier delivery ended without telling how, and may have made this call)"
)


@dataclass(slots=True)
class CallDelivery:
    """The state of one delivery of a call, from its claim to its end."""

    call: TaskCall
    lane: LaneKey
    names: LetterIdentity
    context: ProviderExecutionContext
    guard: KeyClaim
    clock: Clock
    began_at: float
    is_ours: bool = False
    """Whether this delivery holds the key, so that it records the end of the call under it."""
    lease_ends_at: float = 0.0
    """When the claim of the key ends, by the store's clock."""
    lease_over_at: float = math.inf
    """The same by the clock of this machine that cannot be set, a little earlier: it began to count
    before the key was claimed.
    """
    is_outcome_unknown_before: bool = False
    """Whether the key was taken from a delivery that may have made the call."""
    overtaken_by: KeyClaimResult | None = None
    """The claim of another delivery, if this one stood still for longer than its lease."""
    verdict: DeliveryDecision = DONE
    held: OwnerLock | None = None
    mark: str | None = None
    """The mark that counts this redelivery as a lost worker; removed when the delivery ends."""
    end: FinalFailure | None = None
    letter: DeadLetter | None = None

    def arguments(
        self,
    ) -> tuple[str, str | None, str, dict[str, Any], ProviderExecutionContext]:
        """The arguments of the provider; with a copy of the payload, which it may change."""
        call = self.call
        payload = plain_json(call.payload)
        return call.tenant_id, call.campaign_id, call.operation, payload, self.context

    def let_go(self) -> None:
        """Release the owner lock: the call has ended."""
        held, self.held = self.held, None
        if held is not None:
            held.release()

    def not_called(
        self, error: ProviderError | None, data: dict[str, Any] | None = None
    ) -> ProviderExecutionResult:
        """The result of a delivery that did not call the provider."""
        result = not_called(error, self.names.correlation_id, data)
        result.idempotency_key = self.names.idempotency_key
        result.duration_ms = (self.clock.now() - self.began_at) * 1000
        return result

    def given_up(
        self, result: ProviderExecutionResult, now: float, *, retryable: bool
    ) -> FinalFailure:
        """What its dead letter says about the end."""
        error = result.error or ProviderInternalError("the call failed without an error")
        unknown = _UNKNOWN_BEFORE if self.is_outcome_unknown_before else ""
        return FinalFailure(
            reason_code=error.reason_code,
            error_type=type(error).__name__,
            message=safe_message(error) + unknown,
            attempts=self.call.carried.attempts + result.attempts,
            occurred_at=now,
            retryable=retryable,
            http_status=result.http_status or getattr(error, "http_status", None),
        )


def not_called(
    error: ProviderError | None, correlation_id: str, data: dict[str, Any] | None = None
) -> ProviderExecutionResult:
    """The result of a delivery without a call: the data of an earlier one, or an error."""
    return ProviderExecutionResult(
        success=error is None,
        data=None if error is not None else data or {},
        error=error,
        reason_code=None if error is None else error.reason_code,
        attempts=0,
        duration_ms=0.0,
        correlation_id=correlation_id,
        retry_after_seconds=None if error is None else error.retry_after_seconds,
        stop_reason=(GuardEnd.SUCCEEDED if error is None else GuardEnd.NOT_RETRYABLE).value,
        replayed=error is None,
    )


def error_of(reason_code: str, message: str, http_status: int | None) -> ProviderError:
    """The error of a call that was given up by an earlier delivery."""
    return ERROR_OF.get(reason_code, ProviderInternalError)(message, http_status=http_status)


def settle(
    run: CallDelivery,
    result: ProviderExecutionResult,
    table: dict[str, Decision],
    storage: ResultStorage,
    recorder: Recorder,
) -> None:
    """Record the end of the call under its key, with its result as ``storage`` says.

    What the store does not take now waits on disk, and ``recorder`` writes it when the store
    answers again: a success that is not under its key would be called again after the lease. If
    the process dies before this, the lease has to end before another delivery may call again.
    """
    if not run.is_ours:
        return
    ending = _key_ending(run, result, table, storage)
    try:
        # The result is written under the key before the message is acknowledged: a worker that dies
        # in between finds it at the next delivery.
        is_ours = storage.write(run.guard, ending)
    except StoreError as fault:
        if not recorder.write_later(RecordBatch(keys=[ending])):
            emit("key.left_open", key=run.lane, error=type(fault).__name__)
        return
    if not is_ours:  # the lease had ended, and another delivery holds the key
        emit("key.lost", key=run.lane)


def _key_ending(
    run: CallDelivery,
    result: ProviderExecutionResult,
    table: dict[str, Decision],
    storage: ResultStorage,
) -> KeyEnding:
    guard, error, end = run.guard, result.error, run.verdict.end
    if end is TaskEnd.DONE:
        return storage.ending(guard, result.data or {})
    if end is TaskEnd.FAILED and error is not None:
        reason = error.reason_code
        if not may_run_again(table[reason], reason):
            return guard.failed(reason, safe_message(error))
    return guard.freed(result.reason_code)


def release_delivery(run: CallDelivery) -> None:
    """End a delivery normally: release its lock, and do not count its worker as lost."""
    run.let_go()
    mark, run.mark = run.mark, None
    try:
        if mark is not None:
            run.guard.uncount_redelivery(mark)
    except StoreError as fault:
        emit("key.left_open", key=run.lane, error=type(fault).__name__)


def abandon_delivery(run: CallDelivery) -> None:
    """Free the key of a call that was broken off, so that the next delivery need not wait.

    It still counts as a lost worker: a call that breaks off every time must come to an end.
    """
    run.let_go()
    try:
        if run.is_ours:
            run.guard.finish(run.guard.freed())
    except StoreError as fault:
        emit("key.left_open", key=run.lane, error=type(fault).__name__)


T = TypeVar("T")

_UNLIMITED_BUDGET = 3600.0
"""Seconds for which a call without a budget holds its key."""

_REDELIVERY_MARK_TTL = 30 * 86_400.0
"""Seconds for which a lost worker is remembered: some queues take hours to deliver again."""

_LEASE_MARGIN = 1.0
"""Seconds before the end of a lease within which another delivery may take the key."""

_LETTER_RETRY_DELAY = 60.0
"""Seconds until a dead letter that could not be written is tried again."""


class ProviderTaskRunner:
    """Runs the calls of one task in one process. Any thread may run any number at once."""

    def __init__(
        self,
        provider: ProviderBase,
        *,
        task_name: str,
        options: TaskOptions | None = None,
        longest_wait: Callable[[], float] | None = None,
        dice: Callable[[], float] = random.random,
        boot_clock: Callable[[], float] = seconds_since_boot,
    ) -> None:
        """``longest_wait`` says for how many seconds the queue can hold a message back.

        ``boot_clock`` measures leases: it cannot be set, and it counts on while the machine sleeps.
        """
        self.provider = provider
        self.task_name = task_name
        self.options = options or TaskOptions()
        self._runtime = runtime = provider.runtime
        self._table = decisions(runtime.options.decisions)
        self._policy = runtime.options.retry_policy
        self._wall = runtime.policy.wall
        self._dice = dice
        self._boot_clock = boot_clock
        self._longest_wait = longest_wait
        self._secret_names = normalised_names(self.options.secret_names)
        self._volatile_names = normalised_names(self.options.volatile_names)
        self._result_storage = ResultStorage(
            KeepResults(self.options.keep_results),
            self.options.max_result_bytes,
            self.options.result_cipher,
            self._secret_names,
        )

    def run(self, call: TaskCall) -> TaskEnding:
        """Make the call of one delivery. Its failure is in the ending, and not raised."""
        return PROVIDER_BUDGET.run_within(self._budget(), partial(self._run, call))

    def _run(self, call: TaskCall) -> TaskEnding:
        run = self._open(call)
        if isinstance(run, TaskEnding):
            return run
        try:
            result = traced_execute(self.provider, self._ending_of(run), *run.arguments())
        except BaseException:
            abandon_delivery(run)
            raise
        return self._close(run, result)

    async def arun(self, call: TaskCall) -> TaskEnding:
        """Like ``run``, on asyncio. If it is cancelled, it still writes the outcome of the key."""
        opened: list[CallDelivery | TaskEnding] = []
        began_at, now, budget = self._clock().now(), self._clock().now, self._budget()

        async def in_time(work: Callable[[], T], late: Callable[[], T] | None = None) -> T:
            def within_budget() -> T:
                return PROVIDER_BUDGET.run_within(
                    None if budget is None else budget - (now() - began_at), work
                )

            return await offload(within_budget, self._runtime.steps, within=budget, late=late)

        try:
            await in_time(
                lambda: opened.append(self._open(call)),
                lambda: opened.append(self._defer_unclaimed(call)),
            )
            run = opened[0]
            if isinstance(run, TaskEnding):
                return run
            ending = self._ending_of(run)
            result = await traced_aexecute(self.provider, ending, *run.arguments())
        except BaseException as error:
            # The claim may have succeeded although the caller was cancelled while a thread made it.
            for each in opened:
                if not isinstance(each, CallDelivery):
                    continue
                if isinstance(error, GeneratorExit):
                    # The coroutine is being closed, and must not await: on this thread, then.
                    abandon_delivery(each)
                else:
                    await in_time(partial(abandon_delivery, each))
            raise
        return await in_time(partial(self._close, run, result))

    # -- before the call -----------------------------------------------------------------------

    def _defer_unclaimed(self, call: TaskCall) -> TaskEnding:
        """Defer a delivery for which no thread was free to claim the key."""
        run = self._new_delivery(call)
        return (
            run
            if isinstance(run, TaskEnding)
            else self._defer(run, TaskGate.STORE, _store_down_error())
        )

    def _new_delivery(self, call: TaskCall) -> CallDelivery | TaskEnding:
        """The state of a delivery whose call is valid; the ending of an invalid one."""
        call_id = call.call_id or str(uuid.uuid4())
        correlation_id = call.correlation_id or call.carried.correlation_id or call_id
        try:
            return self._checked(call, call_id, correlation_id)
        except ProviderBadRequestError as error:
            return self._refused(call, correlation_id, error)

    def _open(self, call: TaskCall) -> CallDelivery | TaskEnding:
        """Check the call and claim its key; an ending when there is nothing to call."""
        run = self._new_delivery(call)
        if isinstance(run, TaskEnding):
            return run
        # Given up by an earlier delivery that could not write its letter: the letter is all that is
        # left to do.
        given_up = call.carried.given_up
        if given_up is not None:
            error = error_of(given_up.reason_code, given_up.message, given_up.http_status)
            return self._bury(run, error, given_up)
        # Counted over all deliveries: without this, each delivery of the queue would begin with a
        # full set of attempts.
        if call.carried.attempts >= self._policy.max_attempts:
            spent = f"all {call.carried.attempts} attempts were made before"
            return self._bury(run, ProviderDependencyError(spent, never_sent=True))
        try:
            return self._claimed(run)
        except StoreError as error:
            away = _store_down_error()
            away.__cause__ = error
            abandon_delivery(run)
            return self._defer(run, TaskGate.STORE, away)
        except BaseException:  # a soft time limit of the queue may be raised right here
            abandon_delivery(run)
            raise

    def _checked(self, call: TaskCall, call_id: str, correlation_id: str) -> CallDelivery:
        given = None if call.idempotency_key is None else check_key(call.idempotency_key)
        budget, clock = self.options.timeout_budget_seconds, self._clock()
        began_at = clock.now()
        context = ProviderExecutionContext(
            correlation_id=correlation_id,
            task_name=self.task_name,
            deadline=None if budget is None else began_at + budget,
            timeout_budget_seconds=budget,
            attempt_offset=call.carried.attempts,
            traceparent=call.traceparent,
        )
        validate_call(call.tenant_id, call.campaign_id, call.operation, call.payload, context)
        # After the checks: a lane is made for each tenant that is named, and a wrong name must not
        # make one.
        lane = self._runtime.lane(call.tenant_id).key
        # A copy of our own: a provider that changes its payload must not change dead letter or key.
        call = replace(call, payload=plain_json(call.payload))
        request_digest = fingerprint(
            lane,
            call.campaign_id,
            call.operation,
            call.payload,
            secret_names=self._secret_names,
            volatile_names=self._volatile_names,
        )
        key = context.idempotency_key = given or self._computed_key(request_digest, call_id)
        guard = new_claim(self.provider.store, call.tenant_id, key, request_digest, call_id)
        names = LetterIdentity(self.task_name, call_id, key, correlation_id)
        return CallDelivery(call, lane, names, context, guard, clock, began_at)

    def _computed_key(self, request_digest: str, call_id: str) -> str:
        if self.options.computed_keys == ComputedKeys.REQUEST:
            return request_digest
        return message_key(request_digest, call_id)

    def _claimed(self, run: CallDelivery) -> CallDelivery | TaskEnding:
        guard, options, keep = run.guard, self.options, self._keep(run)
        claim = KeyClaimResult(ClaimState.MINE)
        if options.idempotent:
            claim = self._claim_key(run, keep)
        is_open = claim.state in {ClaimState.MINE, ClaimState.RUNNING}
        if run.call.is_repeated and is_open:
            # Asked after the claim: another delivery writes its letter before it frees the key.
            letter = self._own_letter(run)
            if letter is not None:
                return self._buried_before(run, letter)
        if run.call.is_redelivered and is_open:
            mark = guard.count_redelivery(options.max_redeliveries, max(keep, _REDELIVERY_MARK_TTL))
            if mark is None:
                return self._lost_too_often(run)
            # A key that is in use elsewhere may belong to a lost worker: the mark stays.
            run.mark = mark if claim.state is ClaimState.MINE else None
        return run if claim.state is ClaimState.MINE else self._end_unclaimed(run, claim)

    def _claim_key(self, run: CallDelivery, keep: float) -> KeyClaimResult:
        guard, lease = run.guard, self.lease_seconds
        # An ending that waits on disk goes first: claimed without it, the call would be made a
        # second time.
        ending = self._runtime.recorder.find_ending(guard.tenant_id, guard.key)
        if ending is not None:
            ending.write_to(guard.store)
        dead = OWNER_LOCKS.dead_owner(guard.name) if run.call.is_redelivered else None
        run.held = OWNER_LOCKS.acquire(guard.name, guard.owner, lease)
        lease_over_at = self._boot_clock() + lease
        claim = guard.claim(lease, keep)
        taken_from = claim.taken_from
        # The lease still runs, but its owner is known to be dead on this very machine: waiting for
        # the end would delay the call for nothing.
        if claim.state is ClaimState.RUNNING and dead is not None:
            claim = guard.claim_after(dead, lease, keep)
            taken_from = dead
        if claim.state is ClaimState.MINE:
            run.is_ours, run.lease_over_at = True, lease_over_at
            # Asked before each further attempt: after the lease, another delivery may be making the
            # call.
            run.context.may_continue = lambda: self._boot_clock() < lease_over_at
            if taken_from:
                run.is_outcome_unknown_before = True
                names = run.names
                emit(
                    "key.taken_over",
                    key=run.lane,
                    call_id=names.correlation_id,
                    idempotency_key=names.idempotency_key,
                )
        run.lease_ends_at = claim.lease_expires_at
        return claim

    def _own_letter(self, run: CallDelivery) -> DeadLetter | None:
        """The letter with which another delivery of this message has given the call up."""
        own = dead_letter_id(run.names.call_id, run.call.carried.redrive_count)
        found = run.guard.store.letters(ids=[own], limit=1)
        return found[0].letter if found else None

    def _buried_before(self, run: CallDelivery, letter: DeadLetter) -> TaskEnding:
        """End a message whose call has a dead letter. A redrive makes the call again, under another
        id.
        """
        abandon_delivery(run)
        error = error_of(letter.reason_code, letter.error_message, letter.http_status)
        result = run.not_called(error)
        result.replayed = True
        result.dead_letter = run.letter = letter
        return self._ended(run, DeliveryDecision(TaskEnd.DEAD), result)

    def _lost_too_often(self, run: CallDelivery) -> TaskEnding:
        abandon_delivery(run)
        times = self.options.max_redeliveries + 1
        error = ProviderInternalError(f"its worker was lost {times} times during this call")
        return self._bury(run, error, lost=times)

    def _end_unclaimed(self, run: CallDelivery, claim: KeyClaimResult) -> TaskEnding:
        if claim.state is ClaimState.REPLAY:
            kept = self._result_storage.read(run.guard, claim)
            if isinstance(kept, ProviderError):
                return self._failed_early(run, kept, replayed=True)
            return self._ended(run, DeliveryDecision(TaskEnd.REPLAYED), run.not_called(None, kept))
        if claim.state is ClaimState.RUNNING:
            busy = ProviderDependencyError(
                "another call under this idempotency key is still under way", never_sent=True
            )
            return self._defer(run, TaskGate.DUPLICATE, busy)
        is_conflict = claim.state is ClaimState.CONFLICT
        error = conflict() if is_conflict else earlier_failure(claim)
        return self._failed_early(run, error, replayed=not is_conflict)

    def _keep(self, run: CallDelivery) -> float:
        """Seconds for which the key is remembered."""
        is_given = run.call.idempotency_key is not None
        return self.options.keep_key_seconds if is_given else self.options.computed_key_memory

    @property
    def lease_seconds(self) -> float:
        """How long a call holds its key: longer than any call, which the queue ends before."""
        return (self._budget() or _UNLIMITED_BUDGET) + self.options.lease_grace_seconds

    def _budget(self) -> float | None:
        """Seconds for one delivery, what its store takes included."""
        return self.options.timeout_budget_seconds or self._runtime.options.timeout_budget_seconds

    def _clock(self) -> Clock:
        return self._runtime.options.clock or current_clock()

    # -- ends without a call -------------------------------------------------------------------

    def _refused(self, call: TaskCall, correlation_id: str, error: ProviderError) -> TaskEnding:
        """Fail an invalid call. Its values fit into no row, so it is only logged."""
        lane = LaneKey(str(call.tenant_id), self._runtime.provider_name, self._runtime.capability)
        ending = TaskEnding(TaskEnd.FAILED, not_called(error, correlation_id))
        log_ending(self.task_name, call, lane, ending)
        return ending

    def _failed_early(
        self, run: CallDelivery, error: ProviderError, *, replayed: bool
    ) -> TaskEnding:
        if error.reason_code in self.options.bury_on and not replayed:
            return self._bury(run, error)
        result = run.not_called(error)
        result.replayed = replayed
        return self._ended(run, DeliveryDecision(TaskEnd.FAILED), result)

    def _defer(self, run: CallDelivery, gate: TaskGate, error: ProviderError) -> TaskEnding:
        """Defer a delivery whose gate gives no time: soon again, and then less and less often."""
        may_wait = gate in self.options.defer_on and self.options.max_deferrals > 0
        if may_wait:
            attempts, moment = run.call.carried.attempts, self._inputs(run.call)
            verdict = decide_deferral(gate, 0.0, attempts, self.options, moment)
            if verdict is not None:
                return self._ended(run, verdict, run.not_called(error))
        if gate is TaskGate.DUPLICATE and not (may_wait and run.call.may_wait):
            # No dead letter: the delivery that holds the key makes the call.
            return self._ended(run, DeliveryDecision(TaskEnd.FAILED), run.not_called(error))
        return self._bury(run, error)

    def _bury(
        self,
        run: CallDelivery,
        error: ProviderError,
        end: FinalFailure | None = None,
        lost: int = 0,
    ) -> TaskEnding:
        """Write the dead letter of a call that this delivery did not make.

        Each worker that was ``lost`` had begun an attempt; how many it ended is not known.
        """
        result = run.not_called(error)
        result.attempts = lost
        letter = self._letter(run, end or self._given_up(run, result))
        if self._runtime.recorder.write_now(RecordBatch([], [letter])):
            result.dead_letter = letter
        return self._ended(run, DeliveryDecision(TaskEnd.DEAD), result)

    # -- after the call ------------------------------------------------------------------------

    def _ending_of(self, run: CallDelivery) -> OnFailure:
        def ending(result: ProviderExecutionResult) -> DeadLetter | AttemptOutcome | None:
            run.verdict = verdict = decide_ending(
                result,
                self._table[result.reason_code or ""],
                self._policy.backoff,
                self._policy.max_attempts,
                self.options,
                self._inputs(run.call),
            )
            # Checked only if this delivery would report a failure: a success is a fact, whoever
            # holds the key by now.
            if verdict.end in {TaskEnd.DEAD, TaskEnd.FAILED} and self._is_overtaken(run):
                return None
            if verdict.end is TaskEnd.DEAD:
                return self._letter(run, self._given_up(run, result))
            return AttemptOutcome.RETRY if verdict.end in {TaskEnd.DEFER, TaskEnd.REQUEUE} else None

        return ending

    def _is_overtaken(self, run: CallDelivery) -> bool:
        """Whether another delivery holds the key by now, which then decides how the call ended.

        It happens when the process was stopped, or the machine slept, for longer than the lease.
        """
        guard = run.guard
        is_over = self._boot_clock() >= run.lease_over_at
        is_over = is_over or guard.store.now() + _LEASE_MARGIN >= run.lease_ends_at
        if not run.is_ours or not is_over:
            return False
        try:
            claim = guard.claim(self.lease_seconds, self._keep(run))
        except StoreError:
            return False  # a dead letter too many is recognized by its key; a missing one is lost
        if claim.state is ClaimState.MINE:
            return False
        run.is_ours, run.overtaken_by = False, claim
        emit("key.lost", key=run.lane)
        return True

    def _close(self, run: CallDelivery, result: ProviderExecutionResult) -> TaskEnding:
        if run.overtaken_by is not None:
            return self._end_unclaimed(run, run.overtaken_by)
        # Without a time limit: no other process writes it later, and without it a call that was
        # made would be made again.
        work = partial(self._settled, run, result)
        return PROVIDER_BUDGET.run_unlimited(work) if result.attempts else work()

    def _settled(self, run: CallDelivery, result: ProviderExecutionResult) -> TaskEnding:
        try:
            settle(run, result, self._table, self._result_storage, self._runtime.recorder)
            return self._ended(run, run.verdict, result)
        except BaseException:
            # The lock must not outlive the delivery, whatever storing its end raised.
            run.let_go()
            raise

    # -- parts ---------------------------------------------------------------------------------

    def _ended(
        self, run: CallDelivery, verdict: DeliveryDecision, result: ProviderExecutionResult
    ) -> TaskEnding:
        release_delivery(run)
        result.is_outcome_unknown_before = run.is_outcome_unknown_before
        is_undelivered = run.letter is not None and result.dead_letter is None
        carried, seconds = verdict.carried, verdict.seconds
        # The dead letter could not be written anywhere: the message goes back with what is to be
        # written, and is tried again.
        if is_undelivered:
            carried = msgspec.structs.replace(run.call.carried, given_up=run.end)
            seconds = min(_LETTER_RETRY_DELAY, self._longest_deferral())
        carried = msgspec.structs.replace(
            carried,
            correlation_id=run.names.correlation_id,
            is_repeated=run.call.is_repeated or verdict.gate is TaskGate.DUPLICATE,
        )
        ending = TaskEnding(
            verdict.end,
            result,
            run.names.idempotency_key,
            seconds,
            verdict.gate,
            carried,
            run.letter,
            is_undelivered,
        )
        log_ending(self.task_name, run.call, run.lane, ending)
        return ending

    def _inputs(self, call: TaskCall) -> DecisionInputs:
        return DecisionInputs(
            call.carried, self._wall(), self._dice(), call.may_wait, self._longest_deferral()
        )

    def _longest_deferral(self) -> float:
        own = self.options.longest_deferral_seconds
        return own if self._longest_wait is None else min(own, self._longest_wait())

    def _given_up(self, run: CallDelivery, result: ProviderExecutionResult) -> FinalFailure:
        retryable = self._table[result.reason_code or ""].retries
        return run.given_up(result, self._wall(), retryable=retryable)

    def _letter(self, run: CallDelivery, end: FinalFailure) -> DeadLetter:
        largest, names = self.options.max_payload_bytes, self._secret_names
        kept = kept_payload(run.call.payload, largest, names)
        run.end = end
        run.letter = letter = new_letter(run.call, run.lane, run.names, end, kept)
        return letter


def _store_down_error() -> ProviderDependencyError:
    return ProviderDependencyError(
        "the store that keeps the idempotency keys does not answer", never_sent=True
    )
