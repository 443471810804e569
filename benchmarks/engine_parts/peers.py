"""The others: two bare windows, and the public package ``ergon-framework-python``.

Each gets what helps it: its transactions are built before the clock starts, the thread windows have
no batches to wait for, and the package runs without its default runtime timeout, as ours does.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import cache
from typing import Any

from engine_parts.noop import Hooks, Run, Source, Workload, coroutines, task_class
from engine_parts.rounds import Runner

PACKAGE = "ergon-framework-python"
THREAD_WINDOW = "ThreadPoolExecutor window"
PERMIT_WINDOW = "ThreadPoolExecutor + semaphore"
TASK_WINDOW = "create_task window"


class Item:
    """As small as a transaction can be."""

    __slots__ = ("id",)

    def __init__(self, number: int) -> None:
        self.id = str(number)


@cache
def _items(count: int) -> list[Item]:
    return [Item(number) for number in range(count)]


def thread_window(concurrency: int) -> Runner:
    """Submit up to ``concurrency`` futures, wait for the first, refill."""

    def prepare(hooks: Hooks, count: int) -> Run:
        items, lifecycle = _items(count), _lifecycle(hooks)

        def run() -> int:
            ended = 0
            window: set[Future[None]] = set()
            with ThreadPoolExecutor(max_workers=concurrency) as pool:
                for item in items:
                    window.add(pool.submit(lifecycle, item))
                    if len(window) >= concurrency:
                        done, window = wait(window, return_when=FIRST_COMPLETED)
                        ended += len(done)
                return ended + len(wait(window).done)

        return run

    return Runner(THREAD_WINDOW, prepare)


def permit_window(concurrency: int) -> Runner:
    """Submit whenever a semaphore has room: faster, since nobody looks at the futures."""

    def prepare(hooks: Hooks, count: int) -> Run:
        items, lifecycle = _items(count), _lifecycle(hooks)

        def run() -> int:
            room = threading.Semaphore(concurrency)

            def guarded(item: Item) -> None:
                lifecycle(item)
                room.release()

            with ThreadPoolExecutor(max_workers=concurrency) as pool:
                for item in items:
                    room.acquire()
                    pool.submit(guarded, item)
            return len(items)

        return run

    return Runner(PERMIT_WINDOW, prepare)


def _lifecycle(hooks: Hooks) -> Callable[[Item], None]:
    process, succeed = hooks.process, hooks.succeed

    def lifecycle(item: Item) -> None:
        succeed(item, process(item))

    return lifecycle


def task_window(concurrency: int, batch: int = 100) -> Runner:
    """One task per transaction of a batch, a semaphore inside: the fastest plain form we found."""

    def prepare(hooks: Hooks, count: int) -> Run:
        items = _items(count)
        process, succeed = coroutines(hooks)

        async def main() -> int:
            room = asyncio.Semaphore(concurrency)

            async def lifecycle(item: Item) -> None:
                async with room:
                    await succeed(item, await process(item))

            ended = 0
            for start in range(0, count, batch):
                some = items[start : start + batch]
                tasks = [asyncio.create_task(lifecycle(item)) for item in some]
                ended += len(await asyncio.gather(*tasks))
            return ended

        return lambda: asyncio.run(main())

    return Runner(TASK_WINDOW, prepare)


def package(workload: Workload) -> Runner:
    """The public package with the same batch size, concurrency and timeout."""
    try:
        from ergon import connector, task
    except ImportError as error:
        return Runner(PACKAGE, _unavailable, skipped=f"{PACKAGE} is not installed: {error}")
    transactions = cache(
        lambda count: [connector.Transaction(id=str(n), payload=None) for n in range(count)]
    )
    parts = task.mixins, task.policies
    if workload.role == "produce":
        return _package_producer(workload, transactions, *parts)
    return _package_consumer(workload, transactions, *parts)


def _unavailable(hooks: Hooks, count: int) -> Run:
    raise NotImplementedError


def _package_consumer(workload: Workload, transactions: Any, mixins: Any, policies: Any) -> Runner:
    retry = policies.RetryPolicy(timeout=workload.timeout)
    policy = policies.ConsumerPolicy(
        loop=policies.ConsumerLoopPolicy(
            concurrency=policies.ConcurrencyPolicy(value=workload.concurrency)
        ),
        fetch=policies.FetchPolicy(batch=policies.BatchPolicy(size=workload.batch)),
        transaction_runtime=policies.TransactionRuntimePolicy(timeout=None),
        process=policies.ProcessPolicy(retry=retry),
        success=policies.SuccessPolicy(retry=retry),
    )

    def prepare(hooks: Hooks, count: int) -> Run:
        base = mixins.AsyncConsumerTask if workload.is_async else mixins.ConsumerTask
        names = ("process_transaction", "handle_process_success")
        kind = task_class(base, names, hooks, workload.is_async)
        source = Source(transactions(count))
        noop = kind(connectors={"source": source}, services={}, policies=[])
        if workload.is_async:
            return lambda: int(asyncio.run(noop.consume_transactions(policy)))
        return lambda: int(noop.consume_transactions(policy))

    return Runner(PACKAGE, prepare)


def _package_producer(workload: Workload, transactions: Any, mixins: Any, policies: Any) -> Runner:
    retry = policies.RetryPolicy(timeout=workload.timeout)
    policy = policies.ProducerPolicy(
        loop=policies.ProducerLoopPolicy(
            concurrency=policies.ConcurrencyPolicy(value=workload.concurrency),
            batch=policies.BatchPolicy(size=workload.batch),
        ),
        transaction_runtime=policies.TransactionRuntimePolicy(timeout=None),
        prepare=policies.PreparePolicy(retry=retry),
        success=policies.SuccessPolicy(retry=retry),
    )

    def prepare(hooks: Hooks, count: int) -> Run:
        base = mixins.AsyncProducerTask if workload.is_async else mixins.ProducerTask
        names = ("prepare_transaction", "handle_prepare_success")
        kind = task_class(base, names, hooks, workload.is_async)
        noop = kind(connectors={}, services={}, policies=[])
        given = transactions(count)
        if workload.is_async:
            return lambda: int(asyncio.run(noop.produce_transactions(given, policy)))
        return lambda: int(noop.produce_transactions(given, policy))

    return Runner(PACKAGE, prepare)
