"""Running a plan for a task: the one place where task, driver, clock and telemetry meet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ergon_framework.core.transaction_lifecycle import Ending
from ergon_framework.engine.asyncio_engine import AsyncioEngine
from ergon_framework.engine.clocks import SYSTEM_CLOCK, current_clock
from ergon_framework.engine.plan import EnginePlan
from ergon_framework.engine.report import Report
from ergon_framework.engine.run import LifecycleRun
from ergon_framework.engine.thread_engine import ThreadEngine
from ergon_framework.errors import EnvelopeError, WiringError
from ergon_framework.ports.context import Attempt, current_attempt
from ergon_framework.ports.notice import Sink
from ergon_framework.ports.transaction import Transaction
from ergon_framework.task.base import BaseTask, begin_call, end_call
from ergon_framework.telemetry import make_sink


def drive(task: BaseTask, plan: EnginePlan) -> Report:
    """Run a call with threads."""
    engine = ThreadEngine(plan, clock=current_clock(), sink=_sink(plan))
    begin_call(task, engine)
    try:
        with _inside(current_attempt(), engine):
            return engine.run()
    finally:
        end_call(task, engine)


@contextmanager
def _inside(attempt: Attempt | None, engine: ThreadEngine) -> Iterator[None]:
    """A call made by a hook ends when the engine gives up on that hook's attempt."""
    if attempt is None:
        yield
        return
    run = attempt.run
    run.inner = (*run.inner, engine)
    # The engine may have given up before this call was added to run.inner: then only we can stop
    # it. A second request stops it at once, since no result of it is wanted any more.
    if attempt.is_cancelled:
        engine.request_stop()
        engine.request_stop()
    try:
        yield
    finally:
        run.inner = tuple(call for call in run.inner if call is not engine)


async def drive_async(task: BaseTask, plan: EnginePlan) -> Report:
    """Run a call with asyncio."""
    _check_time()
    engine = AsyncioEngine(plan, sink=_sink(plan))
    begin_call(task, engine)
    try:
        return await engine.run()
    finally:
        end_call(task, engine)


def _sink(plan: EnginePlan) -> Sink | None:
    return make_sink(joins_trace=plan.settings.get("joins_trace") is True)


def _check_time() -> None:
    """Under a virtual clock, asyncio must run on its event loop, or it waits in real time."""
    clock = current_clock()
    if clock is not SYSTEM_CLOCK:
        loop = asyncio.get_running_loop()
        if getattr(loop, "virtual_clock", None) is not clock:
            raise WiringError(
                "a virtual clock is in use, but this event loop follows real time",
                remedy="run the coroutine with clock.run(...)",
            )


class Single:
    """A plan for one transaction, and the run it led to."""

    def __init__(self, plan: EnginePlan, transaction: object) -> None:
        if not isinstance(transaction, Transaction):
            raise EnvelopeError(
                f"a Transaction is needed, not {type(transaction).__name__}",
                remedy="Transaction(transaction_id=..., payload=...)",
            )
        self._waiting: list[Transaction] = [transaction]
        self._run: LifecycleRun | None = None
        self.plan = replace(
            plan,
            fetch=self._fetch,
            ended=self._ended,
            settlement=None,
            # No source would deliver it again.
            lifecycle=replace(plan.lifecycle, parks=False, max_hold=None),
        )

    def _fetch(self, _at_most: int) -> list[Transaction]:
        taken, self._waiting = self._waiting, []
        return taken

    def _ended(self, run: LifecycleRun) -> None:
        self._run = run

    def answer(self) -> tuple[bool, Any]:
        """(True, the result) or (False, the final exception)."""
        run = self._run
        if run is None or run.end is None:
            return False, None
        if run.end.how is Ending.SUCCEEDED:
            return True, run.result
        if run.end.how is Ending.DISCARDED:
            return True, None
        failed_in_handler = run.handler_exception is not None  # an exception may say it is false
        return False, run.handler_exception if failed_in_handler else run.exception
