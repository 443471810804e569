"""All four engines at work, with everything that can go wrong.

    python examples/engines

Thirty orders are sold by a producer and packed by a consumer, first with threads, then with
asyncio. In each of the four engines one order is flaky, one is refused, one is broken, one never
comes back, and one makes even its exception handler crash. Watch each end in exactly one outcome.

Read this file from top to bottom: it is the shortest tour of the engines. The troubles, the display
and the table are in the files beside it.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

from display import Display
from outcomes import problems, show, summary
from stages import Stage
from troubles import ATTEMPTS, give_up, orders, work, work_async

from ergon_framework import (
    ConsumerPolicy,
    MemoryConnector,
    ProducerPolicy,
    Transaction,
    TransactionException,
)
from ergon_framework.task import (
    AsyncConsumerMixin,
    AsyncProducerMixin,
    BaseAsyncTask,
    BaseTask,
    BatchPolicy,
    ConcurrencyPolicy,
    ConsumerLoopPolicy,
    ConsumerMixin,
    ConsumerSteps,
    ProcessPolicy,
    ProducePolicy,
    ProducerLoopPolicy,
    ProducerMixin,
    ProducerSteps,
    RetryPolicy,
)
from ergon_framework.telemetry import add_listener, remove_listener

# 1. Tasks hold domain logic only: no loop, no retry, no timeout, no thread.


class Seller(ProducerMixin, BaseTask):
    """A producer with threads: sells each order it is given and puts it into a queue."""

    def produce_transaction(self, transaction: Transaction) -> None:
        """Called for each order, again after a failure. Returning anything is a success."""
        work(self, transaction)
        self.queue_connector.dispatch_transactions([transaction])

    def handle_produce_exception(self, transaction: Transaction, exc: TransactionException) -> None:
        """Called once per order that failed for good."""
        give_up(self, transaction)


class Packer(ConsumerMixin, BaseTask):
    """A consumer with threads: packs what it finds in a queue."""

    def process_transaction(self, transaction: Transaction) -> str:
        """Called for each order, again after a failure. What it returns goes to the next hook."""
        return work(self, transaction)

    def handle_transaction_success(self, transaction: Transaction, result: str) -> None:
        """Called with what ``process_transaction`` returned. Then the queue is told: ack."""

    def handle_transaction_exception(
        self, transaction: Transaction, exc: TransactionException
    ) -> None:
        """Called once per order that failed for good. Then the queue is told: nack."""
        give_up(self, transaction)


class AsyncSeller(AsyncProducerMixin, BaseAsyncTask):
    """The same producer with asyncio. The rules are the same; only the hooks are coroutines."""

    async def produce_transaction(self, transaction: Transaction) -> None:
        """Called for each order, again after a failure."""
        await work_async(self, transaction)
        await self.queue_connector.dispatch_transactions_async([transaction])

    async def handle_produce_exception(
        self, transaction: Transaction, exc: TransactionException
    ) -> None:
        """Called once per order that failed for good."""
        give_up(self, transaction)


class AsyncPacker(AsyncConsumerMixin, BaseAsyncTask):
    """The same consumer with asyncio. A handler one does not need may be left out."""

    async def process_transaction(self, transaction: Transaction) -> str:
        """Called for each order, again after a failure."""
        return await work_async(self, transaction)

    async def handle_transaction_exception(
        self, transaction: Transaction, exc: TransactionException
    ) -> None:
        """Called once per order that failed for good."""
        give_up(self, transaction)


# 2. Policies hold the operation: how many at once, how often again, how long at most.

PATIENCE = RetryPolicy(max_attempts=ATTEMPTS, timeout=1.5, backoff=0.1)
FOUR_AT_ONCE = ConcurrencyPolicy(value=4)
PRODUCING = ProducerPolicy(
    loop=ProducerLoopPolicy(batch=BatchPolicy(size=15), concurrency=FOUR_AT_ONCE, stop_grace=3.0),
    steps=ProducerSteps(produce=ProducePolicy(retry=PATIENCE)),
)
CONSUMING = ConsumerPolicy(
    loop=ConsumerLoopPolicy(
        mode="continuous",  # a slow order blocks nobody behind it
        batch=BatchPolicy(size=5),
        concurrency=FOUR_AT_ONCE,
        stop_grace=3.0,
    ),
    steps=ConsumerSteps(process=ProcessPolicy(retry=PATIENCE)),
)


# 3. Connectors are injected, and the engine does the rest.


def make_stages(count: int) -> list[Stage]:
    """Both pairs of engines, each pair joined by a queue."""
    queue, async_queue = MemoryConnector(name="orders"), MemoryConnector(name="async orders")
    sold = orders("order", count, "Seller", "Packer")
    async_sold = orders("async", count, "AsyncSeller", "AsyncPacker")
    seller, packer = Seller({"queue": queue}), Packer({"queue": queue})
    async_seller, async_packer = (
        AsyncSeller({"queue": async_queue}),
        AsyncPacker({"queue": async_queue}),
    )
    return [
        Stage(
            "sync producer",
            seller,
            lambda: seller.produce_transactions(sold, PRODUCING),
            given=count,
        ),
        Stage(
            "sync consumer", packer, lambda: packer.consume_transactions(CONSUMING), source=queue
        ),
        Stage(
            "async producer",
            async_seller,
            lambda: asyncio.run(async_seller.produce_transactions(async_sold, PRODUCING)),
            given=count,
        ),
        Stage(
            "async consumer",
            async_packer,
            lambda: asyncio.run(async_packer.consume_transactions(CONSUMING)),
            source=async_queue,
        ),
    ]


# 4. Whoever wants to know what happens listens to notices.


class Stop:
    """What Ctrl-C does: stop gracefully; a second time, at once."""

    def __init__(self, stages: list[Stage], display: Display) -> None:
        self._stages = stages
        self._display = display
        self.was_asked = False

    def __call__(self, *_signal: object) -> None:
        """Ask every running task to stop. Nothing else happens in a signal handler."""
        again = "at once" if self.was_asked else "when it is done; Ctrl-C again: at once"
        self.was_asked = True
        self._display.tell(f"stopping: what runs ends {again}")
        for stage in self._stages:
            stage.task.request_stop()


def main() -> int:
    """Run the stages, show the outcomes, check the sums: 0 when they add up, 1 when not."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # end quietly when nobody reads on
    logging.getLogger("ergon").addHandler(logging.NullHandler())  # the display tells it instead
    logging.getLogger("ergon").propagate = False
    stages = make_stages(count=30)
    with Display(stages) as display:
        stop = Stop(stages, display)
        signal.signal(signal.SIGINT, stop)
        add_listener(display.tally.listen)
        for stage in stages:
            if not stop.was_asked:
                display.tell(f"{stage.name} begins ({stage.kind})")
                stage.start()
        remove_listener(display.tally.listen)
    wrong = list(problems(stages, display.tally, is_partial=stop.was_asked))
    show(display.console, stages, display.tally)
    print(summary(stages, wrong))
    print("How it is made: examples/engines. Your first task: docs/quickstart.md.")
    if wrong:
        return 1
    return 130 if stop.was_asked else 0


if __name__ == "__main__":
    sys.exit(main())
