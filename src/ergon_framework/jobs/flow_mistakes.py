"""Error messages for values that are no steps of a chain or group: what was given, and what to
write instead.

But for :func:`refuse_spent`, nothing here is called unless there is a mistake.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from inspect import GEN_CLOSED, getgeneratorstate
from types import FunctionType, GeneratorType, MethodType
from typing import Any

from ergon_framework.errors import FlowPartError
from ergon_framework.jobs.flow_client import EnqueuedId

_FORMS = "write handler.step(...), the name of a handler, (handler, args, kwargs), or a dict"
_SEVERAL = "write chain(*steps) for one after the other, or group(steps) for side by side"
_RAN = "a handler that is called runs here and now, and its result is no step"


def no_part(given: Any, kind: str, number: int) -> FlowPartError:
    """The error for a value in a chain or group that is no step. ``number`` counts from 1; 0 is
    ``then``.
    """
    place = f"part {number} of a {kind}" if number else f"then of a {kind}"
    problem, remedy = _mistake(given)
    return FlowPartError(
        f"{place} is {problem}", remedy=remedy, details={"of": kind, "part": number or "then"}
    )


def no_list(given: Any) -> FlowPartError:
    """The error for a group that was given something other than a list of its parts."""
    what = {str: "one text", dict: "one dict", type(None): "None"}.get(type(given), "")
    return FlowPartError(
        f"a group takes a list of steps, and was given {what or _mistake(given)[0]}",
        remedy="write a list, also for one: group([resize.step(80)])",
        details={"of": "group"},
    )


def refuse_spent(parts: Any) -> None:
    """Refuse a generator that was used before. It has no steps left, and would count as an empty
    list.
    """
    if type(parts) is GeneratorType and getgeneratorstate(parts) == GEN_CLOSED:
        raise FlowPartError(
            "a group takes a list of steps, and was given a generator that was used before",
            remedy="make a new one for each group: group([resize.step(n) for n in sizes])",
            details={"of": "group"},
        )


def _mistake(given: Any) -> tuple[str, str]:
    """What the value is, and what to write instead."""
    if isinstance(given, EnqueuedId):
        what = "flow" if "Flow" in type(given).__name__ else "job"
        waits = "handler.options(after=[job]).enqueue(...) waits for a job that is there"
        return f"a {what} that is enqueued already", f"write handler.step(...); {waits}"
    if isinstance(given, list | tuple):
        return _of_several(given)
    if isinstance(given, Iterator | AsyncIterator):
        return "an iterator", _SEVERAL
    if isinstance(given, Coroutine):
        title = getattr(given, "__qualname__", "")
        # The name of a method, such as aenqueue, is not the name of a handler.
        is_method = "." in title and not title.rpartition(".")[0].endswith("<locals>")
        name = "handler" if is_method or not title else title.rpartition(".")[2]
        given.close()  # Closed, or Python would warn that it was never awaited.
        return f"a coroutine: {_RAN}", f"write {name}.step(...) instead of {name}(...)"
    if isinstance(given, MethodType):
        # A method of a handler, whose owner has the name of its function.
        owner = getattr(given.__self__, "__name__", "")
        call = f"{owner}.step(...)" if owner else f"app.{given.__name__}(...)"
        return f"the method {given.__name__}, which is not called", f"write {call}"
    if isinstance(given, FunctionType):
        return _of_a_function(given.__name__)
    if given is None or isinstance(given, int | float | bytes | set | frozenset):
        what = "None" if given is None else f"a value of type {type(given).__name__}"
        return f"{what}: {_RAN}", "write handler.step(...) instead of handler(...)"
    if isinstance(given, type):
        return f"the class {given.__name__}", _FORMS
    if isinstance(given, Mapping):
        return (
            "a dict whose handler is no text",
            'write its name, as in {"handler": "resize", "args": [80]}',
        )
    if type(given).__name__ == "HandlerArguments":
        return "what call(...) of a handler made", "write handler.step(...) instead"
    return f"a value of type {type(given).__name__}", _FORMS


def _of_several(given: Sequence[Any]) -> tuple[str, str]:
    first = given[0] if given else None
    if callable(first):
        name = getattr(first, "__name__", "handler")
        what = type(given).__name__
        return f"a {what} that begins with {name} itself", f"write {name}.step(...)"
    what = f"a {type(given).__name__} that does not begin with the name of a handler"
    return what, _SEVERAL if given else _FORMS


def _of_a_function(name: str) -> tuple[str, str]:
    if name == "<lambda>":
        return "a lambda", "write a function with @app.job above it, and its .step(...) here"
    return (
        f"the function {name}, which is no handler of jobs",
        f"write @app.job above def {name}, and {name}.step(...) here",
    )
