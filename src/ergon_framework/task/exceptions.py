"""The exceptions tasks raise and engine calls end with, at the path the RFCs give them."""

from __future__ import annotations

from ergon_framework.errors import (
    ConsumerLoopTimeoutException,
    ExceptionCategory,
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

__all__ = [
    "ConsumerLoopTimeoutException",
    "ExceptionCategory",
    "ExceptionType",
    "FetchException",
    "FetchTimeoutException",
    "InputException",
    "LoopTimeoutException",
    "NonRetryableException",
    "ProducerLoopTimeoutException",
    "TransactionException",
    "TransactionTimeoutException",
]
