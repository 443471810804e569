"""A stand-in for the engine: tells a sink the story of a call, step by step, on a clock of its own.

Each method emits what the real engine would, so a test reads as the script of a lifecycle.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.ports.context import Attempt, Call
from ergon_framework.ports.notice import CATALOGUE, Notice, Sink
from ergon_framework.ports.transaction import CURRENT, Transaction

POLICY = {"max_attempts": 3, "timeout": 5.0, "backoff": 1.0, "backoff_multiplier": 2.0}
SETTINGS: dict[str, Any] = {
    "concurrency": 4,
    "batch_size": 10,
    "limit": None,
    "timeout": 60.0,
    "transaction_timeout": None,
    "streaming": False,
    "mode": "batch",
    "steps": {
        step: {**POLICY, "backoff_cap": None}
        for step in ("fetch", "process", "produce", "success", "exception")
    },
}
DOWN = Failure(Kind.TRANSIENT, "ConnectionError", "ConnectionError: the host is down")


class FakeRun:
    def __init__(self, transaction: Transaction, began_at: float) -> None:
        self.transaction = transaction
        self.began_at = began_at
        self.note: Any = None
        self.exception: BaseException | None = None
        self.context: Context = copy_context()


class FakeEngine:
    """One call. Time passes only where the script says so."""

    def __init__(
        self,
        sink: Sink | None,
        role: str = "consumer",
        *,
        is_direct: bool = False,
        **settings: Any,
    ) -> None:
        assert sink is not None
        self.sink = sink
        # An engine may tell of lifecycles by calling a sink's own methods for that.
        self.story: Any = sink if is_direct else None
        self.time = 1000.0
        self.call = Call(role, "Orders", f"call-{id(self)}", self.now, {**SETTINGS, **settings})

    def now(self) -> float:
        return self.time

    def emit(self, name: str, **fields: Any) -> None:
        fields.setdefault("call", self.call)
        assert set(CATALOGUE[name][1]) <= set(fields), name
        self.sink.emit(Notice(name, self.time, fields))

    def begin(self) -> None:
        self.emit("call.began")

    def end(self, report: Any = None, error: BaseException | None = None) -> None:
        self.emit("call.ended", report=report, error=error)

    def fetch(
        self,
        delivered: int,
        number: int = 0,
        *,
        body: Callable[[], Any] = lambda: None,
        failure: Failure | None = None,
        hangs: bool = False,
    ) -> None:
        attempt = Attempt(self.call, None, "fetch", number)
        attempt.began_at = self.time
        self.emit("fetch.began", attempt=attempt, requested=10)
        context = copy_context()
        self.sink.enter(attempt, context)
        context.run(body)
        self.time += 0.25
        if not hangs:
            self.emit(
                "fetch.ended",
                attempt=attempt,
                requested=10,
                delivered=delivered,
                failure=failure,
                began_at=attempt.began_at,
            )

    def take(self, transaction: Transaction) -> FakeRun:
        run = FakeRun(transaction, self.time)
        if self.story is not None:
            self.story.began(self.call, run)
        else:
            self.emit("transaction.began", run=run)
        return run

    def attempt(
        self,
        run: FakeRun,
        phase: str,
        number: int = 0,
        *,
        body: Callable[[], Any] = lambda: None,
        failure: Failure | None = None,
        exception: BaseException | None = None,
        seconds: float = 1.0,
    ) -> Any:
        """Run ``body`` as the engine runs a hook: inside a private context the sink has entered."""
        context = run.context.copy()
        attempt = self.enter(run, phase, number, context)
        result = context.run(body)
        self.time += seconds
        self.tell(attempt, failure, exception, result)
        return result

    def enter(
        self, run: FakeRun, phase: str, number: int = 0, context: Context | None = None
    ) -> Attempt:
        """Begin an attempt; alone, one that never comes back."""
        inside = run.context.copy() if context is None else context
        attempt = Attempt(self.call, run, phase, number)
        attempt.began_at = self.time
        self.sink.enter(attempt, inside)
        inside.run(CURRENT.set, attempt)
        return attempt

    def tell(
        self,
        attempt: Attempt,
        failure: Failure | None = None,
        exception: BaseException | None = None,
        result: Any = None,
    ) -> None:
        """Say how an attempt ended."""
        if self.story is not None:
            self.story.left(attempt, self.time, failure, exception, result)
            return
        self.emit(
            "attempt.ended", attempt=attempt, failure=failure, exception=exception, result=result
        )

    def retry(self, run: FakeRun, phase: str, number: int, delay: float) -> None:
        self.emit(
            "retry.scheduled", run=run, phase=phase, attempt=number, delay=delay, failure=DOWN
        )
        self.time += delay

    def finish(
        self,
        run: FakeRun,
        ending: str = "succeeded",
        failure: Failure | None = None,
        handler_failure: Failure | None = None,
    ) -> None:
        if self.story is not None:
            self.story.ended(self.call, run, self.time, ending, failure, handler_failure)
            return
        self.emit(
            "transaction.ended",
            run=run,
            ending=ending,
            failure=failure,
            handler_failure=handler_failure,
        )

    def succeed(self, transaction: Transaction, body: Callable[[], Any] = lambda: None) -> None:
        """A whole lifecycle in which everything returns."""
        run = self.take(transaction)
        work = "process" if self.call.role == "consumer" else "produce"
        self.attempt(run, work, body=body)
        self.attempt(run, "success")
        self.finish(run)
