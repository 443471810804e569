"""``ProviderBase``: guarded calls of an external service, as a class to derive from.

Subclass it, name the provider and the capability, write ``_execute_impl``; call :meth:`execute` or
:meth:`aexecute`. Everything around the call is here: quota, circuit breaker, cooldown, retries, a
deadline, a row per attempt, health.
"""

from __future__ import annotations

import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from ergon_framework.core.provider_call import RetryBudget
from ergon_framework.errors import WiringError
from ergon_framework.ports.clock import Clock
from ergon_framework.ports.context import current_unit
from ergon_framework.ports.providerstore import LaneHealth, LaneKey, ProviderStore
from ergon_framework.ports.transaction import CURRENT
from ergon_framework.ports.unit_of_work import OBSERVERS, RUNNING
from ergon_framework.providers.circuit_breaker import CircuitBreaker
from ergon_framework.providers.decisions import DecisionOptions
from ergon_framework.providers.execution import (
    OnFailure,
    ProviderExecutionContext,
    ProviderExecutionResult,
    refusing_renamed,
)
from ergon_framework.providers.mapping import Rule
from ergon_framework.providers.pipeline import drivers
from ergon_framework.providers.pipeline.fast_path import FastPathCall, try_fast_path
from ergon_framework.providers.pipeline.options import ProviderOptions
from ergon_framework.providers.pipeline.request import (
    attempt_body,
    inherit_context,
)
from ergon_framework.providers.pipeline.runtime import ProviderRuntime, build_runtime
from ergon_framework.providers.quota import QuotaPolicy
from ergon_framework.providers.retention import DEFAULT_RETENTION
from ergon_framework.providers.retry import RetryPolicy
from ergon_framework.providers.telemetry import observed_attempts, traced_aexecute, traced_execute
from ergon_framework.telemetry.tracing import is_traced

# Each attempt gets a copy of the payload and a context of its own, so no code changes these two.
_NO_PAYLOAD: dict[str, Any] = {}
_NO_CONTEXT = ProviderExecutionContext()


class ProviderBase(ABC):
    """A provider: what it is called, what it can, and how one call is made."""

    provider_name: str
    capability: str
    error_rules: Sequence[Rule] = ()
    """How this provider's own exceptions map to canonical ones; asked before the built-in rules."""

    @refusing_renamed
    def __init__(
        self,
        *,
        retry_policy: RetryPolicy | None = None,
        circuit_breaker: CircuitBreaker | Literal[False] | None = None,
        quota: QuotaPolicy | None = None,
        store: str | ProviderStore | None = None,
        timeout_budget_seconds: float | None = 60.0,
        attempt_timeout_seconds: float | None = None,
        isolate: bool = False,
        durable: bool = False,
        parent_breaker: CircuitBreaker | None = None,
        retry_budget: RetryBudget | None = None,
        breaker_scope: Literal["attempt", "execution"] = "attempt",
        quota_unit: Literal["execution", "attempt"] = "execution",
        quota_fails_open: bool = False,
        decisions: DecisionOptions | None = None,
        default_cooldown_seconds: float = 1.0,
        max_cooldown_seconds: float = 3600.0,
        max_lanes: int = 10_000,
        keep_records_seconds: float | None = DEFAULT_RETENTION,
        spill: str | Path | None = None,
        clock: Clock | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Everything is optional; without a store all state is in memory and of this process.

        ``timeout_budget_seconds`` bounds a whole call, waits included, and
        ``attempt_timeout_seconds`` one attempt. Both are handed to ``_execute_impl``, which
        keeps to them; ``isolate`` does not trust it and leaves a call behind that does not return.
        ``durable`` writes the rows of a call before it returns. ``circuit_breaker=False`` does
        without one.
        """
        options = ProviderOptions(
            retry_policy=retry_policy or RetryPolicy(),
            circuit_breaker=CircuitBreaker() if circuit_breaker is None else circuit_breaker,
            quota=quota,
            store=store,
            timeout_budget_seconds=timeout_budget_seconds,
            attempt_timeout_seconds=attempt_timeout_seconds,
            isolate=isolate,
            durable=durable,
            parent_breaker=parent_breaker,
            retry_budget=retry_budget,
            breaker_scope=breaker_scope,
            quota_unit=quota_unit,
            quota_fails_open=quota_fails_open,
            decisions=decisions or DecisionOptions(),
            default_cooldown_seconds=default_cooldown_seconds,
            max_cooldown_seconds=max_cooldown_seconds,
            max_lanes=max_lanes,
            keep_records_seconds=keep_records_seconds,
            spill=spill,
            clock=clock,
            wall=wall,
        )
        is_async = inspect.iscoroutinefunction(self._execute_impl)
        name, capability = _named(self, "provider_name"), _named(self, "capability")
        self._runtime = build_runtime(
            name, capability, options, self.error_rules, is_async=is_async
        )

    @abstractmethod
    def _execute_impl(
        self,
        *,
        tenant_id: str,
        campaign_id: str | None,
        operation: str,
        payload: dict[str, Any],
        context: ProviderExecutionContext,
    ) -> dict[str, Any] | Coroutine[Any, Any, dict[str, Any]]:
        """Make one attempt and return its data; raise when it failed. May be ``async def``.

        ``context.attempt_timeout_seconds`` is what the attempt may take: give it to the client.
        Switch off the client's own retries: they would multiply with ours.
        """

    def execute(
        self,
        *,
        tenant_id: str,
        campaign_id: str | None = None,
        operation: str,
        payload: dict[str, Any] = _NO_PAYLOAD,
        context: ProviderExecutionContext = _NO_CONTEXT,
    ) -> ProviderExecutionResult:
        """Make one guarded call. Failures are in the result; a wrong argument raises at once."""
        if is_traced():
            call = (tenant_id, campaign_id, operation, payload, context)
            return traced_execute(self, None, *call)
        return self.execute_delivery(None, tenant_id, campaign_id, operation, payload, context)

    async def aexecute(
        self,
        *,
        tenant_id: str,
        campaign_id: str | None = None,
        operation: str,
        payload: dict[str, Any] = _NO_PAYLOAD,
        context: ProviderExecutionContext = _NO_CONTEXT,
    ) -> ProviderExecutionResult:
        """Execute a call on asyncio. An ``_execute_impl`` that is not async runs on a thread."""
        if is_traced():
            call = (tenant_id, campaign_id, operation, payload, context)
            return await traced_aexecute(self, None, *call)
        return await self.aexecute_delivery(
            None, tenant_id, campaign_id, operation, payload, context
        )

    def execute_delivery(
        self,
        on_failure: OnFailure | None,
        tenant_id: str,
        campaign_id: str | None,
        operation: str,
        payload: dict[str, Any],
        context: ProviderExecutionContext,
    ) -> ProviderExecutionResult:
        """As :meth:`execute`, for a task that may bury what fails: ``on_failure`` says how."""
        runtime = self._ready()
        lane = runtime.checked_lane(tenant_id, campaign_id, operation, payload, context)
        if runtime.is_async:
            drivers.refuse_inside_loop()
        who = (campaign_id, operation)
        # Outside of any unit nobody is asked: these two say so at once.
        around = None if CURRENT.get() is None and RUNNING.get() is None else current_unit()
        if around is not None:
            context = inherit_context(context, around, lane.key, campaign_id, operation, payload)
        call = None
        # A copy of another dict may raise, which must not happen once quota was taken.
        if runtime.has_fast_path and runtime.is_plain and type(payload) is dict:
            # A call that may be buried needs a row to bury, and a refusal of the fast path writes
            # none.
            may_refuse = on_failure is None
            fast = try_fast_path(runtime, lane, who, context, may_wait=True, may_refuse=may_refuse)
            if isinstance(fast, FastPathCall):
                attempt = self._observed(runtime) if OBSERVERS else self._execute_impl
                request = (attempt, tenant_id, campaign_id, operation, payload)
                return drivers.run_fast(runtime, fast, request, on_failure)
            if isinstance(fast, ProviderExecutionResult):
                return fast
            call = fast
        attempt = self._observed(runtime) if OBSERVERS else self._execute_impl
        request = (attempt, tenant_id, campaign_id, operation, payload)
        body = attempt_body(request, is_retried=runtime.policy.max_attempts > 1)
        call = call or runtime.new_call(lane, who, context)
        return drivers.run_call(runtime, call, body, on_failure)

    async def aexecute_delivery(
        self,
        on_failure: OnFailure | None,
        tenant_id: str,
        campaign_id: str | None,
        operation: str,
        payload: dict[str, Any],
        context: ProviderExecutionContext,
    ) -> ProviderExecutionResult:
        """As :meth:`aexecute`, for a task that may bury what fails."""
        runtime = self._ready()
        lane = runtime.checked_lane(tenant_id, campaign_id, operation, payload, context)
        who = (campaign_id, operation)
        around = None if CURRENT.get() is None and RUNNING.get() is None else current_unit()
        if around is not None:
            context = inherit_context(context, around, lane.key, campaign_id, operation, payload)
        call = None
        if runtime.has_fast_path and runtime.is_async and type(payload) is dict:
            may_wait, may_refuse = runtime.is_local, on_failure is None
            fast = try_fast_path(
                runtime, lane, who, context, may_wait=may_wait, may_refuse=may_refuse
            )
            if isinstance(fast, FastPathCall):
                attempt = self._observed(runtime) if OBSERVERS else self._execute_impl
                request = (attempt, tenant_id, campaign_id, operation, payload)
                return await drivers.arun_fast(runtime, fast, request, on_failure)
            if isinstance(fast, ProviderExecutionResult):
                return fast
            call = fast
        attempt = self._observed(runtime) if OBSERVERS else self._execute_impl
        request = (attempt, tenant_id, campaign_id, operation, payload)
        body = attempt_body(request, is_retried=runtime.policy.max_attempts > 1)
        call = call or runtime.new_call(lane, who, context)
        return await drivers.arun_call(runtime, call, body, on_failure)

    def _observed(self, runtime: ProviderRuntime) -> Callable[..., Any]:
        return observed_attempts(
            self._execute_impl,
            runtime.provider_name,
            runtime.capability,
            is_async=runtime.is_async,
        )

    # -- beside the calls ----------------------------------------------------------------------

    @property
    def circuit_breaker(self) -> CircuitBreaker | None:
        """The breaker; its state is the worst of all tenants'."""
        breaker = self._ready().options.circuit_breaker
        return None if breaker is False else breaker

    @property
    def runtime(self) -> ProviderRuntime:
        """The parts that its calls are made with, for the runner of its tasks."""
        return self._ready()

    @property
    def store(self) -> ProviderStore:
        """Where its state is kept."""
        return self._ready().store

    def health(self, tenant_id: str) -> list[LaneHealth]:
        """How this provider stands for a tenant, rows that are on their way included."""
        runtime = self._ready()
        runtime.recorder.flush(5.0)
        mine = LaneKey(tenant_id, runtime.provider_name, runtime.capability)
        lanes, now = runtime.store.health(tenant_id), runtime.store.now()
        return [each.observed(now) for each in lanes if each.key == mine]

    def flush(self, timeout: float = 30.0) -> bool:
        """Wait until every row so far is written; whether that was so in time."""
        return self._ready().recorder.flush(timeout)

    def close(self) -> None:
        """Write what is on its way and give back what was taken ahead. Closing twice is fine."""
        self._ready().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _ready(self) -> ProviderRuntime:
        try:
            return self._runtime
        except AttributeError:
            raise WiringError(
                f"{type(self).__name__} has an __init__ that does not call super().__init__()",
                remedy="call it, with retry_policy, circuit_breaker, quota or store if need be",
            ) from None


def _named(provider: ProviderBase, attribute: str) -> str:
    value = getattr(provider, attribute, None)
    if isinstance(value, str) and 0 < len(value) <= 80 and value.isprintable():
        return value
    raise WiringError(
        f"{type(provider).__name__}.{attribute} must be a text of 1 to 80 printable characters,"
        f" not {value!r}",
        remedy=f"set it on the class, or before super().__init__(): {attribute} = '...'",
    )
