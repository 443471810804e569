"""How the programs of a campaign bear a store that goes away for a while."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from ergon_framework.errors import StoreError

T = TypeVar("T")

TURNED_AWAY = 75
"""The exit code of a program whose store was away when it started."""
_LOOK = 0.05


def patiently(call: Callable[[], T]) -> T:
    """The answer of a call that may be repeated, when the store gives one."""
    while True:
        try:
            return call()
        except StoreError:
            pause(_LOOK)


def pause(seconds: float) -> None:
    """Let others work."""
    threading.Event().wait(seconds)
