"""The policy documents, at the path earlier versions used (see :mod:`.mixins.policies`)."""

from __future__ import annotations

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

__all__ = [
    "BatchPolicy",
    "ConcurrencyPolicy",
    "ConsumerLoopPolicy",
    "ConsumerPolicy",
    "ConsumerSteps",
    "EmptyQueuePolicy",
    "ExceptionPolicy",
    "FetchPolicy",
    "ProcessPolicy",
    "ProducePolicy",
    "ProducerLoopPolicy",
    "ProducerPolicy",
    "ProducerSteps",
    "RetryPolicy",
    "SuccessPolicy",
]
