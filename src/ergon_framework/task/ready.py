"""Ready-made tasks: the mixins with a base class and a default ``execute``.

The policies are given to ``execute`` by the runner, or by you; a task never looks at them.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from typing import TYPE_CHECKING, Any

from ergon_framework.engine.report import Report
from ergon_framework.errors import HookError
from ergon_framework.lazy_exports import LateModule
from ergon_framework.ports.transaction import Transaction
from ergon_framework.task.base import BaseAsyncTask, BaseTask
from ergon_framework.task.mixins.consumer import AsyncConsumerMixin, ConsumerMixin
from ergon_framework.task.mixins.producer import AsyncProducerMixin, ProducerMixin

if TYPE_CHECKING:
    from ergon_framework.task.mixins import policies
else:
    policies = LateModule("ergon_framework.task.mixins.policies")


class ConsumerTask(ConsumerMixin, BaseTask):
    """A consumer: write ``process_transaction``."""

    def execute(self, policy: policies.ConsumerPolicy | None = None) -> Report:
        """Consume until the policy says stop."""
        return self.consume_transactions(policy)


class ProducerTask(ProducerMixin, BaseTask):
    """A producer: write ``produce_transaction`` and ``transactions``."""

    def transactions(self) -> Iterable[Transaction]:
        """What ``execute`` produces."""
        raise HookError(
            f"{type(self).__name__} has no transactions to produce",
            remedy="define it: def transactions(self) -> Iterable[Transaction]",
        )

    def execute(self, policy: policies.ProducerPolicy | None = None) -> Report:
        """Produce what ``transactions`` gives."""
        return self.produce_transactions(self.transactions(), policy)


class HybridTask(ConsumerMixin, ProducerMixin, BaseTask):
    """Consumes, and produces from inside: lineage and trace are carried over by themselves."""

    def execute(self, policy: policies.ConsumerPolicy | None = None) -> Report:
        """Consume until the policy says stop."""
        return self.consume_transactions(policy)


class AsyncConsumerTask(AsyncConsumerMixin, BaseAsyncTask):
    """A consumer with coroutines: write ``process_transaction``."""

    async def execute(self, policy: policies.ConsumerPolicy | None = None) -> Report:
        """Consume until the policy says stop."""
        return await self.consume_transactions(policy)


class AsyncProducerTask(AsyncProducerMixin, BaseAsyncTask):
    """A producer with coroutines: write ``produce_transaction`` and ``transactions``."""

    def transactions(self) -> Iterable[Transaction] | AsyncIterable[Transaction]:
        """What ``execute`` produces."""
        raise HookError(
            f"{type(self).__name__} has no transactions to produce",
            remedy="define it: def transactions(self) -> Iterable[Transaction]",
        )

    async def execute(self, policy: policies.ProducerPolicy | None = None) -> Report:
        """Produce what ``transactions`` gives."""
        return await self.produce_transactions(self.transactions(), policy)


class AsyncHybridTask(AsyncConsumerMixin, AsyncProducerMixin, BaseAsyncTask):
    """Consumes, and produces from inside, with coroutines."""

    async def execute(self, policy: policies.ConsumerPolicy | None = None) -> Report:
        """Consume until the policy says stop."""
        return await self.consume_transactions(policy)


class Dispatching:
    """Mix in before a producer: delivers through an injected connector, once per attempt.

    ``target`` names the connector; with a single one it may stay None.
    """

    target: str | None = None
    connectors: Any

    def produce_transaction(self, transaction: Transaction) -> Any:
        """Hand the transaction to the target connector."""
        return _target(self).dispatch_transactions([transaction])


class AsyncDispatching:
    """The async version of :class:`Dispatching`."""

    target: str | None = None
    connectors: Any

    async def produce_transaction(self, transaction: Transaction) -> Any:
        """Hand the transaction to the target connector."""
        return await _target(self).dispatch_transactions_async([transaction])


def _target(task: Any) -> Any:
    from ergon_framework.task.base import choose_connector

    return choose_connector(task, task.target)[1]
