"""Our engines as contestants."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import cache, partial
from typing import Any

from engine_parts.noop import Hooks, Run, Shape, Source, task_class
from engine_parts.rounds import Contestant

US = "Ergon"


def engine(shape: Shape, who: str = US) -> Contestant:
    """Our consumer or producer of that shape."""
    try:
        from ergon_framework.connector.transaction import Transaction

        rules = policy(shape)
    except ImportError as error:
        return Contestant(who, _unavailable, skipped=f"{US} is not installed: {error}")

    @cache
    def transactions(count: int) -> list[Any]:
        return [Transaction(transaction_id=str(number)) for number in range(count)]

    def prepare(hooks: Hooks, count: int) -> Run:
        return start(shape, rules, transactions(count), hooks)

    return Contestant(who, prepare)


def start(shape: Shape, rules: Any, transactions: Iterable[Any], hooks: Hooks) -> Run:
    """A run over these transactions, which may be an endless-looking iterator."""
    names = {
        "consume": ("process_transaction", "handle_transaction_success"),
        "produce": ("produce_transaction", "handle_produce_success"),
    }[shape.role]
    kind = task_class(_base(shape), names, hooks, shape.is_async)
    if shape.role == "consume":
        noop = kind(connectors={"source": Source(transactions)}, services={})
        call = partial(noop.consume_transactions, rules)
    else:
        noop = kind(connectors={}, services={})
        call = partial(noop.produce_transactions, transactions, rules)
    if shape.is_async:
        return lambda: _succeeded(asyncio.run(call()))
    return lambda: _succeeded(call())


def _succeeded(report: Any) -> int:
    return int(report.succeeded)


def _unavailable(hooks: Hooks, count: int) -> Run:
    raise NotImplementedError


def _base(shape: Shape) -> type:
    from ergon_framework.task.base import BaseAsyncTask, BaseTask
    from ergon_framework.task.mixins import consumer, producer

    mixin: type = {
        ("consume", False): consumer.ConsumerMixin,
        ("consume", True): consumer.AsyncConsumerMixin,
        ("produce", False): producer.ProducerMixin,
        ("produce", True): producer.AsyncProducerMixin,
    }[shape.role, shape.is_async]
    return type("NoopBase", (mixin, BaseAsyncTask if shape.is_async else BaseTask), {})


def policy(shape: Shape) -> Any:
    """The policy of that shape; everything the shape does not say is default."""
    from ergon_framework.task.mixins import policies as p

    loop: dict[str, Any] = {
        "batch": p.BatchPolicy(size=shape.batch),
        "concurrency": p.ConcurrencyPolicy(value=shape.concurrency),
    }
    retry = p.RetryPolicy(timeout=shape.timeout)
    success = p.SuccessPolicy(retry=retry)
    if shape.role == "consume":
        steps = p.ConsumerSteps(process=p.ProcessPolicy(retry=retry), success=success)
        return p.ConsumerPolicy(loop=p.ConsumerLoopPolicy(**loop), steps=steps)
    produce = p.ProducerSteps(produce=p.ProducePolicy(retry=retry), success=success)
    return p.ProducerPolicy(loop=p.ProducerLoopPolicy(**loop), steps=produce)
