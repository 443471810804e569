"""Tasks as the RFCs describe them: hooks, the calls that run them, policies and exceptions.

Every name that users need is here; it is imported at its first use.

- ``ready``: base classes for most tasks; ``functions``: a consumer from a function
- ``base``, ``mixins``: what those are made of, at the paths that the RFCs give them
- ``mixins.policies``: the documents that steer a call; ``options``: their short form
- ``mixins.plans``, ``calls``: from a task and its policy to a call of an engine
- ``inputs``, ``payloads``, ``batches``: what a function gets; ``exceptions``: what hooks may raise
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ergon_framework.lazy_exports import lazy_exports

# For type checkers. At run time lazy_exports imports a name from _HOMES when it is first used.
if TYPE_CHECKING:
    from ergon_framework.errors import (
        ConsumerLoopTimeoutException,
        ExceptionType,
        FetchException,
        FetchTimeoutException,
        InputException,
        LoopTimeoutException,
        NonRetryableException,
        ProducerLoopTimeoutException,
        TransactionException,
        TransactionTimeoutException,
    )
    from ergon_framework.task.base import BaseAsyncTask, BaseTask
    from ergon_framework.task.mixins.consumer import AsyncConsumerMixin, ConsumerMixin
    from ergon_framework.task.mixins.policies import (
        BatchPolicy,
        ConcurrencyPolicy,
        ConsumerLoopPolicy,
        ConsumerPolicy,
        ConsumerSteps,
        EmptyQueuePolicy,
        ExceptionPolicy,
        FetchPolicy,
        ProcessPolicy,
        ProducePolicy,
        ProducerLoopPolicy,
        ProducerPolicy,
        ProducerSteps,
        RetryPolicy,
        SuccessPolicy,
    )
    from ergon_framework.task.mixins.producer import AsyncProducerMixin, ProducerMixin
    from ergon_framework.task.mixins.utils import (
        run_with_timeout,
        run_with_timeout_async,
        with_context,
        with_context_async,
    )
    from ergon_framework.task.options import ConsumerOptions, consumer_policy
    from ergon_framework.task.ready import (
        AsyncConsumerTask,
        AsyncHybridTask,
        AsyncProducerTask,
        ConsumerTask,
        HybridTask,
        ProducerTask,
    )

_HOMES = {
    "AsyncConsumerMixin": "task.mixins.consumer",
    "AsyncConsumerTask": "task.ready",
    "AsyncHybridTask": "task.ready",
    "AsyncProducerMixin": "task.mixins.producer",
    "AsyncProducerTask": "task.ready",
    "BaseAsyncTask": "task.base",
    "BaseTask": "task.base",
    "BatchPolicy": "task.mixins.policies",
    "ConcurrencyPolicy": "task.mixins.policies",
    "ConsumerLoopPolicy": "task.mixins.policies",
    "ConsumerLoopTimeoutException": "errors",
    "ConsumerMixin": "task.mixins.consumer",
    "ConsumerOptions": "task.options",
    "ConsumerPolicy": "task.mixins.policies",
    "ConsumerSteps": "task.mixins.policies",
    "ConsumerTask": "task.ready",
    "EmptyQueuePolicy": "task.mixins.policies",
    "ExceptionPolicy": "task.mixins.policies",
    "ExceptionType": "errors",
    "FetchException": "errors",
    "FetchPolicy": "task.mixins.policies",
    "FetchTimeoutException": "errors",
    "HybridTask": "task.ready",
    "InputException": "errors",
    "LoopTimeoutException": "errors",
    "NonRetryableException": "errors",
    "ProcessPolicy": "task.mixins.policies",
    "ProducePolicy": "task.mixins.policies",
    "ProducerLoopPolicy": "task.mixins.policies",
    "ProducerLoopTimeoutException": "errors",
    "ProducerMixin": "task.mixins.producer",
    "ProducerPolicy": "task.mixins.policies",
    "ProducerSteps": "task.mixins.policies",
    "ProducerTask": "task.ready",
    "RetryPolicy": "task.mixins.policies",
    "SuccessPolicy": "task.mixins.policies",
    "TransactionException": "errors",
    "TransactionTimeoutException": "errors",
    "consumer_policy": "task.options",
    "run_with_timeout": "task.mixins.utils",
    "run_with_timeout_async": "task.mixins.utils",
    "with_context": "task.mixins.utils",
    "with_context_async": "task.mixins.utils",
}

__all__ = [
    "AsyncConsumerMixin",
    "AsyncConsumerTask",
    "AsyncHybridTask",
    "AsyncProducerMixin",
    "AsyncProducerTask",
    "BaseAsyncTask",
    "BaseTask",
    "BatchPolicy",
    "ConcurrencyPolicy",
    "ConsumerLoopPolicy",
    "ConsumerLoopTimeoutException",
    "ConsumerMixin",
    "ConsumerOptions",
    "ConsumerPolicy",
    "ConsumerSteps",
    "ConsumerTask",
    "EmptyQueuePolicy",
    "ExceptionPolicy",
    "ExceptionType",
    "FetchException",
    "FetchPolicy",
    "FetchTimeoutException",
    "HybridTask",
    "InputException",
    "LoopTimeoutException",
    "NonRetryableException",
    "ProcessPolicy",
    "ProducePolicy",
    "ProducerLoopPolicy",
    "ProducerLoopTimeoutException",
    "ProducerMixin",
    "ProducerPolicy",
    "ProducerSteps",
    "ProducerTask",
    "RetryPolicy",
    "SuccessPolicy",
    "TransactionException",
    "TransactionTimeoutException",
    "consumer_policy",
    "run_with_timeout",
    "run_with_timeout_async",
    "with_context",
    "with_context_async",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, _HOMES)
