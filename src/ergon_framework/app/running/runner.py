"""Running one task in this process, from its wiring to its outcome."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from ergon_framework.app.assembly.parts import assembled, assembled_async
from ergon_framework.app.assembly.roles import execution_of
from ergon_framework.app.assembly.wiring import Wiring
from ergon_framework.app.running.children import Parent
from ergon_framework.app.running.liveness import Liveness
from ergon_framework.app.running.outcome import Outcome, outcome_of
from ergon_framework.app.running.publication import Publication
from ergon_framework.app.running.shutdown import Shutdown
from ergon_framework.app.running.ticker import Ticker
from ergon_framework.engine.clocks import AsyncSignal
from ergon_framework.task.base import BaseTask
from ergon_framework.task.mixins.utils import run_with_timeout
from ergon_framework.telemetry import add_listener, remove_listener

logger = logging.getLogger("ergon.app")

LOOP_CLOSE_TIMEOUT = 1.0
"""Seconds for closing the event loop, which waits for every thread of ``asyncio.to_thread``."""
TURN_EVERY = 1.0

BEAT_EVERY = 2.0
"""Seconds between two words of a worker to its parent."""
ORPHAN_MARGIN = 10.0
"""Seconds an orphan has beyond its own grace."""

Work = Any
"""What is done with an open task: called with it, it gives a result or an awaitable of one."""


def run_here(wiring: Wiring, shutdown: Shutdown, publication: Publication) -> Outcome:
    """Run in a process of its own, which tells everybody how it is."""
    if not publication.is_wanted:
        return run_task(wiring, shutdown)
    liveness = _liveness(publication, shutdown)
    with publication.of(wiring.name, liveness.snapshot):
        return run_task(wiring, shutdown, liveness)


def run_for(
    parent: Parent, wiring: Wiring, shutdown: Shutdown, publication: Publication
) -> Outcome:
    """Run as a worker of ``parent``, which is told how this process is."""
    parent.patience = wiring.policies.main(wiring.kind).loop.stop_grace + ORPHAN_MARGIN
    if not publication.is_wanted:
        return run_task(wiring, shutdown, ready=parent.tell_ready)
    liveness = _liveness(publication, shutdown)
    with Ticker("the heartbeat", BEAT_EVERY, lambda: parent.tell_beat(liveness.snapshot())):
        return run_task(wiring, shutdown, liveness, parent.tell_ready)


def run_task(
    wiring: Wiring,
    shutdown: Shutdown,
    liveness: Liveness | None = None,
    ready: Callable[[], object] = lambda: None,
) -> Outcome:
    """Build, open, execute, close. Whatever happens, the answer is an outcome.

    ``ready`` is called when all parts are open and the work begins.
    """

    def execute(task: BaseTask) -> Any:
        ready()
        return wiring.execute(task)

    result, error = None, None
    try:
        with _listening(liveness):
            result = work_on(wiring, shutdown, execute, liveness)
    except (Exception, KeyboardInterrupt, SystemExit) as problem:
        error = problem
    return outcome_of(wiring.name, wiring.kind, result, error, shutdown.exit_code)


def work_on(
    wiring: Wiring, shutdown: Shutdown, work: Work, liveness: Liveness | None = None
) -> Any:
    """The result of ``work`` on the task with its parts open; None when a stop came first."""
    if not _is_async(wiring):
        with assembled(wiring) as task:
            shutdown.watch(task)
            return None if shutdown.is_asked else work(task)
    return _run_loop(_work_async(wiring, shutdown, work, liveness))


async def _work_async(
    wiring: Wiring, shutdown: Shutdown, work: Work, liveness: Liveness | None
) -> Any:
    turning = asyncio.create_task(_turn(liveness)) if liveness is not None else None
    try:
        async with assembled_async(wiring) as task:
            shutdown.watch(task)
            if shutdown.is_asked:
                return None
            result = work(task)
            return await result if inspect.isawaitable(result) else result
    finally:
        if turning is not None:
            turning.cancel()


async def _turn(liveness: Liveness) -> None:
    """Show that the event loop turns."""
    nap = AsyncSignal()
    loop = asyncio.get_running_loop()
    while True:
        liveness.loop_turned()
        await nap.wait(loop.time() + TURN_EVERY)


def _run_loop(main: Coroutine[Any, Any, Any]) -> Any:
    runner = asyncio.Runner()
    try:
        return runner.run(main)
    finally:
        # A coroutine that swallows its cancellation, or a thread that hangs, must not keep us.
        try:
            run_with_timeout(runner.close, LOOP_CLOSE_TIMEOUT)
        except TimeoutError:
            logger.warning("the event loop could not be closed in time; something in it hangs")


def _is_async(wiring: Wiring) -> bool:
    specimen: BaseTask | None = wiring.specimen()
    is_coroutine = specimen is not None and inspect.iscoroutinefunction(
        execution_of(specimen, wiring.kind)
    )
    return wiring.kind.is_async or is_coroutine


def _liveness(publication: Publication, shutdown: Shutdown) -> Liveness:
    return Liveness(stall_after=publication.stall_after, is_stopping=lambda: shutdown.is_asked)


@contextmanager
def _listening(liveness: Liveness | None) -> Iterator[None]:
    if liveness is None:
        yield
        return
    add_listener(liveness)
    try:
        yield
    finally:
        remove_listener(liveness)
        liveness.ended()
