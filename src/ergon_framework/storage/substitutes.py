"""Test doubles of stores, by URL.

Code that opens a store by its URL asks here first. Outside of a test nothing is registered, and the
URL decides.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Substitute = Callable[[str, str], Any]
"""Gets a kind of store (``jobs``) and a URL; gives an open store, or None for the real one.

The kind ``clock`` has no URL: a test that replaces stores by ones with a virtual clock gives the
function that returns its time.
"""

_lock = threading.Lock()
_substitutes: list[Substitute] = []


def find_substitute(kind: str, url: str) -> Any:
    """The store that a test has put in the place of this one; None outside of such a test."""
    for substitute in reversed(_substitutes):
        store = substitute(kind, url)
        if store is not None:
            return store
    return None


@contextmanager
def substituted(substitute: Substitute) -> Iterator[None]:
    """Let ``substitute`` answer for all threads of this process; the last one is asked first.

    Not for this context alone: a test server runs the application under test in its own threads.
    """
    with _lock:
        _substitutes.append(substitute)
    try:
        yield
    finally:
        with _lock:
            _substitutes.remove(substitute)
