"""The executor's side of the protocol: a registry of handlers, and the process that runs them.

Promises: whatever a handler does, its request is answered once and the process lives; what it
prints never reaches the protocol; a request whose deadline has passed is not begun. Not promised:
that a handler in a thread stops at its deadline. It is answered for, and the process is replaced.
"""

from __future__ import annotations

from ergon_framework.executor.asking import Held, RetryLater
from ergon_framework.executor.binding import InvalidArgumentsError
from ergon_framework.executor.context import JobContext, current_job
from ergon_framework.executor.registry import HandlerNotFoundError, Registry

__all__ = [
    "HandlerNotFoundError",
    "Held",
    "InvalidArgumentsError",
    "JobContext",
    "Registry",
    "RetryLater",
    "current_job",
]
