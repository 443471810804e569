"""Streams: a guarded call whose attempt gives items one after another.

Until its first item a stream is a call like any other: refused by closed gates, and tried again
when it fails. From then on it is one attempt that lasts until the last item. A failure ends it and
votes in the circuit; a caller who stops reading ends it as ``abandoned``, which is no failure of
the provider. Items that were given cannot be taken back, so nothing is tried again after the first.

Its span is current, and observers are around its attempts, only while the provider's code runs:
between two items the code of the reader does, which is no part of the call.
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
from contextlib import AbstractContextManager, suppress
from contextvars import Context, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from opentelemetry.trace import INVALID_SPAN, Span

from ergon_framework.core.provider_call import GuardAction
from ergon_framework.ports.context import current_unit
from ergon_framework.ports.providerstore import ABANDONED
from ergon_framework.ports.unit_of_work import OBSERVERS, ObservedAttempt
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
from ergon_framework.providers.pipeline.request import (
    AttemptBody,
    attempt_body,
    inherit_context,
)
from ergon_framework.providers.telemetry import attempt_unit, end_call, traced_stream
from ergon_framework.providers.validation import validate_call
from ergon_framework.storage.deadlines import PROVIDER_BUDGET
from ergon_framework.telemetry.tracing import is_traced

if TYPE_CHECKING:
    from ergon_framework.providers.pipeline.runtime import ProviderRuntime

T = TypeVar("T")
END: Any = object()
"""What comes after the last item."""

Request = tuple[str, str | None, str, dict[str, Any], ProviderExecutionContext]
"""Tenant, campaign, operation, payload and context, as ``execute`` takes them."""


class Opened(NamedTuple):
    """A stream that has given its first item."""

    items: Any
    first: Any
    ends_at: float | None
    """The deadline of the attempt, by the call's clock."""


class AwaitedIn(Awaitable[Any]):
    """An awaitable whose every step runs in a context, within the task that awaits it.

    A task of its own would run in the context as well. But it would be cancelled apart from its
    reader, and each item would cost several times as much.
    """

    def __init__(self, context: Context, awaitable: Awaitable[Any]) -> None:
        self._context = context
        self._awaitable = awaitable

    def __await__(self) -> Generator[Any, Any, Any]:
        steps: Any = self._awaitable.__await__()
        step, value = steps.send, None
        while True:
            try:
                waited_for = self._context.run(step, value)
            except StopIteration as ended:
                return ended.value
            try:
                value = yield waited_for
                step = steps.send
            # The task was cancelled: the cancellation is thrown into the inner code.
            except BaseException as error:
                step, value = steps.throw, error


class StreamScope:
    """Where the code of a stream runs: its span is current there, and its observers are entered.

    The context is made together with the stream, so that reading the stream in another task does
    not change its span. Without telemetry and observers there is none.
    """

    def __init__(self, *, is_seen: bool) -> None:
        self._context = copy_context() if is_seen else None
        self._span: Span = INVALID_SPAN
        self._spanning: AbstractContextManager[Any] | None = None
        self._observation: ObservedAttempt | None = None

    def begin(self, runtime: ProviderRuntime, call: Request) -> ProviderExecutionContext:
        """Begin the span, if there is a trace; returns the context of the call, which names it."""
        if self._context is not None:
            self._spanning = self.run(traced_stream, runtime, call)
        if self._spanning is None:
            return call[-1]
        self._span, context = self.run(self._spanning.__enter__)
        return cast("ProviderExecutionContext", context)

    def begin_attempt(
        self, runtime: ProviderRuntime, operation: str, context: ProviderExecutionContext
    ) -> None:
        """Enter the observers of an attempt."""
        if self._context is not None and OBSERVERS:
            names = runtime.provider_name, runtime.capability, operation
            self._observation = ObservedAttempt(attempt_unit(*names, context))
            self.run(self._observation.__enter__)

    def end_attempt(self, error: BaseException | None) -> None:
        """Leave the observers with the exception of the attempt, unless that was done already."""
        observation, self._observation = self._observation, None
        if observation is not None:
            kind, trace = (None, None) if error is None else (type(error), error.__traceback__)
            self.run(observation.__exit__, kind, error, trace)

    def end(self, result: ProviderExecutionResult) -> None:
        """End the span of a stream with its result."""
        end_call(self._span, result)
        self._leave(None)

    def give_up(self, error: BaseException) -> None:
        """End the span of a stream without a result: it was cancelled before its first item."""
        self.end_attempt(error)
        self._leave(error)

    def _leave(self, error: BaseException | None) -> None:
        spanning, self._spanning = self._spanning, None
        if spanning is not None:
            kind, trace = (None, None) if error is None else (type(error), error.__traceback__)
            self.run(spanning.__exit__, kind, error, trace)

    def run(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call code of the provider."""
        if self._context is None:
            return function(*args, **kwargs)
        return self._context.run(function, *args, **kwargs)

    def awaited(self, awaitable: Awaitable[T]) -> Awaitable[T]:
        """Await code of the provider."""
        return awaitable if self._context is None else AwaitedIn(self._context, awaitable)


class StreamCall:
    """One guarded call of a function that yields its results."""

    call: GuardedCall
    """What decides about it; there is none before the first item is asked for."""

    def __init__(
        self,
        runtime: ProviderRuntime,
        opens: Callable[..., Any],
        first_of: Callable[[Any, ProviderExecutionContext], Any],
        request: Request,
    ) -> None:
        """``opens`` begins an attempt, and ``first_of`` gets its first item, or ``END``."""
        tenant_id, campaign_id, operation, payload, context = request
        validate_call(*request)
        self._lane = runtime.lane(tenant_id)
        around = current_unit()
        if around is not None:
            key = self._lane.key
            context = inherit_context(context, around, key, campaign_id, operation, payload)
        what, is_retried = (tenant_id, campaign_id, operation), runtime.policy.max_attempts > 1
        self.runtime = runtime
        self.first_of = first_of
        attempts = (opens, *what, payload)
        self.body: AttemptBody = attempt_body(attempts, is_retried=is_retried)
        self._request: Request = (*what, payload, context)
        self.scope = StreamScope(is_seen=bool(OBSERVERS) or is_traced())
        self.count = 0
        """Items that the caller has been given."""
        self.is_abandoned = False

    def begin(self) -> GuardedCall:
        """Begin the call, and with it its time budget."""
        _tenant, campaign_id, operation, _payload, _context = self._request
        context = self.scope.begin(self.runtime, self._request)
        self.call = self.runtime.new_call(self._lane, (campaign_id, operation), context)
        return self.call

    def begin_attempt(self) -> tuple[Any, ProviderExecutionContext]:
        """The iterator of a new attempt, and its context."""
        context = self.call.attempt_context()
        self.scope.begin_attempt(self.runtime, self._request[2], context)
        return self.scope.run(self.body.again(context), context=context), context

    def first(self, items: Any, context: ProviderExecutionContext) -> Any:
        """The first item or ``END``, on a thread."""
        return self.scope.run(self.first_of, items, context)

    def afirst(self, items: Any, context: ProviderExecutionContext) -> Awaitable[Any]:
        """The same on asyncio."""
        return self.scope.awaited(self.first_of(items, context))

    def opened(self, items: Any, first: Any, context: ProviderExecutionContext) -> Opened:
        """A stream that has begun; its time runs since the attempt began."""
        limit = context.attempt_timeout_seconds
        ends_at = None if limit is None else self.call.attempt_started_at + limit
        return Opened(items, first, ends_at)

    def seconds_left(self, opened: Opened) -> float | None:
        """Seconds until the deadline of the attempt; raises if it has passed."""
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

    def ended(self, *, is_abandoned: bool) -> Callable[[], GuardAction]:
        """The step that notes its end: with the last item, or because the reader stopped."""
        self.scope.end_attempt(None)
        data: dict[str, Any] = {"items": self.count}
        self.is_abandoned = is_abandoned
        return partial(self.call.abandoned if is_abandoned else self.call.succeeded, data)

    def concluded(self, result: ProviderExecutionResult) -> ProviderExecutionResult:
        """The result of a stream that is over; its span says how."""
        if self.is_abandoned:
            result.stop_reason = ABANDONED
        self.scope.end(result)
        return result

    def failed(self, error: Exception) -> Callable[[], GuardAction]:
        """The step that notes a failure before the first item."""
        self.scope.end_attempt(error)
        return partial(self.call.failed, error)

    def broken(self, error: Exception) -> Callable[[], GuardAction]:
        """The step that notes a failure after the first item."""
        self.scope.end_attempt(error)
        return partial(self.call.failed, error, may_retry=False)


# -- on a thread -----------------------------------------------------------------------------------


def stream(call: StreamCall) -> Generator[Any, None, None]:
    """The items of a stream; the call begins with the first that is asked for."""
    guarded, runtime = call.begin(), call.runtime
    try:
        opened = _open(call)
    except BaseException as error:
        call.scope.give_up(error)
        give_up(runtime, guarded)
        raise
    if opened is None:
        _raise_failure(_conclude(call))
        return
    items, item, _ = opened
    # What holds if the reader stops: the generator is closed where it yields, and only the end
    # below runs.
    note = partial(call.ended, is_abandoned=True)
    try:
        while item is not END:
            call.count += 1
            yield item  # here the caller may read no further, or throw something in
            try:
                call.seconds_left(opened)
                item = call.scope.run(next, items, END)
            except Exception as error:
                note = partial(call.broken, error)
                break
        else:
            items, note = None, partial(call.ended, is_abandoned=False)
    finally:
        try:
            _close(call, items)
        finally:
            _in_time(call, note())
            result = _conclude(call)
    _raise_failure(result)


def _open(call: StreamCall) -> Opened | None:
    do = _in_time(call, call.call.begin)
    while do is not GuardAction.END:
        if do is not GuardAction.ATTEMPT:
            do = _in_time(call, partial(pass_gate, call.call, do))
            continue
        items: Any = None
        try:
            items, context = call.begin_attempt()
            first = call.first(items, context)
        except Exception as error:
            _close(call, items)
            do = _in_time(call, call.failed(error))
            continue
        if first is not END:
            return call.opened(items, first, context)
        do = _in_time(call, call.ended(is_abandoned=False))
    return None


def _in_time(call: StreamCall, work: Callable[[], T]) -> T:
    if call.runtime.is_local:
        return work()
    return PROVIDER_BUDGET.run_within(call.call.seconds_left, work)


def _conclude(call: StreamCall) -> ProviderExecutionResult:
    result, rows = _in_time(call, call.call.finish)
    _in_time(call, partial(call.runtime.conclude, result, rows))
    return call.concluded(result)


def _close(call: StreamCall, items: Any) -> None:
    """Close an iterator that is not read to its end; what that raises changes nothing."""
    close = getattr(items, "close", None)
    if close is not None:
        with suppress(Exception):
            call.scope.run(close)


def _raise_failure(result: ProviderExecutionResult) -> None:
    if not result.success:
        result.unwrap()


# -- on an event loop ------------------------------------------------------------------------------


async def astream(call: StreamCall) -> AsyncGenerator[Any, None]:
    """The same on asyncio."""
    guarded, runtime = call.begin(), call.runtime
    try:
        opened = await _aopen(call)
    except BaseException as error:
        call.scope.give_up(error)
        await abandon(runtime, guarded, error)
        raise
    if opened is None:
        _raise_failure(await _aconclude(call))
        return
    items, item, _ = opened
    # What holds if the reader stops: the generator is closed where it yields, and only the end
    # below runs.
    note = partial(call.ended, is_abandoned=True)
    try:
        while item is not END:
            call.count += 1
            yield item
            try:
                item = await _anext(call, opened)
            except Exception as error:
                note = partial(call.broken, error)
                break
        else:
            items, note = None, partial(call.ended, is_abandoned=False)
    finally:
        try:
            await _aclose(call, items)
        finally:  # it may be cancelled once more while the provider closes
            await _astep(call, note())
            result = await _aconclude(call)
    _raise_failure(result)


async def _aopen(call: StreamCall) -> Opened | None:
    do = await abegin(call.runtime, call.call)
    while do is not GuardAction.END:
        if do is not GuardAction.ATTEMPT:
            do = await apass_gate(call.runtime, call.call, do)
            continue
        items: Any = None
        try:
            items, context = call.begin_attempt()
            limit = context.attempt_timeout_seconds
            first = await _within(
                limit, partial(call.afirst, items, context), partial(call.too_long, limit or 0.0)
            )
        except Exception as error:
            await _aclose(call, items)
            do = await _astep(call, call.failed(error))
            continue
        except BaseException:
            await _aclose(call, items)
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
    following = partial(anext, items, END)
    return await _within(
        left, lambda: call.scope.awaited(following()), partial(call.too_long, limit)
    )


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
        # Code that is cancelled by the limit may raise anything: the limit is the reason all the
        # same.
        if not bound.expired():
            raise
        raise too_long() from error


async def _astep(call: StreamCall, work: Callable[[], T]) -> T:
    return await step(call.runtime, call.call, work, is_quick=call.runtime.is_local)


async def _aconclude(call: StreamCall) -> ProviderExecutionResult:
    result, rows = await afinish(call.runtime, call.call)
    await aconclude(call.runtime, call.call, result, rows, None)
    return call.concluded(result)


async def _aclose(call: StreamCall, items: Any) -> None:
    close = getattr(items, "aclose", None)
    if close is not None:
        with suppress(Exception):
            await call.scope.awaited(close())
