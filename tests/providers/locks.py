"""The locks that objects make for themselves, to be held while a process forks."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


@contextmanager
def recorded_locks(package: str) -> Iterator[list[threading.Lock]]:
    """The locks that modules of a package make in the block."""
    locks: list[threading.Lock] = []
    make: Any = threading.Lock

    def recorded() -> threading.Lock:
        lock: threading.Lock = make()
        here = inspect.currentframe()
        caller = None if here is None else here.f_back
        if caller is not None and str(caller.f_globals.get("__name__")).startswith(package):
            locks.append(lock)
        return lock

    threading.Lock = recorded  # type: ignore[assignment]
    try:
        yield locks
    finally:
        threading.Lock = make


@contextmanager
def holding(locks: list[threading.Lock]) -> Iterator[None]:
    """Hold all of them."""
    with ExitStack() as stack:
        for lock in locks:
            stack.enter_context(lock)
        yield
