"""What is known of an exception by its type, looked up once; and which types nobody knows."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import NamedTuple

from ergon_framework.providers.mapping.findings import Finding, Look
from ergon_framework.providers.mapping.names import NAMED, TIME_UP, WRAPPERS

_MOST_TYPES = 1024


class Known(NamedTuple):
    """What the names of a type say."""

    name: str
    names: tuple[str, ...]
    """Its own and those of its bases, the nearest first."""
    found: Finding | Look | None
    unwrap: Callable[[Exception], object] | None


_types: dict[type, Known] = {}


def known(kind: type[Exception]) -> Known:
    """What is known of a type; after the first time, for the price of one look-up."""
    try:
        found = _types.get(kind)
    except TypeError:  # a metaclass without a hash
        return _read(kind)
    if found is None:
        if len(_types) >= _MOST_TYPES:  # somebody makes classes as they go: keep none for ever
            _types.clear()
        found = _types[kind] = _read(kind)
    return found


def is_time_up(error: Exception) -> bool:
    """Whether whoever runs the call wants it to end now: there is no time for another attempt."""
    return not TIME_UP.isdisjoint(known(type(error)).names)


def _read(kind: type[Exception]) -> Known:
    names = tuple(f"{each.__module__}.{each.__qualname__}" for each in kind.__mro__)
    return Known(
        names[0],
        names,
        next((NAMED[name] for name in names if name in NAMED), None),
        next((WRAPPERS[name] for name in names if name in WRAPPERS), None),
    )


class _Unmapped:
    """Counts types without a rule. Of those there are few: too many are counted together."""

    most = 256
    rest = "(others)"

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def renew(self) -> None:
        """In a forked child, where nobody is left to release the lock."""
        self._lock = threading.Lock()

    def add(self, name: str) -> None:
        with self._lock:
            if name not in self._counts and len(self._counts) >= self.most:
                name = self.rest
            self._counts[name] = self._counts.get(name, 0) + 1

    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)


_unmapped = _Unmapped()
os.register_at_fork(after_in_child=_unmapped.renew)

count_unmapped = _unmapped.add


def unmapped_types() -> dict[str, int]:
    """How often each type of exception was met in this process for which there is no rule."""
    return _unmapped.counts()
