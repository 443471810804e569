"""Keeps the removal of bytes apart from the moment in which the same bytes get a name.

Bytes lie under their digest, so a removal may hit those that somebody has just put again and is
about to name.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from ergon_framework.errors import NodeUnavailableError

T = TypeVar("T")


class BlobGuard:
    """Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._storing = 0
        self._pulling = 0

    @contextmanager
    def storing(self) -> Iterator[None]:
        """Around putting bytes on disk and naming them."""
        with self._lock:
            self._storing += 1
        try:
            yield
        finally:
            with self._lock:
                self._storing -= 1

    @contextmanager
    def pulling(self) -> Iterator[None]:
        """Around fetching what facts refer to and taking the facts in."""
        with self._lock:
            self._pulling += 1
        try:
            yield
        finally:
            with self._lock:
                self._pulling -= 1

    def unname(self, unbind: Callable[[], T]) -> T:
        """Take a name away, unless a fact may be about to refer to it."""
        with self._lock:
            if self._pulling:
                raise NodeUnavailableError(
                    "artifacts of a peer are being taken in", reason="busy", remedy="try again"
                )
            return unbind()

    def remove(self, is_free: Callable[[], bool], delete: Callable[[], Any]) -> bool:
        """Delete if nobody is storing anything and nothing names the bytes; whether it was done.

        What is left for now goes with a later sweep.
        """
        with self._lock:
            if self._storing or not is_free():
                return False
            delete()
            return True
