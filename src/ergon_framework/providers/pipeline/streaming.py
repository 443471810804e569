"""Streams: a guarded call whose attempt gives items one after another.

Until its first item a stream is a call like any other: refused by closed gates, and tried again
when it fails. From then on it is one attempt that lasts until the last item. A failure ends it and
votes in the circuit; a caller who stops reading ends it as a success. Items that were given cannot
be taken back, so nothing is tried again after the first.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
)
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from ergon_framework.core.guard import Do
from ergon_framework.ports.context import current_unit
from ergon_framework.providers.errors import ProviderTimeoutError
from ergon_framework.providers.execution import ProviderExecutionContext, ProviderExecutionResult
from ergon_framework.providers.pipeline.drivers import (
    abandon,
    abegin,
    aconclude,
    afinish,
    apass_gate,
    give_up,
    pass_gate,
    step,
)
from ergon_framework.providers.pipeline.guarded_call import GuardedCall
from ergon_framework.providers.pipeline.request import AttemptBody, attempt_body, inherit_context
from ergon_framework.providers.telemetry import record_stream
from ergon_framework.providers.validation import validate_call
from ergon_framework.storage.deadlines import PROVIDER_BUDGET
from ergon_framework.telemetry.propagation import outgoing_metadata
from ergon_framework.telemetry.tracing import is_traced

if TYPE_CHECKING:
    from ergon_framework.providers.pipeline.runtime import ProviderRuntime

T = TypeVar("T")
END: Any = object()
"""What comes after the last item."""

Request = tuple[str, str | None, str, dict[str, Any], ProviderExecutionContext]
"""Tenant, campaign, operation, payload and context, as ``execute`` takes them."""


class Opened(NamedTuple):
    """A stream whose first item has come."""

    items: Any
    first: Any
    ends_at: float | None
    """When its attempt is over, by the call's clock."""


class StreamCall:
    """One guarded call of a function that yields its results."""

    def __init__(
        self,
        runtime: ProviderRuntime,
        opens: Callable[..., Any],
        first_of: Callable[[Any, ProviderExecutionContext], Any],
        request: Request,
    ) -> None:
        """``opens`` begins an attempt, and ``first_of`` gets its first item, or ``END``."""
        tenant_id, campaign_id, operation, payload, context = request
        text = validate_call(*request)
        lane = runtime.lane(tenant_id)
        around = current_unit()
        if around is not None:
            context = inherit_context(context, around, lane.key, campaign_id, operation, payload)
        what, is_retried = (tenant_id, campaign_id, operation), runtime.policy.max_attempts > 1
        self.runtime = runtime
        self.first_of = first_of
        self.body: AttemptBody = attempt_body(opens, *what, payload, text, is_retried=is_retried)
        self.call: GuardedCall = runtime.new_call(lane, (campaign_id, operation), context)
        self._lane, self._operation = lane.key, operation
        self._carrier = outgoing_metadata() if is_traced() else {}
        self.count = 0
        """Items that the caller has been given."""

    def begin_attempt(self) -> tuple[Any, ProviderExecutionContext]:
        """The iterator of a new attempt, and its context."""
        context = self.call.attempt_context()
        return self.body.again(context)(context=context), context

    def opened(self, items: Any, first: Any, context: ProviderExecutionContext) -> Opened:
        """A stream that has begun; its time runs since the attempt began."""
        limit = context.attempt_timeout_seconds
        ends_at = None if limit is None else self.call.attempt_started_at + limit
        return Opened(items, first, ends_at)

    def seconds_left(self, opened: Opened) -> float | None:
        """Of its attempt; an error when there are none."""
        if opened.ends_at is None:
            return None
        left = opened.ends_at - self.call.clock.now()
        if left <= 0:
            raise self.too_long(opened.ends_at - self.call.attempt_started_at)
        return left

    def too_long(self, seconds: float) -> ProviderTimeoutError:
        """The error of a stream that is cut off."""
        return ProviderTimeoutError(
            f"the stream was not at its end after {seconds:.3g} seconds, and {self.count} items"
        )

    def ended(self, *, is_abandoned: bool) -> Callable[[], Do]:
        """The step that notes its end: with the last item, or because nobody reads on."""
        data: dict[str, Any] = {"items": self.count}
        if is_abandoned:
            data["abandoned"] = True
        return partial(self.call.succeeded, data)

    def record(self, result: ProviderExecutionResult) -> None:
        """Write its span."""
        record_stream(self._lane, self._operation, self._carrier, result)

    def broken(self, error: Exception) -> Callable[[], Do]:
        """The step that notes a failure after the first item."""
        return partial(self.call.failed, error, may_retry=False)


# -- on a thread -----------------------------------------------------------------------------------


def stream(call: StreamCall) -> Generator[Any, None, None]:
    """The items of a stream; the call begins with the first that is asked for."""
    guarded, runtime = call.call, call.runtime
    try:
        opened = _open(call)
    except BaseException:
        give_up(runtime, guarded)
        raise
    if opened is not None:
        items, item, _ = opened
        while item is not END:
            call.count += 1
            try:
                yield item
            except BaseException:  # the caller reads no further, or throws something in here
                _leave(call, items)
                raise
            try:
                call.seconds_left(opened)
                item = next(items, END)
            except Exception as error:
                _close(items)
                _in_time(call, call.broken(error))
                break
            except BaseException:  # Ctrl-C while the provider was asked
                _leave(call, items)
                raise
        else:
            _in_time(call, call.ended(is_abandoned=False))
    _raise_failure(_conclude(call))


def _open(call: StreamCall) -> Opened | None:
    do = _in_time(call, call.call.begin)
    while do is not Do.END:
        if do is not Do.ATTEMPT:
            do = _in_time(call, partial(pass_gate, call.call, do))
            continue
        items: Any = None
        try:
            items, context = call.begin_attempt()
            first = call.first_of(items, context)
        except Exception as error:
            _close(items)
            do = _in_time(call, partial(call.call.failed, error))
            continue
        if first is not END:
            return call.opened(items, first, context)
        do = _in_time(call, call.ended(is_abandoned=False))
    return None


def _leave(call: StreamCall, items: Any) -> None:
    """Note that the caller reads no further."""
    _close(items)
    _in_time(call, call.ended(is_abandoned=True))
    _conclude(call)


def _in_time(call: StreamCall, work: Callable[[], T]) -> T:
    if call.runtime.is_local:
        return work()
    return PROVIDER_BUDGET.run_within(call.call.seconds_left, work)


def _conclude(call: StreamCall) -> ProviderExecutionResult:
    result, rows = _in_time(call, call.call.finish)
    _in_time(call, partial(call.runtime.conclude, result, rows))
    call.record(result)
    return result


def _close(items: Any) -> None:
    """Close an iterator that is not read to its end; what that raises changes nothing."""
    close = getattr(items, "close", None)
    if close is not None:
        with suppress(Exception):
            close()


def _raise_failure(result: ProviderExecutionResult) -> None:
    if not result.success:
        result.unwrap()


# -- on an event loop ------------------------------------------------------------------------------


async def astream(call: StreamCall) -> AsyncGenerator[Any, None]:
    """The same for asyncio."""
    guarded, runtime = call.call, call.runtime
    try:
        opened = await _aopen(call)
    except BaseException as error:
        await abandon(runtime, guarded, error)
        raise
    if opened is not None:
        items, item, _ = opened
        while item is not END:
            call.count += 1
            try:
                yield item
            except BaseException:
                await _aleave(call, items)
                raise
            try:
                item = await _anext(call, opened)
            except Exception as error:
                await _aclose(items)
                await _astep(call, call.broken(error))
                break
            except BaseException:  # cancelled while the provider was asked
                await _aleave(call, items)
                raise
        else:
            await _astep(call, call.ended(is_abandoned=False))
    _raise_failure(await _aconclude(call))


async def _aopen(call: StreamCall) -> Opened | None:
    do = await abegin(call.runtime, call.call)
    while do is not Do.END:
        if do is not Do.ATTEMPT:
            do = await apass_gate(call.runtime, call.call, do)
            continue
        items: Any = None
        try:
            items, context = call.begin_attempt()
            limit = context.attempt_timeout_seconds
            first = await _within(
                limit, partial(call.first_of, items, context), partial(call.too_long, limit or 0.0)
            )
        except Exception as error:
            await _aclose(items)
            do = await _astep(call, partial(call.call.failed, error))
            continue
        except BaseException:
            await _aclose(items)
            raise
        if first is not END:
            return call.opened(items, first, context)
        do = await _astep(call, call.ended(is_abandoned=False))
    return None


async def _anext(call: StreamCall, opened: Opened) -> Any:
    left = call.seconds_left(opened)
    items = cast("AsyncIterator[Any]", opened.items)
    started_at = call.call.attempt_started_at
    limit = 0.0 if opened.ends_at is None else opened.ends_at - started_at
    return await _within(left, lambda: anext(items, END), partial(call.too_long, limit))


async def _within(
    seconds: float | None,
    work: Callable[[], Awaitable[Any]],
    too_long: Callable[[], ProviderTimeoutError],
) -> Any:
    if seconds is None:
        return await work()
    bound = asyncio.timeout(seconds)
    try:
        async with bound:
            return await work()
    except Exception as error:
        if not bound.expired():
            raise
        raise too_long() from error


async def _aleave(call: StreamCall, items: Any) -> None:
    """Note that the caller reads no further."""
    await _aclose(items)
    await _astep(call, call.ended(is_abandoned=True))
    await _aconclude(call)


async def _astep(call: StreamCall, work: Callable[[], T]) -> T:
    return await step(call.runtime, call.call, work, is_quick=call.runtime.is_local)


async def _aconclude(call: StreamCall) -> ProviderExecutionResult:
    result, rows = await afinish(call.runtime, call.call)
    await aconclude(call.runtime, call.call, result, rows, None)
    call.record(result)
    return result


async def _aclose(items: Any) -> None:
    close = getattr(items, "aclose", None)
    if close is not None:
        with suppress(Exception):
            await close()
