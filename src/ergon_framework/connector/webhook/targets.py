"""The targets of deliveries: a connector that produces, or a handler of an App."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from ergon_framework.connector.base import OwnThreads
from ergon_framework.errors import ConfigurationError, ErgonError
from ergon_framework.ports.transaction import Transaction

Store = Callable[[Transaction], Awaitable[None]]
_KNOWN = frozenset({"duplicate_job", "conflicting_job", "conflicting_duplicate"})
"""Codes of errors which say that the id of a delivery is there already."""


def is_known(error: Exception) -> bool:
    """Whether the delivery was stored before.

    Its content may differ: some senders write into a repeat how often they have tried.
    """
    return isinstance(error, ErgonError) and error.code in _KNOWN


def store_of(target: Any, payload_names: tuple[str, ...]) -> Store:
    """The function that stores one delivery in the target, and returns when it is stored."""
    if callable(getattr(target, "aenqueue", None)):
        return _enqueuing(target, payload_names)
    if getattr(target, "volatile", False):
        raise ConfigurationError(
            f"a webhook must not be answered before it is on disk, and {type(target).__name__}"
            " keeps things in memory",
            remedy='give a handler of an App, JobsConnector("sqlite:///work.db", …), or another'
            " connector whose content outlives the process",
        )
    native = getattr(target, "dispatch_transactions_async", None)
    if callable(native):

        async def dispatch(transaction: Transaction) -> None:
            await native([transaction])

        return dispatch
    blocking = getattr(target, "dispatch_transactions", None)
    if not callable(blocking):
        raise ConfigurationError(
            f"a webhook cannot be put into {type(target).__name__}: it has no"
            " dispatch_transactions",
            remedy="give a connector that can be produced to, or a handler of an App",
        )
    threads = OwnThreads("ergon-webhook")

    async def dispatch_in_thread(transaction: Transaction) -> None:
        await threads.run(blocking, [transaction])

    return dispatch_in_thread


def _enqueuing(handler: Any, names: tuple[str, ...]) -> Store:
    """Each delivery is a job of that handler, with its options."""
    try:
        inspect.signature(handler.function).bind(**dict.fromkeys(names))
    except TypeError as error:
        raise ConfigurationError(
            f"the handler {handler.name!r} cannot take a webhook: {error}",
            remedy=f"write def {handler.function.__name__}({', '.join(names)})",
        ) from None

    async def enqueue(transaction: Transaction) -> None:
        metadata = transaction.metadata
        names = ("traceparent", "tracestate")
        trace = {name: metadata[name] for name in names if name in metadata}
        options: dict[str, Any] = {"trace_context": trace} if trace else {}
        once = handler.options(id=transaction.transaction_id, **options)
        await once.aenqueue(**transaction.payload)

    return enqueue
