"""Tasks whose hooks are written once, as coroutines, and run in both colours.

A body awaits only :func:`nap`. For threads it is driven by hand: a nap then blocks on the virtual
clock and nothing is ever suspended.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ergon_framework.connector.transaction import Transaction
from ergon_framework.engine.clocks import current_clock
from ergon_framework.engine.report import Report
from ergon_framework.task.base import BaseAsyncTask, BaseTask
from ergon_framework.task.exceptions import ExceptionType, TransactionException
from ergon_framework.task.mixins.consumer import AsyncConsumerMixin, ConsumerMixin
from ergon_framework.task.mixins.producer import AsyncProducerMixin, ProducerMixin
from ergon_framework.testing.clock import VirtualClock
from tests.engine.colours import Colour, Outcome

Body = Callable[..., Coroutine[Any, Any, Any]]

CONSUMER_HOOKS = {
    "process": "process_transaction",
    "success": "handle_transaction_success",
    "exception": "handle_transaction_exception",
}
PRODUCER_HOOKS = {
    "produce": "produce_transaction",
    "success": "handle_produce_success",
    "exception": "handle_produce_exception",
}


async def nap(seconds: float) -> None:
    """Spend virtual time in either colour."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        clock = current_clock()
        assert isinstance(clock, VirtualClock)
        clock.sleep(seconds)
        return
    await asyncio.sleep(seconds)


def now() -> float:
    """The virtual instant, in either colour."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return current_clock().now()


async def settled(value: Any) -> Any:
    """What an engine call answered, awaited where it must be."""
    return await value if isinstance(value, Awaitable) else value


def by_hand(body: Coroutine[Any, Any, Any]) -> Any:
    """Run a body that never really suspends."""
    try:
        body.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("a body for threads may only await nap()")


def method(colour: Colour, body: Body) -> Any:
    """A method of that colour around a body, which gets no ``self``."""
    if colour == "async":

        async def awaits(_self: Any, *args: Any, **kwargs: Any) -> Any:
            return await body(*args, **kwargs)

        return awaits

    def calls(_self: Any, *args: Any, **kwargs: Any) -> Any:
        return by_hand(body(*args, **kwargs))

    return calls


def consumer(colour: Colour, connector: Any, **hooks: Body) -> Any:
    """A consumer with exactly these hooks, reading from the connector."""
    bases = (ConsumerMixin, BaseTask) if colour == "sync" else (AsyncConsumerMixin, BaseAsyncTask)
    return _task(colour, bases, CONSUMER_HOOKS, hooks)({"source": connector}, {})


def producer(colour: Colour, connectors: Mapping[str, Any] | None = None, **hooks: Body) -> Any:
    """A producer with exactly these hooks."""
    bases = (ProducerMixin, BaseTask) if colour == "sync" else (AsyncProducerMixin, BaseAsyncTask)
    return _task(colour, bases, PRODUCER_HOOKS, hooks)(connectors or {}, {})


def _task(
    colour: Colour, bases: tuple[Any, ...], names: Mapping[str, str], hooks: Mapping[str, Body]
) -> Any:
    return type("Scene", bases, {names[key]: method(colour, body) for key, body in hooks.items()})


def rules(
    *,
    size: int = 1,
    concurrency: int = 1,
    max_abandoned: int | None = None,
    abandoned: str = "release",
    steps: Mapping[str, Any] | None = None,
    extra: Mapping[str, Any] | None = None,
    **loop: Any,
) -> dict[str, Any]:
    """A policy as a mapping; ``steps`` gives each named step its retry fields."""
    shape: dict[str, Any] = {name: {"retry": retry} for name, retry in (steps or {}).items()}
    if extra is not None:
        shape.setdefault("fetch", {})["extra"] = extra
    bound = {"value": concurrency, "max_abandoned": max_abandoned, "abandoned": abandoned}
    return {"loop": {"batch": {"size": size}, "concurrency": bound, **loop}, "steps": shape}


def refusal(text: str = "refused") -> TransactionException:
    """A fresh BUSINESS exception."""
    return TransactionException(text, category=ExceptionType.BUSINESS)


class Gauge:
    """Counts who is inside, together and per key, and remembers the most there ever were."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside: dict[Any, int] = {}
        self.peak = 0
        self.peaks: dict[Any, int] = {}

    @contextmanager
    def inside(self, key: Any = None) -> Iterator[None]:
        """Be counted for the length of a block."""
        with self._lock:
            self._inside[key] = self._inside.get(key, 0) + 1
            self.peaks[key] = max(self.peaks.get(key, 0), self._inside[key])
            self.peak = max(self.peak, sum(self._inside.values()))
        try:
            yield
        finally:
            with self._lock:
                self._inside[key] -= 1


class Supply:
    """A connector over a list of transactions that hands out as many as are asked for."""

    def __init__(self, transactions: list[Transaction], *, takes: float = 0.0) -> None:
        self.waiting = list(transactions)
        self.asked: list[int] = []
        self.gauge = Gauge()
        self._takes = takes

    async def _fetch(self, batch_size: int) -> list[Transaction]:
        with self.gauge.inside():
            self.asked.append(batch_size)
            if self._takes:
                await nap(self._takes)
            given, self.waiting = self.waiting[:batch_size], self.waiting[batch_size:]
            return given

    def fetch_transactions(self, batch_size: int, **_extra: Any) -> list[Transaction]:
        """The next of them."""
        given: list[Transaction] = by_hand(self._fetch(batch_size))
        return given

    async def fetch_transactions_async(self, batch_size: int, **_extra: Any) -> list[Transaction]:
        """The next of them."""
        return await self._fetch(batch_size)


def final_report(outcome: Outcome) -> Report:
    """The call's report, also when it is 0, and so false, and came with an error."""
    attached: Report | None = getattr(outcome.error, "report", None)
    return outcome.report if attached is None else attached
