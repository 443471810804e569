"""What a task is: its role, its colour, how it is executed, and whether its parts fit."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ergon_framework.errors import HookError, WiringError
from ergon_framework.task.base import BaseAsyncTask, BaseTask, choose_connector
from ergon_framework.task.mixins.consumer import AsyncConsumerMixin, ConsumerMixin
from ergon_framework.task.mixins.policies import ConsumerPolicy
from ergon_framework.task.mixins.producer import AsyncProducerMixin, ProducerMixin
from ergon_framework.task.plans import (
    check_copies,
    check_patience,
    fetch_method,
    find_hook,
    require_hook,
)
from ergon_framework.task.ready import AsyncProducerTask, ProducerTask


class Role(StrEnum):
    """What the engine does with a task."""

    CONSUMER = "consumer"
    PRODUCER = "producer"
    HYBRID = "hybrid"  # consumes, and produces from inside
    PLAIN = "plain"  # only an execute of its own


@dataclass(frozen=True, slots=True)
class Kind:
    """A role in a colour."""

    role: Role
    is_async: bool

    @property
    def consumes(self) -> bool:
        """Whether it reads a connector."""
        return self.role in (Role.CONSUMER, Role.HYBRID)

    @property
    def produces(self) -> bool:
        """Whether it has the producer's hooks."""
        return self.role in (Role.PRODUCER, Role.HYBRID)


def kind_of(task: type[BaseTask]) -> Kind:
    """The kind of a task class, from its base classes."""
    consumes = issubclass(task, ConsumerMixin | AsyncConsumerMixin)
    produces = issubclass(task, ProducerMixin | AsyncProducerMixin)
    has_threads = issubclass(task, ConsumerMixin | ProducerMixin)
    is_async = issubclass(task, AsyncConsumerMixin | AsyncProducerMixin)
    if has_threads and is_async:
        raise WiringError(
            f"{task.__name__} mixes synchronous and asynchronous mixins",
            remedy="take both from one colour: ConsumerMixin and ProducerMixin, or the Async ones",
        )
    if not consumes and not produces:
        return Kind(Role.PLAIN, is_async=issubclass(task, BaseAsyncTask))
    role = Role.HYBRID if consumes and produces else Role.CONSUMER if consumes else Role.PRODUCER
    return Kind(role, is_async)


def execution_of(task: Any, kind: Kind) -> Callable[..., Any]:
    """What running the task means: its ``execute``, or for a consumer to consume."""
    execute = getattr(task, "execute", None)
    if callable(execute):
        return execute  # type: ignore[no-any-return]
    if kind.consumes:
        return task.consume_transactions  # type: ignore[no-any-return]
    name = _name(task)
    raise HookError(
        f"{name} has no execute, so there is nothing to run",
        remedy=f"derive {name} from ProducerTask and write transactions(), or write execute(policy)"
        if kind.produces
        else "write execute(self), or derive it from ConsumerTask or ProducerTask",
    )


def policies_taken(task: Any, kind: Kind) -> int:
    """How many policies the execution takes: a hybrid's may take both."""
    execute = execution_of(task, kind)
    most = 2 if kind.role is Role.HYBRID else 0 if kind.role is Role.PLAIN else 1
    for count in range(most, -1, -1):
        if accepts(execute, count):
            return count
    raise HookError(
        f"{_name(task)}.execute cannot be called with its policy alone",
        remedy="define it as execute(self, policy)" if most else "define it as execute(self)",
    )


def check_hooks(task: Any, kind: Kind) -> None:
    """Refuse hooks that are missing, cannot be called or have the wrong colour."""
    is_async = kind.is_async
    if kind.consumes:
        mixin: Any = AsyncConsumerMixin if is_async else ConsumerMixin
        _check_hooks(task, mixin, "process_transaction", "handle_transaction", is_async=is_async)
    if kind.produces:
        mixin = AsyncProducerMixin if is_async else ProducerMixin
        _check_hooks(task, mixin, "produce_transaction", "handle_produce", is_async=is_async)
    _check_input(type(task))


def _check_input(task: type) -> None:
    """A ready-made producer must say what it produces, unless it executes in a way of its own."""
    for ready in (ProducerTask, AsyncProducerTask):
        if not issubclass(task, ready) or task.execute is not ready.execute:
            continue
        if task.transactions is ready.transactions:
            raise HookError(
                f"{task.__name__} has no transactions",
                remedy="define it: def transactions(self), returning what is to be produced",
            )


def check_connectors(task: Any, kind: Kind, policy: ConsumerPolicy | None) -> None:
    """Refuse a name that is unknown or ambiguous, and a connector of the wrong colour.

    A connector that is None is not known yet, and gets the benefit of the doubt.
    """
    if not kind.consumes:
        return
    policy = policy or ConsumerPolicy()
    check_copies(policy)
    steps = policy.steps
    name, connector = choose_connector(task, steps.fetch.connector_name)
    if connector is not None:
        fetch_method(name, connector, steps.fetch.extra, is_async=kind.is_async)
        check_patience(name, connector, steps.process.retry.max_attempts)


def _check_hooks(task: Any, mixin: Any, step: str, handlers: str, *, is_async: bool) -> None:
    require_hook(task, step, is_async=is_async, default=getattr(mixin, step))
    for name in (f"{handlers}_success", f"{handlers}_exception"):
        find_hook(task, name, 2, is_async=is_async, default=getattr(mixin, name))


def accepts(function: Callable[..., Any], count: int) -> bool:
    """Whether it can be called with so many positional arguments."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    return True


def _name(task: Any) -> str:
    return task.__name__ if isinstance(task, type) else type(task).__name__
