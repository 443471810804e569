"""The work of the race: transactions that need nothing done, the same for every runner."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

Run = Callable[[], int]
"""Does the work once and answers how many transactions ended well."""


class Hooks:
    """The two calls per transaction: nothing, as fast as Python can."""

    def process(self, transaction: Any) -> None:
        """Process one transaction."""

    def succeed(self, transaction: Any, result: Any) -> None:
        """Take note of its success."""


class CountingHooks(Hooks):
    """The same, counting: shows before the race that both calls are really made."""

    def __init__(self) -> None:
        self.processed: list[str] = []  # appending is atomic, adding one is not
        self.succeeded: list[str] = []

    def process(self, transaction: Any) -> None:
        """Process one transaction."""
        self.processed.append(transaction.id)

    def succeed(self, transaction: Any, result: Any) -> None:
        """Take note of its success."""
        self.succeeded.append(transaction.id)


@dataclass(frozen=True)
class Workload:
    """What is asked of an engine: role, colour and the numbers of its policy."""

    role: str = "consume"
    is_async: bool = False
    concurrency: int = 1
    batch: int = 100
    timeout: float | None = None  # of every attempt of every step


class Source:
    """Hands out transactions in batches, to threads and to asyncio."""

    def __init__(self, transactions: Iterable[Any]) -> None:
        self._rest = iter(transactions)

    def fetch_transactions(self, batch_size: int, **extra: Any) -> list[Any]:
        """The next ones."""
        return list(islice(self._rest, batch_size))

    async def fetch_transactions_async(self, batch_size: int, **extra: Any) -> list[Any]:
        """The next ones."""
        return list(islice(self._rest, batch_size))


def coroutines(hooks: Hooks) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The two calls as coroutine functions."""
    plain_process, plain_succeed = hooks.process, hooks.succeed

    async def process(transaction: Any) -> None:
        return plain_process(transaction)

    async def succeed(transaction: Any, result: Any) -> None:
        return plain_succeed(transaction, result)

    return process, succeed


def task_class(base: type, names: tuple[str, str], hooks: Hooks, is_async: bool) -> Any:
    """A task of a framework whose two hooks, called ``names``, are the two calls."""
    process, succeed = coroutines(hooks) if is_async else (hooks.process, hooks.succeed)
    body = {names[0]: staticmethod(process), names[1]: staticmethod(succeed), "execute": _unused}
    return type("Noop", (base,), body)


def _unused(task: Any) -> None:
    raise NotImplementedError
