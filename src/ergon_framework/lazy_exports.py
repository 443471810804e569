"""Packages whose public names are imported at their first use.

A package lists its names twice: as imports for type checkers, which need them spelled out, and as
the homes that this module looks them up in. Importing the package then loads none of them, so that
a program pays only for what it uses::

    if TYPE_CHECKING:
        from ergon_framework.jobs.client import JobClient

    __all__ = ["JobClient"]

    if not TYPE_CHECKING:
        __getattr__, __dir__ = lazy_exports(__name__, {"JobClient": "jobs.client"})

The second condition matters: a type checker that sees ``__getattr__`` takes every name for one of
the package, also a misspelt one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


class LateModule:
    """A module that is imported when one of its names is asked for.

    For the hints of public functions: they name a class as ``policies.ConsumerPolicy``, so that
    ``typing.get_type_hints`` finds it, and nobody else waits for the import.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        # Tools that look at every object of a module ask for these, and it loads for none of them.
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(import_module(self._name), name)


def lazy_exports(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and ``__dir__`` of a package.

    ``homes`` has the module of each name, below ``ergon_framework``.
    """
    module = sys.modules[package]

    def find(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}", name=name, obj=module
            )
        value = getattr(import_module(f"ergon_framework.{home}"), name)
        setattr(module, name, value)  # the next look-up does not come by here
        return value

    def names() -> list[str]:
        return sorted({*vars(module), *homes})

    return find, names
