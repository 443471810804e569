"""What calling a function gives: a value, a coroutine, or something that yields.

Asked of functions, of a ``partial`` of one, and of objects that can be called.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any


def is_coroutine(function: Any) -> bool:
    """Whether calling it gives a coroutine."""
    return _is_any(inspect.iscoroutinefunction, function)


def is_generator(function: Any) -> bool:
    """Whether calling it gives a generator that is not async."""
    return _is_any(inspect.isgeneratorfunction, function)


def is_async_generator(function: Any) -> bool:
    """Whether calling it gives an async generator."""
    return _is_any(inspect.isasyncgenfunction, function)


def _is_any(asks: Callable[[Any], bool], function: Any) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    # Of an object it is the method that has a colour; a class is called to make one.
    called = None if isinstance(function, type) else getattr(function, "__call__", None)  # noqa: B004 - its colour is asked, not whether it is there
    return asks(function) or asks(called)
