"""The consumer engine's surface (RFC-004): a mixin per colour, over the same machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ergon_framework.engine.plan import EnginePlan, Hooks
from ergon_framework.engine.report import Report
from ergon_framework.errors import TransactionException
from ergon_framework.lazy_exports import LateModule
from ergon_framework.ports.transaction import Transaction
from ergon_framework.task.base import BaseTask, choose_connector
from ergon_framework.task.calls import Single, drive, drive_async
from ergon_framework.task.mixins.plans import (
    check_copies,
    check_retry_owner,
    consumer_plan,
    consumer_policy_of,
    fetch_method,
    find_hook,
    malformed_of,
    require_hook,
    settlement_of,
    waits_for_work,
)

if TYPE_CHECKING:
    from ergon_framework.task.mixins import policies

    _Base = BaseTask
else:
    policies = LateModule("ergon_framework.task.mixins.policies")
    _Base = object


class ConsumerMixin(_Base):
    """Consumes transactions with threads.

    Write ``process_transaction``; the two handlers are optional. Each transaction ends in exactly
    one of them; a handler is called again only by its own retry policy.
    """

    def process_transaction(self, transaction: Transaction) -> Any:
        """The domain logic for one transaction. Any returned value is a success."""
        raise NotImplementedError

    def handle_transaction_success(self, transaction: Transaction, result: Any) -> Any:
        """Called with what ``process_transaction`` returned."""

    def handle_transaction_exception(
        self, transaction: Transaction, exc: TransactionException
    ) -> Any:
        """Called for a transaction that failed for good."""

    def consume_transactions(
        self, policy: policies.ConsumerPolicy | Mapping[str, Any] | None = None
    ) -> Report:
        """Fetch and process transactions until the policy says stop.

        Returns a report that is the number of transactions with an outcome. Raises FetchException
        or ConsumerLoopTimeoutException, each with that report, when the loop could not go on.
        """
        return self._consume_transactions(consumer_policy_of(policy))

    def _consume_transactions(self, policy: policies.ConsumerPolicy) -> Report:
        return drive(self, _plan(self, policy, is_async=False))

    def _start_processing(
        self, transaction: Transaction, policy: policies.ConsumerPolicy | None = None
    ) -> tuple[bool, Any]:
        """Run one lifecycle; returns (True, result) or (False, the final exception)."""
        single = Single(_single_plan(self, policy, is_async=False), transaction)
        drive(self, single.plan)
        return single.answer()


class AsyncConsumerMixin(_Base):
    """Consumes transactions with asyncio; otherwise exactly as :class:`ConsumerMixin`."""

    async def process_transaction(self, transaction: Transaction) -> Any:
        """The domain logic for one transaction. Any returned value is a success."""
        raise NotImplementedError

    async def handle_transaction_success(self, transaction: Transaction, result: Any) -> Any:
        """Called with what ``process_transaction`` returned."""

    async def handle_transaction_exception(
        self, transaction: Transaction, exc: TransactionException
    ) -> Any:
        """Called for a transaction that failed for good."""

    async def consume_transactions(
        self, policy: policies.ConsumerPolicy | Mapping[str, Any] | None = None
    ) -> Report:
        """Fetch and process transactions until the policy says stop.

        Returns a report that is the number of transactions with an outcome. Raises FetchException
        or ConsumerLoopTimeoutException, each with that report, when the loop could not go on.
        """
        return await self._consume_transactions(consumer_policy_of(policy))

    async def _consume_transactions(self, policy: policies.ConsumerPolicy) -> Report:
        return await drive_async(self, _plan(self, policy, is_async=True))

    async def _start_processing(
        self, transaction: Transaction, policy: policies.ConsumerPolicy | None = None
    ) -> tuple[bool, Any]:
        """Run one lifecycle; returns (True, result) or (False, the final exception)."""
        single = Single(_single_plan(self, policy, is_async=True), transaction)
        await drive_async(self, single.plan)
        return single.answer()


def _hooks(task: BaseTask, *, is_async: bool) -> Hooks:
    mixin: Any = AsyncConsumerMixin if is_async else ConsumerMixin
    success, exception = "handle_transaction_success", "handle_transaction_exception"
    process = "process_transaction"
    return Hooks(
        require_hook(task, process, is_async=is_async, default=mixin.process_transaction),
        find_hook(task, success, 2, is_async=is_async, default=mixin.handle_transaction_success),
        find_hook(
            task, exception, 2, is_async=is_async, default=mixin.handle_transaction_exception
        ),
    )


def _plan(task: BaseTask, policy: policies.ConsumerPolicy, *, is_async: bool) -> EnginePlan:
    hooks = _hooks(task, is_async=is_async)
    name, connector = choose_connector(task, policy.steps.fetch.connector_name)
    extra = policy.steps.fetch.extra
    method = fetch_method(name, connector, extra, is_async=is_async)
    check_retry_owner(name, connector, policy.steps.process.retry.max_attempts)
    check_copies(policy)
    settlement = None
    if policy.loop.settlement == "engine":
        loop = policy.loop
        settlement = settlement_of(
            connector, loop.settlement_timeout, loop.settlement_attempts, is_async=is_async
        )
    fetch = partial(method, **extra) if extra else method
    waits = waits_for_work(connector, extra)
    plan = consumer_plan(type(task).__name__, policy, hooks, fetch, settlement, source_waits=waits)
    plan.settings["joins_trace"] = getattr(connector, "joins_trace", False) is True
    malformed = partial(malformed_of, connector)
    return replace(plan, wake=getattr(connector, "stop_waiting", None), malformed=malformed)


def _single_plan(task: BaseTask, policy: object, *, is_async: bool) -> EnginePlan:
    chosen = consumer_policy_of(policy)
    # A streaming call would wait for a second transaction, which never comes.
    loop = chosen.loop.model_copy(update={"streaming": False, "limit": 1})
    chosen = chosen.model_copy(update={"loop": loop})
    hooks = _hooks(task, is_async=is_async)
    return consumer_plan(type(task).__name__, chosen, hooks, _nothing, None)


def _nothing(_at_most: int) -> None:
    """A placeholder for a source, until the one transaction replaces it."""
