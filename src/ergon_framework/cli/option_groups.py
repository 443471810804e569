"""Options that several commands share, declared once.

Typer reads the options of a command from its signature. A function declares the options of a group
and makes one value of them; a command takes that value as one argument, and :func:`expanded` puts
the options in the place of that argument.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from functools import wraps
from typing import Any, TypeVar

R = TypeVar("R")


def expanded(
    *, leaves_out: Collection[str] = (), **groups: Callable[..., Any]
) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Let a command take groups of options, each as the argument that names it.

    ``leaves_out`` are options that this command does not have; their groups use the defaults.
    """

    def decorate(command: Callable[..., R]) -> Callable[..., R]:
        own = inspect.signature(command, eval_str=True)
        members = {name: _options_of(make, leaves_out) for name, make in groups.items()}
        options = [
            option for each in own.parameters.values() for option in members.get(each.name, (each,))
        ]

        @wraps(command)
        def called(**given: Any) -> R:
            for name, make in groups.items():
                # One that was left out further up is not given: its group has a default for it.
                taken = {each.name for each in members[name]} & given.keys()
                given[name] = make(**{option: given.pop(option) for option in taken})
            return command(**given)

        # What Typer looks at: the one for the order and the defaults, the other for the types.
        called.__signature__ = own.replace(parameters=options)  # type: ignore[attr-defined]
        called.__annotations__ = {each.name: each.annotation for each in options}
        return called

    return decorate


def _options_of(
    make: Callable[..., Any], leaves_out: Collection[str]
) -> tuple[inspect.Parameter, ...]:
    """The options of a group, by keyword: then arguments without a default may follow them."""
    found = inspect.signature(make, eval_str=True).parameters.values()
    kind = inspect.Parameter.KEYWORD_ONLY
    return tuple(each.replace(kind=kind) for each in found if each.name not in leaves_out)
