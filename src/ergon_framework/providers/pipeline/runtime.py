"""A provider's parts, put together once when it is built."""

from __future__ import annotations

import copy
import itertools
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from ergon_framework.core.provider_call import GuardRule, Scope
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.engine.clocks import current_clock
from ergon_framework.ports.providerstore import (
    ALL_TENANTS,
    AttemptOutcome,
    AttemptRow,
    DeadLetter,
    LaneKey,
    ProviderStore,
    RecordBatch,
)
from ergon_framework.providers.circuit_breaker import CircuitBreaker, steady
from ergon_framework.providers.decisions import decisions
from ergon_framework.providers.errors import ProviderBadRequestError, ProviderError
from ergon_framework.providers.execution import (
    OnFailure,
    ProviderExecutionContext,
    ProviderExecutionResult,
)
from ergon_framework.providers.mapping import Rule
from ergon_framework.providers.mapping.rules import canonical_or_rebuilt
from ergon_framework.providers.pipeline.guarded_call import GuardedCall, milliseconds
from ergon_framework.providers.pipeline.lanes import LaneCache, ProviderLane
from ergon_framework.providers.pipeline.options import CallPolicy, ProviderOptions, check_options
from ergon_framework.providers.quota import QuotaLimiter
from ergon_framework.providers.recorder import CLOSE_TIMEOUT, recorder_of
from ergon_framework.providers.retry import RetryBudgetTracker
from ergon_framework.providers.shared_circuit import Circuit
from ergon_framework.providers.store_urls import open_store
from ergon_framework.providers.stores.memory import MemoryProviderStore
from ergon_framework.providers.telemetry import emit
from ergon_framework.providers.threads import (
    MAX_CALL_THREADS,
    BoundedThreads,
    IsolatedThreads,
    offload_threads,
)
from ergon_framework.providers.validation import MAX_INTEGER, validate_call, validate_request

MAX_OPERATIONS = 1000
"""Operations of a lane that are remembered, as a program may make up new names."""

NEVER_OPENS = 2**31
"""Failures in a row that open no circuit."""


_THREE_DIGITS = [f"{number:03x}" for number in range(16**3)]


class RowIds:
    """Generates ids that are unique without coordination, and cost next to nothing."""

    def __init__(self) -> None:
        self.renew()
        os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        """A process of its own: after a fork the numbers would repeat."""
        # A prefix and twelve digits that count up, joined without a line of Python: to format a
        # number takes as long as half of a row.
        parts = itertools.product([os.urandom(12).hex()], *[_THREE_DIGITS] * 4)
        self._ids = map("".join, parts)

    def next_id(self) -> str:
        """The next id."""
        return next(self._ids)


_row_ids = RowIds()


class ProviderRuntime:
    """The parts of one provider."""

    def __init__(
        self,
        name: str,
        capability: str,
        options: ProviderOptions,
        rules: Sequence[Rule],
        *,
        is_async: bool,
    ) -> None:
        self.provider_name = name
        self.capability = capability
        self.options = options
        self.is_async = is_async
        self.is_plain = not options.isolate and not is_async
        """Whether an attempt is nothing but a call in this thread."""
        self.has_fast_path = options.retry_budget is None and options.circuit_breaker is not False
        """Whether a call may go the short way, which counts nothing."""
        self.store = _store_of(options)
        self.is_local = isinstance(self.store, MemoryProviderStore)
        """Whether the store answers without waiting for anything."""
        self.recorder = recorder_of(self.store, spill=options.spill)
        self._writer = self.recorder.writer
        self._keep_records(options.keep_records_seconds)
        self.isolation = IsolatedThreads()
        self.steps = offload_threads(self.store)
        """Threads for what an event loop must not wait for: the store."""
        self.calls = BoundedThreads("ergon-call", MAX_CALL_THREADS)
        """And for attempts that are not async."""
        self.retries = RetryBudgetTracker(options.retry_budget)
        self._breaker = options.circuit_breaker or CircuitBreaker(failure_threshold=NEVER_OPENS)
        self._parent = self._parent_circuit()
        self.lanes = LaneCache(self._new_lane, self._breaker.forget, options.max_lanes)
        self.policy = _call_policy(options, rules, self.retries, self.store)
        renew_after_fork(self)

    def _keep_records(self, seconds: float | None) -> None:
        """Keep records in a store as long as the provider with the longest retention asks for."""
        retention = self.recorder.retention
        known = retention.keep
        is_longer = seconds is None or (known is not None and seconds > known)
        if is_longer or not retention.is_said:
            retention.keep, retention.is_said = seconds, True

    def renew(self) -> None:
        """After a fork, in the child: locks and counts of its own."""
        self.lanes.renew()
        self.retries.renew()
        self.isolation.renew()

    def of_other_colour(self) -> ProviderRuntime:
        """A runtime for async attempts if this one is plain, or the reverse. Circuits, quotas and
        rows are shared.
        """
        other = copy.copy(self)
        other.is_async = not self.is_async
        other.is_plain = not self.options.isolate and not other.is_async
        return other

    def checked_lane(
        self,
        tenant_id: str,
        campaign_id: str | None,
        operation: str,
        payload: dict[str, Any],
        context: ProviderExecutionContext,
    ) -> ProviderLane:
        """The lane of a call, which is refused when something of it is wrong.

        What is the same in all calls is checked once: a lane that is there has a tenant that is
        none too long, and knows the operations of its calls.
        """
        try:
            lane = self.lanes.get(tenant_id)
            is_known = lane is not None and operation in lane.operations
        except TypeError:  # a name that is no text
            lane, is_known = None, False
        if lane is not None and is_known:
            validate_request(campaign_id, payload, context)
            # Looked up once: what another thread drops meanwhile is as good as a moment ago.
            return lane if self._writer.moved is None else self.lane(tenant_id)
        validate_call(tenant_id, campaign_id, operation, payload, context)
        lane = self.lane(tenant_id)
        if len(lane.operations) < MAX_OPERATIONS:
            lane.operations.add(operation)
        return lane

    def lane(self, tenant_id: str) -> ProviderLane:
        """What this tenant's calls share; refused when the store was moved elsewhere.

        Records that are written here would be missing where they are looked for.
        """
        moved = self.recorder.moved
        if moved is not None:
            raise type(moved)(moved.message, remedy=moved.remedy, details=moved.details)
        lane = self.lanes.get(tenant_id)
        if lane is None:
            if tenant_id == ALL_TENANTS:
                raise ProviderBadRequestError(
                    f"tenant_id must not be {ALL_TENANTS!r}: that stands for all tenants",
                    never_sent=True,
                    details={"path": "tenant_id"},
                )
            lane = self.lanes.of(LaneKey(tenant_id, self.provider_name, self.capability))
        return lane

    def new_call(
        self,
        lane: ProviderLane,
        who: tuple[str | None, str],
        context: ProviderExecutionContext,
    ) -> GuardedCall:
        """A call that is about to begin; ``who`` is the campaign and the operation."""
        self.retries.began()
        return GuardedCall(self.policy, lane, who, context)

    def conclude(
        self,
        result: ProviderExecutionResult,
        rows: list[AttemptRow],
        on_failure: OnFailure | None = None,
    ) -> None:
        """Hand the rows on, and the dead letter if ``on_failure`` has one.

        A call that ``on_failure`` lets go on later has not failed: its last attempt is retried.

        A letter is on disk together with the last row before this returns, or the result says that
        there is none. With ``durable`` that holds for every call.
        """
        end = None if on_failure is None or result.success else on_failure(result)
        if isinstance(end, DeadLetter):
            last = rows[-1]._replace(outcome=AttemptOutcome.DEAD_LETTER.value)
            if self._is_written(result, RecordBatch([*rows[:-1], last], [end])):
                result.dead_letter = end
                return
            # No letter was written: the rows go the usual way, and the result says so.
        elif end is AttemptOutcome.RETRY:
            rows = _rows_put_off(rows)
        if not self.options.durable or not self._is_written(result, RecordBatch(rows)):
            self.recorder.add(rows)

    def _is_written(self, result: ProviderExecutionResult, batch: RecordBatch) -> bool:
        """Write it before anything else; the call takes as much longer."""
        now = self.policy.clock().now
        began_at = now()
        is_written = self.recorder.write_now(batch)
        result.duration_ms += (now() - began_at) * 1000
        return is_written

    def close(self) -> None:
        """Return quota that was reserved ahead, and flush queued rows."""
        for lane in self.lanes.all():
            if lane.quota is not None:
                lane.quota.give_back_block()
        self.recorder.flush(CLOSE_TIMEOUT)

    def _new_lane(self, key: LaneKey) -> ProviderLane:
        policy = self.options.quota
        own = self._breaker.circuit(self.store, key, self.options.timeout_budget_seconds, emit)
        circuits = (own,) if self._parent is None else (own, self._parent)
        return ProviderLane(
            key, circuits, None if policy is None else QuotaLimiter(self.store, key, policy)
        )

    def _parent_circuit(self) -> Circuit | None:
        parent = self.options.parent_breaker
        if parent is None:
            return None
        key = LaneKey(ALL_TENANTS, self.provider_name, self.capability)
        return parent.circuit(self.store, key, self.options.timeout_budget_seconds, emit)


def build_runtime(
    name: str, capability: str, options: ProviderOptions, rules: Sequence[Rule], *, is_async: bool
) -> ProviderRuntime:
    """Check the options, and put the parts together."""
    check_options(options, is_async=is_async)
    return ProviderRuntime(name, capability, options, rules, is_async=is_async)


def _rows_put_off(rows: list[AttemptRow]) -> list[AttemptRow]:
    """The rows of a call that is put off: its last attempt was not the last one."""
    return [
        row._replace(outcome=AttemptOutcome.RETRY.value)
        if row.attempt_number > 0 and row.outcome == AttemptOutcome.FAILED
        else row
        for row in rows
    ]


def _store_of(options: ProviderOptions) -> ProviderStore:
    if options.store is not None:
        return open_store(options.store)
    return MemoryProviderStore(clock=steady(options.clock, options.wall))


def _wall_of(options: ProviderOptions, store: ProviderStore) -> Callable[[], float]:
    """What rows are stamped with: the clock of a store in memory, which counts the hour by its own.

    Virtual time is its own too; the last hour would otherwise have none of its attempts.
    """
    is_own = options.store is None and options.wall is time.time
    return store.now if is_own else options.wall


def _call_policy(
    options: ProviderOptions,
    rules: Sequence[Rule],
    retries: RetryBudgetTracker,
    store: ProviderStore,
) -> CallPolicy:
    policy, clock, wall = options.retry_policy, options.clock, _wall_of(options, store)
    known = tuple(rules)

    def mapped(error: Exception) -> ProviderError:
        return canonical_or_rebuilt(error, known, options.wall)

    return CallPolicy(
        guard=GuardRule(
            policy.rule,
            options.quota is not None,
            Scope(options.quota_unit),
            Scope(options.breaker_scope),
        ),
        table=decisions(options.decisions),
        canonical=mapped,
        clock=current_clock if clock is None else lambda: clock,
        wall=wall,
        max_attempts=min(policy.max_attempts, MAX_INTEGER),
        attempt_timeout=options.attempt_timeout_seconds,
        default_cooldown=options.default_cooldown_seconds,
        longest_cooldown=options.max_cooldown_seconds,
        fails_open=options.quota_fails_open,
        retries=retries,
        new_id=_row_ids.next_id,
        budget=options.timeout_budget_seconds,
        budget_ms=milliseconds(options.timeout_budget_seconds),
        is_stamped_by_store=wall is store.now,
    )
