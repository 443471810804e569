"""Handlers for the Python runtime: ``ergon executor --app handlers:registry`` in this folder."""

from __future__ import annotations

import asyncio
from typing import Any

from ergon_framework.executor import JobContext, Registry, RetryLater

registry = Registry()


@registry.handler
def echo(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """Give back what was sent."""
    return {"args": args, "kwargs": kwargs}


@registry.handler
def fail(message: str = "this handler always fails") -> None:
    """Fail, as any exception does."""
    raise RuntimeError(message)


@registry.handler
def retry(delay: float = 5) -> None:
    """Ask for another attempt, later."""
    raise RetryLater("try again in a while", delay=delay)


@registry.handler
async def sleep(seconds: float) -> float:
    """Take a while; async handlers share one event loop and are cancelled at their deadline."""
    await asyncio.sleep(seconds)
    return seconds


@registry.handler("print")
def print_text(text: str = "hello") -> None:
    """Print: it appears on the standard error, where the orchestrator's log finds it."""
    print(text)


@registry.handler
def unserialisable() -> object:
    """Return what JSON cannot hold: an error of its own kind."""
    return object()


@registry.handler
def whoami(job: JobContext) -> dict[str, Any]:
    """Tell what a handler may know about its job."""
    return {"job_id": job.job_id, "attempt": job.attempt, "queue": job.queue_name}
