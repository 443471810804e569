"""Connectors and tasks that follow a script and record what happened to them.

A script says, for each hook, what the next calls do: a value to return, an exception to raise, or
``Takes(seconds, then)`` to spend time first. The last entry of a script repeats.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from ergon_framework.engine.clocks import current_clock
from ergon_framework.errors import WiringError
from ergon_framework.ports.context import current_attempt
from ergon_framework.ports.transaction import Transaction
from ergon_framework.task.base import BaseAsyncTask, BaseTask
from ergon_framework.task.mixins.consumer import AsyncConsumerMixin, ConsumerMixin
from ergon_framework.task.mixins.producer import AsyncProducerMixin, ProducerMixin
from ergon_framework.testing.clock import VirtualClock


@dataclass(frozen=True, slots=True)
class Takes:
    """Spend this much (virtual) time, then do the rest of the entry."""

    seconds: float
    then: Any = None


@dataclass(frozen=True, slots=True)
class Happened:
    """One call of a hook: when it began, which hook, for which transaction, which attempt."""

    at: float
    hook: str
    transaction_id: str
    attempt: int
    argument: Any = None


def transactions(count: int, prefix: str = "t") -> list[Transaction]:
    """``count`` transactions with the ids t1, t2, …"""
    return [Transaction(f"{prefix}{n}", n) for n in range(1, count + 1)]


class ScriptedConnector:
    """Answers each fetch with the next entry; afterwards it is empty. Sync and async.

    An entry is a list of transactions, None, an exception to raise, or ``Takes``. With
    ``settling=True`` it offers ack, nack and release and notes them in ``settled``.
    """

    def __init__(self, answers: Iterable[Any] = (), *, settling: bool = False) -> None:
        self._answers = iter(answers)
        self.fetches: list[tuple[int, dict[str, Any]]] = []
        self.settled: list[tuple[str, str]] = []
        # As attributes and not as methods: the engine asks whether a connector has them, and this
        # one has none by default.
        if settling:
            for verb in ("ack", "nack", "release"):
                setattr(self, verb, self._settler(verb))

    def _settler(self, verb: str) -> Any:
        def settle(transaction: Transaction, _exc: Any = None) -> None:
            self.settled.append((verb, transaction.transaction_id))

        return settle

    def fetch_transactions(self, batch_size: int, **extra: Any) -> Any:
        """The next entry."""
        self.fetches.append((batch_size, extra))
        return act(next(self._answers, None))

    async def fetch_transactions_async(self, batch_size: int, **extra: Any) -> Any:
        """The next entry."""
        self.fetches.append((batch_size, extra))
        return await act_async(next(self._answers, None))


class Script:
    """What each hook of a task does, call by call, per transaction or for all."""

    def __init__(self, task: str, names: Sequence[str], hooks: Mapping[str, Any]) -> None:
        unknown = sorted(hooks.keys() - set(names))
        if unknown:
            near = get_close_matches(unknown[0], names, 1)
            raise WiringError(
                f"{task} has no hook {unknown[0]!r} to follow a script",
                remedy=f"did you mean {near[0]!r}?" if near else f"use {', '.join(names)}",
            )
        self._hooks = hooks
        self._counts: dict[tuple[str, str], Any] = {}
        self.happened: list[Happened] = []

    def next_entry(self, hook: str, transaction: Transaction, argument: Any, at: float) -> Any:
        """Record the call. Returns what it does."""
        attempt = current_attempt()
        number = -1 if attempt is None else attempt.number
        key = transaction.transaction_id
        self.happened.append(Happened(at, hook, key, number, argument))
        entries = self._hooks.get(hook, ())
        if isinstance(entries, Mapping):
            entries = entries.get(key, ())
        if not isinstance(entries, Sequence) or isinstance(entries, str | bytes):
            entries = (entries,)
        if not entries:
            return None
        turn = next(self._counts.setdefault((hook, key), itertools.count()))
        return entries[min(turn, len(entries) - 1)]

    def act(self, hook: str, transaction: Transaction, argument: Any = None) -> Any:
        """Do what the hook of a task does at this call."""
        return act(self.next_entry(hook, transaction, argument, current_clock().now()))

    async def act_async(self, hook: str, transaction: Transaction, argument: Any = None) -> Any:
        """The async version of :meth:`act`."""
        now = asyncio.get_running_loop().time()
        return await act_async(self.next_entry(hook, transaction, argument, now))

    def calls(self, hook: str | None = None) -> list[str]:
        """The ids that the hook was called with, or ``hook:id`` for all hooks, in order."""
        if hook is None:
            return [f"{each.hook}:{each.transaction_id}" for each in self.happened]
        return [each.transaction_id for each in self.happened if each.hook == hook]


class ScriptedConsumer(ConsumerMixin, BaseTask):
    """A consumer; scripts are given as ``process=``, ``success=``, ``exception=``."""

    def __init__(self, connectors: Any = None, services: Any = None, **hooks: Any) -> None:
        super().__init__(connectors, services)
        self.script = Script(type(self).__name__, ("process", "success", "exception"), hooks)

    def process_transaction(self, transaction: Transaction) -> Any:
        """Follow the script."""
        return self.script.act("process", transaction)

    def handle_transaction_success(self, transaction: Transaction, result: Any) -> Any:
        """Follow the script."""
        return self.script.act("success", transaction, result)

    def handle_transaction_exception(self, transaction: Transaction, exc: Any) -> Any:
        """Follow the script."""
        return self.script.act("exception", transaction, exc)


class AsyncScriptedConsumer(AsyncConsumerMixin, BaseAsyncTask):
    """The async version of :class:`ScriptedConsumer`."""

    def __init__(self, connectors: Any = None, services: Any = None, **hooks: Any) -> None:
        super().__init__(connectors, services)
        self.script = Script(type(self).__name__, ("process", "success", "exception"), hooks)

    async def process_transaction(self, transaction: Transaction) -> Any:
        """Follow the script."""
        return await self.script.act_async("process", transaction)

    async def handle_transaction_success(self, transaction: Transaction, result: Any) -> Any:
        """Follow the script."""
        return await self.script.act_async("success", transaction, result)

    async def handle_transaction_exception(self, transaction: Transaction, exc: Any) -> Any:
        """Follow the script."""
        return await self.script.act_async("exception", transaction, exc)


class ScriptedProducer(ProducerMixin, BaseTask):
    """A producer; scripts are given as ``produce=``, ``success=``, ``exception=``."""

    def __init__(self, connectors: Any = None, services: Any = None, **hooks: Any) -> None:
        super().__init__(connectors, services)
        self.script = Script(type(self).__name__, ("produce", "success", "exception"), hooks)

    def produce_transaction(self, transaction: Transaction) -> Any:
        """Follow the script."""
        return self.script.act("produce", transaction)

    def handle_produce_success(self, transaction: Transaction, result: Any) -> Any:
        """Follow the script."""
        return self.script.act("success", transaction, result)

    def handle_produce_exception(self, transaction: Transaction, exc: Any) -> Any:
        """Follow the script."""
        return self.script.act("exception", transaction, exc)


class AsyncScriptedProducer(AsyncProducerMixin, BaseAsyncTask):
    """The async version of :class:`ScriptedProducer`."""

    def __init__(self, connectors: Any = None, services: Any = None, **hooks: Any) -> None:
        super().__init__(connectors, services)
        self.script = Script(type(self).__name__, ("produce", "success", "exception"), hooks)

    async def produce_transaction(self, transaction: Transaction) -> Any:
        """Follow the script."""
        return await self.script.act_async("produce", transaction)

    async def handle_produce_success(self, transaction: Transaction, result: Any) -> Any:
        """Follow the script."""
        return await self.script.act_async("success", transaction, result)

    async def handle_produce_exception(self, transaction: Transaction, exc: Any) -> Any:
        """Follow the script."""
        return await self.script.act_async("exception", transaction, exc)


def act(entry: Any) -> Any:
    """Carry out an entry of a script."""
    while isinstance(entry, Takes):
        clock = current_clock()
        if not isinstance(clock, VirtualClock):
            raise TypeError("Takes needs a virtual clock: with VirtualClock() as clock: …")
        clock.sleep(entry.seconds)
        entry = entry.then
    return _finish(entry)


async def act_async(entry: Any) -> Any:
    """Like ``act``, on an event loop."""
    while isinstance(entry, Takes):
        await asyncio.sleep(entry.seconds)
        entry = entry.then
    return _finish(entry)


def _finish(entry: Any) -> Any:
    if isinstance(entry, BaseException) or (
        isinstance(entry, type) and issubclass(entry, BaseException)
    ):
        raise entry
    return entry() if callable(entry) else entry
