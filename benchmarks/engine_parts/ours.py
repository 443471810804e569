"""Our engines as runners."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import cache, partial
from typing import Any

from engine_parts.noop import Hooks, Run, Source, Workload, task_class
from engine_parts.rounds import Runner

US = "Ergon"


def engine(workload: Workload, name: str = US) -> Runner:
    """Our consumer or producer of that workload."""
    try:
        from ergon_framework.connector.transaction import Transaction

        rules = policy(workload)
    except ImportError as error:
        return Runner(name, _unavailable, skipped=f"{US} is not installed: {error}")

    @cache
    def transactions(count: int) -> list[Any]:
        return [Transaction(transaction_id=str(number)) for number in range(count)]

    def prepare(hooks: Hooks, count: int) -> Run:
        return start(workload, rules, transactions(count), hooks)

    return Runner(name, prepare)


def start(workload: Workload, rules: Any, transactions: Iterable[Any], hooks: Hooks) -> Run:
    """A run over these transactions, which may be an endless-looking iterator."""
    names = {
        "consume": ("process_transaction", "handle_transaction_success"),
        "produce": ("produce_transaction", "handle_produce_success"),
    }[workload.role]
    kind = task_class(_base(workload), names, hooks, workload.is_async)
    if workload.role == "consume":
        noop = kind(connectors={"source": Source(transactions)}, services={})
        call = partial(noop.consume_transactions, rules)
    else:
        noop = kind(connectors={}, services={})
        call = partial(noop.produce_transactions, transactions, rules)
    if workload.is_async:
        return lambda: _succeeded(asyncio.run(call()))
    return lambda: _succeeded(call())


def _succeeded(report: Any) -> int:
    return int(report.succeeded)


def _unavailable(hooks: Hooks, count: int) -> Run:
    raise NotImplementedError


def _base(workload: Workload) -> type:
    from ergon_framework.task.base import BaseAsyncTask, BaseTask
    from ergon_framework.task.mixins import consumer, producer

    mixin: type = {
        ("consume", False): consumer.ConsumerMixin,
        ("consume", True): consumer.AsyncConsumerMixin,
        ("produce", False): producer.ProducerMixin,
        ("produce", True): producer.AsyncProducerMixin,
    }[workload.role, workload.is_async]
    return type("NoopBase", (mixin, BaseAsyncTask if workload.is_async else BaseTask), {})


def policy(workload: Workload) -> Any:
    """The policy of that workload; everything the workload does not say is default."""
    from ergon_framework.task.mixins import policies as p

    loop: dict[str, Any] = {
        "batch": p.BatchPolicy(size=workload.batch),
        "concurrency": p.ConcurrencyPolicy(value=workload.concurrency),
    }
    retry = p.RetryPolicy(timeout=workload.timeout)
    success = p.SuccessPolicy(retry=retry)
    if workload.role == "consume":
        steps = p.ConsumerSteps(process=p.ProcessPolicy(retry=retry), success=success)
        return p.ConsumerPolicy(loop=p.ConsumerLoopPolicy(**loop), steps=steps)
    produce = p.ProducerSteps(produce=p.ProducePolicy(retry=retry), success=success)
    return p.ProducerPolicy(loop=p.ProducerLoopPolicy(**loop), steps=produce)
