"""The two drivers of a guarded call: on a thread, and on an event loop.

Both carry out what the guard decides, step by step; they differ only in how they wait. On an event
loop every step that may wait for a store runs on a thread, unless it is known to be quick. A fast
call goes without the guard while all goes well, and continues as a guarded call otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from types import coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ergon_framework.core.provider_call import GuardAction
from ergon_framework.engine.clocks import asleep_until, sleep_until
from ergon_framework.errors import HookError
from ergon_framework.ports.providerstore import AttemptRow
from ergon_framework.providers.errors import ProviderTimeoutError
from ergon_framework.providers.execution import ProviderExecutionContext, ProviderExecutionResult
from ergon_framework.providers.pipeline.guarded_call import GuardedCall
from ergon_framework.providers.pipeline.request import (
    AttemptBody,
    AttemptRequest,
    body_with,
    payload_again,
)
from ergon_framework.providers.threads import NotBegunError, Outcome, ThreadAttempt, offload
from ergon_framework.storage.deadlines import MIN_TIMEOUT, PROVIDER_BUDGET

if TYPE_CHECKING:
    from ergon_framework.providers.execution import OnFailure
    from ergon_framework.providers.pipeline.fast_path import FastPathCall
    from ergon_framework.providers.pipeline.runtime import ProviderRuntime

T = TypeVar("T")
Ended = tuple[ProviderExecutionResult, list[AttemptRow]]


class StoreLook(Protocol):
    """A step that asks the gates."""

    def __call__(self, *, looks: bool = True) -> GuardAction:
        """With ``looks``, an old view of the circuits is read from the store before."""


def run_call(
    runtime: ProviderRuntime, call: GuardedCall, body: AttemptBody, on_failure: OnFailure | None
) -> ProviderExecutionResult:
    """Carry out the steps of a call on this thread, until the guard ends it."""
    work = partial(_run_steps, runtime, call, body, None, on_failure)
    return work() if runtime.is_local else PROVIDER_BUDGET.run_within(call.seconds_left, work)


def run_fast(
    runtime: ProviderRuntime,
    fast: FastPathCall,
    request: AttemptRequest,
    on_failure: OnFailure | None,
) -> ProviderExecutionResult:
    """Make a call of the fast path; continue as a guarded call when the attempt did not succeed."""
    data, raised = None, None
    if fast.is_late:
        return _too_late(runtime, fast, on_failure)
    implementation, tenant_id, campaign_id, operation, payload = request
    again = payload_again(payload, is_retried=runtime.policy.max_attempts > 1)
    try:
        data = implementation(
            tenant_id=tenant_id,
            campaign_id=campaign_id,
            operation=operation,
            payload=payload.copy(),
            context=fast.context,
        )
    except Exception as error:
        raised = error
    except BaseException:
        give_up(runtime, fast.to_guarded_call())
        raise
    # The fast path knows one end only, a success that needs no write. Everything else is continued
    # by the full machine, with the first attempt already made.
    ended = None if raised is not None else fast.succeeded(data)
    if ended is not None:
        result, row = ended
        if runtime.options.durable:
            PROVIDER_BUDGET.run_within(fast.seconds_left, partial(runtime.conclude, result, [row]))
        else:
            runtime.recorder.add_attempt(row)
        return result
    call, body = fast.to_guarded_call(), body_with(request, None, again)
    work = partial(_run_steps, runtime, call, body, _first_step(call, data, raised), on_failure)
    return work() if runtime.is_local else PROVIDER_BUDGET.run_within(call.seconds_left, work)


def _run_steps(
    runtime: ProviderRuntime,
    call: GuardedCall,
    body: AttemptBody,
    first: Callable[[], GuardAction] | None,
    on_failure: OnFailure | None,
) -> ProviderExecutionResult:
    try:
        result, rows = _run_until_end(
            runtime, call, body, call.begin() if first is None else first()
        )
    except BaseException:
        give_up(runtime, call)
        raise
    # Outside of the ``try``: the call has ended, and what its rows meet must not give back quota
    # that was spent.
    runtime.conclude(result, rows, on_failure)
    return result


def _first_step(
    call: GuardedCall, data: Any, raised: Exception | None
) -> Callable[[], GuardAction]:
    """The step that reports the first attempt to the guard."""
    return partial(call.succeeded, data) if raised is None else partial(call.failed, raised)


def _too_late(
    runtime: ProviderRuntime, fast: FastPathCall, on_failure: OnFailure | None
) -> ProviderExecutionResult:
    call = fast.to_guarded_call()
    result, rows = PROVIDER_BUDGET.run_within(call.seconds_left, call.too_late)
    PROVIDER_BUDGET.run_within(
        call.seconds_left, partial(runtime.conclude, result, rows, on_failure)
    )
    return result


def give_up(runtime: ProviderRuntime, call: GuardedCall) -> None:
    """Return the call's quota and permits, and record the attempts that it made."""
    runtime.recorder.add(call.abandon())


def _run_until_end(
    runtime: ProviderRuntime, call: GuardedCall, body: AttemptBody, do: GuardAction
) -> Ended:
    while do is not GuardAction.END:
        do = _attempt(runtime, call, body) if do is GuardAction.ATTEMPT else pass_gate(call, do)
    return call.finish()


def pass_gate(call: GuardedCall, do: GuardAction) -> GuardAction:
    """Do one step between attempts: ask a gate, or wait."""
    if do is GuardAction.ADMIT:
        # From memory where that is enough; only a half-open circuit has to write who probes.
        return call.admit_cached() or call.admit()
    if do is GuardAction.RESERVE:
        return call.reserve()
    sleep_until(call.clock, call.until)
    return call.waited()


def _attempt(runtime: ProviderRuntime, call: GuardedCall, body: AttemptBody) -> GuardAction:
    context = call.attempt_context()
    body = body.again(context)
    try:
        # Without isolation the body runs in this thread, which cannot be interrupted; with it, in
        # one that can be left behind.
        if runtime.is_plain:
            data = body(context=context)
        elif runtime.is_async:
            data = asyncio.run(_bounded(body, context))
        else:
            data = runtime.isolation.run(
                call.clock, _end_of(call, context), partial(body, context=context)
            )
    except Exception as error:
        return call.failed(error)
    return call.succeeded(data)


def _end_of(call: GuardedCall, context: ProviderExecutionContext) -> float:
    return call.clock.now() + (context.attempt_timeout_seconds or 0.0)


def refuse_inside_loop() -> None:
    """Refuse a synchronous call of an async provider from inside an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise HookError(
        "execute() of a provider with an async _execute_impl cannot run inside an event loop",
        remedy="await aexecute() instead",
    )


async def arun_call(
    runtime: ProviderRuntime, call: GuardedCall, body: AttemptBody, on_failure: OnFailure | None
) -> ProviderExecutionResult:
    """Carry out the steps of a call in this task; steps that use a store run on a thread."""
    return await _arun_steps(runtime, call, body, None, on_failure)


async def arun_fast(
    runtime: ProviderRuntime,
    fast: FastPathCall,
    request: AttemptRequest,
    on_failure: OnFailure | None,
) -> ProviderExecutionResult:
    """Make a call of the fast path on an event loop."""
    data, raised = None, None
    if fast.is_late:
        return await step(
            runtime, fast, partial(_too_late, runtime, fast, on_failure), is_quick=runtime.is_local
        )
    implementation, tenant_id, campaign_id, operation, payload = request
    again = payload_again(payload, is_retried=runtime.policy.max_attempts > 1)
    try:
        attempt = implementation(
            tenant_id=tenant_id,
            campaign_id=campaign_id,
            operation=operation,
            payload=payload.copy(),
            context=fast.context,
        )
        data = await within(attempt, fast.context.attempt_timeout_seconds)
    except Exception as error:
        raised = error
    except BaseException as error:
        await abandon(runtime, fast.to_guarded_call(), error)
        raise
    ended = None if raised is not None else fast.succeeded(data)
    if ended is not None:
        result, row = ended
        if runtime.options.durable:
            await aconclude(runtime, fast, result, [row], None)
        else:
            runtime.recorder.add_attempt(row)
        return result
    call, body = fast.to_guarded_call(), body_with(request, None, again)
    return await _arun_steps(runtime, call, body, _first_step(call, data, raised), on_failure)


async def _arun_steps(
    runtime: ProviderRuntime,
    call: GuardedCall,
    body: AttemptBody,
    first: Callable[[], GuardAction] | None,
    on_failure: OnFailure | None,
) -> ProviderExecutionResult:
    try:
        if first is not None:
            do = await step(runtime, call, first, is_quick=runtime.is_local)
        else:
            do = await abegin(runtime, call)
        result, rows = await _arun_until_end(runtime, call, body, do)
    except BaseException as error:
        await abandon(runtime, call, error)
        raise
    await aconclude(runtime, call, result, rows, on_failure)
    return result


async def aconclude(
    runtime: ProviderRuntime,
    call: GuardedCall | FastPathCall,
    result: ProviderExecutionResult,
    rows: list[AttemptRow],
    on_failure: OnFailure | None,
) -> None:
    """Hand the rows on without holding up the event loop."""
    if runtime.options.durable or (on_failure is not None and not result.success):
        await step(
            runtime, call, partial(runtime.conclude, result, rows, on_failure), is_quick=False
        )
    else:
        runtime.recorder.add(rows)


async def step(
    runtime: ProviderRuntime,
    call: GuardedCall | FastPathCall,
    work: Callable[[], T],
    *,
    is_quick: bool,
) -> T:
    """Run one step of a call within its deadline, on a thread unless the step is quick."""
    if is_quick:
        return work()
    return await offload(lambda: PROVIDER_BUDGET.run_within(call.seconds_left, work), runtime.steps)


async def _refresh_gates(
    runtime: ProviderRuntime, call: GuardedCall, look: StoreLook
) -> GuardAction:
    """Ask the gates on a thread; go by the old view when no thread is free in half of the time."""
    left = call.seconds_left
    return await offload(
        lambda: PROVIDER_BUDGET.run_within(call.seconds_left, look),
        runtime.steps,
        within=None if left is None else left / 2,
        # Threads that all hang in the store must not stop calls: the old view of the circuits
        # decides then.
        late=partial(look, looks=False),
    )


async def _ask_gate(
    runtime: ProviderRuntime,
    call: GuardedCall,
    ask: Callable[[], GuardAction],
    late: Callable[[], GuardAction],
) -> GuardAction:
    """Ask a gate that may take a unit or a place; ``late`` if no thread was free in time.

    A step that has begun is waited for: what it took would otherwise be lost.
    """
    if runtime.is_local:
        return ask()
    left = call.seconds_left
    return await offload(
        lambda: PROVIDER_BUDGET.run_within(call.seconds_left, ask),
        runtime.steps,
        within=None if left is None else max(left, MIN_TIMEOUT),
        late=late,
    )


async def _arun_until_end(
    runtime: ProviderRuntime, call: GuardedCall, body: AttemptBody, do: GuardAction
) -> Ended:
    while do is not GuardAction.END:
        if do is GuardAction.ATTEMPT:
            do = await _aattempt(runtime, call, body)
        else:
            do = await apass_gate(runtime, call, do)
    return await afinish(runtime, call)


async def abegin(runtime: ProviderRuntime, call: GuardedCall) -> GuardAction:
    """Begin a call without blocking the event loop."""
    if runtime.is_local or not call.reads_store:
        return call.begin()
    return await _refresh_gates(runtime, call, call.begin)


async def apass_gate(runtime: ProviderRuntime, call: GuardedCall, do: GuardAction) -> GuardAction:
    """Do one step between attempts: ask a gate, or wait."""
    if do is GuardAction.ADMIT:
        passed = call.admit_cached()
        if passed is not None:
            return passed
        return await _ask_gate(runtime, call, call.admit, call.late)
    if do is GuardAction.RESERVE:
        return await _ask_gate(runtime, call, call.reserve, call.without_quota)
    await asleep_until(call.clock, call.until)
    if runtime.is_local or not call.reads_store:
        return call.waited()
    return await _refresh_gates(runtime, call, call.waited)


async def afinish(runtime: ProviderRuntime, call: GuardedCall) -> Ended:
    """The result of a call that has ended, and its rows."""
    is_quick = runtime.is_local or not call.holds_anything
    return await step(runtime, call, call.finish, is_quick=is_quick)


async def abandon(runtime: ProviderRuntime, call: GuardedCall, error: BaseException) -> None:
    """Return the quota and permits of a call that ``error``, such as a cancellation, cuts off."""
    # The thread that still runs the attempt settles it: giving back here would free a place that is
    # in use.
    if call.is_handed_over:
        return
    # GeneratorExit closes the coroutine: it must not await any more, so the step runs right here.
    is_quick = runtime.is_local or not call.holds_anything or isinstance(error, GeneratorExit)
    await step(runtime, call, partial(give_up, runtime, call), is_quick=is_quick)


async def _aattempt(runtime: ProviderRuntime, call: GuardedCall, body: AttemptBody) -> GuardAction:
    context = call.attempt_context()
    body = body.again(context)
    try:
        if runtime.is_async:
            data = await _bounded(body, context)
        else:
            data = await _on_thread(runtime, call, body, context)
    except NotBegunError:
        return call.not_begun()
    except Exception as error:
        return await step(runtime, call, partial(call.failed, error), is_quick=runtime.is_local)
    is_quick = runtime.is_local or not call.writes_success
    return await step(runtime, call, partial(call.succeeded, data), is_quick=is_quick)


async def _bounded(body: AttemptBody, context: ProviderExecutionContext) -> Any:
    return await within(body(context=context), context.attempt_timeout_seconds)


async def _on_thread(
    runtime: ProviderRuntime,
    call: GuardedCall,
    body: AttemptBody,
    context: ProviderExecutionContext,
) -> Any:
    """An attempt on a thread. Cancelled, it goes on there, and is settled when it has ended."""
    work = partial(body, context=context)
    if runtime.options.isolate:
        # On a thread of its own: a pool would wait at its end for a call that hangs.
        work = partial(runtime.isolation.run, call.clock, _end_of(call, context), work)
    settle = partial(_settle, runtime, call)
    attempt = ThreadAttempt(work, settle)
    try:
        return await attempt.run(runtime.calls, context.attempt_timeout_seconds)
    except Exception:
        raise
    except BaseException as error:
        call.is_handed_over, outcome = attempt.leave()
        if outcome is not None:
            is_quick = runtime.is_local or isinstance(error, GeneratorExit)
            await step(runtime, call, partial(settle, outcome), is_quick=is_quick)
        raise


def _settle(runtime: ProviderRuntime, call: GuardedCall, outcome: Outcome) -> None:
    """Settle an attempt that ended after its call was cancelled."""
    data, error = outcome
    if error is None:
        call.succeeded(data)
    elif isinstance(error, Exception):
        call.failed(error)
    runtime.recorder.add(call.abandon())


# ---- the time limit of an attempt on an event loop -----------------------------------------------


async def within(attempt: Awaitable[T], limit: float | None) -> T:
    """The answer of an attempt, which is cut off after so many seconds; None: never.

    The timer is set only if the attempt waits: it costs as much as a whole call around it. An
    attempt that answers from memory, or fails before it sends anything, never waits and needs none:
    nothing could have cut it off either.
    """
    if limit is None:
        return await attempt
    if not asyncio.iscoroutine(attempt):  # something else that can be awaited
        attempt = _awaited(attempt)
    began_at = asyncio.get_running_loop().time()
    try:
        awaited = attempt.send(None)
    except StopIteration as ended:
        answer: T = ended.value
        return answer
    bound = asyncio.timeout_at(began_at + limit)
    try:
        async with bound:
            return await _rest(attempt, awaited)
    # Any error: a client may turn the cancellation into an error of its own. The timeout is why.
    except Exception as error:
        if not bound.expired():
            raise
        raise ProviderTimeoutError(f"no answer within {limit:.3g} seconds") from error


async def _awaited(attempt: Awaitable[T]) -> T:
    return await attempt


@coroutine
def _rest(attempt: Coroutine[Any, Any, T], awaited: Any) -> Generator[Any, Any, T]:
    """Continue a coroutine that has begun to wait, as ``await`` would have done from its start."""
    while True:
        raised = sent = None
        try:
            sent = yield awaited
        except GeneratorExit:
            attempt.close()
            raise
        except BaseException as error:
            raised = error
        try:
            awaited = attempt.send(sent) if raised is None else attempt.throw(raised)
        except StopIteration as ended:
            answer: T = ended.value
            return answer
