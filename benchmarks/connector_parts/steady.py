"""Lag and memory over many messages that keep coming: a million with ``--huge``.

A process of its own puts messages in at three tenths of the pace at which we take them out, which
is measured first: the broker and that process want the rest of the machine. The lag of a message is
from just before it was put in until its handler has it. Both are told by tenths of the run: they
are flat when the last says what the first does.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from comparison import ContestantError, Record, RunOptions
from engine_parts.memory import resident

from connector_parts import nats, rabbitmq, redis_streams, turns
from connector_parts.brokers import ROOT, broker
from connector_parts.feeder import CONNECTORS
from ergon_framework import AsyncConsumerTask, ConsumerTask, Transaction

QUICK, USUAL, HUGE = 2_000, 20_000, 1_000_000
PARTS = 10
SHARE = 0.3
"""Of our own pace, at which messages come."""
MOST_GROWTH = 2.0
"""MiB that memory may grow by between the first tenth and the last."""


def steady_redis_streams(options: RunOptions) -> Iterator[Record]:
    """On Valkey."""
    with broker("redis") as server:
        yield _steady("redis-streams", server.url, redis_streams, options)


def steady_redis_streams_threads(options: RunOptions) -> Iterator[Record]:
    """On Valkey, in threads: a million take half the time that they take an event loop."""
    with broker("redis") as server:
        yield _steady("redis-streams", server.url, redis_streams, options, in_threads=True)


def steady_nats(options: RunOptions) -> Iterator[Record]:
    """On NATS JetStream."""
    with broker("nats") as server:
        yield _steady("nats", server.url(), nats, options)


def steady_rabbitmq(options: RunOptions) -> Iterator[Record]:
    """On RabbitMQ."""
    with broker("rabbitmq") as server:
        yield _steady("rabbitmq", server.url(), rabbitmq, options)


class Watch:
    """Notes the lag of each message, and by tenths the median lag and what the process takes."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._lags: list[float] = []
        self.lag_ms: list[float] = []
        self.memory_mb: list[float] = []
        self.left = count

    def handle(self, order: dict[str, Any]) -> None:
        """A message has come."""
        self._lags.append(time.time() - order["at"])
        self.left -= 1
        if len(self._lags) >= self._count // PARTS:
            self.lag_ms.append(round(statistics.median(self._lags) * 1e3, 1))
            self.memory_mb.append(round(resident() / (1 << 20), 2))
            self._lags.clear()


def _steady(
    kind: str, url: str, part: Any, options: RunOptions, *, in_threads: bool = False
) -> Record:
    count = HUGE if options.is_huge else QUICK if options.is_quick else USUAL
    heat = next(each for each in part.heats(url) if each.case.endswith("-threads") == in_threads)
    rate = SHARE * heat.ours.consume(QUICK // 2).rate
    name, watch = part.filled(url, 1), Watch(count)
    words = [sys.executable, "-m", "benchmarks.connector_parts.feeder"]
    words += [kind, url, name, str(count), str(rate)]
    cpu_time = time.process_time()
    feeder = subprocess.Popen(words, cwd=ROOT)  # noqa: S603 - this very interpreter
    try:
        if in_threads:
            _consume(watch, count, CONNECTORS[kind](url, name))
        else:
            asyncio.run(_consume_async(watch, count, lambda: CONNECTORS[kind](url, name)))
    finally:
        feeder.kill()
        feeder.wait()
    if watch.left:
        raise ContestantError(f"{watch.left} messages were not handled")
    growth = round(watch.memory_mb[-1] - watch.memory_mb[0], 2)
    return {
        "case": f"steady-{kind}{'-threads' if in_threads else ''}",
        "who": "ergon",
        "count": count,
        "per_second": round(rate, 1),
        "cpu_us": round((time.process_time() - cpu_time) / count * 1e6, 1),
        "lag_ms": watch.lag_ms,
        "memory_mb": watch.memory_mb,
        "memory_growth_mb": growth,
        "target": f"memory <= {MOST_GROWTH:g} MiB more",
        "met": growth <= MOST_GROWTH,
    }


def _consume(watch: Watch, count: int, source: Any) -> None:
    class Orders(ConsumerTask):
        def process_transaction(self, transaction: Transaction) -> None:
            if "at" in transaction.payload:
                watch.handle(transaction.payload)

    with source:
        Orders({"in": source}).consume_transactions(_loop(count))


async def _consume_async(watch: Watch, count: int, make: Callable[[], Any]) -> None:
    class Orders(AsyncConsumerTask):
        async def process_transaction(self, transaction: Transaction) -> None:
            if "at" in transaction.payload:
                watch.handle(transaction.payload)

    source = make()
    await Orders({"in": source}).consume_transactions(_loop(count))
    await source.aclose()


def _loop(count: int) -> dict[str, Any]:
    loop = {"batch": {"size": turns.PREFETCH}, "limit": count + 1, "streaming": True}
    return {"loop": loop}
