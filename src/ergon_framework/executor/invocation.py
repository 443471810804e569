"""One request from the pipe to its outcome, on whichever thread or event loop it runs."""

from __future__ import annotations

import contextvars
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from ergon_framework.core.executor_protocol import ATTEMPTS, Outcome, Request
from ergon_framework.core.rfc3339 import parse_rfc3339
from ergon_framework.executor import outcomes, progress
from ergon_framework.executor.binding import InvalidArgumentsError
from ergon_framework.executor.context import CORRELATION, JobContext, StopFlag
from ergon_framework.executor.registry import Handler
from ergon_framework.executor.stdio import stderr_line
from ergon_framework.ports.unit_of_work import OBSERVERS, RUNNING, UnitOfWork, observed

if TYPE_CHECKING:
    import asyncio

    from opentelemetry.trace import Span


NEVER = float("inf")
LATE = "the deadline had passed before the handler was begun"
CUT_OFF = "the handler ran past its deadline"
_NO_TRACE = (CORRELATION, ATTEMPTS)  # they travel in the same place
_Call = tuple[Callable[..., Any], list[Any], dict[str, Any]]


class Invocation:
    """A request that was read and not yet answered."""

    __slots__ = (
        "_context",
        "batch",
        "ends_at",
        "handler",
        "is_answered",
        "is_async",
        "is_begun",
        "is_cancelled",
        "is_stopped",
        "is_traced",
        "request",
        "scope",
        "span",
        "stop",
        "task",
    )

    def __init__(self, request: Request, handler: Handler | None, *, is_traced: bool) -> None:
        self.request = request
        self.handler = handler
        self.is_async = handler is not None and handler.is_async
        carried = request.context.trace_context
        self.is_traced = is_traced
        if carried and not is_traced:
            self.is_traced = any(name not in _NO_TRACE for name in carried)
        self.ends_at = _on_our_clock(request.context.deadline)
        self.scope = contextvars.copy_context()  # what a handler sets in it ends with it
        self._context: JobContext | None = None
        self.batch: Any = None  # those that one call answers with it, if its handler takes many
        self.span: Span | None = None
        self.task: asyncio.Task[Any] | None = None
        self.stop: StopFlag | None = None  # what the handler sees of ``is_stopped``
        self.is_begun = self.is_cancelled = self.is_answered = False
        self.is_stopped = False  # the job is to be cancelled

    @property
    def context(self) -> JobContext:
        """What the handler may know, made at the first question."""
        if self._context is None:
            about = self.request.context
            self.stop = StopFlag()
            self.stop.is_stopped = self.is_stopped  # after it was set: another thread may stop it
            self._context = JobContext(
                job_id=self.request.job_id,
                handler=self.request.function_name,
                attempt=about.attempt,
                queue_name=about.queue_name,
                enqueue_time=about.enqueue_time,
                deadline_time=about.deadline,
                trace_context=about.trace_context or {},
                worker_id=about.worker_id,
                ends_at=None if self.ends_at == NEVER else self.ends_at,
                stop=self.stop,
                reporter=self.report,
            )
        return self._context

    @property
    def job_id(self) -> str:
        """The job of the request."""
        return self.request.job_id

    def report(self, fraction: float | None, message: str) -> None:
        """Report the progress of the job, unless it was answered."""
        progress.report(self, fraction, message)

    def cancel(self) -> None:
        """The job is to be cancelled: the handler sees it, or is not begun. From any thread."""
        self.is_stopped = True
        if self.stop is not None:
            self.stop.is_stopped = True

    def unit_of_work(self) -> UnitOfWork:
        """The job as a unit of work, for code that its handler calls."""
        carrier = self.request.context.trace_context or {}
        return UnitOfWork(
            "job",
            self.request.job_id,
            self.request.function_name,
            self.request.context.attempt,
            None if self.ends_at == NEVER else self.ends_at,
            carrier.get(CORRELATION),
            carrier,
            carrier.get(ATTEMPTS) != "1",
        )

    def prepare(self) -> _Call | Outcome:
        """The call to make, or why there will be none. Runs inside the scope."""
        request, handler = self.request, self.handler
        if handler is None:
            return outcomes.not_found(request.job_id, request.function_name)
        if self.is_stopped:
            return outcomes.cancelled(request.job_id)
        if self.is_cancelled or (self.ends_at != NEVER and self.ends_at <= time.monotonic()):
            return outcomes.timed_out(request.job_id, LATE)
        self.is_begun = True
        RUNNING.set(self)
        if self.is_traced:
            self._begin_span()
        try:
            args, kwargs = handler.binding.bind(request.args, request.kwargs, self)
            if OBSERVERS or handler.layers:
                return self._with_middleware(handler), args, kwargs
            return handler.function, args, kwargs
        except InvalidArgumentsError as error:
            return outcomes.refused(request.job_id, error.code, str(error))
        except BaseException as error:  # a class of the user's that is made from the arguments
            return outcomes.failed(request.job_id, error)

    def _with_middleware(self, handler: Handler) -> Callable[..., Any]:
        """The handler wrapped in its middleware, and both wrapped in the observers."""
        from ergon_framework.ports.middleware import call_through  # only where there is some

        unit = self.unit_of_work()

        def call(*args: Any, **kwargs: Any) -> Any:
            made = partial(handler.function, *args, **kwargs)
            return call_through(handler.layers, unit, made)

        function = call if handler.layers else handler.function
        return (
            observed(function, lambda _: unit, is_async=handler.is_async) if OBSERVERS else function
        )

    def run(self) -> Outcome:
        """Call a plain handler, here and now."""
        return self.scope.run(self._run)

    def _run(self) -> Outcome:
        call = self.prepare()
        if isinstance(call, Outcome):
            return call
        function, args, kwargs = call
        job_id = self.request.job_id
        try:
            return outcomes.succeeded(job_id, function(*args, **kwargs))
        except BaseException as error:  # SystemExit too: a handler may not end the process
            return outcomes.failed(job_id, error, self._final)

    async def run_async(self) -> Outcome:
        """Await an async handler; the task that does so must have been given the scope."""
        call = self.prepare()
        if isinstance(call, Outcome):
            return call
        function, args, kwargs = call
        job_id = self.request.job_id
        try:
            return outcomes.succeeded(job_id, await function(*args, **kwargs))
        except BaseException as error:
            if self.is_cancelled and type(error).__name__ == "CancelledError":
                return outcomes.timed_out(job_id, CUT_OFF)
            if self.is_stopped and type(error).__name__ == "CancelledError":
                return outcomes.cancelled(job_id)
            return outcomes.failed(job_id, error, self._final)

    @property
    def _final(self) -> tuple[type[BaseException], ...]:
        return () if self.handler is None else self.handler.give_up_on

    def end_span(self, outcome: Outcome) -> None:
        """End the span with the outcome of the request."""
        if self.span is not None:
            from ergon_framework.executor.tracing import end

            with suppress(Exception):  # an exporter's trouble is not the job's
                end(self.span, outcome)

    def _begin_span(self) -> None:
        try:
            from ergon_framework.executor.tracing import begin

            self.span = begin(self.request)
        except Exception as error:
            stderr_line(f"the trace cannot be continued: {outcomes.text_of(error)}")


def _on_our_clock(deadline: str | None) -> float:
    """The deadline on the monotonic clock, which does not move when the time is set."""
    if deadline is None:
        return NEVER
    return time.monotonic() + parse_rfc3339(deadline) - time.time()
