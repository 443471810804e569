"""Calls that Python itself refuses, told as every mistake is: what was wrong, and what to write."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import ParamSpec, TypeVar

from ergon_framework.errors import UsageError

P = ParamSpec("P")
T = TypeVar("T")


def shows(*examples: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Let a method that is called with the wrong arguments answer with an example of its use.

    For methods that a program calls to declare its work, or once for much work: it costs a frame.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return function(*args, **kwargs)
            except TypeError as error:
                below = error.__traceback__ and error.__traceback__.tb_next
                if below is not None:  # raised inside: the function has begun
                    raise
                said = _refused(function, args, kwargs) or str(error)
                raise UsageError(
                    f"{function.__qualname__}: {said}",
                    remedy=f"write for example {', or '.join(examples)}",
                ) from None

        return call

    return decorate


def _refused(
    function: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
) -> str:
    """What does not fit, in the words of ``inspect``: Python counts ``self`` as well."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    return ""
