"""The executor's side of the protocol: a registry of handlers, and the process that runs them.

Promises: whatever a handler does, its request is answered once and the process lives; what it
prints never reaches the protocol; a request whose deadline has passed is not begun. Not promised:
that a handler in a thread stops at its deadline. It is answered for, and the process is replaced.

Where to look first:

- ``registry``, ``binding``, ``loading``: handlers by name, their arguments, ``module:registry``
- ``context``: what a handler sees of its job, and how it asks for another attempt
- ``process``, ``runtime``, ``hooks``: the program, and the life of its process from lifespans on
- ``stdio``, ``thread_pool``, ``event_loop``: the pipes, and where plain and async handlers run
- ``invocation``, ``outcomes``: one request to its outcome, and how outcomes are written
- ``batch``: handlers that are called once for many requests; ``progress``: what handlers report
- ``tracing``: the span of a request, imported when one is needed
"""

from __future__ import annotations

from ergon_framework.executor.binding import InvalidArgumentsError
from ergon_framework.executor.context import Held, JobContext, RetryLater, current_job
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
