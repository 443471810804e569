"""Random numbers for jitter, from a generator of our own.

The generator of the ``random`` module is the user's. A simulation or a test that seeds it expects
the same numbers, whether or not a worker or a provider in the same process draws some for a
backoff.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_generator = random.Random()  # noqa: S311 - jitter
_throws: list[Callable[[], float]] = [_generator.random]  # the last one counts


def roll() -> float:
    """A number from 0 up to 1, from any thread."""
    return _throws[-1]()


@contextmanager
def loaded_dice(value: float) -> Iterator[None]:
    """Make ``roll`` always return this value, for tests of waits with jitter."""
    _throws.append(lambda: value)
    try:
        yield
    finally:
        _throws.pop()


os.register_at_fork(after_in_child=_generator.seed)  # or all children would wait equally long
