"""A check that every transaction of a store makes first, while one is set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class WriteGuard(Generic[T]):
    """A condition that has to hold in each transaction that writes, and is checked within it.

    It applies to all users of the same handle of the store, so code that sets a check opens a
    handle of its own.
    """

    __slots__ = ("check",)

    def __init__(self) -> None:
        self.check: Callable[[T], None] | None = None
        """Raises where the transaction must not be made."""

    @contextmanager
    def set(self, check: Callable[[T], None] | None) -> Iterator[None]:
        """Make the check in every transaction from now on, to the end of the block."""
        before, self.check = self.check, check
        try:
            yield
        finally:
            self.check = before
