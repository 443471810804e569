"""The two drivers of a guarded call: a thread, and an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ergon_framework.core.guard import Do
from ergon_framework.engine.clocks import asleep_until, sleep_until
from ergon_framework.errors import HookError
from ergon_framework.ports.providerstore import AttemptRow
from ergon_framework.providers.errors import ProviderTimeoutError
from ergon_framework.providers.execution import ProviderExecutionContext, ProviderExecutionResult
from ergon_framework.providers.hurry import LEAST, hurried
from ergon_framework.providers.pipeline.guarded_call import GuardedCall
from ergon_framework.providers.pipeline.request import AttemptBody
from ergon_framework.providers.threads import NotBegunError, Outcome, ThreadAttempt, offload

if TYPE_CHECKING:
    from ergon_framework.providers.execution import OnFailure
    from ergon_framework.providers.pipeline.fast_path import FastPathCall
    from ergon_framework.providers.pipeline.runtime import ProviderRuntime

T = TypeVar("T")
Ended = tuple[ProviderExecutionResult, list[AttemptRow]]


class StoreLook(Protocol):
    """A step that looks at the gates."""

    def __call__(self, *, looks: bool = True) -> Do:
        """``looks``: in the store, if what is known is old."""


def run_call(
    fitted: ProviderRuntime, call: GuardedCall, body: AttemptBody, ending: OnFailure | None
) -> ProviderExecutionResult:
    """Do what the machine says, in this thread, until it says that it is over."""
    work = partial(_run_steps, fitted, call, body, None, ending)
    return work() if fitted.is_local else hurried(call.seconds_left, work)


def run_fast(
    fitted: ProviderRuntime, ticket: FastPathCall, body: AttemptBody, ending: OnFailure | None
) -> ProviderExecutionResult:
    """Go the short way, and on with the machine when it turns out longer."""
    data, raised = None, None
    if ticket.is_late:
        return _too_late(fitted, ticket, ending)
    try:
        data = body(context=ticket.context)
    except Exception as error:
        raised = error
    except BaseException:
        _give_up(fitted, ticket.machine())
        raise
    arrived = None if raised is not None else ticket.arrived(data)
    if arrived is not None:
        result, row = arrived
        if fitted.options.durable:
            hurried(ticket.seconds_left, partial(fitted.conclude, result, [row]))
        else:
            fitted.recorder.add([row])
        return result
    call = ticket.machine()
    work = partial(_run_steps, fitted, call, body, _judged(call, data, raised), ending)
    return work() if fitted.is_local else hurried(call.seconds_left, work)


def _run_steps(
    fitted: ProviderRuntime,
    call: GuardedCall,
    body: AttemptBody,
    first: Callable[[], Do] | None,
    ending: OnFailure | None,
) -> ProviderExecutionResult:
    try:
        result, rows = _go_on(fitted, call, body, call.begin() if first is None else first())
    except BaseException:
        _give_up(fitted, call)
        raise
    fitted.conclude(result, rows, ending)
    return result


def _judged(call: GuardedCall, data: Any, raised: Exception | None) -> Callable[[], Do]:
    """What the machine makes of the first attempt."""
    return partial(call.succeeded, data) if raised is None else partial(call.failed, raised)


def _too_late(
    fitted: ProviderRuntime, ticket: FastPathCall, ending: OnFailure | None
) -> ProviderExecutionResult:
    call = ticket.machine()
    result, rows = hurried(call.seconds_left, call.too_late)
    hurried(call.seconds_left, partial(fitted.conclude, result, rows, ending))
    return result


def _give_up(fitted: ProviderRuntime, call: GuardedCall) -> None:
    """Give back what the call holds; what it did is on record all the same."""
    fitted.recorder.add(call.abandon())


def _go_on(fitted: ProviderRuntime, call: GuardedCall, body: AttemptBody, do: Do) -> Ended:
    while do is not Do.END:
        if do is Do.ATTEMPT:
            do = _attempt(fitted, call, body)
        elif do is Do.ADMIT:
            do = call.admit_quickly() or call.admit()
        elif do is Do.RESERVE:
            do = call.reserve()
        else:
            sleep_until(call.clock, call.until)
            do = call.waited()
    return call.finish()


def _attempt(fitted: ProviderRuntime, call: GuardedCall, body: AttemptBody) -> Do:
    context = call.attempt_context()
    body = body.again(context)
    try:
        if fitted.is_plain:
            data = body(context=context)
        elif fitted.is_async:
            data = asyncio.run(_bounded(body, context))
        else:
            data = fitted.isolation.run(
                call.clock, _end_of(call, context), partial(body, context=context)
            )
    except Exception as error:
        return call.failed(error)
    return call.succeeded(data)


def _end_of(call: GuardedCall, context: ProviderExecutionContext) -> float:
    return call.clock.now() + (context.attempt_timeout_seconds or 0.0)


def refuse_inside_loop() -> None:
    """An async provider cannot be called synchronously from inside an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise HookError(
        "execute() of a provider with an async _execute_impl cannot run inside an event loop",
        remedy="await aexecute() instead",
    )


async def arun_call(
    fitted: ProviderRuntime, call: GuardedCall, body: AttemptBody, ending: OnFailure | None
) -> ProviderExecutionResult:
    """Do what the machine says, in this task; what reads or writes a store does so on a thread."""
    return await _arun_steps(fitted, call, body, None, ending)


async def arun_fast(
    fitted: ProviderRuntime, ticket: FastPathCall, body: AttemptBody, ending: OnFailure | None
) -> ProviderExecutionResult:
    """The short way, on an event loop."""
    data, raised = None, None
    if ticket.is_late:
        return await _step(
            fitted, ticket, partial(_too_late, fitted, ticket, ending), is_quick=fitted.is_local
        )
    try:
        data = await _bounded(body, ticket.context)
    except Exception as error:
        raised = error
    except BaseException as error:
        await _abandon(fitted, ticket.machine(), error)
        raise
    arrived = None if raised is not None else ticket.arrived(data)
    if arrived is not None:
        await _aconclude(fitted, ticket, arrived[0], [arrived[1]], None)
        return arrived[0]
    call = ticket.machine()
    return await _arun_steps(fitted, call, body, _judged(call, data, raised), ending)


async def _arun_steps(
    fitted: ProviderRuntime,
    call: GuardedCall,
    body: AttemptBody,
    first: Callable[[], Do] | None,
    ending: OnFailure | None,
) -> ProviderExecutionResult:
    try:
        if first is not None:
            do = await _step(fitted, call, first, is_quick=fitted.is_local)
        elif fitted.is_local or not call.reads_store:
            do = call.begin()
        else:
            do = await _look(fitted, call, call.begin)
        result, rows = await _ago_on(fitted, call, body, do)
    except BaseException as error:
        await _abandon(fitted, call, error)
        raise
    await _aconclude(fitted, call, result, rows, ending)
    return result


async def _aconclude(
    fitted: ProviderRuntime,
    call: GuardedCall | FastPathCall,
    result: ProviderExecutionResult,
    rows: list[AttemptRow],
    ending: OnFailure | None,
) -> None:
    """Hand the rows on without holding up the event loop."""
    if fitted.options.durable or (ending is not None and not result.success):
        await _step(fitted, call, partial(fitted.conclude, result, rows, ending), is_quick=False)
    else:
        fitted.recorder.add(rows)


async def _step(
    fitted: ProviderRuntime,
    call: GuardedCall | FastPathCall,
    work: Callable[[], T],
    *,
    is_quick: bool,
) -> T:
    """One step of a call, which waits for the store no longer than the call's time lasts."""
    if is_quick:
        return work()
    return await offload(lambda: hurried(call.seconds_left, work), fitted.steps)


async def _look(fitted: ProviderRuntime, call: GuardedCall, look: StoreLook) -> Do:
    """Look at the gates, in half of the time that is left; then go by what is known of them."""
    left = call.seconds_left
    return await offload(
        lambda: hurried(call.seconds_left, look),
        fitted.steps,
        within=None if left is None else left / 2,
        late=partial(look, looks=False),
    )


async def _ask(
    fitted: ProviderRuntime, call: GuardedCall, ask: Callable[[], Do], late: Callable[[], Do]
) -> Do:
    """Ask at a gate that may take a unit or a place; ``late`` if that could not begin in time."""
    if fitted.is_local:
        return ask()
    left = call.seconds_left
    return await offload(
        lambda: hurried(call.seconds_left, ask),
        fitted.steps,
        within=None if left is None else max(left, LEAST),
        late=late,
    )


async def _ago_on(fitted: ProviderRuntime, call: GuardedCall, body: AttemptBody, do: Do) -> Ended:
    is_local = fitted.is_local
    while do is not Do.END:
        if do is Do.ATTEMPT:
            do = await _aattempt(fitted, call, body)
        elif do is Do.ADMIT:
            passed = call.admit_quickly()
            do = passed if passed is not None else await _ask(fitted, call, call.admit, call.late)
        elif do is Do.RESERVE:
            do = await _ask(fitted, call, call.reserve, call.without_quota)
        else:
            await asleep_until(call.clock, call.until)
            is_quick = is_local or not call.reads_store
            do = call.waited() if is_quick else await _look(fitted, call, call.waited)
    return await _step(fitted, call, call.finish, is_quick=is_local or not call.holds_anything)


async def _abandon(fitted: ProviderRuntime, call: GuardedCall, error: BaseException) -> None:
    if call.is_handed_over:
        return
    # A coroutine that is thrown away cannot wait for a thread.
    is_quick = fitted.is_local or not call.holds_anything or isinstance(error, GeneratorExit)
    await _step(fitted, call, partial(_give_up, fitted, call), is_quick=is_quick)


async def _aattempt(fitted: ProviderRuntime, call: GuardedCall, body: AttemptBody) -> Do:
    context = call.attempt_context()
    body = body.again(context)
    try:
        if fitted.is_async:
            data = await _bounded(body, context)
        else:
            data = await _on_thread(fitted, call, body, context)
    except NotBegunError:
        return call.not_begun()
    except Exception as error:
        return await _step(fitted, call, partial(call.failed, error), is_quick=fitted.is_local)
    is_quick = fitted.is_local or not call.writes_success
    return await _step(fitted, call, partial(call.succeeded, data), is_quick=is_quick)


async def _bounded(body: AttemptBody, context: ProviderExecutionContext) -> Any:
    limit = context.attempt_timeout_seconds
    if limit is None:
        return await body(context=context)
    bound = asyncio.timeout(limit)
    try:
        async with bound:
            return await body(context=context)
    except Exception as error:  # of any kind: what goes wrong while it is cut short is not why
        if not bound.expired():
            raise
        raise ProviderTimeoutError(f"no answer within {limit:.3g} seconds") from error


async def _on_thread(
    fitted: ProviderRuntime, call: GuardedCall, body: AttemptBody, context: ProviderExecutionContext
) -> Any:
    """An attempt on a thread. Cancelled, it goes on there, and is settled when it has ended."""
    work = partial(body, context=context)
    if fitted.options.isolate:
        # Not on a thread of the event loop's pool: its end would wait for a call that hangs.
        work = partial(fitted.isolation.run, call.clock, _end_of(call, context), work)
    settle = partial(_settle, fitted, call)
    errand = ThreadAttempt(work, settle)
    try:
        return await errand.run(fitted.calls, context.attempt_timeout_seconds)
    except Exception:
        raise
    except BaseException as error:
        call.is_handed_over, outcome = errand.leave()
        if outcome is not None:
            is_quick = fitted.is_local or isinstance(error, GeneratorExit)
            await _step(fitted, call, partial(settle, outcome), is_quick=is_quick)
        raise


def _settle(fitted: ProviderRuntime, call: GuardedCall, outcome: Outcome) -> None:
    """The end of an attempt whose call was given up meanwhile."""
    data, error = outcome
    if error is None:
        call.succeeded(data)
    elif isinstance(error, Exception):
        call.failed(error)
    fitted.recorder.add(call.abandon())
