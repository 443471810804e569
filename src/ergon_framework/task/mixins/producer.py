"""The producer engine's surface (RFC-005): a mixin per colour, over the same machine."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ergon_framework.engine.plan import EnginePlan, Hook, Hooks
from ergon_framework.engine.report import Report
from ergon_framework.errors import TransactionException, WiringError
from ergon_framework.lazy_exports import LateModule
from ergon_framework.ports.transaction import Transaction
from ergon_framework.task.base import BaseTask
from ergon_framework.task.calls import Single, drive, drive_async
from ergon_framework.task.inputs import Input
from ergon_framework.task.mixins.plans import (
    find_hook,
    producer_plan,
    producer_policy_of,
    require_hook,
)
from ergon_framework.telemetry import inject, is_tracing

if TYPE_CHECKING:
    from ergon_framework.task.mixins import policies

    _Base = BaseTask
else:
    policies = LateModule("ergon_framework.task.mixins.policies")
    _Base = object


class ProducerMixin(_Base):
    """Produces transactions with threads.

    Write ``produce_transaction``; the two handlers are optional. The input is split into batches
    that run one after the other; an id given twice is produced once and reported.
    """

    def produce_transaction(self, transaction: Transaction) -> Any:
        """Deliver one transaction. Any returned value is a success."""
        raise NotImplementedError

    def handle_produce_success(self, transaction: Transaction, result: Any) -> Any:
        """Called with what ``produce_transaction`` returned."""

    def handle_produce_exception(self, transaction: Transaction, exc: TransactionException) -> Any:
        """Called for a transaction that could not be produced."""

    def produce_transactions(
        self,
        transactions: Iterable[Transaction],
        policy: policies.ProducerPolicy | Mapping[str, Any] | None = None,
    ) -> Report:
        """Produce every given transaction, within the policy's bounds.

        Returns a report that is the number of transactions with an outcome. Raises
        ProducerLoopTimeoutException, or InputException when the iterable itself raised; both carry
        that report.
        """
        if isinstance(transactions, AsyncIterable):
            raise WiringError(
                "produce_transactions was given an asynchronous iterable, but the task is "
                "synchronous",
                remedy="use AsyncProducerMixin with BaseAsyncTask, or give a list or a generator",
            )
        chosen = producer_policy_of(policy)
        return drive(self, _plan(self, Input(transactions), chosen, is_async=False))

    def _start_producing(
        self, transaction: Transaction, policy: policies.ProducerPolicy | None = None
    ) -> tuple[bool, Any]:
        """Run one lifecycle; returns (True, result) or (False, the final exception)."""
        chosen = producer_policy_of(policy)
        single = Single(_plan(self, Input(()), chosen, is_async=False), transaction)
        drive(self, single.plan)
        return single.answer()


class AsyncProducerMixin(_Base):
    """Produces transactions with asyncio; otherwise exactly as :class:`ProducerMixin`."""

    async def produce_transaction(self, transaction: Transaction) -> Any:
        """Deliver one transaction. Any returned value is a success."""
        raise NotImplementedError

    async def handle_produce_success(self, transaction: Transaction, result: Any) -> Any:
        """Called with what ``produce_transaction`` returned."""

    async def handle_produce_exception(
        self, transaction: Transaction, exc: TransactionException
    ) -> Any:
        """Called for a transaction that could not be produced."""

    async def produce_transactions(
        self,
        transactions: Iterable[Transaction] | AsyncIterable[Transaction],
        policy: policies.ProducerPolicy | Mapping[str, Any] | None = None,
    ) -> Report:
        """Produce every given transaction, within the policy's bounds.

        Returns a report that is the number of transactions with an outcome. Raises
        ProducerLoopTimeoutException, or InputException when the iterable itself raised; both carry
        that report.
        """
        chosen = producer_policy_of(policy)
        return await drive_async(self, _plan(self, Input(transactions), chosen, is_async=True))

    async def _start_producing(
        self, transaction: Transaction, policy: policies.ProducerPolicy | None = None
    ) -> tuple[bool, Any]:
        """Run one lifecycle; returns (True, result) or (False, the final exception)."""
        chosen = producer_policy_of(policy)
        single = Single(_plan(self, Input(()), chosen, is_async=True), transaction)
        await drive_async(self, single.plan)
        return single.answer()


def _traced(hook: Hook) -> Hook:
    """Add the span of the attempt that sends it to a transaction."""
    return lambda transaction: hook(inject(transaction))


def _plan(
    task: BaseTask, given: Input, policy: policies.ProducerPolicy, *, is_async: bool
) -> EnginePlan:
    mixin: Any = AsyncProducerMixin if is_async else ProducerMixin
    success, exception = "handle_produce_success", "handle_produce_exception"
    produce = require_hook(
        task, "produce_transaction", is_async=is_async, default=mixin.produce_transaction
    )
    hooks = Hooks(
        # Asked once for a call: an attempt without tracing makes no further call.
        _traced(produce) if is_tracing() else produce,
        find_hook(task, success, 2, is_async=is_async, default=mixin.handle_produce_success),
        find_hook(task, exception, 2, is_async=is_async, default=mixin.handle_produce_exception),
    )
    return producer_plan(type(task).__name__, policy, hooks, given)
